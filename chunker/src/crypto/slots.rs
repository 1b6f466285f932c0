//! Key slots: the secrets of a sealed repository, wrapped by a password.
//!
//! Owns the wrapping and its encoding. A slot commits to its key, so a reader tells a wrong
//! password from a damaged slot, and no slot opens under two passwords.
//!
//! A slot states its label, its time of creation and its epoch in the clear. The wrapped secrets
//! come with a hash of these fields, which binds them. Slots of the first form hold no such hash,
//! and open as well.

use super::config::open_header;
use super::header::{self, Header};
use super::keyring::{ObjectSealer, ZERO_KEY};
use super::keys::{BOX_OVERHEAD, Key, NONCE_LEN, ObjectKeys};
use super::object::{Algorithm, Class, Features, RepositoryId};
use super::secrets::definite;
use super::{HEADER_LEN, OpenError, Secrets};
use argon2::{Argon2, Block, Params, Version};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use bytes::Bytes;
use minicbor::{Decoder, Encoder};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// The name of a key slot: a random number, written in hexadecimal in the bucket.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct SlotName(pub u64);

impl SlotName {
    /// The prefix of the keys of all slots.
    pub const PREFIX: &str = "keys/";

    /// Returns the key of the slot in the bucket.
    pub fn key(&self) -> String {
        format!("{}{self}", Self::PREFIX)
    }

    /// Parses a key that [`SlotName::key`] returns; `None` for any other key.
    pub fn from_key(key: &str) -> Option<Self> {
        let name = Self(u64::from_str_radix(key.strip_prefix(Self::PREFIX)?, 16).ok()?);
        (name.key() == key).then_some(name)
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

impl FromStr for SlotName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::from_key(&format!("{}{text}", Self::PREFIX)).ok_or(())
    }
}

/// The cost parameters of Argon2id.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct SlotCost {
    /// Memory, in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes, which Argon2id can compute in parallel.
    pub lanes: u32,
}

impl SlotCost {
    /// 64 MiB, three passes, four lanes: the second recommendation of RFC 9106, section 4.
    pub const DEFAULT: SlotCost = SlotCost {
        memory_kib: 64 * 1024,
        passes: 3,
        lanes: 4,
    };

    /// The largest memory that a slot may ask for, in KiB. The fields of a slot are not yet
    /// verified when it is unwrapped, so this bounds a forged slot.
    pub const MEMORY_KIB_MAX: u32 = 1024 * 1024;
    /// The largest work that a slot may ask for, in KiB times passes: some tens of seconds.
    pub const WORK_MAX: u64 = 16 * 1024 * 1024;

    /// Returns the work of one attempt, in KiB times passes.
    pub fn work(&self) -> u64 {
        u64::from(self.memory_kib) * u64::from(self.passes)
    }

    /// Returns whether a slot may have this cost.
    pub fn is_reasonable(&self) -> bool {
        self.params().is_some()
    }

    /// Returns the parameters in Argon2's form, if they are within the bounds.
    fn params(&self) -> Option<Params> {
        let work = self.work();
        if self.memory_kib > Self::MEMORY_KIB_MAX || work > Self::WORK_MAX || self.lanes > 64 {
            return None;
        }
        Params::new(self.memory_kib, self.passes, self.lanes, Some(32)).ok()
    }
}

/// The reasons why a slot cannot be made or its secrets cannot be unwrapped.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SlotError {
    /// The password has no bytes, so it would protect nothing.
    #[error("the password is empty")]
    EmptyPassword,
    /// The password is wrong, or the salt, the cost or the commitment of the slot was changed.
    #[error("wrong password")]
    WrongPassword,
    /// The cost is above the bounds of a slot, or below the least that Argon2 accepts.
    #[error("the cost of the key slot is out of bounds: {0:?}")]
    UnreasonableCost(SlotCost),
    /// Argon2 cannot allocate its memory.
    #[error("not enough memory for the key slot's Argon2id ({memory_kib} KiB)")]
    NoMemory {
        /// The memory that this slot needs, in KiB.
        memory_kib: u32,
    },
    /// The label is longer than [`Slot::LABEL_LEN_MAX`].
    #[error("the label of a key slot has at most {} bytes", Slot::LABEL_LEN_MAX)]
    LabelTooLong,
    /// The password is right, but the wrapped secrets are damaged.
    #[error("the key slot is damaged")]
    Damaged,
}

/// The fields of a new slot, without the password and the secrets.
#[derive(Copy, Clone, Debug)]
pub struct NewSlot<'a> {
    /// The repository whose secrets it wraps.
    pub repository: RepositoryId,
    /// The name of the slot, which gives its key in the bucket.
    pub name: SlotName,
    /// The label that users know the slot by. It can be read without the password. At most
    /// [`Slot::LABEL_LEN_MAX`] bytes.
    pub label: &'a str,
    /// The time of creation, in seconds since 1970.
    pub created_s: u64,
    /// The cost of one attempt to unwrap.
    pub cost: SlotCost,
    /// Salt of the object: fresh randomness.
    pub object_salt: [u8; 32],
    /// Salt of the password: fresh randomness.
    pub password_salt: [u8; 32],
}

