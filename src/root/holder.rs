//! The process behind a session, and whether it is alive, as far as this machine can determine.
//!
//! Owns what is read from /proc and /etc about processes. Does not judge heartbeats
//! ([`super::heartbeat`]), and never accesses the bucket.

use super::state::{HolderInfo, Session};
use std::fmt::Debug;
use std::path::Path;

/// The inode number of the initial pid namespace: the kernel's PROC_PID_INIT_INO.
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// What is known about a process in this machine's pid namespace.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum ProcessState {
    /// There is no such process, or it is a zombie.
    Gone,
    /// It has been running since this many clock ticks after boot.
    Running {
        /// Field 22 of /proc/PID/stat.
        start_ticks: u64,
    },
    /// It may be running: this user has no permission to find out.
    Unknown,
}

/// Queries processes of this pid namespace.
pub trait Processes: Send + Sync + Debug {
    /// Returns what is known about the process `pid`.
    fn state(&self, pid: u32) -> ProcessState;
}

/// The processes that the kernel shows in /proc.
#[derive(Copy, Clone, Debug, Default)]
pub struct SystemProcesses;

impl Processes for SystemProcesses {
    fn state(&self, pid: u32) -> ProcessState {
        if let Some(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .ok()
            .as_deref()
            .and_then(parse_stat)
        {
            return match stat {
                ('Z' | 'X' | 'x', _) => ProcessState::Gone,
                (_, start_ticks) => ProcessState::Running { start_ticks },
            };
        }
        // Where /proc hides other users' processes, only the kernel's answer to a signal shows
        // whether they exist.
        let pid = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        match pid.map(rustix::process::test_kill_process) {
            None | Some(Err(rustix::io::Errno::SRCH)) => ProcessState::Gone,
            Some(_) => ProcessState::Unknown,
        }
    }
}

/// Parses state and start time in /proc/PID/stat (proc(5): fields 3 and 22). The name, field 2, may
/// hold spaces and brackets.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// What this machine alone can determine about a holder.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum LocalVerdict {
    /// It is running on this machine.
    Alive,
    /// It ran on this machine, and has ended.
    Dead,
    /// It is on another machine, in another container, or hidden. Only its heartbeat shows whether
    /// it is alive.
    Elsewhere,
}

impl HolderInfo {
    /// Returns the information about this process, which holds a volume for `mount_point` (or for
    /// the command of that name). What cannot be determined stays empty or zero.
    pub fn of_this_process(mount_point: &str) -> Self {
        let read = |path: &str| {
            std::fs::read_to_string(path)
                .map(|text| text.trim().to_owned())
                .unwrap_or_default()
        };
        let pid = std::process::id();
        let start = match SystemProcesses.state(pid) {
            ProcessState::Running { start_ticks } => start_ticks,
            ProcessState::Gone | ProcessState::Unknown => 0,
        };
        Self {
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            machine_id: read("/etc/machine-id"),
            boot_id: read("/proc/sys/kernel/random/boot_id"),
            pid_namespace: pid_namespace().unwrap_or(0),
            pid,
            process_start_ticks: start,
            user: user_name(
                rustix::process::geteuid().as_raw(),
                Path::new("/etc/passwd"),
            ),
            mount_point: mount_point.to_owned(),
        }
    }

    /// Returns what the process `here` can determine about this holder.
    ///
    /// The machine id does not count, because copies of a machine share it. Copies of a *running*
    /// machine share the boot id, too, so a holder on a copy may be judged dead here. That costs
    /// the holder its mount, and never acknowledged data (rule 7).
    pub fn judge_locally(&self, here: &HolderInfo, processes: &dyn Processes) -> LocalVerdict {
        let same_boot = !self.boot_id.is_empty() && self.boot_id == here.boot_id;
        let same_namespace = self.pid_namespace != 0 && self.pid_namespace == here.pid_namespace;
        if !same_boot || !same_namespace || self.pid == 0 {
            return LocalVerdict::Elsewhere;
        }
        match processes.state(self.pid) {
            ProcessState::Gone => LocalVerdict::Dead,
            ProcessState::Running { start_ticks } if start_ticks != self.process_start_ticks => {
                LocalVerdict::Dead
            }
            ProcessState::Running { .. } => LocalVerdict::Alive,
            ProcessState::Unknown => LocalVerdict::Elsewhere,
        }
    }
}

impl HolderInfo {
    /// Returns a number for the machine of this process, which is the same after each boot. It is a
    /// hash of the machine id and, in the initial pid namespace, of the host name. Copies of a
    /// machine may share the machine id, and then differ in their host names. A container has a new
    /// host name each time, so only the machine id counts there.
    pub fn machine(&self) -> u64 {
        match self.pid_namespace {
            FIRST_PID_NAMESPACE => self.machine_of(&self.host),
            _ => self.containers(),
        }
    }

