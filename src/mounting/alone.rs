//! A volume that is written without a kernel: by a command.
//!
//! Owns: nothing but the order in which it comes up and goes. The session, its heartbeat, its commits and its fencing are those of a mount (`writer`).

use std::path::Path;
use std::sync::Arc;

use crate::mounting::MountingError;
use crate::mounting::ending::Deadline;
use crate::mounting::spooling::SpoolPlace;
use crate::mounting::writer::{Writer, Writing};
use crate::repository::Repository;
use crate::root::heartbeat::Standing;
use crate::root::transition::Refusal;
use crate::vfs::special::Owner;
use crate::volume::Volume;

/// Covers no directory, so that no spool can lie below it.
const NO_MOUNT: &str = "/dev/null";

/// A writing session of a command.
pub struct Alone {
    repository: Arc<Repository>,
    /// The volume's name.
    name: String,
    volume: Arc<Volume>,
    writer: Writer,
}

/// Which volume is written, by whom, with what.
pub struct AloneParts {
    /// The repository.
    pub repository: Arc<Repository>,
    /// The volume's name; it is made if it is new.
    pub volume: String,
    /// The command, as others read it who find the volume held.
    pub command: String,
    /// Memory for everything, in bytes.
    pub memory_bytes: u64,
    /// Take the volume over from whoever holds it.
    pub steal: bool,
    /// Go on without what was acknowledged and is in no journal any more.
    pub accept_loss: bool,
}

impl Alone {
    /// Enters the root, takes the volume and carries out what an earlier mount of it had acknowledged.
    pub async fn begin(parts: AloneParts) -> Result<Alone, MountingError> {
        let repository = parts.repository;
        // What goes up is read from where it still is: nothing has to wait on a disk. What a mount has left there is replayed.
        let spool = SpoolPlace::on_this_machine(&repository, 0, Path::new(NO_MOUNT))?;
        let owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            since: repository.machine.clock.now(),
        };
        let holder = repository.machine.holder(&parts.command);
        let writing = Writing {
            repository: repository.clone(),
            volume: parts.volume.clone(),
            memory_bytes: parts.memory_bytes,
            spool,
            is_local: false,
            owner,
            holder,
        };
        // What was found in spools is in the log.
        let (open, _) = writing.enter(parts.steal, parts.accept_loss).await?;
        let (live, writer) = writing.start(open, None, parts.accept_loss).await?;
        match live.volume {
            Some(volume) => Ok(Alone {
                repository,
                name: parts.volume,
                volume,
                writer,
            }),
            None => Err(MountingError::Options("the volume is read-only".into())),
        }
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Why the session can commit nothing more, if somebody has taken the volume over; asks the root.
    pub async fn fenced(&self) -> Option<Refusal> {
        let open = &self.writer.open;
        if let Standing::Fenced(refusal) = &*open.heartbeat().standing().borrow() {
            return Some(refusal.clone());
        }
        // What cannot be asked says nothing.
        let view = self.repository.handle.refresh().await.ok()?;
        let entry = view.root.volumes.get(&self.name)?;
        if entry.holder == Some(open.id()) {
            return None;
        }
        let session = entry.holder.and_then(|by| view.root.sessions.get(&by));
        Some(Refusal::Fenced {
            by: session.map(|session| Box::new(session.holder.clone())),
        })
    }

    /// The last commit, and the end of the session.
    pub async fn finish(self) -> Result<(), MountingError> {
        self.writer.finish(&Deadline::default()).await
    }
}
