//! The forms of a root's payload: small, which every program reads, and large.
//!
//! Owns their bounds and the compression of the large one. Does not own what a root holds
//! ([`super::state`]) or how that is written ([`super::encoding`]). Pure.

use bkfs_chunker::coded;
use bkfs_chunker::crypto::{BOX_OVERHEAD, Features, HEADER_LEN};
use std::borrow::Cow;

/// The largest payload of a small root, in bytes: 64 KiB for the whole object.
pub const SMALL_BYTES_MAX: usize = 64 * 1024 - HEADER_LEN - BOX_OVERHEAD;

/// The largest payload of a large root, in bytes, compressed: 2 MiB for the whole object. 4,096
/// sessions and 10,000 volumes take 1.4 MiB of it.
pub const LARGE_BYTES_MAX: usize = 2 * 1024 * 1024 - HEADER_LEN - BOX_OVERHEAD;

/// The largest number of sessions in a small root.
pub const SMALL_SESSIONS_MAX: usize = 64;

/// The largest number of sessions in a large root.
pub const LARGE_SESSIONS_MAX: usize = 4096;

/// The most bytes that the payload of a large root decodes to.
pub const DECODED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of a large root that only changes take which must be possible in a full one. Of two roots
/// the one that has less may compress to some kilobytes more.
const SPARE_BYTES: usize = 16 * 1024;

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

    /// Returns the largest payload, in bytes.
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

    /// Returns the payload for a root in CBOR.
    ///
    /// # Panics
    /// If `cbor` has 4 GiB or more.
    pub(super) fn payload(self, cbor: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Small => cbor,
            Self::Large => coded::encode(&cbor),
        }
    }

    /// Returns the most bytes that a payload decodes to.
    pub fn decoded_bytes_max(self) -> usize {
        match self {
            Self::Small => SMALL_BYTES_MAX,
            Self::Large => DECODED_BYTES_MAX,
        }
    }

    /// Returns how many bytes nothing takes that can wait.
    pub(super) fn spare_bytes(self) -> usize {
        match self {
            Self::Small => 0,
            Self::Large => SPARE_BYTES,
        }
    }

    /// Returns the features of a root of this form that follows one with these. No root becomes
    /// small again.
    pub(crate) fn stated_in(self, features: Features) -> Features {
        match self {
            Self::Small => features,
            Self::Large => features.of_large_root(),
        }
    }

    /// Returns the CBOR of a payload; what is wrong with it for bytes that [`Form::payload`] makes of
    /// no permitted root.
    pub(super) fn cbor(self, payload: &[u8]) -> Result<Cow<'_, [u8]>, String> {
        match self {
            Self::Small => Ok(Cow::Borrowed(payload)),
            Self::Large => coded::decode(payload, DECODED_BYTES_MAX as u32)
                .map(Cow::Owned)
                .map_err(|error| error.to_string()),
        }
    }
}
