//! bkfs's own mount options.

use std::path::PathBuf;
use std::time::Duration;

use bkfs_chunker::content_store::Compression;
use bkfs_chunker::crypto::SlotName;
use bkfs_fuse::options::OtherOption;
use bkfs_store::rate_limit::Rates;

use crate::units::{LetterM, rate, stretch};
use crate::vfs::{CloseMode, DedupMode};

/// Default of `memory=`, in bytes: memory for everything.
const MEMORY_BYTES: u64 = 512 << 20;

/// Least memory that works, in bytes: two open packs, a fetch, and room for dirty bytes.
const MEMORY_BYTES_MIN: u64 = 128 << 20;

/// Default of `cache_size=`, in bytes: frames on disk.
pub const CACHE_BYTES: u64 = 10 << 30;

/// Default of `spool_size=`, in bytes: most that the spool of a mount holds.
pub const SPOOL_BYTES: u64 = 4 << 30;

/// Least useful size of a spool, in bytes: some packs. 0 means no spool.
const SPOOL_BYTES_MIN: u64 = 64 << 20;

/// Default of `timeout=`: how long the store may make no progress.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Default of `drain=`: how long SIGTERM waits for the store. Less than the 15 minutes after which
/// the systemd unit kills.
const DRAIN: Duration = Duration::from_secs(600);

/// Most seconds of a time: 136 years. Later points in time would overflow the monotonic clock.
const SECONDS_MAX: u64 = u32::MAX as u64;

/// Description of a time.
const SECONDS: &str = "a time such as 90, 90s or 5m, from 1 s to 4294967295 s";

/// Least rate, in bytes per second: one pack takes a minute.
const RATE_MIN: u64 = 256 << 10;

/// Description of a rate.
const RATE: &str = "bytes per second, at least 256K";

/// Least rate of scrubbing, in bytes per second: 1 TB takes half a year.
const SCRUB_RATE_MIN: u64 = 64 << 10;

/// Description of a scrubbing rate.
const SCRUB_RATE: &str = "0, or bytes per second, at least 64K";

/// Description of a key.
const KEY: &str = "the whole name of a key, 16 hexadecimal digits as bkfs key list shows it";

/// Every option of a mount, for the help text.
pub const OPTIONS_HELP: &str = "\
Mount options (-o NAME=VALUE,…), with the defaults in parentheses:
  volume=NAME            the volume to work on (main)
  create                 make the volume if the repository has none of this name
  clone=SNAPSHOT         mount a writable clone of a snapshot (NAME, latest or @TIME) of the volume
                         that volume= names; without as= it is thrown away at unmount
  as=NAME                with clone=: the name of the volume that the clone becomes, and stays
  scratch                with as=: nothing is promised across a crash, and nothing stored before
                         the unmount unless memory runs short
  trace=NAME             fetch first what this trace tells (bkfs trace), or none; the newest of the
                         volume is the default of a clone
  snapshot=NAME          mount only this snapshot: its name, latest or @TIME (@2026-11-23,
                         @yesterday, @2026-11-23T10:00:00Z; UTC)
  ro                     read-only
  fsync=bucket|local     fsync waits for the bucket, or for the spool on this machine (bucket)
  close=bounded|durable|async
                         close waits for a bounded time, for the bucket, or not at all (bounded)
  dedup=shared|private   private stores the writes of other users (allow_other) without dedup,
                         so that their speed does not show them what is stored (shared)
  cache_dir=DIRECTORY    where to keep fetched data (/var/cache/bkfs or $XDG_CACHE_HOME/bkfs)
  cache_size=SIZE        most bytes of that (10G, at most a tenth of what is free)
  spool_size=SIZE        most bytes on disk that wait for a slow store, or that are changed on a
                         clone that is thrown away; 0 for none (4G)
  memory=SIZE            memory for everything, at least 128M (512M)
  compression=auto|none|LEVEL
                         LEVEL 1 to 19; auto adapts to content, processor and store (auto)
  upload_rate=RATE       bytes per second, at least 256K (unlimited)
  download_rate=RATE     bytes per second, at least 256K (unlimited)
  scrub=RATE             verify all packs in the background, at least 64K per second (off)
  timeout=SECONDS        how long the store may make no progress before requests fail (300)
  drain=SECONDS          how long SIGTERM waits for the store (600)
  wait                   wait up to timeout= for a server that cannot be reached
  accept_loss            continue without acknowledged changes that the bucket has lost
  endpoint=URL, region=NAME, password_file=FILE, key=NAME
                         like the arguments of these names
  allow_suid, allow_dev  like suid and dev, but also through mount(8) and fstab (off)
  allow_other, allow_root, default_permissions, uid=, gid=, umask=, noatime, …
                         as in every FUSE filesystem
