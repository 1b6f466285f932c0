//! The trees that a hostile writer makes.

use bkfs::root::snapshots::SnapshotEntry;
use bkfs::tree::item::{Attributes, Extent, Item, Target};
use bkfs::tree::key::Key;
use bkfs::volume::ROOT_INODE;
use bkfs_chunker::id::{Id, Kind};

use crate::forge::{DIRECTORY, FILE, Forger, HONEST, Items, VOLUME, attributes, child};

/// The hostile snapshot, and the honest one before it.
pub const HOSTILE: &str = "hostile";
pub const CLEAN: &str = "clean";

/// The exit code of a command that walks over all of a forgery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// Nothing is wrong with it: 0.
    Whole,
    /// Something is left out, and named: 3.
    LeftOut,
    /// It is damaged, and named: 13.
    Damaged,
    /// Names and attributes are whole: 0. Contents are damaged or out of bounds: 3 or 13.
    Contents,
    /// Not every command needs what is wrong: 0, 3 or 13.
    Any,
}

/// One forgery.
pub struct Forgery {
    pub name: &'static str,
    /// Makes the tree.
    pub tree: fn(&Forger) -> Id,
    /// Changes the repository after the snapshot of the tree was made.
    pub after: fn(&Forger),
    pub walked: Walked,
    /// A part of the report of `check`. Empty if nothing is wrong.
    pub check: &'static str,
    /// True if that part is a note: an honest writer can make the tree, and nothing is wrong.
    pub is_noted: bool,
}

const fn forgery(
    name: &'static str,
    tree: fn(&Forger) -> Id,
    walked: Walked,
    check: &'static str,
) -> Forgery {
    Forgery {
        name,
        tree,
        after: |_| {},
        walked,
        check,
        is_noted: false,
    }
}

const fn noted(
    name: &'static str,
    tree: fn(&Forger) -> Id,
    walked: Walked,
    check: &'static str,
) -> Forgery {
    Forgery {
        is_noted: true,
        ..forgery(name, tree, walked, check)
    }
}

const BAD_NAME: &str = "no file can have";

