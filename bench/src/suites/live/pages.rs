//! Pages of a long file, written at random, each of them synced: what a database makes of a
//! transaction that nothing else shares a commit with.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::load::{Done, Sources};
use crate::Outcome;
use crate::data::{self, Numbers, Texture};

/// The part of the data that is the long file.
pub(super) const PART: &str = "pages";

/// Bytes of a page.
const PAGE: usize = 16 << 10;

/// Most seconds of the load.
const SECONDS: u64 = 30;

/// Makes the file.
pub(super) fn make(directory: &Path, length: u64) -> Outcome<()> {
    fs::create_dir_all(directory.join(PART))?;
    data::stream(
        &directory.join(PART).join("file"),
        Texture::Pages,
        length,
        53,
    )
}

/// The pages that are written, and what from: the same at each call.
struct Draws {
    numbers: Numbers,
    pages: u64,
}

impl Draws {
    fn of(file: &File) -> Outcome<Self> {
        let pages = file.metadata()?.len() / PAGE as u64;
        if pages == 0 {
            return Err("the file of pages is empty".into());
        }
        Ok(Self {
            numbers: Numbers(59),
            pages,
        })
    }

    fn next(&mut self) -> (u64, u64) {
        (self.numbers.draw() % self.pages, self.numbers.draw())
    }
}

/// Writes pages until the time is over.
pub(super) fn write(sources: &Sources, at: &Path) -> Outcome<Done> {
    let file = OpenOptions::new()
        .write(true)
        .open(at.join(PART).join("file"))?;
    let mut draws = Draws::of(&file)?;
    let mut took = Vec::new();
    let begun = Instant::now();
    let until = Duration::from_secs(sources.seconds.min(SECONDS));
    while begun.elapsed() < until {
        let (page, seed) = draws.next();
        let content = content(seed);
        let one = Instant::now();
        file.write_all_at(&content, page * PAGE as u64)?;
        file.sync_data()?;
        took.push(one.elapsed());
    }
    let seconds = begun.elapsed().as_secs_f64();
    took.sort_unstable();
    let p99 = took[(took.len() * 99 / 100).min(took.len() - 1)];
    Ok(Done {
        rate: took.len() as f64 / seconds,
        p99_ms: Some(p99.as_secs_f64() * 1000.0),
        writes: took.len(),
        checksums: String::new(),
    })
}

/// Compares what so many writes have left.
pub(super) fn check(at: &Path, writes: usize) -> Outcome<()> {
    let file = File::open(at.join(PART).join("file"))?;
    let mut draws = Draws::of(&file)?;
    // The last content of each page.
    let written: HashMap<u64, u64> = (0..writes).map(|_| draws.next()).collect();
    let mut found = vec![0; PAGE];
    for (page, seed) in written {
        file.read_exact_at(&mut found, page * PAGE as u64)?;
        if found != content(seed) {
            return Err(format!("page {page} is not what was written").into());
        }
    }
    Ok(())
}

fn content(seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PAGE);
    data::fill(Texture::Pages, PAGE, &mut Numbers(seed), &mut bytes);
    bytes
}
