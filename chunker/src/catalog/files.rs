//! Index tables as files of the cache directory, mapped into memory.
//!
//! Owns the directory `index/` of a repository's cache, which has one file for each index object,
//! under the object's name. A file is first written whole under another name. Its checksum is
//! verified when it is opened; a file that does not verify is built again from the bucket.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::Mmap;

use crate::cache::make_directory;
use crate::index::{Table, TableError};
use crate::pack::PackName;

/// Suffix of the names of unfinished files.
const UNFINISHED: &str = ".new";

/// The bytes of a table.
#[derive(Debug)]
pub(crate) enum TableBytes {
    Memory(Vec<u8>),
    Mapped(Mmap),
}

impl AsRef<[u8]> for TableBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::Mapped(map) => map,
        }
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

    /// Returns the table of an index object. `None` if its file does not exist or does not verify.
    pub(crate) async fn open(&self, name: PackName) -> Option<Table<TableBytes>> {
        let path = self.path(name);
        let open = move || {
            let table = map(&path).ok()?;
            match table.verify() {
                Ok(()) => Some(table),
                Err(error) => {
                    tracing::warn!(path = %path.display(), "made again: {error}");
                    let _ = fs::remove_file(&path);
                    None
                }
            }
        };
        tokio::task::spawn_blocking(open).await.ok().flatten()
    }

    /// Writes a table to a file and maps it. If that fails, the table stays in memory.
    ///
    /// # Errors
    /// [`TableError`] if the bytes are not a table.
    pub(crate) async fn keep(
        &self,
        name: PackName,
        bytes: Vec<u8>,
    ) -> Result<Table<TableBytes>, TableError> {
        let path = self.path(name);
        let number = self.unfinished.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        // Unique among the content stores of this process as well: `create_new` fails if the name
        // is in use, and its file is left to its owner.
        let unfinished = format!("{name}-{process}-{number}{UNFINISHED}");
        let unfinished = self.directory.join(unfinished);
        let keep = move || match write(&unfinished, &path, &bytes).and_then(|()| map(&path)) {
            Ok(table) => Ok(table),
            Err(error) => {
                tracing::warn!(path = %path.display(), "an index table stays in memory: {error}");
                Table::open(TableBytes::Memory(bytes))
            }
        };
        match tokio::task::spawn_blocking(keep).await {
            Ok(table) => table,
            Err(_) => Table::open(TableBytes::Memory(Vec::new())),
        }
    }

    /// Removes the files of all other index objects. Another process that has mapped one keeps its
    /// mapping.
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

fn map(path: &Path) -> io::Result<Table<TableBytes>> {
    let file = File::open(path)?;
    // SAFETY: only this user can enter the directory of the file. The file is never written after
    // it has its name, and never truncated. It is replaced by rename and removed by unlink, and the
    // mapping stays whole in both cases.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file)? };
    Table::open(TableBytes::Mapped(map))
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
