//! Texts: URLs of repositories, options of a mount, and the words of the command line and of keys
//! in the bucket.

use super::{Draw, bounded};
use bkfs::glob::Glob;
use bkfs::mounting::settings::Settings;
use bkfs::printable;
use bkfs::retain::Span;
use bkfs::root::SnapshotReference;
use bkfs::stream::VolumePath;
use bkfs::units::size;
use bkfs_chunker::crypto::SlotName;
use bkfs_chunker::id::Id;
use bkfs_chunker::pack::PackName;
use bkfs_fuse::options::{MountOptions, OtherOption};
use bkfs_store::lock::LockMode;
use bkfs_store::{
    KEY_BYTES_MAX, Operation, PART_BYTES_MAX, RepositoryUrl, Said, check_key, check_prefix,
    parse_url,
};
use std::time::Duration;

/// Bytes per byte of a text: a few copies, and ten for the escape of a character in a message.
const TEXT_FACTOR: usize = 64;

/// Bytes per byte of an option string. Each comma makes an option with three strings, and a growing
/// vector holds up to three times its elements.
const OPTIONS_FACTOR: usize = 384;

/// The longest time that an option may state: Linux adds it to its clock without an overflow.
const DURATION_MAX: Duration = Duration::from_secs(u32::MAX as u64);

/// The URL of a repository. What parses is shown as a URL of the same repository; a message shows
/// no password.
pub fn url(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let parsed = bounded(TEXT_FACTOR, text.len(), || parse_url(&text));
    match parsed {
        Ok(url) => {
            let shown = url.to_string();
            assert_eq!(parse_url(&shown).as_ref(), Ok(&url), "{shown:?}");
            let bucket = url.or_bucket();
            assert!(!matches!(bucket, RepositoryUrl::Word(_)));
            assert_eq!(parse_url(&bucket.to_string()), Ok(bucket));
        }
        Err(error) => {
            // A word of its own, so that it is in the message only if the text before the @ is.
            let secret = "9f86d081";
            let at = text.rfind('@').unwrap_or(0);
            let scheme = text.find("://").filter(|scheme| *scheme < at);
            let start = scheme.map_or(0, |scheme| scheme + 3);
            if start < at && !text.contains(secret) {
                let text = format!("{}{secret}{}", &text[..start], &text[start..]);
                let message = parse_url(&text).err().map(|error| error.to_string());
                let message = message.unwrap_or_default();
                assert!(!message.contains(secret), "{message}");
            }
            let _ = error.to_string();
        }
    }
}

/// The options of a mount: the generic ones, then those of bkfs.
pub fn options(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let strings: Vec<&str> = text.split('\n').collect();
    let parsed = bounded(OPTIONS_FACTOR, text.len(), || MountOptions::parse(&strings));
    let Ok(options) = parsed else {
        return;
    };
    let count: usize = strings
        .iter()
        .map(|string| string.matches(',').count() + 1)
        .sum();
    assert!(options.others.len() <= count);
    assert!(options.ownership.umask.is_none_or(|mask| mask <= 0o777));
    let written: Vec<String> = options.others.iter().map(escaped).collect();
    let again = MountOptions::parse([written.join(",")]).expect("these were options");
    assert_eq!(again.others, options.others);
    let settings = bounded(TEXT_FACTOR, text.len(), || Settings::parse(&options.others));
    let Ok(settings) = settings else {
        return;
    };
    assert!(settings.memory_bytes >= 128 << 20);
    for time in [settings.timeout, settings.drain] {
        assert!(!time.is_zero() && time <= DURATION_MAX, "{time:?}");
    }
    let rates = [
        settings.rates.upload,
        settings.rates.download,
        settings.scrub,
    ];
    assert!(rates.iter().flatten().all(|rate| *rate > 0));
    assert!(settings.volume.is_none_or(|name| !name.is_empty()));
}

/// Returns an option as a user has to write it.
fn escaped(option: &OtherOption) -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    match &option.value {
        Some(value) => format!("{}={}", escape(&option.key), escape(value)),
        None => escape(&option.key),
    }
}

