//! Traces: files that any writer of their volume may have made.

use bkfs::trace::format::{PAGE_BYTES, PATHS_MAX, RANGES_MAX, Trace, names_of};
use bkfs::trace::plan::{BATCH_BYTES, REPLAY_BYTES_MAX, batches, bytes_of};

use super::bounded;

/// Bytes per byte of a trace: a path of two bytes and the range of three bytes that names it take
/// 24 bytes each, and two more.
const TRACE_FACTOR: usize = 10;

/// Batches that are looked at.
const BATCHES: usize = 1000;

/// A trace, and the beginning of its replay.
pub fn trace(input: &[u8]) {
    let Ok(trace) = bounded(TRACE_FACTOR, input.len(), || Trace::decode(input)) else {
        return;
    };
    assert_eq!(trace.encode(), input);
    assert!(trace.touches.len() <= RANGES_MAX && trace.paths.len() <= PATHS_MAX);
    for path in &trace.paths {
        let names = names_of(path).expect("all paths were checked");
        assert!(
            names
                .iter()
                .all(|name| !name.contains(&b'/') && *name != b"..")
        );
    }
    assert!(bytes_of(&trace) <= REPLAY_BYTES_MAX);
    for batch in batches(&trace).take(BATCHES) {
        let bytes: u64 = batch.iter().map(|touch| touch.pages * PAGE_BYTES).sum();
        assert!(bytes <= BATCH_BYTES);
        let is_known = |file: u32| (file as usize) < trace.paths.len();
        assert!(batch.iter().all(|touch| is_known(touch.file)));
    }
}
