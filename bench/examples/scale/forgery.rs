//! Packs that only runs know, and whose ends are made when they are read.
//!
//! Owns what is in a forged pack: every chunk of it is a number, from which its prefix follows. Each
//! slice of the prefixes has as many chunks of each pack, so that a run is made without the others.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bkfs::root::run_group::prefixes_of;
use bkfs::root::state::Root;
use bkfs_bench::data::Numbers;
use bkfs_chunker::codec::{Effort, Encoder};
use bkfs_chunker::crypto::{Class, Features, HEADER_LEN, Keyring, ObjectSealer};
use bkfs_chunker::id::{Kind, Prefix};
use bkfs_chunker::pack::{Footer, FooterBuilder, PackName};
use bkfs_chunker::run::{PackFrames, Record, RunWriter};
use bkfs_store::{Layer, Store, StoreError};
use bytes::Bytes;

use crate::Outcome;

/// Chunks of a forged pack. Divisible by the largest number of slices.
pub const PACK_CHUNKS: u64 = 5 << 9;

/// Chunks of a frame.
const FRAME_CHUNKS: u64 = 8;

/// The length of a chunk, in bytes.
const CHUNK_BYTES: u32 = 16 << 10;

/// The length of a frame in a pack, in bytes: that of pages that compress to a third.
const FRAME_BYTES: u32 = 57_000;

/// The session whose packs and runs are forged.
pub const SESSION: u64 = u64::MAX - 1;

/// Records of a run, unless there are very many, as merges make them.
const RUN_RECORDS: u64 = 4 << 20;

/// Groups of this many runs or more have larger runs.
const FEW_SLICES: u64 = 64;

/// The largest number of slices.
const SLICES_MAX: u64 = 512;

/// How much is forged.
#[derive(Clone, Copy, Debug)]
pub struct Forgery {
    /// Number of packs.
    pub packs: u64,
    /// Number of slices of all prefixes: a power of two.
    pub slices: u64,
}

impl Forgery {
    /// Returns one of at least so many chunks.
    pub fn of(chunks: u64) -> Self {
        let of_run = (chunks / FEW_SLICES).max(RUN_RECORDS);
        let slices = (chunks / of_run).clamp(1, SLICES_MAX);
        Self {
            packs: chunks.div_ceil(PACK_CHUNKS),
            slices: slices.next_power_of_two(),
        }
    }

    /// Returns the one that a root has.
    pub fn in_root(root: &Root) -> Option<Self> {
        let groups = root.complete_groups();
        let runs = groups.flat_map(|group| &group.runs);
        let forged = runs.filter(|run| run.name.session == SESSION && run.records > 0);
        let records: Vec<u64> = forged.map(|run| run.records).collect();
        (!records.is_empty()).then_some(Self {
            packs: records.iter().sum::<u64>() / PACK_CHUNKS,
            slices: records.len() as u64,
        })
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        self.packs * PACK_CHUNKS
    }

    /// Returns the name of a pack. Names are in the order of numbers.
    pub fn name(pack: u64) -> PackName {
        PackName {
            session: SESSION,
            sequence: pack as u32,
            random: Numbers(pack).draw() as u32,
        }
    }

    /// Returns the prefix of a chunk.
    pub fn prefix(&self, pack: u64, chunk: u64) -> Prefix {
        let mut numbers = Numbers((pack * PACK_CHUNKS + chunk) ^ 0x5851_f42d_4c95_7f2d);
        let bits = self.slices.trailing_zeros();
        let slice = u128::from(chunk % self.slices) << 64 >> bits;
        let head = slice as u64 | numbers.draw() >> bits;
        Prefix((u128::from(head) << 64 | u128::from(numbers.draw())).to_be_bytes())
    }

    /// Returns the run of a slice, sealed under `key`, and how many records it has.
    pub fn run(&self, keyring: &Keyring, key: &str, slice: u64) -> Outcome<(Bytes, u64)> {
        let sealer = keyring.object_sealer(Class::Run, key, Features::NONE, salt(!slice));
        let range = prefixes_of(slice as u16, self.slices as u16);
        let names = (0..self.packs).map(Self::name);
        let effort = Effort::Level(1);
        let mut writer = RunWriter::new(sealer, Class::DataPack, range.clone(), names, effort);
        let records = self.records(slice);
        for record in &records {
            writer.push(*record)?;
        }
        let places = (0..self.packs).map(|pack| (PackFrames::place_of(&Self::name(pack)), pack));
        let mut places: Vec<_> = places.filter(|(place, _)| range.contains(place)).collect();
        places.sort_unstable();
        for (_, pack) in places {
            writer.push_pack(&self.frames(keyring, pack))?;
        }
        writer.finish()?;
        Ok((writer.take().into(), records.len() as u64))
    }

