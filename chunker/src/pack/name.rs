//! Names of write-once objects, and their keys in the bucket.

use crate::crypto::Class;
use std::fmt;
use std::str::FromStr;

/// The name of a write-once object: a pack, an index object or a list (FORMAT.md, "Objects and
/// their names").
///
/// Names are never reused and do not depend on contents. They sort by session, then by sequence.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct PackName {
    /// The session that wrote the object.
    pub session: u64,
    /// The session's counter over all objects that it writes.
    pub sequence: u32,
    /// Fresh randomness. Two machines that both believe to be this session never write the same
    /// name.
    pub random: u32,
}

/// A text or a key that is not a name of the layout.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not the name of a write-once object")]
pub struct BadName;

impl PackName {
    /// Length of a name as text, in characters.
    pub const TEXT_LEN: usize = 16 + 1 + 8 + 1 + 8;
    /// Length of a name as bytes.
    pub const LEN: usize = 16;

    /// Returns the name as footers, indexes and tables store it: session u64, sequence u32, random
    /// u32, little-endian.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..].copy_from_slice(&self.random.to_le_bytes());
        bytes
    }

    /// The inverse of [`PackName::to_bytes`].
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self {
            session: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            sequence: u32::from_le_bytes([i, j, k, l]),
            random: u32::from_le_bytes([m, n, o, p]),
        }
    }

    /// Returns the key in the bucket of the object of `class` with this name.
    ///
    /// Only data packs, metadata packs, index objects, lists and runs have such keys. A call for another
    /// class is a mistake of the caller: it returns a key that no object has.
    pub fn key(&self, class: Class) -> String {
        let shard = self.random & 0xff;
        match class {
            Class::DataPack | Class::MetadataPack => {
                format!("{}/{shard:02x}/{self}", class.directory())
            }
            Class::Index | Class::List | Class::Run => format!("{}/{self}", class.directory()),
            Class::Config
            | Class::KeySlot
            | Class::Root
            | Class::Session
            | Class::Journal
            | Class::Fence => {
                debug_assert!(false, "objects of class {class:?} are not named so");
                format!("{}/unnamed/{self}", class.directory())
            }
        }
    }

    /// Parses a key: the inverse of [`PackName::key`]. Returns the class and the name.
    ///
    /// # Errors
    /// [`BadName`] for any other key.
    pub fn from_key(key: &str) -> Result<(Class, Self), BadName> {
        let (directory, rest) = key.split_once('/').ok_or(BadName)?;
        let class = [
            Class::DataPack,
            Class::MetadataPack,
            Class::Index,
            Class::List,
            Class::Run,
        ]
        .into_iter()
        .find(|class| class.directory() == directory)
        .ok_or(BadName)?;
        let name: Self = rest.rsplit('/').next().ok_or(BadName)?.parse()?;
        if name.key(class) == key {
            Ok((class, name))
        } else {
            Err(BadName)
        }
    }
}

impl fmt::Display for PackName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            session,
            sequence,
            random,
        } = self;
        write!(formatter, "{session:016x}-{sequence:08x}-{random:08x}")
    }
}

impl FromStr for PackName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let mut parts = text.split('-');
        let mut part = |digits| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            if !part.bytes().all(lower) {
                return None;
            }
            u64::from_str_radix(part, 16).ok()
        };
        let session = part(16).ok_or(BadName)?;
        let sequence = part(8).ok_or(BadName)? as u32;
        let random = part(8).ok_or(BadName)? as u32;
        match parts.next() {
            None => Ok(Self {
                session,
                sequence,
                random,
            }),
            Some(_) => Err(BadName),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMED: [Class; 4] = [
        Class::DataPack,
        Class::MetadataPack,
        Class::Index,
        Class::List,
    ];

    #[test]
    fn keys_are_those_of_the_format() {
        let name = PackName {
            session: 0x0123_4567_89ab_cdef,
            sequence: 7,
            random: 0xdead_be0f,
        };
        let text = "0123456789abcdef-00000007-deadbe0f";
        assert_eq!(name.to_string(), text);
        assert_eq!(text.len(), PackName::TEXT_LEN);
        assert_eq!(name.key(Class::DataPack), format!("data/0f/{text}"));
        assert_eq!(name.key(Class::MetadataPack), format!("meta/0f/{text}"));
        assert_eq!(name.key(Class::Index), format!("index/{text}"));
        assert_eq!(name.key(Class::List), format!("lists/{text}"));
    }

    #[test]
    fn other_keys_are_refused() {
        let text = "0123456789abcdef-00000007-deadbe0f";
        for key in [
            "",
            "config",
            text,
            &format!("data/{text}"),
            &format!("data/0e/{text}"),
            &format!("data/0f/x/{text}"),
            &format!("index/0f/{text}"),
            &format!("index/{}", text.to_uppercase()),
            &format!("index/{text}-"),
            &format!("index/+{}", &text[1..]),
            &format!("sessions/{text}"),
        ] {
            assert_eq!(PackName::from_key(key), Err(BadName), "{key}");
        }
    }

    proptest! {
        #[test]
        fn names_are_read_back(session: u64, sequence: u32, random: u32) {
            let name = PackName { session, sequence, random };
            prop_assert_eq!(name.to_string().parse(), Ok(name));
            prop_assert_eq!(PackName::from_bytes(name.to_bytes()), name);
            for class in NAMED {
                prop_assert_eq!(PackName::from_key(&name.key(class)), Ok((class, name)));
            }
        }

        #[test]
        fn arbitrary_keys_do_not_panic(key in ".*") {
            if let Ok((class, name)) = PackName::from_key(&key) {
                prop_assert_eq!(name.key(class), key);
            }
        }
    }
}
