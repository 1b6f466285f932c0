//! From what the user typed to an open repository.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bkfs_chunker::budget::MemoryBudget;
use bkfs_chunker::content_store::{Compression, ContentStoreConfig};
use bkfs_chunker::crypto::{Keyring, SlotName};
use bkfs_store::{RepositoryUrl, Store, StoreErrorKind, StoreOptions, open_store, parse_url};

use crate::acquaintance::{Acquaintance, AddressRecord, known_at};
use crate::cli::options::{Global, key_name};
use crate::cli::output::{self, Code, Failure, bytes};
use crate::cli::password::{Asking, Sources, Variables};
use crate::cli::profile::configuration;
use crate::config::{Config, RepositoryProfile};
use crate::mounting::settings::{CACHE_BYTES, SPOOL_BYTES, Settings};
use crate::places;
pub use crate::repository::Repository;
use crate::repository::{Opening, open as open_repository};
use crate::root::choice::KeyChoice;
use crate::root::error::{ErrorKind, RootError};
use crate::root::memory::{FileMemory, GenerationMemory, VolatileMemory};
use crate::root::repository::{Accepted, open_keys, recognize};
use crate::root::retry::RetryPolicy;
use crate::root::volumes::is_scratch;

/// Everything that is needed to open a repository, and nothing that was opened yet.
pub struct Access {
    /// The repository.
    pub url: RepositoryUrl,
    /// How its store is reached.
    pub store: StoreOptions,
    /// Where its password comes from.
    pub password: Sources,
    content_store: ContentStoreConfig,
    timeout: Duration,
    min_generation: u64,
    /// What the user accepts though this machine remembers otherwise.
    pub accepted: Accepted,
    /// The key slot that the user names.
    pub key: Option<SlotName>,
    /// Advice for a bare word that the configuration does not name.
    bare_word: Option<String>,
}

impl Access {
    /// Returns the access of a command without a mount.
    ///
    /// # Errors
    /// Those of [`Access::of_mount`].
    pub fn of_command(url: &str, global: &Global) -> Result<Access, Failure> {
        let mut access = Access::of_mount(url, global, &Settings::default())?;
        // A mount has a log; a command says on stderr what it waits for.
        access.store.notice = output::waiting(global.quiet, &access.url, access.timeout);
        Ok(access)
    }

    /// Returns the access of a mount. Its options win over the configuration file, and general
    /// arguments win over both.
    ///
    /// # Errors
    /// [`Code::Usage`] if the configuration, the URL or `BKFS_KEY` is malformed; [`Code::Failed`]
    /// if the cache directory has too little room.
    pub fn of_mount(url: &str, global: &Global, settings: &Settings) -> Result<Access, Failure> {
        let config = configuration()?;
        let bare_word = advice_on(url, &config);
        let named = config.repositories.get(url);
        let url = parse(named.map_or(url, |named| &named.url))?;
        let from_config =
            |get: fn(&RepositoryProfile) -> Option<&String>| named.and_then(get).cloned();
        let endpoint = from_config(|named| named.endpoint.as_ref());
        let region = from_config(|named| named.region.as_ref());
        let store = StoreOptions {
            endpoint: global
                .endpoint
                .clone()
                .or_else(|| settings.endpoint.clone())
                .or(endpoint),
            region: global
                .region
                .clone()
                .or_else(|| settings.region.clone())
                .or(region),
            wait: global.wait || settings.wait,
            ..StoreOptions::default()
        }
        .within(settings.timeout);
        let password = Sources {
            file: (global.password_file.clone())
                .or_else(|| settings.password_file.clone())
                .or_else(|| named.and_then(|named| named.password_file.clone()))
                .map(absolute),
            command: global
                .password_command
                .clone()
                .or_else(|| from_config(|named| named.password_command.as_ref())),
            variables: Variables::Own,
            handed: global.handed.clone(),
        };
        let cache_dir = global
            .cache_dir
            .clone()
            .or_else(|| settings.cache_dir.clone())
            .or_else(places::cache_dir)
            .map(absolute);
        check_cache_room(cache_dir.as_deref())?;
        Ok(Access {
            url,
            store,
            password,
            content_store: content_store_config(settings, cache_dir),
            timeout: settings.timeout,
            min_generation: global.min_generation,
            accepted: Accepted {
                rollback: global.accept_rollback,
                replaced: global.accept_replaced,
                lock_rule: false,
            },
            key: match global.key.or(settings.key) {
                Some(key) => Some(key),
                None => key_of_environment()?,
            },
            bare_word,
        })
    }

    /// Returns which key slots are tried first, and where this machine remembers those that opened.
    pub fn choice(&self) -> KeyChoice {
        KeyChoice {
            named: self.key,
            state_dir: places::state_dir(),
        }
    }

