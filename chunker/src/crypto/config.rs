//! The config object: the parameters that a repository gets at init, and its rule for object locks.
//!
//! Owns the encoding. The config is read before any secret is known, so its contents count as true
//! only after [`Config::unlock`] or [`Config::keyring`] has verified them.

use super::header::{self, Header};
use super::keyring::{ObjectOpener, ObjectSealer, ZERO_KEY, derive_key};
use super::keys::BOX_OVERHEAD;
use super::object::{Algorithm, Class, Features, RepositoryId};
use super::secrets::definite;
use super::{HEADER_LEN, Keyring, OpenError, Secrets};
use crate::chunking::Parameters;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use bkfs_store::lock::{LOCK_DAYS_MAX, LockMode, LockRule};
use bytes::Bytes;
use minicbor::{Decoder, Encoder};
use std::convert::Infallible;
use zeroize::Zeroizing;

/// The decoded config object of a repository.
#[derive(Clone, Debug)]
pub struct Config {
    repository: RepositoryId,
    cutting: Parameters,
    /// The rule by which the bucket locks objects.
    lock: Option<LockRule>,
    /// Present in unsealed repositories only, where the secrets are public.
    secrets: Option<Secrets>,
    /// The stated fields in their encoded form, which the tag covers.
    stated: Zeroizing<Vec<u8>>,
    tag: [u8; 32],
}

const DAMAGED: OpenError = OpenError::Damaged {
    what: "the config cannot be decoded",
};

impl Config {
    /// The key of the config in the bucket.
    pub const KEY: &str = "config";

    /// Returns the config object of a new repository. The secrets go into it only if `sealed` is
    /// false. `salt` is fresh randomness.
    pub fn create(
        repository: RepositoryId,
        cutting: &Parameters,
        sealed: bool,
        secrets: &Secrets,
        salt: [u8; 32],
        lock: Option<LockRule>,
    ) -> Bytes {
        let open = (!sealed).then_some(secrets);
        let stated = encode_stated(cutting, open, lock);
        let tag = tag(repository, &stated, secrets);
        let mut payload = Zeroizing::new(Vec::with_capacity(stated.len() + 64));
        let mut encoder = Encoder::new(&mut *payload);
        let written: Result<(), minicbor::encode::Error<Infallible>> = (|| {
            encoder.map(2)?.u8(0)?.bytes(&stated)?;
            encoder.u8(1)?.bytes(&tag)?;
            Ok(())
        })();
        written.expect("writing to a vector does not fail");
        let header = Header {
            class: Class::Config,
            algorithm: Algorithm::Unsealed,
            key_epoch: 0,
            features: Features::NONE,
            repository,
            salt,
        };
        let sealer = ObjectSealer::new(&ZERO_KEY, header, Self::KEY);
        let mut object = Vec::with_capacity(HEADER_LEN + BOX_OVERHEAD + payload.len());
        object.extend_from_slice(sealer.header());
        sealer.seal_box(0, &payload, &mut object);
        Bytes::from(object)
    }

    /// Reads the object that lies under [`Config::KEY`], whichever repository it belongs to.
    ///
    /// # Errors
    /// - [`OpenError::NotBkfs`] if the bytes do not begin with the magic of bkfs.
    /// - [`OpenError::WrongClass`] if the object has another class.
    /// - [`OpenError::WrongAlgorithm`] if the header states another algorithm than the unsealed
    ///   one.
    /// - [`OpenError::OtherFormat`] or [`OpenError::UnknownFeatures`] if this program does not know
    ///   the format version or an incompatible feature.
    /// - [`OpenError::Damaged`] if the object is cut short, does not verify, cannot be decoded, or
    ///   states cutting parameters that are out of bounds.
    pub fn open(object: &[u8]) -> Result<Self, OpenError> {
        let (bytes, sealed) = header::split(object)?;
        let header = Header::decode(bytes, Class::Config)?;
        let opener = open_header(header, bytes, Self::KEY)?;
        let mut room = Vec::new();
        let payload = opener.open_box(0, sealed, &mut room)?;
        let (stated, tag) = decode_payload(payload).map_err(|_| DAMAGED)?;
        let (cutting, lock, secrets) = decode_stated(&stated)?;
        Ok(Self {
            repository: header.repository,
            cutting,
            lock,
            secrets,
            stated,
            tag,
        })
    }

    /// Returns the repository that the config names. Not verified before [`Config::unlock`].
    pub fn repository(&self) -> RepositoryId {
        self.repository
    }

    /// Returns whether a password is needed. A caller that was given a password must refuse a
    /// config that returns false here: an attacker has swapped it.
    pub fn is_sealed(&self) -> bool {
        self.secrets.is_none()
    }

    /// Returns the parameters by which this repository cuts content into chunks. Not verified
    /// before [`Config::unlock`].
    pub fn cutting(&self) -> &Parameters {
        &self.cutting
    }

    /// Returns the rule by which the bucket locks objects; `None` if the repository never had one.
    /// Not verified before [`Config::unlock`].
    pub fn lock(&self) -> Option<LockRule> {
        self.lock
    }

    /// Returns the keyring of an unsealed repository; `None` if the repository is sealed.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] if the config was not made with the secrets that it holds.
    pub fn keyring(&self) -> Result<Option<Keyring>, OpenError> {
        let Some(secrets) = &self.secrets else {
            return Ok(None);
        };
        self.verify(secrets)?;
        Ok(Some(Keyring::unsealed(self.repository, secrets.clone())))
    }

