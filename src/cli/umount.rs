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
/// Returns 0 only if everything that was written is in the bucket. If something cannot be stored, the mount stays, so that it can be tried again.
#[derive(Debug, clap::Args)]
pub struct Umount {
    /// The mount
    mountpoint: PathBuf,
    /// Unmount even if something that was written cannot be stored, and lose it
    #[arg(long)]
    discard: bool,
}

pub fn run(command: Umount, _: &Global, output: &Output) -> Result<(), Failure> {
    let mount = MountClient::find(&command.mountpoint)?;
    let status = match mount.status() {
        Ok(status) => status,
        Err(failure) => return unmount_dead(&mount, failure),
    };
    let root = mount.root().display();
    let drained = drain(&mount, &status);
    let generation = match (drained, command.discard) {
        (Ok(generation), _) => generation,
        (Err(failure), true) => {
            output.remark(format_args!(
                "discarded what was not in the bucket: {}",
                failure.message
            ));
            status["generation"].as_u64().unwrap_or_default()
        }
        (Err(failure), false) => {
            let hint = format!(
                "Try again when the cause is mended, or lose it: bkfs umount --discard {root}"
            );
            let doing = format!("{root} stays mounted, since not everything is in the bucket");
            return Err(failure.context(doing).hint(hint));
        }
    };
    if let Err(failure) = bkfs_fuse::unmount(mount.root(), false) {
        // Whoever keeps it busy shall not wait for the thaw.
        let _ = mount.request(&json!({ "resume": {} }));
        let hint = format!("fuser -vm {root} shows who uses it.");
        return Err(Failure::new(failure.to_string()).hint(hint));
    }
    wait_for_exit(&status)?;
    let answer = json!({ "mountpoint": mount.root().to_string_lossy(), "generation": generation });
    output.result(&answer, || {
        format!("unmounted {root} (generation {generation})")
    })
}

/// Commits everything; the answer is the generation that holds it. A read-only mount has nothing to commit.
fn drain(mount: &MountClient, status: &serde_json::Value) -> Result<u64, Failure> {
    if status["mode"] == "read-only" {
        return Ok(status["generation"].as_u64().unwrap_or_default());
    }
    let answer = mount.request(&json!({ "drain": {} }))?;
    Ok(answer["generation"].as_u64().unwrap_or_default())
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
