//! An open repository: store, keys, root, index and caches, ready for a command or a mount.
//!
//! This module owns the order in which these are opened. It does not own any of them.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bkfs_chunker::content_store::{ContentStore, ContentStoreConfig, Renew};
use bkfs_chunker::crypto::{Keyring, SlotCost, SlotName};
use bkfs_chunker::id::Id;
use bkfs_chunker::pack::PackName;
use bkfs_store::lock::LockRule;
use bkfs_store::{GuardedStore, RepositoryUrl, Signs, Store, StoreOptions, open_store};
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::acquaintance::{Acquaintance, AddressRecord, known_at};
use crate::environment::Environment;
use crate::locking::locks;
use crate::outage::Teller;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::lists::Lists;
use crate::root::repository::{self as objects, Accepted, NewRepository, OpenOptions, Passwords};
use crate::root::retry::RetryPolicy;
use crate::root::snapshots::{SnapshotEntry, SnapshotList, SnapshotReference};
use crate::root::state::{ROOT_KEY, Volume as VolumeEntry};
use crate::root::view::RootView;
use crate::volume::nodes::Nodes;
use crate::volume::state::Totals;
use crate::volume::view::View;

/// How often the root is read again because an object that it names has vanished (rule 10), before
/// this counts as damage.
const VANISHED_MAX: u32 = 8;

/// Locks the pages of the keys in memory, as far as this process may, so that they are not swapped
/// out.
fn keep_in_memory(keyring: &Keyring) {
    for key in keyring.key_memory() {
        let start = key.as_ptr().cast_mut().cast();
        // SAFETY: the range is a live slice. Locking its pages does not change their contents, and
        // pages that are freed later merely stay locked.
        if let Err(error) = unsafe { rustix::mm::mlock(start, key.len()) } {
            tracing::debug!("keys may be swapped out: {error}");
            return;
        }
    }
}

/// The parameters for opening a repository.
pub struct Opening {
    /// The URL of the repository.
    pub url: RepositoryUrl,
    /// The options of its store.
    pub store: StoreOptions,
    /// The limits on memory, threads and caches of this machine.
    pub content_store: ContentStoreConfig,
    /// How long the store may make no progress before an operation fails.
    pub timeout: Duration,
    /// The oldest generation of the root that is accepted.
    pub min_generation: u64,
    /// The differences from the memory of this machine that the user accepts.
    pub accepted: Accepted,
    /// The only key slot to try, or `None` to try all.
    pub key: Option<SlotName>,
    /// The directory for the memory of this machine, or `None` to remember nothing.
    pub state_dir: Option<PathBuf>,
}

/// An open repository.
pub struct Repository {
    /// The URL, without secrets.
    pub url: String,
    /// The address of the store that the user gave, or `None` if it may hold a password.
    pub endpoint: Option<String>,
    /// The region of the store that the user gave.
    pub region: Option<String>,
    /// The root.
    pub handle: RootHandle,
    /// The contents.
    pub content_store: ContentStore,
    /// The lists of snapshots, trash, condemned packs and quarantine.
    pub lists: Lists,
    /// The nodes of trees.
    pub nodes: Arc<Nodes>,
    /// The machine that the repository is opened on.
    pub environment: Environment,
    /// The rule by which the bucket locks objects, or `None` if there never was one.
    pub lock: Option<LockRule>,
    /// The state of the store, as all its requests see it.
    pub signs: Signs,
    /// How long the store may make no progress before an operation fails.
    pub timeout: Duration,
    /// The generation of the root whose quarantine is in use.
    quarantined: watch::Sender<u64>,
    /// The task that logs outages of the store, for a mount. For a command, the store itself
    /// reports them.
    teller: OnceLock<Teller>,
}

/// Opens a repository.
///
/// # Errors
/// [`RootError::Store`] if the store cannot be opened; otherwise as [`open_on`].
pub async fn open(
    opening: Opening,
    passwords: &mut dyn Passwords,
) -> Result<Repository, RootError> {
    let store = open_store(&opening.url, &opening.store).await?;
    open_in(store, opening, passwords).await
}

