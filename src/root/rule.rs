//! Changes the rule by which a repository's objects are locked, which is the only field of the
//! config that is not fixed at init.
//!
//! Owns that replacement, and the rules that the root admits during it. A process that opened the
//! repository before the change keeps using the old rule.
//!
//! An older config verifies as well as the newest one. So the root keeps hashes of rules. First the
//! root admits the new rule in addition ([`announce`]). Then the config is replaced. Then the root
//! admits only the rule that the config states ([`conclude`]). Sessions that do this at the same
//! time leave all their rules admitted, and the last of them to end leaves only the rule in the
//! config. An interrupted change leaves several rules admitted until the rule is changed again.
//!
//! A session that updates the hashes reads the config after the root that it replaces. A session
//! that changes the config is registered in the root during the whole change.

use async_trait::async_trait;
use bkfs_chunker::crypto::{Config, Keyring};
use bkfs_store::entropy::Entropy;
use bkfs_store::lock::LockRule;
use bkfs_store::{Store, StoreError, StoreErrorKind};
use jiff::Timestamp;

use super::error::RootError;
use super::handle::{RootHandle, Transition};
use super::lock_rule::{hash, read_proven, stated};
use super::refusal::Refusal;
use super::repository::probe_lock;
use super::retry::random;
use super::state::{Root, RuleHash, SessionId};

/// The mount point that a session names while it changes the rule. Other sessions recognize it by
/// that.
pub const HOLDER: &str = "bkfs lock";

/// The largest number of rules that a root admits while sessions change the rule.
const RULES_MAX: usize = 8;

/// Changes the rule to `rule`, for `session`, whose mount point is [`HOLDER`].
///
/// Cancel safety: dropped, it leaves the old rule or the new one in the config, and both admitted.
///
/// # Errors
/// - [`RootError::UnfitStore`] if the bucket keeps no locks.
/// - [`RootError::Unopenable`] or [`RootError::Damaged`] if the config does not verify with the
///   keys of this repository.
/// - [`RootError::Store`] if another session replaced the config meanwhile, or the store fails.
///   With an unknown outcome either rule may be in the config, and repeating the call is safe.
/// - The errors of [`announce`] and [`conclude`].
pub async fn change(
    handle: &RootHandle,
    session: SessionId,
    rule: LockRule,
    now: Timestamp,
) -> Result<(), RootError> {
    announce(handle, session, hash(Some(rule))).await?;
    let (store, entropy) = (handle.store().as_ref(), handle.entropy().as_ref());
    let changed = set_rule(store, entropy, handle.keyring(), rule, now).await;
    // A replacement with an unknown outcome may still arrive, so its rule stays admitted.
    let may_arrive = |error: &StoreError| error.kind() != StoreErrorKind::Conflict;
    if matches!(&changed, Err(RootError::Store(error)) if may_arrive(error)) {
        return changed;
    }
    conclude(handle, session).await?;
    changed
}

/// Replaces the config by one that states `rule`, after a test that the bucket keeps locks.
///
/// Cancel safety: dropped, it leaves the old config or the new one, and the lock of the new one
/// maybe not extended.
///
/// # Errors
/// - [`RootError::UnfitStore`] if the bucket keeps no locks.
/// - [`RootError::Unopenable`] or [`RootError::Damaged`] if the config does not verify with the
///   keys of this repository.
/// - [`RootError::Store`] if the config was replaced meanwhile, or the store fails. With an unknown
///   outcome either rule may be in the config, and repeating the call is safe.
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

/// Makes the root admit the rule `next`, in addition to the rules that it admits already and the
/// one in the config.
///
/// Cancel safety: dropped, it leaves the change unsent, or sent with an unknown outcome, which the
/// handle settles before its next change.
///
/// # Errors
/// - [`RootError::Refused`] with [`Refusal::Full`] if the root would admit more than eight rules.
/// - [`RootError::Store`], [`RootError::Unopenable`] or [`RootError::Damaged`] if the config cannot
///   be read or does not verify.
/// - The other errors of [`RootHandle::update`].
pub async fn announce(
    handle: &RootHandle,
    session: SessionId,
    next: RuleHash,
) -> Result<(), RootError> {
    tell(handle, session, Some(next)).await
}

/// Makes the root admit only the rule that the config states. If another session is changing the
/// rule, the root keeps admitting all its rules.
///
/// Cancel safety: dropped, it leaves the change unsent, or sent with an unknown outcome, which the
/// handle settles before its next change.
///
/// # Errors
/// Those of [`announce`].
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
    /// The rule to admit in addition to all others; none: admit only the rule in the config.
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
        // A repeated change has the same result.
        Ok(false)
    }
}
