//! Measures how `bkfs check` joins references with what packs hold, on local disk.
//!
//! Usage: `check_join DIRECTORY BLOBS [MEMORY_MIB]`. Writes one holding and one reference for each
//! blob, and one of 1,000 references leads nowhere. Prints time and memory.

use std::sync::Arc;
use std::time::Instant;

use bkfs::maintain::CheckOptions;
use bkfs::maintain::workspace::Workspace;
use bkfs::maintain::workspace::directory::WorkDirectory;
use bkfs::maintain::workspace::join::{JOIN_BYTES, join};
use bkfs::maintain::workspace::partitions::Partitions;
use bkfs::maintain::workspace::records::{Holding, Order, Reference};
use bkfs_chunker::id::{Id, Kind};

/// Blobs of one pack.
const PACK_BLOBS: u64 = 2_400;

/// Returns the id of a blob. The numbers are spread as hashes are (splitmix64).
fn id(number: u64) -> Id {
    let mut bytes = [0; Id::LEN];
    let mut state = number;
    for part in bytes.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        part.copy_from_slice(&(mixed ^ (mixed >> 31)).to_be_bytes());
        state = mixed;
    }
    Id(bytes)
}

/// Returns a line of /proc/self/status.
fn status(name: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name));
    line.unwrap_or(name).to_owned()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, blobs, rest @ ..] = arguments.as_slice() else {
        return Err("usage: check_join DIRECTORY BLOBS [MEMORY_MIB]".into());
    };
    let blobs: u64 = blobs.parse()?;
    let mut workspace = Workspace {
        medium: Some(Arc::new(WorkDirectory::new(
            directory.into(),
            CheckOptions::default().entropy,
        ))),
        ..Workspace::default()
    };
    if let [memory] = rest {
        workspace.memory_bytes = memory.parse::<u64>()? << 20;
    }
    let begun = Instant::now();
    let mut held = Partitions::new(&workspace);
    for number in 0..blobs {
        held.push(Holding {
            blob: id(number).prefix(),
            pack: (number / PACK_BLOBS) as u32,
            frame: (number % PACK_BLOBS / 8) as u16,
        })?;
    }
    let is_held = begun.elapsed();
    let mut asked = Partitions::new(&workspace);
    for number in 0..blobs {
        let to = match number % 1_000 {
            0 => number + blobs,
            _ => number,
        };
        asked.push(Reference {
            from: (Kind::Segment, id(number / 128).prefix()),
            to: (Kind::Chunk, id(to)),
            order: Order {
                pack: (number / PACK_BLOBS) as u32,
                number: (number % PACK_BLOBS) as u32,
            },
        })?;
    }
    let is_asked = begun.elapsed();
    let mut dangling = 0_u64;
    join(&held, &asked, JOIN_BYTES, &mut |_, copies| {
        dangling += u64::from(copies.is_empty());
    })?;
    let is_joined = begun.elapsed();
    let million = blobs as f64 / 1e6;
    println!("{blobs} blobs, {dangling} references lead nowhere");
    println!("on disk: {}, {}", held.is_spilled(), asked.is_spilled());
    println!("holdings written: {:.2} s", is_held.as_secs_f64());
    println!(
        "references written: {:.2} s",
        (is_asked - is_held).as_secs_f64()
    );
    println!("joined: {:.2} s", (is_joined - is_asked).as_secs_f64());
    println!(
        "all: {:.3} s per million",
        is_joined.as_secs_f64() / million
    );
    println!("{}", status("VmHWM"));
    println!("{}", status("RssAnon"));
    Ok(())
}
