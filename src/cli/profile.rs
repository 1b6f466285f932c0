//! What the configuration says of a repository, by the name that the user typed.
//!
//! Owns how the configuration is found. Does not own its form (`config`), nor what stands in place
//! of a name (`target`).

use crate::cli::output::Failure;
use crate::config::{Config, RepositoryProfile};
use crate::places;

/// Reads the configuration of this machine and user.
///
/// # Errors
/// Exit code 2 if a file cannot be read or is malformed.
pub fn configuration() -> Result<Config, Failure> {
    Config::load(&places::config_files()).map_err(|error| Failure::usage(error.to_string()))
}

/// Returns the profile of the repository with this name, if the configuration has one.
///
/// # Errors
/// Those of [`configuration`].
pub fn profile(name: &str) -> Result<Option<RepositoryProfile>, Failure> {
    Ok(configuration()?.repositories.remove(name))
}
