//! Finds commits that no root names: in metadata packs that no index object lists, of sessions that
//! are no longer in the root.
//!
//! One of them may be left by a crash between storing a commit and replacing the root; that is no
//! damage. Several in a row are what remains of acknowledged commits, in a store whose conditional
//! writes are not atomic or in a bucket whose root was rolled back.

use std::collections::{BTreeMap, HashSet};

use bkfs_chunker::crypto::Class;
use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{Found, PackContents, Verifier};
use futures::StreamExt;

use super::layout::{NamedObject, place_of};
use super::report::Stray;
use crate::root::error::RootError;
use crate::root::record::CommitRecord;
use crate::root::state::{Root, SessionId};

/// Packs that are read at most. A crash leaves one or two.
const PACKS_MAX: usize = 1000;

/// Packs read at the same time.
const READS_AT_ONCE: usize = 4;

/// Returns the commits of packs in `bucket` that are not `known` and whose session is not in
/// `root`. They are sorted by volume, and the commits of a volume by number. A pack that cannot be
/// read contributes none.
///
/// # Errors
/// [`RootError::Content`] if the store as a whole cannot be read (`Store`, `Stalled`).
pub async fn find(
    verifier: &Verifier,
    root: &Root,
    bucket: &BTreeMap<String, u64>,
    known: impl Fn(&PackName) -> bool,
) -> Result<Vec<Stray>, RootError> {
    let is_stray =
        |name: &PackName| !known(name) && !root.sessions.contains_key(&SessionId(name.session));
    let packs = bucket
        .iter()
        .filter_map(|(key, bytes)| match place_of(key) {
            NamedObject::Named(Class::MetadataPack, name) if is_stray(&name) => {
                Some((name, *bytes))
            }
            _ => None,
        });
    let reads = packs
        .take(PACKS_MAX)
        .map(|(name, bytes)| records(verifier, name, bytes));
    let mut reads = futures::stream::iter(reads.collect::<Vec<_>>()).buffered(READS_AT_ONCE);
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    while let Some(read) = reads.next().await {
        for (id, record) in read? {
            if seen.insert(id) {
                found.push(Stray {
                    volume: record.volume,
                    sequence: record.sequence,
                    time: record.time,
                    session: record.session.to_string(),
                });
            }
        }
    }
    found.sort_by(|a, b| (&a.volume, a.sequence, a.time).cmp(&(&b.volume, b.sequence, b.time)));
    Ok(found)
}

/// Returns the commit records of one pack.
async fn records(
    verifier: &Verifier,
    name: PackName,
    bytes: u64,
) -> Result<Vec<(Id, CommitRecord)>, RootError> {
    let mut found = Vec::new();
    let mut visit = |blob: Found| {
        if blob.kind == Kind::Commit
            && let Ok(record) = CommitRecord::decode(&blob.bytes)
        {
            found.push((blob.id, record));
        }
    };
    let read = async {
        let pack = verifier.describe(name, Class::MetadataPack, bytes).await?;
        if has_record(&pack) {
            verifier.walk(&pack, &mut visit).await?;
        }
        Ok::<_, ContentError>(())
    };
    match read.await {
        Err(ContentError::Store(error)) if !error.is_not_found() && !error.is_of_one_object() => {
            Err(ContentError::Store(error).into())
        }
        Err(error @ ContentError::Stalled { .. }) => Err(error.into()),
        // The pack was deleted since the bucket was listed, or was not written to its end.
        Err(_) | Ok(()) => Ok(found),
    }
}

fn has_record(pack: &PackContents) -> bool {
    pack.blobs().any(|blob| blob.kind == Kind::Commit)
}
