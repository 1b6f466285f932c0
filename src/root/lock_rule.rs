//! The rule by which a repository's objects are locked, as the config and the root state it.
//!
//! Owns the reading of a config that the keys prove, the hash of a rule, and which rules a root
//! admits. [`super::rule`] changes the rule.

use super::error::{RootError, unopenable};
use super::retry::{RetryPolicy, bounded};
use super::state::{Root, RuleHash};
use bkfs_chunker::crypto::{Config, Keyring};
use bkfs_store::lock::{LockMode, LockRule};
use bkfs_store::{Operation, Store, Version};

/// Reads the config, and checks that it was made with the secrets of this repository.
pub(super) async fn read_proven(
    store: &dyn Store,
    keyring: &Keyring,
) -> Result<(Config, Version), RootError> {
    let (object, version) = store.get(Config::KEY).await?;
    let config = Config::open(&object).map_err(|source| unopenable(Config::KEY, source))?;
    let proven = match keyring.is_sealed() {
        true => config.unlock(keyring.secrets().clone()).map(Some),
        false => config.keyring(),
    };
    let proven = proven.map_err(|source| unopenable(Config::KEY, source))?;
    match proven.is_some_and(|proven| proven.repository() == keyring.repository()) {
        true => Ok((config, version)),
        false => Err(RootError::damaged(
            Config::KEY,
            "it is another repository's",
        )),
    }
}

/// Returns the hash of the rule that the config states now.
///
/// # Errors
/// [`RootError::Store`] if the config is missing or cannot be fetched in time.
/// [`RootError::Unopenable`] or [`RootError::Damaged`] if it does not verify with the keys of this
/// repository.
pub(super) async fn stated(
    store: &dyn Store,
    keyring: &Keyring,
    policy: &RetryPolicy,
) -> Result<RuleHash, RootError> {
    let read = async { Ok(read_proven(store, keyring).await) };
    let read = bounded(policy, Operation::Get, Config::KEY, read).await;
    let (config, _) = read??;
    Ok(hash(config.lock()))
}

/// Returns the hash by which a root names a rule of locks: the first 16 bytes of BLAKE3 over `"bkfs
/// lock rule"`, followed by the days (u32, little-endian) and the mode (one byte) if there is a
/// rule.
pub fn hash(rule: Option<LockRule>) -> RuleHash {
    let mut text = b"bkfs lock rule".to_vec();
    if let Some(LockRule { days, mode }) = rule {
        text.extend_from_slice(&days.to_le_bytes());
        text.push(match mode {
            LockMode::Governance => 0,
            LockMode::Compliance => 1,
        });
    }
    let mut hash = RuleHash([0; 16]);
    hash.0
        .copy_from_slice(&blake3::hash(&text).as_bytes()[..16]);
    hash
}

/// Returns whether `root` admits a config that states `rule`: the root names that rule, or no rule
/// at all.
pub fn admits(root: &Root, rule: RuleHash) -> bool {
    let told = root.lock_rules.as_ref();
    told.is_none_or(|told| told.contains(&rule))
}
