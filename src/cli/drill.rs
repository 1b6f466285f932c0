//! `bkfs drill URL SNAPSHOT -- COMMAND…`
//!
//! Owns the order of a drill, and how its command is kept apart: in mount, network and process
//! namespaces of its own, which the programs unshare and setpriv of util-linux make. Does not own
//! the clone (`volumes`), nor the mount.
//!
//! The whole program runs in a mount namespace of its own, so the mount of the clone is seen by
//! nothing else, and ends with the program, however that ends. Everything that the command starts
//! ends with the process namespace, even what leaves its process group.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bkfs_fuse::MountOptions;
use bkfs_store::entropy::SystemEntropy;
use rustix::fs::Access;
use rustix::pipe::PipeFlags;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::access::{self, open};
use crate::cli::hooks::Hooks;
use crate::cli::named::resolve;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, complain};
use crate::cli::runtime::SHUTDOWN_PATIENCE;
use crate::cli::signals::Hangup;
use crate::cli::target::target;
use crate::cli::tool::{code_of, code_without_start};
use crate::maintain::forgetting::Changer;
use crate::mounting::settings::Settings;
use crate::mounting::spool_place::SpoolPlace;
use crate::mounting::writing::CloneOf;
use crate::mounting::{MountPlan, Mounted};
use crate::own_directory::OwnDirectory;
use crate::places;
use crate::repository::Repository;
use crate::root::snapshots::{Drill, SnapshotEntry, SnapshotReference};
use crate::units::{LetterM, stretch};
use crate::vfs::observed::Observed;
use crate::volumes::reap::{Patience, reap};
use crate::volumes::scratch_name;

/// Tells the program that it runs in a mount namespace of its own.
const PRIVATE_VARIABLE: &str = "BKFS_DRILL_PRIVATE";

/// Names the directory of the clone for the command.
const CLONE_VARIABLE: &str = "BKFS_CLONE";

/// Where the clone is mounted. All drills use it, each in its own mount namespace. Each user may
/// pass through it, whatever the umask was.
const PLACE: &str = "/run/bkfs-drill";

