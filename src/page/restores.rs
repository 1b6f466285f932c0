//! Restores to this machine that a page has begun.
//!
//! Owns where they may go, how many there are at a time, and what became of each. Does not own the
//! restore itself (`restore`).
//!
//! A restore goes on when its browser is gone, and ends with the server. All of them run on a runtime
//! of their own: a disk that hangs must not hold the threads that answer requests.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::page::contents::Opened;
use crate::page::route::FileName;
use crate::restore::error::RestoreError;
use crate::restore::job::{Options, Problem, RestoreProgress};
use crate::restore::overwrite::Overwrite;
use crate::restore::source::{Source, known_bytes};
use crate::restore::target::Target;
use crate::restore::{lacking, restore};
use crate::root::snapshots::SnapshotEntry;
use crate::units;

/// Restores at the same time. Each holds up to 12 parts of files in memory.
const AT_ONCE: usize = 2;

/// Restores that are remembered.
const REMEMBERED: usize = 50;

/// Problems of a restore that are remembered. The others are counted.
pub const PROBLEMS_MAX: usize = 100;

/// How often a restore that was stopped looks whether the disk has let it go.
const LET_GO_PAUSE: Duration = Duration::from_millis(100);

/// A directory of this machine to which the page may restore.
#[derive(Debug)]
pub struct RestoreRoot {
    /// Its path.
    pub path: PathBuf,
    directory: Arc<OwnedFd>,
}

impl RestoreRoot {
    /// Opens the directory. It stays the same one, whatever gets its name later.
    ///
    /// # Errors
    /// The I/O error of opening it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = Arc::new(rustix::fs::open(path, flags, Mode::empty())?);
        let path = std::path::absolute(path)?;
        Ok(Self { path, directory })
    }
}

/// What a form asks for.
#[derive(Debug)]
pub struct Wish {
    /// The index of the root.
    pub root: usize,
    /// The path below it.
    pub below: PathBuf,
    /// Which existing files are replaced.
    pub overwrite: Overwrite,
}

/// Why a restore does not begin.
#[derive(Debug, thiserror::Error)]
pub enum NotBegun {
    /// The server has no such root.
    #[error("this server does not restore to that directory")]
    NoRoot,
    /// The path leads out of the root, or is none.
    #[error(transparent)]
    Path(#[from] RestoreError),
    /// Others are on their way.
    #[error("{AT_ONCE} restores are on their way: wait until one of them has ended")]
    Busy,
    /// There are no threads for it.
    #[error("no threads can be started: {0}")]
    NoThreads(io::Error),
}

/// What became of a restore.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// It is at its end; what could not be restored, as far as it is remembered.
    Done(Arc<Vec<Problem>>),
    /// It could not begin, or had to end.
    Failed(String),
    /// A form has ended it.
    Stopped,
}

/// A restore.
#[derive(Debug)]
pub struct PageRestore {
    /// Its number, from 1.
    pub number: u64,
    /// What is restored.
    pub file: FileName,
    /// Where to.
    pub target: PathBuf,
    /// Bytes to restore, if they are known.
    pub total_bytes: Option<u64>,
    /// How far it is.
    pub progress: Arc<RestoreProgress>,
    began: Instant,
    /// None while it is on its way; how long it took.
    ended: Mutex<Option<(Outcome, Duration)>>,
    stop: CancellationToken,
    /// Nothing of it goes on.
    is_over: AtomicBool,
}

impl PageRestore {
    /// Returns what became of it, or none while it is on its way, and how long that is.
    pub fn state(&self) -> (Option<Outcome>, Duration) {
        match &*self.ended.lock() {
            Some((outcome, took)) => (Some(outcome.clone()), *took),
            None => (None, self.began.elapsed()),
        }
    }

    /// Returns the bytes restored so far, with what stayed because it was there.
    pub fn bytes(&self) -> u64 {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        load(&self.progress.bytes).saturating_add(load(&self.progress.kept_bytes))
    }

    /// Ends it, unless it has ended. Files that are whole stay.
    pub fn stop(&self) {
        self.end(Outcome::Stopped);
        self.stop.cancel();
    }

