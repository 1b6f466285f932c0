//! Bounded worlds of version 2: clones, and conversion of repositories of version 1.

use super::{COLLECTOR, MERGER, ONE_CONTENT, SPOOL_ELSEWHERE, UNUSED, arriving, faults, mounted};
use crate::index::Plane;
use crate::protocol::Event;
use crate::state::NONE;
use crate::world::{QUIET, Role, Scenario, Write};
use Write::{Fresh, Reuse};

const CLONER: Role = Role::Cloner;

/// A clone whose source is forgotten, overwritten and collected, and which is taken over.
pub const CLONES: Scenario = Scenario {
    name: "clones",
    roles: [
        arriving(1, &[&[Reuse(0), Fresh(1)]]),
        arriving(1, &[&[Reuse(0)]]),
        CLONER,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    trees: [0, NONE, NONE],
    last_epoch: 1,
    faults: faults(0, 1, 0, 0),
    clones: true,
    reaches: &[
        Event::Cloned,
        Event::SourceRemoved,
        Event::SnapshotForgotten,
        Event::CloneRefused,
        Event::FsyncAcknowledged,
        Event::Committed,
        Event::Replayed,
        Event::CopiedCondemned,
        Event::Deleted,
    ],
    ..QUIET
};

/// A writer of the source, and a clone of a clone.
pub const CLONE_OF_CLONE: Scenario = Scenario {
    name: "clone of a clone",
    roles: [
        mounted(0, &[&[Fresh(1)]]),
        arriving(2, &[&[Reuse(0), Reuse(1)]]),
        CLONER,
        COLLECTOR,
    ],
    faults: faults(0, 0, 0, 0),
    reaches: &[
        Event::Cloned,
        Event::CloneCloned,
        Event::SnapshotForgotten,
        Event::Committed,
        Event::CopiedCondemned,
        Event::Deleted,
    ],
    ..CLONES
};

/// Two sessions that make the same clone, and a writer of it.
pub const TWO_CLONERS: Scenario = Scenario {
    name: "two cloners",
    roles: [arriving(1, &[&[Reuse(0)]]), CLONER, CLONER, COLLECTOR],
    reaches: &[Event::Cloned, Event::CloneRefused, Event::Committed],
    ..CLONES
};

/// A writer of version 1, which leaves or is taken over by a new program, and a session that
/// converts the repository and merges its index objects.
pub const CONVERSION: Scenario = Scenario {
    name: "conversion",
    roles: [
        mounted(0, &[&[Fresh(1)]]),
        arriving(0, &[&[Reuse(0)]]),
        MERGER,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    leave: true,
    end_sessions: true,
    plane: Plane::Objects,
    runs_at_most: 1,
    groups_at_most: 1,
    converts: true,
    old: 0b0001,
    absent: 0b1100,
    reaches: &[
        Event::Converted,
        Event::ConversionRefused,
        Event::Replayed,
        Event::Left,
        Event::GroupBegun,
        Event::GroupsLost,
        Event::Condemned,
        Event::Deleted,
    ],
    ..QUIET
};

/// A new program that holds a volume in a root of version 1, a program of version 1 that takes it
/// over, and a new program that takes it over before or after the conversion.
pub const CONVERSION_FENCES: Scenario = Scenario {
    name: "conversion, fences",
    roles: [
        mounted(0, &[&[Fresh(0)], &[Fresh(1)]]),
        arriving(0, &[&[Fresh(2)]]),
        arriving(0, &[]),
        UNUSED,
    ],
    faults: faults(0, 1, 0, 0),
    fences: true,
    leave: true,
    converts: true,
    old: 0b0010,
    reaches: &[
        Event::Converted,
        Event::ConversionRefused,
        Event::FsyncAcknowledged,
        Event::AcknowledgedUnfenced,
        Event::FsyncRefused,
        Event::Replayed,
        Event::ReplayedOlderSession,
    ],
    ..QUIET
};

/// A collector of version 1, before and after the conversion.
pub const OLD_COLLECTOR: Scenario = Scenario {
    name: "old collector",
    roles: [
        arriving(0, &[&[Reuse(0), Fresh(1)]]),
        UNUSED,
        MERGER,
        COLLECTOR,
    ],
    trees: [0, NONE, NONE],
    runs_at_most: 2,
    old: 0b1000,
    absent: 0b1100,
    reaches: &[
        Event::Converted,
        Event::ConversionRefused,
        Event::Condemned,
        Event::GroupCompleted,
    ],
    ..CONVERSION
};

/// A spool of version 1 whose volume was taken over elsewhere, and that is claimed after the
/// conversion.
pub const CONVERSION_SPOOL: Scenario = Scenario {
    name: "conversion, spool",
    leave: true,
    plane: Plane::Objects,
    converts: true,
    old: 0b0001,
    absent: 0b1000,
    reaches: &[
        Event::Converted,
        Event::KeptAcknowledged,
        Event::RecoveryBaseLeft,
        Event::RecoveryBaseHeldBack,
        Event::RecoveryBaseClaimed,
        Event::Deleted,
    ],
    ..SPOOL_ELSEWHERE
};
