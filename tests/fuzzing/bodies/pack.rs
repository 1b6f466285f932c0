//! Packs and what they consist of, index objects and tables, segments, and files of a spool.

use super::{BASE_BYTES, NAME, TABLE_KEY, bounded, keyrings, through_a_seal};
use bkfs_chunker::chunking::Parameters;
use bkfs_chunker::chunking::segment::{self, SEGMENT_BYTES_MAX, SEGMENT_CHUNKS_MAX};
use bkfs_chunker::codec::{CODED_HEAD_LEN, Decoder, Effort, Encoder};
use bkfs_chunker::crypto::{Class, Features, HEADER_LEN, Keyring, ObjectOpener, ObjectSealer};
use bkfs_chunker::id::Prefix;
use bkfs_chunker::index::{
    self, INDEX_RAW_MAX, OwnMemory, PackNumber, PackRecord, ReadAt, Table, TableBuilder,
};
use bkfs_chunker::pack::{
    FRAME_BLOBS_MAX, FRAME_RAW_MAX, Footer, FooterBuilder, FrameDecoder, FrameEncoder,
    PACK_BLOBS_MAX, PACK_BYTES_MAX, PACK_FRAMES_MAX, TRAILER_LEN, Trailer,
};
use bkfs_chunker::spool::file;
use bytes::Bytes;

/// Returns the number of bytes that a coded form of this input may take: its own, and the raw
/// length that it states, up to `most`.
fn coded_bytes(input: &[u8], most: u32) -> usize {
    let stated = input.get(1..CODED_HEAD_LEN).map_or(0, |head| {
        u32::from_le_bytes([head[0], head[1], head[2], head[3]])
    });
    input.len() + stated.min(most) as usize
}

fn sealer(keyring: &Keyring) -> ObjectSealer {
    let key = NAME.key(Class::DataPack);
    keyring.object_sealer(Class::DataPack, &key, Features::NONE, [0x99; 32])
}

fn opener(keyring: &Keyring, header: &[u8; HEADER_LEN]) -> Option<ObjectOpener> {
    let key = NAME.key(Class::DataPack);
    keyring.object_opener(Class::DataPack, &key, header).ok()
}

/// A whole pack, read from its bytes alone: header, trailer, footer, frames.
pub fn pack(input: &[u8]) {
    let trailer = bounded(1, input.len(), || Trailer::decode(input));
    if let Ok(trailer) = trailer {
        assert!(trailer.frame_count as usize <= PACK_FRAMES_MAX);
        assert_eq!(trailer.encode()[..], input[input.len() - TRAILER_LEN..]);
    }
    for keyring in keyrings() {
        let (Ok(trailer), Some(header)) = (&trailer, input.first_chunk::<HEADER_LEN>()) else {
            return;
        };
        let Some(opener) = opener(&keyring, header) else {
            continue;
        };
        let end = input.len() - TRAILER_LEN;
        let Some(start) = end.checked_sub(trailer.footer_length as usize) else {
            continue;
        };
        let mut decoder = FrameDecoder::new();
        let sealed = &input[start..end];
        let footer = Footer::open(
            &opener,
            trailer,
            sealed,
            input.len() as u64,
            decoder.decoder(),
        );
        let Ok(footer) = footer else {
            continue;
        };
        for entry in footer.frames() {
            let range = entry.range().start as usize..entry.range().end as usize;
            assert!(range.end <= start, "a frame reaches into the footer");
            let frame = decoder.open(&opener, u32::from(entry.number), &input[range]);
            if let Ok(frame) = frame {
                assert!(frame.memory() <= FRAME_RAW_MAX as usize);
            }
        }
    }
}

