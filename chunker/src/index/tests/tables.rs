//! Tables: they answer as a map does, whatever happens to their bytes.

use super::*;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

type Answers = BTreeMap<Prefix, Vec<Location>>;

fn key() -> TableKey {
    [7; 32].into()
}

fn table_under(key: &TableKey, records: &[PackRecord]) -> Vec<u8> {
    let mut builder = TableBuilder::new();
    for record in records {
        builder.push(record.clone());
    }
    builder.finish(key)
}

fn table(records: &[PackRecord]) -> Vec<u8> {
    table_under(&key(), records)
}

fn random(number: u32) -> Prefix {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&blake3::hash(&number.to_le_bytes()).as_bytes()[..16]);
    Prefix(bytes)
}

/// Returns frames of up to 100 blobs each.
fn frames(prefixes: &[Prefix]) -> Vec<Vec<Prefix>> {
    prefixes.chunks(100).map(<[_]>::to_vec).collect()
}

/// Returns what a table of these packs must answer. They must be in the order of their names.
fn answers(records: &[PackRecord]) -> Answers {
    let mut expected = Answers::new();
    for (number, record) in records.iter().enumerate() {
        let pack = PackNumber(number as u32);
        for blob in record.footer.blobs() {
            let location = Location {
                pack,
                frame: blob.frame,
                slot: blob.slot,
            };
            expected.entry(blob.prefix).or_default().push(location);
        }
    }
    expected
}

/// Returns two packs with 400 blobs: three blocks of entries, and one of fences.
fn small() -> Vec<PackRecord> {
    let prefixes: Vec<Prefix> = (0..400).map(random).collect();
    vec![
        record(1, Class::DataPack, &frames(&prefixes[..150])),
        record(2, Class::MetadataPack, &frames(&prefixes[150..])),
    ]
}

/// Reads each block of a table.
fn read_all<B: ReadAt>(table: &Table<B>, expected: &Answers) -> Result<(), TableError> {
    let mut entries = 0;
    for entry in table.entries() {
        entry?;
        entries += 1;
    }
    assert_eq!(entries, table.entry_count());
    for number in (0..table.pack_count()).map(PackNumber) {
        let pack = table.pack(number)?.expect("is within");
        assert_eq!(table.number_of(&pack.name)?, Some(number));
        let mut frame = 0;
        while table.frame(number, frame)?.is_some() {
            frame += 1;
        }
    }
    for (prefix, locations) in expected.iter().step_by(60) {
        assert_eq!(&table.find(prefix)?, locations);
    }
    Ok(())
}

/// Asserts that a table gives right answers or errors. Returns true if it gives an error.
fn is_right_or_fails<B: ReadAt>(bytes: B, expected: &Answers) -> bool {
    let Ok(table) = Table::open(bytes, key()) else {
        return true;
    };
    let strangers: Vec<Prefix> = (1_000_000..1_000_004).map(random).collect();
    let known = expected.keys().step_by(97);
    for prefix in known.chain(&strangers) {
        let right = expected.get(prefix).cloned().unwrap_or_default();
        let found = table.find(prefix);
        assert!(found.is_err() || found == Ok(right), "{found:?}");
    }
    read_all(&table, expected).is_err()
}

#[test]
fn every_changed_byte_of_a_table_is_detected() {
    let records = small();
    let (whole, expected) = (table(&records), answers(&records));
    assert_eq!(whole.len() / BLOCK_LEN, 12);
    assert!(!is_right_or_fails(whole.as_slice(), &expected));
    let mut changed = whole.clone();
    for at in 0..whole.len() {
        changed[at] ^= 1 << (at % 8);
        let fails = is_right_or_fails(changed.as_slice(), &expected);
        assert!(fails, "byte {at} does not count");
        changed[at] = whole[at];
    }
}

