//! The repair of lists of condemned packs that cannot be read: as a session of its own.
//!
//! Owns when it can be made, and what is said if it cannot. What is condemned anew is found out in
//! [`super::collect::renew`].

use std::sync::Arc;

use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::seal::Keyring;
use bkfs_chunker::store::Store;
use bkfs_chunker::verify::Verifier;
use jiff::Timestamp;

use super::check::{CheckOptions, Findings, open_depot};
use super::collect::renew::Renewal;
use super::collect::sightings::SightingsFile;
use super::repair::MOUNT_POINT;
use crate::root::error::{ErrorKind, RootError};
use crate::root::holder::SystemProcesses;
use crate::root::lists::Lists;
use crate::root::session::OpenSession;
use crate::root::state::{Condemned, HolderInfo};

/// The lists of condemned packs that a repair can put aside now. What they named is found out from
/// all that is needed: so not before all other lists and the index are whole.
pub(super) fn lost(findings: &Findings) -> Vec<Condemned> {
    let (listed, indexed) = (&findings.listed, &findings.indexed);
    let is_blocked = !listed.lost.is_empty() || listed.lost_quarantine || !indexed.lost.is_empty();
    match is_blocked {
        true => Vec::new(),
        false => listed.lost_condemned.clone(),
    }
}

/// What is said before these lists are put aside; nothing if there are none.
pub(super) fn step(lost: &[Condemned]) -> Option<String> {
    let count = lost.len();
    (count > 0).then(|| {
        format!(
            "put {count} lists of condemned packs aside that cannot be read, and condemn anew every pack that they may have named; what is needed of those is stored again first"
        )
    })
}

/// Condemns anew what lost lists may have named, as a session of its own.
pub(super) async fn renew(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    findings: &Findings,
    lost: &[Condemned],
) -> Result<(), RootError> {
    let Some(handle) = findings.handle.as_ref().filter(|_| !lost.is_empty()) else {
        return Ok(());
    };
    let holder = HolderInfo::of_this_process(MOUNT_POINT);
    let session = OpenSession::open(handle, holder, None, &SystemProcesses).await?;
    let renewed = async {
        let (entropy, config) = (options.entropy.clone(), &options.verifier);
        let verifier = Verifier::new(store.clone(), keyring.clone(), entropy, config)?;
        let ingest = Ingest::new(open_depot(store, keyring, options)?, session.id().0);
        let (directory, now) = match &options.seen {
            Some((directory, now)) => (Some(directory.as_path()), *now),
            None => (None, Timestamp::UNIX_EPOCH),
        };
        let renewal = Renewal {
            handle,
            lists: &Lists::new(store.clone(), keyring.clone()),
            verifier: Arc::new(verifier),
            ingest: &ingest,
            session: session.id(),
            memory: SightingsFile::new(directory, keyring.repository()),
            now,
        };
        renewal.renew(lost).await
    };
    let renewed = renewed.await;
    if let Err(left) = session.end().await {
        tracing::warn!(error = %left, "the session of the repair stays in the root");
    }
    match renewed {
        Err(error) if error.kind() == ErrorKind::Damaged => {
            tracing::warn!(%error, "what lost lists of condemned packs named is not found out while something needed cannot be read: mend that first, or forget the snapshots that need it");
            Ok(())
        }
        renewed => renewed.map(drop),
    }
}