/// Opens a repository in a store that is open already, on this machine.
///
/// # Errors
/// As [`open_on`].
pub async fn open_in(
    store: Arc<dyn Store>,
    opening: Opening,
    passwords: &mut dyn Passwords,
) -> Result<Repository, RootError> {
    open_on(Environment::this(), store, opening, passwords).await
}

/// Opens a repository in a store that is open already, on any machine.
///
/// # Errors
/// - No repository, or another one than expected: [`RootError::NoRepository`],
///   [`RootError::Replaced`].
/// - Passwords and keys: [`RootError::PasswordNeeded`], [`RootError::NotEncrypted`],
///   [`RootError::WrongPassword`], [`RootError::KeysUntried`], [`RootError::KeysConflict`],
///   [`RootError::NoSuchKey`], [`RootError::OlderKey`]; [`RootError::Local`] if the password cannot
///   be obtained.
/// - A root that does not follow what this machine remembers, or is older than `min_generation`:
///   [`RootError::Rollback`], [`RootError::NotDescended`], [`RootError::Rebuilt`].
/// - A config with another rule of locks than the root states: [`RootError::OtherLockRule`].
/// - A newer format, or damage: [`RootError::Unopenable`], [`RootError::Damaged`].
/// - [`RootError::Content`] if the cache directory cannot be used or no threads can be started;
///   [`RootError::Store`] if the store fails.
pub async fn open_on(
    environment: Environment,
    store: Arc<dyn Store>,
    opening: Opening,
    passwords: &mut dyn Passwords,
) -> Result<Repository, RootError> {
    let entropy = environment.entropy.clone();
    let place = opening.state_dir.as_deref();
    let place = place.map(|state| AddressRecord::of(state, &opening.url, &opening.store));
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
    let guarded = Arc::new(GuardedStore::new(store, signs.clone()));
    let store: Arc<dyn Store> = guarded.clone();
    let opened = objects::Repository::open(store.clone(), options, passwords).await?;
    keep_in_memory(opened.keyring());
    if let Some(place) = &place {
        place.remember(Acquaintance::of(opened.keyring())).await;
    }
    let lock = opened.config().lock();
    if let Some(rule) = lock {
        guarded.begin(locks(rule, &environment));
    }
    let content_store = ContentStore::open(
        store,
        opened.keyring().clone(),
        entropy,
        opening.content_store,
    )?;
    let nodes = Arc::new(Nodes::new(content_store.clone()));
    let (handle, lists) = (opened.handle().clone(), opened.lists().clone());
    content_store.renew_by(Arc::new(NewestRoot {
        handle: handle.clone(),
        lists: lists.clone(),
    }));
    Ok(Repository {
        url: opening.url.to_string(),
        // An address may hold a name and a password (`https://user:word@host`). Such an address is
        // not shown.
        endpoint: (opening.store.endpoint).filter(|endpoint| !endpoint.contains('@')),
        region: opening.store.region,
        handle,
        content_store,
        lists,
        nodes,
        environment,
        lock,
        signs,
        timeout: opening.timeout,
        quarantined: watch::Sender::new(0),
        teller: OnceLock::new(),
    })
}

/// Updates the index of a content store to the newest root, for readers that met an object which is
/// gone (rule 10).
#[derive(Debug)]
struct NewestRoot {
    handle: RootHandle,
    lists: Lists,
}

#[async_trait]
impl Renew for NewestRoot {
    async fn renew(&self, content_store: &ContentStore) -> bool {
        let renewed = async {
            let view = self.handle.refresh().await?;
            let condemned = self.lists.known_condemned(&view.root).await?;
            let sources = self.lists.sources(&view.root).await?;
            content_store.load_index(&sources, &condemned).await?;
            Ok::<_, RootError>(())
        };
        renewed.await.is_ok()
    }
}

/// The parameters for creating a repository.
pub struct Creation {
    /// The URL of the repository.
    pub url: RepositoryUrl,
    /// The options of its store.
    pub store: StoreOptions,
    /// The password, or `None` for an unsealed repository.
    pub password: Option<Zeroizing<Vec<u8>>>,
    /// The rule by which the bucket locks objects.
    pub lock: Option<LockRule>,
}

