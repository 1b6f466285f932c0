//! The notes of a machine about the journals that it sent.
//!
//! Owns the files `STATE_DIR/REPOSITORY/sent/SESSION`: for each session of this machine the number
//! and the last operation of the newest journal that the store took. With them this machine detects
//! that the newest journals were deleted from the bucket, which the bucket alone cannot show. A
//! lost file costs a warning and never data.
//!
//! Each journal overwrites a part of the file in place, without a flush. So the notes survive the
//! end of the process, but after a power loss they may be older, or absent. The file has two slots,
//! which journals use in turn, each with a checksum: a torn slot leaves the other one intact.

use super::blocking::blocking;
use super::state::SessionId;
use crate::private;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The length of a slot in bytes: three numbers of 16 hexadecimal digits, two spaces and a line
/// feed.
const SLOT_BYTES: usize = 51;

/// The longest time that a write waits for the disk. After that no more notes are written, since
/// fsync must not hang on this disk.
const PATIENCE: Duration = Duration::from_secs(2);

/// The largest number of files that are listed. A root has fewer sessions.
const SESSIONS_MAX: usize = 65_536;

/// The newest journal of a session that the store took from this machine.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Sent {
    /// Its number.
    pub number: u64,
    /// Its last operation.
    pub last: u64,
}

impl Sent {
    fn check(session: SessionId, numbers: &str) -> String {
        let hash = blake3::hash(format!("{session} {numbers}").as_bytes());
        hash.to_hex()[..16].to_owned()
    }

    fn encode(self, session: SessionId) -> String {
        let numbers = format!("{:016x} {:016x}", self.number, self.last);
        format!("{numbers} {}\n", Self::check(session, &numbers))
    }

    /// Decodes a slot; none if its checksum is wrong or of another session.
    fn decode(slot: &[u8], session: SessionId) -> Option<Self> {
        let text = std::str::from_utf8(slot).ok()?.strip_suffix('\n')?;
        let (numbers, check) = text.rsplit_once(' ')?;
        if check != Self::check(session, numbers) {
            return None;
        }
        let (number, last) = numbers.split_once(' ')?;
        Some(Self {
            number: u64::from_str_radix(number, 16).ok()?,
            last: u64::from_str_radix(last, 16).ok()?,
        })
    }

    fn slot(self) -> u64 {
        (self.number & 1) * SLOT_BYTES as u64
    }
}

/// The notes about one repository. Touches no file before the first call.
#[derive(Clone, Debug)]
pub struct SentJournals {
    directory: PathBuf,
}

impl SentJournals {
    /// Returns the notes below the directory that this machine has for the repository.
    pub fn new(repository: &Path) -> Self {
        Self {
            directory: repository.join("sent"),
        }
    }

    fn file(&self, session: SessionId) -> PathBuf {
        self.directory.join(session.to_string())
    }