#[test]
fn a_table_cut_short_or_with_more_bytes_does_not_open() {
    let whole = table(&small());
    for length in 0..whole.len() {
        assert!(Table::open(&whole[..length], key()).is_err());
    }
    for more in [1, BLOCK_LEN] {
        let longer = [whole.clone(), vec![0; more]].concat();
        let opened = Table::open(longer.as_slice(), key());
        assert_eq!(opened.err(), Some(TableError::WrongLength));
    }
}

#[test]
fn blocks_that_change_places_are_detected() {
    let records = small();
    let (whole, expected) = (table(&records), answers(&records));
    let blocks = whole.len() / BLOCK_LEN;
    for one in 0..blocks {
        for other in 0..one {
            let mut changed: Vec<&[u8]> = whole.chunks(BLOCK_LEN).collect();
            changed.swap(one, other);
            let changed = changed.concat();
            let fails = is_right_or_fails(changed.as_slice(), &expected);
            // The last blocks are of one filter, and zeros fill some of them.
            assert!(fails || changed == whole, "{one} and {other}");
        }
    }
}

#[test]
fn blocks_of_another_table_are_detected() {
    let records = small();
    let (whole, expected) = (table(&records), answers(&records));
    // The same content for another index object, and another content of the same length.
    let other_name = table_under(&[8; 32].into(), &records);
    let mut moved = records.clone();
    let prefixes: Vec<Prefix> = (500..650).map(random).collect();
    moved[0] = record(1, Class::DataPack, &frames(&prefixes));
    let other_content = table_under(&[8; 32].into(), &moved);
    for other in [other_name, other_content] {
        assert_eq!(other.len(), whole.len());
        let opened = Table::open(other.as_slice(), key());
        assert_eq!(opened.err(), Some(TableError::Checksum { block: 0 }));
        for at in (0..whole.len()).step_by(BLOCK_LEN) {
            let place = at..at + BLOCK_LEN;
            let mut changed = whole.clone();
            changed[place.clone()].copy_from_slice(&other[place]);
            let fails = is_right_or_fails(changed.as_slice(), &expected);
            assert!(fails || changed == whole, "at {at}");
        }
    }
}

#[test]
fn the_key_belongs_to_the_repository_and_the_index_object() {
    use crate::crypto::{Keyring, RepositoryId, Secrets};
    let secrets = |id: u8| Secrets::new([1; 32], [id; 32], [3; 32]);
    let name = |sequence| PackName {
        session: 1,
        sequence,
        random: 1,
    };
    let of = |repository: u8, id: u8, sequence| {
        let repository = RepositoryId([repository; 16]);
        TableKey::new(&Keyring::sealed(repository, secrets(id)), name(sequence))
    };
    let one = of(1, 1, 1);
    assert_eq!(one, of(1, 1, 1));
    assert!(
        [of(2, 1, 1), of(1, 2, 1), of(1, 1, 2)]
            .iter()
            .all(|other| *other != one)
    );
}

#[test]
fn a_table_of_another_version_is_refused() {
    let whole = table(&small());
    // The head of version 2, of which each table had 64 bytes.
    let mut older = whole.clone();
    older[8..12].copy_from_slice(&2u32.to_le_bytes());
    let opened = Table::open(older.as_slice(), key());
    assert_eq!(opened.err(), Some(TableError::OtherVersion));
    let opened = Table::open(&[0u8; BLOCK_LEN][..], key());
    assert_eq!(opened.err(), Some(TableError::NotATable));
}

/// Bytes that others change, and a count of those that were read.
#[derive(Clone)]
struct Shared {
    bytes: Arc<Mutex<Vec<u8>>>,
    length: u64,
    read: Arc<Mutex<usize>>,
}

impl Shared {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            length: bytes.len() as u64,
            bytes: Arc::new(Mutex::new(bytes)),
            read: Arc::default(),
        }
    }

    /// Returns how many bytes were read since the last call.
    fn read(&self) -> usize {
        std::mem::take(&mut *self.read.lock().unwrap())
    }
}

impl ReadAt for Shared {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        *self.read.lock().unwrap() += buffer.len();
        self.bytes
            .lock()
            .unwrap()
            .as_slice()
            .read_at(offset, buffer)
    }
}

