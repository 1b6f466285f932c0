//! `bkfs umount MOUNTPOINT`

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cli::Global;
use crate::cli::control::MountClient;
use crate::cli::output::{Code, Failure, Output};
use crate::root::state::HolderInfo;

/// How long the daemon may take to end once everything is in the bucket and the mount is gone.
const EXIT_WAIT: Duration = Duration::from_secs(60);

/// Drain, commit and unmount
///
/// Returns 0 only if everything that was written is in the bucket.
#[derive(Debug, clap::Args)]
pub struct Umount {
    /// The mount
    mountpoint: PathBuf,
}

pub fn run(command: Umount, _: &Global, output: &Output) -> Result<(), Failure> {
    let mount = MountClient::find(&command.mountpoint)?;
    let status = match mount.status() {
        Ok(status) => status,
        Err(failure) => return unmount_dead(&mount, failure),
    };
    let drained = mount.request(&json!({ "drain": {} }));
    if let Err(failure) = bkfs_fuse::unmount(mount.root(), false) {
        // Whoever keeps it busy shall not wait for the thaw.
        let _ = mount.request(&json!({ "resume": {} }));
        let hint = format!("fuser -vm {} shows who uses it.", mount.root().display());
        return Err(Failure::new(format!("{}: {failure}", mount.root().display())).hint(hint));
    }
    wait_for_exit(&status)?;
    let answer = drained
        .map_err(|failure| failure.context("unmounted, but not everything is in the bucket"))?;
    output.result(&answer, || {
        format!(
            "unmounted {} (generation {})",
            mount.root().display(),
            answer["generation"].as_u64().unwrap_or_default()
        )
    })
}

/// A mount whose daemon is gone can only be taken away; what it had not committed is lost.
fn unmount_dead(mount: &MountClient, failure: Failure) -> Result<(), Failure> {
    bkfs_fuse::unmount(mount.root(), false).map_err(|error| Failure::new(error.to_string()))?;
    Err(failure.context(
        "unmounted, but its daemon could not be asked whether everything is in the bucket",
    ))
}

/// Waits for the daemon, so that the bucket is at rest when this command returns.
fn wait_for_exit(status: &serde_json::Value) -> Result<(), Failure> {
    let here = HolderInfo::of_this_process("").pid_namespace;
    let same_namespace = status["pid_namespace"].as_u64() == Some(here);
    let (Some(pid), true) = (status["pid"].as_i64(), same_namespace) else {
        return Ok(());
    };
    let Some(pid) = rustix::process::Pid::from_raw(pid as i32) else {
        return Ok(());
    };
    let Ok(process) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else {
        return Ok(());
    };
    let started = Instant::now();
    let mut poll = [rustix::event::PollFd::new(
        &process,
        rustix::event::PollFlags::IN,
    )];
    while started.elapsed() < EXIT_WAIT {
        let second = rustix::event::Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        if matches!(rustix::event::poll(&mut poll, Some(&second)), Ok(ready) if ready > 0) {
            return Ok(());
        }
    }
    let message = format!("unmounted, but process {} still runs", pid.as_raw_nonzero());
    Err(Failure::new(message).code(Code::Unknown))
}
