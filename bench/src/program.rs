//! The bkfs program, its mounts and its commands, as users run them.
//!
//! Owns: starting and ending daemons, and reading their counters. State and caches are in the
//! benchmark's own directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::disk::{flush, remove};
use crate::measure::{self, Run, Sampler};

/// Longest wait for a mount to answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// The bkfs program.
#[derive(Clone, Debug)]
pub struct Program {
    binary: PathBuf,
    home: PathBuf,
    /// Environment variables, such as credentials.
    environment: Vec<(String, String)>,
}

impl Program {
    /// Returns the program at `binary`, with its state below `home`.
    pub fn new(binary: PathBuf, home: PathBuf) -> Self {
        Self {
            binary,
            home,
            environment: Vec::new(),
        }
    }

    /// Returns the same program with its state below `home`.
    pub fn with_home(&self, home: PathBuf) -> Self {
        Self {
            home,
            ..self.clone()
        }
    }

    /// Returns the same program with additional environment variables.
    pub fn with(&self, environment: &[(&str, String)]) -> Self {
        let mut program = self.clone();
        let own = environment.iter();
        let own = own.map(|(name, value)| ((*name).to_owned(), value.clone()));
        program.environment.extend(own);
        program
    }

    /// Returns a command of the program.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        self.set_environment(command.args(arguments));
        command
    }

    /// Returns a bash command that runs this line, in which `"$BKFS"` is the program.
    pub fn shell(&self, line: &str) -> Command {
        let mut command = measure::shell_command(line);
        self.set_environment(&mut command);
        command.env("BKFS", &self.binary);
        command
    }

    fn set_environment(&self, command: &mut Command) {
        command
            .env("BKFS_PASSWORD", "benchmark")
            .env("XDG_CACHE_HOME", self.home.join("cache"))
            .env("XDG_STATE_HOME", self.home.join("state"))
            .env("XDG_CONFIG_HOME", self.home.join("config"))
            .env("HOME", &self.home)
            .envs(self.environment.iter().cloned());
    }

    /// Returns the output of `--version`.
    pub fn version(&self) -> String {
        let output = self.command(&["--version"]).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        text.unwrap_or_default()
    }

    /// Returns true if the program has this command.
    pub fn has(&self, name: &str) -> bool {
        let mut help = self.command(&[name, "--help"]);
        let status = help.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Removes all caches of earlier commands.
    ///
    /// # Errors
    /// The I/O error of removing them.
    pub fn forget_caches(&self) -> Outcome<()> {
        remove(&self.home.join("cache"))
    }

    /// Makes a sealed repository.
    ///
    /// # Errors
    /// As [`measure::command`].
    pub fn init(&self, url: &str) -> Outcome<()> {
        measure::command(&mut self.command(&["init", url])).map(drop)
    }

    /// Mounts a repository and waits until the mount answers.
    ///
    /// # Errors
    /// The I/O error of starting the daemon, or a message if it ends or does not answer within 120
    /// s.
    pub fn mount(&self, url: &str, mount_point: &Path) -> Outcome<Mounted> {
        self.mount_with(url, mount_point, "")
    }

    /// Same, with `options` as after `-o`.
    ///
    /// # Errors
    /// As [`Program::mount`].
    pub fn mount_with(&self, url: &str, mount_point: &Path, options: &str) -> Outcome<Mounted> {
        fs::create_dir_all(mount_point)?;
        fs::create_dir_all(&self.home)?;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.home.join("mount.log"))?;
        let child = self
            .command(&["mount", "-f", url])
            .arg(mount_point)
            .args((!options.is_empty()).then(|| format!("-o{options}")))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut mounted = Mounted {
            sampler: Sampler::start(child.id()),
            child,
            program: self.clone(),
            mount_point: mount_point.to_owned(),
        };
        let status = mount_point.join(".bkfs/status");
        let deadline = Instant::now() + PATIENCE;
        while fs::read(&status).is_err() {
            if let Some(status) = mounted.child.try_wait()? {
                return Err(
                    format!("bkfs mount {url}: {status}, see {}", self.home.display()).into(),
                );
            }
            if Instant::now() > deadline {
                return Err("a mount does not answer".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(mounted)
    }

    /// Restores a snapshot into `target`, with cold caches, until it is durable.
    ///
    /// # Errors
    /// As [`measure::command`], or the I/O error of removing the old target or the caches.
    pub fn restore(&self, url: &str, what: &str, target: &Path) -> Outcome<Run> {
        remove(target)?;
        self.forget_caches()?;
        measure::drop_caches()?;
        let mut restore = self.command(&["restore", "-q", url, what]);
        let mut run = measure::command(restore.arg(target))?;
        run.wall_s += flush(target)?;
        Ok(run)
    }
}

/// A mount that a daemon of its own serves.
pub struct Mounted {
    child: Child,
    sampler: Sampler,
    program: Program,
    mount_point: PathBuf,
}

impl Mounted {
    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Measures `work`, which ends when its data is durable: the wall time, and the processor time
    /// and the requests of the daemon.
    ///
    /// # Errors
    /// The error of `work`.
    pub fn measure(&self, work: impl FnOnce() -> Outcome<()>) -> Outcome<Run> {
        let (cpu, requests) = (measure::processor_s(self.child.id()), self.requests());
        let started = Instant::now();
        work()?;
        let wall_s = started.elapsed().as_secs_f64();
        let cpu_s = measure::processor_s(self.child.id())
            .zip(cpu)
            .map(|(after, before)| after - before);
        Ok(Run {
            wall_s,
            cpu_s,
            anon_bytes: Some(self.sampler.peak()),
            requests: self
                .requests()
                .zip(requests)
                .map(|(after, before)| after - before),
            ..Run::default()
        })
    }

    /// Makes a snapshot.
    ///
    /// # Errors
    /// As [`measure::command`].
    pub fn snapshot(&self, name: &str) -> Outcome<()> {
        let mut snapshot = self.program.command(&["snapshot"]);
        measure::command(snapshot.arg(&self.mount_point).arg(name)).map(drop)
    }

    /// Begins to bring all of the tree into the cache. The command ends when it is there.
    ///
    /// # Errors
    /// The I/O error of starting it.
    pub fn begin_hydration(&self) -> Outcome<Child> {
        let mut hydrate = self.program.command(&["hydrate"]);
        hydrate.arg(&self.mount_point);
        hydrate.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(hydrate.stderr(Stdio::null()).spawn()?)
    }

    /// Stores what was read first on this mount as a trace of this name.
    ///
    /// # Errors
    /// As [`measure::command`].
    pub fn record_trace(&self, name: &str) -> Outcome<()> {
        let mut record = self.program.command(&["trace", "record"]);
        measure::command(record.arg(&self.mount_point).arg(name)).map(drop)
    }

    /// Returns the number of requests to the store since the mount.
    fn requests(&self) -> Option<u64> {
        let text = fs::read(self.mount_point.join(".bkfs/status")).ok()?;
        let status: serde_json::Value = serde_json::from_slice(&text).ok()?;
        let count = |name: &str| status["metrics"][name].as_u64();
        Some(count("get_requests")? + count("put_requests")?)
    }

    /// Unmounts, and waits until the daemon has ended.
    ///
    /// # Errors
    /// As [`measure::command`] for `bkfs umount`, or a message if the daemon fails: not everything
    /// was stored then.
    pub fn unmount(mut self) -> Outcome<()> {
        let mut unmount = self.program.command(&["umount"]);
        measure::command(unmount.arg(&self.mount_point))?;
        let status = self.child.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the daemon ended with {status}").into()),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A suite failed: the mount is detached, and errors of this are ignored.
            let _ = Command::new("umount")
                .arg("-l")
                .arg(&self.mount_point)
                .status();
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
