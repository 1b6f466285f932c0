//! The forms that `src/root/` owns: the root, heartbeats, lists and commit records.

use crate::{fixed, readable};
use bkfs::root::chain::{Chain, NonceEntry, OlderPart};
use bkfs::root::form::Form;
use bkfs::root::heartbeat::Beat;
use bkfs::root::journal::JournalEntry;
use bkfs::root::record::{CommitRecord, RecordedSnapshot, Replayed};
use bkfs::root::shard::{ListRef, decode_shard, encode_shard};
use bkfs::root::snapshots::{Drill, Origin, PackEntry, SnapshotEntry, TrashEntry};
use bkfs::root::state::{
    Condemned, HolderInfo, RecoveryBase, Root, RuleHash, Session, SessionId, SessionState, SpoolId,
    Volume,
};
use bkfs::tree::item::{Extent, Item};
use bkfs::tree::key::Key;
use bkfs::volume::operations::{Content, Operations, Piece};
use bkfs::volume::state::Totals;
use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::crypto::{BOX_OVERHEAD, HEADER_LEN, RepositoryId};
use bkfs_chunker::extent::Target;
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::{Delivered, NamedPack};
use bkfs_chunker::pack::PackName;
use std::collections::BTreeMap;

fn name(sequence: u32) -> PackName {
    PackName {
        session: 0x0123_4567_89ab_cdef,
        sequence,
        random: 0xfeed_beef,
    }
}

fn list(sequence: u32) -> ListRef {
    ListRef {
        name: name(sequence),
        count: 3,
        bytes: 456,
    }
}

fn session(state: SessionState, volume: Option<&str>) -> Session {
    Session {
        state,
        floor: 7,
        volume: volume.map(str::to_owned),
        registered_epoch: 3,
        covered: 11,
        holder: holder(),
        claimed_generation: 5,
        covered_journal: None,
        spool: None,
    }
}

fn holder() -> HolderInfo {
    HolderInfo {
        host: "db1".into(),
        machine_id: "0123456789abcdef0123456789abcdef".into(),
        boot_id: "01234567-89ab-cdef-0123-456789abcdef".into(),
        pid_namespace: 4_026_531_836,
        pid: 4321,
        process_start_ticks: 987_654,
        user: "root".into(),
        mount_point: "/backup".into(),
    }
}

fn root() -> Root {
    let main = Volume {
        tree: Some(Id([0xaa; 32])),
        holder: Some(SessionId(1)),
        sequence: 12,
        commit: Some(Id([0xbb; 32])),
        next_inode: 1000,
        inodes: 34,
        bytes: 1 << 40,
        unsnapshotted_bytes: 56,
        building: None,
    };
    Root {
        repository: RepositoryId(*b"golden repositor"),
        form: Form::Small,
        generation: 1234,
        nonce: [0x5a; 16],
        epoch: 9,
        volumes: BTreeMap::from([("main".into(), main), ("other".into(), Volume::default())]),
        sessions: BTreeMap::from([
            (SessionId(1), session(SessionState::Live, Some("main"))),
            (SessionId(2), session(SessionState::Ending, Some("main"))),
            (SessionId(u64::MAX), session(SessionState::Live, None)),
        ]),
        snapshots: vec![list(1), list(2)],
        trash: vec![list(3)],
        index: vec![IndexRef {
            name: name(4),
            packs: 5,
            blobs: 600,
            bytes: 7000,
        }],
        condemned: vec![Condemned {
            epoch: 8,
            list: list(5),
        }],
        quarantine: vec![list(6)],
        next_snapshot: 77,
        locked_until_s: None,
        chain: None,
        lock_rules: None,
        recovery_bases: None,
        run_groups: None,
    }
}

fn snapshot(tree: Option<Id>) -> SnapshotEntry {
    SnapshotEntry {
        name: "day1".into(),
        number: 76,
        volume: "main".into(),
        tree,
        commit: Id([0xbb; 32]),
        time: "2026-11-20T10:00:00.123456789Z".parse().expect("a time"),
        host: "db1".into(),
        user: "root".into(),
        tags: vec!["daily".into()],
        files: 34,
        bytes: 1 << 40,
        new_bytes: 56,
        generation: 1233,
        recovered: false,
        rebuilt: false,
        drill: None,
        origin: None,
    }
}

#[test]
fn a_root() {
    let frozen = fixed("root.bin", &root().encode().expect("small and consistent"));
    assert_eq!(Root::decode(&frozen).expect("it is a root"), root());
}

