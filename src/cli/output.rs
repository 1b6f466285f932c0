//! What people and scripts read: text, JSON, errors, exit codes.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bkfs_store::{Notice, RepositoryUrl};
use parking_lot::Mutex;

use crate::mounting::error::{MountingError, SpoolingError};
use crate::printable;
use crate::root::error::{ErrorKind, RootError};
pub use crate::units::bytes;
use crate::volume::error::VolumeError;

/// What says on stderr what a command waits for at the store of `url`, with or without a terminal.
/// The command fails once the store has made no progress for `timeout`.
pub fn waiting(quiet: bool, url: &RepositoryUrl, timeout: Duration) -> Notice {
    let url = url.to_string();
    Notice::new(move |cause| {
        if !quiet {
            complain(waiting_text(&url, cause, timeout));
        }
    })
}

fn waiting_text(url: &str, cause: &str, timeout: Duration) -> String {
    let seconds = timeout.as_secs();
    format!(
        "bkfs: the store at {url} does not answer ({cause}); trying until it has made no \
         progress for timeout={seconds} s"
    )
}

/// Exit codes that scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// Failed.
    Failed = 1,
    /// Bad usage.
    Usage = 2,
    /// Partly done; what is missing is named.
    Partly = 3,
    /// No such repository.
    NoRepository = 10,
    /// Locked, or a conflicting writer.
    Held = 11,
    /// Wrong password.
    WrongPassword = 12,
    /// Damaged data found.
    Damaged = 13,
    /// Outcome unknown: look before repeating.
    Unknown = 14,
    /// `bkfs run`: the tool succeeded and bkfs did not.
    RunFailed = 125,
}

impl Code {
    /// The code with this number, for errors that come from a mount.
    pub fn of(number: i64) -> Code {
        let all = [
            Code::Usage,
            Code::Partly,
            Code::NoRepository,
            Code::Held,
            Code::WrongPassword,
            Code::Damaged,
            Code::Unknown,
            Code::RunFailed,
        ];
        all.into_iter()
            .find(|code| *code as i64 == number)
            .unwrap_or(Code::Failed)
    }
}

/// Why a command failed, and what to do about it.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The exit code.
    pub code: Code,
    /// What happened, to what.
    pub message: String,
    /// What can be done.
    pub hint: Option<String>,
    /// The exit code of a tool that failed, which takes the place of `code`.
    pub tool: Option<i32>,
}

impl Failure {
    /// A failure with exit code 1.
    pub fn new(message: impl Into<String>) -> Self {
        Failure {
            code: Code::Failed,
            message: message.into(),
            hint: None,
            tool: None,
        }
    }

    /// Bad usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure {
            code: Code::Usage,
            message: message.into(),
            hint: None,
            tool: None,
        }
    }

    /// With another code.
    pub fn code(mut self, code: Code) -> Self {
        self.code = code;
        self
    }

    /// With advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// With the exit code of the tool that failed.
    pub fn tool(mut self, code: i32) -> Self {
        self.tool = Some(code);
        self
    }

    /// Returns the exit code of the program.
    pub fn exit_code(&self) -> i32 {
        self.tool.unwrap_or(self.code as i32)
    }

    /// With words in front that say what was being done.
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }
}

impl From<RootError> for Failure {
    fn from(error: RootError) -> Self {
        let code = match error.kind() {
            ErrorKind::NoRepository => Code::NoRepository,
            ErrorKind::Held | ErrorKind::Fenced => Code::Held,
            ErrorKind::WrongPassword => Code::WrongPassword,
            ErrorKind::Damaged => Code::Damaged,
            ErrorKind::OutcomeUnknown => Code::Unknown,
            ErrorKind::Rebuild | ErrorKind::Refused | ErrorKind::Unavailable => Code::Failed,
        };
        let hint = error.hint().map(str::to_owned);
        Failure {
            code,
            message: error.to_string(),
            hint,
            tool: None,
        }
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        let code = match &error {
            VolumeError::OutcomeUnknown(_) => Code::Unknown,
            error if error.is_damage() => Code::Damaged,
            _ => Code::Failed,
        };
        Failure::new(error.to_string()).code(code)
    }
}

impl From<MountingError> for Failure {
    fn from(error: MountingError) -> Self {
        match error {
            MountingError::Root(error) => error.into(),
            MountingError::Volume(error) => error.into(),
            MountingError::Options(text) => Failure::usage(text),
            MountingError::Spool(error) => error.into(),
            error => Failure::new(error.to_string()),
        }
    }
}

impl From<SpoolingError> for Failure {
    fn from(error: SpoolingError) -> Self {
        let mut failure = Failure::new(error.to_string());
        if error.is_damage() {
            failure = failure.code(Code::Damaged);
        }
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<bkfs_chunker::error::ContentError> for Failure {
    fn from(error: bkfs_chunker::error::ContentError) -> Self {
        VolumeError::from(error).into()
    }
}

/// How progress is shown, on stderr.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ProgressForm {
    /// Not at all.
    Nothing,
    /// A person watches a bar.
    Bar,
    /// A script reads a line of JSON every second.
    Lines,
}

/// Where a command's words go.
#[derive(Debug, Clone)]
pub struct Output {
    json: bool,
    quiet: bool,
    /// The reader of the results has gone away.
    closed: Arc<AtomicBool>,
    /// The results so far, if a hook reads them.
    kept: Option<Arc<Mutex<Vec<serde_json::Value>>>>,
}

impl Output {
    /// As the user asked.
    pub fn new(json: bool, quiet: bool) -> Self {
        Output {
            json,
            quiet,
            closed: Arc::default(),
            kept: None,
        }
    }