/// Variables that the command inherits. All others may hold a password or a key of the store.
const INHERITED: [&str; 6] = ["PATH", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ"];

/// What the command's first process does: it starts the loopback device of the new network, if
/// there is a program for that, and runs the command. It stays, so that the end of this program
/// ends it, and with it the process namespace.
const FIRST: &str = "ip link set lo up 2>/dev/null; \"$@\"; exit $?";

/// What becomes the command, as its user. Its standard input is a pipe: a byte says that all that
/// keeps the command apart was made.
const SECOND: &str = "echo >&0; exec \"$@\" </dev/null";

/// How the names of the caches of drills begin, in the directory of the machine's cache.
const OWN_CACHE: &str = "bkfs-drill-";

/// How long the command has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// Try a backup: run a command on a writable clone of a snapshot, and note the result
///
/// The clone is mounted at a private place, which the command finds in $BKFS_CLONE, and is thrown
/// away afterwards. The command runs without network, and without passwords and keys of the store
/// in its environment; when it ends, everything that it started ends. What it reads comes from the
/// bucket: the cache of this machine is not used. bkfs snapshots shows the result. A drill in which
/// the clone returned an error has failed, whatever the command says.
/// Needs root and the programs unshare and setpriv of util-linux.
#[derive(Debug, clap::Args)]
pub struct DrillCommand {
    /// The repository, or a mount of one
    pub(super) url: String,
    /// The snapshot: NAME, latest or @TIME
    snapshot: String,
    /// End the command after this time (90s, 10m, 2h); the drill has failed then
    #[arg(long, value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
    /// Run the command as this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    #[command(flatten)]
    pub(super) hooks: Hooks,
    /// The command, and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn time(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .or_else(|| stretch(text, LetterM::Minutes));
    let seconds = seconds.filter(|seconds| *seconds > 0);
    let time = seconds.map(Duration::from_secs);
    time.ok_or_else(|| "expected a time such as 90s, 10m or 2h".to_owned())
}

/// How the command ended.
enum Ended {
    /// By itself, with this exit code.
    With(i32),
    /// After the time that it had.
    InVain(Duration),
    /// Because a signal ended the drill.
    Interrupted,
}

/// Runs a drill, and writes its result on the snapshot. Returns the exit code of the command.
///
/// # Errors
/// Exit code 125 if there was no drill, if the clone returned errors, or if the command did not end
/// in time.
pub fn run(command: DrillCommand, global: &Global, output: &Output) -> Result<i32, Failure> {
    let ours = |failure: Failure| failure.code(Code::RunFailed);
    if let Err(error) = require_program(&command.command[0]) {
        let program = command.command[0].to_string_lossy();
        complain(format_args!("bkfs: cannot run {program}: {error}"));
        return Ok(code_without_start(&error));
    }
    if std::env::var_os(PRIVATE_VARIABLE).is_none() {
        return Err(ours(enter_namespace(global)));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("bkfs")
        .build()
        .map_err(|error| ours(Failure::new(format!("cannot start the runtime: {error}"))))?;
    // What the bucket has lost may still be in the cache of the machine.
    let above = global.cache_dir.clone().or_else(places::cache_dir);
    let above = above.unwrap_or_else(std::env::temp_dir);
    let cache = OwnDirectory::make(&above, OWN_CACHE, &SystemEntropy)
        .map_err(|error| ours(Failure::new(format!("{}: {error}", above.display()))))?;
    let result = drill(&command, global, &cache, output, &runtime);
    // What is left of it writes to the cache.
    runtime.shutdown_timeout(SHUTDOWN_PATIENCE);
    result.map_err(ours)
}

/// Checks that a program is there and can be run, as the shell that starts it does in `/`: a typing
/// error says nothing of a backup.
fn require_program(program: &OsStr) -> io::Result<()> {
    let is_path = program.as_bytes().contains(&b'/');
    let paths: Vec<PathBuf> = match is_path {
        true => vec![Path::new("/").join(program)],
        false => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let directories = std::env::split_paths(&path);
            directories.map(|place| place.join(program)).collect()
        }
    };
    let mut found = Err(io::ErrorKind::NotFound.into());
    for path in paths.iter().filter(|path| path.is_file()) {
        match rustix::fs::access(path, Access::EXEC_OK) {
            Ok(()) => return Ok(()),
            Err(error) => found = Err(error.into()),
        }
    }
    found
}

/// Runs this program again in a mount namespace of its own. Returns only if that fails.
fn enter_namespace(global: &Global) -> Failure {
    if !rustix::process::geteuid().is_root() {
        return Failure::new("a drill needs root, since it mounts where nothing else can see it");
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Failure::new(format!("cannot find this program: {error}")),
    };
    let mut again = std::process::Command::new("unshare");
    again
        .args(["--mount", "--propagation", "private", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(PRIVATE_VARIABLE, "1");
    match global.handed.hand_to(&mut again) {
        Ok(_open) => absent("unshare", &again.exec()),
        Err(error) => Failure::new(format!("cannot make a file in memory: {error}")),
    }
}

fn absent(program: &str, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot run {program}: {error}"))
        .hint("A drill needs the programs unshare and setpriv of util-linux.")
}

fn drill(
    command: &DrillCommand,
    global: &Global,
    cache: &OwnDirectory,
    output: &Output,
    runtime: &Runtime,
) -> Result<i32, Failure> {
    let (url, mut global) = target(&command.url, global)?;
    let user = command.user.as_deref().map(ids_of).transpose()?;
    global.cache_dir = Some(cache.path().to_owned());
    let (repository, entry) = runtime.block_on(async {
        let repository = Arc::new(open(&url, &global).await?);
        // One that cannot be removed now is left to the next collection.
        if let Err(error) = reap(&repository, "bkfs drill", Patience::Here).await {
            tracing::debug!(%error, "scratch clones may be left");
        }
        let list = repository.snapshots().await?;
        let reference = SnapshotReference::parse(&command.snapshot, repository.now())?;
        let entry = resolve(&list, &global.volume, &reference)?.clone();
        Ok::<_, Failure>((repository, entry))
    })?;
    let observed = Arc::new(Observed::of_reads());
    let mounted = mount(&repository, &entry, observed.clone(), runtime)?;
    let begun = Instant::now();
    let ended = runtime.block_on(run_command(command, user, output));
    let seconds = begun.elapsed().as_secs();
    // A clone that is left does not change what the command found.
    let thrown_away = end(mounted, runtime);
    let ended = ended?;
    let permille = observed.bytes().saturating_mul(1000) / entry.bytes.max(1);
    let drill = Drill {
        time: repository.now(),
        is_good: matches!(judge(&ended, observed.errors()), Ok(0)),
        command: name_of(command),
        seconds,
        read_permille: permille.min(1000) as u16,
        is_of_source: false,
    };
    if !matches!(ended, Ended::Interrupted) {
        let changer = Changer {
            repository: &repository,
            command: "bkfs drill",
        };
        runtime.block_on(changer.note_drill(&entry, &drill))?;
        show(&entry, &drill, observed.errors(), output)?;
    }
    thrown_away?;
    judge(&ended, observed.errors())
}

/// Returns the exit code of the drill.
fn judge(ended: &Ended, errors: u64) -> Result<i32, Failure> {
    match ended {
        Ended::Interrupted => Err(Failure::new("interrupted: the drill has no result")),
        Ended::InVain(time) => Err(Failure::new(format!(
            "the command did not end within {} s",
            time.as_secs()
        ))),
        Ended::With(_) if errors > 0 => Err(Failure::new(format!(
            "the clone answered {errors} requests with an error: data of the backup is damaged or \
             missing"
        ))
        .hint("bkfs check --read-data names the files.")),
        Ended::With(code) => Ok(*code),
    }
}

fn name_of(command: &DrillCommand) -> String {
    let program = command.command.first().map(Path::new);
    let name = program.and_then(Path::file_name).unwrap_or_default();
    let name = name.to_string_lossy();
    name.chars().take(64).collect()
}

fn show(entry: &SnapshotEntry, drill: &Drill, errors: u64, output: &Output) -> Result<(), Failure> {
    let percent = f64::from(drill.read_permille) / 10.0;
    let answer = json!({
        "snapshot": entry.name,
        "volume": entry.volume,
        "ok": drill.is_good,
        "command": drill.command,
        "seconds": drill.seconds,
        "read_percent": percent,
        "errors": errors,
    });
    if output.is_json() {
        return output.result(&answer, String::new);
    }
    output.keep(&answer);
    // Standard output belongs to the command.
    output.finding(format_args!(
        "drill of snapshot {}: {} in {} s, {percent} % of its bytes were read",
        entry.name,
        drill.verdict(),
        drill.seconds
    ));
    Ok(())
}

/// Mounts a clone of a snapshot that is thrown away.
fn mount(
    repository: &Arc<Repository>,
    entry: &SnapshotEntry,
    observed: Arc<Observed>,
    runtime: &Runtime,
) -> Result<Mounted, Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{PLACE}: {error}"));
    std::fs::create_dir_all(PLACE).map_err(failed)?;
    let for_all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(PLACE, for_all).map_err(failed)?;
    let options = MountOptions::parse(&["allow_other".to_owned()]);
    let settings = Settings::default();
    let swap_bytes = access::swap_bytes(&settings);
    let spool = SpoolPlace::on_this_machine(repository, swap_bytes, Path::new(PLACE));
    let spool = spool.unwrap_or_else(|error| {
        tracing::warn!(
            "there is no swap file in the directory of spools: {error}; what is changed beyond \
             memory= is uploaded"
        );
        None
    });
    let plan = MountPlan {
        repository: repository.clone(),
        mount_point: PLACE.into(),
        options: options.map_err(|error| Failure::new(error.to_string()))?,
        settings,
        volume: scratch_name(repository),
        steal: false,
        spool,
        clone_of: Some(CloneOf {
            volume: entry.volume.clone(),
            snapshot: SnapshotReference::Name(entry.name.clone()),
        }),
        observed,
    };
    Ok(plan.mount(runtime)?)
}

/// Unmounts the clone and throws it away.
fn end(mounted: Mounted, runtime: &Runtime) -> Result<(), Failure> {
    // No process of the command is left. The kernel may still release the last files.
    if mounted.session().unmount(false).is_err() {
        let lazily = mounted.session().unmount(true);
        lazily.map_err(|error| Failure::new(error.to_string()))?;
    }
    Ok(mounted.wait(runtime)?)
}

/// A user, as setpriv takes it: the numbers of the user and of its group.
type Ids = (String, String, String);

/// Returns the numbers of a user.
fn ids_of(user: &str) -> Result<Ids, Failure> {
    let id = |what: &str| {
        let mut command = std::process::Command::new("id");
        let found = command.args([what, "--", user]).output();
        let found = found.map_err(|error| Failure::new(format!("cannot run id: {error}")))?;
        match found.status.success() {
            true => Ok(String::from_utf8_lossy(&found.stdout).trim().to_owned()),
            false => Err(Failure::new(format!("there is no user {user}"))),
        }
    };
    Ok((user.to_owned(), id("-u")?, id("-g")?))
}

/// Starts the command with everything that keeps it apart. Something is written to `began` when it
/// begins.
fn start(
    command: &DrillCommand,
    user: Option<Ids>,
    began: OwnedFd,
    output: &Output,
) -> Result<Child, Failure> {
    let mut tool = Command::new("setpriv");
    // If this program is killed, so is unshare, and then the first process of the namespace.
    tool.args(["--pdeathsig", "KILL", "--", "unshare"])
        .args([
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--mount-proc",
            "--",
        ])
        .args(["sh", "-c", FIRST, "sh"]);
    tool.env_clear();
    let inherited = INHERITED
        .iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)));
    tool.envs(inherited)
        .env(CLONE_VARIABLE, PLACE)
        .env("HOME", "/");
    if let Some((name, uid, gid)) = user {
        tool.env("USER", &name).env("LOGNAME", &name);
        tool.args([
            "setpriv",
            "--reuid",
            &uid,
            "--regid",
            &gid,
            "--init-groups",
            "--",
        ]);
    }
    tool.args(["sh", "-c", SECOND, "sh"])
        .args(&command.command)
        .stdin(Stdio::from(began))
        .process_group(0)
        .current_dir("/");
    if output.is_json() {
        // The result is the only thing on standard output.
        let errors = rustix::io::dup(std::io::stderr());
        let errors = errors.map_err(|error| Failure::new(format!("standard error: {error}")))?;
        tool.stdout(Stdio::from(errors));
    }
    tool.spawn().map_err(|error| absent("setpriv", &error))
}

