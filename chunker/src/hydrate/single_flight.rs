//! One fetch per key, shared by all concurrent callers.
//!
//! Owns the table of fetches under way. A fetch is abandoned if its task ends without an answer.
//! Its waiters then get no answer and ask again.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Fetches under way, by key.
#[derive(Debug)]
pub(crate) struct SingleFlight<K: Hash + Eq, V> {
    table: Mutex<HashMap<K, watch::Receiver<Option<V>>>>,
}

/// The obligation to answer the waiters of a fetch. If it is dropped without an answer, they ask
/// again.
#[derive(Debug)]
pub(crate) struct Duty<V> {
    answer: watch::Sender<Option<V>>,
}

/// A caller that waits for a fetch.
#[derive(Debug)]
pub(crate) struct Ticket<V>(watch::Receiver<Option<V>>);

impl<K: Hash + Eq + Copy, V: Clone> SingleFlight<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            table: Mutex::new(HashMap::new()),
        }
    }

    /// Joins the fetch of `key`. If a duty is returned, the caller is the first and must fetch;
    /// [`SingleFlight::land`] ends the fetch.
    pub(crate) fn board(&self, key: K) -> (Ticket<V>, Option<Duty<V>>) {
        let mut table = self.table.lock();
        if let Some(flight) = table.get(&key)
            && flight.has_changed().is_ok()
        {
            return (Ticket(flight.clone()), None);
        }
        let (answer, flight) = watch::channel(None);
        table.insert(key, flight.clone());
        (Ticket(flight), Some(Duty { answer }))
    }

    /// Answers all waiters of `key`. A later caller begins a new fetch, so a value to be reused
    /// must be in a cache before this call.
    pub(crate) fn land(&self, key: K, duty: Duty<V>, value: V) {
        self.table.lock().remove(&key);
        duty.answer.send_replace(Some(value));
    }

    #[cfg(test)]
    fn under_way(&self) -> usize {
        self.table.lock().len()
    }
}

impl<V: Clone> Ticket<V> {
    /// Waits for the answer. `None` if the fetch was abandoned.
    pub(crate) async fn wait(mut self) -> Option<V> {
        let answer = self.0.wait_for(Option::is_some).await.ok()?;
        answer.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_fetches_and_all_get_the_answer() {
        let single_flight = SingleFlight::new();
        let (first, duty) = single_flight.board(1);
        let (second, none) = single_flight.board(1);
        assert!(none.is_none());
        let (_, other) = single_flight.board(2);
        assert!(other.is_some());
        single_flight.land(1, duty.expect("the first has it"), "answer");
        assert_eq!(first.wait().await, Some("answer"));
        assert_eq!(second.wait().await, Some("answer"));
        assert_eq!(single_flight.under_way(), 1);
    }

    #[tokio::test]
    async fn an_abandoned_fetch_is_begun_anew() {
        let single_flight: SingleFlight<u8, u8> = SingleFlight::new();
        let (first, duty) = single_flight.board(1);
        drop(duty);
        assert_eq!(first.wait().await, None);
        let (second, duty) = single_flight.board(1);
        single_flight.land(1, duty.expect("no fetch is under way"), 5);
        assert_eq!(second.wait().await, Some(5));
    }
}
