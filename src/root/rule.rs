//! Changing the rule by which a repository's objects are locked: the one thing in its config that is not fixed at init.
//!
//! Owns that replacement, and what the root tells of the rule. A process that has opened the repository
//! before goes on by the rule that stood then.
//!
//! An older config verifies as well as the newest one. So the root keeps hashes of rules: first
//! it admits the new rule as well ([`announce`]), then the config is replaced, then the root tells
//! of the one that the config states ([`conclude`]). Sessions that do this at the same time leave
//! all their rules admitted, and the last of them to end tells of the one that stands. What is
//! interrupted leaves several admitted, until the rule is changed again.
//!
//! Whoever tells of the rule reads the config for that, after the root that is replaced: a session
//! that changes the config stands in the root all the while.

use async_trait::async_trait;
use bkfs_chunker::entropy::Entropy;
use bkfs_chunker::lock::{LockMode, LockRule};
use bkfs_chunker::seal::{Config, Keyring};
use bkfs_chunker::store::{Operation, Store, StoreError, StoreErrorKind, Version};
use jiff::Timestamp;

use super::error::RootError;
use super::handle::{RootHandle, Transition};
use super::repository::{probe_lock, unopenable};
use super::retry::{RetryPolicy, bounded, random};
use super::state::{Root, RuleHash, SessionId};
use super::transition::Refusal;

/// What a session that changes the rule names as its place, by which others know it.
pub const HOLDER: &str = "bkfs lock";

/// The most rules that a root admits while sessions change it.
const RULES_MAX: usize = 8;

/// Changes the rule to `rule`, by `session`, whose holder is named [`HOLDER`]. Dropped, it leaves
/// the old rule or the new one, and both admitted.
///
/// # Errors
/// [`RootError::UnfitStore`] if the bucket keeps no locks; the config is damaged; another session
/// replaced it meanwhile; store errors. With an unknown outcome either rule stands, and doing it
/// again is right.
pub async fn change(
    handle: &RootHandle,
    session: SessionId,
    rule: LockRule,
    now: Timestamp,
) -> Result<(), RootError> {
    announce(handle, session, hash(Some(rule))).await?;
    let (store, entropy) = (handle.store().as_ref(), handle.entropy().as_ref());
    let changed = set_rule(store, entropy, handle.keyring(), rule, now).await;
    // A replacement whose outcome is not known may yet arrive: its rule stays admitted.
    let may_arrive = |error: &StoreError| error.kind() != StoreErrorKind::Conflict;
    if matches!(&changed, Err(RootError::Store(error)) if may_arrive(error)) {
        return changed;
    }
    conclude(handle, session).await?;
    changed
}

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
    let (config, version) = read_proven(store, keyring).await?;
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

/// The config, if it was made with the secrets of this repository.
async fn read_proven(store: &dyn Store, keyring: &Keyring) -> Result<(Config, Version), RootError> {
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

/// What the config states now.
///
/// # Errors
/// It is not there, or not this repository's; store errors.
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

/// The root admits the `next` rule from now on, and the one that the config states.
///
/// # Errors
/// Those of a change of the root; the config cannot be read.
pub async fn announce(
    handle: &RootHandle,
    session: SessionId,
    next: RuleHash,
) -> Result<(), RootError> {
    tell(handle, session, Some(next)).await
}

/// The root admits the rule alone that the config states, unless another session is about to change
/// it.
///
/// # Errors
/// Those of a change of the root; the config cannot be read.
pub async fn conclude(handle: &RootHandle, session: SessionId) -> Result<(), RootError> {
    tell(handle, session, None).await
}

async fn tell(
    handle: &RootHandle,
    session: SessionId,
    next: Option<RuleHash>,
) -> Result<(), RootError> {
    let mut tell = Tell {
        handle,
        session,
        next,
    };
    handle.update(&mut tell).await?;
    Ok(())
}

struct Tell<'a> {
    handle: &'a RootHandle,
    session: SessionId,
    /// Admitted as well as all others; none: only what the config states.
    next: Option<RuleHash>,
}

impl Tell<'_> {
    fn has_others(&self, root: &Root) -> bool {
        let mut others = root.sessions.iter().filter(|(id, _)| **id != self.session);
        others.any(|(_, other)| other.volume.is_none() && other.holder.mount_point == HOLDER)
    }
}

#[async_trait]
impl Transition for Tell<'_> {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.session)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        if next.chain.is_none() {
            return Ok(());
        }
        let (store, policy) = (self.handle.store(), self.handle.policy());
        let stated = stated(&**store, self.handle.keyring(), &policy).await?;
        let mut rules = match self.next.is_some() || self.has_others(next) {
            true => next.lock_rules.take().unwrap_or_default(),
            false => Vec::new(),
        };
        for rule in [stated].into_iter().chain(self.next) {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        if rules.len() > RULES_MAX {
            let what = "rules of locks that are being changed";
            return Err(Refusal::Full { what }.into());
        }
        next.lock_rules = Some(rules);
        Ok(())
    }

    async fn seen(&mut self, _: &Root) -> Result<bool, RootError> {
        // Made again, it does the same.
        Ok(false)
    }
}
