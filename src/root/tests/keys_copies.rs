//! A rotation whose new key was removed leaves a key, whatever the store answers meanwhile; and two
//! changes of one password.

use super::keys_changes::{holding, holding_after_the_root, look_after_the_root, until_held};
use super::keys_rotation::held;
use super::keys_support::*;
use super::support::{holder, time};
use crate::root::error::ErrorKind;
use crate::root::holder::SystemProcesses;
use crate::root::key_change::{ADD, KeyChange, KeyEntry, PASSWD, REMOVE};
use crate::root::rotation::rotate;
use crate::root::session::OpenSession;
use crate::root::slot_error::SlotsError;
use crate::root::state::ROOT_KEY;
use bkfs_chunker::crypto::SlotName;
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault as Trouble, FaultStore, Gate, Strike};
use std::sync::Arc;

/// Requests that the store refuses.
pub fn refused(operation: Operation, prefix: &str) -> Strike {
    let refused = Strike::with(Trouble::FailBefore(StoreErrorKind::Denied)).on(operation);
    refused.keys(prefix).always()
}

/// Deletes the keys that are not in `before`.
async fn delete_newer(store: &Arc<dyn Store>, before: &[String]) {
    let newer = keys(store).await.into_keys();
    for key in newer.filter(|key| !before.contains(key)) {
        store.delete(&key).await.expect("deleted");
    }
}

/// The new root is there, and the only key for it is removed before the rotation looks.
#[tokio::test(start_paused = true)]
async fn a_rotation_without_a_key_leaves_one_whatever_the_store_refuses() {
    let look = look_after_the_root().await;
    for (operation, prefix) in [
        (Operation::List, SlotName::PREFIX),
        (Operation::GetTail, SlotName::PREFIX),
        (Operation::Get, ROOT_KEY),
    ] {
        let refusal = refused(operation, prefix);
        let store = made().await;
        let before: Vec<String> = keys(&store).await.into_keys().collect();
        let (gate, faulty, through) = holding_after_the_root(&store).await;
        // The look itself is refused, or what follows it.
        let is_of_the_look = operation == Operation::GetTail;
        if is_of_the_look {
            faulty.plan(refusal.clone().nth(look));
        }
        let rotating = tokio::spawn(async move { rotated(&through, "first", 30).await });
        until_held(&faulty).await;
        delete_newer(&store, &before).await;
        if !is_of_the_look {
            faulty.plan(refusal.clone());
        }
        gate.open();
        let error = rotating.await.expect("no panic").expect_err("refused");
        open(&store, "first").await.expect("a copy opens");
        let is_told =
            matches!(&error, SlotsError::RotationUnconfirmed { reason } if reason.contains("key "));
        assert!(is_told, "{error}");
    }
}

/// The new root is there, its answer is lost, and later reads of the root fail or are garbled.
#[tokio::test(start_paused = true)]
async fn a_rotation_that_cannot_read_its_root_leaves_a_key() {
    // A bit of the repository's id, in the header.
    let garbled = Strike::with(Trouble::FlipBit(400)).on(Operation::GetRange);
    for troubles in [
        vec![refused(Operation::Get, ROOT_KEY)],
        vec![
            refused(Operation::Get, ROOT_KEY),
            refused(Operation::GetRange, ROOT_KEY),
        ],
        vec![
            refused(Operation::Get, ROOT_KEY),
            garbled.keys(ROOT_KEY).times(2),
        ],
    ] {
        let store = made().await;
        let before: Vec<String> = keys(&store).await.into_keys().collect();
        let faulty = Arc::new(FaultStore::new(store.clone()));
        let gate = Gate::new();
        for trouble in [
            Trouble::HoldBefore(gate.clone()),
            Trouble::FailAfter(StoreErrorKind::OutcomeUnknown),
        ] {
            faulty.plan(Strike::with(trouble).on(Operation::Replace).keys(ROOT_KEY));
        }
        let through: Arc<dyn Store> = faulty.clone();
        let rotating = tokio::spawn(async move { rotated(&through, "first", 30).await });
        until_held(&faulty).await;
        delete_newer(&store, &before).await;
        for trouble in troubles {
            faulty.plan(trouble);
        }
        gate.open();
        let error = rotating.await.expect("no panic").expect_err("it is lost");
        open(&store, "first").await.expect("a copy opens");
        assert!(!matches!(error, SlotsError::Rotated), "{error}");
    }
}

