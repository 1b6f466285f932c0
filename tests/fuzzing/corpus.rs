//! The corpora: what each body's mutations begin with.
//!
//! This module owns where the examples come from: the frozen bytes of tests/golden, what lies
//! sealed in them, and for texts and archives a few examples of its own. It owns no copy of frozen
//! bytes.

use crate::bodies::{NAME, REPOSITORY, SLOT, TABLE_KEY, key_of, keyrings};
use bkfs::root::journal::JournalEntry;
use bkfs::tree::Node;
use bkfs_chunker::codec::{Decoder, Effort};
use bkfs_chunker::crypto::{Class, Features, HEADER_LEN, Keyring, Slot};
use bkfs_chunker::id::{Kind, Prefix};
use bkfs_chunker::index::{self, TableBuilder};
use bkfs_chunker::pack::{Footer, PackName, TRAILER_LEN, Trailer};
use bkfs_chunker::run::{Block, LevelFilter, PackFrames, Record, RunWriter};
use bkfs_chunker::spool::file;
use bytes::Bytes;
use std::path::PathBuf;

/// The directory of the frozen bytes.
fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden/data")
}

/// Returns the frozen forms whose name begins so, in the order of their names.
fn frozen(prefix: &str) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(golden()).expect("tests/golden/data exists");
    let mut paths: Vec<PathBuf> = files
        .map(|file| file.expect("can be listed").path())
        .collect();
    paths.retain(|path| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with(prefix))
    });
    paths.sort();
    let read = |path: &PathBuf| std::fs::read(path).expect("a frozen form can be read");
    let found: Vec<_> = paths.iter().map(read).collect();
    assert!(!found.is_empty(), "no frozen form is named {prefix}…");
    found
}

/// Returns the examples of the body with this name.
///
/// # Panics
/// If no body has this name, or a frozen form cannot be read.
pub fn of(name: &str) -> Vec<Vec<u8>> {
    match name {
        "object" => ["config-", "slot", "object-", "index-", "pack-"]
            .map(frozen)
            .concat(),
        "payload" => payloads(),
        "config" => [frozen("config-"), opened(Class::Config, "config-")].concat(),
        "slot" => [frozen("slot"), opened(Class::KeySlot, "slot")].concat(),
        "secrets" => frozen("secrets.bin"),
        "pack" => frozen("pack-"),
        "footer" => parts_of_packs().0,
        "frame" => parts_of_packs().1,
        "index" => opened(Class::Index, "index-"),
        "table" => tables(),
        "run" => runs(),
        "run_directory" => directories(),
        "run_block" => [0, 1, 60]
            .map(|count| Block::encode(&records(count)))
            .to_vec(),
        "run_fences" => [0, 1, 20].map(fences).to_vec(),
        "run_packs" => parts_of_runs(),
        "segment" => frozen("segment.bin"),
        "spool_file" => spool_files(),
        "node" => frozen("node-"),
        "tree" => trees(),
        "item" => items(),
        "root" => roots(),
        "list" => frozen("list-"),
        "commit" => frozen("commit-"),
        "session" => frozen("heartbeat"),
        "journal" => frozen("journal"),
        "operations" => operations(),
        "url" => texts(URLS),
        "options" => texts(OPTIONS),
        "words" => [texts(WORDS), words_of(&["names.txt", "ids.txt"])].concat(),
        "pattern" => patterns(),
        "answer" => texts(ANSWERS),
        "archive" => archives(),
        "trace" => frozen("trace"),
        other => panic!("the body {other} has no corpus"),
    }
}

fn payloads() -> Vec<Vec<u8>> {
    let example = |class: &Class| [&[*class as u8 - 1][..], &[0; 32], b"a payload"].concat();
    Class::ALL.iter().map(example).collect()
}

/// Returns the payloads of frozen objects.
fn opened(class: Class, prefix: &str) -> Vec<Vec<u8>> {
    let key = key_of(class);
    let payload = |object: &Vec<u8>| {
        let keyrings = keyrings();
        let opened = keyrings
            .iter()
            .find_map(|keyring| keyring.open_object(class, &key, object).ok());
        opened.expect("a frozen object opens")
    };
    frozen(prefix).iter().map(payload).collect()
}

/// Returns the decoded footers and the payloads of the frames of the frozen packs.
fn parts_of_packs() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut footers, mut frames) = (Vec::new(), Vec::new());
    for object in frozen("pack-") {
        for keyring in keyrings() {
            take_apart(&keyring, &object, &mut footers, &mut frames);
        }
    }
    assert!(footers.len() >= 4 && frames.len() >= 8);
    (footers, frames)
}

