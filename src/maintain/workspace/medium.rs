//! Where files with working data are made.
//!
//! Owns the two traits, so that tests can fill and rot a disk. [`super::directory`] is the medium
//! of the program.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

/// A place that takes files.
pub trait Medium: Debug + Send + Sync + 'static {
    /// Returns a new file that nothing else can name, and that is gone when it is dropped or the
    /// process ends.
    ///
    /// # Errors
    /// The error of the place.
    fn create(&self) -> io::Result<Arc<dyn WorkFile>>;

    /// Returns the place, as users know it.
    fn place(&self) -> Arc<str>;

    /// Returns the bytes that are free there; `None` if that is not known.
    fn free_bytes(&self) -> Option<u64>;
}

/// A file of a medium.
pub trait WorkFile: Debug + Send + Sync + 'static {
    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// The error of the place, such as [`io::ErrorKind::StorageFull`]. A part may be written then.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills `bytes` from an offset on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends before that; otherwise the error of the
    /// place.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
}