pub const FORGERIES: &[Forgery] = &[
    forgery(
        "dot-dot",
        |forger| named(forger, b".."),
        Walked::LeftOut,
        BAD_NAME,
    ),
    forgery(
        "dot",
        |forger| named(forger, b"."),
        Walked::LeftOut,
        BAD_NAME,
    ),
    forgery(
        "empty",
        |forger| named(forger, b""),
        Walked::LeftOut,
        "malformed suffix",
    ),
    forgery(
        "absolute",
        |forger| named(forger, b"/tmp/escaped"),
        Walked::LeftOut,
        BAD_NAME,
    ),
    forgery(
        "slash",
        |forger| named(forger, b"a/../../../escaped"),
        Walked::LeftOut,
        BAD_NAME,
    ),
    forgery(
        "nul",
        |forger| named(forger, b"a\0b"),
        Walked::LeftOut,
        BAD_NAME,
    ),
    forgery(
        "long",
        |forger| named(forger, &[b'n'; 300]),
        Walked::LeftOut,
        "malformed suffix",
    ),
    forgery("very-long", very_long, Walked::Damaged, "node"),
    forgery("controls", controls, Walked::Whole, ""),
    forgery(
        "twice",
        twice,
        Walked::LeftOut,
        "not at its place in the directory",
    ),
    forgery("cycle", cycle, Walked::LeftOut, "cycle"),
    forgery(
        "second-name",
        second_name,
        Walked::LeftOut,
        "more than one name",
    ),
    forgery("lattice", lattice, Walked::LeftOut, "more than one name"),
    forgery(
        "root-below",
        |forger| leads_to(forger, 1, true),
        Walked::LeftOut,
        "inode 1 ",
    ),
    forgery(
        "dangling",
        |forger| leads_to(forger, 999, false),
        Walked::LeftOut,
        "inode 999",
    ),
    forgery(
        "inode-0",
        |forger| leads_to(forger, 0, true),
        Walked::LeftOut,
        "inode 0 ",
    ),
    forgery(
        "inode-special",
        |forger| leads_to(forger, 6, true),
        Walked::LeftOut,
        "inode 6 ",
    ),
    forgery(
        "inode-high",
        |forger| leads_to(forger, 1 << 48 | 70, true),
        Walked::LeftOut,
        "inode 281474976710726",
    ),
    forgery(
        "inode-highest",
        |forger| leads_to(forger, u64::MAX, true),
        Walked::LeftOut,
        "inode 18446744073709551615",
    ),
    forgery(
        "size-2^63",
        |forger| sized(forger, 1 << 63),
        Walked::Contents,
        "bytes",
    ),
    forgery(
        "size-2^64-1",
        |forger| sized(forger, u64::MAX),
        Walked::Contents,
        "bytes",
    ),
    forgery("beyond", beyond, Walked::Any, "beyond"),
    forgery("nested-extents", nested_extents, Walked::Any, "overlap"),
    forgery("wrong-kinds", wrong_kinds, Walked::Contents, "holds"),
    forgery("segments", segments, Walked::Contents, "holds"),
    forgery("unsorted", unsorted, Walked::Damaged, "order"),
    forgery(
        "wrong-depth",
        wrong_depth,
        Walked::Damaged,
        "does not match the entry of its parent",
    ),
    forgery(
        "tall",
        tall,
        Walked::Damaged,
        "does not match the entry of its parent",
    ),
    forgery(
        "file-and-directory",
        file_and_directory,
        Walked::Any,
        "of another type",
    ),
    forgery("no-type", no_type, Walked::Any, "type"),
    noted(
        "many-xattrs",
        many_xattrs,
        Walked::Any,
        "restore leaves out the extended attributes of inode 100",
    ),
    forgery(
        "system-xattr",
        system_xattr,
        Walked::Any,
        "inode 100 has extended attributes that no file can have",
    ),
    forgery(
        "nul-xattr",
        nul_xattr,
        Walked::Any,
        "inode 100 has extended attributes that no file can have",
    ),
    forgery("large-xattr", large_xattr, Walked::Any, "malformed"),
    forgery("bad-link", bad_link, Walked::Any, "malformed"),
    forgery("bad-item", bad_item, Walked::LeftOut, "malformed"),
    forgery("devices", devices, Walked::Any, ""),
    noted("deep", deep, Walked::LeftOut, "its path is longer than"),
    Forgery {
        name: "lists",
        tree: |forger| forger.tree(&Items::new(forger)),
        after: hostile_lists,
        walked: Walked::Whole,
        check: "",
        is_noted: false,
    },
];

/// Returns the honest tree, which is stored before each hostile one.
pub fn honest(forger: &Forger) -> Id {
    forger.tree(&Items::new(forger))
}

/// Returns a tree with a file of this name in its root directory.
fn named(forger: &Forger, name: &[u8]) -> Id {
    let mut items = Items::new(forger);
    items.file(forger, ROOT_INODE, name, 100);
    forger.tree(&items)
}

/// Returns a node of its own making with a name that no tree takes.
fn very_long(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.file(forger, ROOT_INODE, &[b'n'; 4096], 100);
    forger.node(0, &items.entries())
}

fn controls(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    let names: [&[u8]; 8] = [
        b"\x1b[31mred\x1b[0m",
        b"line\nbkfs: everything is well",
        b"\rover",
        b"\x07bell\x7f",
        "\u{202e}cod.exe".as_bytes(),
        "\u{2066}isolated\u{2069}".as_bytes(),
        "\u{9b}31mred".as_bytes(),
        b"\xff\x9b31m",
    ];
    for (inode, name) in (100..).zip(names) {
        items.file(forger, ROOT_INODE, name, inode);
    }
    let link = b"link\x1b[2J";
    items.name(forger, ROOT_INODE, link, 200, libc::S_IFLNK);
    items.inode(200, attributes(libc::S_IFLNK | 0o777, 7));
    items.raw(Key::symlink(200), b"to\x1b[2J\n".to_vec());
    items.directory(forger, ROOT_INODE, b"dir\x1b]0;title\x07", 201);
    items.file(forger, 201, b"in\tside", 202);
    forger.tree(&items)
}

