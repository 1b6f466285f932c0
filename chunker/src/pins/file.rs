//! The file of a pin: what is pinned, and how much that is.
//!
//! Owns its form: an object of one box, sealed like those of the bucket, so that a file that was
//! changed does not open. All numbers of the payload are little-endian: version u32, complete u8,
//! then as u64 blobs, frames, stored bytes and disk bytes; the rest is the description, of which
//! only the caller knows the form.

use bytes::Bytes;

use crate::crypto::{Class, Features, Keyring};
use crate::pack::PackName;

const VERSION: u32 = 1;
/// Length of the payload before the description, in bytes.
const HEAD_LEN: usize = 4 + 1 + 4 * 8;
/// The longest description, in bytes.
pub(crate) const DESCRIPTION_MAX: usize = 32 << 10;
/// The longest file that is read, in bytes.
pub(super) const FILE_MAX: u64 = 64 << 10;

/// What the file of a pin says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PinRecord {
    /// Whether all frames are on disk.
    pub(crate) is_complete: bool,
    /// Number of blobs.
    pub(crate) blobs: u64,
    /// Number of frames.
    pub(crate) frames: u64,
    /// Length of the frames, in bytes.
    pub(crate) stored_bytes: u64,
    /// What they take on disk, in bytes of whole blocks.
    pub(crate) disk_bytes: u64,
    /// What is pinned, in the form of the caller.
    pub(crate) description: Bytes,
}

impl PinRecord {
    /// Returns the sealed bytes of the file. `salt` is fresh randomness.
    pub(super) fn seal(&self, keyring: &Keyring, name: PackName, salt: [u8; 32]) -> Bytes {
        let mut payload = Vec::with_capacity(HEAD_LEN + self.description.len());
        payload.extend_from_slice(&VERSION.to_le_bytes());
        payload.push(u8::from(self.is_complete));
        for number in [self.blobs, self.frames, self.stored_bytes, self.disk_bytes] {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        payload.extend_from_slice(&self.description);
        keyring.seal_object(Class::List, &key(name), Features::NONE, salt, &payload)
    }

    /// Returns what a file says. `None` if it is not the whole file of this pin.
    pub(super) fn open(keyring: &Keyring, name: PackName, file: &[u8]) -> Option<Self> {
        let payload = keyring.open_object(Class::List, &key(name), file).ok()?;
        let (head, description) = payload.split_at_checked(HEAD_LEN)?;
        let (version, rest) = head.split_first_chunk()?;
        let (complete, numbers) = rest.split_first()?;
        let mut numbers = numbers
            .as_chunks()
            .0
            .iter()
            .copied()
            .map(u64::from_le_bytes);
        if u32::from_le_bytes(*version) != VERSION || description.len() > DESCRIPTION_MAX {
            return None;
        }
        Some(Self {
            is_complete: match complete {
                0 => false,
                1 => true,
                _ => return None,
            },
            blobs: numbers.next()?,
            frames: numbers.next()?,
            stored_bytes: numbers.next()?,
            disk_bytes: numbers.next()?,
            description: Bytes::copy_from_slice(description),
        })
    }
}

/// Returns what the seal of the file is bound to.
fn key(name: PackName) -> String {
    format!("pins/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::{RepositoryId, Secrets};

    #[test]
    fn a_file_that_was_changed_does_not_open() {
        let secrets = || Secrets::new([1; 32], [2; 32], [3; 32]);
        let keyring = Keyring::sealed(RepositoryId([7; 16]), secrets());
        let name = |sequence| PackName {
            session: 1,
            sequence,
            random: 9,
        };
        let record = PinRecord {
            is_complete: true,
            blobs: 1,
            frames: 2,
            stored_bytes: 3,
            disk_bytes: 4096,
            description: Bytes::from_static(b"a description"),
        };
        let file = record.seal(&keyring, name(1), [5; 32]);
        assert_eq!(PinRecord::open(&keyring, name(1), &file), Some(record));
        assert_eq!(PinRecord::open(&keyring, name(2), &file), None);
        let other = Keyring::sealed(RepositoryId([8; 16]), secrets());
        assert_eq!(PinRecord::open(&other, name(1), &file), None);
        for at in 0..file.len() {
            let mut changed = file.to_vec();
            changed[at] ^= 1;
            assert_eq!(PinRecord::open(&keyring, name(1), &changed), None, "{at}");
            assert_eq!(PinRecord::open(&keyring, name(1), &file[..at]), None);
        }
    }
}