    /// Returns the record of the address that this machine keeps below `state_dir`.
    pub fn place(&self, state_dir: &Path) -> AddressRecord {
        AddressRecord::of(state_dir, &self.url, &self.store)
    }

    /// Returns what this machine remembers of the repository. Without a state directory the memory
    /// ends with this process.
    pub fn memory(&self, keyring: &Keyring) -> Arc<dyn GenerationMemory> {
        match places::state_dir() {
            Some(directory) => Arc::new(FileMemory::new(
                &directory,
                &keyring.repository().to_string(),
            )),
            None => Arc::new(VolatileMemory::default()),
        }
    }

    /// Returns how long requests for the root are repeated.
    pub fn policy(&self) -> RetryPolicy {
        RetryPolicy::within(self.timeout)
    }

    /// Returns the oldest generation that is accepted.
    pub fn min_generation(&self) -> u64 {
        self.min_generation
    }

    /// Checks that the repository in `store` is the one that this machine knows at the address,
    /// before a password is asked for.
    ///
    /// # Errors
    /// The [`Failure`] of [`RootError::Replaced`] if it is another one, or of the store.
    pub async fn recognize(&self, store: &dyn Store) -> Result<(), Failure> {
        let place = places::state_dir().map(|directory| self.place(&directory));
        let known = known_at(place.as_ref(), self.accepted.replaced).await;
        let recognized = recognize(store, known).await;
        recognized.map_err(|error| self.explain(error))
    }

    /// Returns the failure of this repository, with its URL. If there is no repository, the hint
    /// says how to create one, and which names the configuration has if the URL is a bare word.
    pub fn explain(&self, error: RootError) -> Failure {
        let url = &self.url;
        let is_absent = match &error {
            RootError::Store(error) => {
                let absent = matches!(
                    error.kind(),
                    StoreErrorKind::NoBucket | StoreErrorKind::NotFound
                );
                absent && url.local_path().is_some()
            }
            error => error.kind() == ErrorKind::NoRepository,
        };
        let mut failure = Failure::from(error).context(format_args!("repository {url}"));
        // Advice names commands with URL for the repository.
        failure.hint = (failure.hint).map(|hint| hint.replace(" URL", &format!(" {url}")));
        if is_absent {
            failure.code = Code::NoRepository;
            failure.hint = Some(format!("Check the URL, or create one: bkfs init {url}"));
        }
        let is_elsewhere = matches!(failure.code, Code::NoRepository | Code::Failed);
        if let Some(advice) = self.bare_word.as_ref().filter(|_| is_elsewhere) {
            failure.hint = Some(match failure.hint {
                Some(hint) => format!("{advice} {hint}"),
                None => advice.clone(),
            });
        }
        failure
    }

    /// Prepares for a command that reads everything once. Data from a bucket on a local disk is
    /// then not written to the cache, and is fetched exactly: a request to a local disk costs less
    /// than decoding what may be needed next.
    pub fn read_once(&mut self) {
        self.content_store.saves_requests = self.url.local_path().is_none();
        self.only_read();
    }

    /// Prepares for reads only: they get memory that writes would have.
    pub fn only_read(&mut self) {
        self.content_store.memory = self.content_store.memory.for_reading();
    }
}

/// Returns what to say of a bare word that is no name of the configuration and so means a bucket of
/// S3: a name may have been mistyped.
fn advice_on(text: &str, config: &Config) -> Option<String> {
    let is_url = text.contains([':', '/']);
    if is_url || config.repositories.contains_key(text) {
        return None;
    }
    let names: Vec<&str> = config.repositories.keys().map(String::as_str).collect();
    let known = match names.is_empty() {
        true => "which has no repositories".to_owned(),
        false => format!("which has {}", names.join(", ")),
    };
    Some(format!(
        "{text} is no name of the configuration ({known}), so it means the bucket s3://{text}."
    ))
}

/// The key that `BKFS_KEY` names.
fn key_of_environment() -> Result<Option<SlotName>, Failure> {
    let Some(name) = std::env::var_os("BKFS_KEY").filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let name = name.to_string_lossy();
    let parsed = key_name(&name).map_err(|what| Failure::usage(format!("BKFS_KEY: {what}")))?;
    Ok(Some(parsed))
}

/// Returns an absolute path: a daemon works in another directory than the one it was started in.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn content_store_config(settings: &Settings, cache_dir: Option<PathBuf>) -> ContentStoreConfig {
    let memory = MemoryBudget::of_total(settings.memory_bytes);
    let compression: Compression = settings.compression;
    ContentStoreConfig {
        cache_bytes: cache_limit(settings.cache_bytes, cache_dir.as_deref()),
        cache_dir,
        memory,
        compression,
        timeout_ms: settings.timeout.as_millis() as u64,
        rates: settings.rates,
        pack_bytes: pack_bytes(settings),
        ..ContentStoreConfig::default()
    }
}

