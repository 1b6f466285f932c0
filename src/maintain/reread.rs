//! The last look before a repair acts. A store may have answered a check wrongly for a while: with
//! other bytes, or with a 404 for an object that is there. A repair that follows such an answer
//! drops what is whole.
//!
//! Owns which objects are read once more, and that the repair does nothing if one of them can be
//! read now. Writes nothing.

use std::sync::Arc;

use bkfs_chunker::crypto::{Class, Keyring};
use bkfs_chunker::error::ContentError;
use bkfs_chunker::verify::Verifier;
use bkfs_store::Store;
use futures::StreamExt;

use super::abandon;
use super::check::Findings;
use super::layout::{NamedObject, place_of};
use super::options::CheckOptions;
use super::refused::Refusals;
use super::repair_plan::RepairPlan;
use super::scan::{Scan, as_problem, root_problem};
use crate::root::error::RootError;
use crate::root::lists::Lists;
use crate::root::reading::open_root;
use crate::root::shard::ListRef;
use crate::root::state::ROOT_KEY;

/// Objects that are read at the same time.
const READS_AT_ONCE: usize = 8;

/// Reads once more what a plan gives up.
struct Again<'a> {
    scan: Scan<'a>,
    lists: Lists,
    findings: &'a Findings,
    plan: &'a RepairPlan,
    /// Whether packs were condemned anew since the check.
    changed: bool,
}

/// Reads everything once more that `plan` gives up as lost: the root, lists, index objects,
/// journals and forgotten snapshots, and the objects from which something lost is written anew.
///
/// Costs the requests with which the check found these losses.
///
/// Cancel safety: only reads.
///
/// # Errors
/// [`RootError::NoLongerLost`] with the first of them that can be read now; store errors.
pub(super) async fn require_lost(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    findings: &Findings,
    plan: &RepairPlan,
) -> Result<(), RootError> {
    look_again(store, keyring, options, (findings, plan), false).await
}

/// Same, between the renewal of condemned packs and what follows it. Leaves out the lists of
/// condemned packs, which the renewal has replaced.
///
/// Cancel safety: only reads.
///
/// # Errors
/// As [`require_lost`].
pub(super) async fn require_still_lost(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    findings: &Findings,
    plan: &RepairPlan,
) -> Result<(), RootError> {
    look_again(store, keyring, options, (findings, plan), true).await
}

async fn look_again(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    (findings, plan): (&Findings, &RepairPlan),
    changed: bool,
) -> Result<(), RootError> {
    let store: Arc<dyn Store> = Arc::new(Refusals::of(store.clone()));
    let (entropy, config) = (options.entropy.clone(), &options.verifier);
    let verifier = Verifier::new(store.clone(), keyring.clone(), entropy, config)?;
    let again = Again {
        scan: Scan {
            store: &store,
            keyring,
            verifier: &verifier,
            options,
        },
        lists: Lists::new(store.clone(), keyring.clone()),
        findings,
        plan,
        changed,
    };
    again.root().await?;
    again.lists().await?;
    again.indexes().await?;
    again.unread().await?;
    again.journals().await?;
    again.forgotten().await
}

