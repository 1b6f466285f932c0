//! An open repository: store, keys, root, index and caches, ready for a command or a mount.
//!
//! Owns: the order in which they are opened. Does not own: any of them.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bkfs_chunker::depot::{Depot, DepotConfig, Renew};
use bkfs_chunker::id::Id;
use bkfs_chunker::lock::LockRule;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::seal::{Keyring, SlotCost, SlotName};
use bkfs_chunker::store::{
    LockingStore, RepositoryUrl, Signs, Store, StoreOptions, WatchedStore, open_store,
};
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::acquaintance::{Acquaintance, Place, known_at};
use crate::locking::locks;
use crate::machine::Machine;
use crate::outage::Teller;
use crate::root::error::RootError;
use crate::root::handle::{RootHandle, RootView};
use crate::root::lists::Lists;
use crate::root::repository::{self as objects, Accepted, NewRepository, OpenOptions, Passwords};
use crate::root::retry::RetryPolicy;
use crate::root::snapshots::{SnapshotEntry, SnapshotList, SnapshotReference};
use crate::root::state::{ROOT_KEY, Volume as VolumeEntry};
use crate::volume::nodes::Nodes;
use crate::volume::state::Totals;
use crate::volume::view::View;

/// How often an index that has vanished makes the root be read again (rule 10) before it counts as damage.
const VANISHED_MAX: u32 = 8;

/// Keeps the keys out of swap, as far as the limit on locked memory lets this process.
fn keep_in_memory(keyring: &Keyring) {
    for key in keyring.key_memory() {
        let start = key.as_ptr().cast_mut().cast();
        // SAFETY: the range is a live slice. Locking its pages changes nothing of their contents,
        // and pages that are freed later merely stay locked.
        if let Err(error) = unsafe { rustix::mm::mlock(start, key.len()) } {
            tracing::debug!("keys may be swapped out: {error}");
            return;
        }
    }
}

/// What a repository is opened with.
pub struct Opening {
    /// Where it is.
    pub url: RepositoryUrl,
    /// How its store is reached.
    pub store: StoreOptions,
    /// How the machine is used.
    pub depot: DepotConfig,
    /// How long the store may make no progress.
    pub timeout: Duration,
    /// The oldest generation that is accepted.
    pub min_generation: u64,
    /// What the user accepts though this machine remembers otherwise.
    pub accepted: Accepted,
    /// The one key slot that is tried; all are if none is named.
    pub key: Option<SlotName>,
    /// Where this machine remembers what it saw; nowhere if none.
    pub state_dir: Option<PathBuf>,
}

/// An open repository.
pub struct Repository {
    /// Its URL, without secrets.
    pub url: String,
    /// The store's address that was given for it, without secrets.
    pub endpoint: Option<String>,
    /// The store's region that was given for it.
    pub region: Option<String>,
    /// The root.
    pub handle: RootHandle,
    /// Contents.
    pub depot: Depot,
    /// Lists of snapshots and the like.
    pub lists: Lists,
    /// Nodes of trees.
    pub nodes: Arc<Nodes>,
    /// What it is opened on.
    pub machine: Machine,
    /// By what rule its objects are locked in the bucket; none if none ever was.
    pub lock: Option<LockRule>,
    /// How its store answers.
    pub signs: Signs,
    /// How long the store may make no progress.
    pub timeout: Duration,
    /// The generation of the root whose quarantine is heeded.
    quarantined: watch::Sender<u64>,
    /// Says what is wrong with the store, for a mount. A command is told by its store itself.
    teller: OnceLock<Teller>,
}

/// Opens a repository.
pub async fn open(
    opening: Opening,
    passwords: &mut dyn Passwords,
) -> Result<Repository, RootError> {
    let store = open_store(&opening.url, &opening.store).await?;
    open_in(store, opening, passwords).await
}

/// Opens a repository in a store that is open already, on this machine.
pub async fn open_in(
    store: Arc<dyn Store>,
    opening: Opening,
    passwords: &mut dyn Passwords,
) -> Result<Repository, RootError> {
    open_on(Machine::this(), store, opening, passwords).await
}

