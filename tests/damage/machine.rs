//! A machine that fills a volume, without a kernel.

use std::sync::Arc;
use std::time::Duration;

use bkfs::mounting::settings::Settings;
use bkfs::mounting::{Assembled, MountPlan};
use bkfs::repository::{Opening, Repository, open_in};
use bkfs::tree::item::Item;
use bkfs::volume::data::WriteOptions;
use bkfs::volume::namespace::NewInode;
use bkfs::volume::requests::SnapshotRequest;
use bkfs::volume::state::Scope;
use bkfs::volume::view::View;
use bkfs::volume::{ROOT_INODE, Volume};
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_fuse::MountOptions;
use bkfs_store::{Store, StoreOptions, parse_url};
use bytes::Bytes;
use tokio::runtime::Runtime;

use crate::password::Known;

/// Returns how the tests open a repository.
pub fn opening() -> Opening {
    Opening {
        key: None,
        url: parse_url("/memory").expect("url"),
        store: StoreOptions::default(),
        content_store: ContentStoreConfig {
            cache_dir: None,
            workers: 0,
            ..ContentStoreConfig::default()
        },
        timeout: Duration::from_secs(10),
        min_generation: 0,
        accepted: Default::default(),
        state_dir: None,
    }
}

fn plan(repository: Arc<Repository>, options: MountOptions) -> MountPlan {
    MountPlan {
        clone_of: None,
        observed: Default::default(),
        repository,
        mount_point: "/nowhere".into(),
        options,
        settings: Settings::default(),
        volume: "main".into(),
        steal: true,
        spool: None,
    }
}

/// Mounts `main` read-only, and reads the attributes of its root directory.
///
/// # Errors
/// The text of the error if the mount or the read fails.
pub fn reads(store: Arc<dyn Store>, password: Option<&'static str>) -> Result<(), String> {
    let runtime = Runtime::new().expect("runtime");
    let read = async {
        let opened = open_in(store, opening(), &mut Known(password)).await;
        let repository = Arc::new(opened.map_err(|error| error.to_string())?);
        let mut options = MountOptions::default();
        options.flags.read_only = true;
        let plan = plan(repository.clone(), options);
        let mounted = plan.assemble(&runtime.handle().clone()).await;
        mounted.map_err(|error| error.to_string())?;
        let (tree, totals) = match repository.volume_tree("main").await {
            Ok(found) => found,
            Err(error) => return Err(error.to_string()),
        };
        let view = View::frozen(repository.nodes.clone(), tree, totals);
        let read = view.attributes(Scope::Live, ROOT_INODE).await;
        read.map(drop).map_err(|error| error.to_string())
    };
    let done = runtime.block_on(read);
    runtime.shutdown_background();
    done
}

/// A machine with a mount of `main`.
pub struct Machine {
    runtime: Runtime,
    assembled: Assembled,
    repository: Arc<Repository>,
}

impl Machine {
    /// Mounts `main`. Takes the volume over from its holder.
    pub fn mount(store: Arc<dyn Store>, password: Option<&'static str>) -> Self {
        Self::try_mount(store, password).expect("mounted")
    }

