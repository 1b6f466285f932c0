//! The jobs of a repository: what runs when, and the systemd units that do it (pure).
//!
//! Owns which commands a job runs, and the content of its units. Does not own where units lie, and
//! how systemd learns of them (`cli::schedule`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub mod unit;

/// The longest random delay of a job that names none, so that hosts that share a bucket do not all
/// begin at once.
const DELAY: &str = "5min";

/// The table `[repository.NAME.schedule]` of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// Backups, by a name of the user's choice.
    run: BTreeMap<String, RunJob>,
    /// Retention, and then the collection of what is no longer needed.
    forget: Option<ForgetJob>,
    /// The check of the repository.
    check: Option<CheckJob>,
    /// The copy to another repository.
    copy: Option<CopyJob>,
    /// Drills, by a name of the user's choice.
    drill: BTreeMap<String, DrillJob>,
    /// The metrics of the repository, in a file.
    metrics: Option<MetricsJob>,
    /// The command that each job starts at its end if it has succeeded.
    on_success: Option<String>,
    /// The command that each job starts at its end if it has failed.
    on_failure: Option<String>,
}

/// A backup: `bkfs run`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunJob {
    /// A calendar event of systemd.time(7).
    at: String,
    /// The longest random delay, a time span of systemd.time(7).
    delay: Option<String>,
    /// The mount that the tool writes to.
    mount: PathBuf,
    /// The tool and its arguments.
    command: Vec<String>,
    /// The name of the snapshot.
    name: Option<String>,
    /// More options of `bkfs run`.
    #[serde(default)]
    options: Vec<String>,
}

/// `bkfs forget`, and then `bkfs gc`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForgetJob {
    at: String,
    delay: Option<String>,
    /// More options of `bkfs forget`.
    #[serde(default)]
    options: Vec<String>,
    /// More options of `bkfs gc`.
    #[serde(default)]
    gc_options: Vec<String>,
}

/// `bkfs check`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckJob {
    at: String,
    delay: Option<String>,
    /// More options of `bkfs check`.
    #[serde(default)]
    options: Vec<String>,
}

/// `bkfs copy`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct CopyJob {
    at: String,
    delay: Option<String>,
    /// The repository to copy to: a URL, or the name of a profile.
    to: String,
    /// More options of `bkfs copy`.
    #[serde(default)]
    options: Vec<String>,
}

/// `bkfs drill`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrillJob {
    at: String,
    delay: Option<String>,
    /// The snapshot: its name, `latest` or `@TIME`.
    #[serde(default = "latest")]
    snapshot: String,
    /// What runs on the clone, and its arguments.
    command: Vec<String>,
    /// More options of `bkfs drill`.
    #[serde(default)]
    options: Vec<String>,
}

fn latest() -> String {
    "latest".to_owned()
}

/// `bkfs metrics --textfile`. It starts no commands at its end: it runs often.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricsJob {
    at: String,
    delay: Option<String>,
    /// The file.
    textfile: PathBuf,
}

/// What a job does, when, and as which unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The name of its units, without `.service` and `.timer`.
    pub unit: String,
    /// What it does, in a few words.
    pub description: String,
    /// When it begins: a calendar event of systemd.time(7).
    pub at: String,
    /// The longest random delay: a time span of systemd.time(7).
    pub delay: String,
    /// The arguments of bkfs, of each command in order. A command runs if the one before succeeded.
    pub commands: Vec<Vec<String>>,
    /// The repositories that it uses: URLs, or names of profiles.
    pub repositories: Vec<String>,
    /// What it needs of this machine.
    pub needs: Needs,
}

impl Job {
    /// Returns the mount that it writes to, of a backup.
    pub fn mount(&self) -> Option<&Path> {
        match &self.needs {
            Needs::Mount(mount) => Some(mount),
            Needs::Nothing | Needs::File(_) | Needs::Namespaces => None,
        }
    }
}

/// What a job needs of this machine, apart from repositories and the files of bkfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: maintenance.
    Nothing,
    /// A file that it writes: metrics.
    File(PathBuf),
    /// A mount, and the rights of a tool that saves this machine: a backup.
    Mount(PathBuf),
    /// A mount that it makes, in namespaces of its own: a drill.
    Namespaces,
}

/// Why a schedule cannot become units.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A name has characters that the name of a unit must not have.
    #[error("{0:?} cannot be part of a unit's name: use letters, digits, '.', '_' and '-'")]
    Name(String),
    /// A line of a unit cannot hold this text.
    #[error("{0:?} has control characters, which a unit must not have")]
    Text(String),
    /// A backup or a drill without a command.
    #[error("the {kind} {name} has no command")]
    NoCommand {
        /// `backup` or `drill`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The mount of a backup is not an absolute path.
    #[error("the mount of the backup {name} is {}: it must be an absolute path", mount.display())]
    Mount {
        /// The name of the backup.
        name: String,
        /// The path.
        mount: PathBuf,
    },
    /// The file of the metrics is not an absolute path.
    #[error("the textfile of metrics is {}: it must be an absolute path", .0.display())]
    Textfile(PathBuf),
}

