//! Journals that are carried out again, when memory demands that contents are stored in between.

use bkfs::mounting::settings::Settings;
use bkfs::tree::item::{Attributes, Item};
use bkfs::tree::key::Key;
use bkfs::volume::operations::{Content, Operations, Piece};
use bytes::Bytes;

use crate::host::{Bucket, Host, noise};

/// What a replay of a mount with the least memory must store before its end, in bytes.
const MUCH: usize = 40 << 20;

/// Returns the operations of one file; with its attributes, if there are any.
fn operations(
    host: &Host,
    inode: u64,
    attributes: Option<Attributes>,
    content: Content,
) -> Operations {
    let items = attributes.map(|item| (Key::attributes(inode), Some(Item::Attributes(item))));
    let piece = Piece {
        inode,
        offset: 0,
        content,
    };
    Operations {
        items: items.into_iter().collect(),
        contents: vec![piece],
        next_inode: host.volume().inode_mark(),
        totals: host.volume().view.totals(),
        ..Operations::default()
    }
}

/// A commit that ended while a journal was captured had the attributes, so the journal leaves them
/// out. Its contents are of files in the tree.
#[test]
fn contents_whose_attributes_only_the_tree_has_are_stored_in_between() {
    let contents = [
        (100, Content::Data(Bytes::from(noise(7, 100)))),
        (100, Content::Zero(100)),
        (200_000, Content::Data(Bytes::from(noise(7, 3000)))),
        (200_000, Content::Zero(200_000)),
    ];
    for (length, content) in contents {
        let bucket = Bucket::new();
        let host = bucket.host();
        host.write("short", 0, noise(1, length));
        host.write("long", 0, noise(2, 10));
        host.finish().expect("unmounted");
        let settings = Settings {
            memory_bytes: 128 << 20,
            ..Settings::default()
        };
        let host = Host::with(bucket.memory.clone(), settings).expect("mounted");
        let (short, long) = (host.file("short"), host.file("long"));
        let grown = Attributes {
            size_bytes: MUCH as u64,
            ..host.attributes(long)
        };
        let first = operations(&host, short, None, content.clone());
        let much = Content::Data(Bytes::from(vec![3; MUCH]));
        let second = operations(&host, long, Some(grown), much);
        let volume = host.volume();
        let mut replay = volume.replay();
        host.run(replay.carry_out(&first)).expect("a small part");
        host.run(replay.carry_out(&second)).expect("much");
        host.run(replay.finish()).expect("counted");
        assert!(volume.all_dirty_bytes() < MUCH as u64, "nothing was stored");
        host.run(volume.commit()).expect("committed");
        host.finish().expect("unmounted");

        let host = bucket.host();
        let mut expected = noise(1, length);
        match &content {
            Content::Data(bytes) => expected[..bytes.len()].copy_from_slice(bytes),
            _ => expected.fill(0),
        }
        assert!(host.read("short") == Some(expected), "{length} {content:?}");
        assert!(host.read("long") == Some(vec![3; MUCH]));
    }
}