/// Words that users write, and keys that a bucket lists.
pub fn words(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let text: &str = &text;
    bounded(TEXT_FACTOR, text.len(), || times_and_sizes(text));
    names(text);
    let key = check_key(Operation::Get, text).is_ok();
    if key {
        assert!((1..=KEY_BYTES_MAX).contains(&text.len()));
        assert!(
            text.split('/')
                .all(|part| (1..=PART_BYTES_MAX).contains(&part.len()))
        );
        assert!(check_prefix(text).is_ok() && check_prefix(&format!("{text}/")).is_ok());
    }
    if let Ok(place) = bounded(TEXT_FACTOR, input.len(), || VolumePath::parse(input)) {
        assert!(!format!("{place:?}").is_empty());
    }
    shown(text, input);
}

fn times_and_sizes(text: &str) {
    if let Some(bytes) = size(text) {
        assert_eq!(size(&bytes.to_string()), Some(bytes));
    }
    if let Ok(Span(time)) = text.parse() {
        assert!(time.as_secs() >= 0);
        let again = format!("{}s", time.as_secs()).parse();
        assert_eq!(again, Ok(Span(time)));
    }
    let now = jiff::Timestamp::UNIX_EPOCH;
    if let Ok(SnapshotReference::At(time)) = SnapshotReference::parse(text, now) {
        let again = SnapshotReference::parse(&format!("@{time}"), now);
        assert_eq!(again.ok(), Some(SnapshotReference::At(time)));
    }
    if let Ok(mode) = text.parse::<LockMode>() {
        assert_eq!(mode.name().parse::<LockMode>().ok(), Some(mode));
    }
}

fn names(text: &str) {
    if let Ok((class, name)) = PackName::from_key(text) {
        assert_eq!(name.key(class), text);
    }
    if let Ok(name) = text.parse::<PackName>() {
        assert_eq!(name.to_string(), text);
    }
    if let Some(name) = SlotName::from_key(text) {
        assert_eq!(name.key(), text);
    }
    if let Ok(name) = text.parse::<SlotName>() {
        assert_eq!(name.to_string(), text);
    }
    if let Some(id) = Id::from_hex(text) {
        assert!(id.to_string().eq_ignore_ascii_case(text));
    }
}

/// Asserts that what is shown cannot control a terminal, and means the same in JSON.
fn shown(text: &str, bytes: &[u8]) {
    for line in [printable::line(text).into_owned(), printable::name(bytes)] {
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert_eq!(printable::line(&line), line);
    }
    assert!(
        !printable::lines(text)
            .chars()
            .any(|char| char.is_control() && char != '\n')
    );
    let json = serde_json::to_string(text).expect("strings have a form in JSON");
    let safe = printable::json(&json);
    assert!(!safe.chars().any(char::is_control));
    assert_eq!(
        serde_json::from_str::<String>(&safe).ok().as_deref(),
        Some(text)
    );
}

/// A pattern and a text that it is matched with.
pub fn pattern(input: &[u8]) {
    let mut draw = Draw(input);
    let ignores_case = draw.byte() & 1 == 1;
    let pattern = draw.string();
    let text = draw.0.get(..1024).unwrap_or(draw.0);
    let glob = bounded(128, pattern.len(), || Glob::new(pattern, ignores_case));
    let matches = bounded(4, pattern.len(), || glob.matches(text));
    assert_eq!(matches, Glob::new(pattern, ignores_case).matches(text));
    let literal: Vec<u8> = text.iter().flat_map(|byte| [b'\\', *byte]).collect();
    let literal = Glob::new(&literal, ignores_case);
    assert!(literal.matches(text));
    assert!(!literal.matches(&[text, b"x"].concat()));
    assert!(Glob::new(b"**", false).matches(text));
}

/// The document of an error answer of a server.
pub fn answer(input: &[u8]) {
    let document = String::from_utf8_lossy(input);
    let said = bounded(4, document.len(), || Said::in_document(&document));
    let elements = [("Code", &said.code), ("Region", &said.region)];
    for (name, text) in elements {
        if let Some(text) = text {
            assert!(!text.is_empty() && text.trim() == text);
            let document = format!("<{name}> {text}\n</{name}>");
            let again = Said::in_document(&document);
            let again = if name == "Code" {
                again.code
            } else {
                again.region
            };
            assert_eq!(again.as_ref(), Some(text));
        }
    }
    if let Some(message) = &said.message {
        assert!(!message.is_empty() && document.contains(message.as_str()));
        assert!(document.contains("<Message>") || message.len() <= Said::TEXT_BYTES_MAX);
    }
}
