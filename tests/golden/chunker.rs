//! The forms that `chunker/` owns: names, ids, chunk boundaries, sealed objects, packs and index
//! objects.

use crate::{fixed, fixed_text, noise, readable};
use bkfs_chunker::chunking::segment::{self, SegmentChunk, SegmentEnds};
use bkfs_chunker::chunking::{Parameters, Profile};
use bkfs_chunker::codec::{Decoder, Effort, Encoder};
use bkfs_chunker::crypto::{
    Class, Config, Features, HEADER_LEN, Keyring, NewSlot, RepositoryId, Secrets, Slot, SlotCost,
    SlotName, Statement,
};
use bkfs_chunker::id::Kind;
use bkfs_chunker::index::{self, PackRecord};
use bkfs_chunker::pack::{
    FinishedPack, Footer, FrameDecoder, FrameEncoder, PackBuilder, PackName, TRAILER_LEN, Trailer,
};
use bkfs_store::lock::{LockMode, LockRule};
use std::fmt::Write;

const REPOSITORY: RepositoryId = RepositoryId(*b"golden repositor");

const NAME: PackName = PackName {
    session: 0x0123_4567_89ab_cdef,
    sequence: 42,
    random: 0xfeed_beef,
};

fn secrets() -> Secrets {
    let mut secrets = Secrets::new([0x11; 32], [0x22; 32], [0x33; 32]);
    secrets.add_master([0x44; 32]);
    secrets
}

