//! Changing the rule by which a repository's objects are locked: the one thing in its config that is not fixed at init.
//!
//! Owns that replacement. Whoever has opened the repository before goes on by the rule that stood then.

use bkfs_chunker::entropy::Entropy;
use bkfs_chunker::lock::LockRule;
use bkfs_chunker::seal::{Config, Keyring};
use bkfs_chunker::store::Store;
use jiff::Timestamp;

use super::error::RootError;
use super::repository::{probe_lock, unopenable};
use super::retry::random;

/// Replaces the config by one that states `rule`, once the bucket has been seen to keep locks.
///
/// # Errors
/// [`RootError::UnfitStore`] if it keeps none; the config is damaged; store errors. With an unknown outcome either rule stands, and doing it again is right.
pub async fn set_rule(
    store: &dyn Store,
    entropy: &dyn Entropy,
    keyring: &Keyring,
    rule: LockRule,
    now: Timestamp,
) -> Result<(), RootError> {
    probe_lock(store, entropy, rule, now).await?;
    let (object, version) = store.get(Config::KEY).await?;
    let config = Config::open(&object).map_err(|source| unopenable(Config::KEY, source))?;
    // What is carried over is believed only if it was made with the secrets of this repository.
    let proven = match keyring.is_sealed() {
        true => config.unlock(keyring.secrets().clone()).map(Some),
        false => config.keyring(),
    };
    let proven = proven.map_err(|source| unopenable(Config::KEY, source))?;
    if proven.is_none_or(|proven| proven.repository() != keyring.repository()) {
        return Err(RootError::damaged(
            Config::KEY,
            "it is another repository's",
        ));
    }
    let changed = Config::create(
        keyring.repository(),
        config.cutting(),
        keyring.is_sealed(),
        keyring.secrets(),
        random(entropy),
        Some(rule),
    );
    store.replace(Config::KEY, vec![changed], &version).await?;
    if rule.days > 0 {
        let lock = rule.lock_from(now);
        store.extend_lock(Config::KEY, &lock).await?;
    }
    Ok(())
}
