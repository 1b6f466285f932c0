//! Rules for the keys that a store accepts. All backends share them, so that a repository can move
//! between backends.

use crate::{Operation, StoreError, StoreErrorKind};

/// The longest key, in bytes. S3, Google Cloud Storage and Azure allow 1,024 bytes, the
/// repository's prefix included.
pub const KEY_BYTES_MAX: usize = 512;

/// The longest part of a key between two slashes, in bytes: the limit of a file name.
pub const PART_BYTES_MAX: usize = 255;

/// Checks that `key` is a key that every store accepts.
///
/// A key has 1 to [`KEY_BYTES_MAX`] bytes. It consists of parts of 1 to [`PART_BYTES_MAX`] bytes
/// that are joined by `/`. A part:
///
/// - does not begin with a dot. This excludes `.` and `..`, and leaves room for other names in a
///   local directory.
/// - does not end with a dot, because Azure drops it.
/// - holds no control character and no backslash.
///
/// No key may be a directory of another key (`a` next to `a/b`), because a local directory cannot
/// hold both. This function sees one key and does not check that.
///
/// # Errors
/// [`StoreErrorKind::Invalid`] if `key` breaks one of the rules for a single key.
pub fn check_key(operation: Operation, key: &str) -> Result<(), StoreError> {
    match fault_of_key(key) {
        None => Ok(()),
        Some(fault) => Err(StoreError::new(
            StoreErrorKind::Invalid,
            operation,
            key.escape_debug().to_string(),
            format!("this is not a key: {fault}"),
        )),
    }
}

/// Checks the prefix of a list: the beginning of a key. It may be empty, and it may end with `/`.
///
/// # Errors
/// [`StoreErrorKind::Invalid`] if no key can begin with `prefix`.
pub fn check_prefix(prefix: &str) -> Result<(), StoreError> {
    let whole = prefix.strip_suffix('/').unwrap_or(prefix);
    let fault = match (prefix, whole) {
        ("", _) => None,
        (_, "") => Some("it begins with a slash"),
        // The last part may be the beginning of a longer part, so a dot at its end is allowed.
        _ if whole.ends_with('.') && prefix == whole => fault_of_key(&format!("{whole}x")),
        _ => fault_of_key(whole),
    };
    match fault {
        None => Ok(()),
        Some(fault) => Err(StoreError::new(
            StoreErrorKind::Invalid,
            Operation::List,
            prefix.escape_debug().to_string(),
            format!("this is not the beginning of a key: {fault}"),
        )),
    }
}

fn fault_of_key(key: &str) -> Option<&'static str> {
    if key.is_empty() {
        return Some("it is empty");
    }
    if key.len() > KEY_BYTES_MAX {
        return Some("it is too long");
    }
    key.split('/').find_map(fault_of_part)
}

/// Returns the fault of one part of a key, or `None`. The same rules hold for the parts of the
/// prefix in a repository's URL.
pub(super) fn fault_of_part(part: &str) -> Option<&'static str> {
    if part.is_empty() {
        Some("it has an empty part")
    } else if part.len() > PART_BYTES_MAX {
        Some("a part of it is too long")
    } else if part.starts_with('.') {
        Some("a part of it begins with a dot")
    } else if part.ends_with('.') {
        Some("a part of it ends with a dot")
    } else if part.contains('\\') {
        Some("it has a backslash")
    } else if part.chars().any(char::is_control) {
        Some("it has a control character")
    } else {
        None
    }
}
