//! Index objects, the tables made of them, and lookups.

mod common;

use bkfs_chunker::codec::{Decoder, Effort, Encoder};
use bkfs_chunker::crypto::{Class, HEADER_LEN};
use bkfs_chunker::id::{Kind, Prefix};
use bkfs_chunker::index::{PackRecord, Table, TableBuilder, TableKey, decode, encode};
use bkfs_chunker::pack::{FooterBuilder, PackName};
use common::Numbers;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

/// Returns packs of 1,024 blobs each (16 MiB in pages), and the prefixes of these blobs.
fn packs(count: u32) -> (Vec<PackRecord>, Vec<Prefix>) {
    let mut numbers = Numbers(3);
    let mut prefixes = Vec::new();
    let records = (0..count).map(|sequence| {
        let mut footer = FooterBuilder::new();
        for _ in 0..128 {
            let blobs: Vec<_> = (0..8)
                .map(|_| {
                    let number = u128::from(numbers.draw()) << 64 | u128::from(numbers.draw());
                    (Kind::Chunk, 16_384, Prefix(number.to_le_bytes()))
                })
                .collect();
            prefixes.extend(blobs.iter().map(|(_, _, prefix)| *prefix));
            footer.push(57_000, blobs);
        }
        let footer = footer.finish().expect("the pack is within its bounds");
        PackRecord {
            name: PackName {
                session: 1,
                sequence,
                random: numbers.draw() as u32,
            },
            class: Class::DataPack,
            length: footer.pack_length(21_000),
            header: [0; HEADER_LEN],
            footer,
        }
    });
    (records.collect(), prefixes)
}

fn key() -> TableKey {
    [7; 32].into()
}

fn table_of(records: &[PackRecord]) -> Vec<u8> {
    let mut builder = TableBuilder::new();
    for record in records {
        builder.push(record.clone());
    }
    builder.finish(&key())
}

fn index(criterion: &mut Criterion) {
    let (mut records, _) = packs(64);
    let blobs = 64 * 1024;
    let mut group = criterion.benchmark_group("index object");
    group
        .throughput(Throughput::Elements(blobs))
        .sample_size(20);
    let mut encoder = Encoder::new();
    group.bench_function("encode", |bencher| {
        bencher.iter(|| encode(&mut records, &mut encoder, Effort::Level(1)).map(|all| all.len()));
    });
    let payload = encode(&mut records, &mut encoder, Effort::Level(1)).expect("it fits");
    println!("{} bytes per blob", payload.len() as f64 / blobs as f64);
    group.bench_function("decode", |bencher| {
        let mut decoder = Decoder::new();
        bencher.iter(|| decode(black_box(&payload), &mut decoder).map(|records| records.len()));
    });
    group.bench_function("make a table", |bencher| {
        bencher.iter(|| table_of(black_box(&records)).len());
    });
    group.finish();

    let (records, prefixes) = packs(4096);
    let bytes = table_of(&records);
    let table = Table::open(bytes.as_slice(), key()).expect("the table was just made");
    let mut numbers = Numbers(4);
    let mut group = criterion.benchmark_group("look-up in 4 million");
    group.throughput(Throughput::Elements(1));
    group.bench_function("present", |bencher| {
        bencher.iter(|| {
            let at = numbers.draw() as usize % prefixes.len();
            table.find(&prefixes[at])
        });
    });
    group.bench_function("absent", |bencher| {
        bencher.iter(|| {
            let number = u128::from(numbers.draw()) << 64 | u128::from(numbers.draw());
            table.contains(&Prefix(number.to_le_bytes()))
        });
    });
    group.finish();
}

criterion_group!(benches, index);
criterion_main!(benches);
