//! Entering the root, judging holders, and takeover.

use super::support::*;
use crate::root::error::{ErrorKind, RootError};
use crate::root::form::SMALL_SESSIONS_MAX;
use crate::root::handle::Transition;
use crate::root::heartbeat::{Beat, DEAD_AFTER, HEARTBEAT_INTERVAL, Standing, read_beat};
use crate::root::holder::{ProcessState, Processes, SystemProcesses};
use crate::root::padding::LENGTH_MIN;
use crate::root::refusal::Refusal;
use crate::root::request::VolumeRequest;
use crate::root::session::OpenSession;
use crate::root::state::{HolderInfo, Root, SessionId};
use crate::root::transition::TAKING_SESSIONS_MAX;
use bkfs_store::{Store, StoreErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug)]
struct Table(ProcessState);
impl Processes for Table {
    fn state(&self, _: u32) -> ProcessState {
        self.0
    }
}

async fn enter(
    store: &Arc<dyn Store>,
    seed: u64,
    by: HolderInfo,
    steal: bool,
    processes: &dyn Processes,
) -> Result<OpenSession, RootError> {
    let handle = process(store.clone(), seed).await;
    OpenSession::open(
        &handle,
        by,
        Some(VolumeRequest {
            name: "main".into(),
            steal,
            accept_loss: false,
        }),
        processes,
    )
    .await
}

/// Returns a session whose process ended without leaving the root.
async fn crashed(store: &Arc<dyn Store>, by: HolderInfo) -> SessionId {
    let session = enter(store, 1, by, false, &SystemProcesses)
        .await
        .expect("free");
    // The first heartbeat is sent in this time.
    tokio::time::sleep(Duration::from_millis(10)).await;
    session.id()
}

