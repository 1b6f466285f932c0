//! The secrets of a repository. A key slot wraps them; an unsealed repository keeps them in its
//! config.

use super::keys::Key;
use minicbor::{Decoder, Encoder};
use std::collections::BTreeMap;
use std::fmt;
use zeroize::Zeroizing;

/// All keys of a repository. They are wiped from memory when dropped, and never printed.
#[derive(Clone)]
pub struct Secrets {
    master: BTreeMap<u32, Key>,
    id_key: Key,
    cut_key: Key,
}

/// The error for bytes that cannot be decoded as secrets.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the secrets cannot be decoded")]
pub struct SecretsError;

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Secrets")
            .field("epochs", &self.master.keys())
            .finish_non_exhaustive()
    }
}

/// Secrets, and the hash of the key slot's clear fields that was encoded with them, if any.
type Decoded = (Secrets, Option<[u8; 32]>);

impl Secrets {
    /// The largest number of master keys that secrets hold. Each comes from a rotation that a user
    /// starts.
    pub const EPOCHS_MAX: usize = 1024;

    /// Returns secrets with a first master key, of epoch 0. All three keys are fresh randomness.
    pub fn new(master: [u8; 32], id_key: [u8; 32], cut_key: [u8; 32]) -> Self {
        Self {
            master: BTreeMap::from([(0, Zeroizing::new(master))]),
            id_key: Zeroizing::new(id_key),
            cut_key: Zeroizing::new(cut_key),
        }
    }

    /// Adds a master key, which seals new objects from now on, and returns its epoch. Ids and cut
    /// points do not change.
    pub fn add_master(&mut self, master: [u8; 32]) -> u32 {
        let epoch = self.epoch().saturating_add(1);
        self.master.insert(epoch, Zeroizing::new(master));
        epoch
    }

    /// Returns the highest epoch; its master key seals new objects.
    pub fn epoch(&self) -> u32 {
        self.master.keys().next_back().copied().unwrap_or(0)
    }

    /// Returns whether one more master key fits.
    pub fn has_room(&self) -> bool {
        self.master.len() < Self::EPOCHS_MAX
    }

    /// Returns whether these secrets hold every master key of `older`, and the same id key and
    /// cutting key.
    pub fn extend(&self, older: &Secrets) -> bool {
        let holds = |(epoch, key): (&u32, &Key)| self.master.get(epoch) == Some(key);
        self.id_key == older.id_key
            && self.cut_key == older.cut_key
            && older.master.iter().all(holds)
    }

    pub(super) fn master(&self, epoch: u32) -> Option<&Key> {
        self.master.get(&epoch)
    }

    /// Returns all master keys, the id key and the cutting key.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.master.values().chain([&self.id_key, &self.cut_key])
    }

    pub(super) fn id_key(&self) -> &Key {
        &self.id_key
    }

    pub(super) fn cut_key(&self) -> &Key {
        &self.cut_key
    }

    /// Returns the secrets as a CBOR map: 0 master keys by epoch, 1 id key, 2 cutting key.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        self.encode_with(None)
    }

    /// Returns the same map with field 3, the hash of the clear fields of the key slot that wraps
    /// the secrets.
    pub(super) fn encode_with(&self, stated: Option<&[u8; 32]>) -> Zeroizing<Vec<u8>> {
        // The capacity covers the whole encoding: a vector that grows leaves copies of the secrets
        // behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(192 + self.master.len() * 48));
        let mut encoder = Encoder::new(&mut *bytes);
        let written: Result<(), minicbor::encode::Error<std::convert::Infallible>> = (|| {
            let fields = 3 + u64::from(stated.is_some());
            encoder.map(fields)?.u8(0)?.map(self.master.len() as u64)?;
            for (epoch, master) in &self.master {
                encoder.u32(*epoch)?.bytes(master.as_ref())?;
            }
            encoder.u8(1)?.bytes(self.id_key.as_ref())?;
            encoder.u8(2)?.bytes(self.cut_key.as_ref())?;
            if let Some(stated) = stated {
                encoder.u8(3)?.bytes(stated)?;
            }
            Ok(())
        })();
        written.expect("writing to a vector does not fail");
        bytes
    }

    /// Decodes the bytes that [`Secrets::encode`] returns. Skips unknown keys of the map.
    ///
    /// # Errors
    /// [`SecretsError`] if the bytes are not one complete map, lack a key, or hold no master key or
    /// more than [`Secrets::EPOCHS_MAX`].
    pub fn decode(bytes: &[u8]) -> Result<Self, SecretsError> {
        Ok(Self::decode_with(bytes)?.0)
    }

    /// Decodes the bytes that [`Secrets::encode_with`] returns.
    ///
    /// # Errors
    /// Those of [`Secrets::decode`].
    pub(super) fn decode_with(bytes: &[u8]) -> Result<(Self, Option<[u8; 32]>), SecretsError> {
        let mut decoder = Decoder::new(bytes);
        let decoded = Self::decode_from(&mut decoder).map_err(|_| SecretsError)?;
        if decoder.position() == bytes.len() {
            decoded.ok_or(SecretsError)
        } else {
            Err(SecretsError)
        }
    }

    fn decode_from(decoder: &mut Decoder<'_>) -> Result<Option<Decoded>, minicbor::decode::Error> {
        let (mut master, mut id_key, mut cut_key) = (BTreeMap::new(), None, None);
        let mut stated = None;
        for _ in 0..definite(decoder.map()?)? {
            match decoder.u64()? {
                0 => {
                    for _ in 0..definite(decoder.map()?)?.min(Self::EPOCHS_MAX as u64 + 1) {
                        master.insert(decoder.u32()?, key(decoder)?);
                    }
                }
                1 => id_key = Some(key(decoder)?),
                2 => cut_key = Some(key(decoder)?),
                3 => stated = Some(*key(decoder)?),
                _ => decoder.skip()?,
            }
        }
        let complete = !master.is_empty() && master.len() <= Self::EPOCHS_MAX;
        Ok(match (id_key, cut_key) {
            (Some(id_key), Some(cut_key)) if complete => {
                let secrets = Self {
                    master,
                    id_key,
                    cut_key,
                };
                Some((secrets, stated))
            }
            _ => None,
        })
    }
}

/// Returns the length of a map.
///
/// # Errors
/// A message if the map does not state its length.
pub(super) fn definite(length: Option<u64>) -> Result<u64, minicbor::decode::Error> {
    length.ok_or_else(|| minicbor::decode::Error::message("a map of unstated length"))
}

fn key(decoder: &mut Decoder<'_>) -> Result<Key, minicbor::decode::Error> {
    let bytes = decoder.bytes()?;
    let mut key = Key::default();
    if bytes.len() != key.len() {
        return Err(minicbor::decode::Error::message("a key of wrong length"));
    }
    key.copy_from_slice(bytes);
    Ok(key)
}
