//! A store that fails for a while. Operations that wait for it end well if the outage is shorter
//! than `timeout=`, and fail soon after `timeout=` if it is not.
//!
//! The clock is paused, so an outage takes no real time.

use std::sync::Arc;
use std::time::Duration;

use bkfs::mounting::settings::Settings;
use bkfs::mounting::{Assembled, MountPlan};
use bkfs::repository::{Opening, Repository, create_in, open_in};
use bkfs::root::repository::Accepted;
use bkfs::tree::item::Item;
use bkfs::volume::data::WriteOptions;
use bkfs::volume::error::VolumeError;
use bkfs::volume::requests::SnapshotRequest;
use bkfs::volume::state::Scope;
use bkfs::volume::{ROOT_INODE, Volume};
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_fuse::MountOptions;
use bkfs_store::{MemoryStore, Operation, StoreErrorKind, StoreOptions, parse_url};
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use bytes::Bytes;
use tokio::time::Instant;

use crate::host::{Unsealed, new_file};

const TIMEOUT: Duration = Duration::from_secs(20);

/// The time that an operation may take beyond the time that the store is waited for.
const A_FEW: Duration = Duration::from_secs(6);

/// The prefix of each kind of object, and the request that writes it.
const KINDS: [(&str, Operation); 7] = [
    ("data/", Operation::PutNew),
    ("meta/", Operation::PutNew),
    ("index/", Operation::PutNew),
    ("lists/", Operation::PutNew),
    ("journal/", Operation::PutNew),
    ("root", Operation::Replace),
    ("sessions/", Operation::Put),
];

/// The faults: a full disk, no such bucket, an invalid request, no permission, no server, no
/// answer.
fn faults() -> [Fault; 6] {
    [
        Fault::FailBefore(StoreErrorKind::NoSpace),
        Fault::FailBefore(StoreErrorKind::NoBucket),
        Fault::FailBefore(StoreErrorKind::Invalid),
        Fault::FailBefore(StoreErrorKind::Denied),
        Fault::FailBefore(StoreErrorKind::Unreachable),
        Fault::Hang,
    ]
}

/// A mount over a bucket in memory, with a paused clock.
struct Mount {
    faults: Arc<FaultStore>,
    repository: Arc<Repository>,
    assembled: Assembled,
    memory: Arc<MemoryStore>,
}

impl Mount {
    async fn new(memory: Arc<MemoryStore>, timeout: Duration) -> Self {
        let faults = Arc::new(FaultStore::new(memory.clone()));
        let opening = Opening {
            key: None,
            url: parse_url("/memory").expect("url"),
            store: StoreOptions::default(),
            content_store: ContentStoreConfig {
                cache_dir: None,
                timeout_ms: timeout.as_millis() as u64,
                workers: 0,
                ..ContentStoreConfig::default()
            },
            timeout,
            min_generation: 0,
            accepted: Accepted::default(),
            state_dir: None,
        };
        let repository = open_in(faults.clone(), opening, &mut Unsealed).await;
        let repository = Arc::new(repository.expect("opened"));
        let plan = MountPlan {
            clone_of: None,
            observed: Default::default(),
            repository: repository.clone(),
            mount_point: "/nowhere".into(),
            options: MountOptions::default(),
            settings: Settings::default(),
            volume: "main".into(),
            steal: true,
            spool: None,
        };
        let assembled = plan.assemble(&tokio::runtime::Handle::current()).await;
        let mount = Self {
            faults,
            repository,
            assembled: assembled.expect("mounted"),
            memory,
        };
        mount.volume().commit().await.expect("committed");
        mount
    }

    async fn fresh(timeout: Duration) -> Self {
        let memory = Arc::new(MemoryStore::new());
        create_in(memory.clone(), None).await.expect("created");
        Self::new(memory, timeout).await
    }

    fn volume(&self) -> Arc<Volume> {
        self.assembled.volume().expect("is writable")
    }

    /// Makes every write of this kind fail from now on.
    fn strike(&self, fault: &Fault, (place, operation): (&str, Operation)) {
        let strike = Strike::with(fault.clone()).on(operation);
        self.faults.plan(strike.keys(place).always());
    }

    async fn heal_after(&self, outage: Duration) {
        tokio::time::sleep(outage).await;
        self.faults.heal();
    }

    /// Writes a file of this many bytes, which do not compress.
    async fn write(&self, name: &str, bytes: usize) -> Result<(), VolumeError> {
        write(&self.volume(), name, bytes).await
    }

    async fn crash(self) -> Arc<MemoryStore> {
        self.memory.clone()
    }
}

fn noise(name: &str, bytes: usize) -> Vec<u8> {
    let mut hash = blake3::Hasher::new();
    hash.update(name.as_bytes());
    let mut noise = vec![0; bytes];
    hash.finalize_xof().fill(&mut noise);
    noise
}

