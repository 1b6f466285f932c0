//! bkfs.
fn main() {}
