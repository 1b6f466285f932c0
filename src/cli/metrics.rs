//! `bkfs metrics URL`

use std::path::PathBuf;

use serde_json::json;

use crate::cli::access::open;
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output};
use crate::cli::readable_file;
use crate::cli::runtime::block_on;
use crate::cli::target::target;
use crate::maintain::metrics::metrics_of;

/// Show metrics of a repository for Prometheus
///
/// The metrics are those that need no mount: snapshots of each volume and the time of the newest,
/// sessions, which of them hold back deletion, the end of locks. The command reads the root, the
/// list of snapshots and, if packs are condemned, what each session says of itself.
///
/// With --textfile it writes them to a file that the textfile collector of the Prometheus node
/// exporter reads. The file is replaced as a whole, and stays as it was if the repository cannot be
/// read. A mount has metrics of its own, in MOUNTPOINT/.bkfs/metrics.
#[derive(Debug, clap::Args)]
pub struct MetricsCommand {
    /// The repository, or a mount of one
    url: String,
    /// Write to this file, in place of standard output
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
}

/// Prints or writes the metrics.
///
/// # Errors
/// The [`Failure`] of the repository, or of the file.
pub fn run(command: MetricsCommand, global: &Global, output: &Output) -> Result<(), Failure> {
    let text = block_on(async {
        let (url, global) = target(&command.url, global)?;
        let repository = open(&url, &global).await?;
        Ok::<_, Failure>(metrics_of(&repository).await?)
    })?;
    match &command.textfile {
        None => output.result(&json!({ "metrics": text }), || text.trim_end().to_owned()),
        Some(path) => readable_file::replace(path, &text),
    }
}
