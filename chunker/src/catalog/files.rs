//! Tables as files of the cache directory, mapped into memory.
//!
//! Owns the directory `index/` of a repository's cache: one file per index object, named by it. A file is written whole under another name first, and
//! its checksum is verified before it is used; one that does not verify is made again from the bucket.

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

/// How the names of unfinished files end.
const UNFINISHED: &str = ".new";

/// Where the bytes of a table are.
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

/// The directory.
#[derive(Debug, Clone)]
pub(crate) struct TableFiles {
    directory: Arc<Path>,
    unfinished: Arc<AtomicU64>,
}

impl TableFiles {
    /// Opens or makes the directory below `root`, and removes what a process that died has left unfinished. A living one whose file goes this way keeps its
    /// table in memory.
    ///
    /// # Errors
    /// It cannot be made or read.
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

    /// The table of an index object, if its file is there and as it should be.
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

    /// Keeps a table as a file; if that fails, in memory.
    ///
    /// # Errors
    /// The bytes are no table.
    pub(crate) async fn keep(
        &self,
        name: PackName,
        bytes: Vec<u8>,
    ) -> Result<Table<TableBytes>, TableError> {
        let path = self.path(name);
        let number = self.unfinished.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        // Unique among the depots of this process, too: a name that is taken is left to whoever has it.
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

    /// Removes the files of all other index objects. Another process that has them mapped keeps them.
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
    // SAFETY: the file lies in a directory that only this user can enter, is never written to once it has its name, and never made shorter: it is
    // replaced by renaming and removed by unlinking, both of which leave the mapping whole.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file)? };
    Table::open(TableBytes::Mapped(map))
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