/// The slot of an interrupted rotation is removed before the rotation that wants to use it makes its
/// root.
#[tokio::test(start_paused = true)]
async fn no_rotation_is_made_without_its_new_key() {
    let store = made().await;
    let before: Vec<String> = keys(&store).await.into_keys().collect();
    let (_gate, cut) = held(&store).await;
    cut.abort();
    let rotating = slots(&store, "first", 31).await.expect("it opens");
    delete_newer(&store, &before).await;
    let error = rotate(&rotating, parts(true)).await;
    let error = error.expect_err("its key was removed");
    assert!(
        error.to_string().contains("was removed meanwhile"),
        "{error}"
    );
    let opened = open(&store, "first").await.expect("it opens");
    assert_eq!(opened.keyring().epoch(), 0);
}

/// Ends the only session in the root, as `bkfs session end` does.
pub async fn end_the_session(store: &Arc<dyn Store>) {
    let opened = open(store, "first").await.expect("it opens");
    let root = opened.handle().current();
    let standing = *root.root.sessions.keys().next().expect("a session");
    let ending = opened.handle();
    let by = OpenSession::open_in_place_of(ending, holder("ender"), standing, &SystemProcesses);
    by.await.expect("removed").end().await.expect("live");
}

/// The rotation's session was ended and the password changed, and two reads of the root are garbled.
#[tokio::test(start_paused = true)]
async fn garbled_reads_of_the_root_let_no_removed_password_in() {
    let store = made().await;
    let (gate, faulty, through) = holding_after_the_root(&store).await;
    let rotating = tokio::spawn(async move { rotated(&through, "first", 30).await });
    until_held(&faulty).await;
    end_the_session(&store).await;
    passwd_to(store.clone(), 33, "third")
        .await
        .expect("changed");
    let garbled = Strike::with(Trouble::FlipBit(2000)).on(Operation::Get);
    faulty.plan(garbled.keys(ROOT_KEY).times(2));
    gate.open();
    let error = rotating.await.expect("no panic").expect_err("it was ended");
    assert!(matches!(error, SlotsError::Rotated), "{error}");
    open(&store, "first").await.expect_err("it was changed");
}

/// A copy whose answer is lost, or that cannot be taken back, may be a key that no user expects.
#[tokio::test(start_paused = true)]
async fn a_rotation_tells_of_a_copy_that_may_be_there() {
    let store = made().await;
    let before: Vec<String> = keys(&store).await.into_keys().collect();
    let (gate, faulty, through) = holding_after_the_root(&store).await;
    let rotating = tokio::spawn(async move { rotated(&through, "first", 30).await });
    until_held(&faulty).await;
    delete_newer(&store, &before).await;
    let lost = Strike::with(Trouble::FailAfter(StoreErrorKind::OutcomeUnknown));
    faulty.plan(lost.on(Operation::PutNew).keys(SlotName::PREFIX));
    gate.open();
    let error = rotating.await.expect("no panic").expect_err("it is lost");
    let is_told = matches!(error, SlotsError::RotationUnconfirmed { .. });
    assert!(is_told, "{error}");
    open(&store, "first").await.expect("the copy is there");
}

/// How the command `name` of a machine enters the root.
pub fn command(name: &str, machine: &str) -> KeyEntry<'static> {
    let mut entry = entry(machine);
    entry.holder.mount_point = name.to_owned();
    entry
}

