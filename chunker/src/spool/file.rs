//! The format of a spool's files (FORMAT.md, "The spool"): an object exactly as it will be in the
//! bucket, then a trailer that proves that it is whole. A file gets its final name after its flush:
//! so a file with an object's name that is not whole is damaged.
//!
//! Owns names and the trailer. Does no I/O.

use bkfs_store::{Operation, WHOLE_OBJECT_BYTES_MAX, check_key};
use bytes::Bytes;

/// Length of the trailer, in bytes: magic, length of the object u64, BLAKE3 of the object.
pub(super) const TRAILER_BYTES: usize = 8 + 8 + 32;

/// Largest object that is read back from a spool: no pack is larger (FORMAT.md, "Packs").
pub(super) const OBJECT_BYTES_MAX: u64 = WHOLE_OBJECT_BYTES_MAX;

const MAGIC: &[u8; 8] = b"bkfspool";

/// Prefix of the names of unflushed files.
const UNFINISHED: &str = "new-";

/// Returns the hash of all parts, one after the other.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a Bytes>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

/// Returns the trailer of an object of `length` bytes.
pub fn trailer(length: u64, digest: &blake3::Hash) -> Bytes {
    let mut bytes = Vec::with_capacity(TRAILER_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(digest.as_bytes());
    Bytes::from(bytes)
}

/// Returns the object in a whole file's bytes; `None` if the file is damaged or incomplete.
pub fn object(mut bytes: Bytes) -> Option<Bytes> {
    let length = bytes.len().checked_sub(TRAILER_BYTES)?;
    let found = bytes.split_off(length);
    let expected = trailer(length as u64, &digest([&bytes]));
    (found == expected).then_some(bytes)
}

/// Returns the name of the file with this number, for the object under `key`, with `+` for each
/// `/`. A key must have no `+`: see [`is_fit`].
pub fn name(number: u64, key: &str) -> String {
    format!("{number:016x}.{}", key.replace('/', "+"))
}

/// Returns the name of the file with this number before its flush; no object has such a name.
pub fn unfinished(number: u64) -> String {
    format!("{UNFINISHED}{number:016x}")
}

/// Whether this is a name that [`unfinished`] returns.
pub fn is_unfinished(name: &str) -> bool {
    name.starts_with(UNFINISHED)
}

/// Whether an object under this key can be spooled. All keys of bkfs's objects can.
pub fn is_fit(key: &str) -> bool {
    const NUMBER_AND_DOT: usize = 17;
    const NAME_BYTES_MAX: usize = 255;
    check_key(Operation::PutNew, key).is_ok()
        && !key.contains('+')
        && key.len() + NUMBER_AND_DOT <= NAME_BYTES_MAX
}

/// Parses a name that [`name`] returned; `None` for a file that is no object.
pub fn parse(name: &str) -> Option<(u64, String)> {
    let (number, key) = name.split_once('.')?;
    let is_plain = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if number.len() != 16 || !number.bytes().all(is_plain) {
        return None;
    }
    let number = u64::from_str_radix(number, 16).ok()?;
    let key = key.replace('+', "/");
    check_key(Operation::PutNew, &key).ok()?;
    Some((number, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let key = "data/3f/00000000000000ff-00000001-0000003f";
        let name = name(0x1f, key);
        assert_eq!(
            name,
            "000000000000001f.data+3f+00000000000000ff-00000001-0000003f"
        );
        assert_eq!(parse(&name), Some((0x1f, key.to_owned())));
        let unfinished = unfinished(0x1f);
        assert!(is_unfinished(&unfinished) && !is_unfinished(&name));
        for stray in [
            &unfinished,
            "lock",
            "1f.data",
            "000000000000001F.data+x",
            "000000000000001f.",
            "",
        ] {
            assert_eq!(parse(stray), None, "{stray}");
        }
    }

    #[test]
    fn only_whole_files_are_objects() {
        let parts = [
            Bytes::from_static(b"a pack"),
            Bytes::from_static(b" of two"),
        ];
        let mut file: Vec<u8> = parts.concat();
        file.extend_from_slice(&trailer(13, &digest(&parts)));
        let whole = Bytes::from(file);
        assert_eq!(
            object(whole.clone()).as_deref(),
            Some(&b"a pack of two"[..])
        );
        for length in 0..whole.len() {
            assert_eq!(object(whole.slice(..length)), None, "cut to {length}");
        }
        for position in 0..whole.len() {
            let mut turned = whole.to_vec();
            turned[position] ^= 1;
            assert_eq!(object(Bytes::from(turned)), None, "turned at {position}");
        }
        assert_eq!(
            hex::encode(&whole[13..]),
            concat!(
                "626b6673706f6f6c",
                "0d00000000000000",
                "2b4766f381338e5cf9b319ca0c692346c4c0015fd677d55f44438fcc137b847d"
            )
        );
    }
}
