//! Whole packs: pages in frames of 128 KiB, compressed and sealed, and read back.

mod common;

use bkfs_chunker::codec::Effort;
use bkfs_chunker::crypto::{Class, Features, Keyring};
use bkfs_chunker::id::Kind;
use bkfs_chunker::pack::{FinishedPack, FrameDecoder, FrameEncoder, PackBuilder, PackName};
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
) -> FinishedPack {
    let mut builder = PackBuilder::new(keyring, Class::DataPack, NAME, Features::NONE, [5; 32]);
    for frame in data.chunks(PAGES_PER_FRAME * PAGE) {
        let blobs: Vec<_> = frame
            .chunks(PAGE)
            .map(|page| (Kind::Chunk, keyring.id(Kind::Chunk, page).prefix(), page))
            .collect();
        let pushed = builder.push(encoder, &blobs, effort);
        assert!(
            pushed.is_ok_and(|number| number.is_some()),
            "the pack has room"
        );
    }
    builder
        .finish(encoder, effort)
        .expect("all frames are there")
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
                bencher.iter(|| build(&keyring, &mut encoder, black_box(&data), effort).length);
            });
            let pack = build(&keyring, &mut encoder, &data, effort);
            let ratio = pack.length as f64 / LENGTH as f64;
            println!("{name}, {what}: the pack is {ratio:.3} of its contents");
            let opener = keyring
                .object_opener(Class::DataPack, &NAME.key(Class::DataPack), &pack.header)
                .expect("the header was just made");
            let mut decoder = FrameDecoder::new();
            group.bench_function(format!("open, decompress/{what}"), |bencher| {
                bencher.iter(|| {
                    let frames = pack.parts[1..=pack.footer.frame_count()].iter();
                    frames
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
