//! `bkfs umount MOUNTPOINT`

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bkfs_fuse::{MountEntry, MountInfo};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use crate::cli::control::MountClient;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, bytes};
use crate::cli::patience::{self, Interrupt, Waited};
use crate::json_name::with_name;
use crate::mounting::outcome::{self, Outcome};
use crate::root::state::HolderInfo;

/// How long the daemon may take to end once everything is in the bucket and the mount is gone.
const EXIT_WAIT: Duration = Duration::from_secs(60);
/// The time after which other mount points are looked for. A mount namespace that is just ending
/// has gone by then.
const PLACES_AFTER: Duration = Duration::from_secs(3);

/// Upload what is left, commit and unmount
///
/// The command returns 0 only if everything that was written is in the bucket. If something cannot
/// be stored, the mount stays, so that you can try again. It also stays after Ctrl-C.
#[derive(Debug, clap::Args)]
pub struct Umount {
    /// The mount
    mountpoint: PathBuf,
    /// Unmount even if written data cannot be stored, and lose that data
    #[arg(long)]
    discard: bool,
}

/// Drains, commits and unmounts.
///
/// # Errors
/// The [`Failure`] that the mount answers with: the mount stays then, except with `--discard`.
/// After the unmount: exit code 3 if the daemon goes on, since it is still mounted elsewhere; 14 if
/// it does not end or does not say how it ended; 1 if its last commit failed or it was dead. Exit
/// code 1 after Ctrl-C before the unmount: the mount then stays.
pub fn run(command: Umount, _: &Global, output: &Output) -> Result<(), Failure> {
    let mount = MountClient::find(&command.mountpoint)?;
    let status = match mount.status() {
        Ok(status) => status,
        Err(failure) if mount.is_dead() => return unmount_dead(&mount, failure),
        Err(failure) => return unasked(&mount, failure, &command, output),
    };
    let root = mount.mount_point().display();
    // Taken before the mount goes: afterwards another process may have the number.
    let daemon = Daemon::of(&status, mount.mounted());
    let interrupt = Interrupt::hear()?;
    let drained = drain(&mount, &status, &interrupt, output);
    let generation = match (drained, command.discard) {
        (Ok(Drained::Whole { generation }), _) => generation,
        (Ok(Drained::Interrupted { waiting_bytes }), _) => {
            return Err(interrupted(&mount, waiting_bytes));
        }
        (Err(failure), true) => {
            output.finding(format_args!(
                "discarded what was not in the bucket: {}",
                failure.message
            ));
            status["generation"].as_u64().unwrap_or_default()
        }
        (Err(failure), false) => {
            let hint = format!(
                "Mend the cause and try again, or unmount and lose the data: bkfs umount --discard \
                 {root}"
            );
            let doing = format!("{root} stays mounted: not everything is in the bucket");
            let hint = match &failure.hint {
                Some(first) => format!("{first} {hint}"),
                None => hint,
            };
            return Err(failure.context(doing).hint(hint));
        }
    };
    if let Err(failure) = bkfs_fuse::unmount(mount.mount_point(), false) {
        // Processes that keep the mount busy must not wait for the end of the freeze.
        let _ = mount.request(&json!({ "resume": {} }));
        let hint = format!("fuser -vm {root} shows who uses it.");
        return Err(Failure::new(failure.to_string()).hint(hint));
    }
    daemon.wait(&interrupt)?;
    if !command.discard {
        daemon.judge()?;
    }
    let answer = answer(&mount, Some(generation));
    output.result(&answer, || {
        format!("unmounted {root} (generation {generation})")
    })
}

fn answer(mount: &MountClient, generation: Option<u64>) -> Value {
    let place = mount.mount_point().as_os_str().as_encoded_bytes();
    with_name(json!({ "generation": generation }), "mountpoint", place)
}

/// How the commit of everything ended.
enum Drained {
    /// All is in the bucket.
    Whole {
        /// The generation that holds it.
        generation: u64,
    },
    /// Ctrl-C came first.
    Interrupted {
        /// Bytes that are not in the bucket yet.
        waiting_bytes: u64,
    },
}

/// Commits everything, or as much as comes before Ctrl-C. A read-only mount has nothing to commit.
fn drain(
    mount: &MountClient,
    status: &Value,
    interrupt: &Interrupt,
    output: &Output,
) -> Result<Drained, Failure> {
    let of = |answer: &Value| Drained::Whole {
        generation: answer["generation"].as_u64().unwrap_or_default(),
    };
    if status["mode"] == "read-only" {
        return Ok(of(status));
    }
    match patience::request(mount, &json!({ "drain": {} }), interrupt, output)? {
        Waited::Answer(answer) => Ok(of(&answer)),
        Waited::Interrupted { waiting_bytes } => Ok(Drained::Interrupted { waiting_bytes }),
    }
}

/// Lets writers go on, and returns what stands after Ctrl-C.
fn interrupted(mount: &MountClient, waiting_bytes: u64) -> Failure {
    let root = mount.mount_point().display();
    let resumed = mount.request(&json!({ "resume": {} }));
    let message = format!(
        "interrupted: {root} stays mounted and takes writes, and {} are not in the bucket yet",
        bytes(waiting_bytes)
    );
    let hint = format!(
        "The mount goes on with their upload. To unmount and let it finish in the background: \
         umount -i {root}"
    );
    match resumed {
        Ok(_) => Failure::new(message).hint(hint),
        Err(failure) => failure.context(format!("interrupted, and {root} stays mounted")),
    }
}