    /// Returns the number that [`HolderInfo::machine`] gives in containers with this machine id.
    pub fn containers(&self) -> u64 {
        self.machine_of("")
    }

    fn machine_of(&self, host: &str) -> u64 {
        let said = format!("{}\0{host}", self.machine_id);
        let hash = blake3::hash(said.as_bytes());
        let (bytes, _) = hash.as_bytes().split_first_chunk().expect("32 bytes");
        u64::from_le_bytes(*bytes)
    }

    /// Returns whether this holder, a command, ran before the last boot of this machine.
    ///
    /// Containers share the machine id of their image and run on many machines, so both processes
    /// must be in the initial pid namespace. Copies of a whole machine may have the same host name.
    /// Then one copy removes the session of a command that runs on the other: that command fails,
    /// and no data is lost.
    fn ran_before(&self, here: &HolderInfo) -> bool {
        let same = |one: &str, other: &str| !one.is_empty() && one == other;
        let is_first = |holder: &HolderInfo| holder.pid_namespace == FIRST_PID_NAMESPACE;
        let booted = !self.boot_id.is_empty() && !here.boot_id.is_empty();
        same(&self.machine_id, &here.machine_id)
            && same(&self.host, &here.host)
            && is_first(self)
            && is_first(here)
            && booted
            && self.boot_id != here.boot_id
    }
}

impl Session {
    /// Returns what the process `here` can determine about this session. A session without a volume
    /// is dead, too, if it ran before the last boot of the machine. For a session with a volume its
    /// heartbeat decides that case, since a wrong judgement costs a mount.
    pub fn judge_locally(&self, here: &HolderInfo, processes: &dyn Processes) -> LocalVerdict {
        match self.holder.judge_locally(here, processes) {
            LocalVerdict::Elsewhere if self.volume.is_none() && self.holder.ran_before(here) => {
                LocalVerdict::Dead
            }
            verdict => verdict,
        }
    }
}

