//! Which keys a store accepts. One rule for all backends, so that a repository can move between them.

use super::{Operation, StoreError, StoreErrorKind};

/// The longest key in bytes. S3, Google Cloud and Azure allow 1,024 with the repository's prefix.
pub const KEY_BYTES_MAX: usize = 512;

/// The longest part of a key between slashes, in bytes: what a file name may have.
pub const PART_BYTES_MAX: usize = 255;

/// Checks a key: 1 to [`KEY_BYTES_MAX`] bytes in parts of 1 to [`PART_BYTES_MAX`] joined by `/`; a part does not begin with a dot
/// (so `.` and `..` are none, and the local directory has room for names of its own), does not end with a dot (Azure drops it), and holds no
/// control character and no backslash. No key may be a directory of another (`a` beside `a/b`): a local directory cannot hold both.
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

/// Checks the prefix of a list: the beginning of a key, possibly empty, possibly ending with `/`.
pub fn check_prefix(prefix: &str) -> Result<(), StoreError> {
    let whole = prefix.strip_suffix('/').unwrap_or(prefix);
    let fault = match (prefix, whole) {
        ("", _) => None,
        (_, "") => Some("it begins with a slash"),
        // The last part may be the beginning of a longer one, so that a dot at its end says nothing.
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

/// What is wrong with one part of a key, also of the prefix in a repository's URL.
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
