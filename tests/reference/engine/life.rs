//! Start, clean end and crash of the engine.

use std::sync::Arc;
use std::time::Duration;

use bkfs::mounting::settings::Settings;
use bkfs::mounting::{Assembled, MountPlan};
use bkfs::repository::{Opening, Repository, create_in, open_in};
use bkfs::restore::job::Options;
use bkfs::restore::restore;
use bkfs::restore::source::Source;
use bkfs::restore::target::Target;
use bkfs::volume::requests::SnapshotRequest;
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_fuse::MountOptions;
use bkfs_store::{Store, StoreOptions, parse_url};
use tokio::runtime::Runtime;

use super::Engine;
use crate::password::Known;

impl Engine {
    /// Creates an empty repository in `store`, and opens a volume in it.
    pub fn new(store: Arc<dyn Store>, password: Option<&'static str>) -> Self {
        let runtime = machine();
        runtime
            .block_on(create_in(
                store.clone(),
                password.map(|password| zeroize::Zeroizing::new(password.as_bytes().to_vec())),
            ))
            .expect("create");
        let mut engine = Engine {
            runtime: Some(runtime),
            store,
            password,
            assembled: None,
        };
        engine.open();
        engine
    }

    /// Opens the repository again, as a second machine does.
    pub fn repository(&self) -> Repository {
        let opening = Opening {
            key: None,
            url: parse_url("/memory").expect("url"),
            store: StoreOptions::default(),
            content_store: ContentStoreConfig {
                cache_dir: None,
                ..ContentStoreConfig::default()
            },
            timeout: Duration::from_secs(10),
            min_generation: 0,
            accepted: Default::default(),
            state_dir: None,
        };
        self.runtime()
            .block_on(open_in(
                self.store.clone(),
                opening,
                &mut Known(self.password),
            ))
            .expect("open")
    }

    fn open(&mut self) {
        let plan = MountPlan {
            clone_of: None,
            observed: Default::default(),
            repository: Arc::new(self.repository()),
            mount_point: "/nowhere".into(),
            options: MountOptions::default(),
            settings: Settings::default(),
            volume: "main".into(),
            // The session of the machine that is gone seems to be alive, since it has the id of
            // this process.
            steal: true,
            spool: None,
        };
        let handle = self.runtime().handle().clone();
        let assembled = self
            .runtime()
            .block_on(plan.assemble(&handle))
            .expect("assemble");
        self.assembled = Some(assembled);
    }

    /// Returns an engine on an existing repository, without a session of its own.
    pub fn existing(store: Arc<dyn Store>, password: Option<&'static str>) -> Self {
        Engine {
            runtime: Some(machine()),
            store,
            password,
            assembled: None,
        }
    }

    /// Makes a snapshot.
    pub fn snapshot(&self, name: &str) {
        let volume = self
            .assembled
            .as_ref()
            .and_then(Assembled::volume)
            .expect("is open")
            .clone();
        let request = SnapshotRequest {
            name: Some(name.to_owned()),
            ..SnapshotRequest::default()
        };
        self.runtime()
            .block_on(volume.snapshot(request))
            .expect("snapshot");
    }

    /// Ends the session cleanly.
    pub fn finish(&mut self) {
        let assembled = self.assembled.take().expect("is open");
        self.runtime().block_on(assembled.finish()).expect("finish");
    }

    /// Restores a snapshot into a directory, and reads every byte back.
    pub fn restore(&self, snapshot: &str, target: &std::path::Path) {
        let repository = self.repository();
        let options = Options {
            verify: true,
            ..Options::default()
        };
        let restored = self.runtime().block_on(async {
            let (_, view) = repository
                .snapshot("main", snapshot)
                .await
                .expect("the snapshot");
            let source = Source::whole(view, bkfs::volume::ROOT_INODE, b"/");
            let target = Target::at(target);
            restore(source, Default::default(), &target, options, Arc::default()).await
        });
        let problems = restored.expect("restore");
        assert!(problems.is_empty(), "{problems:?}");
    }

    /// Ends the session cleanly, and begins another one from the bucket.
    pub fn reopen(&mut self) {
        let assembled = self.assembled.take().expect("is open");
        self.runtime().block_on(assembled.finish()).expect("finish");
        self.open();
    }

    /// Commits everything to the root.
    pub fn commit(&self) {
        let volume = self.assembled.as_ref().and_then(Assembled::volume);
        let volume = volume.expect("is open").clone();
        self.runtime().block_on(volume.commit()).expect("commit");
    }

    /// Drops the machine with its whole memory. Another machine then takes the volume over, from
    /// the bucket alone.
    pub fn crash(&mut self) {
        let gone = self.runtime.replace(machine()).expect("runs");
        gone.shutdown_background();
        self.assembled = None;
        self.open();
    }

    pub(super) fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("runs")
    }
}

fn machine() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("runtime")
}
