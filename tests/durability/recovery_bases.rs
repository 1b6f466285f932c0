//! What only the spool of a machine holds whose volume another one has taken over: kept until that
//! machine has claimed it, whatever is collected meanwhile.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bkfs::maintain::check::check;
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::report::{Problem, ProblemKind};
use bkfs::mounting::settings::Settings;
use bkfs::root::removal::give_up;
use bkfs::root::session::OpenSession;
use bkfs::root::state::{HolderInfo, RecoveryBase, SessionId};
use bkfs::tree::item::Item;
use bkfs::tree::key::Key;
use bkfs::volume::ROOT_INODE;
use bkfs::volume::state::{Scope, Totals};
use bkfs::volume::view::View;
use bkfs_chunker::crypto::Class;
use bkfs_store::disk::Disk;
use bkfs_store::{Operation, Store, StoreErrorKind};
use bkfs_testing::disk::SimulatedDisk;
use bkfs_testing::entropy::SeededEntropy;
use bkfs_testing::fault::{Fault, FaultStore, Gate, Strike};

use crate::collecting::{forget, gc, snapshot, unlink};
use crate::host::{Bucket, Host, noise, runtime};

/// Longer than what is closed may be on its way to the disk.
pub const KEPT_AFTER: f64 = 3.0;

/// A machine with acknowledged files that no bucket has dies: `again`, whose contents the bucket
/// keeps for the snapshot `s` alone, and `new`; its last commit has `kept`.
fn die_with_a_spool(bucket: &Bucket, disk: &SimulatedDisk) {
    let host = Host::spooling(bucket, disk);
    host.write("kept", 0, noise(1, 300_000));
    host.write("shared", 0, noise(2, 300_000));
    snapshot(&host, "s");
    unlink(&host, "shared");
    host.run(host.volume().commit()).expect("committed");
    let held = Strike::with(Fault::HoldBefore(Gate::new())).on_writes();
    host.faults.plan(held.always());
    host.write("again", 0, noise(2, 300_000));
    host.write("new", 0, noise(3, 200_000));
    host.volume().fsync_within();
    host.wait(KEPT_AFTER);
    host.crash();
    disk.crash(&SeededEntropy::new(1));
}

/// Another machine takes the volume over, removes what there was, and leaves. Nothing else needs
/// it.
fn take_over(bucket: &Bucket) {
    let new_holder = bucket.host();
    assert_eq!(new_holder.find("new"), None, "no bucket has it");
    unlink(&new_holder, "kept");
    new_holder
        .run(new_holder.volume().commit())
        .expect("committed");
    new_holder.finish().expect("left");
    bucket.work(bucket.memory.clone(), async |repository| {
        forget(repository, "s").await;
    });
}

pub fn recovery_bases(bucket: &Bucket) -> Vec<RecoveryBase> {
    bucket.work(bucket.memory.clone(), async |repository| {
        let view = repository.handle.refresh().await.expect("read");
        view.root.recovery_bases().to_vec()
    })
}

/// What a file of a snapshot holds.
pub fn read_in(host: &Host, snapshot: &str, name: &str) -> Option<Vec<u8>> {
    let snapshots = host.run(host.repository.snapshots()).expect("listed");
    let tree = snapshots.named("main", snapshot)?.tree?;
    let view = View::live(host.repository.nodes.clone(), tree, Totals::default());
    let key = host.volume().name_key(ROOT_INODE, name.as_bytes());
    let named = host.run(view.item(Scope::Live, &key.expect("short")));
    let Some(Item::Name { inode, .. }) = named.expect("read") else {
        return None;
    };
    let found = host.run(view.item(Scope::Live, &Key::attributes(inode)));
    let Some(Item::Attributes(attributes)) = found.expect("read") else {
        panic!("{name} has no attributes");
    };
    let read = view.read(Scope::Live, inode, 0..attributes.size_bytes);
    Some(host.run(read).expect("read").concat())
}

