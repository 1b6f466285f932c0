mod slots;

use self::slots::slot;
use super::*;
use crate::id::Kind;
use proptest::prelude::*;

const REPOSITORY: RepositoryId = RepositoryId(*b"a repository id.");

fn secrets() -> Secrets {
    Secrets::new([1; 32], [2; 32], [3; 32])
}

fn keyrings() -> [Keyring; 2] {
    [
        Keyring::unsealed(REPOSITORY, secrets()),
        Keyring::sealed(REPOSITORY, secrets()),
    ]
}

fn is_damaged<T: std::fmt::Debug>(result: Result<T, OpenError>) -> bool {
    matches!(result, Err(OpenError::Damaged { .. }))
}

#[test]
fn ids_differ_by_kind_key_and_bytes() {
    let keyring = Keyring::sealed(REPOSITORY, secrets());
    let mut ids: Vec<_> = Kind::ALL.map(|kind| keyring.id(kind, b"bytes")).to_vec();
    ids.push(keyring.id(Kind::Chunk, b"other bytes"));
    let other = Secrets::new([1; 32], [4; 32], [3; 32]);
    ids.push(Keyring::sealed(REPOSITORY, other).id(Kind::Chunk, b"bytes"));
    let distinct: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
}

#[test]
fn a_new_master_key_keeps_ids_and_opens_old_objects() {
    let old = Keyring::sealed(REPOSITORY, secrets());
    let mut more = secrets();
    assert_eq!(more.add_master([9; 32]), 1);
    let new = Keyring::sealed(REPOSITORY, more);
    assert_eq!(old.id(Kind::Node, b"x"), new.id(Kind::Node, b"x"));
    assert_eq!(old.name_hash(b"x"), new.name_hash(b"x"));
    assert_eq!(old.gear(), new.gear());
    let object = old.seal_object(Class::List, "lists/a", Features::NONE, [7; 32], b"payload");
    let opened = new.open_object(Class::List, "lists/a", &object);
    assert_eq!(opened.as_deref(), Ok(&b"payload"[..]));
    let object = new.seal_object(Class::List, "lists/a", Features::NONE, [7; 32], b"payload");
    let opened = old.open_object(Class::List, "lists/a", &object);
    assert_eq!(opened, Err(OpenError::NoKeyEpoch { epoch: 1 }));
}

/// Returns the object with one byte of its header changed and the header tag made again with the
/// keys.
fn sealed_anew(keyring: &Keyring, object: &[u8], offset: usize, byte: u8) -> Vec<u8> {
    let mut changed = object.to_vec();
    changed[offset] = byte;
    let bytes: &mut [u8; HEADER_LEN] = changed.first_chunk_mut().expect("a header");
    let algorithm = match keyring.is_sealed() {
        true => Algorithm::Aes256Gcm,
        false => Algorithm::Unsealed,
    };
    let master = match keyring.is_sealed() {
        true => keyring.secrets().master(0).expect("the first key"),
        false => &keyring::ZERO_KEY,
    };
    let keys = keys::ObjectKeys::derive(master, algorithm, bytes, "root");
    let tag = keys.header_tag(bytes);
    bytes[header::TAGGED_LEN..].copy_from_slice(&tag);
    changed
}

