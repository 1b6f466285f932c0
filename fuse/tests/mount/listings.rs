//! Directories with many names.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::{self, File};
use std::path::Path;

use crate::helpers::*;
use crate::memory::count;

const NAMES: usize = 10_000;

/// opendir(3) and similar calls, which std does not export.
struct Directory(*mut libc::DIR);

impl Directory {
    fn open(path: &Path) -> Self {
        let path = c_string(path);
        // SAFETY: a NUL-terminated path.
        let directory = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!directory.is_null());
        Self(directory)
    }

    fn next(&mut self) -> Option<String> {
        // SAFETY: an open directory; the entry is copied before the next call.
        unsafe {
            let entry = libc::readdir64(self.0);
            if entry.is_null() {
                return None;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            Some(name.to_str().unwrap().to_owned())
        }
    }

    fn rest(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.next()).collect()
    }

    fn tell(&mut self) -> libc::c_long {
        // SAFETY: an open directory.
        unsafe { libc::telldir(self.0) }
    }

    fn seek(&mut self, place: libc::c_long) {
        // SAFETY: an open directory and a place from `tell`.
        unsafe { libc::seekdir(self.0, place) }
    }

    fn rewind(&mut self) {
        // SAFETY: an open directory.
        unsafe { libc::rewinddir(self.0) }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: an open directory, which is not used afterwards.
        unsafe { libc::closedir(self.0) };
    }
}

fn fill(mounted: &Mounted) {
    for index in 0..NAMES {
        File::create(mounted.path(&format!("name-{index:05}-{}", "x".repeat(index % 100))))
            .unwrap();
    }
}

#[test]
fn many_names_are_listed_rewound_and_sought() {
    let mounted = Mounted::new();
    fill(&mounted);
    let mut directory = Directory::open(mounted.directory.path());
    let all = directory.rest();
    assert_eq!(all.len(), NAMES + 2);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), NAMES + 2);
    assert_eq!(&all[..2], [".", ".."]);

    directory.rewind();
    let first: Vec<String> = (0..5_000).filter_map(|_| directory.next()).collect();
    assert_eq!(first, all[..5_000]);
    let place = directory.tell();
    assert_eq!(directory.rest(), all[5_000..]);
    directory.seek(place);
    assert_eq!(directory.rest(), all[5_000..]);
    drop(directory);
    mounted.end();
}

#[test]
fn lookups_are_given_back_to_the_last_one() {
    let mounted = Mounted::new();
    fill(&mounted);
    assert_eq!(mounted.memory.inodes(), NAMES + 1);
    // Listing with attributes counts lookups; the kernel's cache answers a stat of each.
    for _ in 0..2 {
        let sizes: u64 = fs::read_dir(mounted.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert_eq!(sizes, 0);
    }
    assert!(count(&mounted.memory.counters.plus_listings) > 0);
    for entry in fs::read_dir(mounted.directory.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    eventually("all inodes are forgotten", || mounted.memory.inodes() == 1);
    mounted.end();
}

#[test]
fn names_alone_are_listed_without_attributes_after_a_while() {
    let mounted = Mounted::new();
    fill(&mounted);
    Directory::open(mounted.directory.path()).rest();
    assert!(count(&mounted.memory.counters.plain_listings) > 0);
    mounted.end();
}
