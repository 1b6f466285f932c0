//! The end of the sessions of a lost root, before a repair writes a new one.
//!
//! Owns their fences. A session of a large root acknowledges as long as it finds no fence, whatever
//! became of the root, and the new root knows only sessions that have journals. So the fences come
//! first, and no journal may have come before them since the check. Sessions of a small root go by
//! what stands in its place, which [`super::lost_root`] takes from them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bkfs_chunker::crypto::Keyring;
use bkfs_store::Store;

use super::check::Findings;
use super::layout::{NamedObject, place_of};
use super::options::CheckOptions;
use crate::root::error::RootError;
use crate::root::state::{Root, SessionId};
use crate::root::{fence, listing};

/// Returns the sessions that have an object or a journal in the bucket. Call this after
/// [`super::lost_root::shut`]: no session begins by the lost root any more, and each that has begun
/// has an object.
///
/// # Errors
/// [`RootError::Store`] if the store fails.
pub(super) async fn find(store: &Arc<dyn Store>) -> Result<BTreeSet<SessionId>, RootError> {
    let objects = listed(store, "sessions/").await?;
    let of_objects = objects.iter().filter_map(|key| match place_of(key) {
        NamedObject::Session(id) => Some(id),
        _ => None,
    });
    let journals = listed(store, "journal/").await?;
    let of_journals = journals.iter().filter_map(|key| writer(key));
    Ok(of_objects.chain(of_journals).collect())
}

/// Writes the fences of these sessions. Call this after [`super::lost_root::require_shut`].
///
/// Cancel safety: dropped, it has written some of the fences.
///
/// # Errors
/// [`RootError::Store`] if the store fails.
pub(super) async fn fence(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    sessions: BTreeSet<SessionId>,
) -> Result<(), RootError> {
    let means = (&options.policy, &options.entropy);
    fence::write_all(store, keyring, means, sessions).await
}

/// Checks that no session which `root`, the new one, does not know has written a journal since the
/// check. Call this once all of them have ended.
///
/// # Errors
/// [`RootError::Damaged`] if there is such a journal; [`RootError::Store`] if the store fails.
pub(super) async fn require_known(
    store: &Arc<dyn Store>,
    findings: &Findings,
    root: &Root,
) -> Result<(), RootError> {
    let is_unknown = |id: SessionId| !root.sessions.contains_key(&id);
    for key in listed(store, "journal/").await? {
        if !findings.bucket.contains_key(&key) && writer(&key).is_some_and(is_unknown) {
            let what = "a mount has written it since the check: unmount, and run the check again";
            return Err(RootError::damaged(&key, what));
        }
    }
    Ok(())
}

async fn listed(store: &Arc<dyn Store>, prefix: &str) -> Result<Vec<String>, RootError> {
    Ok(listing::all(&**store, prefix).await?.into_keys().collect())
}

/// Returns the session that wrote the journal under a key.
fn writer(key: &str) -> Option<SessionId> {
    match place_of(key) {
        NamedObject::Journal { session, .. } => Some(session),
        _ => None,
    }
}
