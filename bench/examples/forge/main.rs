//! Makes a repository of many chunks in a local directory, for measurements of `check` and `gc`.
//!
//! Usage: `forge DIRECTORY CHUNKS SNAPSHOTS`. The directory must be empty or absent. Every snapshot
//! adds a file of pages of 16 KiB, each with 32 random bytes and zeros. So everything in the
//! repository is real, and takes about 130 bytes of disk for each chunk. Packs of 128 KiB hold
//! about as many chunks as those of a backup. The password is `forged`.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bkfs::mounting::alone::{Alone, AloneParts};
use bkfs::repository::{Creation, Opening, Repository, create, open};
use bkfs::root::error::RootError;
use bkfs::root::repository::{Accepted, Passwords};
use bkfs::volume::requests::SnapshotRequest;
use bkfs_chunker::chunking::Profile;
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_store::{StoreOptions, parse_url};
use rand::SeedableRng;
use rand::rngs::StdRng;
use zeroize::Zeroizing;

use crate::files::{Content, add_file};

mod files;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PASSWORD: &[u8] = b"forged";

/// Random bytes of a page.
const RANDOM_BYTES: usize = 32;

/// The size of packs, in bytes.
const PACK_BYTES: u64 = 128 << 10;

/// Memory of the writer, in bytes.
const MEMORY_BYTES: u64 = 512 << 20;

/// Answers with the password of forged repositories.
struct Forged;

impl Passwords for Forged {
    fn is_given(&self) -> bool {
        true
    }

    fn password(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, RootError> {
        Ok(Some(Zeroizing::new(PASSWORD.to_vec())))
    }
}

async fn made(directory: &str) -> Outcome<Repository> {
    let url = parse_url(directory)?;
    create(Creation {
        url: url.clone(),
        store: StoreOptions::default(),
        password: Some(Zeroizing::new(PASSWORD.to_vec())),
        lock: None,
    })
    .await?;
    let opening = Opening {
        url,
        store: StoreOptions::default(),
        content_store: ContentStoreConfig {
            pack_bytes: PACK_BYTES,
            ..ContentStoreConfig::default()
        },
        timeout: Duration::from_secs(300),
        min_generation: 0,
        accepted: Accepted::default(),
        key: None,
        state_dir: None,
    };
    Ok(open(opening, &mut Forged).await?)
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, chunks, snapshots] = arguments.as_slice() else {
        return Err("usage: forge DIRECTORY CHUNKS SNAPSHOTS".into());
    };
    let (chunks, snapshots): (u64, u64) = (chunks.parse()?, snapshots.parse()?);
    std::fs::create_dir_all(Path::new(directory))?;
    let begun = Instant::now();
    let alone = Alone::begin(AloneParts {
        repository: Arc::new(made(directory).await?),
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
