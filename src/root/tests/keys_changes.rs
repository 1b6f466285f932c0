//! Removal of keys and changes of passwords: among hostile keys, during rotations, and without a
//! root that tells which key is in force.

use super::keys_rotation::held;
use super::keys_support::*;
use super::support::time;
use crate::root::choice::KeyChoice;
use crate::root::error::RootError;
use crate::root::refusal::Refusal;
use crate::root::repository::open_keys;
use crate::root::rotation::rotate;
use crate::root::slot_error::SlotsError;
use crate::root::state::ROOT_KEY;
use bkfs_chunker::crypto::SlotName;
use bkfs_store::{Operation, Store};
use bkfs_testing::fault::{Fault as Trouble, FaultStore, Gate, Strike};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn keys_that_no_rotation_makes_are_removed_by_name() {
    let store = made().await;
    let repository = repository_of(&store).await;
    for (number, epoch) in [(1, u32::MAX), (2, 2), (3, 1), (4, 0)] {
        let name = SlotName(number);
        let slot = hostile_of(repository, name, "x", CHEAP, Some(epoch));
        put(&store, &name.key(), slot).await;
    }
    put(&store, &SlotName(5).key(), Bytes::from(vec![0; 100_000])).await;
    let opened = slots(&store, "first", 3).await.expect("it opens");
    // A key of the next epoch may belong to a running rotation.
    let next = [SlotName(3)];
    let refused = opened.remove(&next, false, time(1), None).await;
    assert!(matches!(refused, Err(SlotsError::Unfinished { .. })));
    let refused = opened
        .remove(&[1, 2, 3, 4, 5].map(SlotName), false, time(1), None)
        .await;
    assert!(matches!(refused, Err(SlotsError::Unfinished { .. })));
    assert_eq!(keys(&store).await.len(), 6, "nothing was removed");
    let junk = [1, 2, 4, 5].map(SlotName);
    opened
        .remove(&junk, false, time(1), None)
        .await
        .expect("removed");
    opened
        .remove(&next, true, time(1), None)
        .await
        .expect("given up");
    assert_eq!(keys(&store).await.len(), 1);
    let gone = opened.remove(&next, true, time(1), None).await;
    assert!(gone.is_err(), "it is listed, and not there");
    let absent = opened.remove(&[SlotName(77)], false, time(1), None).await;
    assert!(matches!(
        absent,
        Err(SlotsError::Ambiguous { count: 0, .. })
    ));
    let name = opened.find("0000000000000005").expect("a whole name");
    assert_eq!(name, SlotName(5));
    open(&store, "first").await.expect("it opens");
}

#[tokio::test(start_paused = true)]
async fn hostile_keys_do_not_keep_a_password_from_being_changed() {
    let store = made().await;
    let repository = repository_of(&store).await;
    for number in 0..100 {
        let name = SlotName(number);
        let slot = hostile_of(repository, name, "x", CHEAP, Some(number as u32));
        put(&store, &name.key(), slot).await;
    }
    let opened = slots(&store, "first", 3).await.expect("it opens");
    let full = opened.add(making("second", "two")).await;
    assert!(matches!(full, Err(SlotsError::Full)));
    let (new, old) = opened
        .change(making("third", "three"), None)
        .await
        .expect("changed");
    assert_eq!(old.len(), 1);
    let error = open(&store, "first").await.expect_err("changed");
    assert!(matches!(error, RootError::WrongPassword), "{error}");
    open(&store, "third").await.expect("it opens");
    let names = keys(&store).await;
    assert!(names.len() == 101 && names.contains_key(&new.key()));
}

/// Returns a store that holds back the `nth` request of this kind below `keys/`.
pub async fn holding(
    store: &Arc<dyn Store>,
    operation: Operation,
    nth: u64,
) -> (Gate, Arc<FaultStore>, Arc<dyn Store>) {
    let faulty = Arc::new(FaultStore::new(store.clone()));
    let gate = Gate::new();
    let hold = Strike::with(Trouble::HoldBefore(gate.clone())).on(operation);
    faulty.plan(hold.keys(SlotName::PREFIX).nth(nth));
    (gate, faulty.clone(), faulty)
}

