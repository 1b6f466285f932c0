//! chunker

pub mod store;
