//! Runs of very many chunks: what opening, look-ups and merges cost.
//!
//! Owns: the synthetic packs, and which runs they are in. Each run has the whole range of prefixes,
//! as the runs of one tier have.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bkfs_chunker::catalog::{MergeInput, NewRun, OpenedRun, RunRef, merge};
use bkfs_chunker::codec::Effort;
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_chunker::crypto::{Class, Features, Keyring, RepositoryId, Secrets};
use bkfs_chunker::id::Prefix;
use bkfs_chunker::pack::PackName;
use bkfs_store::entropy::SystemEntropy;
use bkfs_store::{Store, StoreOptions, open_store};

use super::index::{CHUNKS, PACKS, pack, prefix};
use crate::Outcome;
use crate::context::Context;
use crate::data::Numbers;
use crate::disk::remove;
use crate::measure::{anonymous_bytes, give_back_memory};

/// Number of absent chunks that are looked up.
const LOOKUPS: u64 = 200_000;

/// Number of packs of which one chunk is looked up.
const PACKS_LOOKED_UP: u64 = 5_000;

/// A bucket in a directory, and its keys.
struct Bucket {
    store: Arc<dyn Store>,
    keyring: Keyring,
    content_store: ContentStore,
}

impl Bucket {
    /// Merges into a run, and stores that.
    async fn merge(
        &self,
        number: u64,
        range: std::ops::RangeInclusive<Prefix>,
        inputs: Vec<MergeInput<'_>>,
    ) -> Outcome<RunRef> {
        let name = PackName {
            session: u64::MAX,
            sequence: number as u32,
            random: 0,
        };
        let key = name.key(Class::Run);
        let new = NewRun {
            sealer: (self.keyring).object_sealer(Class::Run, &key, Features::NONE, [1; 32]),
            class: Class::DataPack,
            range: range.clone(),
            gone: &HashSet::new(),
            effort: Effort::Level(1),
        };
        let merged = merge(new, inputs).await?;
        let bytes = merged.body.iter().map(|part| part.len() as u64).sum();
        self.store.put_new(&key, merged.body).await?;
        Ok(RunRef {
            name,
            bytes,
            class: Class::DataPack,
            first: *range.start(),
            last: *range.end(),
            records: merged.records,
        })
    }
}

/// Makes runs, opens them, looks chunks up, and merges a part of all runs.
pub(super) fn run(context: &mut Context) -> Outcome<()> {
    let runs = context.size.choose(1, 8, 48);
    let directory = context.fresh("runs")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(context, runs, &directory))?;
    remove(&directory)
}

/// Opens an empty bucket in a directory.
async fn open_bucket(directory: &std::path::Path) -> Outcome<Bucket> {
    let url = format!("{}", directory.display()).parse()?;
    let store = open_store(&url, &StoreOptions::default()).await?;
    let secrets = Secrets::new([1; 32], [2; 32], [3; 32]);
    let keyring = Keyring::sealed(RepositoryId([4; 16]), secrets);
    let entropy = Arc::new(SystemEntropy);
    let config = ContentStoreConfig::default();
    let content_store = ContentStore::open(store.clone(), keyring.clone(), entropy, config)?;
    Ok(Bucket {
        store,
        keyring,
        content_store,
    })
}

async fn measure(context: &mut Context, runs: u64, directory: &std::path::Path) -> Outcome<()> {
    let bucket = open_bucket(directory).await?;
    let everything = Prefix([0; 16])..=Prefix([0xff; 16]);
    let mut references = Vec::new();
    for number in 0..runs {
        let packs: Vec<_> = (0..PACKS).map(|sequence| pack(number, sequence)).collect();
        let inputs = vec![MergeInput::Packs(packs.iter().collect())];
        references.push(bucket.merge(number, everything.clone(), inputs).await?);
    }
    give_back_memory();
    let before = anonymous_bytes(std::process::id()).unwrap_or_default();
    let began = Instant::now();
    let mut open = Vec::new();
    for reference in &references {
        open.push(bucket.content_store.open_run(*reference).await?);
    }
    let opening_s = began.elapsed().as_secs_f64();
    let began = Instant::now();
    for run in &open {
        run.load_filters(0).await?;
    }
    let filters_s = began.elapsed().as_secs_f64();
    let after = anonymous_bytes(std::process::id()).unwrap_or_default();
    let fresh = fresh_rate(&open)?;
    let known = known_rate(&open, runs).await?;
    // The part of the prefixes that makes a run of the size of the others.
    let part = Prefix([0; 16])..=Prefix((u128::MAX / u128::from(runs)).to_be_bytes());
    let began = Instant::now();
    let inputs = open.iter().map(MergeInput::Run).collect();
    let merged = bucket.merge(runs, part, inputs).await?;
    let merging_s = began.elapsed().as_secs_f64();
    let merged = bucket.content_store.open_run(merged).await?;
    let records = merged.directory().record_count() as f64;
    let chunks = (runs * PACKS * CHUNKS) as f64;
    if (records * runs as f64 / chunks - 1.0).abs() > 0.05 {
        return Err(format!("{records} records are merged, of {chunks} in {runs} runs").into());
    }
    let bytes: u64 = references.iter().map(|reference| reference.bytes).sum();
    let filters = after.saturating_sub(before) as f64 / (1 << 20) as f64;
    let figures = &mut context.report.figures;
    for (name, figure) in [
        ("chunks, millions", chunks / 1e6),
        ("stored bytes for each chunk", bytes as f64 / chunks),
        ("opening all, s", opening_s),
        ("reading all filters, s", filters_s),
        (
            "anonymous bytes for each chunk",
            filters * (1 << 20) as f64 / chunks,
        ),
        (
            "look-ups of the first chunk of a pack, thousands/s",
            known / 1e3,
        ),
        ("look-ups of fresh chunks, thousands/s", fresh / 1e3),
        ("merged records, thousands/s", records / merging_s / 1e3),
    ] {
        figures.insert(format!("runs: {name}"), figure);
    }
    Ok(())
}

/// Returns how many known chunks are found per second, one at a time: the first one of a pack, whose
/// footer then answers for the others.
async fn known_rate(open: &[OpenedRun], runs: u64) -> Outcome<f64> {
    let mut numbers = Numbers(1);
    let (mut found, began) = (0, Instant::now());
    for _ in 0..PACKS_LOOKED_UP {
        let (run, sequence) = (numbers.draw() % runs, numbers.draw() % PACKS);
        let chunk = prefix(run, sequence * CHUNKS);
        for run in open {
            found += run.find(&[chunk]).await?.len() as u64;
        }
    }
    match found == PACKS_LOOKED_UP {
        true => Ok(PACKS_LOOKED_UP as f64 / began.elapsed().as_secs_f64()),
        false => Err(format!("{found} of {PACKS_LOOKED_UP} chunks are found").into()),
    }
}

/// Returns how many chunks per second are known to be in no run, by the filters alone.
fn fresh_rate(open: &[OpenedRun]) -> Outcome<f64> {
    let fresh: Vec<Prefix> = (0..LOOKUPS)
        .map(|number| prefix(u64::MAX, number))
        .collect();
    let began = Instant::now();
    let is_held = |prefix: &&Prefix| open.iter().any(|run| run.may_hold(prefix));
    let wrong = fresh.iter().filter(is_held).count() as u64;
    if wrong > LOOKUPS / 1000 {
        return Err(format!("filters let {wrong} of {LOOKUPS} absent chunks through").into());
    }
    Ok(LOOKUPS as f64 / began.elapsed().as_secs_f64())
}
