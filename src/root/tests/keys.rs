//! Keys that open a repository, among hostile ones and after rotations.

use super::keys_support::*;
use super::support::{Seeded, time};
use crate::root::choice::{KeyChoice, KnownSlot};
use crate::root::error::{ErrorKind, RootError};
use crate::root::repository::{open_keys, read_config};
use crate::root::slot_error::SlotsError;
use crate::root::state::{ROOT_KEY, Root};
use crate::root::unlock::{Trials, find_slots, first_slots};
use bkfs_chunker::crypto::{
    Class, Config, Keyring, OpenError, Secrets, SlotCost, SlotName, Statement,
};
use bkfs_store::Store;
use bytes::Bytes;
use std::sync::Arc;

#[tokio::test(start_paused = true)]
async fn hostile_slots_do_not_keep_the_password_out() {
    let store = made().await;
    let repository = repository_of(&store).await;
    let (key, honest) = keys(&store).await.pop_first().expect("one");
    let opener = Keyring::unsealed(repository, Secrets::new([0; 32], [0; 32], [0; 32]));
    let payload = opener.open_object(Class::KeySlot, &key, &honest);
    let payload = payload.expect("a slot is open");
    for number in 0..200 {
        let empty = format!("keys/000{number:013x}");
        put(&store, &empty, Bytes::new()).await;
        let name = SlotName(1 << 40 | number);
        put(&store, &name.key(), Bytes::from(vec![7; 300])).await;
    }
    for number in 0..64 {
        let name = SlotName(1 << 41 | number);
        let object = hostile(repository, name, "\x1b[2J\r\n", DEAREST);
        put(&store, &name.key(), object).await;
        // The honest slot under other names.
        let name = SlotName(1 << 42 | number);
        put(&store, &name.key(), forged(repository, name, &payload)).await;
    }
    let large = Bytes::from(vec![0; 1 << 20]);
    put(&store, &SlotName(3).key(), large).await;

    let begun = std::time::Instant::now();
    let opened = open(&store, "first").await.expect("the password opens it");
    assert_eq!(opened.keyring().repository(), repository);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    assert!(!opened.keyring().secrets().encode().is_empty());

    // Found by name. Objects that are no slots count towards no limit.
    let found = find_slots(&*store, repository, None).await.expect("listed");
    assert_eq!(found.slots.len(), 129);
    assert_eq!(found.slots[0].1.cost(), CHEAP);
}

