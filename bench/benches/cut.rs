//! Cut points by profile, detection of zeros, and detection of a file's profile.

mod common;

use bkfs_chunker::chunking::{Parameters, Profile, detect, is_zero};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

fn cut(criterion: &mut Criterion) {
    const LENGTH: usize = 16 << 20;
    let cutter = common::keyring(true).cutter(&Parameters::default());
    let mut group = criterion.benchmark_group("cut");
    group
        .throughput(Throughput::Bytes(LENGTH as u64))
        .sample_size(20);
    for (name, data) in [
        ("pages", common::pages(LENGTH)),
        ("noise", common::noise(LENGTH)),
    ] {
        for profile in Profile::ALL {
            let mut cuts = Vec::new();
            group.bench_function(format!("{profile:?}/{name}"), |bencher| {
                bencher.iter(|| {
                    cuts.clear();
                    cutter.cut(profile, black_box(&data), 0, true, &mut cuts);
                    cuts.len()
                });
            });
        }
    }
    group.finish();

    let zeros = vec![0; LENGTH];
    let mut group = criterion.benchmark_group("is_zero");
    for length in [16 << 10, 1 << 20] {
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_function(format!("{length} zeros"), |bencher| {
            bencher.iter(|| is_zero(black_box(&zeros[..length])));
        });
    }
    group.finish();

    let head = common::noise(64 << 10);
    criterion.bench_function("detect/64 KiB", |bencher| {
        bencher.iter(|| detect(black_box(b"some/file"), black_box(&head)));
    });
}

criterion_group!(benches, cut);
criterion_main!(benches);
