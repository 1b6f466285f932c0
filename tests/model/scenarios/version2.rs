//! Bounded worlds of version 2.

use super::{REUSE_TAKEN, UNUSED, arriving, faults, mounted};
use crate::protocol::Event;
use crate::state::Faults;
use crate::world::{QUIET, Scenario, Write};
use Write::Fresh;

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

/// The same, with commits whose answer is lost, clean ends, and a third session that writes.
pub const FENCES_LONG: Scenario = Scenario {
    name: "fences, long",
    roles: [
        mounted(0, &[&[Fresh(0)], &[Fresh(1)]]),
        arriving(0, &[&[Fresh(2)]]),
        arriving(0, &[&[Fresh(3)]]),
        UNUSED,
    ],
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

/// Searched exhaustively in every run.
pub const VERSION_2: &[Scenario] = &[FENCES, FENCES_COLLECTED];
