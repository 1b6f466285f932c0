//! Requests that take long, carried out while their clients only ask now and then.
//!
//! A process that waits in a write to `.bkfs/control` hears no signal until the answer is there:
//! the kernel waits for the daemon. So a client begins the request, and asks for its answer until
//! it has one. It can leave at any moment; the request goes on.
//!
//! Owns the requests under way, and their bound. Does not own what they do (`control`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::mounting::control::MountControl;
use crate::mounting::recording::Recording;
use crate::vfs::special::Control;

/// Requests under way at most, with those whose answers no client has fetched.
const JOBS_MAX: usize = 64;

/// How long a question waits for the answer.
const LOOK: Duration = Duration::from_millis(250);

/// What the client does with a request that takes long.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Envelope {
    /// Begin this request, and return its number.
    Begin(Value),
    /// Return the answer of the request with this number, or how far it has come.
    Job(u64),
}

/// The requests of a mount.
pub(super) struct Jobs {
    control: Arc<MountControl>,
    jobs: Mutex<Begun>,
}

/// The requests that were begun and not answered.
#[derive(Default)]
struct Begun {
    last: u64,
    jobs: BTreeMap<u64, JoinHandle<String>>,
}

impl Begun {
    /// Makes room for one more: forgets the oldest answer that no client has fetched. Returns false
    /// if all are under way.
    fn make_room(&mut self) -> bool {
        if self.jobs.len() < JOBS_MAX {
            return true;
        }
        let ended = self.jobs.iter().find(|(_, job)| job.is_finished());
        let ended = ended.map(|(number, _)| *number);
        ended.and_then(|number| self.jobs.remove(&number)).is_some()
    }

    fn add(&mut self, job: JoinHandle<String>) -> u64 {
        self.last += 1;
        self.jobs.insert(self.last, job);
        self.last
    }
}

impl Jobs {
    pub(super) fn new(control: MountControl) -> Jobs {
        Jobs {
            control: Arc::new(control),
            jobs: Mutex::default(),
        }
    }

    /// Ends what fetches data that no caller waits for.
    pub(super) fn stop_prefetches(&self) {
        self.control.traces.stop();
        self.control.hydrating.stop();
    }

    /// Returns what the mount records.
    pub(super) fn recording(&self) -> &Recording {
        self.control.traces.recording()
    }

    fn begin(&self, request: &Value) -> Value {
        let request = Bytes::from(request.to_string());
        let control = self.control.clone();
        let mut begun = self.jobs.lock();
        if !begun.make_room() {
            return json!({ "error": "too many requests are under way", "code": 1 });
        }
        let job = tokio::spawn(async move { control.handle(request).await });
        json!({ "job": begun.add(job) })
    }

    /// Returns the answer of a job, once; before, what it waits for.
    async fn look(&self, number: u64) -> String {
        let Some(mut job) = self.jobs.lock().jobs.remove(&number) else {
            return json!({ "error": "no such request is under way", "code": 1 }).to_string();
        };
        match tokio::time::timeout(LOOK, &mut job).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                json!({ "error": format!("the request broke off: {error}"), "code": 14 })
                    .to_string()
            }
            Err(_) => {
                self.jobs.lock().jobs.insert(number, job);
                json!({ "pending": self.control.waiting().json() }).to_string()
            }
        }
    }
}

#[async_trait]
impl Control for Jobs {
    fn status(&self) -> String {
        self.control.status()
    }

    fn metrics(&self) -> String {
        self.control.metrics()
    }

    async fn handle(&self, request: Bytes) -> String {
        match serde_json::from_slice(&request) {
            Ok(Envelope::Begin(request)) => self.begin(&request).to_string(),
            Ok(Envelope::Job(number)) => self.look(number).await,
            Err(_) => self.control.handle(request).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_that_were_not_fetched_make_room() {
        let mut begun = Begun::default();
        for _ in 0..JOBS_MAX {
            assert!(begun.make_room());
            begun.add(tokio::spawn(std::future::pending()));
        }
        assert!(!begun.make_room(), "all are under way");
        let oldest = *begun.jobs.keys().next().unwrap();
        begun.jobs[&oldest].abort();
        while !begun.jobs[&oldest].is_finished() {
            tokio::task::yield_now().await;
        }
        assert!(begun.make_room());
        assert_eq!(begun.jobs.len(), JOBS_MAX - 1);
        let number = begun.add(tokio::spawn(async { String::new() }));
        assert_eq!(number, JOBS_MAX as u64 + 1);
    }
}
