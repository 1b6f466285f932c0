//! Verified parts of a table that stay in memory.
//!
//! Owns two ways to keep them: [`Kept`] never drops what it has read, for parts that are small or
//! needed by every look-up; [`Recent`] has a few blocks, for look-ups near each other. What is kept
//! is a copy, so that it stays right whatever happens to the file.

use super::error::TableError;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// Parts that stay once they are read.
#[derive(Debug)]
pub(super) struct Kept<T>(Box<[OnceLock<T>]>);

impl<T> Kept<T> {
    /// Returns room for `count` parts, none of which is read. It takes at most 64 bytes for each.
    pub(super) fn new(count: u64) -> Self {
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// Returns a part, which `read` reads if it is not here.
    ///
    /// # Errors
    /// Those of `read`, and [`TableError::Inconsistent`] if there is no such part.
    pub(super) fn get(
        &self,
        number: u64,
        read: impl FnOnce() -> Result<T, TableError>,
    ) -> Result<&T, TableError> {
        let cell = usize::try_from(number).ok().and_then(|at| self.0.get(at));
        let cell = cell.ok_or(TableError::Inconsistent("a part is out of bounds"))?;
        match cell.get() {
            Some(part) => Ok(part),
            None => {
                let part = read()?;
                Ok(cell.get_or_init(|| part))
            }
        }
    }
}

/// How many blocks are kept: 32 KiB.
const RECENT_BLOCKS: u64 = 8;

/// A block by its number.
type Numbered = Option<(u64, Arc<[u8]>)>;

/// The blocks that were read last.
#[derive(Debug, Default)]
pub(super) struct Recent([Mutex<Numbered>; RECENT_BLOCKS as usize]);

impl Recent {
    /// Returns a block, which `read` reads if it is not here.
    ///
    /// # Errors
    /// Those of `read`.
    pub(super) fn get(
        &self,
        number: u64,
        read: impl FnOnce() -> Result<Arc<[u8]>, TableError>,
    ) -> Result<Arc<[u8]>, TableError> {
        let place = &self.0[(number % RECENT_BLOCKS) as usize];
        if let Some((kept, block)) = &*place.lock()
            && *kept == number
        {
            return Ok(Arc::clone(block));
        }
        let block = read()?;
        *place.lock() = Some((number, Arc::clone(&block)));
        Ok(block)
    }
}