#[test]
fn what_only_a_spool_holds_survives_collections_elsewhere() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    die_with_a_spool(&bucket, &disk);
    take_over(&bucket);
    let left = recovery_bases(&bucket);
    assert_eq!(left.len(), 1);
    let done = gc(&bucket);
    assert!(done.condemned.packs > 0, "nothing else needs them");
    let again = gc(&bucket);
    assert_eq!((done.deleted_packs, again.deleted_packs), (0, 0));
    assert!(again.holding.iter().all(|one| one.has_ended) && again.held_packs > 0);

    let back = Host::spooling(&bucket, &disk);
    let recovered = format!("recovered-{}", left[0].session);
    for (name, contents) in [
        ("kept", noise(1, 300_000)),
        ("again", noise(2, 300_000)),
        ("new", noise(3, 200_000)),
    ] {
        assert!(read_in(&back, &recovered, name) == Some(contents), "{name}");
    }
    assert_eq!(back.find("new"), None, "not mixed into the volume");
    back.finish().expect("left");
    assert_eq!(
        recovery_bases(&bucket),
        [],
        "claimed in the step that made the snapshot"
    );
    gc(&bucket);
    let freed = gc(&bucket);
    assert_eq!((freed.held_packs, freed.holding.len()), (0, 0));
    let back = Host::spooling(&bucket, &disk);
    assert!(read_in(&back, &recovered, "again") == Some(noise(2, 300_000)));
}

#[test]
fn a_machine_that_takes_its_own_volume_back_leaves_no_recovery_base() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    die_with_a_spool(&bucket, &disk);
    let back = Host::spooling(&bucket, &disk);
    assert!(back.read("new") == Some(noise(3, 200_000)));
    assert_eq!(recovery_bases(&bucket), []);
    // As does one that crashed with nothing in its spool.
    back.crash();
    disk.crash(&SeededEntropy::new(2));
    let back = Host::spooling(&bucket, &disk);
    assert_eq!(recovery_bases(&bucket), []);
    back.finish().expect("left");
    assert_eq!(recovery_bases(&bucket), [], "and one that ends well");
}

#[test]
fn one_that_died_before_it_made_its_spool_leaves_no_recovery_base_to_a_mount_that_stays() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    let host = Host::spooling(&bucket, &disk);
    host.write("file", 0, noise(1, 1000));
    host.fsync().expect("durable");
    host.crash();
    disk.crash(&SeededEntropy::new(1));
    // It has taken the volume when it dies, and says that it has a spool.
    host_without_its_spool(&bucket, &disk);
    let back = Host::spooling(&bucket, &disk);
    assert_eq!(recovery_bases(&bucket), [], "while it is mounted");
    assert!(back.read("file") == Some(noise(1, 1000)));
}

/// A mount here dies before it has made the spool that it states in the root.
fn host_without_its_spool(bucket: &Bucket, disk: &SimulatedDisk) {
    let host = Host::spooling(bucket, disk);
    host.crash();
    disk.crash(&SeededEntropy::new(2));
    let live = bucket.work(bucket.memory.clone(), async |repository| {
        let view = repository.handle.refresh().await.expect("read");
        let sessions = view.root.sessions.iter();
        let mut spooling = sessions.filter(|(_, session)| session.spool.is_some());
        *spooling.next().expect("it stands there").0
    });
    let directory = Path::new("/spool").join(live.to_string());
    bucket.work(bucket.memory.clone(), async |_| {
        for entry in disk.list(&directory).await.expect("listed") {
            disk.remove(&directory.join(entry.name))
                .await
                .expect("removed");
        }
        disk.remove_directory(&directory).await.expect("removed");
    });
}

#[test]
fn an_empty_spool_is_claimed_by_the_next_mount_there() {
    let bucket = Bucket::new();
    let (disk, other) = (SimulatedDisk::new(), SimulatedDisk::new());
    let host = Host::spooling(&bucket, &disk);
    host.write("file", 0, noise(1, 1000));
    host.fsync().expect("durable");
    host.crash();
    disk.crash(&SeededEntropy::new(1));
    Host::spooling(&bucket, &other).finish().expect("left");
    assert_eq!(recovery_bases(&bucket).len(), 1, "that machine cannot know");
    Host::spooling(&bucket, &other).finish().expect("left");
    assert_eq!(recovery_bases(&bucket).len(), 1, "nor later");
    let back = Host::spooling(&bucket, &disk);
    assert_eq!(recovery_bases(&bucket), []);
    assert!(back.read("file") == Some(noise(1, 1000)));
}

