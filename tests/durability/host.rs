//! A machine with a mount of the volume `main`, without a kernel: it can end well, or be gone from
//! one moment to the next.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bkfs::mounting::settings::Settings;
use bkfs::mounting::spool_place::SpoolPlace;
use bkfs::mounting::{Assembled, MountPlan};
use bkfs::repository::{Opening, Repository, create_in, open_in};
use bkfs::root::heartbeat::HEARTBEAT_INTERVAL;
use bkfs::tree::item::Item;
use bkfs::tree::key::Key;
use bkfs::volume::data::WriteOptions;
use bkfs::volume::error::VolumeError;
use bkfs::volume::namespace::NewInode;
use bkfs::volume::state::Scope;
use bkfs::volume::{ROOT_INODE, Volume};
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_fuse::{Caller, Errno, MountOptions, Reply, Vfs};
use bkfs_store::{MemoryStore, Operation, Store, StoreOptions, parse_url};
use bkfs_testing::counting::CountingStore;
use bkfs_testing::disk::SimulatedDisk;
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use bytes::Bytes;
use tokio::runtime::Runtime;

/// Who asks.
pub const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

/// An answer that may be outstanding.
pub type Answer<T> = std::sync::mpsc::Receiver<Result<T, Errno>>;

/// Asks as the kernel does.
pub fn ask<T: Send + 'static>(host: &Host, request: impl FnOnce(&dyn Vfs, Reply<T>)) -> Answer<T> {
    let (reply, answer) = Reply::channel();
    request(host.vfs(), reply);
    answer
}

pub struct Unsealed;

impl bkfs::root::Passwords for Unsealed {
    fn is_given(&self) -> bool {
        false
    }

    fn password(&mut self) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, bkfs::root::RootError> {
        Ok(None)
    }
}

/// A bucket with an empty repository, whose requests are counted, and can fail.
pub struct Bucket {
    /// What is there, without faults.
    pub memory: Arc<MemoryStore>,
}

impl Bucket {
    pub fn new() -> Self {
        let memory = Arc::new(MemoryStore::new());
        runtime()
            .block_on(create_in(memory.clone(), None))
            .expect("created");
        Bucket { memory }
    }

    /// A bucket that holds the same objects.
    pub fn copy(&self) -> Bucket {
        let memory = Arc::new(self.memory.fork());
        Bucket { memory }
    }

    /// How many objects there are under a prefix.
    pub fn count(&self, prefix: &str) -> usize {
        let listed = runtime().block_on(self.memory.list(prefix, None, 10_000));
        listed.expect("listed").len()
    }

    /// How many bytes there are under a prefix.
    pub fn bytes(&self, prefix: &str) -> u64 {
        let listed = runtime().block_on(self.memory.list(prefix, None, 10_000));
        listed.expect("listed").iter().map(|info| info.size).sum()
    }

    /// Works on the repository without a mount, by way of `store`.
    pub fn work<T>(&self, store: Arc<dyn Store>, work: impl AsyncFnOnce(&Repository) -> T) -> T {
        runtime().block_on(async {
            let opened = open_in(store, opening(Duration::from_secs(10)), &mut Unsealed).await;
            work(&opened.expect("opened")).await
        })
    }

    /// A machine that takes the volume over from its holder.
    pub fn host(&self) -> Host {
        Host::new(self.memory.clone())
    }

    /// The same, whose way to the bucket fails from the start.
    pub fn host_with(&self, strike: Strike) -> Host {
        let faults = Arc::new(FaultStore::new(self.memory.clone()));
        faults.plan(strike);
        Host::new(faults)
    }
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("runtime")
}

/// Time stands still while anything can be done, and jumps when all wait.
fn paused() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("runtime")
}

pub fn opening(timeout: Duration) -> Opening {
    Opening {
        key: None,
        url: parse_url("/memory").expect("url"),
        store: StoreOptions::default(),
        content_store: ContentStoreConfig {
            cache_dir: None,
            timeout_ms: timeout.as_millis() as u64,
            ..ContentStoreConfig::default()
        },
        timeout,
        min_generation: 0,
        accepted: Default::default(),
        state_dir: None,
    }
}

/// A file of root's.
pub fn new_file() -> NewInode {
    NewInode {
        mode: libc::S_IFREG | 0o644,
        uid: 0,
        gid: 0,
        device: 0,
        target: None,
        profile: 0,
    }
}

/// A machine.
pub struct Host {
    runtime: Runtime,
    pub assembled: Assembled,
    /// The way from this machine to the bucket.
    pub faults: Arc<FaultStore>,
    /// What came through to the bucket.
    pub counted: Arc<CountingStore>,
    /// Holds heartbeats up until it is healed.
    still: Arc<FaultStore>,
    pub repository: Arc<Repository>,
}