/// Returns a link and a directory of the same name. The directory leads through the link if one is
/// made after the other.
fn twice(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    let cookie = forger.cookie(b"door");
    items.name(forger, ROOT_INODE, b"door", 100, libc::S_IFLNK);
    items.inode(100, attributes(libc::S_IFLNK | 0o777, 2));
    items.raw(Key::symlink(100), b"..".to_vec());
    items.name_at(cookie + 1, ROOT_INODE, b"door", 101, DIRECTORY);
    items.inode(101, attributes(DIRECTORY, 1));
    items.file(forger, 101, b"escaped", 102);
    forger.tree(&items)
}

fn cycle(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.directory(forger, ROOT_INODE, b"down", 100);
    items.directory(forger, 100, b"further", 101);
    items.name(forger, 101, b"up", 100, DIRECTORY);
    // A cycle that nothing leads to.
    items.directory(forger, 111, b"one", 110);
    items.directory(forger, 110, b"other", 111);
    forger.tree(&items)
}

fn second_name(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.directory(forger, ROOT_INODE, b"one", 100);
    items.name(forger, ROOT_INODE, b"two", 100, DIRECTORY);
    items.file(forger, 100, b"file", 101);
    forger.tree(&items)
}

/// Returns sixty levels, each with two names for the next: more paths than can be walked.
fn lattice(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.directory(forger, ROOT_INODE, b"top", 100);
    for inode in 100..160 {
        items.directory(forger, inode, b"a", inode + 1);
        items.name(forger, inode, b"b", inode + 1, DIRECTORY);
    }
    forger.tree(&items)
}

/// Returns a name that leads to an inode of this number, which may exist.
fn leads_to(forger: &Forger, inode: u64, is_there: bool) -> Id {
    let mut items = Items::new(forger);
    if is_there && inode != ROOT_INODE {
        items.contents(inode);
    }
    let mode = if inode == ROOT_INODE { DIRECTORY } else { FILE };
    items.name(forger, ROOT_INODE, b"strange", inode, mode);
    forger.tree(&items)
}

fn sized(forger: &Forger, size: u64) -> Id {
    let mut items = Items::new(forger);
    items.name(forger, ROOT_INODE, b"large", 100, FILE);
    let large = Attributes {
        allocated_bytes: size,
        ..attributes(FILE, size)
    };
    items.inode(100, large);
    forger.tree(&items)
}

fn extent(target: Target, length: u32) -> Vec<u8> {
    let extent = Extent {
        length,
        target,
        target_offset: 0,
        open: false,
    };
    Item::Extent(extent).encode()
}

/// Returns files with contents beyond their end.
fn beyond(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    let chunk = forger.blob(Kind::Chunk, HONEST.to_vec());
    for (inode, offset) in [(100, 0), (101, 3), (102, u64::MAX), (103, i64::MAX as u64)] {
        let name = format!("short-{inode}");
        items.name(forger, ROOT_INODE, name.as_bytes(), inode, FILE);
        items.inode(inode, attributes(FILE, 5));
        let length = HONEST.len() as u32;
        items.raw(
            Key::extent(inode, offset),
            extent(Target::Chunk(chunk), length),
        );
    }
    forger.tree(&items)
}