#[test]
fn bytes_that_change_while_they_are_in_use_are_detected() {
    let records = small();
    let (whole, expected) = (table(&records), answers(&records));
    let other = table_under(&[8; 32].into(), &records);
    let mut after: Vec<Vec<u8>> = (0..12)
        .map(|blocks| whole[..blocks * BLOCK_LEN].to_vec())
        .collect();
    after.extend([vec![0; whole.len()], other, whole[BLOCK_LEN..].to_vec()]);
    for changed in after {
        let bytes = Shared::new(whole.clone());
        let table = Table::open(bytes.clone(), key()).unwrap();
        // Half of the answers come before the change, so that a part is in memory.
        let (before, behind) = (expected.iter().take(200), expected.iter().skip(200));
        for (prefix, locations) in before {
            assert_eq!(&table.find(prefix).unwrap(), locations);
        }
        *bytes.bytes.lock().unwrap() = changed;
        for (prefix, locations) in behind {
            let found = table.find(prefix);
            assert!(found.is_err() || found.as_ref() == Ok(locations));
        }
        // Of what is kept in memory, only entries are read again.
        let is_gone = bytes.bytes.lock().unwrap().get(BLOCK_LEN..5 * BLOCK_LEN)
            != Some(&whole[BLOCK_LEN..5 * BLOCK_LEN]);
        assert_eq!(
            expected.keys().any(|prefix| table.find(prefix).is_err()),
            is_gone
        );
    }
}

#[test]
fn opening_reads_one_block_however_long_the_table_is() {
    for count in [0, 1, 1_000, 100_000] {
        let prefixes: Vec<Prefix> = (0..count).map(random).collect();
        let records = [record(1, Class::DataPack, &frames(&prefixes))];
        let bytes = Shared::new(table(&records));
        let table = Table::open(bytes.clone(), key()).unwrap();
        assert_eq!(
            (bytes.read(), table.entry_count()),
            (BLOCK_LEN, count.into())
        );
        // A first look-up reads fences, a filter and a block of entries, rarely two.
        if let Some(prefix) = prefixes.first() {
            assert_eq!(table.find(prefix).unwrap().len(), 1);
            assert!(bytes.read() <= 8 * BLOCK_LEN);
        }
        // Fences and filters stay in memory. One fresh prefix in 256 passes a filter.
        let strangers: Vec<Prefix> = (1_000_000..1_010_000).map(random).collect();
        for _ in 0..2 {
            bytes.read();
            assert!(
                strangers
                    .iter()
                    .all(|fresh| !table.contains(fresh).unwrap())
            );
        }
        assert!(bytes.read() <= 100 * BLOCK_LEN, "{count}");
        for prefix in prefixes.iter().take(1_000) {
            assert!(table.contains(prefix).unwrap());
        }
        assert!(bytes.read() <= 1_020 * BLOCK_LEN, "{count}");
    }
}

