//! Bringing what is settled in journals to the bucket, or to the spool.
//!
//! Owns: what is waited for, and when a silent store is given up for the spool. Does not own: when
//! that is asked for (`journal`), nor the objects ([`Journal`]).

use std::time::Duration;

use crate::volume::Volume;
use crate::volume::commit::PublishError;
use crate::volume::error::VolumeError;
use crate::volume::journal::Journal;

/// After so long without anything acknowledged, a journal is kept in the spool until it can be sent,
/// and so are files that were closed while an fsync waits.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// What is to become of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aim {
    /// The bucket, however long that takes.
    Bucket,
    /// The bucket, but the spool if the store does not answer.
    Soon,
    /// The spool.
    Local,
}

/// Brings what is settled to where `aim` is content with, and what it names before it. Dropped, it
/// leaves the rest to the next call.
pub(super) async fn bring(
    volume: &Volume,
    journal: &dyn Journal,
    aim: Aim,
) -> Result<(), VolumeError> {
    send(volume, journal, land(volume, journal), aim).await
}

/// Waits for `landing`, for the spool, or for either, as `aim` says. What is given up on is
/// settled.
pub(super) async fn send(
    volume: &Volume,
    journal: &dyn Journal,
    landing: impl Future<Output = Result<(), VolumeError>>,
    aim: Aim,
) -> Result<(), VolumeError> {
    match aim {
        Aim::Bucket => landing.await,
        Aim::Local => keep(volume, journal).await,
        Aim::Soon => tokio::select! {
            biased;
            landed = landing => landed,
            () = volume.ingest.idle(PATIENCE) => keep(volume, journal).await,
        },
    }
}

/// Waits until the spool has what is settled. A full one is not waited for longer than the store:
/// what lands makes room in it, and what has landed itself need not be kept.
async fn keep(volume: &Volume, journal: &dyn Journal) -> Result<(), VolumeError> {
    let lands = async {
        loop {
            tokio::time::sleep(PATIENCE).await;
            if land(volume, journal).await.is_ok() && !journal.is_bare() {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        kept = journal.keep() => kept.map_err(|error| failed(volume, error)),
        () = lands => Ok(()),
    }
}

/// A journal did not come about.
pub(super) fn failed(volume: &Volume, error: PublishError) -> VolumeError {
    match error {
        PublishError::Lost(why) => {
            let error = VolumeError::Commit(why);
            volume.poison(error.clone());
            error
        }
        PublishError::Again(why) | PublishError::Refused(why) | PublishError::Unknown(why) => {
            VolumeError::Commit(why)
        }
    }
}

/// Brings all that is settled into the bucket, and what it names before it. What is settled
/// meanwhile may name packs that only the spool has, so it does not go along. Dropped, it has
/// brought the oldest of it or nothing.
pub(super) async fn land(volume: &Volume, journal: &dyn Journal) -> Result<(), VolumeError> {
    let until = journal.settled();
    volume.ingest.deliver().await?;
    let landed = journal.land(until).await;
    landed.map_err(|error| failed(volume, error))
}