SIZE and RATE take units: 64K, 1.5G (powers of 1024), 500MB, 1TB (powers of 1000). SECONDS take
units: 90s, 5m, 2h. SEMANTICS.md says what each option promises.";

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `volume=`; `None` for the default.
    pub volume: Option<String>,
    /// `snapshot=`: mount this one only.
    pub snapshot: Option<String>,
    /// `clone=`: mount a writable clone of this snapshot.
    pub clone: Option<String>,
    /// `as=`: the name of the clone; `None` for one that is thrown away.
    pub clone_as: Option<String>,
    /// `scratch`: fsync promises nothing.
    pub scratch: bool,
    /// `trace=`: the trace to replay; `None` for the newest one, if the mount is a clone.
    pub trace: Option<String>,
    /// `close=`.
    pub close: CloseMode,
    /// `dedup=`.
    pub dedup: DedupMode,
    /// `cache_dir=`.
    pub cache_dir: Option<PathBuf>,
    /// `cache_size=`, in bytes; `None` if it was not given.
    pub cache_bytes: Option<u64>,
    /// `fsync=local`: fsync waits only for the spool.
    pub fsync_local: bool,
    /// `spool_size=`, in bytes, 0 for no spool; `None` if it was not given.
    pub spool_bytes: Option<u64>,
    /// `memory=`, in bytes.
    pub memory_bytes: u64,
    /// `compression=`.
    pub compression: Compression,
    /// `timeout=`.
    pub timeout: Duration,
    /// `upload_rate=` and `download_rate=`.
    pub rates: Rates,
    /// `scrub=`: bytes of packs that are verified per second in the background; `None` for no
    /// scrubbing.
    pub scrub: Option<u64>,
    /// `drain=`: how long SIGTERM waits for the store before the rest stays in the spool.
    pub drain: Duration,
    /// `wait`: wait for a server that was never reached.
    pub wait: bool,
    /// `accept_loss`: take the volume even if journals are missing.
    pub accept_loss: bool,
    /// `create`: make the volume if there is none of the name.
    pub create: bool,
    /// `endpoint=`.
    pub endpoint: Option<String>,
    /// `region=`.
    pub region: Option<String>,
    /// `password_file=`.
    pub password_file: Option<PathBuf>,
    /// `key=`: the one key slot that the password is tried on.
    pub key: Option<SlotName>,
    /// File for the result of the mount. No option: the caller sets it.
    pub outcome: Option<PathBuf>,
    /// Directory of this machine's progress of scrubbing. No option: the caller sets it.
    pub state_dir: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            volume: None,
            snapshot: None,
            clone: None,
            clone_as: None,
            scratch: false,
            trace: None,
            close: CloseMode::Bounded,
            dedup: DedupMode::Shared,
            cache_dir: None,
            cache_bytes: None,
            fsync_local: false,
            spool_bytes: None,
            memory_bytes: MEMORY_BYTES,
            compression: Compression::Auto,
            timeout: TIMEOUT,
            rates: Rates::default(),
            scrub: None,
            drain: DRAIN,
            wait: false,
            accept_loss: false,
            create: false,
            endpoint: None,
            region: None,
            password_file: None,
            key: None,
            outcome: None,
            state_dir: None,
        }
    }
}

/// Errors of an option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// The option is unknown.
    #[error("unknown mount option '{0}'")]
    Unknown(String),
    /// It has no meaning without another option.
    #[error("mount option '{option}' needs '{other}='")]
    Needs {
        /// The option.
        option: &'static str,
        /// The option that is missing.
        other: &'static str,
    },
    /// Another option says something else.
    #[error("mount options '{option}=' and '{other}=' exclude each other")]
    Excludes {
        /// The option.
        option: &'static str,
        /// The other one.
        other: &'static str,
    },
    /// The value is malformed or out of range.
    #[error("mount option '{key}={value}': expected {expected}")]
    BadValue {
        /// The option.
        key: String,
        /// The value that was given.
        value: String,
        /// Values that are accepted.
        expected: &'static str,
    },
}

impl Settings {
    /// Parses the options that the generic parser left over.
    ///
    /// # Errors
    /// The first option that is unknown or malformed, by name.
    pub fn parse(options: &[OtherOption]) -> Result<Self, SettingError> {
        let mut settings = Settings::default();
        for option in options {
            settings.apply(&option.key, option.value.as_deref().unwrap_or_default())?;
        }
        settings.check_clone()?;
        Ok(settings)
    }

    /// Checks that the options of a clone go together.
    fn check_clone(&self) -> Result<(), SettingError> {
        let needs = |option, other| Err(SettingError::Needs { option, other });
        match self {
            Self {
                clone: Some(_),
                snapshot: Some(_),
                ..
            } => Err(SettingError::Excludes {
                option: "clone",
                other: "snapshot",
            }),
            Self { clone: Some(_), .. } => Ok(()),
            Self {
                clone_as: Some(_), ..
            } => needs("as", "clone"),
            Self { scratch: true, .. } => needs("scratch", "clone"),
            _ => Ok(()),
        }
    }

