//! One fetch for all who ask: who is on the way to which frame.
//!
//! Owns the table of fetches under way. A fetch that is abandoned (its task ended without an answer) wakes its waiters with nothing, and they ask again.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Fetches under way, by what they fetch.
#[derive(Debug)]
pub(crate) struct Flights<K: Hash + Eq, V> {
    table: Mutex<HashMap<K, watch::Receiver<Option<V>>>>,
}

/// The duty to answer those who wait for a fetch. Dropping it without an answer tells them to ask again.
#[derive(Debug)]
pub(crate) struct Duty<V> {
    answer: watch::Sender<Option<V>>,
}

/// Somebody who waits.
#[derive(Debug)]
pub(crate) struct Ticket<V>(watch::Receiver<Option<V>>);

impl<K: Hash + Eq + Copy, V: Clone> Flights<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            table: Mutex::new(HashMap::new()),
        }
    }

    /// Joins the fetch of `key`. With a duty, the caller is the first and has to see to it; [`Flights::land`] ends it.
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

    /// Answers all who wait for `key`. Whoever asks afterwards begins anew: what is to be kept has to be in a cache by now.
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
    /// The answer, or `None` if the fetch was abandoned.
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
        let flights = Flights::new();
        let (first, duty) = flights.board(1);
        let (second, none) = flights.board(1);
        assert!(none.is_none());
        let (_, other) = flights.board(2);
        assert!(other.is_some());
        flights.land(1, duty.expect("the first has it"), "answer");
        assert_eq!(first.wait().await, Some("answer"));
        assert_eq!(second.wait().await, Some("answer"));
        assert_eq!(flights.under_way(), 1);
    }

    #[tokio::test]
    async fn an_abandoned_fetch_is_begun_anew() {
        let flights: Flights<u8, u8> = Flights::new();
        let (first, duty) = flights.board(1);
        drop(duty);
        assert_eq!(first.wait().await, None);
        let (second, duty) = flights.board(1);
        flights.land(1, duty.expect("nobody is on the way"), 5);
        assert_eq!(second.wait().await, Some(5));
    }
}
