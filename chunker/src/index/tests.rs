use super::*;
use crate::codec::{Decoder, Effort, Encoder};
use crate::crypto::{Class, HEADER_LEN};
use crate::id::{Kind, Prefix};
use crate::pack::{FooterBuilder, PackName};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Returns a pack whose frames hold blobs with these prefixes.
fn record(sequence: u32, class: Class, frames: &[Vec<Prefix>]) -> PackRecord {
    let mut footer = FooterBuilder::new();
    for (number, prefixes) in frames.iter().enumerate() {
        let blob = |prefix: &Prefix| (Kind::Chunk, number as u32 + 1, *prefix);
        footer.push(33 + number as u32 % 2, prefixes.iter().map(blob));
    }
    let footer = footer.finish().unwrap();
    PackRecord {
        name: PackName {
            session: 7,
            sequence,
            random: sequence.wrapping_mul(0x9e37_79b9),
        },
        class,
        length: footer.pack_length(100),
        header: [sequence as u8; HEADER_LEN],
        footer,
    }
}

fn prefix() -> impl Strategy<Value = Prefix> {
    // Mostly random prefixes, and a few fixed ones, the first and the last included, so that some
    // blobs are in several packs.
    prop_oneof![
        any::<[u8; 16]>().prop_map(Prefix),
        (0..20u8).prop_map(|byte| Prefix([byte; 16])),
        Just(Prefix([0xff; 16])),
        Just(Prefix([0; 16])),
    ]
}

fn records() -> impl Strategy<Value = Vec<PackRecord>> {
    let frames = prop::collection::vec(prop::collection::vec(prefix(), 0..30), 0..6);
    prop::collection::vec((any::<bool>(), frames), 0..6).prop_map(|packs| {
        let class = |metadata| {
            if metadata {
                Class::MetadataPack
            } else {
                Class::DataPack
            }
        };
        let of = |(sequence, (metadata, frames)): (usize, (bool, Vec<Vec<Prefix>>))| {
            record(sequence as u32, class(metadata), &frames)
        };
        packs.into_iter().enumerate().map(of).collect()
    })
}

fn table(records: &[PackRecord]) -> Vec<u8> {
    let mut builder = TableBuilder::new();
    for record in records {
        builder.push(record.clone());
    }
    builder.finish()
}

fn encode_all(records: &[PackRecord]) -> Vec<u8> {
    encode(&mut records.to_vec(), &mut Encoder::new(), Effort::Level(1)).unwrap()
}

#[test]
fn a_pack_is_in_an_index_object_once() {
    let one = record(1, Class::DataPack, &[]);
    let mut twice = [one.clone(), one];
    let encoded = encode(&mut twice, &mut Encoder::new(), Effort::None);
    assert!(matches!(encoded, Err(IndexError::Inconsistent(_))));
}

#[test]
fn an_index_object_has_a_bound() {
    let frame: Vec<Prefix> = (0..60_000u32)
        .map(|number| Prefix(u128::from(number).to_le_bytes()))
        .collect();
    let frames = vec![frame; 8];
    let mut records: Vec<_> = (0..7)
        .map(|number| record(number, Class::DataPack, &frames))
        .collect();
    assert!(encoded_length(&records) > u64::from(INDEX_RAW_MAX));
    let encoded = encode(&mut records, &mut Encoder::new(), Effort::None);
    assert!(matches!(encoded, Err(IndexError::TooLarge { .. })));
    assert!(encode(&mut records[..6], &mut Encoder::new(), Effort::None).is_ok());
}

#[test]
fn hostile_records_are_refused() {
    let record = record(1, Class::DataPack, &[vec![Prefix([1; 16])]]);
    let refused = |change: &dyn Fn(&mut PackRecord)| {
        let mut changed = record.clone();
        change(&mut changed);
        decode(&encode_all(&[changed]), &mut Decoder::new()).is_err()
    };
    assert!(!refused(&|_| ()));
    assert!(refused(&|record| record.class = Class::Index));
    assert!(refused(&|record| record.length = u64::MAX));
    assert!(refused(
        &|record| record.length = record.footer.pack_length(27)
    ));
    let mut raw = encode(&mut [record], &mut Encoder::new(), Effort::None).unwrap();
    // A count of more records than the payload holds.
    raw[5] = 0xff;
    assert!(decode(&raw, &mut Decoder::new()).is_err());
    raw[5..9].fill(0xff);
    assert!(decode(&raw, &mut Decoder::new()).is_err());
    raw[5..9].fill(0);
    assert!(
        decode(&raw, &mut Decoder::new()).is_err(),
        "bytes that belong to no record"
    );
}

