//! The encoding of the root, and the invariants that transitions preserve.

use super::support::*;
use crate::root::chain::Chain;
use crate::root::form::{Form, SMALL_BYTES_MAX, SMALL_SESSIONS_MAX};
use crate::root::journal::JournalEntry;
use crate::root::record::{CommitRecord, RecordedSnapshot, Replayed};
use crate::root::refusal::Refusal;
use crate::root::shard::ListRef;
use crate::root::state::*;
use crate::root::transition::*;
use bkfs_chunker::catalog::IndexRef;
use bkfs_chunker::crypto::RepositoryId;
use bkfs_chunker::ingest::Delivered;
use bkfs_chunker::pack::PackName;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// One step of a random history. Indexes are taken modulo the number of existing items.
#[derive(Clone, Debug)]
enum Step {
    Register,
    Claim {
        session: usize,
        volume: usize,
        over: u8,
    },
    Commit {
        session: usize,
        replay: bool,
        right: bool,
    },
    Replay {
        session: usize,
    },
    End {
        session: usize,
    },
    RemoveDead {
        dead: usize,
    },
    List {
        list: u8,
        removed: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Register),
        3 => (0usize..8, 0usize..3, 0u8..3)
            .prop_map(|(session, volume, over)| Step::Claim { session, volume, over }),
        4 => (0usize..8, any::<bool>(), any::<bool>())
            .prop_map(|(session, replay, right)| Step::Commit { session, replay, right }),
        1 => (0usize..8).prop_map(|session| Step::Replay { session }),
        1 => (0usize..8).prop_map(|session| Step::End { session }),
        1 => (0usize..8).prop_map(|dead| Step::RemoveDead { dead }),
        1 => (0u8..3, 0usize..4).prop_map(|(list, removed)| Step::List { list, removed }),
    ]
}

const VOLUMES: [&str; 3] = ["main", "a", "ü ~"];

fn reference(number: u64) -> ListRef {
    ListRef {
        name: PackName {
            session: number,
            sequence: 1,
            random: 2,
        },
        count: 1,
        bytes: number,
    }
}

/// Returns a commit of the session's volume. Its parent is the right one, or one that never
/// existed.
fn commit_of(
    root: &Root,
    session: SessionId,
    number: u64,
    (replay, right): (bool, bool),
) -> CommitChange {
    let volume = root.sessions[&session].volume.clone();
    let volume = volume.unwrap_or("main".into());
    let last = root.volumes.get(&volume);
    let sequence = last.map_or(1, |volume| volume.sequence + 1);
    let parent = match right {
        true => root.volumes.get(&volume).and_then(|volume| volume.commit),
        false => Some(id(u64::MAX)),
    };
    let replayed = match replay {
        true => root.ending_sessions(&volume),
        false => Vec::new(),
    };
    CommitChange {
        session,
        volume,
        parent,
        sequence,
        commit: id(number),
        tree: Some(id(number + 1)),
        building: None,
        covered: number,
        covered_journal: Some(number),
        floor: number as u32,
        next_inode: number,
        inodes: 1,
        bytes: 2,
        new_bytes: 3,
        replayed,
        claimed: Vec::new(),
    }
}

/// Removes the first `removed` shards of a list, and adds one.
fn change_list(next: &mut Root, list: u8, removed: usize, number: u64) -> Result<(), Refusal> {
    let change = |refs: &[ListRef]| ListChange {
        removed: refs.iter().take(removed).copied().collect(),
        added: vec![reference(number)],
    };
    match list {
        0 => next.change_snapshots(&change(&next.snapshots)),
        1 => next.change_trash(&change(&next.trash)),
        _ => next.change_index(&IndexChange {
            absorbed: next.index.iter().take(removed).copied().collect(),
            added: vec![IndexRef {
                name: reference(number).name,
                packs: 1,
                blobs: 2,
                bytes: 3,
            }],
        }),
    }
}

