//! A snapshot that takes the place of an older one of its name.

use super::lists::{ListBucket, place, recovered_as, recovering};
use super::support::*;
use crate::root::commit_request::{CommitRequest, RootCommit};
use crate::root::error::RootError;
use crate::root::forget::ListChanger;
use crate::root::lists::DirectLists;
use crate::root::snapshots::{NewSnapshot, TrashEntry};
use bkfs_chunker::crypto::Class;

async fn commit(
    place: &ListBucket,
    request: NewSnapshot,
    number: u64,
) -> Result<RootCommit, RootError> {
    let request = CommitRequest {
        snapshot: Some(request),
        ..tree(number)
    };
    place.committer.commit(request).await
}

async fn trash_of(place: &ListBucket) -> Vec<TrashEntry> {
    let root = place.handle.current().root.clone();
    let shards = place.lists.trash_shards(&root.trash).await.expect("read");
    let entries = shards.iter().flat_map(|shard| shard.iter());
    entries.cloned().collect()
}

/// Each root has one of them: there is no moment at which neither is kept.
#[tokio::test(start_paused = true)]
async fn a_snapshot_takes_the_place_of_an_older_one_in_one_root() {
    let place = place(memory().await).await;
    let other = place.snapshot(Some("other"), 1, 4000).await.expect("new");
    let older = place.snapshot(Some("weekly"), 2, 5000).await.expect("new");
    let replacing = |name: Option<&str>| NewSnapshot {
        name: name.map(str::to_owned),
        clock: time(6000),
        replaces: true,
        ..NewSnapshot::default()
    };
    let before = place.handle.current().root.generation;
    let made = commit(&place, replacing(Some("weekly")), 3).await;
    let made = made.expect("the older one makes room");
    assert_eq!((made.generation, made.has_replaced), (before + 1, true));
    let newer = made.snapshot.expect("asked for");
    assert_ne!(newer.number, older.number);
    assert_eq!(place.kept().await.of_volume("main"), [&other, &newer]);
    let trash = trash_of(&place).await;
    assert_eq!(trash.len(), 1);
    assert_eq!(
        (&trash[0].snapshot, trash[0].forgotten),
        (&older, time(6000))
    );
    // There is nothing to replace.
    for name in [Some("new"), None] {
        let made = commit(&place, replacing(name), 4).await.expect("new");
        assert!(!made.has_replaced && made.snapshot.is_some());
    }
    assert_eq!(trash_of(&place).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_trash_that_cannot_be_read_gets_what_is_replaced() {
    let place = place(memory().await).await;
    let weekly = |clock| NewSnapshot {
        name: Some("weekly".into()),
        clock: time(clock),
        replaces: true,
        ..NewSnapshot::default()
    };
    for clock in [1000, 2000] {
        commit(&place, weekly(clock), 1).await.expect("new");
    }
    let [list] = place.handle.current().root.trash[..] else {
        panic!("one list");
    };
    let key = list.name.key(Class::List);
    place.store.delete(&key).await.expect("deleted");
    let made = commit(&place, weekly(3000), 2).await.expect("new");
    assert!(made.has_replaced);
    assert_eq!(place.handle.current().root.trash.len(), 2);
    // The others are merged: the root stays small.
    for clock in 4000..4040 {
        let made = commit(&place, weekly(clock), 3).await.expect("new");
        assert!(made.has_replaced);
    }
    let lists = place.handle.current().root.trash.len();
    assert!(lists < 12, "{lists} lists of 43 snapshots");
}

/// The answer to the replacement is lost, and another machine forgets the snapshot before the
/// writer looks for it.
#[tokio::test(start_paused = true)]
async fn a_recovered_snapshot_that_was_forgotten_at_once_is_not_made_again() {
    let store = Faulty::new(memory().await);
    let place = place(store.clone()).await;
    let (_session, committer) = recovering(&place).await;
    store.plan([Fault::Silent]);
    let other = process(store.inner.clone(), 9).await;
    let forgetting = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let writer = DirectLists::new(&other, place.session.id());
        let changer = ListChanger {
            handle: &other,
            lists: &place.lists,
            writer: &writer,
            session: place.session.id(),
        };
        let names = ["recovered-1".to_owned()];
        changer
            .forget("main", &names, time(2000))
            .await
            .expect("it is there");
    };
    let making = committer.commit(recovered_as("recovered-1", 6000));
    let (made, ()) = tokio::join!(making, forgetting);
    let made = made.expect("it was made").snapshot.expect("asked for");
    place.handle.refresh().await.expect("there");
    assert_eq!(place.kept().await.named("main", "recovered-1"), None);
    let trash = trash_of(&place).await;
    let trashed: Vec<_> = trash.iter().map(|entry| &entry.snapshot).collect();
    assert_eq!(trashed, [&made]);
}
