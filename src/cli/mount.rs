//! `bkfs mount URL MOUNTPOINT`

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bkfs_fuse::{MountError, MountOptions, Session};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use crate::cli::access::{self, Access};
use crate::cli::init;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output};
use crate::cli::runtime::SHUTDOWN_PATIENCE;
use crate::cli::target::{profile_of, target_of_mount};
use crate::cli::volumes::{self, Use, refuse_scratch};
use crate::logging::Log;
use crate::mounting::error::MountingError;
use crate::mounting::outcome::{self, Outcome};
use crate::mounting::settings::{OPTIONS_HELP, Settings};
use crate::mounting::spool_place::SpoolPlace;
use crate::mounting::writing::CloneOf;
use crate::mounting::{Ending, MountPlan, Mounted};
use crate::places;
use crate::repository::Repository;
use crate::root::snapshots::SnapshotReference;
use crate::trace::stored::{NONE, load};
use crate::volumes::reap::{Patience, reap};
use crate::volumes::scratch_name;

/// The variable that names the descriptor on which a daemon reports that its mount answers.
const READY_VARIABLE: &str = "BKFS_READY_FD";

/// The pause between attempts to unmount a busy mount after a signal.
const UNMOUNT_INTERVAL: Duration = Duration::from_millis(500);

/// Attempts after a signal before a busy mount is detached.
const UNMOUNT_TRIES: u32 = 20;

/// Mount a repository as a directory
///
/// The command returns 0 when the mount answers. bkfs uploads in the background what you write;
/// bkfs snapshot makes a backup of it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = OPTIONS_HELP)]
pub struct MountCommand {
    /// The repository: s3://bucket/prefix, gs://…, az://…, a directory, or a mount point
    url: String,
    /// The directory to mount it at
    mountpoint: PathBuf,
    /// Mount options, separated by commas; may be repeated (--help lists them)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Create the local directory, the repository and the mount point if absent
    #[arg(long)]
    init: bool,
    /// Make the volume if the repository has none of this name (main is made without it, but not
    /// read-only)
    #[arg(long)]
    create: bool,
    /// With --init: create a repository without encryption
    #[arg(long, requires = "init")]
    no_encryption: bool,
    /// Take the volume over from its holder
    #[arg(long)]
    steal: bool,
    /// Continue without acknowledged changes whose journals are missing from the bucket; journals
    /// after the gap are moved to damaged/
    #[arg(long)]
    accept_loss: bool,
}

/// Mounts a repository. Returns when the daemon's mount answers, or, in the foreground and in the
/// daemon, when the mount has ended. Ends the process with the daemon's exit code if that fails.
///
/// # Errors
/// Exit code 2 for unknown options. The [`Failure`] of the repository, the volume or the mount
/// point, or of the end of the mount: what was accepted may then not be in the bucket.
pub fn run(command: MountCommand, global: &Global, output: &Output) -> Result<(), Failure> {
    let (options, mut settings) = options_of(&command)?;
    let ready = Ready::from_environment();
    if !command.foreground && ready.is_none() {
        return start_daemon(&command, global, output);
    }
    let log = Log::start(global.verbose, global.quiet);
    settings.state_dir = places::state_dir();
    settings.accept_loss |= command.accept_loss;
    settings.create |= command.create;
    settings.outcome = outcome_place(&command.mountpoint);
    let ending = settings.outcome.clone();
    let runtime = runtime()?;
    let mounted = match bring_up(&command, global, output, options, settings, &runtime) {
        Ok(mounted) => mounted,
        Err(failure) => {
            runtime.shutdown_timeout(SHUTDOWN_PATIENCE);
            return Err(failure);
        }
    };
    match ready {
        Some(ready) => {
            ready.tell().map_err(|error| {
                Failure::new(format!(
                    "the process that started the daemon has ended: {error}"
                ))
            })?;
            log.detach();
        }
        None => output.remark(format_args!(
            "mounted at {}",
            mounted.mount_point().display()
        )),
    }
    serve(mounted, runtime, ending.as_deref())
}

/// Records how a mount ended. It ended well if everything that it accepted is in the bucket, even
/// though its session may still be in the root.
fn say_how(ended: Result<(), &MountingError>, place: &Path) {
    let error = match ended {
        Ok(()) | Err(MountingError::Root(_) | MountingError::Broken(_)) => None,
        Err(error) => Some(error.to_string()),
    };
    let pid = std::process::id();
    if let Err(error) = outcome::write(place, &Outcome { pid, error }) {
        tracing::error!("cannot record how the mount ended: {error}");
    }
}