/// Applies one step to a copy. The caller uses the copy only if the step was admitted.
fn play(root: &Root, step: &Step, number: u64) -> Option<(Root, Result<(), Refusal>)> {
    let sessions: Vec<_> = root.sessions.keys().copied().collect();
    let pick = |at: usize| sessions.get(at % sessions.len().max(1)).copied();
    let mut next = root.clone();
    next.follow([2; 16]);
    let result = match *step {
        Step::Register => {
            let registered = next.register(SessionId(number), holder("h"));
            let is_spooling = registered.is_ok() && number.is_multiple_of(2);
            next.note_spool(SessionId(number), is_spooling.then_some(SpoolId(number)));
            registered
        }
        Step::Claim {
            session,
            volume,
            over,
        } => {
            let name = VOLUMES[volume];
            let held = root.volumes.get(name).and_then(|volume| volume.holder);
            let claim = match (over, held) {
                (0, _) | (1, None) => Claim::Free,
                (1, Some(held)) => Claim::Dead(held),
                _ => Claim::Steal,
            };
            next.claim(pick(session)?, name, claim)
        }
        Step::Commit {
            session,
            replay,
            right,
        } => next.commit(&commit_of(root, pick(session)?, number, (replay, right))),
        Step::Replay { session } => {
            let session = pick(session)?;
            let volume = root.sessions[&session].volume.clone()?;
            let ended = root.ending_sessions(&volume);
            next.remove_replayed(session, &volume, &ended, &[])
        }
        Step::End { session } => next.end(pick(session)?),
        Step::RemoveDead { dead } => next.remove_dead(pick(dead)?),
        Step::List { list, removed } => change_list(&mut next, list, removed, number),
    };
    Some((next, result))
}

fn history(steps: &[Step]) -> Root {
    let mut root = Root::witnessed(RepositoryId([7; 16]), [1; 16]);
    for (number, step) in steps.iter().enumerate() {
        if let Some((next, Ok(()))) = play(&root, step, number as u64 + 1) {
            root = next;
        }
    }
    root
}

