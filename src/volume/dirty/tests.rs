use super::*;
use bkfs_chunker::swap::{self, SwapFile};
use proptest::prelude::*;

const SPACE: usize = 400_000;

#[derive(Debug, Clone)]
enum Op {
    Write(usize, usize),
    Shared(usize, usize),
    Zero(usize, usize),
    Forget(usize, usize, u64),
    Capture,
    /// Swaps out what was written before this many writes.
    SwapOut(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let place = 0..SPACE;
    let length = prop_oneof![1usize..64, 1usize..5_000, 60_000usize..150_000];
    prop_oneof![
        (place.clone(), length.clone()).prop_map(|(a, b)| Op::Write(a, b)),
        (place.clone(), length.clone()).prop_map(|(a, b)| Op::Shared(a, b)),
        (place.clone(), length.clone()).prop_map(|(a, b)| Op::Zero(a, b)),
        (place, length, 0u64..60).prop_map(|(a, b, s)| Op::Forget(a, b, s)),
        Just(Op::Capture),
        (0u64..5).prop_map(Op::SwapOut),
    ]
}

#[test]
fn a_part_weighs_what_is_copied_for_it() {
    let mut content = Content::Open(vec![1; 4 * COPIED_PART_BYTES]);
    assert_eq!(content.part_weight(), 5);
    content.close();
    assert_eq!(content.part_weight(), 1);
    assert_eq!(Content::Zero(1 << 40).part_weight(), 1);
}

#[test]
fn a_run_is_as_long_as_its_data() {
    let mut dirty = DirtyRanges::default();
    dirty.write(100, &[1; 50], 1);
    dirty.write(150, &[2; 50], 2);
    dirty.write(300, &[3; 50], 3);
    for at in [100, 149, 150, 199] {
        assert!(dirty.runs_for(at, 100), "around {at}");
        assert!(!dirty.runs_for(at, 101), "around {at}");
    }
    assert!(dirty.runs_for(320, 50) && !dirty.runs_for(320, 51));
}

/// Each byte of the model: its value and the stamp of its write; `None` if it is not dirty.
type Model = Vec<Option<(u8, u64)>>;

fn run<T>(job: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.unwrap().block_on(job)
}

/// Returns the bytes of a part, which is `length` long.
fn bytes_of(part: &Part, length: u64) -> Bytes {
    match part {
        Part::Data(bytes) => bytes.clone(),
        Part::Zero => Bytes::from(vec![0; length as usize]),
        Part::Swapped(part) => {
            let back = run(swap::read(vec![part.clone()]));
            back.expect("the disk works").remove(0)
        }
    }
}

fn swap_file() -> SwapFile {
    SwapFile::new(tempfile::tempfile().unwrap(), 1 << 30).unwrap()
}

/// Swaps out whatever was written at or before `stamp`, and returns the number of pieces.
fn swap_all_out(dirty: &mut DirtyRanges, stamp: u64, file: &SwapFile) -> usize {
    let all = (usize::MAX, u64::MAX);
    let chosen = dirty.swappable(0, stamp, all).swappable;
    for piece in &chosen {
        let put = run(file.put(vec![piece.bytes.clone()]));
        let put = put.expect("the disk works").remove(0);
        assert!(!put.is_empty(), "there is room");
        dirty.swap_out(piece.offset, piece.stamp, put);
    }
    chosen.len()
}

fn check(dirty: &DirtyRanges, model: &Model) {
    let mut seen: Vec<Option<u8>> = vec![None; model.len()];
    for (range, part) in dirty.overlaps(0..model.len() as u64) {
        let bytes = bytes_of(&part, range.end - range.start);
        assert_eq!(bytes.len() as u64, range.end - range.start);
        for at in range.clone() {
            let value = bytes[(at - range.start) as usize];
            assert!(
                seen[at as usize].replace(value).is_none(),
                "pieces overlap at {at}"
            );
        }
    }
    let expected: Vec<Option<u8>> = model
        .iter()
        .map(|byte| byte.map(|(value, _)| value))
        .collect();
    assert!(seen == expected);
    let data: u64 = dirty
        .runs_from(0)
        .filter(|(_, data)| *data)
        .map(|(run, _)| run.end - run.start)
        .sum();
    assert_eq!(data, dirty.data_bytes());
    let pieces = dirty.pieces.values();
    let swappable = pieces.clone().map(|piece| piece.counts().swappable_bytes);
    assert_eq!(swappable.sum::<u64>(), dirty.swappable_bytes());
    let cost: u64 = pieces.map(|piece| piece.content.cost()).sum();
    let file = if dirty.is_empty() {
        0
    } else {
        FILE_OVERHEAD_BYTES
    };
    assert_eq!(cost + file, dirty.cost());
    for piece in dirty.pieces.values() {
        if let Content::Closed { bytes, held } = &piece.content {
            assert!(bytes.len() >= held / 2, "a remainder pins its buffer");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn behaves_like_a_vector_of_bytes(ops in proptest::collection::vec(op(), 1..40)) {
        let mut dirty = DirtyRanges::default();
        let mut model: Model = vec![None; SPACE + 200_000];
        let file = swap_file();
        for (stamp, op) in ops.iter().enumerate() {
            let stamp = stamp as u64 + 1;
            match *op {
                Op::Write(at, length) | Op::Shared(at, length) => {
                    let data: Vec<u8> = (0..length)
                        .map(|i| (i as u8).wrapping_mul(7) ^ stamp as u8)
                        .collect();
                    if matches!(op, Op::Write(..)) {
                        dirty.write(at as u64, &data, stamp);
                    } else {
                        dirty.write_shared(at as u64, Bytes::from(data.clone()), stamp);
                    }
                    for (i, value) in data.iter().enumerate() {
                        model[at + i] = Some((*value, stamp));
                    }
                }
                Op::Zero(at, length) => {
                    dirty.zero(at as u64..(at + length) as u64, stamp);
                    model[at..at + length].fill(Some((0, stamp)));
                }
                Op::Forget(at, length, limit) => {
                    // A piece carries the stamp of its latest write, so the result is exact
                    // only for a limit that no open piece straddles.
                    let limit = if limit >= stamp { u64::MAX } else { 0 };
                    dirty.forget(at as u64..(at + length) as u64, limit);
                    if limit > 0 {
                        model[at..at + length].fill(None);
                    }
                }
                Op::Capture => {
                    let runs: Vec<_> = dirty.runs_from(0).collect();
                    for (run, data) in runs {
                        if data {
                            let parts = dirty.capture(run.clone());
                            let bytes: Vec<u8> =
                                parts.iter().flat_map(|part| bytes_of(part, 0)).collect();
                            let expected: Vec<u8> =
                                model[run.start as usize..run.end as usize]
                                    .iter()
                                    .map(|b| b.unwrap().0)
                                    .collect();
                            prop_assert!(bytes == expected);
                        }
                    }
                }
                Op::SwapOut(before) => {
                    let limit = stamp.saturating_sub(before);
                    swap_all_out(&mut dirty, limit, &file);
                    let is_long = |piece: &&Piece| piece.content.len() >= SWAPPED_BYTES_MIN;
                    for piece in dirty.pieces.values().filter(is_long) {
                        let is_in_memory =
                            matches!(piece.content, Content::Open(_) | Content::Closed { .. });
                        prop_assert!(!is_in_memory || piece.stamp > limit);
                    }
                }
            }
            check(&dirty, &model);
        }
        drop(dirty);
        prop_assert_eq!(file.used_bytes(), 0);
    }
}

/// Whatever happens to a piece while its bytes are written to the swap file, the swap file's are
/// taken only if they are those of the piece.
#[test]
fn a_piece_that_has_changed_is_not_replaced() {
    let file = swap_file();
    let changes: [&dyn Fn(&mut DirtyRanges); 5] = [
        &|dirty| dirty.write(0, &[9; 16 << 10], 5),
        &|dirty| dirty.write_shared(0, Bytes::from(vec![9; 16 << 10]), 5),
        &|dirty| dirty.write(100, &[9], 5),
        &|dirty| dirty.zero(16_000..20_000, 5),
        &|dirty| dirty.forget(0..1 << 20, 5),
    ];
    for change in changes {
        let mut dirty = DirtyRanges::default();
        dirty.write(0, &[1; 16 << 10], 4);
        let chosen = dirty.swappable(0, 4, (10, 1)).swappable.remove(0);
        let put = run(file.put(vec![chosen.bytes.clone()]));
        let put = put.unwrap().remove(0);
        change(&mut dirty);
        let before = (dirty.overlaps(0..1 << 20), dirty.cost());
        dirty.swap_out(0, 4, put);
        assert_eq!((dirty.overlaps(0..1 << 20), dirty.cost()), before);
        assert_eq!(file.used_bytes(), 0);
    }
}

#[test]
fn bytes_that_are_swapped_out_take_little_memory() {
    let file = swap_file();
    let mut dirty = DirtyRanges::default();
    for page in 0..64 {
        dirty.write_shared(page * 32_768, Bytes::from(vec![1; 16 << 10]), page);
    }
    dirty.write(1 << 30, &[1; 4095], 64);
    assert_eq!(dirty.swappable_bytes(), 64 * (16 << 10));
    assert_eq!(swap_all_out(&mut dirty, 31, &file), 32);
    assert_eq!(dirty.swappable_bytes(), 32 * (16 << 10));
    assert_eq!(dirty.data_bytes(), 64 * (16 << 10) + 4095);
    assert!(dirty.cost() < 33 * (17 << 10) + 32 * 400);
    assert_eq!(
        swap_all_out(&mut dirty, 100, &file),
        32,
        "short pieces stay"
    );
    assert!(dirty.cost() < 65 * 400 + 8192);
    let looked = dirty.swappable(0, 100, (10, u64::MAX));
    assert_eq!((looked.pieces, looked.next), (10, Some(10 * 32_768)));
    for page in 0..64 {
        dirty.write_shared(page * 32_768, Bytes::from(vec![1; 16 << 10]), page);
    }
    let looked = dirty.swappable(0, 100, (10, 40_000));
    assert_eq!((looked.pieces, looked.next), (3, Some(3 * 32_768)));
}

#[test]
fn a_captured_piece_does_not_change_under_its_reader() {
    let mut dirty = DirtyRanges::default();
    dirty.write(0, b"old contents", 1);
    let captured = bytes_of(&dirty.capture(0..12)[0], 12);
    dirty.write(0, b"new", 2);
    dirty.write(12, b" and more", 3);
    assert_eq!(captured, &b"old contents"[..]);
    dirty.forget(0..12, 1);
    let rest: Vec<_> = dirty
        .overlaps(0..100)
        .into_iter()
        .map(|(range, _)| range)
        .collect();
    assert_eq!(
        rest,
        vec![0..3, 12..21],
        "what was written after the capture stays dirty"
    );
}

#[test]
fn small_appends_share_a_buffer() {
    let mut dirty = DirtyRanges::default();
    for i in 0..1000u64 {
        dirty.write(i * 10, b"0123456789", i);
    }
    assert_eq!(dirty.pieces(), 1);
    assert_eq!(dirty.swappable_bytes(), 10_000);
}

/// A buffer that shows when it is freed.
struct Tracked {
    bytes: Vec<u8>,
    _alive: std::sync::Arc<()>,
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A file was written and truncated to its first bytes repeatedly, and held all bytes that were
/// ever written.
#[test]
fn regression_what_is_left_of_a_buffer_does_not_keep_the_whole() {
    let alive = std::sync::Arc::new(());
    let mut dirty = DirtyRanges::default();
    let buffer = |at: u64, dirty: &mut DirtyRanges| {
        let bytes = Bytes::from_owner(Tracked {
            bytes: vec![7; 1 << 20],
            _alive: alive.clone(),
        });
        dirty.write_shared(at, bytes, 1);
    };
    buffer(0, &mut dirty);
    dirty.zero(2048..1 << 20, 2);
    assert_eq!(std::sync::Arc::strong_count(&alive), 1, "cut off");
    assert!(dirty.cost() <= 2048 + 2 * PIECE_OVERHEAD_BYTES + FILE_OVERHEAD_BYTES);
    buffer(4 << 20, &mut dirty);
    dirty.forget((4 << 20)..(5 << 20) - 2048, 1);
    assert_eq!(
        std::sync::Arc::strong_count(&alive),
        1,
        "stored but for its end"
    );
    buffer(8 << 20, &mut dirty);
    dirty.zero((8 << 20)..(8 << 20) + 4096, 2);
    assert_eq!(
        std::sync::Arc::strong_count(&alive),
        2,
        "most of it is left"
    );
    assert!(dirty.cost() >= 1 << 20, "and all of it is charged");
    assert_eq!(dirty.data_bytes(), 2048 + 2048 + (1 << 20) - 4096);
}

#[test]
fn small_writes_that_touch_become_few_pieces_in_whatever_order_they_come() {
    const COUNT: u64 = 16_384;
    let forward = |n: u64| n;
    let backward = |n: u64| COUNT - 1 - n;
    let scattered = |n: u64| n * 7919 % COUNT;
    for order in [forward, backward, scattered] {
        let mut dirty = DirtyRanges::default();
        for n in 0..COUNT {
            dirty.write(order(n) * 512, &[n as u8; 512], n);
        }
        assert_eq!(dirty.runs_from(0).count(), 1);
        let pieces = dirty.pieces.values();
        let swappable = pieces.map(|piece| piece.counts().swappable_bytes);
        assert_eq!(swappable.sum::<u64>(), dirty.swappable_bytes());
        assert!(dirty.pieces() <= 8 * 64, "{} pieces", dirty.pieces());
        assert!(dirty.cost() <= 2 * COUNT * 512);
    }
}

/// The charge for a piece covers a node of the map that is little more than half full: 6 of 11
/// places.
#[test]
fn a_small_range_costs_what_it_is_charged() {
    let place = std::mem::size_of::<u64>() + std::mem::size_of::<Piece>();
    assert!((place * 11 + 16) as u64 / 6 + 64 <= PIECE_OVERHEAD_BYTES);
    let mut dirty = DirtyRanges::default();
    for n in 0..65_536u64 {
        dirty.write(n * 1024, &[1; 512], n);
    }
    assert!(dirty.cost() <= 65_536 * (512 + 200) + FILE_OVERHEAD_BYTES);
    assert!(dirty.cost() <= 64 << 20);
}
