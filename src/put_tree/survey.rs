//! How much a put will read or take over, found out ahead of it for its progress.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::put_tree::job::Options;
use crate::put_tree::read;
use crate::restore::selection::Choice;
use crate::volume::mode;
use crate::walk;

/// Returns the bytes of the files in a directory, as far as it can be read; none if `stop` was set.
/// It may wait for the filesystem.
pub fn bytes(directory: OwnedFd, path: &[u8], options: &Options, stop: &AtomicBool) -> Option<u64> {
    let mut sum = 0_u64;
    let Ok(facts) = read::facts_of(directory.as_fd()) else {
        return Some(0);
    };
    let filesystem = facts.filesystem;
    let mut linked = HashSet::new();
    let mut way = vec![(directory, path.to_vec(), facts)];
    while let Some((directory, path, facts)) = way.pop() {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let is_cache = options.exclude_caches && read::is_cache(directory.as_fd());
        if is_cache || options.pass(&facts, filesystem).is_some() {
            continue;
        }
        for entry in read::entries(directory.as_fd()).unwrap_or_default() {
            let whole = walk::join(path.strip_suffix(b"/").unwrap_or(&path), &entry.name);
            let Ok(facts) = entry.facts else {
                continue;
            };
            if options.selection.judge(&whole, true) == Choice::Excluded {
                continue;
            }
            if mode::is_directory(facts.mode) {
                let opened = read::open_directory(directory.as_fd(), &entry.name);
                way.extend(opened.ok().map(|opened| (opened, whole, facts)));
            } else if mode::is_regular(facts.mode) {
                let is_first = facts.links < 2 || linked.insert((facts.filesystem, facts.inode));
                sum = sum.saturating_add(if is_first { facts.size } else { 0 });
            }
        }
    }
    Some(sum)
}