/// Returns the file in which this mount records how it ended. None if it cannot be written.
fn outcome_place(mountpoint: &Path) -> Option<PathBuf> {
    let mountpoint = std::path::absolute(mountpoint).ok()?;
    let place = outcome::place(&places::state_dir()?, &mountpoint);
    match outcome::prepare(&place) {
        Ok(()) => Some(place),
        Err(error) => {
            tracing::warn!("{}: {error}", place.display());
            None
        }
    }
}

/// Returns the options of the profile, if the repository has a name, and over them those of the
/// command.
fn options_of(command: &MountCommand) -> Result<(MountOptions, Settings), Failure> {
    let of_profile = profile_of(&command.url)?.and_then(|profile| profile.options);
    if let Some(options) = &of_profile {
        parse_options(std::slice::from_ref(options))
            .map_err(|failure| failure.context(format_args!("options of {}", command.url)))?;
    }
    let all: Vec<String> = (of_profile.into_iter())
        .chain(command.options.iter().cloned())
        .collect();
    parse_options(&all)
}

fn parse_options(options: &[String]) -> Result<(MountOptions, Settings), Failure> {
    let options =
        MountOptions::parse(options).map_err(|error| Failure::usage(error.to_string()))?;
    let settings = Settings::parse(&options.others).map_err(|error| {
        let hint = "bkfs mount --help lists the options.";
        Failure::usage(error.to_string()).hint(hint)
    })?;
    Ok((options, settings))
}

fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("bkfs")
        .build()
        .map_err(|error| Failure::new(format!("cannot start the runtime: {error}")))
}

fn bring_up(
    command: &MountCommand,
    global: &Global,
    output: &Output,
    options: MountOptions,
    settings: Settings,
    runtime: &Runtime,
) -> Result<Mounted, Failure> {
    make_way(&command.mountpoint, output)?;
    let volume_is_given = global.volume_is_given || settings.volume.is_some();
    let asked = Global {
        volume_is_given,
        ..global.clone()
    };
    let (url, global) = &target_of_mount(&command.url, &asked)?;
    let access = access_of(url, global, &options, &settings)?;
    let absent =
        |error: std::io::Error| Failure::new(format!("{}: {error}", command.mountpoint.display()));
    let mut may_create = settings.create;
    if command.init {
        std::fs::create_dir_all(&command.mountpoint).map_err(absent)?;
        let made = init::create_if_absent(&access, command.no_encryption, output);
        may_create |= runtime.block_on(made)?;
    } else if let Err(error) = std::fs::symlink_metadata(&command.mountpoint)
        && error.kind() == std::io::ErrorKind::NotFound
    {
        let message = format!(
            "mount point {} does not exist",
            command.mountpoint.display()
        );
        return Err(Failure::new(message).hint("Create it, or give --init."));
    }
    let repository = Arc::new(runtime.block_on(access::open_with(&access))?);
    let volume = settings
        .volume
        .clone()
        .unwrap_or_else(|| global.volume.clone());
    let clone_of = clone_of(&settings, &volume, &repository, &options)?;
    let reads = options.flags.read_only || settings.snapshot.is_some() || clone_of.is_some();
    let kind = match (reads, may_create) {
        (true, _) => Use::Read,
        (false, true) => Use::Make,
        // The first mount may have made the repository, and failed before it made the volume.
        (false, false) if command.init => Use::WriteFirst,
        (false, false) => Use::Write,
    };
    runtime.block_on(check(&repository, &volume, kind, &settings))?;
    let volume = match &clone_of {
        Some(_) => name_of_clone(&settings, &repository),
        None => volume,
    };
    let spool_bytes = access::spool_bytes(&access, &settings, &volume);
    let spool = SpoolPlace::on_this_machine(&repository, spool_bytes, &command.mountpoint)
        .map_err(|error| Failure::new(error.to_string()))?;
    let plan = MountPlan {
        repository,
        mount_point: command.mountpoint.clone(),
        options,
        settings,
        volume,
        steal: command.steal,
        spool,
        clone_of,
        observed: Arc::default(),
    };
    reap_soon(&plan, runtime);
    Ok(plan.mount(runtime)?)
}

fn access_of(
    url: &str,
    global: &Global,
    options: &MountOptions,
    settings: &Settings,
) -> Result<Access, Failure> {
    let mut access = Access::of_mount(url, global, settings)?;
    if options.flags.read_only || settings.snapshot.is_some() {
        access.only_read();
    }
    Ok(access)
}

/// Checks the volume, and the trace that the user names: one that cannot be replayed is refused
/// before the mount.
async fn check(
    repository: &Arc<Repository>,
    volume: &str,
    kind: Use,
    settings: &Settings,
) -> Result<(), Failure> {
    volumes::check(repository, volume, kind).await?;
    if let Some(name) = settings.trace.as_deref().filter(|name| *name != NONE) {
        load(repository, volume, name).await?;
    }
    Ok(())
}

