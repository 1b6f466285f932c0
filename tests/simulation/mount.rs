//! Machines, and mounts on them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bkfs::clock::Clock;
use bkfs::environment::Environment;
use bkfs::mounting::error::MountingError;
use bkfs::mounting::settings::Settings;
use bkfs::mounting::spool_place::SpoolPlace;
use bkfs::mounting::{Assembled, MountPlan};
use bkfs::repository::{Opening, Repository, open_on};
use bkfs::root::error::RootError;
use bkfs::root::holder::{ProcessState, Processes};
use bkfs::root::state::HolderInfo;
use bkfs::tree::item::Timestamp;
use bkfs_chunker::budget::MemoryBudget;
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_chunker::crypto::Keyring;
use bkfs_fuse::MountOptions;
use bkfs_store::disk::Disk;
use bkfs_store::{Store, StoreOptions, parse_url};
use bkfs_testing::entropy::SeededEntropy;
use tokio::time::Instant;

use crate::alphabet::Dump;
use crate::client::Client;
use crate::manners::Manners;
use crate::password::Known;

/// A clock that is wrong by some seconds.
struct SkewedClock {
    start: Instant,
    skew_s: i64,
}

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        let elapsed = self.start.elapsed();
        Timestamp {
            seconds: 1_795_000_000 + self.skew_s + elapsed.as_secs() as i64,
            nanoseconds: elapsed.subsec_nanos(),
        }
    }
}

/// The table of processes of a machine: one process at most.
#[derive(Debug)]
struct OneProcess(u32);

impl Processes for OneProcess {
    fn state(&self, pid: u32) -> ProcessState {
        match pid == self.0 {
            true => ProcessState::Running { start_ticks: 1 },
            false => ProcessState::Gone,
        }
    }
}

/// The parameters of a mount.
#[derive(Clone)]
pub struct Wish {
    /// The volume.
    pub volume: String,
    /// Whether to take the volume over.
    pub steal: bool,
    /// The only snapshot to mount, read-only.
    pub snapshot: Option<String>,
    /// Whether to mount the volume as of its last commit, read-only.
    pub read_only: bool,
    /// The host. The processes of one host can see whether the others are dead.
    pub host: u64,
    /// The number of the process on it.
    pub process: u32,
    /// Seconds by which the clock is wrong.
    pub skew_s: i64,
    /// The seed of the machine's randomness.
    pub seed: u64,
    /// The host's disk, for a spool.
    pub disk: Option<Arc<dyn Disk>>,
    /// Whether the disk has no fault.
    pub is_disk_well: Rc<Cell<bool>>,
    /// Whether the spool is enough for fsync.
    pub is_local: bool,
    /// Whether this is `bkfs session end`, which takes the volume over and ends.
    pub ends_session: bool,
    /// The settings that all mounts of the world have in common.
    pub manners: Manners,
}

/// The reason why a mount did not come up.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Mounting(#[from] MountingError),
}

/// A mount without a kernel.
pub struct Mount {
    pub assembled: Assembled,
    pub client: Client,
    pub keyring: Keyring,
    pub repository: Arc<Repository>,
}

/// Returns the machine that the mount runs on.
pub fn machine(wish: &Wish) -> Environment {
    Environment {
        clock: Arc::new(SkewedClock {
            start: Instant::now(),
            skew_s: wish.skew_s,
        }),
        entropy: Arc::new(SeededEntropy::new(wish.seed)),
        processes: Arc::new(OneProcess(wish.process)),
        process: HolderInfo {
            host: format!("host-{}", wish.host),
            machine_id: format!("machine-{}", wish.host),
            boot_id: format!("boot-{}", wish.host),
            pid_namespace: 1,
            pid: wish.process,
            process_start_ticks: 1,
            user: "user".into(),
            mount_point: String::new(),
        },
    }
}

/// Opens the repository.
///
/// # Errors
/// As [`open_on`].
pub async fn open(store: Arc<dyn Store>, wish: &Wish) -> Result<Repository, RootError> {
    let opening = Opening {
        key: None,
        url: parse_url("/simulation").expect("a URL"),
        store: StoreOptions::default(),
        content_store: ContentStoreConfig {
            workers: 0,
            memory: MemoryBudget::of_total(wish.manners.memory_bytes),
            pack_bytes: wish.manners.pack_bytes,
            timeout_ms: wish.manners.timeout.as_millis() as u64,
            ..ContentStoreConfig::default()
        },
        timeout: wish.manners.timeout,
        min_generation: 0,
        accepted: Default::default(),
        state_dir: None,
    };
    open_on(machine(wish), store, opening, &mut Known(None)).await
}

/// Opens the repository and mounts.
///
/// # Errors
/// [`Refused::Root`] if the repository cannot be opened, [`Refused::Mounting`] if the mount fails.
pub async fn mount(store: Arc<dyn Store>, wish: &Wish) -> Result<Mount, Refused> {
    let repository = Arc::new(open(store, wish).await?);
    let keyring = repository.content_store.keyring().clone();
    let mut options = MountOptions::default();
    options.flags.read_only = wish.read_only;
    let spool = wish.disk.clone().map(|disk| SpoolPlace {
        disk,
        root: "/spool".into(),
        limit_bytes: match wish.ends_session {
            // As in the command.
            true => 0,
            false => wish.manners.spool_bytes,
        },
    });
    let plan = match wish.ends_session {
        true => MountPlan::to_end(repository.clone(), wish.volume.clone(), wish.steal, spool),
        false => MountPlan {
            clone_of: None,
            observed: Default::default(),
            repository: repository.clone(),
            mount_point: "/backup".into(),
            options,
            settings: Settings {
                memory_bytes: wish.manners.memory_bytes,
                fsync_local: wish.is_local,
                snapshot: wish.snapshot.clone(),
                ..Settings::default()
            },
            volume: wish.volume.clone(),
            steal: wish.steal,
            spool,
        },
    };
    let assembled = plan.assemble(&tokio::runtime::Handle::current()).await?;
    if let (Some(volume), Some(places)) = (assembled.volume(), wish.manners.captured_at_once) {
        volume.capture_at_once(places);
    }
    let client = Client(assembled.vfs.clone());
    Ok(Mount {
        assembled,
        client,
        keyring,
        repository,
    })
}

impl Mount {
    /// Returns the whole tree.
    ///
    /// # Errors
    /// The path that could not be read and its errno, as text.
    pub async fn dump(&self) -> Result<Dump, String> {
        let dump = self.client.dump().await;
        dump.map_err(|(path, errno)| format!("{}: errno {errno}", path.escape_ascii()))
    }
}
