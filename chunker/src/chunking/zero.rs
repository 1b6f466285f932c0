//! Detection of zeros, which are not stored.

/// Returns true if all bytes are zero, and for no bytes at all. Takes a few nanoseconds if one of
/// the first 64 bytes is not zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    const HEAD: usize = 64;
    let (head, _) = bytes.split_at(bytes.len().min(HEAD));
    if head.iter().any(|byte| *byte != 0) {
        return false;
    }
    // If each byte equals the byte HEAD positions before it, and the head is zero, all bytes are
    // zero. A comparison of slices is the fastest loop over memory that safe code has.
    bytes.len() <= HEAD || bytes[HEAD..] == bytes[..bytes.len() - HEAD]
}
