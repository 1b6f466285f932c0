//! `bkfs schedule install|list|remove`
//!
//! Owns where the units of a schedule lie, and what systemd is told. Does not own their content
//! (`schedule`).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::cli::output::{Failure, Output};
use crate::cli::profile::configuration;
use crate::cli::readable_file;
use crate::cli::snapshots::columns;
use crate::config::{Config, RepositoryProfile};
use crate::schedule::unit::{Surroundings, owner, service, timer};
use crate::schedule::{Job, ScheduleError};

/// Where an administrator's units lie (systemd.unit(5)).
const UNITS: &str = "/etc/systemd/system";

/// This directory is there while systemd manages the machine (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";

/// Run backups and maintenance by timers of systemd
///
/// The table [repository.NAME.schedule] of the configuration says what runs when. bkfs makes a
/// service and a timer of each job. What a machine has missed while it was off runs when it is on
/// again.
#[derive(Debug, clap::Subcommand)]
pub enum ScheduleCommand {
    /// Write the units of the configuration, and start their timers
    Install(Install),
    /// List the jobs of the configuration, with their units
    List,
    /// Stop the timers of repositories, and remove their units
    Remove(Remove),
}

/// `bkfs schedule install [NAME…]`
///
/// Units of jobs that are no longer in the configuration are removed. Nothing is changed if a job
/// has wrong options or a wrong time. systemctl edit UNIT changes a unit without touching its file.
#[derive(Debug, clap::Args)]
pub struct Install {
    /// The profiles whose jobs are installed (default: all)
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print the units, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Write the units only: do not tell systemd of them
    #[arg(long)]
    no_enable: bool,
    #[command(flatten)]
    place: Place,
}

/// `bkfs schedule remove NAME…`
#[derive(Debug, clap::Args)]
pub struct Remove {
    /// The profiles whose units are removed; they need not be in the configuration any more
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Args)]
struct Place {
    /// Where the units lie. systemd is told of them only in the default directory
    #[arg(long, value_name = "DIR", default_value = UNITS)]
    directory: PathBuf,
}

impl Place {
    /// Whether systemd runs here, and reads this directory.
    fn is_live(&self) -> bool {
        self.directory == Path::new(UNITS) && Path::new(BOOTED).is_dir()
    }
}

/// Installs, lists or removes the jobs of repositories.
///
/// # Errors
/// Exit code 2 if the configuration is malformed, or a job has wrong options or a wrong time; 1 if a
/// unit cannot be written, or systemd refuses it.
pub fn run(command: ScheduleCommand, refusal: &Refusal, output: &Output) -> Result<(), Failure> {
    match command {
        ScheduleCommand::Install(install) => install.run(refusal, output),
        ScheduleCommand::List => list(output),
        ScheduleCommand::Remove(remove) => remove.run(output),
    }
}

/// Says why a command line of bkfs is refused, if it is.
pub type Refusal = dyn Fn(Vec<OsString>) -> Option<String>;

/// The units of one profile, by file name.
type Units = BTreeMap<String, String>;

impl Install {
    fn run(self, refusal: &Refusal, output: &Output) -> Result<(), Failure> {
        let config = configuration()?;
        let mut all = Units::new();
        let names = self.chosen(&config)?;
        for name in &names {
            let profile = &config.repositories[name];
            for (file, text) in units(name, profile, &config, refusal)? {
                if all.insert(file.clone(), text).is_some() {
                    let why = format!("two jobs would have the unit {file}");
                    return Err(Failure::usage(why).hint("Give one of them another name."));
                }
            }
        }
        if self.dry_run {
            return output.result(&json!({ "units": all }), || {
                let texts = all.iter().map(|(file, text)| format!("==> {file}\n{text}"));
                texts.collect::<Vec<_>>().join("\n")
            });
        }
        make_directory(&self.place.directory)?;
        let installed = Installed::read(&self.place.directory)?;
        let stale = installed.of(&names).filter(|file| !all.contains_key(*file));
        let stale: Vec<String> = stale.cloned().collect();
        installed.require_own(&all)?;
        let tells = self.place.is_live() && !self.no_enable;
        if tells {
            disable(&stale)?;
        }
        for (file, text) in &all {
            readable_file::replace(&self.place.directory.join(file), text)?;
        }
        remove(&self.place.directory, &stale)?;
        let timers: Vec<&String> = all.keys().filter(|file| file.ends_with(".timer")).collect();
        if tells {
            systemctl(["daemon-reload"])?;
            systemctl(
                ["enable", "--now", "--"]
                    .into_iter()
                    .chain(names_of(&timers)),
            )?;
        }
        let answer = json!({
            "directory": self.place.directory, "written": all.keys().collect::<Vec<_>>(),
            "removed": stale, "enabled": tells,
        });
        output.result(&answer, || {
            let written = all.keys().map(|file| format!("wrote {file}"));
            let removed = stale.iter().map(|file| format!("removed {file}"));
            written.chain(removed).collect::<Vec<_>>().join("\n")
        })?;
        match tells {
            true => output.remark("systemctl list-timers 'bkfs-*' shows when they run next"),
            false => output.remark(format_args!(
                "to start them: systemctl daemon-reload && systemctl enable --now {}",
                names_of(&timers).collect::<Vec<_>>().join(" ")
            )),
        }
        Ok(())
    }

