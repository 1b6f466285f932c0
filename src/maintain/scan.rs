//! Reads the bucket object by object: config, key slots, root, lists, and what is left of index
//! objects and lists. Not packs, and not objects that sessions own.
//!
//! Owns the order of the reads and the problem that each one reports. Writes nothing.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::crypto::{Class, Config, Keyring, OpenError, Slot};
use bkfs_chunker::error::ContentError;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::Verifier;
use bkfs_store::lock::LockRule;
use bkfs_store::{Store, StoreError, StoreErrorKind, Version};

use super::indexed::Indexed;
use super::layout::{self, place_of};
use super::options::CheckOptions;
use super::report::{Problem, ProblemKind, Report};
use crate::root::ancestry::require_descent;
use crate::root::chain::RootMark;
use crate::root::error::RootError;
use crate::root::handle::{RootHandle, RootParts};
use crate::root::heartbeat::Beat;
use crate::root::lists::Lists;
use crate::root::memory::VolatileMemory;
use crate::root::shard::{ListRef, decode_shard};
use crate::root::snapshots::{SnapshotEntry, TrashEntry};
use crate::root::state::{Condemned, ROOT_KEY, Root};
use crate::root::unlock::damage_of;
use crate::root::{listing, lock_rule};

/// Small objects read at the same time.
pub(super) const READS_AT_ONCE: usize = 8;

/// Environment of a scan.
pub struct Scan<'a> {
    /// The bucket.
    pub store: &'a Arc<dyn Store>,
    /// The repository's keys.
    pub keyring: &'a Keyring,
    /// Reads objects.
    pub verifier: &'a Verifier,
    /// Timeouts and back-off.
    pub options: &'a CheckOptions,
}

/// Contents of all lists of a root.
#[derive(Debug, Default)]
pub struct Listed {
    /// Kept snapshots.
    pub snapshots: Vec<SnapshotEntry>,
    /// Forgotten snapshots.
    pub trash: Vec<TrashEntry>,
    /// Condemned packs.
    pub condemned: HashSet<PackName>,
    /// Places in quarantine.
    pub quarantine: HashSet<PackLocation>,
    /// Lists of snapshots or trash that cannot be read.
    pub lost: Vec<ListRef>,
    /// Condemned packs whose list cannot be read.
    pub lost_condemned: Vec<Condemned>,
    /// Lists of quarantined places that cannot be read.
    pub lost_quarantine: Vec<ListRef>,
    /// Parts of the chain of generations that cannot be read.
    pub lost_chain: Vec<ListRef>,
    /// The epoch of the root that names these lists.
    pub epoch: u64,
}

/// Turns an object's error into a problem.
///
/// # Errors
/// Errors of the store that are not about one object.
pub fn as_problem(error: ContentError) -> Result<Problem, RootError> {
    match error {
        ContentError::Missing { object } => Ok(Problem::new(
            object,
            ProblemKind::Missing,
            "it is missing from the bucket",
        )),
        ContentError::Damaged { object, what } => {
            Ok(Problem::new(object, ProblemKind::Damaged, what))
        }
        // The config was read, so its format is known: another stated format is a later change.
        ContentError::Unreadable { object, source } => {
            Ok(Problem::new(object, ProblemKind::Damaged, source))
        }
        ContentError::Store(error) if error.is_of_one_object() => Ok(unread(&error)),
        error => Err(error.into()),
    }
}

/// The problem of an object that the store refuses to give.
fn unread(error: &StoreError) -> Problem {
    let what = format!("it cannot be read: {}", error.message());
    let kind = match error.kind() {
        StoreErrorKind::Denied => ProblemKind::Refused,
        StoreErrorKind::NotFound
        | StoreErrorKind::AlreadyExists
        | StoreErrorKind::Conflict
        | StoreErrorKind::NotModified
        | StoreErrorKind::OutOfRange
        | StoreErrorKind::NoBucket
        | StoreErrorKind::NoServer
        | StoreErrorKind::Unreachable
        | StoreErrorKind::Throttled
        | StoreErrorKind::OutcomeUnknown
        | StoreErrorKind::NoSpace
        | StoreErrorKind::Invalid
        | StoreErrorKind::Other => ProblemKind::Damaged,
    };
    Problem::new(error.key(), kind, what)
}

