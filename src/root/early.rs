//! Reading the root for a change while what the change needs is uploaded.

use super::error::RootError;
use super::handle::{Applied, RootHandle, Transition};
use super::start::{EarlyRead, EarlyRoot, Start};
use futures::future::{Either, select};
use std::pin::pin;
use tokio::time::Instant;

impl RootHandle {
    /// Awaits the uploads that a change needs, and reads the root for it meanwhile. Returns no root
    /// if it was not read by then, cannot be read, or others change it too: it would change again
    /// before it is needed. An error ends the session: the root does not descend from one known.
    ///
    /// Cancel safety: that of the uploads.
    pub async fn read_during<T>(&self, uploads: impl Future<Output = T>) -> (T, EarlyRead) {
        match select(pin!(uploads), pin!(self.read_early())).await {
            Either::Left((uploaded, _)) => (uploaded, Ok(None)),
            Either::Right((early, uploads)) => (uploads.await, early),
        }
    }

    async fn read_early(&self) -> EarlyRead {
        if !self.is_alone() {
            return Ok(None);
        }
        // An answer may come late, and is as old as its request.
        let read = Instant::now();
        match self.refresh().await {
            Ok(view) => Ok(Some(EarlyRoot { view, read })),
            Err(error) if error.ends_session() => Err(error),
            // The change reads the root by itself.
            Err(_) => Ok(None),
        }
    }

    /// Makes a change as [`Self::update`] does, without another read of a root that was read just
    /// now.
    ///
    /// # Errors
    /// That of the early read; those of [`Self::update`].
    pub async fn update_early<T: Transition>(
        &self,
        early: EarlyRead,
        transition: &mut T,
    ) -> Result<Applied<T::Output>, RootError> {
        self.change(transition, Start::Early(early?)).await
    }
}
