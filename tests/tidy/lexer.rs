//! A reader of Rust source that tells code from comments, strings and tests, and no more.
//!
//! This module owns blanking, which replaces all that is not code by spaces in place, and the
//! extent of items. It owns no rule, and knows no grammar other than brackets and literals.

/// Returns the source with every comment and every literal replaced by spaces. Length and line
/// breaks stay the same.
pub fn blank_text(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => quoted_end(bytes, at + 1, b'"'),
            b'r' | b'b' | b'c' if !continues_word(bytes, at) => match raw_string_end(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            b'\'' => match character_end(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        blank(&mut out[at..end]);
        at = end;
    }
    String::from_utf8(out).expect("whole characters are blanked, so what is left is UTF-8")
}

/// Returns blanked code in which every item under `#[cfg(test)]` is blank too, with the 1-based
/// lines of those items.
pub fn without_tests(code: &str) -> (String, Vec<(usize, usize)>) {
    let mut out = code.as_bytes().to_vec();
    let mut spans = Vec::new();
    let mut from = 0;
    while let Some(found) = code[from..].find("#[cfg(test)]") {
        let start = from + found;
        let end = item_end(code.as_bytes(), start + "#[cfg(test)]".len());
        blank(&mut out[start..end]);
        spans.push((line_of(code, start), line_of(code, end.saturating_sub(1))));
        from = end;
    }
    (
        String::from_utf8(out).expect("items begin and end at ASCII characters"),
        spans,
    )
}

/// Returns the 1-based line of a byte offset.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
        + 1
}

/// Returns the offset after the bracket that closes the one at `open`, or the end of the text if
/// there is none.
pub fn closing(code: &[u8], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Returns the offset after the item that begins at or after `from`: after further attributes, and
/// after its `;` or closing brace.
fn item_end(code: &[u8], from: usize) -> usize {
    let mut at = from;
    let mut is_use = None;
    while at < code.len() {
        match code[at] {
            b'#' if code[at..].starts_with(b"#[") => {
                at = closing(code, at + 1);
                continue;
            }
            b'(' | b'[' => {
                at = closing(code, at);
                continue;
            }
            b'{' => {
                let end = closing(code, at);
                if is_use != Some(true) {
                    return end;
                }
                at = end;
                continue;
            }
            b';' => return at + 1,
            byte if byte.is_ascii_alphabetic() => {
                let word = word_at(code, at);
                if is_use.is_none() && word != b"pub" {
                    is_use = Some(word == b"use");
                }
                at += word.len();
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    code.len()
}

/// Returns the identifier or number that begins at `at` (empty if none does).
pub fn word_at(code: &[u8], at: usize) -> &[u8] {
    let length = code[at..].iter().take_while(|&&byte| is_word(byte)).count();
    &code[at..at + length]
}

/// Whether a byte may be part of an identifier.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn continues_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_word(bytes[at - 1])
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..]
        .iter()
        .position(|&byte| byte == b'\n')
        .map_or(bytes.len(), |length| at + length)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn quoted_end(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the end of a literal with a prefix (`r"`, `r#"`, `b"`, `br#"`, `c"`, `b'`), or `None` if
/// an identifier begins here.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let prefix = bytes[start..]
        .iter()
        .take_while(|byte| matches!(byte, b'r' | b'b' | b'c'))
        .count();
    let hashes = bytes[start + prefix..]
        .iter()
        .take_while(|&&byte| byte == b'#')
        .count();
    let quote = start + prefix + hashes;
    let is_raw = bytes[start..start + prefix].contains(&b'r');
    match bytes.get(quote)? {
        b'"' if is_raw => {
            let mut close = vec![b'"'];
            close.resize(hashes + 1, b'#');
            let length = bytes[quote + 1..]
                .windows(close.len())
                .position(|window| window == close.as_slice());
            Some(length.map_or(bytes.len(), |length| quote + 1 + length + close.len()))
        }
        b'"' if hashes == 0 && prefix == 1 => Some(quoted_end(bytes, quote + 1, b'"')),
        b'\'' if hashes == 0 && &bytes[start..quote] == b"b" => {
            Some(quoted_end(bytes, quote + 1, b'\''))
        }
        _ => None,
    }
}

/// Returns the end of a character literal at `start`, or `None` if a lifetime begins here.
fn character_end(bytes: &[u8], start: usize) -> Option<usize> {
    if bytes.get(start + 1) == Some(&b'\\') {
        return Some(quoted_end(bytes, start + 1, b'\''));
    }
    let text = std::str::from_utf8(&bytes[start + 1..]).ok()?;
    let character = text.chars().next()?;
    let close = start + 1 + character.len_utf8();
    (bytes.get(close) == Some(&b'\'')).then_some(close + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank() {
        let source = "let a = \"fn x() { /* \\\" \"; // fn y\nlet b = r#\"}\"{\"#; /* { /* } */ { */ let c = '{'; fn f<'a>(d: &'a str) {}";
        let code = blank_text(source);
        assert_eq!(code.len(), source.len());
        assert_eq!(code.matches('{').count(), 1);
        assert_eq!(code.matches("fn").count(), 1);
        assert!(code.contains("<'a>"), "a lifetime is no literal: {code}");
    }

    #[test]
    fn prefixed_literals_are_blank_and_identifiers_are_not() {
        let code = blank_text("b\"{\" br\"{\" c\"{\" b'{' rust bar crab r#type");
        assert!(!code.contains('{'));
        assert!(code.contains("rust bar crab r#type"));
    }

    #[test]
    fn literals_with_other_alphabets_keep_the_text_whole() {
        assert_eq!(blank_text("'ü' x").trim(), "x");
        assert_eq!(blank_text("'\\'' x").trim(), "x");
    }

    #[test]
    fn test_items_are_taken_out() {
        let source = "fn a() {}\n#[cfg(test)]\nuse x::{y, z};\nfn b() {}\n#[cfg(test)]\n#[allow(dead_code)]\nmod tests {\n fn c() {}\n}\nfn d() {}\n#[cfg(test)]\nmod more;\n";
        let (code, spans) = without_tests(source);
        assert_eq!(spans, [(2, 3), (5, 9), (11, 12)]);
        for kept in ["fn a", "fn b", "fn d"] {
            assert!(code.contains(kept), "{kept} was lost: {code}");
        }
        assert!(!code.contains("fn c") && !code.contains("more"));
    }
}