impl NewSlot<'_> {
    /// Wraps the secrets of a repository under a password. Returns the object to store under the
    /// key of the slot.
    ///
    /// # Errors
    /// - [`SlotError::LabelTooLong`] if the label is longer than [`Slot::LABEL_LEN_MAX`].
    /// - [`SlotError::EmptyPassword`] if the password is empty.
    /// - [`SlotError::UnreasonableCost`] if the cost is out of bounds.
    /// - [`SlotError::NoMemory`] if the memory for Argon2 cannot be allocated.
    pub fn wrap(&self, password: &[u8], secrets: &Secrets) -> Result<Bytes, SlotError> {
        if self.label.len() > Slot::LABEL_LEN_MAX {
            return Err(SlotError::LabelTooLong);
        }
        let (keys, commitment) =
            slot_keys(self.repository, self.cost, &self.password_salt, password)?;
        let stated = stated(
            self.repository,
            self.name,
            self.label,
            self.created_s,
            secrets.epoch(),
        );
        let encoded = secrets.encode_with(Some(&stated));
        // The capacity covers the whole box: a vector that grows leaves copies of the secrets
        // behind.
        let mut wrapped = Vec::with_capacity(encoded.len() + BOX_OVERHEAD);
        wrapped.extend_from_slice(&[0; NONCE_LEN]);
        wrapped.extend_from_slice(&encoded);
        keys.seal_in_place(0, &mut wrapped, 0);
        let slot = Slot {
            repository: self.repository,
            name: self.name,
            epoch: Some(secrets.epoch()),
            label: self.label.to_owned(),
            created_s: self.created_s,
            cost: self.cost,
            salt: self.password_salt,
            commitment,
            wrapped,
            has_epochs: secrets.epoch() > 0,
        };
        let header = Header {
            class: Class::KeySlot,
            algorithm: Algorithm::Unsealed,
            key_epoch: 0,
            features: match secrets.epoch() {
                0 => Features::NONE,
                _ => Features {
                    incompatible: Features::EPOCHS,
                    ..Features::NONE
                },
            },
            repository: self.repository,
            salt: self.object_salt,
        };
        let sealer = ObjectSealer::new(&ZERO_KEY, header, &self.name.key());
        let payload = slot.encode();
        let mut object = Vec::with_capacity(HEADER_LEN + BOX_OVERHEAD + payload.len());
        object.extend_from_slice(sealer.header());
        sealer.seal_box(0, &payload, &mut object);
        Ok(Bytes::from(object))
    }
}

/// Whether the clear fields of a slot are still those that it was made with.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Statement {
    /// They are: the password proves it.
    Bound,
    /// Unknown: the slot is of the first form, which binds no field.
    Unbound,
    /// They are not: the label, time, epoch or name was changed later.
    Changed,
}

/// The result of unwrapping a slot with its password.
#[derive(Clone, Debug)]
pub struct Unwrapped {
    /// The secrets of the repository.
    pub secrets: Secrets,
    /// Whether the clear fields of the slot are genuine.
    pub statement: Statement,
    /// The hash of the clear fields that was wrapped with the secrets; absent in slots of the first
    /// form.
    bound: Option<[u8; 32]>,
}

/// A key slot as it was read: its clear fields, and the secrets, still wrapped.
#[derive(Clone, Debug)]
pub struct Slot {
    repository: RepositoryId,
    name: SlotName,
    /// The epoch of the newest master key in it, as the slot states. Slots of the first form state
    /// none.
    epoch: Option<u32>,
    label: String,
    created_s: u64,
    cost: SlotCost,
    salt: [u8; 32],
    commitment: [u8; 32],
    wrapped: Vec<u8>,
    /// True if the header has the feature of more than one master key.
    has_epochs: bool,
}

impl Slot {
    /// The longest label, in bytes of UTF-8.
    pub const LABEL_LEN_MAX: usize = 255;

    /// The largest size of a slot's object, in bytes. A slot with the most master keys fits.
    pub const OBJECT_LEN_MAX: u64 = 64 * 1024;

    /// A lower bound for the size of a slot's object, in bytes. The smallest slot has about 380
    /// bytes: a header, a box, and three keys in another box.
    pub const OBJECT_LEN_MIN: u64 = 256;