/// Returns the name of the volume that a mounted clone becomes.
fn name_of_clone(settings: &Settings, repository: &Repository) -> String {
    let given = settings.clone_as.clone();
    given.unwrap_or_else(|| scratch_name(repository))
}

/// Removes in the background the scratch clones that dead mounts have left, unless the mount takes
/// no changes.
fn reap_soon(plan: &MountPlan, runtime: &Runtime) {
    if plan.is_read_only() {
        return;
    }
    let repository = plan.repository.clone();
    runtime.spawn(async move {
        match reap(&repository, "bkfs mount", Patience::Everywhere).await {
            Ok(reaped) if reaped.is_empty() => {}
            Ok(reaped) => tracing::info!(?reaped, "scratch clones of dead mounts were removed"),
            Err(error) => tracing::debug!(%error, "scratch clones may be left"),
        }
    });
}

/// Returns the snapshot that a mount is a clone of, if it is one.
fn clone_of(
    settings: &Settings,
    volume: &str,
    repository: &Repository,
    options: &MountOptions,
) -> Result<Option<CloneOf>, Failure> {
    let Some(snapshot) = &settings.clone else {
        return Ok(None);
    };
    if options.flags.read_only {
        return Err(Failure::usage("a clone is mounted to be written: -o ro")
            .hint("-o snapshot=NAME mounts a snapshot to be read."));
    }
    if let Some(name) = &settings.clone_as {
        refuse_scratch(name)?;
    }
    Ok(Some(CloneOf {
        volume: volume.to_owned(),
        snapshot: SnapshotReference::parse(snapshot, repository.now())?,
    }))
}

/// Refuses a mount point that is a mount already, before a volume is taken over for it. A mount
/// whose daemon has died is unmounted, since no process can use it.
fn make_way(mountpoint: &Path, output: &Output) -> Result<(), Failure> {
    let Ok(mountpoint) = std::path::absolute(mountpoint) else {
        return Ok(());
    };
    let mounted = match bkfs_fuse::find_mount(&mountpoint) {
        Ok(Some(mount)) if mount.is_bkfs() && mount.mount_point == mountpoint => mount,
        _ => return Ok(()),
    };
    let (place, source) = (mountpoint.display(), mounted.source.to_string_lossy());
    let is_dead = std::fs::symlink_metadata(&mountpoint)
        .is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN));
    if !is_dead {
        let message = format!("{place} is already a mount of {source}");
        return Err(Failure::new(message));
    }
    // Processes may still have files of it open. They get errors from them either way.
    bkfs_fuse::unmount(&mountpoint, true).map_err(|error| Failure::new(error.to_string()))?;
    output.remark(format_args!(
        "{place} is a mount of {source} whose daemon has died: replacing it"
    ));
    Ok(())
}

/// Serves until the mount is gone, or a signal ends it.
fn serve(mounted: Mounted, runtime: Runtime, outcome: Option<&Path>) -> Result<(), Failure> {
    let signals = runtime
        .block_on(async {
            Ok([
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
            ])
        })
        .map_err(no_signals)?;
    let session = mounted.session().clone();
    let unmount = move |lazy| unmount(session.clone(), lazy);
    runtime.spawn(heed(signals, unmount, mounted.ending()));
    let ended = mounted.wait(&runtime);
    if let Some(place) = outcome {
        say_how(ended.as_ref().copied(), place);
    }
    // A disk or a store that does not answer must not delay the end.
    runtime.shutdown_background();
    Ok(ended?)
}

/// Unmounts at the first signal, as soon as no process uses the mount; detaches the mount at the
/// second, even while one does; ends it at once at the third.
///
/// Never returns, so that every signal is heard, also while an attempt to unmount hangs. `unmount`
/// gets whether to detach, and returns true if nothing is left to try.
async fn heed<F>(
    [mut terminate, mut interrupt]: [Signal; 2],
    unmount: impl Fn(bool) -> F,
    ending: Ending,
) where
    F: Future<Output = bool> + Send + 'static,
{
    let mut signals = 0_u32;
    let mut tries = 0_u32;
    let mut is_mounted = true;
    let mut attempts = JoinSet::new();
    loop {
        let is_due = signals > 0 && is_mounted && attempts.is_empty();
        tokio::select! {
            _ = terminate.recv() => signals += 1,
            _ = interrupt.recv() => signals += 1,
            Some(attempt) = attempts.join_next() => {
                is_mounted &= !attempt.unwrap_or(true);
                continue;
            }
            () = tokio::time::sleep(UNMOUNT_INTERVAL), if is_due => {
                attempts.spawn(unmount(signals > 1 || tries >= UNMOUNT_TRIES));
                tries += 1;
                continue;
            }
        }
        match signals {
            1 => {
                tracing::info!("received a signal: unmounting once no process uses the mount");
                ending.told();
                attempts.spawn(unmount(false));
            }
            2 => {
                tracing::warn!(
                    "received a second signal: detaching the mount, even while it is used"
                );
                attempts.spawn(unmount(true));
            }
            _ => {
                tracing::warn!("received a further signal: ending the mount now");
                ending.at_once();
            }
        }
    }
}

