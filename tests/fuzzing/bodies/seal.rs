//! Headers, boxes, configs, key slots and secrets.

use super::{Draw, REPOSITORY, SLOT, bounded, key_of, keyrings, known_secrets, through_a_seal};
use bkfs_chunker::chunking::Parameters;
use bkfs_chunker::crypto::{
    Algorithm, Class, Config, Features, HEADER_LEN, Keyring, OpenError, Secrets, Slot,
};
use bkfs_store::lock::LOCK_DAYS_MAX;

/// Incompatible features that this program knows.
const KNOWN: u64 = Features::EPOCHS | Features::LARGE;

/// Bytes per byte of an object: its payload, decrypted and copied.
const BOX_FACTOR: usize = 3;

/// Bytes per byte of a CBOR map: the decoder's list of open arrays takes 16 bytes for each byte of
/// an unknown value, and three times that while the list grows.
const CBOR_FACTOR: usize = 64;

/// An object of any class, as it lies in the bucket. One that opens is, byte for byte, the object
/// that sealing its payload makes.
pub fn object(input: &[u8]) {
    let stated = input.get(10).copied().and_then(Class::from_number);
    let class = stated.unwrap_or(Class::Root);
    let key = key_of(class);
    for keyring in keyrings() {
        let opened = bounded(BOX_FACTOR, input.len(), || {
            keyring.open_object(class, &key, input)
        });
        let Some(header) = input.first_chunk::<HEADER_LEN>() else {
            assert!(opened.is_err(), "an object without a whole header opened");
            continue;
        };
        assert!(
            keyring.epoch_beneath(class, &key, header).is_none() || opened.is_err(),
            "an object that opens was sealed under another epoch"
        );
        let Ok(payload) = opened else {
            continue;
        };
        let opener = keyring.object_opener(class, &key, header);
        let header = *opener.expect("the whole object opened").header();
        assert_eq!((header.class, header.repository), (class, REPOSITORY));
        assert_eq!(header.features.incompatible & !KNOWN, 0);
        if header.algorithm == Algorithm::Aes256Gcm && header.key_epoch != keyring.epoch() {
            assert!(class != Class::Root, "a root of an older epoch opened");
            continue;
        }
        let again = keyring.seal_object(class, &key, header.features, header.salt, &payload);
        assert_eq!(again, input, "two objects of one payload");
    }
}

/// A payload with any features, salt and class, sealed with fixed keys.
pub fn payload(input: &[u8]) {
    let mut draw = Draw(input);
    let class = Class::ALL[usize::from(draw.byte()) % Class::ALL.len()];
    let features = Features {
        compatible: draw.number(8),
        read_only: draw.number(8),
        incompatible: draw.number(8),
    };
    let mut salt = [0; 32];
    salt[..8].copy_from_slice(&draw.number(8).to_le_bytes());
    let (key, payload) = (key_of(class), draw.0);
    for keyring in keyrings() {
        let object = keyring.seal_object(class, &key, features, salt, payload);
        let opened = keyring.open_object(class, &key, &object);
        match features.incompatible & !KNOWN {
            0 => assert_eq!(opened.as_deref(), Ok(payload)),
            bits => assert_eq!(opened, Err(OpenError::UnknownFeatures { bits })),
        }
        refuses_changes(&keyring, class, &key, &object);
    }
}

/// Asserts that a seal holds under its own key and class only, and for all its bytes.
fn refuses_changes(keyring: &Keyring, class: Class, key: &str, object: &[u8]) {
    let elsewhere = format!("{key}x");
    assert!(keyring.open_object(class, &elsewhere, object).is_err());
    for other in Class::ALL.into_iter().filter(|other| *other != class) {
        assert!(keyring.open_object(other, key, object).is_err());
    }
    for at in [0, 8, 40, 56, HEADER_LEN - 1, HEADER_LEN, object.len() - 1] {
        let mut changed = object.to_vec();
        changed[at] ^= 1;
        assert!(
            keyring.open_object(class, key, &changed).is_err(),
            "a flipped bit in byte {at} does not count"
        );
    }
    assert!(
        keyring
            .open_object(class, key, &object[..object.len() - 1])
            .is_err()
    );
}

/// A config, as it lies in the bucket and as a payload.
pub fn config(input: &[u8]) {
    config_object(input);
    let [keyring, _] = keyrings();
    let salt = [0x88; 32];
    config_object(&keyring.seal_object(Class::Config, Config::KEY, Features::NONE, salt, input));
}

fn config_object(object: &[u8]) {
    let opened = bounded(CBOR_FACTOR, object.len(), || Config::open(object));
    let Ok(config) = opened else {
        return;
    };
    let cutting = *config.cutting();
    assert_eq!(Parameters::from_array(cutting.to_array()), Some(cutting));
    assert!(config.lock().is_none_or(|rule| rule.days <= LOCK_DAYS_MAX));
    let keyring = match config.is_sealed() {
        true => config.unlock(known_secrets()).ok(),
        false => {
            assert!(config.unlock(known_secrets()).is_err());
            config.keyring().ok().flatten()
        }
    };
    let Some(keyring) = keyring else {
        return;
    };
    assert_eq!(keyring.is_sealed(), config.is_sealed());
    let again = Config::create(
        config.repository(),
        &cutting,
        config.is_sealed(),
        keyring.secrets(),
        [0x55; 32],
        config.lock(),
    );
    let again = Config::open(&again).expect("what was made opens");
    assert_eq!((*again.cutting(), again.lock()), (cutting, config.lock()));
    assert_eq!(again.is_sealed(), config.is_sealed());
}

/// A key slot, as it lies in the bucket and as a payload. The secrets in it stay wrapped: Argon2
/// takes milliseconds, and nothing behind it is reached without the password.
pub fn slot(input: &[u8]) {
    slot_object(input);
    let [keyring, _] = keyrings();
    for incompatible in [0, Features::EPOCHS] {
        let features = Features {
            incompatible,
            ..Features::NONE
        };
        let salt = [0x66; 32];
        slot_object(&keyring.seal_object(Class::KeySlot, &SLOT.key(), features, salt, input));
    }
}

fn slot_object(object: &[u8]) {
    let opened = bounded(CBOR_FACTOR, object.len(), || {
        Slot::open(REPOSITORY, SLOT, object)
    });
    let Ok(slot) = opened else {
        return;
    };
    assert!(slot.label().len() <= Slot::LABEL_LEN_MAX);
    assert!(slot.epoch().is_none_or(|epoch| slot.may_be_of(epoch)));
    let again = Slot::open(REPOSITORY, SLOT, object).expect("it opened before");
    assert_eq!(again.fingerprint(), slot.fingerprint());
    let cost = slot.cost();
    if !cost.is_reasonable() {
        // Refused before a byte of Argon2's memory is allocated.
        assert!(bounded(4, object.len(), || slot.unwrap(b"password")).is_err());
    }
}

/// The secrets of a repository, which a config holds in the clear and a key slot wrapped.
pub fn secrets(input: &[u8]) {
    let sealed = through_a_seal(Class::KeySlot, input);
    let decoded = bounded(CBOR_FACTOR, sealed.len(), || Secrets::decode(&sealed));
    let Ok(secrets) = decoded else {
        return;
    };
    let encoded = secrets.encode();
    let again = Secrets::decode(&encoded).expect("what was encoded decodes");
    assert_eq!(*again.encode(), *encoded);
    assert!(again.extend(&secrets) && secrets.extend(&again));
    assert_eq!(again.epoch(), secrets.epoch());
}