/// Returns a file with an extent within another one.
fn nested_extents(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    let chunk = forger.blob(Kind::Chunk, vec![b'x'; 1000]);
    items.name(forger, ROOT_INODE, b"nested", 100, FILE);
    items.inode(100, attributes(FILE, 1000));
    items.raw(Key::extent(100, 0), extent(Target::Chunk(chunk), 1000));
    items.raw(Key::extent(100, 10), extent(Target::Chunk(chunk), 20));
    items.raw(Key::extent(100, 400), extent(Target::Chunk(chunk), 1000));
    forger.tree(&items)
}

/// Returns files whose contents are a node, a segment that does not decode, and nothing at all.
fn wrong_kinds(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    let node = forger.tree(&Items::new(forger));
    let rubbish = forger.blob(Kind::Segment, b"rubbish".to_vec());
    let targets = [
        Target::Chunk(node),
        Target::Segment(node),
        Target::Segment(rubbish),
        Target::Chunk(Id([9; 32])),
    ];
    for (inode, target) in (100..).zip(targets) {
        let name = format!("file-{inode}");
        items.name(forger, ROOT_INODE, name.as_bytes(), inode, FILE);
        items.inode(inode, attributes(FILE, 100));
        items.raw(Key::extent(inode, 0), extent(target, 100));
    }
    forger.tree(&items)
}

/// Returns a file of segments that name each other instead of chunks.
fn segments(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    // The profile, the number of chunks, and the length and id of each chunk.
    let list = |id: Id| {
        let mut list = vec![1];
        list.extend_from_slice(&1_u16.to_le_bytes());
        list.extend_from_slice(&100_u32.to_le_bytes());
        list.extend_from_slice(&id.0);
        list
    };
    let mut segment = forger.blob(Kind::Segment, list(Id([3; 32])));
    for _ in 0..20 {
        segment = forger.blob(Kind::Segment, list(segment));
    }
    items.name(forger, ROOT_INODE, b"file", 100, FILE);
    items.inode(100, attributes(FILE, 100));
    items.raw(Key::extent(100, 0), extent(Target::Segment(segment), 100));
    forger.tree(&items)
}

fn unsorted(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.file(forger, ROOT_INODE, b"one", 100);
    let mut entries = items.entries();
    entries.swap(1, 2);
    forger.node(0, &entries)
}

/// Returns a node above one of the same level.
fn wrong_depth(forger: &Forger) -> Id {
    let items = Items::new(forger);
    let entries = items.entries();
    let leaf = forger.node(0, &entries);
    let first = entries[0].0.clone();
    let count = entries.len() as u64;
    let one = forger.node(1, &[(first.clone(), child(leaf, count))]);
    forger.node(1, &[(first, child(one, count))])
}

/// Returns a node of the highest level above a leaf, with counts that are too large.
fn tall(forger: &Forger) -> Id {
    let entries = Items::new(forger).entries();
    let leaf = forger.node(0, &entries);
    forger.node(15, &[(entries[0].0.clone(), child(leaf, u64::MAX))])
}

fn file_and_directory(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    // A file that contains names.
    items.name(forger, ROOT_INODE, b"file", 100, DIRECTORY);
    items.contents(100);
    items.file(forger, 100, b"inside", 101);
    // A directory with contents, whose name states the type of a file.
    items.name(forger, ROOT_INODE, b"directory", 102, FILE);
    items.inode(102, attributes(DIRECTORY, 1));
    items.raw(Key::inline(102), HONEST);
    items.file(forger, 102, b"inside", 103);
    forger.tree(&items)
}

fn no_type(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.name(forger, ROOT_INODE, b"typeless", 100, FILE);
    items.inode(100, attributes(0o170_000 | 0o644, 5));
    items.name(forger, ROOT_INODE, b"zero", 101, FILE);
    items.inode(101, attributes(0, 5));
    forger.tree(&items)
}

