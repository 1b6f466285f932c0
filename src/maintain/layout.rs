//! Maps the keys of the bucket to the objects that they name. Pure.
//!
//! Owns the parsing of keys (FORMAT.md, "Objects and their names") as far as the chunker does not
//! own it. Decides nothing about the objects.

use bkfs_chunker::crypto::{Class, Config, SlotName};
use bkfs_chunker::pack::PackName;
use bkfs_store::PROBE_PREFIX;

use crate::root::state::{ROOT_KEY, SessionId};

/// The object that a key names.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum NamedObject {
    /// The config object.
    Config,
    /// The root.
    Root,
    /// A key slot.
    Slot(SlotName),
    /// A heartbeat.
    Session(SessionId),
    /// The fence of a session.
    Fence(SessionId),
    /// A journal of a session.
    Journal {
        /// Hash of the volume's name.
        volume: u64,
        /// The session that wrote it.
        session: SessionId,
        /// Its number among the journals of the session.
        number: u64,
    },
    /// A pack, index object or list.
    Named(Class, PackName),
    /// An object that a trial of the store's conditional writes left.
    Probe,
    /// No object of bkfs.
    Foreign,
}

/// Returns the object that `key` names.
pub fn place_of(key: &str) -> NamedObject {
    if key == Config::KEY {
        return NamedObject::Config;
    }
    if key == ROOT_KEY {
        return NamedObject::Root;
    }
    if key.starts_with(PROBE_PREFIX) {
        return NamedObject::Probe;
    }
    if let Some(slot) = SlotName::from_key(key) {
        return NamedObject::Slot(slot);
    }
    if let Ok((class, name)) = PackName::from_key(key) {
        return NamedObject::Named(class, name);
    }
    let of_session = |prefix| {
        key.strip_prefix(prefix)
            .and_then(hexadecimal)
            .map(SessionId)
    };
    let found = of_session("sessions/").map(NamedObject::Session);
    let found = found.or_else(|| of_session("fence/").map(NamedObject::Fence));
    found
        .or_else(|| journal(key))
        .unwrap_or(NamedObject::Foreign)
}

fn journal(key: &str) -> Option<NamedObject> {
    let mut parts = key.strip_prefix("journal/")?.split('/');
    let (volume, session, number) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || number.is_empty() || number.len() > 20 {
        return None;
    }
    // The journal module owns how numbers are written. Here they only tell one object from another.
    let digits = number.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some(NamedObject::Journal {
        volume: hexadecimal(volume)?,
        session: SessionId(hexadecimal(session)?),
        number: digits
            .then(|| u64::from_str_radix(number, 16).ok())
            .flatten()?,
    })
}

/// Parses sixteen lower-case hexadecimal digits.
fn hexadecimal(text: &str) -> Option<u64> {
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (text.len() == 16 && text.bytes().all(lower))
        .then(|| u64::from_str_radix(text, 16).ok())
        .flatten()
}
