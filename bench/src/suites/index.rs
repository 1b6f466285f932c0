//! An index of very many chunks: its memory and its lookup times.
//!
//! Owns: the synthetic packs. The tables are those that a catalog keeps on disk and maps, one for
//! each index object of the largest size.

use std::fs::File;
use std::time::Instant;

use bkfs_chunker::crypto::{Class, HEADER_LEN};
use bkfs_chunker::id::{Kind, Prefix};
use bkfs_chunker::index::{PackRecord, Table, TableBuilder};
use bkfs_chunker::pack::{FooterBuilder, PackName};
use memmap2::Mmap;

use crate::Outcome;
use crate::context::Context;
use crate::data::Numbers;
use crate::disk::remove;
use crate::measure::{anonymous_bytes, give_back_memory};
use crate::targets::INDEX_MEMORY;

/// Chunks per pack, and packs per table.
const CHUNKS: u64 = 1024;
const PACKS: u64 = 2048;

/// Number of 16 KiB chunks in a TiB.
const CHUNKS_PER_TIB: f64 = (1u64 << 26) as f64;

/// Number of lookups that are timed.
const LOOKUPS: u64 = 200_000;

/// Makes tables, maps them, and looks chunks up.
pub(super) fn run(context: &mut Context) -> Outcome<()> {
    let tables = context.size.choose(1, 8, 48);
    let directory = context.fresh("tables")?;
    for number in 0..tables {
        std::fs::write(directory.join(number.to_string()), table(number))?;
    }
    give_back_memory();
    let before = anonymous_bytes(std::process::id()).unwrap_or_default();
    let began = Instant::now();
    let mut open = Vec::new();
    for number in 0..tables {
        let file = File::open(directory.join(number.to_string()))?;
        // SAFETY: no process changes the file, which this run has just made in a directory of its
        // own.
        let bytes = unsafe { Mmap::map(&file)? };
        open.push(Table::open(bytes)?);
    }
    let opening_s = began.elapsed().as_secs_f64();
    // As a mount does with the tables that it finds in its cache.
    for table in &open {
        table.verify()?;
    }
    let verified_s = began.elapsed().as_secs_f64();
    let mut numbers = Numbers(1);
    let known: Vec<Prefix> = (0..LOOKUPS)
        .map(|_| prefix(numbers.draw() % tables, numbers.draw() % (PACKS * CHUNKS)))
        .collect();
    let fresh: Vec<Prefix> = (0..LOOKUPS)
        .map(|number| prefix(u64::MAX, number))
        .collect();
    let rate = |wanted: &[Prefix]| {
        let began = Instant::now();
        let found = wanted
            .iter()
            .filter(|prefix| open.iter().any(|table| table.contains(prefix)))
            .count() as u64;
        (found, wanted.len() as f64 / began.elapsed().as_secs_f64())
    };
    let ((found, known_rate), (ghosts, fresh_rate)) = (rate(&known), rate(&fresh));
    if (found, ghosts) != (LOOKUPS, 0) {
        return Err(format!(
            "{found} of {LOOKUPS} chunks are found, and {ghosts} that were never there"
        )
        .into());
    }
    let after = anonymous_bytes(std::process::id()).unwrap_or_default();
    let chunks = (tables * PACKS * CHUNKS) as f64;
    let keys = (known.len() + fresh.len()) * size_of::<Prefix>();
    let memory = after.saturating_sub(before).saturating_sub(keys as u64) as f64 / (1 << 20) as f64;
    let figures = &mut context.report.figures;
    figures.insert("index: chunks, millions".to_owned(), chunks / 1e6);
    figures.insert("index: tables".to_owned(), tables as f64);
    figures.insert("index: opening, s".to_owned(), opening_s);
    figures.insert(
        "index: opening and comparing with checksums, s".to_owned(),
        verified_s,
    );
    figures.insert(
        "index: look-ups of known chunks, thousands/s".to_owned(),
        known_rate / 1e3,
    );
    figures.insert(
        "index: look-ups of fresh chunks, thousands/s".to_owned(),
        fresh_rate / 1e3,
    );
    figures.insert(INDEX_MEMORY.to_owned(), memory * CHUNKS_PER_TIB / chunks);
    remove(&directory)
}

/// Returns the prefix of a chunk, always the same for the same numbers.
fn prefix(table: u64, chunk: u64) -> Prefix {
    let mut numbers =
        Numbers(table.wrapping_mul(0x1_0000_0001).wrapping_add(chunk) ^ 0x5851_f42d_4c95_7f2d);
    let number = u128::from(numbers.draw()) << 64 | u128::from(numbers.draw());
    Prefix(number.to_le_bytes())
}

fn table(number: u64) -> Vec<u8> {
    let mut builder = TableBuilder::new();
    for pack in 0..PACKS {
        let mut footer = FooterBuilder::new();
        let chunks: Vec<u64> = (pack * CHUNKS..(pack + 1) * CHUNKS).collect();
        for frame in chunks.chunks(8) {
            let blobs = frame
                .iter()
                .map(|&chunk| (Kind::Chunk, 16_384, prefix(number, chunk)));
            footer.push(57_000, blobs.collect::<Vec<_>>());
        }
        let footer = footer
            .finish()
            .expect("the pack is within the bounds of packs");
        builder.push(PackRecord {
            name: PackName {
                session: number,
                sequence: pack as u32,
                random: 1,
            },
            class: Class::DataPack,
            length: footer.pack_length(21_000),
            header: [0; HEADER_LEN],
            footer,
        });
    }
    builder.finish()
}
