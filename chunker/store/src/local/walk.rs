//! Lists of the directory in key order, one page at a time.

use std::cmp::Ordering;

use rustix::fs::{AtFlags, Dir, FileType, statat};
use rustix::io::Errno;

use super::directory::Directory;
use super::sync::open_directory;
use crate::{KEY_BYTES_MAX, ObjectInfo, Operation, PART_BYTES_MAX, StoreError, check_key};

/// A list request, and the objects found so far.
struct Walk<'a> {
    prefix: &'a str,
    after: Option<&'a str>,
    limit: usize,
    found: Vec<ObjectInfo>,
}

/// A name in a directory. The name of a directory includes its slash, so that sorting yields the
/// order of whole keys (`a-b` before `a/x` before `a0`).
#[derive(Eq, Ord, PartialEq, PartialOrd)]
struct Name(String);

impl Directory {
    pub(super) fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let mut walk = Walk {
            prefix,
            after,
            limit,
            found: Vec::new(),
        };
        // All matching objects lie below the directory that the prefix names.
        let directory = prefix.rfind('/').map_or("", |slash| &prefix[..=slash]);
        self.walk(&mut walk, directory)
            .and_then(|()| self.check_root())
            .map_err(|errno| self.error(Operation::List, prefix, errno))?;
        Ok(walk.found)
    }

    /// Walks `directory`, which ends with a slash or is empty.
    fn walk(&self, walk: &mut Walk<'_>, directory: &str) -> Result<(), Errno> {
        if directory.len() > KEY_BYTES_MAX {
            return Ok(());
        }
        let mut names = match self.names(directory) {
            Ok(names) => names,
            // It holds no objects.
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        names.sort_unstable();
        for Name(name) in names {
            if walk.found.len() >= walk.limit {
                break;
            }
            let path = format!("{directory}{name}");
            if !walk.wants(&path) {
                continue;
            }
            if path.ends_with('/') {
                self.walk(walk, &path)?;
            } else if let Some(info) = self.info(path)? {
                walk.found.push(info);
            }
        }
        Ok(())
    }

    /// Fails if the root was removed. A removed directory that is still open reads as empty, and a
    /// lost bucket must not look like an empty one.
    fn check_root(&self) -> Result<(), Errno> {
        match rustix::fs::fstat(self.root())?.st_nlink {
            0 => Err(Errno::NOENT),
            _ => Ok(()),
        }
    }

    fn names(&self, directory: &str) -> Result<Vec<Name>, Errno> {
        let file = open_directory(self.root(), directory.trim_end_matches('/'))?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&file)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if name.starts_with('.') || name.len() > PART_BYTES_MAX {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => kind_of(&file, name)?,
                kind => kind,
            };
            match kind {
                FileType::RegularFile => names.push(Name(name.to_owned())),
                FileType::Directory => names.push(Name(format!("{name}/"))),
                // Links, pipes and other special files are not objects.
                _ => {}
            }
        }
        Ok(names)
    }

    /// Returns the object at `path`, or `None` if it was removed or its name is not a valid key.
    fn info(&self, path: String) -> Result<Option<ObjectInfo>, Errno> {
        if check_key(Operation::List, &path).is_err() {
            return Ok(None);
        }
        match statat(self.root(), &path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(Some(ObjectInfo {
                key: path,
                // A file's size is never negative.
                size: status.st_size as u64,
            })),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

impl Walk<'_> {
    /// Returns whether `path` is a requested object, or a directory (with a slash at its end) that
    /// may hold one.
    fn wants(&self, path: &str) -> bool {
        let is_directory = path.ends_with('/');
        let in_prefix =
            path.starts_with(self.prefix) || (is_directory && self.prefix.starts_with(path));
        let is_after = self.after.is_none_or(|after| match path.cmp(after) {
            Ordering::Greater => true,
            // The contents of a directory come after its name, so some may come after `after`.
            _ => is_directory && after.starts_with(path),
        });
        in_prefix && is_after
    }
}

fn kind_of(directory: impl std::os::fd::AsFd, name: &str) -> Result<FileType, Errno> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(FileType::from_raw_mode(status.st_mode)),
        Err(Errno::NOENT) => Ok(FileType::Unknown),
        Err(errno) => Err(errno),
    }
}
