//! Measurements: wall time, processor time and memory of commands and daemons.
//!
//! Owns: the sources of the numbers (wait4(2), /proc). Does not own: what is measured.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Outcome;

/// One run of one step by one system.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// Seconds from the start until the data is durable.
    pub wall_s: f64,
    /// Processor seconds of the system itself: of its daemon or its commands, and not of a program
    /// that writes into a mount.
    pub cpu_s: Option<f64>,
    /// Peak anonymous memory of its largest process, in bytes.
    pub anon_bytes: Option<u64>,
    /// Size of the repository or copy after the step, in bytes.
    pub stored_bytes: Option<u64>,
    /// Number of requests to the store during the step.
    pub requests: Option<u64>,
    /// The 99th percentile of the time of one transaction or write, in ms, if it has many.
    pub p99_ms: Option<f64>,
    /// True if all that it stored came back byte by byte. Tables and plots show no figures of a
    /// record that has an unverified run.
    pub verified: bool,
}

/// Returns the same run, marked as verified.
pub fn verified(run: Run) -> Run {
    Run {
        verified: true,
        ..run
    }
}

/// Samples the anonymous memory of a process, or of its largest descendant, every 20 ms until it is
/// dropped.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    peak: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Starts to sample a process.
    pub fn start(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let peak = Arc::new(AtomicU64::new(0));
        let (stopped, seen) = (stop.clone(), peak.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let largest = family(pid).into_iter().filter_map(anonymous_bytes).max();
                seen.fetch_max(largest.unwrap_or_default(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self {
            stop,
            peak,
            thread: Some(thread),
        }
    }

    /// Returns the largest sample, in bytes.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread only samples, so its panic is ignored.
            let _ = thread.join();
        }
    }
}

/// Returns a process and all its descendants, such as a shell and the programs of its pipe.
fn family(pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(&member) = family.get(next) {
        let place = format!("/proc/{member}/task/{member}/children");
        let children = fs::read_to_string(place).unwrap_or_default();
        family.extend(
            children
                .split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
        next += 1;
    }
    family
}

/// Returns freed memory of this process to the system, so that a later allocation shows in the
/// measurement.
pub fn give_back_memory() {
    // SAFETY: an argument by value; memory that is in use is not touched.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the anonymous memory of a process, in bytes.
pub fn anonymous_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().ok()?;
    Some(kib * 1024)
}

/// Returns the processor seconds that a process has used, in user and kernel mode.
pub fn processor_s(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold any character.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    // SAFETY: sysconf has no preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(ticks / per_second as f64)
}

/// Returns the processor seconds of the calling thread.
pub fn thread_s() -> f64 {
    clock_s(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_s(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place for the answer is valid, and the clock is one that every Linux has.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the processor seconds of all children that were waited for, and of their children.
fn children_s() -> f64 {
    // SAFETY: all zeros is a valid value of this structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the place for the answer is valid.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Runs a command to its end and measures it.
///
/// # Errors
/// A message if it cannot be started, or if it fails; the latter with the last eight lines of its
/// error output.
pub fn command(command: &mut Command) -> Outcome<Run> {
    command_watched(command, |_| ())
}

/// Same, and calls `watch` with the id of its process while it runs.
///
/// # Errors
/// As [`command`].
pub fn command_watched(command: &mut Command, watch: impl FnOnce(u32)) -> Outcome<Run> {
    let before = children_s();
    let started = Instant::now();
    let child = spawn(command)?;
    watch(child.id());
    let sampler = Sampler::start(child.id());
    end(command, child)?;
    Ok(Run {
        wall_s: started.elapsed().as_secs_f64(),
        cpu_s: Some(children_s() - before),
        anon_bytes: Some(sampler.peak()),
        ..Run::default()
    })
}

/// Runs and measures a line of bash, with `set -eu` and pipefail.
///
/// # Errors
/// As [`command`].
pub fn shell(line: &str) -> Outcome<Run> {
    command(&mut shell_command(line))
}

/// Returns a bash command that runs this line.
pub fn shell_command(line: &str) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("set -euo pipefail; {line}")]);
    shell
}

fn spawn(command: &mut Command) -> Outcome<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{command:?}: {error}").into())
}

fn end(command: &Command, child: Child) -> Outcome<()> {
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    let last = lines[lines.len().saturating_sub(8)..].join("\n");
    Err(format!("{command:?}: {}\n{last}", output.status).into())
}

/// Returns the size of a file, or the sum for all files of a directory, in bytes of content.
pub fn stored_bytes(path: &Path) -> u64 {
    let Ok(there) = fs::symlink_metadata(path) else {
        return 0;
    };
    if !there.is_dir() {
        return there.len();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| stored_bytes(&entry.path())).sum()
}

/// Writes all dirty data to disk and drops the kernel's caches of files, which needs root.
///
/// # Errors
/// The kernel does not let this process do so. What was to be cold would not be.
pub fn drop_caches() -> Outcome<()> {
    // SAFETY: sync has no preconditions.
    unsafe { libc::sync() };
    fs::write("/proc/sys/vm/drop_caches", "3")
        .map_err(|error| format!("caches are not dropped: {error}").into())
}

/// Returns the median; `None` for no numbers.
pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(numbers[middle]),
        _ => Some((numbers[middle - 1] + numbers[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_measured_and_failures_told() {
        let run = shell("i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done").unwrap();
        assert!(run.wall_s > 0.0 && run.cpu_s.is_some_and(|cpu| cpu > 0.0));
        let failed = shell("echo because >&2; false").unwrap_err().to_string();
        assert!(failed.contains("because"), "{failed}");
        assert!(
            shell("false | true").is_err(),
            "any part of a pipe may fail"
        );
    }

    #[test]
    fn what_a_shell_runs_is_looked_at_too() {
        // A shell in a pipe that holds 16 MiB of text for 0.3 s.
        let run = shell("(text=$(printf '%16777216s' x); sleep 0.3; echo ${#text}) | cat").unwrap();
        assert!(
            run.anon_bytes.is_some_and(|bytes| bytes > 16 << 20),
            "{run:?}"
        );
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn this_process_uses_memory_and_time() {
        let pid = std::process::id();
        assert!(anonymous_bytes(pid).is_some_and(|bytes| bytes > 4096));
        assert!(processor_s(pid).is_some());
        assert!(thread_s() > 0.0);
    }
}
