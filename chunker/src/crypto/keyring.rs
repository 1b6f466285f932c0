//! The keyring: names, seals and opens the objects of one repository.

use super::header::{self, HEADER_LEN, Header};
use super::keys::{BOX_OVERHEAD, Key, NONCE_LEN, ObjectKeys};
use super::object::{Algorithm, Class, Features, RepositoryId};
use super::{OpenError, Secrets};
use crate::chunking::{Cutter, Parameters};
use crate::id::{Id, Kind};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Names, seals and opens objects. Cheap to clone; wiped from memory with its last clone; never
/// printed.
#[derive(Clone)]
pub struct Keyring(Arc<Inner>);

struct Inner {
    repository: RepositoryId,
    algorithm: Algorithm,
    secrets: Secrets,
    /// Epoch of the oldest master key whose roots are accepted.
    oldest_root: u32,
    /// The id key of each kind, in the order of [`Kind::ALL`].
    kind_keys: [Key; 4],
    name_key: Key,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Keyring")
            .field("repository", &self.0.repository)
            .field("algorithm", &self.0.algorithm)
            .finish_non_exhaustive()
    }
}

impl Keyring {
    /// The keyring of a repository without a password: objects are in the clear, and verified.
    pub fn unsealed(repository: RepositoryId, secrets: Secrets) -> Self {
        Self::new(repository, Algorithm::Unsealed, secrets)
    }

    /// The keyring of a repository with a password: objects are sealed under the newest master key.
    pub fn sealed(repository: RepositoryId, secrets: Secrets) -> Self {
        Self::new(repository, Algorithm::Aes256Gcm, secrets)
    }

    fn new(repository: RepositoryId, algorithm: Algorithm, secrets: Secrets) -> Self {
        let kind_keys =
            Kind::ALL.map(|kind| derive_key(secrets.id_key(), b"bkfs kind", &[kind as u8]));
        let name_key = derive_key(secrets.id_key(), b"bkfs name", &[]);
        Self(Arc::new(Inner {
            repository,
            algorithm,
            oldest_root: secrets.epoch(),
            secrets,
            kind_keys,
            name_key,
        }))
    }

    /// Returns the keyring for a rotation from the master key `left` to its newest one: it opens
    /// roots under either.
    pub fn rotating_from(&self, left: u32) -> Self {
        let inner = &self.0;
        Self(Arc::new(Inner {
            repository: inner.repository,
            algorithm: inner.algorithm,
            secrets: inner.secrets.clone(),
            oldest_root: left.min(inner.oldest_root),
            kind_keys: inner.kind_keys.clone(),
            name_key: inner.name_key.clone(),
        }))
    }

    /// Epoch of the master key that seals new objects.
    pub fn epoch(&self) -> u32 {
        self.0.secrets.epoch()
    }

    /// Its repository.
    pub fn repository(&self) -> RepositoryId {
        self.0.repository
    }

    /// Whether objects are encrypted.
    pub fn is_sealed(&self) -> bool {
        self.0.algorithm == Algorithm::Aes256Gcm
    }

    /// The secrets, to be wrapped in a further key slot.
    pub fn secrets(&self) -> &Secrets {
        &self.0.secrets
    }

    /// Returns the memory of the keys, to be kept out of swap. The keys stay there while a clone
    /// lives.
    pub fn key_memory(&self) -> Vec<&[u8]> {
        let inner = &self.0;
        let derived = inner.kind_keys.iter().chain([&inner.name_key]);
        let keys = inner.secrets.keys().chain(derived);
        keys.map(|key| key.as_slice()).collect()
    }

    /// Returns the id of a blob.
    pub fn id(&self, kind: Kind, bytes: &[u8]) -> Id {
        let key = &self.0.kind_keys[kind as usize - 1];
        Id(*blake3::keyed_hash(key, bytes).as_bytes())
    }

    /// Returns a 64-bit keyed hash of a name, for directory cookies and for keys of volumes in the
    /// bucket.
    pub fn name_hash(&self, bytes: &[u8]) -> u64 {
        let hash = blake3::keyed_hash(&self.0.name_key, bytes);
        let mut head = [0; 8];
        head.copy_from_slice(&hash.as_bytes()[..8]);
        u64::from_le_bytes(head)
    }

    /// Returns the key of the checksums in a table that this machine makes of an index object. It
    /// depends on the repository, its id key, the form of tables and the name of the object. A new
    /// master key does not change it.
    pub fn table_key(&self, version: u32, name: &[u8; 16]) -> Zeroizing<[u8; 32]> {
        let repository = self.0.repository.0;
        let of = [&version.to_le_bytes()[..], &repository, name].concat();
        derive_key(self.0.secrets.id_key(), b"bkfs table", &of)
    }

