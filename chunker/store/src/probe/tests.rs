//! Tests of the probe against a correct store, and against stores with one fault each.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::{MemoryStore, ObjectInfo, Operation};

/// The fault of a store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wrong {
    No,
    IgnoresCreateOnly,
    InvertsCreateOnly,
    IgnoresVersions,
    CreatesOnReplace,
    RefusesReplace,
    ForgetsWrites,
    ListsLate,
    ChecksThenWrites,
    OneVersionForAll,
    IgnoresRange,
    AnswersAndForgets,
    TearsContents,
    MixesObjects,
}

/// A store in memory with one fault.
#[derive(Debug)]
struct WrongStore {
    inner: MemoryStore,
    wrong: Wrong,
}

#[async_trait]
impl crate::Layer for WrongStore {
    fn below(&self) -> &dyn Store {
        &self.inner
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        if self.wrong == Wrong::ForgetsWrites {
            let absent = StoreErrorKind::NotFound;
            return Err(StoreError::new(absent, Operation::Get, key, "later"));
        }
        let (bytes, version) = self.inner.get(key).await?;
        match self.wrong {
            Wrong::MixesObjects => {
                let other = key.replace(PROBE_PREFIX, "probe/other-");
                Ok((body(&other, "first").remove(0), version))
            }
            Wrong::OneVersionForAll => Ok((bytes, Version::token("same".into()))),
            _ => Ok((bytes, version)),
        }
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        let exists = self.inner.head(key).await.is_ok();
        match self.wrong {
            Wrong::IgnoresCreateOnly => self.inner.put(key, body).await,
            Wrong::TearsContents => {
                let torn = [body, vec![Bytes::from_static(b"the end of another")]].concat();
                self.inner.put_new(key, torn).await
            }
            Wrong::InvertsCreateOnly if !exists => {
                let kind = StoreErrorKind::AlreadyExists;
                Err(StoreError::new(kind, Operation::PutNew, key, "inverted"))
            }
            Wrong::ChecksThenWrites if !exists => {
                tokio::task::yield_now().await;
                self.inner.put(key, body).await
            }
            Wrong::OneVersionForAll => {
                self.inner.put_new(key, body).await?;
                Ok(Version::token("same".into()))
            }
            _ => self.inner.put_new(key, body).await,
        }
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        match self.wrong {
            Wrong::IgnoresRange => {
                let (operation, kind) = (Operation::GetRange, StoreErrorKind::Invalid);
                Err(StoreError::new(kind, operation, key, "the whole object"))
            }
            _ => self.inner.get_range(key, range).await,
        }
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        if self.wrong == Wrong::AnswersAndForgets && body[0].ends_with(b"replacer 0") {
            return Ok(Version::token("forgotten".into()));
        }
        if self.wrong == Wrong::AnswersAndForgets
            && body[0].windows(8).any(|word| word == b"replacer")
        {
            let kind = StoreErrorKind::Conflict;
            return Err(StoreError::new(kind, Operation::Replace, key, "lost"));
        }
        let exists = self.inner.head(key).await.is_ok();
        match self.wrong {
            Wrong::IgnoresVersions if exists => self.inner.put(key, body).await,
            Wrong::CreatesOnReplace if !exists => self.inner.put(key, body).await,
            Wrong::RefusesReplace => {
                let kind = StoreErrorKind::Conflict;
                Err(StoreError::new(kind, Operation::Replace, key, "never"))
            }
            Wrong::OneVersionForAll => {
                self.inner.put(key, body).await?;
                Ok(Version::token("same".into()))
            }
            _ => self.inner.replace(key, body, expected).await,
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        match self.wrong {
            Wrong::ListsLate => Ok(Vec::new()),
            _ => self.inner.list(prefix, after, limit).await,
        }
    }

    fn describe(&self) -> String {
        "s3://wrong".to_owned()
    }
}

#[tokio::test]
async fn a_right_store_is_fit_and_left_as_it_was() {
    let store = MemoryStore::new();
    for salt in ["a", "a", "b"] {
        probe_conditional_writes(&store, salt, Races::MANY)
            .await
            .unwrap();
        assert_eq!(store.object_count(), 0);
    }
}

#[tokio::test]
async fn several_probe_at_once() {
    let store = MemoryStore::new();
    let probes = (0..8).map(|number| {
        let store = store.clone();
        async move { probe_conditional_writes(&store, &format!("salt-{number}"), Races::FEW).await }
    });
    for result in join_all(probes).await {
        result.unwrap();
    }
    assert_eq!(store.object_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn each_wrong_store_is_unfit_and_told_why() {
    let cases = [
        (Wrong::IgnoresCreateOnly, "over an existing object succeeds"),
        (Wrong::InvertsCreateOnly, "of a new object is refused"),
        (Wrong::IgnoresVersions, "with an outdated version succeeds"),
        (Wrong::CreatesOnReplace, "that does not exist succeeds"),
        (Wrong::RefusesReplace, "with the right version is refused"),
        (Wrong::ForgetsWrites, "reads do not see earlier writes"),
        (Wrong::ListsLate, "lists do not see earlier writes"),
        (Wrong::ChecksThenWrites, "4 succeed: they are not one step"),
        (Wrong::OneVersionForAll, "have the same version"),
        (
            Wrong::IgnoresRange,
            "a part of an object cannot be read (Range)",
        ),
        (Wrong::AnswersAndForgets, "what it wrote does not stand"),
        (Wrong::TearsContents, "bytes that no request wrote"),
        (Wrong::MixesObjects, "the content of another object"),
    ];
    for (wrong, words) in cases {
        let store = WrongStore {
            inner: MemoryStore::new(),
            wrong,
        };
        let error = probe_conditional_writes(&store, "salt", Races::FEW)
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, ProbeError::Unfit { .. }),
            "{wrong:?}: {text}"
        );
        assert!(
            text.starts_with("s3://wrong cannot hold a repository"),
            "{text}"
        );
        assert!(text.contains(words), "{wrong:?}: {text}");
        assert_eq!(store.inner.object_count(), 0, "{wrong:?}");
    }
    let store = WrongStore {
        inner: MemoryStore::new(),
        wrong: Wrong::No,
    };
    probe_conditional_writes(&store, "salt", Races::FEW)
        .await
        .unwrap();
}

/// A store that ignores the condition of some requests, behind a connection that loses some
/// answers.
#[derive(Debug)]
struct Shaky {
    inner: MemoryStore,
    random: Mutex<StdRng>,
    slips_percent: u8,
    lost_percent: u8,
    /// How many answers of reads are cut short or have a flipped bit.
    damaged_percent: u8,
    /// Whether a proxy repeats a write whose answer is lost, so that the write is refused because
    /// of its own success.
    repeats: bool,
}

impl Shaky {
    fn new(seed: u64, slips_percent: u8, lost_percent: u8, repeats: bool) -> Self {
        Self {
            inner: MemoryStore::new(),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            slips_percent,
            lost_percent,
            damaged_percent: 0,
            repeats,
        }
    }

