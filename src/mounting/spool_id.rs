//! The identity of this machine's spool directory: a number, which sessions state in the root.
//!
//! Owns: the number, stored as an empty file `place-NUMBER-MACHINE` next to the spools, and the
//! list of sessions that have a spool there. Does not own: the spools (the chunker), their creation
//! (`spool_place`) and replay (`spooling`).
//!
//! A file name is written as a whole or not at all. If two mounts create numbers at the same time,
//! both numbers belong to this machine. A directory that was copied to another machine, for example
//! with a disk image, holds a number with the MACHINE of the first one. The second machine ignores
//! that number and draws its own. It treats sessions that state the other number as sessions of the
//! other machine. A container that has mounted the directory of its host has a number of its own
//! there, which the host knows to be of this machine. If the directory also has a number of another
//! machine, the container may have been one of that machine.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;

use bkfs_store::entropy::Entropy;

use crate::mounting::error::SpoolingError;
use crate::mounting::spool_place::SpoolPlace;
use crate::root::state::{HolderInfo, Root, Session, SessionId, SessionState, SpoolId};

/// Prefix of the file's name.
const PREFIX: &str = "place-";

/// The contents of this machine's spool directory.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// The numbers that the directory has on this machine.
    own: BTreeSet<SpoolId>,
    /// The numbers that it has in containers of this machine.
    shared: BTreeSet<SpoolId>,
    /// Whether it has a number of another machine, or of this one under another name.
    is_copied: bool,
    /// Sessions that have a spool there, in use or not.
    sessions: BTreeSet<SessionId>,
}

impl Listed {
    /// Returns the sessions that should have a spool here and have none: ending sessions of `root`
    /// that state a number of this directory, and sessions whose recovery bases do.
    ///
    /// A live session may still create its spool, so it is left out. An ending session created its
    /// spool before it was fenced, or it never acknowledges anything by the spool.
    pub(super) fn empty(&self, root: &Root) -> Vec<SessionId> {
        let sessions = root.sessions.iter();
        let is_ending = |session: &Session| session.state == SessionState::Ending;
        let sessions = sessions
            .filter(|(_, session)| is_ending(session))
            .map(|(id, session)| (*id, session.spool));
        let recovery_bases = root.recovery_bases().iter();
        let recovery_bases =
            recovery_bases.map(|recovery_base| (recovery_base.session, recovery_base.spool));
        let is_empty = |(id, spool): &(SessionId, Option<SpoolId>)| {
            spool.is_some_and(|spool| self.is_here(spool)) && !self.sessions.contains(id)
        };
        let empty = sessions.chain(recovery_bases).filter(is_empty);
        empty.map(|(id, _)| id).collect()
    }

    /// Returns false if `session` states a number in `root` that this directory does not have here:
    /// then the directory of its spool is a copy of that of another machine.
    pub(super) fn has(&self, session: SessionId, root: &Root) -> bool {
        let stated = match root.sessions.get(&session) {
            Some(session) => session.spool,
            None => root.recovery_base_of(session).and_then(|base| base.spool),
        };
        stated.is_none_or(|spool| self.is_here(spool))
    }

    fn is_here(&self, spool: SpoolId) -> bool {
        // Containers of a machine and of its clone have the same number.
        self.own.contains(&spool) || (self.shared.contains(&spool) && !self.is_copied)
    }
}

impl SpoolPlace {
    /// Lists the directory, as seen from the machine of `here`; empty if it does not exist.
    ///
    /// # Errors
    /// [`SpoolingError::Unlisted`] if the directory cannot be read.
    pub(super) async fn list(&self, here: &HolderInfo) -> Result<Listed, SpoolingError> {
        let listed = match self.disk.list(&self.root).await {
            Ok(listed) => listed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(self.unlisted(&error)),
        };
        let mut found = Listed::default();
        for entry in listed {
            match entry.name.strip_prefix(PREFIX) {
                Some(stated) => {
                    let own = number_of(stated, here.machine());
                    let shared = number_of(stated, here.containers());
                    let is_number = split(stated).is_some();
                    found.is_copied |= is_number && own.is_none() && shared.is_none();
                    found.own.extend(own);
                    found.shared.extend(shared);
                }
                None => found.sessions.extend(parse(&entry.name).map(SessionId)),
            }
        }
        Ok(found)
    }

    /// Returns the number of the directory on the machine of `here`. Draws a number if there is
    /// none.
    ///
    /// Cancel safety: dropped, it has created the file or not; the next call uses a file that
    /// exists.
    ///
    /// # Errors
    /// [`SpoolingError::Unlisted`] if the directory cannot be read; [`SpoolingError::Unusable`] if
    /// it or the file cannot be made.
    pub(super) async fn identify(
        &self,
        here: &HolderInfo,
        entropy: &dyn Entropy,
    ) -> Result<SpoolId, SpoolingError> {
        if let Some(id) = self.list(here).await?.own.first() {
            return Ok(*id);
        }
        let mut random = [0; 8];
        entropy.fill(&mut random);
        let id = SpoolId(u64::from_le_bytes(random));
        let path = self
            .root
            .join(format!("{PREFIX}{:016x}-{:016x}", id.0, here.machine()));
        let make = async {
            self.disk.make_directory(&self.root).await?;
            self.disk.write_new(&path, &[]).await?;
            self.disk.sync_directory(&self.root).await
        };
        make.await.map_err(|error| self.unusable(error))?;
        Ok(id)
    }

    /// Returns the error for a directory that cannot be listed.
    pub(super) fn unlisted(&self, why: &dyn Display) -> SpoolingError {
        SpoolingError::Unlisted {
            path: self.root.display().to_string(),
            why: why.to_string(),
        }
    }

