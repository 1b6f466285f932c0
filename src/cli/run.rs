//! `bkfs run MOUNTPOINT -- COMMAND…`

use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::control::MountClient;
use crate::cli::hooks::Hooks;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output};
use crate::cli::patience::{self, Interrupt, Waited};
use crate::cli::runtime::block_on;
use crate::cli::snapshot::interrupted;
use crate::cli::tool::run_tool;
use crate::environment::Environment;
use crate::when::filled;

/// Run a backup tool, then make a snapshot
///
/// Most backup tools neither sync nor check the result of close(), so their exit code 0 does not
/// mean that the backup is stored. If the tool succeeds, this command makes a snapshot. It returns
/// 0 only if the snapshot is in the bucket.
///
/// If the tool fails, the command returns its exit code and makes no snapshot. If the tool succeeds
/// and bkfs does not, the exit code is 125. It is 125 as well if the tool was not started, because
/// the mount takes no writes or a snapshot of that name exists.
///
///   bkfs run --name 'mysql-%F' /backup -- mariabackup --backup --target-dir=/backup/mysql
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Run {
    /// The name of the snapshot (default: the time in UTC). It may have the time in it at which the
    /// tool starts, in UTC: %F is the date, %T the time, %% a percent sign (date(1) lists all)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// If the tool succeeds, move the older snapshot of this name into the trash
    #[arg(long, requires = "name")]
    replace: bool,
    /// Tag the snapshot; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// The mount, or any directory in it
    pub(super) mountpoint: PathBuf,
    /// The tool and its arguments, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    #[command(flatten)]
    pub(super) hooks: Hooks,
}

/// Runs the tool, then makes a snapshot. Returns 0 if the snapshot is in the bucket. If the tool
/// failed, returns its exit code; 126 or 127 if it cannot be run.
///
/// # Errors
/// Exit code 125 if the mount takes no writes, if the name is taken or not valid, if the tool cannot
/// be watched, or if the tool succeeded and its snapshot was not made or something was lost
/// meanwhile.
pub fn run(mut command: Run, _: &Global, output: &Output) -> Result<i32, Failure> {
    let ours = |failure: Failure| failure.code(Code::RunFailed);
    command.name = command.name.map(dated).transpose()?;
    let mount = MountClient::find(&command.mountpoint).map_err(ours)?;
    let before = healthy(&mount).map_err(ours)?;
    refuse_name(&command, &mount).map_err(ours)?;
    let status = block_on(run_tool(&command.command)).map_err(ours)?;
    if status != 0 {
        let tool = command.command[0].to_string_lossy();
        output.finding(format_args!(
            "{tool} ended with {status}: no snapshot was made"
        ));
        return Ok(status);
    }
    let answer = snapshot(&command, &mount, &before, output).map_err(|failure| {
        ours(failure.context("the tool succeeded, but its backup did not become a snapshot"))
    })?;
    // Standard output belongs to the tool, unless JSON is asked for.
    match output.is_json() {
        true => output.result(&answer, String::new)?,
        false => output.keep(&answer),
    }
    output.finding(format_args!(
        "snapshot {} (generation {}){}",
        answer["name"].as_str().unwrap_or_default(),
        answer["generation"].as_u64().unwrap_or_default(),
        match answer["replaced"] == true {
            true => "; the older one is in the trash",
            false => "",
        }
    ));
    Ok(0)
}

impl Run {
    /// Returns what the mount is asked for.
    fn wanted(&self) -> Value {
        let mut wanted = json!({ "name": self.name, "tags": self.tags });
        // A daemon of an older version does not know the word.
        if self.replace {
            wanted["replace"] = json!(true);
        }
        wanted
    }
}

/// Returns a name with the time in it.
///
/// # Errors
/// Exit code 2 for a `%` that means nothing.
fn dated(name: String) -> Result<String, Failure> {
    filled(&name, Environment::this().now()).map_err(|error| {
        Failure::usage(format!("--name {name}: {error}")).hint("%% is a percent sign.")
    })
}

/// The daemon that serves a mount, and how often it has lost something so far.
#[derive(PartialEq)]
struct Seen {
    losses: u64,
    daemon: Value,
}

impl Seen {
    fn of(status: &Value) -> Self {
        Self {
            losses: status["losses"].as_u64().unwrap_or_default(),
            daemon: ["host", "pid_namespace", "pid", "since"]
                .map(|key| status[key].clone())
                .into_iter()
                .collect(),
        }
    }
}

/// Returns the daemon of this mount and its losses. Fails if the mount takes no writes.
fn healthy(mount: &MountClient) -> Result<Seen, Failure> {
    let status = mount.status()?;
    let place = mount.mount_point().display();
    if status["mode"] == "read-only" {
        return Err(Failure::new(format!("{place} is mounted read-only")));
    }
    match status["failure"].as_str() {
        Some(failure) => {
            let hint = format!(
                "bkfs status {place} shows what is lost. To go on from the last commit: bkfs \
                 status --acknowledge {place}"
            );
            Err(Failure::new(failure).hint(hint))
        }
        None => Ok(Seen::of(&status)),
    }
}

/// Refuses a name or tag that no snapshot can have now, before the tool starts.
fn refuse_name(command: &Run, mount: &MountClient) -> Result<(), Failure> {
    let asked = mount.request(&json!({ "name": command.wanted() }));
    match asked {
        // A daemon of an older version does not know the question.
        Err(failure) if failure.code == Code::Usage && !command.replace => Ok(()),
        Err(failure) => {
            let hint = match &failure.hint {
                Some(taken) => format!(
                    "Give another --name, or replace the older snapshot with --replace. {taken}"
                ),
                None => "Give another --name, or none: the time in UTC then is the name.".into(),
            };
            Err(failure.context("the tool was not started").hint(hint))
        }
        Ok(_) => Ok(()),
    }
}

fn snapshot(
    command: &Run,
    mount: &MountClient,
    before: &Seen,
    output: &Output,
) -> Result<Value, Failure> {
    require_same(mount, before)?;
    let request = json!({ "snapshot": command.wanted() });
    let interrupt = Interrupt::hear()?;
    let made = match patience::request(mount, &request, &interrupt, output)? {
        Waited::Answer(made) => made,
        Waited::Interrupted { waiting_bytes } => return Err(interrupted(mount, waiting_bytes)),
    };
    // The snapshot may have been made after a loss.
    require_same(mount, before).map_err(|failure| {
        failure.context(format!(
            "snapshot {} was made nevertheless",
            made["name"].as_str().unwrap_or_default()
        ))
    })?;
    Ok(made)
}

/// Checks that the mount lost nothing while the tool ran. An acknowledged loss counts as well. So
/// does another daemon, since what a daemon had not stored when it ended is lost with it.
fn require_same(mount: &MountClient, before: &Seen) -> Result<(), Failure> {
    let now = Seen::of(&mount.status()?);
    let message = if now.daemon != before.daemon {
        "the mount was replaced while the tool ran: what the tool wrote before may be lost"
    } else if now.losses != before.losses {
        "something that was written was lost, and the loss was acknowledged meanwhile"
    } else {
        return Ok(());
    };
    Err(Failure::new(message).hint("Run the backup again."))
}
