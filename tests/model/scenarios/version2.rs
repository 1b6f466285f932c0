//! Bounded worlds of version 2.

use super::{
    CLONE_OF_CLONE, CLONES, COLLECTOR, CONVERSION, CONVERSION_FENCES, CONVERSION_SPOOL, MERGER,
    OLD_COLLECTOR, ONE_CONTENT, REUSE_TAKEN, TWO_CLONERS, UNUSED, arriving, faults, mounted,
};
use crate::index::Plane;
use crate::protocol::Event;
use crate::state::Faults;
use crate::world::{QUIET, Scenario, Write};
use Write::{Fresh, Reuse};

/// Takeovers, with fences in the place of reading R in fsync.
pub const FENCES: Scenario = Scenario {
    name: "fences",
    roles: [
        mounted(0, &[&[Fresh(0)], &[Fresh(1)]]),
        arriving(0, &[&[Fresh(2)]]),
        arriving(0, &[]),
        UNUSED,
    ],
    faults: Faults {
        fences: 1,
        ..faults(0, 1, 0, 0)
    },
    fences: true,
    reaches: &[
        Event::Committed,
        Event::FsyncAcknowledged,
        Event::FsyncRefused,
        Event::Replayed,
        Event::ReplayedOlderSession,
        Event::JournalLandedAfterListing,
        Event::AcknowledgedUnfenced,
        Event::FencedAgain,
        Event::LateFence,
        Event::FenceDeleted,
    ],
    ..QUIET
};

/// The same, with commits whose answer is lost, and clean ends.
pub const FENCES_LEFT: Scenario = Scenario {
    name: "fences, left",
    faults: Faults {
        fences: 1,
        ..faults(0, 1, 0, 1)
    },
    leave: true,
    ..FENCES
};

/// Fences alongside a collector: what a writer refers to is condemned while it is taken over.
pub const FENCES_COLLECTED: Scenario = Scenario {
    name: "fences, collected",
    faults: Faults {
        fences: 1,
        ..faults(0, 1, 1, 0)
    },
    fences: true,
    reaches: &[
        Event::FsyncAcknowledged,
        Event::FsyncRefused,
        Event::Replayed,
        Event::ReplayCopied,
        Event::AcknowledgedUnfenced,
        Event::Deleted,
    ],
    ..REUSE_TAKEN
};

/// A root that is lost and rebuilt, while writers go on.
pub const REBUILT: Scenario = Scenario {
    name: "rebuilt",
    roles: [
        mounted(0, &[&[Fresh(0)]]),
        arriving(0, &[&[Fresh(1)]]),
        arriving(0, &[]),
        UNUSED,
    ],
    faults: faults(0, 1, 1, 0),
    fences: true,
    rebuilds: true,
    reaches: &[
        Event::Rebuilt,
        Event::AcknowledgedWhileLost,
        Event::FsyncRefused,
        Event::Replayed,
        Event::Committed,
    ],
    ..QUIET
};

/// A collector that sets a turn, and a writer that does not wait. A second collector may end it.
pub const TURN: Scenario = Scenario {
    name: "turn",
    roles: [
        mounted(0, &[&[Reuse(0)], &[Fresh(1), Reuse(0)]]),
        UNUSED,
        COLLECTOR,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    faults: faults(0, 0, 0, 1),
    end_sessions: true,
    turns: true,
    reaches: &[
        Event::TurnSet,
        Event::TurnIgnored,
        Event::Shrunk,
        Event::SessionEnded,
        Event::Condemned,
        Event::Deleted,
    ],
    ..QUIET
};

/// Processes of one machine that crash, and that a new holder may end only if it knows that they
/// are dead.
pub const DESCRIPTIONS: Scenario = Scenario {
    name: "descriptions",
    roles: [
        mounted(0, &[&[Fresh(0)]]),
        arriving(0, &[&[Fresh(1)]]),
        arriving(0, &[]),
        UNUSED,
    ],
    faults: faults(0, 0, 1, 0),
    judged: true,
    reaches: &[Event::Crashed, Event::TakenForAlive, Event::Replayed],
    ..QUIET
};

/// The same with content that is collected, and a writer that arrives from outside.
pub const DESCRIPTIONS_REUSE: Scenario = Scenario {
    name: "descriptions, reuse",
    roles: [
        arriving(0, &[&[Reuse(0), Fresh(1)]]),
        arriving(0, &[]),
        UNUSED,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    judged: true,
    reaches: &[Event::Crashed, Event::TakenForAlive, Event::Deleted],
    ..QUIET
};

/// Takeover, fences, learned footers, groups and a collection at once.
pub const TOGETHER: Scenario = Scenario {
    name: "version 2 together",
    roles: [
        mounted(0, &[&[Reuse(0), Fresh(1)]]),
        arriving(0, &[&[Reuse(0)]]),
        MERGER,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    faults: Faults {
        fences: 1,
        ..faults(0, 1, 0, 0)
    },
    fences: true,
    sampled: true,
    plane: Plane::Groups,
    runs_at_most: 3,
    groups_at_most: 2,
    ..QUIET
};

/// Searched exhaustively in every run: fences.
pub const WITH_FENCES: &[Scenario] = &[FENCES, FENCES_COLLECTED, REBUILT];

/// Searched exhaustively in every run: all else of version 2.
pub const VERSION_2: &[Scenario] = &[
    TURN,
    DESCRIPTIONS,
    DESCRIPTIONS_REUSE,
    CLONES,
    CLONE_OF_CLONE,
    TWO_CLONERS,
    CONVERSION,
    CONVERSION_FENCES,
    CONVERSION_SPOOL,
    OLD_COLLECTOR,
];

/// Searched exhaustively when `BKFS_TEST_FULL=1`.
pub const VERSION_2_FULL: &[Scenario] = &[FENCES_LEFT, TOGETHER];
