//! Measuring: wall time, processor time and memory of commands and daemons.
//!
//! Owns: where the numbers come from (wait4(2), /proc). Does not own: what is measured.

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
    /// Seconds from the beginning to durable.
    pub wall_s: f64,
    /// Processor seconds of the system itself: its daemon or its commands, not of whoever writes into a mount.
    pub cpu_s: Option<f64>,
    /// The most anonymous memory of its largest process, in bytes.
    pub anon_bytes: Option<u64>,
    /// What the repository or copy takes after the step, in bytes.
    pub stored_bytes: Option<u64>,
    /// Requests made to the store during the step.
    pub requests: Option<u64>,
    /// Whether what it stored came back byte by byte. Nothing is reported of a system that has no verified run.
    pub verified: bool,
}

/// Samples the anonymous memory of a process, or of its largest descendant, until dropped.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    peak: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Begins to watch a process.
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

    /// The most that was seen, in bytes.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only samples: a panic there is no reason for another.
            let _ = thread.join();
        }
    }
}

/// A process and all that it started: a shell, and what it runs in a pipe.
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

/// Gives memory back to the system that this process has freed, so that what it takes next is seen to be taken.
pub fn give_back_memory() {
    // SAFETY: an argument by value; memory that is in use is not touched.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Anonymous memory of a process, in bytes.
pub fn anonymous_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().ok()?;
    Some(kib * 1024)
}

/// Processor seconds that a process has used, in user and kernel mode.
pub fn processor_s(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    // SAFETY: sysconf has no preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(ticks / per_second as f64)
}

/// Processor seconds of the calling thread.
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

/// Processor seconds of all children that were waited for, and of theirs.
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
/// It cannot be started, or fails: with what it printed last.
pub fn command(command: &mut Command) -> Outcome<Run> {
    let before = children_s();
    let started = Instant::now();
    let child = spawn(command)?;
    let sampler = Sampler::start(child.id());
    end(command, child)?;
    Ok(Run {
        wall_s: started.elapsed().as_secs_f64(),
        cpu_s: Some(children_s() - before),
        anon_bytes: Some(sampler.peak()),
        ..Run::default()
    })
}

/// Runs a shell's line, with `set -e` and pipefail, and measures it.
///
/// # Errors
/// As [`command`].
pub fn shell(line: &str) -> Outcome<Run> {
    command(&mut shell_command(line))
}

/// A shell that runs this line.
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

/// What a directory or file takes on disk, in bytes of content.
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

/// Writes everything to disk and drops what the kernel keeps of files (as root; otherwise as well as may be).
pub fn drop_caches() {
    // SAFETY: sync has no preconditions.
    unsafe { libc::sync() };
    if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "3") {
        eprintln!("caches are not dropped: {error}");
    }
}

/// The median of some numbers; none of none.
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
        // A shell of its own in a pipe, which keeps 16 MiB of text for a while.
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
