//! How much a put will read or take over, found out ahead of it for its progress.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::put_tree::job::Options;
use crate::put_tree::read::{self, Entry};
use crate::restore::selection::Choice;
use crate::volume::mode;
use crate::walk;

/// A directory that the survey is in. Only directories on the way to one are open.
struct Frame {
    fd: OwnedFd,
    path: Vec<u8>,
    below: Vec<Vec<u8>>,
}

/// What was found so far.
struct Survey<'a> {
    options: &'a Options,
    /// The filesystem of the directory that the user named.
    filesystem: u64,
    linked: HashSet<(u64, u64)>,
    bytes: u64,
}

/// Returns the bytes of the files in a directory, as far as it can be read; none if `stop` was set.
/// It may wait for the filesystem.
pub fn bytes(directory: OwnedFd, path: &[u8], options: &Options, stop: &AtomicBool) -> Option<u64> {
    let Ok(facts) = read::facts_of(directory.as_fd()) else {
        return Some(0);
    };
    let mut survey = Survey {
        options,
        filesystem: facts.filesystem,
        linked: HashSet::new(),
        bytes: 0,
    };
    let mut way = vec![survey.enter(directory, path.to_vec())];
    while let Some(frame) = way.last_mut() {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let Some(name) = frame.below.pop() else {
            way.pop();
            continue;
        };
        let path = join(&frame.path, &name);
        let opened = read::open_directory(frame.fd.as_fd(), &name);
        way.extend(opened.ok().map(|fd| survey.enter(fd, path)));
    }
    Some(survey.bytes)
}

impl Survey<'_> {
    /// Adds the files of a directory, and returns the directories in it.
    fn enter(&mut self, fd: OwnedFd, path: Vec<u8>) -> Frame {
        let options = self.options;
        let is_made_up = || read::is_made_up(fd.as_fd());
        let passes = read::facts_of(fd.as_fd()).map_or(true, |facts| {
            options.pass(&facts, self.filesystem, is_made_up).is_some()
        });
        let is_cache = options.exclude_caches && read::is_cache(fd.as_fd());
        let entries = match passes || is_cache {
            true => Vec::new(),
            false => read::entries(fd.as_fd()).unwrap_or_default(),
        };
        let mut below = Vec::new();
        for Entry { name, facts } in entries {
            let Ok(facts) = facts else {
                continue;
            };
            if options.selection.judge(&join(&path, &name), true) == Choice::Excluded {
                continue;
            }
            if mode::is_directory(facts.mode) {
                below.push(name);
            } else if mode::is_regular(facts.mode) {
                let is_first = facts.links < 2 || self.linked.insert(facts.key());
                self.bytes = self
                    .bytes
                    .saturating_add(if is_first { facts.size } else { 0 });
            }
        }
        Frame { fd, path, below }
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    walk::join(directory.strip_suffix(b"/").unwrap_or(directory), name)
}
