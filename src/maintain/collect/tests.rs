//! Tests of the pure parts: marks, and the plan that is made of them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bkfs_chunker::catalog::{ListedCopies, ListedCopy, PackLocation};
use bkfs_chunker::crypto::{Class, HEADER_LEN};
use bkfs_chunker::id::{Kind, Prefix};
use bkfs_chunker::index::PackRecord;
use bkfs_chunker::pack::{FooterBuilder, PackName};
use bkfs_chunker::verify::PackContents;

use super::leaves::{Rule, mark_copies};
use super::marks::Marks;
use super::plan::{CollectionPlan, Effort, plan};

const PACK_BYTES: u64 = 1000;

fn name(sequence: u32) -> PackName {
    PackName {
        session: 1,
        sequence,
        random: 7,
    }
}

/// Returns the entry of a pack that does not exist. `frames` holds the number of blobs of each
/// frame.
fn pack(sequence: u32, class: Class, frames: &[u16]) -> PackContents {
    let kind = match class {
        Class::MetadataPack => Kind::Node,
        _ => Kind::Chunk,
    };
    let mut footer = FooterBuilder::new();
    for (frame, count) in frames.iter().enumerate() {
        let blobs = (0..*count).map(|slot| {
            let mut prefix = [frame as u8; 16];
            prefix[0] = slot as u8;
            (kind, 100, Prefix(prefix))
        });
        footer.push(100, blobs);
    }
    PackContents::from(PackRecord {
        name: name(sequence),
        class,
        length: PACK_BYTES,
        header: [0; HEADER_LEN],
        footer: footer.finish().expect("a footer"),
    })
}

#[test]
fn each_blob_is_needed_once_where_it_lies() {
    let mut marks = Marks::default();
    let metadata = pack(1, Class::MetadataPack, &[3, 2]);
    marks.know(&metadata);
    marks.know(&pack(2, Class::DataPack, &[70, 70]));
    assert!(marks.need(name(1), 1, 1));
    assert!(marks.need(name(1), 1, 1), "it is there, needed or not");
    for nowhere in [(0, 3), (1, 2), (2, 0)] {
        assert!(!marks.need(name(1), nowhere.0, nowhere.1), "{nowhere:?}");
    }
    assert!(!marks.need(name(3), 0, 0), "no mark knows the pack");
    for (frame, slot) in [(0, 69), (1, 0), (1, 69)] {
        assert!(marks.need(name(2), frame, slot));
    }
    marks.know(&metadata);
    let of = |sequence| marks.pack(&name(sequence)).expect("known");
    assert_eq!((of(1).blobs, of(1).reached), (5, 1), "known already");
    assert_eq!((of(2).blobs, of(2).reached), (140, 3));
    let needed = |frame, slot| of(2).needs(frame, slot);
    assert!(needed(0, 69) && needed(1, 0) && needed(1, 69));
    assert!(!needed(0, 68) && !needed(1, 1) && !needed(0, 0) && !needed(1, 70));
    assert_eq!(of(2).needed_bytes(), PACK_BYTES * 3 / 140);
}

#[test]
fn what_is_needed_is_followed_once() {
    let mut marks = Marks::default();
    marks.know(&pack(1, Class::MetadataPack, &[3]));
    marks.know(&pack(2, Class::DataPack, &[3]));
    marks.need(name(2), 0, 0);
    marks.need_all(name(2));
    assert_eq!(marks.next_open(), None, "chunks refer to nothing");
    assert_eq!(marks.pack(&name(2)).expect("known").reached, 3);
    marks.need(name(1), 0, 2);
    let due = |marks: &Marks| [0, 1, 2].map(|slot| marks.is_due(name(1), 0, slot));
    assert_eq!(due(&marks), [false, false, true]);
    assert!(!marks.close(name(1)), "it was not read");
    assert_eq!(marks.next_open(), Some(name(1)));
    assert_eq!(marks.next_open(), Some(name(1)), "until it is closed");
    marks.followed(name(1), 0, 2);
    assert_eq!(due(&marks), [false; 3]);
    assert!(marks.close(name(1)));
    assert_eq!(marks.next_open(), None);
    marks.need_all(name(1));
    assert_eq!(marks.pack(&name(1)).expect("known").reached, 3);
    assert_eq!(marks.next_open(), Some(name(1)), "there is more now");
    assert_eq!(due(&marks), [true, true, false]);
    marks.followed(name(1), 0, 0);
    assert!(!marks.close(name(1)));
    marks.followed(name(1), 0, 1);
    assert!(marks.close(name(1)));
    marks.need_all(name(1));
    assert_eq!(marks.next_open(), None, "nothing new");
}

