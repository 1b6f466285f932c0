//! A content-addressed, encrypted store of chunks over a bucket.
//!
//! Owns everything between bytes of content and objects in the bucket: chunking, ids, compression,
//! encryption, packs and the index. Does not own the bucket itself, which is the crate
//! `bkfs_store`. Knows nothing of files, directories, inodes or the kernel.
//!
//! `cut`, `id`, `codec`, `seal`, `pack`, `index` and `run` are pure: they do no I/O, read no clock and
//! draw no randomness.

pub mod chunking;
pub mod codec;
pub mod coded;
pub mod crypto;
pub mod id;
pub mod index;
pub mod pack;
pub mod run;

pub mod budget;
mod cache;
pub mod catalog;
mod config;
pub mod content_store;
pub mod error;
pub mod extent;
mod fuse_descriptor;
mod gate;
mod hydrate;
pub mod ingest;
pub mod metrics;
mod pending;
pub mod pins;
mod progress;
mod runtime;
pub mod spool;
mod store_client;
pub mod swap;
pub mod verify;
pub mod workers;