/// Tries to unmount. Returns true if nothing is left to try.
async fn unmount(session: Arc<Session>, lazy: bool) -> bool {
    match tokio::task::spawn_blocking(move || session.unmount(lazy)).await {
        Ok(Err(MountError::Busy(_) | MountError::Covered(_))) => false,
        Ok(Err(error)) if !matches!(error, MountError::NotMounted(_)) => {
            tracing::warn!("not unmounted: {error}");
            true
        }
        _ => true,
    }
}

fn no_signals(error: std::io::Error) -> Failure {
    Failure::new(format!("cannot wait for signals: {error}"))
}

/// Runs this program again as the daemon, and waits until its mount answers or it has reported why
/// not. Until then the daemon keeps the terminal, for errors and for the password.
fn start_daemon(command: &MountCommand, global: &Global, output: &Output) -> Result<(), Failure> {
    let failed = |what: &str, error: std::io::Error| Failure::new(format!("{what}: {error}"));
    let program =
        std::env::current_exe().map_err(|error| failed("cannot find this program", error))?;
    let (read, write) = rustix::pipe::pipe().map_err(|error| failed("pipe", error.into()))?;
    rustix::io::fcntl_setfd(&read, rustix::io::FdFlags::CLOEXEC)
        .map_err(|error| failed("pipe", error.into()))?;
    let mut daemon = Command::new(program);
    daemon
        .args(std::env::args_os().skip(1))
        .arg0("bkfs")
        .env(READY_VARIABLE, write.as_raw_fd().to_string());
    daemon.stdout(Stdio::null());
    let passwords = (global.handed.hand_to(&mut daemon))
        .map_err(|error| failed("cannot make a file in memory", error))?;
    let mut child = daemon
        .spawn()
        .map_err(|error| failed("cannot start the daemon", error))?;
    drop((write, passwords));
    let mut ready = Vec::new();
    std::fs::File::from(read)
        .read_to_end(&mut ready)
        .map_err(|error| failed("cannot wait for the daemon", error))?;
    if ready == [1] {
        output.remark(format_args!("mounted at {}", command.mountpoint.display()));
        return Ok(());
    }
    let status = child
        .wait()
        .map_err(|error| failed("cannot wait for the daemon", error))?;
    // The daemon has reported why.
    std::process::exit(status.code().unwrap_or(Code::Failed as i32));
}

/// The pipe from which the starting process reads.
struct Ready(OwnedFd);

impl Ready {
    fn from_environment() -> Option<Ready> {
        let number: i32 = std::env::var(READY_VARIABLE).ok()?.parse().ok()?;
        if number <= 2 {
            return None;
        }
        // SAFETY: the process that started this one left this descriptor open for it and named it
        // in the environment; nothing else in this process knows the number.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).ok()?;
        Some(Ready(fd))
    }

    /// Tells the starting process that the mount answers, so that it returns and this one goes on
    /// alone.
    fn tell(self) -> std::io::Result<()> {
        // A session of its own, so that the end of the terminal does not end the mount.
        let _ = rustix::process::setsid();
        let null = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        std::env::set_current_dir("/")?;
        std::fs::File::from(self.0).write_all(&[1])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Sends this process a signal that it does not use otherwise, and lets it be heard.
    async fn send() {
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::USR1).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// The mount of a store that does not answer: umount(2) waits for dirty pages.
    #[tokio::test]
    async fn signals_are_heard_while_unmounting_hangs() {
        let listen = |kind| signal(kind).unwrap();
        let signals = [
            listen(SignalKind::user_defined1()),
            listen(SignalKind::user_defined2()),
        ];
        let detached = Arc::new(AtomicU32::new(0));
        let (ending, seen) = (Ending::default(), detached.clone());
        let unmount = move |lazy| {
            seen.fetch_add(u32::from(lazy), Ordering::SeqCst);
            std::future::pending::<bool>()
        };
        let heeding = tokio::spawn(heed(signals, unmount, ending.clone()));
        tokio::time::sleep(Duration::from_millis(50)).await;
        send().await;
        assert_eq!(detached.load(Ordering::SeqCst), 0);
        send().await;
        assert_eq!(detached.load(Ordering::SeqCst), 1);
        assert!(!ending.is_at_once());
        send().await;
        assert!(ending.is_at_once());
        heeding.abort();
    }
}
