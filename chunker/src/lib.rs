//! chunker
