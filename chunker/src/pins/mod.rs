//! Pins: frames that stay in the cache directory until their user gives them up.
//!
//! Owns the directory `pins/` of a repository's cache. Each pin has two files there: a table of its
//! blobs and frames (`NAME.table`), and what it is (`NAME.pin`, see [`file`]), which is written
//! last: without it there is no pin. All pins share the frames below `pins/packs/`, in the form of
//! the disk cache. Nothing is evicted there.
//!
//! Pins are found before the index, so a pin serves its blobs from the packs that it has, whatever
//! a collection has done to them in the bucket. Neither file is trusted: one that does not verify
//! is not used, and its blobs come from the bucket.
//!
//! Processes of one repository share the directory. They see each other's pins by the modification
//! time of the directory. `pins/lock` is held while pins appear or go. The lock of a table is held
//! by the process that brings its frames.

mod file;
pub(crate) mod parts;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bkfs_store::entropy::{Entropy, number, salt};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;

use self::file::FILE_MAX;
pub(crate) use self::file::{DESCRIPTION_MAX, PinRecord};
use self::parts::{Packs, Parts, disk_bytes, freed, unite};
use crate::cache::{DiskCache, make_directory};
use crate::catalog::{IndexRef, Loaded, TableBytes};
use crate::crypto::Keyring;
use crate::error::ContentError;
use crate::index::{Table, TableKey, table_of_parts};
use crate::pack::PackName;

/// The most pins of a repository on a machine. Each look-up asks each of them.
pub const PINS_MAX: usize = 64;

/// Why something is not pinned.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PinError {
    /// The content store has no cache directory.
    #[error("there is no cache directory, so nothing can be kept on disk")]
    NoCache,
    /// The frames and those of other pins are more than the cache holds. Nothing was fetched.
    #[error(
        "it does not fit into the cache: {stored_bytes} bytes are stored, which take {disk_bytes} \
         bytes on disk; {pinned_bytes} bytes are pinned already, and the cache holds \
         {cache_bytes} bytes: {} bytes too few",
        (disk_bytes + pinned_bytes).saturating_sub(*cache_bytes)
    )]
    DoesNotFit {
        /// Length of the frames, in bytes.
        stored_bytes: u64,
        /// What they take on disk in addition to what is pinned, in bytes.
        disk_bytes: u64,
        /// What is pinned already, in bytes on disk.
        pinned_bytes: u64,
        /// The size of the cache, in bytes.
        cache_bytes: u64,
    },
    /// The file system has too little room. Nothing was fetched.
    #[error(
        "it does not fit on the disk of the cache: it takes {disk_bytes} bytes, and {free_bytes} \
         bytes are free or can be made free: {} bytes too few",
        disk_bytes.saturating_sub(*free_bytes)
    )]
    DiskTooSmall {
        /// What the frames take on disk, in bytes.
        disk_bytes: u64,
        /// What is free, with what the cache can evict, in bytes.
        free_bytes: u64,
    },
    /// There are [`PINS_MAX`] pins.
    #[error("{PINS_MAX} trees are pinned already, which is the most: give one up first")]
    TooMany,
    /// Another process or another task brings the frames of this pin, or has done so just now.
    #[error("another process brings or gives up the same data now")]
    Busy,
    /// The pin was given up meanwhile.
    #[error("it was given up meanwhile")]
    Gone,
    /// The disk of the cache failed. What was pinned before stays.
    #[error("the cache in {path}: {source}")]
    Disk {
        /// The directory of the pins.
        path: String,
        /// The error of the file system.
        source: Arc<io::Error>,
    },
    /// The content cannot be read.
    #[error(transparent)]
    Content(#[from] ContentError),
}

/// A pin.
#[derive(Debug)]
pub struct Pin {
    name: PackName,
    record: PinRecord,
    table: Arc<Loaded>,
}

impl Pin {
    /// Returns what the file of the pin says.
    pub(crate) fn record(&self) -> &PinRecord {
        &self.record
    }

    /// Returns the packs with the frames of the pin.
    ///
    /// # Errors
    /// [`PinError::Disk`] if its table is damaged.
    pub(crate) fn packs(&self) -> Result<Packs, PinError> {
        self.table.parts().map_err(|error| PinError::Disk {
            path: format!("the table of pin {}", self.name),
            source: Arc::new(io::Error::other(error)),
        })
    }

