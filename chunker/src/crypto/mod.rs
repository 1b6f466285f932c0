//! Sealing: how every object of a repository is named, bound to its key in the bucket, encrypted
//! and verified.
//!
//! Owns the header of objects, boxes, the keys derived for each object, the keyring, the config
//! object and the key slots. An object of a sealed repository is encrypted; an object of an
//! unsealed one only carries tags that verify it. This module does not interpret the payloads, and
//! it never reads or writes the bucket. Salts and all other random values are arguments, which the
//! caller draws afresh for each object.

mod config;
mod error;
mod header;
mod keyring;
mod keys;
mod object;
mod secrets;
mod slots;

pub use config::Config;
pub use error::OpenError;
pub use header::{HEADER_LEN, Header};
pub use keyring::{Keyring, ObjectOpener, ObjectSealer};
pub use keys::{BOX_OVERHEAD, FOOTER_BOX, NONCE_LEN, TAG_LEN};
pub use object::{Algorithm, Class, FORMAT_VERSION, Features, RepositoryId};
pub use secrets::{Secrets, SecretsError};
pub use slots::{NewSlot, Slot, SlotCost, SlotError, SlotName, Statement, Unwrapped};

#[cfg(test)]
mod tests;
