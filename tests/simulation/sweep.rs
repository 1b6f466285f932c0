//! A small backup during which the Nth request fails, for every N.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use bkfs::repository::create_on;
use bkfs::volume::requests::SnapshotRequest;
use bkfs_store::{MemoryStore, Store, StoreErrorKind};
use bkfs_testing::fault::{Fault, FaultStore, Strike};

use crate::alphabet::{Dump, Op, World as _};
use crate::manners::Manners;
use crate::model::Model;
use crate::mount::{Wish, machine, mount};

/// The name of the backup's snapshot.
const NAME: &str = "backup";

/// Returns the operations of the backup.
fn operations() -> Vec<Op> {
    vec![
        Op::Mkdir(vec![0]),
        Op::Create(vec![0, 0]),
        Op::Write(vec![0, 0], 0, 700, 3),
        Op::Create(vec![0, 1]),
        Op::Write(vec![0, 1], 0, 400_000, 7),
        Op::Sync,
        Op::Create(vec![2]),
        Op::Write(vec![2], 1_000, 200_000, 9),
        Op::SetXattr(vec![2], 1, 300),
        Op::Link(vec![2], vec![0, 2]),
    ]
}

/// The answer to the user of the backup.
#[derive(Debug)]
enum Said {
    /// The snapshot was made.
    Success,
    /// The snapshot was not made.
    Failure(String),
    /// It is not known whether the snapshot was made.
    Unknown(String),
}

impl Said {
    /// Returns the kind of the answer, and its reason.
    fn parts(&self) -> (&'static str, &str) {
        match self {
            Said::Success => ("success", ""),
            Said::Failure(why) => ("failure", why),
            Said::Unknown(why) => ("unknown", why),
        }
    }
}

/// Numbers of outcomes by kind.
type Outcomes = BTreeMap<&'static str, u64>;

fn wish(process: u32) -> Wish {
    Wish {
        volume: "main".to_owned(),
        steal: false,
        snapshot: None,
        read_only: false,
        host: 1,
        process,
        skew_s: 0,
        seed: u64::from(process),
        disk: None,
        is_disk_well: Rc::new(Cell::new(true)),
        is_local: false,
        ends_session: false,
        manners: Manners::default(),
    }
}

/// Makes the backup.
async fn backup(store: Arc<dyn Store>) -> Said {
    let up = match mount(store, &wish(1)).await {
        Ok(up) => up,
        Err(error) => return Said::Failure(error.to_string()),
    };
    for op in operations() {
        if let Err(errno) = up.client.apply(&op).await {
            return Said::Failure(format!("{op:?}: errno {errno}"));
        }
    }
    let volume = up.assembled.volume().expect("it is writable").clone();
    let request = SnapshotRequest {
        name: Some(NAME.to_owned()),
        ..SnapshotRequest::default()
    };
    let made = volume.snapshot(request).await;
    let ended = up.assembled.finish().await;
    match (made, ended) {
        (Ok(_), Ok(()) | Err(_)) => Said::Success,
        (Err(error), _) if error.to_string().contains("it is not known") => {
            Said::Unknown(error.to_string())
        }
        (Err(error), _) => Said::Failure(error.to_string()),
    }
}

/// Returns the snapshot that an empty machine finds, or `None`.
async fn found(bucket: MemoryStore) -> Result<Option<Dump>, String> {
    let wish = Wish {
        read_only: true,
        snapshot: Some(NAME.to_owned()),
        ..wish(2)
    };
    match mount(Arc::new(bucket), &wish).await {
        Ok(up) => up.dump().await.map(Some),
        Err(error) if error.to_string().contains("there is no snapshot") => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Works with a bucket that holds an empty repository. The clock jumps to the next event that is
/// waited for.
fn with_repository<T>(work: impl AsyncFnOnce(MemoryStore) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let bucket = MemoryStore::new();
        create_on(&machine(&wish(9)), Arc::new(bucket.clone()), None)
            .await
            .expect("a repository");
        work(bucket).await
    })
}