/// Returns the marks of packs with ten blobs each. Metadata packs 1 to 3 have 0, 9 and 10 needed
/// blobs; data packs 11 to 15 have 0, 2, 8, 9 and 10.
fn marked() -> Marks {
    let mut marks = Marks::default();
    let needed = [(1, 0), (2, 9), (3, 10)];
    let data = [(11, 0), (12, 2), (13, 8), (14, 9), (15, 10)];
    for (sequence, count) in needed.into_iter().chain(data) {
        let class = match sequence {
            ..10 => Class::MetadataPack,
            _ => Class::DataPack,
        };
        marks.know(&pack(sequence, class, &[4, 6]));
        for slot in 0..count {
            match slot {
                ..4 => marks.need(name(sequence), 0, slot),
                _ => marks.need(name(sequence), 1, slot - 4),
            };
        }
    }
    marks
}

fn sequences<'a>(packs: impl IntoIterator<Item = &'a PackName>) -> Vec<u32> {
    packs.into_iter().map(|pack| pack.sequence).collect()
}

fn planned(effort: Effort) -> CollectionPlan {
    plan(&marked(), |_| true, |_| false, BTreeMap::new(), effort)
}

#[test]
fn packs_are_judged_by_what_is_needed_of_them() {
    let made = planned(Effort::default());
    assert_eq!(sequences(&made.dead), [1, 11]);
    assert_eq!(
        sequences(&made.rewritten),
        [2, 12, 13],
        "of metadata any rest, of data what is below nine tenths"
    );
    assert_eq!(made.condemned_bytes, 5 * PACK_BYTES);
    assert_eq!(made.read_bytes, 3 * PACK_BYTES);
    assert_eq!(made.rewritten_bytes, PACK_BYTES * (9 + 2 + 8) / 10);
    assert_eq!(made.live_bytes, 8 * PACK_BYTES);
    assert_eq!(made.candidates().len(), 5);
}

#[test]
fn damage_leaves_with_what_is_not_needed_next_to_it() {
    let mut marks = marked();
    for sequence in [3, 14, 15, 99] {
        marks.note_damage(&name(sequence));
    }
    let effort = Effort {
        threshold: 0.0,
        budget_bytes: 0,
    };
    let made = plan(&marks, |_| true, |_| false, BTreeMap::new(), effort);
    assert_eq!(
        sequences(&made.rewritten),
        [2, 14],
        "what is needed whole stays"
    );
}

#[test]
fn effort_bounds_what_is_done_to_data_and_never_to_metadata() {
    let with = |threshold, budget_bytes| {
        sequences(
            &planned(Effort {
                threshold,
                budget_bytes,
            })
            .rewritten,
        )
    };
    assert_eq!(with(0.0, u64::MAX), [2]);
    assert_eq!(with(0.5, u64::MAX), [2, 12]);
    assert_eq!(with(1.0, u64::MAX), [2, 12, 13, 14]);
    assert_eq!(with(1.0, PACK_BYTES), [2, 12], "the emptiest first");
    assert_eq!(with(1.0, 2 * PACK_BYTES + 1), [2, 12, 13]);
    assert_eq!(with(1.0, 0), [2]);
}

#[test]
fn what_is_own_or_not_live_is_let_alone() {
    let unlisted = BTreeMap::from([(name(21), 50)]);
    let live = |pack: &PackName| pack.sequence != 1 && pack.sequence != 12;
    let own = |pack: &PackName| pack.sequence == 2 || pack.sequence == 11;
    let made = plan(&marked(), live, own, unlisted, Effort::default());
    assert_eq!(sequences(&made.dead), [0; 0]);
    assert_eq!(sequences(&made.rewritten), [13]);
    assert_eq!(sequences(&made.candidates()), [13, 21]);
    assert_eq!(made.condemned_bytes, PACK_BYTES + 50);
    assert!(!made.is_empty() && CollectionPlan::default().is_empty());
}

/// Four chunks. Chunk 0 is in frame 0 of pack 1 and in frame 1 of pack 2, chunk 1 in pack 1 alone,
/// chunk 2 in pack 3 alone, and chunk 3 nowhere.
struct Chunks {
    marks: Marks,
    listed: [ListedCopies; 2],
}

