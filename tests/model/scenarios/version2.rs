//! Bounded worlds of version 2.

use super::{
    C0, C1, CLONE_OF_CLONE, CLONES, COLLECTOR, CONVERSION, CONVERSION_FENCES, CONVERSION_SPOOL,
    HEALING, LEFT_OUT, M0_M1, NOTHING, OLD_COLLECTOR, ONE_CONTENT, REUSE_TAKEN, TWO_CLONERS,
    UNUSED, arriving, faults, mounted,
};
use crate::index::{Plane, RUNS as RUNS_MAX};
use crate::protocol::Event;
use crate::state::{Faults, NONE, Objects};
use crate::world::{QUIET, Role, Scenario, Write};
use Write::{Fresh, NewSegment, Reuse};

pub(super) const MERGER: Role = Role::Merger;

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
        Event::AcknowledgedAfterRebuild,
        Event::FsyncRefused,
        Event::Replayed,
        Event::Committed,
    ],
    ..QUIET
};

/// A writer reuses garbage while it is collected, and while index objects are merged.
pub const RUNS: Scenario = Scenario {
    name: "runs",
    roles: [
        mounted(0, &[&[Reuse(0), Fresh(1)]]),
        UNUSED,
        MERGER,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    plane: Plane::Objects,
    reaches: &[
        Event::Committed,
        Event::CopiedCondemned,
        Event::Merged,
        Event::MergedCondemned,
        Event::MergedGone,
        Event::Absorbed,
        Event::BecameGone,
        Event::LeftGone,
        Event::RunDeleted,
    ],
    ..QUIET
};

/// The same with runs from the start, whose PUTs and replacements may get no answer.
pub const RUNS_LATE: Scenario = Scenario {
    name: "runs, late",
    faults: faults(1, 0, 0, 1),
    plane: Plane::Runs,
    ..RUNS
};

/// A merger that registers while a collector deletes runs.
pub const RUNS_ARRIVAL: Scenario = Scenario {
    name: "runs, arrival",
    absent: 0b0100,
    ..RUNS_GONE
};

/// A commit leaves out a pack that no list names, and a later operation could rely on it.
pub const RUNS_LEFT_OUT: Scenario = Scenario {
    name: "runs, left out",
    last_epoch: 1,
    plane: Plane::Objects,
    ..LEFT_OUT
};

/// Packs of both ranges that are collected, forgotten and dropped.
pub const RUNS_GONE: Scenario = Scenario {
    name: "runs, gone",
    roles: [UNUSED, UNUSED, MERGER, COLLECTOR],
    given: [Objects::content(0), Objects::content(1), NOTHING, NOTHING],
    trees: [1, NONE, NONE],
    last_epoch: 1,
    plane: Plane::Objects,
    reaches: &[
        Event::Merged,
        Event::MergedCondemned,
        Event::MergedGone,
        Event::BecameGone,
        Event::LeftGone,
        Event::RunDeleted,
    ],
    ..QUIET
};

/// Two sessions that merge, each of which may be ended by mistake.
pub const TWO_MERGERS: Scenario = Scenario {
    name: "two mergers",
    roles: [UNUSED, MERGER, MERGER, COLLECTOR],
    given: [Objects::content(0), C1, NOTHING, NOTHING],
    trees: [0, NONE, NONE],
    last_epoch: 1,
    end_sessions: true,
    faults: faults(0, 0, 0, 1),
    plane: Plane::Objects,
    reaches: &[
        Event::Merged,
        Event::MergeRefused,
        Event::BecameGone,
        Event::LeftGone,
        Event::DeadSessionRefused,
    ],
    ..QUIET
};

/// Runs while the volume is taken over.
pub const RUNS_TAKEN: Scenario = Scenario {
    name: "runs, taken over",
    roles: [
        mounted(0, &[&[Reuse(0), NewSegment(0)]]),
        arriving(0, &[&[Reuse(0)]]),
        MERGER,
        COLLECTOR,
    ],
    runs_at_most: 4,
    plane: Plane::Runs,
    reaches: &[
        Event::FsyncAcknowledged,
        Event::Replayed,
        Event::ReplayCopied,
        Event::MergedCondemned,
        Event::MergedGone,
        Event::LeftGone,
        Event::RunDeleted,
        Event::Deleted,
    ],
    ..RUNS
};

/// Two collections, which rewrite mixed packs.
pub const RUNS_TWO_EPOCHS: Scenario = Scenario {
    name: "runs, two epochs",
    roles: [
        mounted(0, &[&[Reuse(0)], &[Fresh(2)]]),
        UNUSED,
        MERGER,
        COLLECTOR,
    ],
    given: [M0_M1, C0, C1, NOTHING],
    last_epoch: 2,
    runs_at_most: 4,
    reaches: &[
        Event::Rewritten,
        Event::MergedCondemned,
        Event::MergedGone,
        Event::LeftGone,
        Event::Deleted,
    ],
    ..RUNS
};

/// The same with index objects at the start and slow heartbeats.
pub const RUNS_TAKEN_FAULTS: Scenario = Scenario {
    name: "runs, taken over, late heartbeats",
    faults: faults(0, 0, 1, 0),
    runs_at_most: RUNS_MAX,
    plane: Plane::Objects,
    ..RUNS_TAKEN
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

/// A writer that learns footers, while what it has learned is collected and forgotten.
pub const SAMPLED: Scenario = Scenario {
    name: "sampled",
    roles: [
        mounted(0, &[&[Reuse(0), Fresh(1)], &[Reuse(0)]]),
        UNUSED,
        MERGER,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    sampled: true,
    plane: Plane::Runs,
    runs_at_most: 4,
    reaches: &[
        Event::FooterLearned,
        Event::FooterDropped,
        Event::ReusedCondemned,
        Event::CopiedCondemned,
        Event::BecameGone,
        Event::LeftGone,
    ],
    ..QUIET
};

/// A writer that arrives on a machine with footers from before.
pub const SAMPLED_ARRIVAL: Scenario = Scenario {
    name: "sampled, arrival",
    roles: [arriving(0, &[&[Reuse(0)]]), UNUSED, MERGER, COLLECTOR],
    cached: 0b11,
    reaches: &[Event::FooterLearned, Event::LeftGone, Event::Deleted],
    ..SAMPLED
};

/// A writer that learns footers of damaged packs.
pub const SAMPLED_HEALING: Scenario = Scenario {
    name: "sampled, healing",
    roles: [
        mounted(
            0,
            &[&[Reuse(0), Fresh(0)], &[Reuse(0), NewSegment(0), Fresh(1)]],
        ),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    last_epoch: 1,
    sampled: true,
    ..HEALING
};

/// Takeover, fences, learned footers, runs and a collection at once.
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
    plane: Plane::Runs,
    runs_at_most: 3,
    ..QUIET
};

/// Searched exhaustively in every run: fences.
pub const WITH_FENCES: &[Scenario] = &[FENCES, FENCES_COLLECTED, REBUILT];

/// Searched exhaustively in every run: runs.
pub const WITH_RUNS: &[Scenario] = &[
    RUNS,
    RUNS_LATE,
    RUNS_ARRIVAL,
    RUNS_LEFT_OUT,
    RUNS_GONE,
    TWO_MERGERS,
    RUNS_TAKEN,
];

/// Searched exhaustively in every run: all else of version 2.
pub const VERSION_2: &[Scenario] = &[
    TURN,
    DESCRIPTIONS,
    DESCRIPTIONS_REUSE,
    SAMPLED,
    SAMPLED_ARRIVAL,
    SAMPLED_HEALING,
    CLONES,
    CLONE_OF_CLONE,
    TWO_CLONERS,
    CONVERSION,
    CONVERSION_FENCES,
    CONVERSION_SPOOL,
    OLD_COLLECTOR,
];

/// Searched exhaustively when `BKFS_TEST_FULL=1`.
pub const VERSION_2_FULL: &[Scenario] =
    &[FENCES_LEFT, TOGETHER, RUNS_TAKEN_FAULTS, RUNS_TWO_EPOCHS];