    /// Returns the records of a slice, in order.
    fn records(&self, slice: u64) -> Vec<Record> {
        let of_pack = |pack: u64| {
            let chunks = (slice..PACK_CHUNKS).step_by(self.slices as usize);
            chunks.map(move |chunk| Record {
                prefix: self.prefix(pack, chunk),
                pack: pack as u32,
                frame: (chunk / FRAME_CHUNKS) as u16,
                slot: (chunk % FRAME_CHUNKS) as u16,
                kind: Kind::Chunk,
            })
        };
        let mut records: Vec<Record> = (0..self.packs).flat_map(of_pack).collect();
        records.sort_unstable();
        records
    }

    fn frames(&self, keyring: &Keyring, pack: u64) -> PackFrames {
        PackFrames {
            name: Self::name(pack),
            class: Class::DataPack,
            length: HEADER_LEN as u64 + PACK_CHUNKS / FRAME_CHUNKS * u64::from(FRAME_BYTES),
            header: *sealer_of(keyring, pack).header(),
            frames: vec![FRAME_BYTES; (PACK_CHUNKS / FRAME_CHUNKS) as usize],
        }
    }

    fn footer(&self, pack: u64) -> Footer {
        let mut footer = FooterBuilder::new();
        for first in (0..PACK_CHUNKS).step_by(FRAME_CHUNKS as usize) {
            let chunks = first..first + FRAME_CHUNKS;
            let blobs = chunks.map(|chunk| (Kind::Chunk, CHUNK_BYTES, self.prefix(pack, chunk)));
            footer.push(FRAME_BYTES, blobs);
        }
        footer.finish().expect("it is within the bounds of packs")
    }
}

fn salt(number: u64) -> [u8; 32] {
    let mut numbers = Numbers(number);
    let mut salt = [0; 32];
    for part in salt.chunks_exact_mut(8) {
        part.copy_from_slice(&numbers.draw().to_le_bytes());
    }
    salt
}

fn sealer_of(keyring: &Keyring, pack: u64) -> ObjectSealer {
    let key = Forgery::name(pack).key(Class::DataPack);
    keyring.object_sealer(Class::DataPack, &key, Features::NONE, salt(pack))
}

/// A bucket that has the headers and footers of forged packs.
#[derive(Debug)]
pub struct ForgedBucket {
    below: Arc<dyn Store>,
    forged: OnceLock<(Keyring, Forgery)>,
}

impl ForgedBucket {
    /// Returns one on top of `below`, which has no forged packs yet.
    pub fn new(below: Arc<dyn Store>) -> Self {
        Self {
            below,
            forged: OnceLock::new(),
        }
    }

    /// Adds the packs of a forgery.
    pub fn add(&self, keyring: &Keyring, forgery: Forgery) {
        self.forged.get_or_init(|| (keyring.clone(), forgery));
    }

    /// Returns what is forged of a pack, and its number. `None` if it is not forged.
    fn forged(&self, key: &str) -> Option<(&Keyring, &Forgery, u64)> {
        let (keyring, forgery) = self.forged.get()?;
        let (class, name) = PackName::from_key(key).ok()?;
        let is_forged = class == Class::DataPack && name.session == SESSION;
        is_forged.then_some((keyring, forgery, u64::from(name.sequence)))
    }
}

#[async_trait]
impl Layer for ForgedBucket {
    fn below(&self) -> &dyn Store {
        &*self.below
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let Some((keyring, forgery, pack)) = self.forged(key) else {
            return self.below.get_range(key, range).await;
        };
        let header = sealer_of(keyring, pack).header().to_vec();
        if range.end <= header.len() as u64 {
            return Ok(Bytes::from(header).slice(range.start as usize..range.end as usize));
        }
        let (end, length) = end_of(keyring, forgery, pack);
        let before = length - end.len() as u64;
        assert!(range.start >= before, "frames of forged packs are not read");
        Ok(end.slice((range.start - before) as usize..(range.end - before) as usize))
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let Some((keyring, forgery, pack)) = self.forged(key) else {
            return self.below.get_tail(key, bytes).await;
        };
        let (end, length) = end_of(keyring, forgery, pack);
        let asked = bytes.min(length) as usize;
        // The frames are zeros.
        let mut tail = vec![0; asked.saturating_sub(end.len())];
        tail.extend_from_slice(&end[end.len().saturating_sub(asked)..]);
        Ok((tail.into(), length))
    }
}

/// Returns the footer and the trailer of a pack, and the length of the pack.
fn end_of(keyring: &Keyring, forgery: &Forgery, pack: u64) -> (Bytes, u64) {
    let footer = forgery.footer(pack);
    let mut encoder = Encoder::new();
    let end = footer.seal(&sealer_of(keyring, pack), &mut encoder, Effort::Level(1));
    let footer_length = (end.len() - bkfs_chunker::pack::TRAILER_LEN) as u32;
    (end.into(), footer.pack_length(footer_length))
}
