//! The packs and index objects that commits name and rely on, while others condemn and absorb.

use super::commit::{Writer, writer};
use super::support::*;
use crate::root::error::RootError;
use crate::root::handle::Transition;
use crate::root::lists::ListWriter;
use crate::root::shard::{ListRef, encode_shard};
use crate::root::snapshots::PackEntry;
use crate::root::state::{Condemned, Root, SessionId};
use async_trait::async_trait;
use bkfs_chunker::pack::PackName;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Does what a collector does: raises the epoch and condemns packs.
struct Condemn<'a> {
    session: SessionId,
    writer: &'a dyn ListWriter,
    packs: Vec<PackName>,
}

#[async_trait]
impl Transition for Condemn<'_> {
    type Output = ();
    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }
    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let payload = encode_shard(self.packs.iter().map(|pack| PackEntry(*pack)).collect());
        let list = ListRef {
            count: self.packs.len() as u32,
            bytes: payload.len() as u64,
            name: self.writer.put_list(payload).await?,
        };
        next.epoch += 1;
        next.condemned.push(Condemned {
            epoch: next.epoch,
            list,
        });
        Ok(())
    }
    async fn seen(&mut self, _: &Root) -> Result<bool, RootError> {
        Ok(false)
    }
}

/// Returns two writers, and the only live pack, which the first of them has committed.
async fn two_and_a_pack(store: &Arc<Faulty>) -> (Writer, Writer, PackName) {
    let shelf = Arc::new(Shelf::default());
    let first = writer(store.clone(), &shelf, "a", 1, false).await;
    let second = writer(store.clone(), &shelf, "b", 2, false).await;
    first.committer.commit(tree(1)).await.expect("alone");
    let root = &first.handle.current().root;
    let pack = *shelf.live(&root.index).iter().next().expect("one pack");
    (first, second, pack)
}

fn assert_rebuild(made: Result<impl std::fmt::Debug, RootError>, pack: PackName) {
    let error = made.expect_err("not live");
    assert!(
        matches!(&error, RootError::Rebuild { packs } if *packs == [pack]),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_commit_relies_only_on_live_packs() {
    let store = Faulty::new(memory().await);
    let (_first, second, pack) = two_and_a_pack(&store).await;
    let relied_on = &second.uploads.relied_on;
    relied_on.lock().insert(pack);
    let made = second.committer.commit(tree(1)).await;
    made.expect("the pack is live");

    let unknown = PackName {
        session: 1,
        sequence: 2,
        random: 3,
    };
    relied_on.lock().insert(unknown);
    assert_rebuild(second.committer.commit(tree(2)).await, unknown);
}

#[tokio::test(start_paused = true)]
async fn own_packs_count_by_the_floor_in_the_root() {
    let store = Faulty::new(memory().await);
    let (_first, second, _) = two_and_a_pack(&store).await;
    let relied_on = &second.uploads.relied_on;
    second.committer.commit(tree(1)).await.expect("alone");
    // The session's memory does not count: this pack was never made live.
    let own = PackName {
        session: second.session.id().0,
        sequence: 0,
        random: 77,
    };
    relied_on.lock().insert(own);
    assert_rebuild(second.committer.commit(tree(2)).await, own);
    relied_on.lock().remove(&own);
    relied_on.lock().insert(PackName {
        sequence: u32::MAX,
        ..own
    });
    let made = second.committer.commit(tree(2)).await;
    made.expect("own, above the floor");
}

#[tokio::test(start_paused = true)]
async fn what_is_condemned_while_a_commit_is_under_way_is_not_relied_on() {
    let store = Faulty::new(memory().await);
    let (first, second, pack) = two_and_a_pack(&store).await;
    second.uploads.relied_on.lock().insert(pack);
    // The conflict makes the check run again.
    store.plan([Fault::Late]);
    let committing = tokio::spawn({
        let committer = second.committer.clone();
        async move { committer.commit(tree(3)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut condemn = Condemn {
        session: first.session.id(),
        writer: &*first.uploads,
        packs: vec![pack],
    };
    first.handle.update(&mut condemn).await.expect("live");
    assert_rebuild(committing.await.expect("no panic"), pack);
    second.uploads.relied_on.lock().clear();
    let made = second.committer.commit(tree(4)).await;
    assert_eq!(made.expect("stored again").sequence, 5);
}

#[tokio::test(start_paused = true)]
async fn an_index_made_for_an_older_root_is_made_again() {
    let store = Faulty::new(memory().await);
    let shelf = Arc::new(Shelf::default());
    let first = writer(store.clone(), &shelf, "a", 1, false).await;
    let second = writer(store.clone(), &shelf, "b", 2, false).await;
    for round in 1..=4 {
        first.committer.commit(tree(round)).await.expect("alone");
    }
    second.handle.refresh().await.expect("there");
    // Both now absorb the same four index objects. The second writer finds that they have left the
    // list.
    store.plan([Fault::Late]);
    let committing = tokio::spawn({
        let committer = second.committer.clone();
        async move { committer.commit(tree(1)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    first.committer.commit(tree(5)).await.expect("holder");
    committing.await.expect("no panic").expect("made again");
    let root = &second.handle.current().root;
    let live = shelf.live(&root.index);
    let of = |writer: &Writer| {
        live.iter()
            .filter(|pack| pack.session == writer.session.id().0)
            .count()
    };
    assert_eq!(of(&first), 5);
    assert!(of(&second) >= 1);
    assert_eq!(second.uploads.conflicted.load(Ordering::Relaxed), 1);
}