pub async fn passwd_to(
    store: Arc<dyn Store>,
    seed: u64,
    password: &'static str,
) -> Result<(), SlotsError> {
    let slots = slots(&store, "first", seed).await?;
    let change = slots.change(making(password, password), None);
    changed(&slots, command(PASSWD, password), change)
        .await
        .map(drop)
}

/// Of two changes of one password, the later one is refused: otherwise both new passwords open.
#[tokio::test(start_paused = true)]
async fn a_password_is_changed_once() {
    let store = made().await;
    let (gate, faulty, through) = holding(&store, Operation::Delete, 1).await;
    let first = tokio::spawn(passwd_to(through, 3, "third"));
    until_held(&faulty).await;
    passwd_to(store.clone(), 4, "fourth")
        .await
        .expect_err("the password is being changed");
    gate.open();
    first.await.expect("no panic").expect("changed");
    open(&store, "third").await.expect("it opens");
    open(&store, "fourth").await.expect_err("it was refused");
    assert_eq!(keys(&store).await.len(), 1);
}

/// Two removals could rely on each other's copies.
#[tokio::test(start_paused = true)]
async fn keys_are_not_removed_by_two_at_once() {
    let store = made().await;
    let own = *slots_of(&store).await.first().expect("one");
    let second = add(&store, "second", "two").await;
    let (gate, faulty, through) = holding(&store, Operation::Delete, 1).await;
    let removing = tokio::spawn(async move {
        let slots = slots(&through, "first", 3).await?;
        let keys = [second];
        let removal = slots.remove(&keys, false, time(1), None);
        changed(&slots, command(REMOVE, "remover"), removal).await
    });
    until_held(&faulty).await;
    let other = slots(&store, "second", 7).await.expect("it opens");
    let keys = [own];
    let removal = other.remove(&keys, false, time(1), None);
    let error = changed(&other, command(REMOVE, "other"), removal).await;
    let error = error.expect_err("keys are being removed");
    assert!(matches!(&error, SlotsError::Root(error) if error.kind() == ErrorKind::Held));
    gate.open();
    removing.await.expect("no panic").expect("removed");
    assert_eq!(slots_of(&store).await, [own]);
}

/// A removal makes a copy of its own key, by the old password, and keeps it if its own key is gone.
#[tokio::test(start_paused = true)]
async fn a_password_is_not_changed_while_keys_are_removed_or_added() {
    let store = made().await;
    let second = add(&store, "second", "two").await;
    let (gate, faulty, through) = holding(&store, Operation::Delete, 1).await;
    let removing = tokio::spawn(async move {
        let slots = slots(&through, "first", 3).await?;
        let removal = [second];
        let removing = slots.remove(&removal, false, time(1), None);
        changed(&slots, command(REMOVE, "remover"), removing).await
    });
    until_held(&faulty).await;
    passwd_to(store.clone(), 4, "third")
        .await
        .expect_err("keys are being removed");
    gate.open();
    removing.await.expect("no panic").expect("removed");
    passwd_to(store.clone(), 5, "third").await.expect("changed");
    open(&store, "first").await.expect_err("it was changed");
    // And the other way round.
    let (gate, faulty, through) = holding(&store, Operation::Delete, 1).await;
    let first = tokio::spawn(async move {
        let slots = slots(&through, "third", 6).await?;
        let change = slots.change(making("fourth", "four"), None);
        changed(&slots, command(PASSWD, "changer"), change).await
    });
    until_held(&faulty).await;
    let third = slots(&store, "third", 7).await.expect("it opens");
    let adding = third.add(making("fifth", "five"));
    let error = changed(&third, command(ADD, "adder"), adding).await;
    error.expect_err("the password is being changed");
    gate.open();
    first.await.expect("no panic").expect("changed");
    assert_eq!(keys(&store).await.len(), 1);
}

