//! Measures what many hosts do to the root of one repository that `bkfs upgrade` has changed.
//!
//! Usage: `crowd hosts HOSTS DELAY_MS` runs hosts in this process. Each has a mount without a
//! kernel, with a volume of its own. `crowd full SNAPSHOTS DELAY_MS` fills the root, and makes so
//! many snapshots in one volume. The bucket is memory behind a delay for each request. Prints a
//! line for each figure.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bkfs::environment::Environment;
use bkfs::maintain::collect::plan::Effort;
use bkfs::maintain::collect::{Options, collect, prospect};
use bkfs::maintain::workspace::Workspace;
use bkfs::mounting::settings::Settings;
use bkfs::mounting::{Assembled, MountPlan};
use bkfs::repository::{Opening, Repository, create_on, open_on};
use bkfs::root::error::RootError;
use bkfs::root::handle::Transition;
use bkfs::root::repository::{Accepted, Passwords};
use bkfs::root::state::{HolderInfo, ROOT_KEY, Root, SessionId};
use bkfs::root::upgrade::make_large;
use bkfs::volume::data::WriteOptions;
use bkfs::volume::namespace::NewInode;
use bkfs::volume::requests::SnapshotRequest;
use bkfs::volume::{ROOT_INODE, Volume};
use bkfs_chunker::budget::MemoryBudget;
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_fuse::MountOptions;
use bkfs_store::{
    Layer, MemoryStore, Operation, Store, StoreError, StoreErrorKind, StoreOptions, Version,
    parse_url,
};
use bkfs_testing::counting::{Counters, CountingStore};
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use bytes::Bytes;
use futures::future::join_all;
use zeroize::Zeroizing;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "usage: crowd hosts HOSTS DELAY_MS | crowd full SNAPSHOTS DELAY_MS";

/// Sessions and volumes of a full root. One session is left to the host that is measured.
const SESSIONS: usize = 4095;
const VOLUMES: usize = 10_000;

/// Memory of each host, in bytes.
const MEMORY_BYTES: u64 = 16 << 20;

/// Hosts that commit every second.
const BUSY: usize = 16;

/// How long they do that, in seconds.
const BUSY_S: u64 = 60;

/// Hosts that a store serves which takes one write a second for each object.
const RULED: usize = 64;

/// A repository without a password.
struct Open;

impl Passwords for Open {
    fn is_given(&self) -> bool {
        false
    }

    fn password(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, RootError> {
        Ok(None)
    }
}

/// A store that refuses a second replacement of an object within a second, while it is told to.
#[derive(Debug, Default)]
struct Ruled {
    bucket: MemoryStore,
    is_on: AtomicBool,
    replaced: Mutex<HashMap<String, Instant>>,
}

#[async_trait]
impl Layer for Ruled {
    fn below(&self) -> &dyn Store {
        &self.bucket
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        if self.is_on.load(Ordering::Relaxed) {
            let mut replaced = self.replaced.lock().expect("no panic");
            let last = replaced.get(key).copied();
            if last.is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
                let kind = StoreErrorKind::Throttled;
                return Err(StoreError::new(kind, Operation::Replace, key, "too often"));
            }
            replaced.insert(key.to_owned(), Instant::now());
        }
        self.bucket.replace(key, body, expected).await
    }
}

/// The bucket of all hosts.
struct Bucket {
    ruled: Arc<Ruled>,
    /// Counts the requests of all.
    counted: Arc<CountingStore>,
    /// The delay of each request.
    delay: Duration,
}

impl Bucket {
    /// Returns a bucket with an empty repository, whose root is a large one.
    async fn large(delay: Duration) -> Outcome<Self> {
        let ruled = Arc::<Ruled>::default();
        let counted = Arc::new(CountingStore::new(ruled.clone()));
        create_on(&Environment::this(), counted.clone(), None).await?;
        let admin = opened(counted.clone()).await?;
        let holder = admin.environment.holder("bkfs upgrade");
        make_large(&admin.handle, holder, &*admin.environment.processes).await?;
        Ok(Self {
            ruled,
            counted,
            delay,
        })
    }

    /// Returns the bucket as one host sees it, and what that host asks for.
    fn far(&self) -> (Arc<dyn Store>, Arc<Counters>) {
        let own = CountingStore::new(self.counted.clone());
        let counters = own.counters();
        let far = FaultStore::new(Arc::new(own));
        far.plan(Strike::with(Fault::Delay(self.delay)).always());
        (Arc::new(far), counters)
    }

    /// Returns how often a host has tried to replace the root.
    fn attempts(&self) -> u64 {
        let counters = self.counted.counters();
        counters.tally(Operation::Replace).requests
    }
}

/// A host with a mount.
struct Host {
    counters: Arc<Counters>,
    mount: Assembled,
}

