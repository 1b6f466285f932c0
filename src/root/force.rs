//! Whether a key is in force: how its newest master key stands to the one that the root states.
//!
//! Owns that comparison, over the header of the root, and the errors of a root that states a wrong
//! epoch. [`super::unlock`] finds and tries the keys.

use super::error::RootError;
use super::state::ROOT_KEY;
use bkfs_chunker::crypto::{Class, HEADER_LEN, Keyring, OpenError, Secrets};
use bkfs_store::{Store, StoreErrorKind};

/// The first 128 bytes of the root.
pub(super) type RootHeader = [u8; HEADER_LEN];

/// Returns the header of the root; `None` if there is no root, or a shorter object.
///
/// # Errors
/// Store errors.
pub(super) async fn root_header(store: &dyn Store) -> Result<Option<RootHeader>, RootError> {
    match store.get_range(ROOT_KEY, 0..HEADER_LEN as u64).await {
        Ok(bytes) => Ok(bytes[..].try_into().ok()),
        Err(error) if error.is_not_found() || error.kind() == StoreErrorKind::OutOfRange => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Relation of a key to the root.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Force {
    /// The root is sealed under its newest master key, or there is no root to compare it with.
    Standing,
    /// The root states a master key that the key does not hold. No tag verifies that: it counts
    /// only if a slot states that epoch as well
    /// ([`FoundSlots::may_have_epoch`](super::unlock::FoundSlots::may_have_epoch)).
    Older {
        /// The epoch that the root states.
        root: u32,
    },
    /// The root is sealed under an older master key than the newest one of the key.
    Newer {
        /// The epoch of the root.
        root: u32,
    },
    /// The header of the root was changed after it was sealed: it states an impossible epoch, or is
    /// sealed under another master key, which the key holds.
    Changed {
        /// The epoch that the root states.
        root: u32,
    },
    /// The header of the root does not verify.
    Unknown,
}

impl Force {
    /// Returns the relation of `keyring` to the root with this header.
    pub(super) fn of(keyring: &Keyring, header: Option<&RootHeader>) -> Self {
        let Some(header) = header else {
            return Force::Standing;
        };
        match keyring.object_opener(Class::Root, ROOT_KEY, header) {
            Ok(_) => Force::Standing,
            Err(OpenError::NoKeyEpoch { epoch }) => {
                let is_impossible = epoch as usize >= Secrets::EPOCHS_MAX;
                let beneath = || keyring.epoch_beneath(Class::Root, ROOT_KEY, header);
                match is_impossible || beneath().is_some() {
                    true => Force::Changed { root: epoch },
                    false => Force::Older { root: epoch },
                }
            }
            Err(OpenError::OlderKeyEpoch { epoch, .. }) => Force::Newer { root: epoch },
            Err(_) => Force::Unknown,
        }
    }
}

/// The error for a root that states an epoch which no key slot states.
pub(crate) fn no_such_epoch(epoch: u32) -> RootError {
    let what = format!(
        "it states master key {epoch}, and no key slot is of that epoch: it was changed, or \
         the keys of that epoch were deleted (bkfs check --repair makes a new root)"
    );
    RootError::damaged(ROOT_KEY, what)
}

/// The error for a root that states an epoch which it is not sealed under.
pub(crate) fn changed_epoch(stated: u32) -> RootError {
    let what = format!(
        "it states master key {stated}, and is not sealed under that one: it was changed \
         (bkfs check --repair makes a new root)"
    );
    RootError::damaged(ROOT_KEY, what)
}
