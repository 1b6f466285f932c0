//! Zeros: what is not stored.

/// Whether all bytes are zero (true of none at all). Costs a few nanoseconds where the first bytes are not.
pub fn is_zero(bytes: &[u8]) -> bool {
    const HEAD: usize = 64;
    let (head, _) = bytes.split_at(bytes.len().min(HEAD));
    if head.iter().any(|byte| *byte != 0) {
        return false;
    }
    // If each byte equals the one that lies HEAD before it, and the head is zero, all are zero. Comparing slices is the
    // fastest loop over memory that safe code has.
    bytes.len() <= HEAD || bytes[HEAD..] == bytes[..bytes.len() - HEAD]
}
