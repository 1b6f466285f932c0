//! Restoring as an ordinary user, and the rights that restoring gives away.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use bkfs::tree::item::Attributes;
use bkfs::tree::key::Key;
use bkfs::volume::ROOT_INODE;
use rustix::fs::XattrFlags;
use tempfile::TempDir;

use crate::commands::{Ran, bkfs_as};
use crate::forge::{DIRECTORY, FILE, Forger, HONEST, Items, attributes};
use crate::forgeries::HOSTILE;

/// A user without any rights.
const USER: u32 = 65_534;

/// A repository that this user may read, and a directory for their targets.
struct Place(TempDir);

impl Place {
    fn of(fill: impl FnOnce(&Forger, &mut Items)) -> Place {
        let home = TempDir::new().expect("a directory");
        let forger = Forger::begin(&home.path().join("repository"));
        let mut items = Items::new(&forger);
        let root = Attributes {
            uid: USER,
            gid: USER,
            ..attributes(DIRECTORY, 1)
        };
        items.inode(ROOT_INODE, root);
        fill(&forger, &mut items);
        let tree = forger.tree(&items);
        forger.snapshot(HOSTILE, tree);
        forger.end();
        let place = Place(home);
        std::fs::create_dir(place.path("target")).expect("a directory");
        place.give_away();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn give_away(&self) {
        let mut open = vec![self.0.path().to_owned()];
        while let Some(path) = open.pop() {
            chown(&path, Some(USER), Some(USER)).expect("it is given away");
            if path.is_dir() {
                let entries = std::fs::read_dir(&path).expect("a directory");
                open.extend(entries.map(|entry| entry.expect("an entry").path()));
            }
        }
    }

    /// Restores everything into the target.
    fn restore(&self, user: Option<u32>, options: &[&str]) -> Ran {
        let repository = self.path("repository").to_string_lossy().into_owned();
        let target = self.path("target").to_string_lossy().into_owned();
        let arguments = [&["restore", &repository, HOSTILE, &target], options].concat();
        let home = self.path(if user.is_some() { "user" } else { "root" });
        bkfs_as(user, &home, &arguments)
    }
}

fn mode(path: &Path) -> u32 {
    let metadata = path.symlink_metadata().expect("it is there");
    metadata.permissions().mode() & 0o7777
}

#[test]
fn an_ordinary_user_restores_over_read_only_directories_of_its_own() {
    let place = Place::of(|forger, items| {
        for (parent, name, inode) in [(ROOT_INODE, &b"closed"[..], 100), (100, b"below", 101)] {
            items.directory(forger, parent, name, inode);
            let closed = Attributes {
                uid: USER,
                gid: USER,
                ..attributes(libc::S_IFDIR | 0o555, 1)
            };
            items.inode(inode, closed);
            items.file(forger, inode, b"file", inode + 10);
        }
    });
    for options in [&["--overwrite"][..], &["--overwrite"]] {
        let ran = place.restore(Some(USER), options);
        assert_eq!(ran.code, 0, "{}", ran.says());
        assert_eq!(mode(&place.path("target/closed")), 0o555);
        let file = place.path("target/closed/below/file");
        assert_eq!(std::fs::read(&file).expect("it is there"), HONEST);
        std::fs::write(&file, "other").expect("root writes it");
    }
    let ran = place.restore(Some(USER), &["--overwrite"]);
    let file = std::fs::read(place.path("target/closed/below/file"));
    assert_eq!(file.expect("it is there"), HONEST, "{}", ran.says());
}

/// The owner cannot list or reach what lies in these directories, once they have their permissions
/// or those that they had.
#[test]
fn files_in_closed_directories_get_their_times() {
    for closed in [0o300, 0o400, 0o000] {
        let place = Place::of(|forger, items| {
            items.directory(forger, ROOT_INODE, b"closed", 100);
            let closed = Attributes {
                uid: USER,
                gid: USER,
                ..attributes(libc::S_IFDIR | closed, 1)
            };
            items.inode(100, closed);
            items.file(forger, 100, b"file", 101);
        });
        let expected = attributes(FILE, 0).modified.seconds;
        let file = place.path("target/closed/file");
        for options in [&[][..], &["--overwrite=never"]] {
            let ran = place.restore(Some(USER), options);
            assert_eq!(ran.code, 0, "{}", ran.says());
            assert_eq!(
                file.metadata().expect("made").mtime(),
                expected,
                "{closed:o}"
            );
            assert_eq!(mode(&place.path("target/closed")), closed);
            std::fs::remove_file(&file).expect("root removes it");
        }
    }
}

/// Returns an access control list that gives a foreign user r-x.
fn list_for_others() -> Vec<u8> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    let any = u32::MAX;
    for (tag, permissions, id) in [
        (0x01_u16, 7_u16, any),
        (0x02, 5, 1234),
        (0x04, 5, any),
        (0x10, 5, any),
        (0x20, 0, any),
    ] {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&permissions.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    list
}

#[test]
fn what_a_directory_gives_to_its_files_is_not_kept() {
    let place = Place::of(|forger, items| {
        items.directory(forger, ROOT_INODE, b"inner", 100);
        items.file(forger, 100, b"file", 101);
        items.name(forger, 100, b"fifo", 102, libc::S_IFIFO);
        items.inode(102, attributes(libc::S_IFIFO | 0o644, 0));
    });
    let target = place.path("target");
    let given = "system.posix_acl_default";
    rustix::fs::setxattr(&target, given, &list_for_others(), XattrFlags::empty())
        .expect("this filesystem has access control lists");
    for user in [Some(USER), None] {
        let ran = place.restore(user, &["--overwrite"]);
        assert_eq!(ran.code, 0, "{}", ran.says());
        for name in ["inner", "inner/file", "inner/fifo"] {
            for list in ["system.posix_acl_access", given] {
                let mut value = [0; 256];
                let found = rustix::fs::getxattr(target.join(name), list, &mut value[..]);
                assert!(found.is_err(), "{name} has {list}");
            }
        }
    }
}

/// Adds a set-id program of root, one of the user, and special files.
fn privileged(forger: &Forger, items: &mut Items) {
    items.file(forger, ROOT_INODE, b"program", 100);
    let program = attributes(libc::S_IFREG | 0o6755, HONEST.len() as u64);
    items.inode(100, program);
    items.raw(Key::inline(100), HONEST);
    items.file(forger, ROOT_INODE, b"own", 101);
    let own = Attributes {
        uid: USER,
        gid: USER,
        ..attributes(libc::S_IFREG | 0o4711, HONEST.len() as u64)
    };
    items.inode(101, own);
    items.name(forger, ROOT_INODE, b"fifo", 102, libc::S_IFIFO);
    items.inode(102, attributes(libc::S_IFIFO | 0o644, 0));
    items.name(forger, ROOT_INODE, b"plain", 103, FILE);
    items.contents(103);
}

#[test]
fn a_program_runs_as_its_owner_only_where_the_owner_was_restored() {
    let place = Place::of(privileged);
    let ran = place.restore(Some(USER), &[]);
    let said = String::from_utf8_lossy(&ran.error).into_owned();
    assert_eq!(ran.code, 0, "{}", ran.says());
    assert!(
        said.contains("left out the set-id bits of 1 inodes"),
        "{said}"
    );
    assert_eq!(mode(&place.path("target/program")), 0o755);
    assert_eq!(mode(&place.path("target/own")), 0o4711);
    let ran = place.restore(None, &["--overwrite"]);
    assert_eq!(ran.code, 0, "{}", ran.says());
    let program = place.path("target/program");
    assert_eq!(
        (mode(&program), program.metadata().expect("there").uid()),
        (0o6755, 0)
    );
}

#[test]
fn nothing_special_is_made_unless_it_is_wanted() {
    let place = Place::of(privileged);
    let ran = place.restore(None, &["--no-special"]);
    let said = String::from_utf8_lossy(&ran.error).into_owned();
    assert_eq!(ran.code, 0, "{}", ran.says());
    assert!(
        said.contains("left out the set-id bits of 2 inodes"),
        "{said}"
    );
    assert!(
        said.contains("left out 1 devices, fifos and sockets"),
        "{said}"
    );
    assert_eq!(mode(&place.path("target/program")), 0o755);
    assert!(!place.path("target/fifo").exists());
    assert!(place.path("target/plain").exists());
    let ran = place.restore(None, &["--overwrite"]);
    assert_eq!(ran.code, 0, "{}", ran.says());
    let fifo = place.path("target/fifo").symlink_metadata().expect("there");
    assert!(fifo.file_type().is_fifo());
}

#[test]
fn drafts_of_an_earlier_restore_are_swept() {
    let place = Place::of(|forger, items| {
        items.directory(forger, ROOT_INODE, b"inner", 100);
        items.file(forger, 100, b"file", 101);
    });
    let target = place.path("target");
    std::fs::create_dir(target.join("inner")).expect("a directory");
    let left = [
        ".bkfs-restore-1-0",
        "inner/.bkfs-restore-77-12",
        "inner/.bkfs-restore-00000000deadbeef-3",
    ];
    for name in left {
        std::fs::write(target.join(name), "a draft").expect("a file");
    }
    std::fs::write(target.join("inner/.bkfs-restore-mine"), "no draft").expect("a file");
    let ran = place.restore(None, &["--overwrite"]);
    assert_eq!(ran.code, 0, "{}", ran.says());
    for name in left {
        assert!(!target.join(name).exists(), "{name} is left");
    }
    assert!(target.join("inner/.bkfs-restore-mine").exists());
}
