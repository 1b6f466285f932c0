//! `bkfs upgrade URL`

use serde_json::json;

use crate::cli::access::{Access, open_with};
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output};
use crate::cli::runtime::block_on;
use crate::cli::target::target;
use crate::root::upgrade::make_large;

/// Let a repository take 4,096 sessions and 10,000 volumes instead of 64 and some hundred
///
/// Earlier versions of bkfs refuse the repository afterwards, also to read it. Unmount everywhere
/// first: while any session is in the root, live or ending, the command changes nothing and ends
/// with 11. Snapshots, files and keys stay as they are.
#[derive(Debug, clap::Args)]
pub struct Upgrade {
    /// The repository
    url: String,
}

/// Makes the root of a repository a large one.
///
/// # Errors
/// The [`Failure`] of the repository. Exit code 11 if a session is in the root.
pub fn run(command: Upgrade, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let (url, global) = target(&command.url, global)?;
        let access = Access::of_command(&url, &global)?;
        let repository = open_with(&access).await?;
        let environment = &repository.environment;
        let holder = environment.holder("bkfs upgrade");
        let is_new = make_large(&repository.handle, holder, &*environment.processes).await?;
        output.result(&json!({ "upgraded": is_new }), || match is_new {
            true => "the repository takes 4,096 sessions and 10,000 volumes".to_owned(),
            false => "nothing to do: the repository was upgraded before".to_owned(),
        })
    })
}
