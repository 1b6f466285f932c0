//! What a machine remembers about a repository: the newest root that it has seen, and the place of
//! its notes about sent journals ([`super::sent`]).
//!
//! Owns only the small file `STATE_DIR/REPOSITORY/generation`. The file is needed to detect a
//! bucket that was rolled back; a machine without it cannot detect that. A lost file costs a
//! warning and never data. So an unparsable file counts as empty, and a write need not survive a
//! power loss.

use super::blocking::blocking;
use super::chain::RootMark;
use super::sent::SentJournals;
use crate::private;
use async_trait::async_trait;
use std::fmt::Debug;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Remembers the newest root seen, across processes.
#[async_trait]
pub trait GenerationMemory: Send + Sync + Debug + 'static {
    /// Returns the newest root that was remembered; none if there is none.
    ///
    /// # Errors
    /// The error of the file system if the record exists and cannot be read.
    async fn recall(&self) -> io::Result<Option<RootMark>>;

    /// Remembers `mark`, unless a root of the same or a higher generation is remembered.
    ///
    /// Cancel safety: dropped, it has remembered `mark`, or will, or never started.
    ///
    /// # Errors
    /// The error of the file system if the record cannot be read or replaced.
    async fn remember(&self, mark: RootMark) -> io::Result<()>;

    /// Remembers `mark` in place of any other root, because the user has accepted it.
    ///
    /// Cancel safety: dropped, it has remembered `mark`, or will, or never started.
    ///
    /// # Errors
    /// The error of the file system if the record cannot be read or replaced.
    async fn accept(&self, mark: RootMark) -> io::Result<()>;

    /// Returns the notes of this machine about the journals that it sent; none if it keeps none.
    fn sent(&self) -> Option<&SentJournals> {
        None
    }
}

/// Remembers only for the life of the process: for tests, simulations, and machines without a state
/// directory.
#[derive(Debug, Default)]
pub struct VolatileMemory(parking_lot::Mutex<Option<RootMark>>);

#[async_trait]
impl GenerationMemory for VolatileMemory {
    async fn recall(&self) -> io::Result<Option<RootMark>> {
        Ok(*self.0.lock())
    }

    async fn remember(&self, mark: RootMark) -> io::Result<()> {
        let mut known = self.0.lock();
        if known.is_none_or(|known| known.generation < mark.generation) {
            *known = Some(mark);
        }
        Ok(())
    }

    async fn accept(&self, mark: RootMark) -> io::Result<()> {
        *self.0.lock() = Some(mark);
        Ok(())
    }
}

/// Remembers in a file that all processes of a user on this machine share.
#[derive(Debug)]
pub struct FileMemory {
    directory: PathBuf,
    sent: SentJournals,
}

impl FileMemory {
    /// Returns the memory of `repository` (its id as text) below `state_dir`. Touches no file yet.
    pub fn new(state_dir: &Path, repository: &str) -> Self {
        let directory = state_dir.join(repository);
        Self {
            sent: SentJournals::new(&directory),
            directory,
        }
    }

    fn file(directory: &Path) -> PathBuf {
        directory.join("generation")
    }
}

#[async_trait]
impl GenerationMemory for FileMemory {
    async fn recall(&self) -> io::Result<Option<RootMark>> {
        let directory = self.directory.clone();
        blocking(move || read(&FileMemory::file(&directory))).await
    }

    async fn remember(&self, mark: RootMark) -> io::Result<()> {
        let directory = self.directory.clone();
        blocking(move || write(&directory, mark, |known| known.generation < mark.generation)).await
    }

    async fn accept(&self, mark: RootMark) -> io::Result<()> {
        let directory = self.directory.clone();
        blocking(move || write(&directory, mark, |_| true)).await
    }

    fn sent(&self) -> Option<&SentJournals> {
        Some(&self.sent)
    }
}

fn read(file: &Path) -> io::Result<Option<RootMark>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses `GENERATION NONCE`; none for any other text.
fn parse(text: &str) -> Option<RootMark> {
    let (generation, nonce) = text.trim_end().split_once(' ')?;
    let mut bytes = [0; 16];
    hex::decode_to_slice(nonce, &mut bytes).ok()?;
    Some(RootMark {
        generation: generation.parse().ok()?,
        nonce: bytes,
    })
}

/// Replaces the file atomically, under a lock, unless `gives_way` returns false for the mark that
/// the file holds. So the newer mark of two processes wins.
fn write(
    directory: &Path,
    mark: RootMark,
    gives_way: impl FnOnce(RootMark) -> bool,
) -> io::Result<()> {
    if let Some(state) = directory.parent() {
        private::make_directory(state)?;
    }
    private::make_directory(directory)?;
    let _lock = private::lock(&directory.join("lock"))?;
    let file = FileMemory::file(directory);
    if read(&file)?.is_some_and(|known| !gives_way(known)) {
        return Ok(());
    }
    let fresh = directory.join("generation.new");
    let mut output = private::open(&fresh)?;
    output.set_len(0)?;
    writeln!(output, "{} {}", mark.generation, hex::encode(mark.nonce))?;
    std::fs::rename(&fresh, &file)
}