/// The decoded form of a footer, by itself and sealed behind frames. It is the one that its entries
/// make.
pub fn footer(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(footer) = bounded(1, input.len(), || Footer::parse(bytes)) else {
        return;
    };
    assert!(footer.frame_count() <= PACK_FRAMES_MAX && footer.blob_count() <= PACK_BLOBS_MAX);
    let mut builder = FooterBuilder::new();
    let mut blobs = footer.blobs();
    let mut end = HEADER_LEN as u64;
    for frame in footer.frames() {
        assert_eq!(frame.range().start, end, "frames lie one behind the other");
        assert!(frame.raw_length <= FRAME_RAW_MAX);
        end = frame.range().end;
        let inside = blobs.by_ref().take(usize::from(frame.blob_count));
        let inside = inside.map(|blob| (blob.kind, blob.length, blob.prefix));
        builder.push(frame.stored_length, inside.collect::<Vec<_>>());
    }
    assert!(blobs.next().is_none() && end <= PACK_BYTES_MAX);
    let again = builder.finish().expect("these entries were a footer");
    assert_eq!(again, footer, "another footer of the same entries");
    for keyring in keyrings() {
        let sealer = sealer(&keyring);
        let tail = footer.seal(&sealer, &mut Encoder::new(), Effort::Level(1));
        let opener = opener(&keyring, sealer.header()).expect("its own header");
        let trailer = Trailer::decode(&tail).expect("its own trailer");
        let sealed = &tail[..tail.len() - TRAILER_LEN];
        let length = footer.pack_length(trailer.footer_length);
        let open = |length| Footer::open(&opener, &trailer, sealed, length, &mut Decoder::new());
        assert_eq!(open(length), Ok(footer.clone()));
        assert!(open(length + 1).is_err() && open(length - 1).is_err());
    }
}

/// The payload of a frame's box. What decodes holds the same blobs after another encoding.
pub fn frame(input: &[u8]) {
    let bytes = coded_bytes(input, FRAME_RAW_MAX);
    for keyring in keyrings() {
        let sealer = sealer(&keyring);
        let opener = opener(&keyring, sealer.header()).expect("its own header");
        let mut sealed = Vec::new();
        sealer.seal_box(7, input, &mut sealed);
        let mut decoder = FrameDecoder::new();
        assert!(
            decoder.open(&opener, 8, &sealed).is_err(),
            "a box of another number"
        );
        let Ok(frame) = bounded(4, bytes, || decoder.open(&opener, 7, &sealed)) else {
            continue;
        };
        let blobs: Vec<Bytes> = frame.blobs().collect();
        assert_eq!(blobs.len(), frame.blob_count());
        assert!(blobs.len() <= FRAME_BLOBS_MAX && frame.memory() <= FRAME_RAW_MAX as usize);
        assert_eq!(frame.blob(blobs.len().min(FRAME_BLOBS_MAX) as u16), None);
        let parts: Vec<&[u8]> = blobs.iter().map(Bytes::as_ref).collect();
        let again = FrameEncoder::new().seal(&sealer, 3, &parts, Effort::None);
        let again = again.expect("these blobs were a frame");
        assert_eq!(decoder.open(&opener, 3, &again), Ok(frame));
    }
}

/// The payload of an index object. An uncompressed one is, byte for byte, the encoding of its
/// packs.
pub fn index(input: &[u8]) {
    let bytes = coded_bytes(input, INDEX_RAW_MAX);
    let payload = through_a_seal(Class::Index, input);
    let decoded = bounded(4, bytes, || index::decode(&payload, &mut Decoder::new()));
    let Ok(mut records) = decoded else {
        return;
    };
    assert!(records.is_sorted_by(|one, two| one.name < two.name));
    assert!(records.iter().all(is_within_bounds));
    let again = index::encode(&mut records, &mut Encoder::new(), Effort::None);
    let again = again.expect("these packs were an index object");
    if Decoder::is_raw(input) {
        assert_eq!(again, input, "another index object of the same packs");
    }
    assert_eq!(
        index::decode(&again, &mut Decoder::new()).as_ref(),
        Ok(&records)
    );
    answers_for(&records);
}

fn is_within_bounds(record: &PackRecord) -> bool {
    matches!(record.class, Class::DataPack | Class::MetadataPack)
        && record.length <= PACK_BYTES_MAX
        && record
            .footer
            .frames()
            .all(|frame| frame.range().end <= record.length)
}