impl Again<'_> {
    /// Returns an error that names `object` if it was read.
    fn stays_lost<T>(
        &self,
        object: impl ToString,
        read: Result<T, ContentError>,
    ) -> Result<(), RootError> {
        match read {
            Ok(_) => Err(self.no_longer_lost(object)),
            Err(error) => as_problem(error).map(drop),
        }
    }

    /// Returns an error that names the list if it was read.
    fn stays_unread<T>(&self, list: &ListRef, read: Result<T, RootError>) -> Result<(), RootError> {
        match read {
            Ok(_) => Err(self.no_longer_lost(list.name.key(Class::List))),
            Err(error) => root_problem(error).map(drop),
        }
    }

    fn no_longer_lost(&self, object: impl ToString) -> RootError {
        RootError::NoLongerLost {
            object: object.to_string(),
            changed: self.changed,
        }
    }

    async fn root(&self) -> Result<(), RootError> {
        if self.plan.root.is_none() {
            return Ok(());
        }
        match self.scan.store.get(ROOT_KEY).await {
            Ok((bytes, version)) => match open_root(self.scan.keyring, &bytes, version) {
                Ok(_) => Err(self.no_longer_lost(ROOT_KEY)),
                Err(_) => Ok(()),
            },
            Err(error) => root_problem(error.into()).map(drop),
        }
    }

    /// All lists that a root names and that leave it.
    async fn lists(&self) -> Result<(), RootError> {
        let (lists, listed, plan) = (&self.lists, &self.findings.listed, self.plan);
        for list in &plan.lost_lists {
            self.stays_unread(list, lists.snapshot_shards(&[*list]).await)?;
            self.stays_unread(list, lists.trash_shards(&[*list]).await)?;
        }
        for condemned in plan.renewed.iter().filter(|_| !self.changed) {
            let list = condemned.list;
            self.stays_unread(&list, lists.pack_shards(&[list]).await)?;
        }
        for list in listed
            .lost_quarantine
            .iter()
            .filter(|_| plan.writes_quarantine)
        {
            self.stays_unread(list, lists.quarantine_shards(&[*list]).await)?;
        }
        for list in listed.lost_chain.iter().filter(|_| plan.loses_chain) {
            self.stays_unread(list, lists.nonce_shards(&[*list]).await)?;
        }
        Ok(())
    }

    /// All index objects that a root names and that leave it.
    async fn indexes(&self) -> Result<(), RootError> {
        for index in &self.findings.indexed.lost {
            let key = index.name.key(Class::Index);
            self.stays_lost(key, self.scan.verifier.index(*index).await)?;
        }
        Ok(())
    }

    /// What the check could not read of that from which lost objects are written anew. What is
    /// written goes without it.
    async fn unread(&self) -> Result<(), RootError> {
        let reads = self.findings.unread.iter().map(|key| self.read(key));
        let mut reads =
            futures::stream::iter(reads.collect::<Vec<_>>()).buffer_unordered(READS_AT_ONCE);
        while let Some(read) = reads.next().await {
            read?;
        }
        Ok(())
    }

    async fn read(&self, key: &str) -> Result<(), RootError> {
        let verifier = self.scan.verifier;
        match place_of(key) {
            NamedObject::Named(class @ (Class::DataPack | Class::MetadataPack), name) => {
                let bytes = self.findings.bucket.get(key).copied().unwrap_or(0);
                self.stays_lost(key, verifier.describe(name, class, bytes).await)
            }
            NamedObject::Named(Class::Index, name) => {
                self.stays_lost(key, verifier.index_of(name).await)
            }
            // Nothing is lost with a run.
            NamedObject::Named(Class::Run, _) => Ok(()),
            NamedObject::Named(class, _) => self.stays_lost(key, verifier.object(class, key).await),
            NamedObject::Session(_) => {
                self.stays_lost(key, verifier.object(Class::Session, key).await)
            }
            _ => Ok(()),
        }
    }

    /// All journals that are set aside or given up as missing: what is wrong with them, or with
    /// those before them, is found out anew.
    async fn journals(&self) -> Result<(), RootError> {
        let Some(handle) = &self.findings.handle else {
            return Ok(());
        };
        for broken in &self.findings.unreplayable {
            if let Some(key) = self.scan.judged_otherwise(handle, broken).await? {
                return Err(self.no_longer_lost(key));
            }
        }
        Ok(())
    }

    async fn forgotten(&self) -> Result<(), RootError> {
        if self.plan.abandoned.is_empty() {
            return Ok(());
        }
        let broken = abandon::find(self.findings).await?;
        match broken.whole_of(&self.plan.abandoned) {
            None => Ok(()),
            Some(commit) => {
                let trash = self.findings.listed.trash.iter();
                let mut entries = trash.map(|entry| &entry.snapshot);
                let entry = entries.find(|entry| entry.commit == commit);
                let name = entry.map(|entry| format!("snapshot {}/{}", entry.volume, entry.name));
                Err(self.no_longer_lost(name.unwrap_or_else(|| commit.to_string())))
            }
        }
    }
}
