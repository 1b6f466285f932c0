//! What a terminal may be shown: text without a character that it obeys. Pure.
//!
//! Owns: which characters those are, and how they are written instead. All output of commands goes
//! through here, and every line of the log: names come from the bucket, and errors carry what a
//! server has answered.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a terminal takes this for a command, or shows what stands around it in another order:
/// control characters of both sets, marks and overrides of direction, separators of lines and
/// paragraphs.
fn is_obeyed(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text with every such character that is not `kept` escaped.
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

/// Text for one line.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, None)
}

/// Text of several lines. Names in it are shown by [`name`]: one with the end of a line would make
/// lines of its own.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, Some('\n'))
}

/// A name: UTF-8 is shown as it is, anything else is escaped byte by byte.
pub fn name(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) => line(text).into_owned(),
        Err(_) => name.escape_ascii().to_string(),
    }
}

/// A line of JSON that means the same: such characters stand in strings only, and have another form
/// there.
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        match is_obeyed(char) {
            false => shown.push(char),
            // All of them have four digits; writing to a string does not fail.
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