fn take_apart(
    keyring: &Keyring,
    object: &[u8],
    footers: &mut Vec<Vec<u8>>,
    frames: &mut Vec<Vec<u8>>,
) {
    let header = object.first_chunk::<HEADER_LEN>().expect("a header");
    let key = NAME.key(Class::DataPack);
    let Ok(opener) = keyring.object_opener(Class::DataPack, &key, header) else {
        return;
    };
    let trailer = Trailer::decode(object).expect("a trailer");
    let end = object.len() - TRAILER_LEN;
    let sealed = &object[end - trailer.footer_length as usize..end];
    let length = object.len() as u64;
    let footer = Footer::open(&opener, &trailer, sealed, length, &mut Decoder::new());
    let footer = footer.expect("a footer");
    footers.push(footer.bytes().to_vec());
    for entry in footer.frames() {
        let range = entry.range().start as usize..entry.range().end as usize;
        let mut room = Vec::new();
        let payload = opener.open_box(u32::from(entry.number), &object[range], &mut room);
        frames.push(payload.expect("a frame").to_vec());
    }
}

fn tables() -> Vec<Vec<u8>> {
    let table = |payload: &Vec<u8>| {
        let mut builder = TableBuilder::new();
        let records = index::decode(payload, &mut Decoder::new()).expect("an index object");
        records.into_iter().for_each(|record| builder.push(record));
        builder.finish(&TABLE_KEY.into())
    };
    opened(Class::Index, "index-").iter().map(table).collect()
}

/// Returns sorted records of packs 0 and 1.
fn records(count: u8) -> Vec<Record> {
    let record = |number| Record {
        prefix: Prefix([number; Prefix::LEN]),
        pack: u32::from(number % 2),
        frame: 3,
        slot: 4,
        kind: Kind::Chunk,
    };
    (0..count).map(record).collect()
}

/// Returns the record of a pack, and its name.
fn pack_of_a_run(sequence: u32) -> PackFrames {
    PackFrames {
        name: PackName { sequence, ..NAME },
        class: Class::DataPack,
        length: 1000,
        header: [5; HEADER_LEN],
        frames: vec![100; sequence as usize],
    }
}

/// Returns runs of both keyrings. No program writes any yet, so none are frozen.
fn runs() -> Vec<Vec<u8>> {
    let run = |keyring: Keyring| {
        let key = NAME.key(Class::Run);
        let sealer = keyring.object_sealer(Class::Run, &key, Features::NONE, [0x77; 32]);
        let range = Prefix([0; 16])..=Prefix([0xff; 16]);
        let names = [0, 1].map(|sequence| pack_of_a_run(sequence).name);
        let effort = Effort::Level(1);
        let mut writer = RunWriter::new(sealer, Class::DataPack, range, names, effort);
        for record in records(60) {
            writer.push(record).expect("in order");
        }
        let mut packs = [0, 1].map(pack_of_a_run);
        packs.sort_by_key(|pack| PackFrames::place_of(&pack.name));
        for pack in &packs {
            writer.push_pack(pack).expect("in order");
        }
        writer.finish().expect("small");
        writer.take()
    };
    keyrings().map(run).to_vec()
}

fn directories() -> Vec<Vec<u8>> {
    let directories = runs()
        .into_iter()
        .flat_map(|run| keyrings().map(|keyring| crate::bodies::run::directory(&keyring, &run)));
    let encoded = directories
        .flatten()
        .map(|directory| directory.contents().encode());
    let encoded: Vec<_> = encoded.collect();
    assert_eq!(encoded.len(), 2, "one of each keyring");
    encoded
}

fn fences(count: u64) -> Vec<u8> {
    let heads = (0..count).flat_map(|head| (head << 56).to_le_bytes());
    let lengths = (0..count).flat_map(|length| (length as u32 * 10).to_le_bytes());
    let counted = (count as u32).to_le_bytes().into_iter();
    counted.chain(heads).chain(lengths).collect()
}

/// Returns names, pack records and filters.
fn parts_of_runs() -> Vec<Vec<u8>> {
    let names = [0, 1, 2].map(|sequence| pack_of_a_run(sequence).name.to_bytes());
    let pack = pack_of_a_run(3);
    let record = [
        &pack.name.to_bytes()[..],
        &[pack.class as u8],
        &pack.length.to_le_bytes(),
        &pack.header,
        &3u32.to_le_bytes(),
        &[100, 0, 0, 0].repeat(3),
    ];
    let filter = LevelFilter::encode(records(60).iter().map(|record| record.prefix));
    vec![names.concat(), record.concat(), filter]
}

fn spool_files() -> Vec<Vec<u8>> {
    let whole = |object: Vec<u8>| {
        let object = Bytes::from(object);
        let trailer = file::trailer(object.len() as u64, &file::digest([&object]));
        [object, trailer].concat()
    };
    let mut files: Vec<_> = frozen("object-").into_iter().map(whole).collect();
    files.push(file::name(0x1f, &NAME.key(Class::DataPack)).into_bytes());
    files.push(file::unfinished(0x1f).into_bytes());
    files
}

