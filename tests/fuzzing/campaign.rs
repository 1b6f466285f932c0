//! A campaign: a body, its corpus, and a number of generated inputs.
//!
//! This module owns how many inputs a body gets, and how a failure is reported and replayed.

use crate::bodies::Body;
use crate::mutate;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Generated inputs of each body in the quick run.
const QUICK_INPUTS: u64 = 20_000;

/// Generated inputs of each body in the long run.
const FULL_INPUTS: u64 = 1_000_000;

/// Number of inputs that a thread takes at a time.
const BATCH: u64 = 500;

/// The most bytes of an input that a report shows.
const SHOWN_MAX: usize = 4096;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns the seeds of each body: as many as `BKFS_TEST_FULL` or `BKFS_FUZZING_INPUTS` request,
/// from `BKFS_FUZZING_FIRST` on.
pub fn seeds() -> std::ops::Range<u64> {
    let is_full = std::env::var("BKFS_TEST_FULL").is_ok_and(|value| value == "1");
    let count = number("BKFS_FUZZING_INPUTS").unwrap_or(match is_full {
        true => FULL_INPUTS,
        false => QUICK_INPUTS,
    });
    let first = number("BKFS_FUZZING_FIRST").unwrap_or(0);
    first..first.saturating_add(count)
}

/// A fault that a body found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The seed of the input; none for an example of the corpus.
    pub seed: Option<u64>,
    /// The input.
    pub input: Vec<u8>,
    /// What the body said.
    pub message: String,
}

/// Runs a body on its corpus, then on the inputs of these seeds, on all processors. Returns the
/// fault with the lowest seed that was found. The seeds from there on may have been left out.
pub fn run(body: Body, corpus: &[Vec<u8>], seeds: std::ops::Range<u64>) -> Option<Found> {
    for input in corpus {
        if let Err(message) = attempt(body, input) {
            let input = input.clone();
            return Some(Found {
                seed: None,
                input,
                message,
            });
        }
    }
    let next = AtomicU64::new(seeds.start);
    let found: Mutex<Option<Found>> = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let start = next.fetch_add(BATCH, Ordering::Relaxed);
                    let end = start.saturating_add(BATCH).min(seeds.end);
                    let is_over = found.lock().expect("no thread panics").is_some();
                    if start >= end || is_over {
                        return;
                    }
                    let fault = (start..end).find_map(|seed| one(body, corpus, seed));
                    if let Some(fault) = fault {
                        let mut found = found.lock().expect("no thread panics");
                        let is_first = found.as_ref().is_none_or(|other| fault.seed < other.seed);
                        if is_first {
                            *found = Some(fault);
                        }
                        return;
                    }
                }
            });
        }
    });
    found.into_inner().expect("no thread panics")
}

/// Runs a body on the input of one seed.
pub fn one(body: Body, corpus: &[Vec<u8>], seed: u64) -> Option<Found> {
    let input = mutate::input(corpus, seed);
    let message = attempt(body, &input).err()?;
    Some(Found {
        seed: Some(seed),
        input,
        message,
    })
}

/// Runs a body on an input, and returns what it says if it panics.
fn attempt(body: Body, input: &[u8]) -> Result<(), String> {
    let run = AssertUnwindSafe(|| (body.run)(input));
    catch_unwind(run).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        text.unwrap_or_else(|| "a panic without a text".to_owned())
    })
}

/// Returns the text of a fault, with the command that replays it.
pub fn report(body: Body, found: &Found) -> String {
    let shown = &found.input[..found.input.len().min(SHOWN_MAX)];
    let digits: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = body.name;
    let replay = match found.seed {
        Some(seed) => format!(
            "seed {seed}\n  replay: BKFS_FUZZING_BODY={name} BKFS_FUZZING_SEED={seed} \
             cargo test --workspace --test fuzzing replay -- --nocapture"
        ),
        None => "an example of its corpus".to_owned(),
    };
    let message = &found.message;
    format!(
        "{name}: {message}\n  {} bytes: {digits}\n  {replay}",
        found.input.len()
    )
}
