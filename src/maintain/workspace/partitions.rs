//! Records by the prefix of an id: in memory up to a bound, and beyond it in partitions of one
//! file.
//!
//! Owns which partition a record is in, and the order within one, which is that of the additions.
//! A file has a block of each partition in turn, so that it takes one descriptor however many
//! partitions there are. About 16 bytes of memory for each block, and a block of each partition
//! that is not full, stay in memory.

use std::sync::Arc;

use bkfs_chunker::id::Prefix;

use super::blocks::{Block, BlockFile};
use super::medium::Medium;
use super::{WorkError, Workspace};

/// Bits of a prefix that choose the partition.
const PARTITION_BITS: u32 = 6;

/// Number of partitions.
pub(super) const PARTITIONS: usize = 1 << PARTITION_BITS;

/// Length of a full block, in bytes. A disk with heads reads one in about the time of a seek.
const BLOCK_BYTES: usize = 256 << 10;

/// A record of one length, with the prefix of the blob that it is about.
pub trait Record: Copy + Send + Sync + 'static {
    /// Length of the written form in bytes.
    const BYTES: usize;

    /// Returns the prefix of the blob.
    fn prefix(&self) -> Prefix;

    /// Appends the written form.
    fn write(&self, to: &mut Vec<u8>);

    /// Returns the record of a written form of [`Record::BYTES`] bytes. `None` if there is none.
    fn read(from: &[u8]) -> Option<Self>;
}

/// A set of records.
#[derive(Debug)]
pub struct Partitions<R> {
    medium: Option<Arc<dyn Medium>>,
    kept: Vec<R>,
    kept_max: usize,
    block_bytes: usize,
    spilled: Option<Spilled>,
}

#[derive(Debug)]
struct Spilled {
    file: BlockFile,
    parts: Vec<Part>,
}

#[derive(Debug, Default)]
struct Part {
    blocks: Vec<Block>,
    /// Records that no block holds yet.
    rest: Vec<u8>,
    count: u64,
}

/// Returns the number of the partition of a prefix.
fn number_of(prefix: &Prefix) -> usize {
    (prefix.head() >> (u64::BITS - PARTITION_BITS)) as usize
}

impl<R: Record> Partitions<R> {
    /// Returns an empty set, within one share of the memory of a workspace.
    pub fn new(workspace: &Workspace) -> Self {
        let share = usize::try_from(workspace.share()).unwrap_or(usize::MAX);
        let block = (share / PARTITIONS).min(BLOCK_BYTES) / R::BYTES * R::BYTES;
        Self {
            medium: workspace.medium.clone(),
            kept: Vec::new(),
            kept_max: share / size_of::<R>(),
            block_bytes: block.max(R::BYTES),
            spilled: None,
        }
    }

    /// Returns a set of these records that stays in memory.
    pub fn of(records: Vec<R>) -> Self {
        Self {
            kept: records,
            ..Self::new(&Workspace::default())
        }
    }

    /// Returns true if the records are on the medium.
    pub fn is_spilled(&self) -> bool {
        self.spilled.is_some()
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`WorkError::Unwritten`]. The set is not whole after that.
    pub fn push(&mut self, record: R) -> Result<(), WorkError> {
        if let Some(spilled) = &mut self.spilled {
            return spilled.push(&record, self.block_bytes);
        }
        let Some(medium) = self
            .medium
            .as_ref()
            .filter(|_| self.kept.len() >= self.kept_max)
        else {
            self.kept.push(record);
            return Ok(());
        };
        let mut spilled = Spilled {
            file: BlockFile::create(&**medium)?,
            parts: (0..PARTITIONS).map(|_| Part::default()).collect(),
        };
        for record in std::mem::take(&mut self.kept).iter().chain([&record]) {
            spilled.push(record, self.block_bytes)?;
        }
        self.spilled = Some(spilled);
        Ok(())
    }

    /// Returns the number of records of a partition, or of all if none is named.
    pub(super) fn count(&self, partition: Option<usize>) -> u64 {
        let parts = self.spilled.iter().flat_map(|spilled| &spilled.parts);
        let spilled = match partition {
            Some(partition) => parts.skip(partition).take(1).map(|part| part.count).sum(),
            None => parts.map(|part| part.count).sum::<u64>(),
        };
        let is_in = |record: &&R| partition.is_none_or(|it| it == number_of(&record.prefix()));
        spilled + self.kept.iter().filter(is_in).count() as u64
    }

    /// Passes the records of a partition, or all if none is named, to `each`: those of one
    /// partition in the order in which they were added.
    ///
    /// # Errors
    /// [`WorkError::Unread`] and [`WorkError::Changed`].
    pub(super) fn read(
        &self,
        partition: Option<usize>,
        each: &mut dyn FnMut(R),
    ) -> Result<(), WorkError> {
        for record in &self.kept {
            if partition.is_none_or(|it| it == number_of(&record.prefix())) {
                each(*record);
            }
        }
        let Some(spilled) = &self.spilled else {
            return Ok(());
        };
        let wanted = match partition {
            Some(partition) => partition..partition + 1,
            None => 0..PARTITIONS,
        };
        for part in spilled.parts.get(wanted).unwrap_or_default() {
            spilled.read(part, each)?;
        }
        Ok(())
    }
}

impl Spilled {
    fn push<R: Record>(&mut self, record: &R, block_bytes: usize) -> Result<(), WorkError> {
        let part = &mut self.parts[number_of(&record.prefix())];
        part.rest.reserve_exact(block_bytes - part.rest.len());
        record.write(&mut part.rest);
        part.count += 1;
        if part.rest.len() >= block_bytes {
            part.blocks.push(self.file.append(&part.rest)?);
            part.rest.clear();
        }
        Ok(())
    }

    fn read<R: Record>(&self, part: &Part, each: &mut dyn FnMut(R)) -> Result<(), WorkError> {
        let mut count = 0;
        let mut pass = |bytes: &[u8]| -> Result<(), WorkError> {
            for written in bytes.chunks_exact(R::BYTES) {
                each(R::read(written).ok_or_else(|| self.file.changed())?);
                count += 1;
            }
            Ok(())
        };
        for block in &part.blocks {
            pass(&self.file.read(*block)?)?;
        }
        pass(&part.rest)?;
        match count == part.count {
            true => Ok(()),
            false => Err(self.file.changed()),
        }
    }
}
