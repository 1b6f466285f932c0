//! The spool: objects on their way to the bucket, on local disk, for small memory and for commits
//! that must survive a crash of the machine.
//!
//! Owns the directory of one session, from the lock that proves that its owner lives to its removal
//! once all its objects are committed; the bound on its size; and the objects found there after a
//! crash ([`leftovers`]). Objects are finished and lie under their keys in the bucket, sealed as in
//! the bucket, never as raw data. Does not own which objects go there, nor when they are uploaded
//! (`ingest`), nor what a root makes of them.
//!
//! ```text
//!   ROOT/SESSION/lock                  flock'd by the owner
//!   ROOT/SESSION/NUMBER.KEY            one object each, in the order in which they came
//!   ROOT/SESSION/new-NUMBER            one that is being written
//!   ROOT/SESSION/incomplete-LAST       its snapshot has only what is numbered up to LAST
//!   ROOT/SESSION/done                  as SESSION.done, where the directory kept its name
//!   ROOT/SESSION.damaged               set aside: no mount brings it to the bucket
//!   ROOT/SESSION.done                  all of it is in the bucket: what is left is removed
//! ```

mod draft;
mod error;
pub mod file;
mod left;
mod replay;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bkfs_store::body_bytes;
use bkfs_store::disk::{Disk, DiskLock};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use draft::Draft;
pub use error::SpoolError;
pub use left::{LeftObject, Leftover, Leftovers, UnreadableSpool, leftovers};
pub use replay::ReplayProgress;

/// The name of the lock file in a session's directory.
const LOCK: &str = "lock";

/// Pause after which a full disk is tried again.
const FULL_DISK_REST: Duration = Duration::from_secs(1);

/// The least time between two messages about a full disk.
const FULL_DISK_TOLD_AFTER: Duration = Duration::from_secs(60);

/// How often a new directory is made again that another process took for a dead session's before it
/// was locked.
const CREATE_ATTEMPTS: u32 = 12;

/// The pause before a second attempt. Each later one is longer by it: 6.6 s in all.
const CREATE_PAUSE: Duration = Duration::from_millis(100);

/// Usage of a spool, for people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolUsage {
    /// Objects.
    pub files: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Objects that are not in the bucket yet.
    pub waiting_files: u64,
    /// Their bytes on disk.
    pub waiting_bytes: u64,
}

/// The spool of one living session.
#[derive(Debug)]
pub struct Spool {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    limit_bytes: u64,
    state: Mutex<SpoolState>,
    changed: watch::Sender<()>,
    /// Held while files of dropped puts are removed.
    removing: tokio::sync::Mutex<()>,
    sweeping: tokio::sync::Mutex<()>,
    /// Read while a file is written, or removed after its put was dropped. The end waits for these.
    writing: tokio::sync::RwLock<()>,
}

#[derive(Debug)]
struct SpoolState {
    lock: Option<DiskLock>,
    next: u64,
    files: BTreeMap<u64, Arc<Spooled>>,
    /// Bytes on disk, and bytes reserved for objects that are being written.
    used: u64,
    rest: Rest,
    /// When the log last named a full disk.
    told_full: Option<Instant>,
    /// Files that nothing counts on, because their [`Spool::put`] was dropped. They are removed once
    /// the disk has answered.
    dropped: Vec<Draft>,
}

/// Whether writes to the disk pause.
#[derive(Debug, Clone)]
enum Rest {
    No,
    Until(Instant),
    /// The disk is not trusted any more.
    Forever(SpoolError),
}

/// One object in the spool, readable while it is held. After its release, the file is removed once
/// no holder is left.
#[derive(Debug)]
pub struct Spooled {
    key: String,
    number: u64,
    path: PathBuf,
    disk: Arc<dyn Disk>,
    bytes: u64,
    is_in_bucket: AtomicBool,
    is_released: AtomicBool,
}

impl Spool {
    /// Makes the directory of `session` below `root` and locks it. The spool holds at most
    /// `limit_bytes`. Dropped, it may leave an empty directory, which the next mount removes.
    ///
    /// # Errors
    /// `Disk` if the disk fails or the directory belongs to another user; `Held` if another process
    /// holds it, or files of another session are in it.
    pub async fn create(
        disk: Arc<dyn Disk>,
        root: &Path,
        session: u64,
        limit_bytes: u64,
    ) -> Result<Arc<Self>, SpoolError> {
        let directory = root.join(format!("{session:016x}"));
        let lock = lock_new(&*disk, &directory).await?;
        Ok(Arc::new(Self {
            disk,
            directory,
            limit_bytes,
            state: Mutex::new(SpoolState {
                lock: Some(lock),
                next: 0,
                files: BTreeMap::new(),
                used: 0,
                rest: Rest::No,
                told_full: None,
                dropped: Vec::new(),
            }),
            changed: watch::Sender::new(()),
            removing: tokio::sync::Mutex::default(),
            sweeping: tokio::sync::Mutex::default(),
            writing: tokio::sync::RwLock::default(),
        }))
    }

