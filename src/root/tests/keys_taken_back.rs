//! Keys that a change adds for a while, and takes back: a removed password opens nothing, and a key
//! is left.

use super::keys_changes::{holding, until_held};
use super::keys_copies::{command, end_the_session, passwd_to, refused};
use super::keys_support::*;
use super::support::time;
use crate::root::key_change::{KeyChange, PASSWD, REMOVE};
use crate::root::slot_error::SlotsError;
use crate::root::state::ROOT_KEY;
use bkfs_chunker::crypto::SlotName;
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault as Trouble, FaultStore, Gate, Strike};
use std::sync::Arc;
use std::time::Duration;

/// Removes a key by "first", with a session.
async fn removed(store: &Arc<dyn Store>, key: SlotName) -> Result<(), SlotsError> {
    let slots = slots(store, "first", 3).await?;
    let remover = command(REMOVE, "remover");
    let change = KeyChange::begin(&slots, &remover).await?;
    let removal = slots.remove(&[key], false, time(1), Some(&change)).await;
    change.end(removal).await
}

/// The session of a removal is ended while it writes its copy, and then the password is changed. The
/// copy is taken back, or named if that fails.
#[tokio::test(start_paused = true)]
async fn a_removal_whose_session_was_ended_lets_no_removed_password_in() {
    for is_stuck in [false, true] {
        let store = made().await;
        let second = add(&store, "second", "two").await;
        let (gate, faulty, through) = holding(&store, Operation::PutNew, 1).await;
        let removing = tokio::spawn(async move { removed(&through, second).await });
        until_held(&faulty).await;
        end_the_session(&store).await;
        passwd_to(store.clone(), 33, "third")
            .await
            .expect("changed");
        if is_stuck {
            faulty.plan(refused(Operation::Delete, SlotName::PREFIX));
        }
        gate.open();
        let error = removing.await.expect("no panic").expect_err("it was ended");
        let SlotsError::Overtaken { left, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(!left.is_empty(), is_stuck, "{error}");
        assert_eq!(open(&store, "first").await.is_ok(), is_stuck, "{error}");
        open(&store, "second").await.expect("it was not removed");
    }
}

/// Another removal relies on the copy, and removes all else, before the session of the first one is
/// ended. The copy is then the only key.
#[tokio::test(start_paused = true)]
async fn a_copy_that_is_the_only_key_is_not_taken_back() {
    let store = made().await;
    let own = *slots_of(&store).await.first().expect("one");
    let second = add(&store, "second", "two").await;
    let (gate, faulty, through) = holding(&store, Operation::PutNew, 1).await;
    let removing = tokio::spawn(async move { removed(&through, second).await });
    until_held(&faulty).await;
    let looks = Gate::new();
    let hold = Strike::with(Trouble::HoldBefore(looks.clone())).on(Operation::Get);
    faulty.plan(hold.keys(ROOT_KEY));
    gate.open();
    while faulty.struck() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let other = slots(&store, "first", 9).await.expect("it opens");
    let all_others = other.remove(&[own, second], false, time(1), None).await;
    all_others.expect("the copy is in force");
    end_the_session(&store).await;
    looks.open();
    let error = removing.await.expect("no panic").expect_err("it was ended");
    let SlotsError::Overtaken { left, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(slots_of(&store).await, *left, "{error}");
    open(&store, "first").await.expect("its only key");
}

/// The session of a change of a password is ended before it adds its key. Another change of the
/// password may be made meanwhile.
#[tokio::test(start_paused = true)]
async fn a_change_of_password_whose_session_was_ended_adds_no_key() {
    for is_changed in [false, true] {
        let store = made().await;
        let before = slots_of(&store).await;
        let (gate, faulty, through) = holding(&store, Operation::PutNew, 1).await;
        let changing = tokio::spawn(async move {
            let slots = slots(&through, "first", 3).await?;
            let changer = command(PASSWD, "changer");
            let change = KeyChange::begin(&slots, &changer).await?;
            let changed = slots.change(making("fourth", "four"), Some(&change)).await;
            change.end(changed).await
        });
        until_held(&faulty).await;
        end_the_session(&store).await;
        if is_changed {
            passwd_to(store.clone(), 33, "third")
                .await
                .expect("changed");
        }
        gate.open();
        let error = changing.await.expect("no panic").expect_err("it was ended");
        let is_clean = matches!(&error, SlotsError::Overtaken { left, .. } if left.is_empty());
        assert!(is_clean, "{error}");
        open(&store, "fourth").await.expect_err("it was taken back");
        assert_eq!(open(&store, "first").await.is_err(), is_changed);
        assert_eq!(slots_of(&store).await.len(), before.len());
    }
}

/// The session of a removal is ended, and its own key is removed by another password.
#[tokio::test(start_paused = true)]
async fn a_removed_password_is_not_let_in_by_a_removal_that_was_ended() {
    let store = made().await;
    let own = *slots_of(&store).await.first().expect("one");
    add(&store, "second", "two").await;
    let third = add(&store, "third", "three").await;
    let (gate, faulty, through) = holding(&store, Operation::PutNew, 1).await;
    let removing = tokio::spawn(async move { removed(&through, third).await });
    until_held(&faulty).await;
    end_the_session(&store).await;
    let second = slots(&store, "second", 9).await.expect("it opens");
    let removal = second.remove(&[own], false, time(1), None).await;
    removal.expect("removed");
    gate.open();
    let error = removing.await.expect("no panic").expect_err("it was ended");
    assert!(matches!(&error, SlotsError::Overtaken { left, .. } if left.is_empty()));
    open(&store, "first").await.expect_err("it was removed");
    assert_eq!(slots_of(&store).await.len(), 2);
}

/// What goes wrong after a copy was deleted that another removal relied on.
enum Mishap {
    /// Nothing.
    Nothing,
    /// The deletion of the copy is made, and its answer is lost.
    AnswerLost,
    /// The own key cannot be looked for.
    Unseen,
    /// The first attempt to write the copy again fails.
    Unwritten,
    /// No attempt to write it again succeeds.
    NeverWritten,
}

impl Mishap {
    /// Plans what strikes the deletion itself, the second one.
    fn plan_before(&self, faulty: &FaultStore) {
        if matches!(self, Self::AnswerLost) {
            let lost = Strike::with(Trouble::FailAfter(StoreErrorKind::OutcomeUnknown));
            let deletion = lost.on(Operation::Delete).keys(SlotName::PREFIX);
            faulty.plan(deletion.nth(2));
        }
    }

    /// Plans what strikes later requests.
    fn plan(&self, faulty: &FaultStore) {
        let keys = SlotName::PREFIX;
        let unavailable = || Strike::with(Trouble::FailBefore(StoreErrorKind::Unreachable));
        match self {
            Self::Nothing | Self::AnswerLost => {}
            Self::Unseen => faulty.plan(refused(Operation::Head, keys)),
            Self::Unwritten => faulty.plan(unavailable().on(Operation::PutNew).keys(keys)),
            Self::NeverWritten => faulty.plan(refused(Operation::PutNew, keys)),
        }
    }
}

/// Another removal relies on the copy while the first one is about to delete it: the first has seen
/// its own key a moment before.
#[tokio::test(start_paused = true)]
async fn a_copy_that_another_removal_relied_on_is_written_again() {
    for mishap in [
        Mishap::Nothing,
        Mishap::AnswerLost,
        Mishap::Unseen,
        Mishap::Unwritten,
        Mishap::NeverWritten,
    ] {
        let store = made().await;
        let own = *slots_of(&store).await.first().expect("one");
        let second = add(&store, "second", "two").await;
        let (gate, faulty, through) = holding(&store, Operation::Delete, 2).await;
        mishap.plan_before(&faulty);
        let removing = tokio::spawn(async move {
            let slots = slots(&through, "first", 3).await?;
            slots.remove(&[second], false, time(1), None).await
        });
        until_held(&faulty).await;
        let other = slots(&store, "first", 9).await.expect("it opens");
        let relied = other.remove(&[own], false, time(1), None).await;
        relied.expect("the copy is in force");
        mishap.plan(&faulty);
        gate.open();
        let ended = removing.await.expect("no panic");
        open(&store, "second").await.expect_err("it was removed");
        if matches!(mishap, Mishap::NeverWritten) {
            let error = ended.expect_err("no key is left").to_string();
            store_as_told(&store, &error).await;
        } else {
            ended.expect("the key is gone");
            assert_eq!(slots_of(&store).await.len(), 1);
        }
        open(&store, "first").await.expect("its only key");
    }
}

/// Another program deletes the copy before the removal does.
#[tokio::test(start_paused = true)]
async fn a_copy_that_is_gone_already_is_no_failure() {
    let store = made().await;
    let own = *slots_of(&store).await.first().expect("one");
    let second = add(&store, "second", "two").await;
    let (gate, faulty, through) = holding(&store, Operation::Head, 1).await;
    let removing = tokio::spawn(async move {
        let slots = slots(&through, "first", 3).await?;
        slots.remove(&[second], false, time(1), None).await
    });
    until_held(&faulty).await;
    let copies = slots_of(&store)
        .await
        .into_iter()
        .filter(|slot| *slot != own);
    for copy in copies {
        store.delete(&copy.key()).await.expect("deleted");
    }
    gate.open();
    removing.await.expect("no panic").expect("removed");
    assert_eq!(slots_of(&store).await, [own]);
}

/// Does what an error says of a lost key: "store these bytes (hexadecimal) in the bucket as KEY:
/// BYTES".
async fn store_as_told(store: &Arc<dyn Store>, error: &str) {
    let (_, told) = error.split_once(" in the bucket as ").expect("it is told");
    let (key, object) = told.split_once(": ").expect("the bytes follow");
    let object = hex::decode(object).expect("hexadecimal");
    store.put_new(key, vec![object.into()]).await.expect("put");
}
