//! The faults of a run: drawn from its seed, counted by kind.

use std::collections::BTreeMap;
use std::time::Duration;

use bkfs_store::{Operation, StoreErrorKind};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;

use crate::manners::Manners;
use crate::weather::{Kind, Struck, Weather};

/// A request that takes longer than this counts as troubled, even if it succeeds.
const PROMPT: Duration = Duration::from_secs(1);

/// Percentage of the requests for packs that the spread of a world delays.
const SPREAD_PERCENT: u32 = 30;

/// Longest times for which the upload of a data pack and of a metadata pack is held, in
/// milliseconds.
const DATA_HELD_MS: u64 = 3_000;
const METADATA_HELD_MS: u64 = 50_000;

/// The fate of a request. Times are in addition to those of its ordinary way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// The request is carried out and answered.
    Fine,
    /// The request is answered with this error, and not carried out.
    Refused(StoreErrorKind),
    /// The request is carried out, and the answer is this error.
    Lost(StoreErrorKind),
    /// The request is answered as of unknown outcome at once, and carried out this much later.
    Late(Duration),
    /// The request is not answered until the client gives up; carried out or not.
    Hung { applied: bool },
    /// The request stalls until the weather is over. Its connection may be dead by then.
    Still { dead: bool },
    /// The weather refuses the request.
    Turned(StoreErrorKind),
    /// The body of a read ends early: this many thousandths of it arrive.
    Cut(u16),
    /// One bit of the body of a read is flipped.
    Flipped(u32),
}

impl Fate {
    fn name(self) -> &'static str {
        match self {
            Fate::Fine => "fine",
            Fate::Refused(StoreErrorKind::OutcomeUnknown) => "unknown, not applied",
            Fate::Refused(StoreErrorKind::Throttled) => "429 or 503",
            Fate::Refused(StoreErrorKind::Conflict | StoreErrorKind::AlreadyExists) => "409",
            Fate::Refused(_) => "failed before",
            Fate::Lost(StoreErrorKind::Conflict | StoreErrorKind::AlreadyExists) => {
                "412 after its own success"
            }
            Fate::Lost(_) => "answer lost",
            Fate::Late(_) => "late",
            Fate::Hung { .. } => "hung",
            Fate::Still { .. } => "stalled",
            Fate::Turned(StoreErrorKind::NoSpace) => "507",
            Fate::Turned(StoreErrorKind::NoBucket) => "404",
            Fate::Turned(StoreErrorKind::Denied) => "403",
            Fate::Turned(_) => "400",
            Fate::Cut(_) => "cut short",
            Fate::Flipped(_) => "bit flipped",
        }
    }
}

/// The way of a request to the store and back.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Time until the request is carried out.
    pub there: Duration,
    /// Time from then until the answer arrives.
    pub back: Duration,
    /// The part of this time in which bytes of the request move.
    pub moving: Duration,
    /// The fate of the request.
    pub fate: Fate,
    /// If its machine dies meanwhile: whether the request was sent already.
    pub sent: bool,
    /// Whether the request is held, alone, while others of its kind pass.
    pub is_held: bool,
}

/// The rate of each fault, in ten thousandths of all requests. Each run draws its own rates, so
/// that in some runs only one kind of fault occurs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    pub refused: u32,
    pub throttled: u32,
    pub conflict: u32,
    pub lost: u32,
    pub lost_as_conflict: u32,
    pub late: u32,
    pub hung: u32,
    pub cut: u32,
    pub flipped: u32,
    pub slow: u32,
}

impl Way {
    /// Whether the request goes as it should.
    pub fn is_well(&self) -> bool {
        self.fate == Fate::Fine && self.there + self.back < PROMPT
    }
}