    /// Returns true if parts of it still wait for the disk.
    pub fn is_held(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn end(&self, outcome: Outcome) {
        let took = self.began.elapsed();
        self.ended.lock().get_or_insert((outcome, took));
    }
}

/// Tells that a restore has ended, also if its thread panicked.
struct Ending(Arc<PageRestore>);

impl Drop for Ending {
    fn drop(&mut self) {
        let lost = "it has ended by a fault of bkfs: the log of the server has more";
        self.0.end(Outcome::Failed(lost.to_owned()));
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// The place of a restore among those at the same time.
#[derive(Debug)]
pub struct Place(#[expect(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit);

/// The restores of a server.
#[derive(Debug)]
pub struct Restores {
    /// Where they may go; empty if there may be none.
    pub roots: Vec<RestoreRoot>,
    /// The newest first, and the number of the next one.
    begun: Mutex<(VecDeque<Arc<PageRestore>>, u64)>,
    permits: Arc<Semaphore>,
    runtime: OnceLock<Runtime>,
}

impl Drop for Restores {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Its threads may hang for ever.
            runtime.shutdown_background();
        }
    }
}

impl Restores {
    /// Returns the restores to these directories.
    pub fn new(roots: Vec<RestoreRoot>) -> Self {
        Self {
            roots,
            begun: Mutex::new((VecDeque::new(), 1)),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            runtime: OnceLock::new(),
        }
    }

    /// Returns those that are remembered, the newest first.
    pub fn all(&self) -> Vec<Arc<PageRestore>> {
        self.begun.lock().0.iter().cloned().collect()
    }

    /// Returns one of them.
    pub fn find(&self, number: u64) -> Option<Arc<PageRestore>> {
        let begun = self.begun.lock();
        let mut all = begun.0.iter();
        all.find(|restore| restore.number == number).cloned()
    }

    /// Ends all that are on their way, and lets none begin any more.
    pub fn end(&self) {
        self.permits.close();
        self.all().iter().for_each(|restore| restore.stop());
    }

    /// Waits until nothing of any restore goes on. A disk that hangs may hold one for ever.
    pub async fn are_over(&self) {
        while self.all().iter().any(|restore| restore.is_held()) {
            tokio::time::sleep(LET_GO_PAUSE).await;
        }
    }

    fn runtime(&self) -> Result<&Runtime, NotBegun> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime);
        }
        let made = Builder::new_multi_thread().enable_all().build();
        let made = made.map_err(NotBegun::NoThreads)?;
        // Another form may have made one meanwhile.
        if let Err(second) = self.runtime.set(made) {
            second.shutdown_background();
        }
        self.runtime.get().ok_or(NotBegun::Busy)
    }

    /// Returns the place of one more restore.
    ///
    /// # Errors
    /// [`NotBegun::Busy`] if there is none.
    pub fn place(&self) -> Result<Place, NotBegun> {
        let permit = self.permits.clone().try_acquire_owned();
        permit.map(Place).map_err(|_| NotBegun::Busy)
    }

    /// Begins to restore a file or directory. Returns its number.
    ///
    /// # Errors
    /// [`NotBegun::NoRoot`], [`NotBegun::Path`] or [`NotBegun::NoThreads`].
    pub fn begin(
        &self,
        opened: Opened,
        file: FileName,
        wish: &Wish,
        place: Place,
    ) -> Result<u64, NotBegun> {
        let root = self.roots.get(wish.root).ok_or(NotBegun::NoRoot)?;
        let target = Target::beneath(root.directory.clone(), &root.path, &wish.below)?;
        let runtime = self.runtime()?.handle().clone();
        let path = file.joined();
        let attributes = opened.entry.attributes.as_ref();
        let total = attributes.and_then(|found| known_bytes(&path, found, &opened.snapshot));
        let mut begun = self.begun.lock();
        let (all, next) = &mut *begun;
        let restore = Arc::new(PageRestore {
            number: *next,
            file,
            target: target.path().to_owned(),
            total_bytes: total,
            progress: Arc::default(),
            began: Instant::now(),
            ended: Mutex::new(None),
            stop: CancellationToken::new(),
            is_over: AtomicBool::new(false),
        });
        *next += 1;
        all.push_front(restore.clone());
        // Those on their way are among the newest, unless each later one has ended.
        let is_old = |(index, old): (usize, &Arc<PageRestore>)| {
            (index >= REMEMBERED && old.state().0.is_some()).then_some(index)
        };
        if let Some(index) = all.iter().enumerate().find_map(is_old) {
            all.remove(index);
        }
        let source = Source::whole(opened.view, opened.inode, &path);
        let work = Work {
            source,
            snapshot: opened.snapshot,
            target,
            overwrite: wish.overwrite,
        };
        let number = restore.number;
        runtime.spawn(carry_out(restore, work, place));
        if self.permits.is_closed() {
            // The end of the server has not seen it.
            self.end();
        }
        Ok(number)
    }
}

