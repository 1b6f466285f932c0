//! Which numbers snapshots get in small and in large roots.

use super::support::time;
use crate::root::error::RootError;
use crate::root::forget::numbered_anew;
use crate::root::form::Form;
use crate::root::refusal::Refusal;
use crate::root::snapshots::{NewSnapshot, SnapshotEntry, SnapshotList, TrashEntry, new_entry};
use crate::root::state::{Root, Volume};
use bkfs_chunker::crypto::RepositoryId;
use bkfs_chunker::id::Id;
use std::sync::Arc;

fn root(form: Form) -> Root {
    let mut root = Root::witnessed(RepositoryId([7; 16]), [1; 16]);
    root.form = form;
    root
}

/// Returns snapshots of a volume with these numbers.
fn snapshots(volume: &str, numbers: impl IntoIterator<Item = u16>) -> Vec<SnapshotEntry> {
    let numbered = |number: u16| SnapshotEntry {
        number,
        ..SnapshotEntry::plain(volume, &format!("s{number}"))
    };
    numbers.into_iter().map(numbered).collect()
}

fn trash_of(snapshots: &[SnapshotEntry]) -> Vec<TrashEntry> {
    let trashed = |snapshot: &SnapshotEntry| TrashEntry {
        snapshot: snapshot.clone(),
        forgotten: time(1),
    };
    snapshots.iter().map(trashed).collect()
}

/// Returns the number of a new snapshot of `volume`.
fn number(
    root: &Root,
    kept: &[SnapshotEntry],
    trash: &[SnapshotEntry],
    volume: &str,
) -> Result<u16, RootError> {
    let trash = [Arc::new(trash_of(trash))];
    let kept = SnapshotList::new(vec![Arc::new(kept.to_vec())]);
    let state = Volume {
        commit: Some(Id([1; 32])),
        ..Volume::default()
    };
    let request = NewSnapshot::default();
    let entry = new_entry(root, &kept, &trash, (volume, &state), &request)?;
    Ok(entry.number)
}

#[test]
fn a_large_root_gives_each_volume_all_numbers() {
    let all = snapshots("one", 1..=u16::MAX);
    let is_full = |given: Result<u16, RootError>, what| {
        let full = Refusal::Full { what };
        let hint = full.hint().expect("it says what to do");
        assert!(hint.contains("forget") && hint.contains("mount again"));
        // A large root is made already.
        assert_eq!(hint.contains("upgrade"), what == "snapshots");
        matches!(given, Err(RootError::Refused(why)) if why == full)
    };
    for listed in [(&all[..], &[][..]), (&[], &all)] {
        let (kept, trash) = listed;
        let (small, large) = (root(Form::Small), root(Form::Large));
        assert!(is_full(number(&small, kept, trash, "two"), "snapshots"));
        assert!(is_full(
            number(&large, kept, trash, "one"),
            "snapshots in one volume"
        ));
        assert_eq!(number(&large, kept, trash, "two").expect("free"), 1);
    }
    let (kept, trash) = (snapshots("two", 1..=3), snapshots("two", 4..=4));
    let large = root(Form::Large);
    assert_eq!(number(&large, &kept, &trash, "two").expect("free"), 5);
}

#[test]
fn a_snapshot_that_comes_back_keeps_its_number_if_its_volume_has_it_free() {
    let kept = [Arc::new(snapshots("two", [5]))];
    let mut trashed = trash_of(&snapshots("one", 1..=2));
    trashed.extend(trash_of(&snapshots("two", 1..=1)));
    let trash = [Arc::new(trashed)];
    for (form, volume, number) in [
        (Form::Small, "one", 3),
        (Form::Large, "one", 5),
        (Form::Large, "two", 2),
    ] {
        let back = SnapshotEntry {
            number: 5,
            ..SnapshotEntry::plain(volume, "back")
        };
        let back = numbered_anew(&root(form), back, &kept, &trash);
        assert_eq!(back.expect("numbered").number, number, "{form:?} {volume}");
    }
}