#[test]
fn errors_say_what_is_wrong() {
    for keyring in keyrings() {
        let object = keyring.seal_object(Class::Root, "root", Features::NONE, [7; 32], b"payload");
        let open = |object: &[u8]| keyring.open_object(Class::Root, "root", object);
        assert_eq!(open(&object).as_deref(), Ok(&b"payload"[..]));
        let with = |offset: usize, byte: u8| {
            let mut changed = object.to_vec();
            changed[offset] = byte;
            open(&changed)
        };
        assert_eq!(open(b""), Err(OpenError::NotBkfs));
        assert_eq!(open(b"<html>"), Err(OpenError::NotBkfs));
        assert_eq!(open(&[b'x'; 200]), Err(OpenError::NotBkfs));
        assert!(is_damaged(open(&object[..100])));
        assert!(is_damaged(open(&object[..HEADER_LEN])));
        assert!(is_damaged(open(&object[..object.len() - 1])));
        for version in [0, 2] {
            let other = OpenError::OtherFormat {
                version: u16::from(version),
            };
            assert_eq!(other.to_string().contains("newer bkfs"), version == 2);
            assert!(is_damaged(with(8, version)), "a flipped bit is no format");
            assert_eq!(
                open(&sealed_anew(&keyring, &object, 8, version)),
                Err(other)
            );
        }
        let unknown = OpenError::UnknownFeatures { bits: 4 };
        assert!(is_damaged(with(32, 4)), "nor is it a feature");
        assert_eq!(open(&sealed_anew(&keyring, &object, 32, 4)), Err(unknown));
        let class = |found| OpenError::WrongClass {
            found,
            expected: Class::Root,
        };
        assert_eq!(with(10, 4), Err(class(4)));
        assert_eq!(with(10, 200), Err(class(200)));
        assert_eq!(with(11, 2), Err(OpenError::WrongAlgorithm { found: 2 }));
        let swapped = 1 - u8::from(keyring.is_sealed());
        let algorithm = OpenError::WrongAlgorithm { found: swapped };
        assert_eq!(with(11, swapped), Err(algorithm));
        let Err(OpenError::WrongRepository { found }) = with(40, b'b') else {
            panic!("another repository's object was opened");
        };
        assert_eq!(&found.0, b"b repository id.");
        assert!(is_damaged(with(60, 0)));
        assert!(
            is_damaged(with(16, 1)),
            "compatible features are authenticated"
        );
    }
}

#[test]
fn a_sealed_repository_takes_no_unsealed_object() {
    let [unsealed, sealed] = keyrings();
    let forged = unsealed.seal_object(Class::Root, "root", Features::NONE, [7; 32], b"forged");
    let opened = sealed.open_object(Class::Root, "root", &forged);
    assert_eq!(opened, Err(OpenError::WrongAlgorithm { found: 0 }));
}

#[test]
fn an_object_that_moved_does_not_open() {
    for keyring in keyrings() {
        let object = keyring.seal_object(Class::List, "lists/a", Features::NONE, [7; 32], b"x");
        assert!(is_damaged(keyring.open_object(
            Class::List,
            "lists/b",
            &object
        )));
        // The class is changed: it is in the header, and the keys of the object depend on the
        // header.
        let mut relabelled = object.to_vec();
        relabelled[10] = Class::Index as u8;
        assert!(is_damaged(keyring.open_object(
            Class::Index,
            "lists/a",
            &relabelled
        )));
    }
}

#[test]
fn boxes_do_not_change_places() {
    for keyring in keyrings() {
        let sealer = keyring.object_sealer(Class::DataPack, "data/a", Features::NONE, [7; 32]);
        let opener = keyring
            .object_opener(Class::DataPack, "data/a", sealer.header())
            .unwrap();
        let mut sealed = Vec::new();
        sealer.seal_box(3, b"three", &mut sealed);
        assert!(is_damaged(opener.open_box(4, &sealed, &mut Vec::new())));
        assert_eq!(
            opener.open_box(3, &sealed, &mut Vec::new()),
            Ok(&b"three"[..])
        );
        assert!(is_damaged(opener.open_in_place(4, &mut sealed.clone())));
        let opened = opener
            .open_in_place(3, &mut sealed)
            .map(|payload| payload.to_vec());
        assert_eq!(opened.as_deref(), Ok(&b"three"[..]));
        for short in 0..BOX_OVERHEAD {
            assert!(is_damaged(opener.open_box(
                3,
                &vec![0; short],
                &mut Vec::new()
            )));
            assert!(is_damaged(opener.open_in_place(3, &mut vec![0; short])));
        }
    }
}

#[test]
fn nonces_follow_the_payload() {
    // A cloned machine that draws the same salt again seals other bytes under another nonce.
    let keyring = Keyring::sealed(REPOSITORY, secrets());
    let seal = |number, payload: &[u8]| {
        let sealer = keyring.object_sealer(Class::DataPack, "data/a", Features::NONE, [7; 32]);
        let mut sealed = Vec::new();
        sealer.seal_box(number, payload, &mut sealed);
        sealed[..NONCE_LEN].to_vec()
    };
    assert_eq!(seal(0, b"a"), seal(0, b"a"));
    assert_ne!(seal(0, b"a"), seal(0, b"b"));
    assert_ne!(seal(0, b"a"), seal(1, b"a"));
}

