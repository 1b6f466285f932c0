//! Contents of one file, in parts that are fetched concurrently.

use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bkfs_store::direct::DIRECT_BYTES_MIN;
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use crate::restore::dates::{Made, Undated};
use crate::restore::job::{FRAMES_AT_ONCE, Job, SMALL_FRAME_BYTES};
use crate::restore::output::Output;
use crate::restore::{finishing, place};
use crate::tree::item::Attributes;
use crate::volume::error::VolumeError;
use crate::volume::seek::seek;
use crate::volume::state::Scope;

/// A part of a file, in bytes.
pub const PART_BYTES: u64 = 8 * 1024 * 1024;

/// Bytes of a file that are taken for data before the next check for a hole.
const LOOK_BYTES: u64 = 1 << 30;

/// Largest size of a small file, in bytes. Many of these are filled by one task.
const SMALL_BYTES: u64 = 256 * 1024;

/// Where a file is made.
pub struct Target {
    /// The directory.
    pub directory: Arc<OwnedFd>,
    /// The temporary name that it has until it is whole. An existing file stays until then.
    pub draft: OsString,
    /// Its own name.
    pub name: OsString,
    /// The path of the directory below the target.
    pub below: Arc<Path>,
    /// The whole path, for messages.
    pub path: PathBuf,
}

/// A file that is to be filled. When the last part drops it and it is whole, it gets its owner,
/// permissions and name, and waits for its times.
pub struct Contents {
    job: Arc<Job>,
    inode: u64,
    attributes: Attributes,
    xattrs: Vec<(Vec<u8>, Bytes)>,
    /// The file of the target, once it is made.
    output: OnceLock<Output>,
    target: Target,
    failed: AtomicBool,
    /// Bytes that no part has written yet.
    left: AtomicU64,
}

impl Contents {
    /// Returns the contents of an inode for a file that is not made yet.
    pub fn new(
        job: Arc<Job>,
        inode: u64,
        attributes: Attributes,
        xattrs: Vec<(Vec<u8>, Bytes)>,
        target: Target,
    ) -> Arc<Self> {
        Arc::new(Contents {
            job,
            inode,
            attributes,
            xattrs,
            output: OnceLock::new(),
            target,
            failed: AtomicBool::new(false),
            left: AtomicU64::new(attributes.size_bytes),
        })
    }