    /// Path of its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Most bytes that it holds.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Stores an object. When this returns, the object survives a power loss.
    ///
    /// Cancel safety: dropped, it leaves what the disk goes on to write. The next call of
    /// [`Spool::put`], [`Spool::room`] or [`Spool::end`] waits for the disk and removes that.
    ///
    /// # Errors
    /// `BadKey`; `Full`; `Disk` if the object could not be written or flushed. The object is then
    /// not in the spool, however much of it lies on the disk, and after any error but a full disk
    /// the spool takes no more objects. `Held` after [`Spool::end`].
    pub async fn put(&self, key: &str, body: &[Bytes]) -> Result<Arc<Spooled>, SpoolError> {
        if !file::is_fit(key) {
            return Err(SpoolError::BadKey(key.to_owned()));
        }
        let length = body_bytes(body);
        let bytes = length + file::TRAILER_BYTES as u64;
        self.remove_dropped().await;
        let _turn = self.writing.read().await;
        let number = self.reserve(bytes)?;
        let mut parts = body.to_vec();
        parts.push(file::trailer(length, &file::digest(body)));
        let path = self.directory.join(file::name(number, key));
        let draft = Draft::new(&self.disk, number, &path, parts);
        Writing::new(self, draft).written().await?;
        let spooled = Arc::new(Spooled {
            key: key.to_owned(),
            number,
            path,
            disk: Arc::clone(&self.disk),
            bytes,
            is_in_bucket: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
        });
        self.state.lock().files.insert(number, Arc::clone(&spooled));
        Ok(spooled)
    }

    /// Reserves room for a file, and returns its number.
    fn reserve(&self, bytes: u64) -> Result<u64, SpoolError> {
        let mut state = self.state.lock();
        match &state.rest {
            Rest::Forever(error) => return Err(error.clone()),
            Rest::Until(end) if Instant::now() < *end => return Err(self.full()),
            _ => state.rest = Rest::No,
        }
        if state.used + bytes > self.limit_bytes {
            return Err(self.full());
        }
        state.used += bytes;
        let number = state.next;
        state.next += 1;
        Ok(number)
    }

    /// Removes the files of dropped calls of [`Spool::put`], after waiting for the disk. Dropped, it
    /// leaves the rest to the next call.
    pub(crate) async fn remove_dropped(&self) {
        // A second call waits for a draft that the first one has in hand: otherwise each put that is
        // dropped could leave its bytes in memory.
        let _alone = self.removing.lock().await;
        if !self.has_dropped() {
            return;
        }
        // Dropped after each draft, which goes back if this future is dropped.
        let _turn = self.writing.read().await;
        self.remove_drafts().await;
    }

    /// Returns whether a dropped call of [`Spool::put`] has left a file.
    pub(crate) fn has_dropped(&self) -> bool {
        !self.state.lock().dropped.is_empty()
    }

    async fn remove_drafts(&self) {
        loop {
            let Some(draft) = self.state.lock().dropped.pop() else {
                return;
            };
            Writing::new(self, draft).removed().await;
        }
    }

    fn full(&self) -> SpoolError {
        SpoolError::Full {
            limit_bytes: self.limit_bytes,
        }
    }

    /// Records a failed write. A full disk may have room again; the damage of any other error is
    /// unknown.
    fn distrust(&self, error: &SpoolError) {
        let mut state = self.state.lock();
        if matches!(state.rest, Rest::Forever(_)) {
            return;
        }
        if error.is_full_disk() {
            let now = Instant::now();
            let is_told = |told: Instant| now.duration_since(told) < FULL_DISK_TOLD_AFTER;
            if !state.told_full.is_some_and(is_told) {
                tracing::warn!("nothing is spooled for a while: {error}");
                state.told_full = Some(now);
            }
            state.rest = Rest::Until(now + FULL_DISK_REST);
        } else {
            tracing::error!("nothing more is spooled in this session: {error}");
            state.rest = Rest::Forever(error.clone());
            self.changed.send_replace(());
        }
    }