    pub(crate) fn table(&self) -> &Arc<Loaded> {
        &self.table
    }

    pub(crate) fn name(&self) -> PackName {
        self.name
    }
}

/// The pins of one repository in one cache directory. All calls block.
#[derive(Debug)]
pub(crate) struct Pins {
    directory: PathBuf,
    frames: DiskCache,
    keyring: Keyring,
    /// How many tasks of this process bring frames.
    bringing: Arc<AtomicUsize>,
    state: Mutex<Listed>,
}

/// The pins as this process last read them.
#[derive(Debug, Default)]
struct Listed {
    /// The modification time of the directory before it was read.
    at: Option<(i64, i64)>,
    pins: Vec<Arc<Pin>>,
    /// True if there was a file that could not be read.
    has_unread: bool,
    /// What the frames of all pins take, in bytes of whole blocks.
    disk_bytes: u64,
}

/// Says that frames are being brought, until it is dropped.
#[derive(Debug)]
pub(crate) struct Bringing(Arc<AtomicUsize>);

impl Drop for Bringing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The lock of a table: as long as it is held, no other process brings or gives up the frames.
#[derive(Debug)]
pub(crate) struct Held {
    _file: File,
}

impl Pins {
    /// Opens or makes the directory below `root`.
    ///
    /// # Errors
    /// The error of the file system if the directory cannot be made or read.
    pub(crate) fn open(root: &Path, keyring: Keyring) -> io::Result<Self> {
        let directory = root.join("pins");
        make_directory(&directory)?;
        let pins = Self {
            frames: DiskCache::open(&directory, u64::MAX)?,
            directory,
            keyring,
            bringing: Arc::default(),
            state: Mutex::default(),
        };
        pins.refresh();
        Ok(pins)
    }

    /// Returns the frames of all pins.
    pub(crate) fn frames(&self) -> &DiskCache {
        &self.frames
    }

    /// Returns the pins, in the order of their names, which is that of their making.
    pub(crate) fn list(&self) -> Vec<Arc<Pin>> {
        self.state.lock().pins.clone()
    }

    /// Says that frames of a pin are about to be brought by this process.
    pub(crate) fn bringing(&self) -> Bringing {
        self.bringing.fetch_add(1, Ordering::Relaxed);
        Bringing(Arc::clone(&self.bringing))
    }

    /// Returns true while this process brings a pin.
    pub(crate) fn is_bringing(&self) -> bool {
        self.bringing.load(Ordering::Relaxed) > 0
    }

