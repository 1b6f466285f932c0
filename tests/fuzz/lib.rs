//! The bodies of tests/fuzzing, for cargo-fuzz.

#[path = "../fuzzing/bodies/mod.rs"]
pub mod bodies;
