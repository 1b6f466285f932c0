//! What a command starts at its end: `--on-success` and `--on-failure`.
//!
//! Owns the document that such a command reads, and how long it may take. docs/json.md describes the
//! document for users.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use jiff::{Timestamp, Unit};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::cli::output::{Failure, Output};
use crate::cli::runtime::block_on;
use crate::cli::tool::code_of;
use crate::environment::Environment;

/// The longest time that a hook may take. A hook that hangs must not hold back the next backup.
const LIMIT: Duration = Duration::from_secs(60);

/// The options of commands that jobs run.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Hooks {
    /// Start this command with sh -c if all succeeded. It reads a JSON document on its standard
    /// input, and may take a minute
    #[arg(long, value_name = "COMMAND", help_heading = "At the end")]
    on_success: Option<String>,
    /// Start this command if the exit code is not 0, in the same way
    #[arg(long, value_name = "COMMAND", help_heading = "At the end")]
    on_failure: Option<String>,
}

/// A command that calls hooks at its end.
#[derive(Debug)]
pub struct Watched {
    hooks: Hooks,
    command: &'static str,
    target: String,
    began: Timestamp,
}

impl Watched {
    /// A command that begins now, by its name and what it works on; none if it has no hooks.
    pub fn begin(hooks: &Hooks, command: &'static str, target: impl ToString) -> Option<Self> {
        let is_watched = hooks.on_success.is_some() || hooks.on_failure.is_some();
        is_watched.then(|| Self {
            hooks: hooks.clone(),
            command,
            target: target.to_string(),
            began: Environment::this().now(),
        })
    }

    /// Starts the hook for this exit code, if there is one, and waits for it. A hook that fails is
    /// reported, and changes nothing.
    pub fn end(self, code: i32, failure: Option<&Failure>, output: &Output) {
        let (option, hook) = match code {
            0 => ("--on-success", &self.hooks.on_success),
            _ => ("--on-failure", &self.hooks.on_failure),
        };
        let Some(hook) = hook else {
            return;
        };
        let document = self.document(code, failure, output.kept());
        if let Err(why) = call(hook, &document) {
            output.warning(format_args!("{option} {hook}: {}", why.message));
        }
    }

    fn document(&self, code: i32, failure: Option<&Failure>, results: Vec<Value>) -> Value {
        let host = rustix::system::uname();
        let ended = Environment::this().now();
        let seconds = ended.duration_since(self.began).as_secs_f64();
        let by_tool = || (code != 0).then(|| format!("the tool ended with {code}"));
        let whole = |moment: Timestamp| moment.round(Unit::Second).unwrap_or(moment).to_string();
        json!({
            "command": self.command,
            "target": self.target,
            "host": host.nodename().to_string_lossy(),
            "began": whole(self.began),
            "ended": whole(ended),
            "seconds": seconds,
            "succeeded": code == 0,
            "code": code,
            "error": failure.map_or_else(by_tool, |failure| Some(failure.message.clone())),
            "hint": failure.and_then(|failure| failure.hint.as_ref()),
            "results": results,
        })
    }
}

/// Runs a hook to its end.
fn call(hook: &str, document: &Value) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(error.to_string());
    let input = in_memory(&format!("{document}\n")).map_err(failed)?;
    // Standard output belongs to the results.
    let output = io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
    block_on(async {
        let mut child = Command::new("/bin/sh")
            .args(["-c", hook])
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(output))
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        match tokio::time::timeout(LIMIT, child.wait()).await {
            Ok(status) => match status.map_err(failed)? {
                status if status.success() => Ok(()),
                status => Err(Failure::new(format!("it ended with {}", code_of(status)))),
            },
            Err(_) => {
                if let Some(group) = group {
                    // It may have ended this very moment.
                    let _ = kill_process_group(group, Signal::KILL);
                }
                let _ = child.wait().await;
                let seconds = LIMIT.as_secs();
                Err(Failure::new(format!("it was killed after {seconds} s")))
            }
        }
    })
}

/// Returns a file in memory with this text, to be read from its beginning. A pipe would hold a part
/// of a long text only.
fn in_memory(text: &str) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("bkfs-hook", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_reads_what_became_of_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let seen = directory.path().join("seen");
        let hooks = Hooks {
            on_failure: Some(format!("cat >'{}'", seen.display())),
            on_success: None,
        };
        let watched = || Watched::begin(&hooks, "check", "offsite").unwrap();
        let mut output = Output::new(false, true);
        output.keep_results();
        watched().end(0, None, &output);
        assert!(!seen.exists(), "there is no hook for success");
        let failure = Failure::new("it broke").hint("Mend it.");
        output.keep(&json!({ "long": "x".repeat(1 << 20) }));
        watched().end(1, Some(&failure), &output);
        let document: Value =
            serde_json::from_str(&std::fs::read_to_string(&seen).unwrap()).unwrap();
        assert_eq!(document["command"], "check");
        assert_eq!(document["target"], "offsite");
        assert_eq!(document["succeeded"], false);
        assert_eq!(document["code"], 1);
        assert_eq!(document["error"], "it broke");
        assert_eq!(document["hint"], "Mend it.");
        assert_eq!(
            document["results"][0]["long"].as_str().unwrap().len(),
            1 << 20
        );
        assert!(document["began"].as_str().unwrap() <= document["ended"].as_str().unwrap());
    }

    #[test]
    fn a_hook_that_fails_says_how() {
        let why = |hook| call(hook, &Value::Null).unwrap_err().message;
        assert_eq!(why("exit 7"), "it ended with 7");
        assert_eq!(why("kill -9 $$"), "it ended with 137");
        call("true", &Value::Null).unwrap();
    }

    #[test]
    fn a_command_without_hooks_is_not_watched() {
        assert!(Watched::begin(&Hooks::default(), "gc", "offsite").is_none());
    }
}
