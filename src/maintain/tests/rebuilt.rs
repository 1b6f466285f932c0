//! What a root has that is rebuilt from records.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bkfs_chunker::crypto::RepositoryId;
use bkfs_chunker::id::Id;
use jiff::Timestamp;
use proptest::prelude::*;

use crate::maintain::rebuild::{self, Left, Record, Remains, Taken};
use crate::retain::{Policy, plan};
use crate::root::form::{Form, SMALL_BYTES_MAX, SMALL_SESSIONS_MAX};
use crate::root::record::{CommitRecord, RecordedSnapshot, Replayed};
use crate::root::snapshots::{SnapshotEntry, SnapshotList};
use crate::root::state::{Root, SessionId};
use crate::root::transition::TAKING_SESSIONS_MAX;

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
    let (all, _) = rebuild::snapshots(&history, &[], &HashMap::new(), &mut Taken::new(None));
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
    let mut taken = Taken::new(None);
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
    rebuilt_for(records, journals, false)
}

/// As [`rebuilt_with`], for snapshots that may share numbers.
fn rebuilt_for(records: &[Record], journals: &BTreeSet<Left>, shares_numbers: bool) -> Root {
    let tips = rebuild::candidates(records).into_iter();
    let tips = tips.map(|(volume, records)| (volume.to_owned(), records[0].0));
    let (root, _) = rebuild::root(&Remains {
        repository: RepositoryId([1; 16]),
        nonce: [2; 16],
        records,
        tips: &tips.collect(),
        journals,
        epoch: 1,
        seen: 0,
        shares_numbers,
    });
    root
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
    let journals_of = |session| BTreeSet::from([SessionId(session)]);
    assert!(rebuild::finished(last_known, id(2), &journals_of(1)).is_empty());
    let root = rebuilt_with(last_known, &journals);
    assert_eq!(root.sessions[&SessionId(1)].covered, 10);
    // The third one has the second one as its parent, so that was made.
    let finished = rebuild::finished(&records, id(3), &journals_of(1));
    assert!(finished.contains(&SessionId(1)));
    // A session leaves journals only after its first commit.
    let finished = rebuild::finished(last_known, id(2), &journals_of(2));
    assert!(finished.contains(&SessionId(1)));
}

/// A session must be able to enter it, to carry out what the others left.
#[test]
fn a_root_that_is_too_small_for_its_sessions_becomes_a_large_one() {
    let records: Vec<Record> = (1..=70)
        .map(|of| {
            let (_, mut record) = record(1);
            record.volume = format!("v{of}");
            (Id([of; 32]), record)
        })
        .collect();
    let left = |count: u8| {
        let sessions = (1..=count).map(|of| (format!("v{of}"), SessionId(u64::from(of))));
        rebuilt_with(&records, &sessions.collect())
    };
    let most = (SMALL_SESSIONS_MAX + TAKING_SESSIONS_MAX) as u8;
    for (count, is_large) in [(0, false), (most - 1, false), (most, true), (70, true)] {
        let mut root = left(count);
        assert_eq!(root.sessions.len(), usize::from(count));
        assert_eq!(root.form == Form::Large, is_large, "{count}");
        assert!(!rebuild::enlarge(&mut root), "it has room now");
        let payload = root.encode().expect("it can be written");
        assert_eq!(Root::decode_as(root.form, &payload), Ok(root));
    }
    let mut full = left(0);
    while full.room().expect("it fits") > 1024 {
        let name = format!("{:0200}", full.volumes.len());
        let like = full.volumes["v1"].clone();
        full.volumes.insert(name, like);
    }
    assert!(rebuild::enlarge(&mut full));
}

/// Returns the snapshot of this number of a volume.
fn numbered(volume: &str, number: u16) -> SnapshotEntry {
    SnapshotEntry {
        number,
        commit: Id(*blake3::hash(format!("{volume} {number}").as_bytes()).as_bytes()),
        ..SnapshotEntry::plain(volume, &format!("s{number}"))
    }
}

