//! The way into the bucket: cut, name, deduplicate, frame, compress, seal, pack, upload.
//!
//! Owns what one writing session has stored and is not yet named by a root, and the order of rule 1: data packs, then metadata packs, then
//! the index object; only then is there a [`Sealed`], which a commit takes. Does not own the root, journals or trees.

mod absorb;
mod again;
mod backlog;
mod delivery;
mod divide;
mod frame;
mod import;
mod lane;
mod ledger;
mod run;
mod seal;
mod sealed;
mod session;
mod ship;
mod strands;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::catalog::IndexRef;
use crate::depot::Depot;
use crate::error::DepotError;
use crate::extent::{StoredRun, Target};
use crate::id::{Id, Kind};
use crate::pack::PackName;
use crate::spool::Spool;
use crate::verify::{Found, PackContents};

use run::{Manner, Matching};

pub use crate::cut::{Profile, detect};
pub use delivery::{Delivered, NamedPack};
pub(crate) use frame::{Body, SealedHere};
pub use import::{Translated, translate};
pub(crate) use ledger::Pending;
pub use sealed::{Mark, Sealed};
pub(crate) use session::Session;

/// One writing session's way into the bucket. Dropping it ends its uploads.
#[derive(Debug)]
pub struct Ingest {
    depot: Depot,
    name: u64,
    session: Arc<Session>,
    sealing: tokio::sync::Mutex<()>,
}

impl Ingest {
    /// Begins to write as `session`, which is registered in the root already and has written nothing yet.
    pub fn new(depot: Depot, session: u64) -> Self {
        Self::with_spool(depot, session, None)
    }

    /// The same, with a spool of this session: packs go there when the store is slower than the writer.
    pub fn with_spool(depot: Depot, session: u64, spool: Option<Arc<Spool>>) -> Self {
        let shared = Arc::clone(depot.shared());
        let inner = Session::new(shared, session, spool);
        depot.shared().reader.register(&inner);
        Self {
            depot,
            name: session,
            session: inner,
            sealing: tokio::sync::Mutex::new(()),
        }
    }

    /// The session that names what is written.
    pub fn session(&self) -> u64 {
        self.name
    }

    /// The depot it writes to.
    pub fn depot(&self) -> &Depot {
        &self.depot
    }

    /// Stores a run of a file's content: what is new is compressed, sealed and uploaded in the background; waits while more is under way than the
    /// budget allows. It can be read at once, and is in the bucket after the next [`Ingest::seal`].
    ///
    /// `run` begins at a segment boundary of `profile` (for page files: a multiple of 1 MiB of the file). With `end_of_data` all of it is taken; without,
    /// the last incomplete segment is not, and `consumed` says how far it went. Dropped, it leaves
    /// whole blobs on their way that nothing refers to, and the budget as it was.
    ///
    /// # Errors
    /// `Stalled` (call again), `Failed` (this session is lost), `Unreadable`.
    pub async fn store_run(
        &self,
        profile: Profile,
        file_offset: u64,
        run: Vec<Bytes>,
        end_of_data: bool,
    ) -> Result<StoredRun, DepotError> {
        let _operation = Operation::begin(&self.session);
        let (session, matching) = (&self.session, Matching::Everything);
        run::store(session, matching, profile, file_offset, run, end_of_data).await
    }

    /// The same, and everything is stored anew, whatever is stored or on its way already: neither
    /// the time that it takes nor the bytes that are sent say what that is.
    ///
    /// # Errors
    /// As [`Ingest::store_run`].
    pub async fn store_run_anew(
        &self,
        profile: Profile,
        file_offset: u64,
        run: Vec<Bytes>,
        end_of_data: bool,
    ) -> Result<StoredRun, DepotError> {
        let _operation = Operation::begin(&self.session);
        let (session, matching) = (&self.session, Matching::Nothing);
        run::store(session, matching, profile, file_offset, run, end_of_data).await
    }

    /// Stores one blob (a node, a segment, a commit record) unless it is there already. Dropped, it
    /// has stored it or not.
    ///
    /// # Errors
    /// As [`Ingest::store_run`]; `Invalid` for a blob larger than a frame.
    pub async fn store_blob(&self, kind: Kind, bytes: Bytes) -> Result<Id, DepotError> {
        let _operation = Operation::begin(&self.session);
        run::store_blob(&self.session, kind, bytes, Manner::COPIED).await
    }

    /// Stores what a target of another repository holds, in the same chunks, and says what it is called here. Read and verified there first, whether it is new here or not.
    ///
    /// # Errors
    /// As [`Ingest::store_run`], and those of [`Depot::read`] for `from`.
    pub async fn import(&self, from: &Depot, target: Target) -> Result<Target, DepotError> {
        let _operation = Operation::begin(&self.session);
        import::import(&self.session, from, target).await
    }

