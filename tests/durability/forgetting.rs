//! Snapshots that a long-lived process forgets, and the sessions that it may leave in the root.

use bkfs::maintain::forgetting::{Changer, forgotten};
use bkfs::root::error::RootError;
use bkfs::root::state::ROOT_KEY;
use bkfs_store::Operation;
use bkfs_testing::fault::{Fault, Strike};

use crate::paused::{World, paused, seconds, snapshot};

/// Root replacements of a change: one that enters a session, the change, and one that ends it.
const STEPS: u64 = 3;

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
