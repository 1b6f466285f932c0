//! Snapshots as users name them, and what other volumes hold when there is none.
//!
//! Owns the advice that follows a snapshot that was not found. Does not own the list
//! (`root::snapshots`).

use std::collections::BTreeMap;

use crate::cli::options::Global;
use crate::cli::output::{Failure, name_text};
use crate::cli::volumes::some_of;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::snapshots::{SnapshotEntry, SnapshotList, SnapshotReference};
use crate::volume::view::View;

/// Returns the snapshot of the volume that `name` means, ready to be read.
///
/// # Errors
/// The [`Failure`] of the repository. If there is no such snapshot, its hint says which other
/// volumes hold some.
pub async fn snapshot(
    repository: &Repository,
    global: &Global,
    name: &str,
) -> Result<(SnapshotEntry, View), Failure> {
    let list = repository.snapshots().await?;
    let reference = SnapshotReference::parse(name, repository.now())?;
    let entry = resolve(&list, &global.volume, &reference)?.clone();
    let view = repository.view(&entry).await?;
    Ok((entry, view))
}

/// Returns the snapshot in `list` that `reference` means.
///
/// # Errors
/// Those of [`snapshot`].
pub fn resolve<'a>(
    list: &'a SnapshotList,
    volume: &str,
    reference: &SnapshotReference,
) -> Result<&'a SnapshotEntry, Failure> {
    list.resolve(volume, reference)
        .map_err(|error| not_found(error, list, volume))
}

/// Returns the failure of a snapshot that does not exist, with advice.
pub fn not_found(error: RootError, list: &SnapshotList, volume: &str) -> Failure {
    let named = match &error {
        RootError::NoSnapshot { name, .. } => Some(name.clone()),
        _ => None,
    };
    let failure = Failure::from(error);
    let Some(name) = named else { return failure };
    let has_some = list.iter().any(|entry| entry.volume == volume);
    match elsewhere(list, volume, Some(&name)).or_else(|| elsewhere(list, volume, None)) {
        Some(others) => failure.hint(others),
        None if has_some => failure.hint("bkfs snapshots lists the snapshots of a volume."),
        None => failure.hint("There are no snapshots yet: bkfs snapshot makes one of a mount."),
    }
}

/// Returns a line that says which volumes other than `volume` have snapshots, or a snapshot of this
/// name. None if there are none.
pub fn elsewhere(list: &SnapshotList, volume: &str, name: Option<&str>) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let others = list.iter().filter(|entry| entry.volume != volume);
    for entry in others.filter(|entry| name.is_none_or(|name| entry.name == name)) {
        *counts.entry(&entry.volume).or_default() += 1;
    }
    let first = counts.keys().next()?;
    let example = format!("--volume {}", name_text(first.as_bytes()));
    let volumes = some_of(counts.iter().map(|(other, count)| {
        let other = name_text(other.as_bytes());
        match name {
            Some(_) => other,
            None => format!("{other} ({count})"),
        }
    }));
    Some(match name {
        Some(_) => {
            format!("Other volumes have a snapshot of that name: {volumes}; give {example}.")
        }
        None => format!("Other volumes have snapshots: {volumes}; give {example}."),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn list(entries: &[(&str, &str)]) -> SnapshotList {
        let entries = entries
            .iter()
            .map(|(volume, name)| SnapshotEntry::plain(volume, name));
        SnapshotList::new(vec![Arc::new(entries.collect())])
    }

    #[test]
    fn other_volumes_are_named_with_their_counts() {
        let some = list(&[
            ("streams", "a"),
            ("streams", "b"),
            ("db", "a"),
            ("main", "c"),
        ]);
        assert_eq!(
            elsewhere(&some, "main", None).unwrap(),
            "Other volumes have snapshots: db (1), streams (2); give --volume db."
        );
        assert_eq!(
            elsewhere(&some, "main", Some("b")).unwrap(),
            "Other volumes have a snapshot of that name: streams; give --volume streams."
        );
        assert_eq!(elsewhere(&some, "main", Some("c")), None);
        assert_eq!(elsewhere(&list(&[("main", "c")]), "main", None), None);
        let names: Vec<String> = (0..7).map(|number| format!("v{number}")).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "a")).collect();
        let told = elsewhere(&list(&many), "main", None).unwrap();
        assert!(
            told.contains("v4 (1), and 2 more; give --volume v0"),
            "{told}"
        );
    }

    #[test]
    fn a_snapshot_that_is_not_there_leads_to_the_next_command() {
        let hint = |entries: &[(&str, &str)], name: &str| {
            let list = list(entries);
            let now = jiff::Timestamp::UNIX_EPOCH;
            let reference = SnapshotReference::parse(name, now).unwrap();
            resolve(&list, "main", &reference)
                .unwrap_err()
                .hint
                .unwrap()
        };
        assert!(hint(&[("db", "a")], "a").contains("of that name: db"));
        assert!(hint(&[("db", "a")], "latest").contains("db (1)"));
        assert!(hint(&[("main", "b")], "a").contains("bkfs snapshots"));
        assert!(hint(&[], "latest").contains("no snapshots yet"));
    }
}
