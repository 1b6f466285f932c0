//! Changes of keys and rotations of the master key exclude each other, in either order, and neither
//! locks the keys for ever when it is killed.

use super::keys_changes::{holding, holding_after_the_root, until_held};
use super::keys_rotation::held;
use super::keys_support::*;
use super::support::{holder, time};
use crate::root::error::{ErrorKind, RootError};
use crate::root::holder::SystemProcesses;
use crate::root::key_change::{KeyChange, KeyEntry, ROTATION};
use crate::root::rotation::rotate;
use crate::root::session::OpenSession;
use crate::root::slot_error::SlotsError;
use crate::root::slots::Slots;
use crate::root::state::{ROOT_KEY, SessionId};
use bkfs_store::{Operation, Store};
use std::sync::Arc;

/// The sessions in the root, each with its mount point.
async fn sessions(store: &Arc<dyn Store>, password: &'static str) -> Vec<(SessionId, String)> {
    let opened = open(store, password).await.expect("it opens");
    let root = &opened.handle().current().root;
    let sessions = root.sessions.iter();
    let named = sessions.map(|(id, session)| (*id, session.holder.mount_point.clone()));
    named.collect()
}

/// Ends a dead session, as `bkfs session end` does on another machine.
async fn end(store: &Arc<dyn Store>, password: &'static str, id: SessionId) {
    let opened = open(store, password).await.expect("it opens");
    let handle = opened.handle();
    let by = OpenSession::open_in_place_of(handle, holder("ender"), id, &SystemProcesses).await;
    by.expect("removed").end().await.expect("live");
}

/// Changes the password "first" to "third" on the machine `name`.
async fn passwd(slots: &Slots, entry: KeyEntry<'_>) -> Result<(), SlotsError> {
    let change = slots.change(making("third", "three"), None);
    changed(slots, entry, change).await.map(drop)
}

fn dead_here(name: &str) -> KeyEntry<'static> {
    KeyEntry {
        processes: &AllGone,
        ..entry(name)
    }
}

fn is_busy(error: &SlotsError, named: &str) {
    let SlotsError::Root(root) = error else {
        panic!("{error}")
    };
    assert_eq!(root.kind(), ErrorKind::Held, "{error}");
    assert!(error.to_string().contains(named), "{error}");
}

/// The rotation has read the root and the keys before the change, and replaces the root after it.
#[tokio::test(start_paused = true)]
async fn a_change_of_keys_fails_the_rotation_that_it_comes_between() {
    for change in ["passwd", "add", "remove"] {
        let store = made().await;
        add(&store, "second", "two").await;
        let first = slots(&store, "first", 3).await.expect("it opens");
        let second = slots(&store, "second", 4).await.expect("it opens");
        let own = first.list().iter().find(|slot| slot.is_own);
        let own = own.expect("its own").name;
        let (gate, rotating) = held(&store).await;
        let here = entry("here");
        match change {
            "passwd" => passwd(&second, here).await,
            "add" => changed(&first, here, first.add(making("third", "three")))
                .await
                .map(drop),
            _ => changed(&second, here, second.remove(&[own], false, time(1), None)).await,
        }
        .expect("changed");
        gate.open();
        let made = rotating.await.expect("no panic");
        assert!(made.is_err(), "{change}: {made:?}");
        for (password, opens) in [
            ("first", change != "remove"),
            ("second", change != "passwd"),
            ("third", change != "remove"),
        ] {
            let opened = open(&store, password).await;
            assert_eq!(opened.is_ok(), opens, "{change}: {password}");
        }
        let password = if change == "remove" {
            "second"
        } else {
            "first"
        };
        assert_eq!(sessions(&store, password).await, [], "{change}");
        rotated(&store, password, 5)
            .await
            .expect("it can be repeated");
    }
}

#[tokio::test(start_paused = true)]
async fn no_rotation_begins_while_keys_are_changed() {
    let store = made().await;
    let (gate, faulty, through) = holding(&store, Operation::Delete, 1).await;
    let first = slots(&through, "first", 3).await.expect("it opens");
    let changing = tokio::spawn(async move { passwd(&first, entry("here")).await });
    until_held(&faulty).await;
    let error = rotated(&store, "first", 4).await.expect_err("a change");
    is_busy(&error, "here");
    gate.open();
    changing.await.expect("no panic").expect("changed");
    let error = open(&store, "first").await.expect_err("changed");
    assert!(matches!(error, RootError::WrongPassword), "{error}");
    open(&store, "third").await.expect("it opens");
}

/// The rotation is made, and has not yet looked whether its new key is there.
#[tokio::test(start_paused = true)]
async fn no_key_is_changed_until_the_rotation_has_left() {
    let store = made().await;
    let (gate, faulty, through) = holding_after_the_root(&store).await;
    let rotating = tokio::spawn(async move { rotated(&through, "first", 30).await });
    until_held(&faulty).await;
    let opened = slots(&store, "first", 31).await.expect("it opens");
    let before = keys(&store).await;
    let error = passwd(&opened, entry("here")).await.expect_err("too early");
    is_busy(&error, ROTATION);
    let adding = opened.add(making("second", "two"));
    let error = changed(&opened, entry("here"), adding).await;
    is_busy(&error.expect_err("too early"), ROTATION);
    assert_eq!(keys(&store).await, before, "nothing was written");
    gate.open();
    rotating.await.expect("no panic").expect("made");
    passwd(&opened, entry("here")).await.expect("changed");
    assert!(open(&store, "first").await.is_err());
    assert_eq!(sessions(&store, "third").await, []);
}

