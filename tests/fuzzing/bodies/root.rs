//! The CBOR objects of the root's protocol: root, lists, commit records, heartbeats, journals and
//! their operations.

use super::{bounded, through_a_seal};
use bkfs::extents::MAX_FILE_BYTES;
use bkfs::fault;
use bkfs::root::chain::NonceEntry;
use bkfs::root::chain::RootMark;
use bkfs::root::form::{Form, LARGE_BYTES_MAX, SMALL_BYTES_MAX};
use bkfs::root::heartbeat::Beat;
use bkfs::root::journal::JournalEntry;
use bkfs::root::padding;
use bkfs::root::record::CommitRecord;
use bkfs::root::shard::{ListEntry, decode_shard, encode_shard};
use bkfs::root::snapshots::{PackEntry, QuarantineEntry, SnapshotEntry, TrashEntry};
use bkfs::root::state::{COUNTER_MAX, NAME_BYTES_MAX, Root};
use bkfs::tree::ItemKind;
use bkfs::volume::operations::{Content, Operations};
use bkfs_chunker::codec::{Effort, Encoder};
use bkfs_chunker::crypto::{BOX_OVERHEAD, Class, HEADER_LEN};
use std::fmt::Debug;

/// Bytes per byte of CBOR. A growing vector holds up to three times its elements, and the smallest
/// element of a map or list takes some dozen bytes in memory for each of its bytes.
const CBOR_FACTOR: usize = 96;

/// A root. Its successor keeps the invariants of every root.
pub fn root(input: &[u8]) {
    let payload = match input.len() <= SMALL_BYTES_MAX {
        true => through_a_seal(Class::Root, input),
        false => input.to_vec(),
    };
    let _ = bounded(CBOR_FACTOR, LARGE_BYTES_MAX, || {
        Root::decode_as(Form::Large, &payload)
    });
    let Ok(root) = bounded(CBOR_FACTOR, input.len(), || Root::decode(&payload)) else {
        return;
    };
    assert!(input.len() <= SMALL_BYTES_MAX);
    assert!(root.volumes.keys().all(|name| name.len() <= NAME_BYTES_MAX));
    let encoded = root.encode().expect("what was decoded can be encoded");
    assert_eq!(Root::decode(&encoded).as_ref(), Ok(&root));
    large(&root, &encoded);
    for volume in root.volumes.keys() {
        for session in root.ending_sessions(volume) {
            assert!(root.sessions.contains_key(&session));
        }
    }
    if let Some(chain) = &root.chain {
        let last = root.generation.saturating_sub(1);
        for generation in [0, chain.first.saturating_sub(1), chain.first, last] {
            let nonce = root.nonce;
            let mark = RootMark { generation, nonce };
            if generation < root.generation {
                let _ = chain.descent(mark);
            }
        }
        let _ = (chain.oldest(64), chain.parts_to_join(64));
    }
    let mut next = root.clone();
    next.follow([0x77; 16]);
    if root.generation < COUNTER_MAX {
        assert_eq!(next.check(), Ok(()), "the root has no successor");
    }
    assert!(next.generation > root.generation);
}

/// The same root in the large form, and what a large one makes of bytes that were not compressed.
fn large(root: &Root, cbor: &[u8]) {
    let root = Root {
        form: Form::Large,
        ..root.clone()
    };
    let encoded = root.encode().expect("what is small fits in a large root");
    let mut coded = Vec::new();
    Encoder::new().encode(cbor, Effort::None, &mut coded);
    for payload in [encoded, coded] {
        let decoded = Root::decode_as(Form::Large, &payload);
        assert_eq!(decoded.as_ref(), Ok(&root));
    }
}

/// The shard of a list. Every kind of list sees it.
pub fn list(input: &[u8]) {
    let payload = through_a_seal(Class::List, input);
    shard::<SnapshotEntry>(&payload);
    shard::<TrashEntry>(&payload);
    shard::<PackEntry>(&payload);
    shard::<QuarantineEntry>(&payload);
    shard::<NonceEntry>(&payload);
}

fn shard<T: ListEntry + PartialEq + Debug>(payload: &[u8]) {
    let decoded = bounded(CBOR_FACTOR, payload.len(), || decode_shard::<T>(payload));
    if let Ok(entries) = decoded {
        let encoded = encode_shard(entries.clone());
        assert_eq!(decode_shard(&encoded), Ok(entries));
    }
}

/// A commit record.
pub fn commit(input: &[u8]) {
    let payload = through_a_seal(Class::MetadataPack, input);
    let decoded = bounded(CBOR_FACTOR, input.len(), || CommitRecord::decode(&payload));
    if let Ok(record) = decoded {
        assert_eq!(CommitRecord::decode(&record.encode()), Ok(record));
    }
}

/// A heartbeat.
pub fn session(input: &[u8]) {
    let payload = through_a_seal(Class::Session, input);
    let decoded = bounded(CBOR_FACTOR, input.len(), || Beat::decode(&payload));
    if let Some(beat) = decoded {
        assert_eq!(Beat::decode(&beat.encode()), Some(beat));
    }
}

/// A journal entry, with and without padding, and the operations in it.
pub fn journal(input: &[u8]) {
    let payload = through_a_seal(Class::Journal, input);
    let decoded = bounded(CBOR_FACTOR, input.len(), || JournalEntry::decode(&payload));
    let Ok(entry) = decoded else {
        return;
    };
    assert!(1 <= entry.first && entry.first <= entry.last);
    assert_eq!(JournalEntry::decode(&entry.encode()).as_ref(), Ok(&entry));
    let padded = entry.encode_padded();
    let length = padded.len() + HEADER_LEN + BOX_OVERHEAD;
    assert_eq!(padding::class(length), length, "the length is of no class");
    assert_eq!(JournalEntry::decode(&padded).as_ref(), Ok(&entry));
    let packs = entry.packs();
    assert!(packs.own.len() + packs.relied_on.len() <= input.len());
    operations(&entry.operations);
}

/// The operations of a journal.
pub fn operations(input: &[u8]) {
    let decoded = bounded(CBOR_FACTOR, input.len(), || Operations::decode(input));
    let Ok(operations) = decoded else {
        return;
    };
    for (key, item) in &operations.items {
        assert!(key.parse().is_ok());
        let kind = key.kind().expect("a key that parses has a kind");
        assert!(!matches!(kind, ItemKind::Extent | ItemKind::Inline));
        if let Some(item) = item {
            assert_eq!(item.kind(), kind);
            let _ = fault::of_item(key, item, |name| name.len() as u64);
        }
    }
    for piece in &operations.contents {
        let end = piece.offset.checked_add(piece.content.length());
        assert!(end.is_some_and(|end| end <= MAX_FILE_BYTES));
        if let Content::Data(bytes) = &piece.content {
            assert!(bytes.len() <= input.len());
        }
    }
    let again = Operations::decode(&operations.encode());
    assert_eq!(again.as_ref(), Ok(&operations));
}
