//! The clear, authenticated header that every object begins with.
//!
//! Owns its 128 bytes and the checks that need no key. The header tag is made and checked in `keys`.

use super::OpenError;
use crate::id::write_hex;
use std::fmt;

/// The format version that this program reads and writes. Frozen: what changes comes as a feature, or as another version beside this one.
pub const FORMAT_VERSION: u16 = 1;

/// Length of the header of every object, in bytes.
pub const HEADER_LEN: usize = 128;

/// Where the header tag begins: everything before it is what the tag and the object key cover.
pub(super) const TAGGED_LEN: usize = 112;

/// "bkfs", then bytes that transports for text would change.
const MAGIC: [u8; 8] = *b"bkfs\r\n\x1a\n";

/// Incompatible features that this program knows.
const KNOWN_INCOMPATIBLE: u64 = Features::EPOCHS;
/// Read-only features that this program knows.
const KNOWN_READ_ONLY: u64 = Features::WITNESS;

/// What an object is. The class is bound into its keys, so that no object passes for one of another class.
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
    /// Footers of packs, together.
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

    /// The first part of the keys of this class' objects; for config and root it is the whole key.
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

    /// Whether objects of this class are read before any master key is known, and therefore are never sealed.
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

/// How the boxes of an object are made.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Algorithm {
    /// In the clear, verified by BLAKE3 under a key that everybody can compute.
    Unsealed = 0,
    /// AES-256-GCM.
    Aes256Gcm = 1,
}

/// Feature bits of an object: what a reader must know of. An unknown bit means what its field says.
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

    /// The same, with witness borne.
    pub fn with_witness(self) -> Self {
        Self {
            read_only: self.read_only | Self::WITNESS,
            ..self
        }
    }

    /// Whether every feature that a writer must know of is known to this program.
    pub fn permit_writing(&self) -> bool {
        self.read_only & !KNOWN_READ_ONLY == 0 && self.incompatible & !KNOWN_INCOMPATIBLE == 0
    }
}

/// What the header of an object says. Not to be believed before the header tag has been checked.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Header {
    /// What the object is.
    pub class: Class,
    /// How its boxes are made.
    pub algorithm: Algorithm,
    /// Which master key its keys are derived from.
    pub key_epoch: u32,
    /// What a reader must know of.
    pub features: Features,
    /// The repository that it belongs to.
    pub repository: RepositoryId,
    /// Fresh randomness, for every object written.
    pub salt: [u8; 32],
}

impl Header {
    /// The key epoch that the header of an object states. Proves nothing: the tag is not checked.
    pub fn stated_epoch(bytes: &[u8; HEADER_LEN]) -> u32 {
        u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])
    }

    /// The bytes of a header with another key epoch, and all else as it is.
    pub(super) fn with_epoch(bytes: &[u8; HEADER_LEN], epoch: u32) -> [u8; HEADER_LEN] {
        let mut changed = *bytes;
        changed[12..16].copy_from_slice(&epoch.to_le_bytes());
        changed
    }

    /// The bytes of the header, its tag still zero.
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

    /// Reads a header whose object should be of class `expected`, without checking its tag: only as
    /// far as is needed to find the keys that check it.
    ///
    /// # Errors
    /// In an order that gives the most telling error: magic, class, algorithm.
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

/// Whether this program knows the version and the features that a header states, whose tag has been
/// checked: a flipped bit says nothing of either.
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

/// Splits an object into its header and what follows.
///
/// Errors with [`OpenError::NotBkfs`] if not even the magic is there, with [`OpenError::Damaged`] if it is cut short.
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
