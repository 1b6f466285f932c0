//! One file of blocks, each with a checksum over its bytes and its place.
//!
//! Owns the checksum. A block that comes back in another place, or in part, does not pass for one.

use std::io;
use std::sync::Arc;

use super::WorkError;
use super::medium::{Medium, WorkFile};

/// Length of a checksum in bytes.
const CHECKSUM_LEN: usize = 16;

/// A file that blocks are appended to.
#[derive(Clone, Debug)]
pub(super) struct BlockFile {
    file: Arc<dyn WorkFile>,
    place: Arc<str>,
    end: u64,
}

/// The place of a block in its file.
#[derive(Copy, Clone, Debug)]
pub(super) struct Block {
    offset: u64,
    /// Length of its contents in bytes.
    length: u32,
}

fn checksum(offset: u64, contents: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&offset.to_le_bytes());
    hasher.update(contents);
    let mut checksum = [0; CHECKSUM_LEN];
    checksum.copy_from_slice(&hasher.finalize().as_bytes()[..CHECKSUM_LEN]);
    checksum
}

impl BlockFile {
    /// Makes an empty file.
    ///
    /// # Errors
    /// [`WorkError::Unwritten`].
    pub(super) fn create(medium: &dyn Medium) -> Result<Self, WorkError> {
        let place = medium.place();
        match medium.create() {
            Ok(file) => Ok(Self {
                file,
                place,
                end: 0,
            }),
            Err(source) => Err(unwritten(&place, source)),
        }
    }

    /// Appends a block of less than 4 GiB.
    ///
    /// # Errors
    /// [`WorkError::Unwritten`]. The file cannot be used after that.
    pub(super) fn append(&mut self, contents: &[u8]) -> Result<Block, WorkError> {
        let block = Block {
            offset: self.end,
            length: contents.len() as u32,
        };
        let start = self.end + CHECKSUM_LEN as u64;
        self.file
            .write_at(self.end, &checksum(self.end, contents))
            .and_then(|()| self.file.write_at(start, contents))
            .map_err(|source| unwritten(&self.place, source))?;
        self.end = start + contents.len() as u64;
        Ok(block)
    }

    /// Returns the contents of a block.
    ///
    /// # Errors
    /// [`WorkError::Unread`], and [`WorkError::Changed`] if they are not what was written.
    pub(super) fn read(&self, block: Block) -> Result<Vec<u8>, WorkError> {
        let mut stored = vec![0; CHECKSUM_LEN + block.length as usize];
        match self.file.read_at(block.offset, &mut stored) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(self.changed());
            }
            Err(source) => {
                return Err(WorkError::Unread {
                    place: Arc::clone(&self.place),
                    source: Arc::new(source),
                });
            }
        }
        let contents = stored.split_off(CHECKSUM_LEN);
        match stored == checksum(block.offset, &contents) {
            true => Ok(contents),
            false => Err(self.changed()),
        }
    }

    /// Returns the error of contents that are not what was written.
    pub(super) fn changed(&self) -> WorkError {
        WorkError::Changed {
            place: Arc::clone(&self.place),
        }
    }
}

fn unwritten(place: &Arc<str>, source: io::Error) -> WorkError {
    WorkError::Unwritten {
        place: Arc::clone(place),
        source: Arc::new(source),
    }
}