/// Opens a repository in a store that is open already, on any machine.
pub async fn open_on(
    machine: Machine,
    store: Arc<dyn Store>,
    opening: Opening,
    passwords: &mut dyn Passwords,
) -> Result<Repository, RootError> {
    let entropy = machine.entropy.clone();
    let place = opening.state_dir.as_deref();
    let place = place.map(|state| Place::of(state, &opening.url, &opening.store));
    let options = OpenOptions {
        entropy: entropy.clone(),
        policy: RetryPolicy::within(opening.timeout),
        waits: opening.store.wait,
        known: known_at(place.as_ref(), opening.accepted.replaced).await,
        state_dir: opening.state_dir,
        key: opening.key,
        min_generation: opening.min_generation,
        accepted: opening.accepted,
    };
    let signs = opening.store.signs.clone();
    let locking = Arc::new(LockingStore::new(store));
    let store: Arc<dyn Store> = Arc::new(WatchedStore::new(locking.clone(), signs.clone()));
    let opened = objects::Repository::open(store.clone(), options, passwords).await?;
    keep_in_memory(opened.keyring());
    if let Some(place) = &place {
        place.remember(Acquaintance::of(opened.keyring())).await;
    }
    let lock = opened.config().lock();
    if let Some(rule) = lock {
        locking.begin(locks(rule, &machine));
    }
    let depot = Depot::open(store, opened.keyring().clone(), entropy, opening.depot)?;
    let nodes = Arc::new(Nodes::new(depot.clone()));
    let (handle, lists) = (opened.handle().clone(), opened.lists().clone());
    depot.renew_by(Arc::new(NewestRoot {
        handle: handle.clone(),
        lists: lists.clone(),
    }));
    Ok(Repository {
        url: opening.url.to_string(),
        // An address may hold a name and a password (`https://user:word@host`): then it is not told.
        endpoint: (opening.store.endpoint).filter(|endpoint| !endpoint.contains('@')),
        region: opening.store.region,
        handle,
        depot,
        lists,
        nodes,
        machine,
        lock,
        signs,
        timeout: opening.timeout,
        quarantined: watch::Sender::new(0),
        teller: OnceLock::new(),
    })
}

/// Brings a depot's index up to the newest root, for readers that met what is gone (rule 10).
#[derive(Debug)]
struct NewestRoot {
    handle: RootHandle,
    lists: Lists,
}

#[async_trait]
impl Renew for NewestRoot {
    async fn renew(&self, depot: &Depot) -> bool {
        let renewed = async {
            let view = self.handle.refresh().await?;
            let condemned = self.lists.known_condemned(&view.root).await?;
            depot.load_index(&view.root.index, &condemned).await?;
            Ok::<_, RootError>(())
        };
        renewed.await.is_ok()
    }
}

/// What a repository is created with.
pub struct Creation {
    /// Where.
    pub url: RepositoryUrl,
    /// How its store is reached.
    pub store: StoreOptions,
    /// Its password; none for an unsealed one.
    pub password: Option<Zeroizing<Vec<u8>>>,
    /// By what rule its objects are locked in the bucket.
    pub lock: Option<LockRule>,
}

/// Creates a repository, and the directory if it is a local one. Returns its id.
pub async fn create(creation: Creation) -> Result<String, RootError> {
    let options = StoreOptions {
        create_directory: true,
        ..creation.store
    };
    let store = open_store(&creation.url, &options).await?;
    create_locked_on(&Machine::this(), store, creation.password, creation.lock).await
}

/// Creates a repository in a store that is open already, on this machine.
pub async fn create_in(
    store: Arc<dyn Store>,
    password: Option<Zeroizing<Vec<u8>>>,
) -> Result<String, RootError> {
    create_on(&Machine::this(), store, password).await
}

/// Creates a repository in a store that is open already, on any machine.
pub async fn create_on(
    machine: &Machine,
    store: Arc<dyn Store>,
    password: Option<Zeroizing<Vec<u8>>>,
) -> Result<String, RootError> {
    create_locked_on(machine, store, password, None).await
}

/// The same, with its objects locked from the first one on.
///
/// # Errors
/// [`RootError::UnfitStore`] if the bucket keeps no locks; then nothing was created.
pub async fn create_locked_on(
    machine: &Machine,
    store: Arc<dyn Store>,
    password: Option<Zeroizing<Vec<u8>>>,
    lock: Option<LockRule>,
) -> Result<String, RootError> {
    let store = LockingStore::new(store);
    if let Some(rule) = lock {
        store.begin(locks(rule, machine));
    }
    let new = NewRepository {
        password: password.as_ref().map(|password| password.as_slice()),
        cost: SlotCost::DEFAULT,
        label: &machine.process.host,
        clock: machine.now(),
        lock,
    };
    Ok(objects::create(&store, machine.entropy.as_ref(), &new)
        .await?
        .to_string())
}