async fn write(volume: &Arc<Volume>, name: &str, bytes: usize) -> Result<(), VolumeError> {
    let made = volume.make(ROOT_INODE, name.as_bytes(), new_file());
    let inode = made.await?.inode;
    let data = Bytes::from(noise(name, bytes));
    let written = volume.write(inode, 0, data, WriteOptions::default());
    written.await.map(|_| ())
}

fn named(name: &str) -> SnapshotRequest {
    SnapshotRequest {
        name: Some(name.to_owned()),
        ..SnapshotRequest::default()
    }
}

/// Returns how long `future` took, and its output.
async fn timed<T>(future: impl Future<Output = T>) -> (Duration, T) {
    let begin = Instant::now();
    let output = future.await;
    (begin.elapsed(), output)
}

#[tokio::test(start_paused = true)]
async fn an_outage_shorter_than_the_timeout_costs_time_only_whatever_it_meets() {
    for kind in KINDS {
        for fault in faults() {
            let mount = Mount::fresh(TIMEOUT).await;
            mount.strike(&fault, kind);
            let work = async {
                mount.write("large", 3 << 20).await?;
                mount.volume().fsync().await?;
                mount.write("small", 100).await?;
                mount.volume().snapshot(named("taken")).await
            };
            // Whatever the operation is, it waits for the outage alone.
            let outage = Duration::from_secs(15);
            let ((), (took, worked)) = tokio::join!(mount.heal_after(outage), timed(work));
            worked.unwrap_or_else(|error| panic!("{kind:?} {fault:?}: {error}"));
            assert!(
                took <= TIMEOUT + Duration::from_secs(1),
                "{kind:?} {fault:?}: {took:?}"
            );
            assert!(mount.faults.struck() > 0, "{kind:?} {fault:?} met nothing");
            assert!(mount.volume().failure().is_none(), "{kind:?} {fault:?}");
            let after = Mount::new(mount.crash().await, TIMEOUT).await;
            let (_, view) = after
                .repository
                .snapshot("main", "taken")
                .await
                .expect("is there");
            assert_eq!(view.totals().bytes, (3 << 20) + 100, "{kind:?} {fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_timeout_fails_what_waits_and_drops_nothing() {
    for fault in faults() {
        for kind in [
            ("data/", Operation::PutNew),
            ("journal/", Operation::PutNew),
        ] {
            let mount = Mount::fresh(TIMEOUT).await;
            mount.strike(&fault, kind);
            mount.write("large", 3 << 20).await.expect("accepted");
            let (took, synced) = timed(mount.volume().fsync()).await;
            synced.expect_err("the store takes nothing");
            assert!(took >= TIMEOUT - A_FEW, "{kind:?} {fault:?} took {took:?}");
            assert!(took <= TIMEOUT + A_FEW, "{kind:?} {fault:?} took {took:?}");
            // The reported outage tells since when.
            let outage = mount.repository.signs.outage().expect("it lasts");
            assert!(
                outage.since.elapsed() >= TIMEOUT - A_FEW,
                "{kind:?} {fault:?}"
            );
            tokio::time::sleep(A_FEW).await;
            mount.faults.heal();
            let is_poisoned = mount.volume().failure().is_some();
            let gives_up = is_hopeless(&fault) && kind.0 == "data/";
            assert_eq!(is_poisoned, gives_up, "{kind:?} {fault:?}");
            if gives_up {
                continue;
            }
            let synced = mount.volume().fsync().await;
            synced.unwrap_or_else(|error| panic!("{kind:?} {fault:?}: {error}"));
            let after = Mount::new(mount.crash().await, TIMEOUT).await;
            assert_eq!(
                after.volume().view.totals().bytes,
                3 << 20,
                "{kind:?} {fault:?}"
            );
        }
    }
}

/// Returns true if only a person's action ends the fault, so that the mount gives up.
fn is_hopeless(fault: &Fault) -> bool {
    use StoreErrorKind::{Invalid, NoBucket};
    matches!(fault, Fault::FailBefore(Invalid | NoBucket))
}

#[tokio::test(start_paused = true)]
async fn a_session_that_can_store_nothing_more_is_known_at_once_and_names_what_it_lost() {
    let mount = Mount::fresh(TIMEOUT).await;
    let fault = Fault::FailBefore(StoreErrorKind::Invalid);
    mount.strike(&fault, ("data/", Operation::PutNew));
    mount.write("lost", 3 << 20).await.expect("accepted");
    let volume = mount.volume();
    let mut health = volume.health();
    let poisoned = async { health.wait_for(Option::is_some).await.is_ok() };
    let ((took, _), refused) = tokio::join!(timed(poisoned), volume.fsync());
    refused.expect_err("refused");
    assert!(took <= TIMEOUT + A_FEW, "{took:?}");
    // From then on nothing is accepted from any caller.
    mount.faults.heal();
    let refused = mount.write("later", 10).await;
    assert!(
        matches!(refused, Err(VolumeError::Poisoned(_))),
        "{refused:?}"
    );
    let refused = volume.fsync().await;
    assert!(
        matches!(refused, Err(VolumeError::Poisoned(_))),
        "{refused:?}"
    );
    // A user who acknowledges the loss at once is told what was lost.
    let asked = mount
        .assembled
        .vfs
        .control()
        .handle(Bytes::from_static(br#"{"acknowledge":{}}"#));
    let answer = asked.await;
    assert!(answer.contains("\"/lost\""), "{answer}");
    assert!(mount.volume().failure().is_none());
    mount.write("goes on", 10).await.expect("accepted");
    mount.volume().fsync().await.expect("in the bucket");
}

#[tokio::test(start_paused = true)]
async fn no_caller_waits_longer_than_the_timeout_behind_others_that_wait() {
    for kind in KINDS.iter().filter(|(place, _)| *place != "sessions/") {
        // The disk is full at once; or no answer comes, which is noticed after a while.
        let full = vec![Fault::FailBefore(StoreErrorKind::NoSpace)];
        let silent = Fault::Delay(Duration::from_secs(5));
        let silent = vec![silent, Fault::FailBefore(StoreErrorKind::Unreachable)];
        for fault in [full, silent] {
            let mount = Mount::fresh(TIMEOUT).await;
            fault.iter().for_each(|fault| mount.strike(fault, *kind));
            let mut waiting = tokio::task::JoinSet::new();
            for number in 0..12_u64 {
                let volume = mount.volume();
                waiting.spawn(async move {
                    tokio::time::sleep(Duration::from_secs(number * 4)).await;
                    let name = format!("file-{number}");
                    write(&volume, &name, 2 << 20).await?;
                    let inode = find(&volume, &name).await;
                    let begin = Instant::now();
                    let ended = match number % 3 {
                        0 => volume.fsync().await,
                        1 => volume.snapshot(named(&name)).await.map(|_| ()),
                        _ => volume.deliver(inode).await,
                    };
                    Ok::<_, VolumeError>((number, begin.elapsed(), ended))
                });
            }
            while let Some(ended) = waiting.join_next().await {
                let (number, took, ended) = ended.expect("ends").expect("written");
                assert!(
                    took <= TIMEOUT + A_FEW,
                    "{number}, {kind:?} {fault:?}: {took:?} {ended:?}"
                );
            }
            mount.faults.heal();
            mount.volume().commit().await.expect("nothing was dropped");
            assert_eq!(mount.volume().view.totals().bytes, 12 * (2 << 20));
        }
    }
}

async fn find(volume: &Volume, name: &str) -> u64 {
    let key = volume.name_key(ROOT_INODE, name.as_bytes());
    let key = key.expect("short");
    let found = volume.view.item(Scope::Live, &key).await;
    match found.expect("read") {
        Some(Item::Name { inode, .. }) => inode,
        other => panic!("{name}: {other:?}"),
    }
}

fn status(mount: &Mount) -> serde_json::Value {
    serde_json::from_str(&mount.assembled.vfs.control().status()).expect("is JSON")
}

#[tokio::test(start_paused = true)]
async fn trouble_is_told_within_five_seconds_with_its_cause_until_it_is_over() {
    let causes = [
        "full",
        "no-bucket",
        "error",
        "denied",
        "unreachable",
        "silence",
    ];
    for (fault, cause) in faults().into_iter().zip(causes) {
        let mount = Mount::fresh(TIMEOUT).await;
        assert_eq!(status(&mount)["store"]["answers"], true);
        mount.strike(&fault, ("data/", Operation::PutNew));
        let volume = mount.volume();
        let look = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let told = status(&mount);
            let store = &told["store"];
            assert_eq!(
                (&told["health"], &store["answers"]),
                (&"waiting".into(), &false.into())
            );
            assert_eq!(store["cause"], cause, "{told}");
            let left = store["fails_in_seconds"].as_u64().expect("is a number");
            assert!((14..=16).contains(&left), "{told}");
            assert!(store["waiting_bytes"].as_u64() >= Some(3 << 20), "{told}");
            assert!(
                store["error"].as_str().expect("is told").contains("data/"),
                "{told}"
            );
            let metrics = mount.assembled.vfs.control().metrics();
            assert!(
                metrics.contains(
                    "\nbkfs_store_outage_seconds{repository=\"/memory\",volume=\"main\"} 5\n"
                ),
                "{metrics}"
            );
            mount.faults.heal();
        };
        mount.write("large", 3 << 20).await.expect("accepted");
        let ((), synced) = tokio::join!(look, volume.fsync());
        synced.expect("it was over in time");
        let told = status(&mount);
        assert_eq!(
            (&told["health"], &told["store"]["answers"]),
            (&"healthy".into(), &true.into())
        );
    }
}
