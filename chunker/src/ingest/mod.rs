//! The write path: chunk, name, deduplicate, frame, compress, seal, pack, upload.
//!
//! Owns the order of rule 1: data packs, then metadata packs, then the index object. Only after
//! these does it return a [`FinishedPacks`], which a commit takes. Does not own the record of the blobs
//! that a session has stored and that no root names yet (`pending`), nor the root, journals or
//! trees.

mod absorb;
mod delivery;
mod finish;
mod finished;
mod foreign_blobs;
mod frame_queue;
mod handle;
mod import;
mod overflow;
mod pipeline;
mod put_run;
mod run;
mod segments;
mod session;
mod upload;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::catalog::IndexRef;
use crate::content_store::ContentStore;
use crate::error::ContentError;
use crate::extent::Target;
use crate::id::{Id, Kind};
use crate::pack::PackName;
use crate::spool::Spool;
use crate::verify::{Found, PackContents};

use handle::Operation;

pub use crate::chunking::{Profile, detect};
pub use crate::pending::Mark;
pub use delivery::{Delivered, NamedPack};
pub use finished::FinishedPacks;
pub use handle::Ingest;
pub use import::{Translated, translate};
pub use put_run::RunPlan;

impl Ingest {
    /// Returns the session that names the written objects.
    pub fn session(&self) -> u64 {
        self.name
    }

    /// Returns the content store that this session writes to.
    pub fn content_store(&self) -> &ContentStore {
        &self.content_store
    }

    /// Stores the content of a target of another repository, in the same chunks, and returns its
    /// name in this repository.
    ///
    /// The content is first read from `from` and verified, whether it is new here or not.
    ///
    /// # Errors
    /// As [`Ingest::store_run`], and those of [`ContentStore::read`] for `from`.
    pub async fn import(
        &self,
        from: &ContentStore,
        target: Target,
    ) -> Result<Target, ContentError> {
        let _operation = Operation::begin(&self.session);
        import::import(&self.session, from, target).await
    }

    /// Stores the blobs in `wanted` that a pack of another session holds.
    ///
    /// `key` and `object` are the key and the whole bytes of that pack, which need not be in the
    /// bucket. Returns the stored blobs, with their bytes if the pack is a metadata pack.
    ///
    /// # Errors
    /// - As [`Ingest::store_run`].
    /// - [`ContentError::Damaged`] if the object is not a pack, or if a needed frame of it cannot
    ///   be opened.
    /// - [`ContentError::Unreadable`] if this program or its keys cannot open the object.
    pub async fn store_again(
        &self,
        key: &str,
        object: Bytes,
        wanted: &HashSet<(Kind, Id)>,
    ) -> Result<Vec<Found>, ContentError> {
        let _operation = Operation::begin(&self.session);
        foreign_blobs::store_again(&self.session, key, object, wanted).await
    }

    /// Returns a whole pack from the bucket.
    ///
    /// # Errors
    /// [`ContentError::Missing`], [`ContentError::Store`] or [`ContentError::Stalled`].
    pub async fn fetch_pack(&self, pack: &NamedPack) -> Result<Bytes, ContentError> {
        self.session.shared.link.get(&pack.key()).await
    }

    /// Returns the blobs in these packs that uncommitted references name. After
    /// [`ContentStore::load_index`] was told that the packs are condemned, no further references to
    /// them are made.
    pub fn relied_blobs(&self, packs: &[PackName]) -> Vec<(Kind, Id)> {
        self.session.pending_index().relied_blobs(packs)
    }

    /// Ends the reliance on `packs` for these blobs, which have been stored or found elsewhere
    /// since (rule 4).
    pub fn let_go(&self, packs: &[PackName], blobs: &[(Kind, Id)]) {
        self.session.pending_index().let_go(packs, blobs);
    }

    /// Ends the reliance on packs for every reference that was made before `mark`: it is in the
    /// root, or given up.
    pub fn let_go_before(&self, mark: Mark) {
        self.session.pending_index().let_go_before(mark);
    }