    fn apply(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        let bad = |expected| SettingError::BadValue {
            key: key.into(),
            value: value.into(),
            expected,
        };
        let text = |expected| {
            if value.is_empty() {
                Err(bad(expected))
            } else {
                Ok(value.to_owned())
            }
        };
        let at_least = |least, expected| {
            let amount = rate(value).filter(|amount| *amount >= least);
            amount.ok_or_else(|| bad(expected))
        };
        let none_or_at_least = |least, expected| {
            let amount = rate(value).filter(|amount| *amount == 0 || *amount >= least);
            amount.ok_or_else(|| bad(expected))
        };
        match key {
            "volume" => self.volume = Some(text("a volume's name")?),
            "snapshot" => self.snapshot = Some(text("a snapshot's name, latest or @TIME")?),
            "clone" => self.clone = Some(text("a snapshot's name, latest or @TIME")?),
            "as" => self.clone_as = Some(text("a volume's name")?),
            "trace" => self.trace = Some(text("a trace's name, or none")?),
            "scratch" if value.is_empty() => self.scratch = true,
            "endpoint" => self.endpoint = Some(text("a URL")?),
            "region" => self.region = Some(text("a region's name")?),
            "key" => self.key = Some(value.parse().map_err(|()| bad(KEY))?),
            "password_file" => self.password_file = Some(absolute(text("a file")?)),
            "cache_dir" => self.cache_dir = Some(absolute(text("a directory")?)),
            "cache_size" => self.cache_bytes = Some(at_least(0, "a size such as 10G")?),
            "spool_size" => {
                let bytes = none_or_at_least(SPOOL_BYTES_MIN, "0, or a size of at least 64M")?;
                self.spool_bytes = Some(bytes);
            }
            "memory" => self.memory_bytes = at_least(MEMORY_BYTES_MIN, "a size of at least 128M")?,
            "timeout" => self.timeout = seconds(value).ok_or_else(|| bad(SECONDS))?,
            "wait" if value.is_empty() => self.wait = true,
            "accept_loss" if value.is_empty() => self.accept_loss = true,
            "create" if value.is_empty() => self.create = true,
            "drain" => self.drain = seconds(value).ok_or_else(|| bad(SECONDS))?,
            "upload_rate" => self.rates.upload = Some(at_least(RATE_MIN, RATE)?),
            "download_rate" => self.rates.download = Some(at_least(RATE_MIN, RATE)?),
            "close" => {
                let mode = one_of(value, CLOSE_MODES);
                self.close = mode.ok_or_else(|| bad("bounded, durable or async"))?;
            }
            "dedup" => {
                let mode = one_of(value, DEDUP_MODES);
                self.dedup = mode.ok_or_else(|| bad("shared or private"))?;
            }
            "fsync" => {
                let is_local = one_of(value, &[("bucket", false), ("local", true)]);
                self.fsync_local = is_local.ok_or_else(|| bad("bucket or local"))?;
            }
            "compression" => {
                let level = compression(value);
                self.compression = level.ok_or_else(|| bad("auto, none or a level 1–19"))?;
            }
            "scrub" => {
                let rate = none_or_at_least(SCRUB_RATE_MIN, SCRUB_RATE)?;
                self.scrub = Some(rate).filter(|rate| *rate > 0);
            }
            _ => return Err(SettingError::Unknown(key.into())),
        }
        Ok(())
    }
}

const CLOSE_MODES: &[(&str, CloseMode)] = &[
    ("bounded", CloseMode::Bounded),
    ("durable", CloseMode::Durable),
    ("async", CloseMode::Async),
];

const DEDUP_MODES: &[(&str, DedupMode)] = &[
    ("shared", DedupMode::Shared),
    ("private", DedupMode::Private),
];

/// Returns the choice that `value` names.
fn one_of<T: Copy>(value: &str, choices: &[(&str, T)]) -> Option<T> {
    let found = choices.iter().find(|(name, _)| *name == value);
    found.map(|(_, choice)| *choice)
}

fn compression(value: &str) -> Option<Compression> {
    match value {
        "auto" => Some(Compression::Auto),
        "none" => Some(Compression::None),
        level => level
            .parse()
            .ok()
            .filter(|level| (1..=19).contains(level))
            .map(Compression::Level),
    }
}

/// Parses a time from one second to [`SECONDS_MAX`] seconds: a number of seconds, or with a unit.
fn seconds(value: &str) -> Option<Duration> {
    let seconds = value
        .parse()
        .ok()
        .or_else(|| stretch(value, LetterM::Minutes));
    seconds
        .filter(|seconds| (1..=SECONDS_MAX).contains(seconds))
        .map(Duration::from_secs)
}