#[test]
fn sealed_objects_hide_their_payload() {
    let payload = [b'p'; 64];
    for keyring in keyrings() {
        let object = keyring.seal_object(Class::Root, "root", Features::NONE, [7; 32], &payload);
        let visible = object.windows(8).any(|window| window == &payload[..8]);
        assert_eq!(visible, !keyring.is_sealed());
    }
}

#[test]
fn nothing_secret_is_printed() {
    let secrets = Secrets::new([0xaa; 32], [0xab; 32], [0xac; 32]);
    let keyring = Keyring::sealed(REPOSITORY, secrets.clone());
    let sealer = keyring.object_sealer(Class::DataPack, "data/a", Features::NONE, [7; 32]);
    let opener = keyring
        .object_opener(Class::DataPack, "data/a", sealer.header())
        .unwrap();
    let printed = format!("{secrets:?} {keyring:?} {sealer:?} {opener:?}");
    for secret in ["170, 170", "171, 171", "172, 172", "aaaa", "abab", "acac"] {
        assert!(!printed.contains(secret), "{printed}");
    }
}

#[test]
fn features_permit_or_forbid_writing() {
    assert!(Features::NONE.permit_writing());
    let compatible = Features {
        compatible: u64::MAX,
        ..Features::NONE
    };
    assert!(compatible.permit_writing());
    let read_only = Features {
        read_only: Features::WITNESS << 1,
        ..Features::NONE
    };
    assert!(!read_only.permit_writing());
    assert!(Features::NONE.with_witness().permit_writing());
    let keyring = Keyring::sealed(REPOSITORY, secrets());
    let sealer = keyring.object_sealer(Class::Root, "root", read_only, [7; 32]);
    let opener = keyring.object_opener(Class::Root, "root", sealer.header());
    assert_eq!(opener.unwrap().header().features, read_only);
}

#[test]
fn secrets_without_a_key_are_refused() {
    let whole = secrets().encode();
    assert!(Secrets::decode(&whole).is_ok());
    for length in 0..whole.len() {
        assert_eq!(Secrets::decode(&whole[..length]).err(), Some(SecretsError));
    }
    let mut longer = whole.to_vec();
    longer.push(0);
    assert_eq!(Secrets::decode(&longer).err(), Some(SecretsError));
    // First an empty map; then a map of 2^60 master keys.
    assert!(Secrets::decode(&[0xa0]).is_err());
    assert!(Secrets::decode(&[0xa1, 0, 0xbb, 0x10, 0, 0, 0, 0, 0, 0, 0]).is_err());
}

fn class() -> impl Strategy<Value = Class> {
    prop::sample::select(&Class::ALL[..])
}

fn features() -> impl Strategy<Value = Features> {
    any::<(u64, u64)>().prop_map(|(compatible, read_only)| Features {
        compatible,
        read_only,
        incompatible: 0,
    })
}

