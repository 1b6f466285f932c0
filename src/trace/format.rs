//! The bytes of a trace (FORMAT.md, "Traces").
//!
//! Owns the encoding, and the bounds that a trace obeys. A trace is an ordinary file: any writer of
//! its volume may have made it, so nothing in it is trusted. Pure.

use crate::tree::key::MAX_NAME_BYTES;
use crate::tree::varint::{self, Reader};

/// The unit of offsets and lengths, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// The most ranges of a trace.
pub const RANGES_MAX: usize = 1_000_000;

/// The most paths of a trace.
pub const PATHS_MAX: usize = 65_536;

/// The fewest bytes of a range.
const RANGE_BYTES: usize = 3;

/// The fewest bytes of a path and of the range that names it.
const NAMED_PATH_BYTES: usize = 2 + RANGE_BYTES;

/// The longest trace, in bytes.
pub const TRACE_BYTES_MAX: u64 = 64 << 20;

/// The longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 4095;

/// The end of the largest file, in pages.
const END_MAX: u64 = (1 << 63) / PAGE_BYTES;

/// The first bytes of a trace of this version.
const MAGIC: &[u8; 12] = b"bkfs-trace\x00\x01";

/// The first bytes of a trace of any version.
pub const MAGIC_OF_ALL: &[u8] = b"bkfs-trace\x00";

/// A range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// The file, as a position in the list of paths.
    pub file: u32,
    /// The first page.
    pub page: u64,
    /// Number of pages, at least 1.
    pub pages: u64,
}

/// Ranges in the order in which they were first read, and the files that they lie in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// Paths from the root of the volume, names joined by `/`, without one at the front.
    pub paths: Vec<Vec<u8>>,
    /// The ranges, by rank.
    pub touches: Vec<Touch>,
}

/// Why bytes are no trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// They are something else.
    #[error("this is not a trace")]
    NoTrace,
    /// A later version of bkfs wrote it.
    #[error("this trace has a newer version than this bkfs reads")]
    NewerVersion,
    /// There are too many bytes, paths or ranges.
    #[error("this trace is larger than a trace may be")]
    TooLarge,
    /// A path is none that a file can have.
    #[error("this trace names a path that no file can have")]
    Path,
    /// They end early, do not end, or have values out of range.
    #[error("this trace is damaged")]
    Malformed,
}

impl Trace {
    /// Returns the bytes of the trace. Ranges beyond [`RANGES_MAX`] are left out.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let text = |out: &mut Vec<u8>, bytes: &[u8]| {
            varint::write(out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        };
        varint::write(&mut out, self.paths.len() as u64);
        for path in &self.paths {
            text(&mut out, path);
        }
        let touches = &self.touches[..self.touches.len().min(RANGES_MAX)];
        varint::write(&mut out, touches.len() as u64);
        for touch in touches {
            varint::write(&mut out, u64::from(touch.file));
            varint::write(&mut out, touch.page);
            varint::write(&mut out, touch.pages);
        }
        out
    }

    /// Reads a trace.
    ///
    /// # Errors
    /// [`TraceError`] if the bytes are not exactly a trace of this version.
    pub fn decode(bytes: &[u8]) -> Result<Trace, TraceError> {
        if bytes.len() as u64 > TRACE_BYTES_MAX {
            return Err(TraceError::TooLarge);
        }
        let body = match bytes.strip_prefix(MAGIC) {
            Some(body) => body,
            None if bytes.starts_with(MAGIC_OF_ALL) && bytes.len() > MAGIC_OF_ALL.len() => {
                return Err(TraceError::NewerVersion);
            }
            None => return Err(TraceError::NoTrace),
        };
        let mut reader = Reader::new(body);
        let paths = paths(&mut reader, body.len())?;
        let touches = touches(&mut reader, body.len(), paths.len())?;
        let mut is_named = vec![false; paths.len()];
        for touch in &touches {
            is_named[touch.file as usize] = true;
        }
        match reader.is_empty() && !is_named.contains(&false) {
            true => Ok(Trace { paths, touches }),
            false => Err(TraceError::Malformed),
        }
    }

    /// Returns the bytes of all ranges, each as often as it occurs.
    pub fn total_bytes(&self) -> u64 {
        let pages = self.touches.iter().map(|touch| touch.pages);
        let pages = pages.fold(0u64, u64::saturating_add);
        pages.saturating_mul(PAGE_BYTES)
    }
}

