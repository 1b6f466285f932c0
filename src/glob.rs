//! Patterns for names and paths, over bytes. Pure.
//!
//! `*` matches any run without a slash, and `**` any run. `?` matches one byte, or one UTF-8
//! character, that is not a slash. `[a-z]` and `[!a-z]` match one byte. `\` makes the next byte
//! literal.

/// A pattern.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Glob {
    tokens: Vec<Token>,
    ignores_case: bool,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Token {
    Byte(u8),
    /// One character.
    Any,
    Class {
        ranges: Vec<(u8, u8)>,
        negated: bool,
    },
    /// Any run without a slash.
    Run,
    /// Any run.
    Path,
    /// Stands before a [`Token::Path`] and a slash: matches these two, or nothing.
    Directories,
}

impl Glob {
    /// Parses a pattern. A malformed class is taken literally, as shells do.
    pub fn new(pattern: &[u8], ignores_case: bool) -> Glob {
        let fold = |byte: u8| match ignores_case {
            true => byte.to_ascii_lowercase(),
            false => byte,
        };
        let mut tokens = Vec::new();
        let mut at = 0;
        while let Some(&byte) = pattern.get(at) {
            at += 1;
            let token = match byte {
                b'*' if pattern.get(at) == Some(&b'*') => {
                    at += 1;
                    let begins = tokens.last().is_none_or(|last| *last == Token::Byte(b'/'));
                    if begins && pattern.get(at) == Some(&b'/') {
                        tokens.push(Token::Directories);
                    }
                    Token::Path
                }
                b'*' => Token::Run,
                b'?' => Token::Any,
                b'[' => match class(&pattern[at..], ignores_case) {
                    Some((token, length)) => {
                        at += length;
                        token
                    }
                    None => Token::Byte(b'['),
                },
                b'\\' if at < pattern.len() => {
                    at += 1;
                    Token::Byte(fold(pattern[at - 1]))
                }
                byte => Token::Byte(fold(byte)),
            };
            tokens.push(token);
        }
        Glob {
            tokens,
            ignores_case,
        }
    }

    /// Whether the pattern matches all of `text`.
    ///
    /// The time is at most proportional to the product of both lengths.
    pub fn matches(&self, text: &[u8]) -> bool {
        // The tokens that may come next, after each byte.
        let mut states = vec![false; self.tokens.len() + 1];
        states[0] = true;
        self.skip_runs(&mut states);
        for &byte in text {
            let byte = match self.ignores_case {
                true => byte.to_ascii_lowercase(),
                false => byte,
            };
            let mut next = vec![false; states.len()];
            for (index, token) in self.tokens.iter().enumerate() {
                // A character of several bytes continues the token that its first byte matched.
                if byte & 0xc0 == 0x80 && *token == Token::Any && states[index + 1] {
                    next[index + 1] = true;
                }
                if !states[index] {
                    continue;
                }
                match token {
                    Token::Run if byte != b'/' => next[index] = true,
                    Token::Path => next[index] = true,
                    token if token.takes(byte) => next[index + 1] = true,
                    _ => {}
                }
            }
            self.skip_runs(&mut next);
            states = next;
        }
        states[self.tokens.len()]
    }

    /// Marks the tokens that follow a run, since a run may be empty.
    fn skip_runs(&self, states: &mut [bool]) {
        for (index, token) in self.tokens.iter().enumerate() {
            match token {
                Token::Run | Token::Path if states[index] => states[index + 1] = true,
                Token::Directories if states[index] => {
                    states[index + 1] = true;
                    states[index + 3] = true;
                }
                _ => {}
            }
        }
    }
}

impl Token {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Token::Byte(own) => *own == byte,
            Token::Any => byte != b'/',
            Token::Class { ranges, negated } => {
                let is_in = ranges
                    .iter()
                    .any(|(first, last)| (*first..=*last).contains(&byte));
                byte != b'/' && is_in != *negated
            }
            Token::Run | Token::Path | Token::Directories => false,
        }
    }
}

/// Parses a class from the byte after its `[`.
///
/// Returns the token and the number of bytes that it takes.
fn class(pattern: &[u8], ignores_case: bool) -> Option<(Token, usize)> {
    let negated = matches!(pattern.first(), Some(b'!' | b'^'));
    let start = usize::from(negated);
    // A bracket right at the start stands for itself.
    let end = start
        + 1
        + pattern
            .get(start + 1..)?
            .iter()
            .position(|byte| *byte == b']')?;
    let inside = &pattern[start..end];
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(&first) = inside.get(at) {
        let range = match (inside.get(at + 1), inside.get(at + 2)) {
            (Some(b'-'), Some(&last)) => {
                at += 3;
                (first, last)
            }
            _ => {
                at += 1;
                (first, first)
            }
        };
        ranges.push(range);
        if ignores_case {
            ranges.push((range.0.to_ascii_lowercase(), range.1.to_ascii_lowercase()));
        }
    }
    Some((Token::Class { ranges, negated }, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Glob::new(pattern.as_bytes(), false).matches(text.as_bytes())
    }

    #[test]
    fn patterns_match_what_shells_match() {
        for (pattern, text) in [
            ("*.ibd", "a.ibd"),
            ("*.ibd", ".ibd"),
            ("a?c", "abc"),
            ("a?c", "a\u{e4}c"),
            ("[a-c]x[!0-9]", "bxy"),
            ("[]]", "]"),
            ("\\*", "*"),
            ("[", "["),
            ("/etc/*.conf", "/etc/a.conf"),
            ("/etc/**/*.conf", "/etc/a/b/c.conf"),
            ("/etc/**/*.conf", "/etc/c.conf"),
            ("**/*.conf", "a.conf"),
            ("/etc/**", "/etc/a/b"),
            ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaab"),
            ("", ""),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("*.ibd", "a.ibd2"),
            ("a?c", "ac"),
            ("a?c", "a/c"),
            ("*", "a/b"),
            ("/etc/*.conf", "/etc/a/b.conf"),
            ("[a-c]", "d"),
            ("[!a-c]", "b"),
            ("*a*a*a*a*a*a*a*a*c", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"),
            ("", "a"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn case_is_ignored_if_asked() {
        let glob = Glob::new(b"*.IBD", true);
        assert!(glob.matches(b"A.ibd") && glob.matches(b"a.IBD"));
        assert!(Glob::new(b"[A-C]x", true).matches(b"bX"));
    }

    #[test]
    fn names_are_bytes() {
        assert!(Glob::new(b"a?\xff*", false).matches(b"ab\xff\xfe"));
    }
}
