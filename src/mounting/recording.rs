//! The traces that a mount stores of its own reads.
//!
//! Owns the tasks that store them, what of them the end of the mount waits for, and their sessions.
//! Does not own what was read (`trace::touches`), nor the file of a trace (`trace_store`).

use std::sync::Arc;
use std::time::Duration;

use bkfs_chunker::id::Id;
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::mounting::departing::Departing;
use crate::mounting::ending::{Deadline, KEEPING, LEAVING};
use crate::mounting::trace_store::{TraceStoreError, save};
use crate::repository::Repository;
use crate::trace::place::{Traced, trace_of};
use crate::trace::touches::Touches;
use crate::volume::error::VolumeError;
use crate::volume::nodes::Nodes;
use crate::volume::state::Totals;
use crate::volume::view::View;

/// The holder of a session that stores a trace.
const COMMAND: &str = "bkfs trace record";

/// Why no trace is stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    /// The mount records nothing.
    #[error("this mount records no trace: only clones do (bkfs mount -o clone=SNAPSHOT)")]
    NotRecording,
    /// Nothing was read yet.
    #[error("no file of this mount was read yet")]
    NothingRead,
    /// The mount ends.
    #[error("the mount ended before the trace was stored")]
    Ended,
    /// The trace cannot be stored.
    #[error(transparent)]
    Store(#[from] TraceStoreError),
    /// The tree cannot be read.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// What a mount reads, and the tasks that store it.
pub(super) struct Recording {
    parts: Arc<RecordingParts>,
    /// None once the mount ends.
    tasks: Mutex<Option<JoinSet<()>>>,
}

/// What a trace is made of.
pub(super) struct RecordingParts {
    /// Where it is stored.
    pub(super) repository: Arc<Repository>,
    /// The volume of the snapshots that it is for.
    pub(super) volume: String,
    /// The tree that the mount began with. Files have the names there that a later clone looks for.
    pub(super) tree: Id,
    /// What was read; none if the mount does not record.
    pub(super) touches: Option<Arc<Touches>>,
    /// The sessions that store traces.
    pub(super) departing: Departing,
}

impl Recording {
    pub(super) fn new(parts: RecordingParts) -> Recording {
        Recording {
            parts: Arc::new(parts),
            tasks: Mutex::new(Some(JoinSet::new())),
        }
    }

    /// Stores what was touched first as a trace.
    ///
    /// Cancel safety: dropped, it leaves a task that stores the trace.
    ///
    /// # Errors
    /// All of [`RecordError`].
    pub(super) async fn record(&self, name: &str) -> Result<Value, RecordError> {
        let (told, answer) = oneshot::channel();
        let (parts, name) = (self.parts.clone(), name.to_owned());
        {
            let mut tasks = self.tasks.lock();
            let tasks = tasks.as_mut().ok_or(RecordError::Ended)?;
            while tasks.try_join_next().is_some() {}
            // The compiler cannot look through this future and that of the request together.
            let recording = async move { parts.record(&name).await }.boxed();
            tasks.spawn(async move {
                let _ = told.send(recording.await);
            });
        }
        answer.await.unwrap_or(Err(RecordError::Ended))
    }

    /// Waits for the traces that are being stored, until the deadline. From now on none is begun.
    pub(super) async fn end(&self, deadline: &Deadline) {
        let Some(mut tasks) = self.tasks.lock().take() else {
            return;
        };
        let ended = async { while tasks.join_next().await.is_some() {} };
        let is_in_time = tokio::select! {
            biased;
            () = ended => true,
            () = deadline.passed_by(Duration::ZERO) => false,
        };
        if !is_in_time {
            tracing::warn!("a trace is not stored: the mount ends before");
            tasks.shutdown().await;
        }
    }

    /// Ends the sessions that are left in the root. Returns at most a few seconds after the
    /// deadline.
    pub(super) async fn leave(&self, deadline: &Deadline) {
        let ended = tokio::select! {
            biased;
            ended = self.parts.departing.end_all() => ended.map_err(|error| error.to_string()),
            () = deadline.passed_by(KEEPING + LEAVING) => Err("the time is over".to_owned()),
        };
        if let Err(error) = ended {
            tracing::warn!(
                "a session of a trace stays in the root until the next one on this machine: {error}"
            );
        }
    }
}

impl RecordingParts {
    async fn record(&self, name: &str) -> Result<Value, RecordError> {
        let touches = self.touches.as_ref().ok_or(RecordError::NotRecording)?;
        let recorded = touches.recorded();
        // The search gives way to reads of programs, and evicts no node of theirs.
        let nodes = Arc::new(Nodes::new(self.repository.content_store.ahead()));
        let view = View::frozen(nodes, self.tree, Totals::default());
        let Traced { trace, is_whole } = trace_of(&view, &recorded).await?;
        drop(view);
        if trace.touches.is_empty() {
            return Err(RecordError::NothingRead);
        }
        // A session of this mount that is still in the root would hold the volume.
        let ended = self.departing.end_all().await;
        ended.map_err(|error| TraceStoreError::Session(error.into()))?;
        let visit = self.departing.begin();
        let by = (COMMAND, visit.id());
        save(&self.repository, (&self.volume, name), &trace, by).await?;
        visit.end();
        Ok(json!({
            "name": name,
            "volume": self.volume,
            "files": trace.paths.len(),
            "ranges": trace.touches.len(),
            "bytes": trace.total_bytes(),
            "full": touches.counts().is_full,
            "whole": is_whole,
        }))
    }
}
