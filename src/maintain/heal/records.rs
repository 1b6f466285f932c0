//! Commit records that are made anew in place of lost ones.
//!
//! Owns what such a record says. No other repository has the commit records of this one, so the
//! lists and the root say it. Does not own how the records become live ([`super::publish`]).

use bkfs_chunker::id::{Id, Kind};

use super::walk::Healer;
use crate::maintain::check::Findings;
use crate::root::error::RootError;
use crate::root::record::{CommitRecord, RecordedSnapshot};
use crate::root::snapshots::SnapshotEntry;
use crate::root::state::{SessionId, Volume};

/// Makes anew the commit records that snapshots and volumes name and no pack holds.
///
/// # Errors
/// [`RootError::Store`] or [`RootError::Content`] if a record cannot be stored.
pub(super) async fn replace_lost(
    healer: &mut Healer<'_>,
    findings: &Findings,
) -> Result<(), RootError> {
    let Some(handle) = &findings.handle else {
        return Ok(());
    };
    let trash = findings.listed.trash.iter().map(|entry| &entry.snapshot);
    let snapshots: Vec<&SnapshotEntry> = findings.listed.snapshots.iter().chain(trash).collect();
    let root = handle.current().root.clone();
    for (name, volume) in &root.volumes {
        // The holder of a volume makes another record with its next commit.
        let commit = volume.commit.filter(|_| volume.holder.is_none());
        if commit.is_some_and(|commit| healer.wants(&commit)) {
            let of = (name.as_str(), volume);
            healer
                .record_of_volume(of, root.generation, &snapshots)
                .await?;
        }
    }
    for entry in snapshots {
        if healer.wants(&entry.commit) {
            healer.record_of_snapshot(entry).await?;
        }
    }
    Ok(())
}

impl Healer<'_> {
    /// Makes a record for a snapshot whose own is lost, outside the volume's chain of commits.
    async fn record_of_snapshot(&mut self, entry: &SnapshotEntry) -> Result<(), RootError> {
        let publisher = self.publisher();
        let record = CommitRecord {
            volume: entry.volume.clone(),
            session: publisher.session(),
            sequence: 0,
            parent: None,
            tree: entry.tree,
            time: entry.time,
            covered: 0,
            next_inode: 0,
            inodes: entry.files,
            bytes: entry.bytes,
            snapshot: Some(recorded(entry)),
            replayed: None,
            removes: false,
            generation: None,
        };
        let made = publisher.store_record(&record).await?;
        publisher.replace_in_snapshots(entry.commit, made);
        self.replaced(&entry.commit);
        Ok(())
    }

    /// Makes a record for the last commit of a volume without a holder, if its own is lost, and for
    /// the snapshot that was made with it. Its parent is the newest earlier commit of a snapshot
    /// whose record can still be read.
    async fn record_of_volume(
        &mut self,
        (name, volume): (&str, &Volume),
        generation: u64,
        snapshots: &[&SnapshotEntry],
    ) -> Result<(), RootError> {
        let Some(lost) = volume.commit else {
            return Ok(());
        };
        let content_store = self.content_store();
        let mut parent: Option<(u64, Id)> = None;
        let mut time = jiff::Timestamp::UNIX_EPOCH;
        let mut own = None;
        for entry in snapshots
            .iter()
            .copied()
            .filter(|entry| entry.volume == name)
        {
            time = time.max(entry.time);
            if entry.commit == lost {
                own = Some(entry);
                continue;
            }
            let Ok(bytes) = content_store.read_blob(Kind::Commit, entry.commit).await else {
                continue;
            };
            let Ok(record) = CommitRecord::decode(&bytes) else {
                continue;
            };
            let is_before = !record.is_snapshot_only() && record.sequence < volume.sequence;
            if is_before && parent.is_none_or(|(sequence, _)| sequence < record.sequence) {
                parent = Some((record.sequence, entry.commit));
            }
        }
        let publisher = self.publisher();
        let record = CommitRecord {
            parent: parent.map(|(_, id)| id),
            time,
            snapshot: own.map(recorded),
            ..record_of(name, volume, generation, publisher.session())
        };
        let made = publisher.store_record(&record).await?;
        if own.is_some() {
            publisher.replace_in_snapshots(lost, made);
        }
        publisher.replace_in_volume(name, lost, made);
        self.replaced(&lost);
        Ok(())
    }
}

/// Returns the record of a volume's last commit, as a root of this generation tells it, made by
/// `session`.
fn record_of(name: &str, volume: &Volume, generation: u64, session: SessionId) -> CommitRecord {
    CommitRecord {
        volume: name.to_owned(),
        session,
        sequence: volume.sequence,
        parent: None,
        tree: volume.tree,
        time: jiff::Timestamp::UNIX_EPOCH,
        covered: 0,
        next_inode: volume.next_inode,
        inodes: volume.inodes,
        bytes: volume.bytes,
        snapshot: None,
        replayed: None,
        removes: false,
        generation: Some(generation),
    }
}

fn recorded(entry: &SnapshotEntry) -> RecordedSnapshot {
    RecordedSnapshot {
        name: Some(entry.name.clone()),
        host: entry.host.clone(),
        user: entry.user.clone(),
        tags: entry.tags.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintain::rebuild::candidates;

    /// The last commit of a former holder, which was never made, may still be in the bucket.
    #[test]
    fn a_healed_record_comes_before_those_of_former_holders() {
        let volume = Volume {
            tree: None,
            holder: None,
            sequence: 7,
            commit: None,
            next_inode: 16,
            inodes: 1,
            bytes: 0,
            unsnapshotted_bytes: 0,
            building: None,
        };
        let healed = record_of("main", &volume, 40, SessionId(3));
        let unmade = CommitRecord {
            session: SessionId(1),
            time: jiff::Timestamp::MAX,
            generation: Some(20),
            ..healed.clone()
        };
        let records = [(Id([1; 32]), unmade), (Id([2; 32]), healed)];
        assert_eq!(candidates(&records)["main"][0].0, Id([2; 32]));
    }
}
