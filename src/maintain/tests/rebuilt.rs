//! What a root has that is rebuilt from records.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bkfs_chunker::crypto::RepositoryId;
use bkfs_chunker::id::Id;
use jiff::Timestamp;
use proptest::prelude::*;

use crate::maintain::rebuild::{self, Left, Record, Remains, Taken};
use crate::retain::{Policy, plan};
use crate::root::record::{CommitRecord, RecordedSnapshot, Replayed};
use crate::root::snapshots::{SnapshotEntry, SnapshotList};
use crate::root::state::{Root, SessionId};

fn id(sequence: u64) -> Id {
    Id([sequence as u8; 32])
}

/// Returns the record of a commit with a snapshot. All commits have the same time, as after a
/// clock that had jumped ahead.
fn record(sequence: u64) -> Record {
    let snapshot = RecordedSnapshot {
        name: Some(format!("s{sequence}")),
        host: "h".into(),
        user: "u".into(),
        tags: Vec::new(),
    };
    let record = CommitRecord {
        volume: "main".into(),
        session: SessionId(1),
        sequence,
        parent: (sequence > 1).then(|| id(sequence - 1)),
        tree: Some(id(100)),
        time: Timestamp::UNIX_EPOCH,
        covered: 0,
        next_inode: 16,
        inodes: 1,
        bytes: 1,
        snapshot: Some(snapshot),
        replayed: None,
        removes: false,
        generation: None,
    };
    (id(sequence), record)
}

/// Returns the snapshots of a volume whose commits got `generations`. The list entries for
/// which `is_left` returns true are left, and the others are rebuilt.
fn list(generations: &[u64], is_left: impl Fn(usize) -> bool) -> Vec<SnapshotEntry> {
    let numbers = 1..=generations.len() as u64;
    let records: Vec<Record> = numbers.map(record).collect();
    let history: Vec<&Record> = records.iter().rev().collect();
    let (all, _) = rebuild::snapshots(&history, &[], &HashMap::new(), &mut Taken::default());
    let mut left: Vec<SnapshotEntry> = Vec::new();
    for (at, entry) in all.into_iter().rev().enumerate() {
        if is_left(at) {
            let generation = generations[at];
            left.push(SnapshotEntry {
                generation,
                ..entry
            });
        }
    }
    let known = left.iter().map(|entry| (entry.commit, entry.generation));
    let known: HashMap<Id, u64> = known.collect();
    let mut taken = Taken::default();
    left.iter().for_each(|entry| taken.take(entry));
    let generations = rebuild::generations(&history, &known);
    let (kept, trash) = rebuild::snapshots(&history, &[], &generations, &mut taken);
    assert!(trash.is_empty(), "each has a name of its own");
    left.extend(kept);
    left
}

fn names<'a>(entries: impl IntoIterator<Item = &'a SnapshotEntry>) -> Vec<&'a str> {
    entries.into_iter().map(|entry| &*entry.name).collect()
}

#[test]
fn every_reader_finds_the_newest_whichever_entries_were_lost() {
    let generations = [10, 20, 21, 40, 500];
    let order = ["s1", "s2", "s3", "s4", "s5"];
    for lost in 0_u32..32 {
        let entries = list(&generations, |at| lost & (1 << at) == 0);
        let list = SnapshotList::new(vec![Arc::new(entries.clone())]);
        assert_eq!(names(list.of_volume("main")), order, "{lost:b}");
        let latest = list.latest("main").expect("there are some");
        assert_eq!(latest.name, "s5", "{lost:b}");
        let at = list.at("main", Timestamp::UNIX_EPOCH);
        assert_eq!(at.expect("there are some").name, "s5", "{lost:b}");
        let policy = Policy {
            tags: vec!["none".into()],
            ..Policy::default()
        };
        let planned = plan(&entries, &policy, Timestamp::MAX);
        let sorted = planned.iter().map(|verdict| verdict.snapshot);
        assert_eq!(names(sorted), order, "{lost:b}");
        // A snapshot that is made after the repair follows them all.
        assert!(entries.iter().all(|entry| entry.generation <= 500));
    }
}

/// Returns the record of a commit of `volume`, with a snapshot, by one of two hosts in turn.
fn record_of(volume: u8, sequence: u64) -> Record {
    let id = |sequence: u64| Id([volume * 100 + sequence as u8; 32]);
    let (_, mut record) = record(sequence);
    record.volume = format!("v{volume}");
    record.time = Timestamp::from_second(sequence as i64).expect("early in 1970");
    record.parent = (sequence > 1).then(|| id(sequence - 1));
    if let Some(snapshot) = &mut record.snapshot {
        snapshot.host = ["even", "odd"][sequence as usize % 2].into();
        // The first two have the same name: the older one was forgotten.
        snapshot.name = Some(format!("s{}", sequence.max(2)));
    }
    (id(sequence), record)
}

/// Returns the root that is rebuilt of these records, with the last one of each volume.
fn rebuilt(records: &[Record]) -> Root {
    rebuilt_with(records, &BTreeSet::new())
}

