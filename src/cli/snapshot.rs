//! `bkfs snapshot MOUNTPOINT [NAME]`

use std::path::PathBuf;

use serde_json::json;

use crate::cli::control::MountClient;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, bytes};
use crate::cli::patience::{self, Interrupt, Waited};

/// Make a snapshot of a mount
///
/// Everything written so far becomes a named, immutable snapshot. When the command returns 0, the
/// snapshot is in the bucket: an empty machine can restore it with only the bucket and the
/// password.
///
/// Ctrl-C ends only the wait: the mount goes on with the snapshot, and the exit code is 14.
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

/// Returns what stands after Ctrl-C: the mount makes the snapshot all the same.
pub fn interrupted(mount: &MountClient, waiting_bytes: u64) -> Failure {
    let message = format!(
        "interrupted: the mount goes on with the snapshot, and {} are not in the bucket yet",
        bytes(waiting_bytes)
    );
    let place = mount.mount_point().display();
    let hint = format!("bkfs snapshots {place} shows whether it was made.");
    Failure::new(message).code(Code::Unknown).hint(hint)
}

/// Makes a snapshot of a mount, and prints it.
///
/// # Errors
/// The [`Failure`] that the mount answers with, or exit code 1 if there is no mount. Exit code 14
/// after Ctrl-C: the snapshot may be made.
pub fn run(command: Snapshot, _: &Global, output: &Output) -> Result<(), Failure> {
    let mount = MountClient::find(&command.mountpoint)?;
    let request = json!({ "snapshot": { "name": command.name, "tags": command.tags } });
    let interrupt = Interrupt::hear()?;
    let answer = match patience::request(&mount, &request, &interrupt, output)? {
        Waited::Answer(answer) => answer,
        Waited::Interrupted { waiting_bytes } => {
            return Err(interrupted(&mount, waiting_bytes));
        }
    };
    output.result(&answer, || {
        format!(
            "snapshot {} (generation {})",
            answer["name"].as_str().unwrap_or_default(),
            answer["generation"].as_u64().unwrap_or_default()
        )
    })
}