    /// Returns the names of the profiles whose jobs are to be installed.
    fn chosen(&self, config: &Config) -> Result<Vec<String>, Failure> {
        let has_jobs = |name: &&String| {
            let profile = config.repositories.get(*name);
            profile.is_some_and(|profile| profile.schedule.is_some())
        };
        let hint = "docs/configuration.md describes [repository.NAME.schedule] of /etc/bkfs.toml.";
        if let Some(absent) = self.names.iter().find(|name| !has_jobs(name)) {
            let why = match config.repositories.contains_key(absent) {
                true => format!("the profile {absent} has no schedule"),
                false => format!("the configuration has no repository {absent}"),
            };
            return Err(Failure::usage(why).hint(hint));
        }
        let names: Vec<String> = match self.names.is_empty() {
            true => config
                .repositories
                .keys()
                .filter(has_jobs)
                .cloned()
                .collect(),
            false => self.names.clone(),
        };
        match names.is_empty() {
            true => {
                Err(Failure::usage("no profile of the configuration has a schedule").hint(hint))
            }
            false => Ok(names),
        }
    }
}

impl Remove {
    fn run(self, output: &Output) -> Result<(), Failure> {
        let directory = &self.place.directory;
        let installed = Installed::read(directory)?;
        let files: Vec<String> = installed.of(&self.names).cloned().collect();
        if files.is_empty() {
            let names = self.names.join(", ");
            let why = format!("{} has no units of {names}", directory.display());
            return Err(Failure::new(why));
        }
        if self.place.is_live() {
            disable(&files)?;
        }
        remove(directory, &files)?;
        if self.place.is_live() {
            systemctl(["daemon-reload"])?;
        }
        let answer = json!({ "directory": directory, "removed": files });
        output.result(&answer, || {
            let removed = files.iter().map(|file| format!("removed {file}"));
            removed.collect::<Vec<_>>().join("\n")
        })
    }
}

fn list(output: &Output) -> Result<(), Failure> {
    let config = configuration()?;
    let mut jobs = Vec::new();
    for (name, profile) in &config.repositories {
        jobs.extend(jobs_of(name, profile)?);
    }
    let rows: Vec<Value> = jobs.iter().map(job_json).collect();
    output.result(&json!({ "jobs": rows }), || {
        let heads = ["UNIT", "AT", "COMMAND"].map(str::to_owned);
        let lines = jobs.iter().map(|job| {
            let commands = job
                .commands
                .iter()
                .map(|words| format!("bkfs {}", words.join(" ")));
            let commands: Vec<String> = commands.collect();
            [job.unit.clone(), job.at.clone(), commands.join("; ")]
        });
        columns(
            &std::iter::once(heads).chain(lines).collect::<Vec<_>>(),
            &[],
        )
    })
}

fn job_json(job: &Job) -> Value {
    json!({
        "unit": job.unit, "at": job.at, "delay": job.delay, "commands": job.commands,
        "repositories": job.repositories, "mount": job.mount(),
    })
}

fn jobs_of(name: &str, profile: &RepositoryProfile) -> Result<Vec<Job>, Failure> {
    let schedule = profile.schedule.as_ref();
    let jobs = schedule.map(|schedule| schedule.jobs(name)).transpose();
    Ok(jobs
        .map_err(|error| wrong(name, &error))?
        .unwrap_or_default())
}

fn wrong(name: &str, error: &ScheduleError) -> Failure {
    Failure::usage(format!("the schedule of {name}: {error}"))
}

/// Returns the units of the jobs of a profile, after a look at their options and times.
fn units(
    name: &str,
    profile: &RepositoryProfile,
    config: &Config,
    refusal: &Refusal,
) -> Result<Units, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find the path of bkfs: {error}")))?;
    let mut units = Units::new();
    for job in jobs_of(name, profile)? {
        check(name, profile, &job, refusal)?;
        let around = Surroundings {
            name,
            program: &program,
            buckets: job
                .repositories
                .iter()
                .filter_map(|it| bucket(it, config))
                .collect(),
        };
        let failed = |error| wrong(name, &error);
        let text = service(&job, &around).map_err(failed)?;
        units.insert(format!("{}.service", job.unit), text);
        let text = timer(&job, name).map_err(failed)?;
        units.insert(format!("{}.timer", job.unit), text);
    }
    Ok(units)
}

/// Returns the directory of a repository that lies in one: its URL, or the name of its profile.
fn bucket(repository: &str, config: &Config) -> Option<PathBuf> {
    let profile = config.repositories.get(repository);
    let url = profile.map_or(repository, |profile| &profile.url);
    let path = Path::new(url.strip_prefix("file://").unwrap_or(url));
    path.is_absolute().then(|| path.to_owned())
}

