//! Volumes of a repository that no mount writes: clones of snapshots, removal, and scratch clones
//! that a crash has left.
//!
//! Owns the session of each such change, and what is read for it. Does not own the replacements of
//! the root (`root::cloning`, `root::removing`), nor mounts.

use std::sync::Arc;

use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::Kind;
use bkfs_chunker::ingest::Ingest;

use crate::repository::Repository;
use crate::root::cloning::{CloneRequest, MadeClone, make_clone};
use crate::root::error::RootError;
use crate::root::handle::Applied;
use crate::root::record::CommitRecord;
use crate::root::removing::{Removed, remove_volume};
use crate::root::request::KnownSpools;
use crate::root::session::OpenSession;
use crate::root::snapshots::{NewSnapshot, SnapshotEntry, SnapshotList, SnapshotReference};
use crate::root::transition::FIRST_FREE_INODE;
use crate::root::view::RootView;
use crate::root::volumes::SCRATCH_PREFIX;
use crate::tree::key;
use crate::tree::map::Tree;
use crate::volume::error::VolumeError;

pub mod reap;
pub mod undo;

/// The parameters of a clone.
#[derive(Clone, Debug)]
pub struct Cloning<'a> {
    /// The volume of the snapshot.
    pub source: &'a str,
    /// The snapshot.
    pub snapshot: &'a SnapshotReference,
    /// The name of the new volume.
    pub name: &'a str,
    /// What the root names as the holder of the session.
    pub command: &'a str,
    /// Whether the session goes on as the holder of the clone, with what it knows of spools.
    pub held_with: Option<KnownSpools>,
}

/// A clone that was made.
#[derive(Debug)]
pub struct Cloned {
    /// The snapshot.
    pub source: SnapshotEntry,
    /// The clone.
    pub made: MadeClone,
}

/// Returns a name for a scratch clone, which no other volume has.
pub fn scratch_name(repository: &Repository) -> String {
    let mut random = [0; 8];
    repository.environment.entropy.fill(&mut random);
    format!("{SCRATCH_PREFIX}{:016x}", u64::from_le_bytes(random))
}

/// Makes a volume whose tree is that of a snapshot.
///
/// It reads the list of snapshots, the index and one commit record, whatever the size of the tree.
/// The session enters the root while these are read.
///
/// Cancel safety: that of [`make_clone`].
///
/// # Errors
/// [`RootError::NoSnapshot`] if there is no such snapshot; those of [`make_clone`], of opening a
/// session and of [`Repository::load_index_to_write`]; [`RootError::Damaged`] or
/// [`RootError::Content`] if the commit record of the snapshot cannot be read.
pub async fn clone_snapshot(
    repository: &Repository,
    cloning: &Cloning<'_>,
) -> Result<Cloned, RootError> {
    let handle = &repository.handle;
    // A name that is taken costs no session.
    let known = SnapshotList::default();
    let view = handle.current();
    if (view
        .root
        .require_free(cloning.name, Some(cloning.source), &known))
    .is_err()
    {
        let view = handle.refresh().await?;
        (view.root).require_free(cloning.name, Some(cloning.source), &known)?;
    }
    let environment = &repository.environment;
    let holder = environment.holder(cloning.command);
    let spools = cloning.held_with.clone().unwrap_or_default();
    let entering = OpenSession::open_known(handle, holder, &*environment.processes, spools);
    let (session, source) = futures::join!(entering, find(repository, cloning));
    let session = session?;
    let (source, next_inode) = match source {
        Ok(source) => source,
        Err(error) => {
            leave(session).await;
            return Err(error);
        }
    };
    let request = CloneRequest {
        source: source.clone(),
        name: cloning.name.to_owned(),
        next_inode,
        clock: repository.now(),
    };
    let ingest = Arc::new(Ingest::new(
        repository.content_store.clone(),
        session.id().0,
    ));
    let uploads = (&*ingest, ingest.mark());
    let made = make_clone(
        session,
        &repository.lists,
        uploads,
        &request,
        cloning.held_with.is_some(),
    );
    Ok(Cloned {
        source,
        made: made.await?,
    })
}

async fn leave(session: OpenSession) {
    if let Err(error) = session.end().await {
        tracing::warn!(%error, "a session without a change stays in the root");
    }
}