    /// Reads the object that was found under `name.key()`.
    ///
    /// # Errors
    /// - [`OpenError::NotBkfs`] if the bytes do not begin with the magic of bkfs.
    /// - [`OpenError::WrongClass`], [`OpenError::WrongRepository`] or [`OpenError::WrongAlgorithm`]
    ///   if the header states another class or repository, or an algorithm that is not the unsealed
    ///   one.
    /// - [`OpenError::OtherFormat`] or [`OpenError::UnknownFeatures`] if this program does not know
    ///   the format version or an incompatible feature.
    /// - [`OpenError::Damaged`] if the object is cut short, does not verify or cannot be decoded.
    pub fn open(
        repository: RepositoryId,
        name: SlotName,
        object: &[u8],
    ) -> Result<Self, OpenError> {
        let (bytes, sealed) = header::split(object)?;
        let header = Header::decode(bytes, Class::KeySlot)?;
        if header.repository != repository {
            return Err(OpenError::WrongRepository {
                found: header.repository,
            });
        }
        let opener = open_header(header, bytes, &name.key())?;
        let mut room = Vec::new();
        let payload = opener.open_box(0, sealed, &mut room)?;
        let slot = Self::decode(repository, name, payload).ok().flatten();
        let mut slot = slot.ok_or(OpenError::Damaged {
            what: "the key slot cannot be decoded",
        })?;
        slot.has_epochs = header.features.incompatible & Features::EPOCHS != 0;
        Ok(slot)
    }

    /// Returns the label that users know the slot by.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the time of creation in seconds since 1970, by the clock of the machine that made
    /// the slot.
    pub fn created_s(&self) -> u64 {
        self.created_s
    }

    /// Returns the cost of one attempt to unwrap.
    pub fn cost(&self) -> SlotCost {
        self.cost
    }

    /// Returns the epoch of the newest master key in it, which the slot states without proof;
    /// `None` if it states none.
    pub fn epoch(&self) -> Option<u32> {
        self.epoch
    }

    /// Returns whether the newest master key in it may be of this epoch, by the slot's own
    /// statement. A slot without a stated epoch has epoch 0, unless its header says that it holds
    /// more than one master key: then it may have any epoch.
    pub fn may_be_of(&self, epoch: u32) -> bool {
        match self.epoch {
            Some(stated) => stated == epoch,
            None => epoch == 0 || self.has_epochs,
        }
    }

