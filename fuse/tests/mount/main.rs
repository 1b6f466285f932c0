//! Real mounts of a small filesystem in memory. Needs root, /dev/fuse and fusermount3.

mod faults;
mod files;
mod helpers;
mod life;
mod listings;
mod memory;