impl Host {
    async fn begin(bucket: &Bucket, number: usize) -> Outcome<Self> {
        let (store, counters) = bucket.far();
        let repository = opened(store).await?;
        let plan = MountPlan {
            clone_of: None,
            observed: Default::default(),
            repository: Arc::new(repository),
            mount_point: "/nowhere".into(),
            options: MountOptions::default(),
            settings: Settings::default(),
            volume: format!("host-{number:04}"),
            steal: false,
            spool: None,
        };
        let mount = plan.assemble(&tokio::runtime::Handle::current()).await?;
        Ok(Self { counters, mount })
    }

    /// Returns how many bytes it has fetched.
    fn fetched(&self) -> u64 {
        self.counters.total().bytes_read
    }

    fn volume(&self) -> Arc<Volume> {
        self.mount.volume().expect("it is writable")
    }

    /// Writes a file of 64 KiB.
    async fn write(&self, name: &str) -> Outcome<()> {
        let new = NewInode {
            mode: 0o100_600,
            uid: 0,
            gid: 0,
            device: 0,
            target: None,
            profile: 0,
        };
        let volume = self.volume();
        let made = volume.make(ROOT_INODE, name.as_bytes(), new).await?;
        let bytes = Bytes::from(name.repeat((64 << 10) / name.len()));
        volume
            .write(made.inode, 0, bytes, WriteOptions::default())
            .await?;
        Ok(())
    }

    /// Writes, and makes a snapshot. Returns its seconds.
    async fn snapshot(&self, name: &str) -> Outcome<f64> {
        self.write(name).await?;
        let begun = Instant::now();
        let request = SnapshotRequest {
            name: Some(name.to_owned()),
            ..SnapshotRequest::default()
        };
        self.volume().snapshot(request).await?;
        Ok(begun.elapsed().as_secs_f64())
    }
}

async fn opened(store: Arc<dyn Store>) -> Outcome<Repository> {
    let opening = Opening {
        key: None,
        url: parse_url("/crowd")?,
        store: StoreOptions::default(),
        content_store: ContentStoreConfig {
            cache_dir: None,
            workers: 0,
            memory: MemoryBudget::of_total(MEMORY_BYTES),
            ..ContentStoreConfig::default()
        },
        timeout: Duration::from_secs(300),
        min_generation: 0,
        accepted: Accepted::default(),
        state_dir: None,
    };
    Ok(open_on(Environment::this(), store, opening, &mut Open).await?)
}

/// Prints the median and the slowest of these seconds.
fn tell(what: &str, mut seconds: Vec<f64>) {
    seconds.sort_by(f64::total_cmp);
    let (median, slowest) = (seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
    let ratio = slowest / median;
    println!("{what}: median {median:.2} s, slowest {slowest:.2} s, ratio {ratio:.1}");
}

/// Makes a snapshot on each of these hosts at once.
async fn at_once(what: &str, hosts: &[Host], bucket: &Bucket) -> Outcome<()> {
    let before = bucket.attempts();
    let begun = Instant::now();
    let made = join_all(hosts.iter().map(|host| host.snapshot(what))).await;
    let made: Outcome<Vec<f64>> = made.into_iter().collect();
    let all = begun.elapsed().as_secs_f64();
    let attempts = bucket.attempts() - before;
    let per_commit = attempts as f64 / hosts.len() as f64;
    println!("{what}: all in {all:.1} s, {per_commit:.2} attempts per commit");
    tell(what, made?);
    Ok(())
}

/// Collects, and prints how long that takes.
async fn gather(bucket: &Bucket) -> Outcome<()> {
    let repository = opened(bucket.far().0).await?;
    let options = Options {
        undelete_window: jiff::SignedDuration::ZERO,
        workspace: Workspace::IN_MEMORY,
        state_dir: None,
        lock_days: None,
        effort: Effort::default(),
    };
    let begun = Instant::now();
    let prospect = prospect(&repository, &options, repository.now()).await?;
    let done = collect(&repository, prospect).await?;
    let (seconds, packs) = (begun.elapsed().as_secs_f64(), done.condemned.packs);
    println!("gc meanwhile: {seconds:.1} s, {packs} packs condemned");
    Ok(())
}

/// Commits on some hosts every second. Meanwhile asks one more host for fsync, and collects.
async fn busy(hosts: &[Host], bucket: &Bucket) -> Outcome<()> {
    let (quiet, others) = hosts.split_last().ok_or("there is no host")?;
    let before = bucket.attempts();
    let commits = others.iter().take(BUSY).map(|host| async move {
        let mut seconds = Vec::new();
        for round in 0..BUSY_S {
            let next = Instant::now() + Duration::from_secs(1);
            seconds.push(host.snapshot(&format!("busy-{round}")).await?);
            tokio::time::sleep_until(next.into()).await;
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(seconds)
    });
    let syncs = async {
        let (mut most, mut slowest) = (0, 0.0_f64);
        for round in 0..BUSY_S / 2 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let fetched = quiet.fetched();
            let begun = Instant::now();
            quiet.write(&format!("sync-{round}")).await?;
            quiet.volume().fsync().await?;
            slowest = slowest.max(begun.elapsed().as_secs_f64());
            most = most.max(quiet.fetched() - fetched);
        }
        println!("fsync of 64 KiB meanwhile: at most {most} bytes fetched, slowest {slowest:.2} s");
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    };
    let gathers = gather(bucket);
    let (seconds, synced, gathered) = tokio::join!(join_all(commits), syncs, gathers);
    synced?;
    gathered?;
    let seconds: Outcome<Vec<Vec<f64>>> = seconds.into_iter().collect();
    let seconds = seconds?.concat();
    let attempts = bucket.attempts() - before;
    let per_commit = attempts as f64 / seconds.len() as f64;
    println!(
        "{} commits: {per_commit:.2} attempts per commit",
        seconds.len()
    );
    tell("commits of 16 hosts every second", seconds);
    Ok(())
}

/// Fills the root with sessions and volumes that nothing uses.
struct Fill {
    by: HolderInfo,
}

#[async_trait]
impl Transition for Fill {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        None
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        let like = next.volumes.values().next().cloned().unwrap_or_default();
        let sessions = (SESSIONS - next.sessions.len()) as u64;
        for number in 0..sessions {
            let holder = HolderInfo {
                host: format!("db-{number:04}.example.com"),
                machine_id: format!("{number:032x}"),
                mount_point: format!("/backup/{number}"),
                ..self.by.clone()
            };
            next.register(SessionId(number), holder)?;
        }
        for number in 0..VOLUMES - next.volumes.len() {
            let mut volume = like.clone();
            volume.holder = None;
            for id in volume.tree.iter_mut().chain(&mut volume.commit) {
                // Ids do not compress.
                id.0 = *blake3::hash(&[&id.0[..], &number.to_le_bytes()].concat()).as_bytes();
            }
            next.volumes.insert(format!("volume-{number:05}"), volume);
        }
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(root.sessions.len() == SESSIONS)
    }
}

