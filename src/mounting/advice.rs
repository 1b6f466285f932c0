//! The answers of a mount that refuses a request: what failed, the exit code, and the next command.
//!
//! Owns the advice. Does not own the errors (`volume::error`).

use serde_json::{Value, json};

use crate::printable;
use crate::volume::error::VolumeError;

/// Returns the answer to a request that failed with `error`, by the mount at `mount_point`. `cause`
/// says in a word why the store does not answer as needed, if it does not.
pub fn refusal(error: &VolumeError, mount_point: &str, cause: Option<&str>) -> Value {
    let place = printable::line(mount_point);
    let hint = match error {
        VolumeError::Poisoned(_) => Some(format!(
            "bkfs status {place} names what is lost. Mend the cause, then let the mount go on from \
             its last commit: bkfs status --acknowledge {place}. Then run the backup again."
        )),
        VolumeError::OutcomeUnknown(_) => {
            Some(format!("bkfs snapshots {place} shows whether it was made."))
        }
        VolumeError::SnapshotName(_) => Some(format!(
            "bkfs snapshots {place} lists the names that are taken; without a name the time in \
             UTC is the name. If there are too many: bkfs forget, then bkfs gc, which empties the \
             trash, and mount again; or bkfs upgrade."
        )),
        VolumeError::ReadOnly => {
            Some("Mount the repository without -o ro to write, at another place.".to_owned())
        }
        _ => cause.map(|cause| {
            let mend = match cause {
                "full" => "Free room in the bucket, or raise its quota",
                _ => "Mend the store or the way to it",
            };
            format!(
                "{mend}: the mount then goes on by itself, and nothing is lost. Then repeat the \
                 command. bkfs status {place} shows what waits."
            )
        }),
    };
    let code = match error {
        VolumeError::OutcomeUnknown(_) => 14,
        _ => 1,
    };
    json!({ "error": error.to_string(), "code": code, "hint": hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_next_command() {
        let told = |error: VolumeError| {
            let answer = refusal(&error, "/backup", None);
            let hint = answer["hint"].as_str().unwrap_or_default().to_owned();
            (answer["code"].as_i64().unwrap(), hint)
        };
        let (code, hint) = told(VolumeError::Poisoned("the store is full".into()));
        assert!(
            hint.contains("bkfs status --acknowledge /backup") && code == 1,
            "{hint}"
        );
        let (code, hint) = told(VolumeError::OutcomeUnknown("no answer".into()));
        assert!(
            hint.contains("bkfs snapshots /backup") && code == 14,
            "{hint}"
        );
        assert_eq!(told(VolumeError::Commit("x".into())), (1, String::new()));
        let full = refusal(&VolumeError::Commit("x".into()), "/backup", Some("full"));
        let hint = full["hint"].as_str().unwrap();
        assert!(
            hint.contains("room") && hint.contains("bkfs status /backup"),
            "{hint}"
        );
    }
}