    /// Takes over a reference that this session did not make (an extent shared with a snapshot): it is checked to be live, and its pack joins
    /// [`Ingest::relied_on`].
    ///
    /// # Errors
    /// `Unknown` if no live pack holds it: then its bytes must be stored again.
    pub async fn adopt(&self, target: Target) -> Result<(), DepotError> {
        let (kind, id) = match target {
            Target::Chunk(id) => (Kind::Chunk, id),
            Target::Segment(id) => (Kind::Segment, id),
        };
        self.adopt_blob(kind, id)
    }

    /// The same for any blob. Since the live set is closed, whatever it refers to is live as well (protocol.md, rule 3).
    ///
    /// # Errors
    /// As [`Ingest::adopt`].
    pub fn adopt_blob(&self, kind: Kind, id: Id) -> Result<(), DepotError> {
        let _operation = Operation::begin(&self.session);
        run::adopt(&self.session, kind, id)
    }

    /// Stores again what `wanted` names of a pack of another session, whose key and whole bytes these are; it need not be in the bucket. Returns what was stored,
    /// with its bytes if it was a metadata pack.
    ///
    /// # Errors
    /// As [`Ingest::store_run`]; `Damaged` if it is no pack, or one of its frames that are needed cannot be opened.
    pub async fn store_again(
        &self,
        key: &str,
        object: Bytes,
        wanted: &HashSet<(Kind, Id)>,
    ) -> Result<Vec<Found>, DepotError> {
        let _operation = Operation::begin(&self.session);
        again::store_again(&self.session, key, object, wanted).await
    }

    /// A whole pack from the bucket.
    ///
    /// # Errors
    /// `Missing`, `Store`, `Stalled`.
    pub async fn fetch_pack(&self, pack: &NamedPack) -> Result<Bytes, DepotError> {
        self.session.shared.link.get(&pack.key()).await
    }

    /// What uncommitted references name in these packs. Once the packs are known to be condemned ([`Depot::load_index`]), no more references to them are made.
    pub fn relied_blobs(&self, packs: &[PackName]) -> Vec<(Kind, Id)> {
        self.session.ledger().relied_blobs(packs)
    }

    /// These blobs were stored or found elsewhere since: the session does not lean on `packs` for their sake any more (rule 4).
    pub fn let_go(&self, packs: &[PackName], blobs: &[(Kind, Id)]) {
        self.session.ledger().let_go(packs, blobs);
    }

    /// Every reference made before `mark` was drawn is in the root, or given up: the session leans on nothing for its sake.
    pub fn let_go_before(&self, mark: Mark) {
        self.session.ledger().let_go_before(mark);
    }

    /// Draws the line for the next commit: take it first, then make the tree that holds every reference returned before, then
    /// [`Ingest::seal_since`] it. References made after it keep their packs above the floor, or among those relied on.
    pub fn mark(&self) -> Mark {
        self.session.ledger().mark()
    }

    /// Everything stored before this call is in the bucket when it returns: data packs, then metadata packs, then an index object that holds
    /// the new packs and absorbs small older ones of `current`, the root's list. Stores that run meanwhile go on and belong to the next one.
    ///
    /// The mark is taken here: use it when no reference can be made between building the tree and this call, otherwise [`Ingest::seal_since`].
    ///
    /// # Errors
    /// `Stalled` (call again), `Failed` (this session is lost).
    pub async fn seal(&self, current: &[IndexRef]) -> Result<Sealed, DepotError> {
        self.seal_since(self.mark(), current).await
    }

    /// The same for a line drawn earlier. Dropped, it leaves the packs to the next seal, and maybe
    /// an index object that no root names.
    ///
    /// # Errors
    /// As [`Ingest::seal`].
    pub async fn seal_since(&self, mark: Mark, current: &[IndexRef]) -> Result<Sealed, DepotError> {
        let _turn = self.sealing.lock().await;
        seal::seal(&self.session, mark, current).await
    }

    /// Everything stored before this call is in the bucket when it returns, without an index object: what a journal names (rule 6).
    ///
    /// # Errors
    /// As [`Ingest::seal`].
    pub async fn deliver(&self) -> Result<Delivered, DepotError> {
        delivery::deliver(&self.session).await
    }

    /// Takes over the packs that a journal of an ended session names (dropped: none of them): from
    /// now on their blobs are found and read, and the next seal makes those live that no root lists
    /// yet. What its own packs refer to in others is for the caller to adopt: names alone prove
    /// nothing.
    ///
    /// # Errors
    /// `Missing`, `Damaged` or `Unreadable` if a pack is not what the journal says.
    pub async fn take_over(&self, delivered: &Delivered) -> Result<(), DepotError> {
        delivery::take_over(&self.session, delivered).await
    }

