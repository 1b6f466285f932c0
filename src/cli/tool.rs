//! A tool that bkfs runs, and its exit code as a shell reports it.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::output::{Failure, complain};
use crate::cli::signals::Hangup;

/// The exit codes of env(1) and similar tools for a command that is there and cannot be run, and
/// for one that is not there.
const NOT_RUNNABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// A command that a signal ended exits with this plus the signal's number, as in every shell.
const BY_SIGNAL: i32 = 128;

/// Returns the code of a tool that has ended.
pub fn code_of(status: ExitStatus) -> i32 {
    let by_signal = || BY_SIGNAL + status.signal().unwrap_or_default();
    status.code().unwrap_or_else(by_signal)
}

/// Returns the code of a tool that could not be started.
pub fn code_without_start(error: &io::Error) -> i32 {
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_RUNNABLE,
    }
}

/// Runs the tool to its end with this process's input and output. Returns its exit code as a shell
/// reports it; 126 or 127 if it cannot be run.
///
/// SIGTERM and SIGHUP are passed on, and the tool ends first. SIGINT and SIGQUIT come from the
/// terminal, which sends them to the tool as well.
///
/// # Errors
/// Exit code 1 if signals cannot be received, or the tool cannot be watched.
pub async fn run_tool(command: &[OsString]) -> Result<i32, Failure> {
    let name = command[0].to_string_lossy();
    let no_signals = |error: std::io::Error| Failure::new(format!("signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut hangup = Hangup::listen().map_err(no_signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut quit = signal(SignalKind::quit()).map_err(no_signals)?;
    let mut child = match Command::new(&command[0]).args(&command[1..]).spawn() {
        Ok(child) => child,
        Err(error) => {
            complain(format_args!("bkfs: cannot run {name}: {error}"));
            return Ok(code_without_start(&error));
        }
    };
    let tool = child
        .id()
        .and_then(|id| rustix::process::Pid::from_raw(id as i32));
    let pass_on = |signal| {
        if let Some(tool) = tool {
            // It may have ended this very moment.
            let _ = rustix::process::kill_process(tool, signal);
        }
    };
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status.map_err(|error| Failure::new(format!("{name}: {error}")))?;
                return Ok(code_of(status));
            }
            _ = terminate.recv() => pass_on(rustix::process::Signal::TERM),
            _ = hangup.recv() => pass_on(rustix::process::Signal::HUP),
            _ = interrupt.recv() => {}
            _ = quit.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(code_of(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code_of(ExitStatus::from_raw(0)), 0);
        assert_eq!(code_of(ExitStatus::from_raw(15)), 143);
        let absent = io::Error::from(io::ErrorKind::NotFound);
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(code_without_start(&absent), 127);
        assert_eq!(code_without_start(&denied), 126);
    }
}