    /// Returns the right to fill a part. Waits while too many are being filled.
    pub async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        self.job.permits.clone().acquire_owned().await.ok()
    }

    /// Returns the right to fill small files of which this is one, and which may hold so many
    /// frames. Waits while too many are held.
    pub async fn permits(&self, frames: u64) -> Option<OwnedSemaphorePermit> {
        let frames = frames.min(FRAMES_AT_ONCE as u64) as u32;
        let permits = self.job.small_permits.clone();
        // The semaphore is never closed.
        permits.acquire_many_owned(frames).await.ok()
    }

    /// Returns the number of frames that a small file holds while it is filled, at most.
    pub fn small_frames(&self) -> u64 {
        let size = self.attributes.size_bytes;
        size.div_ceil(SMALL_FRAME_BYTES).max(1)
    }

    /// Returns the size, in bytes, of a file that is filled together with others.
    pub fn small_bytes(&self) -> Option<u64> {
        let size = self.attributes.size_bytes;
        (size <= SMALL_BYTES && self.attributes.allocated_bytes >= size).then_some(size)
    }

    /// Makes the empty file. Reports a problem and returns `None` if that fails.
    fn begin(&self) -> Option<&Output> {
        let is_large = self.attributes.size_bytes >= DIRECT_BYTES_MIN as u64;
        let Target {
            directory, draft, ..
        } = &self.target;
        match Output::make(directory.as_fd(), draft, is_large) {
            Ok(output) => Some(self.output.get_or_init(|| output)),
            Err(error) => {
                self.fail(&error);
                None
            }
        }
    }

    /// Makes the file and gives it its length. Reports a problem and returns false if that fails.
    pub fn begin_with_length(&self) -> bool {
        let Some(output) = self.begin() else {
            return false;
        };
        let set = rustix::fs::ftruncate(output, self.attributes.size_bytes);
        set.inspect_err(|error| self.fail(error)).is_ok()
    }

    /// Returns the part to fill at `at`, or `None` if only a hole is left. `looked` is where a hole
    /// was looked for last. Reports a problem and returns `None` if the tree cannot be read.
    pub async fn next_part(&self, mut at: u64, looked: &mut u64) -> Option<Range<u64>> {
        let size = self.attributes.size_bytes;
        // The tree may claim more allocated bytes than the file has, so a long file is checked for
        // holes too, at intervals.
        let is_sparse = self.attributes.allocated_bytes < size;
        if at < size && (is_sparse || at - *looked >= LOOK_BYTES) {
            // A hole may be as long as the largest file, so it is skipped in one step and not part
            // by part.
            match self.data_behind(at).await {
                Ok(data) => (at, *looked) = (data, data),
                Err(error) => {
                    self.fail_volume(&error);
                    return None;
                }
            }
        }
        (at < size).then(|| at..size.min(at.saturating_add(PART_BYTES)))
    }

    /// Returns the offset of the first data at or after `at`, or the end of the file if there is
    /// none. The hole before it counts as written.
    async fn data_behind(&self, at: u64) -> Result<u64, VolumeError> {
        let found = match seek(&self.job.source.view, self.inode, at, true).await {
            Err(VolumeError::NoSuchPlace) => self.attributes.size_bytes,
            found => found?,
        };
        let skipped = found.saturating_sub(at);
        self.left.fetch_sub(skipped, Ordering::Relaxed);
        self.job
            .progress
            .bytes
            .fetch_add(skipped, Ordering::Relaxed);
        Ok(found)
    }

    /// Fills a part.
    pub async fn part(self: Arc<Self>, range: Range<u64>) {
        let length = range.end - range.start;
        let map = match self.job.source.view.map_of(self.inode, range).await {
            Ok(map) => map,
            Err(error) => return self.fail_volume(&error),
        };
        for (range, is_data) in map {
            if !is_data {
                continue;
            }
            let bytes = match self
                .job
                .source
                .view
                .read(Scope::Live, self.inode, range.clone())
                .await
            {
                Ok(bytes) => bytes,
                Err(error) => return self.fail_volume(&error),
            };
            let contents = self.clone();
            let written =
                tokio::task::spawn_blocking(move || contents.write(range.start, &bytes)).await;
            match written {
                Ok(Ok(())) => {}
                Ok(Err(reason)) => return self.fail(&reason),
                Err(error) => return self.fail(&error),
            }
        }
        self.left.fetch_sub(length, Ordering::Relaxed);
        self.job.progress.bytes.fetch_add(length, Ordering::Relaxed);
    }

    /// Gives a small file that was not filled its length, in case that it gets its name all the same.
    fn lengthen(&self, output: &Output) {
        let sized = rustix::fs::ftruncate(output, self.attributes.size_bytes);
        sized.unwrap_or_else(|error| tracing::debug!(%error, "stays short"));
    }

    /// Makes a small file, and fills it with what was read.
    fn make_small(&self, body: Result<Vec<Bytes>, VolumeError>) {
        let Some(output) = self.begin() else {
            return;
        };
        let body = match body {
            Ok(body) => body,
            Err(error) => {
                self.fail_volume(&error);
                return self.lengthen(output);
            }
        };
        if let Err(reason) = self.write(0, &body) {
            self.fail(&reason);
            return self.lengthen(output);
        }
        let length = body.iter().map(|part| part.len() as u64).sum();
        self.left.fetch_sub(length, Ordering::Relaxed);
        self.job.progress.bytes.fetch_add(length, Ordering::Relaxed);
    }

    /// Writes bytes; with `--verify` also reads back what the disk has.
    fn write(&self, offset: u64, body: &[Bytes]) -> Result<(), String> {
        let output = self.output.get().ok_or("it was not made")?;
        let written = output.write(offset, body, &self.job.buffers);
        written.map_err(|error| error.to_string())?;
        if self.job.options.verify {
            output.verify(offset, body)?;
            let length = body.iter().map(|part| part.len() as u64).sum();
            let verified = &self.job.progress.verified_bytes;
            verified.fetch_add(length, Ordering::Relaxed);
        }
        Ok(())
    }

    fn fail(&self, reason: &dyn std::fmt::Display) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            self.job.problem(&self.target.path, reason, false);
        }
    }

    fn fail_volume(&self, error: &VolumeError) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            self.job.volume_problem(&self.target.path, error);
        }
    }
}

