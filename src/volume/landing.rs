//! Sends settled journal entries to the bucket, or keeps them in the spool.
//!
//! Owns: the waits, and when the spool takes the place of a silent store. Does not own: when
//! entries are sent (`journal`), the objects ([`JournalWriter`]).

use std::convert::Infallible;
use std::time::Duration;

use crate::root::error::RootError;
use crate::root::journal::JournalWriter;
use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::root_failure::RootFailure;

/// Time without an acknowledgement after which an entry is kept in the spool until it can be sent.
/// The same holds for files that are closed while an fsync waits.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Time without an acknowledgement of the store after which a journal takes the place of a commit.
/// A commit may compute or send for a while before the store acknowledges anything.
pub(super) const COMMIT_PATIENCE: Duration = Duration::from_secs(10);

/// The longest time between two commits that are asked for to make room in the spool.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The destination of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aim {
    /// The bucket, without a time limit of its own.
    Bucket,
    /// The bucket, or the spool if the store does not answer.
    Soon,
    /// The spool.
    Local,
}

/// Sends or keeps the settled entries, as `aim` demands, and the packs that they name before them.
///
/// Cancel safety: dropped, it leaves the rest to the next call.
///
/// # Errors
/// Failures of uploads; [`VolumeError::Commit`] for those of the journal.
pub(super) async fn bring(
    volume: &Volume,
    journal: &JournalWriter,
    aim: Aim,
) -> Result<(), VolumeError> {
    send(volume, journal, land(volume, journal), aim).await
}

/// Waits for `landing`, for the spool, or for either, as `aim` demands. The entry is settled
/// already, so giving up on one of them loses nothing.
///
/// # Errors
/// Those of `landing`; [`VolumeError::Commit`] if the spool fails.
pub(super) async fn send(
    volume: &Volume,
    journal: &JournalWriter,
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

/// Waits until the spool holds the settled entries.
///
/// A full spool is waited for no longer than the store: entries that reach the bucket make room in
/// the spool, and a commit of many entries makes it sooner than they do one by one. An entry that
/// has reached the bucket in time need not be kept.
async fn keep(volume: &Volume, journal: &JournalWriter) -> Result<(), VolumeError> {
    let lands = async {
        loop {
            tokio::time::sleep(PATIENCE).await;
            let is_there = land(volume, journal).await.is_ok() && !journal.is_bare();
            if is_there && is_in_time(volume, journal).await {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        kept = journal.keep() => kept.map_err(|error| failed(volume, error)),
        () = lands => Ok(()),
        never = make_room(volume, journal) => match never {},
    }
}

/// Asks for commits while an entry waits for room in the spool, less and less often.
async fn make_room(volume: &Volume, journal: &JournalWriter) -> Infallible {
    let mut pause = PATIENCE;
    loop {
        tokio::time::sleep(pause).await;
        if journal.waits_for_room() {
            volume.commit_soon();
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }
}

/// Returns whether every entry that went to the bucket from memory has arrived while the session
/// held the volume. Reads the root if that is not known.
async fn is_in_time(volume: &Volume, journal: &JournalWriter) -> bool {
    let confirmed = match journal.is_in_time() {
        true => Ok(()),
        false => journal.confirm().await,
    };
    confirmed.map_err(|error| failed(volume, error)).is_ok()
}

/// Converts the error of a journal, and poisons the volume if the session is lost.
pub(super) fn failed(volume: &Volume, error: RootError) -> VolumeError {
    match RootFailure::from(error) {
        RootFailure::Lost(why) => {
            let error = VolumeError::Commit(why);
            volume.poison(error.clone());
            error
        }
        RootFailure::Again(why) | RootFailure::Refused(why) | RootFailure::Unknown(why) => {
            VolumeError::Commit(why)
        }
    }
}

/// Sends all settled entries to the bucket, and the packs that they name before them. Entries that
/// are settled meanwhile are not sent, because they may name packs that only the spool has.
///
/// Cancel safety: dropped, it has sent the oldest entries or none.
///
/// # Errors
/// Failures of uploads; [`VolumeError::Commit`] for those of the journal.
pub(super) async fn land(volume: &Volume, journal: &JournalWriter) -> Result<(), VolumeError> {
    let until = journal.settled();
    volume.ingest.deliver().await?;
    let landed = journal.land(until).await;
    landed.map_err(|error| failed(volume, error))
}
