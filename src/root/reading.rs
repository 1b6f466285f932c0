//! Decoding of the root object: from its bytes to its contents.
//!
//! Owns the checks that a root must pass before it is used. [`super::handle`] decides when the root
//! is read and what follows from it.

use super::error::RootError;
use super::form::Form;
use super::retry::{Pauses, RetryPolicy, bounded, may_pass};
use super::state::{ROOT_KEY, Root};
use super::view::RootView;
use bkfs_chunker::crypto::{Class, HEADER_LEN, Keyring};
use bkfs_store::entropy::Entropy;
use bkfs_store::{Operation, Store, Version};

/// Reads the root for the first time. Repeats the request for as long as the policy permits.
///
/// # Errors
/// [`RootError::Store`] if the root cannot be fetched in time; the errors of [`open_root`].
pub(super) async fn first_view(
    store: &dyn Store,
    keyring: &Keyring,
    policy: &RetryPolicy,
    entropy: &dyn Entropy,
) -> Result<RootView, RootError> {
    let mut pauses = Pauses::new(policy, entropy);
    loop {
        match bounded(policy, Operation::Get, ROOT_KEY, store.get(ROOT_KEY)).await {
            Ok((object, version)) => return open_root(keyring, &object, version),
            Err(error) if may_pass(&error) => pauses.pause(&error).await.map_err(|_| error)?,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens and decodes a root object.
///
/// # Errors
/// [`RootError::Unopenable`] if it does not open with these keys. [`RootError::Damaged`] if it is
/// cut short, cannot be decoded, contradicts itself or its header, or belongs to another
/// repository.
pub(crate) fn open_root(
    keyring: &Keyring,
    object: &[u8],
    version: Version,
) -> Result<RootView, RootError> {
    let unopenable = |source| RootError::Unopenable {
        key: ROOT_KEY.to_owned(),
        source,
    };
    let (header, sealed) = object
        .split_first_chunk::<HEADER_LEN>()
        .ok_or_else(|| RootError::damaged(ROOT_KEY, "it is cut short"))?;
    let opener = keyring
        .object_opener(Class::Root, ROOT_KEY, header)
        .map_err(unopenable)?;
    let mut room = Vec::new();
    let payload = opener.open_box(0, sealed, &mut room).map_err(unopenable)?;
    let features = opener.header().features;
    let root = Root::decode_as(Form::of(features), payload)
        .map_err(|error| RootError::damaged(ROOT_KEY, error))?;
    if root.repository != keyring.repository() {
        return Err(RootError::damaged(
            ROOT_KEY,
            "it belongs to another repository",
        ));
    }
    if features.bear_witness() != root.chain.is_some() {
        return Err(RootError::damaged(
            ROOT_KEY,
            "its header and its chain of generations contradict each other",
        ));
    }
    Ok(RootView {
        root,
        version,
        features,
        length: object.len(),
    })
}
