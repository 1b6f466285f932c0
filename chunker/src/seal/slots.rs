//! Key slots: the secrets of a sealed repository, wrapped by a password.
//!
//! Owns the wrapping and its encoding. A slot commits to its key: a wrong password is told from a damaged slot, and no
//! slot opens under two passwords.
//!
//! What a slot states in the clear (its label, the time, the epoch) is bound into what it wraps, by
//! a hash beside the secrets. Slots that were made before hold no such hash, and open as well.

use super::config::open_header;
use super::header::{self, Algorithm, Class, Features, Header, RepositoryId};
use super::keyring::{ObjectSealer, ZERO_KEY};
use super::keys::{BOX_OVERHEAD, Key, NONCE_LEN, ObjectKeys};
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

/// The name of a key slot: randomness, as hexadecimal in the bucket.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct SlotName(pub u64);

impl SlotName {
    /// The first part of the key of every slot.
    pub const PREFIX: &str = "keys/";

    /// Where the slot lies in the bucket.
    pub fn key(&self) -> String {
        format!("{}{self}", Self::PREFIX)
    }

    /// The inverse of [`SlotName::key`]; `None` for any other key.
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

/// What Argon2id costs.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct SlotCost {
    /// Memory, in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes, computed side by side on as many processors as there are.
    pub lanes: u32,
}

impl SlotCost {
    /// 64 MiB, three passes, four lanes: the second recommendation of RFC 9106, section 4.
    pub const DEFAULT: SlotCost = SlotCost {
        memory_kib: 64 * 1024,
        passes: 3,
        lanes: 4,
    };

    /// No slot may ask for more memory than this, in KiB: what a slot says is not yet verified when it is unwrapped.
    pub const MEMORY_KIB_MAX: u32 = 1024 * 1024;
    /// Nor for more work than this: KiB times passes, some tens of seconds.
    pub const WORK_MAX: u64 = 16 * 1024 * 1024;

    /// What a try costs: KiB times passes.
    pub fn work(&self) -> u64 {
        u64::from(self.memory_kib) * u64::from(self.passes)
    }

    /// Whether a slot may cost this.
    pub fn is_reasonable(&self) -> bool {
        self.params().is_some()
    }

    /// The parameters as Argon2 takes them, if they are within the bounds.
    fn params(&self) -> Option<Params> {
        let work = self.work();
        if self.memory_kib > Self::MEMORY_KIB_MAX || work > Self::WORK_MAX || self.lanes > 64 {
            return None;
        }
        Params::new(self.memory_kib, self.passes, self.lanes, Some(32)).ok()
    }
}

/// Why a slot could not be made, or its secrets not be had.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SlotError {
    /// A password of no characters protects nothing.
    #[error("the password is empty")]
    EmptyPassword,
    /// The slot is whole, and this is not its password.
    #[error("wrong password")]
    WrongPassword,
    /// Argon2 is asked for more than any slot may, or for less than it can do.
    #[error("the cost of the key slot is out of bounds: {0:?}")]
    UnreasonableCost(SlotCost),
    /// There is no memory for Argon2 to work in.
    #[error("not enough memory for the key slot's Argon2id ({memory_kib} KiB)")]
    NoMemory {
        /// What is needed.
        memory_kib: u32,
    },
    /// The label is longer than [`Slot::LABEL_LEN_MAX`].
    #[error("the label of a key slot has at most {} bytes", Slot::LABEL_LEN_MAX)]
    LabelTooLong,
    /// The password fits, but the secrets in the slot are damaged.
    #[error("the key slot is damaged")]
    Damaged,
}

/// What a new slot is made of, beside the password and the secrets.
#[derive(Copy, Clone, Debug)]
pub struct NewSlot<'a> {
    /// The repository whose secrets it wraps.
    pub repository: RepositoryId,
    /// Where it will lie.
    pub name: SlotName,
    /// What people know the slot by; can be read without the password. At most [`Slot::LABEL_LEN_MAX`] bytes.
    pub label: &'a str,
    /// When it is made, in seconds since 1970.
    pub created_s: u64,
    /// What a try of a password will cost.
    pub cost: SlotCost,
    /// Salt of the object: fresh randomness.
    pub object_salt: [u8; 32],
    /// Salt of the password: fresh randomness.
    pub password_salt: [u8; 32],
}