    /// Returns the splitter of this repository. It is keyed, so that lengths of chunks betray no
    /// known content.
    pub fn cutter(&self, parameters: &Parameters) -> Cutter {
        Cutter::new(*parameters, &self.gear())
    }

    /// Returns the table of the rolling hash: the value added for each byte.
    pub(super) fn gear(&self) -> [u64; 256] {
        let mut hasher = blake3::Hasher::new_keyed(self.0.secrets.cut_key());
        hasher.update(b"bkfs gear");
        let mut output = hasher.finalize_xof();
        std::array::from_fn(|_| {
            let mut number = [0; 8];
            output.fill(&mut number);
            u64::from_le_bytes(number)
        })
    }

    /// Seals a whole object of one box: header and box 0. `salt` is fresh randomness; `key` is its
    /// key in the bucket.
    pub fn seal_object(
        &self,
        class: Class,
        key: &str,
        features: Features,
        salt: [u8; 32],
        payload: &[u8],
    ) -> Bytes {
        let sealer = self.object_sealer(class, key, features, salt);
        let mut object = Vec::with_capacity(HEADER_LEN + BOX_OVERHEAD + payload.len());
        object.extend_from_slice(sealer.header());
        sealer.seal_box(0, payload, &mut object);
        Bytes::from(object)
    }

    /// Opens an object of one box that was read under `key`, and returns its payload.
    ///
    /// # Errors
    /// [`OpenError::NotBkfs`] or [`OpenError::Damaged`] for a short object; the errors of
    /// [`Self::object_opener`]; [`OpenError::Damaged`] if the box fails its tag.
    pub fn open_object(
        &self,
        class: Class,
        key: &str,
        object: &[u8],
    ) -> Result<Vec<u8>, OpenError> {
        let (header, sealed) = header::split(object)?;
        let opener = self.object_opener(class, key, header)?;
        let mut room = Vec::new();
        let payload = opener.open_box(0, sealed, &mut room)?;
        if !opener.is_sealed() {
            return Ok(payload.to_vec());
        }
        Ok(room)
    }

    /// Begins an object of several boxes. `salt` is fresh randomness; `key` is its key in the
    /// bucket.
    pub fn object_sealer(
        &self,
        class: Class,
        key: &str,
        features: Features,
        salt: [u8; 32],
    ) -> ObjectSealer {
        let open = class.is_open() || self.0.algorithm == Algorithm::Unsealed;
        let header = Header {
            class,
            algorithm: if open {
                Algorithm::Unsealed
            } else {
                self.0.algorithm
            },
            key_epoch: if open { 0 } else { self.0.secrets.epoch() },
            features,
            repository: self.0.repository,
            salt,
        };
        ObjectSealer::new(self.master_for(&header).unwrap_or(&ZERO_KEY), header, key)
    }

    /// Checks the header of an object that was read under `key`, and returns the opener of its
    /// boxes.
    ///
    /// # Errors
    /// [`OpenError::OlderKeyEpoch`] for a root under a master key that was given up: a party that
    /// knows only that key could have made it.
    pub fn object_opener(
        &self,
        class: Class,
        key: &str,
        header: &[u8; HEADER_LEN],
    ) -> Result<ObjectOpener, OpenError> {
        let decoded = Header::decode(header, class)?;
        if decoded.repository != self.0.repository {
            return Err(OpenError::WrongRepository {
                found: decoded.repository,
            });
        }
        let expected = if class.is_open() {
            Algorithm::Unsealed
        } else {
            self.0.algorithm
        };
        if decoded.algorithm != expected {
            // Any party can make an unsealed object: in a sealed repository it is a forgery.
            return Err(OpenError::WrongAlgorithm {
                found: decoded.algorithm as u8,
            });
        }
        let master = self.master_for(&decoded).ok_or(OpenError::NoKeyEpoch {
            epoch: decoded.key_epoch,
        })?;
        let opener = ObjectOpener::new(master, decoded, header, key)?;
        if class == Class::Root && opener.is_sealed() && decoded.key_epoch < self.0.oldest_root {
            return Err(OpenError::OlderKeyEpoch {
                epoch: decoded.key_epoch,
                newest: self.epoch(),
            });
        }
        Ok(opener)
    }

