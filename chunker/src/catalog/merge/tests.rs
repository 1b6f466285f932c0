//! Merges of runs and index objects: what the new run has, and what it has not.

use std::collections::BTreeMap;

use super::*;
use crate::catalog::RunRef;
use crate::catalog::opened_run::tests::{Bucket, everything, keyring, pack, prefix};
use crate::crypto::{Features, HEADER_LEN};
use crate::id::Kind;
use crate::pack::FooterBuilder;

fn run_name(number: u32) -> PackName {
    PackName {
        session: 7,
        sequence: number,
        random: number,
    }
}

/// Returns a pack of 3 frames with 20 blobs each, at random. Every pack shares a blob with the one
/// before it.
fn listed(number: u64, class: Class) -> PackRecord {
    let mut footer = FooterBuilder::new();
    for frame in 0..3_u64 {
        let first = number * 59 + frame * 20;
        let blobs = (first..first + 20).map(|blob| (Kind::Chunk, 100, prefix(blob)));
        footer.push(2000 + frame as u32, blobs);
    }
    PackRecord {
        name: pack(number),
        class,
        length: 10_000,
        header: [number as u8; HEADER_LEN],
        footer: footer.finish().expect("small"),
    }
}

/// Returns a data pack of one blob.
fn single(number: u64) -> PackRecord {
    let mut footer = FooterBuilder::new();
    footer.push(100, [(Kind::Chunk, 100, prefix(number))]);
    PackRecord {
        footer: footer.finish().expect("small"),
        ..listed(number, Class::DataPack)
    }
}

fn data_packs(numbers: std::ops::Range<u64>) -> Vec<PackRecord> {
    numbers
        .map(|number| listed(number, Class::DataPack))
        .collect()
}

/// Merges into a new run of the bucket.
async fn merged(
    bucket: &Bucket,
    number: u32,
    range: RangeInclusive<Prefix>,
    gone: &HashSet<PackName>,
    inputs: Vec<MergeInput<'_>>,
) -> Result<RunRef, ContentError> {
    let name = run_name(number);
    let key = name.key(Class::Run);
    let sealer = keyring().object_sealer(Class::Run, &key, Features::NONE, [number as u8; 32]);
    let new = NewRun {
        sealer,
        class: Class::DataPack,
        range: range.clone(),
        gone,
        effort: Effort::Level(1),
    };
    let merged = merge(new, inputs).await?;
    let bytes = bucket.put(name, merged.body).await;
    Ok(RunRef {
        name,
        bytes,
        class: Class::DataPack,
        first: *range.start(),
        last: *range.end(),
        records: merged.records,
    })
}

/// Compares a run with what these packs list.
async fn holds(run: &OpenedRun, range: RangeInclusive<Prefix>, packs: &[PackRecord]) {
    let packs: Vec<&PackRecord> = packs.iter().collect();
    let expected = records_of(&packs, &range);
    let found: Vec<Vec<RunRecord>> = run
        .records(range.clone())
        .try_collect()
        .await
        .expect("read");
    assert!(found.concat() == expected, "{} records", expected.len());
    assert_eq!(run.directory().record_count(), expected.len() as u64);
    let mut asked: Vec<Prefix> = expected.iter().map(|record| record.prefix).collect();
    asked.dedup();
    let found = run.find(&asked).await.expect("read");
    assert!(found == expected, "look-ups find {}", found.len());
    let mut names: Vec<PackName> = packs.iter().map(|pack| pack.name).collect();
    names.sort_unstable();
    assert_eq!(run.pack_names().await.expect("read"), names);
    let kept: Vec<Vec<PackFrames>> = run.pack_frames().try_collect().await.expect("read");
    assert_eq!(kept.concat(), frames_of(&packs, &range));
}

fn halves() -> [RangeInclusive<Prefix>; 2] {
    let mut middle = [0xff; 16];
    middle[0] = 0x7f;
    let mut next = [0; 16];
    next[0] = 0x80;
    let whole = everything();
    [*whole.start()..=Prefix(middle), Prefix(next)..=*whole.end()]
}

#[tokio::test]
async fn index_objects_become_runs_and_runs_become_one() {
    let bucket = Bucket::empty();
    let (none, first) = (HashSet::new(), data_packs(0..300));
    let mut runs = Vec::new();
    for (number, range) in halves().into_iter().enumerate() {
        let packs = MergeInput::Packs(first.iter().collect());
        let run = merged(&bucket, number as u32, range.clone(), &none, vec![packs]).await;
        let run = bucket.open_run(run.expect("merged")).await;
        holds(&run, range, &first).await;
        runs.push(run);
    }
    // The third index object repeats packs of the runs: a merge that was killed leaves such.
    let (second, again) = (data_packs(300..500), data_packs(100..350));
    let mut inputs: Vec<MergeInput<'_>> = runs.iter().map(MergeInput::Run).collect();
    inputs.extend([&second, &again].map(|packs| MergeInput::Packs(packs.iter().collect())));
    let run = merged(&bucket, 2, everything(), &none, inputs).await;
    let run = bucket.open_run(run.expect("merged")).await;
    holds(&run, everything(), &data_packs(0..500)).await;
}

