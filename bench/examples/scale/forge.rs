//! Makes a repository whose root names runs of many chunks.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bkfs::mounting::alone::{Alone, AloneParts};
use bkfs::repository::Repository;
use bkfs::root::error::RootError;
use bkfs::root::handle::Transition;
use bkfs::root::run_group::{IndexName, RunGroup};
use bkfs::root::state::{Root, SessionId};
use bkfs::volume::namespace::NewInode;
use bkfs::volume::requests::SnapshotRequest;
use bkfs::volume::{ROOT_INODE, Volume};
use bkfs_chunker::catalog::{IndexRef, RunRef};
use bkfs_chunker::chunking::Profile;
use bkfs_chunker::codec::Effort;
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_chunker::crypto::{Class, Features, Keyring};
use bkfs_chunker::id::Prefix;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::run::RunWriter;
use bkfs_store::Store;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::Outcome;
use crate::files::{Content, PAGE, add_file};
use crate::forgery::{Forgery, SESSION};
use crate::repository::made;

/// Files of a directory.
const DIRECTORY_FILES: u64 = 10_000;

/// Chunks that an index object lists.
const INDEX_CHUNKS: u64 = 2 << 20;

/// Decoded bytes of an index object for each chunk.
const INDEX_CHUNK_BYTES: u64 = 21;

/// Pages of the file of data.
const DATA_PAGES: u64 = (64 << 20) / PAGE as u64;

/// Memory of the writer, in bytes.
const MEMORY_BYTES: u64 = 1 << 30;

/// Runs that are made concurrently.
const RUNS_AT_ONCE: usize = 2;

/// Makes a repository of at least so many chunks and files in an empty or absent directory.
pub async fn forge(directory: &Path, chunks: u64, files: u64) -> Outcome<()> {
    std::fs::create_dir_all(directory)?;
    let path = directory.to_str().ok_or("the path is not UTF-8")?;
    let begun = Instant::now();
    let repository = Arc::new(made(path, ContentStoreConfig::default()).await?);
    let alone = Alone::begin(AloneParts {
        repository: repository.clone(),
        volume: "main".into(),
        command: "forge".into(),
        memory_bytes: MEMORY_BYTES,
        steal: false,
        accept_loss: false,
        session: None,
    })
    .await?;
    fill(alone.volume(), files).await?;
    let request = SnapshotRequest {
        name: Some("base".into()),
        ..SnapshotRequest::default()
    };
    alone.volume().snapshot(request).await?;
    alone.finish().await?;
    println!("{files} files: {:.0} s", begun.elapsed().as_secs_f64());
    if chunks > 0 {
        name_runs(&repository, Forgery::of(chunks)).await?;
    }
    println!("{chunks} chunks: {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Adds a file of data, and empty files in directories.
async fn fill(volume: &Arc<Volume>, files: u64) -> Outcome<()> {
    let new = |mode: u32| NewInode {
        mode,
        uid: 0,
        gid: 0,
        device: 0,
        target: None,
        profile: Profile::Content as u8,
    };
    let content = Content {
        pages: DATA_PAGES,
        random_bytes: PAGE,
        profile: Profile::Grid,
    };
    add_file(volume, "data", content, &mut StdRng::seed_from_u64(1)).await?;
    for first in (0..files).step_by(DIRECTORY_FILES as usize) {
        let name = format!("directory-{first:010}");
        let made = volume
            .make(ROOT_INODE, name.as_bytes(), new(0o40_700))
            .await?;
        for number in first..files.min(first + DIRECTORY_FILES) {
            let name = format!("file-{number:010}");
            volume
                .make(made.inode, name.as_bytes(), new(0o100_600))
                .await?;
        }
    }
    Ok(())
}

/// Writes the runs of a forgery, and names them in the root.
async fn name_runs(repository: &Repository, forgery: Forgery) -> Outcome<()> {
    let (store, keyring) = (repository.handle.store(), repository.handle.keyring());
    let slices = (0..forgery.slices).map(|slice| data_run(store, keyring, forgery, slice));
    let runs = futures::stream::iter(slices).buffered(RUNS_AT_ONCE);
    let mut runs: Vec<RunRef> = runs.try_collect().await?;
    runs.push(metadata_run(store, keyring).await?);
    let mut change = NameRuns {
        index: index(forgery),
        runs,
    };
    repository.handle.update(&mut change).await?;
    Ok(())
}

fn run_name(number: u64) -> PackName {
    PackName {
        session: SESSION,
        sequence: number as u32,
        random: 1,
    }
}

async fn data_run(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    forgery: Forgery,
    slice: u64,
) -> Outcome<RunRef> {
    let name = run_name(slice);
    let (key, keyring) = (name.key(Class::Run), keyring.clone());
    let under = key.clone();
    let made = tokio::task::spawn_blocking(move || {
        let run = forgery.run(&keyring, &under, slice);
        run.map_err(|error| error.to_string())
    });
    let (body, records) = made.await??;
    let range = bkfs::root::run_group::prefixes_of(slice as u16, forgery.slices as u16);
    let reference = RunRef {
        name,
        bytes: body.len() as u64,
        class: Class::DataPack,
        first: *range.start(),
        last: *range.end(),
        records,
    };
    store.put_new(&key, vec![body]).await?;
    Ok(reference)
}

/// Writes the run of the metadata packs, which has no record.
async fn metadata_run(store: &Arc<dyn Store>, keyring: &Keyring) -> Outcome<RunRef> {
    let name = run_name(u64::from(u32::MAX));
    let key = name.key(Class::Run);
    let (first, last) = (Prefix([0; Prefix::LEN]), Prefix([0xff; Prefix::LEN]));
    let sealer = keyring.object_sealer(Class::Run, &key, Features::NONE, [7; 32]);
    let class = Class::MetadataPack;
    let mut writer = RunWriter::new(sealer, class, first..=last, [], Effort::Level(1));
    writer.finish()?;
    let body = Bytes::from(writer.take());
    let bytes = body.len() as u64;
    store.put_new(&key, vec![body]).await?;
    Ok(RunRef {
        name,
        bytes,
        class,
        first,
        last,
        records: 0,
    })
}

/// Returns the index objects that the runs answer for. They do not exist.
fn index(forgery: Forgery) -> Vec<IndexRef> {
    let of_packs = forgery
        .packs
        .div_ceil(forgery.chunks().div_ceil(INDEX_CHUNKS));
    let reference = |number: u64| {
        let packs = of_packs.min(forgery.packs - number);
        let blobs = packs * crate::forgery::PACK_CHUNKS;
        IndexRef {
            name: PackName {
                session: SESSION,
                sequence: number as u32,
                random: 2,
            },
            packs: packs as u32,
            blobs,
            bytes: blobs * INDEX_CHUNK_BYTES,
        }
    };
    let numbers = (0..forgery.packs).step_by(of_packs as usize);
    numbers.map(reference).collect()
}

/// Names index objects in the root, and a group of runs that answers for them.
struct NameRuns {
    index: Vec<IndexRef>,
    runs: Vec<RunRef>,
}

#[async_trait]
impl Transition for NameRuns {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        None
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        next.index.extend(&self.index);
        let covers = self.index.iter().map(|index| IndexName(index.name));
        let group = RunGroup {
            begun: next.generation,
            covers: covers.collect(),
            runs: self.runs.clone(),
            dropped: None,
            building: None,
        };
        next.run_groups.get_or_insert_default().push(group);
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(Forgery::in_root(root).is_some())
    }
}
