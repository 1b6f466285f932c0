//! Sealing: how every object of a repository is named, bound to its place, encrypted and verified.
//!
//! Owns the header of objects, boxes, the keys derived for each object, the keyring, the config object and the key
//! slots. Knows nothing of what the sealed bytes mean, and never reads or writes the bucket: salts and everything else
//! random are arguments, which the caller draws afresh for each object.

mod config;
mod header;
mod keyring;
mod keys;
mod secrets;
mod slots;

pub use config::Config;
pub use header::{Algorithm, Class, FORMAT_VERSION, Features, HEADER_LEN, Header, RepositoryId};
pub use keyring::{Keyring, ObjectOpener, ObjectSealer};
pub use keys::{BOX_OVERHEAD, FOOTER_BOX, NONCE_LEN, TAG_LEN};
pub use secrets::{Secrets, SecretsError};
pub use slots::{NewSlot, Slot, SlotCost, SlotError, SlotName, Statement, Unwrapped};

/// What to do about an object of another format version.
fn advice(version: u16) -> &'static str {
    match version {
        0 => "it is a draft, which only the bkfs that wrote it can read",
        _ => "a newer bkfs can read it",
    }
}

/// Why an object could not be opened. Nothing of it was returned.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OpenError {
    /// The bytes do not begin as an object of bkfs does.
    #[error("not an object of a bkfs repository")]
    NotBkfs,
    /// The object was written in a format of the future, or in the draft (0) that came before the first.
    #[error("written in format version {version}, and this program knows version {FORMAT_VERSION}: {}", advice(*version))]
    OtherFormat {
        /// The version that the object states.
        version: u16,
    },
    /// The object needs features that this program does not have to be read at all.
    #[error("needs features unknown to this program (bits {bits:#x}); a newer bkfs can read it")]
    UnknownFeatures {
        /// The unknown bits among the incompatible features.
        bits: u64,
    },
    /// Another kind of object lies here.
    #[error("an object of class {found} lies where one of class {expected:?} belongs")]
    WrongClass {
        /// The class number that the object states.
        found: u8,
        /// The class that was asked for.
        expected: Class,
    },
    /// The object belongs to another repository.
    #[error("belongs to another repository ({found})")]
    WrongRepository {
        /// The repository that the object states.
        found: RepositoryId,
    },
    /// A sealed repository holds an object that is not sealed (anybody could have made it), or the other way round, or
    /// the algorithm is unknown.
    #[error("sealed with algorithm {found}, which objects of this repository never are")]
    WrongAlgorithm {
        /// The algorithm number that the object states.
        found: u8,
    },
    /// The object is sealed under a master key that these secrets do not hold.
    #[error(
        "sealed under master key {epoch}, which this key does not hold: the master key was rotated since the key was made or read (bkfs key rotate)"
    )]
    NoKeyEpoch {
        /// The key epoch that the object states.
        epoch: u32,
    },
    /// The root is sealed under a master key that was given up.
    #[error(
        "sealed under master key {epoch}, and this key is of epoch {newest}: a root from before the rotation of the master key was put back, or the rotation was interrupted before it took hold"
    )]
    OlderKeyEpoch {
        /// The key epoch that the root states.
        epoch: u32,
        /// The newest one of the key.
        newest: u32,
    },
    /// The bytes are not those that were sealed here: damaged, cut short, moved, or made by somebody without the key.
    #[error("damaged: {what}")]
    Damaged {
        /// The part that does not verify.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests;
