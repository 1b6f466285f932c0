use super::*;
use crate::codec::{Decoder, Effort, Encoder};
use crate::crypto::{Class, Features, HEADER_LEN, Keyring, ObjectOpener, RepositoryId, Secrets};
use crate::id::{Id, Kind, Prefix};
use bytes::Bytes;
use proptest::prelude::*;

const NAME: PackName = PackName {
    session: 1,
    sequence: 2,
    random: 3,
};

fn keyrings() -> [Keyring; 2] {
    let repository = RepositoryId([4; 16]);
    let secrets = Secrets::new([1; 32], [2; 32], [3; 32]);
    [
        Keyring::unsealed(repository, secrets.clone()),
        Keyring::sealed(repository, secrets),
    ]
}

fn builder(keyring: &Keyring) -> PackBuilder {
    PackBuilder::new(keyring, Class::DataPack, NAME, Features::NONE, [5; 32])
}

type Blob = (Kind, Id, Vec<u8>);

fn blobs(keyring: &Keyring, contents: &[Vec<u8>]) -> Vec<Blob> {
    let kinds = Kind::ALL.iter().cycle();
    let blob = |(kind, bytes): (&Kind, &Vec<u8>)| (*kind, keyring.id(*kind, bytes), bytes.clone());
    kinds.zip(contents).map(blob).collect()
}

fn entries(blobs: &[Blob]) -> Vec<(Kind, Prefix, &[u8])> {
    let entry = |(kind, id, bytes): &'_ Blob| (*kind, id.prefix(), bytes.len());
    blobs
        .iter()
        .map(|blob| (entry(blob).0, entry(blob).1, blob.2.as_slice()))
        .collect()
}

/// Returns a pack and its bytes.
fn pack(keyring: &Keyring, frames: &[Vec<Vec<u8>>], effort: Effort) -> (FinishedPack, Vec<u8>) {
    let mut encoder = FrameEncoder::new();
    let mut builder = builder(keyring);
    let mut sealed = Vec::new();
    for contents in frames {
        let blobs = blobs(keyring, contents);
        let pushed = builder.push(&mut encoder, &entries(&blobs), effort);
        sealed.push(pushed.unwrap().expect("there is room"));
    }
    finish(builder, &mut encoder, effort, &sealed)
}

/// Completes a pack. Returns it and its bytes.
fn finish(
    builder: PackBuilder,
    encoder: &mut FrameEncoder,
    effort: Effort,
    frames: &[Bytes],
) -> (FinishedPack, Vec<u8>) {
    let (pack, end) = builder.finish(encoder, effort).unwrap();
    let object = [pack.header.as_slice(), &frames.concat(), &end].concat();
    assert_eq!(pack.length, object.len() as u64);
    (pack, object)
}

/// Opens a pack from its bytes alone, as a reader without an index does.
fn open(keyring: &Keyring, object: &[u8]) -> Result<(ObjectOpener, Footer), PackError> {
    let short = PackError::Inconsistent("short");
    let header = object.first_chunk::<HEADER_LEN>().ok_or(short.clone())?;
    let opener = keyring.object_opener(Class::DataPack, &NAME.key(Class::DataPack), header)?;
    let trailer = Trailer::decode(object)?;
    let start = (object.len() as u64)
        .checked_sub(trailer.tail_length())
        .ok_or(short)?;
    let sealed = &object[start as usize..object.len() - TRAILER_LEN];
    let mut decoder = Decoder::new();
    let footer = Footer::open(&opener, &trailer, sealed, object.len() as u64, &mut decoder)?;
    Ok((opener, footer))
}

/// Returns all blobs of a pack, verified against the footer.
fn read_all(keyring: &Keyring, object: &[u8]) -> Result<Vec<Vec<Vec<u8>>>, PackError> {
    let (opener, footer) = open(keyring, object)?;
    let mut decoder = FrameDecoder::new();
    let mut frames = Vec::new();
    let mut listed = footer.blobs();
    for entry in footer.frames() {
        let range = entry.range();
        let sealed = &object[range.start as usize..range.end as usize];
        let frame = decoder.open(&opener, u32::from(entry.number), sealed)?;
        assert_eq!(frame.blob_count(), usize::from(entry.blob_count));
        let contents: Vec<_> = frame.blobs().map(|blob| blob.to_vec()).collect();
        let raw = frame_raw_length(contents.iter().map(Vec::len));
        assert_eq!(raw, Some(entry.raw_length));
        for (slot, content) in contents.iter().enumerate() {
            let blob = listed.next().unwrap();
            assert_eq!((blob.frame, blob.slot), (entry.number, slot as u16));
            assert_eq!(blob.length as usize, content.len());
            assert_eq!(blob.prefix, keyring.id(blob.kind, content).prefix());
        }
        frames.push(contents);
    }
    assert_eq!(listed.next(), None);
    Ok(frames)
}