impl Rates {
    /// Draws the rates of a run.
    pub fn draw(random: &mut StdRng) -> Self {
        let mut rate = |most: u32| match random.random_range(0..10) {
            0..4 => 0,
            4..9 => random.random_range(0..=most),
            _ => most * 4,
        };
        Self {
            refused: rate(400).max(20),
            throttled: rate(400),
            conflict: rate(300),
            lost: rate(300),
            lost_as_conflict: rate(200),
            late: rate(200),
            hung: rate(40),
            cut: rate(150),
            flipped: rate(100),
            slow: rate(300),
        }
    }
}

/// Draws faults, and counts those that struck.
pub struct Faults {
    start: Instant,
    manners: Manners,
    state: Mutex<State>,
}

struct State {
    random: StdRng,
    rates: Rates,
    weather: Weather,
    struck: BTreeMap<&'static str, u64>,
    /// Number of callers that hold a [`Rest`].
    rests: u32,
    /// Percentage of the uploads of packs that are held.
    held_percent: u32,
}

impl Faults {
    /// Returns the faults of the run of this seed, at these rates. Must be called within the run's
    /// runtime.
    pub fn new(seed: u64, rates: Rates, manners: Manners) -> Self {
        Self {
            start: Instant::now(),
            manners,
            state: Mutex::new(State {
                random: StdRng::seed_from_u64(seed ^ 0xfa17),
                rates,
                weather: Weather::new(seed, manners.gap_ms),
                struck: BTreeMap::new(),
                rests: 0,
                held_percent: manners.held_percent,
            }),
        }
    }

    /// Ends all faults, from now on.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.rates = Rates::default();
        state.weather.heal();
        state.held_percent = 0;
    }

    /// Suspends all faults until the result is dropped.
    pub fn rest(&self) -> Rest<'_> {
        self.state.lock().rests += 1;
        Rest(self)
    }

    /// Counts a fault of another kind.
    pub fn count(&self, kind: &'static str) {
        *self.state.lock().struck.entry(kind).or_default() += 1;
    }

    /// Returns how often each kind of fault struck.
    pub fn struck(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().struck.clone()
    }

    /// Returns how often a body arrived that differs from the one in the bucket.
    pub fn lies(&self) -> u64 {
        let state = self.state.lock();
        let of = |fate: Fate| state.struck.get(fate.name()).copied().unwrap_or(0);
        of(Fate::Cut(0)) + of(Fate::Flipped(0))
    }

    /// Returns how often the weather refused a request.
    pub fn refusals(&self) -> u64 {
        let state = self.state.lock();
        let of = |kind| {
            let name = Fate::Turned(kind).name();
            state.struck.get(name).copied().unwrap_or(0)
        };
        of(StoreErrorKind::NoSpace)
            + of(StoreErrorKind::NoBucket)
            + of(StoreErrorKind::Denied)
            + of(StoreErrorKind::Invalid)
    }

    /// Returns the length of the longest chain of spells of weather that ends at `since` or later.
    pub fn longest_weather(&self, since: Instant) -> Duration {
        let now_ms = self.ms(Instant::now());
        let since_ms = self.ms(since);
        self.state.lock().weather.longest(since_ms, now_ms)
    }

    fn ms(&self, at: Instant) -> u64 {
        at.duration_since(self.start).as_millis() as u64
    }

    /// Returns the number of faults of all kinds.
    pub fn total(&self) -> u64 {
        self.state.lock().struck.values().sum()
    }

    /// Draws the way of a request that sends this many bytes.
    pub fn draw(&self, operation: Operation, key: &str, bytes: usize) -> Way {
        let now_ms = self.ms(Instant::now());
        let mut state = self.state.lock();
        let State {
            random,
            rates,
            weather,
            struck,
            rests,
            held_percent,
        } = &mut *state;
        let is_resting = *rests > 0;
        let rates = &if is_resting { Rates::default() } else { *rates };
        let mut fate = fate(random, rates, operation);
        let slow = random.random_range(0..10_000) < rates.slow;
        let mut time = || {
            let most = if slow { 20_000 } else { 40 };
            Duration::from_millis(random.random_range(1..=most))
        };
        let (mut there, back) = (time(), time());
        let spell = weather.strike(now_ms, key, operation);
        match spell.filter(|_| !is_resting) {
            Some(Struck::Refused(kind)) => fate = Fate::Turned(kind),
            Some(Struck::Still(rest)) => {
                let dead = random.random_range(0..10) < 4;
                fate = Fate::Still { dead };
                there += rest + Duration::from_millis(random.random_range(0..1_000));
            }
            None => {}
        }
        if fate != Fate::Fine {
            *struck.entry(fate.name()).or_default() += 1;
        }
        if slow {
            *struck.entry("slow").or_default() += 1;
        }
        let mut moving = self.moving(bytes);
        let is_pack = matches!(Kind::of(key), Kind::Data | Kind::Metadata);
        let spread_ms = self.manners.spread_ms;
        if is_pack && spread_ms > 0 && !is_resting && random.random_range(0..100) < SPREAD_PERCENT {
            moving += Duration::from_millis(random.random_range(0..spread_ms));
        }
        let may_hold = is_pack && operation == Operation::PutNew && fate == Fate::Fine;
        let is_held = may_hold
            && *held_percent > 0
            && !is_resting
            && random.random_range(0..100) < *held_percent;
        if is_held {
            let longest_ms = match Kind::of(key) {
                Kind::Data => DATA_HELD_MS,
                _ => METADATA_HELD_MS,
            };
            there += Duration::from_millis(random.random_range(500..longest_ms));
            *struck.entry("held").or_default() += 1;
        }
        Way {
            there: there + moving,
            back,
            moving,
            fate,
            sent: random.random(),
            is_held,
        }
    }

    /// Returns the time that this many bytes take on a connection.
    pub fn moving(&self, bytes: usize) -> Duration {
        match self.manners.rate {
            Some(rate) => Duration::from_micros(bytes as u64 * 1_000_000 / rate),
            None => Duration::ZERO,
        }
    }

    /// Returns the time without progress after which a client breaks a request off.
    pub fn silence(&self) -> Duration {
        self.manners.silence()
    }
}

