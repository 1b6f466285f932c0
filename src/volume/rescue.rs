//! Keeps blobs that uncommitted references name, after a collection has condemned the packs that
//! hold them (docs/PROTOCOL.md, rule 4).
//!
//! Owns the copying. A blob that neither a live pack nor an own one holds is read from a condemned
//! pack, which exists as long as this session's base keeps it. The blob is stored again with
//! everything that it refers to. References name blobs and not packs, so they stay valid.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::{Delivered, Ingest, NamedPack};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{Verifier, VerifierConfig, chunks_of};
use bytes::Bytes;

use crate::root::error::RootError;
use crate::tree::item::Target;
use crate::tree::node::Node;
use crate::tree::source::{Reference, references};
use crate::volume::error::VolumeError;

/// Returns the references of a blob: the blobs that must be live for it to be of use. Commit
/// records refer weakly, so they have none.
///
/// # Errors
/// A text that says why the bytes cannot be decoded.
pub fn below(kind: Kind, bytes: &Bytes) -> Result<Vec<(Kind, Id)>, String> {
    match kind {
        Kind::Chunk | Kind::Commit => Ok(Vec::new()),
        Kind::Segment => {
            let chunks = chunks_of(bytes)?;
            Ok(chunks
                .into_iter()
                .map(|(id, _)| (Kind::Chunk, id))
                .collect())
        }
        Kind::Node => {
            let node = Node::decode(bytes.clone()).map_err(|error| error.to_string())?;
            let mut found = Vec::new();
            for reference in references(&node) {
                found.push(match reference.map_err(|error| error.to_string())? {
                    Reference::Node(id) => (Kind::Node, id),
                    Reference::Target(Target::Chunk(id)) => (Kind::Chunk, id),
                    Reference::Target(Target::Segment(id)) => (Kind::Segment, id),
                });
            }
            Ok(found)
        }
    }
}

fn senseless(id: Id, why: String) -> VolumeError {
    VolumeError::Tree(format!("blob {id}: {why}"))
}

/// Ensures that a blob and everything below it is in live packs or in own ones. References of a
/// live blob are live as well (rule 3), but their live copy may be damaged. So if any damage is
/// known, the chunks of a segment are looked up one by one, and those without an undamaged copy are
/// stored again as far as they can be read.
///
/// Cancel safety: dropped, it leaves some of the blobs stored, which a repetition finds.
///
/// # Errors
/// [`VolumeError::Tree`] if a blob cannot be decoded; otherwise the failure to read or store one.
pub async fn ensure(ingest: &Ingest, kind: Kind, id: Id) -> Result<(), VolumeError> {
    // A blob is stored after all that it refers to.
    let mut stack: Vec<(Kind, Id, Option<Bytes>)> = vec![(kind, id, None)];
    while let Some((kind, id, read)) = stack.pop() {
        if let Some(bytes) = read {
            ingest.store_blob(kind, bytes).await?;
            continue;
        }
        if ingest.adopt_blob(kind, id).await.is_ok() {
            if kind == Kind::Segment && ingest.content_store().knows_damage() {
                heal_chunks(ingest, id).await?;
            }
            continue;
        }
        let bytes = ingest.content_store().read_blob(kind, id).await?;
        let children = below(kind, &bytes).map_err(|why| senseless(id, why))?;
        stack.push((kind, id, Some(bytes)));
        stack.extend(children.into_iter().map(|(kind, id)| (kind, id, None)));
    }
    Ok(())
}

/// Stores those chunks of a live segment again whose live copies are all damaged. A chunk that is
/// known to be damaged or absent everywhere is skipped: references to it are no worse off than
/// before.
///
/// # Errors
/// Every other failure to read a chunk: it does not prove that the chunk is lost.
async fn heal_chunks(ingest: &Ingest, segment: Id) -> Result<(), VolumeError> {
    let content_store = ingest.content_store();
    let Some(bytes) = whole(
        content_store.read_blob(Kind::Segment, segment).await,
        segment,
    )?
    else {
        return Ok(());
    };
    for (chunk, _) in chunks_of(&bytes).map_err(|why| senseless(segment, why))? {
        if ingest.adopt_blob(Kind::Chunk, chunk).await.is_ok() {
            continue;
        }
        let read = content_store.read_blob(Kind::Chunk, chunk).await;
        if let Some(bytes) = whole(read, segment)? {
            ingest.store_blob(Kind::Chunk, bytes).await?;
        }
    }
    Ok(())
}

