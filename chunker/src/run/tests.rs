//! Runs as they are written and read: every record is found, no other one is, and no changed byte
//! passes.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;

use super::directory::FencePart;
use super::writer::Shape;
use super::*;
use crate::codec::{Decoder, Effort};
use crate::crypto::{Class, Features, HEADER_LEN, Keyring, RepositoryId, Secrets};
use crate::id::{Kind, Prefix};
use crate::pack::PackName;

const KEY: &str = "runs/0000000000000001-00000001-00000001";

fn keyring(repository: u8) -> Keyring {
    let secrets = Secrets::new([1; 32], [2; 32], [3; 32]);
    Keyring::sealed(RepositoryId([repository; 16]), secrets)
}

fn name(number: u64) -> PackName {
    PackName {
        session: number / 7,
        sequence: (number % 7) as u32,
        random: (number as u32).wrapping_mul(0x9E37_79B1),
    }
}

fn pack(number: u64) -> PackFrames {
    let frames: Vec<u32> = (0..number % 900)
        .map(|frame| 100_000 + frame as u32)
        .collect();
    let stored: u64 = frames.iter().map(|length| u64::from(*length)).sum();
    PackFrames {
        name: name(number),
        class: Class::DataPack,
        length: 1000 + stored,
        header: [number as u8; HEADER_LEN],
        frames,
    }
}

fn prefix(number: u64) -> Prefix {
    let mut bytes = [0; Prefix::LEN];
    bytes.copy_from_slice(&blake3::hash(&number.to_le_bytes()).as_bytes()[..Prefix::LEN]);
    Prefix(bytes)
}

fn record(number: u64, packs: u32) -> Record {
    Record {
        prefix: prefix(number),
        pack: (number / 3) as u32 % packs,
        frame: (number % 600) as u16,
        slot: (number % 4) as u16,
        kind: Kind::Chunk,
    }
}

fn everything() -> std::ops::RangeInclusive<Prefix> {
    Prefix([0; 16])..=Prefix([0xff; 16])
}

/// A run in memory, and what it was made of.
struct Made {
    bytes: Vec<u8>,
    records: Vec<Record>,
    packs: Vec<PackFrames>,
}

fn make(records: Vec<Record>, packs: u64, shape: Shape) -> Made {
    let sealer = keyring(1).object_sealer(Class::Run, KEY, Features::NONE, [9; 32]);
    let names = (0..packs).map(name);
    let effort = (Effort::Level(1), shape);
    let mut writer = RunWriter::with_shape(sealer, Class::DataPack, everything(), names, effort);
    let mut records = records;
    records.sort_unstable();
    records.dedup();
    let mut bytes = Vec::new();
    for record in &records {
        writer.push(*record).expect("in order");
        bytes.extend(writer.take());
    }
    let mut packs: Vec<PackFrames> = (0..packs).map(pack).collect();
    packs.sort_by_key(|pack| PackFrames::place_of(&pack.name));
    for pack in &packs {
        writer.push_pack(pack).expect("in order");
    }
    writer.finish().expect("small");
    bytes.extend(writer.take());
    Made {
        bytes,
        records,
        packs,
    }
}

fn part(bytes: &[u8], range: Range<u64>) -> &[u8] {
    &bytes[range.start as usize..range.end as usize]
}

/// Opens the directory of a run, as a reader of its last bytes does.
fn open(bytes: &[u8], repository: u8) -> Result<Directory, RunDamage> {
    let (header, _) = bytes.split_first_chunk().ok_or(SHORT)?;
    let opener = keyring(repository).object_opener(Class::Run, KEY, header)?;
    let (before, trailer) = bytes.split_last_chunk().ok_or(SHORT)?;
    let trailer = Trailer::decode(trailer)?;
    let start = before.len().checked_sub(trailer.directory_length as usize);
    let sealed = &before[start.ok_or(SHORT)?..];
    Directory::open(
        opener,
        &trailer,
        sealed,
        bytes.len() as u64,
        &mut Decoder::new(),
    )
}

