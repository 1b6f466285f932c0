//! One fetch per key, shared by all concurrent callers.
//!
//! Owns the table of fetches under way. A fetch is abandoned if its task ends without an answer.
//! Its waiters then get no answer and ask again. A fetch becomes as urgent as the most urgent
//! caller that joins it.

use std::collections::HashMap;
use std::hash::Hash;

use bkfs_store::urgency::SharedUrgency;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Fetches under way, by key.
#[derive(Debug)]
pub(crate) struct SingleFlight<K: Hash + Eq, V> {
    table: Mutex<HashMap<K, Flight<V>>>,
}

/// A fetch under way.
#[derive(Debug)]
struct Flight<V> {
    answer: watch::Receiver<Option<V>>,
    urgency: SharedUrgency,
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

    /// Joins the fetch of `key`. If a duty is returned, the caller is the first and must fetch
    /// with this urgency, which later callers may raise; [`SingleFlight::land`] ends the fetch.
    pub(crate) fn board(&self, key: K, urgency: &SharedUrgency) -> (Ticket<V>, Option<Duty<V>>) {
        let mut table = self.table.lock();
        if let Some(flight) = table.get(&key)
            && flight.answer.has_changed().is_ok()
        {
            flight.urgency.raise(urgency.get());
            return (Ticket(flight.answer.clone()), None);
        }
        let (answer, waits) = watch::channel(None);
        let flight = Flight {
            answer: waits.clone(),
            urgency: urgency.clone(),
        };
        table.insert(key, flight);
        (Ticket(waits), Some(Duty { answer }))
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

impl<V> Duty<V> {
    /// Returns true if a caller waits for the answer.
    pub(crate) fn is_awaited(&self) -> bool {
        // The table has one receiver.
        self.answer.receiver_count() > 1
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
    use bkfs_store::urgency::Urgency;

    use super::*;

    fn now() -> SharedUrgency {
        SharedUrgency::new(Urgency::Now)
    }

    #[tokio::test]
    async fn a_fetch_is_as_urgent_as_its_most_urgent_caller() {
        let single_flight: SingleFlight<u8, u8> = SingleFlight::new();
        let urgency = SharedUrgency::new(Urgency::Background);
        let (ticket, duty) = single_flight.board(1, &urgency);
        drop(ticket);
        let duty = duty.expect("the first has it");
        assert!(!duty.is_awaited());
        let (_ticket, _) = single_flight.board(1, &SharedUrgency::new(Urgency::Ahead));
        assert_eq!(urgency.get(), Urgency::Ahead);
        let (_ticket, _) = single_flight.board(1, &now());
        assert!(urgency.get() == Urgency::Now && duty.is_awaited());
    }

    #[tokio::test]
    async fn the_first_fetches_and_all_get_the_answer() {
        let single_flight = SingleFlight::new();
        let (first, duty) = single_flight.board(1, &now());
        let (second, none) = single_flight.board(1, &now());
        assert!(none.is_none());
        let (_, other) = single_flight.board(2, &now());
        assert!(other.is_some());
        single_flight.land(1, duty.expect("the first has it"), "answer");
        assert_eq!(first.wait().await, Some("answer"));
        assert_eq!(second.wait().await, Some("answer"));
        assert_eq!(single_flight.under_way(), 1);
    }

    #[tokio::test]
    async fn an_abandoned_fetch_is_begun_anew() {
        let single_flight: SingleFlight<u8, u8> = SingleFlight::new();
        let (first, duty) = single_flight.board(1, &now());
        drop(duty);
        assert_eq!(first.wait().await, None);
        let (second, duty) = single_flight.board(1, &now());
        single_flight.land(1, duty.expect("no fetch is under way"), 5);
        assert_eq!(second.wait().await, Some(5));
    }
}
