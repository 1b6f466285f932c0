//! Options that every command takes.
//!
//! Owns their names, their help and how they are read from the command line. Does not own what
//! follows from them: `access` opens the repository that they describe.

use std::path::PathBuf;

use bkfs_chunker::crypto::SlotName;
use bkfs_store::lock::LOCK_DAYS_MAX;
use clap::Args;

use crate::cli::secrecy;
use crate::units::{LetterM, stretch};

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// Print JSON: one object, or one per line
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Show no progress and no remarks: only results, warnings and errors
    #[arg(short, long, global = true)]
    pub(super) quiet: bool,
    /// Log more; give it twice to log everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    /// The volume to work on (default: that of the mount that is given in place of a URL, streams
    /// for bkfs put, otherwise main)
    #[arg(
        long,
        global = true,
        default_value = "main",
        hide_default_value = true,
        value_name = "NAME"
    )]
    pub(super) volume: String,
    /// True if --volume was given.
    #[arg(skip)]
    pub(super) volume_is_given: bool,
    /// Passwords that stood in the environment.
    #[arg(skip)]
    pub(super) handed: secrecy::Handed,
    /// Read the password from the first line of this file, which others must not be able to read
    #[arg(long, global = true, value_name = "FILE", help_heading = "Password")]
    pub(super) password_file: Option<PathBuf>,
    /// Read the password from the output of this command
    #[arg(long, global = true, value_name = "COMMAND", help_heading = "Password")]
    pub(super) password_command: Option<String>,
    /// Try the password only on this key, given by its whole name as bkfs key list shows it;
    /// BKFS_KEY names it too
    ///
    /// Without it bkfs first tries the keys that opened the repository on this machine, then all
    /// others, the cheapest first. The commands of bkfs key try the named one first.
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        value_parser = key_name,
        help_heading = "Password"
    )]
    pub(super) key: Option<SlotName>,
    /// The address of the store, for S3-compatible stores other than AWS
    #[arg(long, global = true, value_name = "URL", help_heading = "Store")]
    pub(super) endpoint: Option<String>,
    /// The region of the store
    #[arg(long, global = true, value_name = "NAME", help_heading = "Store")]
    pub(super) region: Option<String>,
    /// Wait for a server that cannot be reached, instead of giving up within 10 s
    #[arg(long, global = true, help_heading = "Store")]
    pub(super) wait: bool,
    /// Refuse a repository older than this generation (bkfs snapshot prints it)
    #[arg(
        long,
        global = true,
        value_name = "N",
        default_value_t = 0,
        help_heading = "Store"
    )]
    pub(super) min_generation: u64,
    /// Accept a repository that was rolled back or rebuilt since this machine saw it; needed once
    #[arg(long, global = true, help_heading = "Store")]
    pub(super) accept_rollback: bool,
    /// Accept another repository at an address that this machine knows, or one that is no longer
    /// encrypted; needed once
    #[arg(long, global = true, help_heading = "Store")]
    pub(super) accept_replaced: bool,
    /// Keep fetched data in this directory (default: /var/cache/bkfs, or bkfs in the user's cache
    /// directory)
    #[arg(long, global = true, value_name = "DIR", help_heading = "Store")]
    pub(super) cache_dir: Option<PathBuf>,
}

/// Reads the whole name of a key.
///
/// # Errors
/// The message for the user if the text is no such name.
pub fn key_name(text: &str) -> Result<SlotName, String> {
    text.parse().map_err(|()| {
        format!(
            "{text:?} is not the name of a key (16 hexadecimal digits, as bkfs key list shows it)"
        )
    })
}

/// Reads how long objects are locked, in days: a number, or a time such as `30d` or `4w`.
///
/// # Errors
/// The message for the user if the text is no whole number of days, or too many.
pub fn lock_days(text: &str) -> Result<u32, String> {
    const DAY_SECONDS: u64 = 86_400;
    let in_units = || {
        let seconds = stretch(text, LetterM::Months)?;
        let days = u32::try_from(seconds / DAY_SECONDS).ok()?;
        seconds.is_multiple_of(DAY_SECONDS).then_some(days)
    };
    let days = text.parse().ok().or_else(in_units);
    let days = days.filter(|days| *days <= LOCK_DAYS_MAX);
    days.ok_or_else(|| format!("expected days, at most {LOCK_DAYS_MAX}, such as 30, 30d or 4w"))
}

/// Reads how long objects are locked, in days, at least one.
///
/// # Errors
/// Those of [`lock_days`], and for none.
pub fn some_lock_days(text: &str) -> Result<u32, String> {
    match lock_days(text)? {
        0 => Err("expected at least one day".to_owned()),
        days => Ok(days),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_read_as_people_write_them() {
        for (text, days) in [("30", 30), ("30d", 30), ("4w", 28), ("0", 0), ("1y", 365)] {
            assert_eq!(lock_days(text), Ok(days), "{text}");
        }
        for text in ["", "12h", "1.5d", "-1", "99999999", "99999y"] {
            assert!(lock_days(text).is_err(), "{text}");
        }
        assert!(some_lock_days("0").is_err() && some_lock_days("1").is_ok());
    }
}