    fn unusable(&self, source: io::Error) -> SpoolingError {
        SpoolingError::Unusable {
            path: self.root.display().to_string(),
            source,
        }
    }
}

/// Returns the number in `NUMBER-MACHINE`; none if it belongs to another machine.
fn number_of(stated: &str, machine: u64) -> Option<SpoolId> {
    let (number, of) = split(stated)?;
    (of == machine).then_some(number)
}

/// Splits `NUMBER-MACHINE`; none if it is something else.
fn split(stated: &str) -> Option<(SpoolId, u64)> {
    let (number, of) = stated.split_once('-')?;
    Some((SpoolId(parse(number)?), parse(of)?))
}

/// Parses 16 hexadecimal digits.
fn parse(text: &str) -> Option<u64> {
    let number = u64::from_str_radix(text, 16).ok()?;
    (format!("{number:016x}") == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::state::RecoveryBase;
    use bkfs_chunker::crypto::RepositoryId;
    use bkfs_store::disk::Disk;
    use bkfs_testing::disk::SimulatedDisk;
    use bkfs_testing::entropy::SeededEntropy;
    use std::sync::Arc;

    fn place(disk: &SimulatedDisk) -> SpoolPlace {
        SpoolPlace {
            disk: Arc::new(disk.clone()),
            root: "/spool".into(),
            limit_bytes: 1,
        }
    }

    fn machine(id: &str) -> HolderInfo {
        HolderInfo {
            machine_id: id.into(),
            ..HolderInfo::default()
        }
    }

    async fn number(place: &SpoolPlace, id: &str, seed: u64) -> SpoolId {
        let entropy = SeededEntropy::new(seed);
        let number = place.identify(&machine(id), &entropy).await;
        number.expect("drawn or found")
    }

    #[tokio::test]
    async fn a_place_keeps_its_number_through_the_loss_of_power() {
        let disk = SimulatedDisk::new();
        let place = place(&disk);
        let drawn = number(&place, "a", 1).await;
        disk.crash(&SeededEntropy::new(3));
        assert_eq!(number(&place, "a", 2).await, drawn);
    }

    /// The directory of a machine was copied to another one, together with its number.
    #[tokio::test]
    async fn a_copy_of_a_place_has_a_number_of_its_own() {
        let disk = SimulatedDisk::new();
        let place = place(&disk);
        let image = number(&place, "a", 1).await;
        let copy = number(&place, "b", 2).await;
        assert_ne!(copy, image);
        let recovery_base = |session, spool| RecoveryBase {
            session: SessionId(session),
            spool: Some(spool),
            ..RecoveryBase::default()
        };
        let mut root = Root::witnessed(RepositoryId([7; 16]), [1; 16]);
        root.recovery_bases = Some(vec![recovery_base(1, image), recovery_base(2, copy)]);
        for (here, own) in [("a", 1), ("b", 2)] {
            let listed = place.list(&machine(here)).await.expect("listed");
            assert_eq!(listed.empty(&root), [SessionId(own)], "on machine {here}");
        }
        // Copies with the same machine id differ in their host names. In a container only the
        // machine id counts, because the host name changes with each start.
        let named = |host: &str| HolderInfo {
            host: host.into(),
            ..machine("a")
        };
        let in_first = |holder: HolderInfo| HolderInfo {
            pid_namespace: 0xEFFF_FFFC,
            ..holder
        };
        assert_eq!(named("x").machine(), named("y").machine(), "containers");
        assert_ne!(
            in_first(named("x")).machine(),
            in_first(named("y")).machine()
        );
    }

    /// A machine was cloned while a container of it had a number of its own in the directory.
    #[tokio::test]
    async fn a_clone_does_not_speak_for_containers_of_the_original() {
        let disk = SimulatedDisk::new();
        let place = place(&disk);
        let host = |name: &str| HolderInfo {
            host: name.into(),
            pid_namespace: 0xEFFF_FFFC,
            ..machine("a")
        };
        let drawn = async |here: HolderInfo, seed| {
            let entropy = SeededEntropy::new(seed);
            place.identify(&here, &entropy).await.expect("drawn")
        };
        drawn(host("original"), 1).await;
        // A name that bkfs does not make says nothing.
        let strange = place.root.join("place-of-another-program");
        disk.write_new(&strange, &[]).await.expect("written");
        let in_container = drawn(machine("a"), 2).await;
        let mut root = Root::witnessed(RepositoryId([7; 16]), [1; 16]);
        root.recovery_bases = Some(vec![RecoveryBase {
            session: SessionId(1),
            spool: Some(in_container),
            ..RecoveryBase::default()
        }]);
        for (name, own) in [("original", true), ("clone", false)] {
            let listed = place.list(&host(name)).await.expect("listed");
            assert_eq!(listed.has(SessionId(1), &root), own, "{name}");
            assert_eq!(listed.empty(&root).len(), usize::from(own), "{name}");
        }
    }

    #[tokio::test]
    async fn spools_are_known_to_be_empty_where_they_would_lie() {
        let disk = SimulatedDisk::new();
        let place = place(&disk);
        let here = number(&place, "a", 1).await;
        let kept = place.root.join(format!("{:016x}", 2));
        disk.make_directory(&kept).await.expect("made");
        let recovery_base = |session, spool| RecoveryBase {
            session: SessionId(session),
            spool: Some(SpoolId(spool)),
            ..RecoveryBase::default()
        };
        let mut root = Root::witnessed(RepositoryId([7; 16]), [1; 16]);
        root.recovery_bases = Some(vec![
            recovery_base(1, here.0),
            recovery_base(2, here.0),
            recovery_base(3, here.0 ^ 1),
        ]);
        let listed = place.list(&machine("a")).await.expect("listed");
        assert_eq!(listed.empty(&root), [SessionId(1)]);
    }
}
