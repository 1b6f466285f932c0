//! Access to a second repository, which a command only reads.

use std::path::PathBuf;

use crate::cli::access::Access;
use crate::cli::options::Global;
use crate::cli::output::Failure;
use crate::cli::password::{Sources, Variables};
use crate::cli::target::target;
use crate::mounting::settings::Settings;

/// The password and the store of the source. BKFS_FROM_PASSWORD_FILE, BKFS_FROM_PASSWORD and the
/// configuration give them too.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Source {
    /// Read the source's password from the first line of this file
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    from_password_file: Option<PathBuf>,
    /// Read the source's password from the output of this command
    #[arg(long, value_name = "COMMAND", help_heading = "Source")]
    from_password_command: Option<String>,
    /// The source store's address
    #[arg(long, value_name = "URL", help_heading = "Source")]
    from_endpoint: Option<String>,
    /// The source store's region
    #[arg(long, value_name = "NAME", help_heading = "Source")]
    from_region: Option<String>,
}

impl Source {
    /// Returns the access to the source. Of the options for the other repository only the store's
    /// address and region apply to it.
    ///
    /// # Errors
    /// Those of [`target`] and [`Access::of_mount`].
    pub fn access(
        &self,
        url: &str,
        global: &Global,
        settings: &Settings,
    ) -> Result<Access, Failure> {
        // The endpoint of a mount comes before that of the other repository.
        let own = Global {
            endpoint: self.from_endpoint.clone(),
            region: self.from_region.clone(),
            ..global.clone()
        };
        let (url, own) = target(url, &own)?;
        let global = Global {
            password_file: None,
            password_command: None,
            endpoint: own.endpoint.or(global.endpoint.clone()),
            region: own.region.or(global.region.clone()),
            min_generation: 0,
            accept_rollback: false,
            key: None,
            ..global.clone()
        };
        let mut access = Access::of_mount(&url, &global, settings)?;
        let named = access.password;
        // BKFS_KEY also is of the other repository.
        access.key = None;
        access.password = Sources {
            file: self.from_password_file.clone().or(named.file),
            command: self.from_password_command.clone().or(named.command),
            variables: Variables::From,
            handed: named.handed,
        };
        Ok(access)
    }
}