impl NewSlot<'_> {
    /// Wraps the secrets of a repository under a password. Gives the object that belongs under the slot's key.
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
        // Room for all from the start: a vector that grows leaves copies of the secrets behind.
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

/// Whether what a slot states in the clear is what was stated when it was made.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Statement {
    /// It is: the password proves it.
    Bound,
    /// It cannot be told: the slot is of a form that binds nothing.
    Unbound,
    /// It is not: label, time, epoch or name were changed since.
    Changed,
}

/// What a password makes of a slot.
#[derive(Clone, Debug)]
pub struct Unwrapped {
    /// The secrets of the repository.
    pub secrets: Secrets,
    /// What the slot states, judged.
    pub statement: Statement,
    /// The hash, stored with the secrets, of what the slot stated when it was made, if there is one.
    bound: Option<[u8; 32]>,
}

/// A key slot as it was read: what it says, and the secrets, still wrapped.
#[derive(Clone, Debug)]
pub struct Slot {
    repository: RepositoryId,
    name: SlotName,
    /// The newest master key in it, as it states; slots of the first form do not.
    epoch: Option<u32>,
    label: String,
    created_s: u64,
    cost: SlotCost,
    salt: [u8; 32],
    commitment: [u8; 32],
    wrapped: Vec<u8>,
    /// True if its header tells of more than one master key.
    has_epochs: bool,
}

impl Slot {
    /// The longest label, in bytes of UTF-8.
    pub const LABEL_LEN_MAX: usize = 255;

    /// The longest object that can be a slot, in bytes: one with the most master keys.
    pub const OBJECT_LEN_MAX: u64 = 64 * 1024;

    /// No object that is a slot is shorter than this, in bytes: with a header, a box and three keys
    /// in another box it has some 380.
    pub const OBJECT_LEN_MIN: u64 = 256;

    /// Reads the object that was found under `name.key()`.
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

    /// What people know the slot by.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// When it was made, in seconds since 1970, by the clock of whoever made it.
    pub fn created_s(&self) -> u64 {
        self.created_s
    }

    /// What a try of a password costs.
    pub fn cost(&self) -> SlotCost {
        self.cost
    }

    /// The epoch of the newest master key in it, as it states without proof; none if it does not.
    pub fn epoch(&self) -> Option<u32> {
        self.epoch
    }

    /// Whether the newest master key in it may be of this epoch, as far as it states. One that states
    /// no epoch is of epoch 0, unless its header tells of more master keys.
    pub fn may_be_of(&self, epoch: u32) -> bool {
        match self.epoch {
            Some(stated) => stated == epoch,
            None => epoch == 0 || self.has_epochs,
        }
    }

    /// A hash of what is wrapped and of what it is wrapped with: of two slots that share it, a
    /// password opens both or none.
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

    /// Unwraps the secrets. Takes as long and as much memory as [`Slot::cost`] says.
    pub fn unwrap(&self, password: &[u8]) -> Result<Secrets, SlotError> {
        Ok(self.unwrap_judged(password)?.secrets)
    }

    /// The same, with what to think of what the slot states in the clear.
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

    /// What a password makes of this slot that has made `other` of one with the same
    /// [fingerprint](Slot::fingerprint). Costs nothing.
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

    /// A CBOR map: 0 label, 1 time of creation, 2 cost (memory in KiB, passes, lanes), 3 salt, 4 commitment, 5 secrets,
    /// 6 epoch.
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

/// The hash of what a slot states in the clear.
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

/// What a password becomes: the keys of the box around the secrets, and a commitment to them.
///
/// The commitment is 32 bytes of a hash of which the keys are other bytes. Whoever finds two passwords with one
/// commitment has found a collision of BLAKE3.
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
