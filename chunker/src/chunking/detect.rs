//! Detection of the kind of a file, for the choice of its chunking profile.
//!
//! The result is a guess: it affects how well a file deduplicates, never whether it is stored
//! correctly.

use super::profile::Profile;
use crate::codec::is_incompressible;

/// Guesses the profile of a file from its path and its first bytes. Returns `None` for no opinion:
/// the file is then chunked by content.
///
/// `name` is the path as far as it is known, its components divided by `/`. `head` is as many first
/// bytes as are available: 64 KiB is plenty, and none is allowed.
pub fn detect(name: &[u8], head: &[u8]) -> Option<Profile> {
    if is_compressed(head) || (head.len() < LONGEST_MAGIC && has_ending(name, COMPRESSED_ENDINGS)) {
        return Some(Profile::Raw);
    }
    if is_page_file_by_name(name) || is_page_file(head) {
        return Some(Profile::Grid);
    }
    // An archive that begins with a photograph is still an archive.
    let is_archive = head.get(257..262) == Some(b"ustar") || head.starts_with(b"XBSTCK01");
    if head.len() >= PROBE_LEN_MIN && !is_archive && is_incompressible(head) {
        return Some(Profile::Raw);
    }
    None
}

/// Fewer bytes than this do not tell the entropy of a file.
const PROBE_LEN_MIN: usize = 16 * 1024;

/// First bytes of compressed and encrypted streams.
const COMPRESSED: &[&[u8]] = &[
    b"\x1f\x8b\x08",          // gzip
    b"\x28\xb5\x2f\xfd",      // zstd
    b"\xfd7zXZ\0",            // xz
    b"\x04\x22\x4d\x18",      // lz4
    b"PK\x03\x04",            // zip
    b"7z\xbc\xaf\x27\x1c",    // 7z
    b"LZIP",                  // lzip
    b"\x89LZO\0\r\n\x1a\n",   // lzop
    b"\xff\x06\0\0sNaPpY",    // snappy
    b"age-encryption.org/v1", // age
    b"Salted__",              // openssl enc
];

const LONGEST_MAGIC: usize = 21;

/// Endings of the names of compressed files, used while the file is still nearly empty.
const COMPRESSED_ENDINGS: &[&[u8]] = &[
    b".gz", b".tgz", b".zst", b".xz", b".txz", b".lz4", b".bz2", b".tbz2", b".zip", b".7z",
    b".age", b".gpg",
];

/// Endings of the names of files that programs rewrite page by page.
const PAGE_ENDINGS: &[&[u8]] = &[
    b".ibd",
    b".ibu", // InnoDB tablespaces
    b".mad",
    b".mai", // Aria
    b".sqlite",
    b".sqlite3",
    b".db3", // SQLite
    b".qcow2",
    b".vmdk",
    b".vdi",
    b".vhd",
    b".vhdx",
    b".img",
    b".raw", // disk images
];

fn is_compressed(head: &[u8]) -> bool {
    let bzip2 = head.starts_with(b"BZh") && head.get(4..10) == Some(b"1AY&SY");
    bzip2 || COMPRESSED.iter().any(|magic| head.starts_with(magic))
}

fn has_ending(name: &[u8], endings: &[&[u8]]) -> bool {
    endings.iter().any(|ending| {
        name.len() > ending.len() && name[name.len() - ending.len()..].eq_ignore_ascii_case(ending)
    })
}

fn is_page_file_by_name(name: &[u8]) -> bool {
    let mut parts = name.rsplit(|byte| *byte == b'/');
    let file = parts.next().unwrap_or_default();
    has_ending(file, PAGE_ENDINGS)
        || is_numbered(file, b"ibdata")
        || is_numbered(file, b"ibtmp")
        || is_numbered(file, b"undo_")
        || is_numbered(file, b"undo")
        || is_relation(file, parts.next(), parts.next())
}

/// Returns true if `file` is `word` followed by at least one digit and nothing else.
fn is_numbered(file: &[u8], word: &[u8]) -> bool {
    file.strip_prefix(word).is_some_and(is_number)
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

/// Returns true for files of PostgreSQL relations: `base/5/16384`, `global/1262_fsm`,
/// `pg_tblspc/16400/PG_15_202209061/5/16385.1`.
fn is_relation(file: &[u8], parent: Option<&[u8]>, grandparent: Option<&[u8]>) -> bool {
    let mut dots = file.split(|byte| *byte == b'.');
    let fork = dots.next().unwrap_or_default();
    let segment_is_fine = dots.next().is_none_or(is_number) && dots.next().is_none();
    let mut words = fork.split(|byte| *byte == b'_');
    let node_is_fine = words.next().is_some_and(is_number);
    let fork_is_fine = match (words.next(), words.next()) {
        (None, None) => true,
        (Some(word), None) => [&b"fsm"[..], b"vm", b"init"].contains(&word),
        _ => false,
    };
    let place_is_fine = match (parent, grandparent) {
        (Some(b"global"), _) => true,
        (Some(database), Some(space)) => {
            is_number(database) && (space == b"base" || space.starts_with(b"PG_"))
        }
        _ => false,
    };
    node_is_fine && fork_is_fine && segment_is_fine && place_is_fine
}

fn is_page_file(head: &[u8]) -> bool {
    const MAGICS: &[&[u8]] = &[
        b"SQLite format 3\0",
        b"QFI\xfb",  // qcow2
        b"KDMV",     // vmdk
        b"vhdxfile", // vhdx
        b"conectix", // vhd
    ];
    MAGICS.iter().any(|magic| head.starts_with(magic))
        || head.get(0x40..0x44) == Some(b"\x7f\x10\xda\xbe") // vdi
        || is_innodb(head)
        || is_postgresql(head)
}

/// Returns true for the first page of an InnoDB tablespace: page number 0, of the page type that
/// describes the space, with the space id in two places.
///
/// Offsets are from the MySQL source, fil0fil.h: FIL_PAGE_OFFSET 4, FIL_PAGE_TYPE 24,
/// FIL_PAGE_SPACE_ID 34; fsp0fsp.h: FSP_SPACE_ID 38.
fn is_innodb(head: &[u8]) -> bool {
    head.len() >= 16 * 1024
        && head[4..8] == [0; 4]
        && head[24..26] == [0, 8]
        && head[34..38] == head[38..42]
        && head[..4] != [0; 4]
}

/// Returns true for the first pages of a PostgreSQL relation: pages of 8 KiB in layout version 4,
/// whose bounds are in ascending order.
///
/// Offsets are from the PostgreSQL source, bufpage.h: pd_lower 12, pd_upper 14, pd_special 16,
/// pd_pagesize_version 18.
fn is_postgresql(head: &[u8]) -> bool {
    const PAGE: usize = 8192;
    let is_page = |page: &[u8]| {
        let at = |offset: usize| u16::from_le_bytes([page[offset], page[offset + 1]]);
        let (lower, upper, special) = (at(12), at(14), at(16));
        at(18) == PAGE as u16 | 4
            && 24 <= lower
            && lower <= upper
            && upper <= special
            && special <= PAGE as u16
    };
    head.len() >= PAGE && head.chunks_exact(PAGE).take(4).all(is_page)
}