#[tokio::test]
async fn a_run_names_the_packs_of_its_range_alone() {
    let bucket = Bucket::empty();
    let none = HashSet::new();
    let packs: Vec<PackRecord> = (0..200).map(single).collect();
    let mut named = 0;
    for (number, range) in halves().into_iter().enumerate() {
        let inputs = vec![MergeInput::Packs(packs.iter().collect())];
        let run = merged(&bucket, number as u32, range.clone(), &none, inputs).await;
        let run = bucket.open_run(run.expect("merged")).await;
        let expected = packs.iter().filter(|pack| is_in(pack, &range));
        let mut expected: Vec<PackName> = expected.map(|pack| pack.name).collect();
        expected.sort_unstable();
        let names = run.pack_names().await.expect("read");
        named += names.len();
        assert_eq!(names, expected);
    }
    // A quarter of them has its blob in one half, and its place in the other one.
    assert!((230..370).contains(&named), "{named} names");
}

#[tokio::test]
async fn gone_packs_and_those_of_another_class_are_left_out() {
    let bucket = Bucket::empty();
    let none = HashSet::new();
    let packs = data_packs(0..100);
    let packs = MergeInput::Packs(packs.iter().collect());
    let run = merged(&bucket, 0, everything(), &none, vec![packs]).await;
    let run = bucket.open_run(run.expect("merged")).await;
    let gone: HashSet<PackName> = (0..150).step_by(3).map(pack).collect();
    let mut listed_now = data_packs(100..150);
    listed_now.push(listed(999, Class::MetadataPack));
    let inputs = vec![
        MergeInput::Run(&run),
        MergeInput::Packs(listed_now.iter().collect()),
    ];
    let run = merged(&bucket, 1, everything(), &gone, inputs).await;
    let run = bucket.open_run(run.expect("merged")).await;
    let mut left = data_packs(0..150);
    left.retain(|pack| !gone.contains(&pack.name));
    holds(&run, everything(), &left).await;
}

#[tokio::test]
async fn a_merge_reads_each_byte_once_at_most() {
    let bucket = Bucket::empty();
    let none = HashSet::new();
    let packs = data_packs(0..3_000);
    let packs = MergeInput::Packs(packs.iter().collect());
    let reference = merged(&bucket, 0, everything(), &none, vec![packs]).await;
    let reference = reference.expect("merged");
    let run = bucket.open_run(reference).await;
    let before = bucket.asked();
    let inputs = vec![MergeInput::Run(&run)];
    let copy = merged(&bucket, 1, everything(), &none, inputs).await;
    let read = bucket.asked().1 - before.1;
    assert!(read <= reference.bytes, "{read} of {}", reference.bytes);
    let copy = bucket.open_run(copy.expect("merged")).await;
    assert_eq!(copy.directory().contents(), run.directory().contents());
}

#[tokio::test]
async fn a_merge_of_nothing_is_an_empty_run() {
    let bucket = Bucket::empty();
    let none = HashSet::new();
    let run = merged(&bucket, 0, everything(), &none, Vec::new()).await;
    let run = bucket.open_run(run.expect("merged")).await;
    holds(&run, everything(), &[]).await;
    assert_eq!(run.find(&[prefix(1)]).await.expect("nothing"), []);
}

#[tokio::test]
async fn a_damaged_input_makes_no_run() {
    let none = HashSet::new();
    let key = run_name(0).key(Class::Run);
    let new = |range| NewRun {
        sealer: keyring().object_sealer(Class::Run, &key, Features::NONE, [1; 32]),
        class: Class::DataPack,
        range,
        gone: &none,
        effort: Effort::Level(1),
    };
    let packs = data_packs(0..200);
    let packs = MergeInput::Packs(packs.iter().collect());
    let made = merge(new(everything()), vec![packs]).await;
    let made = made.expect("merged");
    let whole = made.body.concat();
    let mut seen = BTreeMap::new();
    for place in (HEADER_LEN..whole.len()).step_by(whole.len() / 40) {
        let bucket = Bucket::empty();
        let mut changed = whole.clone();
        changed[place] ^= 1;
        let bytes = bucket.put(run_name(0), vec![Bytes::from(changed)]).await;
        let reference = RunRef {
            name: run_name(0),
            bytes,
            class: Class::DataPack,
            first: *everything().start(),
            last: *everything().end(),
            records: made.records,
        };
        let outcome = match bucket.try_open(reference).await {
            Ok(run) => {
                let inputs = vec![MergeInput::Run(&run)];
                merge(new(everything()), inputs).await.map(drop)
            }
            Err(error) => Err(error),
        };
        let is_seen = matches!(outcome, Err(ContentError::Damaged { .. }));
        *seen.entry(is_seen).or_insert(0) += 1;
    }
    // A merge reads no filters of its inputs.
    assert!(seen[&true] > 25, "{seen:?}");
}

#[tokio::test]
async fn what_comes_out_of_order_is_an_error_and_no_loss() {
    let order = |entries: Vec<u32>| in_memory(entries);
    let sources = vec![
        order(vec![1, 4, 4, 9]),
        order(Vec::new()),
        order(vec![2, 4, 7]),
    ];
    let mut merged = Merged::of(sources, |entry: &u32| *entry)
        .await
        .expect("begun");
    let mut all = Vec::new();
    while let Some(entry) = merged.next().await.expect("in order") {
        all.push(entry);
    }
    assert_eq!(all, [1, 2, 4, 7, 9]);
    let sources = vec![order(vec![1, 5, 3])];
    let mut merged = Merged::of(sources, |entry: &u32| *entry)
        .await
        .expect("begun");
    let mut outcome = Ok(Some(0));
    while let Ok(Some(_)) = outcome {
        outcome = merged.next().await;
    }
    assert!(
        matches!(outcome, Err(ContentError::Internal(_))),
        "{outcome:?}"
    );
}