/// Returns the size of a pack in bytes, small enough to be uploaded in 4 s at the given rate.
fn pack_bytes(settings: &Settings) -> u64 {
    let usual = ContentStoreConfig::default().pack_bytes;
    let at_rate = |rate: u64| (rate * 4).clamp(1 << 20, usual);
    settings.rates.upload.map_or(usual, at_rate)
}

/// Returns the most bytes that the spool of a mount holds, or the swap file of a scratch clone. By
/// default that is at most half of the free bytes, and 0 for a spool of a bucket in a local
/// directory, where packs would be written to disk twice.
pub fn spool_bytes(access: &Access, settings: &Settings, volume: &str) -> u64 {
    match access.url.local_path() {
        Some(_) if !is_scratch(volume) => settings.spool_bytes.unwrap_or(0),
        _ => swap_bytes(settings),
    }
}

/// Returns the most bytes that the swap file of a mount holds, which takes the place of a spool. By
/// default that is at most half of the free bytes.
pub fn swap_bytes(settings: &Settings) -> u64 {
    let usual = || {
        let free = places::state_dir().and_then(|state| free_bytes(&state));
        SPOOL_BYTES.min(free.map_or(u64::MAX, |free| free / 2))
    };
    settings.spool_bytes.unwrap_or_else(usual)
}

/// The least room in which index tables and some frames fit, in bytes.
const CACHE_ROOM_BYTES: u64 = 16 << 20;

/// Returns the free bytes of the filesystem where a directory is or would be made.
fn free_bytes(directory: &Path) -> Option<u64> {
    let existing = directory.ancestors().find(|path| path.exists())?;
    let stat = rustix::fs::statvfs(existing).ok()?;
    Some(stat.f_bavail * stat.f_frsize)
}

/// Returns the size of the cache in bytes: `wanted`, or by default at most a tenth of what is free.
fn cache_limit(wanted: Option<u64>, cache_dir: Option<&Path>) -> u64 {
    let usual = || {
        let free = cache_dir.and_then(free_bytes);
        free.map_or(CACHE_BYTES, |free| CACHE_BYTES.min(free / 10))
    };
    wanted.unwrap_or_else(usual)
}

fn check_cache_room(cache_dir: Option<&Path>) -> Result<(), Failure> {
    let Some(directory) = cache_dir else {
        return Ok(());
    };
    match free_bytes(directory) {
        Some(free) if free < CACHE_ROOM_BYTES => {
            let message = format!(
                "the cache directory {} has too little room: {} free, {} needed",
                directory.display(),
                bytes(free),
                bytes(CACHE_ROOM_BYTES)
            );
            Err(Failure::new(message).hint(
                "Free some room, or give another directory with --cache-dir (-o cache_dir= of a \
                 mount).",
            ))
        }
        _ => Ok(()),
    }
}

/// Parses a URL. A bare word that the configuration does not name is a bucket. Directories become
/// absolute, since commands in other directories ask a mount for its source.
fn parse(text: &str) -> Result<RepositoryUrl, Failure> {
    let url = parse_url(text)
        .map_err(|error| Failure::usage(error.to_string()))?
        .or_bucket();
    let absolute = url
        .local_path()
        .and_then(|path| std::path::absolute(path).ok());
    match absolute.as_deref().and_then(Path::to_str) {
        Some(path) => parse_url(path).map_err(|error| Failure::usage(error.to_string())),
        None => Ok(url),
    }
}

/// Opens a repository for a command.
///
/// # Errors
/// Those of [`Access::of_command`] and [`open_with`].
pub async fn open(url: &str, global: &Global) -> Result<Repository, Failure> {
    open_with(&Access::of_command(url, global)?).await
}

/// Opens a repository.
///
/// # Errors
/// The [`Failure`] of [`open_repository`], with the URL in its message: [`Code::NoRepository`],
/// [`Code::WrongPassword`], [`Code::Damaged`], or [`Code::Failed`] for a store that cannot be
/// reached. The failure of the password source if there is no password.
pub async fn open_with(access: &Access) -> Result<Repository, Failure> {
    let opening = Opening {
        url: access.url.clone(),
        store: access.store.clone(),
        content_store: access.content_store.clone(),
        timeout: access.timeout,
        min_generation: access.min_generation,
        accepted: access.accepted,
        key: access.key,
        state_dir: places::state_dir(),
    };
    let mut asking = Asking::new(&access.password);
    let opened = open_repository(opening, &mut asking).await;
    // Why there was no password says more than that there was none.
    match asking.failure() {
        Some(failure) => Err(failure),
        None => opened.map_err(|error| access.explain(error)),
    }
}

