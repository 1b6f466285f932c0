//! bkfs as its users have it: the program, its mounts and its commands.
//!
//! Owns: starting and ending daemons, and reading what they count. State and caches lie in the benchmark's own directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::measure::{self, Run, Sampler};
use crate::{Outcome, context};

/// How long a mount may take to appear or to go.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program.
#[derive(Clone, Debug)]
pub struct Program {
    binary: PathBuf,
    home: PathBuf,
    /// Variables for credentials and the like.
    environment: Vec<(String, String)>,
}

impl Program {
    /// The program at `binary`, with its state below `home`.
    pub fn new(binary: PathBuf, home: PathBuf) -> Self {
        Self {
            binary,
            home,
            environment: Vec::new(),
        }
    }

    /// The same with more variables in its environment.
    pub fn with(&self, environment: &[(&str, String)]) -> Self {
        let mut program = self.clone();
        let own = environment.iter();
        let own = own.map(|(name, value)| ((*name).to_owned(), value.clone()));
        program.environment.extend(own);
        program
    }

    /// A command of the program.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(arguments)
            .env("BKFS_PASSWORD", "benchmark")
            .env("XDG_CACHE_HOME", self.home.join("cache"))
            .env("XDG_STATE_HOME", self.home.join("state"))
            .env("XDG_CONFIG_HOME", self.home.join("config"))
            .env("HOME", &self.home)
            .envs(self.environment.iter().cloned());
        command
    }

    /// What it calls itself.
    pub fn version(&self) -> String {
        let output = self.command(&["--version"]).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        text.unwrap_or_default()
    }

    /// Whether it has this command.
    pub fn has(&self, name: &str) -> bool {
        let mut help = self.command(&[name, "--help"]);
        let status = help.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Forgets everything that earlier commands have cached.
    ///
    /// # Errors
    /// The disk's.
    pub fn forget_caches(&self) -> Outcome<()> {
        context::remove(&self.home.join("cache"))
    }

    /// Makes a sealed repository.
    ///
    /// # Errors
    /// The program's.
    pub fn init(&self, url: &str) -> Outcome<()> {
        measure::command(&mut self.command(&["init", url])).map(drop)
    }

    /// Mounts a repository and waits until it answers.
    ///
    /// # Errors
    /// The program's.
    pub fn mount(&self, url: &str, mount_point: &Path) -> Outcome<Mounted> {
        fs::create_dir_all(mount_point)?;
        fs::create_dir_all(&self.home)?;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.home.join("mount.log"))?;
        let child = self
            .command(&["mount", "-f", url])
            .arg(mount_point)
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

    /// Restores a snapshot into `target`, with cold caches, to durable.
    ///
    /// # Errors
    /// The program's.
    pub fn restore(&self, url: &str, what: &str, target: &Path) -> Outcome<Run> {
        context::remove(target)?;
        self.forget_caches()?;
        measure::drop_caches();
        let mut restore = self.command(&["restore", "-q", url, what]);
        let mut run = measure::command(restore.arg(target))?;
        run.wall_s += flush(target)?;
        Ok(run)
    }
}

/// Waits until the filesystem of `path` has everything on disk; how long that took, in seconds.
///
/// # Errors
/// That of sync(1).
pub fn flush(path: &Path) -> Outcome<f64> {
    let run = measure::command(Command::new("sync").arg("-f").arg(path))?;
    Ok(run.wall_s)
}

/// A mount that is served by a daemon of its own.
pub struct Mounted {
    child: Child,
    sampler: Sampler,
    program: Program,
    mount_point: PathBuf,
}

impl Mounted {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Measures `work`, which ends when everything is as durable as it says: wall time, and the daemon's processor time and requests.
    ///
    /// # Errors
    /// Those of `work`.
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
    /// The program's.
    pub fn snapshot(&self, name: &str) -> Outcome<()> {
        let mut snapshot = self.program.command(&["snapshot"]);
        measure::command(snapshot.arg(&self.mount_point).arg(name)).map(drop)
    }

    /// Requests made to the store since it was mounted.
    fn requests(&self) -> Option<u64> {
        let text = fs::read(self.mount_point.join(".bkfs/status")).ok()?;
        let status: serde_json::Value = serde_json::from_slice(&text).ok()?;
        let count = |name: &str| status["metrics"][name].as_u64();
        Some(count("get_requests")? + count("put_requests")?)
    }

    /// Unmounts, and waits until the daemon has ended.
    ///
    /// # Errors
    /// Something was not stored.
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
            // A suite failed: nothing is left mounted, and nobody is told of what follows from that.
            let _ = Command::new("umount")
                .arg("-l")
                .arg(&self.mount_point)
                .status();
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
