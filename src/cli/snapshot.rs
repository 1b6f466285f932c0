//! `bkfs snapshot MOUNTPOINT [NAME]`

use std::path::PathBuf;

use serde_json::json;

use crate::cli::control::MountClient;
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output};

/// Make a snapshot of a mount
///
/// Everything written so far becomes a named, immutable snapshot. When the command returns 0, the
/// snapshot is in the bucket: an empty machine can restore it with only the bucket and the
/// password.
#[derive(Debug, clap::Args)]
pub struct Snapshot {
    /// The mount, or any directory in it
    mountpoint: PathBuf,
    /// The name: 1–255 bytes, no '/', not starting with '.' or '@' (default: the time in UTC)
    name: Option<String>,
    /// Tag the snapshot; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
}

/// Makes a snapshot of a mount, and prints it.
///
/// # Errors
/// The [`Failure`] that the mount answers with, or exit code 1 if there is no mount.
pub fn run(command: Snapshot, _: &Global, output: &Output) -> Result<(), Failure> {
    let mount = MountClient::find(&command.mountpoint)?;
    let answer =
        mount.request(&json!({ "snapshot": { "name": command.name, "tags": command.tags } }))?;
    output.result(&answer, || {
        format!(
            "snapshot {} (generation {})",
            answer["name"].as_str().unwrap_or_default(),
            answer["generation"].as_u64().unwrap_or_default()
        )
    })
}