#[test]
fn only_large_roots_list_two_snapshots_of_one_number() {
    let one: Vec<SnapshotEntry> = (1..u16::MAX)
        .map(|number| numbered("one", number))
        .collect();
    let two = [numbered("two", 1), numbered("two", 1234)];
    for (form, numbers) in [
        (Some(Form::Small), [Some(u16::MAX), None, None]),
        (Some(Form::Large), [Some(1), Some(1234), Some(2)]),
        (None, [Some(u16::MAX), Some(1234), Some(1)]),
    ] {
        let listing = form.map(|form| Root {
            form,
            ..rebuilt(&[record(1)])
        });
        let mut taken = Taken::new(listing.as_ref());
        one.iter().for_each(|entry| taken.take(entry));
        assert!(!taken.shares_numbers());
        let new = SnapshotEntry {
            commit: Id([9; 32]),
            ..numbered("two", 0)
        };
        let joining = two.clone().into_iter().chain([new]);
        let joined: Vec<Option<u16>> = joining
            .map(|entry| taken.admit(entry).map(|(entry, _)| entry.number))
            .collect();
        assert_eq!(joined, numbers, "{form:?}");
        assert_eq!(taken.shares_numbers(), form != Some(Form::Small));
    }
}

#[test]
fn snapshots_that_are_known_keep_their_numbers() {
    let mut taken = Taken::new(None);
    let known = [numbered("one", 1), numbered("one", u16::MAX)];
    taken.spare(&known);
    let new = SnapshotEntry {
        number: 0,
        ..numbered("one", 5)
    };
    let (new, _) = taken.admit(new).expect("one is free");
    assert_eq!(new.number, 2);
    for entry in known {
        let (kept, _) = taken.admit(entry.clone()).expect("its own is free");
        assert_eq!(kept.number, entry.number);
    }
    // All numbers of another volume are known, in a large root.
    let large = Root {
        form: Form::Large,
        ..rebuilt(&[record(1)])
    };
    let mut taken = Taken::new(Some(&large));
    let known: Vec<SnapshotEntry> = (2..=u16::MAX).map(|of| numbered("two", of)).collect();
    taken.spare(&known);
    taken.spare(&[numbered("one", 1)]);
    let new = SnapshotEntry {
        number: 0,
        ..numbered("one", 5)
    };
    let (new, _) = taken.admit(new).expect("one is free");
    assert_eq!(new.number, 2);
}

#[test]
fn a_root_whose_snapshots_share_numbers_is_rebuilt_as_a_large_one() {
    for shares_numbers in [false, true] {
        let root = rebuilt_for(&[record(1)], &BTreeSet::new(), shares_numbers);
        assert_eq!(root.form == Form::Large, shares_numbers);
    }
}

/// Returns the records of five commits, and of the removal of the volume after them, which need not
/// have been made. Each session knew the root of ten generations later than the one before.
fn removed_records() -> Vec<Record> {
    let mut records: Vec<Record> = (1..=6).map(record).collect();
    for (_, record) in &mut records {
        record.session = SessionId(record.sequence);
        record.generation = Some(10 * record.sequence);
        record.time = Timestamp::from_second(record.sequence as i64).expect("early in 1970");
    }
    records[5].1.removes = true;
    records
}

#[test]
fn a_commit_that_was_never_made_is_not_later_than_a_removal() {
    let best = |records: &[Record]| rebuild::candidates(records)["main"][0].0;
    for is_older_program in [false, true] {
        let mut records = removed_records();
        let (mut never_made, mut later) = (records[2].1.clone(), records[5].1.clone());
        (later.sequence, later.parent, later.removes) = (7, Some(id(5)), false);
        later.generation = Some(70);
        later.time = Timestamp::from_second(7).expect("early in 1970");
        if is_older_program {
            (never_made.generation, later.generation) = (None, None);
        }
        records.push((id(50), never_made));
        assert_eq!(best(&records), id(6));
        // The chain of the removal ends here, so what is before is in no history.
        records.retain(|(_, record)| record.sequence != 4);
        assert_eq!(best(&records), id(6));
        // The removal was not made: a holder went on.
        records.push((id(51), later));
        assert_eq!(best(&records), id(51));
    }
}