/// Suspends all faults while it lives.
pub struct Rest<'a>(&'a Faults);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.0.state.lock().rests -= 1;
    }
}

fn fate(random: &mut StdRng, rates: &Rates, operation: Operation) -> Fate {
    let write = operation.is_write();
    let refusal = match operation {
        Operation::PutNew => Some(StoreErrorKind::AlreadyExists),
        Operation::Replace => Some(StoreErrorKind::Conflict),
        _ => None,
    };
    let mut below = |rate: u32| random.random_range(0..10_000) < rate;
    let drawn = [
        below(rates.refused),
        below(rates.throttled),
        below(rates.conflict),
        below(rates.lost),
        below(rates.lost_as_conflict),
        below(rates.late),
        below(rates.hung),
        below(rates.cut),
        below(rates.flipped),
    ];
    match drawn.iter().position(|struck| *struck) {
        Some(0) if write && random.random() => Fate::Refused(StoreErrorKind::OutcomeUnknown),
        Some(0) => Fate::Refused(StoreErrorKind::Unreachable),
        Some(1) => Fate::Refused(StoreErrorKind::Throttled),
        // Another write to the object was under way: this one was not made.
        Some(2) if operation == Operation::Replace => Fate::Refused(StoreErrorKind::Conflict),
        Some(3) if write => Fate::Lost(StoreErrorKind::OutcomeUnknown),
        // A client repeats a request, and the repetition meets the result of the first attempt.
        Some(4) => refusal.map_or(Fate::Fine, Fate::Lost),
        Some(5) if write => Fate::Late(Duration::from_millis(random.random_range(1..200_000))),
        Some(6) => Fate::Hung {
            applied: random.random(),
        },
        Some(7) if !write => Fate::Cut(random.random_range(0..1000)),
        Some(8) if !write => Fate::Flipped(random.random()),
        _ => Fate::Fine,
    }
}