    /// Keeps all results from now on.
    pub fn keep_results(&mut self) {
        self.kept = Some(Arc::default());
    }

    /// Keeps a result that is not printed, if results are kept.
    pub fn keep(&self, value: &impl serde::Serialize) {
        if let Some(kept) = &self.kept
            && let Ok(value) = serde_json::to_value(value)
        {
            kept.lock().push(value);
        }
    }

    /// Returns the results that were kept.
    pub fn kept(&self) -> Vec<serde_json::Value> {
        let kept = self.kept.as_ref();
        kept.map(|kept| kept.lock().clone()).unwrap_or_default()
    }

    /// True once the reader of the results has gone away: a listing may end early. What the command
    /// has to say by its exit code stays.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// True if JSON is wanted.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Returns how progress is shown.
    pub fn progress_form(&self) -> ProgressForm {
        match (self.quiet, self.json) {
            (true, _) => ProgressForm::Nothing,
            (false, true) => ProgressForm::Lines,
            (false, false) if io::stderr().is_terminal() => ProgressForm::Bar,
            (false, false) => ProgressForm::Nothing,
        }
    }

    /// Prints a result: `value` as JSON, or `text`, also if the user wants no progress.
    ///
    /// # Errors
    /// [`Code::Failed`] if standard output cannot be written. A reader that has closed the pipe is
    /// no error.
    pub fn result(
        &self,
        value: &impl serde::Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        self.keep(value);
        if self.json {
            let line =
                serde_json::to_string(value).map_err(|error| Failure::new(error.to_string()))?;
            return self.print(&printable::json(&line));
        }
        self.print(&printable::lines(&text()))
    }

    fn print(&self, line: &str) -> Result<(), Failure> {
        if self.is_closed() {
            return Ok(());
        }
        self.note(print_to(&mut io::stdout().lock(), line)?);
        Ok(())
    }

    /// Writes bytes unchanged to standard output.
    ///
    /// # Errors
    /// Those of [`Output::result`].
    pub fn raw(&self, bytes: &[u8]) -> Result<(), Failure> {
        if self.is_closed() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        self.note(printed(out.write_all(bytes).and_then(|()| out.flush()))?);
        Ok(())
    }

    fn note(&self, printed: Printed) {
        if printed == Printed::ReaderGone {
            self.closed.store(true, Ordering::Relaxed);
        }
    }

    /// A part of the result for people, on stderr: standard output belongs to something else, or
    /// the exit code says it to scripts.
    pub fn finding(&self, text: impl fmt::Display) {
        if !self.json {
            complain(format_args!("bkfs: {text}"));
        }
    }

    /// A remark for people, on stderr, unless only results are wanted.
    pub fn remark(&self, text: impl fmt::Display) {
        if !self.quiet && !self.json {
            complain(format_args!("bkfs: {text}"));
        }
    }

    /// What is lost or set aside, on stderr, whatever is on stdout.
    pub fn warning(&self, text: impl fmt::Display) {
        complain(format_args!("bkfs: {text}"));
    }

    /// Prints a failure and returns its exit code.
    pub fn fail(&self, failure: &Failure) -> i32 {
        let code = failure.exit_code();
        if self.json {
            let error =
                serde_json::json!({ "error": failure.message, "hint": failure.hint, "code": code });
            // If this fails, no output is left on which to report it.
            let _ = self.print(&printable::json(&error.to_string()));
        }
        complain(format_args!("bkfs: {}", failure.message));
        if let Some(hint) = &failure.hint {
            complain(format_args!("      {hint}"));
        }
        code
    }
}

/// Prints a line on stderr. A failure of that changes neither the result nor the exit code.
pub fn complain(line: impl fmt::Display) {
    let line = line.to_string();
    let _ = writeln!(io::stderr(), "{}", printable::line(&line));
}

/// Prints a line of JSON on stderr. A failure of that changes nothing.
pub fn report(value: &serde_json::Value) {
    let text = value.to_string();
    let line = printable::json(&text);
    let _ = writeln!(io::stderr(), "{line}");
}

/// What became of a line.
#[derive(Debug, PartialEq, Eq)]
enum Printed {
    Yes,
    ReaderGone,
}

/// Prints a line. A reader that has gone away (`| head`) is no failure, and no success either: what
/// a command found is said by its exit code all the same.
fn print_to(out: &mut impl Write, line: &str) -> Result<Printed, Failure> {
    printed(writeln!(out, "{line}").and_then(|()| out.flush()))
}

fn printed(written: io::Result<()>) -> Result<Printed, Failure> {
    match written {
        Ok(()) => Ok(Printed::Yes),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Printed::ReaderGone),
        Err(error) => Err(Failure::new(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}

/// Names are bytes: UTF-8 is shown as it is, but for control characters; anything else is escaped.
pub fn name_text(name: &[u8]) -> String {
    printable::name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_gone_away_ends_nothing() {
        // Not a pipe: a process that another test starts at this moment has its reading end, too.
        let (read, mut write) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(print_to(&mut write, "line").unwrap(), Printed::Yes);
        read.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(print_to(&mut write, "line").unwrap(), Printed::ReaderGone);
    }

    #[test]
    fn quiet_leaves_out_progress_and_nothing_else() {
        let form = |json, quiet| Output::new(json, quiet).progress_form();
        assert_eq!(form(false, true), ProgressForm::Nothing);
        assert_eq!(form(true, true), ProgressForm::Nothing);
        assert_eq!(form(true, false), ProgressForm::Lines);
        // A test may have a terminal to show progress on, or none.
        let is_watched = form(false, false) == ProgressForm::Bar;
        assert_eq!(is_watched, io::stderr().is_terminal());
    }
}
