//! Sealing and opening boxes, and deriving the keys of an object.

mod common;

use bkfs_chunker::crypto::{Class, Features, NONCE_LEN};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

fn seal(criterion: &mut Criterion) {
    let data = common::noise(1 << 20);
    for (name, sealed) in [("sealed", true), ("unsealed", false)] {
        let keyring = common::keyring(sealed);
        let mut group = criterion.benchmark_group(name);
        let key = "data/00/some-name";
        let sealer = keyring.object_sealer(Class::DataPack, key, Features::NONE, [5; 32]);
        let opener = keyring
            .object_opener(Class::DataPack, key, sealer.header())
            .expect("the header was just made");
        for length in [16 << 10, 56 << 10, 1 << 20] {
            group.throughput(Throughput::Bytes(length as u64));
            let mut buffer = vec![0; NONCE_LEN];
            buffer.extend_from_slice(&data[..length]);
            group.bench_function(format!("seal in place/{length}"), |bencher| {
                bencher.iter(|| {
                    buffer.truncate(NONCE_LEN + length);
                    sealer.seal_in_place(1, black_box(&mut buffer), 0);
                });
            });
            let mut sealed = Vec::new();
            sealer.seal_box(1, &data[..length], &mut sealed);
            let mut room = Vec::new();
            group.bench_function(format!("open/{length}"), |bencher| {
                bencher.iter(|| {
                    let opened = opener.open_box(1, black_box(&sealed), &mut room);
                    opened.map(<[u8]>::len)
                });
            });
            group.bench_function(format!("open in place/{length}"), |bencher| {
                bencher.iter_batched_ref(
                    || sealed.clone(),
                    |sealed| opener.open_in_place(1, sealed).map(|payload| payload.len()),
                    BatchSize::LargeInput,
                );
            });
        }
        group.finish();
        criterion.bench_function(&format!("{name}/open a header"), |bencher| {
            bencher
                .iter(|| keyring.object_opener(Class::DataPack, key, black_box(sealer.header())));
        });
    }
}

criterion_group!(benches, seal);
criterion_main!(benches);
