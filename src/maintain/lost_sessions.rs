//! The end of the sessions of a lost root, before a repair writes a new one.
//!
//! Owns their fences. A session of a large root acknowledges as long as it finds no fence, whatever
//! became of the root, and the new root knows only sessions that have journals. So the fences come
//! first, and no journal may have come before them since the check.

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

/// Returns the sessions that have an object or a journal in the bucket. Call this before the look at
/// what stands in the place of the root: a session that comes later enters another root than that.
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

/// Writes the fences of these sessions. Then no session that `root`, the new one, does not know may
/// have written a journal since the check.
///
/// Cancel safety: dropped, it has written some of the fences.
///
/// # Errors
/// [`RootError::Damaged`] if there is such a journal; [`RootError::Store`] if the store fails.
pub(super) async fn fence(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    sessions: BTreeSet<SessionId>,
    (findings, root): (&Findings, &Root),
) -> Result<(), RootError> {
    let means = (&options.policy, &options.entropy);
    fence::write_all(store, keyring, means, sessions).await?;
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
