//! Rotations of the master key.

use super::keys_support::*;
use super::support::{holder, time};
use crate::root::error::{ErrorKind, RootError};
use crate::root::handle::RootHandle;
use crate::root::holder::SystemProcesses;
use crate::root::lists::{DirectLists, Lists};
use crate::root::refusal::Refusal;
use crate::root::request::VolumeRequest;
use crate::root::rotation::{Rotated, rotate};
use crate::root::session::OpenSession;
use crate::root::slot_error::SlotsError;
use crate::root::state::ROOT_KEY;
use bkfs_chunker::crypto::{Class, Keyring};
use bkfs_chunker::pack::PackName;
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault as Trouble, FaultStore, Gate, Strike};
use std::collections::BTreeMap;
use std::sync::Arc;

#[tokio::test(start_paused = true)]
async fn a_rotation_seals_what_comes_and_opens_what_was() {
    let store = made().await;
    let before = open(&store, "first").await.expect("there");
    let old = before.keyring().clone();
    let list = write_list(before.handle(), 7).await;
    let made = rotated(&store, "first", 3).await.expect("no session");
    assert_eq!((made.epoch, made.dropped.len(), made.left.len()), (1, 1, 0));
    assert_eq!(keys(&store).await.len(), 1, "the old slot is gone");
    let after = open(&store, "first").await.expect("there");
    assert_eq!(after.keyring().epoch(), 1);
    let root = &after.handle().current().root;
    // The rotation enters the root that makes it, and leaves the next one.
    assert_eq!((made.generation, root.generation), (4, 5));
    assert!(root.sessions.is_empty());
    assert!(root.chain.is_some() && root.lock_rules.is_some());
    // Ids stay, and older objects open. Newer objects do not open with the old keyring.
    let name = |keyring: &Keyring| keyring.id(bkfs_chunker::id::Kind::Chunk, b"x");
    assert_eq!(name(after.keyring()), name(&old));
    let lists = Lists::new(store.clone(), after.keyring().clone());
    lists.pack_shards(&[list]).await.expect("it opens");
    let newer = write_list(after.handle(), 8).await;
    let lists = Lists::new(store.clone(), old.clone());
    let error = lists.pack_shards(&[newer]).await.expect_err("newer");
    assert!(error.to_string().contains("rotated"), "{error}");
    // A second rotation fails processes that have the repository open.
    let again = rotated(&store, "first", 4).await.expect("no session");
    assert_eq!(again.epoch, 2);
    let error = after.handle().refresh().await.expect_err("another key");
    assert!(error.to_string().contains("rotated"), "{error}");
    let opened = open(&store, "first").await.expect("there");
    assert_eq!(opened.keyring().epoch(), 2);
    let lists = Lists::new(store.clone(), opened.keyring().clone());
    lists.pack_shards(&[list, newer]).await.expect("both open");
}

/// Stores a list in a session of its own.
async fn write_list(handle: &RootHandle, number: u32) -> crate::root::shard::ListRef {
    use crate::root::snapshots::PackEntry;
    let session = OpenSession::open(handle, holder("a"), None, &SystemProcesses).await;
    let session = session.expect("room");
    let writer = DirectLists::new(handle, session.id()).last();
    let entry = PackEntry(PackName {
        session: 1,
        sequence: number,
        random: 0,
    });
    let list = crate::root::lists::put_shard(&writer, vec![entry]).await;
    session.end().await.expect("live");
    list.expect("stored")
}

