//! Snapshots that a long-lived process forgets, and the sessions that it may leave in the root.

use std::sync::Arc;
use std::time::Duration;

use bkfs::maintain::forgetting::{Changer, forgotten};
use bkfs::page::Page;
use bkfs::page::changes::{Changes, Fields};
use bkfs::page::guard::Guard;
use bkfs::page::restores::Restores;
use bkfs::page::route::{Form, Route, VolumeName};
use bkfs::root::error::RootError;
use bkfs::root::state::ROOT_KEY;
use bkfs_store::Operation;
use bkfs_testing::fault::{Fault, Strike};

use crate::paused::{World, paused, seconds, snapshot};

/// Root replacements of a change: one that enters a session, the change, and one that ends it.
const STEPS: u64 = 3;

/// A server may have one bucket by two URLs. A change by the one must not take the session of a
/// change by the other for left over.
#[test]
fn changes_of_one_bucket_by_two_urls_take_turns() {
    paused(async {
        let world = World::new(seconds(60)).await;
        let mount = world.mount().await;
        for name in ["first", "second"] {
            snapshot(&mount, name).await;
        }
        let changes = Changes::new(Arc::new(Page {
            repositories: vec![world.repository().await, world.repository().await],
            guard: Guard::new(&[], None, [0; 32]),
            mounts: Arc::new(|_| Vec::new()),
            may_forget: true,
            restores: Restores::new(Vec::new()),
        }));
        let delay = Fault::Delay(Duration::from_millis(50));
        world.faults.plan(Strike::with(delay).always());
        let forget = async |repository: usize, name: &str| {
            let volume = "main".to_owned();
            let file = VolumeName { repository, volume }.snapshot(name);
            let form = Route::File(file, Form::Forget);
            changes.carry_out(form, &Fields::parse(b"")).await
        };
        let (first, second) = futures::join!(forget(0, "first"), forget(1, "second"));
        first.expect("forgotten");
        second.expect("forgotten");
    });
}

#[test]
fn a_change_whose_store_fails_leaves_no_session_for_long() {
    paused(async {
        let world = World::new(seconds(60)).await;
        let mount = world.mount().await;
        mount.put("file", b"contents").await;
        snapshot(&mount, "first").await;
        let repository = world.repository().await;
        let changer = Changer {
            repository: &repository,
            command: "test",
        };
        let sessions = async || {
            let view = repository.handle.refresh().await.expect("read");
            view.root.sessions.len()
        };
        assert_eq!(sessions().await, 1, "that of the mount");
        let mut leftovers = 0;
        for step in 1..=STEPS {
            for fault in [Fault::Hang, Fault::Late] {
                let strike = Strike::with(fault).on(Operation::Replace).keys(ROOT_KEY);
                world.faults.plan(strike.nth(step).always());
                let names = ["first".to_owned()];
                let changed = changer.forget("main", &names).await;
                world.faults.heal();
                world.faults.apply_late().await;
                let left = sessions().await - 1;
                leftovers += left;
                changer.end_leftovers().await.expect("cleared");
                assert_eq!(sessions().await, 1, "step {step}: {changed:?}");
                // The next change needs no clearing.
                let is_forgotten = !forgotten(&repository, "main")
                    .await
                    .expect("read")
                    .is_empty();
                if is_forgotten {
                    changer.bring_back("main", "first").await.expect("back");
                } else {
                    let error = changed.expect_err("it says that nothing was changed");
                    assert!(!matches!(error, RootError::NoSnapshot { .. }), "{error}");
                }
                assert_eq!(sessions().await, 1, "step {step}");
            }
        }
        assert!(leftovers > 0, "no change has left a session");
    });
}
