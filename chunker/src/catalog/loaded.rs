//! One index object as a table.
//!
//! Owns what its table answers, and what is known of a table that could not be made anew.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::files::TableBytes;
use super::reference::IndexRef;
use crate::crypto::{Class, HEADER_LEN};
use crate::error::ContentError;
use crate::index::{self, PackNumber, PartialPack, ReadAt, Table, TableError};
use crate::pack::PackName;

/// How long an attempt that failed counts for look-ups that come after it. Otherwise each of many
/// look-ups would wait for the same silent store, one after the other.
const FAILURE_COUNTS_FOR: Duration = Duration::from_secs(1);

/// The position of a blob in the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) pack: PackName,
    pub(crate) class: Class,
    pub(crate) frame: u16,
    /// Offset of the frame in the pack, in bytes.
    pub(crate) offset: u64,
    /// Length of the frame in the pack, in bytes.
    pub(crate) length: u32,
    /// Decoded length of the frame, in bytes.
    pub(crate) raw_length: u32,
    /// Number of the blob in the frame.
    pub(crate) slot: u16,
}

impl Location {
    /// Returns the pack and number of the frame, by which caches and fetches name it.
    pub(crate) fn key(&self) -> (PackName, u16) {
        (self.pack, self.frame)
    }

    /// Returns the bytes of the pack that the frame occupies.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + u64::from(self.length)
    }

    /// Returns the memory that the frame takes while it is decoded, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        u64::from(self.length) + u64::from(self.raw_length)
    }
}

/// A copy of a blob that a reader may try.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) location: Location,
    /// The first bytes of the pack.
    pub(crate) header: [u8; HEADER_LEN],
    /// The table that lists the other frames of the pack, and the number of the pack there. `None`
    /// if no loaded index object lists the pack.
    pub(crate) table: Option<(Arc<Loaded>, PackNumber)>,
}

/// An index object as a table.
#[derive(Debug)]
pub(crate) struct Loaded {
    reference: IndexRef,
    pub(super) table: Table<TableBytes>,
    /// Of the attempts to make this table anew.
    last_failure: LastFailure,
}

/// The end of the last attempt that failed, and why it did.
#[derive(Debug, Default)]
pub(super) struct LastFailure(Mutex<Option<(Instant, ContentError)>>);

impl LastFailure {
    pub(super) fn note(&self, error: &ContentError) {
        *self.0.lock() = Some((Instant::now(), error.clone()));
    }

    fn is_any(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Returns why an attempt failed, if that was found out just now.
    pub(super) fn recent(&self) -> Option<ContentError> {
        let last = self.0.lock();
        let last = last.as_ref();
        let recent = last.filter(|(ended, _)| ended.elapsed() < FAILURE_COUNTS_FOR);
        recent.map(|(_, error)| error.clone())
    }
}

/// A table in which a look-up found damage.
#[derive(Debug)]
pub(crate) struct DamagedTable {
    pub(super) loaded: Arc<Loaded>,
    pub(super) error: TableError,
}

impl DamagedTable {
    /// Returns true if the table could not be made anew.
    pub(crate) fn is_given_up(&self) -> bool {
        self.loaded.is_given_up()
    }
}

impl Loaded {
    pub(crate) fn new(reference: IndexRef, table: Table<TableBytes>) -> Self {
        Self {
            reference,
            table,
            last_failure: LastFailure::default(),
        }
    }

    /// Returns the reference by which the root names the index object.
    pub(crate) fn reference(&self) -> IndexRef {
        self.reference
    }

    /// Returns true if no other process can have changed the table.
    pub(super) fn is_in_memory(&self) -> bool {
        self.table.bytes().is_trusted()
    }

    /// Returns true if the table is damaged and could not be made anew.
    pub(super) fn is_given_up(&self) -> bool {
        self.last_failure.is_any()
    }

    pub(super) fn note_failure(&self, error: &ContentError) {
        self.last_failure.note(error);
    }

    /// Returns why the table could not be made anew, if that was found out just now.
    pub(super) fn recent_failure(&self) -> Option<ContentError> {
        self.last_failure.recent()
    }

    /// Returns what `answer` finds in the table. If it finds damage, returns this table.
    pub(super) fn ask<T>(
        self: &Arc<Self>,
        answer: impl FnOnce(&Table<TableBytes>) -> Result<T, TableError>,
    ) -> Result<T, DamagedTable> {
        answer(&self.table).map_err(|error| DamagedTable {
            loaded: Arc::clone(self),
            error,
        })
    }

    /// Returns the copy of a blob at a place.
    pub(super) fn candidate(
        self: &Arc<Self>,
        place: index::Location,
    ) -> Result<Candidate, TableError> {
        let (pack, frame) = (
            self.table.pack(place.pack)?,
            self.table.frame(place.pack, place.frame)?,
        );
        let (Some(pack), Some(frame)) = (pack, frame) else {
            return Err(NO_SUCH_PLACE);
        };
        Ok(Candidate {
            location: Location {
                pack: pack.name,
                class: pack.class,
                frame: place.frame,
                offset: u64::from(frame.offset),
                length: frame.stored_length,
                raw_length: frame.raw_length,
                slot: place.slot,
            },
            header: pack.header,
            table: Some((Arc::clone(self), place.pack)),
        })
    }

    /// Returns all packs of the table, each with those of its frames that the table has.
    ///
    /// # Errors
    /// [`TableError`] if a block of the table does not verify.
    pub(crate) fn parts(&self) -> Result<BTreeMap<PackName, PartialPack>, TableError> {
        let mut parts = BTreeMap::new();
        for number in (0..self.table.pack_count()).map(PackNumber) {
            let Some(pack) = self.table.pack(number)? else {
                continue;
            };
            let mut frames = BTreeMap::new();
            for frame in 0..=u16::MAX {
                match self.table.frame(number, frame)? {
                    Some(found) if found.stored_length > 0 => drop(frames.insert(frame, found)),
                    Some(_) => {}
                    None => break,
                }
            }
            parts.insert(pack.name, PartialPack { pack, frames });
        }
        Ok(parts)
    }

    /// Returns another frame of the pack that holds `location`. `None` if the pack has no such
    /// frame, or if the table cannot say.
    pub(crate) fn neighbour(
        &self,
        number: PackNumber,
        location: &Location,
        frame: u16,
    ) -> Option<Location> {
        let found = self.table.frame(number, frame).ok()??;
        // The table of a pin lists frames without a length that it does not have.
        if found.stored_length == 0 {
            return None;
        }
        Some(Location {
            frame,
            offset: u64::from(found.offset),
            length: found.stored_length,
            raw_length: found.raw_length,
            slot: 0,
            ..*location
        })
    }
}

/// Returns the name of the pack of an entry.
pub(super) fn name_of(
    table: &Table<TableBytes>,
    place: index::Location,
) -> Result<PackName, TableError> {
    table.pack_name(place.pack)?.ok_or(NO_SUCH_PLACE)
}

const NO_SUCH_PLACE: TableError = TableError::Inconsistent("an entry names a place without a pack");