/// Asserts that a table of these packs finds each of their blobs.
fn answers_for(records: &[PackRecord]) {
    let mut builder = TableBuilder::new();
    records
        .iter()
        .for_each(|record| builder.push(record.clone()));
    let bytes = builder.finish(&TABLE_KEY.into());
    let table = Table::open(bytes.as_slice(), TABLE_KEY.into()).expect("its own table");
    assert_eq!(table.pack_count() as usize, records.len());
    for (number, record) in records.iter().enumerate() {
        for blob in record.footer.blobs() {
            let found = table.find(&blob.prefix).expect("nothing is changed");
            let is_here = found.iter().any(|location| {
                location.pack == PackNumber(number as u32)
                    && (location.frame, location.slot) == (blob.frame, blob.slot)
            });
            assert!(is_here, "a blob is not in the table");
        }
    }
}

/// A table of an index, which lies on a local disk. Whatever its bytes are, each look-up ends: with
/// an error if a checksum is wrong, and with anything if the checksums are not looked at.
pub fn table(input: &[u8]) {
    if let Ok(table) = bounded(2, input.len(), || Table::open(input, TABLE_KEY.into())) {
        look_up_in(&table);
    }
    let trusted = OwnMemory(input.to_vec());
    if let Ok(table) = bounded(2, input.len(), || Table::open(trusted, TABLE_KEY.into())) {
        look_up_in(&table);
    }
}

fn look_up_in<B: ReadAt>(table: &Table<B>) {
    let ends = [Prefix([0; 16]), Prefix([0xff; 16]), Prefix([0x80; 16])];
    let entries = table.entries().take(50).flatten();
    let inside: Vec<Prefix> = entries.map(|(prefix, _)| prefix).collect();
    for prefix in ends.iter().chain(&inside) {
        let found = table.find(prefix).unwrap_or_default();
        assert!(found.len() as u64 <= table.entry_count());
        for location in found {
            let _ = table.frame(location.pack, location.frame);
            if let Ok(Some(pack)) = table.pack(location.pack) {
                let _ = table.number_of(&pack.name);
            }
        }
    }
    let absent = table.frame(PackNumber(u32::MAX), u16::MAX);
    assert!(matches!(absent, Ok(None)));
}

/// A segment. It is, byte for byte, the encoding of its chunks.
pub fn segment(input: &[u8]) {
    let Ok(segment) = bounded(2, input.len(), || segment::decode(input)) else {
        return;
    };
    assert!((1..=SEGMENT_CHUNKS_MAX).contains(&segment.chunks.len()));
    assert!((1..=SEGMENT_BYTES_MAX).contains(&segment.length()));
    let chunk_max = Parameters::CHUNK_LEN_MAX;
    assert!(segment.chunks.iter().all(|chunk| chunk.length <= chunk_max));
    assert_eq!(segment::encode(segment.profile, &segment.chunks), input);
    let mut next = 0;
    for (start, chunk) in segment.overlapping(0, u32::MAX) {
        assert_eq!(start, next);
        next += chunk.length;
    }
    assert_eq!(next, segment.length());
    let (middle, end) = (segment.length() / 2, segment.length());
    assert!(
        segment.overlapping(middle, 1).count() == 1 && segment.overlapping(end, 1).count() == 0
    );
}

/// A file of a spool with its trailer, and a file's name.
pub fn spool_file(input: &[u8]) {
    let whole = Bytes::copy_from_slice(input);
    if let Some(object) = bounded(1, BASE_BYTES, || file::object(whole)) {
        let trailer = file::trailer(object.len() as u64, &file::digest([&object]));
        assert_eq!([object, trailer].concat(), input);
    }
    let object = Bytes::copy_from_slice(input);
    let trailer = file::trailer(object.len() as u64, &file::digest([&object]));
    let mut made = [object.clone(), trailer].concat();
    assert_eq!(file::object(made.clone().into()), Some(object));
    let last = made.len() - 1;
    made[last] ^= 1;
    assert_eq!(file::object(made.into()), None);
    let name = String::from_utf8_lossy(input);
    let is_name = !name.contains('/');
    if let Some((number, key)) = bounded(64, input.len(), || file::parse(&name)).filter(|_| is_name)
    {
        assert_eq!(file::name(number, &key), name);
    }
}
