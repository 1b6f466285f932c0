//! Maintenance: is everything there, is it what it should be, and what can be mended.
//!
//! Owns what `bkfs check` finds and says. Each piece of work plans first, purely, and then executes. Knows no pack layout: packs are walked by the chunker's
//! verifier, which reads the bucket and never a cache.
//!
//! | module | |
//! |---|---|
//! | [`report`] | what a check found, for people, scripts and tests (pure) |
//! | [`layout`] | which object a key of the bucket is (pure) |
//! | [`sample`] | which packs a partial check reads (pure) |
//! | [`judge`] | from what was seen of packs to what is damage (pure) |
//! | [`check`] | reads the repository and judges it |
//! | [`scan`] | root, lists, index objects, and what else lies in the bucket |
//! | [`contents`] | walks packs: every blob, every reference |
//! | [`strays`] | commits that no root knows |
//! | [`journals`] | heartbeats and journals of sessions |
//! | [`grounds`] | what the spools of ended sessions stand on |
//! | [`rebuild`] | from what is left to a new root (pure) |
//! | `abandon` | which forgotten snapshots are given up |
//! | [`anew`] | brings back what only collection needs |
//! | [`repair`] | plans what can be mended, and does it |
//! | `mend` | one replacement of a root with what was planned |
//! | `refusal` | what a repair refuses to touch |
//! | `refused` | tells a store that refuses one object from one that refuses all |
//! | [`heal`] | brings back from another repository what is lost here |
//! | [`scrub`] | verifies all packs in the background, slowly, again and again |
//! | [`quarantine`] | puts damage in quarantine beside everything else |
//! | [`collect`] | frees what nothing needs |
//! | [`sealing`] | what [`heal`] and [`collect`] have stored, on its way into the root |
//! | [`blame`] | which snapshots and files damage touches |
//!
//! **Memory** of a check: 256 MiB for objects in hand, about 75 bytes for each blob in live packs (75 MB per million chunks, that is per 64 GB of
//! deduplicated data), 150 bytes per object in the bucket, and 110 bytes per tree node. With damage: also 24 bytes per damaged blob, and what the paths of the
//! directories of a damaged tree take.

mod abandon;
mod anew;
pub mod blame;
pub mod check;
pub mod collect;
pub mod contents;
pub mod grounds;
pub mod heal;
pub mod journals;
pub mod judge;
pub mod layout;
mod mend;
pub mod quarantine;
pub mod rebuild;
mod refusal;
mod refused;
pub mod repair;
pub mod report;
pub mod sample;
pub mod scan;
pub mod scrub;
pub mod sealing;
pub mod strays;
pub mod trees;

pub use check::{CheckOptions, CheckProgress, check};
pub use report::{Problem, ProblemKind, Report};
pub use sample::Sample;

#[cfg(test)]
mod tests;