/// Gives a spool directory the number that another machine has there.
pub fn number_of(machine: u64, disk: &SimulatedDisk) {
    for path in disk.paths() {
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix("place-"));
        if let Some((number, _)) = number.and_then(|number| number.split_once('-')) {
            let name = format!("place-{number}-{machine:016x}");
            disk.give_name(&path, &path.with_file_name(name));
        }
    }
}

/// A machine dies with a spool, and the one that takes the volume over carries out all that it
/// holds. The directory then has the number of a container, which shares it with its host.
fn die_with_what_is_committed(bucket: &Bucket, disk: &SimulatedDisk) {
    let host = Host::spooling(bucket, disk);
    let lost = Strike::with(Fault::FailAfter(StoreErrorKind::OutcomeUnknown));
    host.faults.plan(lost.on_writes().always());
    host.write("new", 0, noise(3, 1000));
    host.volume().fsync_within();
    host.wait(KEPT_AFTER);
    host.crash();
    disk.crash(&SeededEntropy::new(1));
    let new_holder = bucket.host();
    assert!(new_holder.read("new") == Some(noise(3, 1000)));
    new_holder.finish().expect("left");
    number_of(HolderInfo::of_this_process("").containers(), disk);
}

#[test]
fn a_spool_of_which_commits_have_all_leaves_no_recovery_base() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    die_with_what_is_committed(&bucket, &disk);
    assert_eq!(recovery_bases(&bucket).len(), 1, "that machine cannot know");
    let back = Host::spooling(&bucket, &disk);
    assert!(back.assembled.spool_news().recovered.is_empty());
    assert_eq!(recovery_bases(&bucket), []);
    assert!(back.read("new") == Some(noise(3, 1000)));
}

/// The first mount that finds the spool removes it, and cannot register in the root.
#[test]
fn a_recovery_base_goes_though_the_mount_that_removed_the_spool_failed() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    die_with_what_is_committed(&bucket, &disk);
    let refusing = Arc::new(FaultStore::new(bucket.memory.clone()));
    let refused = Strike::with(Fault::FailBefore(StoreErrorKind::Denied)).on(Operation::Replace);
    refusing.plan(refused.always());
    let refused = Host::spooling_through(refusing, &disk, Settings::default());
    assert!(refused.is_err(), "it cannot register");
    assert_eq!(recovery_bases(&bucket).len(), 1);
    let back = Host::spooling(&bucket, &disk);
    assert_eq!(recovery_bases(&bucket), []);
    assert!(back.read("new") == Some(noise(3, 1000)));
}

/// The machine is killed after the spool has gone, and before its recovery base has.
#[test]
fn a_recovery_base_whose_spool_is_gone_goes_with_the_next_mount() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    die_with_what_is_committed(&bucket, &disk);
    bucket.work(bucket.memory.clone(), async |_| {
        for path in disk.paths() {
            let name = path.file_name().and_then(|name| name.to_str());
            if !name.is_some_and(|name| name.starts_with("place-")) {
                // Directories go once they are empty.
                let _ = disk.remove(&path).await;
                let _ = disk.remove_directory(&path).await;
            }
        }
    });
    assert_eq!(recovery_bases(&bucket).len(), 1);
    let back = Host::spooling(&bucket, &disk);
    assert_eq!(recovery_bases(&bucket), []);
    assert!(back.read("new") == Some(noise(3, 1000)));
}

#[test]
fn a_fenced_mount_that_ends_with_an_empty_spool_claims_it() {
    let bucket = Bucket::new();
    let (disk, other) = (SimulatedDisk::new(), SimulatedDisk::new());
    let host = Host::spooling(&bucket, &disk);
    host.write("file", 0, noise(1, 1000));
    host.fsync().expect("durable");
    let new_holder = Host::spooling(&bucket, &other);
    host.fsync().expect_err("fenced");
    assert_eq!(
        recovery_bases(&bucket).len(),
        1,
        "it may have acknowledged more"
    );
    let _ = host.finish();
    assert_eq!(recovery_bases(&bucket), []);
    new_holder.finish().expect("left");
}