/// Creates a repository, and the directory if it is a local one. Returns the id of the repository.
///
/// # Errors
/// [`RootError::Store`] if the store cannot be opened; otherwise as [`create_locked_on`].
pub async fn create(creation: Creation) -> Result<String, RootError> {
    let options = StoreOptions {
        create_directory: true,
        ..creation.store
    };
    let store = open_store(&creation.url, &options).await?;
    create_locked_on(
        &Environment::this(),
        store,
        creation.password,
        creation.lock,
    )
    .await
}

/// Creates a repository in a store that is open already, on this machine.
///
/// Returns the id of the repository.
///
/// # Errors
/// As [`create_on`].
pub async fn create_in(
    store: Arc<dyn Store>,
    password: Option<Zeroizing<Vec<u8>>>,
) -> Result<String, RootError> {
    create_on(&Environment::this(), store, password).await
}

/// Creates a repository in a store that is open already, on any machine.
///
/// Returns the id of the repository.
///
/// # Errors
/// As [`create_locked_on`] without locks.
pub async fn create_on(
    environment: &Environment,
    store: Arc<dyn Store>,
    password: Option<Zeroizing<Vec<u8>>>,
) -> Result<String, RootError> {
    create_locked_on(environment, store, password, None).await
}

/// Creates a repository as [`create_on`] does, whose objects are locked from the first one on.
///
/// # Errors
/// - [`RootError::UnfitStore`] if the conditional writes of the store are wrong, or if the bucket
///   keeps no locks and `lock` asks for them. In this case nothing was created.
/// - [`RootError::NotEmpty`] if the bucket holds a repository or parts of one, or an interrupted
///   creation with other locks or another choice of encryption.
/// - [`RootError::WrongPassword`] or [`RootError::KeysUntried`] if the password does not open the
///   key slot of an interrupted creation.
/// - [`RootError::Unopenable`] or [`RootError::Damaged`] if the config or the key slot of an
///   interrupted creation is damaged.
/// - [`RootError::Store`] if the store fails.
pub async fn create_locked_on(
    environment: &Environment,
    store: Arc<dyn Store>,
    password: Option<Zeroizing<Vec<u8>>>,
    lock: Option<LockRule>,
) -> Result<String, RootError> {
    let store = GuardedStore::new(store, Signs::default());
    if let Some(rule) = lock {
        store.begin(locks(rule, environment));
    }
    let new = NewRepository {
        password: password.as_ref().map(|password| password.as_slice()),
        cost: SlotCost::DEFAULT,
        label: &environment.process.host,
        clock: environment.now(),
        lock,
    };
    Ok(objects::create(&store, environment.entropy.as_ref(), &new)
        .await?
        .to_string())
}