    /// Waits until [`Spool::put`] of an object of `length` bytes is worth a try. Never returns if
    /// the disk has failed or the object could never fit.
    pub async fn room(&self, length: u64) {
        if self.room_unless_failed(length).await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits until [`Spool::put`] of an object of `length` bytes is worth a try. Never returns if
    /// the object could never fit.
    ///
    /// # Errors
    /// Why the spool takes no more objects, once the disk has failed.
    pub async fn room_unless_failed(&self, length: u64) -> Result<(), SpoolError> {
        let bytes = length + file::TRAILER_BYTES as u64;
        let mut changed = self.changed.subscribe();
        // Only a waiter for room waits for the disk: it may take a write sooner than a removal.
        let mut removing = pin!(self.go_on_removing());
        loop {
            let rest = {
                let state = self.state.lock();
                match &state.rest {
                    Rest::No if state.used + bytes <= self.limit_bytes => return Ok(()),
                    Rest::Forever(error) => return Err(error.clone()),
                    other => other.clone(),
                }
            };
            let rested = async {
                match rest {
                    Rest::Until(end) => tokio::time::sleep_until(end).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = rested => self.end_rest(),
                // The sender is `self`.
                _ = changed.changed() => {}
                () = &mut removing => {}
            }
        }
    }

    /// Removes what nothing needs, and what comes to be so. Never ends. Dropped, it leaves the rest
    /// to the next call.
    async fn go_on_removing(&self) {
        let mut changed = self.changed.subscribe();
        loop {
            self.remove_dropped().await;
            self.sweep().await;
            let _ = changed.changed().await;
        }
    }

    /// Returns true if an object of `length` bytes does not fit until others are removed: the spool
    /// or its disk is full.
    pub fn lacks_room(&self, length: u64) -> bool {
        let bytes = length + file::TRAILER_BYTES as u64;
        let state = self.state.lock();
        state.used + bytes > self.limit_bytes || matches!(state.rest, Rest::Until(_))
    }

    fn end_rest(&self) {
        let mut state = self.state.lock();
        if let Rest::Until(end) = state.rest
            && end <= Instant::now()
        {
            state.rest = Rest::No;
        }
    }

    /// Why the spool takes no more objects, if the disk has failed.
    pub fn failure(&self) -> Option<SpoolError> {
        match &self.state.lock().rest {
            Rest::Forever(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// Marks an object that a root or an acknowledged journal names: the spool need not keep it.
    /// Waiters for room remove its file.
    pub fn release(&self, spooled: &Spooled) {
        spooled.is_released.store(true, Ordering::Release);
        self.changed.send_replace(());
    }

    /// Removes the files of released objects that have no reader. Dropped, it leaves the rest to
    /// the next call.
    pub async fn sweep(&self) {
        let _turn = self.sweeping.lock().await;
        let gone: Vec<(u64, Arc<Spooled>)> = {
            let state = self.state.lock();
            let is_gone = |spooled: &Arc<Spooled>| {
                spooled.is_released.load(Ordering::Acquire) && Arc::strong_count(spooled) == 1
            };
            let gone = state.files.iter().filter(|(_, spooled)| is_gone(spooled));
            gone.map(|(number, spooled)| (*number, spooled.clone()))
                .collect()
        };
        for (number, spooled) in gone {
            // A file that stays costs a needless upload after a crash. One that is absent was removed
            // by a call that was dropped.
            if let Err(error) = self.disk.remove(&spooled.path).await
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!("{} stays in the spool: {error}", spooled.path.display());
            }
            let mut state = self.state.lock();
            state.files.remove(&number);
            state.used -= spooled.bytes;
            drop(state);
            self.changed.send_replace(());
        }
    }

    /// Returns its usage.
    pub fn usage(&self) -> SpoolUsage {
        let state = self.state.lock();
        let mut usage = SpoolUsage::default();
        for spooled in state.files.values() {
            usage.files += 1;
            usage.bytes += spooled.bytes;
            if !spooled.is_in_bucket() {
                usage.waiting_files += 1;
                usage.waiting_bytes += spooled.bytes;
            }
        }
        usage
    }

    /// Ends the spool: it takes no more objects. Waits for what the disk still writes. An empty spool
    /// leaves nothing behind; of any other one only released objects are removed. Returns the usage
    /// of the rest. Dropped, it leaves the rest of this to the next mount.
    pub async fn end(&self) -> SpoolUsage {
        let _turn = self.writing.write().await;
        self.remove_drafts().await;
        self.sweep().await;
        let usage = self.usage();
        let lock = {
            let mut state = self.state.lock();
            // The directory may belong to another process from now on.
            let path = self.directory.display().to_string();
            state.rest = Rest::Forever(SpoolError::Ended { path });
            state.lock.take()
        };
        self.changed.send_replace(());
        if usage.files == 0 {
            remove_directory(&*self.disk, &self.directory).await;
        }
        drop(lock);
        usage
    }
}

/// A file that is being written, and the room that is reserved for it. Dropped before the disk has
/// answered, it leaves both to [`Spool::remove_dropped`].
struct Writing<'a> {
    spool: &'a Spool,
    /// `None` once the file is whole, or gone.
    draft: Option<Draft>,
}

impl<'a> Writing<'a> {
    fn new(spool: &'a Spool, draft: Draft) -> Self {
        let draft = Some(draft);
        Self { spool, draft }
    }

    /// Waits until the file survives a power loss. The room then belongs to the file.
    async fn written(mut self) -> Result<(), SpoolError> {
        self.write().await?;
        self.draft = None;
        Ok(())
    }

    /// Waits for the disk, removes the file, and frees the room.
    async fn removed(mut self) {
        if self.write().await.is_ok() {
            self.remove().await;
        }
    }

    async fn write(&mut self) -> Result<(), SpoolError> {
        let Some(draft) = &mut self.draft else {
            return Ok(());
        };
        let Err(error) = draft.write().await else {
            return Ok(());
        };
        self.spool.distrust(&error);
        self.remove().await;
        Err(error)
    }

    async fn remove(&mut self) {
        let Some(draft) = &mut self.draft else {
            return;
        };
        draft.remove().await;
        self.spool.state.lock().used -= draft.bytes();
        self.draft = None;
        self.spool.changed.send_replace(());
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            self.spool.state.lock().dropped.push(draft);
            // Waiters for room remove it.
            self.spool.changed.send_replace(());
        }
    }
}

impl Spooled {
    /// Its key in the bucket.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Its number in the order of arrival.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Length of the object, in bytes.
    pub fn length(&self) -> u64 {
        self.bytes - file::TRAILER_BYTES as u64
    }

    /// Reads and verifies the whole object.
    ///
    /// # Errors
    /// `Disk`, `Damaged`.
    pub async fn read(&self) -> Result<Bytes, SpoolError> {
        read_object(&*self.disk, &self.path, self.bytes).await
    }

    /// Reads a range of bytes of the object, without verification.
    ///
    /// # Errors
    /// `Disk`.
    pub async fn read_range(&self, range: Range<u64>) -> Result<Bytes, SpoolError> {
        let length = (range.end - range.start) as usize;
        let bytes = self.disk.read(&self.path, range.start, length).await;
        bytes.map_err(|error| SpoolError::disk(&self.path, error))
    }

    /// Records that the bucket has acknowledged it.
    pub fn uploaded(&self) {
        self.is_in_bucket.store(true, Ordering::Release);
    }

    /// Whether the bucket has acknowledged it.
    pub fn is_in_bucket(&self) -> bool {
        self.is_in_bucket.load(Ordering::Acquire)
    }
}

async fn read_object(disk: &dyn Disk, path: &Path, bytes: u64) -> Result<Bytes, SpoolError> {
    let read = disk.read(path, 0, bytes as usize).await;
    let whole = read.map_err(|error| SpoolError::disk(path, error))?;
    // Hashing takes milliseconds, so it runs on this task.
    file::object(whole).ok_or_else(|| SpoolError::Damaged {
        path: path.display().to_string(),
    })
}

/// Makes and locks a session's directory, which must be empty. A process that looks for dead
/// sessions may find it before it is locked, take it for an empty one, and hold it until it removes
/// it.
async fn lock_new(disk: &dyn Disk, directory: &Path) -> Result<DiskLock, SpoolError> {
    let path = directory.join(LOCK);
    for attempt in 0..CREATE_ATTEMPTS {
        tokio::time::sleep(CREATE_PAUSE * attempt).await;
        let made = disk.make_directory(directory).await;
        made.map_err(|error| SpoolError::disk(directory, error))?;
        let lock = match disk.lock(&path).await {
            Ok(Some(lock)) => lock,
            Ok(None) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(SpoolError::disk(&path, error)),
        };
        let listed = match disk.list(directory).await {
            Ok(listed) => listed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(SpoolError::disk(directory, error)),
        };
        // Other files are of another session with this id, or mark the directory as removed.
        if let [only] = &listed[..]
            && only.name == LOCK
        {
            return Ok(lock);
        }
    }
    Err(SpoolError::Held {
        path: directory.display().to_string(),
    })
}

/// Removes a directory that holds only its lock. If it stays, the next mount removes it. Returns
/// true if it is gone, also after a power loss.
async fn remove_directory(disk: &dyn Disk, directory: &Path) -> bool {
    let _ = disk.remove(&directory.join(LOCK)).await;
    if let Err(error) = disk.remove_directory(directory).await {
        tracing::debug!("{} stays: {error}", directory.display());
        return false;
    }
    match directory.parent() {
        Some(root) => disk.sync_directory(root).await.is_ok(),
        None => true,
    }
}

#[cfg(test)]
mod tests;
