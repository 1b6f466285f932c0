//! The merge of the index that follows a collection: how much it may do, and what is said of it.
//!
//! Owns its bounds, its words and its fields of JSON. A merge that fails costs speed and never data, so
//! it does not fail the collection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bkfs_chunker::error::ContentError;
use bkfs_store::StoreErrorKind;
use serde_json::{Value, json};

use crate::cli::output::{Failure, Output, bytes};
use crate::cli::progress::{Position, Progress};
use crate::maintain::collect::verifier;
use crate::maintain::merging::{MergePolicy, Merged, Stop, merge_runs_until};
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::state::Root;

/// How much one collection merges.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// When and how large groups are made.
    pub policy: MergePolicy,
    /// After so many records a merge begins no further step.
    pub records_max: u64,
}

impl Default for Bounds {
    /// A collection writes about 1.3 GiB at most, and reads as much. The next one goes on.
    fn default() -> Self {
        Self {
            policy: MergePolicy::default(),
            records_max: 64 << 20,
        }
    }
}

impl Bounds {
    /// Returns the bounds by which nothing is merged.
    pub fn nothing() -> Self {
        Self {
            records_max: 0,
            ..Self::default()
        }
    }

    /// Returns the chunks that are to be merged, if a merge has something to do in this root.
    fn due(&self, root: &Root) -> Option<u64> {
        let is_due = self.records_max > 0 && self.policy.is_due(root);
        is_due.then(|| self.policy.unmerged_blobs(root))
    }

    /// Returns what a merge would do in this root, for people. `None` if it would do nothing.
    pub fn due_text(&self, root: &Root) -> Option<String> {
        let due = match self.due(root)? {
            0 if root.building_group().is_some() => {
                "to merge: the rest of a group of runs that is half made".to_owned()
            }
            0 => "to merge: groups of runs of the index".to_owned(),
            chunks => {
                format!("to merge: the index of {chunks} chunks, which are in no group of runs")
            }
        };
        let most = self.records_max;
        Some(format!("{due} (at most {most} records in one collection)"))
    }

    /// Adds what a merge would do in this root to the line of a plan.
    pub fn add_due(&self, root: &Root, line: &mut Value) {
        let due = self.due(root);
        line["merge_due"] = json!(due.is_some());
        line["unmerged_chunks"] = json!(due.unwrap_or(0));
    }
}

/// Merges what the index has grown by, within bounds, and says what was done. `told` returns why it
/// is to end, if a signal asks for that.
///
/// # Errors
/// Exit code 1 if it was told to end, or if standard output cannot be written. That a merge fails, or
/// ends early for another reason, is no error.
pub async fn merge(
    repository: &Repository,
    bounds: &Bounds,
    output: &Output,
    told: impl Future<Output = &'static str>,
) -> Result<(), Failure> {
    if bounds.due(&repository.handle.current().root).is_none() {
        return Ok(());
    }
    let records = AtomicU64::new(0);
    let runs = AtomicU64::new(0);
    let written = Arc::new(AtomicU64::new(0));
    let bar = follow(output, written.clone());
    let goes_on = |merged: &Merged| {
        // What was done is known also if a later step fails.
        runs.store(merged.runs, Ordering::Relaxed);
        records.store(merged.records, Ordering::Relaxed);
        written.store(merged.bytes, Ordering::Relaxed);
        merged.records < bounds.records_max
    };
    let why = OnceLock::new();
    let told = async {
        let _ = why.set(told.await);
    };
    let merged = async {
        let verifier = verifier(repository)?;
        let by = ("bkfs gc", told);
        merge_runs_until(repository, &verifier, &bounds.policy, &goes_on, by).await
    };
    let merged = merged.await;
    bar.finish().await;
    let (merged, error) = match merged {
        Ok(merged) => (merged, None),
        Err(error) => (Merged::default(), Some(error)),
    };
    let merged = match &error {
        None => merged,
        Some(_) => Merged {
            runs: runs.into_inner(),
            records: records.into_inner(),
            bytes: written.load(Ordering::Relaxed),
            stop: None,
        },
    };
    if merged.runs > 0 || merged.stop.is_some() || error.is_some() {
        let error = error.as_ref();
        output.result(&merged_json(&merged, error), || merged_text(&merged, error))?;
    }
    match why.get().filter(|_| merged.stop == Some(Stop::Told)) {
        Some(why) => Err(Failure::new(format!("{why}: the index is merged in part"))
            .hint("The collection is complete. The next bkfs gc --merge goes on.")),
        None => Ok(()),
    }
}

fn follow(output: &Output, written: Arc<AtomicU64>) -> Progress {
    Progress::follow(output, move || Position {
        bytes: written.load(Ordering::Relaxed),
        total_bytes: None,
        message: "of the index merged".to_owned(),
    })
}

fn merged_json(merged: &Merged, error: Option<&RootError>) -> Value {
    let stopped = match (merged.stop, error) {
        (_, Some(_)) => Some("failed"),
        (None, None) => None,
        (Some(Stop::Bound), _) => Some("bound"),
        (Some(Stop::Told), _) => Some("signal"),
        (Some(Stop::GroupsGone), _) => Some("groups_gone"),
        (Some(Stop::NoRoom), _) => Some("no_room"),
        (Some(Stop::Newer), _) => Some("newer"),
    };
    json!({
        "merged_runs": merged.runs,
        "merged_records": merged.records,
        "merged_bytes": merged.bytes,
        "merge_stopped": stopped,
        "merge_error": error.map(RootError::to_string),
    })
}

fn is_denied(error: &RootError) -> bool {
    let store = match error {
        RootError::Store(error) => error,
        RootError::Content(ContentError::Store(error)) => &**error,
        _ => return false,
    };
    store.kind() == StoreErrorKind::Denied && store.key().starts_with("runs/")
}

/// Returns what was merged, and why not all was, for people.
pub fn merged_text(merged: &Merged, error: Option<&RootError>) -> String {
    let mut text = format!(
        "merged the index: wrote {} runs of {} records ({})",
        merged.runs,
        merged.records,
        bytes(merged.bytes)
    );
    if let Some(error) = error {
        text += &format!(
            "\nthe rest was not merged: {error}{}. The index is read as before, and the next bkfs gc \
             --merge tries it again",
            match is_denied(error) {
                true => " (runs are optional; to have them, let these credentials use runs/)",
                false => "",
            }
        );
    }
    text += match merged.stop {
        None => "",
        Some(Stop::Bound | Stop::Told) => {
            "\nthe rest waits: the next bkfs gc --merge goes on with it"
        }
        Some(Stop::GroupsGone) => {
            "\nthe merge ended early: groups of runs have left the repository. A bkfs that does not \
             know them drops them with each commit; a repair drops them as well. Nothing is lost but \
             speed. Update bkfs on each machine that writes here; the next bkfs gc --merge merges again"
        }
        Some(Stop::NoRoom) => {
            "\nthe merge ended early: the root has no room for further groups of runs. The rest of \
             the index is read as before"
        }
        Some(Stop::Newer) => {
            "\nthe merge ended early: a newer bkfs has begun a group of runs, which only it can build. \
             The rest of the index is read as before. Merge with that bkfs"
        }
    };
    text
}
