//! Limits on sizes, and words that are banned from the code.
//!
//! This module owns the limits. They may only tighten.

use crate::lexer::{blank_text, closing, is_word, line_of, without_tests, word_at};
use crate::walls::is_test_file;

/// Most lines of a file that are not tests.
pub const FILE_LINES: usize = 600;
/// Most lines of a function, from `fn` to its closing brace.
pub const FUNCTION_LINES: usize = 70;
/// Most lines of tests inside the file that they test. More belong in a file `tests.rs` next to it.
pub const INLINE_TEST_LINES: usize = 300;

/// Words banned everywhere, comments included. They are written in two halves so that they do not
/// match themselves.
const BANNED_EVERYWHERE: &[(&str, &str)] = &[
    (concat!("to", "do!"), "finish it, or leave it out"),
    (concat!("unim", "plemented!"), "finish it, or leave it out"),
    (concat!("#[ig", "nore"), "a test runs, or is deleted"),
    (concat!("FIX", "ME"), "mend it, or open an issue"),
    (concat!("XX", "X"), "mend it, or open an issue"),
];

/// Code banned outside tests.
const BANNED_IN_CODE: &[(&str, &str)] = &[
    (
        ".unwrap()",
        "return an error, or `expect` a proven invariant with a message",
    ),
    ("unbounded_channel", "every queue is bounded"),
    ("mpsc::unbounded", "every queue is bounded"),
    ("static mut ", "no global state"),
    ("thread_local!", "no global state"),
    ("static ref ", "no global state"),
    ("dbg!(", "leave no traces"),
    ("block_in_place", "waiting belongs to tasks"),
];

/// Exceptions from a rule: the file, a text that the violation contains, and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "fuse/src/adapter/answers.rs",
        "thread_local!",
        "a scratch buffer for each thread",
    ),
    (
        "fuse/src/adapter/answers.rs",
        "static GATHER",
        "the same one: reused memory, nothing is kept in it between calls",
    ),
];

/// Returns the violations of all limits by one file.
pub fn violations(file: &str, source: &str) -> Vec<String> {
    let text = blank_text(source);
    let (code, tests) = without_tests(&text);
    let mut found = header(file, source);
    found.extend(banned(file, source, BANNED_EVERYWHERE));
    found.extend(file_size(file, source, &tests));
    if !is_test_file(file) {
        found.extend(banned(file, &code, BANNED_IN_CODE));
        found.extend(global_state(file, &code));
        found.extend(long_functions(file, &code));
    }
    found.retain(|violation| !is_excepted(file, violation));
    found
}

fn is_excepted(file: &str, violation: &str) -> bool {
    EXCEPTIONS
        .iter()
        .any(|(excepted, text, _)| *excepted == file && violation.contains(text))
}

fn header(file: &str, source: &str) -> Vec<String> {
    let starts_well = source
        .lines()
        .next()
        .is_some_and(|line| line.starts_with("//!"))
        || is_test_file(file);
    if starts_well {
        Vec::new()
    } else {
        vec![format!(
            "{file}:1: begins without a module header (`//!`: what it owns and what not)"
        )]
    }
}

fn banned(file: &str, text: &str, words: &[(&str, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    for (word, reason) in words {
        for (at, _) in text.match_indices(word) {
            if stands_alone(text.as_bytes(), at, word) {
                found.push(format!("{file}:{}: `{word}`: {reason}", line_of(text, at)));
            }
        }
    }
    found
}

/// Whether `word` at `at` is not part of a longer identifier.
fn stands_alone(text: &[u8], at: usize, word: &str) -> bool {
    let goes_on_before = word.starts_with(char::is_alphanumeric) && at > 0 && is_word(text[at - 1]);
    let goes_on_after = word.ends_with(char::is_alphanumeric)
        && text.get(at + word.len()).is_some_and(|&byte| is_word(byte));
    !goes_on_before && !goes_on_after
}

/// Finds statics that can change.
fn global_state(file: &str, code: &str) -> Vec<String> {
    let changes = [
        "Mutex", "RwLock", "Atomic", "OnceLock", "OnceCell", "RefCell",
    ];
    let is_static = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("static ") || (line.starts_with("pub") && line.contains(" static "))
    };
    code.lines()
        .enumerate()
        .filter(|(_, line)| is_static(line) && changes.iter().any(|word| line.contains(word)))
        .map(|(number, line)| {
            let declared = line.split(':').next().unwrap_or(line).trim();
            format!(
                "{file}:{}: `{declared}` can change: no global state",
                number + 1
            )
        })
        .collect()
}

fn file_size(file: &str, source: &str, tests: &[(usize, usize)]) -> Vec<String> {
    let test_lines: usize = tests.iter().map(|(first, last)| last - first + 1).sum();
    let code_lines = source.lines().count() - test_lines.min(source.lines().count());
    let mut found = Vec::new();
    // The limit does not bind a file of unit tests next to its code, but it binds the files of
    // tests/.
    let is_bound = file.starts_with("tests/") || !is_test_file(file);
    if code_lines > FILE_LINES && is_bound {
        found.push(format!(
            "{file}:1: {code_lines} lines outside tests, more than {FILE_LINES}"
        ));
    }
    if test_lines > INLINE_TEST_LINES && !is_test_file(file) {
        found.push(format!("{file}:{}: {test_lines} lines of tests inside the file, more than {INLINE_TEST_LINES}: move them to tests.rs", tests[0].0));
    }
    found
}

fn long_functions(file: &str, code: &str) -> Vec<String> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let word = word_at(bytes, at);
        if word == b"fn"
            && let Some((name, first, last)) = function_lines(code, at)
        {
            let lines = last - first + 1;
            if lines > FUNCTION_LINES {
                found.push(format!(
                    "{file}:{first}: fn {name} has {lines} lines, more than {FUNCTION_LINES}"
                ));
            }
        }
        at += word.len();
    }
    found
}