/// Returns the problem of the root. That its master key is absent from the keyring is believed only
/// if a key slot states that epoch.
///
/// # Errors
/// Store errors.
async fn believed(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    error: RootError,
) -> Result<RootError, RootError> {
    let RootError::Unopenable {
        source: OpenError::NoKeyEpoch { epoch },
        ..
    } = &error
    else {
        return Ok(error);
    };
    let damage = damage_of(&**store, keyring, *epoch).await?;
    Ok(damage.unwrap_or(error))
}

/// Explains why a root is newer than this program or the key in use, and what to use then.
fn newer_than_this(error: &RootError) -> Option<String> {
    let RootError::Unopenable { source, .. } = error else {
        return None;
    };
    match source {
        OpenError::OtherFormat { .. } | OpenError::UnknownFeatures { .. } => {
            Some(format!("{source}: use the program that wrote it"))
        }
        OpenError::NoKeyEpoch { .. } => Some(format!(
            "{source}: give the password of a key of that epoch"
        )),
        _ => None,
    }
}

/// Turns an error at an object of the root into a problem of the report.
pub(super) fn root_problem(error: RootError) -> Result<Problem, RootError> {
    match error {
        RootError::Damaged { key, reason } => Ok(Problem::new(key, ProblemKind::Damaged, reason)),
        RootError::Unopenable { key, source } => {
            Ok(Problem::new(key, ProblemKind::Damaged, source))
        }
        RootError::Store(error) if error.is_of_one_object() => Ok(unread(&error)),
        RootError::State(error) => Ok(Problem::new(ROOT_KEY, ProblemKind::Damaged, error)),
        RootError::Store(error) if error.is_not_found() => Ok(Problem::new(
            error.key(),
            ProblemKind::Missing,
            "it is missing from the bucket",
        )),
        error => Err(error),
    }
}

