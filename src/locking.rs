//! The choice of objects that the bucket locks (`--lock-days`).
//!
//! This module owns the choice. The chunker knows how a store locks objects, and
//! [`crate::maintain::collect`] decides when locks are extended.
//!
//! Objects that cannot be rebuilt from others are locked: data packs and metadata packs (which hold
//! trees, segments and commit records), the config, and the key slots. Objects that `bkfs check
//! --repair` rebuilds from these are not locked: the root, which every commit replaces, index
//! objects and lists. Objects that live for minutes are not locked either: heartbeats and journals.

use bkfs_chunker::crypto::Class;
use bkfs_store::Locking;
use bkfs_store::lock::LockRule;

use crate::environment::Environment;
use crate::maintain::layout::{NamedObject, place_of};

/// Whether an object with this key is locked.
pub fn is_locked(key: &str) -> bool {
    matches!(
        place_of(key),
        NamedObject::Config
            | NamedObject::Slot(_)
            | NamedObject::Named(Class::DataPack | Class::MetadataPack, _)
    )
}

/// Returns the locking of new objects by `rule` and this machine's clock.
///
/// If the clock is wrong by more than 15 minutes, S3 refuses every request that is signed with it.
pub fn locks(rule: LockRule, environment: &Environment) -> Locking {
    let environment = environment.clone();
    Locking {
        rule,
        wanted: is_locked,
        now: Box::new(move || environment.now()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_else_can_replace_is_locked() {
        let name = "00000000000000aa-00000001-0000005c";
        for locked in ["config", "keys/00000000000000aa"] {
            assert!(is_locked(locked), "{locked}");
        }
        for class in ["data", "meta"] {
            assert!(is_locked(&format!("{class}/5c/{name}")), "{class}");
        }
        for free in ["index", "lists"] {
            assert!(!is_locked(&format!("{free}/{name}")), "{free}");
        }
        for free in [
            "root",
            "sessions/00000000000000aa",
            "probe/1-present",
            "damaged/x",
        ] {
            assert!(!is_locked(free), "{free}");
        }
    }
}
