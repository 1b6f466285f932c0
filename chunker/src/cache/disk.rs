//! Disk cache of sealed frames: one sparse file per pack, with the layout of the pack itself.
//!
//! Owns the files below `packs/` of a repository's cache directory, their total size, and the order
//! of eviction. A frame that was never written reads as zeros, and a torn write reads as garbage.
//! Neither verifies, so no list of present frames is kept, and none can be wrong. All calls block:
//! callers use threads that may block.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom};

use crate::crypto::NONCE_LEN;
use crate::pack::PackName;

/// Maximum number of files that are open concurrently.
const OPEN_FILES: usize = 128;

/// A bounded cache of parts of packs, shared by all readers. It may lose any part at any time.
#[derive(Debug)]
pub(crate) struct DiskCache {
    root: PathBuf,
    limit: AtomicU64,
    /// Bytes of the limit that other data takes.
    reserved: AtomicU64,
    writes_off: AtomicBool,
    reads_off: AtomicBool,
    state: Mutex<DiskCacheState>,
}

#[derive(Debug)]
struct DiskCacheState {
    /// Packs in order of use: the least recently used pack is evicted first.
    packs: LruCache<PackName, Entry>,
    used: u64,
    open: usize,
}

#[derive(Debug)]
struct Entry {
    /// Bytes that the file takes on disk.
    bytes: u64,
    file: Option<Arc<File>>,
    /// True if this process has set the modification time of the file, which records its last use.
    touched: bool,
}

impl Entry {
    fn new(bytes: u64) -> Self {
        Self {
            bytes,
            file: None,
            touched: false,
        }
    }
}

impl DiskCache {
    /// Opens or makes the cache below `root`. Evicts files until at most `limit` bytes remain.
    ///
    /// # Errors
    /// The error of the file system if the directory cannot be made or read.
    pub(crate) fn open(root: &Path, limit: u64) -> io::Result<Self> {
        let root = root.join("packs");
        make_directory(&root)?;
        let cache = Self {
            limit: AtomicU64::new(limit),
            reserved: AtomicU64::new(0),
            writes_off: AtomicBool::new(false),
            reads_off: AtomicBool::new(false),
            state: Mutex::new(DiskCacheState::of(&root)?),
            root,
        };
        cache.evict();
        Ok(cache)
    }

    /// Closes all files, and looks again which there are: other processes may have made or removed
    /// some. If the directory cannot be read, what is known stays.
    pub(crate) fn reopen(&self) {
        if let Ok(state) = DiskCacheState::of(&self.root) {
            *self.state.lock() = state;
        }
    }

    /// Returns the bytes that the files take on disk, as far as this process knows.
    pub(crate) fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// Returns the bytes that the files take on disk now, those of other processes included.
    pub(crate) fn used_on_disk(&self) -> u64 {
        DiskCacheState::of(&self.root).map_or(0, |state| state.used)
    }

