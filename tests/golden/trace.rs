//! The form that `src/trace` owns: files of the volume `traces`.

use bkfs::trace::format::{Touch, Trace};

use crate::fixed;

#[test]
fn a_trace() {
    let touch = |file, page, pages| Touch { file, page, pages };
    let trace = Trace {
        paths: vec![b"mysql/shop/orders.ibd".to_vec(), b"caf\xe9".to_vec()],
        touches: vec![touch(0, 0, 4), touch(1, 300, 1), touch(0, 4, 1 << 40)],
    };
    let frozen = fixed("trace.bin", &trace.encode());
    assert_eq!(Trace::decode(&frozen), Ok(trace));
}