/// True if there is a repository. A store that cannot be asked is an error; a directory that does not exist is made.
pub async fn exists(url: &RepositoryUrl, options: &StoreOptions) -> Result<bool, RootError> {
    let options = StoreOptions {
        create_directory: true,
        ..options.clone()
    };
    let store = open_store(url, &options).await?;
    match store.head(ROOT_KEY).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Repository {
    /// From now on a store that refuses is waited for as long as one that is silent, and the log
    /// says what is wrong with it: for mounts, which have accepted what must not be dropped. Must
    /// be called within a runtime.
    pub fn bear_refusals(&self) {
        let start = || Teller::start(self.signs.clone(), self.timeout);
        self.teller.get_or_init(start);
        self.depot.bear_refusals();
        self.handle.bear_refusals();
    }

    /// The snapshots of all volumes, as of now; the index is that of the same root.
    pub async fn snapshots(&self) -> Result<SnapshotList, RootError> {
        let (view, list) = self.lists.current_snapshots(&self.handle).await?;
        self.load(&view).await?;
        Ok(list)
    }

    /// A snapshot by NAME, `latest` or `@TIME`, ready to be read.
    pub async fn snapshot(
        &self,
        volume: &str,
        name: &str,
    ) -> Result<(SnapshotEntry, View), RootError> {
        let list = self.snapshots().await?;
        let entry = list
            .resolve(volume, &SnapshotReference::parse(name)?)?
            .clone();
        let view = self.view(&entry).await?;
        Ok((entry, view))
    }

    /// The tree of a snapshot.
    pub async fn view(&self, entry: &SnapshotEntry) -> Result<View, RootError> {
        let totals = Totals {
            inodes: entry.files,
            bytes: entry.bytes,
        };
        let tree = entry
            .tree
            .ok_or_else(|| RootError::damaged("snapshot", format!("{} has no tree", entry.name)))?;
        Ok(View::frozen(self.nodes.clone(), tree, totals))
    }

    /// What the root says of a volume; a volume that is not there is empty.
    pub fn volume_entry(&self, volume: &str) -> VolumeEntry {
        self.handle
            .current()
            .root
            .volumes
            .get(volume)
            .cloned()
            .unwrap_or_default()
    }

    /// The volume's tree as of its last commit, by the newest root.
    pub async fn volume_tree(&self, volume: &str) -> Result<(Id, Totals), RootError> {
        let view = self.handle.refresh().await?;
        self.load(&view).await?;
        let entry = view.root.volumes.get(volume);
        let tree = entry.and_then(|entry| entry.tree.map(|tree| (tree, entry)));
        let (tree, entry) = tree.ok_or_else(|| RootError::NoSnapshot {
            name: "(its last commit)".to_owned(),
            volume: volume.to_owned(),
        })?;
        Ok((
            tree,
            Totals {
                inodes: entry.inodes,
                bytes: entry.bytes,
            },
        ))
    }

    /// Makes the index that of the root as last seen, for a session that stores: it must know all
    /// that is condemned, or what it stores may lean on what a collection deletes.
    ///
    /// # Errors
    /// [`RootError::CondemnedUnknown`] if a list of condemned packs cannot be read, and as every
    /// reader's.
    pub async fn load_index_to_write(&self) -> Result<(), RootError> {
        self.load(&self.handle.current()).await?;
        let (view, condemned) = self.condemned().await?;
        Ok(self.depot.load_index(&view.root.index, &condemned).await?)
    }

    /// All that is condemned in the root as last seen, or in a newer one if a list of that is gone
    /// (rule 10).
    ///
    /// # Errors
    /// [`RootError::CondemnedUnknown`] if one of its lists cannot be read; store errors.
    pub async fn condemned(&self) -> Result<(Arc<RootView>, HashSet<PackName>), RootError> {
        let mut view = self.handle.current();
        for _ in 0..VANISHED_MAX {
            match self.lists.condemned(&view.root).await {
                Ok(condemned) => return Ok((view, condemned)),
                Err(error) => view = self.handle.moved_on(&view, error).await?,
            }
        }
        Err(RootError::damaged(
            ROOT_KEY,
            "what it names vanishes faster than it can be read",
        ))
    }

    /// Makes the index that of this root, or of a newer one if what this one names is gone (rule 10).
    async fn load(&self, view: &RootView) -> Result<(), RootError> {
        let mut newer = None;
        for _ in 0..VANISHED_MAX {
            let view: &RootView = newer.as_deref().unwrap_or(view);
            let error = match self.load_once(view).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let fresh = self.handle.refresh().await?;
            if fresh.root.mark() == view.root.mark() {
                return Err(error);
            }
            newer = Some(fresh);
        }
        Err(RootError::damaged(
            ROOT_KEY,
            "what it names vanishes faster than it can be read",
        ))
    }

    async fn load_once(&self, view: &RootView) -> Result<(), RootError> {
        let condemned = self.lists.known_condemned(&view.root).await?;
        self.depot.load_index(&view.root.index, &condemned).await?;
        // One that cannot be read keeps nobody from working: what is damaged is then found by reading.
        if let Err(error) = self.heed_quarantine(view).await {
            tracing::warn!(%error, "the quarantine cannot be read");
        }
        Ok(())
    }

    /// New data is not matched with what is known to be damaged (protocol.md, rule 11), unless a newer root than this one is heeded already.
    ///
    /// # Errors
    /// The list cannot be read: what was heeded before still is.
    pub async fn heed_quarantine(&self, view: &RootView) -> Result<(), RootError> {
        let places = self.lists.quarantine(&view.root).await?;
        let generation = view.root.generation;
        self.quarantined.send_if_modified(|heeded| {
            let is_newer = *heeded <= generation;
            if is_newer {
                *heeded = generation;
                self.depot.set_quarantine(places);
            }
            is_newer
        });
        Ok(())
    }

    /// The generation of the root whose quarantine is heeded.
    pub fn heeded(&self) -> watch::Receiver<u64> {
        self.quarantined.subscribe()
    }

    /// The time of day, for what is recorded.
    pub fn now(&self) -> jiff::Timestamp {
        self.machine.now()
    }
}
