//! Volumes as users name them.
//!
//! Owns which volumes a repository has: those with an entry in the root, and those of which only
//! snapshots are left, as in a repository that `bkfs copy` filled.

use std::collections::BTreeSet;

use crate::cli::output::{Failure, name_text};
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::refusal::Refusal;
use crate::root::state::NameError;
use crate::root::volumes::is_scratch;

/// The volume of every host that names no other. It may be made without being asked for.
const DEFAULT: &str = "main";

/// Volumes that a message names. Others are only counted.
const SHOWN: usize = 5;

/// What a mount does with its volume.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// It reads the volume.
    Read,
    /// It writes to the volume.
    Write,
    /// It writes to the volume, which may be the first one of the repository.
    WriteFirst,
    /// It writes to the volume, and makes it first if there is none.
    Make,
}

/// Checks that the repository has the volume, or that the mount may make it. A name with a mistake
/// would otherwise show an empty directory.
///
/// # Errors
/// Exit code 1 if there is no such volume; the message names those that there are. The [`Failure`]
/// of the list of snapshots if it cannot be read.
pub async fn check(repository: &Repository, name: &str, kind: Use) -> Result<(), Failure> {
    if kind == Use::Make {
        return refuse_scratch(name);
    }
    if name == DEFAULT && kind != Use::Read {
        return Ok(());
    }
    let mut volumes: BTreeSet<String> = BTreeSet::new();
    volumes.extend(repository.handle.current().root.volumes.keys().cloned());
    if volumes.contains(name) {
        return Ok(());
    }
    let (_, list) = (repository.lists.current_snapshots(&repository.handle)).await?;
    volumes.extend(list.iter().map(|entry| entry.volume.clone()));
    if volumes.contains(name) {
        return Ok(());
    }
    if kind == Use::WriteFirst && volumes.is_empty() {
        return Ok(());
    }
    let why = format!(
        "repository {} has no volume {}",
        repository.url,
        name_text(name.as_bytes())
    );
    let mut hint = there_are(&volumes);
    if kind != Use::Read {
        hint += " Give --create (or -o create) to make this one.";
    }
    Err(Failure::new(why).hint(hint))
}

/// Refuses the names of scratch clones, which end with the session that holds them.
///
/// # Errors
/// Exit code 1.
pub fn refuse_scratch(name: &str) -> Result<(), Failure> {
    match is_scratch(name) {
        true => Err(RootError::from(Refusal::BadName {
            name: name.to_owned(),
            source: NameError::Scratch,
        })
        .into()),
        false => Ok(()),
    }
}

/// Returns a sentence that names volumes.
fn there_are(volumes: &BTreeSet<String>) -> String {
    let names = volumes.iter().map(|name| name_text(name.as_bytes()));
    match volumes.is_empty() {
        true => "It has no volumes yet.".to_owned(),
        false => format!("Its volumes: {}.", some_of(names)),
    }
}

/// Returns the first words about volumes, and how many more there are.
pub fn some_of(words: impl ExactSizeIterator<Item = String>) -> String {
    let count = words.len();
    let mut shown: Vec<String> = words.take(SHOWN).collect();
    if count > SHOWN {
        shown.push(format!("and {} more", count - SHOWN));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_some_volumes_and_counts_the_others() {
        let of = |count: usize| (0..count).map(|number| format!("v{number}")).collect();
        assert_eq!(there_are(&of(0)), "It has no volumes yet.");
        assert_eq!(there_are(&of(2)), "Its volumes: v0, v1.");
        assert_eq!(
            there_are(&of(7)),
            "Its volumes: v0, v1, v2, v3, v4, and 2 more."
        );
    }
}
