use super::segment::{self, GRID_SPAN, SEGMENT_BYTES_MAX, SegmentChunk, SegmentEnds};
use super::*;
use crate::id::Id;
use proptest::prelude::*;

/// Pseudo-random numbers, the same in every run (splitmix64).
fn numbers(mut state: u64) -> impl Iterator<Item = u64> {
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = state;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    })
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = numbers(seed)
        .take(length.div_ceil(8))
        .flat_map(u64::to_le_bytes)
        .collect();
    bytes.truncate(length);
    bytes
}

fn gear(seed: u64) -> [u64; 256] {
    let mut numbers = numbers(seed);
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

fn cutter() -> Cutter {
    Cutter::new(Parameters::default(), &gear(7))
}

/// Small parameters, so that small inputs have many chunks.
fn small_cutter() -> Cutter {
    let parameters = Parameters::from_array([4096, 1024, 4096, 8192, 16384]).unwrap();
    Cutter::new(parameters, &gear(7))
}

fn cut(cutter: &Cutter, profile: Profile, run: &[u8], offset: u64, end: bool) -> Vec<Cut> {
    let mut cuts = Vec::new();
    cutter.cut(profile, run, offset, end, &mut cuts);
    cuts
}

#[test]
fn numbers_of_profiles_are_those_of_the_format() {
    for profile in Profile::ALL {
        assert_eq!(Profile::from_number(profile as u8), Some(profile));
    }
    assert_eq!(
        [
            Profile::Grid as u8,
            Profile::Content as u8,
            Profile::Raw as u8
        ],
        [1, 2, 3]
    );
    assert_eq!(Profile::from_number(0), None);
    assert_eq!(Profile::from_number(4), None);
}

#[test]
fn parameters_out_of_bounds_are_refused() {
    let default = Parameters::default().to_array();
    assert_eq!(Parameters::from_array(default), Some(Parameters::default()));
    let with = |index: usize, number: u32| {
        let mut numbers = default;
        numbers[index] = number;
        Parameters::from_array(numbers)
    };
    for (index, right) in default.into_iter().enumerate() {
        for number in [0, 1, 512, 3000, right + 1, 2 * 1024 * 1024, u32::MAX] {
            assert_eq!(with(index, number), None, "{index} {number}");
        }
    }
    assert_eq!(with(0, 2048), None);
    assert_eq!(with(1, default[2]), None);
    assert_eq!(with(2, default[3]), None);
}

#[test]
fn content_has_the_lengths_it_should() {
    let data = noise(1, 8 << 20);
    let cuts = cut(&cutter(), Profile::Content, &data, 0, true);
    let (last, others) = cuts.split_last().unwrap();
    assert!(!last.range.is_empty() && last.range.len() <= 256 << 10);
    for cut in others {
        assert!((16 << 10..=256 << 10).contains(&cut.range.len()), "{cut:?}");
    }
    let average = data.len() / cuts.len();
    assert!((56 << 10..100 << 10).contains(&average), "{average}");
}

#[test]
fn cut_points_are_keyed() {
    let data = noise(1, 4 << 20);
    let ends = |seed| -> std::collections::HashSet<usize> {
        let cutter = Cutter::new(Parameters::default(), &gear(seed));
        let cuts = cut(&cutter, Profile::Content, &data, 0, true);
        cuts.iter().map(|cut| cut.range.end).collect()
    };
    let common = ends(1).intersection(&ends(2)).count();
    assert!(common <= 3, "{common}");
}

#[test]
fn content_is_found_again_after_an_insertion() {
    let data = noise(1, 4 << 20);
    let mut changed = data.clone();
    changed.splice(100..100, *b"inserted");
    let chunks = |data: &[u8]| -> std::collections::HashSet<Vec<u8>> {
        let cuts = cut(&cutter(), Profile::Content, data, 0, true);
        cuts.into_iter()
            .map(|cut| data[cut.range].to_vec())
            .collect()
    };
    let (before, after) = (chunks(&data), chunks(&changed));
    assert!(after.difference(&before).count() <= 3);
}

#[test]
fn pages_lie_on_the_grid_of_the_file() {
    let page = 16 << 10;
    let data = noise(1, 5 * page);
    let cuts = cut(&cutter(), Profile::Grid, &data, page as u64 - 100, false);
    let ends: Vec<_> = cuts.iter().map(|cut| cut.range.end).collect();
    assert_eq!(
        ends,
        [
            100,
            100 + page,
            100 + 2 * page,
            100 + 3 * page,
            100 + 4 * page
        ]
    );
    let cuts = cut(&cutter(), Profile::Grid, &data, page as u64 - 100, true);
    assert_eq!(cuts.last().unwrap().range, 100 + 4 * page..5 * page);
    // A file offset near the maximum of an offset.
    let cuts = cut(&cutter(), Profile::Grid, &data, u64::MAX - 10, true);
    assert_eq!(cuts[0].range, 0..11);
}

#[test]
fn zeros_are_told_from_what_is_nearly_zero() {
    for length in [0, 1, 63, 64, 65, 127, 128, 129, 1000, 16384] {
        let mut bytes = vec![0; length];
        assert!(is_zero(&bytes));
        for at in 0..length {
            bytes[at] = 1;
            assert!(!is_zero(&bytes), "{at} of {length}");
            bytes[at] = 0;
        }
    }
    let mut data = vec![0; 3 << 20];
    data[1 << 20] = 1;
    let cuts = cut(&cutter(), Profile::Raw, &data, 0, true);
    let zeros: Vec<_> = cuts.iter().map(|cut| cut.is_zero).collect();
    assert_eq!(zeros, [true, false, true]);
}

/// Chunks a file as it arrives: in pieces, with the bytes that may continue passed again in the
/// next call.
fn cut_in_pieces(cutter: &Cutter, profile: Profile, data: &[u8], pieces: &[usize]) -> Vec<Cut> {
    let (mut all, mut start, mut end) = (Vec::new(), 0, 0);
    let mut pieces = pieces.iter().cycle();
    while end < data.len() || start < data.len() {
        let before_end = end;
        end = (end + pieces.next().unwrap()).min(data.len());
        let cuts = cut(
            cutter,
            profile,
            &data[start..end],
            start as u64,
            end == data.len(),
        );
        let consumed = cuts.last().map_or(0, |cut| cut.range.end);
        assert!(end - start - consumed < cutter.parameters().longest(profile) as usize);
        all.extend(cuts.into_iter().map(|cut| Cut {
            range: start + cut.range.start..start + cut.range.end,
            ..cut
        }));
        start += consumed;
        assert!(end > before_end || start == data.len());
    }
    all
}

fn profile() -> impl Strategy<Value = Profile> {
    prop::sample::select(&Profile::ALL[..])
}

/// Random bytes, zeros, and a short repeated pattern.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let stretch =
        (0..4u8, any::<u64>(), 0..30_000usize).prop_map(|(what, seed, length)| match what {
            0 => vec![0; length],
            1 => noise(seed, 37).into_iter().cycle().take(length).collect(),
            _ => noise(seed, length),
        });
    prop::collection::vec(stretch, 0..5).prop_map(|stretches| stretches.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn chunks_follow_one_another_and_keep_their_bounds(
        profile in profile(), data in content(), offset: u64, end: bool,
    ) {
        let cutter = small_cutter();
        let cuts = cut(&cutter, profile, &data, offset, end);
        let longest = cutter.parameters().longest(profile) as usize;
        let mut start = 0;
        for cut in &cuts {
            prop_assert_eq!(cut.range.start, start);
            prop_assert!(!cut.range.is_empty() && cut.range.len() <= longest);
            prop_assert_eq!(cut.is_zero, data[cut.range.clone()].iter().all(|byte| *byte == 0));
            if profile == Profile::Grid && cut.range.end < data.len() {
                prop_assert_eq!(offset.wrapping_add(cut.range.end as u64) % longest as u64, 0);
            }
            if profile == Profile::Content && cut.range.end < data.len() {
                prop_assert!(cut.range.len() >= 1024);
            }
            start = cut.range.end;
        }
        if end {
            prop_assert_eq!(start, data.len());
        } else {
            prop_assert!(data.len() - start < longest);
        }
    }

    #[test]
    fn pieces_do_not_matter(
        profile in profile(), data in content(),
        pieces in prop::collection::vec(1..40_000usize, 1..5),
    ) {
        let cutter = small_cutter();
        let whole = cut(&cutter, profile, &data, 0, true);
        prop_assert_eq!(cut_in_pieces(&cutter, profile, &data, &pieces), whole);
    }

    #[test]
    fn a_run_may_begin_after_any_chunk(
        profile in profile(), data in content(), at: prop::sample::Index,
    ) {
        let cutter = small_cutter();
        let whole = cut(&cutter, profile, &data, 0, true);
        prop_assume!(!whole.is_empty());
        let at = at.index(whole.len());
        let start = whole[at].range.start;
        let rest = cut(&cutter, profile, &data[start..], start as u64, true);
        let ends = |cuts: &[Cut], start| cuts
            .iter()
            .map(|cut| cut.range.end + start)
            .collect::<Vec<_>>();
        prop_assert_eq!(ends(&rest, start), ends(&whole[at..], 0));
    }

    #[test]
    fn detection_takes_any_bytes(
        name: Vec<u8>, head in prop::collection::vec(any::<u8>(), 0..20_000),
    ) {
        let _ = detect(&name, &head);
    }

    #[test]
    fn segments_are_read_back(
        profile in profile(), lengths in prop::collection::vec(1..8192u32, 1..256), seed: u64,
    ) {
        let chunks = chunks(&lengths, seed);
        let encoded = segment::encode(profile, &chunks);
        let decoded = segment::decode(&encoded).unwrap();
        prop_assert_eq!(decoded.length(), lengths.iter().sum::<u32>());
        prop_assert_eq!(&decoded.chunks, &chunks);
        prop_assert_eq!(decoded.profile, profile);
        for length in 0..encoded.len() {
            prop_assert!(segment::decode(&encoded[..length]).is_err());
        }
    }

    #[test]
    fn arbitrary_bytes_are_no_segment_or_encode_again(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        if let Ok(decoded) = segment::decode(&bytes) {
            prop_assert_eq!(segment::encode(decoded.profile, &decoded.chunks), bytes);
        }
    }

    #[test]
    fn overlapping_chunks_cover_what_was_asked_for(
        lengths in prop::collection::vec(1..5000u32, 1..40),
        offset in 0..100_000u32, length in 0..100_000u32,
    ) {
        let segment = segment::Segment { profile: Profile::Content, chunks: chunks(&lengths, 1) };
        let mut expected = Vec::new();
        let mut start = 0;
        for chunk in &segment.chunks {
            if start < offset.saturating_add(length) && start + chunk.length > offset {
                expected.push((start, chunk));
            }
            start += chunk.length;
        }
        prop_assert_eq!(segment.overlapping(offset, length).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn segments_keep_their_bounds_wherever_they_begin(
        profile in profile(), lengths in prop::collection::vec(1..=1024u32, 1..400), seed: u64,
    ) {
        let parameters = Parameters::default();
        // Lengths up to the longest chunk of the profile.
        let unit = parameters.longest(profile) / 1024;
        let lengths: Vec<u32> = lengths.iter().map(|length| length * unit).collect();
        let chunks = chunks(&lengths, seed);
        let mut ends = SegmentEnds::new(profile, &parameters);
        let (mut bytes, mut count, mut offset) = (0, 0, 0u64);
        for chunk in &chunks {
            offset += u64::from(chunk.length);
            bytes += chunk.length;
            count += 1;
            prop_assert!(bytes <= SEGMENT_BYTES_MAX);
            if !ends.push(chunk, offset) {
                continue;
            }
            if profile != Profile::Grid {
                prop_assert!(count <= 32);
                prop_assert!(count >= 4 || bytes + parameters.longest(profile) > SEGMENT_BYTES_MAX);
            }
            // Chunks after an end do not depend on chunks before it.
            (bytes, count) = (0, 0);
            ends = SegmentEnds::new(profile, &parameters);
        }
    }
}

fn chunks(lengths: &[u32], seed: u64) -> Vec<SegmentChunk> {
    let mut numbers = numbers(seed);
    let mut id = || {
        let mut bytes = [0; 32];
        for part in bytes.chunks_exact_mut(8) {
            part.copy_from_slice(&numbers.next().unwrap_or(0).to_le_bytes());
        }
        Id(bytes)
    };
    lengths
        .iter()
        .map(|length| SegmentChunk {
            length: *length,
            id: id(),
        })
        .collect()
}

#[test]
fn segments_of_pages_end_on_the_span() {
    let mut ends = SegmentEnds::new(Profile::Grid, &Parameters::default());
    let lengths = [16384u32; 200];
    let mut offset = GRID_SPAN - 3 * 16384;
    let mut found = Vec::new();
    for chunk in chunks(&lengths, 1) {
        offset += 16384;
        if ends.push(&chunk, offset) {
            found.push(offset);
        }
    }
    assert_eq!(
        found,
        [GRID_SPAN, 2 * GRID_SPAN, 3 * GRID_SPAN, 4 * GRID_SPAN]
    );
}

#[test]
fn segments_by_content_end_where_ids_say() {
    let mut ends = SegmentEnds::new(Profile::Content, &Parameters::default());
    let chunk = |last| {
        let mut id = [1; 32];
        id[31] = last;
        SegmentChunk {
            length: 1000,
            id: Id(id),
        }
    };
    // Too few chunks first, then an id that ends the segment, then as many chunks as a segment may
    // have.
    let found: Vec<_> = [0x10, 0x20, 0x30, 0x41, 0x08, 0x50]
        .map(|last| ends.push(&chunk(last), 0))
        .to_vec();
    assert_eq!(found, [false, false, false, false, false, true]);
    let count = (1..).find(|_| ends.push(&chunk(1), 0));
    assert_eq!(count, Some(32));
}

#[test]
fn hostile_segments_are_refused() {
    let chunk = |length| SegmentChunk {
        length,
        id: Id([1; 32]),
    };
    let of = |chunks: &[SegmentChunk]| segment::decode(&segment::encode(Profile::Raw, chunks));
    assert!(of(&[]).is_err());
    assert!(of(&[chunk(0)]).is_err());
    assert!(of(&[chunk(u32::MAX), chunk(u32::MAX)]).is_err());
    assert!(of(&[chunk(1 << 20), chunk(1 << 20)]).is_ok());
    assert!(of(&[chunk(1 << 20), chunk(1 << 20), chunk(1)]).is_err());
    let mut bytes = segment::encode(Profile::Raw, &[chunk(1)]);
    bytes[0] = 9;
    assert!(segment::decode(&bytes).is_err());
    bytes[0] = 3;
    bytes.push(0);
    assert!(segment::decode(&bytes).is_err());
}

#[test]
fn page_files_are_known_by_their_names() {
    for name in [
        "mon/sbtest/sbtest1.ibd",
        "ibdata1",
        "mon/undo001",
        "undo_002",
        "pg/base/5/16384",
        "pg/base/5/16384.1",
        "pg/base/5/16384_fsm",
        "pg/global/1262_vm",
        "pg/pg_tblspc/16400/PG_15_202209061/5/16385_init",
        "vm/disk.QCOW2",
        "x.sqlite3",
    ] {
        assert_eq!(detect(name.as_bytes(), b""), Some(Profile::Grid), "{name}");
    }
    for name in [
        "",
        ".ibd",
        "ibdata",
        "undofile",
        "base/5/PG_VERSION",
        "base/5/16384.x",
        "base/5/16384.1.1",
        "base/5/1_fsm_vm",
        "base/5/1_log",
        "base/x/16384",
        "5/16384",
        "global/pg_control",
        "notes.txt",
    ] {
        assert_eq!(detect(name.as_bytes(), b""), None, "{name}");
    }
}

#[test]
fn page_files_are_known_by_their_contents() {
    let mut innodb = vec![0; 16384];
    innodb[..4].copy_from_slice(&[9, 8, 7, 6]);
    innodb[25] = 8;
    innodb[34..42].copy_from_slice(&[0, 0, 0, 5, 0, 0, 0, 5]);
    assert_eq!(detect(b"x", &innodb), Some(Profile::Grid));
    innodb[41] = 6;
    assert_eq!(detect(b"x", &innodb), None);
    let mut page = vec![0; 8192];
    for (offset, number) in [(12, 40u16), (14, 8000), (16, 8192), (18, 0x2004)] {
        page[offset..offset + 2].copy_from_slice(&number.to_le_bytes());
    }
    let two = [page.clone(), page.clone()].concat();
    assert_eq!(detect(b"x", &two), Some(Profile::Grid));
    let mut broken = two.clone();
    broken[8192 + 12] = 3;
    assert_eq!(detect(b"x", &broken), None);
    assert_eq!(detect(b"x", b"SQLite format 3\0rest"), Some(Profile::Grid));
    assert_eq!(detect(b"x", b"QFI\xfb rest"), Some(Profile::Grid));
    assert_eq!(detect(b"x", &[0; 65536]), None);
}

#[test]
fn compressed_files_are_raw() {
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    assert_eq!(detect(b"x", gzip), Some(Profile::Raw));
    assert_eq!(detect(b"disk.img", gzip), Some(Profile::Raw));
    assert_eq!(detect(b"x.tar.GZ", b""), Some(Profile::Raw));
    assert_eq!(detect(b"x.gz", b"this is a text and no gzip at all"), None);
    assert_eq!(detect(b"x", b"BZh91AY&SYxxxx"), Some(Profile::Raw));
    let noise = noise(1, 65536);
    assert_eq!(detect(b"x", &noise), Some(Profile::Raw));
    assert_eq!(detect(b"x", &noise[..1000]), None);
    assert_eq!(detect(b"x.ibd", &noise), Some(Profile::Grid));
    let mut archive = noise.clone();
    archive[257..262].copy_from_slice(b"ustar");
    assert_eq!(detect(b"x", &archive), None);
}

/// Runs that lie in several pieces of memory.
mod pieces {
    use super::*;

    fn cutter() -> Cutter {
        let gear = std::array::from_fn(|number| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&blake3::hash(&[number as u8]).as_bytes()[..8]);
            u64::from_le_bytes(bytes)
        });
        let small = Parameters::from_array([4096, 1024, 4096, 16_384, 8192]);
        Cutter::new(small.expect("within bounds"), &gear)
    }

    type Shape = (usize, Bytes, bool);

    fn cut(run: Vec<Bytes>, profile: Profile, file_offset: u64, end_of_data: bool) -> Vec<Shape> {
        let mut shapes = Vec::new();
        let each = |chunk: Chunk| shapes.push((chunk.start, chunk.bytes, chunk.is_zero));
        cutter().cut_pieces(profile, run, file_offset, end_of_data, each);
        shapes
    }

    /// Each of 2,048 pieces of 512 bytes was once joined to all pieces before it in its chunk, and
    /// the result was chunked again: 64 MiB took 6 s of processor time.
    #[test]
    fn short_pieces_are_joined_once() {
        let whole = Bytes::from(
            (0..1 << 20)
                .map(|at| (at / 7 % 251) as u8)
                .collect::<Vec<_>>(),
        );
        let pieces = |size: usize| whole.chunks(size).map(|piece| whole.slice_ref(piece));
        let joined: Vec<_> = gathered(pieces(512).collect(), 16 << 10).collect();
        assert!(joined.iter().all(|piece| piece.len() == 16 << 10));
        assert_eq!(joined.concat(), whole);
        // Long pieces stay as they are, and short pieces between them are joined only to each
        // other.
        let mixed: Vec<Bytes> = [20_000, 5, 6, 30_000, 7]
            .map(|size| whole.slice(..size))
            .into();
        let lengths: Vec<_> = gathered(mixed, 16 << 10).map(|piece| piece.len()).collect();
        assert_eq!(lengths, [20_000, 11, 30_000, 7]);
    }

    proptest! {
        #[test]
        fn pieces_are_cut_as_the_whole_is(
            seed: u64, length in 0..120_000usize, alphabet in 1..=255u8, offset in 0..4u64,
            at_end: bool,
            mut borders in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
            profile in 0..3usize,
        ) {
            let mut bytes = vec![0; length];
            blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
            bytes.iter_mut().for_each(|byte| *byte %= alphabet);
            let whole = Bytes::from(bytes);
            let (profile, offset) = (Profile::ALL[profile], offset * 1000);
            let mut ends: Vec<usize> = borders
                .drain(..)
                .map(|border| border.index(length + 1))
                .collect();
            ends.push(length);
            ends.sort_unstable();
            let mut start = 0;
            let pieces = ends
                .into_iter()
                .map(|end| whole.slice(std::mem::replace(&mut start, end)..end));
            let in_pieces = cut(pieces.collect(), profile, offset, at_end);
            let in_one = cut(vec![whole.clone()], profile, offset, at_end);
            prop_assert_eq!(&in_pieces, &in_one);
            let mut cuts = Vec::new();
            cutter().cut(profile, &whole, offset, at_end, &mut cuts);
            let known: Vec<_> = cuts
                .into_iter()
                .map(|cut| (cut.range.start, whole.slice(cut.range), cut.is_zero))
                .collect();
            prop_assert_eq!(in_one, known);
        }
    }
}