pub async fn until_held(faulty: &FaultStore) {
    while faulty.struck() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_says_that_a_rotation_was_made_meanwhile() {
    let store = made().await;
    add(&store, "second", "two").await;
    let (gate, faulty, through) = holding(&store, Operation::Delete, 1).await;
    let changing = slots(&through, "first", 3).await.expect("it opens");
    let old = changing.list().iter().find(|slot| slot.is_own);
    let old = old.expect("its own").name;
    let second = slots(&store, "second", 4).await.expect("it opens");
    let change = tokio::spawn(async move { changing.change(making("third", "three"), None).await });
    until_held(&faulty).await;
    let (rotation, rotating) = held(&store).await;
    rotation.open();
    rotating.await.expect("no panic").expect("made");
    gate.open();
    let error = change
        .await
        .expect("no panic")
        .expect_err("it opens nothing");
    let SlotsError::Interrupted {
        removed, source, ..
    } = error
    else {
        panic!("{error}")
    };
    assert!(matches!(*source, SlotsError::Rotated), "{source}");
    assert_eq!(removed, [old], "the error says what is gone");
    open(&store, "first").await.expect("the rotation is by it");
    assert!(open(&store, "third").await.is_err());
    // A removal reports it as well.
    let own = keys(&store)
        .await
        .into_keys()
        .map(|key| SlotName::from_key(&key));
    let own: Vec<SlotName> = own.map(|name| name.expect("a slot's")).collect();
    let refused = second.remove(&own[..1], true, time(1), None).await;
    assert!(matches!(refused, Err(SlotsError::Rotated)), "{refused:?}");
    open(&store, "first").await.expect("nothing was removed");
}

#[tokio::test(start_paused = true)]
async fn a_rotation_lets_no_one_in_whose_key_was_removed() {
    let store = made().await;
    add(&store, "second", "two").await;
    let rotating = slots(&store, "first", 3).await.expect("it opens");
    let second = slots(&store, "second", 4).await.expect("it opens");
    let first = rotating.list().iter().find(|slot| slot.is_in_force);
    let first = first.expect("its own").name;
    second
        .remove(&[first], false, time(1), None)
        .await
        .expect("removed");
    let error = rotate(&rotating, parts(true)).await.expect_err("shut out");
    let is_removed = |error: &SlotsError| {
        matches!(
            error,
            SlotsError::Root(RootError::Refused(Refusal::KeyRemoved(slot))) if *slot == first
        )
    };
    assert!(is_removed(&error), "{error}");
    assert!(open(&store, "first").await.is_err());
    open(&store, "second").await.expect("it opens");
    rotated(&store, "second", 5).await.expect("no session");
    assert_eq!(keys(&store).await.len(), 1, "what was left is gone");
}

/// A slot that replaces the new key of a rotation counts if the rotation's password opens it.
#[tokio::test(start_paused = true)]
async fn a_rotation_relies_on_a_newer_key_that_its_password_opens() {
    for password in ["first", "third"] {
        let store = made().await;
        // The first request reads the own key; at the second the root is replaced already.
        let (gate, faulty, through) = holding_after_the_root(&store).await;
        let rotating = tokio::spawn(async move { rotated(&through, "first", 30).await });
        until_held(&faulty).await;
        let opened = slots(&store, "first", 31).await.expect("it opens");
        let changed = opened.change(making(password, "three"), None).await;
        let (new, _) = changed.expect("changed");
        gate.open();
        let made = rotating.await.expect("no panic").expect("made");
        assert_eq!(made.epoch, 1);
        assert_eq!(made.slot == new, password == "first", "{password}");
        // The changed password opens, and so does that of the rotation, which cannot tell whether
        // another key of it is left.
        open(&store, password).await.expect("it opens");
        open(&store, "first").await.expect("it opens");
        let names = keys(&store).await;
        assert!(names.contains_key(&new.key()) && names.contains_key(&made.slot.key()));
        assert!(names.len() <= 2, "{names:?}");
    }
}

/// Returns a store that holds back the first read of a key after the root was replaced.
pub async fn holding_after_the_root(
    store: &Arc<dyn Store>,
) -> (Gate, Arc<FaultStore>, Arc<dyn Store>) {
    holding(store, Operation::GetTail, look_after_the_root().await).await
}

/// Returns the number of the read of a key by which a rotation looks for its own, after the root.
pub async fn look_after_the_root() -> u64 {
    // It comes from the same rotation of an equal repository.
    let whole = Arc::new(FaultStore::new(made().await));
    let looks = Strike::with(Trouble::Delay(Duration::ZERO)).on(Operation::GetTail);
    whole.plan(looks.keys(SlotName::PREFIX).always());
    let through: Arc<dyn Store> = whole.clone();
    rotated(&through, "first", 30).await.expect("no session");
    whole.struck()
}

/// Returns a repository after a rotation by "first", with the slot of a rotation that was never
/// made.
async fn forked() -> (Arc<dyn Store>, SlotName, SlotName) {
    let store = made().await;
    let before = slots(&store, "first", 3).await.expect("it opens");
    let mut secrets = before.keyring().secrets().clone();
    secrets.add_master([9; 32]);
    let made = rotated(&store, "first", 4).await.expect("no session");
    let foreign = before.put(making("first", "the other one"), &secrets).await;
    (store, made.slot, foreign.expect("stored").name)
}

#[tokio::test(start_paused = true)]
async fn a_key_with_another_master_key_of_an_epoch_is_removed_by_nothing_else() {
    let (store, own, foreign) = forked().await;
    let opened = slots(&store, "first", 5).await.expect("it opens");
    let facts = |name: SlotName| opened.list().iter().find(|facts| facts.name == name);
    assert!(facts(own).expect("listed").is_in_force);
    assert!(!facts(foreign).expect("listed").is_in_force);
    let refused = opened.remove(&[foreign], false, time(1), None).await;
    assert!(matches!(refused, Err(SlotsError::Foreign { slot }) if slot == foreign));
    let refused = opened.change(making("third", "three"), None).await;
    assert!(matches!(refused, Err(SlotsError::Foreign { slot }) if slot == foreign));
    let made = rotate(&opened, parts(true)).await.expect("no session");
    assert_eq!(made.dropped, [own]);
    assert!(
        matches!(&made.left[..], [(slot, _)] if *slot == foreign),
        "{made:?}"
    );
    let opened = slots(&store, "first", 6).await.expect("it opens");
    opened
        .remove(&[foreign], true, time(1), None)
        .await
        .expect("given up");
    assert_eq!(keys(&store).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_root_no_key_is_chosen_or_removed_that_may_be_the_one() {
    let (store, own, foreign) = forked().await;
    let opened = slots(&store, "first", 5).await.expect("it opens");
    let second = opened.add(making("second", "two")).await.expect("room");
    store.delete(ROOT_KEY).await.expect("deleted");
    let named = |named| KeyChoice {
        named,
        state_dir: None,
    };
    let error = open_keys(&*store, None, &named(None), &mut Given("first")).await;
    let error = error.expect_err("two of them");
    let (first, other) = (own.min(foreign), own.max(foreign));
    let is_told = matches!(
        error,
        RootError::KeysConflict { first: one, second: two } if (one, two) == (first, other)
    );
    assert!(is_told, "{error}");
    for slot in [own, foreign] {
        let opened = open_keys(&*store, None, &named(Some(slot)), &mut Given("first")).await;
        assert_eq!(opened.expect("it is named").1.epoch(), 1);
    }
    let listed = slots(&store, "first", 6).await;
    assert!(matches!(
        listed,
        Err(SlotsError::Root(RootError::KeysConflict { .. }))
    ));
    let listed = slots_with(&store, "first", 7, Some(foreign))
        .await
        .expect("named");
    for slot in [own, second] {
        let refused = listed.remove(&[slot], false, time(1), None).await;
        assert!(matches!(refused, Err(SlotsError::Foreign { .. })), "{slot}");
    }
    assert_eq!(keys(&store).await.len(), 3);
}