    /// Returns the keyring of a sealed repository, made of the secrets that a key slot held.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] if the config states that the repository is not sealed, or was not
    /// made with these secrets. Then an attacker has changed the config or swapped it for an
    /// unsealed one.
    pub fn unlock(&self, secrets: Secrets) -> Result<Keyring, OpenError> {
        if !self.is_sealed() {
            return Err(OpenError::Damaged {
                what: "the config says that the repository is not sealed, but a key slot of it is",
            });
        }
        self.verify(&secrets)?;
        Ok(Keyring::sealed(self.repository, secrets))
    }

    fn verify(&self, secrets: &Secrets) -> Result<(), OpenError> {
        let expected = tag(self.repository, &self.stated, secrets);
        verify_slices_are_equal(&expected, &self.tag).map_err(|_| OpenError::Damaged {
            what: "the config was not made with the secrets of this repository",
        })
    }
}

/// Opens an object whose header needs no keyring. Refuses every algorithm but the unsealed one, as
/// the keyring does.
///
/// # Errors
/// [`OpenError::WrongAlgorithm`] for another algorithm; [`OpenError::Damaged`] if the header does
/// not verify; [`OpenError::OtherFormat`] or [`OpenError::UnknownFeatures`] as of [`Config::open`].
pub(super) fn open_header(
    header: Header,
    bytes: &[u8; HEADER_LEN],
    key: &str,
) -> Result<ObjectOpener, OpenError> {
    if header.algorithm != Algorithm::Unsealed {
        return Err(OpenError::WrongAlgorithm {
            found: header.algorithm as u8,
        });
    }
    ObjectOpener::new(&ZERO_KEY, header, bytes, key)
}

fn tag(repository: RepositoryId, stated: &[u8], secrets: &Secrets) -> [u8; 32] {
    let key = derive_key(secrets.id_key(), b"bkfs config", &repository.0);
    *blake3::keyed_hash(&key, stated).as_bytes()
}

fn encode_stated(
    cutting: &Parameters,
    secrets: Option<&Secrets>,
    lock: Option<LockRule>,
) -> Zeroizing<Vec<u8>> {
    let secrets = secrets.map(Secrets::encode);
    let room = 64 + secrets.as_ref().map_or(0, |secrets| secrets.len());
    let mut stated = Zeroizing::new(Vec::with_capacity(room));
    let mut encoder = Encoder::new(&mut *stated);
    let written: Result<(), minicbor::encode::Error<Infallible>> = (|| {
        let fields = 1 + u64::from(secrets.is_some()) + u64::from(lock.is_some());
        encoder.map(fields)?;
        encoder.u8(0)?.array(5)?;
        for number in cutting.to_array() {
            encoder.u32(number)?;
        }
        if let Some(secrets) = &secrets {
            encoder.u8(1)?.bytes(secrets)?;
        }
        if let Some(lock) = lock {
            let mode = match lock.mode {
                LockMode::Governance => 0,
                LockMode::Compliance => 1,
            };
            encoder.u8(2)?.array(2)?.u32(lock.days)?.u8(mode)?;
        }
        Ok(())
    })();
    written.expect("writing to a vector does not fail");
    stated
}

fn decode_payload(
    payload: &[u8],
) -> Result<(Zeroizing<Vec<u8>>, [u8; 32]), minicbor::decode::Error> {
    let mut decoder = Decoder::new(payload);
    let (mut stated, mut tag) = (None, None);
    for _ in 0..definite(decoder.map()?)? {
        match decoder.u64()? {
            0 => stated = Some(Zeroizing::new(decoder.bytes()?.to_vec())),
            1 => tag = decoder.bytes()?.try_into().ok(),
            _ => decoder.skip()?,
        }
    }
    match (stated, tag) {
        (Some(stated), Some(tag)) => Ok((stated, tag)),
        _ => Err(minicbor::decode::Error::message("a part is missing")),
    }
}

type Stated = (Parameters, Option<LockRule>, Option<Secrets>);

fn decode_stated(stated: &[u8]) -> Result<Stated, OpenError> {
    let mut decoder = Decoder::new(stated);
    let mut decode = || -> Result<_, minicbor::decode::Error> {
        let (mut cutting, mut lock, mut secrets) = (None, None, None);
        for _ in 0..definite(decoder.map()?)? {
            match decoder.u64()? {
                0 => {
                    let mut numbers = [0; 5];
                    if decoder.array()? != Some(5) {
                        return Ok((None, None, None));
                    }
                    for number in &mut numbers {
                        *number = decoder.u32()?;
                    }
                    cutting = Some(numbers);
                }
                1 => secrets = Some(decoder.bytes()?),
                2 => lock = Some(decode_lock(&mut decoder)?),
                _ => decoder.skip()?,
            }
        }
        Ok((cutting, lock, secrets))
    };
    let (numbers, lock, secrets) = decode().map_err(|_| DAMAGED)?;
    let cutting = numbers
        .and_then(Parameters::from_array)
        .ok_or(OpenError::Damaged {
            what: "the config's cutting parameters are out of bounds",
        })?;
    let secrets = secrets
        .map(Secrets::decode)
        .transpose()
        .map_err(|_| DAMAGED)?;
    Ok((cutting, lock, secrets))
}

fn decode_lock(decoder: &mut Decoder<'_>) -> Result<LockRule, minicbor::decode::Error> {
    let wrong = minicbor::decode::Error::message("no rule of locks");
    if decoder.array()? != Some(2) {
        return Err(wrong);
    }
    let days = decoder.u32()?;
    let mode = match decoder.u8()? {
        0 => LockMode::Governance,
        1 => LockMode::Compliance,
        _ => return Err(wrong),
    };
    match days <= LOCK_DAYS_MAX {
        true => Ok(LockRule { days, mode }),
        false => Err(wrong),
    }
}