/// Returns the bytes of a segment or chunk; `None` if the blob is known to be lost.
///
/// # Errors
/// Every other failure to read it.
fn whole(read: Result<Bytes, ContentError>, segment: Id) -> Result<Option<Bytes>, VolumeError> {
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_lost() => {
            tracing::warn!("what segment {segment} holds cannot be stored again: {error}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Same as [`ensure`], for the target of an extent.
///
/// # Errors
/// Those of [`ensure`].
pub async fn ensure_target(ingest: &Ingest, target: Target) -> Result<(), VolumeError> {
    match target {
        Target::Chunk(id) => ensure(ingest, Kind::Chunk, id).await,
        Target::Segment(id) => ensure(ingest, Kind::Segment, id).await,
    }
}

/// Step `Rescue`. Stores again every blob that uncommitted references name in `packs`, which the
/// index is known not to list as live. Dropped, it leaves the references relying on `packs`.
///
/// # Errors
/// Those of [`ensure`]: the references then still rely on `packs`.
pub async fn rescue(ingest: &Ingest, packs: &[PackName]) -> Result<(), VolumeError> {
    let blobs = ingest.relied_blobs(packs);
    tracing::info!(
        packs = packs.len(),
        blobs = blobs.len(),
        "storing again what was condemned meanwhile"
    );
    for (kind, id) in &blobs {
        ensure(ingest, *kind, *id).await?;
    }
    ingest.let_go(packs, &blobs);
    Ok(())
}

/// Maximum number of times that one commit stores condemned blobs again before it fails.
const RESCUES_MAX: u32 = 8;

/// Stores again what one commit finds condemned, up to [`RESCUES_MAX`] times.
pub struct Rescues<'a> {
    ingest: &'a Ingest,
    /// Set before blobs are stored again.
    begun: Option<&'a AtomicBool>,
    left: u32,
}

impl<'a> Rescues<'a> {
    /// Returns the rescues of one commit of `ingest`.
    pub fn new(ingest: &'a Ingest) -> Self {
        Rescues {
            ingest,
            begun: None,
            left: RESCUES_MAX,
        }
    }

    /// Returns these rescues, which set `begun` before they store anything again.
    pub fn noting_in(self, begun: &'a AtomicBool) -> Self {
        Rescues {
            begun: Some(begun),
            ..self
        }
    }

    /// Stores again what the commit lacks, if `error` says that packs it relies on are not live
    /// (rule 3). Returns true if the commit is to be tried again.
    ///
    /// Cancel safety: as [`rescue`].
    pub async fn has_helped(&mut self, error: &RootError) -> bool {
        let RootError::Rebuild { packs } = error else {
            return false;
        };
        let Some(left) = self.left.checked_sub(1) else {
            return false;
        };
        self.left = left;
        if let Some(begun) = self.begun {
            begun.store(true, Ordering::SeqCst);
        }
        let rescued = rescue(self.ingest, packs).await;
        if let Err(error) = &rescued {
            tracing::error!("what was condemned meanwhile cannot be stored again: {error}");
        }
        rescued.is_ok()
    }
}

/// A metadata pack of an ended session.
struct Candidate {
    pack: NamedPack,
    /// Each of its blobs, with the references of the blob.
    blobs: Vec<(Blob, Vec<Blob>)>,
}

/// The name of a blob.
type Blob = (Kind, Id);

/// Makes the packs of an ended session this one's, closed as rule 3 demands: every blob that an
/// object in them refers to is in live packs or own ones. A metadata pack that refers to a blob
/// that never arrived is not taken, since a journal of an earlier version may name one. The file
/// contents in it are stored again.
///
/// # Errors
/// Those of [`ensure`]; [`VolumeError::Tree`] if a pack is damaged.
pub async fn take(ingest: &Ingest, packs: Vec<NamedPack>) -> Result<(), VolumeError> {
    let content_store = ingest.content_store();
    let (mut metadata, mut data) = (Vec::new(), Vec::new());
    for pack in packs {
        match pack.is_metadata && !content_store.is_listed(&pack.name).await? {
            true => metadata.push(pack),
            false => data.push(pack),
        }
    }
    take_over(ingest, data).await?;
    let config = VerifierConfig {
        workers: content_store.config().workers,
        timeout_ms: content_store.config().timeout_ms,
        ..VerifierConfig::default()
    };
    let (store, keyring) = (
        content_store.store().clone(),
        content_store.keyring().clone(),
    );
    let verifier = Verifier::new(store, keyring, content_store.entropy().clone(), &config)?;
    let mut candidates = Vec::with_capacity(metadata.len());
    for pack in metadata {
        candidates.push(examine(&verifier, pack).await?);
    }
    let open = take_out_open(ingest, &mut candidates).await?;
    let closed = candidates.iter().map(|candidate| candidate.pack);
    take_over(ingest, closed.collect()).await?;
    for (kind, id) in candidates.iter().flat_map(Candidate::below) {
        ensure(ingest, kind, id).await?;
    }
    for candidate in &open {
        store_contents(ingest, candidate).await?;
    }
    Ok(())
}

async fn take_over(ingest: &Ingest, own: Vec<NamedPack>) -> Result<(), VolumeError> {
    let relied_on = Vec::new();
    Ok(ingest.take_over(&Delivered { own, relied_on }).await?)
}

impl Candidate {
    fn below(&self) -> impl Iterator<Item = Blob> + '_ {
        self.blobs
            .iter()
            .flat_map(|(_, below)| below.iter().copied())
    }
}

/// Reads a whole pack.
async fn examine(verifier: &Verifier, pack: NamedPack) -> Result<Candidate, VolumeError> {
    let contents = verifier
        .describe(pack.name, pack.class(), pack.length)
        .await?;
    let mut blobs = Vec::new();
    let mut wrong = None;
    let walked = verifier
        .walk(
            &contents,
            &mut |found| match below(found.kind, &found.bytes) {
                Ok(children) => blobs.push(((found.kind, found.id), children)),
                Err(why) => wrong = Some(senseless(found.id, why)),
            },
        )
        .await?;
    if let Some(damage) = walked.damage.first() {
        let (key, what) = (contents.key(), &damage.what);
        return Err(VolumeError::Tree(format!("{key}: {what}")));
    }
    match wrong {
        Some(error) => Err(error),
        None => Ok(Candidate { pack, blobs }),
    }
}

/// Removes from `candidates` those that refer to absent blobs, and then those that refer to blobs
/// which only a removed one holds. Returns them.
async fn take_out_open(
    ingest: &Ingest,
    candidates: &mut Vec<Candidate>,
) -> Result<Vec<Candidate>, VolumeError> {
    let mut open = Vec::new();
    while let Some((position, (kind, id))) = find_open(ingest, candidates).await? {
        let candidate = candidates.remove(position);
        tracing::warn!(
            "{} of an ended session refers to the {kind:?} {id}, which never arrived: what it \
             holds of files is stored again",
            candidate.pack.key()
        );
        open.push(candidate);
    }
    Ok(open)
}

/// Returns the first candidate that refers to an absent blob, and that blob.
async fn find_open(
    ingest: &Ingest,
    candidates: &[Candidate],
) -> Result<Option<(usize, Blob)>, VolumeError> {
    let blobs = candidates.iter().flat_map(|candidate| &candidate.blobs);
    let held: HashSet<Blob> = blobs.map(|(blob, _)| *blob).collect();
    for (position, candidate) in candidates.iter().enumerate() {
        for (kind, id) in candidate.below().filter(|blob| !held.contains(blob)) {
            if !is_anywhere(ingest, kind, id).await? {
                return Ok(Some((position, (kind, id))));
            }
        }
    }
    Ok(None)
}

async fn is_anywhere(ingest: &Ingest, kind: Kind, id: Id) -> Result<bool, VolumeError> {
    if ingest.adopt_blob(kind, id).await.is_ok() {
        return Ok(true);
    }
    match ingest.content_store().read_blob(kind, id).await {
        Ok(_) => Ok(true),
        Err(ContentError::Unknown { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Stores again the blobs of an untaken pack that journals may refer to: segments, as far as their
/// chunks exist.
async fn store_contents(ingest: &Ingest, candidate: &Candidate) -> Result<(), VolumeError> {
    let mut wanted = HashSet::new();
    let lists = candidate.blobs.iter();
    for (blob, chunks) in lists.filter(|((kind, _), _)| *kind == Kind::Segment) {
        let mut is_whole = true;
        for (kind, id) in chunks {
            is_whole = is_whole && is_anywhere(ingest, *kind, *id).await?;
        }
        if !is_whole {
            continue;
        }
        for (kind, id) in chunks {
            ensure(ingest, *kind, *id).await?;
        }
        wanted.insert(*blob);
    }
    if !wanted.is_empty() {
        let (key, object) = (
            candidate.pack.key(),
            ingest.fetch_pack(&candidate.pack).await?,
        );
        ingest.store_again(&key, object, &wanted).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bkfs_chunker::crypto::OpenError;
    use bkfs_chunker::spool::SpoolError;
    use bkfs_store::{Operation, StoreError, StoreErrorKind};
    use std::sync::Arc;

    /// Only errors that prove that a blob is absent or damaged count as a loss.
    #[test]
    fn only_what_is_known_to_be_gone_is_lost() {
        let (id, object) = (Id([7; 32]), || "data/x".to_owned());
        let damaged = ContentError::Damaged {
            object: object(),
            what: "its tag".to_owned(),
        };
        let lost = [
            damaged.clone(),
            ContentError::Missing { object: object() },
            ContentError::Unknown {
                kind: Kind::Chunk,
                id,
            },
        ];
        for error in lost {
            let told = error.to_string();
            assert!(matches!(whole(Err(error), id), Ok(None)), "{told}");
        }
        let kind = StoreErrorKind::Denied;
        let others = [
            ContentError::Unreadable {
                object: object(),
                source: Arc::new(OpenError::UnknownFeatures { bits: 2 }),
            },
            StoreError::new(kind, Operation::Get, object(), "no").into(),
            ContentError::Stalled {
                waited_ms: 1,
                last: None,
            },
            ContentError::Failed(Arc::new(damaged.clone())),
            ContentError::Index(Arc::new(damaged)),
            ContentError::Invalid("a range"),
            ContentError::Spool(SpoolError::Damaged { path: object() }),
            ContentError::Internal("a mistake"),
        ];
        for error in others {
            let told = error.to_string();
            assert!(whole(Err(error), id).is_err(), "{told}");
        }
    }
}