/// Blobs of several packs lie across the ends of blocks and of filters, and so do prefixes that
/// begin alike.
#[test]
fn equal_prefixes_are_found_across_blocks_and_filters() {
    let mut prefixes: Vec<Prefix> = (0..26_000).map(random).collect();
    prefixes.extend((0..500u16).map(|number| {
        let mut bytes = [9; 16];
        bytes[14..].copy_from_slice(&number.to_be_bytes());
        Prefix(bytes)
    }));
    prefixes.sort();
    let near = |end: usize| prefixes[end.saturating_sub(3)..(end + 3).min(prefixes.len())].to_vec();
    let ends = (0..prefixes.len()).step_by(170).flat_map(near);
    let twice: Vec<Prefix> = ends.collect();
    let often = vec![vec![prefixes[12_239]; 200], vec![prefixes[12_240]; 200]];
    let records = [
        record(1, Class::DataPack, &frames(&prefixes)),
        record(2, Class::DataPack, &frames(&twice)),
        record(3, Class::DataPack, &often),
    ];
    for count in 1..=records.len() {
        let expected = answers(&records[..count]);
        let bytes = table(&records[..count]);
        let opened = Table::open(bytes.as_slice(), key()).unwrap();
        for (prefix, locations) in &expected {
            assert_eq!(&opened.find(prefix).unwrap(), locations);
        }
        for number in 100_000..110_000 {
            assert!(!opened.contains(&random(number)).unwrap());
        }
        let flat = expected
            .iter()
            .flat_map(|(prefix, all)| all.iter().map(|one| (*prefix, *one)));
        assert!(opened.entries().map(Result::unwrap).eq(flat));
        // Strangers among those that begin alike, and behind them.
        let strangers = (400..900u16).map(|number| {
            let mut bytes = [9; 16];
            bytes[13..].copy_from_slice(&[8 + (number % 3) as u8, 1, number as u8]);
            Prefix(bytes)
        });
        for step in [1, 7, 170] {
            let known = expected.keys().copied().step_by(step);
            let mut asked: Vec<Prefix> = known.chain(strangers.clone()).collect();
            asked.sort_unstable();
            asked.dedup();
            finds_all(&opened, &asked);
        }
    }
}