/// Returns a file with more names of extended attributes than the kernel lists, and values of 64
/// KiB.
fn many_xattrs(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.file(forger, ROOT_INODE, b"file", 100);
    for number in 0..400 {
        let name = format!("user.{number:0>240}");
        items.raw(Key::xattr(100, name.as_bytes()), vec![b'x'; 64 << 10]);
    }
    forger.tree(&items)
}

/// Returns a file with an access control list, which no mount takes.
fn system_xattr(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.file(forger, ROOT_INODE, b"file", 100);
    let name = b"system.posix_acl_access";
    items.raw(Key::xattr(100, name), vec![2, 0, 0, 0]);
    forger.tree(&items)
}

/// Returns a file with an extended attribute whose name no system call can pass.
fn nul_xattr(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.file(forger, ROOT_INODE, b"file", 100);
    items.raw(Key::xattr(100, b"user.a\0b"), vec![b'x']);
    forger.tree(&items)
}

fn large_xattr(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.file(forger, ROOT_INODE, b"file", 100);
    items.raw(Key::xattr(100, b"user.large"), vec![b'x'; 100 << 10]);
    forger.tree(&items)
}

/// Returns links without a target, with an empty one, and with one that no link can have.
fn bad_link(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    for (inode, target) in [
        (100, None),
        (101, Some(vec![])),
        (102, Some(b"a\0b".to_vec())),
    ] {
        let name = format!("link-{inode}");
        items.name(forger, ROOT_INODE, name.as_bytes(), inode, libc::S_IFLNK);
        items.inode(inode, attributes(libc::S_IFLNK | 0o777, 3));
        if let Some(target) = target {
            items.raw(Key::symlink(inode), target);
        }
    }
    forger.tree(&items)
}

/// Returns a name whose value does not decode.
fn bad_item(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.raw(
        Key::name(ROOT_INODE, forger.cookie(b"odd"), b"odd"),
        vec![0xff; 20],
    );
    forger.tree(&items)
}

fn devices(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    for (inode, mode, device) in [
        (100, libc::S_IFCHR | 0o666, u32::MAX),
        (101, libc::S_IFBLK | 0o666, 0x0801),
        (102, libc::S_IFIFO | 0o666, 7),
        (103, libc::S_IFSOCK | 0o666, 7),
    ] {
        let name = format!("special-{inode}");
        items.name(forger, ROOT_INODE, name.as_bytes(), inode, mode);
        let special = Attributes {
            device,
            uid: u32::MAX - 1,
            gid: u32::MAX - 1,
            ..attributes(mode, u64::MAX)
        };
        items.inode(inode, special);
    }
    forger.tree(&items)
}

/// Returns directories deeper than any path can be.
fn deep(forger: &Forger) -> Id {
    let mut items = Items::new(forger);
    items.directory(forger, ROOT_INODE, b"deep", 100);
    for inode in 100..700 {
        items.directory(forger, inode, &[b'd'; 250], inode + 1);
    }
    forger.tree(&items)
}

/// Puts names that paint a terminal into the list and into the root.
fn hostile_lists(forger: &Forger) {
    let paint = |text: &str| format!("{text}\u{1b}[31m\u{7}\u{9b}1m\u{202e}\nbkfs: well");
    let spoil = |mut entries: Vec<SnapshotEntry>| {
        let mut hostile = entries[0].clone();
        hostile.name = paint("name");
        hostile.number = 900;
        hostile.host = paint("host");
        hostile.user = paint("user");
        hostile.tags = vec![paint("tag")];
        hostile.bytes = u64::MAX;
        hostile.new_bytes = u64::MAX;
        hostile.files = u64::MAX;
        entries.push(hostile);
        entries
    };
    forger.relist(spoil, |root| {
        let mut volume = root.volumes[VOLUME].clone();
        volume.holder = None;
        root.volumes.insert(paint("volume"), volume);
        for session in root.sessions.values_mut() {
            session.holder.host = paint("host");
            session.holder.user = paint("user");
            session.holder.mount_point = paint("mount");
        }
    });
}
