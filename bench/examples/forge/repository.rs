//! Repositories that are made for measurements. Their password is `forged`.

use std::error::Error;
use std::time::Duration;

use bkfs::repository::{Creation, Opening, Repository, create, open};
use bkfs::root::error::RootError;
use bkfs::root::repository::{Accepted, Passwords};
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_store::{RepositoryUrl, StoreOptions, parse_url};
use zeroize::Zeroizing;

const PASSWORD: &[u8] = b"forged";

/// Answers with the password of forged repositories.
pub struct Forged;

impl Passwords for Forged {
    fn is_given(&self) -> bool {
        true
    }

    fn password(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, RootError> {
        Ok(Some(Zeroizing::new(PASSWORD.to_vec())))
    }
}

/// Returns how a forged repository is opened by a machine that remembers nothing.
pub fn opening(url: RepositoryUrl, content_store: ContentStoreConfig) -> Opening {
    Opening {
        url,
        store: StoreOptions::default(),
        content_store,
        timeout: Duration::from_secs(300),
        min_generation: 0,
        accepted: Accepted::default(),
        key: None,
        state_dir: None,
    }
}

/// Makes a repository in a directory, and opens it.
///
/// # Errors
/// Those of [`create`] and of [`open`].
pub async fn made(
    directory: &str,
    content_store: ContentStoreConfig,
) -> Result<Repository, Box<dyn Error>> {
    let url = parse_url(directory)?;
    create(Creation {
        url: url.clone(),
        store: StoreOptions::default(),
        password: Some(Zeroizing::new(PASSWORD.to_vec())),
        lock: None,
    })
    .await?;
    Ok(open(opening(url, content_store), &mut Forged).await?)
}