/// Returns the number in `pid:[NUMBER]`, the target of the link /proc/self/ns/pid.
fn pid_namespace() -> Option<u64> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    link.to_str()?
        .strip_prefix("pid:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

/// Returns the name of user `id` in the file `passwd`, or the id as text.
fn user_name(id: u32, passwd: &Path) -> String {
    let text = std::fs::read_to_string(passwd).unwrap_or_default();
    let named = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id.to_string()).then(|| name.to_owned())
    };
    text.lines()
        .find_map(named)
        .unwrap_or_else(|| id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Table(ProcessState);
    impl Processes for Table {
        fn state(&self, _: u32) -> ProcessState {
            self.0
        }
    }

    #[test]
    fn this_process_is_alive_and_a_child_that_ended_is_dead() {
        let here = HolderInfo::of_this_process("/mnt");
        assert_eq!(
            here.judge_locally(&here, &SystemProcesses),
            LocalVerdict::Alive
        );
        assert!(
            here.process_start_ticks > 0
                && here.pid_namespace > 0
                && !here.boot_id.is_empty()
                && !here.user.is_empty()
        );

        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .expect("sleep(1) is there");
        let ProcessState::Running { start_ticks } = SystemProcesses.state(child.id()) else {
            panic!("the child runs")
        };
        let holder = HolderInfo {
            pid: child.id(),
            process_start_ticks: start_ticks,
            ..here.clone()
        };
        assert_eq!(
            holder.judge_locally(&here, &SystemProcesses),
            LocalVerdict::Alive
        );
        child.kill().expect("it is ours");
        while matches!(
            SystemProcesses.state(child.id()),
            ProcessState::Running { .. }
        ) {
            std::thread::yield_now();
        }
        assert_eq!(
            holder.judge_locally(&here, &SystemProcesses),
            LocalVerdict::Dead,
            "even before its parent has fetched its status"
        );
        child.wait().expect("it is ours");
        assert_eq!(
            holder.judge_locally(&here, &SystemProcesses),
            LocalVerdict::Dead
        );
    }

    #[test]
    fn a_process_number_means_nothing_on_another_boot_or_in_another_namespace() {
        let here = HolderInfo {
            boot_id: "b".into(),
            pid_namespace: 7,
            pid: 10,
            process_start_ticks: 5,
            ..HolderInfo::default()
        };
        let gone = Table(ProcessState::Gone);
        assert_eq!(here.judge_locally(&here, &gone), LocalVerdict::Dead);
        for other in [
            HolderInfo {
                boot_id: "c".into(),
                ..here.clone()
            },
            HolderInfo {
                boot_id: String::new(),
                ..here.clone()
            },
            HolderInfo {
                pid_namespace: 8,
                ..here.clone()
            },
            HolderInfo {
                pid_namespace: 0,
                ..here.clone()
            },
            HolderInfo {
                pid: 0,
                ..here.clone()
            },
        ] {
            assert_eq!(
                other.judge_locally(&here, &gone),
                LocalVerdict::Elsewhere,
                "{other:?}"
            );
        }
        let nowhere = HolderInfo::default();
        assert_eq!(
            nowhere.judge_locally(&nowhere, &gone),
            LocalVerdict::Elsewhere
        );
        assert_eq!(
            here.judge_locally(&here, &Table(ProcessState::Unknown)),
            LocalVerdict::Elsewhere
        );
        assert_eq!(
            here.judge_locally(&here, &Table(ProcessState::Running { start_ticks: 5 })),
            LocalVerdict::Alive
        );
        assert_eq!(
            here.judge_locally(&here, &Table(ProcessState::Running { start_ticks: 6 })),
            LocalVerdict::Dead,
            "the number was given out again"
        );
    }

    /// Containers of one image on one kernel share the machine id and the boot id, and all number
    /// their processes from 1.
    #[test]
    fn containers_with_one_machine_id_do_not_judge_each_other() {
        let container = |namespace| HolderInfo {
            host: "replica".into(),
            machine_id: "of the image".into(),
            boot_id: "of the kernel".into(),
            pid_namespace: namespace,
            pid: 1,
            process_start_ticks: 5,
            ..HolderInfo::default()
        };
        let (one, other) = (container(7), container(8));
        let seen = [
            ProcessState::Gone,
            ProcessState::Unknown,
            ProcessState::Running { start_ticks: 5 },
            ProcessState::Running { start_ticks: 6 },
        ];
        for seen in seen {
            let verdict = one.judge_locally(&other, &Table(seen));
            assert_eq!(verdict, LocalVerdict::Elsewhere, "{seen:?}");
        }
        assert!(!one.ran_before(&other), "the machine id proves nothing");
        let (bare, far) = (container(7), container(8));
        let without = |holder| HolderInfo {
            machine_id: String::new(),
            ..holder
        };
        assert_eq!(one.machine(), other.machine(), "one machine for spools");
        assert_eq!(without(bare).machine(), without(far).machine());
    }

    #[test]
    fn a_command_of_an_earlier_boot_is_dead_and_a_mount_is_watched() {
        let here = HolderInfo {
            host: "h".into(),
            machine_id: "m".into(),
            boot_id: "now".into(),
            pid_namespace: FIRST_PID_NAMESPACE,
            pid: 10,
            ..HolderInfo::default()
        };
        let before = HolderInfo {
            boot_id: "before".into(),
            ..here.clone()
        };
        let unknown = Table(ProcessState::Unknown);
        let judge = |holder: &HolderInfo, volume: Option<&str>, here: &HolderInfo| {
            let mut root = super::super::state::Root::new(
                bkfs_chunker::crypto::RepositoryId([1; 16]),
                [0; 16],
            );
            let id = super::super::state::SessionId(1);
            root.register(id, holder.clone()).expect("room");
            let mut session = root.sessions[&id].clone();
            session.volume = volume.map(str::to_owned);
            session.judge_locally(here, &unknown)
        };
        assert_eq!(judge(&before, None, &here), LocalVerdict::Dead);
        assert_eq!(judge(&before, Some("main"), &here), LocalVerdict::Elsewhere);
        let in_container = HolderInfo {
            pid_namespace: 7,
            ..here.clone()
        };
        assert_eq!(judge(&before, None, &in_container), LocalVerdict::Elsewhere);
        let others: [fn(&mut HolderInfo); 6] = [
            |other| other.machine_id = "another".into(),
            |other| other.machine_id = String::new(),
            |other| other.host = "another".into(),
            |other| other.pid_namespace = 7,
            |other| other.boot_id = String::new(),
            |other| other.boot_id = "now".into(),
        ];
        for change in others {
            let mut other = before.clone();
            change(&mut other);
            let verdict = judge(&other, None, &here);
            assert_eq!(verdict, LocalVerdict::Elsewhere, "{other:?}");
        }
    }

    #[test]
    fn names_of_processes_may_hold_anything() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        assert_eq!(parse_stat(stat), Some(('S', 987_654)));
        assert_eq!(parse_stat("42 (cut short"), None);
        assert_eq!(parse_stat(""), None);
    }
}
