//! The command line: one file per command.
//!
//! Owns: arguments, what is printed, exit codes. Does not own: what commands do to repositories and
//! mounts (`mounting`, `root`, `snapshots`, `restore`).

use std::ffi::OsString;
use std::sync::LazyLock;

use bkfs_chunker::crypto::FORMAT_VERSION;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub mod access;
mod check;
mod completions;
mod control;
mod copy;
mod diff;
mod drill;
mod dump;
mod find;
mod forget;
pub mod gc;
pub mod gc_merge;
mod hooks;
mod hydrate;
mod init;
mod key;
mod left_out;
mod limits;
mod lock;
mod ls;
mod manual;
mod metrics;
mod mount;
mod named;
pub mod options;
pub mod output;
mod password;
mod patience;
mod profile;
mod progress;
mod put;
mod put_session;
mod put_tree;
mod readable_file;
mod restore;
mod run;
mod runtime;
mod schedule;
mod secrecy;
mod serve;
mod session;
mod signals;
mod snapshot;
mod snapshots;
mod source;
mod stats;
mod status;
mod target;
mod tool;
mod trace;
mod umount;
mod upgrade;
mod volume;
mod volumes;
mod workspace;

use hooks::Watched;
use options::Global;
use output::{Failure, Output, complain};

use crate::logging::Log;
use crate::printable;

/// What `--version` shows: the program's version, and that of the repositories which it reads and
/// writes.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let program = env!("CARGO_PKG_VERSION");
    format!("{program} (repository format {FORMAT_VERSION})")
});

/// Use a bucket as a backup directory: mount it, write with any tool, snapshot, browse, restore.
#[derive(Debug, Parser)]
#[command(
    name = "bkfs",
    version = VERSION.as_str(),
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_long_help = manual::for_terminal()
)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Each says at its arguments what it does: first a line, then all that its `--help` tells.
#[derive(Debug, Subcommand)]
enum Command {
    Init(init::Init),
    Mount(mount::MountCommand),
    Umount(umount::Umount),
    Snapshot(snapshot::Snapshot),
    Run(run::Run),
    Put(put::Put),
    Snapshots(snapshots::Snapshots),
    Ls(ls::Ls),
    Dump(dump::Dump),
    Diff(diff::Diff),
    Find(find::Find),
    Stats(stats::StatsCommand),
    Metrics(metrics::MetricsCommand),
    Serve(serve::Serve),
    Restore(restore::Restore),
    Forget(forget::Forget),
    Gc(gc::Gc),
    #[command(subcommand)]
    Session(session::Session),
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    Check(check::Check),
    Copy(copy::Copy),
    Drill(drill::DrillCommand),
    Key(key::Key),
    Lock(lock::LockCommand),
    Upgrade(upgrade::Upgrade),
    Status(status::Status),
    Hydrate(hydrate::Hydrate),
    #[command(subcommand)]
    Schedule(schedule::ScheduleCommand),
    #[command(hide = true)]
    Generate(completions::Generate),
}

impl Command {
    /// Returns what it starts at its end, if anything.
    fn watched(&self) -> Option<Watched> {
        match self {
            Self::Run(run) => Watched::begin(&run.hooks, "run", run.mountpoint.display()),
            Self::Put(put) => Watched::begin(&put.hooks, "put", &put.url),
            Self::Forget(forget) => Watched::begin(&forget.hooks, "forget", &forget.url),
            Self::Gc(gc) => Watched::begin(&gc.hooks, "gc", &gc.url),
            Self::Check(check) => Watched::begin(&check.hooks, "check", &check.url),
            Self::Copy(copy) => Watched::begin(&copy.hooks, "copy", &copy.to),
            Self::Drill(drill) => Watched::begin(&drill.hooks, "drill", &drill.url),
            _ => None,
        }
    }

    /// Whether it says on stderr what is logged while it works: those that write to a repository
    /// or judge it, where something may be lost or set aside. A mount has a log of its own.
    fn has_log(&self) -> bool {
        matches!(
            self,
            Self::Put(_)
                | Self::Forget(_)
                | Self::Gc(_)
                | Self::Session(_)
                | Self::Volume(_)
                | Self::Trace(_)
                | Self::Check(_)
                | Self::Copy(_)
                | Self::Drill(_)
                | Self::Key(_)
                | Self::Lock(_)
                | Self::Upgrade(_)
                | Self::Serve(_)
        )
    }
}