#[tokio::test(start_paused = true)]
async fn work_on_a_password_is_bounded_and_what_is_left_is_said() {
    let store = made().await;
    let repository = repository_of(&store).await;
    let cost = SlotCost {
        memory_kib: 1000,
        ..CHEAP
    };
    for number in 0..64 {
        let name = SlotName(number);
        put(&store, &name.key(), hostile(repository, name, "", cost)).await;
    }
    // Copies of a slot that did not open cost no work.
    for number in 64..128 {
        let name = SlotName(number);
        let copy = hostile(repository, SlotName(number - 64), "", cost);
        let opener = Keyring::unsealed(repository, Secrets::new([0; 32], [0; 32], [0; 32]));
        let payload = opener.open_object(Class::KeySlot, &SlotName(number - 64).key(), &copy);
        let payload = payload.expect("open");
        put(&store, &name.key(), forged(repository, name, &payload)).await;
    }
    let config = read_config(&*store)
        .await
        .expect("readable")
        .expect("there");
    for (password, opens) in [(&b"first"[..], true), (b"other", false)] {
        let found = find_slots(&*store, repository, None).await.expect("listed");
        assert_eq!(found.slots.len(), 129);
        let mut trials = Trials::within(password, 8 + 10 * 1000);
        let mut opened = 0;
        for (name, slot) in &found.slots {
            opened += usize::from(trials.open(&config, *name, slot).is_some());
        }
        assert_eq!(opened, usize::from(opens), "the cheapest is tried first");
        let error = trials.failure(found, None);
        let RootError::KeysUntried { untried } = error else {
            panic!("{error}");
        };
        assert_eq!(untried, 2 * 54);
        assert_eq!(error.kind(), ErrorKind::WrongPassword);
        assert!(
            error.to_string().contains("108 keys were not tried"),
            "{error}"
        );
    }
    // Within the bounds, a wrong password is reported as wrong, and damaged objects are named.
    let error = open(&store, "other").await.expect_err("wrong");
    assert!(matches!(error, RootError::WrongPassword), "{error}");
    put(&store, "keys/0000000000000fff", Bytes::new()).await;
    let error = open(&store, "other").await.expect_err("wrong");
    assert_eq!(error.kind(), ErrorKind::WrongPassword, "{error}");
    assert!(error.to_string().contains("0000000000000fff"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn slots_that_cannot_be_read_are_damage_only_where_none_can() {
    let store = made().await;
    let (key, _) = keys(&store).await.pop_first().expect("one");
    put(&store, &key, Bytes::new()).await;
    let error = open(&store, "first").await.expect_err("no slot");
    assert!(
        error.kind() == ErrorKind::Damaged && error.to_string().contains(&key),
        "{error}"
    );
    let unreasonable = SlotCost {
        memory_kib: u32::MAX,
        ..CHEAP
    };
    let repository = repository_of(&store).await;
    let name = SlotName::from_key(&key).expect("a slot's");
    put(&store, &key, hostile(repository, name, "", unreasonable)).await;
    let error = open(&store, "first").await.expect_err("no slot");
    assert!(
        error.kind() == ErrorKind::Damaged && error.to_string().contains(&key),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn any_key_can_be_removed_however_many_there_are() {
    let store = made().await;
    let repository = repository_of(&store).await;
    for number in 0..64 {
        let name = SlotName(number);
        put(&store, &name.key(), hostile(repository, name, "x", CHEAP)).await;
    }
    let slots = slots(&store, "first", 2).await.expect("it opens");
    let full = slots.add(making("second", "two")).await;
    assert!(matches!(full, Err(SlotsError::Full)));
    slots
        .remove(&[SlotName(5)], false, time(1), None)
        .await
        .expect("removed");
    assert_eq!(keys(&store).await.len(), 64);
    open(&store, "first").await.expect("it opens");
}

#[tokio::test(start_paused = true)]
async fn a_key_of_an_older_epoch_opens_nothing_new() {
    let store = made().await;
    add(&store, "second", "two").await;
    let old = keys(&store).await;
    let made = rotated(&store, "first", 3).await.expect("no session");
    assert_eq!(made.dropped.len(), 2);
    let error = open(&store, "second").await.expect_err("dropped");
    assert!(matches!(error, RootError::WrongPassword), "{error}");
    // All old slots are put back, first next to the new one.
    for (key, object) in &old {
        put(&store, key, object.clone()).await;
    }
    let opened = open(&store, "first").await.expect("the new key");
    assert_eq!(opened.keyring().epoch(), 1);
    let error = open(&store, "second").await.expect_err("an older epoch");
    let slot = match &error {
        RootError::OlderKey { slot, held, needed } => {
            assert_eq!((*held, *needed), (0, 1));
            slot.to_string()
        }
        other => panic!("{other}"),
    };
    assert_eq!(error.kind(), ErrorKind::WrongPassword);
    assert!(error.to_string().contains(&slot), "{error}");
    let listed = slots(&store, "second", 6).await;
    assert!(matches!(
        listed,
        Err(SlotsError::Root(RootError::OlderKey { .. }))
    ));
    let listed = slots(&store, "first", 6).await.expect("it opens");
    let facts = |name: SlotName| listed.list().iter().find(|facts| facts.name == name);
    let new = facts(made.slot).expect("there");
    assert!(new.is_in_force && new.epoch == Some(1) && new.statement == Some(Statement::Bound));
    let others = listed.list().iter().filter(|facts| facts.name != made.slot);
    assert!(
        others
            .clone()
            .all(|facts| !facts.is_in_force && facts.epoch == Some(0))
    );
    assert_eq!(others.clone().filter(|facts| facts.is_own).count(), 1);
    // The old ones can be removed, and the one in force cannot.
    let own = listed.remove(&[made.slot], false, time(1), None).await;
    assert!(matches!(own, Err(SlotsError::Own { .. })));
    for name in others.map(|facts| facts.name) {
        listed
            .remove(&[name], false, time(1), None)
            .await
            .expect("removed");
    }
    assert_eq!(keys(&store).await.len(), 1);
    // Then all old ones are put back in the place of the new one.
    for (key, object) in &old {
        put(&store, key, object.clone()).await;
    }
    store.delete(&made.slot.key()).await.expect("deleted");
    // No key states the epoch of the root: this state looks like a root that was changed.
    let error = open(&store, "first").await.expect_err("an older epoch");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains("no key slot"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_root_that_an_old_key_seals_is_refused() {
    let store = made().await;
    let before = open(&store, "first").await.expect("there");
    let old = keys(&store).await;
    rotated(&store, "first", 3).await.expect("no session");
    let after = open(&store, "first").await.expect("there");
    // An attacker who knows the old master key makes this root, as the successor of the newest.
    let mut root: Root = after.handle().current().root.clone();
    root.follow([3; 16]);
    let payload = root.encode().expect("small");
    let features = after.handle().current().features;
    let seal =
        |keyring: &Keyring| keyring.seal_object(Class::Root, ROOT_KEY, features, [4; 32], &payload);
    put(&store, ROOT_KEY, seal(before.keyring())).await;
    let error = after.handle().refresh().await.expect_err("forged");
    assert!(error.kind() == ErrorKind::Damaged, "{error}");
    let error = open(&store, "first").await.expect_err("forged");
    let is_older = |error: &RootError| {
        let older = OpenError::OlderKeyEpoch {
            epoch: 0,
            newest: 1,
        };
        matches!(error, RootError::Unopenable { source, .. } if *source == older)
    };
    assert!(is_older(&error), "{error}");
    let listed = slots(&store, "first", 6).await;
    assert!(matches!(&listed, Err(SlotsError::Root(error)) if is_older(error)));
    put(&store, ROOT_KEY, seal(after.keyring())).await;
    open(&store, "first").await.expect("it is the new key's");
    // A machine without a memory trusts a bucket that was rolled back as a whole.
    for (key, object) in old {
        put(&store, &key, object).await;
    }
    put(&store, ROOT_KEY, seal(before.keyring())).await;
    open(&store, "first").await.expect("as it was before");
}

#[tokio::test(start_paused = true)]
async fn a_lost_root_opens_with_the_newest_key() {
    let store = made().await;
    let old = keys(&store).await;
    rotated(&store, "first", 3).await.expect("no session");
    for (key, object) in old {
        put(&store, &key, object).await;
    }
    store.delete(ROOT_KEY).await.expect("deleted");
    let opened = open_keys(&*store, None, &KeyChoice::default(), &mut Given("first")).await;
    assert_eq!(opened.expect("it opens").1.epoch(), 1);
    let listed = slots(&store, "first", 4).await.expect("it opens");
    assert_eq!(listed.keyring().epoch(), 1);
    let config = store.get(Config::KEY).await.expect("there").0;
    assert!(Config::open(&config).is_ok(), "it is as it was");
}

/// Returns the key choice of a machine that keeps its memory in `directory`.
pub fn remembering(directory: &tempfile::TempDir) -> KeyChoice {
    KeyChoice {
        named: None,
        state_dir: Some(directory.path().to_owned()),
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_that_opened_last_opens_whatever_is_listed_before_it() {
    let store = made().await;
    let own = SlotName::from_key(keys(&store).await.keys().next().expect("one")).expect("a slot");
    let state = tempfile::tempdir().expect("a directory");
    let choice = remembering(&state);
    open_with(&store, "first", choice.clone())
        .await
        .expect("remembered");
    // None of them is a slot, and all have the size of one.
    let junk = Bytes::from(vec![7; 300]);
    for number in 0..65_536 {
        put(&store, &SlotName(number).key(), junk.clone()).await;
    }
    let error = open(&store, "first").await.expect_err("not listed");
    assert!(matches!(error, RootError::KeysUntried { .. }), "{error}");
    open_with(&store, "first", choice.clone())
        .await
        .expect("asked for by name");
    let named = KeyChoice {
        named: Some(own),
        state_dir: None,
    };
    open_with(&store, "first", named.clone())
        .await
        .expect("named");
    let listed = slots_with(&store, "first", 3, Some(own))
        .await
        .expect("named");
    assert!(
        listed
            .list()
            .iter()
            .any(|facts| facts.name == own && facts.is_in_force)
    );
    let error = open_with(&store, "other", named).await.expect_err("wrong");
    assert!(matches!(error, RootError::WrongPassword), "{error}");
    let absent = KeyChoice {
        named: Some(SlotName(u64::MAX)),
        state_dir: None,
    };
    let error = open_with(&store, "first", absent)
        .await
        .expect_err("no such key");
    assert!(matches!(error, RootError::NoSuchKey { .. }), "{error}");
    // The machine that sets a new password remembers its key.
    let password = zeroize::Zeroizing::new(b"first".to_vec());
    let changing = KeyChoice {
        named: Some(own),
        ..choice.clone()
    };
    let opened = crate::root::slots::Slots::open(store.clone(), Seeded::new(4), password, changing);
    let opened = opened.await.expect("it opens");
    opened
        .change(making("third", "three"), None)
        .await
        .expect("changed");
    open_with(&store, "third", choice.clone())
        .await
        .expect("remembered");
    // A removed key opens no more, remembered or not.
    let error = open_with(&store, "first", choice)
        .await
        .expect_err("removed");
    assert!(matches!(error, RootError::KeysUntried { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn no_more_objects_are_read_than_are_bounded() {
    use bkfs_testing::fault::FaultStore;
    let store = made().await;
    for number in 0..6000 {
        // One size below that of a slot, and one within it.
        let length = if number % 2 == 0 { 255 } else { 300 };
        let junk = Bytes::from(vec![7; length]);
        put(&store, &SlotName(number).key(), junk).await;
    }
    let counted = Arc::new(FaultStore::new(store.clone()));
    let through: Arc<dyn Store> = counted.clone();
    open(&through, "first").await.expect("it is read");
    assert!(counted.requests() < 3000 + 30, "{}", counted.requests());
    for number in 6000..9000 {
        put(&store, &SlotName(number).key(), Bytes::from(vec![7; 300])).await;
    }
    let counted = Arc::new(FaultStore::new(store.clone()));
    let through: Arc<dyn Store> = counted.clone();
    let error = open(&through, "first")
        .await
        .expect_err("too many are smaller");
    assert!(matches!(error, RootError::KeysUntried { .. }), "{error}");
    assert!(counted.requests() < 4096 + 30, "{}", counted.requests());
}

#[tokio::test(start_paused = true)]
async fn the_remembered_key_is_tried_before_cheaper_ones_and_no_content_twice() {
    let store = made().await;
    let repository = repository_of(&store).await;
    let (key, honest) = keys(&store).await.pop_first().expect("one");
    let own = SlotName::from_key(&key).expect("a slot's");
    for number in 0..20 {
        let name = SlotName(number);
        // As cheap as the honest one, and before it by name; each with its own salt.
        put(&store, &name.key(), hostile(repository, name, "", CHEAP)).await;
    }
    // The honest slot under other names.
    let opener = Keyring::unsealed(repository, Secrets::new([0; 32], [0; 32], [0; 32]));
    let payload = opener.open_object(Class::KeySlot, &key, &honest);
    let payload = payload.expect("a slot is open");
    for number in 30..40 {
        let name = SlotName(number);
        put(&store, &name.key(), forged(repository, name, &payload)).await;
    }
    let config = read_config(&*store)
        .await
        .expect("readable")
        .expect("there");
    let mut found = find_slots(&*store, repository, None).await.expect("listed");
    let known = [KnownSlot {
        name: own,
        fingerprint: found
            .slots
            .iter()
            .find(|(name, _)| *name == own)
            .expect("listed")
            .1
            .fingerprint(),
    }];
    let first = first_slots(&*store, repository, None, &known)
        .await
        .expect("read");
    assert_eq!(first.slots.len(), 1);
    // The work suffices for one trial.
    let mut trials = Trials::within(b"first", CHEAP.work());
    let opens = |trials: &mut Trials<'_>, found: &crate::root::unlock::FoundSlots| {
        let slots = found.slots.iter();
        let opened = slots.filter_map(|(name, slot)| trials.open(&config, *name, slot));
        opened.map(|(_, statement)| statement).collect::<Vec<_>>()
    };
    assert_eq!(opens(&mut trials, &found), [], "strangers were tried");
    found.prefer(first.slots, &known);
    let mut trials = Trials::within(b"first", CHEAP.work());
    let mut expected = vec![Statement::Changed; 11];
    expected[0] = Statement::Bound;
    assert_eq!(opens(&mut trials, &found), expected);
    // A slot with another content under the remembered name is not preferred.
    put(&store, &key, hostile(repository, own, "", DEAREST)).await;
    let first = first_slots(&*store, repository, None, &known)
        .await
        .expect("read");
    assert!(first.slots.is_empty() && first.damaged.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_root_that_states_an_epoch_of_no_key_is_damaged() {
    let store = made().await;
    let (object, _) = store.get(ROOT_KEY).await.expect("there");
    let mut flipped = object.to_vec();
    flipped[13] ^= 1;
    put(&store, ROOT_KEY, Bytes::from(flipped)).await;
    let error = open(&store, "first").await.expect_err("damaged");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains("was changed"), "{error}");
    let Err(SlotsError::Root(error)) = slots(&store, "first", 3).await else {
        panic!("it opened");
    };
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    // Also if no key tells which epoch it had, as after another change.
    turn(&store, ROOT_KEY, 70).await;
    let error = open(&store, "first").await.expect_err("damaged");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains("no key slot"), "{error}");
    // If a slot states that epoch, the root is believed.
    let repository = repository_of(&store).await;
    let name = SlotName(1);
    let slot = hostile_of(repository, name, "", CHEAP, Some(256));
    put(&store, &name.key(), slot).await;
    let error = open(&store, "first").await.expect_err("damaged");
    assert!(
        matches!(error, RootError::OlderKey { needed: 256, .. }),
        "{error}"
    );
    // Such large epochs have no master key.
    let (object, _) = store.get(ROOT_KEY).await.expect("there");
    let mut turned = object.to_vec();
    turned[15] ^= 0x80;
    put(&store, ROOT_KEY, Bytes::from(turned)).await;
    let name = SlotName(2);
    let epoch = 256 | 1 << 31;
    let slot = hostile_of(repository, name, "", CHEAP, Some(epoch));
    put(&store, &name.key(), slot).await;
    let error = open(&store, "first").await.expect_err("damaged");
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
}
