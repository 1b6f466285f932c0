//! The operations that a world can be asked for, and their answers.
//!
//! Paths are made of few names, so that operations meet on the same files. Every generated
//! operation can be tried in any state.

use std::collections::BTreeMap;

use proptest::prelude::*;

/// A path below the root: up to three names of a small alphabet.
pub type Path = Vec<u8>;

/// One operation. Numbers are offsets, lengths and sizes in bytes; a `u8` after a length is the
/// seed of [`bytes`].
#[derive(Clone, Debug)]
pub enum Op {
    Create(Path),
    Mkdir(Path),
    Symlink(Path, Vec<u8>),
    Link(Path, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path, Mode),
    Write(Path, u64, usize, u8),
    Append(Path, usize, u8),
    Truncate(Path, u64),
    Punch(Path, u64, u64),
    ZeroRange(Path, u64, u64),
    Copy(Path, u64, Path, u64, u64),
    Chmod(Path, u32),
    SetXattr(Path, u8, usize),
    RemoveXattr(Path, u8),
    Read(Path, u64, usize),
    Sync,
    /// Closes and opens everything. An engine then starts from the bucket alone.
    Reopen,
    /// Makes an engine commit everything to the root.
    Commit,
    /// Syncs everything. For an engine, the machine is then gone, and another one takes over from
    /// the bucket alone.
    Crash,
}

/// The treatment of a rename's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Replace,
    NoReplace,
    Exchange,
}

/// The answer to an operation: the bytes read, or no bytes, or an errno.
pub type Answer = Result<Vec<u8>, i32>;

/// Everything that a user can see of an inode, except for times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub mode: u32,
    pub links: u32,
    pub size: u64,
    /// The bytes of a file, or the target of a link.
    pub contents: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The names in a directory.
    pub names: Vec<Vec<u8>>,
}

/// All paths, with their inodes.
pub type Dump = BTreeMap<Vec<u8>, Seen>;

/// A filesystem, or a model of one, that carries operations out.
pub trait World {
    fn apply(&mut self, op: &Op) -> Answer;
    fn dump(&mut self) -> Dump;
}

/// Returns the bytes that a write with this seed writes at this offset. They differ from those of
/// other offsets and seeds, and include runs of zeroes.
pub fn bytes(offset: u64, length: usize, seed: u8) -> Vec<u8> {
    let byte = |at: u64| match (at / 20_000) % 5 {
        0 if seed.is_multiple_of(3) => 0,
        _ => ((at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u8) ^ seed,
    };
    (offset..offset + length as u64).map(byte).collect()
}

fn path() -> impl Strategy<Value = Path> {
    proptest::collection::vec(0u8..4, 1..4)
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0u64..2_000,
        2 => 0u64..300_000,
        2 => (0u64..200).prop_map(|page| page * 16_384),
        1 => 0u64..5_000_000,
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 1usize..1_500,
        3 => 1usize..40_000,
        2 => (1usize..20).prop_map(|pages| pages * 16_384),
        1 => 1usize..2_500_000,
    ]
}

/// Generates any operation.
pub fn op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![
        Just(Mode::Replace),
        Just(Mode::NoReplace),
        Just(Mode::Exchange)
    ];
    prop_oneof![
        6 => path().prop_map(Op::Create),
        4 => path().prop_map(Op::Mkdir),
        1 => (path(), proptest::collection::vec(1u8..=255, 1..30))
            .prop_map(|(p, t)| Op::Symlink(p, t)),
        2 => (path(), path()).prop_map(|(p, q)| Op::Link(p, q)),
        2 => path().prop_map(Op::Unlink),
        2 => path().prop_map(Op::Rmdir),
        3 => (path(), path(), mode).prop_map(|(p, q, mode)| Op::Rename(p, q, mode)),
        8 => (path(), offset(), length(), any::<u8>())
            .prop_map(|(p, at, n, seed)| Op::Write(p, at, n, seed)),
        3 => (path(), length(), any::<u8>()).prop_map(|(p, n, seed)| Op::Append(p, n, seed)),
        3 => (path(), offset()).prop_map(|(p, size)| Op::Truncate(p, size)),
        2 => (path(), offset(), length()).prop_map(|(p, at, n)| Op::Punch(p, at, n as u64)),
        1 => (path(), offset(), length()).prop_map(|(p, at, n)| Op::ZeroRange(p, at, n as u64)),
        3 => (path(), offset(), path(), offset(), length())
            .prop_map(|(p, at, q, to, n)| Op::Copy(p, at, q, to, n as u64)),
        1 => (path(), 0u32..0o10000).prop_map(|(p, mode)| Op::Chmod(p, mode)),
        2 => (path(), 0u8..4, 0usize..400).prop_map(|(p, name, n)| Op::SetXattr(p, name, n)),
        1 => (path(), 0u8..4).prop_map(|(p, name)| Op::RemoveXattr(p, name)),
        4 => (path(), offset(), length()).prop_map(|(p, at, n)| Op::Read(p, at, n)),
        3 => Just(Op::Sync),
        1 => Just(Op::Reopen),
        1 => Just(Op::Commit),
        2 => Just(Op::Crash),
    ]
}

/// Returns the name for a number in a path.
pub fn name(number: u8) -> &'static [u8] {
    const NAMES: [&[u8]; 4] = [b"a", b"b.ibd", b"\xff\xfe not utf-8", b"d"];
    NAMES[usize::from(number) % NAMES.len()]
}

/// Returns the name of an extended attribute.
pub fn xattr_name(number: u8) -> Vec<u8> {
    format!("user.attribute-{number}").into_bytes()
}
