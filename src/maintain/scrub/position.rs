//! The position of the scrubbing of a repository, on this machine.
//!
//! Owns the small file `STATE_DIR/REPOSITORY/scrub`, and the lock next to it by which only one
//! mount of a machine scrubs a repository. Losing the file only makes a round begin anew. So a
//! malformed file counts as nothing remembered, and a write need not survive a power loss.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use bkfs_chunker::pack::PackName;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::private;
use crate::root::blocking::blocking;

/// The position in a round.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// The last pack of this round that was verified.
    #[serde(with = "as_text")]
    pub after: Option<PackName>,
    /// Bytes verified in this round.
    pub bytes: u64,
    /// Packs found damaged in this round.
    pub damaged: u64,
    /// When the last full round ended (RFC 3339).
    pub last_round: Option<String>,
    /// Packs found damaged in the last full round.
    pub last_round_damaged: u64,
}

mod as_text {
    use bkfs_chunker::pack::PackName;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes a name as text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(
        name: &Option<PackName>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        name.map(|name| name.to_string()).serialize(serializer)
    }

    /// Reads a name from text. A text that is no name counts as none.
    ///
    /// # Errors
    /// Those of the deserializer.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<PackName>, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?;
        Ok(name.and_then(|name| name.parse().ok()))
    }
}

/// The file that keeps the position across processes. Without a state directory nothing is kept.
#[derive(Debug)]
pub struct PositionFile {
    directory: Option<PathBuf>,
}

impl PositionFile {
    /// Creates the memory of `repository` (its id as text) below `state_dir`. Does no I/O.
    pub fn new(state_dir: Option<&Path>, repository: &str) -> Self {
        Self {
            directory: state_dir.map(|directory| directory.join(repository)),
        }
    }

    /// Takes the right to scrub. Returns none if another process of this machine has it, or another
    /// mount in this process. Without a state directory every mount gets it.
    ///
    /// Cancel safety: dropped, it leaves the lock free once its thread is done.
    ///
    /// # Errors
    /// The [`io::Error`] with which the lock file could not be made or locked.
    pub async fn claim(&self) -> io::Result<Option<Claim>> {
        let Some(directory) = self.directory.clone() else {
            return Ok(Some(Claim(None)));
        };
        let claim = move || {
            private::make_directory(&directory)?;
            let file = private::open(&directory.join("scrub.lock"))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(Claim(Some(file)))),
                Err(Errno::WOULDBLOCK) => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        blocking(claim).await
    }

    /// Returns what was remembered; the beginning of a round if nothing was.
    ///
    /// # Errors
    /// The [`io::Error`] with which an existing file could not be read.
    pub async fn recall(&self) -> io::Result<Position> {
        let Some(directory) = self.directory.clone() else {
            return Ok(Position::default());
        };
        let read = move || match std::fs::read(directory.join("scrub")) {
            Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Position::default()),
            Err(error) => Err(error),
        };
        blocking(read).await
    }

    /// Writes the position to the file. Cancel safety: dropped, it leaves the file changed or not.
    ///
    /// # Errors
    /// The [`io::Error`] with which the file could not be written.
    pub async fn remember(&self, position: &Position) -> io::Result<()> {
        let Some(directory) = self.directory.clone() else {
            return Ok(());
        };
        let text = serde_json::to_vec(position)?;
        let write = move || {
            private::make_directory(&directory)?;
            private::replace(&directory.join("scrub"), &text)
        };
        blocking(write).await
    }
}

/// The right to scrub. Dropping it gives the right up.
#[derive(Debug)]
pub struct Claim(#[expect(dead_code, reason = "held, not read")] Option<File>);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_remembered_is_recalled() {
        let directory = tempfile::tempdir().expect("a directory");
        let memory = PositionFile::new(Some(directory.path()), "repository");
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
        for text in [&b""[..], b"{", b"\0\xff", b"{\"after\": 7}"] {
            std::fs::write(&file, text).expect("written");
            assert_eq!(memory.recall().await.expect("recalls"), Position::default());
        }
    }

    #[tokio::test]
    async fn only_one_holds_the_claim() {
        let directory = tempfile::tempdir().expect("a directory");
        let memory = PositionFile::new(Some(directory.path()), "repository");
        let other = PositionFile::new(Some(directory.path()), "repository");
        let claim = memory.claim().await.expect("a lock");
        assert!(claim.is_some());
        assert!(other.claim().await.expect("a lock").is_none());
        drop(claim);
        assert!(other.claim().await.expect("a lock").is_some());
    }

    #[tokio::test]
    async fn without_a_directory_nothing_is_remembered() {
        let memory = PositionFile::new(None, "repository");
        let position = Position {
            bytes: 1,
            ..Position::default()
        };
        memory.remember(&position).await.expect("is no error");
        assert_eq!(memory.recall().await.expect("recalls"), Position::default());
    }
}
