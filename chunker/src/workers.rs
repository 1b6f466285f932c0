//! Execution of processor-bound jobs: a bounded pool of threads, or the calling task itself.
//!
//! Owns the threads, the bound of their queue, and the answer to the caller. Knows nothing of the
//! jobs. Each thread lends its jobs a [`Scratch`]. `Inline` runs a job at once in the calling task,
//! so that a simulation on one thread is repeatable.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use crate::error::ContentError;
use crate::pack::{FrameDecoder, FrameEncoder};

/// How many jobs per thread may wait in the queue. Further callers wait for a place.
const QUEUED_PER_THREAD: usize = 4;

/// The number of bytes that are split into chunks and hashed in less time than it takes to wake a
/// thread.
const SMALL_BYTES: usize = 32 << 10;

/// The contexts that a thread keeps between jobs.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Compresses and seals frames.
    pub(crate) frames: FrameEncoder,
    /// Opens and decompresses frames.
    pub(crate) frame_decoder: FrameDecoder,
}

/// Runs processor-bound jobs outside the tasks that wait for them. Clones are cheap.
#[derive(Clone)]
pub struct Workers(Arc<Mode>);

enum Mode {
    Inline(Box<Mutex<Scratch>>),
    Pool(Pool),
}

type Job = Box<dyn FnOnce(&mut Scratch) + Send>;

struct Pool {
    jobs: Sender<Job>,
    /// One permit for each job that runs or waits in the queue.
    places: Arc<Semaphore>,
    threads: usize,
}

/// Runs jobs until nothing can send one any more.
fn work(queue: &Receiver<Job>) {
    let mut scratch = Scratch::default();
    while let Ok(job) = queue.recv() {
        if catch_unwind(AssertUnwindSafe(|| job(&mut scratch))).is_err() {
            // The job may have left its contexts in an invalid state.
            scratch = Scratch::default();
        }
    }
}

impl Workers {
    /// Returns workers that run every job in the calling task.
    pub fn inline() -> Self {
        Self(Arc::new(Mode::Inline(Box::default())))
    }

    /// Starts `threads` threads, at least one. They end when the last clone is dropped.
    ///
    /// # Errors
    /// The error of the operating system if it refuses a thread.
    pub fn pool(threads: usize) -> io::Result<Self> {
        let threads = threads.max(1);
        let (jobs, queue) = crossbeam_channel::unbounded();
        for number in 0..threads {
            let queue = queue.clone();
            thread::Builder::new()
                .name(format!("bkfs-work-{number}"))
                .spawn(move || work(&queue))?;
        }
        Ok(Self(Arc::new(Mode::Pool(Pool {
            jobs,
            places: Arc::new(Semaphore::new(threads * (1 + QUEUED_PER_THREAD))),
            threads,
        }))))
    }

    /// Returns how many jobs run concurrently.
    pub fn threads(&self) -> usize {
        match &*self.0 {
            Mode::Inline(_) => 1,
            Mode::Pool(pool) => pool.threads,
        }
    }

    /// Runs a job over `bytes` bytes. The calling task runs it if there are too few bytes to be
    /// worth a thread switch.
    ///
    /// # Errors
    /// Those of [`Workers::run`].
    pub(crate) async fn run_sized<T, F>(&self, bytes: usize, job: F) -> Result<T, ContentError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        match bytes <= SMALL_BYTES {
            true => Ok(job()),
            false => self.run(move |_| job()).await,
        }
    }

    /// Runs `job` and returns its result. A queued job runs to its end even if the future is
    /// dropped. A future that is dropped while it waits for a place in the queue runs no job.
    ///
    /// # Errors
    /// [`ContentError::Internal`] if the job panicked.
    pub(crate) async fn run<T, F>(&self, job: F) -> Result<T, ContentError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Scratch) -> T + Send + 'static,
    {
        match &*self.0 {
            Mode::Inline(scratch) => {
                let mut scratch = scratch.lock();
                catch_unwind(AssertUnwindSafe(|| job(&mut scratch)))
                    .map_err(|_| ContentError::Internal("a worker's job panicked"))
            }
            Mode::Pool(pool) => pool.run(job).await,
        }
    }
}

impl Pool {
    async fn run<T, F>(&self, job: F) -> Result<T, ContentError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Scratch) -> T + Send + 'static,
    {
        let place = Arc::clone(&self.places)
            .acquire_owned()
            .await
            .expect("the workers' places are never closed");
        let (answer, result) = oneshot::channel();
        let job: Job = Box::new(move |scratch| {
            let _place = place;
            // The caller may have dropped its future; then the answer is dropped here, which may
            // panic.
            let _ = answer.send(job(scratch));
        });
        self.jobs
            .send(job)
            .expect("the workers end after their last caller");
        result
            .await
            .map_err(|_| ContentError::Internal("a worker's job panicked"))
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Mode::Inline(_) => formatter.write_str("Workers::Inline"),
            Mode::Pool(_) => write!(formatter, "Workers::Pool({})", self.threads()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn jobs_run_on_both_kinds_and_panics_are_errors() {
        for workers in [Workers::inline(), Workers::pool(2).expect("threads")] {
            let jobs = (0..100).map(|number| {
                let workers = workers.clone();
                async move { workers.run(move |_| number * 2).await.expect("runs") }
            });
            let results = futures::future::join_all(jobs).await;
            assert_eq!(results, (0..100).map(|n| n * 2).collect::<Vec<_>>());
            let failed = workers.run(|_| panic!("on purpose")).await;
            assert!(matches!(failed, Err::<(), _>(ContentError::Internal(_))));
            assert_eq!(workers.run(|_| 7).await.expect("still alive"), 7);
        }
    }
    /// A result whose drop panics.
    struct Fragile(mpsc::Sender<()>);

    impl Drop for Fragile {
        fn drop(&mut self) {
            let _ = self.0.send(());
            panic!("on purpose");
        }
    }

    /// The caller is gone, so the thread drops the result.
    #[tokio::test]
    async fn a_result_whose_drop_panics_ends_no_process() {
        let workers = Workers::pool(1).expect("a thread");
        let (begin, begun) = oneshot::channel();
        let (go_on, told) = mpsc::channel();
        let (dropped, drops) = mpsc::channel();
        let mut running = Box::pin(workers.run(move |_| {
            let _ = begin.send(());
            let _ = told.recv();
            Fragile(dropped)
        }));
        tokio::select! {
            _ = &mut running => panic!("it waits"),
            begun = begun => begun.expect("the job runs"),
        }
        drop(running);
        go_on.send(()).expect("the job waits");
        assert_eq!(workers.run(|_| 7).await.expect("still alive"), 7);
        assert_eq!(drops.try_iter().count(), 1, "the thread dropped it");
    }
}
