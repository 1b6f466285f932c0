//! Parts of what a swap file holds: bytes that were written again lose only their own part.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::error::SwapError;
use super::file::{Shared, Swapped, blocking};

/// A part of what a swap file holds in one place.
#[derive(Debug, Clone)]
pub struct SwappedPart {
    pub(super) whole: Arc<Swapped>,
    /// Which bytes of it.
    range: Range<u32>,
}

impl SwappedPart {
    /// Returns all of it.
    pub fn whole(whole: Swapped) -> Self {
        let length = whole.length as u32;
        Self {
            whole: Arc::new(whole),
            range: 0..length,
        }
    }

    /// Returns the number of its bytes.
    #[allow(clippy::len_without_is_empty, reason = "no part is empty")]
    pub fn len(&self) -> u64 {
        u64::from(self.range.end - self.range.start)
    }

    /// Returns a part of it.
    #[must_use]
    pub fn slice(self, range: Range<u64>) -> Self {
        let start = self.range.start;
        Self {
            whole: self.whole,
            range: start + range.start as u32..start + range.end as u32,
        }
    }

    /// Returns true if both are of one whole.
    fn shares_its_whole(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.whole, &other.whole)
    }

    /// Returns its bytes, of those of the whole. A small part does not keep the whole in memory.
    fn cut(&self, whole: &Bytes) -> Bytes {
        let part = whole.slice(self.range.start as usize..self.range.end as usize);
        match part.len() >= whole.len() / 2 {
            true => part,
            false => Bytes::copy_from_slice(&part),
        }
    }
}

impl PartialEq for SwappedPart {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.whole, &other.whole) && self.range == other.range
    }
}

impl Eq for SwappedPart {}

/// Reads parts, in order, however long the disk takes. The result takes at most twice their bytes in
/// memory, and reading it 64 KiB more.
///
/// # Errors
/// [`SwapError::Disk`] if the disk fails; [`SwapError::Damaged`] if it returns something else than
/// what was written.
pub async fn read(parts: Vec<SwappedPart>) -> Result<Vec<Bytes>, SwapError> {
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    blocking(move || read_each(&parts, &AtomicU64::new(0))).await
}

/// Same, and takes a disk for one that has failed if it does not answer for 30 s: what is to be
/// stored must not wait for ever.
///
/// # Errors
/// Those of [`read`].
pub async fn read_in_time(parts: Vec<SwappedPart>) -> Result<Vec<Bytes>, SwapError> {
    let Some(first) = parts.first() else {
        return Ok(Vec::new());
    };
    let file = first.whole.shared.clone();
    let read = move |_: &Arc<Shared>, answers: &AtomicU64| read_each(&parts, answers);
    file.patiently(u32::MAX, read).await
}

/// Reads parts, in order, on this thread.
///
/// # Errors
/// Those of [`read`].
pub(crate) fn read_now(parts: &[SwappedPart]) -> Result<Vec<Bytes>, SwapError> {
    read_each(parts, &AtomicU64::new(0))
}

/// Returns the number of places that are read for these parts.
pub(crate) fn places_of(parts: &[SwappedPart]) -> usize {
    parts.chunk_by(SwappedPart::shares_its_whole).count()
}

/// Reads parts, in order, that the kernel has in memory; `None` if it does not have all of them, or
/// the disk fails. It does not wait.
pub(crate) fn read_in_memory(parts: &[SwappedPart]) -> Option<Vec<Bytes>> {
    let mut read = Vec::with_capacity(parts.len());
    for parts in parts.chunk_by(SwappedPart::shares_its_whole) {
        let whole = &parts[0].whole;
        let bytes = whole.shared.read_in_memory(whole)?;
        read.extend(parts.iter().map(|part| part.cut(&bytes)));
    }
    Some(read)
}

fn read_each(parts: &[SwappedPart], answers: &AtomicU64) -> Result<Vec<Bytes>, SwapError> {
    let mut read = Vec::with_capacity(parts.len());
    for parts in parts.chunk_by(SwappedPart::shares_its_whole) {
        let whole = &parts[0].whole;
        let bytes = whole.shared.read(whole)?;
        answers.fetch_add(1, Ordering::Relaxed);
        read.extend(parts.iter().map(|part| part.cut(&bytes)));
    }
    Ok(read)
}
