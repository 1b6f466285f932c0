//! The tasks that fill files: one for each part of a large file, one for many small files.
//!
//! Owns: which task fills what, and that all tasks are awaited. Does not own: how a part or a small
//! file is filled (`file`).

use std::sync::Arc;

use tokio::task::{JoinError, JoinSet};

use crate::restore::file::{self, Contents};
use crate::restore::job::FRAMES_AT_ONCE;

/// Number of small files that a task takes: a sixth of those that may be in flight.
const FILES_MAX: usize = FRAMES_AT_ONCE / 6;

/// Bytes of small files that a task takes, at least. It takes one file more at most. Names come in
/// another order than files were stored in, so the more files share a request, the fewer of its
/// neighbours another one fetches again.
const BYTES_MAX: u64 = 4 << 20;

/// The tasks of a restore, and the small files that wait for one. A task for each small file would
/// cost more than the file itself.
#[derive(Default)]
pub struct Parts {
    tasks: JoinSet<()>,
    small: Vec<Arc<Contents>>,
    small_bytes: u64,
}

impl Parts {
    /// Fills a file, in the background; waits while too many parts are being filled.
    pub async fn fill(&mut self, file: Arc<Contents>) {
        if let Some(bytes) = file.small_bytes() {
            return self.add_small(file, bytes).await;
        }
        if !file.begin_with_length() {
            return;
        }
        let (mut at, mut looked) = (0, 0);
        while let Some(part) = file.next_part(at, &mut looked).await {
            at = part.end;
            let Some(permit) = file.permit().await else {
                return;
            };
            let filled = file.clone();
            self.spawn(async move {
                filled.part(part).await;
                drop(permit);
            });
        }
    }

    /// Runs a task.
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
        // A file detects the bytes that a panicked task did not write.
        while self.tasks.try_join_next().is_some() {}
    }

    /// Takes a small file. Fills it together with others, when there are enough.
    async fn add_small(&mut self, file: Arc<Contents>, bytes: u64) {
        self.small.push(file);
        self.small_bytes += bytes;
        if self.small.len() >= FILES_MAX || self.small_bytes >= BYTES_MAX {
            self.fill_small().await;
        }
    }

    async fn fill_small(&mut self) {
        self.small_bytes = 0;
        let files = std::mem::take(&mut self.small);
        let Some(first) = files.first() else {
            return;
        };
        let frames = files.iter().map(|file| file.small_frames()).sum();
        if let Some(permit) = first.permits(frames).await {
            self.spawn(async move {
                file::fill_small(files).await;
                drop(permit);
            });
        }
    }

    /// Waits until all files are filled. Calls `failed` for each task that has panicked.
    pub async fn join(&mut self, failed: impl Fn(JoinError)) {
        self.fill_small().await;
        while let Some(done) = self.tasks.join_next().await {
            if let Err(error) = done {
                failed(error);
            }
        }
    }
}
