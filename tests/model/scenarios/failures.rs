//! Bounded worlds with failures: packs that are answered out of order or never, damage while a
//! volume is taken over, journals that the bucket loses, machines that return with a spool.

use super::{C0, COLLECTOR, M0, NOTHING, ONE_CONTENT, ROT, UNUSED, arriving, faults, mounted};
use crate::protocol::Event;
use crate::state::{Faults, NONE, Objects};
use crate::world::{QUIET, Scenario, Write};
use Write::{Fresh, Reuse, SplitParentFirst};

/// Packs that are acknowledged before those that they refer to, and packs that get no answer, with
/// a new holder and a collector.
pub const OUT_OF_ORDER: Scenario = Scenario {
    name: "packs out of order",
    roles: [
        mounted(0, &[&[SplitParentFirst(0)], &[Reuse(0), Fresh(1)]]),
        arriving(0, &[]),
        UNUSED,
        COLLECTOR,
    ],
    last_epoch: 1,
    faults: faults(2, 1, 0, 0),
    give_up: true,
    reaches: &[
        Event::FsyncAcknowledged,
        Event::LatePack,
        Event::StoredAgain,
        Event::Replayed,
        Event::Deleted,
    ],
    ..QUIET
};

/// A takeover from a writer that relied on a whole copy. That copy was condemned, while a damaged
/// copy stays live for other content.
pub const DAMAGED_TAKEN: Scenario = Scenario {
    name: "damaged pack, taken over",
    roles: [
        mounted(0, &[&[Reuse(0)], &[Reuse(0)]]),
        arriving(0, &[]),
        UNUSED,
        COLLECTOR,
    ],
    given: [
        Objects::content(0).and(Objects::content(1)),
        Objects::content(0),
        NOTHING,
        NOTHING,
    ],
    trees: [NONE, 1, NONE],
    last_epoch: 1,
    faults: ROT,
    refresh: true,
    reaches: &[
        Event::Condemned,
        Event::Quarantined,
        Event::AcceptedHealing,
        Event::Replayed,
        Event::ReplayHealed,
        Event::Deleted,
    ],
    ..QUIET
};

/// Takeovers on other machines, from a writer one of whose journals the bucket loses.
pub const JOURNAL_LOST: Scenario = Scenario {
    name: "journal lost",
    roles: [
        mounted(0, &[&[Fresh(0)], &[Fresh(1)], &[Fresh(0)]]),
        arriving(0, &[]),
        UNUSED,
        UNUSED,
    ],
    faults: Faults {
        losses: 1,
        ..faults(0, 1, 0, 0)
    },
    delete_journals: true,
    in_turn: true,
    reaches: &[
        Event::JournalLost,
        Event::LossAccepted,
        Event::Replayed,
        Event::JournalDeleted,
    ],
    ..QUIET
};

/// The same on the machine that had acknowledged.
pub const JOURNAL_LOST_HERE: Scenario = Scenario {
    name: "journal lost, on its own machine",
    remembers: true,
    ..JOURNAL_LOST
};

/// The same with a second takeover. The first new holder writes as well.
pub const JOURNAL_LOST_TWICE: Scenario = Scenario {
    name: "journal lost, taken over twice",
    roles: [
        mounted(0, &[&[Fresh(0)], &[Fresh(1)], &[Fresh(0)]]),
        arriving(0, &[&[Fresh(2)]]),
        arriving(0, &[]),
        UNUSED,
    ],
    ..JOURNAL_LOST
};

/// A takeover with damage and slow journals, and a new holder that writes.
pub const DAMAGED_TAKEN_FAULTS: Scenario = Scenario {
    name: "damaged pack, taken over, late journals",
    roles: [
        mounted(0, &[&[Reuse(0), Fresh(0)], &[Reuse(0)]]),
        arriving(0, &[&[Reuse(0)]]),
        UNUSED,
        COLLECTOR,
    ],
    faults: Faults { journals: 1, ..ROT },
    ..DAMAGED_TAKEN
};

/// A writer whose disk acknowledges its operations, and that refers to objects that are collected.
/// It is taken over on another machine. Then its own machine comes back.
pub const SPOOL_ELSEWHERE: Scenario = Scenario {
    name: "spool, taken over elsewhere",
    roles: [
        mounted(0, &[&[Fresh(1), Reuse(0)]]),
        arriving(0, &[]),
        arriving(1, &[]),
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    in_turn: true,
    spools: true,
    machines: [0, 1, 0, 2],
    reaches: &[
        Event::KeptAcknowledged,
        Event::RecoveryBaseLeft,
        Event::RecoveryBaseHeldBack,
        Event::RecoveryBaseClaimed,
        Event::Deleted,
    ],
    ..QUIET
};

/// The same with a slow pack, and a new holder that writes.
pub const SPOOL_ELSEWHERE_FAULTS: Scenario = Scenario {
    name: "spool, taken over elsewhere, late packs",
    roles: [
        mounted(0, &[&[Fresh(1), Reuse(0)], &[Reuse(0)]]),
        arriving(0, &[&[Fresh(2)]]),
        arriving(1, &[]),
        COLLECTOR,
    ],
    faults: faults(1, 0, 0, 0),
    ..SPOOL_ELSEWHERE
};

/// The same, taken over on its own machine.
pub const SPOOL_HERE: Scenario = Scenario {
    name: "spool, taken over on its machine",
    roles: [
        mounted(0, &[&[Fresh(1), Reuse(0)], &[Reuse(0)]]),
        arriving(0, &[]),
        UNUSED,
        COLLECTOR,
    ],
    faults: faults(1, 0, 0, 0),
    machines: [0, 0, 0, 2],
    reaches: &[
        Event::KeptAcknowledged,
        Event::SpoolReplayed,
        Event::Replayed,
        Event::Deleted,
    ],
    ..SPOOL_ELSEWHERE
};

/// Two collections in a bucket that locks the packs of the start, and a writer that refers to
/// content that it has just overwritten.
pub const LOCKED: Scenario = Scenario {
    name: "locked",
    roles: [
        mounted(0, &[&[Fresh(1)], &[Reuse(0)]]),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    given: [M0, C0, Objects::content(2), NOTHING],
    trees: [0, NONE, NONE],
    last_epoch: 2,
    locks: true,
    reaches: &[
        Event::ReusedCondemned,
        Event::CopiedCondemned,
        Event::LockHeld,
        Event::LockedMoved,
        Event::Deleted,
        Event::EpochForgotten,
    ],
    ..QUIET
};