    /// Everything stored before this call survives a crash of this machine when it returns: it is in the bucket, or in the spool. Without a spool it is in the
    /// bucket. What is returned names packs that may not be in the bucket yet: a journal that names them is sent after the next [`Ingest::deliver`].
    ///
    /// # Errors
    /// As [`Ingest::seal`].
    pub async fn keep(&self) -> Result<Delivered, DepotError> {
        delivery::keep(&self.session).await
    }

    /// [`Ingest::deliver`], but [`Ingest::keep`] once the store has acknowledged nothing for
    /// `patience`. True if it is all in the bucket. What is given up on, here or by dropping this,
    /// stays on its way.
    ///
    /// # Errors
    /// As [`Ingest::seal`].
    pub async fn deliver_or_keep(
        &self,
        patience: Duration,
    ) -> Result<(Delivered, bool), DepotError> {
        if self.session.overflow.is_none() {
            return Ok((self.deliver().await?, true));
        }
        tokio::select! {
            biased;
            delivered = self.deliver() => Ok((delivered?, true)),
            () = self.idle(patience) => Ok((self.keep().await?, false)),
        }
    }

    /// Waits until the store has acknowledged nothing for `patience`, from now on.
    pub async fn idle(&self, patience: Duration) {
        self.session.shared.link.progress.idle(patience).await;
    }

    /// Waits for `future`, which stores things, but gives up when the store takes nothing for the
    /// whole timeout. Work that sends nothing is waited for. Dropped with the future: what was
    /// accepted goes on by itself.
    ///
    /// # Errors
    /// `Stalled`.
    pub async fn bound<F: Future>(&self, future: F) -> Result<F::Output, DepotError> {
        self.session.shared.link.progress.bound(future).await
    }

    /// The spool, if there is one.
    pub fn spool(&self) -> Option<&Arc<Spool>> {
        let overflow = self.session.overflow.as_ref();
        overflow.map(|overflow| &overflow.spool)
    }

    /// The root took it: its packs are live, its floor is published.
    pub fn committed(&self, sealed: Sealed) {
        let catalog = &self.depot.shared().catalog;
        catalog.adopt(&sealed.staged, &sealed.absorbed);
        self.session
            .ledger()
            .commit(&sealed.packs, sealed.floor, sealed.mark);
        self.session.release(&sealed.packs);
    }

    /// The root did not take it: its packs stay pending, and the next seal makes an index object again, against the newer list.
    pub fn conflicted(&self, sealed: Sealed) {
        drop(sealed);
    }

    /// Packs that uncommitted references name and that are not the session's own at its published floor. They must be live in every
    /// root that a commit replaces, and at every base epoch that is published (rules 3 and 4).
    pub fn relied_on(&self) -> HashSet<PackName> {
        self.session.ledger().relied_on()
    }

    /// Writes an immutable list object, named by this session.
    ///
    /// # Errors
    /// `Stalled`, `Store`.
    pub async fn put_list(&self, payload: &[u8]) -> Result<PackName, DepotError> {
        let _operation = Operation::begin(&self.session);
        seal::put_list(&self.session, payload).await
    }

    /// Writes index objects that hold these packs, which are in the bucket already: for repair, where an index object was lost.
    ///
    /// # Errors
    /// `Stalled`, `Store`.
    pub async fn put_index(&self, packs: &[PackContents]) -> Result<Vec<IndexRef>, DepotError> {
        let _operation = Operation::begin(&self.session);
        let records = packs.iter().map(|pack| pack.0.clone()).collect();
        seal::put_indexes(&self.session, records).await
    }

    /// Why the session is lost, once it is.
    pub fn failure(&self) -> Option<DepotError> {
        self.session.ledger().failure()
    }

    /// Tells why the session is lost, as soon as it is; nothing if it ends before. Holds nothing of
    /// it.
    pub fn lost(&self) -> impl Future<Output = Option<DepotError>> + Send + use<> {
        session::lost(&self.session)
    }

    /// Blobs that no committed index holds yet: each takes some memory, so a commit is due when they are many.
    pub fn uncommitted_blobs(&self) -> usize {
        self.session.ledger().blob_count()
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        self.session.end();
    }
}

/// A call whose references nobody has yet: marks stay behind it.
struct Operation<'a> {
    session: &'a Session,
    number: u64,
}

impl<'a> Operation<'a> {
    fn begin(session: &'a Session) -> Self {
        let number = session.ledger().begin_operation();
        Self { session, number }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.session.ledger().end_operation(self.number);
    }
}

#[cfg(test)]
mod tests;