#[test]
fn many_packs_are_found_by_name_and_number() {
    let records: Vec<PackRecord> = (0..1_000)
        .map(|number| record(number, Class::DataPack, &[vec![random(number)], vec![]]))
        .collect();
    let bytes = table(&records);
    let table = Table::open(bytes.as_slice(), key()).unwrap();
    for (number, record) in records.iter().enumerate() {
        let number = PackNumber(number as u32);
        assert_eq!(table.number_of(&record.name).unwrap(), Some(number));
        assert_eq!(table.pack_name(number).unwrap(), Some(record.name));
        assert!(table.frame(number, 1).unwrap().is_some());
        assert_eq!(table.frame(number, 2), Ok(None));
        let absent = PackName {
            random: record.name.random ^ 1,
            ..record.name
        };
        assert_eq!(table.number_of(&absent).unwrap(), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn tables_answer_as_a_map_does(
        records in records(), others in prop::collection::vec(prefix(), 0..20),
    ) {
        let bytes = table(&records);
        let table = Table::open(bytes.as_slice(), key()).unwrap();
        for (number, record) in records.iter().enumerate() {
            let pack = PackNumber(number as u32);
            let entry = table.pack(pack).unwrap().unwrap();
            prop_assert_eq!(entry.name, record.name);
            prop_assert_eq!(entry.class, record.class);
            prop_assert_eq!(entry.length, record.length);
            prop_assert_eq!(entry.header, record.header);
            for frame in record.footer.frames() {
                let location = table.frame(pack, frame.number).unwrap().unwrap();
                prop_assert_eq!(location.offset, frame.offset);
                prop_assert_eq!(location.stored_length, frame.stored_length);
                prop_assert_eq!(location.raw_length, frame.raw_length);
            }
            prop_assert_eq!(table.frame(pack, record.footer.frame_count() as u16), Ok(None));
        }
        prop_assert_eq!(table.pack(PackNumber(records.len() as u32)), Ok(None));
        let expected = answers(&records);
        for (prefix, locations) in &expected {
            prop_assert_eq!(&table.find(prefix).unwrap(), locations);
        }
        for prefix in others {
            prop_assert_eq!(table.contains(&prefix), Ok(expected.contains_key(&prefix)));
        }
        let entries: Vec<_> = table.entries().map(Result::unwrap).collect();
        let flat = expected
            .into_iter()
            .flat_map(|(prefix, all)| all.into_iter().map(move |one| (prefix, one)));
        prop_assert_eq!(entries, flat.collect::<Vec<_>>());
    }

    /// Of bytes that count as this process's own, checksums are not verified.
    #[test]
    fn changed_tables_do_not_panic(
        records in records(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        prefixes in prop::collection::vec(prefix(), 1..20),
    ) {
        let mut bytes = table(&records);
        for (at, with) in changes {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        let Ok(table) = Table::open(OwnMemory(bytes), key()) else {
            return Ok(());
        };
        for prefix in prefixes {
            for location in table.find(&prefix).unwrap_or_default() {
                let _ = (table.pack(location.pack), table.frame(location.pack, location.frame));
            }
        }
        let _ = table.entries().count();
    }
}

/// Returns what a look-up of many prefixes finds.
fn find_all<B: ReadAt>(table: &Table<B>, asked: &[Prefix]) -> Answers {
    let mut found = Answers::new();
    let mut each = |at: usize, location| found.entry(asked[at]).or_default().push(location);
    table.find_all(asked, &mut each).expect("it is whole");
    found
}

/// Asserts that a look-up of many prefixes answers as many look-ups of one do.
fn finds_all<B: ReadAt>(table: &Table<B>, asked: &[Prefix]) {
    let mut found = find_all(table, asked);
    for prefix in asked {
        let one = table.find(prefix).expect("it is whole");
        assert_eq!(found.remove(prefix).unwrap_or_default(), one);
    }
    assert!(found.is_empty());
}

/// Some blobs are in so many packs that their entries fill several blocks.
#[test]
fn many_prefixes_are_found_like_one() {
    let everywhere: Vec<Prefix> = (0..3).map(|number| random(number * 500)).collect();
    let packs = (0..1_000).map(|sequence| {
        let own = random(10_000 + sequence);
        let frame = [&everywhere[..], &[own]].concat();
        record(sequence, Class::DataPack, &[frame])
    });
    let records: Vec<_> = packs.collect();
    let bytes = table(&records);
    let table_of_all = Table::open(bytes.as_slice(), key()).expect("opens");
    let mut asked: Vec<Prefix> = answers(&records).into_keys().collect();
    finds_all(&table_of_all, &asked);
    asked.extend((500_000..505_000).map(random));
    asked.sort_unstable();
    for step in [1, 2, 13, 500, 5_999] {
        let some: Vec<Prefix> = asked.iter().copied().step_by(step).collect();
        finds_all(&table_of_all, &some);
    }
    let is_everywhere = |prefix: &Prefix| everywhere.contains(prefix);
    let (often, _): (Vec<_>, Vec<_>) = asked.iter().copied().partition(is_everywhere);
    finds_all(&table_of_all, &often);
    finds_all(&table_of_all, &[]);
    let empty = table(&[]);
    finds_all(
        &Table::open(empty.as_slice(), key()).expect("opens"),
        &asked,
    );
}

#[test]
fn many_prefixes_read_each_block_once() {
    // More blocks than one block of fences has.
    let prefixes: Vec<Prefix> = (0..100_000).map(random).collect();
    let bytes = Shared::new(table(&[record(1, Class::DataPack, &frames(&prefixes))]));
    let table = Table::open(bytes.clone(), key()).expect("opens");
    let mut asked = prefixes;
    asked.sort_unstable();
    // The first time, fences as well.
    assert_eq!(find_all(&table, &asked).len(), asked.len());
    bytes.read();
    assert_eq!(find_all(&table, &asked).len(), asked.len());
    assert_eq!(bytes.read(), 100_000_usize.div_ceil(170) * BLOCK_LEN);
    // Three neighbours are in one block or two, and the block after them may go on with the last.
    assert_eq!(find_all(&table, &asked[7_000..7_003]).len(), 3);
    assert!(bytes.read() <= 3 * BLOCK_LEN);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_prefixes_are_found_like_one(
        records in records(), strangers in prop::collection::vec(prefix(), 0..40), step in 1..5_usize,
    ) {
        let bytes = table(&records);
        let table = Table::open(bytes.as_slice(), key()).unwrap();
        let known = answers(&records).into_keys().step_by(step);
        let mut asked: Vec<Prefix> = known.chain(strangers).collect();
        asked.sort_unstable();
        asked.dedup();
        finds_all(&table, &asked);
    }
}
