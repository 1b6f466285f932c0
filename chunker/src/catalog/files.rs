//! Index tables as files of the cache directory.
//!
//! Owns the directory `index/` of a repository's cache, which has one file for each index object,
//! under the object's name. A file is first written whole under another name. It is not trusted:
//! opening reads its first block, and each look-up verifies what it reads. A table that does not
//! verify is built again from the bucket.
//!
//! Files are read, and not mapped: a file that another process cuts short, or a page that the disk
//! cannot read, is then an error of one look-up, and does not end the process.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::make_directory;
use crate::index::{OwnMemory, ReadAt, Table, TableError, TableKey};
use crate::pack::PackName;

/// Suffix of the names of unfinished files.
const UNFINISHED: &str = ".new";

/// The bytes of a table.
#[derive(Debug)]
pub(crate) enum TableBytes {
    Memory(OwnMemory),
    File { file: File, length: u64 },
}

impl TableBytes {
    /// Returns the bytes of a table that this process has made.
    pub(crate) fn memory(bytes: Vec<u8>) -> Self {
        Self::Memory(OwnMemory(bytes))
    }
}

impl ReadAt for TableBytes {
    fn length(&self) -> u64 {
        match self {
            Self::Memory(memory) => memory.length(),
            Self::File { length, .. } => *length,
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Memory(memory) => memory.read_at(offset, buffer),
            Self::File { file, .. } => file.read_exact_at(buffer, offset),
        }
    }

    fn is_trusted(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}

/// The directory of table files.
#[derive(Debug, Clone)]
pub(crate) struct TableFiles {
    directory: Arc<Path>,
    unfinished: Arc<AtomicU64>,
}

impl TableFiles {
    /// Opens or makes the directory below `root`. Removes unfinished files, which a process that
    /// died has left. If the process is still alive, it keeps the table of such a file in memory.
    ///
    /// # Errors
    /// The error of the file system if the directory cannot be made or read.
    pub(crate) fn open_directory(root: &Path) -> io::Result<Self> {
        let directory = root.join("index");
        make_directory(&directory)?;
        for file in fs::read_dir(&directory)?.flatten() {
            if file.file_name().to_string_lossy().ends_with(UNFINISHED) {
                let _ = fs::remove_file(file.path());
            }
        }
        Ok(Self {
            directory: directory.into(),
            unfinished: Arc::default(),
        })
    }

    fn path(&self, name: PackName) -> PathBuf {
        self.directory.join(name.to_string())
    }

    /// Returns whether there is a file of the index object.
    pub(crate) async fn holds(&self, name: PackName) -> bool {
        let path = self.path(name);
        let holds = tokio::task::spawn_blocking(move || path.exists());
        holds.await.unwrap_or(false)
    }

    /// Returns the table of an index object, of which one block is read. `None` if its file does
    /// not exist, or if that block shows that it is not this table.
    pub(crate) async fn open(&self, name: PackName, key: TableKey) -> Option<Table<TableBytes>> {
        let path = self.path(name);
        let open = move || {
            let bytes = match open_file(&path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    if error.kind() != io::ErrorKind::NotFound {
                        tracing::warn!(path = %path.display(), "made again: {error}");
                    }
                    return None;
                }
            };
            match Table::open(bytes, key) {
                Ok(table) => Some(table),
                Err(error) => {
                    tracing::warn!(path = %path.display(), "made again: {error}");
                    let _ = fs::remove_file(&path);
                    None
                }
            }
        };
        tokio::task::spawn_blocking(open).await.ok().flatten()
    }

    /// Writes a table to a file and opens that. If that fails, the table stays in memory.
    ///
    /// # Errors
    /// [`TableError`] if the bytes are not a table.
    pub(crate) async fn keep(
        &self,
        name: PackName,
        key: TableKey,
        bytes: Vec<u8>,
    ) -> Result<Table<TableBytes>, TableError> {
        let path = self.path(name);
        let number = self.unfinished.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        // Unique among the content stores of this process as well: `create_new` fails if the name
        // is in use, and its file is left to its owner.
        let unfinished = format!("{name}-{process}-{number}{UNFINISHED}");
        let unfinished = self.directory.join(unfinished);
        let keep = move || {
            let open = |file| Table::open(file, key.clone()).map_err(io::Error::other);
            let written = write(&unfinished, &path, &bytes);
            match written.and_then(|()| open(open_file(&path)?)) {
                Ok(table) => Ok(table),
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(path = %path, "an index table stays in memory: {error}");
                    Table::open(TableBytes::memory(bytes), key)
                }
            }
        };
        match tokio::task::spawn_blocking(keep).await {
            Ok(table) => table,
            Err(_) => Err(TableError::NotATable),
        }
    }

    /// Removes the file of an index object.
    pub(crate) async fn remove(&self, name: PackName) {
        let path = self.path(name);
        let _ = tokio::task::spawn_blocking(move || fs::remove_file(path)).await;
    }

    /// Removes the files of all other index objects. Another process that has opened one goes on
    /// reading it.
    pub(crate) async fn keep_only(&self, names: HashSet<PackName>) {
        let directory = Arc::clone(&self.directory);
        let sweep = move || {
            for file in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let name = file.file_name().to_string_lossy().parse::<PackName>();
                if name.is_ok_and(|name| !names.contains(&name)) {
                    let _ = fs::remove_file(file.path());
                }
            }
        };
        let _ = tokio::task::spawn_blocking(sweep).await;
    }
}

fn write(unfinished: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(unfinished)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| fs::rename(unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(unfinished);
    }
    written
}

fn open_file(path: &Path) -> io::Result<TableBytes> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok(TableBytes::File { file, length })
}
