//! Traces: what a clone records serves the next one, and no trace changes an answer or keeps a
//! mount from its work.

use std::sync::Arc;

use bkfs::mounting::trace_store::{remove, save};
use bkfs::root::session::OpenSession;
use bkfs::trace::format::{PAGE_BYTES, Touch, Trace};
use bkfs::trace::stored::{Stored, StoredError, load};
use bkfs::volume::namespace::NewInode;
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::fault::{Fault, Gate, Strike};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::clones::{require_whole, root, with};
use crate::host::new_file;
use crate::paused::{Mount, World, paused, seconds, snapshot};
use crate::scratch::cloning;

const MIB: usize = 1 << 20;

/// Length of the files that are read, in bytes.
const LENGTH: usize = 12 * MIB;

/// Returns bytes that no compressor makes shorter.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Returns a world whose volume `main` has a snapshot `one` of two large files.
async fn world() -> World {
    let world = World::new(seconds(60)).await;
    let mount = world.mount().await;
    mount.put("one.ibd", &noise(1, LENGTH)).await;
    mount.put("two.ibd", &noise(2, LENGTH)).await;
    snapshot(&mount, "one").await;
    mount.0.finish().await.expect("ended");
    world
}

/// Returns a clone of snapshot `one` on a machine with empty caches, and the machine.
pub async fn clone(world: &World, number: u32, trace: Option<&str>) -> (World, Mount) {
    let mut machine = cloning(world, &format!("scratch~{number}"));
    machine.settings.trace = trace.map(str::to_owned);
    let mount = machine.try_assemble(false).await.expect("mounted");
    (machine, Mount(mount))
}

pub async fn ask(mount: &Mount, request: Value) -> Value {
    let answer = mount
        .0
        .vfs
        .control()
        .handle(Bytes::from(request.to_string()));
    serde_json::from_str(&answer.await).expect("JSON")
}

pub fn status(mount: &Mount) -> Value {
    serde_json::from_str(&mount.0.vfs.control().status()).expect("JSON")
}

