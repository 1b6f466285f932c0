//! The exit codes of a tool that bkfs runs, as a shell reports them.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

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
