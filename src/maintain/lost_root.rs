//! What stands in the place of a lost root, and the new root there.
//!
//! Owns the two replacements of a repair. The first takes what stands there from all sessions: one
//! may go on with a root that only the repair cannot read, or with one that it has read before its
//! bytes changed. The second puts the new root there, unless another program was faster.

use std::sync::Arc;

use bkfs_chunker::crypto::Keyring;
use bkfs_store::{Store, StoreError, StoreErrorKind, Version};
use bytes::Bytes;

use super::options::CheckOptions;
use super::refusal::may_be_replaced;
use crate::root::chain::RootMark;
use crate::root::error::RootError;
use crate::root::reading::open_root;
use crate::root::state::ROOT_KEY;

/// Why a repair stops before it has ended any session.
const REPLACED: &str = "a mount or another repair has replaced it since the check: run the check \
                        again";

/// Why the new root is not written.
const CHANGED: &str = "it was changed meanwhile, and mounts that were at work may have ended: mount \
                       them again if it can be read, or run the check again";

/// Returns what stands in the place of the root, and its version.
///
/// # Errors
/// Store errors.
async fn standing(store: &Arc<dyn Store>) -> Result<Option<(Bytes, Version)>, StoreError> {
    match store.get(ROOT_KEY).await {
        Err(error) if error.is_not_found() => Ok(None),
        found => found.map(Some),
    }
}

/// Makes what stands in the place of the root unreadable for all sessions, and returns the version
/// of what stands there then, if anything does. Only the version `examined` is replaced, which stood
/// there before the bucket was listed: a session that can read the root may have committed since.
/// The bytes that were read stay, followed by one more, with which no program opens them.
///
/// Cancel safety: dropped, it may have done so.
///
/// # Errors
/// [`RootError::Damaged`] if something else stands there, or must not be replaced;
/// [`RootError::OutcomeUnknown`] and other store errors.
pub(super) async fn shut(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    examined: Option<&Version>,
) -> Result<Option<Version>, RootError> {
    let standing = standing(store).await?;
    if standing.as_ref().map(|(_, version)| version) != examined {
        return Err(RootError::damaged(ROOT_KEY, REPLACED));
    }
    let Some((bytes, version)) = standing else {
        return Ok(None);
    };
    if !may_be_replaced(&**store, keyring, &bytes, &version, options).await? {
        return Err(RootError::damaged(ROOT_KEY, REPLACED));
    }
    // A root that was cut short by one byte may end with that one.
    let opens = |end: &u8| open_root(keyring, &[&bytes[..], &[*end]].concat(), version.clone());
    let end = [0, 1].into_iter().find(|end| opens(end).is_err());
    let shut = vec![bytes.clone(), Bytes::from(vec![end.unwrap_or(0)])];
    let version = store.replace(ROOT_KEY, shut, &version).await;
    Ok(Some(version.map_err(unwritten)?))
}

/// Checks that the version which [`shut`] has returned stands there still, or nothing.
///
/// # Errors
/// [`RootError::Damaged`] if something else does; store errors.
pub(super) async fn require_shut(
    store: &Arc<dyn Store>,
    shut: Option<&Version>,
) -> Result<(), RootError> {
    let standing = standing(store).await?;
    match standing.as_ref().map(|(_, version)| version) == shut {
        true => Ok(()),
        false => Err(RootError::damaged(ROOT_KEY, REPLACED)),
    }
}

/// Puts a new root there, given as its object and its mark, if still the version stands there that
/// [`shut`] has returned.
///
/// Cancel safety: dropped, it may have done so.
///
/// # Errors
/// [`RootError::Damaged`] if another one stands there; [`RootError::OutcomeUnknown`] and other store
/// errors.
pub(super) async fn put(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    shut: Option<Version>,
    (object, mark): (Bytes, RootMark),
) -> Result<(), RootError> {
    let written = match shut {
        Some(version) => store.replace(ROOT_KEY, vec![object], &version).await,
        None => store.put_new(ROOT_KEY, vec![object]).await,
    };
    match written.map_err(unwritten) {
        // A request that was sent twice is refused the second time.
        Err(error) if !stands(store, keyring, mark).await => Err(error),
        _ => Ok(()),
    }
}

fn unwritten(error: StoreError) -> RootError {
    match error.kind() {
        StoreErrorKind::OutcomeUnknown => RootError::OutcomeUnknown {
            reason: error.to_string(),
        },
        StoreErrorKind::Conflict | StoreErrorKind::AlreadyExists => {
            RootError::damaged(ROOT_KEY, CHANGED)
        }
        _ => error.into(),
    }
}

/// Returns whether the root with this mark stands.
async fn stands(store: &Arc<dyn Store>, keyring: &Keyring, mark: RootMark) -> bool {
    let Ok((bytes, version)) = store.get(ROOT_KEY).await else {
        return false;
    };
    open_root(keyring, &bytes, version).is_ok_and(|view| view.root.mark() == mark)
}