proptest! {
    #[test]
    fn what_was_sealed_is_opened(
        class in class(),
        key in "[a-z/]{0,40}",
        features in features(),
        salt: [u8; 32],
        payload in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        for keyring in keyrings() {
            let object = keyring.seal_object(class, &key, features, salt, &payload);
            prop_assert_eq!(object.len(), HEADER_LEN + BOX_OVERHEAD + payload.len());
            let opened = keyring.open_object(class, &key, &object).unwrap();
            prop_assert_eq!(&opened, &payload);
            let (header, sealed) = object.split_first_chunk().unwrap();
            let opener = keyring.object_opener(class, &key, header).unwrap();
            prop_assert_eq!(opener.header().features, features);
            let mut sealed = sealed.to_vec();
            prop_assert_eq!(&*opener.open_in_place(0, &mut sealed).unwrap(), &payload[..]);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_open(
        class in class(),
        magic: bool,
        mut object in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        if magic && object.len() >= 10 {
            object[..10].copy_from_slice(b"bkfs\r\n\x1a\n\0\0");
        }
        for keyring in keyrings() {
            prop_assert!(keyring.open_object(class, "key", &object).is_err());
        }
        let _ = Secrets::decode(&object);
    }

    #[test]
    fn secrets_are_read_back(
        first: [u8; 32],
        more: Vec<[u8; 32]>,
        id_key: [u8; 32],
        cut_key: [u8; 32]
    ) {
        let mut secrets = Secrets::new(first, id_key, cut_key);
        for master in more {
            secrets.add_master(master);
        }
        let decoded = Secrets::decode(&secrets.encode()).unwrap();
        prop_assert_eq!(&*decoded.encode(), &*secrets.encode());
        prop_assert_eq!(decoded.epoch(), secrets.epoch());
    }
}

/// Flips each bit of a sealed object, the header's included: each makes opening fail.
#[test]
fn every_flipped_bit_is_detected() {
    for keyring in keyrings() {
        let payload = b"some bytes that are sealed";
        let object = keyring.seal_object(Class::Index, "index/a", Features::NONE, [7; 32], payload);
        for bit in 0..object.len() * 8 {
            let mut changed = object.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            let opened = keyring.open_object(Class::Index, "index/a", &changed);
            assert!(opened.is_err(), "bit {bit} does not count");
        }
    }
}

#[test]
fn a_config_is_believed_once_it_is_verified() {
    let cutting = crate::chunking::Parameters::from_array([4096, 1024, 2048, 4096, 8192]).unwrap();
    for sealed in [false, true] {
        let object = Config::create(REPOSITORY, &cutting, sealed, &secrets(), [5; 32], None);
        let config = Config::open(&object).unwrap();
        assert_eq!(config.repository(), REPOSITORY);
        assert_eq!(*config.cutting(), cutting);
        assert_eq!(config.is_sealed(), sealed);
        let keyring = if sealed {
            assert!(config.keyring().unwrap().is_none());
            let other = Secrets::new([1; 32], [9; 32], [3; 32]);
            assert!(is_damaged(config.unlock(other)));
            config.unlock(secrets()).unwrap()
        } else {
            assert!(
                is_damaged(config.unlock(secrets())),
                "a sealed repository's config was swapped"
            );
            config.keyring().unwrap().unwrap()
        };
        assert_eq!(keyring.is_sealed(), sealed);
        assert_eq!(keyring.repository(), REPOSITORY);
        let id = Keyring::sealed(REPOSITORY, secrets()).id(Kind::Chunk, b"x");
        assert_eq!(keyring.id(Kind::Chunk, b"x"), id);
        for bit in 0..object.len() * 8 {
            let mut changed = object.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Config::open(&changed).is_err(), "bit {bit} does not count");
        }
        let visible = object.windows(32).any(|window| window == [2; 32]);
        assert_eq!(visible, !sealed);
        assert!(!format!("{config:?}").contains("2, 2, 2"));
    }
}

#[test]
fn a_config_with_other_parameters_is_not_believed() {
    // An attacker with write access to the bucket can make a whole config, but not one that the
    // secrets of this repository verify.
    let cutting = crate::chunking::Parameters::default();
    let other = crate::chunking::Parameters::from_array([4096, 1024, 2048, 4096, 8192]).unwrap();
    let forger = Secrets::new([7; 32], [7; 32], [7; 32]);
    let forged = Config::create(REPOSITORY, &other, true, &forger, [5; 32], None);
    assert!(is_damaged(Config::open(&forged).unwrap().unlock(secrets())));
    let genuine = Config::create(REPOSITORY, &cutting, true, &secrets(), [5; 32], None);
    let elsewhere = RepositoryId([8; 16]);
    let copied = Config::create(elsewhere, &cutting, true, &secrets(), [5; 32], None);
    assert_ne!(genuine, copied);
    let unlocked = Config::open(&copied).unwrap().unlock(secrets()).unwrap();
    assert_eq!(unlocked.repository(), elsewhere);
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_config_and_no_slot(
        payload in prop::collection::vec(any::<u8>(), 0..200), magic: bool,
    ) {
        let bytes = if magic {
            let class = Class::Config;
            let keyring = Keyring::unsealed(REPOSITORY, secrets());
            keyring.seal_object(class, Config::KEY, Features::NONE, [1; 32], &payload).to_vec()
        } else {
            payload.clone()
        };
        if let Ok(config) = Config::open(&bytes) {
            prop_assert!(config.keyring().is_ok_and(|keyring| keyring.is_none()));
        }
        let keyring = Keyring::unsealed(REPOSITORY, secrets());
        let name = SlotName(1);
        let object =
            keyring.seal_object(Class::KeySlot, &name.key(), Features::NONE, [1; 32], &payload);
        let _ = Slot::open(REPOSITORY, name, &object);
    }

    #[test]
    fn secrets_are_unwrapped(
        password in prop::collection::vec(any::<u8>(), 1..50),
        label in ".{0,40}",
        lanes in 1..3u32
    ) {
        let cost = SlotCost { memory_kib: 16, passes: 1, lanes };
        let new = NewSlot { label: &label, cost, ..slot() };
        let object = new.wrap(&password, &secrets()).unwrap();
        let opened = Slot::open(REPOSITORY, new.name, &object).unwrap();
        prop_assert_eq!(opened.label(), &label);
        prop_assert_eq!(&*opened.unwrap(&password).unwrap().encode(), &*secrets().encode());
        let mut other = password.clone();
        other.push(0);
        prop_assert_eq!(opened.unwrap(&other).err(), Some(SlotError::WrongPassword));
    }
}

/// Computes the formulas of FORMAT.md again, independently of the code that uses them.
#[test]
fn objects_are_made_as_the_format_says() {
    let hash = |key: &[u8], parts: &[&[u8]]| -> [u8; 64] {
        let mut hasher = blake3::Hasher::new_keyed(key.try_into().unwrap());
        hasher.update(&parts.concat());
        let mut output = [0; 64];
        hasher.finalize_xof().fill(&mut output);
        output
    };
    let payload = b"a payload";
    for keyring in keyrings() {
        let master = if keyring.is_sealed() {
            [1; 32]
        } else {
            [0; 32]
        };
        let object = keyring.seal_object(Class::Root, "root", Features::NONE, [7; 32], payload);
        let mut header = b"bkfs\r\n\x1a\n\x01\0\x03".to_vec();
        header.push(u8::from(keyring.is_sealed()));
        header.resize(40, 0);
        header.extend_from_slice(&REPOSITORY.0);
        header.extend_from_slice(&[7; 32]);
        header.resize(112, 0);
        let keys = hash(&master, &[b"bkfs object key", &header, b"root"]);
        let (seal_key, tag_key) = keys.split_at(32);
        header.extend_from_slice(&hash(tag_key, &[b"bkfs header", &header])[..16]);
        let number = 0u32.to_le_bytes();
        let digest = hash(tag_key, &[b"bkfs box", &number, payload]);
        let mut expected = [&header, &digest[..12], payload].concat();
        if keyring.is_sealed() {
            use aws_lc_rs::aead;
            let key = aead::UnboundKey::new(&aead::AES_256_GCM, seal_key).unwrap();
            let nonce = aead::Nonce::try_assume_unique_for_key(&digest[..12]).unwrap();
            let data = aead::Aad::from([&b"bkfs box"[..], &number].concat());
            let tag = aead::LessSafeKey::new(key)
                .seal_in_place_separate_tag(nonce, data, &mut expected[140..])
                .unwrap();
            expected.extend_from_slice(tag.as_ref());
        } else {
            expected.extend_from_slice(&digest[12..28]);
        }
        assert_eq!(object, expected);
    }
    let keyring = Keyring::sealed(REPOSITORY, secrets());
    let key = hash(&[2; 32], &[b"bkfs kind", &[3]]);
    assert_eq!(
        keyring.id(Kind::Node, payload).0,
        hash(&key[..32], &[payload])[..32]
    );
    let key = hash(&[2; 32], &[b"bkfs name"]);
    let name = hash(&key[..32], &[b"main"]);
    assert_eq!(keyring.name_hash(b"main").to_le_bytes(), name[..8]);
    assert_eq!(
        keyring.gear()[0].to_le_bytes(),
        hash(&[3; 32], &[b"bkfs gear"])[..8]
    );
}

#[test]
fn a_config_says_how_objects_are_locked() {
    use bkfs_store::lock::{LOCK_DAYS_MAX, LockMode, LockRule};
    let cutting = crate::chunking::Parameters::default();
    let made = |lock| {
        Config::open(&Config::create(
            REPOSITORY,
            &cutting,
            true,
            &secrets(),
            [5; 32],
            lock,
        ))
    };
    for mode in [LockMode::Governance, LockMode::Compliance] {
        for days in [0, 1, LOCK_DAYS_MAX] {
            let rule = Some(LockRule { days, mode });
            assert_eq!(made(rule).unwrap().lock(), rule);
        }
    }
    let days = LOCK_DAYS_MAX + 1;
    let mode = LockMode::Governance;
    assert!(made(Some(LockRule { days, mode })).is_err());
    assert_eq!(made(None).unwrap().lock(), None);
}