#[tokio::test(start_paused = true)]
async fn a_living_holder_elsewhere_is_left_alone() {
    let store = memory().await;
    let session = enter(&store, 1, holder("a"), false, &SystemProcesses)
        .await
        .expect("free");
    let begun = Instant::now();
    let error = enter(&store, 2, holder("b"), false, &SystemProcesses)
        .await
        .expect_err("held");
    assert_eq!(error.kind(), ErrorKind::Held);
    assert_eq!(error.holder().map(|by| by.host.as_str()), Some("a"));
    let text = format!(
        "{error}\n{}",
        error.hint().expect("there is something to do")
    );
    for word in [
        "main",
        "host a",
        "process 1",
        "at /a",
        "-o ro",
        "-o volume=",
        "--steal",
    ] {
        assert!(text.contains(word), "{word:?} in {text}");
    }
    assert!(
        begun.elapsed() <= HEARTBEAT_INTERVAL + Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    session.end().await.expect("live");
    let session = enter(&store, 3, holder("b"), false, &SystemProcesses)
        .await
        .expect("free by now");
    assert_eq!(
        store
            .list("sessions/", None, 10)
            .await
            .expect("listed")
            .len(),
        0,
        "the heartbeat of the ended one is gone"
    );
    assert!(session.taken_from().is_none());
}

/// Each heartbeat replaces the whole object, and the root will not say it for ever.
#[tokio::test(start_paused = true)]
async fn every_heartbeat_says_whose_it_is() {
    let store = memory().await;
    let handle = process(store.clone(), 9).await;
    let far = HolderInfo {
        mount_point: "/far".repeat(100),
        ..holder("a")
    };
    let writer = enter(&store, 1, far, false, &SystemProcesses);
    let writer = writer.await.expect("free");
    let other = OpenSession::open(&handle, holder("b"), None, &SystemProcesses);
    let other = other.await.expect("room");
    for _ in 0..3 {
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        for session in [writer.id(), other.id()] {
            let beat = read_beat(&handle, session).await;
            let beat = beat.expect("the store answers").expect("it was sent");
            let view = handle.refresh().await.expect("the store answers");
            assert_eq!(
                beat.holder.as_ref(),
                Some(&view.root.sessions[&session].holder)
            );
            let (object, _) = store.get(&session.key()).await.expect("it was sent");
            assert_eq!(object.len(), LENGTH_MIN, "its length tells nothing");
        }
    }
}

/// What says whose a heartbeat is may have another form one day.
#[test]
fn a_strange_holder_costs_no_heartbeat() {
    let mut bytes = Vec::new();
    let mut encoder = minicbor::Encoder::new(&mut bytes);
    let mut write = || {
        let map = encoder.map(3)?.u8(0)?.u64(1000)?.u8(1)?.u64(9)?.u8(2)?;
        map.map(2)?
            .u8(0)?
            .str("host")?
            .u8(9)?
            .array(1)?
            .str("more")?
            .ok()
    };
    let written: Result<(), minicbor::encode::Error<_>> = write();
    written.expect("memory takes it");
    assert_eq!(Beat::decode(&bytes[..9]), None, "it is cut");
    bytes[0] += 1;
    bytes.extend([7, 0x41, 0]);
    let beat = Beat::decode(&bytes).expect("it is a heartbeat, with what fills it up");
    assert_eq!((beat.counter, beat.base, beat.holder), (1000, 9, None));
}

#[test]
fn the_longest_heartbeat_is_as_long_as_the_shortest() {
    let long = "l".repeat(300);
    let longest = HolderInfo {
        host: long.clone(),
        machine_id: long.clone(),
        boot_id: long.clone(),
        pid_namespace: u64::MAX,
        pid: u32::MAX,
        process_start_ticks: u64::MAX,
        user: long.clone(),
        mount_point: long,
    };
    let beat = |counter, holder| Beat {
        counter,
        base: counter,
        holder,
    };
    let beats = [beat(0, None), beat(u64::MAX, Some(longest.cut()))];
    let sealed = beats.each_ref().map(|beat| beat.payload(true));
    assert_eq!(sealed[0].len(), sealed[1].len());
    for (beat, sealed) in beats.iter().zip(sealed) {
        assert_eq!(Beat::decode(&sealed).as_ref(), Some(beat));
        // Without a password there is nothing to hide.
        assert_eq!(beat.payload(false), beat.encode());
    }
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_stands_still_belongs_to_the_dead() {
    let store = memory().await;
    let dead = crashed(&store, holder("a")).await;
    let begun = Instant::now();
    let session = enter(&store, 2, holder("b"), false, &SystemProcesses)
        .await
        .expect("taken over");
    assert!(
        begun.elapsed() >= DEAD_AFTER && begun.elapsed() <= DEAD_AFTER + Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(session.taken_from().map(|by| by.host.as_str()), Some("a"));
    let root = &process(store, 3).await.current().root;
    assert!(
        !root.sessions.contains_key(&dead),
        "nothing was left to replay"
    );
    assert_eq!(root.volumes["main"].holder, Some(session.id()));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_never_beat_is_dead_like_any_other() {
    let store = memory().await;
    let dead = crashed(&store, holder("a")).await;
    store.delete(&dead.key()).await.expect("deleted");
    enter(&store, 2, holder("b"), false, &SystemProcesses)
        .await
        .expect("taken over");
}

#[tokio::test(start_paused = true)]
async fn no_holder_is_judged_while_the_store_is_silent() {
    let store = Faulty::new(memory().await);
    let bucket: Arc<dyn Store> = store.inner.clone();
    let session = enter(&bucket, 1, holder("a"), false, &SystemProcesses)
        .await
        .expect("free");
    let handle = process(store.clone(), 2).await;
    let watching = tokio::spawn(async move {
        let request = VolumeRequest {
            name: "main".into(),
            steal: false,
            accept_loss: false,
        };
        OpenSession::open(&handle, holder("b"), Some(request), &SystemProcesses).await
    });
    // Reads succeed just before and just after an outage that only the observer sees. The holder
    // sends heartbeats throughout.
    tokio::time::sleep(Duration::from_secs(1)).await;
    *store.outage.lock() = Some(StoreErrorKind::Unreachable);
    tokio::time::sleep(Duration::from_secs(45)).await;
    *store.outage.lock() = None;
    assert_eq!(
        watching.await.expect("no panic").expect_err("alive").kind(),
        ErrorKind::Held
    );
    drop(session);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_both_ends_no_session() {
    let store = Faulty::new(memory().await);
    let bucket: Arc<dyn Store> = store.clone();
    let session = enter(&bucket, 1, holder("a"), false, &SystemProcesses)
        .await
        .expect("free");
    let watching = tokio::spawn({
        let bucket = bucket.clone();
        async move { enter(&bucket, 2, holder("b"), false, &SystemProcesses).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    *store.outage.lock() = Some(StoreErrorKind::Unreachable);
    tokio::time::sleep(Duration::from_secs(45)).await;
    *store.outage.lock() = None;
    assert_eq!(
        watching.await.expect("no panic").expect_err("alive").kind(),
        ErrorKind::Held
    );
    drop(session);
}

#[tokio::test(start_paused = true)]
async fn crashed_commands_of_this_machine_are_cleared_away() {
    let store = memory().await;
    let handle = process(store.clone(), 1).await;
    let crashed = OpenSession::open(&handle, holder("a"), None, &SystemProcesses)
        .await
        .expect("entered")
        .id();
    let elsewhere = OpenSession::open(&handle, holder("b"), None, &SystemProcesses)
        .await
        .expect("entered")
        .id();
    let running = Table(ProcessState::Running { start_ticks: 0 });
    let session = enter(&store, 2, holder("a"), false, &running)
        .await
        .expect("free");
    assert!(
        handle
            .refresh()
            .await
            .expect("there")
            .root
            .sessions
            .contains_key(&crashed),
        "it runs"
    );
    session.end().await.expect("live");
    enter(&store, 3, holder("a"), false, &Table(ProcessState::Gone))
        .await
        .expect("free");
    let root = &handle.refresh().await.expect("there").root;
    assert!(!root.sessions.contains_key(&crashed) && root.sessions.contains_key(&elsewhere));
}

/// Such sessions would otherwise hold deletion back for ever, and use up the places for sessions.
#[tokio::test(start_paused = true)]
async fn commands_of_an_earlier_boot_are_cleared_away() {
    let store = memory().await;
    let handle = process(store.clone(), 1).await;
    let of_boot = |boot: &str| HolderInfo {
        machine_id: "0123".to_owned(),
        boot_id: boot.to_owned(),
        pid_namespace: 0xEFFF_FFFC,
        ..holder("a")
    };
    let running = Table(ProcessState::Running { start_ticks: 0 });
    for _ in 0..SMALL_SESSIONS_MAX {
        let crashed = OpenSession::open(&handle, of_boot("1"), None, &running).await;
        crashed.expect("room, and the same boot");
    }
    assert_eq!(handle.current().root.sessions.len(), SMALL_SESSIONS_MAX);
    enter(&store, 2, of_boot("2"), false, &running)
        .await
        .expect("free");
    let root = &handle.refresh().await.expect("there").root;
    assert_eq!(root.sessions.len(), 1);
}

const FULL: ErrorKind = ErrorKind::Refused;

/// Sessions of machines that no program can ask fill the root. Each can be ended all the same.
#[tokio::test(start_paused = true)]
async fn in_a_full_root_a_dead_session_can_be_ended() {
    let store = memory().await;
    let handle = process(store.clone(), 1).await;
    for number in 0..SMALL_SESSIONS_MAX {
        let host = holder(&format!("lost-{number}"));
        let session = OpenSession::open(&handle, host, None, &SystemProcesses).await;
        drop(session.expect("room"));
    }
    let here = || holder("here");
    let full = OpenSession::open(&handle, here(), None, &SystemProcesses).await;
    assert_eq!(full.expect_err("full").kind(), FULL);
    let dead = *handle.current().root.sessions.keys().next().expect("one");
    let by = OpenSession::open_in_place_of(&handle, here(), dead, &SystemProcesses).await;
    by.expect("its place").end().await.expect("live");
    let root = &handle.refresh().await.expect("there").root;
    assert_eq!(root.sessions.len(), SMALL_SESSIONS_MAX - 1);
    assert!(!root.sessions.contains_key(&dead));
}

/// So can a volume be taken from a session of a full root, but no further one be made.
#[tokio::test(start_paused = true)]
async fn in_a_full_root_a_volume_can_be_taken_over() {
    let store = memory().await;
    let handle = process(store.clone(), 1).await;
    let request = |name: String, steal| VolumeRequest {
        name,
        steal,
        accept_loss: false,
    };
    for number in 0..SMALL_SESSIONS_MAX {
        let (host, volume) = (holder(&format!("lost-{number}")), format!("v{number}"));
        let volume = Some(request(volume, false));
        let session = OpenSession::open(&handle, host, volume, &SystemProcesses).await;
        drop(session.expect("room"));
    }
    let here = || holder("here");
    for (volume, steal) in [("new", false), ("new", true)] {
        let volume = Some(request(volume.to_owned(), steal));
        let full = OpenSession::open(&handle, here(), volume, &SystemProcesses).await;
        assert_eq!(full.expect_err("full").kind(), FULL);
    }
    let volume = Some(request("v7".to_owned(), true));
    let taken = OpenSession::open(&handle, here(), volume, &SystemProcesses).await;
    taken.expect("taken over").end().await.expect("live");
    let root = &handle.refresh().await.expect("there").root;
    assert_eq!(root.sessions.len(), SMALL_SESSIONS_MAX - 1);
    assert!(root.volumes["v7"].holder.is_none());
}

/// Fills the root with sessions that no program can ask, to this number.
struct Crowd(usize);

#[async_trait::async_trait]
impl Transition for Crowd {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        None
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        for number in next.sessions.len()..self.0 {
            let id = SessionId((self.0 * 1000 + number) as u64);
            next.register_within(id, holder("lost"), self.0)?;
        }
        Ok(())
    }

    async fn seen(&mut self, root: &Root) -> Result<bool, RootError> {
        Ok(root.sessions.len() == self.0)
    }
}

/// Takeovers may fill the places beyond that. Dead sessions can be ended, and recovery bases given
/// up, even then.
#[tokio::test(start_paused = true)]
async fn an_overfull_root_can_be_cleared() {
    let store = memory().await;
    let handle = process(store.clone(), 1).await;
    let here = || holder("here");
    for count in [SMALL_SESSIONS_MAX + TAKING_SESSIONS_MAX, 80] {
        handle.update(&mut Crowd(count)).await.expect("filled");
        let full = OpenSession::open(&handle, here(), None, &SystemProcesses).await;
        assert_eq!(full.expect_err("full").kind(), FULL);
        let giving_up = OpenSession::open_to_give_up(&handle, here(), &SystemProcesses).await;
        match count {
            80 => assert_eq!(giving_up.expect_err("full").kind(), FULL),
            _ => giving_up.expect("a place").end().await.expect("live"),
        }
        let dead = *handle.current().root.sessions.keys().next().expect("one");
        let by = OpenSession::open_in_place_of(&handle, here(), dead, &SystemProcesses).await;
        by.expect("its place").end().await.expect("live");
        let root = &handle.refresh().await.expect("there").root;
        assert_eq!(root.sessions.len(), count - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn on_one_machine_the_process_decides_at_once() {
    for (state, taken) in [
        (ProcessState::Gone, true),
        (ProcessState::Running { start_ticks: 1 }, true),
        (ProcessState::Running { start_ticks: 0 }, false),
    ] {
        let store = memory().await;
        crashed(&store, holder("a")).await;
        let begun = Instant::now();
        let entered = enter(&store, 2, holder("a"), false, &Table(state)).await;
        assert_eq!(entered.is_ok(), taken, "{state:?}: {entered:?}");
        assert!(begun.elapsed() < Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn stealing_needs_no_consent_and_the_former_holder_learns_of_it() {
    let store = memory().await;
    let ended_session = enter(&store, 1, holder("a"), false, &SystemProcesses)
        .await
        .expect("free");
    let mut standing = ended_session.heartbeat().standing();
    assert!(matches!(*standing.borrow(), Standing::Live { .. }));
    let begun = Instant::now();
    let new_holder = enter(&store, 2, holder("b"), true, &SystemProcesses)
        .await
        .expect("stolen");
    assert!(begun.elapsed() < Duration::from_secs(1));
    standing
        .wait_for(|standing| matches!(standing, Standing::Fenced(Refusal::Fenced { .. })))
        .await
        .expect("told");
    assert!(begun.elapsed() <= HEARTBEAT_INTERVAL + Duration::from_secs(1));
    assert_eq!(
        ended_session.end().await.expect_err("fenced").kind(),
        ErrorKind::Fenced
    );
    new_holder.end().await.expect("live");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_leaves_while_it_is_watched_makes_room() {
    let store = memory().await;
    // The holder was stopped, so its heartbeat stands still, and it ends after 15 s.
    let session = enter(&store, 1, holder("a"), false, &SystemProcesses)
        .await
        .expect("free");
    let handle = process(store.clone(), 7).await;
    let id = session.id();
    drop(session);
    let leaving = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(15)).await;
        handle.update(&mut LeaveNow(id)).await
    });
    let begun = Instant::now();
    let entered = enter(&store, 2, holder("b"), false, &SystemProcesses)
        .await
        .expect("free");
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    assert!(entered.taken_from().is_none());
    leaving.await.expect("no panic").expect("live");
}

struct LeaveNow(SessionId);

#[async_trait::async_trait]
impl crate::root::handle::Transition for LeaveNow {
    type Output = ();
    fn session(&self) -> Option<SessionId> {
        Some(self.0)
    }
    async fn apply(&mut self, next: &mut crate::root::state::Root) -> Result<(), RootError> {
        Ok(next.end(self.0)?)
    }
    async fn seen(&mut self, root: &crate::root::state::Root) -> Result<bool, RootError> {
        Ok(!root.sessions.contains_key(&self.0))
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_new_holders_one_wins() {
    let store = memory().await;
    crashed(&store, holder("a")).await;
    let new_holders: Vec<_> = (2..6u64)
        .map(|seed| {
            let store = store.clone();
            tokio::spawn(async move {
                enter(
                    &store,
                    seed,
                    holder(&format!("h{seed}")),
                    false,
                    &SystemProcesses,
                )
                .await
            })
        })
        .collect();
    let mut won = Vec::new();
    for new_holder in new_holders {
        match new_holder.await.expect("no panic") {
            Ok(session) => won.push(session),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Held, "{error}"),
        }
    }
    assert_eq!(won.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn entering_survives_lost_answers() {
    for fault in [
        Fault::After(StoreErrorKind::OutcomeUnknown),
        Fault::Before(StoreErrorKind::Conflict),
        Fault::Silent,
        Fault::Late,
    ] {
        let store = Faulty::new(memory().await);
        let handle = process(store.clone(), 1).await;
        store.plan([fault.clone()]);
        let request = VolumeRequest {
            name: "main".into(),
            steal: false,
            accept_loss: false,
        };
        let session = OpenSession::open(&handle, holder("a"), Some(request), &SystemProcesses)
            .await
            .expect("entered");
        store.plan([fault]);
        session.end().await.expect("left");
        assert!(store.is_spent());
        assert_eq!(handle.current().root.generation, 3);
        assert!(handle.current().root.sessions.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_of_maintenance_have_no_volume() {
    let store = memory().await;
    let handle = process(store, 1).await;
    let session = OpenSession::open(&handle, holder("a"), None, &SystemProcesses)
        .await
        .expect("entered");
    assert_eq!(session.volume(), None);
    assert_eq!(handle.current().root.sessions[&session.id()].volume, None);
    session.end().await.expect("left");
}
