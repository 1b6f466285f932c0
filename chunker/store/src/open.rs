//! Opens the store that a URL names.
//!
//! Owns the choice of a backend. Does not own the backends, nor names of the configuration file.

use std::sync::Arc;

use crate::local::LocalStore;
use crate::remote::RemoteStore;
use crate::{RepositoryUrl, Store, StoreError, StoreOptions};

/// Opens the store that a URL names. A local directory must exist unless
/// [`StoreOptions::create_directory`] is set. Only the first request shows whether a remote bucket
/// exists. A bare word is taken for a bucket of S3, so look it up in the configuration file first.
///
/// # Errors
/// [`StoreErrorKind::Invalid`] if the settings are wrong; for a local directory also
/// [`StoreErrorKind::NoBucket`] if it does not exist, [`StoreErrorKind::Denied`],
/// [`StoreErrorKind::NoSpace`] and [`StoreErrorKind::Other`].
pub async fn open_store(
    url: &RepositoryUrl,
    options: &StoreOptions,
) -> Result<Arc<dyn Store>, StoreError> {
    match url.clone().or_bucket() {
        RepositoryUrl::Local { path } => Ok(Arc::new(LocalStore::open(&path, options).await?)),
        remote => Ok(Arc::new(RemoteStore::open(&remote, options).await?)),
    }
}