/// Returns trees of one node, and one of two levels. Each node is preceded by its length.
fn trees() -> Vec<Vec<u8>> {
    let mut trees: Vec<Vec<u8>> = frozen("node-")
        .iter()
        .map(|node| planted(&[node]))
        .collect();
    let leaf = frozen("node-leaf.bin").remove(0);
    let leaf = Node::decode(Bytes::from(leaf)).expect("the frozen leaf is read");
    let entry = |index: usize| {
        (
            leaf.key(index).as_bytes().to_vec(),
            leaf.value(index).to_vec(),
        )
    };
    let half = leaf.len() / 2;
    let left: Vec<_> = (0..half).map(entry).collect();
    let right: Vec<_> = (half..leaf.len()).map(entry).collect();
    // The body stores each node under two ids, the second of which is its number in the store.
    let child = |number: u8, entries: &[(Vec<u8>, Vec<u8>)]| {
        let value = [&[number; 32][..], &[entries.len() as u8]].concat();
        (entries[0].0.clone(), value)
    };
    let root = |first: u8| node(1, &[child(first, &left), child(first + 2, &right)]);
    let above = node(2, &[child(2, &[left.clone(), right.clone()].concat())]);
    let (low, high) = (node(0, &left), node(0, &right));
    trees.push(planted(&[&root(2), &low, &high]));
    trees.push(planted(&[&above, &root(4), &low, &high]));
    trees
}

fn planted(nodes: &[&[u8]]) -> Vec<u8> {
    let with_length = |node: &&[u8]| [&(node.len() as u16).to_le_bytes()[..], *node].concat();
    nodes.iter().map(with_length).collect::<Vec<_>>().concat()
}

/// Returns the encoding of a node of fewer than 128 short entries whose keys share no prefix.
fn node(level: u8, entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let (first, last) = (&entries[0].0, &entries[entries.len() - 1].0);
    let prefix = first
        .iter()
        .zip(last)
        .take_while(|(one, other)| one == other)
        .count();
    let mut bytes = vec![1, level, entries.len() as u8, prefix as u8];
    bytes.extend_from_slice(&first[..prefix]);
    bytes.extend(entries.iter().map(|(key, _)| (key.len() - prefix) as u8));
    bytes.extend(entries.iter().map(|(_, value)| value.len() as u8));
    bytes.extend(entries.iter().flat_map(|(key, _)| &key[prefix..]));
    bytes.extend(entries.iter().flat_map(|(_, value)| value));
    bytes
}

/// Returns keys with their values: one byte of length, the key, the value.
fn items() -> Vec<Vec<u8>> {
    let text = frozen("items.txt").remove(0);
    let text = String::from_utf8(text).expect("frozen text is UTF-8");
    let lines: Vec<&str> = text.lines().collect();
    let item = |pair: &[&str]| {
        let (key, value) = (bytes_of(pair[0]), bytes_of(pair[1].trim()));
        [vec![key.len() as u8], key, value].concat()
    };
    lines.chunks_exact(2).map(item).collect()
}

fn bytes_of(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(digits, 16).expect("hexadecimal digits")
    };
    pairs.map(byte).collect()
}

/// Returns the frozen roots, and one that counts its generation to the end.
fn roots() -> Vec<Vec<u8>> {
    let mut roots = frozen("root");
    let plain = frozen("root.bin").remove(0);
    let generation = [1, 0x19, 0x04, 0xd2];
    let found = plain.windows(4).position(|bytes| bytes == generation);
    let at = found.expect("the frozen root is of generation 1234");
    let last = [&[1, 0x1b][..], &[0xff; 8]].concat();
    roots.push([&plain[..at], &last, &plain[at + 4..]].concat());
    roots
}

