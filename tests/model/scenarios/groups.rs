//! Bounded worlds with groups of runs and learned footers (rules 12 and 13).

use super::{
    C0, C1, COLLECTOR, HEALING, LEFT_OUT, M0_M1, MERGER, NOTHING, ONE_CONTENT, UNUSED, arriving,
    faults, mounted,
};
use crate::index::{GROUPS, Plane, RUNS as RUNS_MAX};
use crate::protocol::Event;
use crate::state::{NONE, Objects};
use crate::world::{QUIET, Scenario, Write};
use Write::{Fresh, NewSegment, Reuse};

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
    runs_at_most: 4,
    groups_at_most: 2,
    reaches: &[
        Event::Committed,
        Event::CopiedCondemned,
        Event::SliceNamed,
        Event::MergedCondemned,
        Event::MergedDropped,
        Event::GroupCompleted,
        Event::GroupsMerged,
        Event::Dropped,
        Event::DroppedWhileBuilt,
        Event::RunDeleted,
    ],
    ..QUIET
};

/// The same with a group from the start, whose merge may get no answer.
pub const RUNS_LATE: Scenario = Scenario {
    name: "runs, late",
    faults: faults(1, 0, 0, 1),
    plane: Plane::Groups,
    ..RUNS
};

/// A merger that registers while a collector deletes runs.
pub const RUNS_ARRIVAL: Scenario = Scenario {
    name: "runs, arrival",
    roles: [UNUSED, UNUSED, MERGER, COLLECTOR],
    absent: 0b0100,
    ..RUNS_DROPPED
};

/// A commit leaves out a pack that no list names, and a later operation could rely on it.
pub const RUNS_LEFT_OUT: Scenario = Scenario {
    name: "runs, left out",
    last_epoch: 1,
    plane: Plane::Objects,
    ..LEFT_OUT
};

/// Packs of both slices that are collected, forgotten and dropped while groups are merged, and a
/// writer that arrives at any time.
pub const RUNS_DROPPED: Scenario = Scenario {
    name: "runs, dropped",
    roles: [arriving(0, &[&[Reuse(0)]]), UNUSED, MERGER, COLLECTOR],
    given: [Objects::content(0), Objects::content(1), NOTHING, NOTHING],
    trees: [NONE, 1, NONE],
    last_epoch: 1,
    plane: Plane::Groups,
    reaches: &[
        Event::SliceNamed,
        Event::MergedCondemned,
        Event::MergedDropped,
        Event::GroupsMerged,
        Event::Dropped,
        Event::DroppedWhileBuilt,
        Event::RunDeleted,
    ],
    ..QUIET
};

/// Groups that leave the root at any time.
pub const RUNS_LEAVING: Scenario = Scenario {
    name: "runs, leaving",
    groups_leave: true,
    reaches: &[
        Event::GroupLeft,
        Event::GroupBegun,
        Event::MergeRefused,
        Event::GroupsMerged,
        Event::DroppedWhileBuilt,
    ],
    ..RUNS_DROPPED
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
    runs_at_most: 4,
    groups_at_most: 2,
    reaches: &[
        Event::SliceNamed,
        Event::MergeRefused,
        Event::GroupCompleted,
        Event::GroupsMerged,
        Event::DroppedWhileBuilt,
        Event::DeadSessionRefused,
    ],
    ..QUIET
};

/// Two mergers, a writer that arrives, and groups that leave.
pub const TWO_MERGERS_LEAVING: Scenario = Scenario {
    name: "two mergers, leaving",
    roles: [arriving(0, &[&[Reuse(0)]]), MERGER, MERGER, COLLECTOR],
    groups_leave: true,
    runs_at_most: 5,
    groups_at_most: 2,
    reaches: &[Event::GroupsMerged, Event::DroppedWhileBuilt],
    ..RUNS_DROPPED
};

/// Commits that absorb index objects, while these are merged and collected.
pub const RUNS_ABSORBED: Scenario = Scenario {
    name: "runs, absorbed",
    roles: [
        arriving(0, &[&[Reuse(0)]]),
        mounted(1, &[&[Fresh(2)]]),
        MERGER,
        COLLECTOR,
    ],
    given: [Objects::content(0), NOTHING, NOTHING, NOTHING],
    last_epoch: 1,
    absorbs: true,
    plane: Plane::Objects,
    runs_at_most: 2,
    groups_at_most: 1,
    reaches: &[
        Event::Committed,
        Event::GroupLeftWithObject,
        Event::GroupCompleted,
        Event::DroppedWhileBuilt,
        Event::Dropped,
    ],
    ..QUIET
};

/// The same with merges of several groups.
pub const RUNS_ABSORBED_LONG: Scenario = Scenario {
    name: "runs, absorbed, three groups",
    runs_at_most: 5,
    groups_at_most: GROUPS,
    plane: Plane::Groups,
    ..RUNS_ABSORBED
};

