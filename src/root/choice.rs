//! Remembers which key slots to try first: the named one, and those that opened last.
//!
//! Owns the file `STATE_DIR/REPOSITORY/keys`: names and fingerprints of the slots that opened the
//! repository on this machine, the newest first. They are read by name, so that neither the list of
//! the bucket nor other slots come before them. A slot with another content under a remembered name
//! is not preferred, and counts as damaged. A lost file costs time, and makes hostile slots count
//! again (SECURITY.md). Unreadable lines are ignored.

use super::blocking::blocking;
use crate::private;
use bkfs_chunker::crypto::{RepositoryId, SlotName};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Slots remembered of one repository: each of this many passwords, used in turn, stays fast.
pub(super) const REMEMBERED_MAX: usize = 4;

/// Key slots to try first.
#[derive(Clone, Debug, Default)]
pub struct KeyChoice {
    /// The slot that the user names; commands that only open the repository try no other one.
    pub named: Option<SlotName>,
    /// Directory of this machine's memory of repositories; without it nothing is remembered.
    pub state_dir: Option<PathBuf>,
}

/// A slot that opened.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct KnownSlot {
    /// Its name.
    pub(super) name: SlotName,
    /// [`bkfs_chunker::crypto::Slot::fingerprint`].
    pub(super) fingerprint: [u8; 32],
}

impl KeyChoice {
    pub(super) fn directory(&self, repository: RepositoryId) -> Option<PathBuf> {
        let state = self.state_dir.as_ref()?;
        Some(state.join(repository.to_string()))
    }

    /// Returns the slots of `repository` that opened on this machine, the newest first. A future
    /// that is dropped changes nothing.
    pub(super) async fn recall(&self, repository: RepositoryId) -> Vec<KnownSlot> {
        let Some(directory) = self.directory(repository) else {
            return Vec::new();
        };
        let read = blocking(move || read(&file(&directory))).await;
        read.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read which key opened last; all keys are tried in turn");
            Vec::new()
        })
    }

    /// Records a slot that opened `repository`. A failure is a warning. A future that is dropped
    /// may have recorded it.
    pub(super) async fn remember(&self, repository: RepositoryId, slot: KnownSlot) {
        let Some(directory) = self.directory(repository) else {
            return;
        };
        if let Err(error) = blocking(move || write(&directory, slot)).await {
            tracing::warn!(%error,
                "cannot remember which key opened; all keys are tried in turn next time");
        }
    }
}

fn file(directory: &Path) -> PathBuf {
    directory.join("keys")
}

fn read(file: &Path) -> io::Result<Vec<KnownSlot>> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(parse(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Parses lines of `NAME FINGERPRINT`; other lines are ignored.
fn parse(bytes: &[u8]) -> Vec<KnownSlot> {
    let text = String::from_utf8_lossy(bytes);
    let line = |line: &str| {
        let (name, fingerprint) = line.split_once(' ')?;
        let mut known = KnownSlot {
            name: name.parse().ok()?,
            fingerprint: [0; 32],
        };
        hex::decode_to_slice(fingerprint, &mut known.fingerprint).ok()?;
        Some(known)
    };
    text.lines().filter_map(line).take(REMEMBERED_MAX).collect()
}

/// Puts a slot at the head of the file, which is replaced atomically, under a lock.
fn write(directory: &Path, slot: KnownSlot) -> io::Result<()> {
    let file = file(directory);
    if read(&file)?.first() == Some(&slot) {
        return Ok(());
    }
    if let Some(state) = directory.parent() {
        private::make_directory(state)?;
    }
    private::make_directory(directory)?;
    let _lock = private::lock(&directory.join("lock"))?;
    let mut known = read(&file)?;
    known.retain(|known| known.name != slot.name);
    known.insert(0, slot);
    known.truncate(REMEMBERED_MAX);
    let fresh = directory.join("keys.new");
    let mut output = private::open(&fresh)?;
    output.set_len(0)?;
    for KnownSlot { name, fingerprint } in known {
        writeln!(output, "{name} {}", hex::encode(fingerprint))?;
    }
    std::fs::rename(&fresh, &file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: RepositoryId = RepositoryId([7; 16]);

    fn known(number: u64) -> KnownSlot {
        KnownSlot {
            name: SlotName(number),
            fingerprint: [number as u8; 32],
        }
    }

    #[tokio::test]
    async fn the_slots_that_opened_last_are_remembered_newest_first() {
        let state = tempfile::tempdir().unwrap();
        let choice = KeyChoice {
            named: None,
            state_dir: Some(state.path().join("state")),
        };
        assert_eq!(choice.recall(HERE).await, []);
        for number in [1, 2, 3, 1, 4, 5] {
            choice.remember(HERE, known(number)).await;
        }
        assert_eq!(choice.recall(HERE).await, [5, 4, 1, 3].map(known));
        assert_eq!(choice.recall(RepositoryId([8; 16])).await, []);
        // Other lines are ignored.
        let file = file(&choice.directory(HERE).unwrap());
        let text = format!(
            "\u{1b}x\n{} zz\n{} {}\n",
            known(1).name,
            known(2).name,
            "02".repeat(32)
        );
        std::fs::write(&file, text).unwrap();
        assert_eq!(choice.recall(HERE).await, [known(2)]);
        std::fs::write(&file, [0xff; 100]).unwrap();
        assert_eq!(choice.recall(HERE).await, []);
        // Without a state directory nothing is remembered.
        KeyChoice::default().remember(HERE, known(1)).await;
        assert_eq!(KeyChoice::default().recall(HERE).await, []);
    }
}
