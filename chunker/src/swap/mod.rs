//! The swap file: bytes that memory has no room for, on local disk, until they are not needed any
//! more. They are changes of a scratch clone, or decoded frames.
//!
//! Owns the file, which has no name and ends with the process; the key that seals its bytes, which
//! only this process has; and which places of the file are taken. Does not own which bytes go there,
//! nor what they mean. Nothing in it survives a crash.
//!
//! The tag and the number of a nonce are kept in memory, so that a page of a database takes no more
//! than its own length. A disk that has failed once gets no more bytes.

mod error;
mod file;
mod part;
mod places;

pub use error::SwapError;
pub(crate) use file::SwapUse;
pub use file::{SwapFile, Swapped};
pub use part::{SwappedPart, read, read_in_time};
pub(crate) use part::{places_of, read_in_memory, read_now};

#[cfg(test)]
mod tests;
