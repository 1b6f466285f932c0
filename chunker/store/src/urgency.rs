//! How soon a request is needed.
//!
//! Owns the order of the classes, and the class of one request, which more urgent callers raise
//! while it waits. Does not own the queue of requests (`rate_limit`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How soon the answer of a request is needed. The later ones come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Urgency {
    /// No caller waits: the answer fills a cache.
    Background = 0,
    /// A caller will probably ask for it soon.
    Ahead = 1,
    /// A caller waits for it.
    Now = 2,
}

/// The urgency of one request. It only rises. Clones belong to the same request.
#[derive(Debug, Clone)]
pub struct SharedUrgency(Arc<AtomicU8>);

impl SharedUrgency {
    /// Returns the urgency of a new request.
    pub fn new(urgency: Urgency) -> Self {
        Self(Arc::new(AtomicU8::new(urgency as u8)))
    }

    /// Returns the urgency now.
    pub fn get(&self) -> Urgency {
        match self.0.load(Ordering::SeqCst) {
            0 => Urgency::Background,
            1 => Urgency::Ahead,
            _ => Urgency::Now,
        }
    }

    /// Makes the request at least as urgent as `urgency`. Returns true if it was less urgent.
    pub fn raise(&self, urgency: Urgency) -> bool {
        self.0.fetch_max(urgency as u8, Ordering::SeqCst) < urgency as u8
    }
}