/// Checks what would fail only at night: the options of the commands, the rules, and the time.
fn check(
    name: &str,
    profile: &RepositoryProfile,
    job: &Job,
    refusal: &Refusal,
) -> Result<(), Failure> {
    for command in &job.commands {
        let words = std::iter::once("bkfs").chain(command.iter().map(String::as_str));
        if let Some(why) = refusal(words.map(OsString::from).collect()) {
            let why = format!("the schedule of {name}: {}: {why}", job.unit);
            return Err(Failure::usage(why));
        }
        let has_rules =
            profile.retention.is_some() || command.iter().any(|word| word.starts_with("--keep-"));
        if command.iter().any(|word| word == "forget") && !has_rules {
            let why = format!("the schedule of {name}: no rule says which snapshots to keep");
            let hint = format!("Give [repository.{name}.retention], or options with --keep-…");
            return Err(Failure::usage(why).hint(hint));
        }
    }
    for (what, text) in [("calendar", &job.at), ("timespan", &job.delay)] {
        let asked = Command::new("systemd-analyze")
            .args([what, "--", text])
            .output();
        // Without the program, systemd itself finds out.
        if let Ok(answer) = asked
            && !answer.status.success()
        {
            let said = String::from_utf8_lossy(&answer.stderr);
            let why = format!("the schedule of {name}: {}: {}", job.unit, said.trim());
            let hint = "man systemd.time has the forms: 02:30, 'Sun 04:00', daily.";
            return Err(Failure::usage(why).hint(hint));
        }
    }
    Ok(())
}

/// The units of a directory that bkfs wrote, and names of others that it would write.
struct Installed {
    directory: PathBuf,
    /// The profile of each file; none if another program wrote it.
    owners: BTreeMap<String, Option<String>>,
}

impl Installed {
    fn read(directory: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new(format!("{}: {error}", directory.display()));
        let mut owners = BTreeMap::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            let Ok(name) = entry.map_err(failed)?.file_name().into_string() else {
                continue;
            };
            if !name.starts_with("bkfs-") || !(is(&name, "service") || is(&name, "timer")) {
                continue;
            }
            // What cannot be read is of another program.
            let text = fs::read_to_string(directory.join(&name)).unwrap_or_default();
            owners.insert(name, owner(&text).map(str::to_owned));
        }
        Ok(Self {
            directory: directory.to_owned(),
            owners,
        })
    }

    /// Returns the units of these profiles.
    fn of(&self, names: &[String]) -> impl Iterator<Item = &String> {
        let names: BTreeSet<&String> = names.iter().collect();
        let owners = self.owners.iter();
        owners.filter_map(move |(file, owner)| {
            owner
                .as_ref()
                .filter(|owner| names.contains(owner))
                .map(|_| file)
        })
    }

    /// Refuses to replace a file that bkfs did not write.
    fn require_own(&self, units: &Units) -> Result<(), Failure> {
        let foreign = |file: &&String| matches!(self.owners.get(*file), Some(None));
        match units.keys().find(foreign) {
            Some(file) => {
                let path = self.directory.join(file);
                let why = format!(
                    "{} exists, and bkfs schedule did not write it",
                    path.display()
                );
                Err(Failure::new(why).hint("Move it away, or give the job another name."))
            }
            None => Ok(()),
        }
    }
}

fn is(file: &str, extension: &str) -> bool {
    Path::new(file)
        .extension()
        .is_some_and(|it| it == extension)
}

fn make_directory(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path)
        .map_err(|error| Failure::new(format!("cannot make {}: {error}", path.display())))
}

fn remove(directory: &Path, files: &[String]) -> Result<(), Failure> {
    for file in files {
        let path = directory.join(file);
        fs::remove_file(&path)
            .map_err(|error| Failure::new(format!("cannot remove {}: {error}", path.display())))?;
    }
    Ok(())
}

fn names_of<'a>(files: &'a [&'a String]) -> impl Iterator<Item = &'a str> {
    files.iter().map(|file| file.as_str())
}

/// Stops the timers among these units, and forgets that they start with the machine.
fn disable(files: &[String]) -> Result<(), Failure> {
    let timers: Vec<&String> = files.iter().filter(|file| is(file, "timer")).collect();
    match timers.is_empty() {
        true => Ok(()),
        false => systemctl(
            ["disable", "--now", "--"]
                .into_iter()
                .chain(names_of(&timers)),
        ),
    }
}

fn systemctl<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<(), Failure> {
    let arguments: Vec<&str> = arguments.into_iter().collect();
    let line = format!("systemctl {}", arguments.join(" "));
    let failed = |why: String| Failure::new(format!("{line}: {why}"));
    let status = Command::new("systemctl").args(&arguments).status();
    match status.map_err(|error| failed(error.to_string()))? {
        status if status.success() => Ok(()),
        status => Err(failed(status.to_string())),
    }
}