proptest! {
    #[test]
    fn roots_are_read_back(
        steps in proptest::collection::vec(step(), 0..60),
        form in prop_oneof![Just(Form::Small), Just(Form::Large)]
    ) {
        let root = Root { form, ..history(&steps) };
        let bytes = root.encode().expect("small and consistent");
        prop_assert_eq!(Root::decode_as(form, &bytes).expect("decodes"), root);
    }

    #[test]
    fn arbitrary_roots_do_not_panic(
        bytes: Vec<u8>,
        steps in proptest::collection::vec(step(), 0..30),
        at: usize,
        value: u8,
        cut: usize
    ) {
        let _ = Root::decode(&bytes);
        let _ = Root::decode_as(Form::Large, &bytes);
        let mut damaged = history(&steps).encode().expect("small and consistent");
        let at = at % damaged.len();
        damaged[at] = value;
        let _ = Root::decode(&damaged);
        let cut = cut % damaged.len();
        prop_assert!(Root::decode(&damaged[..cut]).is_err() || at < cut);
    }

    /// Checks the invariants of every history, whichever session makes each step.
    #[test]
    fn transitions_keep_their_promises(steps in proptest::collection::vec(step(), 0..80)) {
        let mut root = Root::witnessed(RepositoryId([7; 16]), [1; 16]);
        let mut gone: BTreeMap<SessionId, bool> = BTreeMap::new();
        for (number, step) in steps.iter().enumerate() {
            let Some((next, result)) = play(&root, step, number as u64 + 1) else { continue };
            if let Err(refusal) = result {
                let mut untouched = root.clone();
                untouched.follow([2; 16]);
                prop_assert_eq!(&next, &untouched, "{} left traces", refusal);
                continue;
            }
            prop_assert!(next.check().is_ok(), "{:?} after {:?}", next.check(), step);
            for (id, session) in &root.sessions {
                match next.sessions.get(id) {
                    Some(after) => {
                        prop_assert!(
                            !(session.state == SessionState::Ending
                                && after.state == SessionState::Live),
                            "{} came back",
                            id
                        );
                        prop_assert!(
                            after.floor >= session.floor && after.covered >= session.covered
                        );
                        prop_assert!(after.volume == session.volume || session.volume.is_none());
                    }
                    None => {
                        // The session ended by itself, or the holder of its volume replayed it, or
                        // it was dead and had no volume.
                        let replayed = matches!(step, Step::Commit { .. } | Step::Replay { .. });
                        prop_assert!(
                            session.state == SessionState::Live || replayed,
                            "{} was dropped unreplayed",
                            id
                        );
                        let leaves =
                            session.state == SessionState::Ending && session.spool.is_some();
                        prop_assert!(
                            next.recovery_base_of(*id).is_some() == leaves,
                            "{} left no recovery base",
                            id
                        );
                        gone.insert(*id, true);
                    }
                }
            }
            prop_assert!(next.sessions.keys().all(|id| !gone.contains_key(id)));
            for (name, volume) in &root.volumes {
                let after = &next.volumes[name];
                let committed = after.sequence - volume.sequence;
                prop_assert!(committed <= 1 && (committed == 1) == (after.commit != volume.commit));
                let right = matches!(step, Step::Commit { right: true, .. })
                    && after.holder == volume.holder
                    && next.ending_sessions(name).is_empty();
                prop_assert!(committed == 0 || right);
                prop_assert!(after.next_inode >= volume.next_inode);
                if let (Some(before), true) = (volume.holder, after.holder != volume.holder) {
                    let left = next
                        .sessions
                        .get(&before)
                        .is_none_or(|session| session.state == SessionState::Ending);
                    prop_assert!(left, "{} was pushed out and is still live", before);
                }
            }
            root = next;
        }
    }

    #[test]
    fn commit_records_are_read_back(
        numbers: (u64, u64, u64, u64),
        parent: Option<[u8; 32]>,
        tree: Option<[u8; 32]>,
        seconds in -1_000_000_000i64..10_000_000_000,
        name: Option<String>,
        text: String,
        snapshot: bool
    ) {
        let record = CommitRecord {
            volume: text.clone(),
            session: SessionId(numbers.0),
            sequence: numbers.1,
            parent: parent.map(bkfs_chunker::id::Id),
            tree: tree.map(bkfs_chunker::id::Id),
            time: time(seconds),
            covered: numbers.2,
            next_inode: numbers.3,
            inodes: numbers.0,
            bytes: numbers.1,
            replayed: snapshot.then(|| vec![Replayed {
                session: SessionId(numbers.1),
                last: numbers.2
            }]),
            snapshot: snapshot.then(|| RecordedSnapshot {
                name,
                host: text.clone(),
                user: text.clone(),
                tags: vec![text]
            }),
            removes: false,
            generation: snapshot.then_some(numbers.3),
        };
        prop_assert_eq!(CommitRecord::decode(&record.encode()).expect("decodes"), record.clone());
        prop_assert_eq!(record.encode(), record.encode());
    }

    #[test]
    fn arbitrary_records_do_not_panic(bytes: Vec<u8>) {
        let _ = CommitRecord::decode(&bytes);
    }

    #[test]
    fn names_follow_their_rules(name in ".{0,300}") {
        let right = !name.is_empty()
            && name.len() <= 255
            && !name.starts_with('.')
            && !name.starts_with('@')
            && !name.contains('/')
            && !name.contains('\0');
        prop_assert_eq!(check_name(&name).is_ok(), right);
    }

    #[test]
    fn new_names_have_nothing_that_a_terminal_obeys(
        name in "[a-z]{1,9}",
        bad in "[\\x00-\\x1f\\x7f-\\u{9f}\\u{202a}-\\u{202e}\\u{2066}-\\u{2069}]",
        at in 0..2_usize
    ) {
        prop_assert!(check_new_name(&name).is_ok());
        let spoiled = if at == 0 { bad + &name } else { name + &bad };
        prop_assert!(check_new_name(&spoiled).is_err());
    }
}