#[test]
fn a_spool_that_is_given_up_holds_nothing_back() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    die_with_a_spool(&bucket, &disk);
    take_over(&bucket);
    gc(&bucket);
    let ended: SessionId = recovery_bases(&bucket)[0].session;
    bucket.work(bucket.memory.clone(), async |repository| {
        let (handle, machine) = (&repository.handle, &repository.environment);
        let holder = machine.holder("session end");
        let session = OpenSession::open(handle, holder, None, &*machine.processes).await;
        let session = session.expect("entered");
        give_up(handle, &session, &[ended]).await.expect("given up");
        session.end().await.expect("left");
    });
    assert_eq!(recovery_bases(&bucket), []);
    gc(&bucket);
    let freed = gc(&bucket);
    assert_eq!((freed.held_packs, freed.holding.len()), (0, 0));
    let back = Host::spooling(&bucket, &disk);
    let snapshots = back.run(back.repository.snapshots()).expect("listed");
    let name = format!("recovered-{ended}");
    assert!(
        snapshots.named("main", &name).is_none(),
        "what it needs is gone"
    );
}

#[test]
fn check_names_a_spool_that_stands_on_nothing() {
    let bucket = Bucket::new();
    let disk = SimulatedDisk::new();
    die_with_a_spool(&bucket, &disk);
    take_over(&bucket);
    let recovery_base = &recovery_bases(&bucket)[0];
    // All that the dead session had stored.
    let of_it = format!("{:016x}", recovery_base.session.0);
    let looked = bucket.work(bucket.memory.clone(), async |repository| {
        let listed = bucket.memory.list("", None, 10_000).await.expect("listed");
        let packs = listed.iter().filter(|info| info.key.contains(&of_it));
        for info in packs.filter(|info| !info.key.starts_with("journal/")) {
            bucket.memory.delete(&info.key).await.expect("deleted");
        }
        let handle = &repository.handle;
        let (store, keyring) = (handle.store().clone(), handle.keyring().clone());
        check(store, &keyring, &CheckOptions::default()).await
    });
    let report = looked.expect("checked");
    let who = format!("the spool on host {}", recovery_base.host());
    let is_named = |name: &String| name.starts_with(&who);
    let mut problems = report.problems.iter();
    assert!(
        problems
            .any(|problem| problem.what.contains(&who) || problem.snapshots.iter().any(is_named)),
        "{:?}",
        report.problems
    );
}

/// An archive class has taken the pack that holds the commit record of the state.
#[test]
fn a_refused_commit_record_of_the_state_is_named_and_the_check_goes_on() {
    let (bucket, disk) = (Bucket::new(), SimulatedDisk::new());
    die_with_a_spool(&bucket, &disk);
    take_over(&bucket);
    let left = recovery_bases(&bucket).remove(0);
    let (keyring, keys) = bucket.work(bucket.memory.clone(), async |repository| {
        repository.load_index_to_write().await.expect("loaded");
        let mut places = Vec::new();
        for id in left.records() {
            let found = repository.content_store.places(&id).await;
            places.extend(found.expect("the index answers"));
        }
        let packs = places.into_iter().map(|place| place.pack);
        let keys: BTreeSet<String> = packs.map(|pack| pack.key(Class::MetadataPack)).collect();
        (repository.content_store.keyring().clone(), keys)
    });
    assert!(!keys.is_empty(), "it lies in packs");
    let faults = Arc::new(FaultStore::new(bucket.memory.clone()));
    for key in &keys {
        let refusal = Strike::with(Fault::FailBefore(StoreErrorKind::Denied));
        faults.plan(refusal.keys(key).always());
    }
    let options = CheckOptions::oracle();
    let checked = check(faults, &keyring, &options);
    let report = runtime().block_on(checked).expect("the check goes on");
    for key in &keys {
        let is_named =
            |problem: &Problem| problem.object == *key && problem.kind == ProblemKind::Refused;
        assert!(report.problems.iter().any(is_named), "{key}: {report}");
    }
    let is_lost = |problem: &&Problem| problem.kind != ProblemKind::Refused;
    assert!(report.problems.iter().find(is_lost).is_none(), "{report}");
}
