//! Verification that the restored data equals the original: names, kinds, permissions, times and
//! every byte.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::Outcome;

/// Compares the contents of two files.
///
/// # Errors
/// A message if they differ, or the I/O error of reading them.
pub fn same_bytes(one: &Path, other: &Path) -> Outcome<()> {
    let differ = || format!("{} and {} differ", one.display(), other.display());
    let (mut first, mut second) = (File::open(one)?, File::open(other)?);
    if first.metadata()?.len() != second.metadata()?.len() {
        return Err(differ().into());
    }
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let length = first.read(&mut left)?;
        if length == 0 {
            return Ok(());
        }
        second.read_exact(&mut right[..length])?;
        if left[..length] != right[..length] {
            return Err(differ().into());
        }
    }
}

/// Compares two trees: all names, kinds and contents, and with `with_metadata` also permissions and
/// times of files. Returns the number of files.
///
/// # Errors
/// A message if they differ, or the I/O error of reading them.
pub fn same_trees(one: &Path, other: &Path, with_metadata: bool) -> Outcome<u64> {
    let (first, second) = (names(one)?, names(other)?);
    if first.keys().ne(second.keys()) {
        return Err(format!("{} and {} list other names", one.display(), other.display()).into());
    }
    let mut files = 0;
    for (name, is_directory) in &first {
        let (left, right) = (one.join(name), other.join(name));
        if second.get(name) != Some(is_directory) {
            return Err(format!("{} is of another kind", right.display()).into());
        }
        if *is_directory {
            files += same_trees(&left, &right, with_metadata)?;
            continue;
        }
        same_bytes(&left, &right)?;
        let (left, there) = (fs::metadata(&left)?, fs::metadata(&right)?);
        let same = left.mode() == there.mode() && left.mtime() == there.mtime();
        if with_metadata && !same {
            return Err(format!("{} has another mode or time", right.display()).into());
        }
        files += 1;
    }
    Ok(files)
}

fn names(directory: &Path) -> Outcome<BTreeMap<OsString, bool>> {
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        names.insert(entry.file_name(), entry.file_type()?.is_dir());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        for root in [&one, &other] {
            fs::create_dir_all(root.join("below")).unwrap();
            fs::write(root.join("below/file"), b"text").unwrap();
        }
        assert_eq!(same_trees(&one, &other, false).unwrap(), 1);
        fs::write(other.join("below/file"), b"teXt").unwrap();
        assert!(same_trees(&one, &other, false).is_err());
        fs::write(other.join("below/file"), b"text").unwrap();
        fs::write(other.join("more"), b"").unwrap();
        assert!(same_trees(&one, &other, false).is_err());
        fs::remove_file(other.join("more")).unwrap();
        fs::remove_file(other.join("below/file")).unwrap();
        fs::create_dir(other.join("below/file")).unwrap();
        assert!(same_trees(&one, &other, false).is_err());
    }
}
