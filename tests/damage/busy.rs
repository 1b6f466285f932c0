//! A check next to a mount that writes all the time.

use std::sync::Arc;

use async_trait::async_trait;
use bkfs::maintain::check::check;
use bkfs::maintain::options::CheckOptions;
use bkfs_store::{MemoryStore, ObjectInfo, Store, StoreError};
use parking_lot::Mutex;

use crate::machine::{Machine, noise};
use crate::world::{Fixture, bucket, wait};

/// A bucket on which a machine works while the whole bucket is listed. Between the two pages of
/// each such list the machine commits, and acknowledges another write.
#[derive(Debug)]
struct Busy {
    bucket: Arc<MemoryStore>,
    machine: Mutex<Worker>,
}

struct Worker {
    machine: Arc<Machine>,
    rounds: u64,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Worker({})", self.rounds)
    }
}

impl Worker {
    fn write(&mut self) {
        self.rounds += 1;
        let name = format!("round-{}", self.rounds);
        self.machine.write(&name, 0, noise(self.rounds, 30_000));
        self.machine.fsync();
    }

    /// Commits, so that the journal of the last write is no longer needed, and writes again.
    fn go_on(&mut self, bucket: &MemoryStore) {
        let journals = || wait(bucket.list("journal/", None, 1000)).expect("listed");
        let covered = journals();
        self.machine.snapshot(&format!("round-{}", self.rounds));
        // A task of its own deletes the journals.
        while covered.iter().any(|one| journals().contains(one)) {
            std::thread::yield_now();
        }
        self.write();
    }
}

#[async_trait]
impl bkfs_store::Layer for Busy {
    fn below(&self) -> &dyn Store {
        &*self.bucket
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut listed = self.bucket.list(prefix, after, limit).await?;
        if !prefix.is_empty() {
            return Ok(listed);
        }
        let last = listed
            .iter()
            .rposition(|object| object.key.starts_with("journal/"));
        let last = listed[last.expect("a journal")].key.clone();
        std::thread::scope(|scope| {
            let worked = scope
                .spawn(|| self.machine.lock().go_on(&self.bucket))
                .join();
            worked.expect("works");
        });
        listed.retain(|object| object.key <= last);
        listed.extend(self.bucket.list(prefix, Some(&last), limit).await?);
        Ok(listed)
    }

    fn describe(&self) -> String {
        "busy".to_owned()
    }
}

#[test]
fn a_check_during_writes_finds_nothing() {
    let fixture = Fixture::build(None);
    let store = bucket(&fixture.objects);
    let machine = Arc::new(Machine::mount(store.clone(), None));
    let mut worker = Worker { machine, rounds: 0 };
    worker.write();
    let busy = Arc::new(Busy {
        bucket: store,
        machine: Mutex::new(worker),
    });
    let checked = wait(check(
        busy.clone(),
        &fixture.keyring,
        &CheckOptions::oracle(),
    ));
    let report = checked.expect("checks");
    assert!(
        busy.machine.lock().rounds > 1,
        "the writer did nothing meanwhile"
    );
    assert!(report.is_clean(), "{report}");
}
