//! Stored bytes next to a run that is to be stored.
//!
//! Owns which of them make the run split as if the file had been written at once. Without those that
//! a slow store holds back the run is stored all the same, and costs a little more. Those that a swap
//! file holds are changed as well, and are needed. Does not own the choice of runs (`flush`).

use std::ops::Range;

use bkfs_chunker::ingest::Profile;
use bytes::Bytes;

use crate::volume::brief_reads::BriefReads;
use crate::volume::error::VolumeError;
use crate::volume::state::Scope;
use crate::volume::view::View;

/// The grid on which page files are split, in bytes: InnoDB's default page, two pages of
/// PostgreSQL.
const PAGE_BYTES: u64 = 16 * 1024;

/// Waits for `read`, which reads stored bytes next to a run. Returns none if they cannot be read in
/// time. Each such read may be a request of its own, so there is none while reads pause.
pub(super) async fn near<T>(
    reads: &BriefReads,
    inode: u64,
    read: impl Future<Output = Result<T, VolumeError>>,
) -> Option<T> {
    if reads.are_pausing() {
        return None;
    }
    let why = match reads.read(read).await {
        Ok(Some(read)) => return Some(read),
        Ok(None) => "the store is slow".to_owned(),
        Err(error) => error.to_string(),
    };
    tracing::debug!("inode {inode} is stored piece by piece: {why}");
    None
}

/// Returns the offset at which a run must start to be split as if the file had been written at
/// once, and the stored bytes before and after it. The file has `size` bytes, unless the run goes
/// on.
///
/// # Errors
/// Those of reading the tree and stored bytes.
pub(super) async fn widen(
    view: &View,
    (inode, scope): (u64, Scope),
    profile: Profile,
    (range, size): (&Range<u64>, Option<u64>),
) -> Result<(u64, Vec<Bytes>, Vec<Bytes>), VolumeError> {
    let (start, before) = before(view, (inode, scope), profile, range.start).await?;
    let after = match size {
        None => Vec::new(),
        Some(size) => after(view, (inode, scope), profile, (range.end, size)).await?,
    };
    Ok((start, before, after))
}

/// Returns the offset at which the run must start, and the stored bytes from there to `start`.
async fn before(
    view: &View,
    (inode, scope): (u64, Scope),
    profile: Profile,
    start: u64,
) -> Result<(u64, Vec<Bytes>), VolumeError> {
    if start == 0 {
        return Ok((0, Vec::new()));
    }
    let mut from = start;
    let neighbours = view.extents(scope, inode, start - 1..start).await?;
    if let Some(placed) = neighbours.first() {
        // Only an extent that begins at the start of its target begins where a segment begins.
        // An extent that was cut at its front does not.
        if placed.extent.open && placed.extent.target_offset == 0 && placed.end() == start {
            from = placed.offset;
        }
    }
    if profile == Profile::Grid {
        from = from.min(start - start % PAGE_BYTES);
    }
    if from == start {
        return Ok((start, Vec::new()));
    }
    Ok((from, view.read_to_store(scope, inode, from..start).await?))
}

/// Returns the rest of the last page of a page file, if the file continues after the run.
async fn after(
    view: &View,
    (inode, scope): (u64, Scope),
    profile: Profile,
    (end, size): (u64, u64),
) -> Result<Vec<Bytes>, VolumeError> {
    let to = end.next_multiple_of(PAGE_BYTES).min(size);
    if profile != Profile::Grid || to <= end {
        return Ok(Vec::new());
    }
    view.read_to_store(scope, inode, end..to).await
}
