//! The paths that a piece of code names: the leaves of `use` trees, and qualified paths where they
//! occur.
//!
//! This module collects the paths. `walls` decides which of them are allowed.

use crate::lexer::{is_word, line_of, word_at};

/// A path as written, in segments, and the 1-based line on which it begins.
#[derive(Debug, PartialEq, Eq)]
pub struct Path {
    /// `std::fs::File` is `["std", "fs", "File"]`; a glob ends in `*`.
    pub segments: Vec<String>,
    /// Line number, from 1.
    pub line: usize,
    /// How the code names it.
    pub origin: Origin,
}

/// How code names a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In a `use`, which gives it this name in the module.
    Import {
        /// The name that the module uses.
        name: String,
        /// Whether other modules see that name as well.
        is_public: bool,
    },
    /// Where it is used.
    Body,
}

impl Path {
    /// Whether the path is at or below `prefix` (`std::fs` contains `std::fs::File`), or is a glob
    /// that brings `prefix` in.
    pub fn is_within(&self, prefix: &str) -> bool {
        let wanted: Vec<&str> = prefix.split("::").collect();
        let glob_above = self.segments.last().is_some_and(|last| last == "*");
        let named = if glob_above {
            &self.segments[..self.segments.len() - 1]
        } else {
            &self.segments[..]
        };
        if glob_above && named.len() < wanted.len() {
            // `use std::*` brings `std::fs` in, but a glob of a whole crate does not bring in
            // deeper paths.
            return named.len() + 1 == wanted.len()
                && named.iter().zip(&wanted).all(|(a, b)| a == b);
        }
        named.len() >= wanted.len() && named.iter().zip(&wanted).all(|(a, b)| a == b)
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.segments.join("::"))
    }
}

/// Returns every path in blanked code: each leaf of each `use`, each chain of `a::b`, and each bare
/// word (for macros and aliases).
pub fn paths_in(code: &str) -> Vec<Path> {
    let bytes = code.as_bytes();
    let mut paths = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let word = word_at(bytes, at);
        let line = line_of(code, at);
        if word == b"use" || word == b"extern" {
            let end = bytes[at..]
                .iter()
                .position(|&byte| byte == b';')
                .map_or(bytes.len(), |length| at + length);
            let tree = code[at + word.len()..end].trim();
            let tree = tree.strip_prefix("crate ").unwrap_or(tree);
            // `extern "C" { … }` and `use<'a>` are not imports.
            if !tree.starts_with('{') && !tree.starts_with('<') && !tree.starts_with("fn") {
                let is_public = is_public(&code[..at]);
                write_out(tree, &[], (line, is_public), &mut paths);
                at = end;
                continue;
            }
        }
        let length = chain_length(bytes, at);
        let segments = code[at..at + length]
            .split("::")
            .map(|part| part.trim().to_owned())
            .collect();
        let origin = Origin::Body;
        paths.push(Path {
            segments,
            line,
            origin,
        });
        at += length;
    }
    paths
}

/// Returns whether the item that follows `before` is `pub`, or `pub` within some module.
fn is_public(before: &str) -> bool {
    let before = before.trim_end();
    let word = match before.strip_suffix(')') {
        Some(_) => before.rsplit_once('(').map_or("", |(word, _)| word),
        None => before,
    };
    let name = word.trim_end().strip_suffix("pub");
    name.is_some_and(|rest| !rest.as_bytes().last().is_some_and(|&byte| is_word(byte)))
}

/// Returns the length of a chain `a::b::c` in bytes, spaces around `::` included.
fn chain_length(bytes: &[u8], start: usize) -> usize {
    let mut at = start + word_at(bytes, start).len();
    loop {
        let next = skip_space(bytes, at);
        if !bytes[next..].starts_with(b"::") {
            return at - start;
        }
        let word = skip_space(bytes, next + 2);
        if word >= bytes.len() || !is_word(bytes[word]) {
            return at - start;
        }
        at = word + word_at(bytes, word).len();
    }
}

fn skip_space(bytes: &[u8], at: usize) -> usize {
    at + bytes[at..]
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace())
        .count()
}

/// Adds the leaves of a `use` tree: `a::{b, c::{self, d as e}}` is `a::b`, `a::c`, `a::c::d`.
fn write_out(
    tree: &str,
    above: &[String],
    (line, is_public): (usize, bool),
    paths: &mut Vec<Path>,
) {
    let tree = tree.trim().trim_start_matches("::");
    let (head, group) = match tree.split_once('{') {
        Some((head, group)) => (head, Some(group.trim_end())),
        None => (tree, None),
    };
    let (head, alias) = match head.split_once(" as ") {
        Some((head, alias)) => (head, Some(alias.trim().to_owned())),
        None => (head, None),
    };
    let mut segments = above.to_vec();
    segments.extend(
        head.split("::")
            .map(str::trim)
            .filter(|part| !part.is_empty() && *part != "self")
            .map(str::to_owned),
    );
    let Some(group) = group else {
        let Some(name) = alias.or_else(|| segments.last().cloned()) else {
            return;
        };
        let origin = Origin::Import { name, is_public };
        return paths.push(Path {
            segments,
            line,
            origin,
        });
    };
    for branch in split_branches(group.strip_suffix('}').unwrap_or(group)) {
        write_out(branch, &segments, (line, is_public), paths);
    }
}

/// Splits at the commas of the outermost level.
fn split_branches(group: &str) -> Vec<&str> {
    let mut branches = Vec::new();
    let (mut depth, mut start) = (0i32, 0);
    for (at, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                branches.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&group[start..]);
    branches.retain(|branch| !branch.trim().is_empty());
    branches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(code: &str) -> Vec<String> {
        paths_in(code).iter().map(Path::to_string).collect()
    }

    #[test]
    fn use_trees_are_written_out() {
        let code = "pub use std::{fs::{self, File as F}, time::*};\nuse rand;\nextern crate tokio;";
        assert_eq!(
            names(code),
            [
                "pub",
                "std::fs",
                "std::fs::File",
                "std::time::*",
                "rand",
                "tokio"
            ]
        );
        assert_eq!(paths_in(code)[4].line, 2);
    }

    #[test]
    fn qualified_paths_are_found_where_they_stand() {
        let found = names("let t = std :: time::Instant::now() + tokio::time::Duration::MAX;");
        assert!(
            found.contains(&"std::time::Instant::now".to_owned()),
            "{found:?}"
        );
        assert!(
            found.contains(&"tokio::time::Duration::MAX".to_owned()),
            "{found:?}"
        );
    }

    #[test]
    fn a_prefix_holds_what_lies_below_it_and_globs_let_in_what_they_name() {
        let path = |text: &str| Path {
            segments: text.split("::").map(str::to_owned).collect(),
            line: 1,
            origin: Origin::Body,
        };
        assert!(path("std::fs::File").is_within("std::fs"));
        assert!(path("std::fs").is_within("std::fs"));
        assert!(!path("std::fmt").is_within("std::fs"));
        assert!(!path("std").is_within("std::fs"));
        assert!(path("std::time::*").is_within("std::time::Instant"));
        assert!(path("std::*").is_within("std::fs"));
        assert!(path("tokio::*").is_within("tokio"));
        assert!(!path("std::collections::*").is_within("std::fs"));
    }
}