/// What is restored, and how.
struct Work {
    source: Source,
    snapshot: SnapshotEntry,
    target: Target,
    overwrite: Overwrite,
}

/// Restores until it is told to stop. That leaves whole files and, under temporary names, parts of
/// others, which the next restore to the same directory removes.
async fn carry_out(restore: Arc<PageRestore>, work: Work, place: Place) {
    let _place = place;
    let ending = Ending(restore);
    let (from, target) = (
        ending.0.file.joined(),
        ending.0.target.display().to_string(),
    );
    let from = crate::printable::name(&from);
    // A trace of what is written from afar, though nothing is wrong.
    tracing::warn!("a form restores /{from} to {target}");
    let made = tokio::select! {
        made = made(&ending.0, work) => Some(made),
        () = ending.0.stop.cancelled() => None,
    };
    match made {
        Some(Ok(problems)) => ending.0.end(Outcome::Done(Arc::new(problems))),
        Some(Err(error)) => {
            tracing::warn!("/{from} is not restored to {target}: {error}");
            ending.0.end(Outcome::Failed(error));
        }
        None => tracing::warn!("the restore of /{from} to {target} was stopped"),
    }
    // Writes that a disk holds have a part in the counters. The place is not free before.
    while Arc::strong_count(&ending.0.progress) > 1 {
        tokio::time::sleep(LET_GO_PAUSE).await;
    }
}

fn options(overwrite: Overwrite) -> Options {
    Options {
        overwrite,
        // A client of the page must not make programs that give others more rights.
        no_special: true,
        problems_max: Some(PROBLEMS_MAX),
        ..Options::default()
    }
}

async fn made(restore: &PageRestore, work: Work) -> Result<Vec<Problem>, String> {
    let options = options(work.overwrite);
    let snapshot = (&work.snapshot, restore.total_bytes);
    let lacking = lacking(&work.source, snapshot, &work.target, options).await;
    if let Some(lacking) = lacking.map_err(|error| error.to_string())? {
        return Err(format!(
            "{}: too little room: {} needed, {} free; nothing was restored",
            lacking.room.directory.display(),
            units::bytes(lacking.needed_bytes),
            units::bytes(lacking.room.free_bytes),
        ));
    }
    let progress = restore.progress.clone();
    let made = self::restore(work.source, HashSet::new(), &work.target, options, progress).await;
    made.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::route::VolumeName;

    fn unended(number: u64) -> Arc<PageRestore> {
        let volume = VolumeName {
            repository: 0,
            volume: "main".into(),
        };
        Arc::new(PageRestore {
            number,
            file: volume.snapshot("first"),
            target: PathBuf::new(),
            total_bytes: None,
            progress: Arc::default(),
            began: Instant::now(),
            ended: Mutex::new(None),
            stop: CancellationToken::new(),
            is_over: AtomicBool::new(false),
        })
    }

    #[test]
    fn what_a_form_restores_gives_no_rights() {
        use Overwrite::{Always, IfChanged, Never, Refused};
        for overwrite in [Refused, Never, IfChanged, Always] {
            assert!(options(overwrite).no_special);
        }
    }

    #[test]
    fn the_first_outcome_stays() {
        let restore = unended(1);
        assert!(restore.state().0.is_none());
        restore.stop();
        drop(Ending(restore.clone()));
        restore.end(Outcome::Done(Arc::default()));
        assert!(matches!(restore.state().0, Some(Outcome::Stopped)));
        assert!(restore.stop.is_cancelled());
        let lost = unended(2);
        drop(Ending(lost.clone()));
        assert!(matches!(lost.state().0, Some(Outcome::Failed(_))));
    }

    #[test]
    fn a_third_restore_waits_for_a_place() {
        let restores = Restores::new(Vec::new());
        let first = restores.place().unwrap();
        let _second = restores.place().unwrap();
        assert!(matches!(restores.place(), Err(NotBegun::Busy)));
        drop(first);
        restores.place().unwrap();
    }
}