/// Runs the command to its end.
async fn run_command(
    command: &DrillCommand,
    user: Option<Ids>,
    output: &Output,
) -> Result<Ended, Failure> {
    let no_signals = |error: std::io::Error| Failure::new(format!("signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut hangup = Hangup::listen().map_err(no_signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
    let (began, told) =
        pipe.map_err(|error| Failure::new(format!("cannot make a pipe: {error}")))?;
    let mut child = start(command, user, told, output)?;
    let late = async {
        match command.timeout {
            Some(time) => {
                tokio::time::sleep(time).await;
                time
            }
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        status = child.wait() => {
            let status = status.map_err(|error| Failure::new(format!("the command: {error}")))?;
            Ended::With(code_of(status))
        }
        time = late => Ended::InVain(time),
        _ = terminate.recv() => Ended::Interrupted,
        () = hangup.recv() => Ended::Interrupted,
        _ = interrupt.recv() => Ended::Interrupted,
    };
    if !matches!(ended, Ended::With(_)) {
        stop(&mut child).await?;
    }
    let has_begun = matches!(rustix::io::read(&began, &mut [0u8; 1]), Ok(1));
    match ended {
        Ended::With(_) | Ended::InVain(_) if !has_begun => Err(Failure::new(
            "the command was not started: this is no result",
        )
        .hint("A drill needs namespaces of mounts, processes and networks.")),
        ended => Ok(ended),
    }
}

/// Ends the process group of the command, and with its first process all others.
async fn stop(child: &mut Child) -> Result<(), Failure> {
    let group = child
        .id()
        .and_then(|id| rustix::process::Pid::from_raw(id as i32));
    let send = |signal| {
        if let Some(group) = group {
            // It may have ended this very moment.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    };
    send(rustix::process::Signal::TERM);
    if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
        send(rustix::process::Signal::KILL);
    }
    let waited = child.wait().await;
    waited.map_err(|error| Failure::new(format!("the command: {error}")))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_clone_fails_the_drill_whatever_the_command_says() {
        let late = || Ended::InVain(Duration::from_secs(1));
        let code = |ended: Ended, errors| judge(&ended, errors).unwrap_or(125);
        assert_eq!(code(Ended::With(0), 0), 0);
        assert_eq!(code(Ended::With(7), 0), 7);
        for errors in [1, u64::MAX] {
            assert_eq!(code(Ended::With(0), errors), 125);
        }
        assert_eq!((code(late(), 0), code(Ended::Interrupted, 0)), (125, 125));
    }

    #[test]
    fn times_have_units() {
        let seconds = |text| time(text).map(|time| time.as_secs()).ok();
        assert_eq!(seconds("90"), Some(90));
        assert_eq!(seconds("10m"), Some(600));
        assert_eq!(seconds("2h"), Some(7200));
        assert_eq!(
            (seconds("0"), seconds("soon"), seconds("-1")),
            (None, None, None)
        );
    }
}