/// Fills small files: reads them all at once, then makes and finishes one after another. So many
/// files share a request, and only one of them is open.
pub async fn fill_small(files: Vec<Arc<Contents>>) {
    let Some(first) = files.first() else {
        return;
    };
    let whole = |file: &Arc<Contents>| (file.inode, 0..file.attributes.size_bytes);
    let wanted: Vec<(u64, Range<u64>)> = files.iter().map(whole).collect();
    let read = first.job.source.view.read_each(Scope::Live, &wanted).await;
    // A file detects the bytes that a panicked thread did not write.
    let written = tokio::task::spawn_blocking(move || {
        for (file, body) in files.into_iter().zip(read) {
            if !file.job.is_abandoned.load(Ordering::SeqCst) {
                file.make_small(body);
            }
        }
    });
    let _ = written.await;
}

impl Contents {
    /// Finishes the file. A file that is not whole replaces no other. In a new directory it gets its
    /// name, for what can be read of it, but keeps the time at which it was written, so that it is
    /// not taken for the file of the snapshot.
    fn finish(&self) {
        if self.job.is_abandoned.load(Ordering::SeqCst) {
            return place::discard(self.target.directory.as_fd(), &self.target.draft);
        }
        let Some(output) = self.output.get() else {
            self.job.unmade.lock().insert(self.inode);
            // It may have been made, and then not locked.
            place::discard(self.target.directory.as_fd(), &self.target.draft);
            return self.fail(&"it was not made");
        };
        let is_whole = self.left.load(Ordering::Relaxed) == 0;
        if !is_whole {
            self.fail(&"a part of it was not written");
        }
        let Target {
            directory,
            draft,
            name,
            ..
        } = &self.target;
        if self.failed.load(Ordering::Relaxed) {
            self.job.unmade.lock().insert(self.inode);
            return match self.job.options.overwrite.meets_existing() {
                true => place::discard(directory.as_fd(), draft),
                false => self.leave(),
            };
        }
        let unset = finishing::finish_undated(
            output.as_fd(),
            &self.attributes,
            &self.xattrs,
            self.job.rights(),
        );
        let named = self.job.put_in_place(directory.as_fd(), draft, name);
        if let Err(error) = named.and_then(|()| self.wait_for_times(output)) {
            self.job.unmade.lock().insert(self.inode);
            return self.fail(&error);
        }
        match self.job.unset(&self.target.path, &unset) {
            true => {}
            false => self.job.made(),
        }
    }
}

impl Contents {
    fn wait_for_times(&self, output: &Output) -> rustix::io::Result<()> {
        let found = rustix::fs::fstat(output)?;
        self.job.dates.add(Undated {
            below: self.target.below.clone(),
            name: self.target.name.clone(),
            made: Made::from(&found),
            attributes: self.attributes,
        });
        Ok(())
    }

    /// Names a file of which only a part could be read.
    fn leave(&self) {
        let Target {
            directory,
            draft,
            name,
            ..
        } = &self.target;
        if let Err(error) = self.job.put_in_place(directory.as_fd(), draft, name) {
            tracing::warn!("{}: {error}", self.target.path.display());
        }
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        self.finish();
    }
}