/// Makes one backup under one strike. Returns the answer, if the strike struck.
fn one(strike: Strike) -> Result<Option<&'static str>, String> {
    with_repository(async |bucket| {
        let store = FaultStore::new(Arc::new(bucket.clone()));
        store.plan(strike);
        let said = backup(Arc::new(store.clone())).await;
        if store.struck() == 0 {
            return match said {
                Said::Success => Ok(None),
                other => Err(format!("it fails without any fault: {:?}", other.parts())),
            };
        }
        // The rest of the first process must not go on while the result is checked.
        store.plan(Strike::with(Fault::Hang).always());
        let found = found(bucket)
            .await
            .map_err(|error| format!("{:?}, and then: {error}", said.parts()))?;
        let mut model = Model::default();
        for op in operations() {
            model.apply(&op).expect("every operation succeeds");
        }
        let is_right = found.as_ref().map(|seen| *seen == model.dump());
        let agrees = match &said {
            Said::Success => is_right == Some(true),
            Said::Failure(_) => is_right.is_none(),
            Said::Unknown(_) => is_right != Some(false),
        };
        let (kind, why) = said.parts();
        match agrees {
            true => Ok(Some(kind)),
            false => Err(format!(
                "{kind} {why}, and the snapshot is there and right: {is_right:?}"
            )),
        }
    })
}

/// Fails every request in turn in this way, either once or from there on for good. Returns the
/// answers.
fn sweep(name: &str, strike: &Strike, problems: &mut Vec<String>) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for nth in 1.. {
        match one(strike.clone().nth(nth)) {
            Ok(Some(kind)) => *outcomes.entry(kind).or_default() += 1,
            Ok(None) => break,
            Err(error) => problems.push(format!("{name}, request {nth}: {error}")),
        }
    }
    println!("{name}: {outcomes:?}");
    outcomes
}

/// The outcome is success, loud failure, or unknown, and the state that an empty machine finds
/// agrees with it. Every run covers all requests, which takes seconds.
#[test]
fn whichever_request_fails_no_answer_is_false() {
    use StoreErrorKind as Kind;
    let before = [
        Kind::Unreachable,
        Kind::Throttled,
        Kind::Denied,
        Kind::NoSpace,
        Kind::Other,
    ];
    let after = [Kind::OutcomeUnknown, Kind::AlreadyExists, Kind::Conflict];
    let mut problems = Vec::new();
    let mut kinds = Outcomes::new();
    let mut all = |name: String, strike: Strike| {
        for (kind, count) in sweep(&name, &strike, &mut problems) {
            *kinds.entry(kind).or_default() += count;
        }
    };
    for kind in before {
        let strike = Strike::with(Fault::FailBefore(kind));
        all(format!("{kind:?} once"), strike.clone());
        all(format!("{kind:?} for good"), strike.always());
    }
    for kind in after {
        let strike = Strike::with(Fault::FailAfter(kind)).on_writes();
        all(format!("applied, then {kind:?} once"), strike);
    }
    let deaf = Strike::with(Fault::FailAfter(Kind::OutcomeUnknown)).on_writes();
    all("answers lost for good".to_owned(), deaf.always());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert_eq!(kinds.len(), 3, "not all outcomes were met: {kinds:?}");
}

/// Mounts while the nth request fails in this way. Returns false if there are fewer requests.
fn mounts(strike: Strike) -> Result<bool, String> {
    with_repository(async |bucket| {
        // The mount finds the traces of an earlier one.
        let first = backup(Arc::new(bucket.clone())).await;
        assert!(matches!(first, Said::Success), "{:?}", first.parts());
        let store = FaultStore::new(Arc::new(bucket));
        store.plan(strike);
        match mount(Arc::new(store.clone()), &wish(3)).await {
            Ok(_) => Ok(store.struck() > 0),
            Err(error) => Err(error.to_string()),
        }
    })
}

/// No single request that fails prevents a mount.
#[test]
fn whichever_request_fails_while_mounting_it_comes_up() {
    use StoreErrorKind as Kind;
    let before =
        [Kind::Unreachable, Kind::Throttled].map(|kind| Strike::with(Fault::FailBefore(kind)));
    let after = [Kind::OutcomeUnknown, Kind::AlreadyExists, Kind::Conflict];
    let after = after.map(|kind| Strike::with(Fault::FailAfter(kind)).on_writes());
    let mut problems = Vec::new();
    for strike in before.into_iter().chain(after) {
        let mut struck = 0;
        for nth in 1.. {
            match mounts(strike.clone().nth(nth)) {
                Ok(true) => struck += 1,
                Ok(false) => break,
                Err(error) => problems.push(format!("{strike:?}, request {nth}: {error}")),
            }
        }
        assert!(struck > 10, "{strike:?} struck {struck} times");
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