    /// Returns the note about `session`. An unreadable file counts as no note, and a warning is
    /// logged.
    pub async fn recall(&self, session: SessionId) -> Option<Sent> {
        let file = self.file(session);
        let read = blocking(move || match std::fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        });
        let bytes = read.await.unwrap_or_else(|error| {
            tracing::warn!(%error,
                "cannot read which journals this machine has sent: journals that were deleted \
                 from the bucket would go unnoticed");
            None
        })?;
        let slots = bytes.chunks_exact(SLOT_BYTES).take(2);
        let found = slots.filter_map(|slot| Sent::decode(slot, session));
        found.max_by_key(|sent| sent.last)
    }

    /// Returns the sessions that have a note; none if the directory cannot be read.
    pub async fn sessions(&self) -> Vec<SessionId> {
        let directory = self.directory.clone();
        let listed = blocking(move || {
            let entries = match std::fs::read_dir(&directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries?,
            };
            let named = |entry: io::Result<std::fs::DirEntry>| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                let id = SessionId(u64::from_str_radix(&name, 16).ok()?);
                (id.to_string() == name).then_some(id)
            };
            Ok(entries.take(SESSIONS_MAX).filter_map(named).collect())
        });
        listed.await.unwrap_or_default()
    }

    /// Replaces the note about `session` by `to`, because the user has accepted the loss of later
    /// journals. A failure is only logged.
    ///
    /// Cancel safety: dropped after its first poll, it leaves the write to run to its end.
    pub async fn lower(&self, session: SessionId, to: Sent) {
        let (this, text) = (self.clone(), to.encode(session));
        let lowered = blocking(move || {
            let file = this.open(session)?;
            file.set_len(0)?;
            file.write_all_at(text.as_bytes(), to.slot())
        });
        if let Err(error) = lowered.await {
            tracing::warn!(%error,
                "cannot remember that the loss of journals is accepted: it must be accepted once \
                 more");
        }
    }

    /// Deletes the notes about sessions that are no longer in the root. A failure is only logged.
    ///
    /// Cancel safety: dropped after its first poll, it leaves the deletion to run to its end.
    pub async fn forget(&self, sessions: impl IntoIterator<Item = SessionId>) {
        let files: Vec<PathBuf> = sessions.into_iter().map(|id| self.file(id)).collect();
        if files.is_empty() {
            return;
        }
        let forgotten = blocking(move || {
            for file in files {
                match std::fs::remove_file(file) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        });
        if let Err(error) = forgotten.await {
            tracing::debug!(%error, "what is remembered of an ended session stays");
        }
    }

    /// Returns the writer of notes about the journals of `session`.
    pub(super) fn notes(&self, session: SessionId) -> Notes {
        Notes {
            memory: self.clone(),
            session,
            file: Arc::default(),
            said: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    fn open(&self, session: SessionId) -> io::Result<File> {
        for above in [self.directory.parent(), Some(&self.directory)] {
            private::make_directory(above.unwrap_or(Path::new(".")))?;
        }
        private::open(&self.file(session))
    }
}

/// Writes notes about the journals of one session.
#[derive(Debug)]
pub(super) struct Notes {
    memory: SentJournals,
    session: SessionId,
    /// Opened with the first journal.
    file: Arc<parking_lot::Mutex<Option<File>>>,
    /// True once a failure was logged.
    said: AtomicBool,
    /// True once the disk did not answer in time.
    stopped: AtomicBool,
}

impl Notes {
    /// Notes that the store took this journal. A failure is only logged, because it costs a warning
    /// and never data.
    ///
    /// Cancel safety: dropped after its first poll, it leaves the write to run to its end.
    pub(super) async fn note(&self, sent: Sent) {
        if self.stopped.load(Ordering::Relaxed) {
            return;
        }
        let (memory, session, file) = (self.memory.clone(), self.session, self.file.clone());
        let written = blocking(move || {
            let mut file = file.lock();
            let file = match &mut *file {
                Some(file) => file,
                none => none.insert(memory.open(session)?),
            };
            file.write_all_at(sent.encode(session).as_bytes(), sent.slot())
        });
        let error = match tokio::time::timeout(PATIENCE, written).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => {
                self.stopped.store(true, Ordering::Relaxed);
                io::Error::from(io::ErrorKind::TimedOut)
            }
        };
        if !self.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error,
                "cannot remember which journals were sent: if the newest are deleted from the \
                 bucket, this machine may not notice");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const ID: SessionId = SessionId(7);

    fn sent(number: u64, last: u64) -> Sent {
        Sent { number, last }
    }

    #[tokio::test]
    async fn the_newest_is_remembered_by_every_process() {
        let state = tempfile::tempdir().unwrap();
        let memory = SentJournals::new(&state.path().join("r"));
        assert_eq!(memory.recall(ID).await, None);
        let notes = memory.notes(ID);
        for number in 1..=5 {
            notes.note(sent(number, 3 * number)).await;
            assert_eq!(memory.recall(ID).await, Some(sent(number, 3 * number)));
        }
        assert_eq!(memory.recall(SessionId(8)).await, None);
        assert_eq!(memory.sessions().await, [ID]);
        let file = std::fs::metadata(memory.file(ID)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600);
        assert_eq!(file.len(), 2 * SLOT_BYTES as u64, "it does not grow");
        memory.lower(ID, sent(2, 6)).await;
        assert_eq!(memory.recall(ID).await, Some(sent(2, 6)));
        notes.note(sent(6, 18)).await;
        assert_eq!(memory.recall(ID).await, Some(sent(6, 18)));
        memory.forget([ID, SessionId(8)]).await;
        assert!(memory.sessions().await.is_empty());
    }

    #[tokio::test]
    async fn a_torn_slot_leaves_the_other() {
        let state = tempfile::tempdir().unwrap();
        let memory = SentJournals::new(state.path());
        let notes = memory.notes(ID);
        notes.note(sent(1, 1)).await;
        notes.note(sent(2, 2)).await;
        let whole = std::fs::read(memory.file(ID)).unwrap();
        for torn in 0..SLOT_BYTES {
            let mut bytes = whole.clone();
            bytes[torn] ^= 1;
            std::fs::write(memory.file(ID), &bytes).unwrap();
            assert_eq!(memory.recall(ID).await, Some(sent(1, 1)), "byte {torn}");
        }
        std::fs::write(memory.file(ID), &whole[..SLOT_BYTES - 1]).unwrap();
        assert_eq!(memory.recall(ID).await, None);
        // The checksum binds the session, so the same bytes are no note about another one.
        std::fs::write(memory.file(SessionId(8)), &whole).unwrap();
        assert_eq!(memory.recall(SessionId(8)).await, None);
    }

    #[tokio::test]
    async fn a_disk_that_refuses_fails_nothing() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("sent"), "no directory").unwrap();
        let memory = SentJournals::new(state.path());
        memory.notes(ID).note(sent(1, 1)).await;
        memory.lower(ID, sent(1, 1)).await;
        assert_eq!(memory.recall(ID).await, None);
        assert!(memory.sessions().await.is_empty());
    }
}
