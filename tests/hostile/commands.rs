//! The program, run as a process of its own: its exit code, its output, and the memory that it
//! takes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::forge::PASSWORD;

/// The time in which any command ends, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(300);

/// The most memory that a command may take, in bytes.
const MEMORY_MAX: u64 = 700 << 20;

/// The variable that holds the arguments of the program, one behind the other.
pub const ARGUMENTS: &str = "BKFS_HOSTILE_ARGUMENTS";

/// The character between two arguments.
pub const BETWEEN: char = '\u{1f}';

/// The output of the test harness before the program writes anything.
const HEAD: &[u8] = b"\nrunning 1 test\n";

/// The result of a command.
pub struct Ran {
    pub code: i32,
    pub out: Vec<u8>,
    pub error: Vec<u8>,
}

impl Ran {
    /// Returns the exit code and all output, for messages.
    pub fn says(&self) -> String {
        let shown = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]).into_owned();
            text.escape_debug().to_string().replace("\\n", "\n")
        };
        format!(
            "ended with {}\n{}{}",
            self.code,
            shown(&self.out),
            shown(&self.error)
        )
    }
}

/// Runs the program with these arguments, on a machine of its own below `home`.
///
/// # Panics
/// If it does not end, or takes too much memory.
pub fn bkfs(home: &Path, arguments: &[&str]) -> Ran {
    bkfs_as(None, home, arguments)
}

/// The same, as another user.
pub fn bkfs_as(user: Option<u32>, home: &Path, arguments: &[&str]) -> Ran {
    bkfs_in(user, home, &[], arguments)
}

/// The same with more in its environment.
pub fn bkfs_in(
    user: Option<u32>,
    home: &Path,
    environment: &[(&str, &str)],
    arguments: &[&str],
) -> Ran {
    let child = start(user, home, environment, arguments);
    let code = wait(child, arguments);
    said(home, code)
}

/// What a command on this machine said that has ended.
pub fn said(home: &Path, code: i32) -> Ran {
    let read = |name: &str| std::fs::read(home.join(name)).expect("what it said");
    let out = read("out");
    let out = out.strip_prefix(HEAD).unwrap_or(&out).to_vec();
    Ran {
        code,
        out,
        error: read("error"),
    }
}

/// Starts it.
pub fn start(
    user: Option<u32>,
    home: &Path,
    environment: &[(&str, &str)],
    arguments: &[&str],
) -> Child {
    std::fs::create_dir_all(home).expect("a home");
    if user.is_some() {
        std::os::unix::fs::chown(home, user, user).expect("it is given away");
    }
    let file = |name: &str| std::fs::File::create(home.join(name)).expect("a file");
    // The password is in a file: with a password in its environment the program would execute
    // itself again.
    let password = home.join("password");
    std::fs::write(&password, PASSWORD).expect("a password");
    std::fs::set_permissions(&password, Permissions::from_mode(0o600)).expect("its mode");
    std::os::unix::fs::chown(&password, user, user).expect("it is given away");
    // This program, wherever it is: another user may not be able to reach it by a path.
    let mut command = Command::new("/proc/self/exe");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command
        .args([
            "-q",
            "--exact",
            "the_program_itself",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ARGUMENTS, arguments.join(&BETWEEN.to_string()))
        .env("BKFS_PASSWORD_FILE", &password)
        .env("BKFS_FROM_PASSWORD_FILE", &password)
        .env("HOME", home)
        .env("XDG_STATE_HOME", home.join("state"))
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("RUST_MIN_STACK", "8388608")
        .env_remove("BKFS_LOG")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(file("out"))
        .stderr(file("error"))
        .spawn()
        .expect("it starts")
}

/// Waits for its end, and returns its exit code.
pub fn wait(mut child: Child, arguments: &[&str]) -> i32 {
    let began = Instant::now();
    let status = format!("/proc/{}/status", child.id());
    let mut problem = None;
    loop {
        if let Some(status) = child.try_wait().expect("its end") {
            assert!(problem.is_none(), "{arguments:?}: {problem:?}");
            return status.code().unwrap_or(-1);
        }
        let peak = std::fs::read_to_string(&status).ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        });
        let is_large = peak.is_some_and(|kib| kib * 1024 > MEMORY_MAX);
        if (is_large || began.elapsed() > PATIENCE) && problem.is_none() {
            problem = Some(format!(
                "not done after {:?}, with {peak:?} KiB",
                began.elapsed()
            ));
            child.kill().expect("it can be ended");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the first character that a terminal would obey, if there is one. Line ends are allowed.
pub fn obeyed(text: &[u8]) -> Option<String> {
    let Ok(text) = std::str::from_utf8(text) else {
        return Some("bytes that are no text".to_owned());
    };
    let is_bad = |char: &char| {
        (char.is_control() && *char != '\n')
            || matches!(
                char,
                '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
                    | '\u{2066}'..='\u{2069}'
            )
    };
    text.chars().find(is_bad).map(|char| format!("{char:?}"))
}
