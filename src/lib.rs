//! The filesystem and its history.