/// Whether there is a repository at `url`. Makes the directory of a local one if it does not exist.
///
/// # Errors
/// [`RootError::Store`] if the store cannot be opened or does not answer.
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
    /// From now on, waits as long for a store that refuses requests as for one that is silent, and
    /// logs its outages.
    ///
    /// Mounts use this, since they have accepted data that must not be dropped.
    ///
    /// Must be called within a tokio runtime.
    pub fn bear_refusals(&self) {
        let start = || Teller::start(self.signs.clone(), self.timeout);
        self.teller.get_or_init(start);
        self.content_store.bear_refusals();
        self.handle.bear_refusals();
    }

    /// Returns the snapshots of all volumes by the newest root.
    ///
    /// Loads the index of the same root, or of a newer one.
    ///
    /// # Errors
    /// [`RootError::Store`], [`RootError::Unopenable`] or [`RootError::Damaged`] if the root or a
    /// list cannot be read; [`RootError::Content`] if an index object cannot be loaded.
    /// [`RootError::Rollback`], [`RootError::NotDescended`], [`RootError::Rebuilt`] or
    /// [`RootError::NotAtomic`] if the root does not descend from the one seen before.
    pub async fn snapshots(&self) -> Result<SnapshotList, RootError> {
        let (view, list) = self.lists.current_snapshots(&self.handle).await?;
        self.load(&view).await?;
        Ok(list)
    }

    /// Returns a snapshot by NAME, `latest` or `@TIME`, ready to be read.
    ///
    /// # Errors
    /// [`RootError::BadTime`] or [`RootError::BadName`] if `name` has none of these forms;
    /// [`RootError::NoSnapshot`] if the volume has no such snapshot; otherwise as
    /// [`Repository::snapshots`] and [`Repository::view`].
    pub async fn snapshot(
        &self,
        volume: &str,
        name: &str,
    ) -> Result<(SnapshotEntry, View), RootError> {
        let list = self.snapshots().await?;
        let entry = list
            .resolve(volume, &SnapshotReference::parse(name, self.now())?)?
            .clone();
        let view = self.view(&entry).await?;
        Ok((entry, view))
    }

    /// Returns the tree of a snapshot.
    ///
    /// # Errors
    /// [`RootError::Damaged`] if the snapshot has no tree.
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

    /// Returns the entry of a volume in the root as last read. A volume without an entry is empty.
    pub fn volume_entry(&self, volume: &str) -> VolumeEntry {
        self.handle
            .current()
            .root
            .volumes
            .get(volume)
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the volume's tree as of its last commit in the newest root, and its totals.
    ///
    /// # Errors
    /// [`RootError::NoSnapshot`] if the volume has no commit; otherwise as
    /// [`Repository::snapshots`].
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

    /// Loads the index of the root as last read, for a session that stores data.
    ///
    /// Such a session must know all condemned packs. If it did not, its data could refer to packs
    /// that a collection deletes.
    ///
    /// # Errors
    /// [`RootError::CondemnedUnknown`] if a list of condemned packs cannot be read; otherwise as
    /// [`Repository::snapshots`].
    pub async fn load_index_to_write(&self) -> Result<(), RootError> {
        self.content_store.match_new_data();
        self.load(&self.handle.current()).await?;
        let (mut view, mut condemned) = self.condemned().await?;
        for _ in 0..VANISHED_MAX {
            let error = match self.lists.sources(&view.root).await {
                Ok(sources) => {
                    return Ok(self.content_store.load_index(&sources, &condemned).await?);
                }
                Err(error) => error,
            };
            self.handle.moved_on(&view, error).await?;
            (view, condemned) = self.condemned().await?;
        }
        Err(RootError::damaged(
            ROOT_KEY,
            "what it names vanishes faster than it can be read",
        ))
    }

    /// Returns all packs that are condemned in the root as last read.
    ///
    /// If a list of that root is gone, uses a newer root (rule 10). Also returns the root that was
    /// used.
    ///
    /// # Errors
    /// [`RootError::CondemnedUnknown`] if a list of condemned packs cannot be read;
    /// [`RootError::Damaged`] if the lists vanish faster than they can be read; otherwise as
    /// [`Repository::snapshots`].
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

    /// Loads the index of this root, or of a newer one if an object that this one names is gone
    /// (rule 10).
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
        let sources = self.lists.sources(&view.root).await?;
        self.content_store.load_index(&sources, &condemned).await?;
        // A quarantine that cannot be read does not stop the caller: the reader of a damaged object
        // finds the damage itself.
        if let Err(error) = self.heed_quarantine(view).await {
            tracing::warn!(%error, "the quarantine cannot be read");
        }
        Ok(())
    }

    /// Stops matching new data with the places that are quarantined in this root (docs/PROTOCOL.md,
    /// rule 11).
    ///
    /// Has no effect if the quarantine of a newer root is already in use.
    ///
    /// # Errors
    /// [`RootError::Store`], [`RootError::Unopenable`] or [`RootError::Damaged`] if a list cannot
    /// be read. The former quarantine then stays in use.
    pub async fn heed_quarantine(&self, view: &RootView) -> Result<(), RootError> {
        let places = self.lists.quarantine(&view.root).await?;
        let generation = view.root.generation;
        self.quarantined.send_if_modified(|heeded| {
            let is_newer = *heeded <= generation;
            if is_newer {
                *heeded = generation;
                self.content_store.set_quarantine(places);
            }
            is_newer
        });
        Ok(())
    }

    /// Returns a receiver of the generation of the root whose quarantine is in use.
    pub fn heeded(&self) -> watch::Receiver<u64> {
        self.quarantined.subscribe()
    }

    /// Returns the time of day, for records.
    pub fn now(&self) -> jiff::Timestamp {
        self.environment.now()
    }
}
