//! The language of the tree: words that name no actor, long sentences and long lines of documents.
//!
//! This module owns the rules of CONTRIBUTING.md, "Language", that a program can check. Does not
//! own the names in the code.

use std::path::{Path, PathBuf};

/// Pronouns and adverbs that leave open who acts, or when and where. They are written in two halves
/// so that they do not match themselves.
const BANNED: &[(&str, &str)] = &[
    (concat!("who", "ever"), "name the actor"),
    (concat!("no", "body"), "name the actor"),
    (concat!("some", "body"), "name the actor"),
    (
        concat!("be", "side"),
        "say \"during\", \"next to\" or \"as well as\"",
    ),
];

/// Files that use a banned word as the name of the Unix account of that name.
const ACCOUNT_NAMES: &[(&str, &str)] = &[
    ("fuse/tests/mount/life.rs", concat!("no", "body")),
    ("tests/suites/users.sh", concat!("no", "body")),
    ("tests/lib/pjdfstest.sh", concat!("no", "body")),
];

/// Most words of a sentence in a document.
const SENTENCE_WORDS: usize = 40;

/// Most sentences of a document that may have more words, in percent.
const LONG_SENTENCES_PERCENT: usize = 2;

/// Most columns of a line in a document, outside of tables and code.
const COLUMNS: usize = 100;

/// Marks around the part of PERFORMANCE.md that bkfs-bench writes.
const GENERATED: [&str; 2] = [
    "<!-- tables: written by bkfs-bench -->",
    "<!-- end of tables -->",
];

/// Returns the violations by all texts below `root`.
pub fn violations(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (name, text) in texts(root) {
        found.extend(banned_words(&name, &text));
        if name.ends_with(".md") && !name.starts_with("bench/results/") {
            found.extend(document_violations(&name, &text));
        }
    }
    found
}

/// Returns the source files, scripts and documents of the tree: path from the root, and text.
fn texts(root: &Path) -> Vec<(String, String)> {
    let rooms = [
        "src",
        "fuse",
        "chunker",
        "tests",
        "bench",
        "docs",
        "packaging",
    ];
    let mut paths: Vec<PathBuf> = rooms.iter().map(|room| root.join(room)).collect();
    paths.extend(entries(root).into_iter().filter(|path| path.is_file()));
    let mut found = Vec::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let is_skipped = path.ends_with("target") || path.ends_with("golden/repository");
            if !is_skipped {
                paths.extend(entries(&path));
            }
        } else if is_text(&path) {
            let name = path.strip_prefix(root).expect("below the root");
            let text = std::fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            found.push((name.to_string_lossy().into_owned(), text));
        }
    }
    found.sort();
    found
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("can be read").path())
        .collect()
}

fn is_text(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        Some(extension) => ["rs", "md", "sh", "py", "pl", "toml", "patch"].contains(&extension),
        None => path.ends_with("run") || path.ends_with("justfile"),
    }
}

/// Returns a violation for each banned word, in comments, names and strings alike.
fn banned_words(file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for word in line.split(|symbol: char| !symbol.is_ascii_alphabetic()) {
            let word = word.to_ascii_lowercase();
            let Some((banned, advice)) = BANNED.iter().find(|(banned, _)| *banned == word) else {
                continue;
            };
            if !ACCOUNT_NAMES.contains(&(file, banned)) {
                found.push(format!("{file}:{}: `{banned}`: {advice}", number + 1));
            }
        }
    }
    found
}

/// Returns the violations by lines and sentences of a document.
fn document_violations(file: &str, text: &str) -> Vec<String> {
    let lines = prose_lines(text);
    let mut found: Vec<String> = lines
        .iter()
        .filter(|line| line.text.chars().count() > COLUMNS)
        .map(|line| format!("{file}:{}: more than {COLUMNS} columns", line.number))
        .collect();
    let sentences = sentences(&lines);
    let long: Vec<_> = sentences
        .iter()
        .filter(|(_, words)| *words > SENTENCE_WORDS)
        .collect();
    if long.len() * 100 > sentences.len() * LONG_SENTENCES_PERCENT {
        found.extend(long.iter().map(|(number, words)| {
            format!("{file}:{number}: a sentence of {words} words, more than {SENTENCE_WORDS}")
        }));
    }
    found
}

/// A line of prose.
struct Line<'a> {
    number: usize,
    text: &'a str,
    /// True for the first line of a paragraph or of a list item.
    begins: bool,
}