/// Returns the keyrings, unsealed and sealed, with the names of their files.
fn keyrings() -> [(&'static str, Keyring); 2] {
    [
        ("unsealed", Keyring::unsealed(REPOSITORY, secrets())),
        ("sealed", Keyring::sealed(REPOSITORY, secrets())),
    ]
}

#[test]
fn names_and_keys() {
    let mut text = format!("{NAME}\n");
    for class in [
        Class::DataPack,
        Class::MetadataPack,
        Class::Index,
        Class::List,
    ] {
        writeln!(text, "{class:?} {}", NAME.key(class)).expect("strings take all");
    }
    writeln!(text, "Config {}", Config::KEY).expect("strings take all");
    writeln!(text, "KeySlot {}", SlotName(42).key()).expect("strings take all");
    fixed_text("names.txt", &text);
}

#[test]
fn ids_and_hashes_of_names() {
    let keyring = &keyrings()[1].1;
    let mut text = String::new();
    for content in [&b""[..], b"bkfs", &noise(1, 100_000)] {
        for kind in Kind::ALL {
            let id = keyring.id(kind, content);
            writeln!(text, "{kind:?} of {} bytes: {id}", content.len()).expect("strings take all");
        }
    }
    writeln!(text, "name main: {:016x}", keyring.name_hash(b"main")).expect("strings take all");
    fixed_text("ids.txt", &text);
}

/// Returns content with zeroes and repetitions, as files have.
fn content() -> Vec<u8> {
    let mut content = noise(2, 3 << 20);
    content[1 << 20..(1 << 20) + 700_000].fill(0);
    let repeated = noise(3, 1000).repeat(400);
    content[2 << 20..(2 << 20) + repeated.len()].copy_from_slice(&repeated);
    content
}

#[test]
fn cut_points_and_ends_of_segments() {
    let keyring = &keyrings()[1].1;
    let parameters = Parameters::default();
    let cutter = keyring.cutter(&parameters);
    let content = content();
    let mut text = String::new();
    for profile in Profile::ALL {
        let mut cuts = Vec::new();
        cutter.cut(profile, &content, 4096, true, &mut cuts);
        let mut ends = SegmentEnds::new(profile, &parameters);
        for cut in cuts {
            let chunk = SegmentChunk {
                length: cut.range.len() as u32,
                id: keyring.id(Kind::Chunk, &content[cut.range.clone()]),
            };
            let what = if cut.is_zero {
                // A hole, which ends a segment.
                ends = SegmentEnds::new(profile, &parameters);
                " zeros"
            } else if ends.push(&chunk, 4096 + cut.range.end as u64) {
                " last of a segment"
            } else {
                ""
            };
            writeln!(text, "{profile:?} {}{what}", cut.range.end).expect("strings take all");
        }
    }
    fixed_text("cuts.txt", &text);
}

#[test]
fn segments() {
    let keyring = &keyrings()[1].1;
    let chunk = |number: u32| SegmentChunk {
        length: 16_384 + number,
        id: keyring.id(Kind::Chunk, &number.to_le_bytes()),
    };
    let chunks: Vec<_> = (0..20).map(chunk).collect();
    let encoded = segment::encode(Profile::Content, &chunks);
    let frozen = fixed("segment.bin", &encoded);
    let decoded = segment::decode(&frozen).expect("the frozen segment is one");
    assert_eq!(
        (decoded.profile, decoded.chunks),
        (Profile::Content, chunks)
    );
}

#[test]
fn secrets_and_config() {
    let encoded = secrets().encode();
    let frozen = fixed("secrets.bin", &encoded);
    let decoded = Secrets::decode(&frozen).expect("the frozen secrets are some");
    assert_eq!(*decoded.encode(), *encoded);
    let parameters = Parameters::default();
    let rule = LockRule {
        days: 30,
        mode: LockMode::Compliance,
    };
    let forms = [
        ("unsealed", false, None),
        ("sealed", true, None),
        ("locked", true, Some(rule)),
    ];
    for (name, sealed, lock) in forms {
        let object = Config::create(
            REPOSITORY,
            &parameters,
            sealed,
            &secrets(),
            [0x55; 32],
            lock,
        );
        let frozen = fixed(&format!("config-{name}.bin"), &object);
        let config = Config::open(&frozen).expect("the frozen config opens");
        assert_eq!(*config.cutting(), parameters);
        assert_eq!(config.lock(), lock);
        let keyring = match sealed {
            true => config.unlock(secrets()).expect("the secrets fit"),
            false => config
                .keyring()
                .expect("the secrets fit")
                .expect("it is not sealed"),
        };
        assert_eq!(keyring.is_sealed(), sealed);
    }
}

#[test]
fn key_slots() {
    let new = NewSlot {
        repository: REPOSITORY,
        name: SlotName(42),
        label: "golden",
        created_s: 1_795_000_000,
        cost: SlotCost {
            memory_kib: 256,
            passes: 2,
            lanes: 2,
        },
        object_salt: [0x66; 32],
        password_salt: [0x77; 32],
    };
    let object = new
        .wrap(b"a golden password", &secrets())
        .expect("the slot can be made");
    let bound = fixed("slot-bound.bin", &object);
    // No program makes the first form any more.
    let first = readable("slot.bin", || panic!("it is frozen"));
    for (frozen, statement) in [(bound, Statement::Bound), (first, Statement::Unbound)] {
        let slot = Slot::open(REPOSITORY, new.name, &frozen).expect("the frozen slot opens");
        assert_eq!((slot.label(), slot.created_s()), (new.label, new.created_s));
        let unwrapped = slot
            .unwrap_judged(b"a golden password")
            .expect("the password fits");
        assert_eq!(*unwrapped.secrets.encode(), *secrets().encode());
        assert_eq!(unwrapped.statement, statement);
    }
}

#[test]
fn objects_of_one_box() {
    let features = Features {
        compatible: 1 << 40,
        read_only: 1 << 50,
        incompatible: 0,
    };
    for (name, keyring) in keyrings() {
        let object = keyring.seal_object(Class::Root, "root", features, [0x88; 32], b"a payload");
        let frozen = fixed(&format!("object-{name}.bin"), &object);
        let opened = keyring.open_object(Class::Root, "root", &frozen);
        assert_eq!(opened.as_deref(), Ok(&b"a payload"[..]));
    }
}

#[test]
fn fences() {
    let key = "fence/0123456789abcdef";
    for (name, keyring) in keyrings() {
        let object = keyring.seal_object(Class::Fence, key, Features::NONE, [0x88; 32], b"");
        let frozen = fixed(&format!("fence-{name}.bin"), &object);
        let opened = keyring.open_object(Class::Fence, key, &frozen);
        assert_eq!(opened.as_deref(), Ok(&b""[..]));
    }
}

/// Returns the blobs of the golden packs, frame by frame.
fn frames() -> Vec<Vec<(Kind, Vec<u8>)>> {
    vec![
        vec![
            (Kind::Chunk, noise(4, 5000)),
            (Kind::Chunk, b"text ".repeat(500)),
        ],
        vec![
            (Kind::Segment, noise(5, 75)),
            (Kind::Node, noise(6, 300)),
            (Kind::Commit, b"commit".to_vec()),
        ],
        vec![],
    ]
}

/// Returns a pack of [`frames`] and its bytes.
fn pack(keyring: &Keyring, name: PackName, effort: Effort) -> (FinishedPack, Vec<u8>) {
    let mut encoder = FrameEncoder::new();
    let mut builder = PackBuilder::new(keyring, Class::DataPack, name, Features::NONE, [0x99; 32]);
    let mut sealed = Vec::new();
    for frame in frames() {
        let blobs: Vec<_> = frame
            .iter()
            .map(|(kind, bytes)| (*kind, keyring.id(*kind, bytes).prefix(), bytes.as_slice()))
            .collect();
        let pushed = builder
            .push(&mut encoder, &blobs, effort)
            .expect("the frame is small");
        sealed.push(pushed.expect("the pack has room"));
    }
    let finished = builder.finish(&mut encoder, effort);
    let (pack, end) = finished.expect("all frames are there");
    let object = [pack.header.as_slice(), &sealed.concat(), &end].concat();
    (pack, object)
}

/// Reads a pack from its bytes alone and compares it with [`frames`].
fn read_pack(keyring: &Keyring, object: &[u8]) {
    let header = object.first_chunk::<HEADER_LEN>().expect("a header");
    let key = NAME.key(Class::DataPack);
    let opener = keyring
        .object_opener(Class::DataPack, &key, header)
        .expect("it opens");
    let trailer = Trailer::decode(object).expect("a trailer");
    let end = object.len() - TRAILER_LEN;
    let sealed = &object[end - trailer.footer_length as usize..end];
    let mut decoder = FrameDecoder::new();
    let footer = Footer::open(
        &opener,
        &trailer,
        sealed,
        object.len() as u64,
        decoder.decoder(),
    );
    let footer = footer.expect("a footer");
    let mut listed = footer.blobs();
    for (entry, expected) in footer.frames().zip(frames()) {
        let range = entry.range().start as usize..entry.range().end as usize;
        let frame = decoder.open(&opener, u32::from(entry.number), &object[range]);
        let frame = frame.expect("a frame");
        let contents: Vec<_> = expected.iter().map(|(_, bytes)| bytes.clone()).collect();
        assert_eq!(frame.blobs().collect::<Vec<_>>(), contents);
        for (kind, bytes) in expected {
            let blob = listed.next().expect("as many blobs as there are");
            assert_eq!((blob.kind, blob.length as usize), (kind, bytes.len()));
            assert_eq!(blob.prefix, keyring.id(kind, &bytes).prefix());
        }
    }
    assert_eq!(footer.frame_count(), frames().len());
}

#[test]
fn packs() {
    for (name, keyring) in keyrings() {
        let made = pack(&keyring, NAME, Effort::None).1;
        read_pack(&keyring, &fixed(&format!("pack-{name}.bin"), &made));
        let make = || pack(&keyring, NAME, Effort::Level(3)).1;
        let frozen = readable(&format!("pack-{name}-zstd.bin"), make);
        assert!(frozen.len() < made.len(), "something is compressed in it");
        read_pack(&keyring, &frozen);
    }
}

#[test]
fn index_objects() {
    for (name, keyring) in keyrings() {
        let other = PackName {
            sequence: 41,
            ..NAME
        };
        let packs =
            [NAME, other].map(|name| PackRecord::from(&pack(&keyring, name, Effort::None).0));
        let payload = |effort| {
            let payload = index::encode(&mut packs.clone(), &mut Encoder::new(), effort);
            payload.expect("two packs fit")
        };
        let key = NAME.key(Class::Index);
        let seal = |payload: &[u8]| {
            let object =
                keyring.seal_object(Class::Index, &key, Features::NONE, [0xaa; 32], payload);
            object.to_vec()
        };
        let raw = fixed(&format!("index-{name}.bin"), &seal(&payload(Effort::None)));
        let zstd = readable(&format!("index-{name}-zstd.bin"), || {
            seal(&payload(Effort::Level(3)))
        });
        assert!(zstd.len() < raw.len(), "it is compressed");
        for object in [raw, zstd] {
            let payload = keyring
                .open_object(Class::Index, &key, &object)
                .expect("it opens");
            let decoded = index::decode(&payload, &mut Decoder::new()).expect("it decodes");
            let [first, second] = &packs;
            assert_eq!(decoded, [second.clone(), first.clone()]);
        }
    }
}
