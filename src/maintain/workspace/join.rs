//! Joins two sets of records by the prefix of their blobs, one partition at a time.
//!
//! Owns the bound of the memory that a join takes. Pure but for the reads of [`Partitions`].

use bkfs_chunker::id::Prefix;

use super::WorkError;
use super::partitions::{PARTITIONS, Partitions, Record};

/// Memory that the records of one partition may take, in bytes. A partition with more is read in
/// several passes, each over a range of prefixes.
pub const JOIN_BYTES: u64 = 64 << 20;

/// Calls `each` with every record of `asked` and all records of `held` about the same blob, in the
/// order in which they were added.
///
/// Of two asked records of one partition that are about blobs of one pass, the one that was added
/// first comes first. The order is not determined otherwise. Takes `memory_bytes` of memory, and a
/// block of each set.
///
/// # Errors
/// [`WorkError::Unread`] and [`WorkError::Changed`]. What was passed before that may lack records.
pub fn join<H: Record, A: Record>(
    held: &Partitions<H>,
    asked: &Partitions<A>,
    memory_bytes: u64,
    each: &mut dyn FnMut(&A, &[H]),
) -> Result<(), WorkError> {
    if !held.is_spilled() && !asked.is_spilled() {
        return join_part(held, asked, None, 1, each);
    }
    for partition in (0..PARTITIONS).map(Some) {
        let bytes = held.count(partition) * size_of::<H>() as u64;
        let passes = bytes.div_ceil(memory_bytes.max(1)).max(1);
        join_part(held, asked, partition, passes, each)?;
    }
    Ok(())
}

/// Returns the pass of a prefix. Passes divide each partition evenly.
fn pass_of(prefix: &Prefix, passes: u64) -> u64 {
    let within = prefix.head().wrapping_mul(PARTITIONS as u64);
    ((u128::from(within) * u128::from(passes)) >> u64::BITS) as u64
}

fn join_part<H: Record, A: Record>(
    held: &Partitions<H>,
    asked: &Partitions<A>,
    partition: Option<usize>,
    passes: u64,
    each: &mut dyn FnMut(&A, &[H]),
) -> Result<(), WorkError> {
    if asked.count(partition) == 0 {
        return Ok(());
    }
    for pass in 0..passes {
        let expected = held.count(partition) / passes;
        let mut table: Vec<H> = Vec::with_capacity(expected as usize);
        let is_now = |prefix: &Prefix| passes == 1 || pass_of(prefix, passes) == pass;
        held.read(partition, &mut |record: H| {
            if is_now(&record.prefix()) {
                table.push(record);
            }
        })?;
        table.sort_by_key(|record| number(&record.prefix()));
        asked.read(partition, &mut |record: A| {
            let prefix = record.prefix();
            if is_now(&prefix) {
                each(&record, alike(&table, &prefix));
            }
        })?;
    }
    Ok(())
}

/// Returns a prefix as a number with the order of prefixes.
fn number(prefix: &Prefix) -> u128 {
    u128::from_be_bytes(prefix.0)
}

/// Returns the records of a sorted table about one blob.
fn alike<'t, H: Record>(table: &'t [H], prefix: &Prefix) -> &'t [H] {
    let wanted = number(prefix);
    let start = table.partition_point(|record| number(&record.prefix()) < wanted);
    let rest = &table[start..];
    let others = rest
        .iter()
        .position(|record| number(&record.prefix()) != wanted);
    &rest[..others.unwrap_or(rest.len())]
}
