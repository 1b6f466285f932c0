//! Makes a repository of many chunks in a local directory, for measurements of `check` and `gc`.
//!
//! Usage: `forge DIRECTORY CHUNKS SNAPSHOTS`. The directory must be empty or absent. Every snapshot
//! adds a file of pages of 16 KiB, each with 32 random bytes and zeros. So everything in the
//! repository is real, and takes about 130 bytes of disk for each chunk. Packs of 128 KiB hold
//! about as many chunks as those of a backup. The password is `forged`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bkfs::mounting::alone::{Alone, AloneParts};
use bkfs::volume::requests::SnapshotRequest;
use bkfs_chunker::chunking::Profile;
use bkfs_chunker::content_store::ContentStoreConfig;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::files::{Content, add_file};
use crate::repository::made;

mod files;
mod repository;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Random bytes of a page.
const RANDOM_BYTES: usize = 32;

/// The size of packs, in bytes.
const PACK_BYTES: u64 = 128 << 10;

/// Memory of the writer, in bytes.
const MEMORY_BYTES: u64 = 512 << 20;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, chunks, snapshots] = arguments.as_slice() else {
        return Err("usage: forge DIRECTORY CHUNKS SNAPSHOTS".into());
    };
    let (chunks, snapshots): (u64, u64) = (chunks.parse()?, snapshots.parse()?);
    std::fs::create_dir_all(Path::new(directory))?;
    let begun = Instant::now();
    let content_store = ContentStoreConfig {
        pack_bytes: PACK_BYTES,
        ..ContentStoreConfig::default()
    };
    let alone = Alone::begin(AloneParts {
        repository: Arc::new(made(directory, content_store).await?),
        volume: "main".into(),
        command: "forge".into(),
        memory_bytes: MEMORY_BYTES,
        steal: false,
        accept_loss: false,
        session: None,
    })
    .await?;
    let mut random = StdRng::seed_from_u64(chunks);
    for number in 0..snapshots {
        let pages = chunks * (number + 1) / snapshots - chunks * number / snapshots;
        let name = format!("file-{number:06}");
        let content = Content {
            pages,
            random_bytes: RANDOM_BYTES,
            profile: Profile::Grid,
        };
        add_file(alone.volume(), &name, content, &mut random).await?;
        let request = SnapshotRequest {
            name: Some(name),
            ..SnapshotRequest::default()
        };
        alone.volume().snapshot(request).await?;
        let seconds = begun.elapsed().as_secs_f64();
        eprintln!("{} of {snapshots} snapshots, {seconds:.0} s", number + 1);
    }
    alone.finish().await?;
    Ok(())
}