/// Returns the records of a prefix, and the number of blocks that were read for that.
fn look_up(bytes: &[u8], prefix: &Prefix) -> Result<(Vec<Record>, usize), RunDamage> {
    let directory = open(bytes, 1)?;
    let decoder = &mut Decoder::new();
    let (mut found, mut blocks) = (Vec::new(), 0);
    for number in directory.fences_of(prefix) {
        let range = directory.range(Section::Fences(number)).expect("there");
        let fences = directory.open_fences(number, part(bytes, range), decoder)?;
        for block in fences.blocks_of(prefix) {
            let (section, range) = directory
                .block_range(number, &fences, block)
                .expect("there");
            let block = directory.open_block(section, part(bytes, range), decoder)?;
            found.extend_from_slice(block.find(prefix));
            blocks += 1;
        }
    }
    Ok((found, blocks))
}

/// The records, names and pack records of a run.
type Contained = (Vec<Record>, Vec<PackName>, Vec<PackFrames>);

/// Reads all that a run holds.
fn read(bytes: &[u8]) -> Result<Contained, RunDamage> {
    let directory = open(bytes, 1)?;
    let decoder = &mut Decoder::new();
    let (mut records, mut names, mut packs) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..directory.fences_count() {
        let range = directory.range(Section::Fences(number)).expect("there");
        let fences = directory.open_fences(number, part(bytes, range), decoder)?;
        for block in 0..fences.count() {
            let (section, range) = directory
                .block_range(number, &fences, block)
                .expect("there");
            let block = directory.open_block(section, part(bytes, range), decoder)?;
            records.extend_from_slice(block.records());
        }
    }
    for number in 0..directory.names_count() {
        let range = directory.range(Section::Names(number)).expect("there");
        let part = directory.open_names(number, part(bytes, range), decoder)?;
        names.extend_from_slice(part.names());
    }
    for number in 0..directory.pack_frames_count() {
        let range = directory.range(Section::PackFrames(number)).expect("there");
        let part = directory.open_pack_frames(number, part(bytes, range), decoder)?;
        packs.extend_from_slice(part.packs());
    }
    for number in 0..directory.filters().len() as u32 {
        let range = directory.range(Section::Filter(number)).expect("there");
        directory.open_filter(number, part(bytes, range))?;
    }
    Ok((records, names, packs))
}

const SMALL: Shape = Shape {
    box_bytes: 400,
    blocks_per_fence: 8,
};

fn small() -> Made {
    make(
        (0..3000).map(|number| record(number, 50)).collect(),
        50,
        SMALL,
    )
}

#[test]
fn what_was_written_is_read() {
    let made = small();
    let (records, names, packs) = read(&made.bytes).expect("whole");
    assert_eq!(records, made.records);
    assert_eq!(packs, made.packs);
    let mut expected: Vec<PackName> = (0..50).map(name).collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let directory = open(&made.bytes, 1).expect("whole");
    assert!(directory.fences_count() > 10 && directory.pack_frames_count() > 3);
    assert_eq!(
        (directory.record_count(), directory.pack_count()),
        (3000, 50)
    );
}

#[test]
fn a_look_up_reads_one_block() {
    let made = small();
    for record in made.records.iter().step_by(7) {
        let (found, blocks) = look_up(&made.bytes, &record.prefix).expect("whole");
        assert_eq!(found, [*record]);
        assert!(blocks <= 2, "{blocks} blocks");
    }
    for number in 3000..3200 {
        let (found, blocks) = look_up(&made.bytes, &prefix(number)).expect("whole");
        assert!(found.is_empty() && blocks <= 1, "{blocks} blocks");
    }
}