/// The rotation is made and then stands still; another machine takes it for dead and ends its
/// session, and the password is changed.
#[tokio::test(start_paused = true)]
async fn a_rotation_whose_session_was_ended_writes_no_copy_of_a_removed_key() {
    let store = made().await;
    let (gate, faulty, through) = holding_after_the_root(&store).await;
    let rotating = tokio::spawn(async move { rotated(&through, "first", 30).await });
    until_held(&faulty).await;
    let standing = sessions(&store, "first").await;
    let [(id, _)] = standing[..] else {
        panic!("{standing:?}")
    };
    end(&store, "first", id).await;
    let opened = slots(&store, "first", 31).await.expect("it opens");
    passwd(&opened, entry("here")).await.expect("changed");
    gate.open();
    let error = rotating.await.expect("no panic").expect_err("it was ended");
    assert!(matches!(error, SlotsError::Rotated), "{error}");
    let error = open(&store, "first").await.expect_err("it was changed");
    assert!(matches!(error, RootError::WrongPassword), "{error}");
    open(&store, "third").await.expect("it opens");
}

/// Another process makes the rotation that this one has begun, and the password is changed since.
#[tokio::test(start_paused = true)]
async fn a_rotation_that_another_one_made_writes_no_copy_of_a_removed_key() {
    let store = made().await;
    let (gate, rotating) = held(&store).await;
    rotated(&store, "first", 40).await.expect("it comes first");
    let opened = slots(&store, "first", 41).await.expect("it opens");
    passwd(&opened, entry("here")).await.expect("changed");
    gate.open();
    let error = rotating.await.expect("no panic").expect_err("too late");
    assert!(matches!(error, SlotsError::Rotated), "{error}");
    assert!(open(&store, "first").await.is_err());
    open(&store, "third").await.expect("it opens");
    assert_eq!(keys(&store).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_killed_rotation_locks_no_keys_for_ever() {
    for is_here in [true, false] {
        let store = made().await;
        let (_gate, faulty, through) = holding_after_the_root(&store).await;
        let rotating = tokio::spawn(async move { rotated(&through, "first", 30).await });
        until_held(&faulty).await;
        rotating.abort();
        let opened = slots(&store, "first", 31).await.expect("it opens");
        if is_here {
            passwd(&opened, dead_here("rotator"))
                .await
                .expect("changed");
        } else {
            let error = passwd(&opened, dead_here("other")).await;
            is_busy(&error.expect_err("it may live"), ROTATION);
            let standing = sessions(&store, "first").await;
            let [(id, mount_point)] = &standing[..] else {
                panic!("{standing:?}")
            };
            assert_eq!(mount_point, ROTATION);
            end(&store, "first", *id).await;
            passwd(&opened, dead_here("other")).await.expect("changed");
        }
        assert!(open(&store, "first").await.is_err());
        open(&store, "third").await.expect("it opens");
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_change_of_keys_locks_no_rotation_for_ever() {
    for is_here in [true, false] {
        let store = made().await;
        let (_gate, faulty, through) = holding(&store, Operation::Delete, 1).await;
        let first = slots(&through, "first", 3).await.expect("it opens");
        let changing = tokio::spawn(async move { passwd(&first, entry("rotator")).await });
        until_held(&faulty).await;
        changing.abort();
        for password in ["first", "third"] {
            open(&store, password).await.expect("both open");
        }
        if !is_here {
            let rotating = slots(&store, "third", 4).await.expect("it opens");
            let mut parts = parts(true);
            parts.entry = dead_here("other");
            let error = rotate(&rotating, parts).await.expect_err("it may live");
            is_busy(&error, "rotator");
            let standing = sessions(&store, "first").await;
            end(&store, "first", standing[0].0).await;
        }
        let rotating = slots(&store, "third", 5).await.expect("it opens");
        let mut parts = parts(true);
        parts.entry.processes = &AllGone;
        rotate(&rotating, parts).await.expect("no session");
        assert!(open(&store, "first").await.is_err());
        open(&store, "third").await.expect("it opens");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_whose_session_was_ended_meanwhile_says_so() {
    let store = made().await;
    let (gate, faulty, through) = holding(&store, Operation::Delete, 1).await;
    let first = slots(&through, "first", 3).await.expect("it opens");
    let changing = tokio::spawn(async move { passwd(&first, entry("here")).await });
    until_held(&faulty).await;
    let standing = sessions(&store, "first").await;
    end(&store, "first", standing[0].0).await;
    gate.open();
    let error = changing.await.expect("no panic").expect_err("it was ended");
    assert!(matches!(error, SlotsError::Unconfirmed { .. }), "{error}");
}

/// No rotation can be made of such a root, and keys must be changeable.
#[tokio::test(start_paused = true)]
async fn without_a_root_keys_are_changed_without_a_session() {
    for is_there in [true, false] {
        let store = made().await;
        match is_there {
            true => turn(&store, ROOT_KEY, 200).await,
            false => store.delete(ROOT_KEY).await.expect("deleted"),
        }
        let first = slots(&store, "first", 3).await.expect("it opens");
        passwd(&first, entry("here")).await.expect("changed");
        let third = slots(&store, "third", 4).await.expect("it opens");
        assert_eq!(third.list().len(), 1);
    }
    // With a root under a newer master key there is a rotation.
    let store = made().await;
    let first = slots(&store, "first", 3).await.expect("it opens");
    rotated(&store, "first", 4).await.expect("no session");
    let here = entry("here");
    let late = KeyChange::begin(&first, &here).await;
    let error = late.err().expect("it was rotated");
    assert!(matches!(error, SlotsError::Rotated), "{error}");
}
