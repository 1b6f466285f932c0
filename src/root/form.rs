//! The forms of a root's payload: small, which every program reads, and large.
//!
//! Owns their bounds and the compression of the large one. Does not own what a root holds
//! ([`super::state`]) or how that is written ([`super::encoding`]). Pure.

use bkfs_chunker::coded;
use bkfs_chunker::crypto::{BOX_OVERHEAD, Features, HEADER_LEN};
use std::borrow::Cow;

/// The most CBOR of a small root, in bytes: 64 KiB for the whole object.
pub const SMALL_BYTES_MAX: usize = 64 * 1024 - HEADER_LEN - BOX_OVERHEAD;

/// The most CBOR of a large root, in bytes. 4,096 sessions and 10,000 volumes take 1.9 MB of it.
pub const LARGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The largest number of sessions in a small root.
pub const SMALL_SESSIONS_MAX: usize = 64;

/// The largest number of sessions in a large root.
pub const LARGE_SESSIONS_MAX: usize = 4096;

/// The form of a root's payload.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Form {
    /// CBOR.
    #[default]
    Small,
    /// The coded form ([`bkfs_chunker::coded`]) of the same CBOR. The header of such a root has the
    /// feature [`Features::LARGE`].
    Large,
}

impl Form {
    /// Returns the form of a root whose header has these features.
    pub fn of(features: Features) -> Self {
        match features.are_of_large_root() {
            true => Self::Large,
            false => Self::Small,
        }
    }

    /// Returns true if the numbers of snapshots are unique in their volume only, and not in the whole
    /// repository. A small root keeps to what the format has always said.
    pub fn numbers_by_volume(self) -> bool {
        self == Self::Large
    }

    /// Returns the most CBOR, in bytes. What it is compressed to does not count: less may compress
    /// to more, and a change that takes something away must always fit.
    pub fn bytes_max(self) -> usize {
        match self {
            Self::Small => SMALL_BYTES_MAX,
            Self::Large => LARGE_BYTES_MAX,
        }
    }

    /// Returns the largest number of sessions, so that dead ones cannot fill the root.
    pub fn sessions_max(self) -> usize {
        match self {
            Self::Small => SMALL_SESSIONS_MAX,
            Self::Large => LARGE_SESSIONS_MAX,
        }
    }

    /// Returns these features of a root's header with what tells this form.
    pub(crate) fn stated_in(self, features: Features) -> Features {
        features.with_large_root(self == Self::Large)
    }

    /// Returns the payload for a root in CBOR.
    pub(super) fn payload(self, cbor: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Small => cbor,
            Self::Large => coded::encode(&cbor),
        }
    }

    /// Returns the CBOR of a payload; what is wrong with bytes that [`Form::payload`] does not return
    /// for as much as the form permits.
    pub(super) fn cbor(self, payload: &[u8]) -> Result<Cow<'_, [u8]>, String> {
        match self {
            Self::Small => Ok(Cow::Borrowed(payload)),
            Self::Large => coded::decode(payload, LARGE_BYTES_MAX as u32)
                .map(Cow::Owned)
                .map_err(|error| error.to_string()),
        }
    }
}
