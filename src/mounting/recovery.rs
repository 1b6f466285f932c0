//! Snapshots of what a session of this machine had acknowledged only here when another machine took
//! its volume over (docs/PROTOCOL.md, rule 7).
//!
//! Owns: the steps from a spool to a snapshot of the volume, and that doing them twice makes one
//! snapshot. Does not own: the name of that snapshot (`recovered`), on which commit the journals stand
//! (`root::recovery_base`), carrying them out (`volume::replay`), nor how a snapshot that is no
//! commit of the volume gets into the root (`root::commit`).
//!
//! No root names the session any more, so its packs are garbage. A session of maintenance, which
//! holds no volume, stores again what the journals need of them. So a concurrent writer of the
//! volume is not disturbed. The spool goes when the snapshot is in the root; a
//! crash before that leaves garbage, and the spool.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bkfs_chunker::error::ContentError;
use bkfs_chunker::extent::Target;
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::{Delivered, Ingest, NamedPack};
use bkfs_chunker::spool::{LeftObject, Leftover, SpoolError};
use bkfs_chunker::verify::chunks_of;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::mounting::format;
use crate::mounting::recovered::{Extent, Named, Recovered, find};
use crate::mounting::writing::{Writing, limits};
use crate::root::commit::RootCommitter;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::journal_entry::prefix;
use crate::root::kept::journal_number;
use crate::root::record::CommitRecord;
use crate::root::recovery_base::{KeptJournal, KeptJournals, RecoveryBase, RecoveryBaseError};
use crate::root::session::OpenSession;
use crate::root::state::{Root, SessionId};
use crate::volume::commit::Committer;
use crate::volume::commit_task::CommitTask;
use crate::volume::error::VolumeError;
use crate::volume::operations::{Content, Operations};
use crate::volume::requests::SnapshotRequest;
use crate::volume::state::Totals;
use crate::volume::view::View;
use crate::volume::{Promise, Volume, VolumeParts, rescue};

