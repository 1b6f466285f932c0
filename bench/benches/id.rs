//! Computing the ids of blobs.

mod common;

use bkfs_chunker::id::Kind;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

fn id(criterion: &mut Criterion) {
    let keyring = common::keyring(true);
    let data = common::noise(1 << 20);
    let mut group = criterion.benchmark_group("id");
    for length in [600, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_function(format!("{length}"), |bencher| {
            bencher.iter(|| keyring.id(Kind::Chunk, black_box(&data[..length])));
        });
    }
    group.finish();
}

criterion_group!(benches, id);
criterion_main!(benches);