/// Measures commands at a root that is full, and a volume with many snapshots.
async fn full(snapshots: usize, delay: Duration) -> Outcome<()> {
    let mut bucket = Bucket::large(Duration::ZERO).await?;
    let near = Host::begin(&bucket, 0).await?;
    near.write("file").await?;
    let begun = Instant::now();
    for number in 0..snapshots {
        let request = SnapshotRequest {
            name: Some(format!("snapshot-{number:06}")),
            ..SnapshotRequest::default()
        };
        near.volume().snapshot(request).await?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{snapshots} snapshots made in {seconds:.0} s, without a delay");
    near.mount.finish().await?;
    let admin = opened(bucket.counted.clone()).await?;
    let by = admin.environment.holder("crowd");
    admin.handle.update(&mut Fill { by }).await?;
    let root = bucket.ruled.bucket.get(ROOT_KEY).await?.0.len();
    println!("root: {SESSIONS} sessions, {VOLUMES} volumes, {root} bytes");
    bucket.delay = delay;
    let begun = Instant::now();
    let repository = opened(bucket.far().0).await?;
    println!("open: {:.2} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    let listed = repository.snapshots().await?;
    let count = listed.iter().count();
    println!(
        "list {count} snapshots: {:.2} s",
        begun.elapsed().as_secs_f64()
    );
    drop(repository);
    let begun = Instant::now();
    let host = Host::begin(&bucket, 0).await?;
    println!("open and mount: {:.2} s", begun.elapsed().as_secs_f64());
    host.write("other").await?;
    host.volume().commit().await?;
    host.write("more").await?;
    let begun = Instant::now();
    host.volume().commit().await?;
    println!("commit: {:.2} s", begun.elapsed().as_secs_f64());
    let seconds = host.snapshot("one more").await?;
    println!("snapshot: {seconds:.2} s");
    let begun = Instant::now();
    host.mount.finish().await?;
    println!("unmount: {:.2} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Measures hosts at work at the same time.
async fn crowd(count: usize, delay: Duration) -> Outcome<()> {
    let bucket = Bucket::large(delay).await?;
    let mut hosts = Vec::new();
    let mut ready = Vec::new();
    for number in 0..count {
        let begun = Instant::now();
        hosts.push(Host::begin(&bucket, number).await?);
        ready.push(begun.elapsed().as_secs_f64());
    }
    tell("open and mount, one after the other", ready);
    at_once("snapshots at once", &hosts, &bucket).await?;
    busy(&hosts, &bucket).await?;
    bucket.ruled.is_on.store(true, Ordering::Relaxed);
    let ruled = &hosts[..RULED.min(hosts.len())];
    at_once("snapshots at once, one write a second", ruled, &bucket).await?;
    bucket.ruled.is_on.store(false, Ordering::Relaxed);
    let begun = Instant::now();
    for ended in join_all(hosts.into_iter().map(|host| host.mount.finish())).await {
        ended?;
    }
    println!("unmounted in {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, count, delay] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let (count, delay) = (count.parse()?, Duration::from_millis(delay.parse()?));
    match mode.as_str() {
        "hosts" => crowd(count, delay).await,
        "full" => full(count, delay).await,
        _ => Err(USAGE.into()),
    }
}
