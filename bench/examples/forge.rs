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
use bkfs::volume::namespace::NewInode;
use bkfs::volume::requests::SnapshotRequest;
use bkfs::volume::{ROOT_INODE, Volume};
use bkfs_chunker::chunking::Profile;
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_store::{StoreOptions, parse_url};
use bytes::{Bytes, BytesMut};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use zeroize::Zeroizing;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PASSWORD: &[u8] = b"forged";

/// Length of a page, in bytes.
const PAGE: usize = 16 << 10;

/// Pages that are stored with one call.
const RUN_PAGES: u64 = 256;

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

/// Returns what the writer did not take of a run, in front of `pages` new pages.
fn run(left: &[u8], pages: u64, random: &mut StdRng) -> Bytes {
    let mut run = BytesMut::with_capacity(left.len() + pages as usize * PAGE);
    run.extend_from_slice(left);
    run.resize(left.len() + pages as usize * PAGE, 0);
    for page in run[left.len()..].chunks_exact_mut(PAGE) {
        random.fill_bytes(&mut page[..RANDOM_BYTES]);
    }
    run.freeze()
}

async fn add_file(
    volume: &Arc<Volume>,
    name: String,
    pages: u64,
    random: &mut StdRng,
) -> Outcome<()> {
    let new = NewInode {
        mode: 0o100_600,
        uid: 0,
        gid: 0,
        device: 0,
        target: None,
        profile: Profile::Grid as u8,
    };
    let inode = volume.begin_deposit(&new).await?;
    let (mut offset, mut to_come, mut left) = (0, pages, Bytes::new());
    while to_come > 0 {
        let now = to_come.min(RUN_PAGES);
        to_come -= now;
        let next = run(&left, now, random);
        let taken = volume
            .deposit(inode, offset, next.clone(), to_come == 0)
            .await?;
        offset += taken;
        left = next.slice(taken as usize..);
    }
    let now = volume.now();
    volume
        .name_deposit(inode, ROOT_INODE, name.as_bytes(), now)
        .await?;
    Ok(())
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
        add_file(alone.volume(), name.clone(), pages, &mut random).await?;
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