impl Host {
    fn new(store: Arc<dyn Store>) -> Self {
        Self::with(store, Settings::default()).expect("mounted")
    }

    pub fn with(
        store: Arc<dyn Store>,
        settings: Settings,
    ) -> Result<Self, bkfs::mounting::error::MountingError> {
        Self::patient(store, settings, Duration::from_secs(10))
    }

    /// One that bears a silent store for so long.
    pub fn patient(
        store: Arc<dyn Store>,
        settings: Settings,
        timeout: Duration,
    ) -> Result<Self, bkfs::mounting::error::MountingError> {
        Self::set_up(runtime(), store, settings, opening(timeout), None)
    }

    /// One whose machine remembers in `state`.
    pub fn remembering(
        bucket: &Bucket,
        state: &Path,
        settings: Settings,
    ) -> Result<Self, bkfs::mounting::error::MountingError> {
        let opening = Opening {
            state_dir: Some(state.to_owned()),
            ..opening(Duration::from_secs(10))
        };
        Self::set_up(runtime(), bucket.memory.clone(), settings, opening, None)
    }

    /// One with the options of a default mount and a spool on `disk`, where time passes only while
    /// all wait.
    pub fn spooling(bucket: &Bucket, disk: &SimulatedDisk) -> Self {
        Self::spooling_at_most(bucket, disk, 256 << 20)
    }

    /// The same, with a spool of so many bytes.
    pub fn spooling_at_most(bucket: &Bucket, disk: &SimulatedDisk, bytes: u64) -> Self {
        Self::set_up_spooling(bucket, disk, Settings::default(), bytes)
    }

    /// The same, with settings of its own.
    pub fn spooling_with(bucket: &Bucket, disk: &SimulatedDisk, settings: Settings) -> Self {
        Self::set_up_spooling(bucket, disk, settings, 256 << 20)
    }

    fn set_up_spooling(
        bucket: &Bucket,
        disk: &SimulatedDisk,
        settings: Settings,
        bytes: u64,
    ) -> Self {
        Self::try_spooling(bucket, disk, settings, "main", bytes).expect("mounted")
    }

    /// The same, of a volume of this name, if it can be mounted.
    pub fn try_spooling(
        bucket: &Bucket,
        disk: &SimulatedDisk,
        settings: Settings,
        volume: &str,
        bytes: u64,
    ) -> Result<Self, bkfs::mounting::error::MountingError> {
        let spool = SpoolPlace {
            disk: Arc::new(disk.clone()),
            root: "/spool".into(),
            limit_bytes: bytes,
        };
        let mut opening = opening(Duration::from_secs(300));
        opening.content_store.workers = 0;
        let store = bucket.memory.clone();
        let settings = Settings {
            volume: Some(volume.to_owned()),
            ..settings
        };
        Self::set_up(paused(), store, settings, opening, Some(spool))
    }

    /// One with a spool of 256 MiB on `disk`, by way of `store`, in real time.
    pub fn spooling_through(
        store: Arc<dyn Store>,
        disk: &SimulatedDisk,
        settings: Settings,
    ) -> Result<Self, bkfs::mounting::error::MountingError> {
        let spool = SpoolPlace {
            disk: Arc::new(disk.clone()),
            root: "/spool".into(),
            limit_bytes: 256 << 20,
        };
        let opening = opening(Duration::from_secs(10));
        Self::set_up(runtime(), store, settings, opening, Some(spool))
    }

    /// One whose packs are closed when they reach so many bytes.
    pub fn with_packs(bucket: &Bucket, bytes: u64) -> Self {
        let mut opening = opening(Duration::from_secs(10));
        opening.content_store.pack_bytes = bytes;
        let (store, settings) = (bucket.memory.clone(), Settings::default());
        Self::set_up(runtime(), store, settings, opening, None).expect("mounted")
    }

