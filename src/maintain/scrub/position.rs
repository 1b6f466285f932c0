//! Where the scrubbing of a repository is, on this machine.
//!
//! Owns the small file `STATE_DIR/REPOSITORY/scrub`. Losing it costs a round that begins anew, nothing else: so what cannot be read counts as nothing remembered, and writing it need not
//! survive a power cut.

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bkfs_chunker::pack::PackName;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Where it is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Position {
    /// The last pack of this round that was verified.
    pub after: Option<PackName>,
    /// Bytes verified in this round.
    pub bytes: u64,
    /// Packs found damaged in this round.
    pub damaged: u64,
    /// When the last full round ended, RFC 3339.
    pub last_round: Option<String>,
    /// Packs found damaged in it.
    pub last_round_damaged: u64,
}

/// The same as it lies in the file.
#[derive(Serialize, Deserialize)]
struct Written {
    after: Option<String>,
    bytes: u64,
    damaged: u64,
    last_round: Option<String>,
    last_round_damaged: u64,
}

impl Position {
    fn to_text(&self) -> io::Result<String> {
        let written = Written {
            after: self.after.map(|name| name.to_string()),
            bytes: self.bytes,
            damaged: self.damaged,
            last_round: self.last_round.clone(),
            last_round_damaged: self.last_round_damaged,
        };
        Ok(serde_json::to_string(&written)? + "\n")
    }

    /// Anything that was not written so is the beginning.
    fn from_text(text: &str) -> Position {
        let Ok(written) = serde_json::from_str::<Written>(text) else {
            return Position::default();
        };
        Position {
            after: written.after.and_then(|name| name.parse().ok()),
            bytes: written.bytes,
            damaged: written.damaged,
            last_round: written.last_round,
            last_round_damaged: written.last_round_damaged,
        }
    }
}

/// Remembers it, across processes.
#[async_trait]
pub trait PositionMemory: Send + Sync {
    /// What was remembered; the beginning if nothing was.
    async fn recall(&self) -> io::Result<Position>;

    /// Remembers this.
    async fn remember(&self, position: &Position) -> io::Result<()>;
}

/// Remembers for the life of the process only.
#[derive(Debug, Default)]
pub struct VolatileMemory(pub Mutex<Position>);

#[async_trait]
impl PositionMemory for VolatileMemory {
    async fn recall(&self) -> io::Result<Position> {
        Ok(self.0.lock().clone())
    }

    async fn remember(&self, position: &Position) -> io::Result<()> {
        *self.0.lock() = position.clone();
        Ok(())
    }
}

/// Remembers in a file.
#[derive(Debug)]
pub struct FileMemory {
    directory: PathBuf,
}

impl FileMemory {
    /// The memory of `repository` (its id as text) below `state_dir`. Touches nothing yet.
    pub fn new(state_dir: &Path, repository: &str) -> Self {
        Self {
            directory: state_dir.join(repository),
        }
    }
}

#[async_trait]
impl PositionMemory for FileMemory {
    async fn recall(&self) -> io::Result<Position> {
        let file = self.directory.join("scrub");
        let read = move || match std::fs::read_to_string(file) {
            Ok(text) => Ok(Position::from_text(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Position::default()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Position::default()),
            Err(error) => Err(error),
        };
        tokio::task::spawn_blocking(read)
            .await
            .map_err(io::Error::other)?
    }

    async fn remember(&self, position: &Position) -> io::Result<()> {
        let directory = self.directory.clone();
        let text = position.to_text()?;
        let write = move || {
            std::fs::create_dir_all(&directory)?;
            let fresh = directory.join(format!("scrub.{}", std::process::id()));
            std::fs::write(&fresh, text)?;
            std::fs::rename(&fresh, directory.join("scrub"))
        };
        tokio::task::spawn_blocking(write)
            .await
            .map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_remembered_is_recalled() {
        let directory = tempfile::tempdir().expect("a directory");
        let memory = FileMemory::new(directory.path(), "repository");
        assert_eq!(memory.recall().await.expect("recalls"), Position::default());
        let position = Position {
            after: Some(PackName {
                session: 7,
                sequence: 8,
                random: 9,
            }),
            bytes: 10,
            damaged: 1,
            last_round: Some("2026-11-21T10:00:00Z".to_owned()),
            last_round_damaged: 2,
        };
        memory.remember(&position).await.expect("remembers");
        assert_eq!(memory.recall().await.expect("recalls"), position);
        let file = directory.path().join("repository/scrub");
        for text in ["", "{", "\u{0}", "{\"after\": 7}"] {
            std::fs::write(&file, text).expect("written");
            assert_eq!(memory.recall().await.expect("recalls"), Position::default());
        }
    }
}