/// Returns what a mount tells of its replay once that is over.
async fn replayed(mount: &Mount) -> Value {
    for _ in 0..10_000 {
        let told = status(mount)["trace"]["replay"].clone();
        if told.is_null() || told["phase"] == "done" || told["phase"] == "failed" {
            return told;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("the replay does not end: {}", status(mount)["trace"]);
}

/// Reads places of both files in an order that no read-ahead guesses. Compares the answers.
async fn read_places(mount: &Mount) {
    for step in 0..24_usize {
        let (name, seed) = [("one.ibd", 1), ("two.ibd", 2)][step % 2];
        let offset = (step * 7 % 24) * (LENGTH / 24);
        let read = mount.read_at(name, offset as u64, 16_384).await;
        let expected = &noise(seed, LENGTH)[offset..offset + 16_384];
        assert!(read.expect("is there") == expected, "{name} at {offset}");
    }
}

fn requests(mount: &Mount) -> u64 {
    status(mount)["metrics"]["get_requests"]
        .as_u64()
        .expect("a number")
}

fn fetched(mount: &Mount) -> u64 {
    status(mount)["metrics"]["bytes_fetched"]
        .as_u64()
        .expect("a number")
}

fn of(paths: &[&str], touches: &[(u32, u64, u64)]) -> Trace {
    let touch = |(file, page, pages): &(u32, u64, u64)| Touch {
        file: *file,
        page: *page,
        pages: *pages,
    };
    Trace {
        paths: paths.iter().map(|path| path.as_bytes().to_vec()).collect(),
        touches: touches.iter().map(touch).collect(),
    }
}

async fn store(world: &World, name: &str, trace: &Trace) {
    let repository = Arc::new(world.elsewhere().repository().await);
    let session = OpenSession::draw_id(&repository.handle);
    let saved = save(&repository, ("main", name), trace, ("test", session)).await;
    saved.expect("stored");
}

#[test]
fn what_one_clone_read_first_the_next_one_has_before_it_asks() {
    paused(async {
        let world = world().await;
        let (_, mount) = clone(&world, 1, None).await;
        let nothing = ask(&mount, json!({ "record": "warm" })).await;
        assert!(
            nothing["error"].as_str().unwrap().contains("no file"),
            "{nothing}"
        );
        let before = fetched(&mount);
        read_places(&mount).await;
        let cost = fetched(&mount) - before;
        let told = ask(&mount, json!({ "touches": {} })).await;
        assert_eq!(told["first_touches"], 24, "{told}");
        let made = ask(&mount, json!({ "record": "warm" })).await;
        assert_eq!(
            (&made["files"], &made["ranges"]),
            (&json!(2), &json!(24)),
            "{made}"
        );
        mount.0.finish().await.expect("ended");

        let (machine, mount) = clone(&world, 2, None).await;
        let before = fetched(&mount);
        let told = replayed(&mount).await;
        assert_eq!(
            (&told["name"], &told["phase"]),
            (&json!("warm"), &json!("done")),
            "{told}"
        );
        assert_eq!(told["done_bytes"], told["total_bytes"]);
        assert_eq!(told["total_bytes"], 24 * 16_384);
        let replay_cost = fetched(&mount) - before;
        assert!(replay_cost <= cost * 13 / 10, "{replay_cost} for {cost}");
        // Attributes and extents are looked up in the volume's own memory once more.
        machine.fails_with(Fault::FailBefore(StoreErrorKind::Denied));
        let (before, asked) = (requests(&mount), machine.faults.requests());
        read_places(&mount).await;
        assert_eq!(requests(&mount), before);
        assert_eq!(machine.faults.requests(), asked);
        machine.faults.heal();
        let touches = &status(&mount)["trace"]["touches"];
        assert_eq!(
            (&touches["first_touches"], &touches["hits"]),
            (&json!(24), &json!(24))
        );
        mount.0.finish().await.expect("ended");

        // No trace is no replay.
        let (_, mount) = clone(&world, 3, Some("none")).await;
        assert!(replayed(&mount).await.is_null());
        mount.0.finish().await.expect("ended");
        require_whole(&world).await;
    });
}

#[test]
fn a_stale_or_hostile_trace_costs_nothing_but_bytes() {
    paused(async {
        let world = world().await;
        let mount = world.mount().await;
        let volume = mount.0.volume().expect("writable");
        let new = |mode: u32, target: Option<&'static [u8]>| NewInode {
            mode,
            uid: 0,
            gid: 0,
            device: 0,
            target: target.map(Bytes::from_static),
            profile: 0,
        };
        for (name, target) in [("link", &b"one.ibd"[..]), ("away", b"..")] {
            let made = volume.make(1, name.as_bytes(), new(libc::S_IFLNK | 0o777, Some(target)));
            made.await.expect("made");
        }
        let made = volume.make(1, b"directory", new(libc::S_IFDIR | 0o755, None));
        made.await.expect("made");
        mount.put("short.ibd", &noise(3, 20_000)).await;
        mount.put("inline", b"small").await;
        snapshot(&mount, "two").await;
        mount.0.finish().await.expect("ended");

        let paths = [
            "renamed.ibd",
            "link",
            "directory",
            "directory/one.ibd",
            "away/one.ibd",
            "short.ibd",
            "inline",
            "one.ibd/x",
        ];
        let far = (1 << 50) - 1;
        let mut touches: Vec<(u32, u64, u64)> = (0..8).map(|file| (file, 0, 4)).collect();
        touches.extend([
            (5, 4, 1 << 40),
            (5, far, 1),
            (6, 0, 1 << 50),
            (0, 0, 1 << 50),
        ]);
        store(&world, "stale", &of(&paths, &touches)).await;
        let mut machine = cloning(&world, "scratch~1");
        machine.clone_of.as_mut().expect("a clone").snapshot =
            bkfs::root::snapshots::SnapshotReference::Name("two".to_owned());
        let mount = Mount(machine.try_assemble(false).await.expect("mounted"));
        let told = replayed(&mount).await;
        assert_eq!(told["phase"], "done", "{told}");
        assert_eq!(told["absent_files"], 6, "{told}");
        // Pages 0 to 3 of the short file, its page 4, and the small file. The range of 4 PiB behind
        // them ends the replay.
        assert_eq!(told["done_bytes"], 20_000 + 5, "{told}");
        assert_eq!(told["total_bytes"], told["done_bytes"], "{told}");
        read_places(&mount).await;
        assert_eq!(
            mount.read("short.ibd").await.expect("is there"),
            noise(3, 20_000)
        );
        mount.0.finish().await.expect("ended");
    });
}

#[test]
fn a_damaged_newest_trace_is_a_warning_and_a_named_one_an_error() {
    paused(async {
        let world = world().await;
        store(&world, "older", &of(&["one.ibd"], &[(0, 0, 4)])).await;
        tokio::time::sleep(seconds(5)).await;
        store(&world, "newer", &of(&["one.ibd"], &[(0, 0, 4)])).await;
        let traces = with(&world, "traces").mount().await;
        let volume = traces.0.volume().expect("writable").clone();
        let directory = match volume
            .view
            .item(
                bkfs::volume::state::Scope::Live,
                &volume.name_key(1, b"main").expect("a name"),
            )
            .await
        {
            Ok(Some(bkfs::tree::Item::Name { inode, .. })) => inode,
            other => panic!("{other:?}"),
        };
        let found = bkfs::trace::place::resolve(&volume.view, b"main/newer").await;
        let inode = found.expect("read").expect("is there").inode;
        let lie = Bytes::from_static(b"../../etc/passwd");
        volume
            .write(inode, 13, lie, Default::default())
            .await
            .expect("written");
        assert!(directory > 1);
        traces.0.finish().await.expect("ended");

        let repository = Arc::new(world.elsewhere().repository().await);
        let refused = load(&repository, "main", "newer").await;
        assert!(
            matches!(refused, Err(StoredError::NoTrace { .. })),
            "{refused:?}"
        );
        let listed = Stored::open(&repository)
            .await
            .expect("read")
            .expect("has some");
        let listed = listed.list(Some("main")).await.expect("listed");
        let names: Vec<&str> = listed.iter().map(|trace| trace.name.as_str()).collect();
        assert_eq!(names, ["newer", "older"]);

        let (_, mount) = clone(&world, 1, None).await;
        let told = replayed(&mount).await;
        assert_eq!(told["phase"], "failed", "{told}");
        assert!(
            told["error"]
                .as_str()
                .unwrap()
                .contains("trace newer of volume main"),
            "{told}"
        );
        read_places(&mount).await;
        let refused = ask(&mount, json!({ "replay": "newer" })).await;
        assert_eq!(refused["code"], 13, "{refused}");
        let refused = ask(&mount, json!({ "replay": "absent" })).await;
        assert_eq!(refused["code"], 1, "{refused}");
        let begun = ask(&mount, json!({ "replay": "older" })).await;
        assert_eq!(begun["task"], 2, "{begun}");
        assert_eq!(replayed(&mount).await["done_bytes"], 4 * PAGE_BYTES);
        mount.0.finish().await.expect("ended");

        for name in ["newer", "older"] {
            remove(&repository, ("main", name), "test")
                .await
                .expect("removed");
        }
        let gone = remove(&repository, ("main", "older"), "test").await;
        assert!(gone.is_err(), "it was removed");
        require_whole(&world).await;
    });
}

#[test]
fn a_store_that_fails_ends_a_replay_and_nothing_else() {
    paused(async {
        let world = world().await;
        store(
            &world,
            "all",
            &of(&["one.ibd", "two.ibd"], &[(0, 0, 3000), (1, 0, 3000)]),
        )
        .await;
        let (machine, mount) = clone(&world, 1, Some("none")).await;
        let begun = async {
            let begun = ask(&mount, json!({ "replay": "all" })).await;
            assert_eq!(begun["task"], 1, "{begun}");
            machine.fails_with(Fault::FailBefore(StoreErrorKind::Denied));
        };
        begun.await;
        let told = replayed(&mount).await;
        assert_eq!(told["phase"], "failed", "{told}");
        machine.faults.heal();
        read_places(&mount).await;
        let again = ask(&mount, json!({ "replay": "all" })).await;
        assert_eq!(again["task"], 2, "{again}");
        assert_eq!(replayed(&mount).await["phase"], "done");
        mount.0.finish().await.expect("ended");
    });
}

#[test]
fn a_trace_is_not_stored_while_another_session_writes_to_the_traces() {
    paused(async {
        let world = world().await;
        store(&world, "older", &of(&["one.ibd"], &[(0, 0, 4)])).await;
        let held = with(&world, "traces").mount().await;
        let (_, mount) = clone(&world, 1, None).await;
        read_places(&mount).await;
        let refused = ask(&mount, json!({ "record": "warm" })).await;
        assert_eq!(refused["code"], 11, "{refused}");
        held.0.finish().await.expect("ended");
        let made = ask(&mount, json!({ "record": "warm" })).await;
        assert_eq!(made["name"], "warm", "{made}");
        for name in ["none", "a/b", "..", ""] {
            let refused = ask(&mount, json!({ "record": name })).await;
            assert!(refused["error"].is_string(), "{name}: {refused}");
        }
        mount.0.finish().await.expect("ended");
        // A mount that is no clone records nothing.
        let mount = world.mount().await;
        let refused = ask(&mount, json!({ "record": "warm" })).await;
        assert!(
            refused["error"].as_str().unwrap().contains("only clones"),
            "{refused}"
        );
        mount.0.finish().await.expect("ended");
    });
}

/// Returns the number of sessions in the root that store a trace.
async fn recording(world: &World) -> usize {
    let root = root(world).await;
    let holders = root.sessions.values().map(|session| &session.holder);
    let recording = holders.filter(|holder| holder.mount_point == "bkfs trace record");
    recording.count()
}

/// Begins to record a trace. Returns its job once its session is in the root. The answer to the
/// replacement by which it entered waits at the gate.
async fn enter(world: &World, machine: &World, mount: &Mount) -> (Value, Gate) {
    let gate = Gate::new();
    let held = Strike::with(Fault::HoldAfter(gate.clone()));
    machine
        .faults
        .plan(held.on(Operation::Replace).keys("root"));
    let begun = ask(mount, json!({ "begin": { "record": "warm" } })).await;
    while recording(world).await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    (json!({ "job": begun["job"] }), gate)
}

#[test]
fn a_failed_record_leaves_no_session_behind() {
    paused(async {
        let world = world().await;
        let (machine, mount) = clone(&world, 1, None).await;
        read_places(&mount).await;
        let (job, gate) = enter(&world, &machine, &mount).await;
        machine.fails_with(Fault::FailBefore(StoreErrorKind::Denied));
        gate.open();
        tokio::time::sleep(seconds(600)).await;
        let failed = ask(&mount, job).await;
        assert!(failed["error"].is_string(), "{failed}");
        assert_eq!(
            recording(&world).await,
            1,
            "the store refuses its end as well"
        );

        machine.faults.heal();
        // By itself, so that it holds nothing back if no other trace is recorded.
        tokio::time::sleep(seconds(60)).await;
        assert_eq!(recording(&world).await, 0);
        let made = ask(&mount, json!({ "record": "warm" })).await;
        assert_eq!(made["name"], "warm", "{made}");
        assert_eq!(recording(&world).await, 0);
        mount.0.finish().await.expect("ended");
        require_whole(&world).await;
    });
}

#[test]
fn a_session_without_an_answer_leaves_before_the_next_record_and_at_the_unmount() {
    paused(async {
        let world = world().await;
        for (number, is_at_unmount) in [(1, false), (2, true)] {
            let (machine, mount) = clone(&world, number, Some("none")).await;
            read_places(&mount).await;
            let (job, _gate) = enter(&world, &machine, &mount).await;
            machine.fails_with(Fault::FailBefore(StoreErrorKind::Unreachable));
            tokio::time::sleep(seconds(600)).await;
            let failed = ask(&mount, job).await;
            assert!(failed["error"].is_string(), "{failed}");
            machine.faults.heal();
            if !is_at_unmount {
                let made = ask(&mount, json!({ "record": "warm" })).await;
                assert_eq!(made["name"], "warm", "{made}");
            }
            mount.0.finish().await.expect("ended");
            assert_eq!(recording(&world).await, 0);
        }
        require_whole(&world).await;
    });
}

#[test]
fn an_unmount_waits_for_a_record_and_for_no_replay() {
    paused(async {
        let world = world().await;
        store(&world, "all", &of(&["one.ibd"], &[(0, 0, 3000)])).await;
        let (machine, mount) = clone(&world, 1, Some("none")).await;
        read_places(&mount).await;
        let slow = Strike::with(Fault::Delay(seconds(2))).always();
        machine.faults.plan(slow.clone().on_writes());
        machine.faults.plan(slow.keys("data/"));
        ask(&mount, json!({ "begin": { "record": "warm" } })).await;
        let begun = ask(&mount, json!({ "replay": "all" })).await;
        assert_eq!(begun["task"], 1, "{begun}");
        while recording(&world).await == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        mount.0.finish().await.expect("ended");
        assert_eq!(recording(&world).await, 0);
        tokio::time::sleep(seconds(10)).await;
        let requests = machine.faults.requests();
        tokio::time::sleep(seconds(60)).await;
        assert_eq!(machine.faults.requests(), requests, "the replay goes on");
        let repository = Arc::new(world.elsewhere().repository().await);
        let stored = load(&repository, "main", "warm").await;
        assert_eq!(stored.expect("stored").touches.len(), 24);
        require_whole(&world).await;
    });
}

#[test]
fn an_unmount_with_a_deadline_gives_a_record_up_and_ends_its_session() {
    paused(async {
        let world = world().await;
        let (machine, mount) = clone(&world, 1, None).await;
        read_places(&mount).await;
        let silent = Strike::with(Fault::Hang)
            .on(Operation::PutNew)
            .keys("meta/");
        machine.faults.plan(silent.always());
        ask(&mount, json!({ "begin": { "record": "warm" } })).await;
        while recording(&world).await == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let begun = tokio::time::Instant::now();
        mount
            .0
            .finish_within(Some(seconds(5)))
            .await
            .expect("ended");
        assert!(begun.elapsed() < seconds(8), "{:?}", begun.elapsed());
        assert_eq!(recording(&world).await, 0);
        machine.faults.heal();
        require_whole(&world).await;
    });
}

#[test]
fn a_trace_has_the_names_that_the_clone_began_with() {
    paused(async {
        let world = world().await;
        let (_, mount) = clone(&world, 1, None).await;
        mount.put("new.ibd", &noise(5, 40_000)).await;
        for name in ["one.ibd", "two.ibd", "new.ibd"] {
            mount.read_at(name, 0, 16_384).await.expect("is there");
        }
        let volume = mount.0.volume().expect("writable");
        let flags = bkfs::volume::namespace::RenameTo::Anything;
        let renamed = volume.rename((1, b"one.ibd"), (1, b"old.ibd"), flags);
        renamed.await.expect("renamed");
        volume.unlink(1, b"two.ibd").await.expect("unlinked");
        let made = ask(&mount, json!({ "record": "warm" })).await;
        assert_eq!(
            (&made["files"], &made["whole"]),
            (&json!(2), &json!(true)),
            "{made}"
        );
        mount.0.finish().await.expect("ended");
        let repository = Arc::new(world.elsewhere().repository().await);
        let trace = load(&repository, "main", "warm").await.expect("stored");
        assert_eq!(trace.paths, [b"one.ibd".to_vec(), b"two.ibd".to_vec()]);
    });
}

#[test]
fn a_trace_replaces_no_file_that_is_none() {
    paused(async {
        let world = world().await;
        store(&world, "older", &of(&["one.ibd"], &[(0, 0, 4)])).await;
        let traces = with(&world, "traces").mount().await;
        let volume = traces.0.volume().expect("writable").clone();
        let directory = bkfs::stream::directory(&volume, &[b"main".to_vec()], &new_file()).await;
        let directory = directory.expect("is there");
        for (name, bytes) in [
            (&b"empty"[..], &b""[..]),
            (b"letter", b"bkfs-traces are fine"),
        ] {
            let made = volume
                .make(directory, name, new_file())
                .await
                .expect("made");
            let bytes = Bytes::from_static(bytes);
            let written = volume.write(made.inode, 0, bytes, Default::default());
            written.await.expect("written");
        }
        traces.0.finish().await.expect("ended");
        let repository = Arc::new(world.elsewhere().repository().await);
        for name in ["empty", "letter"] {
            let trace = of(&["one.ibd"], &[(0, 0, 8)]);
            let session = OpenSession::draw_id(&repository.handle);
            let refused = save(&repository, ("main", name), &trace, ("test", session)).await;
            assert!(refused.is_err(), "{name}");
        }
        assert_eq!(recording(&world).await, 0);
        store(&world, "older", &of(&["one.ibd"], &[(0, 0, 8)])).await;
        let repository = Arc::new(world.elsewhere().repository().await);
        let replaced = load(&repository, "main", "older").await.expect("stored");
        assert_eq!(replaced.touches[0].pages, 8);
    });
}
