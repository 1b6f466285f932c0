//! Whole packs: pages in frames of 128 KiB, compressed and sealed, and read back.

mod common;

use bkfs_chunker::codec::Effort;
use bkfs_chunker::crypto::{Class, Features, Keyring};
use bkfs_chunker::id::Kind;
use bkfs_chunker::pack::{FinishedPack, FrameDecoder, FrameEncoder, PackBuilder, PackName};
use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

const LENGTH: usize = 16 << 20;
const PAGE: usize = 16 << 10;
const PAGES_PER_FRAME: usize = 8;
const NAME: PackName = PackName {
    session: 1,
    sequence: 2,
    random: 3,
};

fn build(
    keyring: &Keyring,
    encoder: &mut FrameEncoder,
    data: &[u8],
    effort: Effort,
) -> (FinishedPack, Vec<Bytes>) {
    let mut builder = PackBuilder::new(keyring, Class::DataPack, NAME, Features::NONE, [5; 32]);
    let mut frames = Vec::new();
    for frame in data.chunks(PAGES_PER_FRAME * PAGE) {
        let blobs: Vec<_> = frame
            .chunks(PAGE)
            .map(|page| (Kind::Chunk, keyring.id(Kind::Chunk, page).prefix(), page))
            .collect();
        let pushed = builder.push(encoder, &blobs, effort);
        frames.push(
            pushed
                .expect("the frame is small")
                .expect("the pack has room"),
        );
    }
    let finished = builder.finish(encoder, effort);
    (finished.expect("all frames are there").0, frames)
}

fn pack(criterion: &mut Criterion) {
    let data = common::pages(LENGTH);
    for (name, sealed) in [("sealed", true), ("unsealed", false)] {
        let keyring = common::keyring(sealed);
        let mut group = criterion.benchmark_group(format!("pack/{name}"));
        group
            .throughput(Throughput::Bytes(LENGTH as u64))
            .sample_size(10);
        let mut encoder = FrameEncoder::new();
        for (what, effort) in [("raw", Effort::None), ("level 1", Effort::Level(1))] {
            group.bench_function(format!("id, compress, seal/{what}"), |bencher| {
                bencher.iter(|| {
                    build(&keyring, &mut encoder, black_box(&data), effort)
                        .0
                        .length
                });
            });
            let (pack, frames) = build(&keyring, &mut encoder, &data, effort);
            let ratio = pack.length as f64 / LENGTH as f64;
            println!("{name}, {what}: the pack is {ratio:.3} of its contents");
            let opener = keyring
                .object_opener(Class::DataPack, &NAME.key(Class::DataPack), &pack.header)
                .expect("the header was just made");
            let mut decoder = FrameDecoder::new();
            group.bench_function(format!("open, decompress/{what}"), |bencher| {
                bencher.iter(|| {
                    frames
                        .iter()
                        .enumerate()
                        .map(|(number, sealed)| {
                            let frame = decoder.open(&opener, number as u32, black_box(sealed));
                            frame.map_or(0, |frame| frame.memory())
                        })
                        .sum::<usize>()
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, pack);
criterion_main!(benches);