#[test]
fn a_large_root() {
    let large = Root {
        form: Form::Large,
        ..root()
    };
    let frozen = readable("root-large.bin", || large.encode().expect("consistent"));
    assert_eq!(Root::decode_as(Form::Large, &frozen), Ok(large));
}

#[test]
fn a_root_that_bears_witness() {
    let mut root = root();
    root.locked_until_s = Some(1_800_000_000);
    root.chain = Some(Chain {
        first: 1232,
        nonces: b"nonce 12nonce 13".to_vec(),
        older: vec![OlderPart {
            first: 1229,
            list: list(7),
        }],
        lost: Some(1200),
    });
    root.lock_rules = Some(vec![RuleHash([0xcc; 16])]);
    root.recovery_bases = Some(vec![RecoveryBase {
        session: SessionId(9),
        volume: "main".into(),
        record: Some(Id([0xdd; 32])),
        ..RecoveryBase::default()
    }]);
    for session in root.sessions.values_mut() {
        session.covered_journal = Some(21);
    }
    let made = root.encode().expect("small and consistent");
    let frozen = fixed("root-witness.bin", &made);
    assert_eq!(Root::decode(&frozen).expect("it is a root"), root);
}

#[test]
fn a_root_with_a_copy_under_way() {
    let mut root = root();
    let main = root.volumes.get_mut("main").expect("there is one");
    main.building = Some(Id([0xee; 32]));
    let made = root.encode().expect("small and consistent");
    let frozen = fixed("root-building.bin", &made);
    assert_eq!(Root::decode(&frozen).expect("it is a root"), root);
}

#[test]
fn a_root_with_spools_of_ended_sessions() {
    let mut root = root();
    root.chain = Some(Chain {
        first: 1232,
        nonces: b"nonce 12nonce 13".to_vec(),
        older: Vec::new(),
        lost: None,
    });
    for session in root.sessions.values_mut() {
        session.spool = Some(SpoolId(0x0123_4567_89ab_cdef));
    }
    let recovery_base = RecoveryBase {
        session: SessionId(9),
        volume: "main".into(),
        record: None,
        after: Some(Id([0xdd; 32])),
        base: Some(6),
        spool: Some(SpoolId(0x0123_4567_89ab_cdef)),
        host: Some("db2".into()),
    };
    root.recovery_bases = Some(vec![recovery_base]);
    let made = root.encode().expect("small and consistent");
    let frozen = fixed("root-spools.bin", &made);
    assert_eq!(Root::decode(&frozen).expect("it is a root"), root);
}

#[test]
fn a_heartbeat() {
    let mut beat = Beat {
        counter: 1000,
        base: 9,
        holder: None,
    };
    assert_eq!(
        Beat::decode(&fixed("heartbeat.bin", &beat.encode())),
        Some(beat.clone())
    );
    beat.holder = Some(holder());
    assert_eq!(
        Beat::decode(&fixed("heartbeat-holder.bin", &beat.encode())),
        Some(beat.clone())
    );
    assert_eq!(
        Beat::decode(&fixed("heartbeat-filled.bin", &beat.payload(true))),
        Some(beat)
    );
}

#[test]
fn lists() {
    let snapshots = vec![snapshot(Some(Id([0xaa; 32]))), snapshot(None)];
    let frozen = fixed("list-snapshots.bin", &encode_shard(snapshots.clone()));
    assert_eq!(decode_shard(&frozen), Ok(snapshots));

    let trash = vec![TrashEntry {
        snapshot: snapshot(None),
        forgotten: "1969-12-31T23:59:59.5Z".parse().expect("a time"),
    }];
    let frozen = fixed("list-trash.bin", &encode_shard(trash.clone()));
    assert_eq!(decode_shard(&frozen), Ok(trash));

    let recovered = vec![SnapshotEntry {
        recovered: true,
        ..snapshot(None)
    }];
    let frozen = fixed("list-recovered.bin", &encode_shard(recovered.clone()));
    assert_eq!(decode_shard(&frozen), Ok(recovered));

    let rebuilt = vec![SnapshotEntry {
        rebuilt: true,
        ..snapshot(None)
    }];
    let frozen = fixed("list-rebuilt.bin", &encode_shard(rebuilt.clone()));
    assert_eq!(decode_shard(&frozen), Ok(rebuilt));

    let drill = Drill {
        time: "2026-11-21T05:30:00Z".parse().expect("a time"),
        is_good: true,
        command: "mariadb-drill".into(),
        seconds: 321,
        read_permille: 456,
        is_of_source: false,
    };
    let drilled = vec![
        SnapshotEntry {
            drill: Some(drill.clone()),
            ..snapshot(None)
        },
        SnapshotEntry {
            drill: Some(Drill {
                is_good: false,
                is_of_source: true,
                ..drill
            }),
            ..snapshot(None)
        },
    ];
    let frozen = fixed("list-drilled.bin", &encode_shard(drilled.clone()));
    assert_eq!(decode_shard(&frozen), Ok(drilled));

    let copied = vec![SnapshotEntry {
        origin: Some(Origin {
            repository: RepositoryId([0x0d; 16]),
            commit: Id([0x0e; 32]),
            generation: 4321,
        }),
        ..snapshot(Some(Id([0xaa; 32])))
    }];
    let frozen = fixed("list-copied.bin", &encode_shard(copied.clone()));
    assert_eq!(decode_shard(&frozen), Ok(copied));

    let nonces = vec![NonceEntry(*b"nonce 10"), NonceEntry(*b"nonce 11")];
    let frozen = fixed("list-nonces.bin", &encode_shard(nonces.clone()));
    assert_eq!(decode_shard(&frozen), Ok(nonces));

    let packs = vec![PackEntry(name(1)), PackEntry(name(2))];
    let frozen = fixed("list-packs.bin", &encode_shard(packs.clone()));
    assert_eq!(decode_shard(&frozen), Ok(packs));
}