    /// Returns a hash of the cost, the salt, the commitment and the wrapped secrets. A password
    /// opens both of two slots with the same fingerprint, or neither.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for number in [self.cost.memory_kib, self.cost.passes, self.cost.lanes] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(&self.salt);
        hasher.update(&self.commitment);
        hasher.update(&self.wrapped);
        *hasher.finalize().as_bytes()
    }

    /// Unwraps the secrets. Takes the time and memory that [`Slot::cost`] says.
    ///
    /// # Errors
    /// The same as of [`Slot::unwrap_judged`].
    pub fn unwrap(&self, password: &[u8]) -> Result<Secrets, SlotError> {
        Ok(self.unwrap_judged(password)?.secrets)
    }

    /// Unwraps the secrets and judges the clear fields of the slot.
    ///
    /// # Errors
    /// - [`SlotError::EmptyPassword`] if the password is empty.
    /// - [`SlotError::UnreasonableCost`] if the slot asks for a cost that is out of bounds.
    /// - [`SlotError::NoMemory`] if the memory for Argon2 cannot be allocated.
    /// - [`SlotError::WrongPassword`] if the password does not match the commitment of the slot.
    /// - [`SlotError::Damaged`] if the wrapped secrets do not verify or cannot be decoded.
    pub fn unwrap_judged(&self, password: &[u8]) -> Result<Unwrapped, SlotError> {
        let (keys, commitment) = slot_keys(self.repository, self.cost, &self.salt, password)?;
        verify_slices_are_equal(&commitment, &self.commitment)
            .map_err(|_| SlotError::WrongPassword)?;
        let mut room = Zeroizing::new(self.wrapped.clone());
        let secrets = keys
            .open_in_place(0, &mut room)
            .map_err(|_| SlotError::Damaged)?;
        let (secrets, bound) = Secrets::decode_with(secrets).map_err(|_| SlotError::Damaged)?;
        Ok(Unwrapped {
            statement: self.judge(bound),
            secrets,
            bound,
        })
    }

    /// Returns what [`Slot::unwrap_judged`] returns for this slot, given its result `other` for a
    /// slot with the same [fingerprint](Slot::fingerprint) and the same password. Costs no Argon2
    /// run.
    pub fn unwrapped_like(&self, other: &Unwrapped) -> Unwrapped {
        Unwrapped {
            statement: self.judge(other.bound),
            ..other.clone()
        }
    }

    fn judge(&self, bound: Option<[u8; 32]>) -> Statement {
        match (bound, self.epoch) {
            (None, None) => Statement::Unbound,
            (Some(bound), Some(epoch)) if bound == self.stated(epoch) => Statement::Bound,
            _ => Statement::Changed,
        }
    }

    fn stated(&self, epoch: u32) -> [u8; 32] {
        stated(
            self.repository,
            self.name,
            &self.label,
            self.created_s,
            epoch,
        )
    }

    /// Returns a CBOR map: 0 label, 1 time of creation, 2 cost (memory in KiB, passes,
    /// lanes), 3 salt, 4 commitment, 5 wrapped secrets, 6 epoch.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes);
        let written: Result<(), minicbor::encode::Error<Infallible>> = (|| {
            encoder.map(6 + u64::from(self.epoch.is_some()))?;
            encoder.u8(0)?.str(&self.label)?;
            encoder.u8(1)?.u64(self.created_s)?;
            encoder.u8(2)?.array(3)?.u32(self.cost.memory_kib)?;
            encoder.u32(self.cost.passes)?.u32(self.cost.lanes)?;
            encoder.u8(3)?.bytes(&self.salt)?;
            encoder.u8(4)?.bytes(&self.commitment)?;
            encoder.u8(5)?.bytes(&self.wrapped)?;
            if let Some(epoch) = self.epoch {
                encoder.u8(6)?.u32(epoch)?;
            }
            Ok(())
        })();
        written.expect("writing to a vector does not fail");
        bytes
    }

    fn decode(
        repository: RepositoryId,
        name: SlotName,
        payload: &[u8],
    ) -> Result<Option<Self>, minicbor::decode::Error> {
        let mut decoder = Decoder::new(payload);
        let (mut label, mut created_s, mut cost) = (None, 0, None);
        let (mut salt, mut commitment, mut wrapped) = (None, None, None);
        let mut epoch = None;
        for _ in 0..definite(decoder.map()?)? {
            match decoder.u64()? {
                0 => label = Some(decoder.str()?.to_owned()),
                1 => created_s = decoder.u64()?,
                2 => {
                    if decoder.array()? != Some(3) {
                        return Ok(None);
                    }
                    cost = Some(SlotCost {
                        memory_kib: decoder.u32()?,
                        passes: decoder.u32()?,
                        lanes: decoder.u32()?,
                    });
                }
                3 => salt = decoder.bytes()?.try_into().ok(),
                4 => commitment = decoder.bytes()?.try_into().ok(),
                5 => wrapped = Some(decoder.bytes()?.to_vec()),
                6 => epoch = Some(decoder.u32()?),
                _ => decoder.skip()?,
            }
        }
        Ok((|| {
            Some(Self {
                repository,
                name,
                epoch,
                label: label.filter(|label: &String| label.len() <= Self::LABEL_LEN_MAX)?,
                created_s,
                cost: cost?,
                salt: salt?,
                commitment: commitment?,
                wrapped: wrapped?,
                has_epochs: false,
            })
        })())
    }
}

/// Returns the hash of a slot's clear fields and its name.
fn stated(
    repository: RepositoryId,
    name: SlotName,
    label: &str,
    created_s: u64,
    epoch: u32,
) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"bkfs key slot states");
    hasher.update(&repository.0);
    hasher.update(&name.0.to_le_bytes());
    hasher.update(&created_s.to_le_bytes());
    hasher.update(&epoch.to_le_bytes());
    hasher.update(label.as_bytes());
    *hasher.finalize().as_bytes()
}

/// Derives from a password the keys of the box around the secrets, and a commitment to them.
///
/// The commitment is bytes 64 to 96 of a BLAKE3 output whose first 64 bytes are the keys. Two
/// passwords with the same commitment would be a collision of BLAKE3.
fn slot_keys(
    repository: RepositoryId,
    cost: SlotCost,
    salt: &[u8; 32],
    password: &[u8],
) -> Result<(ObjectKeys, [u8; 32]), SlotError> {
    if password.is_empty() {
        return Err(SlotError::EmptyPassword);
    }
    let params = cost.params().ok_or(SlotError::UnreasonableCost(cost))?;
    let mut memory = Zeroizing::new(Vec::new());
    memory
        .try_reserve_exact(params.block_count())
        .map_err(|_| SlotError::NoMemory {
            memory_kib: cost.memory_kib,
        })?;
    memory.resize(params.block_count(), Block::new());
    let mut root = Key::default();
    Argon2::new(argon2::Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into_with_memory(password, salt, root.as_mut(), memory.as_mut_slice())
        .map_err(|_| SlotError::UnreasonableCost(cost))?;
    let mut hasher = blake3::Hasher::new_keyed(&root);
    hasher.update(b"bkfs key slot");
    hasher.update(&repository.0);
    let keys = ObjectKeys::from_hasher(&hasher, Algorithm::Aes256Gcm);
    let mut commitment = [0; 32];
    let mut output = hasher.finalize_xof();
    output.set_position(64);
    output.fill(&mut commitment);
    Ok((keys, commitment))
}
