//! Machines on one thread with a paused clock and disks in memory. The product's own times pass in
//! no real time.

use std::sync::Arc;
use std::time::Duration;

use bkfs::environment::Environment;
use bkfs::mounting::error::MountingError;
use bkfs::mounting::settings::Settings;
use bkfs::mounting::spool_place::SpoolPlace;
use bkfs::mounting::writing::CloneOf;
use bkfs::mounting::{Assembled, MountPlan};
use bkfs::repository::Repository;
use bkfs::repository::{Opening, create_in, open_on};
use bkfs::root::repository::Accepted;
use bkfs::volume::requests::SnapshotRequest;
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_fuse::{
    Caller, Create, Errno, Handle, Ino, MountOptions, OpenFlags, Read, Reply, Vfs, Write,
};
use bkfs_store::{MemoryStore, Store, StoreOptions, parse_url};
use bkfs_testing::disk::SimulatedDisk;
use bkfs_testing::fault::{Fault, FaultStore, Strike};

use crate::host::Unsealed;

pub const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

const SPOOL_BYTES: u64 = 1 << 30;

/// Returns this many seconds.
pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Runs on one thread. Its time passes only while all tasks wait.
pub fn paused(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("runtime").block_on(test);
}

/// A bucket and a machine with a disk.
pub struct World {
    pub memory: Arc<MemoryStore>,
    /// The volume that mounts write.
    pub volume: String,
    /// The snapshot that mounts clone for it.
    pub clone_of: Option<CloneOf>,
    pub settings: Settings,
    pub faults: Arc<FaultStore>,
    pub disk: SimulatedDisk,
    pub spool_bytes: u64,
    timeout: Duration,
}

impl World {
    pub async fn new(timeout: Duration) -> World {
        let memory = Arc::new(MemoryStore::new());
        create_in(memory.clone(), None).await.expect("created");
        World::over(memory, timeout)
    }

    fn over(memory: Arc<MemoryStore>, timeout: Duration) -> World {
        World {
            faults: Arc::new(FaultStore::new(memory.clone())),
            memory,
            volume: "main".to_owned(),
            clone_of: None,
            settings: Settings::default(),
            disk: SimulatedDisk::new(),
            spool_bytes: SPOOL_BYTES,
            timeout,
        }
    }

    /// Returns another machine at the same bucket.
    pub fn elsewhere(&self) -> World {
        World::over(self.memory.clone(), self.timeout)
    }

    pub async fn mount(&self) -> Mount {
        let assembled = self.assemble(false).await;
        let volume = assembled.volume().expect("writable");
        volume.commit().await.expect("committed");
        Mount(assembled)
    }

    /// Mounts read-only.
    pub async fn mount_read_only(&self) -> Mount {
        Mount(self.assemble(true).await)
    }

    async fn assemble(&self, is_read_only: bool) -> Assembled {
        self.try_assemble(is_read_only).await.expect("mounted")
    }

    /// Opens the repository.
    pub async fn repository(&self) -> Repository {
        self.repository_on(Environment::this()).await
    }

    /// Opens the repository as a process of another machine.
    pub async fn repository_elsewhere(&self) -> Repository {
        let mut environment = Environment::this();
        environment.process.boot_id = "another".to_owned();
        environment.process.machine_id = "another".to_owned();
        self.repository_on(environment).await
    }

    async fn repository_on(&self, environment: Environment) -> Repository {
        let opening = Opening {
            key: None,
            url: parse_url("/memory").expect("url"),
            store: StoreOptions::default(),
            content_store: ContentStoreConfig {
                cache_dir: None,
                workers: 0,
                timeout_ms: self.timeout.as_millis() as u64,
                ..ContentStoreConfig::default()
            },
            timeout: self.timeout,
            min_generation: 0,
            accepted: Accepted::default(),
            state_dir: None,
        };
        let store: Arc<dyn Store> = self.faults.clone();
        let opened = open_on(environment, store, opening, &mut Unsealed).await;
        opened.expect("opened")
    }

    /// # Errors
    /// Those of [`MountPlan::assemble`].
    pub async fn try_assemble(&self, is_read_only: bool) -> Result<Assembled, MountingError> {
        let spool = SpoolPlace {
            disk: Arc::new(self.disk.clone()),
            root: "/spool".into(),
            limit_bytes: self.spool_bytes,
        };
        let mut options = MountOptions::default();
        options.flags.read_only = is_read_only;
        let plan = MountPlan {
            clone_of: self.clone_of.clone(),
            observed: Arc::default(),
            repository: Arc::new(self.repository().await),
            mount_point: "/nowhere".into(),
            options,
            settings: self.settings.clone(),
            volume: self.volume.clone(),
            steal: true,
            spool: (self.spool_bytes > 0).then_some(spool),
        };
        let handle = tokio::runtime::Handle::current();
        Box::pin(plan.assemble(&handle)).await
    }

    /// Makes the store work again, and mounts once more on the same machine.
    pub async fn mount_again(&self) -> Mount {
        self.faults.heal();
        self.disk.kill();
        self.mount().await
    }

    pub fn fails_with(&self, fault: Fault) {
        self.faults.plan(Strike::with(fault).always());
    }
}

