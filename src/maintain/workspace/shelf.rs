//! The lists of what packs hold: in memory up to a bound, and beyond it in one file.
//!
//! Owns where each list is. What is asked of every pack again and again (name, class, lengths)
//! stays in memory, about 100 bytes for each pack.

use bkfs_chunker::crypto::Class;
use bkfs_chunker::id::Kind;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::PackContents;
use bytes::Bytes;

use super::blocks::{Block, BlockFile};
use super::partitions::Record;
use super::records::{Edge, Holding, ReadNode, Reference};
use super::{WorkError, Workspace};

/// Bytes that a segment takes for each chunk that it lists, at least.
const SEGMENT_ENTRY_BYTES: u64 = 36;

/// Bytes that a node takes for each blob that it refers to, at least.
const NODE_ENTRY_BYTES: u64 = 32;

/// Takes lists of packs.
#[derive(Debug, Default)]
pub struct Shelf {
    workspace: Workspace,
    kept_bytes: u64,
    file: Option<BlockFile>,
}

/// A pack with a list of what it holds.
#[derive(Clone, Debug)]
pub struct ShelvedPack {
    name: PackName,
    class: Class,
    bytes: u64,
    blobs: u32,
    has_metadata: bool,
    /// What a check may write down of the pack, in bytes.
    notes_bytes: u64,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Memory(PackContents),
    /// The file is that of the shelf when the list was put there.
    Disk(BlockFile, Block),
}

impl Shelf {
    /// Returns an empty shelf, within one share of the memory of a workspace.
    pub fn new(workspace: &Workspace) -> Self {
        Self {
            workspace: workspace.clone(),
            ..Self::default()
        }
    }

    /// Returns true if a list is on the medium.
    pub fn has_spilled(&self) -> bool {
        self.file.is_some()
    }

    /// Takes the lists of one index object, which may share memory: all of them stay there, or
    /// none.
    ///
    /// # Errors
    /// [`WorkError::Unwritten`].
    pub fn put(&mut self, packs: Vec<PackContents>) -> Result<Vec<ShelvedPack>, WorkError> {
        let bytes: u64 = packs.iter().map(PackContents::encoded_bytes).sum();
        let medium = self.workspace.medium.as_ref();
        let is_too_much = self.kept_bytes.saturating_add(bytes) > self.workspace.share();
        let Some(medium) = medium.filter(|_| is_too_much || self.file.is_some()) else {
            self.kept_bytes += bytes;
            let keep = |pack: PackContents| ShelvedPack::new(&pack, Place::Memory(pack.clone()));
            return Ok(packs.into_iter().map(keep).collect());
        };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(BlockFile::create(&**medium)?),
        };
        let mut written = Vec::new();
        let put = |pack: PackContents| {
            written.clear();
            pack.encode(&mut written);
            let block = file.append(&written)?;
            Ok(ShelvedPack::new(&pack, Place::Disk(file.clone(), block)))
        };
        packs.into_iter().map(put).collect()
    }
}

impl ShelvedPack {
    fn new(pack: &PackContents, place: Place) -> Self {
        let (mut has_metadata, mut notes_bytes) = (false, 0);
        for blob in pack.blobs() {
            has_metadata |= blob.kind != Kind::Chunk;
            let length = u64::from(blob.length);
            notes_bytes += Holding::BYTES as u64;
            notes_bytes += match blob.kind {
                Kind::Chunk | Kind::Commit => 0,
                Kind::Segment => length / SEGMENT_ENTRY_BYTES * Reference::BYTES as u64,
                Kind::Node => {
                    let each = (Reference::BYTES + Edge::BYTES) as u64;
                    ReadNode::BYTES as u64 + length / NODE_ENTRY_BYTES * each
                }
            };
        }
        Self {
            name: pack.name(),
            class: pack.class(),
            bytes: pack.bytes(),
            blobs: pack.blob_count() as u32,
            has_metadata: has_metadata || pack.class() == Class::MetadataPack,
            notes_bytes: notes_bytes + pack.encoded_bytes(),
            place,
        }
    }

    /// Returns the name of the pack.
    pub fn name(&self) -> PackName {
        self.name
    }

    /// Returns the class: data or metadata pack.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Returns the key in the bucket.
    pub fn key(&self) -> String {
        self.name.key(self.class)
    }

    /// Returns the length of the pack in the bucket, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of blobs.
    pub fn blob_count(&self) -> u64 {
        u64::from(self.blobs)
    }

    /// Returns true if the pack is a metadata pack, or lists anything but chunks.
    pub fn has_metadata(&self) -> bool {
        self.has_metadata
    }

    /// Returns what a check may write down of the pack, its list included, in bytes.
    pub fn notes_bytes(&self) -> u64 {
        self.notes_bytes
    }

    /// Returns true if the list of what the pack holds is in memory.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.place, Place::Memory(_))
    }

    /// Returns the list of what the pack holds.
    ///
    /// # Errors
    /// [`WorkError::Unread`] and [`WorkError::Changed`].
    pub fn contents(&self) -> Result<PackContents, WorkError> {
        match &self.place {
            Place::Memory(pack) => Ok(pack.clone()),
            Place::Disk(file, block) => {
                let read = Bytes::from(file.read(*block)?);
                PackContents::decode(read).map_err(|_| file.changed())
            }
        }
    }
}