#[test]
fn the_layout_is_that_of_the_format() {
    let keyring = &keyrings()[0];
    let (pack, object) = pack(
        keyring,
        &[vec![b"one".to_vec(), b"three".to_vec()]],
        Effort::None,
    );
    // Header and nonce, then codec and raw length, then the frame.
    let frame = &object[HEADER_LEN + 12..];
    assert_eq!(frame[..5], [0, 18, 0, 0, 0]);
    assert_eq!(frame[5..15], [2, 0, 3, 0, 0, 0, 5, 0, 0, 0]);
    assert_eq!(&frame[15..23], b"onethree");
    let footer = pack.footer.bytes();
    assert_eq!(footer[..8], [1, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(footer[8..12], (12 + 5 + 18 + 16u32).to_le_bytes());
    assert_eq!(footer[12..24], [2, 0, 1, 2, 3, 0, 0, 0, 5, 0, 0, 0]);
    assert_eq!(footer[24..40], keyring.id(Kind::Chunk, b"one").prefix().0);
    assert_eq!(footer[40..], keyring.id(Kind::Segment, b"three").prefix().0);
    let trailer = &object[object.len() - 16..];
    assert_eq!(trailer[..4], (12 + 5 + 56 + 16u32).to_le_bytes());
    assert_eq!(trailer[4..], *b"\x01\0\0\0bkfsfoot");
    assert_eq!(object.len(), 128 + 51 + 89 + 16);
}

#[test]
fn frames_lie_in_the_order_of_their_tickets() {
    let keyring = &keyrings()[1];
    let mut encoder = FrameEncoder::new();
    let mut builder = builder(keyring);
    let contents: Vec<Vec<u8>> = (0..5u8).map(|number| vec![number; 100]).collect();
    let tickets: Vec<_> = (0..5).map(|_| builder.ticket(1, 100).unwrap()).collect();
    assert_eq!(builder.pending(), 5);
    let mut frames = vec![Bytes::new(); 5];
    for (ticket, content) in tickets.iter().zip(&contents).rev() {
        let id = keyring.id(Kind::Chunk, content);
        let blob = (Kind::Chunk, id.prefix(), content.as_slice());
        let (frame, bytes) = ticket
            .seal(&mut encoder, &[blob], Effort::Level(1))
            .unwrap();
        frames[usize::from(ticket.number())] = bytes;
        builder.place(frame.clone()).unwrap();
        assert!(builder.place(frame).is_err(), "placed twice");
    }
    assert_eq!(builder.pending(), 0);
    let (_, object) = finish(builder, &mut encoder, Effort::None, &frames);
    let expected: Vec<_> = contents.into_iter().map(|content| vec![content]).collect();
    assert_eq!(read_all(keyring, &object), Ok(expected));
}

#[test]
fn tickets_are_accounted_for() {
    let keyring = &keyrings()[1];
    let mut encoder = FrameEncoder::new();
    let mut first = builder(keyring);
    let ticket = first.ticket(1, 10).unwrap();
    let blob = |bytes| (Kind::Chunk, Prefix([1; 16]), bytes);
    let two = [blob(b"ab".as_slice()), blob(b"cd".as_slice())];
    assert!(ticket.seal(&mut encoder, &two, Effort::None).is_err());
    let long = [blob(b"eleven byte".as_slice())];
    assert!(ticket.seal(&mut encoder, &long, Effort::None).is_err());
    assert!(
        first.finish(&mut encoder, Effort::None).is_err(),
        "a frame is missing"
    );

    let mut second = builder(keyring);
    let ticket = second.ticket(2, 10).unwrap();
    let empty = second.release(&ticket, &mut encoder).unwrap();
    assert!(!second.is_empty());
    let foreign = PackName { random: 9, ..NAME };
    let mut other = PackBuilder::new(keyring, Class::DataPack, foreign, Features::NONE, [5; 32]);
    other.ticket(1, 10).unwrap();
    let (stray, _) = ticket.seal(&mut encoder, &[], Effort::None).unwrap();
    assert!(other.place(stray).is_err(), "a frame of another pack");
    let (_, object) = finish(second, &mut encoder, Effort::None, &[empty]);
    assert_eq!(read_all(keyring, &object), Ok(vec![vec![]]));
}

#[test]
fn a_full_pack_gives_no_ticket() {
    let keyring = &keyrings()[0];
    let mut full = builder(keyring);
    assert!(
        full.ticket(1, FRAME_RAW_MAX as usize).is_none(),
        "its lengths need room too"
    );
    assert!(full.ticket(1, usize::MAX).is_none());
    assert!(full.ticket(FRAME_BLOBS_MAX + 1, 0).is_none());
    let largest = FRAME_RAW_MAX as usize - 6;
    let tickets = std::iter::from_fn(|| full.ticket(1, largest)).count();
    let most = PACK_BYTES_MAX / u64::from(FRAME_RAW_MAX);
    assert!((most - 5..most).contains(&(tickets as u64)), "{tickets}");
    let mut full = builder(keyring);
    let tickets = std::iter::from_fn(|| full.ticket(FRAME_BLOBS_MAX, 0)).count();
    assert_eq!(tickets, PACK_BLOBS_MAX / FRAME_BLOBS_MAX);
    let mut full = builder(keyring);
    let tickets = std::iter::from_fn(|| full.ticket(0, 0)).count();
    assert_eq!(tickets, PACK_FRAMES_MAX);
}

#[test]
fn too_much_for_one_frame_is_refused() {
    let keyring = &keyrings()[0];
    let mut encoder = FrameEncoder::new();
    let large = vec![0; FRAME_RAW_MAX as usize - 5];
    let blob = (Kind::Chunk, Prefix([1; 16]), large.as_slice());
    let pushed = builder(keyring).push(&mut encoder, &[blob], Effort::Level(1));
    assert!(pushed.is_err());
    let fits = (Kind::Chunk, Prefix([1; 16]), &large[1..]);
    let pushed = builder(keyring).push(&mut encoder, &[fits], Effort::Level(1));
    assert!(pushed.unwrap().is_some());
    assert_eq!(frame_raw_length([usize::MAX, usize::MAX]), None);
    assert_eq!(
        frame_raw_length(std::iter::repeat_n(0, FRAME_BLOBS_MAX)),
        Some(2 + 4 * 65535)
    );
    assert_eq!(
        frame_raw_length(std::iter::repeat_n(0, FRAME_BLOBS_MAX + 1)),
        None
    );
}

/// No writer produces such footers, and readers refuse them.
#[test]
fn hostile_footers_are_refused() {
    let prefix = Prefix([1; 16]);
    let good = |stored| {
        let mut footer = FooterBuilder::new();
        footer.push(stored, [(Kind::Chunk, 10, prefix)]);
        footer.finish()
    };
    assert!(good(33 + 16).is_ok());
    assert!(good(32).is_err(), "shorter than an empty box");
    assert!(good(33 + 17).is_err(), "longer than raw");
    let mut long = FooterBuilder::new();
    long.push(
        100,
        [(Kind::Chunk, u32::MAX, prefix), (Kind::Chunk, 7, prefix)],
    );
    assert!(long.finish().is_err());
    let bytes = good(40).unwrap().bytes().to_vec();
    let with = |at: usize, byte: u8| {
        let mut changed = bytes.clone();
        changed[at] = byte;
        Footer::parse(Bytes::from(changed))
    };
    assert!(with(14, 9).is_err(), "an unknown kind");
    assert!(with(12, 2).is_err(), "more blobs in frames than there are");
    assert!(with(12, 0).is_err(), "fewer blobs in frames than there are");
    for counts in [
        [0xff; 8],
        [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
    ] {
        assert!(Footer::parse(Bytes::copy_from_slice(&counts)).is_err());
    }
    // More frames than the maximum length of a pack allows.
    let mut large = FooterBuilder::new();
    for _ in 0..PACK_BYTES_MAX / u64::from(FRAME_RAW_MAX) + 1 {
        large.push(FRAME_RAW_MAX, [(Kind::Chunk, FRAME_RAW_MAX - 6, prefix)]);
    }
    assert!(large.finish().is_err());
}

#[test]
fn every_flipped_bit_of_a_pack_is_detected() {
    for keyring in keyrings() {
        let frames = [
            vec![b"one".to_vec()],
            vec![b"two".to_vec(), b"three".to_vec()],
        ];
        let object = pack(&keyring, &frames, Effort::None).1;
        assert_eq!(read_all(&keyring, &object).as_deref(), Ok(&frames[..]));
        for bit in 0..object.len() * 8 {
            let mut changed = object.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(
                read_all(&keyring, &changed).is_err(),
                "bit {bit} does not count"
            );
        }
        for length in 0..object.len() {
            assert!(read_all(&keyring, &object[..length]).is_err());
        }
        let mut longer = object.clone();
        longer.splice(HEADER_LEN..HEADER_LEN, [0]);
        assert!(
            read_all(&keyring, &longer).is_err(),
            "a byte that no frame holds"
        );
    }
}

#[test]
fn the_trailer_must_agree_with_the_footer() {
    let keyring = &keyrings()[0];
    let (_, object) = pack(keyring, &[vec![b"one".to_vec()]], Effort::None);
    let mut changed = object.clone();
    let at = object.len() - 12;
    changed[at] = 2;
    assert!(matches!(
        open(keyring, &changed),
        Err(PackError::Inconsistent(_))
    ));
    changed[at..at + 4].fill(0xff);
    assert!(Trailer::decode(&changed).is_err());
}

fn contents() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let blob = (
        any::<u8>(),
        prop::collection::vec(any::<u8>(), 0..300),
        1..20usize,
    )
        .prop_map(|(mask, bytes, times)| {
            let masked: Vec<u8> = bytes.iter().map(|byte| byte & mask).collect();
            masked.repeat(times)
        });
    prop::collection::vec(prop::collection::vec(blob, 0..5), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_was_packed_is_read_back(frames in contents(), compress: bool) {
        let effort = if compress { Effort::Level(1) } else { Effort::None };
        for keyring in keyrings() {
            let (pack, object) = pack(&keyring, &frames, effort);
            prop_assert_eq!(pack.length, object.len() as u64);
            prop_assert_eq!(&pack.header[..], &object[..HEADER_LEN]);
            prop_assert_eq!(&open(&keyring, &object).unwrap().1, &pack.footer);
            prop_assert_eq!(read_all(&keyring, &object).unwrap(), frames.clone());
        }
    }

    #[test]
    fn footers_are_read_back(frames in prop::collection::vec(
        prop::collection::vec((0..4usize, 0..100_000u32, any::<[u8; 16]>()), 0..20), 0..20,
    )) {
        let mut builder = FooterBuilder::new();
        let mut expected = Vec::new();
        for (number, blobs) in frames.iter().enumerate() {
            let blobs = blobs
                .iter()
                .map(|(kind, length, prefix)| (Kind::ALL[*kind], *length, Prefix(*prefix)));
            builder.push(33 + number as u32 % 3, blobs.clone());
            expected.extend(blobs.enumerate().map(|(slot, (kind, length, prefix))| BlobEntry {
                frame: number as u16, slot: slot as u16, kind, length, prefix,
            }));
        }
        let footer = builder.finish().unwrap();
        prop_assert_eq!(footer.blobs().collect::<Vec<_>>(), expected);
        let mut offset = HEADER_LEN as u32;
        for (number, frame) in footer.frames().enumerate() {
            prop_assert_eq!(frame.number as usize, number);
            prop_assert_eq!(frame.offset, offset);
            prop_assert_eq!(usize::from(frame.blob_count), frames[number].len());
            offset += frame.stored_length;
        }
        prop_assert_eq!(footer.pack_length(10), u64::from(offset) + 26);
        let bytes = footer.bytes().clone();
        for length in 0..bytes.len() {
            prop_assert!(Footer::parse(bytes.slice(..length)).is_err());
        }
        prop_assert_eq!(Footer::parse(bytes).unwrap(), footer);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200), counts in (0..4u32, 0..6u32),
    ) {
        let _ = Trailer::decode(&bytes);
        let _ = Footer::parse(Bytes::from(bytes.clone()));
        // Bytes of the right length, so that the parser reads the columns.
        let mut fitting = Vec::new();
        fitting.extend_from_slice(&counts.0.to_le_bytes());
        fitting.extend_from_slice(&counts.1.to_le_bytes());
        fitting.extend(bytes.iter().cycle().take((counts.0 * 6 + counts.1 * 21) as usize));
        if let Ok(footer) = Footer::parse(Bytes::from(fitting)) {
            prop_assert_eq!(footer.frames().count(), counts.0 as usize);
            prop_assert_eq!(footer.blobs().count(), counts.1 as usize);
        }
    }

    /// A frame that verifies may still be malformed, if the holder of the key is hostile or faulty.
    #[test]
    fn nonsense_in_a_frame_does_not_panic(
        payload in prop::collection::vec(any::<u8>(), 0..100), raw: bool,
    ) {
        for keyring in keyrings() {
            let sealer = keyring.object_sealer(Class::DataPack, "data/a", Features::NONE, [7; 32]);
            let opener = keyring.object_opener(Class::DataPack, "data/a", sealer.header()).unwrap();
            let mut coded = Vec::new();
            if raw {
                Encoder::new().encode(&payload, Effort::None, &mut coded);
            } else {
                coded.extend_from_slice(&payload);
            }
            let mut sealed = Vec::new();
            sealer.seal_box(1, &coded, &mut sealed);
            if let Ok(frame) = FrameDecoder::new().open(&opener, 1, &sealed) {
                prop_assert_eq!(frame.blobs().count(), frame.blob_count());
                prop_assert_eq!(frame.blob(frame.blob_count() as u16), None);
            }
        }
    }
}
