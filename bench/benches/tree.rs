//! The tree: building, batches of changes, lookups, scans, comparisons. The nodes are in memory, so
//! the benchmark measures the tree and the hashing of its nodes, and not a store.

use std::hint::black_box;

use bkfs::tree::memory::MemoryNodes;
use bkfs::tree::{Diff, Item, Key, Node, Tree, apply, empty, key};
use bkfs_chunker::id::Id;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use pollster::block_on;

type Entry = (Key, Option<Vec<u8>>);

/// Number of items in the tree of most benchmarks.
const ITEMS: u64 = 1_000_000;

/// Spreads numbers over 64 bits (splitmix64), so that runs are repeatable.
fn spread(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits ^ (bits >> 31)
}

fn name(number: u64) -> Key {
    let name = format!("file-{number:07}.dat");
    Key::name(2, key::name_cookie(spread(number)), name.as_bytes())
}

fn leads_to(inode: u64) -> Vec<u8> {
    let file_type = 8;
    Item::Name { inode, file_type }.encode()
}

/// Returns the names of one directory, in the order of the tree.
fn directory(count: u64) -> Vec<Entry> {
    let mut names: Vec<Entry> = (0..count)
        .map(|number| (name(number), Some(leads_to(number + 1000))))
        .collect();
    names.sort();
    names
}

fn build(nodes: &MemoryNodes, entries: &[Entry]) -> Id {
    block_on(async {
        let root = empty(nodes).await?;
        apply(nodes, nodes, root, entries.iter().cloned()).await
    })
    .expect("nodes in memory do not fail")
}

/// Returns `count` changes, spread over the names of the directory.
fn changes(count: u64, round: u64) -> Vec<Entry> {
    let mut changes: Vec<Entry> = (0..count)
        .map(|number| {
            let number = spread(number + round * count) % ITEMS;
            (name(number), Some(leads_to(round + 5_000_000)))
        })
        .collect();
    changes.sort();
    changes.dedup_by(|one, two| one.0 == two.0);
    changes
}

fn depth(nodes: &MemoryNodes, root: Id) -> u8 {
    nodes.peek(root).map_or(0, |node| node.level() + 1)
}

fn building(criterion: &mut Criterion) {
    let entries = directory(ITEMS);
    let nodes = MemoryNodes::new();
    let root = build(&nodes, &entries);
    let (count, levels) = (nodes.len(), depth(&nodes, root));
    eprintln!("{ITEMS} names: {levels} levels, {count} nodes");
    let mut group = criterion.benchmark_group("tree");
    group.sample_size(10);
    group.throughput(Throughput::Elements(ITEMS));
    group.bench_function("build a directory of 1,000,000 names", |bencher| {
        bencher.iter_with_large_drop(|| {
            let nodes = MemoryNodes::new();
            black_box(build(&nodes, &entries));
            nodes
        });
    });
    group.finish();
}

fn changing(criterion: &mut Criterion) {
    let nodes = MemoryNodes::new();
    let root = build(&nodes, &directory(ITEMS));
    let mut group = criterion.benchmark_group("tree");
    group.sample_size(20);
    for count in [1, 100, 10_000] {
        let mut round = 0;
        group.throughput(Throughput::Elements(count));
        group.bench_function(format!("change {count} of 1,000,000"), |bencher| {
            bencher.iter_batched(
                || {
                    round += 1;
                    changes(count, round)
                },
                |changes| block_on(apply(&nodes, &nodes, root, changes.into_iter())),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

fn reading(criterion: &mut Criterion) {
    let nodes = MemoryNodes::new();
    let tree = Tree::new(build(&nodes, &directory(ITEMS)));
    let mut group = criterion.benchmark_group("tree");
    let mut number = 0;
    group.bench_function("look up one of 1,000,000", |bencher| {
        bencher.iter(|| {
            number += 1;
            block_on(tree.get(&nodes, &name(spread(number) % ITEMS)))
        });
    });
    group.sample_size(10);
    group.throughput(Throughput::Elements(ITEMS));
    group.bench_function("scan 1,000,000", |bencher| {
        bencher.iter(|| {
            let mut cursor = tree.range(key::of_inode(2));
            let mut count = 0;
            while let Ok(Some(entry)) = block_on(cursor.next(&nodes)) {
                black_box(entry);
                count += 1;
            }
            count
        });
    });
    group.finish();
}

fn comparing(criterion: &mut Criterion) {
    let nodes = MemoryNodes::new();
    let left = build(&nodes, &directory(ITEMS));
    let changes = changes(100, 1).into_iter();
    let right = block_on(apply(&nodes, &nodes, left, changes)).unwrap_or(left);
    criterion.bench_function("tree/find 100 differences in 1,000,000", |bencher| {
        bencher.iter(|| {
            let mut diff = Diff::new(Tree::new(left), Tree::new(right), key::everything());
            let mut count = 0;
            while let Ok(Some(difference)) = block_on(diff.next(&nodes)) {
                black_box(difference);
                count += 1;
            }
            count
        });
    });
}

fn decoding(criterion: &mut Criterion) {
    let nodes = MemoryNodes::new();
    let root = build(&nodes, &directory(20_000));
    let leaf = nodes
        .peek(root)
        .and_then(|root| nodes.peek(root.child(1)?.id))
        .expect("20,000 names are more than two leaves");
    let bytes = leaf.bytes().clone();
    let title = format!(
        "decode a leaf of {} names, {} bytes",
        leaf.len(),
        bytes.len()
    );
    let mut group = criterion.benchmark_group("tree");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function(title, |bencher| {
        bencher.iter(|| Node::decode(bytes.clone()));
    });
    group.finish();
}

criterion_group!(benches, decoding, reading, changing, comparing, building);
criterion_main!(benches);