/// Unmounts a mount whose daemon is gone, and fails: what the daemon had not committed is lost.
fn unmount_dead(mount: &MountClient, failure: Failure) -> Result<(), Failure> {
    bkfs_fuse::unmount(mount.mount_point(), false)
        .map_err(|error| Failure::new(error.to_string()))?;
    Err(failure
        .context("unmounted, but the daemon did not say whether everything is in the bucket"))
}

/// Handles a mount that may be alive and cannot be asked: it stays, or is unmounted with
/// `--discard`.
fn unasked(
    mount: &MountClient,
    failure: Failure,
    command: &Umount,
    output: &Output,
) -> Result<(), Failure> {
    let root = mount.mount_point().display();
    if !command.discard {
        let doing = format!(
            "{root} stays mounted: its daemon did not say whether everything is in the bucket"
        );
        let hint = format!(
            "Unmount as the user who mounted it, or let the daemon upload the rest in the \
             background: umount -i {root}. To lose what is not in the bucket: bkfs umount \
             --discard {root}"
        );
        return Err(failure.context(doing).hint(hint));
    }
    output.finding(format_args!(
        "the daemon did not answer: {}",
        failure.message
    ));
    bkfs_fuse::unmount(mount.mount_point(), false)
        .map_err(|error| Failure::new(error.to_string()))?;
    let answer = answer(mount, None);
    output.result(&answer, || format!("unmounted {root}"))
}

/// The process that serves a mount.
struct Daemon {
    number: i64,
    /// None if it cannot be seen from here, or is gone.
    process: Option<OwnedFd>,
    /// The file in which it records how it ended.
    outcome: Option<PathBuf>,
    /// The mount that it serves, as seen where it was asked to end.
    mounted: MountInfo,
}

impl Daemon {
    fn of(status: &Value, mounted: &MountInfo) -> Daemon {
        let here = HolderInfo::of_this_process("").pid_namespace;
        let same_namespace = status["pid_namespace"].as_u64() == Some(here);
        let number = status["pid"].as_i64().unwrap_or_default();
        let process = rustix::process::Pid::from_raw(number as i32)
            .filter(|_| same_namespace)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let outcome = status["outcome"].as_str().map(PathBuf::from);
        Daemon {
            number,
            process,
            outcome: outcome.filter(|_| same_namespace),
            mounted: mounted.clone(),
        }
    }

    /// Waits for its end, so that nothing changes the bucket any more when this command returns.
    fn wait(&self, interrupt: &Interrupt) -> Result<(), Failure> {
        let Some(process) = &self.process else {
            return Ok(());
        };
        let started = Instant::now();
        let mut poll = [PollFd::new(process, PollFlags::IN)];
        while started.elapsed() < EXIT_WAIT {
            let second = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            if matches!(rustix::event::poll(&mut poll, Some(&second)), Ok(ready) if ready > 0) {
                return Ok(());
            }
            if interrupt.is_heard() {
                let message = format!(
                    "interrupted: unmounted, and process {} has still to end",
                    self.number
                );
                return Err(Failure::new(message).code(Code::Unknown));
            }
            if started.elapsed() >= PLACES_AFTER {
                self.is_nowhere_else()?;
            }
        }
        let message = format!("unmounted, but process {} still runs", self.number);
        Err(Failure::new(message).code(Code::Unknown))
    }

    /// Fails if the mount is still mounted elsewhere. That keeps the daemon running, and the volume
    /// held.
    fn is_nowhere_else(&self) -> Result<(), Failure> {
        let places = bkfs_fuse::places_of(&self.mounted).unwrap_or_default();
        let Some(first) = places.first() else {
            return Ok(());
        };
        let all: Vec<String> = places.iter().map(describe).collect();
        let message = format!(
            "unmounted here, but process {} still runs and holds the volume: it is still mounted \
             at {}",
            self.number,
            all.join(", at ")
        );
        let hint = format!(
            "End the processes that use it there, or unmount it there too: nsenter --target {} \
             --mount umount -i {}",
            first.process,
            first.mount_point.display()
        );
        Err(Failure::new(message).code(Code::Partly).hint(hint))
    }

    /// Fails if the last commit of the daemon failed. That commit holds what was accepted between
    /// the answer and the unmount.
    fn judge(&self) -> Result<(), Failure> {
        let Some(place) = &self.outcome else {
            return Ok(());
        };
        match outcome::read(place, self.number) {
            Some(Outcome { error: None, .. }) => Ok(()),
            Some(Outcome {
                error: Some(error), ..
            }) => Err(Failure::new(format!(
                "unmounted, but the last commit failed: {error}"
            ))),
            None => Err(Failure::new(
                "unmounted, but the daemon did not say whether everything is in the bucket",
            )
            .code(Code::Unknown)),
        }
    }
}

/// Describes a mount point for the user.
fn describe(place: &MountEntry) -> String {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", place.process)).unwrap_or_default();
    format!(
        "{} in the mount namespace of process {} ({})",
        place.mount_point.display(),
        place.process,
        name.trim_end()
    )
}