#[test]
fn commit_records() {
    let plain = CommitRecord {
        volume: "main".into(),
        session: SessionId(1),
        sequence: 1,
        parent: None,
        tree: None,
        time: "2026-11-20T10:00:00Z".parse().expect("a time"),
        covered: 11,
        next_inode: 1000,
        inodes: 34,
        bytes: 1 << 40,
        snapshot: None,
        replayed: None,
        removes: false,
        generation: None,
    };
    let full = CommitRecord {
        sequence: 2,
        parent: Some(Id([0xbb; 32])),
        tree: Some(Id([0xaa; 32])),
        snapshot: Some(RecordedSnapshot {
            name: Some("day1".into()),
            host: "db1".into(),
            user: "root".into(),
            tags: vec!["daily".into()],
        }),
        ..plain.clone()
    };
    let new_holder = CommitRecord {
        replayed: Some(vec![Replayed {
            session: SessionId(2),
            last: 12,
        }]),
        ..full.clone()
    };
    let removal = CommitRecord {
        removes: true,
        ..full.clone()
    };
    let dated = CommitRecord {
        generation: Some(4711),
        ..full.clone()
    };
    for (name, record) in [
        ("commit-generation.bin", dated),
        ("commit-removal.bin", removal),
        ("commit-plain.bin", plain),
        ("commit-snapshot.bin", full),
        ("commit-replayed.bin", new_holder),
    ] {
        let frozen = fixed(name, &record.encode());
        assert_eq!(CommitRecord::decode(&frozen), Ok(record));
    }
}

#[test]
fn journals() {
    let stored = Extent {
        length: 1 << 20,
        target: Target::Segment(Id([0xcc; 32])),
        target_offset: 4096,
        open: true,
    };
    let piece = |offset, content| Piece {
        inode: 70,
        offset,
        content,
    };
    let operations = Operations {
        dropped: vec![66],
        items: vec![
            (
                Key::xattr(70, b"user.golden"),
                Some(Item::Xattr("value".into())),
            ),
            (Key::name(1, 99, b"gone"), None),
        ],
        contents: vec![
            piece(0, Content::Data("bytes".into())),
            piece(5, Content::Zero(1 << 30)),
            piece(1 << 31, Content::Stored(stored)),
        ],
        next_inode: 71,
        totals: Totals {
            inodes: 3,
            bytes: 1 << 40,
        },
    };
    let packs = Delivered {
        own: vec![NamedPack {
            name: name(5),
            is_metadata: true,
            length: 12_345,
        }],
        relied_on: vec![name(6)],
    };
    let made = JournalEntry::new(8..=8, packs.clone(), operations.encode());
    let frozen = JournalEntry::decode(&fixed("journal.bin", &made.encode())).expect("reads");
    assert_eq!(frozen, made);
    assert_eq!(frozen.packs(), packs);
    let mut based = made;
    based.recovery_base = Some(Id([0xbb; 32]));
    let frozen_too = fixed("journal-ground.bin", &based.encode());
    assert_eq!(JournalEntry::decode(&frozen_too), Ok(based));
    let padded = fixed("journal-padded.bin", &frozen.encode_padded());
    assert_eq!(padded.len(), 1024 - (HEADER_LEN + BOX_OVERHEAD));
    assert_eq!(JournalEntry::decode(&padded).as_ref(), Ok(&frozen));
    let read = Operations::decode(&frozen.operations).expect("reads");
    assert_eq!(read, operations);
}
