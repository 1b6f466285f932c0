//! Journals over slow lines: how long an entry may take while bytes move.

use super::journal::{enter, entry, write, writer};
use super::support::*;
use bkfs_store::{GuardedStore, Operation, Signs, Store, StoreError, StoreErrorKind};
use bkfs_testing::fault::{Fault, FaultStore, Strike};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Writes an entry to a store that takes so many seconds for a journal, after an answer of this kind
/// if there is one. Bytes of bodies move for so many seconds. Returns whether it was written, and
/// after how many seconds.
async fn write_slowly(first: Option<StoreErrorKind>, seconds: u64, moving: u64) -> (bool, u64) {
    let signs = Signs::default();
    let guarded = GuardedStore::new(memory().await, signs.clone());
    let faults = Arc::new(FaultStore::new(Arc::new(guarded)));
    let store: Arc<dyn Store> = faults.clone();
    let session = enter(&store, 1, "a").await.expect("free");
    let writer = writer(&store, &session).await;
    let strike = |fault| Strike::with(fault).on(Operation::PutNew).keys("journal/");
    if let Some(kind) = first {
        faults.plan(strike(Fault::FailBefore(kind)));
    }
    let delay = Fault::Delay(Duration::from_secs(seconds));
    faults.plan(strike(delay).nth(1 + u64::from(first.is_some())).always());
    let begin = Instant::now();
    let moves = async {
        for _ in 0..moving {
            tokio::time::sleep(Duration::from_secs(1)).await;
            signs.sent(begin);
        }
        std::future::pending().await
    };
    tokio::select! {
        written = write(&writer, entry(1)) => (written.is_ok(), begin.elapsed().as_secs()),
        never = moves => never,
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_takes_as_long_as_its_bytes_move() {
    let (is_written, took) = write_slowly(None, 305, 300).await;
    assert!(is_written);
    assert_eq!(took, 305, "it is sent once");
    let (is_written, took) = write_slowly(None, 305, 0).await;
    assert!(!is_written, "nothing moves");
    assert!((60..=70).contains(&took), "{took} s");
    let (is_written, took) = write_slowly(None, 305, 100).await;
    assert!(!is_written, "nothing moves any more");
    assert!((110..=120).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn bytes_that_move_after_a_request_without_an_answer_change_nothing() {
    let unknown = Some(StoreErrorKind::OutcomeUnknown);
    let (is_written, took) = write_slowly(unknown, 305, 300).await;
    assert!(!is_written, "the store takes bodies and does not answer");
    assert!((60..=75).contains(&took), "{took} s");
    let refused = Some(StoreErrorKind::Throttled);
    let (is_written, took) = write_slowly(refused, 305, 320).await;
    assert!(is_written, "a refusal is an answer");
    assert!((305..=310).contains(&took), "{took} s");
}

/// A store whose layer repeats refused journals by itself, as the remote one does.
#[derive(Debug)]
struct Stubborn(Arc<dyn Store>);

#[async_trait::async_trait]
impl bkfs_store::Layer for Stubborn {
    fn below(&self) -> &dyn Store {
        &*self.0
    }

    async fn put_new(
        &self,
        key: &str,
        body: Vec<Bytes>,
    ) -> Result<bkfs_store::Version, StoreError> {
        let begin = Instant::now();
        loop {
            let answer = self.0.put_new(key, body.clone()).await;
            let is_refused = |error: &StoreError| error.kind() == StoreErrorKind::Throttled;
            if !answer.as_ref().is_err_and(is_refused) || begin.elapsed().as_secs() > 58 {
                return answer;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_move_while_an_entry_is_refused_do_not_double_its_time() {
    let signs = Signs::default();
    let faults = Arc::new(FaultStore::new(memory().await));
    let guarded = GuardedStore::new(faults.clone(), signs.clone());
    let store: Arc<dyn Store> = Arc::new(Stubborn(Arc::new(guarded)));
    let session = enter(&store, 1, "a").await.expect("free");
    let writer = writer(&store, &session).await;
    let busy = Strike::with(Fault::FailBefore(StoreErrorKind::Throttled));
    let journals = busy.on(Operation::PutNew).keys("journal/");
    faults.plan(journals.always());
    let begin = Instant::now();
    // Another body moves all the time.
    let moves = async {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            signs.sent(begin);
        }
    };
    tokio::select! {
        written = write(&writer, entry(1)) => written.map(drop).expect_err("refused"),
        never = moves => never,
    };
    let took = begin.elapsed().as_secs();
    assert!((58..=75).contains(&took), "{took} s");
}
