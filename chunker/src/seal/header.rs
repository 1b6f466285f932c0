//! The clear, authenticated header that every object begins with.
//!
//! Owns its 128 bytes and the checks that need no key. `keys` makes and checks the header tag.

use super::OpenError;
use crate::id::write_hex;
use std::fmt;

/// The format version that this program reads and writes. Frozen: every change comes as a feature,
/// or as a second version next to this one.
pub const FORMAT_VERSION: u16 = 1;

/// Length of the header of every object, in bytes.
pub const HEADER_LEN: usize = 128;

/// Offset of the header tag. The tag and the object key cover all bytes before it.
pub(super) const TAGGED_LEN: usize = 112;

/// "bkfs", then bytes that text transports would change.
const MAGIC: [u8; 8] = *b"bkfs\r\n\x1a\n";

/// Incompatible features that this program knows.
const KNOWN_INCOMPATIBLE: u64 = Features::EPOCHS;
/// Read-only features that this program knows.
const KNOWN_READ_ONLY: u64 = Features::WITNESS;

/// Class of an object. It is bound into the object's keys, so that no object passes for one of
/// another class.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
#[repr(u8)]
pub enum Class {
    /// The repository's identity and parameters.
    Config = 1,
    /// The secrets, wrapped by a password.
    KeySlot = 2,
    /// The one mutable object.
    Root = 3,
    /// A session's heartbeat.
    Session = 4,
    /// Operations acknowledged by fsync.
    Journal = 5,
    /// Snapshots, trash, condemned packs, quarantine.
    List = 6,
    /// Footers of several packs.
    Index = 7,
    /// Frames of file contents.
    DataPack = 8,
    /// Frames of segments, nodes and commit records.
    MetadataPack = 9,
}

impl Class {
    /// Every class, in the order of its number.
    pub const ALL: [Class; 9] = [
        Class::Config,
        Class::KeySlot,
        Class::Root,
        Class::Session,
        Class::Journal,
        Class::List,
        Class::Index,
        Class::DataPack,
        Class::MetadataPack,
    ];

    /// The class of this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The prefix of the keys of this class' objects; for config and root it is the whole key.
    pub fn directory(self) -> &'static str {
        match self {
            Class::Config => "config",
            Class::KeySlot => "keys",
            Class::Root => "root",
            Class::Session => "sessions",
            Class::Journal => "journal",
            Class::List => "lists",
            Class::Index => "index",
            Class::DataPack => "data",
            Class::MetadataPack => "meta",
        }
    }

    /// Whether objects of this class are read before any master key is known, and therefore never
    /// sealed.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Class::Config | Class::KeySlot)
    }
}

/// The random identity of a repository, drawn at init.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct RepositoryId(pub [u8; 16]);

impl fmt::Display for RepositoryId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(formatter, &self.0)
    }
}

impl fmt::Debug for RepositoryId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(formatter, &self.0)
    }
}

/// Algorithm of the boxes of an object.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Algorithm {
    /// In the clear, verified by BLAKE3 under a public key.
    Unsealed = 0,
    /// AES-256-GCM.
    Aes256Gcm = 1,
}

/// Feature bits of an object. Each field says what an unknown bit means.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Features {
    /// Unknown bits may be ignored.
    pub compatible: u64,
    /// Unknown bits forbid writing to the repository.
    pub read_only: u64,
    /// Unknown bits forbid reading the object.
    pub incompatible: u64,
}

impl Features {
    /// No features at all.
    pub const NONE: Features = Features {
        compatible: 0,
        read_only: 0,
        incompatible: 0,
    };

    /// Read-only, of the root: it and what it names bear witness of what came before (FORMAT.md,
    /// "Witnesses").
    pub const WITNESS: u64 = 1;

    /// Incompatible, of key slots: the slot holds more than one master key. A program that does
    /// not know epochs must neither use nor remove it.
    pub const EPOCHS: u64 = 1;

    /// Whether the root bears witness.
    pub fn bear_witness(&self) -> bool {
        self.read_only & Self::WITNESS != 0
    }

    /// Returns these features and the witness bit.
    pub fn with_witness(self) -> Self {
        Self {
            read_only: self.read_only | Self::WITNESS,
            ..self
        }
    }

    /// Whether this program knows every feature that a writer must know.
    pub fn permit_writing(&self) -> bool {
        self.read_only & !KNOWN_READ_ONLY == 0 && self.incompatible & !KNOWN_INCOMPATIBLE == 0
    }
}

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