    /// Returns the body of an answer as it arrives.
    fn arrived(&self, bytes: Bytes) -> Bytes {
        if !self.happens(self.damaged_percent) {
            return bytes;
        }
        let place = self.random.lock().next_u32() as usize % bytes.len();
        if self.happens(50) {
            return bytes.slice(..place);
        }
        let mut damaged = bytes.to_vec();
        damaged[place] ^= 4;
        damaged.into()
    }

    fn happens(&self, percent: u8) -> bool {
        let mut byte = [0; 2];
        self.random.lock().fill_bytes(&mut byte);
        u16::from_le_bytes(byte) % 100 < u16::from(percent)
    }

    fn lose(&self, operation: Operation, key: &str) -> Result<(), StoreError> {
        let refused = match operation {
            Operation::PutNew => StoreErrorKind::AlreadyExists,
            _ => StoreErrorKind::Conflict,
        };
        let kind = if self.repeats {
            refused
        } else {
            StoreErrorKind::OutcomeUnknown
        };
        match self.happens(self.lost_percent) {
            true => Err(StoreError::new(kind, operation, key, "the answer is lost")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl crate::Layer for Shaky {
    fn below(&self) -> &dyn Store {
        &self.inner
    }

    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        let (bytes, version) = self.inner.get(key).await?;
        Ok((self.arrived(bytes), version))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        Ok(self.arrived(self.inner.get_range(key, range).await?))
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let (tail, size) = self.inner.get_tail(key, bytes).await?;
        Ok((self.arrived(tail), size))
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        let written = match self.happens(self.slips_percent) {
            true => self.inner.put(key, body).await,
            false => self.inner.put_new(key, body).await,
        };
        self.lose(Operation::PutNew, key)?;
        written
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        let exists = self.inner.head(key).await.is_ok();
        let written = match exists && self.happens(self.slips_percent) {
            true => self.inner.put(key, body).await,
            false => self.inner.replace(key, body, expected).await,
        };
        self.lose(Operation::Replace, key)?;
        written
    }
}

async fn probed(store: &Arc<Shaky>, races: Races) -> Result<(), ProbeError> {
    probe_conditional_writes(store.as_ref(), "salt", races).await
}

#[tokio::test(start_paused = true)]
async fn a_line_that_loses_answers_makes_no_store_unfit() {
    for seed in 0..400 {
        for repeats in [false, true] {
            for races in [Races::FEW, Races::MANY] {
                let store = Arc::new(Shaky::new(seed, 0, 15, repeats));
                let verdict = probed(&store, races).await;
                verdict.unwrap_or_else(|error| panic!("seed {seed}, {repeats}: {error}"));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_that_damages_reads_makes_no_store_unfit() {
    for seed in 0..400 {
        for races in [Races::FEW, Races::MANY] {
            let store = Arc::new(Shaky {
                damaged_percent: 5,
                ..Shaky::new(seed, 0, 0, false)
            });
            let verdict = probed(&store, races).await;
            verdict.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
    let store = Arc::new(Shaky {
        damaged_percent: 100,
        ..Shaky::new(0, 0, 0, false)
    });
    let verdict = probed(&store, Races::FEW).await;
    let error = verdict.expect_err("no answer is right");
    assert!(matches!(error, ProbeError::Unfit { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn many_races_find_a_store_that_now_and_then_checks_no_condition() {
    for (lost_percent, damaged_percent) in [(0, 0), (15, 0), (0, 10)] {
        let mut found = 0;
        for seed in 0..200 {
            let store = Arc::new(Shaky {
                damaged_percent,
                ..Shaky::new(seed, 3, lost_percent, false)
            });
            if let Err(error) = probed(&store, Races::MANY).await {
                assert!(matches!(error, ProbeError::Unfit { .. }), "{error}");
                found += 1;
            }
        }
        assert!(
            found >= 198,
            "{lost_percent}, {damaged_percent}: {found} of 200"
        );
    }
}
