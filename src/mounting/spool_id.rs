//! Which spools are of this machine: their place has a number, which sessions state in the root.
//!
//! Owns that number, an empty file `place-NUMBER` next to the spools, and what is known of their
//! sessions. Does not own the spools (the chunker), nor what is made of them (`spooling`).
//!
//! The name of a file is written as a whole or not at all. If two mounts make numbers at the same
//! time, both are this machine's.

use std::collections::BTreeSet;
use std::io;

use bkfs_chunker::entropy::Entropy;

use crate::mounting::spooling::{SpoolPlace, SpoolingError};
use crate::root::state::{Root, Session, SessionId, SessionState, SpoolId};

/// What the name of the file begins with.
const PREFIX: &str = "place-";

/// What lies at the place of this machine's spools.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// The numbers of the place.
    ids: BTreeSet<SpoolId>,
    /// Sessions with a spool, whether it is in use or not.
    sessions: BTreeSet<SessionId>,
}

impl Listed {
    /// Sessions that state in `root`, or left grounds that do, that their spools lie here, and have
    /// none. One that may still commit may make its spool later; one that is ending has made it
    /// before it was fenced, or never acknowledges by it.
    pub(super) fn empty(&self, root: &Root) -> Vec<SessionId> {
        let sessions = root.sessions.iter();
        let is_ending = |session: &Session| session.state == SessionState::Ending;
        let sessions = sessions
            .filter(|(_, session)| is_ending(session))
            .map(|(id, session)| (*id, session.spool));
        let grounds = root.grounds().iter();
        let grounds = grounds.map(|ground| (ground.session, ground.spool));
        let is_empty = |(id, spool): &(SessionId, Option<SpoolId>)| {
            spool.is_some_and(|spool| self.ids.contains(&spool)) && !self.sessions.contains(id)
        };
        let empty = sessions.chain(grounds).filter(is_empty);
        empty.map(|(id, _)| id).collect()
    }
}

impl SpoolPlace {
    /// What lies there now; nothing if there is no such directory.
    pub(super) async fn list(&self) -> Result<Listed, SpoolingError> {
        let listed = match self.disk.list(&self.root).await {
            Ok(listed) => listed,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(self.unusable(error)),
        };
        let mut found = Listed::default();
        for entry in listed {
            match entry.name.strip_prefix(PREFIX) {
                Some(number) => found.ids.extend(parse(number).map(SpoolId)),
                None => found.sessions.extend(parse(&entry.name).map(SessionId)),
            }
        }
        Ok(found)
    }

    /// The number of the place, which is drawn if it has none.
    pub(super) async fn identify(&self, entropy: &dyn Entropy) -> Result<SpoolId, SpoolingError> {
        if let Some(id) = self.list().await?.ids.first() {
            return Ok(*id);
        }
        let mut random = [0; 8];
        entropy.fill(&mut random);
        let id = SpoolId(u64::from_le_bytes(random));
        let path = self.root.join(format!("{PREFIX}{:016x}", id.0));
        let make = async {
            self.disk.make_directory(&self.root).await?;
            self.disk.write_new(&path, &[]).await?;
            self.disk.sync_directory(&self.root).await
        };
        make.await.map_err(|error| self.unusable(error))?;
        Ok(id)
    }

    fn unusable(&self, source: io::Error) -> SpoolingError {
        SpoolingError::Unusable {
            path: self.root.display().to_string(),
            source,
        }
    }
}

/// 16 hexadecimal digits.
fn parse(text: &str) -> Option<u64> {
    let number = u64::from_str_radix(text, 16).ok()?;
    (format!("{number:016x}") == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::state::Ground;
    use bkfs_chunker::entropy::SeededEntropy;
    use bkfs_chunker::seal::RepositoryId;
    use bkfs_chunker::spool::{Disk, SimulatedDisk};
    use std::sync::Arc;

    fn place(disk: &SimulatedDisk) -> SpoolPlace {
        SpoolPlace {
            disk: Arc::new(disk.clone()),
            root: "/spool".into(),
            limit_bytes: 1,
        }
    }

    #[tokio::test]
    async fn a_place_keeps_its_number_through_the_loss_of_power() {
        let disk = SimulatedDisk::new();
        let place = place(&disk);
        let drawn = place.identify(&SeededEntropy::new(1)).await.expect("drawn");
        disk.crash(&SeededEntropy::new(3));
        let again = place.identify(&SeededEntropy::new(2)).await.expect("found");
        assert_eq!(again, drawn);
    }

    #[tokio::test]
    async fn spools_are_known_to_be_empty_where_they_would_lie() {
        let disk = SimulatedDisk::new();
        let place = place(&disk);
        let here = place.identify(&SeededEntropy::new(1)).await.expect("drawn");
        let kept = place.root.join(format!("{:016x}", 2));
        disk.make_directory(&kept).await.expect("made");
        let ground = |session, spool| Ground {
            session: SessionId(session),
            spool: Some(SpoolId(spool)),
            ..Ground::default()
        };
        let mut root = Root::witnessed(RepositoryId([7; 16]), [1; 16]);
        root.grounds = Some(vec![
            ground(1, here.0),
            ground(2, here.0),
            ground(3, here.0 ^ 1),
        ]);
        let listed = place.list().await.expect("listed");
        assert_eq!(listed.empty(&root), [SessionId(1)]);
    }
}