/// A repository's store and keys, and what this machine remembers of it; its root may be damaged.
pub struct Bare {
    /// The bucket.
    pub store: Arc<dyn Store>,
    /// The keys.
    pub keyring: Keyring,
    /// The newest root that this machine has seen.
    pub memory: Option<Arc<dyn GenerationMemory>>,
    /// The oldest generation that is accepted.
    pub min_generation: u64,
    /// The root as it is found is accepted, whatever this machine remembers.
    pub accept_rollback: bool,
    /// How long the store may make no progress.
    pub timeout: Duration,
}

/// Opens a repository's store and keys only: for check, which reads everything else itself.
///
/// # Errors
/// The [`Failure`] of the store, the config or the keys, with the URL in its message; that of the
/// password source if there is no password.
pub async fn open_bare(access: &Access) -> Result<Bare, Failure> {
    let explained = |error| access.explain(error);
    let store = open_store(&access.url, &access.store)
        .await
        .map_err(|error| explained(error.into()))?;
    let mut asking = Asking::new(&access.password);
    let place = places::state_dir().map(|directory| access.place(&directory));
    let known = known_at(place.as_ref(), access.accepted.replaced).await;
    let opened = open_keys(&*store, known, &access.choice(), &mut asking).await;
    let (_, keyring) = match asking.failure() {
        Some(failure) => return Err(failure),
        None => opened.map_err(explained)?,
    };
    if let Some(place) = &place {
        place.remember(Acquaintance::of(&keyring)).await;
    }
    let memory = places::state_dir().map(|directory| {
        let memory = FileMemory::new(&directory, &keyring.repository().to_string());
        Arc::new(memory) as Arc<dyn GenerationMemory>
    });
    Ok(Bare {
        store,
        keyring,
        memory,
        min_generation: access.min_generation,
        accept_rollback: access.accepted.rollback,
        timeout: access.timeout,
    })
}

/// Splits `NAME[:/path]` into the name and the path (`/` without one). A time has colons of its
/// own, so the path begins at the first `:/`. Paths are bytes; names of snapshots are text.
///
/// # Errors
/// [`Code::Usage`] if the name is not UTF-8.
pub fn split_path(what: &OsStr) -> Result<(&str, &[u8]), Failure> {
    let bytes = what.as_bytes();
    let (name, path) = match bytes.windows(2).position(|pair| pair == b":/") {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &b"/"[..]),
    };
    match std::str::from_utf8(name) {
        Ok(name) => Ok((name, path)),
        Err(_) => {
            let message = format!("{} is not a valid snapshot name", name.escape_ascii());
            Err(Failure::usage(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_as_large_as_asked_for_and_else_leaves_most_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let free = free_bytes(directory.path()).unwrap();
        let all = free * 2;
        assert_eq!(cache_limit(Some(all), Some(directory.path())), all);
        assert!(cache_limit(None, Some(directory.path())) <= free / 8);
        assert_eq!(cache_limit(None, None), CACHE_BYTES);
    }

    #[test]
    fn a_bare_word_leads_to_the_names_of_the_configuration() {
        let toml = |text: &str| toml::from_str::<Config>(text).unwrap();
        let some = toml("[repository.offsite]\nurl = 's3://a'\n[repository.disk]\nurl = '/b'\n");
        let told = advice_on("ofsite", &some).unwrap();
        assert!(
            told.contains("disk, offsite") && told.contains("s3://ofsite"),
            "{told}"
        );
        assert!(
            advice_on("ofsite", &toml(""))
                .unwrap()
                .contains("no repositories")
        );
        for text in ["offsite", "s3://ofsite", "./ofsite", "/ofsite"] {
            assert_eq!(advice_on(text, &some), None, "{text}");
        }
    }

    #[test]
    fn names_and_paths_are_told_apart() {
        let split = |what: &[u8]| {
            let (name, path) = split_path(OsStr::from_bytes(what)).unwrap();
            (name.to_owned(), path.to_vec())
        };
        let pair = |name: &str, path: &[u8]| (name.to_owned(), path.to_vec());
        assert_eq!(split(b"day1"), pair("day1", b"/"));
        assert_eq!(split(b"day1:/a/b:c"), pair("day1", b"/a/b:c"));
        assert_eq!(split(b"day1:/a\xff"), pair("day1", b"/a\xff"));
        let time = "@2026-11-20T10:00:00Z";
        assert_eq!(split(time.as_bytes()), pair(time, b"/"));
        assert_eq!(split(b"@2026-11-20T10:00:00Z:/x"), pair(time, b"/x"));
        assert!(split_path(OsStr::from_bytes(b"day\xff:/x")).is_err());
    }
}
