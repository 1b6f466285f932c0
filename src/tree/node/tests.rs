//! Nodes: encoding, search in place, hostile bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn build(level: u8, entries: &Entries) -> Bytes {
    let mut builder = NodeBuilder::new(level);
    for (key, value) in entries {
        let split = key.len() / 2;
        builder.push(&key[..split], &key[split..], value);
    }
    Bytes::from(builder.finish())
}

fn entries() -> impl Strategy<Value = Entries> {
    let key = (
        proptest::sample::select(vec![&b""[..], b"aaaa", b"aaab", b"b"]),
        proptest::collection::vec(0u8..4, 0..5),
    )
        .prop_map(|(head, tail)| [head, &tail].concat());
    proptest::collection::btree_map(key, proptest::collection::vec(any::<u8>(), 0..9), 0..40)
}

fn id(number: u8) -> Id {
    Id([number; 32])
}

#[test]
fn bytes_are_frozen() {
    let leaf = Entries::from([
        (b"aab".to_vec(), b"1".to_vec()),
        (b"aac7".to_vec(), b"".to_vec()),
    ]);
    assert_eq!(
        hex::encode(build(0, &leaf)),
        "01000202616101020100626337".to_owned() + "31"
    );
    assert_eq!(hex::encode(build(0, &Entries::new())), "01000000");
    let child = write_child(Child {
        id: id(0xee),
        items: 300,
    });
    let parent = Entries::from([(b"k".to_vec(), child)]);
    let expected = "010101016b0022".to_owned() + &"ee".repeat(32) + "ac02";
    assert_eq!(hex::encode(build(1, &parent)), expected);
}

#[test]
fn order_and_canonical_form_are_demanded() {
    let cases: [(&str, &[u8]); 9] = [
        ("empty", &[]),
        ("form", &[2, 0, 0, 0]),
        ("level", &[1, MAX_LEVEL + 1, 0, 0]),
        ("interior without children", &[1, 1, 0, 0]),
        ("prefix of nothing", &[1, 0, 0, 1, b'a']),
        ("equal keys", &[1, 0, 2, 0, 1, 1, 0, 0, b'a', b'a']),
        ("falling keys", &[1, 0, 2, 0, 1, 1, 0, 0, b'b', b'a']),
        ("short prefix", &[1, 0, 1, 0, 1, 0, b'a']),
        ("bytes after the end", &[1, 0, 1, 1, b'a', 0, 0, 9]),
    ];
    for (what, bytes) in cases {
        assert!(
            Node::decode(Bytes::copy_from_slice(bytes)).is_err(),
            "{what}"
        );
    }
    assert!(Node::decode(Bytes::from_static(&[1, 0, 1, 1, b'a', 0, 0])).is_ok());
    assert!(Node::decode(Bytes::from(vec![1; MAX_NODE_BYTES + 1])).is_err());
    // The decoder must reject a count that the bytes cannot hold, instead of reserving memory for
    // it.
    assert!(Node::decode(Bytes::from_static(&[1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f, 0])).is_err());
}

#[test]
fn the_largest_entries_fit() {
    let mut builder = NodeBuilder::new(0);
    let small = vec![0; MAX_NODE_COST_BYTES - MAX_KEY_BYTES];
    builder.push(&[], b"a", &small);
    builder.push(&[], &[b'b'; MAX_KEY_BYTES], &vec![1; MAX_VALUE_BYTES]);
    let node = Node::decode(Bytes::from(builder.finish())).unwrap();
    assert_eq!(node.value(1).len(), MAX_VALUE_BYTES);
}

#[test]
fn children_are_read_and_counted() {
    let value = |number, items| {
        write_child(Child {
            id: id(number),
            items,
        })
    };
    let node = Node::decode(build(
        1,
        &Entries::from([
            (b"a".to_vec(), value(1, 5)),
            (b"b".to_vec(), value(2, 1000)),
        ]),
    ))
    .unwrap();
    assert_eq!(node.items(), 1005);
    assert_eq!(
        node.child(1),
        Some(Child {
            id: id(2),
            items: 1000
        })
    );
    assert!(Node::decode(build(1, &Entries::from([(b"a".to_vec(), value(1, 0))]))).is_err());
    assert!(Node::decode(build(1, &Entries::from([(b"a".to_vec(), vec![0; 32])]))).is_err());
}

proptest! {
    #[test]
    fn nodes_come_back(entries in entries()) {
        let node = Node::decode(build(0, &entries)).unwrap();
        prop_assert_eq!(node.items(), entries.len() as u64);
        let read: Entries = (0..node.len())
            .map(|index| (node.key(index).as_bytes().to_vec(), node.value_bytes(index).to_vec()))
            .collect();
        prop_assert_eq!(read, entries);
    }

    #[test]
    fn searching_agrees_with_a_sorted_map(entries in entries(), probes in entries()) {
        let node = Node::decode(build(0, &entries)).unwrap();
        for key in probes.keys().chain(entries.keys()) {
            let below = entries.range::<Vec<u8>, _>(..key).count();
            prop_assert_eq!(node.lower_bound(key), below);
            prop_assert_eq!(node.find(key), entries.contains_key(key).then_some(below));
            let not_above = below + usize::from(entries.contains_key(key));
            prop_assert_eq!(node.floor(key), not_above.saturating_sub(1));
            for (index, other) in entries.keys().enumerate() {
                prop_assert_eq!(node.compare(index, key), other.cmp(key));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Node::decode(Bytes::from(bytes));
    }

    #[test]
    fn damaged_nodes_decode_to_themselves_or_not_at_all(
        entries in entries(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = build(0, &entries).to_vec();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(node) = Node::decode(Bytes::from(bytes.clone())) {
            let mut builder = NodeBuilder::new(node.level());
            for index in 0..node.len() {
                builder.push(node.prefix(), node.suffix(index), node.value(index));
            }
            prop_assert_eq!(builder.finish(), bytes);
        }
    }
}