/// Returns the lines of prose: no headings, tables, code blocks, or generated parts.
fn prose_lines(text: &str) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let (mut is_code, mut is_generated, mut begins) = (false, false, true);
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let is_fence = trimmed.starts_with("```");
        is_code ^= is_fence;
        is_generated |= trimmed == GENERATED[0];
        is_generated &= trimmed != GENERATED[1];
        let is_indented_code = begins && line.starts_with("    ") && !is_item(trimmed);
        let is_prose = !(is_fence || is_code || is_generated || is_indented_code)
            && !(trimmed.is_empty()
                || trimmed.starts_with(['|', '#'])
                || trimmed.starts_with("<!--"));
        if is_prose {
            lines.push(Line {
                number: at + 1,
                text: line,
                begins: begins || is_item(trimmed),
            });
        }
        begins = !is_prose;
    }
    lines
}

/// Whether a line is the first of a list item.
fn is_item(trimmed: &str) -> bool {
    let number = trimmed.trim_start_matches(|symbol: char| symbol.is_ascii_digit());
    trimmed.starts_with("- ")
        || trimmed.starts_with("* ")
        || (number.len() < trimmed.len() && number.starts_with(". "))
}

/// Returns the line and the number of words of each sentence.
fn sentences(lines: &[Line<'_>]) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    let mut has_ended = false;
    for line in lines {
        let marker = usize::from(line.begins && is_item(line.text.trim()));
        for (at, word) in line.text.split_whitespace().skip(marker).enumerate() {
            let begins = (line.begins && at == 0) || (has_ended && begins_a_sentence(word));
            match found.last_mut() {
                Some((_, words)) if !begins => *words += 1,
                _ => found.push((line.number, 1)),
            }
            has_ended = word
                .trim_end_matches(['"', '*', ')', '_', '`'])
                .ends_with(['.', '!', '?']);
        }
    }
    found
}

/// Whether a sentence can begin with `word`: a capital, a number, code, or the program's name.
fn begins_a_sentence(word: &str) -> bool {
    let word = word.trim_start_matches(['"', '*', '(', '_', '[']);
    word.starts_with("bkfs") || !word.starts_with(char::is_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<usize> {
        let lines = prose_lines(text);
        sentences(&lines)
            .into_iter()
            .map(|(_, words)| words)
            .collect()
    }

    #[test]
    fn words_without_an_actor_are_found() {
        for (word, _) in BANNED {
            let name = format!("fn is_{word}() {{}} // {}", word.to_uppercase());
            assert_eq!(banned_words("src/a.rs", &name).len(), 2, "{word}");
            assert_eq!(banned_words("a.md", &format!("un{word}s")).len(), 0);
        }
        let account = format!("id -u {}", concat!("no", "body"));
        assert_eq!(banned_words("tests/suites/users.sh", &account), [""; 0]);
        assert_eq!(banned_words("tests/suites/other.sh", &account).len(), 1);
    }

    #[test]
    fn sentences_are_counted_without_tables_code_and_headings() {
        assert_eq!(words("One two. Three\nfour five!"), [2, 3]);
        assert_eq!(
            words("Ends. `code` begins. bkfs too (or so.) Yes"),
            [1, 2, 4, 1]
        );
        assert_eq!(words("It is 3.5 s, i.e. long"), [6]);
        assert_eq!(
            words("# A heading\n| a | table |\n```\ncode\n```\nText"),
            [1]
        );
        assert_eq!(words("Before:\n- item one\n  goes on\n1. two"), [1, 4, 1]);
        assert_eq!(words("Before:\n\n    code = 1\n\nafter"), [1, 1]);
        let generated = format!("a\n{}\nb c\n{}\nd", GENERATED[0], GENERATED[1]);
        assert_eq!(words(&generated), [1, 1]);
    }

    #[test]
    fn long_sentences_and_lines_are_found() {
        let long = format!("Word{}.\n", " word\nword".repeat(SENTENCE_WORDS / 2));
        let few = format!("{long}{}", "Short one. ".repeat(8));
        assert_eq!(document_violations("a.md", &few).len(), 1);
        let many = format!("{long}{}", "Short one.\n".repeat(49));
        assert_eq!(document_violations("a.md", &many), [""; 0]);
        let wide = format!("{}\n| {} |\n", "x".repeat(101), "x".repeat(101));
        assert_eq!(
            document_violations("a.md", &wide),
            ["a.md:1: more than 100 columns"]
        );
    }
}
