//! What an index object or a footer says of a pack, for those who know no layout.

use crate::cut::segment;
use crate::id::{Id, Kind, Prefix};
use crate::index::PackRecord;
use crate::pack::PackName;
use crate::seal::Class;

/// What a pack holds, as an index object or its own footer says. About 21 bytes per blob.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PackContents(pub(crate) PackRecord);

/// A blob as a footer lists it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Listed {
    /// What it is.
    pub kind: Kind,
    /// The first bytes of its id.
    pub prefix: Prefix,
    /// The frame that holds it.
    pub frame: u16,
    /// Which blob of the frame.
    pub slot: u16,
    /// Its length in bytes.
    pub length: u32,
}

impl PackContents {
    /// The pack's name.
    pub fn name(&self) -> PackName {
        self.0.name
    }

    /// Data or metadata.
    pub fn class(&self) -> Class {
        self.0.class
    }

    /// Its key in the bucket.
    pub fn key(&self) -> String {
        self.0.name.key(self.0.class)
    }

    /// Its length in the bucket, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.length
    }

    /// How many frames it has.
    pub fn frame_count(&self) -> usize {
        self.0.footer.frame_count()
    }

    /// How many blobs it holds.
    pub fn blob_count(&self) -> usize {
        self.0.footer.blob_count()
    }

    /// Its blobs, in the order in which they lie.
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

#[cfg(any(test, feature = "testing"))]
impl PackContents {
    /// What an index might say of a pack that nobody wrote, for tests: `frames` tells how many blobs each of its frames has, and `bytes` how long it is.
    pub fn unproven(name: PackName, class: Class, frames: &[u16], bytes: u64) -> Self {
        let kind = match class {
            Class::MetadataPack => Kind::Node,
            _ => Kind::Chunk,
        };
        let mut footer = crate::pack::FooterBuilder::new();
        for (frame, count) in frames.iter().enumerate() {
            let blobs = (0..*count).map(|slot| {
                let mut prefix = [frame as u8; 16];
                prefix[0] = slot as u8;
                (kind, 100, Prefix(prefix))
            });
            footer.push(100, blobs);
        }
        let footer = footer.finish().expect("a footer");
        Self(PackRecord {
            name,
            class,
            length: bytes,
            header: [0; crate::seal::HEADER_LEN],
            footer,
        })
    }
}

/// The chunks that a segment lists, each with its length in bytes.
///
/// # Errors
/// Says what is wrong with bytes that are no segment.
pub fn chunks_of(segment: &[u8]) -> Result<Vec<(Id, u32)>, String> {
    let segment = segment::decode(segment).map_err(|error| error.to_string())?;
    let chunks = segment.chunks.iter();
    Ok(chunks.map(|chunk| (chunk.id, chunk.length)).collect())
}
