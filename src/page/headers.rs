//! Headers of answers. Pure.
//!
//! Owns what a browser may do with an answer, and the names that downloads get.

use std::fmt::Write;

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};

use crate::printable;

/// A page loads its style sheet and its icon and nothing else, sends forms to this server alone, and
/// stands in no frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; \
                      frame-ancestors 'none'; base-uri 'none'";

/// Adds the headers of every answer.
pub fn secure(headers: &mut HeaderMap) {
    let fixed = |name: HeaderName, value| (name, HeaderValue::from_static(value));
    headers.extend([
        fixed(CONTENT_SECURITY_POLICY, POLICY),
        fixed(X_CONTENT_TYPE_OPTIONS, "nosniff"),
        fixed(X_FRAME_OPTIONS, "DENY"),
        // With no-referrer the origin of a form would be null.
        fixed(REFERRER_POLICY, "same-origin"),
        fixed(CACHE_CONTROL, "no-store"),
        fixed(
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        fixed(
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ]);
}

/// Returns the value of `Content-Disposition` for a download (RFC 6266): the name in ASCII for old
/// clients, and in UTF-8. Neither has a slash, a quote or a character that controls a terminal.
pub fn attachment(name: &[u8], suffix: &str) -> HeaderValue {
    let shown = printable::name(name) + suffix;
    let is_plain = |char: char| char.is_ascii_graphic() && !"\"\\/%;'".contains(char);
    let plain: String = shown
        .chars()
        .map(|char| if is_plain(char) { char } else { '_' })
        .collect();
    let mut exact = String::new();
    for byte in shown.replace(['/', '\\'], "_").bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => exact.push(char::from(byte)),
            // Writing to a string does not fail.
            false => drop(write!(exact, "%{byte:02X}")),
        }
    }
    let value = format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}");
    HeaderValue::from_str(&value).unwrap_or(HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &[u8], suffix: &str) -> String {
        attachment(name, suffix).to_str().unwrap().to_owned()
    }

    #[test]
    fn downloads_keep_their_names() {
        assert_eq!(
            text("Bücher.sql".as_bytes(), ""),
            "attachment; filename=\"B_cher.sql\"; filename*=UTF-8''B%C3%BCcher.sql"
        );
        assert_eq!(
            text(b"etc", ".tar"),
            "attachment; filename=\"etc.tar\"; filename*=UTF-8''etc.tar"
        );
    }

    #[test]
    fn hostile_names_stay_in_their_place() {
        for name in [
            &b"a\"; filename=\"b"[..],
            b"a\r\nSet-Cookie: x",
            b"..\\..\\x",
            b"\xff\xfe",
            "\u{202e}gpj.exe".as_bytes(),
        ] {
            let value = text(name, "");
            let (before, after) = value.split_once("\"; filename*=UTF-8''").unwrap();
            let plain = before.strip_prefix("attachment; filename=\"").unwrap();
            assert!(!plain.contains(['"', '/', '\\']), "{value}");
            assert!(value.is_ascii() && !value.contains(['\r', '\n']), "{value}");
            assert!(!after.contains(['"', ';', '/', '\\']), "{value}");
        }
    }
}
