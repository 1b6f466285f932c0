//! The bounded worlds.
//!
//! Every run searches the first group exhaustively under all rules. With `BKFS_TEST_FULL=1` it also
//! searches the second, larger group. The third group holds small worlds, each made for one or two
//! mutants. They are searched under all rules too, so that a counterexample there comes from the
//! mutant.

use crate::protocol::Event;
use crate::state::{Faults, NONE, Objects};
use crate::world::{QUIET, Role, Scenario, Write};
use Write::{Fresh, FreshWith, NewSegment, Reuse, Split};

mod changes;
mod failures;
mod groups;
mod version2;

pub use changes::*;
pub use failures::*;
pub use groups::*;
pub use version2::*;

const UNUSED: Role = Role::Unused;
const COLLECTOR: Role = Role::Collector;
const MERGER: Role = Role::Merger;

/// A writer that holds its volume from the start.
const fn mounted(volume: usize, menu: &'static [&'static [Write]]) -> Role {
    Role::Writer {
        volume,
        mounted: true,
        menu,
    }
}

/// A writer that must register and take its volume.
const fn arriving(volume: usize, menu: &'static [&'static [Write]]) -> Role {
    Role::Writer {
        volume,
        mounted: false,
        menu,
    }
}

const fn faults(packs: u8, journals: u8, heartbeats: u8, commits: u8) -> Faults {
    Faults {
        packs,
        journals,
        heartbeats,
        commits,
        rots: 0,
        losses: 0,
        fences: 0,
    }
}

/// One pack is damaged.
const ROT: Faults = Faults {
    rots: 1,
    ..faults(0, 0, 0, 0)
};

const NOTHING: Objects = Objects(0);
const M0: Objects = Objects::segment(0);
const C0: Objects = Objects::chunk(0);
const C1: Objects = Objects::chunk(1);
const M0_M1: Objects = Objects::segment(0).and(Objects::segment(1));
/// Segment and chunk of content 0 in packs of their own, as metadata and data packs are.
const ONE_CONTENT: [Objects; 4] = [M0, C0, NOTHING, NOTHING];

/// Takeovers without collection: a writer, a new holder, and a new holder that follows it.
pub const TAKEOVER: Scenario = Scenario {
    name: "takeover",
    roles: [
        mounted(0, &[&[Fresh(0)], &[Fresh(1)]]),
        arriving(0, &[&[Fresh(2)]]),
        arriving(0, &[&[Fresh(3)]]),
        UNUSED,
    ],
    faults: faults(0, 1, 0, 1),
    leave: true,
    delete_journals: true,
    reaches: &[
        Event::Committed,
        Event::LostCommitRecognised,
        Event::FsyncAcknowledged,
        Event::FsyncRefused,
        Event::Replayed,
        Event::ReplayedOlderSession,
        Event::JournalLandedAfterListing,
        Event::JournalDeleted,
        Event::Left,
    ],
    ..QUIET
};