/// Returns the snapshot to clone, and the lowest inode number that its tree never used. Tries a
/// newer root if an object is gone (rule 10).
async fn find(
    repository: &Repository,
    cloning: &Cloning<'_>,
) -> Result<(SnapshotEntry, u64), RootError> {
    let view = repository.handle.current();
    match find_in(repository, &view, cloning).await {
        Ok(found) => Ok(found),
        // The root as first read may be older than the snapshot.
        Err(_) => {
            let view = repository.handle.refresh().await?;
            find_in(repository, &view, cloning).await
        }
    }
}

async fn find_in(
    repository: &Repository,
    view: &RootView,
    cloning: &Cloning<'_>,
) -> Result<(SnapshotEntry, u64), RootError> {
    let (kept, ()) = futures::try_join!(
        repository.lists.snapshots(&view.root),
        repository.load_index_to_write()
    )?;
    let entry = kept.resolve(cloning.source, cloning.snapshot)?.clone();
    let next_inode = next_inode(repository, &entry).await?;
    Ok((entry, next_inode))
}

/// Returns the lowest inode number that the tree of a snapshot never used, as its commit record
/// says. A record that a repair made anew does not say it; then the tree does.
pub(crate) async fn next_inode(
    repository: &Repository,
    entry: &SnapshotEntry,
) -> Result<u64, RootError> {
    let key = format!("commit record {}", entry.commit);
    let record = record_of(repository, entry).await?;
    if record.tree != entry.tree {
        let reason = format!("its tree is not that of snapshot {:?}", entry.name);
        return Err(RootError::damaged(&key, reason));
    }
    // Copies of recovered snapshots have the numbers of a volume in records of older programs.
    if record.next_inode >= FIRST_FREE_INODE && !entry.recovered {
        return Ok(record.next_inode);
    }
    let unused = unused_inode(repository, entry).await?;
    Ok(record.next_inode.max(unused))
}

/// Returns the lowest inode number above all that the tree of a snapshot uses.
pub(crate) async fn unused_inode(
    repository: &Repository,
    entry: &SnapshotEntry,
) -> Result<u64, RootError> {
    let Some(tree) = entry.tree else {
        return Ok(FIRST_FREE_INODE);
    };
    let key = format!("the tree of snapshot {:?}", entry.name);
    let damaged = |reason: &dyn std::fmt::Display| RootError::damaged(&key, reason);
    let nodes = repository.nodes.as_ref();
    let last = Tree::new(tree).last_in(nodes, key::everything()).await;
    let last = last.map_err(|error| match (error.is_damage(), error) {
        (false, VolumeError::ContentStore(cause)) => ContentError::clone(&cause).into(),
        (_, error) => damaged(&error),
    })?;
    let used = match last {
        Some((key, _)) => key.inode().map_err(|error| damaged(&error))?,
        None => 0,
    };
    Ok(used.saturating_add(1).max(FIRST_FREE_INODE))
}

/// Returns the commit record of a snapshot.
///
/// # Errors
/// [`RootError::Content`] if it cannot be read; [`RootError::Damaged`] if it cannot be decoded.
async fn record_of(
    repository: &Repository,
    entry: &SnapshotEntry,
) -> Result<CommitRecord, RootError> {
    let content_store = &repository.content_store;
    let bytes = content_store.read_blob(Kind::Commit, entry.commit).await?;
    CommitRecord::decode(&bytes)
        .map_err(|reason| RootError::damaged(&format!("commit record {}", entry.commit), reason))
}

/// Removes a volume. Its snapshots, and a last one of its tree, go to the trash.
///
/// Cancel safety: that of [`remove_volume`].
///
/// # Errors
/// Those of [`remove_volume`], of opening a session and of [`Repository::load_index_to_write`].
pub async fn remove(
    repository: &Repository,
    volume: &str,
    may_forget: bool,
    command: &str,
) -> Result<Applied<Removed>, RootError> {
    let handle = &repository.handle;
    handle.refresh().await?.root.require_unheld(volume)?;
    repository.load_index_to_write().await?;
    let environment = &repository.environment;
    let holder = environment.holder(command);
    let processes = &*environment.processes;
    let spools = KnownSpools::default();
    let session = OpenSession::open_known(handle, holder.clone(), processes, spools).await?;
    let ingest = Ingest::new(repository.content_store.clone(), session.id().0);
    let last = NewSnapshot {
        name: None,
        host: holder.host,
        user: holder.user,
        tags: Vec::new(),
        clock: repository.now(),
        recovered: false,
        replaces: false,
        replaced_at: None,
        drill: None,
        origin: None,
    };
    let uploads = (&ingest, ingest.mark());
    let request = (volume, &last, may_forget);
    remove_volume(session, &repository.lists, uploads, request).await
}
