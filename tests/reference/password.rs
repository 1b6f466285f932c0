//! The password of a test's repository.

use bkfs::root::error::RootError;
use bkfs::root::repository::Passwords;

/// The password of a repository, or `None` if the repository is not sealed.
pub struct Known(pub Option<&'static str>);

impl Passwords for Known {
    fn is_given(&self) -> bool {
        self.0.is_some()
    }

    fn password(&mut self) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, RootError> {
        Ok(self
            .0
            .map(|password| zeroize::Zeroizing::new(password.as_bytes().to_vec())))
    }
}
