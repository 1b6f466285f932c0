//! What goes wrong in a run: drawn from its seed, counted by kind.

use std::collections::BTreeMap;
use std::time::Duration;

use bkfs_chunker::store::{Operation, StoreErrorKind};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;

use crate::manners::Manners;
use crate::weather::{Kind, Struck, Weather};

/// A request that takes longer than this is in trouble, whatever becomes of it.
const PROMPT: Duration = Duration::from_secs(1);

/// In so many of a hundred requests for packs the spread of a world shows.
const SPREAD_PERCENT: u32 = 30;

/// What happens to a request. Times are on top of the ordinary way there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// It is carried out and answered.
    Fine,
    /// It is answered with this error, and not carried out.
    Refused(StoreErrorKind),
    /// It is carried out, and the answer is this error.
    Lost(StoreErrorKind),
    /// It is answered as of unknown outcome at once, and carried out so much later.
    Late(Duration),
    /// It is not answered until the client gives up; carried out or not.
    Hung { applied: bool },
    /// It stands still as long as the weather does; its connection may be dead by then.
    Still { dead: bool },
    /// The weather refuses it.
    Turned(StoreErrorKind),
    /// A body that is read ends early: so many thousandths of it arrive.
    Cut(u16),
    /// One bit of a body that is read is turned.
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

/// A request's way to the store and back.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Until it is carried out.
    pub there: Duration,
    /// Until the answer arrives.
    pub back: Duration,
    /// Of those, the time in which bytes of it move.
    pub moving: Duration,
    /// What happens.
    pub fate: Fate,
    /// If its machine dies meanwhile: whether it was sent already.
    pub sent: bool,
}

/// How often which fault strikes, in ten thousandths of all requests. Each run draws its own, so that some are quiet but for one kind.
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
    /// Whether it goes as it should.
    pub fn is_well(&self) -> bool {
        self.fate == Fate::Fine && self.there + self.back < PROMPT
    }
}

impl Rates {
    /// The rates of a run.
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
    /// How many ask for rest.
    rests: u32,
}

impl Faults {
    /// The faults of the run of this seed, at these rates. Must be made within the run's runtime.
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
            }),
        }
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.rates = Rates::default();
        state.weather.heal();
    }

    /// Nothing goes wrong until the answer is dropped.
    pub fn rest(&self) -> Rest<'_> {
        self.state.lock().rests += 1;
        Rest(self)
    }

    /// A fault of another kind struck.
    pub fn count(&self, kind: &'static str) {
        *self.state.lock().struck.entry(kind).or_default() += 1;
    }

    /// How often which struck.
    pub fn struck(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().struck.clone()
    }

    /// How often a body arrived that was not what the bucket holds.
    pub fn lies(&self) -> u64 {
        let state = self.state.lock();
        let of = |fate: Fate| state.struck.get(fate.name()).copied().unwrap_or(0);
        of(Fate::Cut(0)) + of(Fate::Flipped(0))
    }

    /// How often the weather refused a request.
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

    /// The longest time since then in which the weather was bad again and again.
    pub fn longest_weather(&self, since: Instant) -> Duration {
        let now_ms = self.ms(Instant::now());
        let since_ms = self.ms(since);
        self.state.lock().weather.longest(since_ms, now_ms)
    }

    fn ms(&self, at: Instant) -> u64 {
        at.duration_since(self.start).as_millis() as u64
    }

    /// How many struck in all.
    pub fn total(&self) -> u64 {
        self.state.lock().struck.values().sum()
    }

    /// What happens to a request that sends so many bytes.
    pub fn draw(&self, operation: Operation, key: &str, bytes: usize) -> Way {
        let now_ms = self.ms(Instant::now());
        let mut state = self.state.lock();
        let State {
            random,
            rates,
            weather,
            struck,
            rests,
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
        Way {
            there: there + moving,
            back,
            moving,
            fate,
            sent: random.random(),
        }
    }

    /// How long so many bytes take.
    pub fn moving(&self, bytes: usize) -> Duration {
        match self.manners.rate {
            Some(rate) => Duration::from_micros(bytes as u64 * 1_000_000 / rate),
            None => Duration::ZERO,
        }
    }

    /// After so long without progress a client gives a request up.
    pub fn silence(&self) -> Duration {
        self.manners.silence()
    }
}

/// While this lives nothing goes wrong.
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
        // A client's own repetition meets what its first attempt has done.
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