/// As [`rebuilt`], with sessions that left journals.
fn rebuilt_with(records: &[Record], journals: &BTreeSet<Left>) -> Root {
    let tips = rebuild::candidates(records).into_iter();
    let tips = tips.map(|(volume, records)| (volume.to_owned(), records[0].0));
    rebuild::root(&Remains {
        repository: RepositoryId([1; 16]),
        nonce: [2; 16],
        records,
        tips: &tips.collect(),
        journals,
        epoch: 1,
        seen: 0,
    })
}

#[test]
fn the_last_commit_may_not_have_carried_out_what_it_says() {
    let mut records: Vec<Record> = (1..=3).map(record).collect();
    for (_, record) in &mut records[1..] {
        record.session = SessionId(2);
    }
    records[0].1.covered = 3;
    records[1].1.replayed = Some(vec![Replayed {
        session: SessionId(1),
        last: 10,
    }]);
    let journals = BTreeSet::from([("v1".to_owned(), SessionId(1))]);
    for (_, record) in &mut records {
        record.volume = "v1".into();
    }
    // A successor may have acknowledged operations after the tenth, if the second commit is none.
    let last_known = &records[..2];
    assert!(rebuild::finished(last_known, id(2)).is_empty());
    let root = rebuilt_with(last_known, &journals);
    assert_eq!(root.sessions[&SessionId(1)].covered, 10);
    // The third one has the second one as its parent, so that was made.
    assert!(rebuild::finished(&records, id(3)).contains(&SessionId(1)));
}

#[test]
fn a_repository_can_be_rebuilt_again_and_again() {
    let mut generation = 1;
    for round in 0..40 {
        let records: Vec<Record> = (0..50)
            .map(|volume| {
                let (_, mut record) = record(1);
                record.volume = format!("v{volume}");
                record.sequence = generation + u64::from(volume);
                (Id([volume; 32]), record)
            })
            .collect();
        let root = rebuilt(&records);
        assert!(root.generation > generation + 50, "round {round}");
        root.encode().expect("it can be written");
        generation = root.generation;
    }
}

#[test]
fn a_rebuilt_root_is_above_each_record() {
    // A volume that was removed, and a later one that an older program made.
    let mut former = record_of(1, 2).1;
    (former.sequence, former.removes) = (2_000_000, true);
    former.parent = None;
    let root = rebuilt(&[(Id([7; 32]), former), record_of(1, 1)]);
    assert_eq!(root.volumes["v1"].sequence, 1);
    assert!(root.generation > 2_000_000);
}

#[test]
fn the_newest_of_each_volume_and_host_is_kept_whatever_was_lost() {
    // The commits of both volumes alternate, with many others between them.
    let generation = |volume: u8, sequence: u64| 40 * sequence + 7 * u64::from(volume);
    for lost in 0_u32..64 {
        let (mut kept, mut trash) = (Vec::new(), Vec::new());
        let mut taken = Taken::default();
        for volume in [1, 2] {
            let records: Vec<Record> = (1..=6).map(|at| record_of(volume, at)).collect();
            let history: Vec<&Record> = records.iter().rev().collect();
            let left = records
                .iter()
                .filter(|(_, record)| lost & 1 << (record.sequence - 1) == 0);
            let known: HashMap<Id, u64> = left
                .map(|(id, record)| (*id, generation(volume, record.sequence)))
                .collect();
            let generations = rebuild::generations(&history, &known);
            let (found, gone) = rebuild::snapshots(&history, &[], &generations, &mut taken);
            kept.extend(found);
            trash.extend(gone);
        }
        let policy = Policy {
            last: 1,
            ..Policy::default()
        };
        let stays = plan(&kept, &policy, Timestamp::MAX)
            .into_iter()
            .filter(|verdict| verdict.stays());
        let stays: Vec<(&str, &str)> = stays
            .map(|verdict| (&*verdict.snapshot.volume, &*verdict.snapshot.name))
            .collect();
        let expected = [("v1", "s6"), ("v1", "s5"), ("v2", "s6"), ("v2", "s5")];
        assert_eq!(stays, expected, "{lost:b}");
        let list = SnapshotList::new(vec![Arc::new(kept.clone())]);
        for volume in ["v1", "v2"] {
            assert_eq!(
                names(list.of_volume(volume)),
                ["s2", "s3", "s4", "s5", "s6"]
            );
            assert_eq!(list.latest(volume).expect("there are some").name, "s6");
        }
        // Of two snapshots with one name, the older one is in the trash.
        for gone in &trash {
            let kept = list.named(&gone.snapshot.volume, &gone.snapshot.name);
            let kept = kept.expect("the newer one is kept");
            assert!(gone.snapshot.generation < kept.generation, "{lost:b}");
        }
        assert_eq!(trash.len(), 2);
    }
}

proptest! {
    #[test]
    fn rebuilt_generations_keep_the_order(
        steps in proptest::collection::vec((1u64..1000, any::<bool>()), 1..60)
    ) {
        let mut generation = 0;
        let generations: Vec<u64> = steps
            .iter()
            .map(|(step, _)| { generation += step; generation })
            .collect();
        let mut entries = list(&generations, |at| steps[at].1);
        entries.sort_by_key(|entry| entry.commit);
        prop_assert!(
            entries.is_sorted_by(|before, after| before.generation < after.generation)
        );
        prop_assert!(
            entries.iter().zip(&generations).all(|(entry, real)| entry.generation <= *real)
        );
    }
}
