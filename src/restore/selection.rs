//! Which names of a snapshot a restore makes. Pure.
//!
//! Owns the patterns of `--include` and `--exclude`, and how they decide. Does not own the walk.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::glob::Glob;

/// A pattern for names, or for whole paths if it has a slash.
#[derive(Clone, Debug)]
struct Pattern {
    glob: Glob,
    has_path: bool,
}

impl Pattern {
    fn new(text: &OsString) -> Self {
        let text = text.as_bytes();
        // `dir/` means the directory, as in other tools.
        let text = match text.strip_suffix(b"/") {
            Some(rest) if !rest.is_empty() => rest,
            _ => text,
        };
        let has_path = text.contains(&b'/');
        let whole = match has_path && !text.starts_with(b"/") && !text.starts_with(b"**") {
            true => [b"/", text].concat(),
            false => text.to_owned(),
        };
        Pattern {
            glob: Glob::new(&whole, false),
            has_path,
        }
    }

    fn matches(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        self.glob.matches(if self.has_path { path } else { name })
    }
}

/// The patterns of a restore. Without any, everything is restored.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

/// What a [`Selection`] says of a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Choice {
    /// Neither it nor anything below it is restored.
    Excluded,
    /// It is restored, and everything below it that is not excluded.
    Included,
    /// No pattern names it: if it is a directory, it is made only if something below it is restored.
    Unnamed,
}

impl Selection {
    /// Returns the selection of these patterns: `*` matches any characters but a slash, `**` any
    /// characters, `?` one character, `[a-z]` one of these.
    pub fn new(include: &[OsString], exclude: &[OsString]) -> Self {
        Selection {
            include: include.iter().map(Pattern::new).collect(),
            exclude: exclude.iter().map(Pattern::new).collect(),
        }
    }

    /// Returns true if everything is restored.
    pub fn is_everything(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Returns true if only what a pattern names is restored.
    pub fn is_by_name(&self) -> bool {
        !self.include.is_empty()
    }

    /// Judges the name at `path`, the whole path in the snapshot from `/` on. `is_within` says that
    /// the directory above it is included.
    pub fn judge(&self, path: &[u8], is_within: bool) -> Choice {
        let is_named = |patterns: &[Pattern]| patterns.iter().any(|one| one.matches(path));
        if is_named(&self.exclude) {
            Choice::Excluded
        } else if is_within || !self.is_by_name() || is_named(&self.include) {
            Choice::Included
        } else {
            Choice::Unnamed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(include: &[&str], exclude: &[&str]) -> Selection {
        let patterns = |texts: &[&str]| texts.iter().map(OsString::from).collect::<Vec<_>>();
        Selection::new(&patterns(include), &patterns(exclude))
    }

    #[test]
    fn without_patterns_everything_is_included() {
        let all = Selection::default();
        assert!(all.is_everything());
        assert_eq!(all.judge(b"/a", false), Choice::Included);
    }

    #[test]
    fn a_pattern_without_a_slash_names_files_at_any_depth() {
        let tables = selection(&["*.ibd"], &[]);
        assert_eq!(tables.judge(b"/db/one.ibd", false), Choice::Included);
        assert_eq!(tables.judge(b"/db", false), Choice::Unnamed);
        assert_eq!(tables.judge(b"/db/one.frm", false), Choice::Unnamed);
    }

    #[test]
    fn a_pattern_with_a_slash_names_whole_paths() {
        for pattern in ["/etc/ssh", "etc/ssh", "etc/ssh/"] {
            let keys = selection(&[pattern], &[]);
            assert_eq!(
                keys.judge(b"/etc/ssh", false),
                Choice::Included,
                "{pattern}"
            );
            assert_eq!(keys.judge(b"/old/etc/ssh", false), Choice::Unnamed);
        }
        let anywhere = selection(&["**/etc/ssh"], &[]);
        assert_eq!(anywhere.judge(b"/old/etc/ssh", false), Choice::Included);
        assert_eq!(
            selection(&["cache/"], &[]).judge(b"/a/cache", false),
            Choice::Included
        );
    }

    #[test]
    fn what_lies_in_an_included_directory_is_included() {
        let one = selection(&["/db"], &["*.tmp"]);
        assert_eq!(one.judge(b"/db/table", true), Choice::Included);
        assert_eq!(one.judge(b"/db/table.tmp", true), Choice::Excluded);
    }

    #[test]
    fn an_exclusion_counts_more_than_an_inclusion() {
        let both = selection(&["a"], &["a"]);
        assert_eq!(both.judge(b"/a", false), Choice::Excluded);
        let rest = selection(&[], &["a"]);
        assert_eq!(rest.judge(b"/b", false), Choice::Included);
    }
}
