//! Keeps passwords from other processes of the machine.
//!
//! Owns the passwords that the program was given in its environment, how they leave it, and whether
//! the process can be dumped. Does not own where else passwords come from (`password`).
//!
//! The kernel shows the first environment of a process for as long as the process lives, and
//! programs that it starts inherit it. So a program that finds a password there writes it to a file
//! in memory and executes itself again without it. The daemon of a mount is handed such a file as
//! well.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::MemfdFlags;
use rustix::process::DumpableBehavior;
use zeroize::Zeroizing;

/// Variables that hold a password itself.
const PASSWORDS: [&str; 3] = ["BKFS_PASSWORD", "BKFS_FROM_PASSWORD", "BKFS_NEW_PASSWORD"];

/// The variable that names the descriptor of the file in memory.
const HANDED_VARIABLE: &str = "BKFS_HANDED_FD";

/// The name of that file. It tells the file from another one under the same descriptor number.
const HANDED_NAME: &str = "bkfs-passwords";

/// The byte between a variable's name and its value, and behind each value. No environment can hold
/// it.
const END: u8 = 0;

/// Passwords that were taken out of the environment. They are wiped from memory with the last
/// clone.
#[derive(Clone, Default)]
pub struct Handed(Arc<Vec<(String, Zeroizing<Vec<u8>>)>>);

impl std::fmt::Debug for Handed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.0.iter().map(|(name, _)| name);
        formatter.debug_list().entries(names).finish()
    }
}

/// Forbids core dumps and tracing by other users, and returns the passwords of the environment.
///
/// Executes the program again, with these arguments, if its environment still holds passwords. If
/// that fails (`/proc` is not mounted, so that nothing shows them), they are used as they are.
pub fn begin(arguments: &[OsString]) -> Handed {
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let mut passwords = Handed::received().unwrap_or_default();
    let given = Handed::from_environment();
    if given.0.is_empty() {
        return passwords;
    }
    Arc::make_mut(&mut passwords.0).extend(given.0.iter().cloned());
    if let Ok(program) = std::env::current_exe() {
        let mut again = Command::new(program);
        if let Some((name, rest)) = arguments.split_first() {
            again.arg0(name).args(rest);
        }
        if let Ok(_open) = passwords.hand_to(&mut again) {
            let _ = again.exec();
        }
    }
    passwords
}

impl Handed {
    fn from_environment() -> Handed {
        let value = |name: &str| {
            let value = std::env::var_os(name)?;
            Some((name.to_owned(), Zeroizing::new(value.into_vec())))
        };
        Handed(Arc::new(PASSWORDS.into_iter().filter_map(value).collect()))
    }

    /// Returns the value of such a variable. None if it was not set, or is not UTF-8.
    pub fn get(&self, variable: &str) -> Option<Zeroizing<String>> {
        let (_, value) = self.0.iter().find(|(name, _)| name == variable)?;
        let text = std::str::from_utf8(value).ok()?;
        Some(Zeroizing::new(text.to_owned()))
    }

    /// Hands the passwords on to a command that runs this program, and takes them out of its
    /// environment. The returned file must stay open until the command has been started.
    ///
    /// # Errors
    /// The [`std::io::Error`] with which the file in memory could not be made or written.
    pub fn hand_to(&self, command: &mut Command) -> std::io::Result<Option<File>> {
        for name in PASSWORDS {
            command.env_remove(name);
        }
        command.env_remove(HANDED_VARIABLE);
        if self.0.is_empty() {
            return Ok(None);
        }
        // The file stays open when the other program begins: that hands it on.
        let make = |flags| rustix::fs::memfd_create(HANDED_NAME, flags);
        // Some systems require the flag (`vm.memfd_noexec`); kernels before 6.3 do not know it.
        let file = make(MemfdFlags::NOEXEC_SEAL).or_else(|_| make(MemfdFlags::empty()))?;
        let mut file = File::from(file);
        for (name, value) in self.0.iter() {
            for part in [name.as_bytes(), &[END], value.as_slice(), &[END]] {
                file.write_all(part)?;
            }
        }
        file.rewind()?;
        command.env(HANDED_VARIABLE, file.as_raw_fd().to_string());
        Ok(Some(file))
    }

    /// Returns what was handed to this process, and closes the file.
    fn received() -> Option<Handed> {
        let number: i32 = std::env::var(HANDED_VARIABLE).ok()?.parse().ok()?;
        let target = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        let is_ours = |name: &OsStr| name.as_bytes().starts_with(b"/memfd:bkfs-passwords ");
        if number <= 2 || !is_ours(target.as_os_str()) {
            return None;
        }
        // SAFETY: the descriptor is open, and by its name it is the file that the process which
        // became or started this one left open for it. Nothing else in this process knows it.
        let mut file = File::from(unsafe { OwnedFd::from_raw_fd(number) });
        let mut bytes = Zeroizing::new(Vec::new());
        file.read_to_end(&mut bytes).ok()?;
        Some(Handed::decode(&bytes))
    }

    fn decode(bytes: &[u8]) -> Handed {
        let mut parts = bytes.split(|byte| *byte == END);
        let mut passwords = Vec::new();
        while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
            if let Ok(name) = std::str::from_utf8(name) {
                passwords.push((name.to_owned(), Zeroizing::new(value.to_vec())));
            }
        }
        Handed(Arc::new(passwords))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handed(password: &str) -> Handed {
        let value = Zeroizing::new(password.as_bytes().to_vec());
        Handed(Arc::new(vec![("BKFS_PASSWORD".to_owned(), value)]))
    }

    #[test]
    fn passwords_are_handed_on_in_memory_and_not_in_the_environment() {
        let mut command = Command::new("/bin/sh");
        command.env("BKFS_PASSWORD", "visible");
        command.args([
            "-c",
            "echo \"${BKFS_PASSWORD-none}\"; cat <&\"$BKFS_HANDED_FD\"",
        ]);
        let open = handed("hidden one").hand_to(&mut command).unwrap();
        let output = command.output().unwrap();
        drop(open);
        let expected = b"none\nBKFS_PASSWORD\0hidden one\0";
        assert_eq!(output.stdout, expected);
        let read = Handed::decode(&output.stdout[5..]);
        assert_eq!(*read.get("BKFS_PASSWORD").unwrap(), "hidden one");
        assert!(read.get("BKFS_NEW_PASSWORD").is_none());
    }

    #[test]
    fn passwords_are_not_printed() {
        assert_eq!(format!("{:?}", handed("secret")), "[\"BKFS_PASSWORD\"]");
    }
}
