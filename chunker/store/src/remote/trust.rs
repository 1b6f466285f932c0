//! Certificates of authorities, by which servers prove who they are.
//!
//! Owns how a machine without any is recognized. A client of plain http needs none, but reqwest
//! makes no client without them unless it is told which to trust.

use std::error::Error;

/// The message of rustls-platform-verifier where it finds no certificate.
const NONE_FOUND: &str = "No CA certificates were loaded";

/// Returns whether a client could not be made because this machine has no certificates of
/// authorities.
pub(super) fn lacks_authorities(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.to_string().contains(NONE_FOUND) {
            return true;
        }
        next = error.source();
    }
    false
}
