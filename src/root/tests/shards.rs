//! The form of lists, when their shards are merged, and how snapshots are named.

use super::support::*;
use crate::root::shard::{ListRef, decode_shard, encode_shard};
use crate::root::snapshots::*;
use bkfs_chunker::pack::PackName;
use proptest::prelude::*;
use std::sync::Arc;

fn reference(count: u32, sequence: u32) -> ListRef {
    ListRef {
        name: PackName {
            session: 1,
            sequence,
            random: 0,
        },
        count,
        bytes: 0,
    }
}

#[test]
fn merging_rewrites_each_entry_a_few_times() {
    let mut refs: Vec<ListRef> = Vec::new();
    let mut rewritten = 0u64;
    for round in 0..20_000u32 {
        let merged = shards_to_merge(&refs);
        refs.retain(|kept| !merged.contains(kept));
        let count: u32 = merged.iter().map(|shard| shard.count).sum();
        rewritten += u64::from(count);
        refs.push(reference(count + 1, round));
        assert!(refs.len() <= SHARDS_MAX);
    }
    assert_eq!(refs.iter().map(|shard| shard.count).sum::<u32>(), 20_000);
    assert!(rewritten < 20_000 * 7, "{rewritten} entries rewritten");
}

prop_compose! {
    fn entry()(
        name in "[a-z]{1,3}",
        number in 1u16..,
        volume in "[xy]",
        tree in proptest::option::of(any::<[u8; 32]>()),
        commit: [u8; 32],
        seconds in -1_000_000i64..1_000_000,
        nanoseconds in 0i32..1_000_000_000,
        text in ".{0,9}",
        tags in proptest::collection::vec(".{0,9}", 0..3),
        numbers: (u64, u64, u64, u64)
    ) -> SnapshotEntry {
        SnapshotEntry {
            name, number, volume,
            tree: tree.map(bkfs_chunker::id::Id),
            commit: bkfs_chunker::id::Id(commit),
            time: jiff::Timestamp::from_second(seconds).expect("in range")
                + jiff::SignedDuration::from_nanos(i64::from(nanoseconds)),
            host: text.clone(), user: text, tags, files: numbers.0, bytes: numbers.1,
            new_bytes: numbers.2, generation: numbers.3, recovered: numbers.3 % 2 == 1,
            rebuilt: numbers.3 % 3 == 1,
            drill: None,
            origin: None,
        }
    }
}

proptest! {
    #[test]
    fn lists_are_read_back(entries in proptest::collection::vec(entry(), 0..8)) {
        prop_assert_eq!(
            decode_shard::<SnapshotEntry>(&encode_shard(entries.clone())).expect("decodes"),
            entries.clone()
        );
        let trash: Vec<_> = entries
            .into_iter()
            .map(|snapshot| TrashEntry { forgotten: snapshot.time, snapshot })
            .collect();
        prop_assert_eq!(
            decode_shard::<TrashEntry>(&encode_shard(trash.clone())).expect("decodes"),
            trash
        );
    }

    #[test]
    fn arbitrary_lists_do_not_panic(
        bytes: Vec<u8>,
        entries in proptest::collection::vec(entry(), 1..3),
        at: usize,
        value: u8
    ) {
        let _ = decode_shard::<SnapshotEntry>(&bytes);
        let _ = decode_shard::<PackEntry>(&bytes);
        let mut damaged = encode_shard(entries);
        let at = at % damaged.len();
        damaged[at] = value;
        let _ = decode_shard::<SnapshotEntry>(&damaged);
        let _ = decode_shard::<TrashEntry>(&damaged);
    }

    #[test]
    fn resolving_agrees_with_a_sorted_list(
        entries in proptest::collection::vec(entry(), 0..20),
        split in 0usize..20,
        seconds in -1_000_000i64..1_000_000
    ) {
        let split = split.min(entries.len());
        let list = SnapshotList::new(vec![
            Arc::new(entries[..split].to_vec()),
            Arc::new(entries[split..].to_vec()),
        ]);
        for volume in ["x", "y"] {
            let mut sorted: Vec<_> = entries
                .iter()
                .filter(|entry| entry.volume == volume)
                .collect();
            sorted.sort_by_key(|entry| (entry.time, entry.generation));
            prop_assert_eq!(list.of_volume(volume).len(), sorted.len());
            sorted.retain(|entry| !entry.recovered);
            prop_assert_eq!(
                list.latest(volume).map(|entry| entry.time),
                sorted.last().map(|entry| entry.time)
            );
            let at = list.at(volume, time(seconds));
            prop_assert_eq!(
                at.map(|entry| entry.time),
                sorted
                    .iter()
                    .rev()
                    .find(|entry| entry.time <= time(seconds))
                    .map(|entry| entry.time)
            );
        }
    }

    #[test]
    fn references_are_parsed_or_refused(text in ".{0,40}") {
        match SnapshotReference::parse(&text, time(90_000)) {
            Ok(SnapshotReference::Name(name)) =>
                prop_assert!(check_snapshot_name(&name).is_ok() && name == text),
            Ok(SnapshotReference::Latest) => prop_assert_eq!(text, LATEST),
            Ok(SnapshotReference::At(_)) => prop_assert!(text.starts_with('@')),
            Err(_) => {}
        }
    }
}
