//! The contents of a pack as an index object or a footer lists them, for callers that do not know
//! the layout.

use bytes::Bytes;

use crate::chunking::segment;
use crate::crypto::Class;
use crate::error::ContentError;
use crate::id::{Id, Kind, Prefix};
use crate::index::PackRecord;
use crate::pack::PackName;
use crate::run::PackFrames;

/// The list of a pack's contents, from an index object or from its own footer. About 21 bytes of
/// memory per blob.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PackContents(pub(crate) PackRecord);

/// A blob as a footer lists it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Listed {
    /// The kind of the blob.
    pub kind: Kind,
    /// The first bytes of the blob's id.
    pub prefix: Prefix,
    /// The number of the frame that holds the blob.
    pub frame: u16,
    /// The number of the blob in the frame.
    pub slot: u16,
    /// The length of the blob, in bytes.
    pub length: u32,
}

impl PackContents {
    /// Returns an equal list in memory of its own. The lists of one index object share the memory of
    /// the whole object, which stays in use with each of them.
    pub fn apart(&self) -> Self {
        let footer = self.0.footer.apart();
        Self(PackRecord {
            footer,
            ..self.0.clone()
        })
    }

    /// Returns the name of the pack.
    pub fn name(&self) -> PackName {
        self.0.name
    }

    /// Returns the class: data or metadata pack.
    pub fn class(&self) -> Class {
        self.0.class
    }

    /// Returns the key in the bucket.
    pub fn key(&self) -> String {
        self.0.name.key(self.0.class)
    }

    /// Returns the length of the pack in the bucket, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.length
    }

    /// Returns the number of frames.
    pub fn frame_count(&self) -> usize {
        self.0.footer.frame_count()
    }

    /// Returns the number of blobs.
    pub fn blob_count(&self) -> usize {
        self.0.footer.blob_count()
    }

    /// Returns the length in bytes of the form that [`PackContents::encode`] appends. It is also
    /// about the memory that the list takes.
    pub fn encoded_bytes(&self) -> u64 {
        self.0.encoded_bytes()
    }

    /// Appends the list in a form for local files of one process. It has no checksum.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        self.0.encode(bytes);
    }

    /// The inverse of [`PackContents::encode`]. The list shares the memory of `bytes`.
    ///
    /// # Errors
    /// [`ContentError::Internal`] if the bytes are not such a list.
    pub fn decode(bytes: Bytes) -> Result<Self, ContentError> {
        PackRecord::decode(bytes)
            .map(Self)
            .map_err(|_| ContentError::Internal("a list of blobs that does not decode"))
    }

    /// Returns what runs keep of the pack.
    pub fn frames(&self) -> PackFrames {
        PackFrames::from(&self.0)
    }

    /// Returns the blobs in the order of frames and slots.
    pub fn blobs(&self) -> impl Iterator<Item = Listed> + '_ {
        self.0.footer.blobs().map(|entry| Listed {
            kind: entry.kind,
            prefix: entry.prefix,
            frame: entry.frame,
            slot: entry.slot,
            length: entry.length,
        })
    }
}

impl From<PackRecord> for PackContents {
    fn from(record: PackRecord) -> Self {
        Self(record)
    }
}

/// Returns the chunks that a segment lists, each with its length in bytes.
///
/// # Errors
/// A description of the problem, if the bytes are not a segment.
pub fn chunks_of(segment: &[u8]) -> Result<Vec<(Id, u32)>, String> {
    let segment = segment::decode(segment).map_err(|error| error.to_string())?;
    let chunks = segment.chunks.iter();
    Ok(chunks.map(|chunk| (chunk.id, chunk.length)).collect())
}
