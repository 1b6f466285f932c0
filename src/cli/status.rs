//! `bkfs status MOUNTPOINT`

use std::path::PathBuf;

use serde_json::Value;

use crate::cli::Global;
use crate::cli::control::MountClient;
use crate::cli::output::{Failure, Output, bytes};

/// Show the health of a mount
#[derive(Debug, clap::Args)]
pub struct Status {
    /// The mount, or any directory in it
    mountpoint: PathBuf,
}

pub fn run(command: Status, _: &Global, output: &Output) -> Result<(), Failure> {
    let status = MountClient::find(&command.mountpoint)?.status()?;
    output.result(&status, || text(&status))
}

fn text(status: &Value) -> String {
    let word = |key: &str| status[key].as_str().unwrap_or("-").to_owned();
    let count = |key: &str| status[key].as_u64().unwrap_or(0);
    let health = match status["failure"].as_str() {
        Some(failure) => format!("FAILED: {failure}"),
        None => "healthy".into(),
    };
    let mut lines = vec![
        format!("health       {health}"),
        format!("repository   {} ({})", word("repository"), word("mode")),
        format!(
            "volume       {}, generation {}",
            word("volume"),
            count("generation")
        ),
        format!(
            "contents     {} in {} inodes",
            bytes(count("bytes")),
            count("inodes")
        ),
        format!(
            "not stored   {} in {} files",
            bytes(count("dirty_bytes")),
            count("dirty_files")
        ),
        format!("last commit  {}", word("last_commit")),
        format!(
            "daemon       process {}, since {}",
            count("pid"),
            word("since")
        ),
    ];
    if let Some(metrics) = status["metrics"].as_object() {
        for (name, value) in metrics {
            let value = value.as_u64().unwrap_or(0);
            let shown = if name.contains("bytes") {
                bytes(value)
            } else {
                value.to_string()
            };
            lines.push(format!("  {:<28} {shown}", name.replace('_', " ")));
        }
    }
    lines.join("\n")
}