/// Another key of the password came after the keys were read: it would go on opening.
#[tokio::test(start_paused = true)]
async fn a_password_is_not_changed_while_a_key_of_it_is_unknown() {
    let store = made().await;
    let first = slots(&store, "first", 3).await.expect("it opens");
    add(&store, "first", "again").await;
    let before = keys(&store).await;
    let change = first.change(making("third", "three"), None);
    let error = changed(&first, command(PASSWD, "changer"), change).await;
    let error = error.expect_err("a key was added");
    assert!(error.to_string().contains("was added meanwhile"), "{error}");
    assert_eq!(keys(&store).await, before);
    passwd_to(store.clone(), 4, "third").await.expect("changed");
    open(&store, "first").await.expect_err("it was changed");
}

/// So would the key of a rotation that was begun meanwhile, and never made.
#[tokio::test(start_paused = true)]
async fn a_password_is_not_changed_during_a_begun_rotation_of_it() {
    let store = made().await;
    let first = slots(&store, "first", 3).await.expect("it opens");
    let (_gate, cut) = held(&store).await;
    cut.abort();
    let change = first.change(making("third", "three"), None);
    let error = changed(&first, command(PASSWD, "changer"), change).await;
    let error = error.expect_err("a key was added");
    assert!(error.to_string().contains("was added meanwhile"), "{error}");
}

/// The keys were read before the password was changed. What is done with the old password then is
/// refused.
#[tokio::test(start_paused = true)]
async fn keys_are_not_changed_with_a_password_that_was_removed() {
    let store = made().await;
    let late = slots(&store, "first", 5).await.expect("it opens");
    passwd_to(store.clone(), 3, "third").await.expect("changed");
    let before = keys(&store).await;
    let adding = late.add(making("second", "two"));
    let error = changed(&late, entry("here"), adding).await;
    let error = error.expect_err("its password was removed");
    assert!(
        error.to_string().contains("was removed meanwhile"),
        "{error}"
    );
    assert_eq!(keys(&store).await, before, "nothing was written");
    let third = open(&store, "third").await.expect("it opens");
    assert!(third.handle().current().root.sessions.is_empty());
}

/// Runs `work` on a store, and on a change of keys that began while `garbled` struck the root.
async fn begun_with_a_garbled_root(
    garbled: Strike,
    work: impl AsyncFnOnce(&Arc<dyn Store>, KeyChange<'_>),
) {
    let store = made().await;
    let faulty = Arc::new(FaultStore::new(store.clone()));
    let through: Arc<dyn Store> = faulty.clone();
    let first = slots(&through, "first", 3).await.expect("it opens");
    faulty.plan(garbled.on(Operation::Get).keys(ROOT_KEY));
    let here = entry("here");
    let change = KeyChange::begin(&first, &here).await;
    faulty.heal();
    work(&store, change.expect("begun")).await;
}

fn garbled() -> Strike {
    Strike::with(Trouble::FlipBit(2000))
}

/// One read of the root is garbled. A change of keys that believes it would exclude no rotation.
#[tokio::test(start_paused = true)]
async fn a_change_of_keys_looks_again_at_a_root_that_seems_damaged() {
    begun_with_a_garbled_root(garbled(), async |store, change| {
        let opened = open(store, "first").await.expect("it opens");
        assert_eq!(opened.handle().current().root.sessions.len(), 1);
        change.end(Ok(())).await.expect("it stood");
    })
    .await;
}

/// The root seemed damaged for as long as the change looked, and is whole at its end.
#[tokio::test(start_paused = true)]
async fn a_change_without_a_session_is_not_confirmed_if_the_root_is_whole() {
    begun_with_a_garbled_root(garbled().always(), async |_, change| {
        let error = change.end(Ok(())).await.expect_err("a rotation may be");
        assert!(matches!(error, SlotsError::Unconfirmed { .. }), "{error}");
    })
    .await;
}

/// A rotation was made after the change had looked at the root's header.
#[tokio::test(start_paused = true)]
async fn a_change_without_a_session_is_not_confirmed_if_there_was_a_rotation() {
    begun_with_a_garbled_root(garbled().always(), async |store, change| {
        rotated(store, "first", 4).await.expect("no session");
        change.end(Ok(())).await.expect_err("a rotation was made");
    })
    .await;
}