/// A mount, as processes see it.
pub struct Mount(pub Assembled);

/// Sends a request to the mount, and waits for its answer.
///
/// # Errors
/// The errno of the answer.
pub async fn ask<T: Send + 'static>(
    mount: &Mount,
    request: impl FnOnce(&dyn Vfs, Reply<T>),
) -> Result<T, Errno> {
    let (sender, answer) = tokio::sync::oneshot::channel();
    let reply = Reply::new("test", move |result| drop(sender.send(result)));
    request(&mount.0.vfs, reply);
    answer.await.expect("answered")
}

/// Makes a snapshot of the volume of a mount.
pub async fn snapshot(mount: &Mount, name: &str) {
    let request = SnapshotRequest {
        name: Some(name.to_owned()),
        ..SnapshotRequest::default()
    };
    let volume = mount.0.volume().expect("writable").clone();
    volume.snapshot(request).await.expect("made");
}

impl Mount {
    /// Writes a new file, and does not close it.
    pub async fn write(&self, name: &str, data: &[u8]) -> (Ino, Handle) {
        let create = Create {
            parent: Ino(1),
            name: name.as_bytes(),
            permissions: 0o644,
            flags: OpenFlags {
                write: true,
                ..OpenFlags::default()
            },
        };
        let created = ask(self, |vfs, reply| vfs.create(CALLER, create, reply)).await;
        let created = created.expect("created");
        let (ino, handle) = (created.entry.attributes.ino, created.opened.handle);
        self.write_at((ino, handle), 0, data).await;
        (ino, handle)
    }

    /// Writes to an open file, in pieces of 1 MiB.
    pub async fn write_at(&self, (ino, handle): (Ino, Handle), offset: u64, data: &[u8]) {
        for (index, data) in data.chunks(1 << 20).enumerate() {
            let write = Write {
                ino,
                handle,
                offset: offset + ((index as u64) << 20),
                data,
                from_cache: false,
                kill_privileges: false,
            };
            let written = ask(self, |vfs, reply| vfs.write(write, reply)).await;
            written.expect("written");
        }
    }

    /// Opens a file that is there for writing.
    pub async fn open(&self, name: &str) -> (Ino, Handle) {
        let found = ask(self, |vfs, reply| {
            vfs.lookup(CALLER, Ino(1), name.as_bytes(), reply)
        });
        let bkfs_fuse::Lookup::Found(entry) = found.await.expect("looked up") else {
            panic!("{name} is absent");
        };
        let ino = entry.attributes.ino;
        let flags = OpenFlags {
            write: true,
            ..OpenFlags::default()
        };
        let opened = ask(self, |vfs, reply| vfs.open(CALLER, ino, flags, reply)).await;
        (ino, opened.expect("opened").handle)
    }

    /// Writes to a file that is there, and closes it.
    pub async fn write_on(&self, name: &str, offset: u64, data: &[u8]) {
        let file = self.open(name).await;
        self.write_at(file, offset, data).await;
        self.close(file).await;
    }

    /// Closes a file.
    pub async fn close(&self, (ino, handle): (Ino, Handle)) {
        let closed = ask(self, |vfs, reply| vfs.flush(ino, handle, reply)).await;
        closed.expect("closed");
    }

    /// Writes a file and closes it.
    pub async fn put(&self, name: &str, data: &[u8]) {
        self.try_put(name, data).await.expect("closed");
    }

    /// Writes a file and closes it.
    ///
    /// # Errors
    /// The errno of close(2).
    pub async fn try_put(&self, name: &str, data: &[u8]) -> Result<(), Errno> {
        let (ino, handle) = self.write(name, data).await;
        ask(self, |vfs, reply| vfs.flush(ino, handle, reply)).await
    }

    /// Calls fsync(2).
    ///
    /// # Errors
    /// The errno of the answer.
    pub async fn fsync(&self, (ino, handle): (Ino, Handle)) -> Result<(), Errno> {
        ask(self, |vfs, reply| vfs.fsync(ino, handle, false, reply)).await
    }

    /// Reads a file from its start; none if there is none.
    pub async fn read(&self, name: &str) -> Option<Vec<u8>> {
        self.read_at(name, 0, 64 << 20).await
    }

    /// Reads at most `size` bytes of a file; none if there is no file.
    pub async fn read_at(&self, name: &str, offset: u64, size: u32) -> Option<Vec<u8>> {
        let found = ask(self, |vfs, reply| {
            vfs.lookup(CALLER, Ino(1), name.as_bytes(), reply)
        });
        let bkfs_fuse::Lookup::Found(entry) = found.await.expect("looked up") else {
            return None;
        };
        let ino = entry.attributes.ino;
        let flags = OpenFlags {
            read: true,
            ..OpenFlags::default()
        };
        let opened = ask(self, |vfs, reply| vfs.open(CALLER, ino, flags, reply)).await;
        let read = Read {
            ino,
            handle: opened.expect("opened").handle,
            offset,
            size,
        };
        let read = ask(self, |vfs, reply| vfs.read(read, reply)).await;
        Some(read.expect("read").to_vec())
    }
}