impl Schedule {
    /// Returns the jobs of the repository with the profile `name`.
    ///
    /// # Errors
    /// [`ScheduleError`] if a name cannot be that of a unit, if a backup or a drill has no command,
    /// or if a path is relative.
    pub fn jobs(&self, name: &str) -> Result<Vec<Job>, ScheduleError> {
        let mut jobs = Vec::new();
        for (backup, job) in &self.run {
            jobs.push(self.backup(name, backup, job)?);
        }
        for (drill, job) in &self.drill {
            jobs.push(self.drill(name, drill, job)?);
        }
        if let Some(job) = &self.forget {
            let on_failure = Hooks {
                on_success: None,
                ..self.hooks()
            };
            let forget = on_failure.command("forget", &job.options, &[name]);
            let gc = self.hooks().command("gc", &job.gc_options, &[name]);
            let timing = (&job.at, &job.delay);
            jobs.push(maintenance(name, "forget", timing, vec![forget, gc])?);
        }
        if let Some(job) = &self.check {
            let check = self.hooks().command("check", &job.options, &[name]);
            jobs.push(maintenance(
                name,
                "check",
                (&job.at, &job.delay),
                vec![check],
            )?);
        }
        if let Some(job) = &self.copy {
            let copy = self.hooks().command("copy", &job.options, &[name, &job.to]);
            let mut copy = maintenance(name, "copy", (&job.at, &job.delay), vec![copy])?;
            copy.repositories.push(job.to.clone());
            jobs.push(copy);
        }
        if let Some(job) = &self.metrics {
            let Some(file) = job.textfile.to_str().filter(|_| job.textfile.is_absolute()) else {
                return Err(ScheduleError::Textfile(job.textfile.clone()));
            };
            let command = ["metrics", "--textfile", file, name].map(str::to_owned);
            let timing = (&job.at, &job.delay);
            let mut metrics = maintenance(name, "metrics", timing, vec![command.into()])?;
            metrics.needs = Needs::File(job.textfile.clone());
            jobs.push(metrics);
        }
        Ok(jobs)
    }

    fn hooks(&self) -> Hooks<'_> {
        Hooks {
            on_success: self.on_success.as_deref(),
            on_failure: self.on_failure.as_deref(),
        }
    }

    fn backup(&self, name: &str, backup: &str, job: &RunJob) -> Result<Job, ScheduleError> {
        if job.command.is_empty() {
            return Err(no_command("backup", backup));
        }
        let Some(mount) = job.mount.to_str().filter(|_| job.mount.is_absolute()) else {
            return Err(ScheduleError::Mount {
                name: backup.to_owned(),
                mount: job.mount.clone(),
            });
        };
        let mut command = vec!["run".to_owned()];
        if let Some(snapshot) = &job.name {
            command.extend(["--name".to_owned(), snapshot.clone()]);
        }
        command.extend(self.hooks().options());
        command.extend(job.options.iter().cloned());
        command.extend([mount.to_owned(), "--".to_owned()]);
        command.extend(job.command.iter().cloned());
        Ok(Job {
            unit: unit_name(&[name, "run", backup])?,
            description: format!("Backup {backup} to the bkfs repository {name}"),
            at: job.at.clone(),
            delay: delay(&job.delay),
            commands: vec![command],
            repositories: vec![name.to_owned()],
            needs: Needs::Mount(job.mount.clone()),
        })
    }

    fn drill(&self, name: &str, drill: &str, job: &DrillJob) -> Result<Job, ScheduleError> {
        if job.command.is_empty() {
            return Err(no_command("drill", drill));
        }
        let what = [name, &job.snapshot];
        let mut command = self.hooks().command("drill", &job.options, &what);
        command.push("--".to_owned());
        command.extend(job.command.iter().cloned());
        Ok(Job {
            unit: unit_name(&[name, "drill", drill])?,
            description: format!("Drill {drill} of the bkfs repository {name}"),
            at: job.at.clone(),
            delay: delay(&job.delay),
            commands: vec![command],
            repositories: vec![name.to_owned()],
            needs: Needs::Namespaces,
        })
    }
}

fn no_command(kind: &'static str, name: &str) -> ScheduleError {
    ScheduleError::NoCommand {
        kind,
        name: name.to_owned(),
    }
}

/// What a job starts at its end.
#[derive(Clone, Copy)]
struct Hooks<'a> {
    on_success: Option<&'a str>,
    on_failure: Option<&'a str>,
}

impl Hooks<'_> {
    fn options(&self) -> impl Iterator<Item = String> + use<> {
        let success = self
            .on_success
            .map(|hook| ["--on-success".to_owned(), hook.to_owned()]);
        let failure = self
            .on_failure
            .map(|hook| ["--on-failure".to_owned(), hook.to_owned()]);
        success.into_iter().chain(failure).flatten()
    }

    /// Returns the arguments of a command that opens repositories. The network may come up late.
    fn command(&self, command: &str, options: &[String], what: &[&str]) -> Vec<String> {
        let mut arguments = vec!["--wait".to_owned(), command.to_owned()];
        arguments.extend(self.options());
        arguments.extend(options.iter().cloned());
        arguments.extend(what.iter().map(ToString::to_string));
        arguments
    }
}

fn maintenance(
    name: &str,
    kind: &str,
    (at, longest_delay): (&String, &Option<String>),
    commands: Vec<Vec<String>>,
) -> Result<Job, ScheduleError> {
    Ok(Job {
        unit: unit_name(&[name, kind])?,
        description: format!("bkfs {kind} of the repository {name}"),
        at: at.clone(),
        delay: delay(longest_delay),
        commands,
        repositories: vec![name.to_owned()],
        needs: Needs::Nothing,
    })
}

fn delay(longest: &Option<String>) -> String {
    longest.clone().unwrap_or_else(|| DELAY.to_owned())
}

/// Returns the name of a unit that is made of these parts.
fn unit_name(parts: &[&str]) -> Result<String, ScheduleError> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    match parts
        .iter()
        .find(|part| part.is_empty() || !part.chars().all(is_plain))
    {
        Some(wrong) => Err(ScheduleError::Name((*wrong).to_owned())),
        None => Ok(format!("bkfs-{}", parts.join("-"))),
    }
}

#[cfg(test)]
mod tests;