    fn set_up(
        runtime: Runtime,
        store: Arc<dyn Store>,
        settings: Settings,
        opening: Opening,
        spool: Option<SpoolPlace>,
    ) -> Result<Self, bkfs::mounting::error::MountingError> {
        let counted = Arc::new(CountingStore::new(store));
        let faults = Arc::new(FaultStore::new(counted.clone()));
        // A heartbeat would ask for the root at any time, and be counted. No test here waits for
        // one.
        let still = Arc::new(FaultStore::new(faults.clone()));
        still.plan(
            Strike::with(Fault::Hang)
                .on(Operation::Put)
                .keys("sessions/")
                .always(),
        );
        let repository = runtime.block_on(open_in(still.clone(), opening, &mut Unsealed))?;
        let repository = Arc::new(repository);
        let plan = MountPlan {
            clone_of: None,
            observed: Default::default(),
            repository: repository.clone(),
            mount_point: "/nowhere".into(),
            options: MountOptions::default(),
            volume: settings.volume.clone().unwrap_or_else(|| "main".into()),
            settings,
            steal: true,
            spool,
        };
        let assembled = runtime.block_on(plan.assemble(&runtime.handle().clone()))?;
        let host = Host {
            runtime,
            assembled,
            faults,
            counted,
            still,
            repository,
        };
        Ok(host)
    }

    /// From now on heartbeats arrive; the first one has. Under a clock that is paused.
    pub fn beat(&self) {
        self.still.heal();
        // The one that is held up now is given up first. No commit comes by itself so soon.
        self.wait(1.5 * HEARTBEAT_INTERVAL.as_secs_f64());
    }

    /// Lets time pass.
    pub fn wait(&self, seconds: f64) {
        self.run(async { tokio::time::sleep(Duration::from_secs_f64(seconds)).await });
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(future)
    }

    pub fn volume(&self) -> Arc<Volume> {
        self.assembled.volume().expect("is writable").clone()
    }

    pub fn vfs(&self) -> &bkfs::vfs::BkfsVfs {
        &self.assembled.vfs
    }

    /// How often the bucket was asked for this.
    pub fn asked(&self, operation: Operation) -> u64 {
        self.counted.counters().tally(operation).requests
    }

    pub fn fsync(&self) -> Result<(), VolumeError> {
        self.run(self.volume().fsync())
    }

    /// Makes the machine go away, with all that it held.
    pub fn crash(self) {
        self.runtime.shutdown_background();
    }

    /// Unmounts.
    pub fn finish(self) -> Result<(), bkfs::mounting::error::MountingError> {
        self.runtime.block_on(self.assembled.finish())
    }

    /// Unmounts; none if that takes longer than so many seconds.
    pub fn finish_within(
        self,
        seconds: f64,
    ) -> Option<Result<(), bkfs::mounting::error::MountingError>> {
        let Host {
            runtime, assembled, ..
        } = self;
        let limit = Duration::from_secs_f64(seconds);
        let finished = async { tokio::time::timeout(limit, assembled.finish()).await };
        let finished = runtime.block_on(finished).ok();
        runtime.shutdown_background();
        finished
    }

    /// The inode of a file, which is made if it is not there.
    pub fn file(&self, name: &str) -> u64 {
        let volume = self.volume();
        self.find(name).unwrap_or_else(|| {
            let made = self.run(volume.make(ROOT_INODE, name.as_bytes(), new_file()));
            made.expect("made").inode
        })
    }

    pub fn find(&self, name: &str) -> Option<u64> {
        let volume = self.volume();
        let key = volume.name_key(ROOT_INODE, name.as_bytes()).expect("short");
        match self.run(volume.view.item(Scope::Live, &key)).expect("read") {
            Some(Item::Name { inode, .. }) => Some(inode),
            _ => None,
        }
    }

    pub fn write(&self, name: &str, offset: u64, data: impl Into<Vec<u8>>) {
        self.try_write(name, offset, data.into()).expect("written");
    }

    pub fn try_write(&self, name: &str, offset: u64, data: Vec<u8>) -> Result<u64, VolumeError> {
        let inode = self.file(name);
        let options = WriteOptions::default();
        let volume = self.volume();
        self.run(volume.write(inode, offset, Bytes::from(data), options))
    }

    /// What a file holds; none if it is not there.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let inode = self.find(name)?;
        let view = &self.volume().view;
        let size = self.attributes(inode).size_bytes;
        Some(
            self.run(view.read(Scope::Live, inode, 0..size))
                .expect("read")
                .concat(),
        )
    }

    /// Whether the volume knows an inode.
    pub fn has_inode(&self, inode: u64) -> bool {
        let view = &self.volume().view;
        let item = self.run(view.item(Scope::Live, &Key::attributes(inode)));
        item.expect("read").is_some()
    }

    pub fn attributes(&self, inode: u64) -> bkfs::tree::item::Attributes {
        let view = &self.volume().view;
        let item = self.run(view.item(Scope::Live, &Key::attributes(inode)));
        match item.expect("read") {
            Some(Item::Attributes(attributes)) => attributes,
            other => panic!("{other:?}"),
        }
    }
}

/// Bytes that look like none other's.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut byte = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| byte()).collect()
}
