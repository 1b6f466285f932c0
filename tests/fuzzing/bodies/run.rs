//! Runs and what they consist of.

use super::{BASE_BYTES, NAME, bounded, keyrings};
use bkfs_chunker::codec::Decoder;
use bkfs_chunker::crypto::{Class, HEADER_LEN, Keyring};
use bkfs_chunker::id::Prefix;
use bkfs_chunker::run::{
    Block, Contents, Directory, Fences, LevelFilter, Names, PackFramesList, Section, TRAILER_LEN,
    Trailer,
};

/// Opens the directory of a run from its bytes alone.
pub fn directory(keyring: &Keyring, input: &[u8]) -> Option<Directory> {
    let header = input.first_chunk::<HEADER_LEN>()?;
    let (before, trailer) = input.split_last_chunk::<TRAILER_LEN>()?;
    let trailer = Trailer::decode(trailer).ok()?;
    let start = before
        .len()
        .checked_sub(trailer.directory_length as usize)?;
    let key = NAME.key(Class::Run);
    let opener = keyring.object_opener(Class::Run, &key, header).ok()?;
    let length = input.len() as u64;
    let mut decoder = Decoder::new();
    Directory::open(opener, &trailer, &before[start..], length, &mut decoder).ok()
}

/// A whole run, read from its bytes alone. Its parts lie one behind the other.
pub fn run(input: &[u8]) {
    for keyring in keyrings() {
        let Some(directory) = directory(&keyring, input) else {
            continue;
        };
        let decoder = &mut Decoder::new();
        let bytes = |range: std::ops::Range<u64>| &input[range.start as usize..range.end as usize];
        let mut end = HEADER_LEN as u64;
        for number in 0..directory.fences_count() {
            let range = directory
                .range(Section::Fences(number))
                .expect("it is listed");
            let Ok(fences) = directory.open_fences(number, bytes(range), decoder) else {
                return;
            };
            for block in 0..fences.count() {
                let found = directory.block_range(number, &fences, block);
                let (section, range) = found.expect("it is listed");
                assert_eq!(range.start, end, "blocks lie one behind the other");
                end = range.end;
                let _ = directory.open_block(section, bytes(range), decoder);
            }
        }
        let sections = (0..directory.pack_frames_count()).map(Section::PackFrames);
        let sections = sections.chain((0..directory.names_count()).map(Section::Names));
        let filters = 0..directory.filters().len() as u32;
        let sections = sections.chain(filters.map(Section::Filter));
        for section in sections.chain((0..directory.fences_count()).map(Section::Fences)) {
            let range = directory.range(section).expect("it is listed");
            assert_eq!(range.start, end, "parts lie one behind the other");
            end = range.end;
            match section {
                Section::PackFrames(number) => {
                    let _ = directory.open_pack_frames(number, bytes(range), decoder);
                }
                Section::Names(number) => {
                    let _ = directory.open_names(number, bytes(range), decoder);
                }
                Section::Filter(number) => {
                    let _ = directory.open_filter(number, bytes(range));
                }
                _ => {}
            }
        }
        assert!(end < input.len() as u64);
    }
}

/// The decoded form of a directory. It is, byte for byte, the encoding of what it says.
pub fn run_directory(input: &[u8]) {
    if let Ok(contents) = bounded(4, input.len(), || Contents::decode(input)) {
        assert_eq!(contents.encode(), input);
    }
}

/// The decoded form of a block. It is, byte for byte, the encoding of its records, and each is
/// found.
pub fn run_block(input: &[u8]) {
    let Ok(block) = bounded(2, input.len(), || Block::decode(input)) else {
        return;
    };
    assert_eq!(Block::encode(block.records()), input);
    for record in block.records().iter().take(50) {
        assert!(block.find(&record.prefix).contains(record));
    }
}

/// The decoded form of fences. Each prefix has its blocks among them.
pub fn run_fences(input: &[u8]) {
    let Ok(fences) = bounded(3, input.len(), || Fences::decode(input)) else {
        return;
    };
    let mut end = 0;
    for block in 0..fences.count() {
        let range = fences.range(block).expect("there");
        assert_eq!(range.start, end, "blocks lie one behind the other");
        end = range.end;
    }
    assert!(end == fences.bytes() && fences.range(fences.count()).is_none());
    for byte in 0..=255 {
        let blocks = fences.blocks_of(&Prefix([byte; Prefix::LEN]));
        assert!(blocks.end <= fences.count());
    }
}

/// The names and the pack records of a run, and a filter.
pub fn run_packs(input: &[u8]) {
    if let Ok(names) = bounded(2, input.len(), || Names::decode(input)) {
        assert_eq!(names.names().len() * 16, input.len());
    }
    if let Ok(packs) = bounded(6, input.len(), || PackFramesList::decode(input)) {
        for pack in packs.packs() {
            assert_eq!(packs.find(&pack.name), Some(pack));
        }
    }
    if let Some(filter) = bounded(2, BASE_BYTES + input.len(), || LevelFilter::open(input)) {
        for byte in 0..=255 {
            let _ = filter.lets_through(&Prefix([byte; Prefix::LEN]));
        }
    }
}
