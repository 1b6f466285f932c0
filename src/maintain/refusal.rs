//! What a repair refuses to touch: what would be lost by it, and need not be.
//!
//! Owns the reasons. The repair itself is in [`super::repair`].

use std::collections::BTreeMap;

use bkfs_chunker::crypto::{Class, HEADER_LEN, Header, Keyring, OpenError};
use bkfs_store::{Store, StoreError, StoreErrorKind, Version};

use super::check::Findings;
use super::options::CheckOptions;
use super::report::ProblemKind;
use crate::root::error::RootError;
use crate::root::reading::open_root;
use crate::root::state::ROOT_KEY;
use crate::root::unlock::damage_of;

/// Refuses where a new root would make a loss final that need not be one.
///
/// # Errors
/// [`RootError::Damaged`], which says what to do instead.
pub(super) fn refuse(findings: &Findings) -> Result<(), RootError> {
    // The report lists a bounded number of problems. What is refused counts wherever it stands.
    let report = &findings.report;
    if report.has(ProblemKind::RolledBack) {
        return Err(RootError::damaged(
            ROOT_KEY,
            "the bucket was rolled back: bring its newest state back; a repair now would make \
             the loss final (--accept-rollback goes on from what there is)",
        ));
    }
    let is_in_the_way = |(object, _): &(&str, &str)| !is_left_alone(findings, object);
    if let Some((object, what)) = report.refused().find(is_in_the_way) {
        return Err(RootError::damaged(
            object,
            format!(
                "{what}: the store gives other objects, so nothing is known to be wrong with it; a \
                 repair would go on without it for good: make it readable first (give the key its \
                 rights, or bring it back from an archive class), or remove it if it is lost"
            ),
        ));
    }
    if let Some(why) = &findings.newer_root {
        return Err(RootError::damaged(
            ROOT_KEY,
            format!(
                "{why}; if it is certain that nothing newer ever wrote here, remove the object \
                 root and repair again"
            ),
        ));
    }
    Ok(())
}

/// Returns whether a repair writes nothing that rests on this refused object: it is a pack that the
/// index holds, and nothing is lost that is written anew from what packs say.
fn is_left_alone(findings: &Findings, key: &str) -> bool {
    let listed = &findings.listed;
    let nothing_lost = findings.handle.is_some()
        && findings.indexed.lost.is_empty()
        && listed.lost.is_empty()
        && listed.lost_condemned.is_empty();
    nothing_lost && findings.damage.is_refused(key)
}

/// Whether the root is damaged, and no newer program or key has written it meanwhile.
///
/// # Errors
/// Store errors.
pub(super) async fn may_be_replaced(
    store: &dyn Store,
    keyring: &Keyring,
    bytes: &[u8],
    version: &Version,
    options: &CheckOptions,
) -> Result<bool, RootError> {
    match open_root(keyring, bytes, version.clone()) {
        Ok(_) => Ok(false),
        Err(RootError::Unopenable { source, .. }) => match source {
            OpenError::NoKeyEpoch { epoch } => {
                Ok(damage_of(store, keyring, epoch).await?.is_some())
            }
            OpenError::OtherFormat { .. } | OpenError::UnknownFeatures { .. } => Ok(false),
            OpenError::OlderKeyEpoch { .. } => Ok(options.accept_rollback),
            _ => Ok(true),
        },
        Err(_) => Ok(true),
    }
}

/// Refuses to make a root with a key of before a rotation, or of another rotation than the one that
/// was made: all that was stored since would be left out of it.
///
/// # Errors
/// [`RootError::Damaged`] that names an object of a newer epoch, or one under another master key of
/// an epoch of which no object is under the keyring's.
pub(super) async fn refuse_newer_keys(
    store: &dyn Store,
    keyring: &Keyring,
    findings: &Findings,
) -> Result<(), RootError> {
    if !keyring.is_sealed() {
        return Ok(());
    }
    // By epoch: an object that the keyring does not verify, and whether it verifies another one.
    let mut strangers: BTreeMap<u32, (Option<&str>, bool)> = BTreeMap::new();
    for key in findings.bucket.keys() {
        let class = match key.split_once('/') {
            Some(("lists", _)) => Class::List,
            Some(("index", _)) => Class::Index,
            _ => continue,
        };
        let head = match store.get_range(key, 0..HEADER_LEN as u64).await {
            Ok(head) => head,
            // It is gone since, or shorter than a header.
            Err(error) if is_gone_or_short(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        let Ok(header) = head[..].try_into() else {
            continue;
        };
        let (stated, held) = (Header::stated_epoch(header), keyring.epoch());
        if stated > held {
            return Err(RootError::damaged(
                key,
                format!(
                    "it states master key {stated}, and the key that was given is of epoch \
                     {held}: give the password of a key of the newest epoch; if it is certain \
                     that there was none, remove this object and repair again"
                ),
            ));
        }
        let (stranger, verifies) = strangers.entry(stated).or_default();
        match keyring.object_opener(class, key, header) {
            Ok(_) => *verifies = true,
            Err(_) => *stranger = Some(key),
        }
    }
    // Rotations begin at epoch 1: there is one master key of epoch 0.
    let stranger = strangers.range(1..).find_map(|(epoch, (key, verifies))| {
        let key = key.filter(|_| !verifies)?;
        Some((epoch, key))
    });
    match stranger {
        Some((epoch, key)) => Err(RootError::damaged(
            key,
            format!(
                "it states master key {epoch}, and no object of that epoch is sealed under the \
                 one that the given key holds: two rotations were begun, and another one was \
                 made; give the password of another key, or name it with --key; if it is certain \
                 that there was none, remove this object and repair again"
            ),
        )),
        None => Ok(()),
    }
}

/// Whether no header can be read since the object is gone, or shorter than one.
fn is_gone_or_short(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::NotFound | StoreErrorKind::OutOfRange
    )
}
