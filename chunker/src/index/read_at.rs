//! The bytes of a table, wherever they are.
//!
//! Owns what a table asks of them, and the forms that are in memory. Files are the matter of the
//! catalog.

use std::io;

/// Bytes that are read at a position. They may change or end at any time, unless they are trusted.
pub trait ReadAt {
    /// Returns their number, as of when they were opened.
    fn length(&self) -> u64;

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The error of the reader; of kind `UnexpectedEof` if the bytes end before.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Returns true if only this process has had the bytes, so that their checksums need not be
    /// verified.
    fn is_trusted(&self) -> bool {
        false
    }
}

impl ReadAt for &[u8] {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.get(at..));
        let bytes = rest.and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Bytes that this process has made and never gave away.
#[derive(Clone, Debug)]
pub struct OwnMemory(pub Vec<u8>);

impl ReadAt for OwnMemory {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.as_slice().read_at(offset, buffer)
    }

    fn is_trusted(&self) -> bool {
        true
    }
}