/// Records of prefixes that begin alike fill several blocks and groups.
#[test]
fn prefixes_that_begin_alike_are_all_found() {
    let alike = |last: u64| {
        let mut bytes = [5; Prefix::LEN];
        bytes[8..].copy_from_slice(&last.to_be_bytes());
        Prefix(bytes)
    };
    let records = (0..1000).map(|number| Record {
        prefix: alike(number / 2),
        ..record(number, 3)
    });
    let made = make(records.collect(), 3, SMALL);
    for number in 0..500 {
        let (found, _) = look_up(&made.bytes, &alike(number)).expect("whole");
        let expected = made
            .records
            .iter()
            .filter(|record| record.prefix == alike(number));
        assert!(found.iter().eq(expected), "{number}");
    }
}

#[test]
fn the_record_of_a_pack_is_found_by_its_name() {
    let made = small();
    let directory = open(&made.bytes, 1).expect("whole");
    for expected in &made.packs {
        let boxes = directory.pack_frames_of(&expected.name);
        assert!(boxes.len() <= 2);
        let found = boxes.filter_map(|number| {
            let range = directory.range(Section::PackFrames(number)).expect("there");
            let sealed = part(&made.bytes, range);
            let packs = directory.open_pack_frames(number, sealed, &mut Decoder::new());
            packs.expect("whole").find(&expected.name).cloned()
        });
        assert!(found.eq([expected.clone()]));
    }
    for record in &made.records {
        let (section, at) = directory.name_of(record.pack);
        let Section::Names(number) = section else {
            panic!("{section:?}")
        };
        let range = directory.range(section).expect("there");
        let names = directory.open_names(number, part(&made.bytes, range), &mut Decoder::new());
        assert!(names.expect("whole").names().get(at).is_some());
    }
}

/// A reader that fetches the filters from one level on knows of all prefixes of these levels.
#[test]
fn filters_know_the_prefixes_of_their_levels() {
    let shape = Shape {
        box_bytes: 64 << 10,
        blocks_per_fence: 8,
    };
    let made = make(
        (0..60_000).map(|number| record(number, 50)).collect(),
        50,
        shape,
    );
    let directory = open(&made.bytes, 1).expect("whole");
    let mut filters = BTreeMap::new();
    let mut ends = Vec::new();
    for (number, (level, fences)) in (0..).zip(directory.filters()) {
        let range = directory.range(Section::Filter(number)).expect("there");
        let filter = directory.open_filter(number, part(&made.bytes, range.clone()));
        filters.insert((level, fences), filter.expect("whole"));
        ends.push(range);
    }
    assert!(ends.windows(2).all(|pair| pair[0].end == pair[1].start));
    let may_be_there = |prefix: &Prefix| {
        let level = LevelFilter::level_of(prefix);
        let mut fences = directory.fences_of(prefix);
        fences.any(|fences| {
            let filter = filters.get(&(level, fences));
            filter.is_some_and(|filter| filter.lets_through(prefix))
        })
    };
    assert!(
        made.records
            .iter()
            .all(|record| may_be_there(&record.prefix))
    );
    let strangers = (60_000..160_000).filter(|number| may_be_there(&prefix(*number)));
    // One in 65,536 is expected, so about 1.5.
    assert!(strangers.count() < 20);
    let bytes = ends.last().expect("filters").end - ends[0].start;
    let bits = bytes as f64 * 8.0 / 60_000.0;
    assert!(bits < 22.0, "{bits} bits for each prefix");
}

/// A billion records must not take more than about 17 GB.
#[test]
fn a_record_takes_few_bytes() {
    let records = (0..100_000).map(|number| record(number, 2000)).collect();
    let made = make(records, 2000, Shape::default());
    let directory = open(&made.bytes, 1).expect("whole");
    let end = directory
        .range(Section::PackFrames(0))
        .expect("there")
        .start;
    let bytes = (end - HEADER_LEN as u64) as f64 / 100_000.0;
    assert!(bytes < 19.0, "{bytes} bytes for each record");
}