/// Returns name, first and last line of the function whose `fn` begins at `start`. Returns `None`
/// for a type `fn(…)` or a declaration.
fn function_lines(code: &str, start: usize) -> Option<(&str, usize, usize)> {
    let bytes = code.as_bytes();
    let name_at = start
        + 2
        + bytes[start + 2..]
            .iter()
            .take_while(|byte| byte.is_ascii_whitespace())
            .count();
    let name = word_at(bytes, name_at.min(bytes.len()));
    if name.is_empty() {
        return None;
    }
    let mut at = name_at + name.len();
    while at < bytes.len() {
        match bytes[at] {
            b'(' | b'[' => at = closing(bytes, at),
            b';' => return None,
            b'{' => {
                let end = closing(bytes, at);
                return Some((
                    &code[name_at..name_at + name.len()],
                    line_of(code, start),
                    line_of(code, end - 1),
                ));
            }
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "//! Owns nothing.\n";

    fn found(file: &str, source: &str) -> String {
        violations(file, &format!("{HEADER}{source}")).join("\n")
    }

    fn function(lines: usize) -> String {
        format!(
            "pub async fn long<T>(value: [u8; 4]) -> T\nwhere\n    T: Sized,\n{{\n{}}}\n",
            "    work();\n".repeat(lines - 5)
        )
    }

    #[test]
    fn functions_are_measured() {
        assert_eq!(found("src/a.rs", &function(FUNCTION_LINES)), "");
        assert!(
            found("src/a.rs", &function(FUNCTION_LINES + 1))
                .contains("src/a.rs:2: fn long has 71 lines")
        );
        let inside = format!("impl A {{\n    fn short() {{}}\n{}}}\n", function(90));
        assert!(found("src/a.rs", &inside).contains("fn long has 90 lines"));
        assert_eq!(
            found(
                "src/a.rs",
                &format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(90))
            ),
            ""
        );
        assert_eq!(
            found(
                "src/a.rs",
                "type F = fn(u8) -> u8;\ntrait T { fn declared(&self); }\n"
            ),
            ""
        );
    }

    #[test]
    fn files_are_measured_without_their_tests() {
        let code = "const A: u8 = 1;\n".repeat(FILE_LINES - 1);
        assert_eq!(found("src/a.rs", &code), "");
        assert!(
            found("src/a.rs", &format!("{code}const B: u8 = 2;\n"))
                .contains("601 lines outside tests")
        );
        let tests = format!(
            "#[cfg(test)]\nmod tests {{\n{}}}\n",
            "    const T: u8 = 1;\n".repeat(200)
        );
        assert_eq!(found("src/a.rs", &format!("{code}{tests}")), "");
        let many = format!(
            "#[cfg(test)]\nmod tests {{\n{}}}\n",
            "    const T: u8 = 1;\n".repeat(INLINE_TEST_LINES)
        );
        assert!(found("src/a.rs", &many).contains("move them to tests.rs"));
        assert_eq!(found("src/a/tests.rs", &code.repeat(3)), "");
        assert!(found("tests/a/main.rs", &code.repeat(3)).contains("lines outside tests"));
    }

    #[test]
    fn banned_words_are_found() {
        for (word, _) in BANNED_EVERYWHERE {
            assert!(
                found("src/a.rs", &format!("// {word}\n")).contains(word),
                "{word}"
            );
            assert!(
                found("tests/a/main.rs", &format!("// {word}\n")).contains(word),
                "{word}"
            );
        }
        assert!(found("src/a.rs", "fn f() { g().unwrap(); }").contains(".unwrap()"));
        assert!(found("src/a.rs", "fn f() { unbounded_channel(); }").contains("bounded"));
        assert!(
            found("src/a.rs", "static COUNT: AtomicU64 = AtomicU64::new(0);")
                .contains("global state")
        );
        assert!(
            found(
                "src/a.rs",
                "pub(crate) static NAMES: Mutex<u8> = Mutex::new(0);"
            )
            .contains("global state")
        );
        assert_eq!(
            found(
                "src/a.rs",
                "fn f() { g().unwrap_or(1); }\n#[cfg(test)]\nmod tests { fn f() { g().unwrap(); } }"
            ),
            ""
        );
        assert_eq!(
            found(
                "src/a.rs",
                "// `.unwrap()` in a comment, and a word that only ends like one: aXXXb\nstatic NAME: &str = \"\";"
            ),
            ""
        );
    }

    #[test]
    fn a_module_has_a_header() {
        assert_eq!(violations("src/a.rs", "use std::fmt;\n").len(), 1);
        assert!(violations("src/a.rs", "use std::fmt;\n")[0].contains("module header"));
    }
}