impl Scan<'_> {
    /// Returns every key of the bucket with its size in bytes.
    ///
    /// # Errors
    /// Store errors.
    pub async fn list(&self) -> Result<BTreeMap<String, u64>, RootError> {
        self.list_below("").await
    }

    /// Same, for keys that begin with `prefix`.
    ///
    /// # Errors
    /// Store errors.
    pub async fn list_below(&self, prefix: &str) -> Result<BTreeMap<String, u64>, RootError> {
        Ok(listing::all(&**self.store, prefix).await?)
    }

    /// Checks the config, also against `root`, and every key slot of this repository as far as
    /// possible without its password.
    ///
    /// # Errors
    /// Store errors.
    pub async fn keys(
        &self,
        bucket: &BTreeMap<String, u64>,
        root: Option<&Root>,
        report: &mut Report,
    ) -> Result<(), RootError> {
        match self.store.get(Config::KEY).await {
            Ok((object, _)) => match self.verify_config(&object) {
                Ok(stated)
                    if root
                        .is_some_and(|root| !lock_rule::admits(root, lock_rule::hash(stated))) =>
                {
                    let what = RootError::OtherLockRule;
                    report.add(Problem::new(Config::KEY, ProblemKind::Inconsistent, what));
                }
                Ok(_) => {}
                Err(error) => {
                    report.add(Problem::new(Config::KEY, ProblemKind::Damaged, error));
                }
            },
            Err(error) => {
                report.add(root_problem(error.into())?);
            }
        }
        let mut slots = 0;
        for (key, size) in bucket {
            let layout::NamedObject::Slot(name) = place_of(key) else {
                continue;
            };
            if *size > Slot::OBJECT_LEN_MAX {
                let what = "it is too large for a key slot";
                report.add(Problem::new(key, ProblemKind::Damaged, what));
                continue;
            }
            let object = match self.store.get(key).await {
                Ok((object, _)) => object,
                Err(error) if error.is_not_found() => continue,
                Err(error) if error.is_of_one_object() => {
                    report.add(unread(&error));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match Slot::open(self.keyring.repository(), name, &object) {
                Ok(slot) if slot.may_be_of(self.keyring.epoch()) => slots += 1,
                // A rotation dropped it without deleting it, or never took hold.
                Ok(_) => {}
                // An overtaken creation left it, if it verifies as that one's.
                Err(OpenError::WrongRepository { found })
                    if Slot::open(found, name, &object).is_ok() => {}
                Err(error) => {
                    report.add(Problem::new(key, ProblemKind::Damaged, error));
                }
            }
        }
        if self.keyring.is_sealed() && slots == 0 {
            let what = "no key slot of this repository is left: keep this process' password, and nothing \
                 else will open it";
            report.add(Problem::new("keys/", ProblemKind::Missing, what));
        }
        Ok(())
    }

    /// Returns the lock rule that the config states, if the config is this repository's.
    fn verify_config(&self, object: &[u8]) -> Result<Option<LockRule>, OpenError> {
        let config = Config::open(object)?;
        let found = match config.is_sealed() {
            true => Some(config.unlock(self.keyring.secrets().clone())?),
            false => config.keyring()?,
        };
        let found = found.filter(|found| {
            found.is_sealed() == self.keyring.is_sealed()
                && found.repository() == self.keyring.repository()
        });
        match found {
            Some(_) => Ok(config.lock()),
            None => Err(OpenError::Damaged {
                what: "it is the config of another repository",
            }),
        }
    }

    /// Returns the root, if it can be read, after a comparison with this machine's memory.
    ///
    /// # Errors
    /// Store errors.
    pub async fn root(
        &self,
        report: &mut Report,
        newer: &mut Option<String>,
    ) -> Result<Option<RootHandle>, RootError> {
        let parts = RootParts {
            store: self.store.clone(),
            keyring: self.keyring.clone(),
            entropy: self.options.entropy.clone(),
            memory: Arc::new(VolatileMemory::default()),
            policy: self.options.policy,
            accept_rollback: false,
        };
        let handle = match RootHandle::open(parts, 0).await {
            Ok(handle) => handle,
            Err(error) => {
                let error = believed(self.store, self.keyring, error).await?;
                let is_older_key = matches!(
                    &error,
                    RootError::Unopenable {
                        source: OpenError::OlderKeyEpoch { .. },
                        ..
                    }
                );
                *newer = newer_than_this(&error);
                let mut problem = root_problem(error)?;
                if is_older_key && !self.options.accept_rollback {
                    problem.kind = ProblemKind::RolledBack;
                }
                report.add(problem);
                return Ok(None);
            }
        };
        let found = handle.current().root.mark();
        report.generation = Some(found.generation);
        self.compare(&handle, report).await?;
        if found.generation < self.options.min_generation {
            let what = format!(
                "it shows generation {}, and at least {} is demanded",
                found.generation, self.options.min_generation
            );
            report.add(Problem::new(ROOT_KEY, ProblemKind::RolledBack, what));
        }
        Ok(Some(handle))
    }

    /// Returns the version of what stands in the place of a lost root, if anything does that can be
    /// fetched.
    ///
    /// # Errors
    /// Store errors.
    pub async fn lost_root(&self) -> Result<Option<Version>, RootError> {
        match self.store.get(ROOT_KEY).await {
            Ok((_, version)) => Ok(Some(version)),
            Err(error) if error.is_not_found() || error.is_of_one_object() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Compares the root with this machine's memory, and stores it there.
    async fn compare(&self, handle: &RootHandle, report: &mut Report) -> Result<(), RootError> {
        let Some(memory) = &self.options.memory else {
            return Ok(());
        };
        let view = handle.current();
        let remembered = match (self.known_mark().await, self.options.accept_rollback) {
            (_, true) => memory.accept(view.root.mark()).await,
            (None, false) => memory.remember(view.root.mark()).await,
            (Some(known), false) => {
                match require_descent(self.store, self.keyring, &view.root, known).await {
                    Ok(()) => memory.remember(view.root.mark()).await,
                    Err(
                        error @ (RootError::Rollback { .. }
                        | RootError::NotDescended { .. }
                        | RootError::Rebuilt { .. }),
                    ) => {
                        report.add(Problem::new(ROOT_KEY, ProblemKind::RolledBack, error));
                        Ok(())
                    }
                    Err(error) => {
                        report.add(root_problem(error)?);
                        Ok(())
                    }
                }
            }
        };
        if let Err(error) = remembered {
            tracing::warn!(%error,
                "cannot remember which generation of the repository was seen last");
        }
        Ok(())
    }

    /// The newest root in this machine's memory.
    pub async fn known_mark(&self) -> Option<RootMark> {
        let memory = self.options.memory.as_ref()?;
        memory.recall().await.ok().flatten()
    }

    /// Returns the contents of the root's lists. Each unreadable list is a problem.
    ///
    /// # Errors
    /// Store errors.
    pub async fn lists(&self, root: &Root, report: &mut Report) -> Result<Listed, RootError> {
        let lists = Lists::new(self.store.clone(), self.keyring.clone());
        let mut listed = Listed {
            epoch: root.epoch,
            ..Listed::default()
        };
        for list in &root.snapshots {
            match lists.snapshot_shards(&[*list]).await {
                Ok(shards) => listed
                    .snapshots
                    .extend(shards.iter().flat_map(|shard| shard.to_vec())),
                Err(error) => {
                    report.add(root_problem(error)?);
                    listed.lost.push(*list);
                }
            }
        }
        for list in &root.trash {
            match lists.trash_shards(&[*list]).await {
                Ok(shards) => listed
                    .trash
                    .extend(shards.iter().flat_map(|shard| shard.to_vec())),
                Err(error) => {
                    report.add(root_problem(error)?);
                    listed.lost.push(*list);
                }
            }
        }
        for condemned in &root.condemned {
            match lists.pack_shards(&[condemned.list]).await {
                Ok(shards) => {
                    let entries = shards.iter().flat_map(|shard| shard.iter());
                    listed.condemned.extend(entries.map(|entry| entry.0));
                }
                Err(error) => {
                    report.add(root_problem(error)?);
                    listed.lost_condemned.push(*condemned);
                }
            }
        }
        for list in &root.quarantine {
            match lists.quarantine_shards(&[*list]).await {
                Ok(shards) => {
                    let entries = shards.iter().flat_map(|shard| shard.iter());
                    listed.quarantine.extend(entries.map(|entry| PackLocation {
                        pack: entry.pack,
                        frame: entry.frame,
                    }));
                }
                Err(error) => {
                    report.add(root_problem(error)?);
                    listed.lost_quarantine.push(*list);
                }
            }
        }
        for part in root.chain.iter().flat_map(|chain| &chain.older) {
            if let Err(error) = lists.nonce_shards(&[part.list]).await {
                report.add(root_problem(error)?);
                listed.lost_chain.push(part.list);
            }
        }
        report.counts.snapshots = listed.snapshots.len() as u64;
        report.counts.trash = listed.trash.len() as u64;
        report.counts.volumes = root.volumes.len() as u64;
        Ok(listed)
    }

    /// Collects index objects and lists that no root names: adds the packs of every readable index
    /// object, and returns every snapshot in any list and the highest epoch of any heartbeat. Adds
    /// the keys of unreadable objects to `unread`. Those that the store refuses are problems: what
    /// is written anew without them may lack what they hold.
    ///
    /// # Errors
    /// Store errors.
    pub async fn leftovers(
        &self,
        bucket: &BTreeMap<String, u64>,
        indexed: &mut Indexed,
        report: &mut Report,
        unread: &mut Vec<String>,
    ) -> Result<(Vec<SnapshotEntry>, u64), RootError> {
        let (mut snapshots, mut epoch) = (Vec::new(), 0);
        let mut is_unread = |key: &String, error: ContentError| {
            let problem = as_problem(error)?;
            if problem.kind == ProblemKind::Refused {
                report.add(problem);
            }
            unread.push(key.clone());
            Ok::<_, RootError>(())
        };
        for key in bucket.keys() {
            let (class, name) = match place_of(key) {
                layout::NamedObject::Named(class, name) => (class, Some(name)),
                layout::NamedObject::Session(_) => (Class::Session, None),
                _ => continue,
            };
            if let (Class::Index, Some(name)) = (class, name) {
                match self.verifier.index_of(name).await {
                    Ok(packs) => indexed.replace(packs)?,
                    Err(error) => is_unread(key, error)?,
                }
            }
            if !matches!(class, Class::List | Class::Session) {
                continue;
            }
            let payload = match self.verifier.object(class, key).await {
                Ok(payload) => payload,
                Err(error) => {
                    is_unread(key, error)?;
                    continue;
                }
            };
            if class == Class::Session {
                epoch = epoch.max(Beat::decode(&payload).map_or(0, |beat| beat.base));
            } else if let Ok(entries) = decode_shard::<SnapshotEntry>(&payload) {
                snapshots.extend(entries);
            } else if let Ok(entries) = decode_shard::<TrashEntry>(&payload) {
                snapshots.extend(entries.into_iter().map(|entry| entry.snapshot));
            }
        }
        Ok((snapshots, epoch))
    }
}
