//! Sessions that a mount enters the root with for one change, apart from the one that writes its
//! volume.
//!
//! Owns the end of those that did not leave by themselves. While one is in the root, it holds back
//! collection, and the volume that it has taken. Other processes of this machine take it for alive
//! as long as the mount is. So the mount ends it as soon as the store permits.
//!
//! Such a session must acknowledge nothing before its commit ([`OpenSession::end_left`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::session::OpenSession;
use crate::root::state::SessionId;

/// Pause between two attempts to end a session.
const RETRY: Duration = Duration::from_secs(10);

/// Time limit of one attempt. Changes of the root wait for each other, and that of the mount must
/// not wait long for this one.
const ATTEMPT: Duration = Duration::from_secs(10);

/// The sessions of a mount that did not leave the root by themselves.
pub(super) struct Departing {
    shared: Arc<Shared>,
    /// Ends them. It begins with the first session.
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

struct Shared {
    handle: RootHandle,
    left: Mutex<BTreeSet<SessionId>>,
    has_more: Notify,
}

/// A session that is about to enter the root. Dropped before [`Visit::end`], it leaves the
/// session to [`Departing`]. It must be dropped after the session.
pub(super) struct Visit {
    id: SessionId,
    shared: Arc<Shared>,
    is_over: bool,
}

impl Departing {
    pub(super) fn new(handle: RootHandle) -> Departing {
        Departing {
            shared: Arc::new(Shared {
                handle,
                left: Mutex::default(),
                has_more: Notify::new(),
            }),
            task: Mutex::new(None),
        }
    }

    /// Returns the id of a session that is to enter. Runs within a runtime.
    pub(super) fn begin(&self) -> Visit {
        self.task.lock().get_or_insert_with(|| {
            let ending = end_later(self.shared.clone());
            AbortOnDropHandle::new(tokio::spawn(ending))
        });
        Visit {
            id: OpenSession::draw_id(&self.shared.handle),
            shared: self.shared.clone(),
            is_over: false,
        }
    }

    /// Ends all sessions that are left. Returns at the first that cannot be ended now.
    ///
    /// Cancel safety: dropped, it leaves those that were not ended to the next call.
    ///
    /// # Errors
    /// Those of [`OpenSession::end_left`].
    pub(super) async fn end_all(&self) -> Result<(), RootError> {
        self.shared.end_all().await
    }
}

impl Shared {
    async fn end_all(&self) -> Result<(), RootError> {
        loop {
            let Some(id) = self.left.lock().first().copied() else {
                return Ok(());
            };
            OpenSession::end_left(&self.handle, id).await?;
            self.left.lock().remove(&id);
            tracing::info!(session = %id, "a session that was left behind is out of the root");
        }
    }
}

/// Ends sessions whenever some are left, until the store permits it.
async fn end_later(shared: Arc<Shared>) {
    loop {
        shared.has_more.notified().await;
        loop {
            match tokio::time::timeout(ATTEMPT, shared.end_all()).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => {
                    tracing::debug!("a session stays in the root, will be tried again: {error}");
                }
                Err(_) => tracing::debug!("a session stays in the root, will be tried again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

impl Visit {
    /// The session's id.
    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    /// Notes that the session has left the root.
    pub(super) fn end(mut self) {
        self.is_over = true;
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.left.lock().insert(self.id);
            self.shared.has_more.notify_one();
        }
    }
}
