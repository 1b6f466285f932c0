//! Processor time of a command by kind of thread.
//!
//! Owns: reading the times of threads while they live, and cores that a command may use.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::Outcome;
use crate::measure::{self, Run};

/// How often the times are read. What a thread does in the last interval of its life is not seen.
const INTERVAL: Duration = Duration::from_millis(5);

/// Processor seconds by kind of thread. A kind is the threads' name without a number at its end.
pub type Times = BTreeMap<String, f64>;

/// Runs a command to its end, as [`measure::command`] does, and returns the times of its threads
/// too.
///
/// # Errors
/// As [`measure::command`], or a message if the kernel tells no times of threads.
pub fn command(command: &mut Command) -> Outcome<(Run, Times)> {
    let (ended, end) = mpsc::channel::<()>();
    let mut sampling = None;
    let run = measure::command_watched(command, |pid| {
        sampling = Some(std::thread::spawn(move || sample(pid, &end)));
    });
    drop(ended);
    let seen = sampling.map(std::thread::JoinHandle::join);
    let run = run?;
    match seen {
        Some(Ok(seen)) if !seen.is_empty() => Ok((run, by_kind(seen.into_values()))),
        _ => Err("the times of threads cannot be read from /proc".into()),
    }
}

/// Reads the times of a process's threads until `end` is closed. Returns the name and the
/// nanoseconds of each thread, as they were last seen.
fn sample(pid: u32, end: &mpsc::Receiver<()>) -> HashMap<String, (String, u64)> {
    let mut seen = HashMap::new();
    while matches!(end.recv_timeout(INTERVAL), Err(RecvTimeoutError::Timeout)) {
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let read = |name| fs::read_to_string(thread.path().join(name)).ok();
            let times = read("schedstat").and_then(|text| running_ns(&text));
            if let Some((name, ns)) = read("comm").zip(times) {
                let id = thread.file_name().to_string_lossy().into_owned();
                seen.insert(id, (name.trim().to_owned(), ns));
            }
        }
    }
    seen
}

/// Returns the time on a processor from the text of `/proc/PID/task/TID/schedstat`, in ns.
fn running_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

fn by_kind(threads: impl Iterator<Item = (String, u64)>) -> Times {
    let mut times = Times::new();
    for (name, ns) in threads {
        let kind = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let kind = kind.trim_end_matches('-').to_owned();
        *times.entry(kind).or_default() += ns as f64 / 1e9;
    }
    times
}

/// Returns the numbers of the cores that this process may use.
///
/// # Errors
/// The I/O error of reading `/proc/self/status`, or a message if that has no such list.
pub fn allowed_cores() -> Outcome<Vec<usize>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = list.and_then(|list| cores_of(list.trim()));
    list.ok_or_else(|| "the cores of this process are not known".into())
}

/// Returns the numbers of a list such as `0-2,5`.
fn cores_of(list: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_kind_are_added() {
        let threads = [
            ("bkfs-work-0", 1_500_000_000),
            ("bkfs-work-11", 500_000_000),
            ("bkfs", 1),
        ];
        let threads = threads.map(|(name, ns)| (name.to_owned(), ns));
        let times = by_kind(threads.into_iter());
        assert_eq!(times.len(), 2);
        assert_eq!(times["bkfs-work"], 2.0);
        assert_eq!(running_ns("123 45 6\n"), Some(123));
        assert_eq!(running_ns(""), None);
    }

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(cores_of("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(cores_of("7"), Some(vec![7]));
        assert_eq!(cores_of("all"), None);
        assert!(allowed_cores().is_ok_and(|cores| !cores.is_empty()));
    }

    #[test]
    fn the_time_of_a_command_is_found_in_its_threads() {
        // What the shell itself says, such as `0m0.512s 0m0.003s` in the first line.
        let told = tempfile::NamedTempFile::new().unwrap();
        let line = format!(
            "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; times >{}",
            told.path().display()
        );
        let (_, times) = command(&mut measure::shell_command(&line)).unwrap();
        let told = fs::read_to_string(told.path()).unwrap();
        let words = told.lines().next().unwrap().split_whitespace();
        let seconds = words.map(|word| {
            let (minutes, seconds) = word.trim_end_matches('s').split_once('m').unwrap();
            60.0 * minutes.parse::<f64>().unwrap() + seconds.parse::<f64>().unwrap()
        });
        let (all, seen): (f64, f64) = (seconds.sum(), times["bash"]);
        assert!(
            seen > all / 2.0 && seen < all * 1.1 + 0.05,
            "{seen} of {all}"
        );
        assert!(command(&mut measure::shell_command("exit 3")).is_err());
    }
}