/// A writer reuses garbage while it is collected; every request that can be slow is slow once.
pub const REUSE: Scenario = Scenario {
    name: "reuse",
    roles: [
        mounted(0, &[&[Reuse(0), NewSegment(0)], &[Fresh(1), Reuse(0)]]),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    faults: faults(1, 1, 1, 1),
    reaches: &[
        Event::Committed,
        Event::LostCommitRecognised,
        Event::FsyncAcknowledged,
        Event::FailingPackLeftOut,
        Event::CopiedCondemned,
        Event::BaseRaisedHolding,
        Event::BaseHeldBack,
        Event::LateHeartbeat,
        Event::LatePack,
        Event::ReusedCondemned,
        Event::Condemned,
        Event::Shrunk,
        Event::ClosedAgain,
        Event::DeletionHeldBack,
        Event::Deleted,
        Event::EpochForgotten,
    ],
    ..QUIET
};

/// The same while the volume is taken over.
pub const REUSE_TAKEN: Scenario = Scenario {
    name: "reuse, taken over",
    roles: [
        mounted(0, &[&[Reuse(0), NewSegment(0), Split(0)]]),
        arriving(0, &[&[Reuse(0)]]),
        UNUSED,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    faults: faults(0, 1, 1, 0),
    reaches: &[
        Event::FsyncAcknowledged,
        Event::FsyncRefused,
        Event::Replayed,
        Event::ReplayCopied,
        Event::JournalLandedAfterListing,
        Event::CopiedCondemned,
        Event::BaseRaisedHolding,
        Event::BaseHeldBack,
        Event::LateHeartbeat,
        Event::Deleted,
    ],
    ..QUIET
};

/// Writers of two volumes that reuse each other's content, and a collector.
pub const TWO_VOLUMES: Scenario = Scenario {
    name: "two volumes",
    roles: [
        mounted(0, &[&[Fresh(1)], &[Reuse(0)]]),
        mounted(1, &[&[Reuse(0), Reuse(1)], &[NewSegment(1)]]),
        UNUSED,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    trees: [0, NONE, NONE],
    last_epoch: 1,
    refresh: true,
    reaches: &[
        Event::Committed,
        Event::FailingPackLeftOut,
        Event::CopiedCondemned,
        Event::FoundElsewhere,
        Event::ReusedCondemned,
        Event::Shrunk,
        Event::Deleted,
    ],
    ..QUIET
};

/// Two collectors, each of which may be ended by mistake. One rewrites mixed packs while a writer
/// drops objects in them.
pub const TWO_COLLECTORS: Scenario = Scenario {
    name: "two collectors",
    roles: [
        mounted(0, &[&[Reuse(0)], &[Fresh(1)]]),
        UNUSED,
        COLLECTOR,
        COLLECTOR,
    ],
    given: [
        M0_M1,
        Objects(C0.0 | C1.0),
        Objects(Objects::segment(2).0 | Objects::segment(3).0 | Objects::chunk(3).0),
        Objects::chunk(2),
    ],
    trees: [2, 0, NONE],
    last_epoch: 2,
    end_sessions: true,
    reaches: &[
        Event::Condemned,
        Event::Shrunk,
        Event::ClosedAgain,
        Event::Rewritten,
        Event::RewriteRefused,
        Event::FoundElsewhere,
        Event::SessionEnded,
        Event::DeadSessionRefused,
        Event::Deleted,
    ],
    ..QUIET
};

/// Two files, so that a tree reaches several packs. Two operations share a pack, and one is
/// committed first.
pub const SHARED_PACK: Scenario = Scenario {
    name: "shared pack",
    roles: [
        mounted(
            0,
            &[
                &[FreshWith(0, 1), NewSegment(2)],
                &[Reuse(1), Reuse(2)],
                &[Fresh(3)],
            ],
        ),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    given: [Objects::segment(2), Objects::chunk(2), NOTHING, NOTHING],
    files: 2,
    last_epoch: 2,
    faults: faults(0, 0, 0, 1),
    delete_journals: true,
    reaches: &[
        Event::Committed,
        Event::FailingPackLeftOut,
        Event::CopiedCondemned,
        Event::Rewritten,
        Event::Deleted,
        Event::JournalDeleted,
    ],
    ..QUIET
};

/// The same, taken over.
pub const SHARED_PACK_TAKEN: Scenario = Scenario {
    name: "shared pack, taken over",
    roles: [
        mounted(
            0,
            &[&[FreshWith(0, 1), NewSegment(2)], &[Reuse(1), Reuse(2)]],
        ),
        arriving(0, &[&[Reuse(2)]]),
        UNUSED,
        COLLECTOR,
    ],
    last_epoch: 1,
    faults: faults(0, 1, 0, 0),
    reaches: &[
        Event::Replayed,
        Event::ReplayCopied,
        Event::Rewritten,
        Event::Deleted,
    ],
    ..SHARED_PACK
};

/// More operations in all three sessions of a volume.
pub const TAKEOVER_LONG: Scenario = Scenario {
    name: "takeover, long",
    roles: [
        mounted(0, &[&[Fresh(0)], &[Fresh(1)], &[Fresh(0)]]),
        arriving(0, &[&[Fresh(2)], &[Fresh(1)]]),
        arriving(0, &[&[Fresh(3)], &[Fresh(0)]]),
        UNUSED,
    ],
    ..TAKEOVER
};

/// A new holder alongside a collector, with every kind of fault.
pub const REUSE_TAKEN_FAULTS: Scenario = Scenario {
    name: "reuse, taken over, all faults",
    roles: [
        mounted(0, &[&[Reuse(0), NewSegment(0)], &[Fresh(1), Reuse(0)]]),
        arriving(0, &[&[Reuse(0)]]),
        UNUSED,
        COLLECTOR,
    ],
    faults: faults(1, 1, 1, 1),
    delete_journals: true,
    ..REUSE_TAKEN
};

/// Two writers, a new holder and a collector.
pub const TWO_WRITERS_TAKEN: Scenario = Scenario {
    name: "two writers, one taken over",
    roles: [
        mounted(0, &[&[Reuse(0), NewSegment(0)]]),
        mounted(1, &[&[Reuse(0)], &[Fresh(1)]]),
        arriving(0, &[&[Reuse(1)]]),
        COLLECTOR,
    ],
    faults: faults(0, 1, 0, 0),
    refresh: true,
    ..REUSE_TAKEN
};

/// Two takeovers in turn, alongside a collector.
pub const REUSE_TAKEN_TWICE: Scenario = Scenario {
    name: "reuse, taken over twice",
    roles: [
        mounted(0, &[&[Reuse(0), NewSegment(0)], &[Fresh(1)]]),
        arriving(0, &[&[Reuse(0)]]),
        arriving(0, &[]),
        COLLECTOR,
    ],
    ..REUSE_TAKEN
};

/// Three operations and two collections, with all faults.
pub const REUSE_TWO_EPOCHS: Scenario = Scenario {
    name: "reuse, two epochs",
    roles: [
        mounted(
            0,
            &[
                &[Reuse(0), NewSegment(0)],
                &[Fresh(1), Reuse(0)],
                &[Reuse(0), Fresh(2)],
            ],
        ),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    last_epoch: 2,
    ..REUSE
};

/// Two volumes, two collections.
pub const TWO_VOLUMES_TWO_EPOCHS: Scenario = Scenario {
    name: "two volumes, two epochs",
    roles: [
        mounted(0, &[&[Fresh(1), Fresh(2)], &[Reuse(0), Fresh(3)]]),
        mounted(1, &[&[Reuse(0), Reuse(1)], &[NewSegment(1), Fresh(2)]]),
        UNUSED,
        COLLECTOR,
    ],
    last_epoch: 2,
    ..TWO_VOLUMES
};

/// Searched exhaustively when `BKFS_TEST_FULL=1`.
pub const FULL: &[Scenario] = &[
    REUSE_TAKEN_FAULTS,
    TWO_WRITERS_TAKEN,
    TAKEOVER_LONG,
    REUSE_TAKEN_TWICE,
    REUSE_TWO_EPOCHS,
    TWO_VOLUMES_TWO_EPOCHS,
    JOURNAL_LOST_TWICE,
    DAMAGED_TAKEN_FAULTS,
    SPOOL_ELSEWHERE_FAULTS,
];

/// A writer that only reuses.
pub const REUSE_ONLY: Scenario = Scenario {
    name: "reuse only",
    roles: [mounted(0, &[&[Reuse(0)]]), UNUSED, UNUSED, COLLECTOR],
    given: ONE_CONTENT,
    last_epoch: 1,
    faults: faults(0, 1, 1, 0),
    ..QUIET
};

/// A writer whose pack holds a segment that its tree no longer reaches.
pub const CLOSING: Scenario = Scenario {
    name: "closing",
    roles: [
        mounted(0, &[&[NewSegment(0)], &[Fresh(1)]]),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    ..QUIET
};

/// A writer that commits its first pack while its second is not ready.
pub const FLOOR: Scenario = Scenario {
    name: "floor",
    roles: [
        mounted(0, &[&[Fresh(0)], &[Fresh(1)]]),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    last_epoch: 1,
    faults: faults(1, 1, 0, 0),
    ..QUIET
};

/// A commit leaves out a pack, its answer is lost, and a later operation could use that pack.
pub const LEFT_OUT: Scenario = Scenario {
    name: "left out",
    roles: [
        mounted(0, &[&[NewSegment(0)], &[Fresh(1)], &[Reuse(0)]]),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 2,
    faults: faults(0, 0, 0, 1),
    ..QUIET
};

/// A new segment under way, and a reused one of the same content.
pub const STALE_PLACE: Scenario = Scenario {
    name: "stale place",
    roles: [
        mounted(0, &[&[NewSegment(0)], &[Reuse(0)]]),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    faults: faults(1, 0, 0, 0),
    ..QUIET
};

/// A writer arrives while garbage is collected, and may be ended before it has taken its volume.
pub const ARRIVAL: Scenario = Scenario {
    name: "arrival",
    roles: [
        arriving(0, &[&[Reuse(0), Fresh(1)]]),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    last_epoch: 1,
    end_sessions: true,
    ..QUIET
};

/// A collector is ended by mistake while its rewritten pack is not live yet.
pub const DEAD_COLLECTOR: Scenario = Scenario {
    name: "dead collector",
    roles: [
        mounted(0, &[&[Reuse(1)], &[Fresh(2)]]),
        UNUSED,
        COLLECTOR,
        COLLECTOR,
    ],
    given: [M0_M1, C0, C1, NOTHING],
    trees: [NONE, 0, NONE],
    last_epoch: 2,
    end_sessions: true,
    ..QUIET
};

/// A new holder journals an operation before it has replayed, and is then taken over. No rule
/// allows that; see `main.rs`.
pub const EARLY: Scenario = Scenario {
    name: "early",
    roles: [
        mounted(0, &[&[Fresh(0)]]),
        arriving(0, &[&[Fresh(1)]]),
        arriving(0, &[]),
        UNUSED,
    ],
    faults: faults(0, 1, 0, 0),
    early_accept: true,
    ..QUIET
};

/// A writer stores the contents of a pack that is being collected.
pub const STORED_AGAIN: Scenario = Scenario {
    name: "stored again",
    roles: [mounted(0, &[&[Fresh(0)]]), UNUSED, UNUSED, COLLECTOR],
    given: [Objects::content(0), NOTHING, NOTHING, NOTHING],
    last_epoch: 1,
    ..QUIET
};

/// A session comes and goes while a commit is under way.
pub const SAME_BYTES: Scenario = Scenario {
    name: "same bytes",
    roles: [mounted(0, &[&[Fresh(0)]]), arriving(1, &[]), UNUSED, UNUSED],
    faults: faults(0, 0, 0, 1),
    end_sessions: true,
    ..QUIET
};

/// The next backup of the same data, one pack of which is damaged, alongside a collector.
pub const HEALING: Scenario = Scenario {
    name: "healing",
    roles: [
        mounted(
            0,
            &[
                &[Reuse(0), NewSegment(0), Fresh(0)],
                &[Reuse(0), Fresh(0), Fresh(1)],
            ],
        ),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    given: ONE_CONTENT,
    trees: [0, NONE, NONE],
    last_epoch: 2,
    faults: Faults { commits: 1, ..ROT },
    refresh: true,
    reaches: &[
        Event::Committed,
        Event::Condemned,
        Event::Deleted,
        Event::Quarantined,
        Event::AcceptedHealing,
        Event::DamagedCondemned,
    ],
    ..QUIET
};

/// Content that was stored again becomes garbage, is referred to and condemned. The damaged pack is
/// still needed for other content.
pub const DAMAGED_STAYS: Scenario = Scenario {
    name: "damaged pack stays",
    roles: [
        mounted(0, &[&[Fresh(0)], &[Fresh(2)], &[Reuse(0)]]),
        UNUSED,
        UNUSED,
        COLLECTOR,
    ],
    given: [
        Objects::content(0).and(Objects::content(1)),
        NOTHING,
        NOTHING,
        NOTHING,
    ],
    trees: [NONE, 1, NONE],
    last_epoch: 1,
    faults: ROT,
    refresh: true,
    reaches: &[
        Event::Condemned,
        Event::CopiedCondemned,
        Event::Quarantined,
        Event::AcceptedHealing,
    ],
    ..QUIET
};

/// The worlds of single mutants.
pub const SMALL: &[Scenario] = &[
    SPOOL_ELSEWHERE,
    SPOOL_HERE,
    OUT_OF_ORDER,
    DAMAGED_TAKEN,
    JOURNAL_LOST,
    JOURNAL_LOST_HERE,
    REUSE_ONLY,
    CLOSING,
    FLOOR,
    LEFT_OUT,
    STALE_PLACE,
    ARRIVAL,
    DEAD_COLLECTOR,
    EARLY,
    STORED_AGAIN,
    SAME_BYTES,
    LOCKED,
    HEALING,
    DAMAGED_STAYS,
];