    /// Draws a mark for the next commit.
    ///
    /// First take the mark, then build the tree that holds every reference returned before it, then
    /// call [`Ingest::finish_since`] with it. References made after the mark keep their packs above
    /// the floor or in [`Ingest::relied_on`].
    pub fn mark(&self) -> Mark {
        self.session.pending_index().mark()
    }

    /// Writes everything that was stored before this call to the bucket: data packs, then metadata
    /// packs, then an index object.
    ///
    /// The index object lists the new packs and absorbs small older ones of `current`, the root's
    /// list. Concurrent stores go on and belong to the next call.
    ///
    /// The mark is taken in this call. Use it only if no reference can be made between building the
    /// tree and this call; otherwise use [`Ingest::finish_since`].
    ///
    /// # Errors
    /// - [`ContentError::Stalled`] if the store makes no progress: call again.
    /// - [`ContentError::Failed`] if this session has lost data: use another session.
    /// - [`ContentError::Store`] if the store refuses an index object.
    /// - [`ContentError::Invalid`] if the session has used all its 2^32 names.
    /// - [`ContentError::Internal`] if a worker's job panics or a new table does not open.
    pub async fn finish(&self, current: &[IndexRef]) -> Result<FinishedPacks, ContentError> {
        self.finish_since(self.mark(), current).await
    }

    /// As [`Ingest::finish`], with a mark that was drawn earlier. If the future is dropped, the packs
    /// stay for the next call, and an index object that no root names may be left in the bucket.
    ///
    /// # Errors
    /// As [`Ingest::finish`].
    pub async fn finish_since(
        &self,
        mark: Mark,
        current: &[IndexRef],
    ) -> Result<FinishedPacks, ContentError> {
        let _turn = self.finishing.lock().await;
        finish::finish(&self.session, mark, current).await
    }

    /// Writes everything that was stored before this call to the bucket, without an index object:
    /// the packs that a journal names (rule 6).
    ///
    /// # Errors
    /// - [`ContentError::Stalled`] if the store makes no progress: call again.
    /// - [`ContentError::Failed`] if this session has lost data: use another session.
    pub async fn deliver(&self) -> Result<Delivered, ContentError> {
        delivery::deliver(&self.session).await
    }

    /// Takes over the packs that a journal of an ended session names.
    ///
    /// From then on their blobs are found and read, and the next call of
    /// [`Ingest::finish`] makes those packs live that
    /// no root lists yet. The caller adopts the blobs in other packs to which these packs refer:
    /// names alone prove nothing. If the future is dropped, none of the packs are taken over.
    ///
    /// # Errors
    /// - [`ContentError::Missing`], [`ContentError::Damaged`] or [`ContentError::Unreadable`] if a
    ///   pack is not as the journal states.
    /// - [`ContentError::Store`] or [`ContentError::Stalled`] if the store fails.
    /// - [`ContentError::Internal`] if a worker's job panics.
    pub async fn take_over(&self, delivered: &Delivered) -> Result<(), ContentError> {
        delivery::take_over(&self.session, delivered).await
    }

    /// Makes everything that was stored before this call survive a crash of this machine: it is in
    /// the bucket or in the spool, or without a spool in the bucket. The result may name packs that
    /// are not in the bucket yet. A journal that names them must be sent only after the next
    /// [`Ingest::deliver`].
    ///
    /// # Errors
    /// As [`Ingest::deliver`].
    pub async fn keep(&self) -> Result<Delivered, ContentError> {
        delivery::keep(&self.session).await
    }

    /// Runs [`Ingest::deliver`], or [`Ingest::keep`] instead once the store has acknowledged
    /// nothing for `patience`.
    ///
    /// Returns the packs, and true if all of them are in the bucket. Packs whose delivery is
    /// abandoned, here or because the future is dropped, are still uploaded.
    ///
    /// # Errors
    /// As [`Ingest::deliver`].
    pub async fn deliver_or_keep(
        &self,
        patience: Duration,
    ) -> Result<(Delivered, bool), ContentError> {
        if self.session.overflow.is_none() {
            return Ok((self.deliver().await?, true));
        }
        tokio::select! {
            biased;
            delivered = self.deliver() => Ok((delivered?, true)),
            () = self.idle(patience) => Ok((self.keep().await?, false)),
        }
    }