    /// Returns the epoch of the master key under which a header was really sealed, if it states
    /// another one and this keyring has that key. The stated epoch was then changed. `None` if no
    /// key proves that.
    pub fn epoch_beneath(&self, class: Class, key: &str, header: &[u8; HEADER_LEN]) -> Option<u32> {
        let stated = Header::stated_epoch(header);
        let verifies = |epoch: &u32| {
            let changed = Header::with_epoch(header, *epoch);
            let opened = self.object_opener(class, key, &changed);
            // Each of these errors comes after the check of the tag.
            matches!(
                opened,
                Ok(_)
                    | Err(OpenError::OlderKeyEpoch { .. }
                        | OpenError::OtherFormat { .. }
                        | OpenError::UnknownFeatures { .. })
            )
        };
        let held = (0..=self.epoch()).rev();
        held.filter(|epoch| *epoch != stated).find(verifies)
    }

    fn master_for(&self, header: &Header) -> Option<&[u8; 32]> {
        match header.algorithm {
            Algorithm::Unsealed => Some(&ZERO_KEY),
            Algorithm::Aes256Gcm => self.0.secrets.master(header.key_epoch).map(|key| &**key),
        }
    }
}

/// The public master key of unsealed objects.
pub(super) const ZERO_KEY: [u8; 32] = [0; 32];

/// Derives a key for one use from a key for many.
pub(super) fn derive_key(key: &[u8; 32], context: &[u8], number: &[u8]) -> Key {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(context);
    hasher.update(number);
    Zeroizing::new(*hasher.finalize().as_bytes())
}

/// Makes the boxes of one new object. Cheap to clone, so that several workers can seal frames of
/// one pack.
#[derive(Clone, Debug)]
pub struct ObjectSealer {
    header: [u8; HEADER_LEN],
    keys: Arc<ObjectKeys>,
}

impl ObjectSealer {
    pub(super) fn new(master: &[u8; 32], header: Header, key: &str) -> Self {
        let mut bytes = header.encode();
        let keys = ObjectKeys::derive(master, header.algorithm, &bytes, key);
        let tag = keys.header_tag(&bytes);
        bytes[header::TAGGED_LEN..].copy_from_slice(&tag);
        Self {
            header: bytes,
            keys: Arc::new(keys),
        }
    }

    /// The first 128 bytes of the object.
    pub fn header(&self) -> &[u8; HEADER_LEN] {
        &self.header
    }

    /// Appends box `number` with this payload to `out`: [`BOX_OVERHEAD`] bytes more than the
    /// payload. Each number is used once per object.
    pub fn seal_box(&self, number: u32, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.reserve(payload.len() + BOX_OVERHEAD);
        out.extend_from_slice(&[0; NONCE_LEN]);
        out.extend_from_slice(payload);
        self.keys.seal_in_place(number, out, start);
    }

    /// Makes box `number` of `buffer[start..]`, which is [`NONCE_LEN`] bytes of room and then the
    /// payload. Appends the tag.
    ///
    /// # Panics
    /// If less than [`NONCE_LEN`] bytes follow `start`.
    pub fn seal_in_place(&self, number: u32, buffer: &mut Vec<u8>, start: usize) {
        self.keys.seal_in_place(number, buffer, start);
    }
}

/// Opens the boxes of one object whose header has been checked. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ObjectOpener {
    header: Header,
    keys: Arc<ObjectKeys>,
}

impl ObjectOpener {
    /// Checks the tag of the header `bytes`, then its version and features.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] if the tag is wrong; [`OpenError::OtherFormat`],
    /// [`OpenError::UnknownFeatures`].
    pub(super) fn new(
        master: &[u8; 32],
        header: Header,
        bytes: &[u8; HEADER_LEN],
        key: &str,
    ) -> Result<Self, OpenError> {
        let keys = ObjectKeys::derive(master, header.algorithm, bytes, key);
        keys.verify_header(bytes)?;
        header::check_known(bytes, header.features)?;
        Ok(Self {
            header,
            keys: Arc::new(keys),
        })
    }

    /// The header, verified.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether the boxes are encrypted.
    pub fn is_sealed(&self) -> bool {
        self.header.algorithm == Algorithm::Aes256Gcm
    }

    /// Opens box `number` and returns its payload. The payload lies in `sealed` itself if the
    /// repository is unsealed, else in `room`. The former contents of `room` are lost; its capacity
    /// is reused.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] if the box is cut short or its tag is wrong.
    pub fn open_box<'a>(
        &self,
        number: u32,
        sealed: &'a [u8],
        room: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], OpenError> {
        self.keys.open(number, sealed, room)
    }

    /// Opens box `number` in place and returns its payload. After an error the contents of `sealed`
    /// are lost.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] if the box is cut short or its tag is wrong.
    pub fn open_in_place<'a>(
        &self,
        number: u32,
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], OpenError> {
        self.keys.open_in_place(number, sealed)
    }
}
