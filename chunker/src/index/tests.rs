mod tables;

use super::*;
use crate::codec::{Decoder, Effort, Encoder};
use crate::crypto::Class;
use crate::id::Kind;
use crate::pack::FooterBuilder;
use proptest::prelude::*;

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
}
