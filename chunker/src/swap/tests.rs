use proptest::prelude::*;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::file::PUT_TICKS_MAX;
use super::*;

const LIMIT: u64 = 1 << 20;

fn swap(limit: u64) -> SwapFile {
    let file = tempfile::tempfile().expect("a file without a name");
    SwapFile::new(file, limit).expect("random numbers")
}

/// Writes bytes that take one place; none if there is no room.
async fn put(swap: &SwapFile, bytes: &[u8]) -> Option<SwappedPart> {
    let put = swap.put(vec![Bytes::copy_from_slice(bytes)]).await;
    let mut put = put.expect("the disk works").pop().expect("one answer");
    assert!(put.len() < 2);
    put.pop().map(SwappedPart::whole)
}

async fn back(part: &SwappedPart) -> Result<Bytes, SwapError> {
    let mut read = read(vec![part.clone()]).await?;
    Ok(read.pop().expect("one answer"))
}

fn offset(part: &SwappedPart) -> u64 {
    part.whole.place.offset()
}

#[tokio::test]
async fn what_is_put_comes_back_and_is_sealed() {
    let swap = swap(LIMIT);
    let page = vec![7; 16 << 10];
    let one = put(&swap, &page).await.expect("there is room");
    let two = put(&swap, b"short").await.expect("there is room");
    assert_eq!(back(&two).await.expect("read"), &b"short"[..]);
    assert_eq!(back(&one).await.expect("read"), page);
    let mut disk = vec![0; page.len()];
    let file = &swap.0.file;
    file.read_exact_at(&mut disk, offset(&one)).unwrap();
    assert_ne!(disk, page);
}

#[tokio::test]
async fn what_is_dropped_makes_room() {
    let swap = swap(64 << 10);
    let page = vec![1; 32 << 10];
    let one = put(&swap, &page).await.expect("there is room");
    let two = put(&swap, &page).await.expect("there is room");
    assert_eq!(swap.used_bytes(), 64 << 10);
    assert!(put(&swap, &page).await.is_none());
    drop(one);
    assert_eq!(swap.used_bytes(), 32 << 10);
    let three = put(&swap, &[3; 32 << 10]).await.expect("there is room");
    assert_eq!(back(&two).await.expect("read"), page);
    assert_eq!(back(&three).await.expect("read"), vec![3; 32 << 10]);
    drop((two, three));
    assert_eq!(swap.used_bytes(), 0);
}

/// A buffer finds all of its places, or takes none.
#[tokio::test]
async fn long_bytes_take_several_places() {
    let swap = swap(128 << 10);
    let long: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
    let put = swap
        .put(vec![Bytes::from(long.clone()), Bytes::from(long.clone())])
        .await;
    let mut put = put.expect("the disk works");
    assert!(put[1].is_empty());
    assert_eq!(swap.used_bytes(), 128 << 10);
    let parts: Vec<_> = put.remove(0).into_iter().map(SwappedPart::whole).collect();
    assert_eq!(read(parts).await.expect("read").concat(), long);
    assert_eq!(swap.used_bytes(), 0);
}

/// A place is not taken by others while something in it is read.
#[tokio::test]
async fn what_is_read_keeps_its_place() {
    let swap = swap(64 << 10);
    let one = put(&swap, &[1; 40_000]).await.expect("there is room");
    let reading = read(vec![one]);
    assert!(put(&swap, &[2; 40_000]).await.is_none());
    assert_eq!(reading.await.expect("read"), [vec![1; 40_000]]);
    assert!(put(&swap, &[2; 40_000]).await.is_some());
}

/// Many small parts of a place would keep it in memory each.
#[tokio::test]
async fn parts_keep_little_in_memory() {
    let swap = swap(LIMIT);
    let bytes: Vec<u8> = (0..60_000_u32).map(|number| (number / 7) as u8).collect();
    let whole = put(&swap, &bytes).await.expect("there is room");
    let starts = (0..60_000).step_by(2_000);
    let parts = starts.clone().map(|at| whole.clone().slice(at..at + 1_000));
    let read = read(parts.collect()).await.expect("read");
    for (at, part) in starts.zip(read) {
        assert_eq!(part, &bytes[at as usize..at as usize + 1_000]);
        let alone = part.try_into_mut().expect("nothing else has it");
        assert!(alone.capacity() <= 2_000);
    }
    let inner = whole.slice(10..50_010).slice(20..40_020);
    assert_eq!(inner.len(), 40_000);
    assert_eq!(back(&inner).await.expect("read"), &bytes[30..40_030]);
}

#[tokio::test]
async fn a_changed_file_is_damage() {
    let swap = swap(LIMIT);
    let one = put(&swap, &[1; 5000]).await.expect("there is room");
    let two = put(&swap, &[2; 5000]).await.expect("there is room");
    let file = &swap.0.file;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset(&one) + 4000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset(&one) + 4000)
        .unwrap();
    assert!(!swap.has_failed());
    assert!(matches!(back(&one).await, Err(SwapError::Damaged)));
    assert!(swap.has_failed());
    // Bytes that were sealed for another place are none of this one.
    let mut sealed = vec![0; 5000];
    file.read_exact_at(&mut sealed, offset(&two)).unwrap();
    file.write_all_at(&sealed, offset(&one)).unwrap();
    assert!(matches!(back(&one).await, Err(SwapError::Damaged)));
    file.set_len(10).unwrap();
    assert!(matches!(back(&two).await, Err(SwapError::Disk(_))));
}

