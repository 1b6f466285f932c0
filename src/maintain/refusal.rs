//! What a repair refuses to touch: what would be lost by it, and need not be.
//!
//! Owns the reasons. The repair itself is in [`super::repair`].

use bkfs_chunker::seal::{HEADER_LEN, Header, Keyring};
use bkfs_chunker::store::Store;

use super::check::Findings;
use super::report::ProblemKind;
use crate::root::error::RootError;
use crate::root::state::ROOT_KEY;

/// Refuses where a new root would make a loss final that need not be one.
///
/// # Errors
/// [`RootError::Damaged`], which says what to do instead.
pub(super) fn refuse(findings: &Findings) -> Result<(), RootError> {
    let rolled_back = |kind| kind == ProblemKind::RolledBack;
    if findings
        .report
        .problems
        .iter()
        .any(|problem| rolled_back(problem.kind))
    {
        return Err(RootError::damaged(
            ROOT_KEY,
            "the bucket was rolled back: bring its newest state back; a repair now would make the loss final (--accept-rollback goes on from what there is)",
        ));
    }
    if let Some(why) = &findings.newer_root {
        return Err(RootError::damaged(
            ROOT_KEY,
            format!(
                "{why}; if it is certain that nothing newer ever wrote here, remove the object root and repair again"
            ),
        ));
    }
    Ok(())
}

/// Refuses to make a root with a key of before a rotation: all that was stored since would be left
/// out of it.
///
/// # Errors
/// [`RootError::Damaged`] that names an object of a newer epoch.
pub(super) async fn refuse_newer_keys(
    store: &dyn Store,
    keyring: &Keyring,
    findings: &Findings,
) -> Result<(), RootError> {
    if !keyring.is_sealed() {
        return Ok(());
    }
    let is_told = |key: &&String| key.starts_with("lists/") || key.starts_with("index/");
    for key in findings.bucket.keys().filter(is_told) {
        let Ok(head) = store.get_range(key, 0..HEADER_LEN as u64).await else {
            continue;
        };
        let Ok(header) = head[..].try_into() else {
            continue;
        };
        let (stated, held) = (Header::stated_epoch(header), keyring.epoch());
        if stated > held {
            return Err(RootError::damaged(
                key,
                format!(
                    "it states master key {stated}, and the key that was given is of epoch {held}: give the password of a key of the newest epoch; if it is certain that there was none, remove this object and repair again"
                ),
            ));
        }
    }
    Ok(())
}
