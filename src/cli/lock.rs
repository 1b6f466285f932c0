//! `bkfs lock URL [--days N]`

use bkfs_store::lock::{LockMode, LockRule};
use jiff::Timestamp;
use serde_json::json;

use crate::cli::access::{Access, Repository, open_with};
use crate::cli::options::{Global, lock_days};
use crate::cli::output::{Failure, Output};
use crate::cli::runtime::block_on;
use crate::cli::target::target;
use crate::root::error::RootError;
use crate::root::rule;
use crate::root::session::OpenSession;

/// Show or change for how many days the bucket locks packs
///
/// Only for S3, in a bucket created with Object Lock. A mount follows a new rule after it is
/// mounted again; the next bkfs gc extends the locks of what is needed. Fewer days do not shorten
/// existing locks.
#[derive(Debug, clap::Args)]
pub struct LockCommand {
    /// The repository, or a mount of one
    url: String,
    /// Lock what is stored from now on for this many days; 0 for no new locks
    #[arg(
        long,
        value_name = "DAYS",
        value_parser = lock_days
    )]
    days: Option<u32>,
    /// governance or compliance, for a repository that had no locks yet; after that it is fixed
    #[arg(long, value_name = "MODE", requires = "days")]
    mode: Option<LockMode>,
}

/// Shows the rule of locks, or changes it.
///
/// # Errors
/// The [`Failure`] of the repository. Exit code 2 if `--mode` is not the mode that the repository
/// has.
pub fn run(command: LockCommand, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let (url, global) = target(&command.url, global)?;
        let mut access = Access::of_command(&url, &global)?;
        // A change also puts a rule right that the root does not tell of.
        access.accepted.lock_rule = command.days.is_some();
        let repository = open_with(&access).await?;
        let stated = repository.lock;
        let rule = match command.days {
            None => stated,
            Some(days) => {
                let fixed = stated.map(|stated| stated.mode);
                if fixed.is_some() && command.mode.is_some_and(|mode| Some(mode) != fixed) {
                    return Err(Failure::usage(
                        "the lock mode of a repository is fixed, as it is in S3: repeat the \
                         command without --mode",
                    ));
                }
                let mode = fixed.or(command.mode).unwrap_or(LockMode::Governance);
                let rule = LockRule { days, mode };
                change(&repository, rule).await?;
                Some(rule)
            }
        };
        let until = repository.handle.current().root.locked_until_s;
        let until = until.and_then(|until| Timestamp::from_second(until).ok());
        let answer = json!({
            "lock_days": rule.map(|rule| rule.days),
            "lock_mode": rule.map(|rule| rule.mode.to_string()),
            "locked_until": until.map(|until| until.to_string()),
        });
        output.result(&answer, || text(rule, until))
    })
}

/// Replaces the rule in the config and records it in the root, as a session of its own.
async fn change(repository: &Repository, rule: LockRule) -> Result<(), RootError> {
    let (environment, handle) = (&repository.environment, &repository.handle);
    let holder = environment.holder(rule::HOLDER);
    let session = OpenSession::open(handle, holder, None, &*environment.processes).await?;
    let changed = rule::change(handle, session.id(), rule, repository.now()).await;
    if let Err(error) = session.end().await {
        tracing::warn!(
            "could not remove the session of this command from the root: {error}; a later command \
             on this machine removes it"
        );
    }
    changed
}

fn text(rule: Option<LockRule>, until: Option<Timestamp>) -> String {
    let mut text = match rule {
        None => return "no locks".to_owned(),
        Some(LockRule { days: 0, .. }) => "no new locks are added".to_owned(),
        Some(LockRule { days, mode }) => format!("packs are locked for {days} days ({mode})"),
    };
    if let Some(until) = until {
        text += &format!("; the last collection locked what is needed until {until} at least");
    }
    text
}