fn claimed() -> Root {
    let mut root = Root::new(RepositoryId([7; 16]), [1; 16]);
    root.register(SessionId(1), holder("a")).expect("first");
    root.claim(SessionId(1), "main", Claim::Free).expect("free");
    root
}

#[test]
fn unknown_fields_are_skipped() {
    let root = claimed();
    let bytes = root.encode().expect("small");
    assert_eq!(bytes[0], 0xac, "a map of 12 fields");
    let mut newer = bytes.clone();
    newer[0] += 1;
    // Field 100: an array that holds a map and a text.
    newer.extend([0x18, 100, 0x82, 0xa1, 0x01, 0x02, 0x61, b'x']);
    assert_eq!(Root::decode(&newer).expect("decodes"), root);
}

#[test]
fn a_root_has_its_largest_size() {
    let mut root = claimed();
    let fits = |root: &Root| match root.encode() {
        Ok(bytes) => {
            assert!(bytes.len() <= SMALL_BYTES_MAX);
            true
        }
        Err(StateError::TooLarge { bytes, .. }) => {
            assert!(bytes > SMALL_BYTES_MAX);
            false
        }
        Err(error) => panic!("{error}"),
    };
    let mut count = 0;
    while fits(&root) {
        root.snapshots.push(reference(count));
        count += 1;
    }
    assert!(count > 1000);
    assert!(matches!(
        Root::decode(&vec![0; SMALL_BYTES_MAX + 1]),
        Err(StateError::TooLarge { .. })
    ));
}

#[test]
fn a_full_complement_of_sessions_fits() {
    let mut root = Root::new(RepositoryId([7; 16]), [1; 16]);
    let long = || "ü".repeat(400);
    let places = SMALL_SESSIONS_MAX + TAKING_SESSIONS_MAX + CLEARING_SESSIONS_MAX;
    for number in 0..places as u64 {
        let holder = HolderInfo {
            host: long(),
            machine_id: long(),
            boot_id: long(),
            pid_namespace: u64::MAX,
            pid: u32::MAX,
            process_start_ticks: u64::MAX,
            user: long(),
            mount_point: long(),
        };
        root.register_within(SessionId(u64::MAX - number), holder, places)
            .expect("room");
        root.claim(
            SessionId(u64::MAX - number),
            &format!("volume-{number}"),
            Claim::Free,
        )
        .expect("free");
    }
    let longest = &root.sessions[&SessionId(u64::MAX)].holder;
    assert_eq!(
        (longest.mount_point.len(), longest.host.len()),
        (MOUNT_POINT_BYTES_MAX - 1, HOLDER_TEXT_BYTES_MAX)
    );
    let recovery_base = |number| RecoveryBase {
        session: SessionId(u64::MAX / 2 - number),
        volume: "volume-63".to_owned(),
        record: Some(id(1)),
        after: Some(id(2)),
        base: Some(u64::MAX),
        spool: Some(SpoolId(u64::MAX)),
        host: Some(root.sessions[&SessionId(u64::MAX)].holder.host.clone()),
    };
    root.recovery_bases = Some((0..RECOVERY_BASES_MAX as u64).map(recovery_base).collect());
    assert!(root.encode().is_ok());
    let refusal = root.register(SessionId(1000), holder("one too many"));
    assert_eq!(refusal, Err(Refusal::Full { what: "sessions" }));
}

#[test]
fn inconsistent_roots_are_refused() {
    let break_it: [fn(&mut Root); 7] = [
        |root| root.sessions.clear(),
        |root| root.volumes.clear(),
        |root| root.volumes.get_mut("main").expect("there").holder = None,
        |root| root.volumes.get_mut("main").expect("there").holder = Some(SessionId(2)),
        |root| root.sessions.get_mut(&SessionId(1)).expect("there").state = SessionState::Ending,
        |root| root.volumes.get_mut("main").expect("there").sequence = 1,
        |root| {
            root.volumes
                .extend([(".hidden".to_owned(), Volume::default())])
        },
    ];
    for (number, break_it) in break_it.iter().enumerate() {
        let mut root = claimed();
        assert!(root.check().is_ok());
        break_it(&mut root);
        assert!(
            matches!(root.encode(), Err(StateError::Inconsistent(_))),
            "{number}"
        );
        let bytes = minicbor::to_vec(&root).expect("encodes");
        assert!(
            matches!(Root::decode(&bytes), Err(StateError::Inconsistent(_))),
            "{number}"
        );
    }
}

