//! The weather: for a while the bucket stalls or refuses requests, for all objects or for one kind
//! of them.
//!
//! A spell begins and ends by the world's clock, regardless of requests. A request that begins in a
//! spell stalls until the spell ends, or is refused at once.

use std::time::Duration;

use bkfs_store::{Operation, StoreErrorKind};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Kinds of objects, by their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Journal,
    Data,
    Metadata,
    Index,
    List,
    Root,
    Session,
    Other,
}

impl Kind {
    /// Returns the kind of the object under `key`, or of the objects whose keys begin with it.
    pub fn of(key: &str) -> Self {
        match key.split('/').next().unwrap_or_default() {
            "journal" => Kind::Journal,
            "data" => Kind::Data,
            "meta" => Kind::Metadata,
            "index" => Kind::Index,
            "lists" => Kind::List,
            "root" => Kind::Root,
            // Both tell a session what it is.
            "sessions" | "fence" => Kind::Session,
            _ => Kind::Other,
        }
    }
}

/// The effect of a spell on a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Struck {
    /// The request stalls for this time.
    Still(Duration),
    /// The request is refused.
    Refused(StoreErrorKind),
}

/// A time in which the bucket stalls or refuses requests.
#[derive(Clone, Copy, Debug)]
struct Spell {
    /// The kind of the objects that it affects, or `None` for all.
    kind: Option<Kind>,
    /// The error of its refusals, or `None` if the bucket stalls.
    refusal: Option<StoreErrorKind>,
    from_ms: u64,
    until_ms: u64,
}

impl Spell {
    fn strikes(&self, kind: Kind, operation: Operation) -> bool {
        let is_meant = self.kind.is_none_or(|meant| meant == kind);
        // A full disk answers reads, and deletes.
        let needs_room = operation.is_write() && operation != Operation::Delete;
        is_meant && (self.refusal != Some(StoreErrorKind::NoSpace) || needs_room)
    }
}

/// The weather of a run.
pub struct Weather {
    random: StdRng,
    /// Half of the longest time between the beginnings of two spells, in milliseconds, or `None` if
    /// there is no weather.
    gap_ms: Option<u64>,
    next_ms: u64,
    now: Vec<Spell>,
    /// Beginnings and ends of times of bad weather, in milliseconds. A chain joins spells with
    /// short pauses.
    chains: Vec<(u64, u64)>,
}

/// Length of a pause between two spells from which the engine can recover, in milliseconds.
const RECOVERS_MS: u64 = 30_000;

impl Weather {
    /// Returns the weather of the run of this seed.
    pub fn new(seed: u64, gap_ms: Option<u64>) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x05ea_50e5);
        let next_ms = random.random_range(0..2 * gap_ms.unwrap_or(1).max(1));
        Self {
            random,
            gap_ms,
            next_ms,
            now: Vec::new(),
            chains: Vec::new(),
        }
    }

    /// Ends the weather, from now on.
    pub fn heal(&mut self) {
        self.gap_ms = None;
        self.now.clear();
    }

    /// Returns the effect on a request that begins now.
    pub fn strike(&mut self, now_ms: u64, key: &str, operation: Operation) -> Option<Struck> {
        self.advance(now_ms);
        let kind = Kind::of(key);
        let spell = self
            .now
            .iter()
            .find(|spell| spell.strikes(kind, operation))?;
        Some(match spell.refusal {
            Some(kind) => Struck::Refused(kind),
            None => Struck::Still(Duration::from_millis(spell.until_ms - now_ms)),
        })
    }

    /// Returns the length of the longest chain of spells that ends at `since_ms` or later. A pause
    /// inside a chain is at most [`RECOVERS_MS`].
    pub fn longest(&mut self, since_ms: u64, now_ms: u64) -> Duration {
        self.advance(now_ms);
        let chains = self.chains.iter();
        let after = chains.filter(|(_, until)| *until >= since_ms);
        let longest = after.map(|(from, until)| until.min(&now_ms).saturating_sub(*from));
        Duration::from_millis(longest.max().unwrap_or(0))
    }

    fn advance(&mut self, now_ms: u64) {
        while let Some(gap_ms) = self.gap_ms
            && self.next_ms <= now_ms
        {
            let spell = self.spell(self.next_ms);
            self.now.push(spell);
            match self.chains.last_mut() {
                Some((_, until)) if spell.from_ms <= *until + RECOVERS_MS => {
                    *until = spell.until_ms.max(*until);
                }
                _ => self.chains.push((spell.from_ms, spell.until_ms)),
            }
            self.next_ms += self.random.random_range(1..2 * gap_ms);
        }
        self.now.retain(|spell| now_ms < spell.until_ms);
    }

    fn spell(&mut self, from_ms: u64) -> Spell {
        let random = &mut self.random;
        let kind = match random.random_range(0..100) {
            0..30 => None,
            30..55 => Some(Kind::Journal),
            55..68 => Some(Kind::Data),
            68..82 => Some(Kind::Metadata),
            82..88 => Some(Kind::Index),
            88..92 => Some(Kind::List),
            92..97 => Some(Kind::Root),
            _ => Some(Kind::Session),
        };
        let refusal = match random.random_range(0..100) {
            0..62 => None,
            62..78 => Some(StoreErrorKind::NoSpace),
            78..86 => Some(StoreErrorKind::NoBucket),
            86..93 => Some(StoreErrorKind::Invalid),
            _ => Some(StoreErrorKind::Denied),
        };
        let length_ms = match (random.random_range(0..10), refusal) {
            (0..5, _) => random.random_range(500..8_000),
            (5..8, _) => random.random_range(8_000..60_000),
            (_, None) => random.random_range(60_000..400_000),
            (_, Some(_)) => random.random_range(10_000..120_000),
        };
        Spell {
            kind,
            refusal,
            from_ms,
            until_ms: from_ms + length_ms,
        }
    }
}