/// Why none was made: the spool stays.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// There is no tree to stand on.
    #[error(transparent)]
    RecoveryBase(#[from] RecoveryBaseError),
    /// Something that the journals refer to is gone.
    #[error("the commit that the journals follow is no longer in the repository ({0})")]
    Gone(ContentError),
    /// A journal that was acknowledged is damaged in the spool, and may be in no commit.
    #[error("the journal {path} is damaged")]
    Damaged {
        /// Its file.
        path: String,
    },
    /// Journals that make no sense.
    #[error("cannot read a journal of the spool: {0}")]
    Malformed(String),
    /// The spool cannot be read.
    #[error(transparent)]
    Spool(#[from] SpoolError),
    /// The root or the store.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The volume could not be made.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl RecoveryError {
    /// Returns whether what the journals stand on is gone, so that a later try fails as well.
    fn is_lasting(&self) -> bool {
        match self {
            Self::RecoveryBase(error) => !matches!(error, RecoveryBaseError::Root(_)),
            error => matches!(error, Self::Gone(_)),
        }
    }
}

impl From<ContentError> for RecoveryError {
    fn from(error: ContentError) -> Self {
        // A local table that cannot be made anew says nothing of the commit.
        match error.is_lost() && error.wants_newer_root() {
            true => Self::Gone(error),
            false => Self::Volume(error.into()),
        }
    }
}

/// The result of a recovery from a spool whose session is no longer in the root.
#[derive(Debug, Default)]
pub(super) struct Rescued {
    /// The snapshot of it; `None` if the volume's commits have all of it.
    pub(super) made: Option<Recovered>,
    /// The damage because of which the snapshot may lack something that the spool still has. Its
    /// loss was accepted.
    pub(super) damage: Option<String>,
}

/// Makes a snapshot of what is left in a spool whose session is in the root no more. With
/// `accepts_loss` that is what comes before the first damaged journal. The recovery base of the
/// session stays unless the spool is `is_ours`, and no copy of another machine's.
///
/// # Errors
/// Why not: then nothing has changed, and the spool must stay.
pub(super) async fn recover(
    left: &Leftover,
    is_ours: bool,
    writing: &Writing,
    accepts_loss: bool,
) -> Result<Rescued, RecoveryError> {
    let handle = &writing.repository.handle;
    let JournalObjects { whole, damaged } = journals(left, handle).await?;
    let session = SessionId(left.session());
    // Only the user of the volume has accepted a loss.
    let prefix = prefix(handle.keyring(), &writing.volume, session);
    let is_of_volume = |key: &str| key.starts_with(&prefix);
    let accepts_loss = accepts_loss
        && whole.iter().all(|journal| is_of_volume(&journal.key))
        && damaged.iter().all(|(key, _)| is_of_volume(key));
    let last = whole.last().map_or("", |journal| journal.key.as_str());
    let damage = |(_, path): &(String, String)| RecoveryError::Damaged { path: path.clone() };
    // One before whole journals leaves a gap between them, or is covered.
    let behind = damaged
        .iter()
        .find(|(key, _)| key.as_str() > last)
        .map(damage);
    let behind = match behind {
        Some(error) if !accepts_loss => return Err(error),
        behind => behind.map(|error| error.to_string()),
    };
    let hole = hole_in(&whole);
    let Some(kept) = handle.kept_journals(session, whole)? else {
        return Ok(Rescued {
            made: None,
            damage: behind,
        });
    };
    let repository = &writing.repository;
    let made = |snapshot| Rescued {
        made: Some(snapshot),
        damage: left_out(left, hole.clone(), damaged.first().map(damage)),
    };
    // The part of which a loss was accepted: not enough while all of it can be read.
    let part = left.replayed_through();
    let part = part.and_then(|last| Extent::up_to(&kept, last));
    let is_whole = damaged.is_empty() && hole.is_none();
    let mut wanted = vec![Extent::of(&kept)];
    if !is_whole {
        wanted.extend(part.clone());
    }
    let snapshot = match find(repository, &kept, &wanted, is_ours).await? {
        Named::Made(snapshot) => return Ok(made(snapshot)),
        Named::Free(snapshot) => snapshot,
    };
    let accepted = accepts_loss.then_some(behind);
    let aim = Aim { snapshot, is_ours };
    let error = match recover_whole(left, writing, kept.clone(), aim, accepted).await {
        Err(error) => error,
        done => return done,
    };
    if error.is_lasting()
        && let Named::Made(snapshot) = find(repository, &kept, part.as_slice(), is_ours).await?
    {
        return Ok(made(snapshot));
    }
    match error {
        RecoveryError::RecoveryBase(RecoveryBaseError::Gap { .. }) if !damaged.is_empty() => {
            Err(damage(&damaged[0]))
        }
        error => Err(error),
    }
}

/// Returns what an earlier process may have left out of the snapshot that it made before it ended:
/// the files of the spool may be other ones than it saw.
fn left_out(
    left: &Leftover,
    hole: Option<String>,
    damaged: Option<RecoveryError>,
) -> Option<String> {
    let recorded = || "its snapshot was made of less than all of it".to_owned();
    damaged
        .map(|error| error.to_string())
        .or(hole)
        .or_else(|| left.replayed_through().map(|_| recorded()))
}

/// Returns the first gap in the numbers of journals, in words.
fn hole_in(journals: &[KeptJournal]) -> Option<String> {
    let numbers = journals.iter().map(|journal| journal_number(&journal.key));
    let numbers = numbers.flatten();
    let numbers: Vec<u64> = numbers.collect();
    let mut pairs = numbers.windows(2);
    let (before, next) = pairs.find_map(|pair| match *pair {
        [before, next] if next > before + 1 => Some((before, next)),
        _ => None,
    })?;
    Some(format!("no journal lies between {before} and {next}"))
}

/// Makes a snapshot of what the journals `kept` of a spool say: all of them or, where a loss is
/// `accepted`, those before the first gap. The loss that is accepted already is the inner value.
///
/// A spool of which less than all is carried out bears a record of that before the snapshot is
/// made: the process may end before it sets the spool aside, and the damage may have gone when the
/// next one looks.
async fn recover_whole(
    left: &Leftover,
    writing: &Writing,
    mut kept: KeptJournals,
    aim: Aim,
    accepted: Option<Option<String>>,
) -> Result<Rescued, RecoveryError> {
    let repository = &writing.repository;
    let root = repository.handle.current().root.clone();
    let mut gap = None;
    let (gap_accepted, behind) = match accepted {
        Some(behind) => (Some(&mut gap), behind),
        None => (None, None),
    };
    let made = Recovered {
        volume: kept.volume.clone(),
        snapshot: aim.snapshot,
    };
    let read = |id| async move {
        let bytes = repository.content_store.read_blob(Kind::Commit, id).await?;
        CommitRecord::decode(&bytes)
            .map_err(|reason| RootError::damaged(&format!("commit record {id}"), reason))
    };
    let recovery_base = stand(&mut kept, &root, read, gap_accepted).await?;
    let damage = gap.or(behind);
    let Some(recovery_base) = recovery_base else {
        return Ok(Rescued { made: None, damage });
    };
    if damage.is_some() {
        left.mark_incomplete(Extent::of(&kept).last).await?;
    }
    let handle = &repository.handle;
    let processes = repository.environment.processes.as_ref();
    let open = OpenSession::open(handle, writing.holder.clone(), None, processes).await?;
    let mut objects: HashMap<&str, Vec<&LeftObject>> = HashMap::new();
    for object in left.objects() {
        objects.entry(&object.key).or_default().push(object);
    }
    let recovery = Recovery {
        left,
        objects,
        writing,
        ingest: Arc::new(Ingest::new(repository.content_store.clone(), open.id().0)),
        session: open.id(),
        kept,
        recovery_base,
        claims: aim.is_ours,
    };
    let done = recovery.make(&made.snapshot).await;
    if let Err(stays) = open.end().await {
        tracing::warn!("the session of the recovery stays in the root: {stays}");
    }
    done.map(|()| Rescued {
        made: Some(made),
        damage,
    })
}

/// The snapshot that a recovery makes.
struct Aim {
    snapshot: String,
    /// Whether the spool is no copy of another machine's.
    is_ours: bool,
}

/// [`KeptJournals::stand`]; where a `gap` is accepted, of the journals before the first one.
async fn stand<F>(
    kept: &mut KeptJournals,
    root: &Root,
    read: impl Fn(Id) -> F,
    gap: Option<&mut Option<String>>,
) -> Result<Option<RecoveryBase>, RecoveryBaseError>
where
    F: Future<Output = Result<CommitRecord, RootError>>,
{
    let Some(gap) = gap else {
        return kept.stand(root, read).await;
    };
    let mut all = kept.clone();
    match kept.stand(root, &read).await {
        Err(error @ RecoveryBaseError::Gap { from, .. }) => {
            *gap = Some(error.to_string());
            all.journals.retain(|journal| journal.entry.last < from);
            *kept = all;
            kept.stand(root, read).await
        }
        stood => stood,
    }
}

/// The journals that are kept in a spool, in order.
struct JournalObjects {
    whole: Vec<KeptJournal>,
    /// Key and file of the others.
    damaged: Vec<(String, String)>,
}

/// Reads the journals of a spool one after the other: what they say is not kept in memory.
async fn journals(left: &Leftover, handle: &RootHandle) -> Result<JournalObjects, RecoveryError> {
    let (mut whole, mut damaged) = (Vec::new(), Vec::new());
    for object in left.objects() {
        if object.key.starts_with("journal/") {
            match left.read(object).await? {
                Some(bytes) => {
                    let entry = handle.open_kept(&object.key, &bytes)?;
                    whole.push(KeptJournal::of(object.key.clone(), entry));
                }
                None => damaged.push((object.key.clone(), object.path().display().to_string())),
            }
        }
    }
    // Numbers have the same number of digits.
    let name = |journal: &KeptJournal| (journal.key.clone(), journal.digest.clone());
    whole.sort_by_key(name);
    whole.dedup_by_key(|journal| name(journal));
    damaged.sort();
    damaged.retain(|(key, _)| whole.iter().all(|journal| journal.key != *key));
    Ok(JournalObjects { whole, damaged })
}

/// One recovery under way.
struct Recovery<'a> {
    left: &'a Leftover,
    /// Its objects by key: several files may hold one.
    objects: HashMap<&'a str, Vec<&'a LeftObject>>,
    writing: &'a Writing,
    ingest: Arc<Ingest>,
    session: SessionId,
    kept: KeptJournals,
    recovery_base: RecoveryBase,
    /// Whether the recovery base of the session goes with the snapshot.
    claims: bool,
}

