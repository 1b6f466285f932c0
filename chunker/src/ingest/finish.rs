//! Finishing packs: writes everything accepted so far to the bucket, and an index object that lists it.
//!
//! Owns the order of rule 1 and the construction of the [`FinishedPacks`] token. No other code makes one.

use std::collections::HashSet;
use std::sync::Arc;

use bkfs_store::entropy::{number, salt};
use bytes::Bytes;

use super::absorb;
use super::finished::FinishedPacks;
use super::session::Session;
use crate::catalog::{IndexRef, Staged};
use crate::codec::Balance;
use crate::crypto::{Class, Features};
use crate::error::ContentError;
use crate::index::{self, PackRecord, encoded_length};
use crate::pack::PackName;
use crate::pending::Mark;
use crate::runtime::Runtime;

/// Finishes all packs; see [`Ingest::finish_since`](super::Ingest::finish_since).
pub(super) async fn finish(
    session: &Arc<Session>,
    mark: Mark,
    current: &[IndexRef],
) -> Result<FinishedPacks, ContentError> {
    let frontier = session.cut(&[Class::DataPack, Class::MetadataPack]);
    let sent = async {
        session.acknowledged(Class::DataPack, frontier).await?;
        session.acknowledged(Class::MetadataPack, frontier).await
    };
    session.shared.link.progress.watch(sent).await??;
    let waiting = session.pending_index().waiting(frontier);
    let mut finished = FinishedPacks {
        index: current.to_vec(),
        absorbed: Vec::new(),
        packs: waiting.iter().map(|stored| stored.pack.name).collect(),
        relied_on: session.pending_index().relied_on(),
        floor: mark.floor,
        new_bytes: waiting.iter().map(|stored| stored.pack.length).sum(),
        mark,
        staged: Vec::new(),
    };
    if waiting.is_empty() {
        return Ok(finished);
    }
    let new: Vec<PackRecord> = waiting
        .iter()
        .map(|stored| PackRecord::from(&*stored.pack))
        .collect();
    let mut groups = divide(new);
    if let [only] = groups.as_mut_slice() {
        absorb(session, only, &mut finished).await;
    }
    for records in groups {
        let staged = put_index(session, records).await?;
        finished.index.push(staged.loaded.reference());
        finished.staged.push(staged);
    }
    Ok(finished)
}

/// Writes index objects that list packs in the bucket; see
/// [`Ingest::put_index`](super::Ingest::put_index).
pub(super) async fn put_indexes(
    session: &Arc<Session>,
    records: Vec<PackRecord>,
) -> Result<Vec<IndexRef>, ContentError> {
    let mut written = Vec::new();
    for records in divide(records) {
        let staged = put_index(session, records).await?;
        written.push(staged.loaded.reference());
    }
    Ok(written)
}

/// Divides packs into groups, each of which fits into one index object.
fn divide(records: Vec<PackRecord>) -> Vec<Vec<PackRecord>> {
    let mut groups: Vec<Vec<PackRecord>> = Vec::new();
    let mut bytes = u64::MAX;
    for record in records {
        let more = encoded_length([&record]);
        if bytes.saturating_add(more) > absorb::LARGEST_BYTES {
            groups.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(group) = groups.last_mut() {
            group.push(record);
        }
    }
    groups
}

/// Adds the packs of small older index objects. An index object that cannot be read stays as it is:
/// its repair is not the task of a commit.
async fn absorb(
    session: &Arc<Session>,
    records: &mut Vec<PackRecord>,
    finished: &mut FinishedPacks,
) {
    let chosen = absorb::choose(&finished.index, encoded_length(&*records));
    let catalog = &session.shared.catalog;
    let names: Vec<PackName> = chosen
        .iter()
        .map(|&position| finished.index[position].name)
        .collect();
    let read = futures::future::join_all(names.iter().map(|&name| catalog.records(name))).await;
    let mut known: HashSet<PackName> = records.iter().map(|record| record.name).collect();
    for (name, read) in names.into_iter().zip(read) {
        match read {
            Ok(older) => {
                let unknown = older.iter().filter(|record| known.insert(record.name));
                records.extend(unknown.cloned());
                finished.absorbed.push(name);
            }
            Err(error) => tracing::warn!("an index object is not absorbed: {error}"),
        }
    }
    let absorbed = &finished.absorbed;
    finished
        .index
        .retain(|reference| !absorbed.contains(&reference.name));
}

/// Writes an index object and builds its table.
async fn put_index(
    session: &Arc<Session>,
    mut records: Vec<PackRecord>,
) -> Result<Staged, ContentError> {
    let shared = Arc::clone(&session.shared);
    let random = number(&*shared.link.entropy);
    let name = session.pending_index().draw_name(random)?;
    let reference = IndexRef {
        name,
        packs: records.len() as u32,
        blobs: records
            .iter()
            .map(|record| record.footer.blob_count() as u64)
            .sum(),
        bytes: encoded_length(&records),
    };
    let effort = shared.effort(Balance::Even);
    let job = session.shared.workers.run(move |scratch| {
        let payload = index::encode(&mut records, scratch.frames.encoder(), effort);
        let payload =
            payload.map_err(|_| ContentError::Internal("an index object that is too large"))?;
        Ok::<_, ContentError>((seal_object(&shared, Class::Index, name, &payload), records))
    });
    let (object, records) = job.await??;
    create(session, Class::Index, name, object).await?;
    session.shared.catalog.stage(reference, records).await
}

/// Writes an immutable list; see [`Ingest::put_list`](super::Ingest::put_list).
pub(super) async fn put_list(
    session: &Arc<Session>,
    payload: &[u8],
) -> Result<PackName, ContentError> {
    let random = number(&*session.shared.link.entropy);
    let name = session.pending_index().draw_name(random)?;
    let object = seal_object(&session.shared, Class::List, name, payload);
    create(session, Class::List, name, object).await?;
    Ok(name)
}

fn seal_object(shared: &Runtime, class: Class, name: PackName, payload: &[u8]) -> Bytes {
    let salt = salt(&*shared.link.entropy);
    shared
        .keyring
        .seal_object(class, &name.key(class), Features::NONE, salt, payload)
}

async fn create(
    session: &Arc<Session>,
    class: Class,
    name: PackName,
    object: Bytes,
) -> Result<(), ContentError> {
    let link = &session.shared.link;
    let key = name.key(class);
    link.progress.watch(link.create(&key, &[object])).await?
}
