//! Compression of frames of 128 KiB, decompression, and the probe for incompressible data.

mod common;

use bkfs_chunker::codec::{Decoder, Effort, Encoder, is_incompressible};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

const FRAME: usize = 128 << 10;

fn compress(criterion: &mut Criterion) {
    let pages = common::pages(64 * FRAME);
    let noise = common::noise(16 * FRAME);
    let mut group = criterion.benchmark_group("compress");
    group.throughput(Throughput::Bytes(FRAME as u64));
    for (name, data) in [("pages", &pages), ("noise", &noise)] {
        for level in [-3, 1, 3] {
            let mut encoder = Encoder::new();
            let mut frames = data.chunks_exact(FRAME).cycle();
            let mut out = Vec::new();
            group.bench_function(format!("{name}/level {level}"), |bencher| {
                bencher.iter(|| {
                    out.clear();
                    let frame = frames.next().unwrap_or_default();
                    encoder.encode(black_box(frame), Effort::Level(level), &mut out);
                    out.len()
                });
            });
            let shorter = out.len() as f64 / FRAME as f64;
            println!("{name}/level {level}: one frame becomes {shorter:.3}");
        }
    }
    // The time that the probe saves: incompressible data that is compressed all the same.
    let mut context = zstd::bulk::Compressor::new(1).expect("zstd has level 1");
    let mut out = Vec::with_capacity(2 * FRAME);
    group.bench_function("noise/level 1 without the probe", |bencher| {
        bencher.iter(|| {
            let frame = black_box(&noise[..FRAME]);
            context
                .compress_to_buffer(frame, &mut out)
                .unwrap_or_default()
        });
    });
    group.finish();

    let mut group = criterion.benchmark_group("decompress");
    group.throughput(Throughput::Bytes(FRAME as u64));
    for (name, data) in [("pages", &pages), ("noise", &noise)] {
        let mut coded = Vec::new();
        Encoder::new().encode(&data[..FRAME], Effort::Level(1), &mut coded);
        let mut decoder = Decoder::new();
        group.bench_function(name, |bencher| {
            bencher.iter(|| decoder.decode(black_box(&coded), FRAME as u32));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("probe");
    group.throughput(Throughput::Bytes(FRAME as u64));
    for (name, data) in [("pages", &pages), ("noise", &noise)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| is_incompressible(black_box(&data[..FRAME])));
        });
    }
    group.finish();
}

criterion_group!(benches, compress);
criterion_main!(benches);
