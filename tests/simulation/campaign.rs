//! A campaign of many seeds: how many, on how many threads, for how long, and where to go on.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::run::{Counts, FAULTS_MIN, Order, Outcome, run};

/// Number of seeds of the long run.
const FULL_SEEDS: u64 = 50_000;

/// Most seeds of the quick run. Every machine that is fast enough runs the same ones.
const QUICK_SEEDS: u64 = 1_200;

/// Length of the short run, in seconds, unless `BKFS_SIM_SECONDS` is set.
const QUICK_SECONDS: u64 = 60;

/// Longest time of one part of the long run, in seconds.
const PIECE_SECONDS: u64 = 6_600;

/// One of so many seeds is run twice, and must leave the same trace.
const TWICE: u64 = 8;

/// Number of seeds between two progress messages.
const TOLD: u64 = 1_000;

/// Number of failing seeds at which the campaign stops, unless `BKFS_SIM_FAILURES` is set.
const FAILURES_MAX: u64 = 5;

/// The seeds to run.
pub struct Campaign {
    /// The first seed of all parts.
    first_of_all: u64,
    /// The first seed of this part.
    first: u64,
    end: u64,
    seconds: u64,
    /// Number of failing seeds at which it stops.
    failures_max: u64,
    /// The file that holds the seed to go on with.
    state: Option<PathBuf>,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Whether the long counts are requested.
pub fn is_full() -> bool {
    std::env::var("BKFS_TEST_FULL").is_ok_and(|value| value == "1")
}

impl Campaign {
    /// Returns the campaign that the environment requests: `BKFS_TEST_FULL`, `BKFS_SIM_FIRST` (the
    /// first seed), `BKFS_SIM_SEEDS`, `BKFS_SIM_SECONDS`, `BKFS_SIM_FAILURES` (failing seeds at
    /// which it stops), `BKFS_SIM_STATE` (a file).
    pub fn asked() -> Self {
        let state = std::env::var_os("BKFS_SIM_STATE").map(PathBuf::from);
        let left_at = state
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok())
            .and_then(|text| text.trim().parse().ok());
        let first = number("BKFS_SIM_FIRST").unwrap_or(0);
        let count = number("BKFS_SIM_SEEDS").unwrap_or(match is_full() {
            true => FULL_SEEDS,
            false => QUICK_SEEDS,
        });
        let seconds = match is_full() {
            true => PIECE_SECONDS,
            false => QUICK_SECONDS,
        };
        Campaign {
            first_of_all: first,
            first: left_at.unwrap_or(first),
            end: first + count,
            seconds: number("BKFS_SIM_SECONDS").unwrap_or(seconds),
            failures_max: number("BKFS_SIM_FAILURES").unwrap_or(FAILURES_MAX),
            state,
        }
    }

    /// Runs the seeds and prints a summary. Returns the failures, each with the command to replay
    /// it.
    pub fn make(&self) -> Vec<String> {
        let began = Instant::now();
        let deadline = began + Duration::from_secs(self.seconds);
        let next = AtomicU64::new(self.first);
        let sums = Mutex::new(Sums::default());
        let failures = Mutex::new(Vec::new());
        let goes_on =
            || Instant::now() < deadline && (failures.lock().len() as u64) < self.failures_max;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while goes_on() {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= self.end {
                            next.fetch_sub(1, Ordering::Relaxed);
                            return;
                        }
                        if seed.is_multiple_of(TOLD) {
                            println!("seed {seed}, {:.0} s", began.elapsed().as_secs_f64());
                        }
                        match one(seed) {
                            Ok(outcome) => sums.lock().add(&outcome),
                            Err(failure) => failures.lock().push(failure),
                        }
                    }
                });
            }
        });
        let reached = next.into_inner();
        if let Some(file) = &self.state {
            let left = match reached < self.end {
                true => reached,
                false => self.first_of_all,
            };
            std::fs::write(file, left.to_string()).expect("the state can be written");
        }
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "seeds {} to {} of {}, {seconds:.0} s",
            self.first, reached, self.end
        );
        println!("{}", sums.into_inner().text());
        failures.into_inner()
    }
}

/// Runs one seed; some seeds run twice.
fn one(seed: u64) -> Result<Outcome, String> {
    let order = Order {
        seed,
        printed: false,
        bug: None,
    };
    let outcome = run(order);
    if let Some(failure) = &outcome.failure {
        return Err(report(seed, failure));
    }
    if seed.is_multiple_of(TWICE) && run(order).trace != outcome.trace {
        return Err(report(seed, "two runs of it differ"));
    }
    Ok(outcome)
}

/// Returns the text of a failure, with the command to replay it.
pub fn report(seed: u64, failure: &str) -> String {
    format!(
        "seed {seed}: {failure}\n  replay: BKFS_SIM_SEED={seed} cargo test --release -p bkfs-tests --test simulation replay -- --nocapture"
    )
}

/// The sums over all runs.
#[derive(Default)]
struct Sums {
    runs: u64,
    least_faults: Option<u64>,
    faults: BTreeMap<String, u64>,
    counts: Counts,
}

impl Sums {
    fn add(&mut self, outcome: &Outcome) {
        let total: u64 = outcome.faults.values().sum();
        assert!(total >= FAULTS_MIN, "a run of {total} faults did not fail");
        self.runs += 1;
        self.least_faults = Some(self.least_faults.map_or(total, |least| least.min(total)));
        for (kind, count) in &outcome.faults {
            *self.faults.entry(kind.clone()).or_default() += count;
        }
        let (sum, one) = (&mut self.counts, &outcome.counts);
        sum.operations += one.operations;
        sum.syncs += one.syncs;
        sum.snapshots += one.snapshots;
        sum.mounts += one.mounts;
        sum.takeovers += one.takeovers;
        sum.recovered += one.recovered;
        sum.stranded += one.stranded;
        sum.collections += one.collections;
        sum.freed += one.freed;
        sum.collected_worlds += one.collected_worlds;
        sum.promises += one.promises;
        sum.told += one.told;
        sum.acknowledged += one.acknowledged;
        sum.broken += one.broken;
        sum.ended += one.ended;
    }

    fn text(&self) -> String {
        let Counts {
            operations,
            syncs,
            snapshots,
            mounts,
            takeovers,
            recovered,
            stranded,
            collections,
            freed,
            collected_worlds,
            promises,
            told,
            acknowledged,
            broken,
            ended,
        } = self.counts;
        let mut text = format!(
            "{} runs: {operations} operations, {syncs} acknowledged fsyncs, {snapshots} acknowledged snapshots, {mounts} mounts, {takeovers} takeovers, {recovered} recovered spools, {stranded} that had nothing to stand on, {collections} collections in {collected_worlds} worlds that deleted {freed} packs, {promises} mounts that closes and time had promised something, {told} told to end, {acknowledged} losses acknowledged, {broken} uses of handles that were open on what was lost, {ended} sessions ended; at least {} faults in each:",
            self.runs,
            self.least_faults.unwrap_or(0)
        );
        for (kind, count) in &self.faults {
            text += &format!("\n  {count:>9} {kind}");
        }
        text
    }
}