impl Recovery<'_> {
    async fn make(self, name: &str) -> Result<(), RecoveryError> {
        let repository = &self.writing.repository;
        // The session must not count on an index older than itself (rule 4).
        repository.load_index_to_write().await?;
        let tree = match self.recovery_base.tree {
            Some(tree) => {
                self.ingest.adopt_blob(Kind::Node, tree).await?;
                tree
            }
            None => format::empty_tree(&self.ingest, &repository.nodes).await?,
        };
        self.bring().await?;
        let totals = Totals {
            inodes: self.recovery_base.inodes,
            bytes: self.recovery_base.bytes,
        };
        let (volume, requests) = Volume::new(VolumeParts {
            promise: Promise::Durable,
            swap: None,
            view: View::live(repository.nodes.clone(), tree, totals),
            ingest: self.ingest.clone(),
            clock: repository.environment.clock.clone(),
            limits: limits(self.writing.memory_bytes),
            next_inode: self.recovery_base.next_inode,
        });
        let mut replay = volume.replay();
        for journal in &self.kept.journals {
            replay.carry_out(&self.operations(journal).await?).await?;
        }
        replay.finish().await?;
        format::reap_orphans(&volume, None).await?;
        let committer = self.committer(volume.clone());
        let committer = CommitTask::new(committer, requests);
        let (stop, stopped) = oneshot::channel::<()>();
        let committer = AbortOnDropHandle::new(tokio::spawn(committer.run(async {
            let _ = stopped.await;
        })));
        let request = SnapshotRequest {
            name: Some(name.to_owned()),
            tags: Extent::of(&self.kept).tags(),
            ..SnapshotRequest::default()
        };
        let made = volume.snapshot(request).await;
        if made.is_err() {
            // There is nothing to commit but that snapshot.
            committer.abort();
        }
        drop(stop);
        // What it says is known: the snapshot was made, or not.
        let _ = committer.await;
        Ok(made.map(|_| ())?)
    }

    fn objects_of(&self, key: &str) -> impl Iterator<Item = &LeftObject> {
        self.objects.get(key).into_iter().flatten().copied()
    }

    /// Reads what a journal says once more.
    async fn operations(&self, journal: &KeptJournal) -> Result<Operations, RecoveryError> {
        let handle = &self.writing.repository.handle;
        let mut path = String::new();
        for object in self.objects_of(&journal.key) {
            path = object.path().display().to_string();
            let Some(bytes) = self.left.read(object).await? else {
                continue;
            };
            let entry = handle.open_kept(&object.key, &bytes)?;
            let operations = Operations::decode(&entry.operations);
            if KeptJournal::of(String::new(), entry).digest == journal.digest {
                return operations.map_err(RecoveryError::Malformed);
            }
        }
        Err(RecoveryError::Damaged { path })
    }

    /// What the operations refer to, in packs of this session, in live ones, or in condemned ones.
    async fn bring(&self) -> Result<(), RecoveryError> {
        let mut own: HashMap<String, NamedPack> = HashMap::new();
        let mut chunks = HashSet::new();
        let mut segments = HashSet::new();
        for journal in &self.kept.journals {
            let Delivered { own: packs, .. } = journal.entry.packs();
            own.extend(packs.into_iter().map(|pack| (pack.key(), pack)));
            for piece in self.operations(journal).await?.contents {
                let Content::Stored(extent) = piece.content else {
                    continue;
                };
                match extent.target {
                    Target::Chunk(id) => chunks.insert((Kind::Chunk, id)),
                    Target::Segment(id) => segments.insert((Kind::Segment, id)),
                };
            }
        }
        self.adopt(&mut segments).await?;
        for pack in own.values().filter(|pack| pack.is_metadata) {
            let found = self.store_again(pack, &mut segments).await?;
            for (id, bytes) in found {
                let listed = chunks_of(&bytes)
                    .map_err(|what| RecoveryError::Malformed(format!("segment {id}: {what}")))?;
                chunks.extend(listed.into_iter().map(|(id, _)| (Kind::Chunk, id)));
            }
        }
        self.adopt(&mut chunks).await?;
        for pack in own.values().filter(|pack| !pack.is_metadata) {
            self.store_again(pack, &mut chunks).await?;
        }
        // What the session relied on may have been condemned since: its recovery base keeps that
        // from being deleted. Lists of chunks bring theirs with them.
        for (kind, id) in segments.drain().chain(chunks.drain()) {
            match rescue::ensure(&self.ingest, kind, id).await {
                Err(VolumeError::ContentStore(error)) => {
                    return Err(ContentError::clone(&error).into());
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// Relies on what is live, and takes it out of `wanted`.
    async fn adopt(&self, wanted: &mut HashSet<(Kind, Id)>) -> Result<(), RecoveryError> {
        let mut missing = HashSet::new();
        for (kind, id) in wanted.drain() {
            match self.ingest.adopt_blob(kind, id).await {
                Ok(()) => {}
                Err(ContentError::Unknown { .. }) => {
                    missing.insert((kind, id));
                }
                Err(error) => return Err(error.into()),
            }
        }
        *wanted = missing;
        Ok(())
    }

    /// Stores again what is wanted of a pack, from the spool or else from the bucket, and takes it
    /// out of `wanted`. A pack that is in neither holds nothing.
    async fn store_again(
        &self,
        pack: &NamedPack,
        wanted: &mut HashSet<(Kind, Id)>,
    ) -> Result<Vec<(Id, bytes::Bytes)>, RecoveryError> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let key = pack.key();
        let mut spooled = None;
        // Of several files of one object any whole one will do.
        for object in self.objects_of(&key) {
            spooled = self.left.read(object).await?;
            if spooled.is_some() {
                break;
            }
            tracing::warn!("{} is damaged", object.path().display());
        }
        let object = match spooled {
            Some(object) => object,
            None => match self.ingest.fetch_pack(pack).await {
                Err(error) if error.wants_newer_root() => return Ok(Vec::new()),
                fetched => fetched?,
            },
        };
        let found = self.ingest.store_again(&key, object, wanted).await?;
        for blob in &found {
            wanted.remove(&(blob.kind, blob.id));
        }
        Ok(found
            .into_iter()
            .map(|blob| (blob.id, blob.bytes))
            .collect())
    }

    /// Returns what makes the snapshot. It leaves the volume in the root as it is, and removes the
    /// recovery base.
    fn committer(&self, volume: Arc<Volume>) -> Committer {
        let repository = &self.writing.repository;
        let root = RootCommitter::snapshot_only(
            repository.handle.clone(),
            repository.lists.clone(),
            self.session,
            &self.kept.volume,
            self.ingest.clone(),
            self.recovery_base.commit,
        )
        .claiming(match self.claims {
            true => vec![self.kept.session],
            false => Vec::new(),
        });
        Committer::snapshot_only(volume, root, self.writing.holder.clone())
    }
}