/// Returns the names of a path; `None` if one of them is none that a file can have.
pub fn names_of(path: &[u8]) -> Option<Vec<&[u8]>> {
    let is_name = |name: &&[u8]| {
        !name.is_empty()
            && name.len() <= MAX_NAME_BYTES
            && *name != b"."
            && *name != b".."
            && !name.contains(&0)
    };
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    names.iter().all(is_name).then_some(names)
}

fn number(reader: &mut Reader<'_>) -> Result<u64, TraceError> {
    reader.number().ok_or(TraceError::Malformed)
}

fn text<'a>(reader: &mut Reader<'a>, most: usize) -> Result<&'a [u8], TraceError> {
    let length = reader.length(most).ok_or(TraceError::Malformed)?;
    reader.take(length).ok_or(TraceError::Malformed)
}

/// Reads a count of at most `most`, of which each takes at least `bytes_each` bytes of the rest of a
/// body. So the memory for as many is bounded by the length of the body.
fn count(
    reader: &mut Reader<'_>,
    body_bytes: usize,
    most: usize,
    bytes_each: usize,
) -> Result<usize, TraceError> {
    let count = number(reader)?;
    if count > most as u64 {
        return Err(TraceError::TooLarge);
    }
    let room = (body_bytes - reader.position()) / bytes_each;
    let count = count as usize;
    (count <= room)
        .then_some(count)
        .ok_or(TraceError::Malformed)
}

fn paths(reader: &mut Reader<'_>, body_bytes: usize) -> Result<Vec<Vec<u8>>, TraceError> {
    let count = count(reader, body_bytes, PATHS_MAX, NAMED_PATH_BYTES)?;
    let mut paths = Vec::with_capacity(count);
    for _ in 0..count {
        let path = text(reader, PATH_BYTES_MAX)?;
        if names_of(path).is_none() {
            return Err(TraceError::Path);
        }
        paths.push(path.to_vec());
    }
    Ok(paths)
}

