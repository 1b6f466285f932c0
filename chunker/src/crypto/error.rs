//! The reasons why an object of a repository cannot be opened.
//!
//! Owns their texts. Does not own the checks that find them.

use super::object::{Class, FORMAT_VERSION, RepositoryId};

/// Returns the advice to the user about an object of another format version.
fn advice(version: u16) -> &'static str {
    match version {
        0 => "it is a draft, which only the bkfs that wrote it can read",
        _ => "a newer bkfs can read it",
    }
}

/// The reasons why an object cannot be opened. No part of the object is returned.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OpenError {
    /// The bytes do not begin with the magic of bkfs.
    #[error("not an object of a bkfs repository")]
    NotBkfs,
    /// The object has a later format version, or the draft version 0 that came before the first.
    #[error(
        "written in format version {version}, but this program reads version {FORMAT_VERSION}: {}",
        advice(*version)
    )]
    OtherFormat {
        /// The version that the object states.
        version: u16,
    },
    /// The object has an incompatible feature that this program does not know, so it cannot be
    /// read.
    #[error("needs features unknown to this program (bits {bits:#x}); a newer bkfs can read it")]
    UnknownFeatures {
        /// The unknown bits among the incompatible features.
        bits: u64,
    },
    /// An object of another class lies under this key.
    #[error("expected an object of class {expected:?}, found one of class {found}")]
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
    /// The object is unsealed in a sealed repository (anyone with write access could have made it),
    /// or sealed in an unsealed one, or its algorithm is unknown.
    #[error("sealed with algorithm {found}, which this repository does not use")]
    WrongAlgorithm {
        /// The algorithm number that the object states.
        found: u8,
    },
    /// The object is sealed under a master key that these secrets do not hold.
    #[error(
        "sealed under master key {epoch}, which this key does not hold: the master key was \
         rotated since the key was made or read (bkfs key rotate)"
    )]
    NoKeyEpoch {
        /// The key epoch that the object states.
        epoch: u32,
    },
    /// The root is sealed under a master key that a rotation has replaced.
    #[error(
        "sealed under master key {epoch}, and this key is of epoch {newest}: a root from before \
         the rotation of the master key was put back, or the rotation was interrupted before it \
         took hold"
    )]
    OlderKeyEpoch {
        /// The key epoch that the root states.
        epoch: u32,
        /// The epoch of the newest master key in the key slot.
        newest: u32,
    },
    /// The bytes do not verify: they are damaged, cut short, moved, or made without the key.
    #[error("damaged: {what}")]
    Damaged {
        /// What does not verify or cannot be decoded.
        what: &'static str,
    },
}

impl OpenError {
    /// Returns whether the object is whole and of a form that another program reads. The tag of its
    /// header was checked before.
    pub fn is_of_another_form(&self) -> bool {
        matches!(
            self,
            Self::OtherFormat { .. } | Self::UnknownFeatures { .. }
        )
    }
}
