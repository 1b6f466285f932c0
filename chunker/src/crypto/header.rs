//! The clear, authenticated header that every object begins with.
//!
//! Owns its 128 bytes and the checks that need no key. `keys` makes and checks the header tag.

use super::error::OpenError;
use super::object::{Algorithm, Class, FORMAT_VERSION, Features, KNOWN_INCOMPATIBLE, RepositoryId};

/// Length of the header of every object, in bytes.
pub const HEADER_LEN: usize = 128;

/// Offset of the header tag. The tag and the object key cover all bytes before it.
pub(super) const TAGGED_LEN: usize = 112;

/// "bkfs", then bytes that text transports would change.
const MAGIC: [u8; 8] = *b"bkfs\r\n\x1a\n";

/// Fields of an object's header. Not trusted before the header tag has been checked.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Header {
    /// Class of the object.
    pub class: Class,
    /// Algorithm of its boxes.
    pub algorithm: Algorithm,
    /// Epoch of the master key of its keys.
    pub key_epoch: u32,
    /// Feature bits.
    pub features: Features,
    /// Its repository.
    pub repository: RepositoryId,
    /// Random bytes, fresh for every object.
    pub salt: [u8; 32],
}

impl Header {
    /// Returns the key epoch that the header of an object states. Proves nothing, since the tag is
    /// not checked.
    pub fn stated_epoch(bytes: &[u8; HEADER_LEN]) -> u32 {
        u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])
    }

    /// Returns the bytes of a header with another key epoch and otherwise unchanged.
    pub(super) fn with_epoch(bytes: &[u8; HEADER_LEN], epoch: u32) -> [u8; HEADER_LEN] {
        let mut changed = *bytes;
        changed[12..16].copy_from_slice(&epoch.to_le_bytes());
        changed
    }

    /// Returns the bytes of the header, with a zero tag.
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[10] = self.class as u8;
        bytes[11] = self.algorithm as u8;
        bytes[12..16].copy_from_slice(&self.key_epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.features.compatible.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.features.read_only.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.features.incompatible.to_le_bytes());
        bytes[40..56].copy_from_slice(&self.repository.0);
        bytes[56..88].copy_from_slice(&self.salt);
        bytes
    }

    /// Parses a header whose object should be of class `expected`, as far as is needed to find the
    /// keys that check it. Does not check the tag.
    ///
    /// # Errors
    /// The first of these that fails, in an order that gives the most telling error: magic, class,
    /// algorithm.
    pub(super) fn decode(bytes: &[u8; HEADER_LEN], expected: Class) -> Result<Self, OpenError> {
        if bytes[..8] != MAGIC {
            return Err(OpenError::NotBkfs);
        }
        let features = Features {
            compatible: u64_at(bytes, 16),
            read_only: u64_at(bytes, 24),
            incompatible: u64_at(bytes, 32),
        };
        let class = Class::from_number(bytes[10])
            .filter(|class| *class == expected)
            .ok_or(OpenError::WrongClass {
                found: bytes[10],
                expected,
            })?;
        let algorithm = match bytes[11] {
            0 => Algorithm::Unsealed,
            1 => Algorithm::Aes256Gcm,
            found => return Err(OpenError::WrongAlgorithm { found }),
        };
        let mut repository = [0; 16];
        repository.copy_from_slice(&bytes[40..56]);
        let mut salt = [0; 32];
        salt.copy_from_slice(&bytes[56..88]);
        Ok(Self {
            class,
            algorithm,
            key_epoch: Self::stated_epoch(bytes),
            features,
            repository: RepositoryId(repository),
            salt,
        })
    }
}

/// Checks that this program knows the version and the features of a header. The tag must have been
/// checked: a flipped bit says nothing about either.
///
/// # Errors
/// [`OpenError::OtherFormat`] and [`OpenError::UnknownFeatures`].
pub(super) fn check_known(bytes: &[u8; HEADER_LEN], features: Features) -> Result<(), OpenError> {
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version != FORMAT_VERSION {
        return Err(OpenError::OtherFormat { version });
    }
    match features.incompatible & !KNOWN_INCOMPATIBLE {
        0 => Ok(()),
        bits => Err(OpenError::UnknownFeatures { bits }),
    }
}

/// Splits an object into its header and the boxes.
///
/// # Errors
/// [`OpenError::Damaged`] if the object is cut short in its header; [`OpenError::NotBkfs`] if even
/// the magic is wrong.
pub(super) fn split(object: &[u8]) -> Result<(&[u8; HEADER_LEN], &[u8]), OpenError> {
    match object.split_first_chunk() {
        Some(parts) => Ok(parts),
        None if !object.is_empty() && object.starts_with(&MAGIC[..object.len().min(8)]) => {
            Err(OpenError::Damaged {
                what: "the header is cut short",
            })
        }
        None => Err(OpenError::NotBkfs),
    }
}

fn u64_at(bytes: &[u8; HEADER_LEN], offset: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(field)
}
