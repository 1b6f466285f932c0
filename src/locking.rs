//! Which objects of a repository the bucket locks (`--lock-days`), and when.
//!
//! Owns the choice of objects. How a store locks is in the chunker; when locks are extended is [`crate::maintain::collect`]'s to say.
//!
//! Locked is what nothing else can replace: packs, data and metadata alike (trees, segments and commit records lie in them), the config, and the key slots. Not locked is what is rebuilt
//! from these by `bkfs check --repair`: the root, which is written anew with every commit, index objects and lists; nor what lives for minutes: heartbeats and journals.

use bkfs_chunker::lock::LockRule;
use bkfs_chunker::seal::Class;
use bkfs_chunker::store::Locking;

use crate::machine::Machine;
use crate::maintain::layout::{Place, place_of};

/// Whether an object of this key is locked.
pub fn is_locked(key: &str) -> bool {
    matches!(
        place_of(key),
        Place::Config | Place::Slot(_) | Place::Named(Class::DataPack | Class::MetadataPack, _)
    )
}

/// Locks new objects by `rule` and this machine's clock. One that is wrong by more than a quarter of an hour gets nothing from S3, which refuses what is signed with it.
pub fn locks(rule: LockRule, machine: &Machine) -> Locking {
    let machine = machine.clone();
    Locking {
        rule,
        wanted: is_locked,
        now: Box::new(move || machine.now()),
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