fn operations() -> Vec<Vec<u8>> {
    let entries = frozen("journal");
    let operations = |bytes: &Vec<u8>| JournalEntry::decode(bytes).expect("a journal").operations;
    entries.iter().map(operations).collect()
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn words_of(names: &[&str]) -> Vec<Vec<u8>> {
    let words = |name: &&str| {
        let text = String::from_utf8_lossy(&frozen(name).remove(0)).into_owned();
        let last = |line: &str| {
            line.rsplit(' ')
                .next()
                .unwrap_or_default()
                .as_bytes()
                .to_vec()
        };
        text.lines().map(last).collect::<Vec<_>>()
    };
    names.iter().flat_map(words).collect()
}

const URLS: &[&str] = &[
    "s3://bucket/a/prefix",
    "gs://bucket",
    "az://container/prefix/",
    "file:///srv/back%20up",
    "file://localhost/srv",
    "./directory",
    "/srv/bucket",
    "bucket",
    "s3://user:word@bucket/prefix",
    "user:word@bucket",
    "https://bucket.example/prefix",
    "..",
];

const OPTIONS: &[&str] = &[
    "ro,noatime,allow_other,uid=1000,gid=100,umask=022",
    "volume=db,cache_size=2G,memory=256M,close=durable,compression=3,timeout=60",
    "fsync=local,spool_size=2G,upload_rate=2M,download_rate=1G,drain=30,scrub=5M",
    "snapshot=latest,wait,accept_loss,dedup=private,endpoint=http://127.0.0.1:9000,region=eu-1",
    "key=00000000000000aa,password_file=/etc/word,cache_dir=\"/a,b\",compression=auto",
    "volume=with\\,comma\\\\,x-systemd.automount,_netdev,user,nosuid",
    "timeout=4294967295,drain=4294967295",
    "timeout=18446744073709551615",
    "context=\"system_u:object_r:a,b\",allow_suid,allow_dev,relatime\nrw,suid",
];

const WORDS: &[&str] = &[
    "512M",
    "10GiB",
    "0",
    "12h30d8w6m2y",
    "0s",
    "latest",
    "@2026-11-20T10:00:00.5Z",
    "00000000000000aa",
    "COMPLIANCE",
    "governance",
    "a/b/c",
    "/docs//letter.txt",
    "day\u{1b}[31m",
    "\u{202e}cod.exe",
    "x\u{9b}",
    ".snapshots/day1/file",
];

const ANSWERS: &[&str] = &[
    "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>not here</Message></Error>",
    "<Error><Code>AuthorizationHeaderMalformed</Code><Region> eu-1 </Region></Error>",
    "{\"error\": {\"code\": 403, \"message\": \"denied\"}}",
    "upstream connect error",
];

fn patterns() -> Vec<Vec<u8>> {
    let pairs: &[(&str, &str)] = &[
        ("*.rs", "main.rs"),
        ("**/target/**", "a/target/b/c"),
        ("[a-z]?[!0-9]\\*", "bä*"),
        ("a**b*c[", "axxbxc["),
        ("[]-]x[a-", "]x"),
    ];
    let example = |(pattern, text): &(&str, &str)| {
        let length = [pattern.len() as u8];
        [&[0][..], &length[..], pattern.as_bytes(), text.as_bytes()].concat()
    };
    pairs.iter().map(example).collect()
}

/// Returns descriptions of archives, as the body reads them.
fn archives() -> Vec<Vec<u8>> {
    let text = |bytes: &[u8]| [&[bytes.len() as u8][..], bytes].concat();
    let numbers = |size: &[u8], seconds: i64, nanoseconds: u32| {
        let seconds = seconds.to_le_bytes();
        let mode = 0o644_u16.to_le_bytes();
        let ids = [1000_u32.to_le_bytes(), 100_u32.to_le_bytes()].concat();
        let rest = [nanoseconds.to_le_bytes(), 0x0801_u32.to_le_bytes()].concat();
        [&mode[..], &ids, size, &seconds, &rest].concat()
    };
    let large = numbers(&(1_u64 << 40).to_le_bytes(), 1_700_000_000, 5);
    let small = numbers(&700_u16.to_le_bytes(), -2, 250_000_000);
    let xattrs = [
        &[2][..],
        &text(b"user.note"),
        &text(b"va=lue\n"),
        &text(b"user.b"),
        &text(b""),
    ]
    .concat();
    let file = [&[0x10][..], &small, &text(b"a"), &text(b"file"), &xattrs].concat();
    let directory = [&[0x11][..], &small, &text(b"a"), &text(&[b'd'; 200]), &[0]].concat();
    let link = [
        &[0x12][..],
        &small,
        &text(b"a"),
        &text(b"l"),
        &[0],
        &text(b"../target"),
    ]
    .concat();
    let device = [&[0x13][..], &small, &text(b"a"), &text(b"null"), &[0]].concat();
    let whole = [&[0x00][..], &large, &text(b"large"), &xattrs].concat();
    let all = [file.clone(), directory.clone(), link, device, whole.clone()].concat();
    let odd = |name: &[u8]| {
        let path = [text(b"a"), text(b"odd")].concat();
        [
            &[0x10][..],
            &small,
            &path,
            &[1],
            &text(name),
            &text(b"value"),
        ]
        .concat()
    };
    let (equals, zero) = (odd(b"user.a=b%c"), odd(b"user.a\0b"));
    vec![file, directory, whole, all, equals, zero]
}

#[test]
fn the_frozen_slots_open_by_their_name() {
    for slot in frozen("slot") {
        assert!(Slot::open(REPOSITORY, SLOT, &slot).is_ok());
    }
}
