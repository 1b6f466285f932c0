//! An index of very many chunks: its memory and its lookup times.
//!
//! Owns: the synthetic packs. The tables are those that a catalog keeps on disk, one for each index
//! object of the largest size.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use bkfs_chunker::crypto::{Class, HEADER_LEN};
use bkfs_chunker::id::{Kind, Prefix};
use bkfs_chunker::index::{PackRecord, ReadAt, Table, TableBuilder, TableError, TableKey};
use bkfs_chunker::pack::{FooterBuilder, PackName};

use crate::Outcome;
use crate::context::Context;
use crate::data::Numbers;
use crate::disk::remove;
use crate::measure::{anonymous_bytes, give_back_memory};
use crate::targets::INDEX_MEMORY;

/// Chunks per pack, and packs per table.
pub(super) const CHUNKS: u64 = 1024;
pub(super) const PACKS: u64 = 2048;

/// Number of 16 KiB chunks in a TiB.
const CHUNKS_PER_TIB: f64 = (1u64 << 26) as f64;

/// Number of lookups that are timed.
const LOOKUPS: u64 = 200_000;

/// A table's file, and how many bytes were read of it.
struct Counted {
    file: File,
    length: u64,
    read: Cell<u64>,
}

impl ReadAt for Counted {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read.set(self.read.get() + buffer.len() as u64);
        self.file.read_exact_at(buffer, offset)
    }
}

fn key(table: u64) -> TableKey {
    [table as u8; 32].into()
}

/// Makes tables, opens them, and looks chunks up.
pub(super) fn run(context: &mut Context) -> Outcome<()> {
    let tables = context.size.choose(1, 8, 48);
    let directory = context.fresh("tables")?;
    for number in 0..tables {
        std::fs::write(directory.join(number.to_string()), table(number))?;
    }
    give_back_memory();
    let before = anonymous_bytes(std::process::id()).unwrap_or_default();
    let began = Instant::now();
    let open = open_all(&directory, tables)?;
    let opening_s = began.elapsed().as_secs_f64();
    let opening_bytes: u64 = open.iter().map(|table| table.bytes().read.get()).sum();
    let mut numbers = Numbers(1);
    let known: Vec<Prefix> = (0..LOOKUPS)
        .map(|_| prefix(numbers.draw() % tables, numbers.draw() % (PACKS * CHUNKS)))
        .collect();
    let fresh: Vec<Prefix> = (0..LOOKUPS)
        .map(|number| prefix(u64::MAX, number))
        .collect();
    let rate = |wanted: &[Prefix]| {
        let began = Instant::now();
        let mut found = 0;
        for prefix in wanted {
            for table in &open {
                if table.contains(prefix)? {
                    found += 1;
                    break;
                }
            }
        }
        let rate = wanted.len() as f64 / began.elapsed().as_secs_f64();
        Ok::<_, TableError>((found, rate))
    };
    // As in a mount that has looked up as many before: filters are read once.
    rate(&fresh)?;
    let ((found, known_rate), (ghosts, fresh_rate)) = (rate(&known)?, rate(&fresh)?);
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
        "index: read by opening, KiB".to_owned(),
        opening_bytes as f64 / 1024.0,
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

fn open_all(directory: &Path, tables: u64) -> Outcome<Vec<Table<Counted>>> {
    let open = |number: u64| {
        let file = File::open(directory.join(number.to_string()))?;
        let length = file.metadata()?.len();
        let read = Cell::new(0);
        let bytes = Counted { file, length, read };
        Ok(Table::open(bytes, key(number))?)
    };
    (0..tables).map(open).collect()
}

/// Returns the prefix of a chunk, always the same for the same numbers.
pub(super) fn prefix(table: u64, chunk: u64) -> Prefix {
    let mut numbers =
        Numbers(table.wrapping_mul(0x1_0000_0001).wrapping_add(chunk) ^ 0x5851_f42d_4c95_7f2d);
    let number = u128::from(numbers.draw()) << 64 | u128::from(numbers.draw());
    Prefix(number.to_le_bytes())
}

/// Returns a synthetic pack of a table.
pub(super) fn pack(table: u64, sequence: u64) -> PackRecord {
    let mut footer = FooterBuilder::new();
    let chunks: Vec<u64> = (sequence * CHUNKS..(sequence + 1) * CHUNKS).collect();
    for frame in chunks.chunks(8) {
        let blobs = frame
            .iter()
            .map(|&chunk| (Kind::Chunk, 16_384, prefix(table, chunk)));
        footer.push(57_000, blobs.collect::<Vec<_>>());
    }
    let footer = footer
        .finish()
        .expect("the pack is within the bounds of packs");
    PackRecord {
        name: PackName {
            session: table,
            sequence: sequence as u32,
            random: 1,
        },
        class: Class::DataPack,
        length: footer.pack_length(21_000),
        header: [0; HEADER_LEN],
        footer,
    }
}

fn table(number: u64) -> Vec<u8> {
    let mut builder = TableBuilder::new();
    for sequence in 0..PACKS {
        builder.push(pack(number, sequence));
    }
    builder.finish(&key(number))
}
