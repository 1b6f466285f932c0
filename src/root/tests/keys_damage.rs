//! Damaged key slots and roots, and keys that are put back or kept.

use super::keys::remembering;
use super::keys_changes::{holding, until_held};
use super::keys_rotation::held;
use super::keys_support::*;
use super::support::{Seeded, time};
use crate::root::choice::KeyChoice;
use crate::root::error::{ErrorKind, RootError};
use crate::root::rotation::rotate;
use crate::root::slot_error::SlotsError;
use crate::root::slots::Slots;
use crate::root::state::ROOT_KEY;
use bkfs_chunker::crypto::SlotName;
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault as Trouble, FaultStore, Gate, Strike};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

async fn slots_by(
    store: &Arc<dyn Store>,
    password: &str,
    choice: KeyChoice,
) -> Result<Slots, SlotsError> {
    let password = Zeroizing::new(password.as_bytes().to_vec());
    Slots::open(store.clone(), Seeded::next(), password, choice).await
}

/// Returns the only key of a repository that opens with "first".
async fn own_of(store: &Arc<dyn Store>) -> SlotName {
    let (key, _) = keys(store).await.pop_first().expect("one");
    SlotName::from_key(&key).expect("a slot's")
}

fn kind_of(error: SlotsError) -> (ErrorKind, String) {
    let SlotsError::Root(error) = error else {
        panic!("{error}");
    };
    (error.kind(), error.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_root_that_was_damaged_before_gives_no_key_back() {
    let store = made().await;
    let repository = repository_of(&store).await;
    let name = SlotName(7);
    put(&store, &name.key(), hostile(repository, name, "x", CHEAP)).await;
    // This byte is in the salt: the header does not verify.
    turn(&store, ROOT_KEY, 70).await;
    let opened = slots(&store, "first", 3).await.expect("it opens");
    let refused = opened.remove(&[name], false, time(1), None).await;
    assert!(matches!(refused, Err(SlotsError::Foreign { .. })));
    let given_up = opened.remove(&[name], true, time(1), None).await;
    given_up.expect("nothing was rotated");
    assert_eq!(keys(&store).await.len(), 1);
}

/// Returns a repository that "second" opens too, and in which a rotation by "first" was cut off:
/// [`FaultStore::apply_late`] of the second store lets its replacement of the root arrive.
async fn with_late_rotation() -> (Arc<dyn Store>, Arc<FaultStore>) {
    let store = made().await;
    add(&store, "second", "two").await;
    let late = Arc::new(FaultStore::new(store.clone()));
    let replacing = |trouble| Strike::with(trouble).on(Operation::Replace).keys(ROOT_KEY);
    late.plan(replacing(Trouble::Late));
    late.plan(
        replacing(Trouble::FailBefore(StoreErrorKind::Denied))
            .nth(2)
            .always(),
    );
    let through: Arc<dyn Store> = late.clone();
    rotated(&through, "first", 30).await.expect_err("cut off");
    (store, late)
}

/// "second" gives up the key of a rotation by "first", whose replacement of the root arrives after
/// the deletion of that key. `troubles` then strike the writes under the name of that key. Returns
/// the result of the removal, with the name and the object of the key.
async fn given_up_meanwhile(
    troubles: &[Strike],
    state: &Path,
) -> (Arc<dyn Store>, SlotName, Bytes, Result<(), SlotsError>) {
    let (store, late) = with_late_rotation().await;

    let (gate, faulty, through) = holding(&store, Operation::Head, 1).await;
    let choice = KeyChoice {
        named: None,
        state_dir: Some(state.to_owned()),
    };
    let opened = slots_by(&through, "second", choice)
        .await
        .expect("it opens");
    let newer = opened.list().iter().find(|slot| slot.epoch == Some(1));
    let newer = newer.expect("of the rotation").name;
    let (object, _) = store.get(&newer.key()).await.expect("there");
    for trouble in troubles {
        faulty.plan(trouble.clone().on(Operation::PutNew).keys(&newer.key()));
    }
    let removing = tokio::spawn(async move { opened.remove(&[newer], true, time(1), None).await });
    until_held(&faulty).await;
    assert!(store.head(&newer.key()).await.is_err(), "it is deleted");
    late.apply_late().await;
    gate.open();
    let removed = removing.await.expect("no panic");
    (store, newer, object, removed)
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_needed_is_put_back_however_the_store_answers() {
    let unreachable = StoreErrorKind::Unreachable;
    let lost = StoreErrorKind::OutcomeUnknown;
    let troubles = [
        vec![],
        vec![Strike::with(Trouble::FailBefore(unreachable)).times(3)],
        // The write is applied, and found there when it is sent again.
        vec![Strike::with(Trouble::FailAfter(lost))],
    ];
    for troubles in troubles {
        let state = tempfile::tempdir().expect("a directory");
        let (store, newer, object, removed) = given_up_meanwhile(&troubles, state.path()).await;
        let error = removed.expect_err("it is the only key of the root");
        let text = error.to_string();
        assert!(text.contains("rotated"), "{troubles:?}: {text}");
        assert!(text.contains(&newer.to_string()), "{troubles:?}: {text}");
        assert_eq!(store.get(&newer.key()).await.expect("there").0, object);
        let opened = open(&store, "first").await.expect("it opens");
        assert_eq!(opened.keyring().epoch(), 1);
        assert_eq!(objects_in(state.path(), &object), 0, "nothing is left over");
    }
}

/// Returns how many files below `directory` hold this object.
fn objects_in(directory: &Path, object: &Bytes) -> usize {
    let entries = std::fs::read_dir(directory).expect("readable");
    let entries = entries.map(|entry| entry.expect("readable").path());
    let held = entries.map(|path| match path.is_dir() {
        true => objects_in(&path, object),
        false => usize::from(std::fs::read(&path).expect("readable") == *object),
    });
    held.sum()
}

#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_be_put_back_is_named_and_saved() {
    let denied = Trouble::FailBefore(StoreErrorKind::Denied);
    let troubles = [Strike::with(denied).always()];
    let state = tempfile::tempdir().expect("a directory");
    let (store, newer, object, removed) = given_up_meanwhile(&troubles, state.path()).await;
    let text = removed.expect_err("it is lost").to_string();
    assert!(text.contains("rotated"), "the cause: {text}");
    assert!(text.contains(&newer.to_string()), "which: {text}");
    assert!(text.contains("could not be put back"), "{text}");
    assert_eq!(objects_in(state.path(), &object), 1);
    // This follows the advice of the message.
    let file = text.split_whitespace().find(|word| word.starts_with('/'));
    let file = file.expect("a path").trim_end_matches([':', ';', ',']);
    let saved = std::fs::read(file).expect("saved");
    put(&store, &newer.key(), Bytes::from(saved)).await;
    open(&store, "first").await.expect("it opens");
}

/// The rotation ends between the first read of the keys and their removal.
#[tokio::test(start_paused = true)]
async fn a_key_of_a_rotation_that_ended_before_the_removal_is_put_back() {
    let (store, late) = with_late_rotation().await;
    let faulty = Arc::new(FaultStore::new(store.clone()));
    let through: Arc<dyn Store> = faulty.clone();
    let opened = slots(&through, "second", 3).await.expect("it opens");
    let newer = opened.list().iter().find(|slot| slot.epoch == Some(1));
    let newer = newer.expect("of the rotation").name;
    // After the first read of the root, and before all others.
    let gate = Gate::new();
    let hold = Strike::with(Trouble::HoldBefore(gate.clone())).on(Operation::GetRange);
    faulty.plan(hold.keys(ROOT_KEY).nth(2));
    let removing = tokio::spawn(async move { opened.remove(&[newer], true, time(1), None).await });
    until_held(&faulty).await;
    late.apply_late().await;
    gate.open();
    let removed = removing.await.expect("no panic");
    let text = removed.expect_err("the only key of the root").to_string();
    assert!(text.contains("rotated"), "{text}");
    open(&store, "first").await.expect("it opens");
}

/// If the root vanishes while keys are removed, no key is proven useless.
#[tokio::test(start_paused = true)]
async fn a_key_is_put_back_where_the_root_vanished() {
    let store = made().await;
    let repository = repository_of(&store).await;
    let name = SlotName(7);
    let object = hostile_of(repository, name, "x", CHEAP, Some(1));
    put(&store, &name.key(), object).await;
    let (gate, faulty, through) = holding(&store, Operation::Head, 1).await;
    let opened = slots(&through, "first", 3).await.expect("it opens");
    let removing = tokio::spawn(async move { opened.remove(&[name], true, time(1), None).await });
    until_held(&faulty).await;
    store.delete(ROOT_KEY).await.expect("deleted");
    gate.open();
    let text = removing
        .await
        .expect("no panic")
        .expect_err("no root")
        .to_string();
    assert!(text.contains("gone"), "{text}");
    store.head(&name.key()).await.expect("it is put back");
}

/// The rotation of a removed key may still end, so the file of the key stays.
#[tokio::test(start_paused = true)]
async fn the_file_of_a_key_stays_where_its_rotation_may_still_end() {
    for (epoch, files) in [(Some(1), 1), (Some(0), 0)] {
        let store = made().await;
        let repository = repository_of(&store).await;
        let name = SlotName(7);
        let object = hostile_of(repository, name, "x", CHEAP, epoch);
        put(&store, &name.key(), object.clone()).await;
        let state = tempfile::tempdir().expect("a directory");
        let choice = KeyChoice {
            named: None,
            state_dir: Some(state.path().to_owned()),
        };
        let opened = slots_by(&store, "first", choice).await.expect("it opens");
        let removed = opened.remove(&[name], true, time(1), None).await;
        removed.expect("the root stands");
        assert!(store.head(&name.key()).await.is_err(), "it is removed");
        assert_eq!(objects_in(state.path(), &object), files, "{epoch:?}");
    }
}

/// A deletion whose answer is lost may arrive after the key was put back, so its file stays.
#[tokio::test(start_paused = true)]
async fn the_file_of_a_key_stays_where_its_deletion_may_still_arrive() {
    let store = made().await;
    let repository = repository_of(&store).await;
    let name = SlotName(7);
    let object = hostile_of(repository, name, "x", CHEAP, Some(1));
    put(&store, &name.key(), object.clone()).await;
    let faulty = Arc::new(FaultStore::new(store.clone()));
    let through: Arc<dyn Store> = faulty.clone();
    let state = tempfile::tempdir().expect("a directory");
    let choice = KeyChoice {
        named: None,
        state_dir: Some(state.path().to_owned()),
    };
    let opened = slots_by(&through, "first", choice).await.expect("it opens");
    let unknown = Strike::with(Trouble::FailBefore(StoreErrorKind::OutcomeUnknown)).always();
    faulty.plan(unknown.on(Operation::Delete).keys(&name.key()));
    turn(&store, ROOT_KEY, 70).await;
    let removed = opened.remove(&[name], true, time(1), None).await;
    removed.expect_err("the root is damaged");
    assert_eq!(objects_in(state.path(), &object), 1);
    store.head(&name.key()).await.expect("it is there");
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_fails_half_way_says_what_it_removed() {
    let store = made().await;
    let repository = repository_of(&store).await;
    for number in [1, 2] {
        let name = SlotName(number);
        put(&store, &name.key(), hostile(repository, name, "x", CHEAP)).await;
    }
    let faulty = Arc::new(FaultStore::new(store.clone()));
    let through: Arc<dyn Store> = faulty.clone();
    let opened = slots(&through, "first", 3).await.expect("it opens");
    let denied = Strike::with(Trouble::FailBefore(StoreErrorKind::Denied));
    faulty.plan(denied.on(Operation::Delete).keys(&SlotName(2).key()));
    let failed = opened
        .remove(&[1, 2].map(SlotName), false, time(1), None)
        .await;
    let text = failed.expect_err("one was not deleted").to_string();
    assert!(
        text.contains(&format!("removed key {}", SlotName(1))),
        "{text}"
    );
    assert!(text.contains(&SlotName(2).key()), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_rotation_relies_on_no_key_that_it_has_not_opened() {
    for is_overwritten in [false, true] {
        let store = made().await;
        let repository = repository_of(&store).await;
        let before = keys(&store).await;
        let (gate, task) = held(&store).await;
        let after = keys(&store).await;
        let new = after.keys().find(|key| !before.contains_key(*key));
        let new = SlotName::from_key(new.expect("its new key")).expect("a slot's");
        store.delete(&new.key()).await.expect("deleted");
        let junk = if is_overwritten { new } else { SlotName(7) };
        let object = hostile_of(repository, junk, "x", CHEAP, Some(1));
        put(&store, &junk.key(), object).await;
        gate.open();
        let made = task.await.expect("no panic").expect("made");
        assert_ne!(made.slot, junk, "nothing says that it opens");
        let opened = open(&store, "first").await.expect("it opens");
        assert_eq!(opened.keyring().epoch(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_key_is_told_from_a_wrong_password() {
    let store = made().await;
    let own = own_of(&store).await;
    let state = tempfile::tempdir().expect("a directory");
    let choice = remembering(&state);
    let opened = open_with(&store, "first", choice.clone()).await;
    opened.expect("remembered");
    add(&store, "second", "two").await;
    let honest = store.get(&own.key()).await.expect("there").0;
    turn(&store, &own.key(), 200).await;
    // Either the password is wrong, or it is that of the damaged key.
    let error = open(&store, "first").await.expect_err("damaged");
    assert_eq!(error.kind(), ErrorKind::WrongPassword, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&own.to_string()) && text.contains("damaged") && text.contains("password"),
        "{text}"
    );
    let (kind, text) = kind_of(slots(&store, "first", 3).await.err().expect("damaged"));
    assert_eq!(kind, ErrorKind::WrongPassword, "{text}");
    assert!(text.contains(&own.to_string()), "{text}");
    // A machine on which it has opened before knows which.
    let error = open_with(&store, "first", choice.clone()).await;
    let error = error.expect_err("damaged");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&own.to_string()) && text.contains("password"),
        "{text}"
    );
    let (kind, text) = kind_of(
        slots_by(&store, "first", choice.clone())
            .await
            .err()
            .expect("damaged"),
    );
    assert_eq!(kind, ErrorKind::Damaged, "{text}");
    open(&store, "second").await.expect("another key opens");
    // A slot is never rewritten: one with another content under its name is not the one that
    // opened.
    let repository = repository_of(&store).await;
    put(&store, &own.key(), hostile(repository, own, "", CHEAP)).await;
    let error = open_with(&store, "first", choice.clone()).await;
    assert_eq!(error.expect_err("changed").kind(), ErrorKind::Damaged);
    let error = open(&store, "first").await.expect_err("it opens nothing");
    assert!(matches!(error, RootError::WrongPassword), "{error}");
    // An absent slot was removed: the password is wrong.
    store.delete(&own.key()).await.expect("deleted");
    let error = open_with(&store, "first", choice.clone()).await;
    let error = error.expect_err("removed");
    assert!(matches!(error, RootError::WrongPassword), "{error}");
    put(&store, &own.key(), honest).await;
    open_with(&store, "first", choice).await.expect("it opens");
}

#[tokio::test(start_paused = true)]
async fn a_root_whose_epoch_was_changed_is_damaged_whatever_a_key_states() {
    let store = made().await;
    let repository = repository_of(&store).await;
    let before = slots(&store, "first", 2).await.expect("it opens");
    turn(&store, ROOT_KEY, 12).await;
    let name = SlotName(1);
    let junk = hostile_of(repository, name, "", CHEAP, Some(1));
    put(&store, &name.key(), junk).await;
    let is_told = |kind: ErrorKind, text: &str| {
        assert_eq!(kind, ErrorKind::Damaged, "{text}");
        assert!(
            text.contains("root") && text.contains("check --repair"),
            "{text}"
        );
    };
    let error = open(&store, "first").await.expect_err("damaged");
    is_told(error.kind(), &error.to_string());
    let (kind, text) = kind_of(slots(&store, "first", 3).await.err().expect("damaged"));
    is_told(kind, &text);
    // Slots that were opened before continue to change keys, and the root cannot be rotated.
    let added = before.add(making("second", "two")).await.expect("room");
    before
        .remove(&[added], true, time(1), None)
        .await
        .expect("removed");
    let error = rotate(&before, parts(true)).await.expect_err("damaged");
    assert!(!matches!(error, SlotsError::Rotated), "{error}");
}

#[tokio::test(start_paused = true)]
async fn objects_with_names_of_no_key_are_shown_and_removed() {
    let store = made().await;
    let own = own_of(&store).await;
    let names = ["keys/a", "keys/00000000000000AB", "keys/a\u{202e}b/c d"];
    for name in names {
        put(&store, name, Bytes::from(vec![7; 300])).await;
    }
    let opened = slots(&store, "first", 3).await.expect("it opens");
    assert_eq!(opened.list().len(), 1);
    let mut strays = opened.strays().to_vec();
    strays.sort();
    let mut expected = names;
    expected.sort();
    assert_eq!(strays, expected);
    for name in [&own.key(), "root", "keys/other"] {
        let refused = opened.remove_stray(name).await;
        assert!(
            matches!(refused, Err(SlotsError::Ambiguous { .. })),
            "{name}"
        );
    }
    for name in names {
        opened.remove_stray(name).await.expect("removed");
    }
    assert_eq!(
        keys(&store).await.into_keys().collect::<Vec<_>>(),
        [own.key()]
    );
    open(&store, "first").await.expect("it opens");
    // The number of strays in memory is bounded.
    for number in 0..1100 {
        put(&store, &format!("keys/x{number}"), Bytes::new()).await;
    }
    let opened = slots(&store, "first", 4).await.expect("it opens");
    assert_eq!(opened.strays().len(), 1000);
}

#[tokio::test(start_paused = true)]
async fn keys_that_cannot_be_read_are_named_after_a_change_of_password() {
    let store = made().await;
    let own = own_of(&store).await;
    let further = add(&store, "first", "again").await;
    let opened = slots(&store, "first", 3).await.expect("it opens");
    assert_eq!(opened.passed_over().count(), 0);
    let (whole, _) = store.get(&further.key()).await.expect("is there");
    turn(&store, &further.key(), 70).await;
    let opened = slots(&store, "first", 3)
        .await
        .expect("the other one opens");
    let passed_over = opened.passed_over();
    let [(name, reason)] = passed_over.named() else {
        panic!("{passed_over:?}");
    };
    assert_eq!((*name, passed_over.count()), (further, 1));
    assert!(reason.contains(&further.key()), "{reason}");
    let (_, old) = opened
        .change(making("third", "three"), None)
        .await
        .expect("changed");
    assert_eq!(old, [own]);
    // What the warning is about.
    put(&store, &further.key(), whole).await;
    slots(&store, "first", 3).await.expect("it opens as before");
}

#[tokio::test(start_paused = true)]
async fn of_many_keys_that_cannot_be_read_some_are_named_and_all_counted() {
    let store = made().await;
    for number in 0..40 {
        let key = SlotName(number).key();
        put(&store, &key, Bytes::from_static(&[7; 450])).await;
    }
    let opened = slots(&store, "first", 3).await.expect("it opens");
    let passed_over = opened.passed_over();
    assert_eq!((passed_over.named().len(), passed_over.count()), (16, 40));
}
