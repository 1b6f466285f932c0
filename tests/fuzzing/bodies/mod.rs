//! The bodies: for each decoder of untrusted bytes, a function that takes any input and asserts
//! what must hold.
//!
//! This module owns the list of bodies and the means that they share. A body ends without a panic,
//! whatever its input is. What decodes obeys its bounds and encodes again to the same meaning.
//! Decoding holds at most a stated multiple of the input in memory, which [`bounded`] measures.
//!
//! The test target `fuzzing` and the targets of cargo-fuzz (tests/fuzz) run the same bodies.

pub mod archive;
pub mod pack;
pub mod root;
pub mod run;
pub mod seal;
pub mod text;
pub mod trace;
pub mod tree;

use bkfs_chunker::crypto::{Class, Features, Keyring, RepositoryId, Secrets, SlotName};
use bkfs_chunker::pack::PackName;

/// A body with its name.
#[derive(Clone, Copy)]
pub struct Body {
    /// The name, which is also that of its target of cargo-fuzz.
    pub name: &'static str,
    /// The function.
    pub run: fn(&[u8]),
}

const fn body(name: &'static str, run: fn(&[u8])) -> Body {
    Body { name, run }
}

/// All bodies.
pub const BODIES: &[Body] = &[
    body("object", seal::object),
    body("payload", seal::payload),
    body("config", seal::config),
    body("slot", seal::slot),
    body("secrets", seal::secrets),
    body("pack", pack::pack),
    body("footer", pack::footer),
    body("frame", pack::frame),
    body("index", pack::index),
    body("table", pack::table),
    body("run", run::run),
    body("run_directory", run::run_directory),
    body("run_block", run::run_block),
    body("run_fences", run::run_fences),
    body("run_packs", run::run_packs),
    body("segment", pack::segment),
    body("spool_file", pack::spool_file),
    body("node", tree::node),
    body("tree", tree::tree),
    body("item", tree::item),
    body("root", root::root),
    body("list", root::list),
    body("commit", root::commit),
    body("session", root::session),
    body("journal", root::journal),
    body("operations", root::operations),
    body("url", text::url),
    body("options", text::options),
    body("words", text::words),
    body("pattern", text::pattern),
    body("answer", text::answer),
    body("archive", archive::archive),
    body("trace", trace::trace),
];

/// Runs the body with this name.
///
/// # Panics
/// If there is none, or if the body finds a fault.
pub fn run(name: &str, input: &[u8]) {
    let found = BODIES.iter().find(|body| body.name == name);
    (found.expect("a body has this name").run)(input);
}

/// Bytes that any decoder may hold in addition: the text of an error, the first node of a map.
pub const BASE_BYTES: usize = 16 << 10;

/// Runs a decoder, and asserts that it held at most `factor` times `bytes`, and [`BASE_BYTES`], at
/// any one time. Memory that C code allocates is not counted.
pub fn bounded<T>(factor: usize, bytes: usize, decode: impl FnOnce() -> T) -> T {
    let mut result = None;
    let held = allocation_counter::measure(|| result = Some(decode()));
    let most = BASE_BYTES + factor * bytes;
    assert!(
        held.bytes_max <= most as u64,
        "the decoder held {} bytes for {bytes} bytes, and may hold {most}",
        held.bytes_max
    );
    result.expect("the closure has run")
}

/// The repository of the golden forms.
pub const REPOSITORY: RepositoryId = RepositoryId(*b"golden repositor");

/// The name of the golden packs and index objects.
pub const NAME: PackName = PackName {
    session: 0x0123_4567_89ab_cdef,
    sequence: 42,
    random: 0xfeed_beef,
};

/// The key of the checksums of tables.
pub const TABLE_KEY: [u8; 32] = [7; 32];

/// The name of the golden key slots.
pub const SLOT: SlotName = SlotName(42);

/// Returns the secrets of the golden forms.
pub fn known_secrets() -> Secrets {
    let mut secrets = Secrets::new([0x11; 32], [0x22; 32], [0x33; 32]);
    secrets.add_master([0x44; 32]);
    secrets
}

/// Returns the keyrings of the golden forms: not sealed, and sealed.
pub fn keyrings() -> [Keyring; 2] {
    [
        Keyring::unsealed(REPOSITORY, known_secrets()),
        Keyring::sealed(REPOSITORY, known_secrets()),
    ]
}

/// Returns a key under which an object of this class lies.
pub fn key_of(class: Class) -> String {
    match class {
        Class::Config => "config".to_owned(),
        Class::KeySlot => SLOT.key(),
        Class::Root => "root".to_owned(),
        Class::Session => "sessions/0000000000000001".to_owned(),
        Class::Journal => "journal/0000000000000002/0000000000000001/0000000000000001".to_owned(),
        Class::Fence => "fence/0000000000000001".to_owned(),
        Class::List | Class::Index | Class::DataPack | Class::MetadataPack | Class::Run => {
            NAME.key(class)
        }
    }
}

/// Seals a payload with fixed keys, opens the object again, and returns the payload that this gave.
pub fn through_a_seal(class: Class, payload: &[u8]) -> Vec<u8> {
    let key = key_of(class);
    let mut opened = Vec::new();
    for keyring in keyrings() {
        let object = keyring.seal_object(class, &key, Features::NONE, [0x88; 32], payload);
        opened = bounded(4, object.len(), || {
            keyring.open_object(class, &key, &object)
        })
        .expect("what was sealed opens");
        assert_eq!(opened, payload, "the seal changed the payload");
    }
    opened
}

/// Takes values from the front of an input. An input that ends gives zeroes.
pub struct Draw<'a>(pub &'a [u8]);

impl<'a> Draw<'a> {
    /// Returns the next `count` bytes, or as many as are left.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Returns the next number of `count` bytes, little-endian; at most 8 bytes.
    pub fn number(&mut self, count: usize) -> u64 {
        let mut number = [0; 8];
        let taken = self.bytes(count.min(8));
        number[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(number)
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        self.number(1) as u8
    }

    /// Returns the next string of bytes, which one byte of length precedes.
    pub fn string(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte());
        self.bytes(length)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