/// Returns why a command line of bkfs is refused, in a line.
fn refusal(arguments: Vec<OsString>) -> Option<String> {
    let error = parse(arguments).err()?;
    let text = error.render().to_string();
    let line = text.lines().next().unwrap_or_default();
    Some(line.trim_start_matches("error: ").to_owned())
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(arguments)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    cli.global.volume_is_given = matches.value_source("volume") == Some(ValueSource::CommandLine);
    Ok(cli)
}

/// Prints help, or what is wrong with the arguments, which it repeats.
fn print_usage(error: &clap::Error) {
    let plain = error.render().to_string();
    if printable::lines(&plain) == plain {
        // A closed pipe on help is no failure.
        return drop(error.print());
    }
    plain.lines().for_each(complain);
}

/// Runs the program; the answer is its exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> i32 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let handed = secrecy::begin(&arguments);
    let mut cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            print_usage(&error);
            return error.exit_code();
        }
    };
    cli.global.handed = handed;
    let mut output = Output::new(cli.global.json, cli.global.quiet);
    let global = cli.global;
    let watched = cli.command.watched();
    if watched.is_some() {
        output.keep_results();
    }
    if cli.command.has_log() {
        Log::start_for_command(global.verbose, global.quiet);
    }
    // `run` and `trace record` open no repository, and `put` starts its tool with the limit of before.
    if !matches!(
        cli.command,
        Command::Run(_) | Command::Put(_) | Command::Trace(trace::TraceCommand::Record(_))
    ) {
        limits::OpenFiles::raise();
    }
    let result = run_command(cli.command, &global, &output);
    let code = match &result {
        Ok(code) => *code,
        Err(failure) => output.fail(failure),
    };
    if let Some(watched) = watched {
        watched.end(code, result.err().as_ref(), &output);
    }
    code
}

/// Runs a command. Returns its exit code: 0, or that of a tool.
fn run_command(command: Command, global: &Global, output: &Output) -> Result<i32, Failure> {
    match command {
        Command::Run(command) => return run::run(command, global, output),
        Command::Drill(command) => return drill::run(command, global, output),
        Command::Trace(command) => return trace::run(command, global, output),
        Command::Init(command) => init::run(command, global, output),
        Command::Mount(command) => mount::run(command, global, output),
        Command::Umount(command) => umount::run(command, global, output),
        Command::Snapshot(command) => snapshot::run(command, global, output),
        Command::Put(command) => put::run(command, global, output),
        Command::Snapshots(command) => snapshots::run(command, global, output),
        Command::Ls(command) => ls::run(command, global, output),
        Command::Dump(command) => dump::run(command, global, output),
        Command::Diff(command) => diff::run(command, global, output),
        Command::Find(command) => find::run(command, global, output),
        Command::Stats(command) => stats::run(command, global, output),
        Command::Metrics(command) => metrics::run(command, global, output),
        Command::Serve(command) => serve::run(command, global, output),
        Command::Restore(command) => restore::run(command, global, output),
        Command::Forget(command) => forget::run(command, global, output),
        Command::Gc(command) => gc::run(command, global, output),
        Command::Schedule(command) => schedule::run(command, &refusal, output),
        Command::Session(command) => session::run(command, global, output),
        Command::Volume(command) => volume::run(command, global, output),
        Command::Check(command) => check::run(command, global, output),
        Command::Copy(command) => copy::run(command, global, output),
        Command::Key(command) => key::run(command, global, output),
        Command::Lock(command) => lock::run(command, global, output),
        Command::Upgrade(command) => upgrade::run(command, global, output),
        Command::Status(command) => status::run(command, global, output),
        Command::Hydrate(command) => hydrate::run(command, global, output),
        Command::Generate(command) => completions::run(command, Cli::command()),
    }?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_line_in_the_list() {
        Cli::command().debug_assert();
        for command in Cli::command().get_subcommands() {
            let about = command.get_about().map(ToString::to_string);
            let name = command.get_name();
            assert!(
                about.is_some_and(|line| !line.is_empty() && line.len() <= 100),
                "{name}"
            );
        }
    }

    #[test]
    fn whether_a_volume_was_given_is_known() {
        let is_given = |arguments: &[&str]| {
            let arguments = ["bkfs"].iter().chain(arguments).map(OsString::from);
            parse(arguments).unwrap().global.volume_is_given
        };
        assert!(!is_given(&["put", "./b", "x"]));
        assert!(is_given(&["put", "--volume", "main", "./b", "x"]));
        assert!(is_given(&["--volume=main", "put", "./b", "x"]));
    }
}