fn touches(
    reader: &mut Reader<'_>,
    body_bytes: usize,
    files: usize,
) -> Result<Vec<Touch>, TraceError> {
    let count = count(reader, body_bytes, RANGES_MAX, RANGE_BYTES)?;
    let mut touches = Vec::with_capacity(count);
    for _ in 0..count {
        let (file, page, pages) = (number(reader)?, number(reader)?, number(reader)?);
        let end = page.checked_add(pages).filter(|end| *end <= END_MAX);
        match u32::try_from(file) {
            Ok(file) if (file as usize) < files && pages > 0 && end.is_some() => {
                touches.push(Touch { file, page, pages });
            }
            _ => return Err(TraceError::Malformed),
        }
    }
    Ok(touches)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trace() -> Trace {
        let touch = |file, page, pages| Touch { file, page, pages };
        Trace {
            paths: vec![b"db/t1.ibd".to_vec(), b"caf\xe9".to_vec()],
            touches: vec![touch(0, 0, 4), touch(1, 300, 1), touch(0, 4, 70_000)],
        }
    }

    #[test]
    fn the_bytes_are_frozen() {
        let bytes = trace().encode();
        let expected: &[u8] = b"bkfs-trace\x00\x01\x02\x09db/t1.ibd\x04caf\xe9\
            \x03\x00\x00\x04\x01\xac\x02\x01\x00\x04\xf0\xa2\x04";
        assert_eq!(bytes, expected);
        assert_eq!(Trace::decode(expected), Ok(trace()));
        assert_eq!(trace().total_bytes(), 70_005 * PAGE_BYTES);
    }

    #[test]
    fn a_trace_is_read_as_a_whole_or_not_at_all() {
        let bytes = trace().encode();
        for length in 0..bytes.len() {
            assert!(Trace::decode(&bytes[..length]).is_err(), "{length}");
        }
        let longer = [bytes.as_slice(), b"\0"].concat();
        assert_eq!(Trace::decode(&longer), Err(TraceError::Malformed));
        let mut newer = bytes;
        newer[11] = 2;
        assert_eq!(Trace::decode(&newer), Err(TraceError::NewerVersion));
        assert_eq!(Trace::decode(b"bkfs"), Err(TraceError::NoTrace));
    }

    #[test]
    fn no_path_leads_out_of_the_tree() {
        let of = |path: &[u8]| {
            let trace = Trace {
                paths: vec![path.to_vec()],
                touches: vec![named(0)],
            };
            Trace::decode(&trace.encode())
        };
        let long = [b'x'; MAX_NAME_BYTES + 1];
        let hostile: [&[u8]; 9] = [
            b"", b"/", b"/etc", b"a/../b", b"..", b"./a", b"a//b", b"a\0b", &long,
        ];
        for path in hostile {
            let refused = of(path);
            assert_eq!(refused, Err(TraceError::Path), "{}", path.escape_ascii());
        }
        assert_eq!(of(&[b'/'; 4096]), Err(TraceError::Malformed));
        assert!(of(b"a/..b/...").is_ok() && of(&long[1..]).is_ok());
    }

    #[test]
    fn lies_about_lengths_are_refused() {
        let with = |touch: Touch| {
            let mut trace = trace();
            trace.touches.push(touch);
            Trace::decode(&trace.encode())
        };
        let touch = |file, page, pages| Touch { file, page, pages };
        for touch in [
            touch(2, 0, 1),
            touch(u32::MAX, 0, 1),
            touch(0, 0, 0),
            touch(0, END_MAX, 1),
            touch(0, 1, u64::MAX),
            touch(0, 0, END_MAX + 1),
        ] {
            assert_eq!(with(touch), Err(TraceError::Malformed), "{touch:?}");
        }
        assert!(with(touch(1, END_MAX - 1, 1)).is_ok());
        // A count that no bytes follow, and one beyond the bound.
        let mut bytes = Trace::default().encode();
        bytes.pop();
        let counted = |count: u64| {
            let mut bytes = bytes.clone();
            varint::write(&mut bytes, count);
            Trace::decode(&bytes)
        };
        assert_eq!(counted(0), Ok(Trace::default()));
        assert_eq!(counted(RANGES_MAX as u64), Err(TraceError::Malformed));
        assert_eq!(counted(RANGES_MAX as u64 + 1), Err(TraceError::TooLarge));
    }

    #[test]
    fn a_million_ranges_are_one_trace_and_no_more_are_written() {
        let touches = (0..RANGES_MAX as u64 + 5).map(|page| Touch {
            file: 0,
            page,
            pages: 1,
        });
        let large = Trace {
            touches: touches.collect(),
            paths: vec![b"a".to_vec()],
        };
        let read = Trace::decode(&large.encode()).expect("is a trace");
        assert_eq!(read.touches.len(), RANGES_MAX);
        assert_eq!(read.touches, large.touches[..RANGES_MAX]);
    }

    #[test]
    fn a_path_costs_no_more_than_the_range_that_names_it() {
        let paths = |count: usize| Trace {
            paths: vec![b"a".to_vec(); count],
            touches: Vec::new(),
        };
        // As many as a file of 64 MiB has: they would take 2 GiB.
        let mut bytes = MAGIC.to_vec();
        varint::write(&mut bytes, 33_000_000);
        bytes.extend(b"\x01a".repeat(33_000_000));
        bytes.push(0);
        assert_eq!(Trace::decode(&bytes), Err(TraceError::TooLarge));
        let refused = Trace::decode(&paths(PATHS_MAX + 1).encode());
        assert_eq!(refused, Err(TraceError::TooLarge));
        for count in [1, 2, PATHS_MAX] {
            let mut trace = paths(count);
            assert_eq!(Trace::decode(&trace.encode()), Err(TraceError::Malformed));
            trace.touches = (1..count as u32).map(named).collect();
            assert_eq!(Trace::decode(&trace.encode()), Err(TraceError::Malformed));
            trace.touches.push(named(0));
            assert_eq!(Trace::decode(&trace.encode()), Ok(trace));
        }
    }

    fn named(file: u32) -> Touch {
        Touch {
            file,
            page: 0,
            pages: 1,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            paths in prop::collection::vec("[a-z]{1,9}(/[a-z]{1,9}){0,3}", 1..20),
            ranges in prop::collection::vec((0usize..20, 0u64..1 << 50, 1u64..1 << 40), 0..50),
        ) {
            let paths: Vec<Vec<u8>> = paths.into_iter().map(String::into_bytes).collect();
            let count = paths.len();
            let touches = ranges.into_iter().map(|(file, page, pages)| Touch {
                file: (file % count) as u32,
                page,
                pages,
            });
            let touches = touches.chain((0..count as u32).map(named));
            let trace = Trace { touches: touches.collect(), paths };
            prop_assert_eq!(Trace::decode(&trace.encode()), Ok(trace));
        }
    }
}
