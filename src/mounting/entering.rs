//! How a writing session of a mount enters the root: with its volume, or with a clone that becomes
//! its volume.
//!
//! Owns the order of what comes before: old spools, and the trial of the store. Does not own the
//! session (`root::session`), the clone (`volumes`), nor the writer that follows (`writer`).

use crate::mounting::error::MountingError;
use crate::mounting::spooling::{self, SpoolNews};
use crate::mounting::writing::{CloneOf, Writing};
use crate::root::error::RootError;
use crate::root::repository::{probe, probe_lock};
use crate::root::request::{KnownSpools, VolumeRequest};
use crate::root::session::OpenSession;
use crate::volumes::{Cloning, clone_snapshot};

impl Writing {
    /// Enters the root and takes the volume, which is made if it is new. `accepts_loss` is
    /// [`VolumeRequest::accept_loss`]: it counts for this takeover, and for no later one. Dropped
    /// after the takeover, it leaves the session in the root.
    ///
    /// # Errors
    /// Refusals and errors of the root; [`MountingError::Spool`] if an old spool cannot be
    /// replayed; store errors. The volume is then not taken.
    pub(super) async fn enter(
        &self,
        steal: bool,
        accepts_loss: bool,
    ) -> Result<(OpenSession, SpoolNews), MountingError> {
        // A session that cannot write must not take anything over.
        self.repository.condemned().await?;
        let mut news = SpoolNews::default();
        let (left, known) = self.bring_spools(accepts_loss, &mut news).await?;
        let handle = &self.repository.handle;
        let (store, entropy) = (handle.store().as_ref(), handle.entropy().as_ref());
        probe(store, entropy, &handle.policy()).await?;
        if let Some(rule) = self.repository.lock {
            probe_lock(store, entropy, rule, self.repository.now()).await?;
        }
        let open = match &self.clone_of {
            Some(clone_of) => self.enter_clone(clone_of, known).await?,
            None => {
                let request = VolumeRequest {
                    name: self.volume.clone(),
                    steal,
                    accept_loss: accepts_loss,
                };
                let holder = self.holder.clone();
                let processes = self.repository.environment.processes.as_ref();
                let id = self.session.unwrap_or_else(|| OpenSession::draw_id(handle));
                OpenSession::open_as(id, handle, holder, request, processes, known).await?
            }
        };
        if let Some(ended_session) = open.taken_from() {
            tracing::warn!("volume {} was taken over from {ended_session}", self.volume);
        }
        spooling::discard(left, &open, self, accepts_loss, &mut news).await;
        Ok((open, news))
    }

    /// Brings the spools of dead sessions of this machine into the bucket: see
    /// [`SpoolPlace::replay`].
    ///
    /// # Errors
    /// [`MountingError::Spool`].
    pub(super) async fn bring_spools(
        &self,
        accepts_loss: bool,
        news: &mut SpoolNews,
    ) -> Result<(Vec<spooling::Brought>, KnownSpools), MountingError> {
        match &self.spool {
            Some(place) => Ok(place.replay(self, accepts_loss, news).await?),
            None => Ok(Default::default()),
        }
    }

    /// Makes the volume of the mount a clone, which the session holds from its first moment on.
    async fn enter_clone(
        &self,
        clone_of: &CloneOf,
        spools: KnownSpools,
    ) -> Result<OpenSession, RootError> {
        let command = self.holder.mount_point.as_str();
        let cloning = Cloning {
            source: &clone_of.volume,
            snapshot: &clone_of.snapshot,
            name: &self.volume,
            command,
            held_with: Some(spools),
        };
        let made = clone_snapshot(&self.repository, &cloning).await?.made;
        let unheld = || RootError::damaged("root", "a clone without its session");
        made.session.ok_or_else(unheld)
    }
}
