//! What every object of a repository states of itself: the format version, its class, its
//! repository, its algorithm and its features.
//!
//! Owns these types and their numbers in the format. Does not own where they lie in an object, nor
//! which of them an object may have (header).

use std::fmt;

use crate::id::write_hex;

/// The format version that this program reads and writes. Frozen: every change comes as a feature,
/// or as a second version next to this one.
pub const FORMAT_VERSION: u16 = 1;

/// Incompatible features that this program knows.
pub(super) const KNOWN_INCOMPATIBLE: u64 = Features::EPOCHS | Features::LARGE;
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
    /// Sorted index records of one range of prefixes. Only version 2 has them.
    Run = 10,
    /// Says that a session of a large root has ended.
    Fence = 11,
}

impl Class {
    /// Every class, in the order of its number.
    pub const ALL: [Class; 11] = [
        Class::Config,
        Class::KeySlot,
        Class::Root,
        Class::Session,
        Class::Journal,
        Class::List,
        Class::Index,
        Class::DataPack,
        Class::MetadataPack,
        Class::Run,
        Class::Fence,
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
            Class::Run => "runs",
            Class::Fence => "fence",
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

    /// Incompatible, of the root: its payload is compressed, and larger than programs without this
    /// feature read.
    pub const LARGE: u64 = 2;

    /// Whether these are features of a root in the large form.
    pub fn are_of_large_root(&self) -> bool {
        self.incompatible & Self::LARGE != 0
    }

    /// Returns these features, for a root that is in the large form or is not.
    pub fn with_large_root(self, is_large: bool) -> Self {
        let others = self.incompatible & !Self::LARGE;
        Self {
            incompatible: others | (Self::LARGE * u64::from(is_large)),
            ..self
        }
    }

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
