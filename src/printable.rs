//! Text that is safe to show on a terminal: without characters that control it. Pure.
//!
//! This module owns the choice of these characters and how they are escaped. All output of commands
//! and every log line passes through it, because names come from the bucket and errors carry
//! answers of a server.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a terminal interprets this character, or reorders the text around it: control characters
/// of both sets, marks and overrides of direction, separators of lines and paragraphs.
fn is_obeyed(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Escapes every such character except `kept`.
fn escaped(text: &str, kept: Option<char>) -> Cow<'_, str> {
    let is_bad = |char: char| is_obeyed(char) && Some(char) != kept;
    if !text.contains(is_bad) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        match u8::try_from(char) {
            _ if !is_bad(char) => shown.push(char),
            Ok(byte) if byte.is_ascii() => shown.extend(byte.escape_ascii().map(char::from)),
            _ => shown.extend(char.escape_unicode()),
        }
    }
    Cow::Owned(shown)
}

/// Returns `text` for a single line.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, None)
}

/// Returns `text` for several lines.
///
/// The caller shows each name in it by [`name`], since a name with a line break would add lines of
/// its own.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, Some('\n'))
}

/// Returns a name for output. UTF-8 stays as it is; other names are escaped byte by byte.
pub fn name(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) => line(text).into_owned(),
        Err(_) => name.escape_ascii().to_string(),
    }
}

/// Returns a line of JSON with the same meaning.
///
/// Control characters occur in strings only, and have an escaped form there.
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        match is_obeyed(char) {
            false => shown.push(char),
            // All of them have four hexadecimal digits. Writing to a string does not fail.
            true => drop(write!(shown, "\\u{:04x}", u32::from(char))),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_nothing_else_is() {
        assert_eq!(line("grün \\ 漢字 👩‍🚀"), "grün \\ 漢字 👩‍🚀");
        assert_eq!(line("\u{1b}[31m\n\r\t\u{7f}"), "\\x1b[31m\\n\\r\\t\\x7f");
        assert_eq!(
            line("\u{9b}1m\u{202e}\u{2028}"),
            "\\u{9b}1m\\u{202e}\\u{2028}"
        );
        assert_eq!(lines("one\ntwo\u{1b}"), "one\ntwo\\x1b");
        assert_eq!(name(b"\xff\x1b"), "\\xff\\x1b");
        for code in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
            let shown = line(code.encode_utf8(&mut [0; 4])).into_owned();
            assert!(!shown.contains(is_obeyed), "{code:?}");
        }
    }

    #[test]
    fn json_means_the_same() {
        let name = "\u{1b}\u{7f}\u{9b}\u{202e}\"\\\n";
        let text = serde_json::to_string(name).unwrap();
        let shown = json(&text);
        assert!(!shown.contains(is_obeyed));
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), name);
    }
}
