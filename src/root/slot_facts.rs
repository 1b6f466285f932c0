//! The facts that users see about a key slot.
//!
//! Owns these facts, and how many slots there may be. [`super::slots`] reads and adds slots.

use bkfs_chunker::crypto::{Slot, SlotCost, SlotName, Statement};

/// Most slots that may exist when one is added. People make each by hand.
pub(super) const SLOTS_MAX: usize = 64;

/// A slot, as shown to users.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SlotFacts {
    /// Its name.
    pub name: SlotName,
    /// Its label.
    pub label: String,
    /// When it was made, in seconds since 1970, by the clock of the host that made it.
    pub created_s: u64,
    /// Work of one trial of a password.
    pub cost: SlotCost,
    /// True if the given password opens it.
    pub is_own: bool,
    /// True if the given password opens it and the root is sealed under its newest master key.
    pub is_in_force: bool,
    /// The epoch of its newest master key: verified if the given password opens it, else as the
    /// slot states it, if it does.
    pub epoch: Option<u32>,
    /// Whether label and time are those of its creation; `None` if the password cannot tell.
    pub statement: Option<Statement>,
}

/// Returns the facts that a slot states of itself.
pub(super) fn facts_of(name: SlotName, slot: &Slot) -> SlotFacts {
    SlotFacts {
        name,
        label: slot.label().to_owned(),
        created_s: slot.created_s(),
        cost: slot.cost(),
        is_own: false,
        is_in_force: false,
        epoch: slot.epoch(),
        statement: None,
    }
}