/// An old program that writes, and one that collects. Both lose the groups that a merger makes.
pub const RUNS_OLD: Scenario = Scenario {
    name: "runs, old programs",
    roles: [
        arriving(0, &[&[Reuse(0)]]),
        mounted(1, &[&[Fresh(2)]]),
        MERGER,
        COLLECTOR,
    ],
    given: [Objects::content(0), NOTHING, NOTHING, NOTHING],
    trees: [NONE; 3],
    old: 0b1010,
    runs_at_most: 4,
    groups_at_most: 2,
    plane: Plane::Objects,
    reaches: &[
        Event::GroupsLost,
        Event::GroupBegun,
        Event::MergeRefused,
        Event::GroupCompleted,
        Event::Deleted,
        Event::RunDeleted,
    ],
    ..RUNS_DROPPED
};

/// The same with a group from the start, and one more.
pub const RUNS_OLD_LONG: Scenario = Scenario {
    name: "runs, old programs, three groups",
    given: RUNS_DROPPED.given,
    trees: RUNS_DROPPED.trees,
    runs_at_most: RUNS_MAX,
    groups_at_most: GROUPS,
    plane: Plane::Groups,
    ..RUNS_OLD
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
    plane: Plane::Groups,
    reaches: &[
        Event::Replayed,
        Event::ReplayCopied,
        Event::SliceNamed,
        Event::MergedCondemned,
        Event::MergedDropped,
        Event::Deleted,
    ],
    ..RUNS
};

/// The same with index objects at the start and slow heartbeats.
pub const RUNS_TAKEN_FAULTS: Scenario = Scenario {
    name: "runs, taken over, late heartbeats",
    faults: faults(0, 0, 1, 0),
    plane: Plane::Objects,
    ..RUNS_TAKEN
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
    reaches: &[
        Event::Rewritten,
        Event::MergedCondemned,
        Event::MergedDropped,
        Event::Deleted,
    ],
    ..RUNS
};

/// Packs that are forgotten in two epochs, and a writer whose index is as new as the root.
pub const RUNS_FORGOTTEN_TWICE: Scenario = Scenario {
    name: "runs, forgotten twice",
    roles: [
        mounted(0, &[&[Fresh(1)], &[Reuse(2)]]),
        UNUSED,
        MERGER,
        COLLECTOR,
    ],
    given: [Objects::content(0), Objects::content(2), NOTHING, NOTHING],
    trees: [0, NONE, NONE],
    last_epoch: 2,
    refresh: true,
    runs_at_most: 4,
    groups_at_most: 2,
    reaches: &[
        Event::GroupsMerged,
        Event::Dropped,
        Event::DroppedWhileBuilt,
        Event::MergedDropped,
    ],
    ..RUNS_DROPPED
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
    plane: Plane::Groups,
    runs_at_most: 4,
    groups_at_most: 2,
    reaches: &[
        Event::FooterLearned,
        Event::FooterDropped,
        Event::ReusedCondemned,
        Event::CopiedCondemned,
        Event::Dropped,
        Event::GroupsMerged,
    ],
    ..QUIET
};

/// A writer that arrives on a machine with footers from before, and groups that leave.
pub const SAMPLED_ARRIVAL: Scenario = Scenario {
    name: "sampled, arrival",
    roles: [arriving(0, &[&[Reuse(0)]]), UNUSED, MERGER, COLLECTOR],
    cached: 0b11,
    groups_leave: true,
    reaches: &[
        Event::CachedFooterTaken,
        Event::FooterLearned,
        Event::FooterDropped,
        Event::Dropped,
        Event::GroupsMerged,
        Event::Deleted,
    ],
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
    plane: Plane::Groups,
    ..HEALING
};

/// Searched exhaustively in every run: groups and learned footers.
pub const WITH_RUNS: &[Scenario] = &[
    RUNS,
    RUNS_LATE,
    RUNS_ARRIVAL,
    RUNS_LEFT_OUT,
    RUNS_DROPPED,
    RUNS_LEAVING,
    RUNS_ABSORBED,
    RUNS_OLD,
    TWO_MERGERS,
    RUNS_TAKEN,
    SAMPLED,
    SAMPLED_ARRIVAL,
    SAMPLED_HEALING,
];

/// Searched exhaustively when `BKFS_TEST_FULL=1`.
pub const RUNS_FULL: &[Scenario] = &[
    RUNS_TAKEN_FAULTS,
    RUNS_TWO_EPOCHS,
    RUNS_FORGOTTEN_TWICE,
    RUNS_ABSORBED_LONG,
    TWO_MERGERS_LEAVING,
    RUNS_OLD_LONG,
];
