//! The log messages about a store that fails: that an outage began, its cause, and that it is over.
//!
//! This module owns the times at which it logs. `bkfs_store::Signs` decides what counts as
//! trouble and when it began. The callers decide how long they wait.

use std::time::Duration;

use bkfs_store::backoff::Backoff;
use bkfs_store::{Outage, Signs};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Interval at which the store is checked while requests wait for it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The times between two messages about one outage.
const AGAIN: Backoff = Backoff {
    first: Duration::from_secs(15),
    longest: Duration::from_secs(600),
};

/// An outage that returns within this time has not been over.
const WELL_AFTER: Duration = Duration::from_secs(5);

/// A task that watches a store. It ends when this is dropped.
pub struct Teller(JoinHandle<()>);

impl Teller {
    /// Starts to watch.
    ///
    /// A request that waits for the store fails after `timeout` without progress. Must be called
    /// within a tokio runtime.
    pub fn start(signs: Signs, timeout: Duration) -> Self {
        signs.tell();
        Self(tokio::spawn(async move {
            let mut talk = Talk::default();
            loop {
                if talk.is_silent() {
                    signs.stirred().await;
                }
                tokio::time::sleep(LOOK_EVERY).await;
                match talk.look(signs.outage(), Instant::now()) {
                    Some(Word::Trouble(outage)) => tracing::warn!("{}", text(&outage, timeout)),
                    Some(Word::Over(lasted)) => {
                        tracing::warn!("the store is well again, after {} s", lasted.as_secs());
                    }
                    None => {}
                }
            }
        }))
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns an outage in words: how long it has lasted, its cause, how many requests wait, and how
/// long until they fail.
pub fn text(outage: &Outage, timeout: Duration) -> String {
    let lasts = outage.since.elapsed();
    let end = match fails_in(outage, timeout) {
        Some(left) => format!("waiting requests fail in {} s", left.as_secs()),
        None => "waiting requests fail".to_owned(),
    };
    format!(
        "the store has not answered as needed for {} s ({}): {}; {} requests are in flight; {end}",
        lasts.as_secs(),
        outage.cause(),
        outage.error,
        outage.waiting,
    )
}

/// Returns the time until operations fail that have waited since the outage began, or `None` if
/// they already fail.
pub fn fails_in(outage: &Outage, timeout: Duration) -> Option<Duration> {
    timeout
        .checked_sub(outage.since.elapsed())
        .filter(|left| !left.is_zero())
}

/// A message to log.
#[derive(Debug)]
enum Word {
    Trouble(Outage),
    Over(Duration),
}

/// The messages that were logged so far.
#[derive(Debug, Default)]
struct Talk {
    told: Option<Told>,
}

#[derive(Debug)]
struct Told {
    since: Instant,
    /// The number of messages that were logged about the outage.
    messages: u32,
    /// When the outage is logged again.
    next: Instant,
    well: Option<Instant>,
}

impl Talk {
    /// Whether no outage was logged whose end has not been logged yet.
    fn is_silent(&self) -> bool {
        self.told.is_none()
    }

    fn look(&mut self, outage: Option<Outage>, now: Instant) -> Option<Word> {
        match (&mut self.told, outage) {
            (None, None) => None,
            (told @ None, Some(outage)) => {
                *told = Some(Told {
                    since: outage.since,
                    messages: 1,
                    next: now + AGAIN.limit(1),
                    well: None,
                });
                Some(Word::Trouble(outage))
            }
            (Some(told), Some(mut outage)) => {
                told.well = None;
                if now < told.next {
                    return None;
                }
                told.messages += 1;
                told.next = now + AGAIN.limit(told.messages);
                outage.since = told.since.min(outage.since);
                Some(Word::Trouble(outage))
            }
            (Some(told), None) => {
                let well = *told.well.get_or_insert(now);
                if now < well + WELL_AFTER {
                    return None;
                }
                let lasted = well.saturating_duration_since(told.since);
                self.told = None;
                Some(Word::Over(lasted))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bkfs_store::{Operation, StoreError, StoreErrorKind};

    use super::*;

    fn outage(since: Instant) -> Outage {
        let error = StoreError::new(
            StoreErrorKind::NoSpace,
            Operation::PutNew,
            "data/1",
            "the store is full: s3.example answered 507",
        );
        Outage {
            since,
            error,
            waiting: 3,
        }
    }

    /// Returns the seconds at which a message is logged, for a store that works in the seconds that
    /// `is_well` names.
    fn said(lasts: u64, is_well: impl Fn(u64) -> bool) -> Vec<(u64, String)> {
        let begin = Instant::now();
        let mut talk = Talk::default();
        let mut said = Vec::new();
        for second in 0..lasts {
            let now = begin + Duration::from_secs(second);
            let outage = (!is_well(second)).then(|| outage(begin));
            match talk.look(outage, now) {
                Some(Word::Trouble(_)) => said.push((second, "trouble".to_owned())),
                Some(Word::Over(lasted)) => {
                    said.push((second, format!("{} s", lasted.as_secs())));
                }
                None => {}
            }
        }
        said
    }

    #[test]
    fn an_outage_is_said_once_then_less_and_less_often_then_that_it_is_over() {
        let words = said(200, |second| !(4..150).contains(&second));
        let trouble = |second| (second, "trouble".to_owned());
        let over = (155, "150 s".to_owned());
        assert_eq!(
            words,
            [4, 19, 49, 109]
                .map(trouble)
                .into_iter()
                .chain([over])
                .collect::<Vec<_>>()
        );
        assert!(said(100, |_| true).is_empty());
    }

    #[test]
    fn trouble_that_comes_and_goes_is_one_outage() {
        let words = said(40, |second| second % 4 == 3 || second > 30);
        let trouble = |second| (second, "trouble".to_owned());
        assert_eq!(words, [trouble(0), trouble(16), (36, "31 s".to_owned())]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_words_say_why_and_how_long() {
        let since = Instant::now();
        tokio::time::advance(Duration::from_secs(7)).await;
        let told = text(&outage(since), Duration::from_secs(20));
        for word in [
            "for 7 s",
            "(full)",
            "data/1",
            "answered 507",
            "3 requests",
            "fail in 13 s",
        ] {
            assert!(told.contains(word), "{word}: {told}");
        }
        tokio::time::advance(Duration::from_secs(20)).await;
        let told = text(&outage(since), Duration::from_secs(20));
        assert!(told.ends_with("waiting requests fail"), "{told}");
    }
}
