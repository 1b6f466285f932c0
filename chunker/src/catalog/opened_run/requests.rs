//! How parts of a run are joined into requests, and taken out of their answers: pure.

use std::ops::Range;

use bytes::Bytes;

/// The most bytes of a request for several parts.
pub(super) const REQUEST_BYTES: u64 = 1 << 20;

/// The most parts of one request: as many blocks take about 5 MiB once they are decoded.
const REQUEST_PARTS: usize = 64;

/// Parts that are no further apart than this are fetched by one request. So many bytes arrive in
/// about the time of one further request.
const GAP_BYTES: u64 = 64 << 10;

/// Returns the bytes `range` of an object, of which `bytes` begin at `start`. Empty if they are not
/// among them.
pub(super) fn part(bytes: &Bytes, start: u64, range: Range<u64>) -> Bytes {
    let from = range.start.checked_sub(start).map(|from| from as usize);
    let until = range.end.checked_sub(start).map(|until| until as usize);
    match (from, until) {
        (Some(from), Some(until)) if from <= until && until <= bytes.len() => {
            bytes.slice(from..until)
        }
        _ => Bytes::new(),
    }
}

/// Groups parts, which are in order, into requests: parts that are close together, at most
/// [`REQUEST_PARTS`] of them and [`REQUEST_BYTES`], or one that is longer.
pub(super) fn joined<T>(parts: Vec<T>, range_of: impl Fn(&T) -> Range<u64>) -> Vec<Vec<T>> {
    let mut requests: Vec<Vec<T>> = Vec::new();
    let mut span = 0..0;
    for part in parts {
        let range = range_of(&part);
        let fits = |request: &&mut Vec<T>| {
            request.len() < REQUEST_PARTS
                && range.start <= span.end + GAP_BYTES
                && range.end - span.start <= REQUEST_BYTES
        };
        match requests.last_mut().filter(fits) {
            Some(request) => {
                request.push(part);
                span.end = range.end;
            }
            None => {
                requests.push(vec![part]);
                span = range;
            }
        }
    }
    requests
}