    /// Mounts `main`. Takes the volume over from its holder.
    ///
    /// # Errors
    /// The text of the error if the mount fails.
    pub fn try_mount(
        store: Arc<dyn Store>,
        password: Option<&'static str>,
    ) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("runtime");
        let mut password = Known(password);
        let repository = runtime.block_on(open_in(store, opening(), &mut password));
        let repository = Arc::new(repository.expect("opens"));
        let plan = plan(repository.clone(), MountOptions::default());
        let assembled = runtime.block_on(plan.assemble(&runtime.handle().clone()));
        match assembled {
            Ok(assembled) => Ok(Machine {
                assembled,
                runtime,
                repository,
            }),
            Err(error) => {
                runtime.shutdown_background();
                Err(error.to_string())
            }
        }
    }

    fn volume(&self) -> Arc<Volume> {
        self.assembled.volume().expect("is writable").clone()
    }

    /// Returns the directory and the name of a path of at most two parts.
    fn place<'p>(&self, path: &'p str) -> (u64, &'p str) {
        match path.split_once('/') {
            Some((directory, name)) => (self.find(ROOT_INODE, directory).expect("is there"), name),
            None => (ROOT_INODE, path),
        }
    }

    fn find(&self, directory: u64, name: &str) -> Option<u64> {
        let volume = self.volume();
        let key = volume.name_key(directory, name.as_bytes()).expect("short");
        let item = self.runtime.block_on(volume.view.item(Scope::Live, &key));
        match item.expect("reads") {
            Some(Item::Name { inode, .. }) => Some(inode),
            _ => None,
        }
    }

    fn make(&self, path: &str, mode: u32, target: Option<&[u8]>) -> u64 {
        let (directory, name) = self.place(path);
        let new = NewInode {
            mode,
            uid: 0,
            gid: 0,
            device: 0,
            target: target.map(Bytes::copy_from_slice),
            profile: 0,
        };
        let made = self.volume();
        let made = self
            .runtime
            .block_on(made.make(directory, name.as_bytes(), new));
        made.expect("made").inode
    }

    /// Makes a directory.
    pub fn directory(&self, path: &str) {
        self.make(path, libc::S_IFDIR | 0o755, None);
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, path: &str, target: &[u8]) {
        self.make(path, libc::S_IFLNK | 0o777, Some(target));
    }

    /// Writes to a file, which is made if it is not there.
    pub fn write(&self, path: &str, offset: u64, bytes: Vec<u8>) {
        let (directory, name) = self.place(path);
        let inode = self.find(directory, name);
        let inode = inode.unwrap_or_else(|| self.make(path, libc::S_IFREG | 0o644, None));
        let volume = self.volume();
        let write = volume.write(inode, offset, Bytes::from(bytes), WriteOptions::default());
        self.runtime.block_on(write).expect("written");
    }

    /// Returns the contents of a file.
    pub fn read(&self, path: &str) -> Vec<u8> {
        let (directory, name) = self.place(path);
        let inode = self.find(directory, name).expect("is there");
        let volume = self.volume();
        let read = async {
            let attributes = volume.view.attributes(Scope::Live, inode).await?;
            let range = 0..attributes.size_bytes;
            volume.view.read(Scope::Live, inode, range).await
        };
        self.runtime.block_on(read).expect("reads").concat()
    }

    /// Makes a snapshot.
    pub fn snapshot(&self, name: &str) {
        let request = SnapshotRequest {
            name: Some(name.to_owned()),
            ..SnapshotRequest::default()
        };
        let snapshot = self.volume();
        self.runtime
            .block_on(snapshot.snapshot(request))
            .expect("snapshot");
    }

    /// Makes a snapshot.
    ///
    /// # Errors
    /// The text of the error if there is no snapshot.
    pub fn try_snapshot(&self, name: &str) -> Result<(), String> {
        let request = SnapshotRequest {
            name: Some(name.to_owned()),
            ..SnapshotRequest::default()
        };
        let made = self.runtime.block_on(self.volume().snapshot(request));
        made.map(drop).map_err(|error| error.to_string())
    }

    /// Waits until everything written is acknowledged by fsync.
    pub fn fsync(&self) {
        let volume = self.volume();
        self.runtime.block_on(volume.fsync()).expect("fsync");
    }

    /// Returns whether fsync acknowledges everything written.
    pub fn syncs(&self) -> bool {
        self.runtime.block_on(self.volume().fsync()).is_ok()
    }

    /// Reads the root, and waits until the quarantine of a root of at least this generation is
    /// heeded.
    pub fn heed(&self, generation: u64) {
        let mut heeded = self.repository.heeded();
        let heeds = async {
            self.repository.handle.refresh().await.expect("a root");
            heeded
                .wait_for(|heeded| *heeded >= generation)
                .await
                .map(drop)
        };
        let patience = Duration::from_secs(60);
        let waited = self
            .runtime
            .block_on(async { tokio::time::timeout(patience, heeds).await });
        waited.expect("it is heeded").expect("the mount lives");
    }

    /// Unmounts. Everything is in the bucket then, and the volume is free.
    pub fn finish(self) {
        let finished = self.runtime.block_on(self.assembled.finish());
        finished.expect("everything is in the bucket");
    }

    /// Stops at once, as in a crash.
    pub fn crash(self) {
        self.runtime.shutdown_background();
    }
}

/// Returns bytes that are unlike those of other seeds.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut byte = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| byte()).collect()
}
