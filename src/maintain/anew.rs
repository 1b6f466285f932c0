//! The repair of lists of condemned packs that cannot be read.
//!
//! Owns when it can be made, and what is said if it cannot. What is condemned anew is found out in
//! [`super::collect::renew`].

use std::collections::HashSet;
use std::sync::Arc;

use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::crypto::Keyring;
use bkfs_chunker::id::Id;
use bkfs_chunker::verify::Verifier;
use bkfs_store::Store;
use jiff::Timestamp;

use super::check::{Findings, open_content_store};
use super::collect::rebuilt::{Head, Rebuilt, whole_of};
use super::collect::renew::Renewal;
use super::collect::sightings::SightingsFile;
use super::options::CheckOptions;
use super::repair_plan::MOUNT_POINT;
use crate::root::error::{ErrorKind, RootError};
use crate::root::lists::Lists;
use crate::root::state::{Condemned, HolderInfo};

/// Which of the snapshots that commit records tell of are known to need nothing but what is live
/// (rule 3).
#[derive(Debug, Default)]
pub(super) struct Closed {
    /// Their commits.
    commits: HashSet<Id>,
    /// The epoch of the root for which that was found out.
    epoch: u64,
}

impl Closed {
    /// Returns whether the snapshot with this commit is known to be one of them in a root of this
    /// epoch. Packs leave the live set in a new epoch only.
    pub(super) fn has(&self, commit: &Id, epoch: u64) -> bool {
        self.epoch == epoch && self.commits.contains(commit)
    }
}

/// Returns the commits of those of `heads` of which everything lies in the packs that the check has
/// read, and in none of which it knows that they cannot be read.
///
/// # Errors
/// The store cannot be read.
pub(super) async fn whole(findings: &Findings, heads: &[Head]) -> Result<HashSet<Id>, RootError> {
    let is_there = |places: &[PackLocation]| findings.damage.any_good(places);
    whole_of(&findings.content_store, heads, is_there).await
}

/// Whether lists of snapshots are to be written anew by the next repair only. Which of the
/// snapshots that commit records tell of are whole without packs that may be condemned is known to
/// the renewal alone: it goes before them, and needs the index and the quarantine.
pub(super) fn comes_first(findings: &Findings, finds_damage: bool) -> bool {
    let listed = &findings.listed;
    let is_blocked = !findings.indexed.lost.is_empty() || finds_damage;
    !listed.lost_condemned.is_empty() && !listed.lost.is_empty() && is_blocked
}

/// The lists of condemned packs that a repair can put aside now. What they named is found out from
/// all that is needed: so not before the index and the quarantine are whole, and the lists of
/// snapshots are or `are_known`.
pub(super) fn lost(findings: &Findings, are_known: bool) -> Vec<Condemned> {
    let (listed, indexed) = (&findings.listed, &findings.indexed);
    let is_known = listed.lost.is_empty() || are_known;
    match is_known && listed.lost_quarantine.is_empty() && indexed.lost.is_empty() {
        true => listed.lost_condemned.clone(),
        false => Vec::new(),
    }
}

/// What is said before these lists are put aside; nothing if there are none.
pub(super) fn step(lost: &[Condemned]) -> Option<String> {
    let count = lost.len();
    (count > 0).then(|| {
        format!(
            "put {count} lists of condemned packs aside that cannot be read, and condemn anew \
             every pack that they may have named; what is needed of those is stored again first"
        )
    })
}

/// Condemns anew what lost lists may have named. `rebuilt` stands in for lists of snapshots that
/// are lost too. Returns which of the snapshots in `rebuilt` are known to be closed then. If no
/// list of condemned packs is lost, the check has read what is live, and that decides: the repair
/// before may have condemned anew, and ended before it listed them. If what lost lists named is not
/// found out, none is known to be closed.
pub(super) async fn renew(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    findings: &Findings,
    lost: &[Condemned],
    rebuilt: Rebuilt,
) -> Result<Closed, RootError> {
    if findings.listed.lost_condemned.is_empty() {
        return Ok(Closed {
            commits: whole(findings, &rebuilt.heads).await?,
            epoch: findings.listed.epoch,
        });
    }
    let unknown = Closed::default();
    let Some(handle) = findings.handle.as_ref().filter(|_| !lost.is_empty()) else {
        return Ok(unknown);
    };
    let (entropy, config) = (options.entropy.clone(), &options.verifier);
    let verifier = Verifier::new(store.clone(), keyring.clone(), entropy, config)?;
    let (directory, now) = match &options.seen {
        Some((directory, now)) => (Some(directory.as_path()), *now),
        None => (None, Timestamp::UNIX_EPOCH),
    };
    let renewal = Renewal {
        handle,
        lists: &Lists::new(store.clone(), keyring.clone()),
        verifier: Arc::new(verifier),
        content_store: open_content_store(store, keyring, options)?,
        holder: HolderInfo::of_this_process(MOUNT_POINT),
        memory: SightingsFile::new(directory, keyring.repository()),
        rebuilt,
        now,
    };
    match renewal.renew(lost).await {
        Err(error) if error.kind() == ErrorKind::Damaged => {
            tracing::warn!(%error,
                "what lost lists of condemned packs named is not found out while something needed \
                 cannot be read, and nothing is written or collected until then"
            );
            Ok(unknown)
        }
        renewed => renewed.map(|renewed| Closed {
            commits: renewed.whole,
            epoch: renewed.epoch,
        }),
    }
}