#[test]
fn what_was_taken_over_and_set_free_is_not_succeeded() {
    let mut root = claimed();
    root.register(SessionId(2), holder("b")).expect("new");
    let succeed = Claim::Succeed(SessionId(1));
    let mut gone = root.clone();
    gone.volumes.get_mut("main").expect("it is there").holder = None;
    gone.sessions.remove(&SessionId(1));
    assert!(matches!(
        gone.claim(SessionId(2), "main", succeed),
        Err(Refusal::Fenced { .. })
    ));
    root.claim(SessionId(2), "main", succeed).expect("its own");
}

#[test]
fn takeover_is_for_those_it_was_judged_for() {
    let mut root = claimed();
    for session in [2, 3] {
        root.register(SessionId(session), holder("b")).expect("new");
    }
    assert!(matches!(
        root.claim(SessionId(2), "main", Claim::Free),
        Err(Refusal::Held {
            session: SessionId(1),
            ..
        })
    ));
    assert!(matches!(
        root.claim(SessionId(2), "main", Claim::Dead(SessionId(9))),
        Err(Refusal::Held { .. })
    ));
    root.claim(SessionId(2), "main", Claim::Dead(SessionId(1)))
        .expect("judged dead");
    // Another session that had judged the first holder does not displace the second.
    assert!(matches!(
        root.claim(SessionId(3), "main", Claim::Dead(SessionId(1))),
        Err(Refusal::Held {
            session: SessionId(2),
            ..
        })
    ));
    root.generation += 1;
    root.claim(SessionId(3), "main", Claim::Steal)
        .expect("stolen");
    assert_eq!(
        root.ending_sessions("main"),
        [SessionId(1), SessionId(2)],
        "oldest first"
    );
    assert!(
        matches!(
            root.claim(SessionId(3), "other", Claim::Free),
            Err(Refusal::Full { .. })
        ),
        "one volume per session"
    );
    assert!(
        matches!(root.end(SessionId(1)), Err(Refusal::Fenced { by: Some(_) })),
        "it waits to be replayed"
    );
    assert!(
        matches!(root.remove_dead(SessionId(2)), Err(Refusal::Held { .. })),
        "so it is not simply removed"
    );
    assert!(matches!(
        root.claim(SessionId(3), "..", Claim::Free),
        Err(Refusal::BadName { .. })
    ));
}

#[test]
fn a_root_counts_no_further_than_there_is_a_successor() {
    let counting = |count: u64| {
        let mut root = Root::witnessed(RepositoryId([7; 16]), [1; 16]);
        root.generation = count;
        root.chain = Some(Chain::new(count, None));
        root
    };
    let mut last = counting(COUNTER_MAX);
    assert!(last.encode().is_ok());
    last.follow([2; 16]);
    assert!(matches!(last.encode(), Err(StateError::Inconsistent(_))));
    let forged = minicbor::to_vec(counting(u64::MAX)).expect("can be encoded");
    assert!(matches!(
        Root::decode(&forged),
        Err(StateError::Inconsistent(_))
    ));
    let mut root = counting(1);
    root.register(SessionId(1), holder("h")).expect("room");
    let session = root.sessions.get_mut(&SessionId(1)).expect("registered");
    session.covered = u64::MAX;
    let forged = minicbor::to_vec(&root).expect("can be encoded");
    assert!(matches!(
        Root::decode(&forged),
        Err(StateError::Inconsistent(_))
    ));
    let entry = |last| JournalEntry::new(1..=last, Delivered::default(), Vec::new()).encode();
    assert!(JournalEntry::decode(&entry(COUNTER_MAX)).is_ok());
    assert!(JournalEntry::decode(&entry(u64::MAX)).is_err());
}