    /// Returns the limit, in bytes. It includes what is left to other data.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit, in bytes. Evicts nothing.
    pub(crate) fn limit_to(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Leaves `bytes` bytes of the limit to other data. Evicts files until the rest is enough.
    pub(crate) fn reserve(&self, bytes: u64) {
        self.reserved.store(bytes, Ordering::Relaxed);
        self.evict();
    }

    /// Evicts files that take `bytes` bytes or more. Returns false if there are none left.
    pub(crate) fn make_room(&self, bytes: u64) -> bool {
        let before = self.used();
        self.evict_to(before.saturating_sub(bytes.max(1)));
        self.used() < before
    }

    /// Returns the packs of which the cache may hold a part.
    pub(crate) fn names(&self) -> Vec<PackName> {
        let state = self.state.lock();
        state.packs.iter().map(|(name, _)| *name).collect()
    }

    /// Notes that a pack is in use, although nothing is read from its file.
    pub(crate) fn note_use(&self, name: &PackName) {
        self.state.lock().packs.promote(name);
    }

    /// Returns true if the cache may hold a part of the pack.
    pub(crate) fn has(&self, name: PackName) -> bool {
        self.state.lock().packs.contains(&name)
    }

    /// Reads `length` bytes at `offset` of a pack, not verified.
    ///
    /// `None` if the file ends before, or if the bytes begin with zeros as unwritten ones do: no
    /// sealed frame begins with so many zeros.
    pub(crate) fn read(&self, name: PackName, offset: u64, length: usize) -> Option<Bytes> {
        if self.reads_off.load(Ordering::Relaxed) {
            return None;
        }
        let file = self.file_for_reading(name)?;
        let mut bytes = vec![0; length];
        match file.read_exact_at(&mut bytes, offset) {
            Ok(()) => {
                let head = &bytes[..length.min(NONCE_LEN)];
                let is_there = head.iter().any(|byte| *byte != 0);
                is_there.then(|| Bytes::from(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => {
                self.trouble(&error, &self.reads_off);
                None
            }
        }
    }

    /// Returns true if a range of a pack was probably written: its blocks are on disk. Only a read
    /// that verifies the bytes proves it.
    pub(crate) fn holds(&self, name: PackName, range: &Range<u64>) -> bool {
        let is_written = |file: &File| {
            let hole = rustix::fs::seek(file, SeekFrom::Hole(range.start));
            hole.is_ok_and(|hole| hole >= range.end)
        };
        self.file_for_reading(name)
            .as_deref()
            .is_some_and(is_written)
    }

    /// Writes parts of a pack, each an offset in bytes and its bytes. Errors are handled here: the
    /// parts are then not cached. If the disk is full, it is tried again once if `give_way` has made
    /// room.
    pub(crate) fn write(
        &self,
        name: PackName,
        parts: &[(u64, Bytes)],
        give_way: impl FnOnce() -> bool,
    ) {
        if self.writes_off.load(Ordering::Relaxed) || self.limit.load(Ordering::Relaxed) == 0 {
            return;
        }
        let written = match self.put(name, parts) {
            Err(error) if is_out_of_room(&error) && give_way() => self.put(name, parts),
            written => written,
        };
        match written {
            Ok(()) => self.evict(),
            Err(error) if is_out_of_room(&error) => self.shrink(&error),
            Err(error) if is_passing(&error) => tracing::debug!(%error, "not kept in the cache"),
            Err(error) => self.trouble(&error, &self.writes_off),
        }
    }

    /// Writes parts of a pack as [`DiskCache::write`] does, and evicts nothing.
    ///
    /// # Errors
    /// The error of the file system. Some of the parts may be written.
    pub(crate) fn put(&self, name: PackName, parts: &[(u64, Bytes)]) -> io::Result<()> {
        let file = self.file_for_writing(name)?;
        for (offset, bytes) in parts {
            file.write_all_at(bytes, *offset)?;
        }
        self.account(name, file.metadata()?.blocks() * 512);
        Ok(())
    }

    /// Makes the written parts of a pack survive a power loss.
    ///
    /// # Errors
    /// The error of the file system.
    pub(crate) fn sync(&self, name: PackName) -> io::Result<()> {
        self.file_for_writing(name)?.sync_all()
    }

    /// Removes the file of a pack.
    pub(crate) fn remove(&self, name: PackName) {
        self.state.lock().forget(name);
        let _ = fs::remove_file(self.path(name));
    }

    /// Frees the disk space of a range of a pack. Errors are ignored: the space stays in use.
    pub(crate) fn punch(&self, name: PackName, range: &Range<u64>) {
        let Some(file) = self.file_for_reading(name) else {
            return;
        };
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let length = range.end - range.start;
        let _ = rustix::fs::fallocate(&file, flags, range.start, length);
        if let Ok(data) = file.metadata() {
            self.account(name, data.blocks() * 512);
        }
    }

    fn path(&self, name: PackName) -> PathBuf {
        let shelf = format!("{:02x}", name.random & 0xff);
        self.root.join(shelf).join(name.to_string())
    }

    fn file_for_reading(&self, name: PackName) -> Option<Arc<File>> {
        let (known, touched) = {
            let mut state = self.state.lock();
            let entry = state.packs.get_mut(&name)?;
            let touched = std::mem::replace(&mut entry.touched, true);
            (entry.file.clone(), touched)
        };
        let file = match known {
            Some(file) => file,
            None => match OpenOptions::new()
                .read(true)
                .write(true)
                .open(self.path(name))
            {
                Ok(file) => self.keep_open(name, file),
                Err(error) => {
                    // A file that cannot be opened now, for instance because too many files are
                    // open, still takes space on disk.
                    if error.kind() == io::ErrorKind::NotFound {
                        self.state.lock().forget(name);
                    }
                    return None;
                }
            },
        };
        if !touched {
            touch(&file);
        }
        Some(file)
    }

    fn file_for_writing(&self, name: PackName) -> io::Result<Arc<File>> {
        let known = {
            let mut state = self.state.lock();
            state.packs.get(&name).and_then(|entry| entry.file.clone())
        };
        if let Some(file) = known {
            return Ok(file);
        }
        let path = self.path(name);
        if let Some(shelf) = path.parent() {
            make_directory(shelf)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)?;
        Ok(self.keep_open(name, file))
    }

    /// Keeps a file open. If too many are open, closes those that were least recently used.
    fn keep_open(&self, name: PackName, file: File) -> Arc<File> {
        let file = Arc::new(file);
        let mut state = self.state.lock();
        let state = &mut *state;
        let entry = state.packs.get_or_insert_mut(name, || Entry::new(0));
        if entry.file.replace(Arc::clone(&file)).is_none() {
            state.open += 1;
        }
        if state.open > OPEN_FILES {
            let mut surplus = state.open - OPEN_FILES / 2;
            for (_, entry) in state.packs.iter_mut().rev() {
                if surplus == 0 {
                    break;
                }
                if entry.file.take().is_some() {
                    surplus -= 1;
                    state.open -= 1;
                }
            }
        }
        file
    }

    fn account(&self, name: PackName, bytes: u64) {
        let mut state = self.state.lock();
        if let Some(entry) = state.packs.get_mut(&name) {
            let before = std::mem::replace(&mut entry.bytes, bytes);
            state.used = state.used - before + bytes;
        }
    }

    fn evict(&self) {
        let limit = self.limit.load(Ordering::Relaxed);
        self.evict_to(limit.saturating_sub(self.reserved.load(Ordering::Relaxed)));
    }

    fn evict_to(&self, limit: u64) {
        let mut state = self.state.lock();
        while state.used > limit {
            let Some((name, entry)) = state.packs.pop_lru() else {
                break;
            };
            state.used -= entry.bytes;
            state.open -= usize::from(entry.file.is_some());
            let _ = fs::remove_file(self.path(name));
        }
    }

    /// Handles a full disk: lowers the limit to 7/8 of the bytes in use, and evicts files.
    fn shrink(&self, error: &io::Error) {
        let used = self.used();
        let less = used - used / 8 + self.reserved.load(Ordering::Relaxed);
        let before = self.limit.fetch_min(less, Ordering::Relaxed);
        if less < before {
            tracing::warn!(
                directory = %self.root.display(),
                limit_bytes = less,
                "the cache is made smaller: {error}"
            );
        }
        self.evict();
    }

    /// Handles a failing disk: logs a warning once, and stops using the disk.
    fn trouble(&self, error: &io::Error, off: &AtomicBool) {
        if !off.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                directory = %self.root.display(),
                "the cache on disk is not used any more: {error}"
            );
        }
    }
}

impl DiskCacheState {
    /// Returns the files below `root`, those that were used last as such, and none of them open.
    fn of(root: &Path) -> io::Result<Self> {
        let mut found = Vec::new();
        for shelf in fs::read_dir(root)? {
            let Ok(files) = fs::read_dir(shelf?.path()) else {
                continue;
            };
            found.extend(files.flatten().filter_map(|file| {
                let name: PackName = file.file_name().to_str()?.parse().ok()?;
                let data = file.metadata().ok()?;
                Some(((data.mtime(), data.mtime_nsec()), name, data.blocks() * 512))
            }));
        }
        found.sort_unstable();
        let mut state = Self {
            packs: LruCache::unbounded(),
            used: 0,
            open: 0,
        };
        for (_, name, bytes) in found {
            state.used += bytes;
            state.packs.put(name, Entry::new(bytes));
        }
        Ok(state)
    }

    fn forget(&mut self, name: PackName) -> bool {
        let Some(entry) = self.packs.pop(&name) else {
            return false;
        };
        self.used -= entry.bytes;
        self.open -= usize::from(entry.file.is_some());
        true
    }
}

/// Returns true if the disk is full, or the user has no right to more of it.
pub(crate) fn is_out_of_room(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::StorageFull || kind == io::ErrorKind::QuotaExceeded
}

/// Returns true if an error does not concern the disk: this process or the system has too many
/// files open.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Sets the modification time of the file to now, so that the next process knows when it was used
/// last. Errors are ignored: the file then looks older.
fn touch(file: &File) {
    // With nanoseconds: the kernel's own "now" is up to one timer tick old, and many files may have
    // been written in that time.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let times = rustix::fs::Timestamps {
        last_access: now,
        last_modification: now,
    };
    let _ = rustix::fs::futimens(file, &times);
}

/// Makes a directory and its parents with mode 0700. If the directory exists, belongs to this user
/// and is accessible to others, its mode becomes 0700.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = fs::symlink_metadata(path)?;
    let is_ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if is_ours && found.mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u32) -> PackName {
        PackName {
            session: 1,
            sequence: number,
            random: number * 77,
        }
    }

    #[test]
    fn parts_survive_a_restart_and_the_oldest_go_first() {
        let directory = tempfile::tempdir().expect("a directory");
        let body = Bytes::from(vec![7u8; 64 << 10]);
        let length = body.len();
        {
            let cache = DiskCache::open(directory.path(), 1 << 20).expect("opens");
            for number in 0..8 {
                cache.write(name(number), &[(1 << 20, body.clone())], || false);
            }
            assert!(cache.used() >= 8 * length as u64);
            assert_eq!(cache.read(name(3), 1 << 20, length), Some(body.clone()));
            assert_eq!(
                cache.read(name(3), 1 << 20, length + 1),
                None,
                "past the end"
            );
            assert_eq!(cache.read(name(3), 0, 100), None, "never written");
            assert_eq!(cache.read(name(99), 0, 1), None);
        }
        let cache = DiskCache::open(directory.path(), 4 * 70_000).expect("opens again");
        assert!(cache.used() <= 4 * 70_000);
        let kept = cache.read(name(3), 1 << 20, length);
        assert!(kept == Some(body.clone()), "used last");
        for number in 20..24 {
            cache.write(name(number), &[(0, body.clone())], || false);
        }
        assert!(!cache.has(name(3)) && cache.has(name(23)));
        assert!(cache.used() <= 4 * 70_000);
        fs::remove_file(cache.path(name(20))).expect("is there");
        drop(cache);
        let cache = DiskCache::open(directory.path(), 4 * 70_000).expect("opens again");
        assert!(!cache.has(name(20)) && cache.has(name(21)));
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_done_without() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = DiskCache::open(directory.path(), 1 << 20).expect("opens");
        fs::remove_dir(directory.path().join("packs")).expect("is empty");
        fs::write(directory.path().join("packs"), b"a file").expect("writes");
        cache.write(name(1), &[(0, Bytes::from_static(b"bytes"))], || false);
        assert!(cache.writes_off.load(Ordering::Relaxed));
        assert_eq!(cache.read(name(1), 0, 5), None);
    }

    #[test]
    fn a_file_that_cannot_be_opened_now_is_not_forgotten() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = DiskCache::open(directory.path(), 1 << 20).expect("opens");
        let body = Bytes::from_static(b"bytes that were kept");
        cache.write(name(1), &[(0, body.clone())], || false);
        let cache = DiskCache::open(directory.path(), 1 << 20).expect("opens again");
        let (used, path) = (cache.used(), cache.path(name(1)));
        let aside = path.with_extension("aside");
        fs::rename(&path, &aside).expect("renames");
        // The symbolic link points to itself: it cannot be opened, but it exists.
        std::os::unix::fs::symlink(&path, &path).expect("links");
        assert_eq!(cache.read(name(1), 0, body.len()), None);
        fs::rename(&aside, &path).expect("renames back");
        assert_eq!(cache.read(name(1), 0, body.len()), Some(body));
        assert_eq!(cache.used(), used);
        assert!(is_passing(&io::Error::from_raw_os_error(libc::EMFILE)));
    }

    #[test]
    fn a_full_disk_makes_the_cache_smaller() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = DiskCache::open(directory.path(), 1 << 20).expect("opens");
        for number in 0..8 {
            cache.write(
                name(number),
                &[(0, Bytes::from(vec![1u8; 64 << 10]))],
                || false,
            );
        }
        let used = cache.used();
        cache.shrink(&io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(cache.used() < used);
        assert_eq!(cache.limit.load(Ordering::Relaxed), used - used / 8);
    }
}