    /// Returns the bytes of disk that the cache leaves to pins. What this process is still to bring
    /// may lie in the cache: that makes room for it frame by frame.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        match self.bringing.load(Ordering::Relaxed) {
            0 => self.disk_bytes(),
            _ => self.frames.used(),
        }
    }

    /// Returns what all pins take, in bytes of whole blocks.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.state.lock().disk_bytes
    }

    /// Reads the directory again if it has changed. Returns true if it has.
    pub(crate) fn refresh(&self) -> bool {
        let at = fs::metadata(&self.directory).ok();
        let at = at.map(|data| (data.mtime(), data.mtime_nsec()));
        if at.is_some() && self.state.lock().at == at {
            return false;
        }
        self.frames.reopen();
        self.read_again();
        true
    }

    /// Reads the directory, also if its time does not tell that it has changed.
    fn read_again(&self) {
        let at = fs::metadata(&self.directory).ok();
        let mut listed = self.read();
        listed.at = at.map(|data| (data.mtime(), data.mtime_nsec()));
        *self.state.lock() = listed;
    }

    fn read(&self) -> Listed {
        let known = self.list();
        let mut listed = Listed::default();
        let files = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        let names = files.filter_map(|file| {
            let name = file.file_name();
            name.to_str()?.strip_suffix(".pin")?.parse().ok()
        });
        let mut names: Vec<PackName> = names.collect();
        names.sort_unstable();
        for name in names {
            match self.read_pin(name, &known) {
                Ok(Some(pin)) if listed.pins.len() < PINS_MAX => listed.pins.push(pin),
                Ok(Some(_)) => listed.has_unread = true,
                Ok(None) => tracing::warn!(%name, "a damaged pin in the cache is not used"),
                Err(error) => {
                    listed.has_unread = true;
                    tracing::warn!(%name, "a pin in the cache cannot be read: {error}");
                }
            }
        }
        listed.disk_bytes = match listed.pins.as_slice() {
            [] => 0,
            [pin] => pin.record.disk_bytes,
            pins => disk_bytes(&united(pins)),
        };
        listed
    }

    /// Reads a pin. `None` if one of its files is damaged.
    fn read_pin(&self, name: PackName, known: &[Arc<Pin>]) -> io::Result<Option<Arc<Pin>>> {
        let mut bytes = Vec::new();
        let file = File::open(self.path(name, "pin"))?;
        file.take(FILE_MAX).read_to_end(&mut bytes)?;
        let Some(record) = PinRecord::open(&self.keyring, name, &bytes) else {
            return Ok(None);
        };
        let known = known.iter().find(|pin| pin.name == name);
        let table = match known {
            Some(pin) => Arc::clone(&pin.table),
            None => match self.open_table(name)? {
                Some(table) => table,
                None => return Ok(None),
            },
        };
        Ok(Some(Arc::new(Pin {
            name,
            record,
            table,
        })))
    }

    fn open_table(&self, name: PackName) -> io::Result<Option<Arc<Loaded>>> {
        let file = File::open(self.path(name, "table"))?;
        let length = file.metadata()?.len();
        let bytes = TableBytes::File { file, length };
        let reference = IndexRef {
            name,
            packs: 0,
            blobs: 0,
            bytes: length,
        };
        let table = Table::open(bytes, TableKey::new(&self.keyring, name));
        Ok(table
            .ok()
            .map(|table| Arc::new(Loaded::new(reference, table))))
    }

    fn path(&self, name: PackName, suffix: &str) -> PathBuf {
        self.directory.join(format!("{name}.{suffix}"))
    }

    /// Returns the error for a failure of the disk.
    pub(crate) fn failed(&self, error: io::Error) -> PinError {
        PinError::Disk {
            path: self.directory.display().to_string(),
            source: Arc::new(error),
        }
    }

    /// Returns what is free on the disk of the pins, in bytes.
    pub(crate) fn free_bytes(&self) -> u64 {
        let free = rustix::fs::statvfs(&self.directory);
        free.map_or(u64::MAX, |free| free.f_bavail.saturating_mul(free.f_frsize))
    }

    /// Returns what a plan takes in addition to the pins, and what the pins take, in bytes on disk.
    pub(crate) fn cost(&self, plan: &Parts) -> (u64, u64) {
        let before = self.disk_bytes();
        let mut all = united(&self.list());
        unite(&mut all, &plan.packs);
        (disk_bytes(&all).saturating_sub(before), before)
    }

    /// Makes a pin of parts, whose frames are then to be brought.
    ///
    /// # Errors
    /// [`PinError::TooMany`]; [`PinError::Disk`] if its files cannot be written; that of `check`,
    /// which no other process that makes a pin comes between.
    pub(crate) fn add(
        &self,
        parts: &mut Parts,
        description: &[u8],
        entropy: &dyn Entropy,
        check: impl FnOnce(&Parts) -> Result<(), PinError>,
    ) -> Result<Arc<Pin>, PinError> {
        let _turn = self.lock().map_err(|error| self.failed(error))?;
        self.read_again();
        check(parts)?;
        let last = self.list();
        if last.len() >= PINS_MAX {
            return Err(PinError::TooMany);
        }
        let name = PackName {
            session: last.last().map_or(1, |pin| pin.name.session + 1),
            sequence: number(entropy),
            random: number(entropy),
        };
        parts.settle();
        let blobs = parts.entries().len() as u64;
        let record = PinRecord {
            is_complete: false,
            blobs,
            frames: parts.frames(),
            stored_bytes: parts.stored_bytes(),
            disk_bytes: disk_bytes(&parts.packs),
            description: bytes::Bytes::copy_from_slice(description),
        };
        let key = TableKey::new(&self.keyring, name);
        let table = table_of_parts(&parts.packs, parts.entries(), &key);
        let write = || {
            self.write(&self.path(name, "table"), &table)?;
            self.write_record(name, &record, entropy)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(self.path(name, "table"));
            self.failed(error)
        })?;
        self.read_again();
        let pin = self.list().into_iter().find(|pin| pin.name == name);
        pin.ok_or(PinError::Gone)
    }

    /// Records that all frames of a pin are on disk.
    ///
    /// # Errors
    /// [`PinError::Disk`] if they cannot be made to survive a power loss; [`PinError::Gone`] if the
    /// pin was given up.
    pub(crate) fn complete(&self, pin: &Pin, entropy: &dyn Entropy) -> Result<(), PinError> {
        for name in pin.packs()?.into_keys() {
            self.frames.sync(name).map_err(|error| self.failed(error))?;
        }
        let _turn = self.lock().map_err(|error| self.failed(error))?;
        if !self.path(pin.name, "pin").exists() {
            return Err(PinError::Gone);
        }
        let record = PinRecord {
            is_complete: true,
            ..pin.record.clone()
        };
        let written = self.write_record(pin.name, &record, entropy);
        written.map_err(|error| self.failed(error))?;
        self.read_again();
        Ok(())
    }

    /// Gives a pin up, and frees what no other pin has. Returns the bytes of disk that are free.
    ///
    /// # Errors
    /// [`PinError::Busy`] if its frames are being brought; [`PinError::Disk`] if its file cannot be
    /// removed.
    pub(crate) fn remove(&self, pin: &Pin) -> Result<u64, PinError> {
        let _turn = self.lock().map_err(|error| self.failed(error))?;
        let _held = self.hold(pin)?;
        let gone = pin.packs().unwrap_or_default();
        let before = self.frames.used_on_disk();
        let removed = fs::remove_file(self.path(pin.name, "pin"));
        removed.map_err(|error| self.failed(error))?;
        let _ = fs::remove_file(self.path(pin.name, "table"));
        self.read_again();
        // Another process may have brought frames of the same packs.
        self.frames.reopen();
        self.free(&gone);
        Ok(before.saturating_sub(self.frames.used()))
    }

    /// Frees frames that no pin has, and files that no pin needs.
    fn free(&self, gone: &Packs) {
        let (pins, has_unread) = {
            let state = self.state.lock();
            (state.pins.clone(), state.has_unread)
        };
        // The frames of a pin that cannot be read now are not known.
        let mut kept = Packs::new();
        for pin in &pins {
            match pin.packs() {
                Ok(packs) if !has_unread => unite(&mut kept, &packs),
                _ => return,
            }
        }
        for name in self.frames.names() {
            if !kept.contains_key(&name) {
                self.frames.remove(name);
            }
        }
        for (name, gone) in gone {
            if let Some(kept) = kept.get(name) {
                let ranges = freed(gone, kept);
                ranges
                    .iter()
                    .for_each(|range| self.frames.punch(*name, range));
            }
        }
    }

    /// Takes the lock of a pin.
    ///
    /// # Errors
    /// [`PinError::Busy`] if another task or process has it.
    pub(crate) fn hold(&self, pin: &Pin) -> Result<Held, PinError> {
        let file = File::open(self.path(pin.name, "table")).map_err(|_| PinError::Gone)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Held { _file: file }),
            Err(_) => Err(PinError::Busy),
        }
    }

    fn lock(&self) -> io::Result<File> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.directory.join("lock"))?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    fn write_record(
        &self,
        name: PackName,
        record: &PinRecord,
        entropy: &dyn Entropy,
    ) -> io::Result<()> {
        let sealed = record.seal(&self.keyring, name, salt(entropy));
        self.write(&self.path(name, "pin"), &sealed)
    }

    /// Writes a file whole, so that it survives a power loss.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let unfinished = path.with_extension("new");
        let _ = fs::remove_file(&unfinished);
        let written = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&unfinished)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&unfinished, path)?;
            File::open(&self.directory)?.sync_all()
        })();
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }
}

/// Returns the frames of all these pins. Those of a pin whose table is damaged are left out.
fn united(pins: &[Arc<Pin>]) -> Packs {
    let mut all = Packs::new();
    for pin in pins {
        if let Ok(packs) = pin.packs() {
            unite(&mut all, &packs);
        }
    }
    all
}