    /// Waits until the store has acknowledged nothing for `patience`, counted from this call.
    pub async fn idle(&self, patience: Duration) {
        self.session.shared.link.progress.idle(patience).await;
    }

    /// Waits for `future`, which stores data, but gives up when the store accepts nothing for the
    /// whole timeout.
    ///
    /// Time in which no upload is in flight does not count. Dropping this drops `future`; data that
    /// was accepted is still uploaded.
    ///
    /// # Errors
    /// [`ContentError::Stalled`].
    pub async fn bound<F: Future>(&self, future: F) -> Result<F::Output, ContentError> {
        self.session.shared.link.progress.bound(future).await
    }

    /// Returns the spool of this session, if it has one.
    pub fn spool(&self) -> Option<&Arc<Spool>> {
        let overflow = self.session.overflow.as_ref();
        overflow.map(|overflow| &overflow.spool)
    }

    /// Records that a root took `finished`: its packs are live, and its floor is published.
    pub fn committed(&self, finished: FinishedPacks) {
        let catalog = &self.content_store.shared().catalog;
        catalog.adopt(&finished.staged, &finished.absorbed);
        self.session
            .pending_index()
            .commit(&finished.packs, finished.floor, finished.mark);
        self.session.release(&finished.packs);
    }

    /// Records that no root took `finished`. Its packs stay pending, and the next call writes an
    /// index object again, for the newer list.
    pub fn conflicted(&self, finished: FinishedPacks) {
        drop(finished);
    }

    /// Returns the packs that uncommitted references name and that are not the session's own by its
    /// published floor.
    ///
    /// They must be live in every root that a commit replaces, and at every base epoch that the
    /// session publishes (rules 3 and 4).
    pub fn relied_on(&self) -> HashSet<PackName> {
        self.session.pending_index().relied_on()
    }

    /// Writes an immutable list object under a name of this session.
    ///
    /// # Errors
    /// - [`ContentError::Stalled`] or [`ContentError::Store`] if the store fails.
    /// - [`ContentError::Invalid`] if the session has used all its 2^32 names.
    pub async fn put_list(&self, payload: &[u8]) -> Result<PackName, ContentError> {
        let _operation = Operation::begin(&self.session);
        finish::put_list(&self.session, payload).await
    }

    /// Writes index objects that list these packs, which must be in the bucket already: for repair
    /// after the loss of an index object.
    ///
    /// # Errors
    /// As [`Ingest::put_list`], and [`ContentError::Internal`] if a worker's job panics or a new
    /// table does not open.
    pub async fn put_index(&self, packs: &[PackContents]) -> Result<Vec<IndexRef>, ContentError> {
        let _operation = Operation::begin(&self.session);
        let records = packs.iter().map(|pack| pack.0.clone()).collect();
        finish::put_indexes(&self.session, records).await
    }

    /// Returns the reason why the session has failed. `None` if it has not.
    pub fn failure(&self) -> Option<ContentError> {
        self.session.pending_index().failure()
    }

    /// Waits until the session fails, and returns the reason. `None` if the session ends without a
    /// failure. The future does not keep the session alive.
    pub fn lost(&self) -> impl Future<Output = Option<ContentError>> + Send + use<> {
        session::lost(&self.session)
    }

    /// Returns the number of blobs that no committed index lists yet. Each takes some memory, so a
    /// commit is due when there are many.
    pub fn uncommitted_blobs(&self) -> usize {
        self.session.pending_index().blob_count()
    }

    /// Returns the number of blobs that were found and that no commit refers to yet. Each takes some
    /// memory too.
    pub fn uncommitted_references(&self) -> usize {
        self.session.pending_index().relied_count()
    }
}