#[test]
fn a_session_of_the_present_volume_is_not_finished_by_a_removal() {
    let mut records = removed_records();
    let mut later = records[4].1.clone();
    (later.sequence, later.parent) = (7, Some(id(60)));
    // The commits between are lost, so nothing joins the chain to the removal.
    records.push((id(61), later.clone()));
    let journals = BTreeSet::from([SessionId(5)]);
    assert!(rebuild::finished(&records, id(61), &journals).is_empty());
    // A volume that began anew, with a commit of a session that the removal had not seen.
    (later.parent, later.session) = (None, SessionId(7));
    records.push((id(62), later.clone()));
    let finished = rebuild::finished(&records, id(62), &journals);
    assert!(finished.contains(&SessionId(5)));
    later.session = SessionId(5);
    records.push((id(63), later));
    let finished = rebuild::finished(&records, id(63), &journals);
    assert!(!finished.contains(&SessionId(5)) && finished.contains(&SessionId(4)));
}

/// Returns the record of the only commit of a volume of its own.
fn only_record(volume: String, number: u16) -> Record {
    let (_, mut record) = record(1);
    (record.volume, record.snapshot) = (volume, None);
    record.time = Timestamp::from_second(number.into()).expect("early in 1970");
    let mut id = [9; 32];
    id[..2].copy_from_slice(&number.to_le_bytes());
    (Id(id), record)
}

#[test]
fn no_scratch_clone_comes_back() {
    let clone = |number: u16| only_record(format!("scratch~{number:016x}"), number);
    let mut records: Vec<Record> = (0..2000).map(clone).collect();
    records.push(record(1));
    let root = rebuilt(&records);
    assert_eq!(root.volumes.keys().collect::<Vec<_>>(), ["main"]);
    root.encode().expect("it can be written");
}

#[test]
fn removed_volumes_leave_room_in_a_rebuilt_root() {
    let clone = |number: u16| only_record(format!("clone-of-last-night-{number}"), number);
    let mut records: Vec<Record> = (0..2000).map(clone).collect();
    for (_, record) in &mut records {
        record.removes = true;
    }
    // This one is older, and was not removed.
    records.push(record(1));
    let root = rebuilt(&records);
    assert!(root.encode().expect("it can be written").len() <= SMALL_BYTES_MAX / 2);
    assert!(root.volumes.contains_key("main") && root.volumes.len() > 100);
    assert!(root.volumes.contains_key("clone-of-last-night-1999"));
    assert!(!root.volumes.contains_key("clone-of-last-night-0"));
    // The removal of the oldest was perhaps never made: a session of it left journals.
    let left = ("clone-of-last-night-0".to_owned(), SessionId(77));
    let root = rebuilt_with(&records, &BTreeSet::from([left]));
    assert!(root.volumes.contains_key("clone-of-last-night-0"));
    assert!(root.sessions.contains_key(&SessionId(77)));
}

/// What was acknowledged weighs more than the form that earlier programs read.
#[test]
fn a_removed_volume_with_journals_is_left_out_of_no_root_that_can_be_larger() {
    let mut records: Vec<Record> = (0..400)
        .map(|number| only_record(format!("living-{number}"), number))
        .collect();
    let mut removed = only_record("removed".to_owned(), 500);
    removed.1.removes = true;
    records.push(removed);
    let root = rebuilt(&records);
    assert_eq!(root.form, Form::Small);
    assert!(!root.volumes.contains_key("removed"), "it has no room");
    let left = ("removed".to_owned(), SessionId(77));
    let root = rebuilt_with(&records, &BTreeSet::from([left]));
    assert_eq!(root.form, Form::Large);
    assert!(root.volumes.contains_key("removed"));
    assert!(root.sessions.contains_key(&SessionId(77)));
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
    former.time = Timestamp::UNIX_EPOCH;
    former.parent = None;
    let root = rebuilt(&[(Id([7; 32]), former), record_of(1, 1)]);
    assert_eq!(root.volumes["v1"].sequence, 1);
    assert!(root.generation > 2_000_000);
    // Most replacements of the lost root were no commits.
    let mut last = record_of(1, 1);
    last.1.generation = Some(5_000_000);
    assert!(rebuilt(&[last]).generation > 5_000_000);
}

#[test]
fn the_newest_of_each_volume_and_host_is_kept_whatever_was_lost() {
    // The commits of both volumes alternate, with many others between them.
    let generation = |volume: u8, sequence: u64| 40 * sequence + 7 * u64::from(volume);
    for lost in 0_u32..64 {
        let (mut kept, mut trash) = (Vec::new(), Vec::new());
        let mut taken = Taken::new(None);
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