fn copy(asked: u32, pack: u32, frame: u16, slot: u16) -> ListedCopy {
    ListedCopy {
        pack,
        frame,
        slot,
        asked,
    }
}

impl Chunks {
    fn new() -> Self {
        let mut marks = Marks::default();
        for sequence in 1..=3 {
            marks.know(&pack(sequence, Class::DataPack, &[2, 2]));
        }
        let first = ListedCopies {
            packs: vec![name(1), name(3)],
            copies: vec![copy(0, 0, 0, 0), copy(1, 0, 1, 1), copy(2, 1, 0, 1)],
        };
        let second = ListedCopies {
            packs: vec![name(2)],
            copies: vec![copy(0, 0, 1, 0)],
        };
        Self {
            marks,
            listed: [first, second],
        }
    }

    /// Marks the first `count` chunks. Returns the number of the one without a copy.
    fn mark(&mut self, count: u8, live: &[u32], damaged: &[(u32, Option<u16>)]) -> Option<u8> {
        let asked: Arc<[Prefix]> = (0..count).map(|number| Prefix([number; 16])).collect();
        let mut listed = self.listed.clone();
        for index in &mut listed {
            index.copies.retain(|copy| copy.asked < u32::from(count));
        }
        let live: HashSet<PackName> = live.iter().map(|sequence| name(*sequence)).collect();
        let damaged = damaged.iter().map(|(sequence, frame)| PackLocation {
            pack: name(*sequence),
            frame: *frame,
        });
        let quarantine: HashSet<PackLocation> = damaged.collect();
        let rule = Rule {
            live: &live,
            quarantine: &quarantine,
        };
        let missing = mark_copies(&mut self.marks, &asked, &listed, &rule);
        missing.map(|prefix| prefix.0[0])
    }

    fn reached(&self) -> [u32; 3] {
        [1, 2, 3].map(|sequence| self.marks.pack(&name(sequence)).expect("known").reached)
    }
}

#[test]
fn all_live_copies_of_chunks_are_marked() {
    let mut chunks = Chunks::new();
    assert_eq!(chunks.mark(3, &[1, 2, 3], &[]), None);
    assert_eq!(chunks.reached(), [2, 1, 1]);
    let marks = |sequence| chunks.marks.pack(&name(sequence)).expect("known");
    assert!(marks(1).needs(0, 0) && marks(1).needs(1, 1));
    assert!(marks(2).needs(1, 0) && marks(3).needs(0, 1));
    let mut chunks = Chunks::new();
    assert_eq!(chunks.mark(2, &[1, 3], &[]), None);
    assert_eq!(chunks.reached(), [2, 0, 0], "pack 2 is condemned");
}

#[test]
fn a_chunk_without_a_live_copy_is_missing() {
    assert_eq!(Chunks::new().mark(4, &[1, 2, 3], &[]), Some(3));
    assert_eq!(Chunks::new().mark(3, &[1, 2], &[]), Some(2));
    let mut chunks = Chunks::new();
    chunks.listed[0].copies[2].slot = 2;
    assert_eq!(chunks.mark(3, &[1, 2, 3], &[]), Some(2), "no such place");
}

#[test]
fn a_damaged_copy_of_a_chunk_counts_only_if_there_is_no_other() {
    for damaged in [(1, Some(0)), (1, None)] {
        let mut chunks = Chunks::new();
        assert_eq!(chunks.mark(3, &[1, 2, 3], &[damaged]), None);
        assert_eq!(chunks.reached(), [1, 1, 1], "the other copy of chunk 0");
        assert!(chunks.marks.pack(&name(1)).expect("known").needs(1, 1));
    }
    let mut chunks = Chunks::new();
    assert_eq!(chunks.mark(3, &[1, 2, 3], &[(1, Some(1))]), None);
    assert_eq!(chunks.reached(), [2, 1, 1], "another frame");
    let mut chunks = Chunks::new();
    assert_eq!(chunks.mark(3, &[1, 2, 3], &[(1, Some(0)), (2, None)]), None);
    assert_eq!(chunks.reached(), [2, 1, 1], "no copy is good");
    let mut chunks = Chunks::new();
    assert_eq!(chunks.mark(3, &[1, 3], &[(1, Some(0))]), None);
    assert_eq!(chunks.reached(), [2, 0, 1], "the good copy is condemned");
}
