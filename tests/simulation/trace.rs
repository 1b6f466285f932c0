//! The record of a run, as text and as a hash: two runs of one seed must give the same.

use std::fmt::Arguments;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The record of a run.
pub struct Trace {
    start: Instant,
    printed: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    hasher: blake3::Hasher,
    lines: u64,
}

impl Trace {
    /// Returns an empty record. Must be called within the run's runtime, whose clock it shows.
    pub fn new(printed: bool) -> Self {
        Self {
            start: Instant::now(),
            printed,
            state: Mutex::default(),
        }
    }

    /// Returns the time since the run began, in milliseconds of its own clock.
    pub fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Adds a line.
    pub fn note(&self, line: Arguments<'_>) {
        let text = format!("{:>9} {line}\n", self.now_ms());
        if self.printed {
            print!("{text}");
        }
        let mut state = self.state.lock();
        state.hasher.update(text.as_bytes());
        state.lines += 1;
    }

    /// Returns the hash of all lines so far.
    pub fn hash(&self) -> String {
        self.state.lock().hasher.finalize().to_hex()[..16].to_owned()
    }

    /// Returns the number of lines.
    pub fn lines(&self) -> u64 {
        self.state.lock().lines
    }
}