#[tokio::test]
async fn what_the_kernel_has_in_memory_is_read_at_once() {
    let swap = swap(LIMIT);
    let one = put(&swap, &[1; 5000]).await.expect("there is room");
    let two = put(&swap, &[2; 5000]).await.expect("there is room");
    let both = [one.clone(), two.clone()];
    // Not every filesystem tells what is in memory.
    let read = read_in_memory(&both);
    match swap.0.is_silent.load(Ordering::Relaxed) {
        true => assert_eq!(read, None),
        false => assert_eq!(read.expect("they were just written").concat(), {
            let pages: [&[u8]; 2] = [&[1; 5000], &[2; 5000]];
            pages.concat()
        }),
    }
    let file = &swap.0.file;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset(&one) + 4000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset(&one) + 4000)
        .unwrap();
    assert_eq!(read_in_memory(&both), None);
    file.set_len(offset(&two) + 10).unwrap();
    assert_eq!(read_in_memory(&[two]), None);
}

#[tokio::test]
async fn a_failed_write_keeps_nothing() {
    let file = File::open("/dev/full").expect("it is there");
    let swap = SwapFile::new(file, LIMIT).expect("random numbers");
    let put = swap.put(vec![Bytes::from_static(b"one"); 2]).await;
    assert!(matches!(put, Err(SwapError::Disk(_))));
    assert!(swap.has_failed(), "it is open for reading only");
    assert_eq!(swap.used_bytes(), 0);
    let put = swap.put(vec![Bytes::from_static(b"one"); 2]).await;
    let put = put.expect("nothing is written any more");
    assert!(put.len() == 2 && put.iter().all(Vec::is_empty));

    let file = File::options().write(true).open("/dev/full");
    let swap = SwapFile::new(file.expect("it is there"), LIMIT).expect("random numbers");
    let put = swap.put(vec![Bytes::from_static(b"one"); 2]).await;
    let put = put.expect("a full disk is no failed one");
    assert!(put.len() == 2 && put.iter().all(Vec::is_empty));
    assert!(!swap.has_failed() && swap.used_bytes() == 0);
}

#[tokio::test]
async fn no_nonce_is_used_twice() {
    let swap = swap(LIMIT);
    let mut used = std::collections::HashSet::new();
    let mut held = None;
    for length in 1..300 {
        let put = swap.put(vec![Bytes::from(vec![0; length * 100]); 3]).await;
        let put = put.expect("the disk works");
        assert!(put.iter().flatten().all(|part| used.insert(part.nonce)));
        held.replace(put);
    }
    assert!(used.len() > 800);
}

/// Returns what comes of a job within a second of the paused clock.
async fn tick<T>(job: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    tokio::select! {
        biased;
        done = job => Some(done),
        () = tokio::time::advance(Duration::from_secs(1)) => None,
    }
}

/// Each answer begins the time anew. A job without a listener does no harm.
#[tokio::test(start_paused = true)]
async fn a_disk_that_is_slow_is_no_disk_that_is_silent() {
    let swap = swap(LIMIT);
    let (step, steps) = std::sync::mpsc::channel::<()>();
    let (answer, answered) = std::sync::mpsc::channel();
    let job = swap.0.patiently(u32::MAX, move |_, answers| {
        for () in steps {
            answers.fetch_add(1, Ordering::Relaxed);
            answer.send(()).expect("the test listens");
        }
        Ok(())
    });
    let mut job = Box::pin(job);
    for _ in 0..10 {
        for _ in 0..25 {
            assert!(tick(&mut job).await.is_none());
        }
        step.send(()).expect("the job runs");
        answered.recv().expect("the job runs");
    }
    assert!(!swap.has_failed());
    let mut silent = 0;
    let done = loop {
        match tick(&mut job).await {
            Some(done) => break done,
            None => silent += 1,
        }
    };
    assert!(done.is_err() && swap.has_failed() && (30..34).contains(&silent));
}

/// What a put cannot write in its time is stored elsewhere, though the disk answers.
#[tokio::test(start_paused = true)]
async fn a_job_ends_after_its_time_although_the_disk_answers() {
    let swap = swap(LIMIT);
    let (step, steps) = std::sync::mpsc::channel::<()>();
    let (answer, answered) = std::sync::mpsc::channel();
    let job = swap.0.patiently(PUT_TICKS_MAX, move |_, answers| {
        for () in steps {
            answers.fetch_add(1, Ordering::Relaxed);
            answer.send(()).expect("the test listens");
        }
        Ok(())
    });
    let mut job = Box::pin(job);
    assert!(tick(&mut job).await.is_none(), "it begins");
    let mut ticks = 1;
    let done = loop {
        step.send(()).expect("the job runs");
        answered.recv().expect("the job runs");
        match tick(&mut job).await {
            Some(done) => break done,
            None => ticks += 1,
        }
    };
    assert!(done.is_err() && swap.has_failed());
    assert!(
        (PUT_TICKS_MAX - 2..PUT_TICKS_MAX + 4).contains(&ticks),
        "{ticks}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Whatever is written and dropped in between, all that is held reads as it was written.
    #[test]
    fn held_bytes_stay(
        steps in prop::collection::vec((1_usize..70_000, any::<u8>(), any::<bool>()), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.unwrap();
        runtime.block_on(async {
            let swap = swap(LIMIT);
            let mut held: Vec<(Vec<SwappedPart>, Vec<u8>)> = Vec::new();
            for (length, byte, drops) in steps {
                if drops && !held.is_empty() {
                    held.swap_remove(length % held.len());
                }
                let bytes = vec![byte; length];
                let put = swap.put(vec![Bytes::from(bytes.clone())]).await;
                let put = put.expect("the disk works").remove(0);
                if !put.is_empty() {
                    held.push((put.into_iter().map(SwappedPart::whole).collect(), bytes));
                }
                for (parts, bytes) in &held {
                    assert!(read(parts.clone()).await.expect("read").concat() == *bytes);
                }
            }
        });
    }
}