/// Makes a path absolute: a daemon works in another directory than the one it was started in.
fn absolute(path: String) -> PathBuf {
    std::path::absolute(&path).unwrap_or_else(|_| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, SettingError> {
        let option = |part: &str| match part.split_once('=') {
            Some((key, value)) => OtherOption {
                key: key.into(),
                value: Some(value.into()),
            },
            None => OtherOption {
                key: part.into(),
                value: None,
            },
        };
        Settings::parse(&text.split(',').map(option).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read() {
        let settings = parse(
            "volume=db,cache_size=2G,memory=256M,close=durable,compression=3,timeout=60,fsync=bucket,spool_size=2G,upload_rate=2M,download_rate=1G,drain=30",
        );
        let settings = settings.unwrap();
        assert_eq!(settings.volume.as_deref(), Some("db"));
        assert_eq!(
            (settings.cache_bytes, settings.memory_bytes),
            (Some(2 << 30), 256 << 20)
        );
        assert_eq!(settings.spool_bytes, Some(2 << 30));
        assert_eq!(parse("spool_size=0").unwrap().spool_bytes, Some(0));
        assert_eq!(settings.close, CloseMode::Durable);
        assert_eq!(settings.dedup, DedupMode::Shared);
        assert_eq!(parse("dedup=private").unwrap().dedup, DedupMode::Private);
        assert_eq!(settings.compression, Compression::Level(3));
        assert_eq!(settings.timeout, Duration::from_secs(60));
        assert_eq!(settings.drain, Duration::from_secs(30));
        assert_eq!(settings.rates.upload, Some(2 << 20));
        assert_eq!(settings.rates.download, Some(1 << 30));
    }

    #[test]
    fn the_help_names_every_option_and_no_other() {
        let named = |word: &str| {
            let (key, _) = word.split_once('=')?;
            let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
            (!key.is_empty() && key.chars().all(is_name)).then(|| key.to_owned())
        };
        let kernel = ["uid", "gid", "umask"];
        let mut keys: Vec<_> = OPTIONS_HELP
            .split_whitespace()
            .filter_map(named)
            .filter(|key| !kernel.contains(&key.as_str()))
            .collect();
        keys.sort();
        // One may speak of another.
        keys.dedup();
        for key in &keys {
            assert_ne!(parse(key), Err(SettingError::Unknown(key.clone())));
        }
        // As many as there are arms.
        let source = include_str!("settings.rs");
        let arms = source
            .lines()
            .filter(|line| line.starts_with("            \"") && line.contains("\" => "));
        assert_eq!(keys.len(), arms.count(), "{keys:?}");
    }

    #[test]
    fn a_mount_names_the_key_of_its_password() {
        let settings = parse("key=00000000000000aa").unwrap();
        assert_eq!(settings.key, Some(SlotName(0xaa)));
        for text in ["key", "key=", "key=aa", "key=00000000000000AA"] {
            let refused = parse(text);
            assert!(
                matches!(refused, Err(SettingError::BadValue { .. })),
                "{text}: {refused:?}"
            );
        }
    }

    #[test]
    fn paths_do_not_depend_on_where_the_daemon_goes() {
        let settings = parse("cache_dir=cache,password_file=../secret").unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(settings.cache_dir, Some(here.join("cache")));
        assert_eq!(settings.password_file, Some(here.join("../secret")));
    }

    #[test]
    fn what_is_unknown_or_malformed_is_refused_by_name() {
        assert_eq!(
            parse("volumes=db"),
            Err(SettingError::Unknown("volumes".into()))
        );
        assert_eq!(parse("scrub=5M").unwrap().scrub, Some(5 << 20));
        assert_eq!(parse("scrub=0").unwrap().scrub, None);
        for text in [
            "memory=1M",
            "memory=lots",
            "close=never",
            "compression=77",
            "timeout=0",
            "timeout=4294967296",
            "drain=18446744073709551615",
            "volume=",
            "cache_size=9X",
            "spool_size=1M",
            "fsync=never",
            "dedup=never",
            "dedup",
            "upload_rate=1K",
            "drain=0",
            "scrub=1K",
            "scrub=slowly",
        ] {
            assert!(
                matches!(parse(text), Err(SettingError::BadValue { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn sizes_and_times_are_read_as_people_write_them() {
        let settings = parse("cache_size=1.5G,memory=1GB,timeout=5m,drain=90s,scrub=5MB/s");
        let settings = settings.unwrap();
        assert_eq!(settings.cache_bytes, Some(3 << 29));
        assert_eq!(settings.memory_bytes, 1_000_000_000);
        assert_eq!(settings.timeout, Duration::from_secs(300));
        assert_eq!(settings.drain, Duration::from_secs(90));
        assert_eq!(settings.scrub, Some(5_000_000));
    }
}
