//! Traces: files that any writer of their volume may have made.

use bkfs::trace::format::{PAGE_BYTES, RANGES_MAX, Trace, names_of};
use bkfs::trace::plan::{BATCH_BYTES, REPLAY_BYTES_MAX, batches, bytes_of};

use super::bounded;

/// Bytes per byte of a trace: a range of three bytes takes 24, and a growing vector holds up to
/// three times its elements. A path of two bytes is a vector of its own.
const TRACE_FACTOR: usize = 64;

/// Batches that are looked at.
const BATCHES: usize = 1000;

/// A trace, and the beginning of its replay.
pub fn trace(input: &[u8]) {
    let Ok(trace) = bounded(TRACE_FACTOR, input.len(), || Trace::decode(input)) else {
        return;
    };
    assert_eq!(trace.encode(), input);
    assert!(trace.touches.len() <= RANGES_MAX);
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
        assert!(bytes > 0 && bytes <= BATCH_BYTES);
        let is_known = |file: u32| (file as usize) < trace.paths.len();
        assert!(batch.iter().all(|touch| is_known(touch.file)));
    }
}