#[test]
fn a_table_of_many_blobs_finds_them_all() {
    let prefix = |number: u32| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&blake3::hash(&number.to_le_bytes()).as_bytes()[..16]);
        Prefix(bytes)
    };
    let frames: Vec<Vec<Prefix>> = (0..100)
        .map(|frame| (0..100).map(|slot| prefix(frame * 100 + slot)).collect())
        .collect();
    let packs = [
        record(2, Class::DataPack, &frames[..50]),
        record(1, Class::DataPack, &frames[50..]),
    ];
    let table = Table::open(table(&packs)).unwrap();
    assert_eq!(table.verify(), Ok(()));
    assert_eq!((table.entry_count(), table.pack_count()), (10_000, 2));
    for number in 0..10_000u32 {
        let found: Vec<_> = table.find(&prefix(number)).collect();
        // Packs are numbered in the order of their names.
        let pack = PackNumber(u32::from(number < 5_000));
        let frame = (number / 100 % 50) as u16;
        let slot = (number % 100) as u16;
        assert_eq!(found, [Location { pack, frame, slot }]);
    }
    assert!((10_000..20_000).all(|number| !table.contains(&prefix(number))));
}

#[test]
fn every_flipped_bit_of_a_table_is_detected() {
    let packs = [record(
        1,
        Class::DataPack,
        &[vec![Prefix([1; 16]), Prefix([2; 16])]],
    )];
    let whole = table(&packs);
    for bit in 0..whole.len() * 8 {
        let mut changed = whole.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let verified = Table::open(changed).and_then(|table| table.verify());
        assert!(verified.is_err(), "bit {bit} does not count");
    }
    for length in 0..whole.len() {
        assert!(Table::open(&whole[..length]).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn index_objects_are_read_back(records in records(), reversed: bool) {
        let mut given = records.clone();
        if reversed {
            given.reverse();
        }
        let payload = encode(&mut given, &mut Encoder::new(), Effort::Level(1)).unwrap();
        prop_assert_eq!(decode(&payload, &mut Decoder::new()).unwrap(), records.clone());
        let raw = encode(&mut given, &mut Encoder::new(), Effort::None).unwrap();
        prop_assert_eq!(raw.len() as u64 - 5, encoded_length(&records));
    }

    #[test]
    fn arbitrary_bytes_are_no_index(
        mut payload in prop::collection::vec(any::<u8>(), 0..400), raw: bool,
    ) {
        if raw && payload.len() >= 9 {
            let length = payload.len() as u32 - 5;
            payload[0] = 0;
            payload[1..5].copy_from_slice(&length.to_le_bytes());
            payload[5..9].copy_from_slice(&[1, 0, 0, 0]);
        }
        let _ = decode(&payload, &mut Decoder::new());
    }

    #[test]
    fn changed_index_objects_do_not_panic(records in records(), at: prop::sample::Index, with: u8) {
        let mut payload = Vec::new();
        let raw = encode(&mut records.clone(), &mut Encoder::new(), Effort::None).unwrap();
        payload.extend_from_slice(&raw);
        let at = at.index(payload.len());
        payload[at] = with;
        if let Ok(decoded) = decode(&payload, &mut Decoder::new()) {
            // An accepted payload encodes to the same bytes again.
            let again = encode(&mut decoded.clone(), &mut Encoder::new(), Effort::None).unwrap();
            prop_assert_eq!(again, payload);
        }
    }

    #[test]
    fn tables_answer_as_a_map_does(
        records in records(), others in prop::collection::vec(prefix(), 0..20),
    ) {
        let table = Table::open(table(&records)).unwrap();
        prop_assert_eq!(table.verify(), Ok(()));
        let mut expected: BTreeMap<Prefix, Vec<Location>> = BTreeMap::new();
        for (number, record) in records.iter().enumerate() {
            let pack = PackNumber(number as u32);
            let entry = table.pack(pack).unwrap();
            prop_assert_eq!(entry.name, record.name);
            prop_assert_eq!(entry.class, record.class);
            prop_assert_eq!(entry.length, record.length);
            prop_assert_eq!(entry.header, record.header);
            for frame in record.footer.frames() {
                let location = table.frame(pack, frame.number).unwrap();
                prop_assert_eq!(location.offset, frame.offset);
                prop_assert_eq!(location.stored_length, frame.stored_length);
                prop_assert_eq!(location.raw_length, frame.raw_length);
            }
            prop_assert_eq!(table.frame(pack, record.footer.frame_count() as u16), None);
            for blob in record.footer.blobs() {
                expected
                    .entry(blob.prefix)
                    .or_default()
                    .push(Location { pack, frame: blob.frame, slot: blob.slot });
            }
        }
        prop_assert_eq!(table.pack(PackNumber(records.len() as u32)), None);
        prop_assert_eq!(table.packs().count(), records.len());
        for (prefix, locations) in &expected {
            prop_assert_eq!(&table.find(prefix).collect::<Vec<_>>(), locations);
        }
        for prefix in others {
            prop_assert_eq!(table.contains(&prefix), expected.contains_key(&prefix));
        }
        let entries: Vec<_> = table.entries().collect();
        let flat = expected
            .into_iter()
            .flat_map(|(prefix, all)| all.into_iter().map(move |one| (prefix, one)));
        prop_assert_eq!(entries, flat.collect::<Vec<_>>());
    }

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
        let Ok(table) = Table::open(bytes) else {
            return Ok(());
        };
        for prefix in prefixes {
            for location in table.find(&prefix) {
                let _ = (table.pack(location.pack), table.frame(location.pack, location.frame));
            }
        }
        let _ = (table.verify(), table.packs().count(), table.entries().count());
    }
}
