//! Frozen bytes of every encoded form of FORMAT.md, in `data/`, one file for each.
//!
//! This test owns the comparison. A form whose bytes are fixed by the format must be encoded as it
//! is frozen, and be decoded again. The output of a compressor is frozen for reading only, since
//! another version of the compressor may write other bytes.
//!
//! `BKFS_FREEZE_GOLDEN=1 cargo test -p bkfs-tests --test golden` freezes the form of something new.
//! It never overwrites a file that exists: version 1 of the format does not change.

mod chunker;
mod root;
mod trace;
mod tree;

use std::path::PathBuf;

/// Returns the path of the frozen form of this name.
fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("golden/data")
        .join(name)
}

fn freezes(name: &str) -> bool {
    std::env::var_os("BKFS_FREEZE_GOLDEN").is_some_and(|value| value == "1") && !path(name).exists()
}

fn write(name: &str, bytes: &[u8]) {
    std::fs::write(path(name), bytes).expect("the frozen form can be written");
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|error| panic!("{name} is not frozen: {error}"))
}

/// Compares `made` with the frozen form of this name, and returns the frozen form.
pub fn fixed(name: &str, made: &[u8]) -> Vec<u8> {
    if freezes(name) {
        write(name, made);
    }
    let frozen = read(name);
    let differs = frozen.iter().zip(made).position(|(old, new)| old != new);
    assert!(
        frozen == made,
        "{name} changed: {} bytes were {}, first difference at {}",
        made.len(),
        frozen.len(),
        differs.unwrap_or(frozen.len().min(made.len())),
    );
    frozen
}

/// As [`fixed`], for forms that are text.
pub fn fixed_text(name: &str, made: &str) {
    if freezes(name) {
        write(name, made.as_bytes());
    }
    let frozen = String::from_utf8(read(name)).expect("frozen text is UTF-8");
    for (line, (old, new)) in frozen.lines().zip(made.lines()).enumerate() {
        assert_eq!(old, new, "{name} changed in line {}", line + 1);
    }
    assert_eq!(frozen, made, "{name} changed");
}

/// Returns the frozen form of this name, which only has to be readable. `make` makes it when it is
/// frozen for the first time.
pub fn readable(name: &str, make: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    if freezes(name) {
        write(name, &make());
    }
    read(name)
}

/// Returns bytes that look random and never change (splitmix64 from `seed`).
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = state;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(number ^ (number >> 31)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
