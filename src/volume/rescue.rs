//! Keeping what uncommitted references name, when collection has condemned the packs that hold it (protocol.md, rule 4).
//!
//! Owns the copying: a blob that no live pack and no own one holds is read from a condemned pack, which is there for as long as this session's base says so, and stored again, with
//! all that it refers to. References name blobs and not packs, so nothing that refers to it has to be made anew.

use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::{Ingest, NamedPack};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{Verifier, VerifierConfig, chunks_of};
use bytes::Bytes;

use crate::tree::item::Target;
use crate::tree::node::Node;
use crate::tree::source::{Reference, references};
use crate::volume::error::VolumeError;

/// What a blob refers to, and what has to be live for it to be of use. Commit records refer weakly: nothing.
///
/// # Errors
/// What is wrong with bytes that mean nothing.
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

/// Makes sure that a blob, and all below it, is in live packs or in own ones.
///
/// # Errors
/// It is nowhere to be read, or cannot be stored.
pub async fn ensure(ingest: &Ingest, kind: Kind, id: Id) -> Result<(), VolumeError> {
    // A blob is stored after all that it refers to.
    let mut stack: Vec<(Kind, Id, Option<Bytes>)> = vec![(kind, id, None)];
    while let Some((kind, id, read)) = stack.pop() {
        if let Some(bytes) = read {
            ingest.store_blob(kind, bytes).await?;
            continue;
        }
        if ingest.adopt_blob(kind, id).is_ok() {
            continue;
        }
        let bytes = ingest.depot().read_blob(kind, id).await?;
        let children = below(kind, &bytes).map_err(|why| senseless(id, why))?;
        stack.push((kind, id, Some(bytes)));
        stack.extend(children.into_iter().map(|(kind, id)| (kind, id, None)));
    }
    Ok(())
}

/// The same for what an extent names.
///
/// # Errors
/// As [`ensure`].
pub async fn ensure_target(ingest: &Ingest, target: Target) -> Result<(), VolumeError> {
    match target {
        Target::Chunk(id) => ensure(ingest, Kind::Chunk, id).await,
        Target::Segment(id) => ensure(ingest, Kind::Segment, id).await,
    }
}

/// Step `Rescue`. Everything that uncommitted references name in `packs`, which the index is known not to list as live, is stored again.
///
/// # Errors
/// As [`ensure`]: then the references still lean on `packs`.
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

/// Rule 3 for packs of an ended session that are about to become live: all that any object in them refers to is in live packs or own ones.
///
/// # Errors
/// As [`ensure`]; a pack that is damaged.
pub async fn close(ingest: &Ingest, packs: &[NamedPack]) -> Result<(), VolumeError> {
    let depot = ingest.depot();
    let config = VerifierConfig {
        workers: depot.config().workers,
        timeout_ms: depot.config().timeout_ms,
        ..VerifierConfig::default()
    };
    let (store, keyring) = (depot.store().clone(), depot.keyring().clone());
    let verifier = Verifier::new(store, keyring, depot.entropy().clone(), &config)?;
    let unlisted = packs
        .iter()
        .filter(|pack| pack.is_metadata && !depot.is_listed(&pack.name));
    for pack in unlisted {
        let contents = verifier
            .describe(pack.name, pack.class(), pack.length)
            .await?;
        let mut wanted = Vec::new();
        let mut wrong = None;
        let walked = verifier
            .walk(
                &contents,
                &mut |found| match below(found.kind, &found.bytes) {
                    Ok(children) => wanted.extend(children),
                    Err(why) => wrong = Some(senseless(found.id, why)),
                },
            )
            .await?;
        if let Some(damage) = walked.damage.first() {
            return Err(VolumeError::Tree(format!(
                "{}: {}",
                contents.key(),
                damage.what
            )));
        }
        if let Some(error) = wrong {
            return Err(error);
        }
        for (kind, id) in wanted {
            ensure(ingest, kind, id).await?;
        }
    }
    Ok(())
}
