//! Changing the rule by which a repository's objects are locked: the one thing in its config that is not fixed at init.
//!
//! Owns that replacement, and what the root tells of the rule. A process that has opened the repository
//! before goes on by the rule that stood then.
//!
//! An older config verifies as well as the newest one. So the root keeps a hash of the rule: first
//! it tells of the old rule and of the new one, then the config is replaced, then the root tells of
//! the new one alone. What is interrupted leaves both admitted, until the rule is changed again.

use async_trait::async_trait;
use bkfs_chunker::entropy::Entropy;
use bkfs_chunker::lock::{LockMode, LockRule};
use bkfs_chunker::seal::{Config, Keyring};
use bkfs_chunker::store::Store;
use jiff::Timestamp;

use super::error::RootError;
use super::handle::{RootHandle, Transition};
use super::repository::{probe_lock, unopenable};
use super::retry::random;
use super::state::{Root, RuleHash, SessionId};

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

/// What a root tells of a rule of locks: the first 16 bytes of BLAKE3 over `"bkfs lock rule"`, and,
/// where there is a rule, its days (u32) and mode (one byte).
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

/// Whether a config that states `rule` may stand with `root`: it tells of that rule, or of none.
pub fn admits(root: &Root, rule: RuleHash) -> bool {
    let told = root.lock_rules.as_ref();
    told.is_none_or(|told| told.contains(&rule))
}

/// The root admits the `next` rule, and as long as the config is not replaced the one that it
/// states now.
///
/// # Errors
/// Those of a change of the root.
pub async fn announce(
    handle: &RootHandle,
    session: SessionId,
    stated: Option<RuleHash>,
    next: RuleHash,
) -> Result<(), RootError> {
    let rules = stated.into_iter().chain([next]).collect();
    handle.update(&mut Announce { session, rules }).await?;
    Ok(())
}

struct Announce {
    session: SessionId,
    rules: Vec<RuleHash>,
}

#[async_trait]
impl Transition for Announce {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        if next.chain.is_some() {
            next.lock_rules = Some(self.rules.clone());
        }
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(root.lock_rules.as_ref() == Some(&self.rules))
    }
}