#[test]
fn every_changed_byte_and_every_cut_is_noticed() {
    let made = make((0..60).map(|number| record(number, 4)).collect(), 4, SMALL);
    let whole = read(&made.bytes).expect("whole");
    for at in 0..made.bytes.len() {
        let mut changed = made.bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(read(&changed).is_err(), "byte {at}");
        assert!(read(&made.bytes[..at]).is_err(), "{at} bytes");
    }
    assert_eq!(read(&made.bytes).expect("whole"), whole);
    assert!(open(&made.bytes, 2).is_err(), "of another repository");
}

/// Boxes of one run are bound to their numbers.
#[test]
fn parts_that_change_places_are_noticed() {
    // Equal lengths, so that only the contents are at the wrong place.
    let made = make(
        (0..3000).map(|number| record(number, 50)).collect(),
        50,
        SMALL,
    );
    let directory = open(&made.bytes, 1).expect("whole");
    let decoder = &mut Decoder::new();
    let range = |number| directory.range(Section::Fences(number)).expect("there");
    let (one, other) = (range(0), range(1));
    assert!(
        directory
            .open_fences(0, part(&made.bytes, other), decoder)
            .is_err()
    );
    assert!(
        directory
            .open_fences(1, part(&made.bytes, one.clone()), decoder)
            .is_err()
    );
    let fences = directory
        .open_fences(0, part(&made.bytes, one), decoder)
        .expect("whole");
    let (_, first) = directory.block_range(0, &fences, 0).expect("there");
    let (second, _) = directory.block_range(0, &fences, 1).expect("there");
    assert!(
        directory
            .open_block(second, part(&made.bytes, first), decoder)
            .is_err()
    );
}

#[test]
fn what_does_not_belong_into_a_run_is_refused() {
    let sealer = keyring(1).object_sealer(Class::Run, KEY, Features::NONE, [9; 32]);
    let range = prefix(1).min(prefix(2))..=prefix(1).max(prefix(2));
    let names = (0..5).map(name);
    let mut writer = RunWriter::new(
        sealer,
        Class::DataPack,
        range.clone(),
        names,
        Effort::Level(1),
    );
    let at = |prefix, pack| Record {
        prefix,
        pack,
        ..record(0, 1)
    };
    let (low, high) = (*range.start(), *range.end());
    assert_eq!(writer.push(at(Prefix([0; 16]), 0)), Err(RunError::Foreign));
    assert_eq!(
        writer.push(at(Prefix([0xff; 16]), 0)),
        Err(RunError::Foreign)
    );
    assert_eq!(writer.push(at(low, 5)), Err(RunError::Foreign));
    writer.push(at(high, 0)).expect("the last prefix");
    assert_eq!(writer.push(at(low, 0)), Err(RunError::Order));
    assert_eq!(writer.push(at(high, 0)), Err(RunError::Order), "twice");
    let inside = (0..)
        .map(pack)
        .find(|pack| range.contains(&PackFrames::place_of(&pack.name)));
    let inside = inside.expect("one");
    let metadata = PackFrames {
        class: Class::MetadataPack,
        ..inside.clone()
    };
    assert_eq!(writer.push_pack(&metadata), Err(RunError::Foreign));
    writer.push_pack(&inside).expect("inside");
    assert_eq!(writer.push_pack(&inside), Err(RunError::Order), "twice");
    assert_eq!(writer.push(at(high, 1)), Err(RunError::Order), "too late");
}

#[test]
fn an_empty_run_is_read() {
    let made = make(Vec::new(), 0, Shape::default());
    assert_eq!(read(&made.bytes).expect("whole"), (vec![], vec![], vec![]));
    let (found, blocks) = look_up(&made.bytes, &prefix(1)).expect("whole");
    assert!(found.is_empty() && blocks == 0);
}

