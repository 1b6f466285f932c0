//! Measures what repositories of very many chunks cost a machine that knows nothing of them.
//!
//! Usage:
//!
//! - `scale forge DIRECTORY CHUNKS FILES` makes a repository in a local directory: a tree of so many
//!   empty files and one file of data, a snapshot of it, and runs that name so many chunks. A run has
//!   20 bytes for each chunk. The packs of these chunks do not exist.
//! - `scale read DIRECTORY DELAY_MS` lists a directory and reads the begin of a file.
//! - `scale mount DIRECTORY DELAY_MS MEMORY_MIB` begins a mount that writes, without a kernel.
//! - `scale find DIRECTORY DELAY_MS MEMORY_MIB` looks chunks up as a writer does.
//! - `scale full DIRECTORY DELAY_MS MEMORY_MIB DATA_MIB PROFILE` stores data twice, the second time in
//!   another volume by another machine. PROFILE is `grid` or `content`. Changes the repository.
//!
//! All but `forge` ask a bucket behind a delay for each request, with no cache, and print a line for
//! each figure. The password is `forged`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bkfs::environment::Environment;
use bkfs::repository::{Repository, open_on};
use bkfs_chunker::budget::MemoryBudget;
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_store::{Store, StoreOptions, open_store, parse_url};
use bkfs_testing::counting::{Counters, CountingStore};
use bkfs_testing::fault::{Fault, FaultStore, Strike};

use crate::forgery::{ForgedBucket, Forgery};
use crate::repository::{Forged, opening};

#[path = "../forge/files.rs"]
mod files;
mod forge;
mod forgery;
#[path = "../forge/repository.rs"]
mod repository;
mod rows;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "usage: scale forge DIRECTORY CHUNKS FILES | read DIRECTORY DELAY_MS | \
    mount DIRECTORY DELAY_MS MEMORY_MIB | find DIRECTORY DELAY_MS MEMORY_MIB | \
    full DIRECTORY DELAY_MS MEMORY_MIB DATA_MIB grid|content";

/// A machine that has nothing but the bucket and the password.
struct Machine {
    repository: Arc<Repository>,
    /// What it has asked for.
    counters: Arc<Counters>,
    /// Where it keeps tables and blobs.
    cache: tempfile::TempDir,
}

impl Machine {
    /// Opens the repository.
    async fn new(directory: &str, delay: Duration, memory_bytes: u64) -> Outcome<Self> {
        let url = parse_url(directory)?;
        let bucket = open_store(&url, &StoreOptions::default()).await?;
        let forged = Arc::new(ForgedBucket::new(bucket));
        let counted = CountingStore::new(forged.clone());
        let counters = counted.counters();
        let far = FaultStore::new(Arc::new(counted));
        far.plan(Strike::with(Fault::Delay(delay)).always());
        let cache = tempfile::tempdir()?;
        let config = ContentStoreConfig {
            cache_dir: Some(cache.path().to_owned()),
            memory: MemoryBudget::of_total(memory_bytes),
            ..ContentStoreConfig::default()
        };
        let opening = opening(url, config);
        let far: Arc<dyn Store> = Arc::new(far);
        let repository = open_on(Environment::this(), far, opening, &mut Forged).await?;
        if let Some(forgery) = Forgery::in_root(&repository.handle.current().root) {
            forged.add(repository.handle.keyring(), forgery);
        }
        Ok(Self {
            repository: Arc::new(repository),
            counters,
            cache,
        })
    }

    /// Prints what it has asked for so far.
    fn tell(&self, what: &str, seconds: f64) {
        let total = self.counters.total();
        let mib = total.bytes_read as f64 / f64::from(1 << 20);
        let requests = total.requests;
        println!("{what}: {seconds:.2} s, {mib:.1} MiB fetched, {requests} requests");
    }
}

/// Parses a number of MiB as bytes.
fn mib(text: &str) -> Outcome<u64> {
    Ok(text.parse::<u64>()? << 20)
}

fn delay(text: &str) -> Outcome<Duration> {
    Ok(Duration::from_millis(text.parse()?))
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["forge", directory, chunks, files] => {
            forge::forge(Path::new(directory), chunks.parse()?, files.parse()?).await
        }
        ["read", directory, far] => rows::read(directory, delay(far)?).await,
        ["mount", directory, far, memory] => {
            rows::mount(directory, delay(far)?, mib(memory)?).await
        }
        ["find", directory, far, memory] => rows::find(directory, delay(far)?, mib(memory)?).await,
        ["full", directory, far, memory, data, profile] => {
            let content = rows::content(mib(data)?, profile)?;
            rows::full(directory, delay(far)?, mib(memory)?, content).await
        }
        _ => Err(USAGE.into()),
    }
}
