//! Fences: an object for each session that another one has ended (docs/PROTOCOL.md, "Fences").
//!
//! Owns the object `fence/SESSION`: when it is written, and what its absence proves. Sessions in a
//! large root go by fences, so that fsync does not read the root whenever another session has
//! changed it. Those in a small root read the root, since a new holder of version 1 writes no fence.
//!
//! The order in which a new holder acts makes the proof: it replaces the root, then writes the
//! fences and waits for their answers, and only then searches for journals. So a journal that was
//! answered before its session found no fence is found.
//!
//! No fence is ever deleted. A paused session could ask for it, find none and acknowledge.

use super::error::RootError;
use super::form::Form;
use super::handle::RootHandle;
use super::patient_reads::PatientReads;
use super::refusal::Refusal;
use super::retry::{RetryPolicy, patiently, random};
use super::state::{Root, SessionId};
use bkfs_chunker::crypto::{Class, Features, Keyring};
use bkfs_store::entropy::Entropy;
use bkfs_store::{Operation, Store, StoreErrorKind};
use futures::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;
use std::time::Duration;

/// The largest number of fences that are written concurrently.
const WRITTEN_AT_ONCE: usize = 16;

/// How long a session that has found its fence asks for the name of the new holder.
const NAME_WITHIN: Duration = Duration::from_secs(4);

/// Returns whether the sessions in this root go by fences.
pub(super) fn are_used(root: &Root) -> bool {
    root.form == Form::Large
}

/// Prepares a session that has just taken a volume for its first journal, and for its search for
/// those of ended sessions. `announce` writes the session's own object. In a large root both of these
/// are done:
///
/// - The session's own object is in the bucket, and a root that was read after that shows the
///   session as the holder. So a repair of a lost root knows the session, and writes its fence.
/// - The fences of all ended sessions of the volume stand.
///
/// Cancel safety: dropped, it has written some of the fences.
///
/// # Errors
/// [`RootError::Refused`] with [`Refusal::Fenced`] if the session does not hold the volume;
/// [`RootError::Store`] if the store does not answer in time; the errors of
/// [`RootHandle::read_whole`].
pub(super) async fn begin(
    handle: &RootHandle,
    session: SessionId,
    volume: &str,
    announce: impl Future<Output = Result<(), RootError>>,
) -> Result<(), RootError> {
    let view = handle.current();
    if !are_used(&view.root) {
        return Ok(());
    }
    let announced = async {
        announce.await?;
        // All of it is read, since one that cannot be read may have the version that is known.
        let view = handle.read_whole().await?;
        view.root.require_holder(session, volume)?;
        Ok(())
    };
    // An earlier holder may have crashed before it had written all of them.
    let ended = view.root.ending_sessions(volume);
    let (policy, entropy) = (handle.policy(), handle.entropy());
    let fences = write_all(handle.store(), handle.keyring(), (&policy, entropy), ended);
    tokio::try_join!(announced, fences)?;
    Ok(())
}

/// Writes the fences of these sessions into a bucket, whose root may be lost, until the store has
/// answered for each.
///
/// Cancel safety: dropped, it has written some of them.
///
/// # Errors
/// [`RootError::Store`] if the store does not answer in time.
pub(crate) async fn write_all(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    (policy, entropy): (&RetryPolicy, &Arc<dyn Entropy>),
    sessions: impl IntoIterator<Item = SessionId>,
) -> Result<(), RootError> {
    let writes = sessions
        .into_iter()
        .map(|session| write(store, keyring, (policy, entropy), session));
    stream::iter(writes)
        .buffer_unordered(WRITTEN_AT_ONCE)
        .try_collect()
        .await
}

/// Writes one fence. A request without an answer is sent again.
async fn write(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    (policy, entropy): (&RetryPolicy, &Arc<dyn Entropy>),
    session: SessionId,
) -> Result<(), RootError> {
    let (key, salt) = (session.fence_key(), random(&**entropy));
    let object = keyring.seal_object(Class::Fence, &key, Features::NONE, salt, &[]);
    let put = || async {
        match store.put_new(&key, vec![object.clone()]).await {
            // An earlier request or an earlier holder has written it.
            Err(error) if error.kind() == StoreErrorKind::AlreadyExists => Ok(()),
            put => put.map(drop),
        }
    };
    patiently(policy, &**entropy, Operation::PutNew, &key, put).await?;
    Ok(())
}

/// Checks that what the session has written to the bucket counts, by a request that is sent now and
/// so after the answers to all of that (step `FsyncGet`). Either no fence of the session stands, or
/// the root shows it as the holder.
///
/// A fence decides only for a session that a large root has shown as the holder. One of a small root
/// may have left it before that became large, and has no fence. If the last look at the root failed,
/// all of it is read before that.
///
/// # Errors
/// [`RootError::Refused`] with [`Refusal::Fenced`]; [`RootError::Unopenable`] if what stands in the
/// place of the fence is none; [`RootError::Store`] if the store does not answer in time; the errors
/// of [`RootHandle::refresh`].
pub(super) async fn require_none(
    handle: &RootHandle,
    session: SessionId,
    volume: &str,
) -> Result<(), RootError> {
    if handle.is_in_doubt() {
        let view = handle.refresh().await?;
        view.root.require_holder(session, volume)?;
        if !are_used(&view.root) {
            return Ok(());
        }
    }
    require_none_now(handle, session, volume).await
}

/// Same, whatever became of the last look at the root: for heartbeats, which confirm nothing. On a
/// slow line they have no time to read all of a root.
///
/// # Errors
/// Those of [`require_none`].
pub(super) async fn require_none_now(
    handle: &RootHandle,
    session: SessionId,
    volume: &str,
) -> Result<(), RootError> {
    let mut view = handle.current();
    let is_holder = view.root.require_holder(session, volume).is_ok();
    if !(are_used(&view.root) && is_holder) {
        view = handle.refresh().await?;
        view.root.require_holder(session, volume)?;
    }
    if !are_used(&view.root) {
        return Ok(());
    }
    let key = session.fence_key();
    let object = match PatientReads::of(handle).get(&key).await {
        Err(error) if error.is_not_found() => return Ok(()),
        found => found?.0,
    };
    // The root may say who holds the volume now.
    if let Ok(Ok(view)) = tokio::time::timeout(NAME_WITHIN, handle.refresh()).await {
        view.root.require_holder(session, volume)?;
    }
    let opened = handle.keyring().open_object(Class::Fence, &key, &object);
    opened.map_err(|source| RootError::Unopenable { key, source })?;
    Err(Refusal::Fenced { by: None }.into())
}