#[tokio::test(start_paused = true)]
async fn keys_of_other_passwords_are_dropped_only_if_that_is_meant() {
    let store = made().await;
    let second = add(&store, "second", "the other one").await;
    let before = keys(&store).await;
    let opened = slots(&store, "first", 3).await.expect("it opens");
    let error = rotate(&opened, parts(false)).await.expect_err("another");
    assert!(matches!(&error, SlotsError::Others { keys } if keys.len() == 1));
    let text = error.to_string();
    assert!(
        text.contains(&second.to_string()) && text.contains("the other one"),
        "{text}"
    );
    assert_eq!(keys(&store).await, before, "nothing was written");
    // A key that is added after the read of the keys is not dropped either.
    let error = {
        add(&store, "third", "three").await;
        rotate(&opened, parts(true)).await.expect_err("another")
    };
    let changed = |error: &SlotsError| {
        matches!(
            error,
            SlotsError::Root(RootError::Refused(Refusal::KeysChanged(_)))
        )
    };
    assert!(changed(&error), "{error}");
    for password in ["first", "second", "third"] {
        open(&store, password).await.expect("it opens");
    }
    let made = rotated(&store, "first", 4).await.expect("no session");
    assert_eq!(keys(&store).await.len(), 1);
    // The slot of the refused rotation was used.
    assert_eq!((made.epoch, made.dropped.len()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn no_rotation_while_a_session_stands() {
    let store = made().await;
    let before = keys(&store).await;
    let opened = open(&store, "first").await.expect("there");
    let request = || {
        Some(VolumeRequest {
            name: "main".to_owned(),
            steal: true,
            accept_loss: false,
        })
    };
    let open_as = |name: &'static str, volume| {
        OpenSession::open(opened.handle(), holder(name), volume, &SystemProcesses)
    };
    let session = open_as("carol", None).await.expect("room");
    let error = rotated(&store, "first", 3).await.expect_err("a session");
    let text = error.to_string();
    assert!(
        text.contains("carol") && text.contains(&session.id().to_string()),
        "{text}"
    );
    let SlotsError::Root(error) = error else {
        panic!("{text}")
    };
    assert_eq!(error.kind(), ErrorKind::Held);
    assert_eq!(keys(&store).await, before, "nothing was written");
    session.end().await.expect("live");
    // Nor with an ending session: its acknowledged operations must be replayed first.
    let first = open_as("dave", request()).await.expect("room");
    let mut root = opened.handle().current().root.clone();
    root.register(crate::root::SessionId(1), holder("erin"))
        .expect("room");
    root.claim(crate::root::SessionId(1), "main", crate::root::Claim::Steal)
        .expect("stolen");
    root.end(crate::root::SessionId(1)).expect("live");
    root.follow([9; 16]);
    assert_eq!(root.sessions.len(), 1);
    let keyring = opened.keyring();
    let features = opened.handle().current().features;
    let payload = root.encode().expect("small");
    let object = keyring.seal_object(Class::Root, ROOT_KEY, features, [8; 32], &payload);
    put(&store, ROOT_KEY, object).await;
    let error = rotated(&store, "first", 3).await.expect_err("a session");
    assert!(error.to_string().contains("dave"), "{error}");
    drop(first);
    assert_eq!(keys(&store).await, before, "nothing was written");
}

/// Starts a rotation by "first" whose replacement of the root is held back. Returns the gate that
/// lets it pass, and the task.
pub async fn held(
    store: &Arc<dyn Store>,
) -> (Gate, tokio::task::JoinHandle<Result<Rotated, SlotsError>>) {
    let faulty = Arc::new(FaultStore::new(store.clone()));
    let gate = Gate::new();
    let hold = Strike::with(Trouble::HoldBefore(gate.clone())).on(Operation::Replace);
    faulty.plan(hold.keys(ROOT_KEY));
    let through: Arc<dyn Store> = faulty.clone();
    let task = tokio::spawn(async move { rotated(&through, "first", 30).await });
    while faulty.struck() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    (gate, task)
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_comes_between_wins_or_never_registers() {
    let store = made().await;
    let opened = open(&store, "first").await.expect("there");
    let (gate, task) = held(&store).await;
    let session = OpenSession::open(opened.handle(), holder("carol"), None, &SystemProcesses).await;
    let session = session.expect("room");
    gate.open();
    let error = task.await.expect("no panic").expect_err("a session");
    assert!(error.to_string().contains("carol"), "{error}");
    assert_eq!(
        open(&store, "first")
            .await
            .expect("there")
            .keyring()
            .epoch(),
        0
    );
    session.end().await.expect("it writes on");
    // The other order.
    rotated(&store, "first", 3).await.expect("no session");
    let root = store.get(ROOT_KEY).await.expect("there").0;
    let late = OpenSession::open(opened.handle(), holder("dave"), None, &SystemProcesses).await;
    let error = late.expect_err("its key is old");
    assert!(error.to_string().contains("rotated"), "{error}");
    assert_eq!(store.get(ROOT_KEY).await.expect("there").0, root);
}

#[tokio::test(start_paused = true)]
async fn of_two_rotations_one_is_made_and_its_key_opens() {
    // By one password: the second rotation continues the first.
    let store = made().await;
    let (gate, task) = held(&store).await;
    let second = rotated(&store, "first", 40).await.expect("it comes first");
    gate.open();
    let first = task.await.expect("no panic").expect("the same one");
    assert_eq!((first.epoch, first.slot), (second.epoch, second.slot));
    assert_eq!(
        open(&store, "first")
            .await
            .expect("there")
            .keyring()
            .epoch(),
        1
    );
    assert_eq!(keys(&store).await.len(), 1);

    // By two passwords: the second one's key opens, and the first rotation fails.
    let store = made().await;
    add(&store, "second", "two").await;
    let (gate, task) = held(&store).await;
    rotated(&store, "second", 40).await.expect("it comes first");
    gate.open();
    let error = task.await.expect("no panic").expect_err("too late");
    assert!(matches!(error, SlotsError::Rotated), "{error}");
    assert_eq!(
        open(&store, "second")
            .await
            .expect("there")
            .keyring()
            .epoch(),
        1
    );
    assert_eq!(keys(&store).await.len(), 1);
    assert!(open(&store, "first").await.is_err());

    // No other key can remove the slot of a rotation under way, and no password can be changed.
    let store = made().await;
    add(&store, "second", "two").await;
    let (gate, task) = held(&store).await;
    let opened = slots(&store, "second", 41).await.expect("it opens");
    let newer = opened.list().iter().find(|slot| slot.epoch == Some(1));
    let newer = newer.expect("the new one").name;
    let refused = opened.remove(&[newer], false, time(1), None).await;
    assert!(matches!(refused, Err(SlotsError::Unfinished { .. })));
    let own = slots(&store, "first", 42).await.expect("it opens");
    let refused = own.change(making("third", "three"), None).await;
    assert!(matches!(refused, Err(SlotsError::Unfinished { .. })));
    gate.open();
    task.await.expect("no panic").expect("it is made");
    // These slots are of the old epoch now.
    let late = own.add(making("third", "three")).await;
    assert!(matches!(late, Err(SlotsError::Rotated)));
    assert_eq!(keys(&store).await.len(), 1);
}

/// Fate of one request of a rotation, and of all later ones.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// It and all later requests are not sent: a crash.
    Before,
    /// It is applied, and the process ends before the answer.
    After,
    /// It arrives after the process has ended.
    Late,
    /// Its answer is lost, and the process continues.
    Unanswered,
    /// It fails, and the process continues.
    Failed,
}

#[tokio::test(start_paused = true)]
async fn wherever_a_rotation_is_cut_the_password_opens() {
    let whole = Arc::new(FaultStore::new(two().await));
    let store: Arc<dyn Store> = whole.clone();
    rotated(&store, "first", 50).await.expect("no session");
    let requests = whole.requests();
    assert!(requests > 15, "{requests}");
    let cuts = [
        Cut::Before,
        Cut::After,
        Cut::Late,
        Cut::Unanswered,
        Cut::Failed,
    ];
    let mut ends = BTreeMap::new();
    for cut in cuts {
        for nth in 1..=requests {
            let epoch = cut_at(cut, nth).await;
            *ends.entry((format!("{cut:?}"), epoch)).or_insert(0) += 1;
        }
    }
    // Crashes led to both states.
    assert!(
        ends.contains_key(&("After".to_owned(), 0)) && ends.contains_key(&("After".to_owned(), 1))
    );
}

async fn two() -> Arc<dyn Store> {
    let store = made().await;
    add(&store, "second", "two").await;
    store
}

/// Returns the epoch in force after a rotation that is cut at its `nth` request.
async fn cut_at(cut: Cut, nth: u64) -> u32 {
    let what = format!("{cut:?} {nth}");
    let inner = two().await;
    let faulty = Arc::new(FaultStore::new(inner.clone()));
    let store: Arc<dyn Store> = faulty.clone();
    let gone = StoreErrorKind::Denied;
    let lost = StoreErrorKind::OutcomeUnknown;
    let struck = match cut {
        Cut::Before => Strike::with(Trouble::FailBefore(gone)).nth(nth).always(),
        Cut::After => Strike::with(Trouble::FailAfter(lost)).nth(nth),
        Cut::Late => Strike::with(Trouble::Late).nth(nth),
        Cut::Unanswered => Strike::with(Trouble::FailAfter(lost)).nth(nth),
        Cut::Failed => Strike::with(Trouble::FailBefore(gone)).nth(nth),
    };
    faulty.plan(struck);
    if matches!(cut, Cut::After | Cut::Late) {
        faulty.plan(
            Strike::with(Trouble::FailBefore(gone))
                .nth(nth + 1)
                .always(),
        );
    }
    let made = rotated(&store, "first", 60).await;
    faulty.heal();
    faulty.apply_late().await;
    let opened = open(&inner, "first").await;
    let opened = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
    let epoch = opened.keyring().epoch();
    if made.is_ok() {
        assert_eq!(epoch, 1, "{what}");
    }
    let second = open(&inner, "second").await;
    assert_eq!(second.is_ok(), epoch == 0, "{what}");
    // It can be repeated, and leaves no slot behind.
    let rotating = slots(&inner, "first", 70).await.expect("it opens");
    let mut parts = parts(true);
    parts.entry.processes = &AllGone;
    let again = rotate(&rotating, parts).await;
    let again = again.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(again.epoch, epoch + 1, "{what}");
    assert_eq!(keys(&inner).await.len(), 1, "{what}");
    open(&inner, "first").await.expect("it opens");
    epoch
}

#[tokio::test(start_paused = true)]
async fn a_new_key_that_is_removed_meanwhile_is_put_back() {
    let store = made().await;
    let before = keys(&store).await;
    let (gate, task) = held(&store).await;
    let after = keys(&store).await;
    let new = after.keys().find(|key| !before.contains_key(*key));
    let new = new.expect("its new key");
    store.delete(new).await.expect("deleted");
    gate.open();
    let made = task.await.expect("no panic").expect("made");
    assert_ne!(made.slot.key(), *new);
    assert_eq!(
        keys(&store).await.into_keys().collect::<Vec<_>>(),
        [made.slot.key()]
    );
    open(&store, "first").await.expect("it opens");
}
