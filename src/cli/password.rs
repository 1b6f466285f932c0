//! Sources of passwords. None comes from an argument, which every user of the machine can read.

use std::fs;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use zeroize::Zeroizing;

use crate::cli::output::{Code, Failure};
use crate::cli::secrecy::Handed;
use crate::root::error::RootError;
use crate::root::repository::Passwords;

/// A password that erases itself.
pub type Password = Zeroizing<String>;

/// Places to look for a password, in this order.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// `--password-file`, or the mount option, or the configuration's.
    pub file: Option<std::path::PathBuf>,
    /// `--password-command`, or the configuration's.
    pub command: Option<String>,
    /// The variables of the environment.
    pub variables: Variables,
    /// Passwords that were taken out of the environment.
    pub handed: Handed,
}

/// Variables of the environment: one names a file, the other holds the password itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Variables {
    /// Those of the repository that a command works on.
    #[default]
    Own,
    /// Those of the repository that is copied from.
    From,
    /// Those of a new password.
    New,
}

impl Variables {
    fn names(self) -> [&'static str; 2] {
        match self {
            Variables::Own => ["BKFS_PASSWORD_FILE", "BKFS_PASSWORD"],
            Variables::From => ["BKFS_FROM_PASSWORD_FILE", "BKFS_FROM_PASSWORD"],
            Variables::New => ["BKFS_NEW_PASSWORD_FILE", "BKFS_NEW_PASSWORD"],
        }
    }
}

impl Sources {
    /// Returns the password from arguments, configuration or environment; none if none of them has
    /// one.
    ///
    /// # Errors
    /// A [`Failure`] with exit code 1 if a password file can be read by others or not at all, or if
    /// a password command fails.
    pub fn find(&self) -> Result<Option<Password>, Failure> {
        if let Some(file) = &self.file {
            return read_file(file).map(Some);
        }
        if let Some(command) = &self.command {
            return read_command(command).map(Some);
        }
        let [file, password] = self.variables.names();
        if let Some(file) = std::env::var_os(file) {
            return read_file(Path::new(&file)).map(Some);
        }
        Ok(self.handed.get(password))
    }

    /// Returns true if a password can be had without asking at the terminal.
    pub fn are_given(&self) -> bool {
        let [file, password] = self.variables.names();
        self.file.is_some()
            || self.command.is_some()
            || std::env::var_os(file).is_some()
            || self.handed.get(password).is_some()
    }

    /// Returns the password of an existing repository. Asks at the terminal if no source has one.
    ///
    /// # Errors
    /// Those of [`Self::find`]; [`Code::WrongPassword`] if there is no terminal.
    pub fn existing(&self) -> Result<Password, Failure> {
        match self.find()? {
            Some(password) => Ok(password),
            None if self.variables == Variables::From => {
                prompt("Password of the repository to copy from: ")
            }
            None => prompt("Password of the repository: "),
        }
    }

    /// Returns the password for a new repository or key. Asks for it twice at the terminal if no
    /// source has one.
    ///
    /// # Errors
    /// Those of [`Self::existing`]; [`Code::Usage`] if the password is empty or the two differ.
    pub fn new_password(&self) -> Result<Password, Failure> {
        if let Some(password) = self.find()? {
            return accept(password);
        }
        let password = match self.variables {
            Variables::New => prompt("New password: ")?,
            _ => prompt("Password for the new repository: ")?,
        };
        let again = prompt("Repeat the password: ")?;
        if *password != *again {
            return Err(Failure::usage("the two passwords differ"));
        }
        accept(password)
    }
}

/// Gets the password of an existing repository once the repository turns out to need one.
pub struct Asking<'a> {
    sources: &'a Sources,
    failure: Option<Failure>,
}

impl<'a> Asking<'a> {
    /// Uses these sources.
    pub fn new(sources: &'a Sources) -> Self {
        Asking {
            sources,
            failure: None,
        }
    }

    /// Returns why there is no password, if one was needed.
    pub fn failure(self) -> Option<Failure> {
        self.failure
    }
}

impl Passwords for Asking<'_> {
    fn is_given(&self) -> bool {
        self.sources.are_given()
    }

    fn password(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, RootError> {
        match self.sources.existing() {
            Ok(password) => Ok(Some(Zeroizing::new(password.as_bytes().to_vec()))),
            Err(failure) => {
                self.failure = Some(failure);
                Ok(None)
            }
        }
    }
}

fn accept(password: Password) -> Result<Password, Failure> {
    if password.is_empty() {
        let hint = "Give --no-encryption for a repository without one.";
        return Err(Failure::usage("the password is empty").hint(hint));
    }
    Ok(password)
}

fn prompt(text: &str) -> Result<Password, Failure> {
    let missing = || {
        Failure::new("the repository needs a password, and there is no terminal to ask for it")
            .code(Code::WrongPassword)
            .hint("Give --password-file, --password-command, BKFS_PASSWORD_FILE or BKFS_PASSWORD.")
    };
    if !std::io::stderr().is_terminal() && !std::io::stdin().is_terminal() {
        return Err(missing());
    }
    rpassword::prompt_password(text)
        .map(Zeroizing::new)
        .map_err(|_| missing())
}

fn read_file(path: &Path) -> Result<Password, Failure> {
    secret_in("password file", path)
}

/// Returns the first line of a file of secrets, which errors call `what`.
///
/// # Errors
/// A [`Failure`] with exit code 1 if the file can be read by others, or not at all.
pub fn secret_in(what: &str, path: &Path) -> Result<Zeroizing<String>, Failure> {
    let shown = path.display();
    let failed = |error: std::io::Error| Failure::new(format!("{what} {shown}: {error}"));
    let mode = fs::metadata(path).map_err(failed)?.mode();
    if mode & 0o077 != 0 {
        let mode = mode & 0o7777;
        let message = format!("{what} {shown} can be read by others (mode {mode:04o})");
        return Err(Failure::new(message).hint(format!("chmod 600 {shown}")));
    }
    let text = Zeroizing::new(fs::read_to_string(path).map_err(failed)?);
    Ok(first_line(&text))
}

fn read_command(command: &str) -> Result<Password, Failure> {
    let failed = |why: String| Failure::new(format!("password command {command:?}: {why}"));
    let output = Command::new("/bin/sh")
        .args(["-c", command])
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    let text =
        String::from_utf8(output.stdout).map_err(|_| failed("its output is not UTF-8".into()))?;
    Ok(first_line(&Zeroizing::new(text)))
}

fn first_line(text: &str) -> Password {
    let line = text.split('\n').next().unwrap_or_default();
    Zeroizing::new(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_password_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        fs::write(&path, "secret\nsecond line\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = read_file(&path).unwrap_err();
        assert!(error.message.contains("0640") && error.hint.unwrap().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(*read_file(&path).unwrap(), "secret");
    }

    #[test]
    fn a_password_command_that_fails_is_told() {
        assert_eq!(
            *read_command("printf 'from a command\\n'").unwrap(),
            "from a command"
        );
        assert!(read_command("exit 3").unwrap_err().message.contains('3'));
    }
}
