//! Maintenance: checks that every object exists and is intact, and repairs what can be repaired.
//!
//! Owns the findings of `bkfs check`. Each piece of work first makes a pure plan, and then executes
//! it. Knows no pack layout: the chunker's verifier walks packs, in the bucket and never in a
//! cache.
//!
//! | module | |
//! |---|---|
//! | [`report`] | findings of a check, for people, scripts and tests (pure) |
//! | [`layout`] | which object a key of the bucket is (pure) |
//! | [`sample`] | packs that a partial check reads (pure) |
//! | [`judge`] | decides which packs are damaged (pure) |
//! | [`options`] | options and progress of a check |
//! | [`check`] | reads the repository and judges it |
//! | [`scan`] | root, lists, and other objects of the bucket |
//! | `scan_index` | index objects, and packs that none of them lists |
//! | [`indexed`] | the packs that index objects list |
//! | [`orphans`] | objects that a root does not need (pure) |
//! | [`contents`] | walks packs: every blob, every reference |
//! | [`holdings`] | which live packs hold a blob |
//! | [`references`] | references that are resolved once all metadata was read |
//! | [`workspace`] | working data in memory or on local disk, and joins of it |
//! | [`runs`] | groups of runs, compared with index objects |
//! | [`strays`] | commits that no root knows |
//! | [`journals`] | heartbeats and journals of sessions |
//! | [`recovery_bases`] | commits that the spools of ended sessions follow |
//! | [`rebuild`] | computes a new root from the remains (pure) |
//! | `abandon` | forgotten snapshots that a repair gives up |
//! | [`anew`] | restores objects that only collection needs |
//! | [`repair`] | plans a repair, and executes it |
//! | `mend` | one replacement of a root by the planned one |
//! | `left_journals` | journals that are left after the root was lost |
//! | `lost_root` | what stands in the place of a lost root, and the new root there |
//! | `lost_sessions` | ends the sessions of a lost root |
//! | `reread` | reads once more what a repair is about to give up |
//! | `refusal` | objects that a repair refuses to touch |
//! | `refused` | tells a store that refuses one object from one that refuses all |
//! | [`forgetting`] | forgets snapshots, and brings them back |
//! | [`heal`] | restores lost blobs from another repository |
//! | [`scrub`] | verifies all packs in the background, slowly, in cycles |
//! | [`quarantine`] | puts damage in quarantine, concurrently with writers |
//! | [`collect`] | frees what nothing needs |
//! | [`merging`] | merges index objects into runs |
//! | [`blame`] | snapshots and files that damage affects |
//!
//! **Memory** of a check: 256 MiB for objects in flight, 250 bytes per object in the bucket, 80
//! bytes per inode of one tree, and [`workspace::MEMORY_BYTES`] for blobs and references. What does
//! not fit there goes to local disk: about 120 bytes per blob. 30 bytes per blob in metadata packs
//! stay in memory then, and in a repair of damage 30 bytes per blob. With damage: also 24 bytes per
//! damaged blob, 100 bytes per reference to a missing one, and the paths of the directories of a
//! damaged tree.

mod abandon;
mod anew;
pub mod blame;
pub mod check;
pub mod collect;
pub mod contents;
pub mod forgetting;
pub mod heal;
pub mod holdings;
pub mod indexed;
pub mod journals;
pub mod judge;
pub mod layout;
mod left_journals;
mod lost_root;
mod lost_sessions;
mod mend;
pub mod merging;
pub mod metrics;
pub mod options;
pub mod orphans;
pub mod quarantine;
pub mod rebuild;
pub mod recovery_bases;
pub mod references;
mod refusal;
mod refused;
pub mod repair;
pub mod repair_plan;
pub mod report;
mod reread;
pub mod runs;
pub mod sample;
pub mod scan;
mod scan_index;
pub mod scrub;
pub mod strays;
pub mod trees;
pub mod workspace;

pub use check::check;
pub use options::{CheckOptions, CheckProgress};
pub use report::{Problem, ProblemKind, Report};
pub use sample::Sample;

#[cfg(test)]
mod tests;