/// A party with the password can seal anything. What is read is bounded all the same.
#[test]
fn forged_parts_are_bounded() {
    let block =
        |records: usize| [&(records as u32).to_le_bytes()[..], &vec![0; records * 25]].concat();
    assert!(Block::decode(&block(0)).is_err(), "no records");
    let fences = |length: u32| Fences::decode(&Fences::encode(&[(1, 100), (2, length)]));
    assert!(fences(BLOCK_RAW_MAX).is_ok() && fences(BLOCK_RAW_MAX + 1000).is_err());
    let trailer = |directory_length| {
        let trailer = Trailer {
            directory_length,
            fences_length: 1,
        };
        Trailer::decode(&trailer.encode())
    };
    assert!(trailer(DIRECTORY_RAW_MAX).is_ok() && trailer(DIRECTORY_RAW_MAX + 1000).is_err());
    let group = |blocks| FencePart {
        head: 1,
        blocks,
        blocks_length: 1,
        length: 1,
    };
    let contents = |groups: usize, packs: u32| {
        let contents = Contents {
            class: Class::DataPack,
            range: everything(),
            records: 1,
            packs,
            fences: vec![group(1024); groups],
            pack_parts: Vec::new(),
            names: vec![1; (packs as usize).div_ceil(4096)],
            filters: Vec::new(),
        };
        Contents::decode(&contents.encode())
    };
    assert!(contents(64, PACKS_MAX).is_ok());
    assert!(contents(65, 1).is_err(), "more blocks than a run has");
    assert!(
        contents(1, PACKS_MAX + 1).is_err(),
        "more packs than a run names"
    );
}

/// A block that decodes to more than a block has.
#[test]
fn a_block_of_too_many_records_is_refused() {
    let records = |count| {
        (0..count)
            .map(|number| record(number, 9))
            .collect::<Vec<_>>()
    };
    for count in [2000, 6000] {
        let shape = Shape {
            box_bytes: count as usize * 25,
            blocks_per_fence: 1024,
        };
        let outcome = read(&make(records(count), 9, shape).bytes);
        assert_eq!(outcome.is_ok(), count == 2000, "{count}");
    }
}

/// The planes of a block, byte by byte.
#[test]
fn a_block_has_the_documented_form() {
    let records = [1, 2].map(|n: u8| Record {
        prefix: Prefix([n; 16]),
        pack: 0x0403_0201,
        frame: 0x0605,
        slot: 0x0807,
        kind: Kind::Chunk,
    });
    let mut expected = vec![2, 0, 0, 0];
    expected.extend([1, 2].repeat(16));
    for byte in 1..=8 {
        expected.extend([byte, byte]);
    }
    expected.extend([1, 1]);
    assert_eq!(Block::encode(&records), expected);
}

fn any_record() -> impl Strategy<Value = Record> {
    let kind = (0..4usize).prop_map(|kind| Kind::ALL[kind]);
    let bytes = prop_oneof![any::<[u8; 16]>(), (0..4u8).prop_map(|byte| [byte; 16])];
    (bytes, 0..9u32, any::<u16>(), any::<u16>(), kind).prop_map(
        |(bytes, pack, frame, slot, kind)| Record {
            prefix: Prefix(bytes),
            pack,
            frame,
            slot,
            kind,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_records_are_read_and_found(
        records in proptest::collection::vec(any_record(), 0..200),
        box_bytes in 1..600usize,
        blocks_per_fence in 1..5usize,
    ) {
        let made = make(records, 9, Shape { box_bytes, blocks_per_fence });
        let (read, ..) = read(&made.bytes).expect("whole");
        prop_assert_eq!(&read, &made.records);
        for record in &made.records {
            let (found, _) = look_up(&made.bytes, &record.prefix).expect("whole");
            let all = made.records.iter().filter(|other| other.prefix == record.prefix);
            prop_assert!(found.iter().eq(all));
        }
    }
}
