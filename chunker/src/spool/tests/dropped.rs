//! Puts that are dropped before the disk has answered.

use super::*;

/// Polls a put `looks` times, and drops it. Returns whether it has ended, and so keeps its object.
async fn put_and_leave(spool: &Spool, key: &str, looks: usize) -> Option<Arc<Spooled>> {
    let body = [noise(1, 9_000)];
    let mut put = pin!(spool.put(key, &body));
    for _ in 0..looks {
        let look = std::future::poll_fn(|context| Poll::Ready(put.as_mut().poll(context)));
        if let Poll::Ready(kept) = look.await {
            return Some(kept.expect("fits"));
        }
    }
    None
}

#[test]
fn a_dropped_put_leaves_nothing() {
    run(async {
        let mut dropped = 0;
        for looks in 0..20 {
            let disk = SimulatedDisk::new();
            let spool = create(&disk, 1).await;
            if let Some(kept) = put_and_leave(&spool, "data/00/a", looks).await {
                spool.release(&kept);
            } else {
                dropped += 1;
            }
            assert_eq!(spool.end().await, SpoolUsage::default(), "{looks} looks");
            let left = disk.paths();
            assert!(
                !left.iter().any(|path| path.starts_with(spool.directory())),
                "{looks} looks leave {left:?}"
            );
        }
        assert!((3..20).contains(&dropped), "{dropped} were dropped");
    });
}

#[test]
fn the_room_of_dropped_puts_comes_back() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let body = [noise(1, 9_000)];
        for number in 0..10 {
            let (first, second) = (
                format!("data/00/{number:x}a"),
                format!("data/00/{number:x}b"),
            );
            let mut puts = [
                Box::pin(spool.put(&first, &body)),
                Box::pin(spool.put(&second, &body)),
            ];
            for put in &mut puts {
                let look = std::future::poll_fn(|context| Poll::Ready(put.as_mut().poll(context)));
                assert!(look.await.is_pending());
            }
            drop(puts);
            // Nothing but this waiter knows of them.
            let room = tokio::time::timeout(Duration::from_secs(60), spool.room(9_000));
            room.await.expect("it comes back");
        }
        let first = spool.put("data/00/e", &body).await.expect("fits");
        let second = spool.put("data/00/f", &body).await.expect("fits");
        assert_eq!(spool.usage().files, 2);
        assert_eq!(first.read().await.expect("reads"), body[0]);
        assert_eq!(second.read().await.expect("reads"), body[0]);
    });
}

#[test]
fn a_dropped_put_that_fails_ends_the_spool_too() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        disk.fail(DiskOperation::Flush, 1, io::ErrorKind::Other);
        assert!(put_and_leave(&spool, "data/00/a", 1).await.is_none());
        let refused = spool.put("data/00/b", &[noise(1, 10)]).await;
        assert!(matches!(refused, Err(SpoolError::Disk { .. })));
        assert!(spool.failure().is_some());
        let waits = tokio::time::timeout(Duration::from_secs(9), spool.room(1));
        waits.await.expect_err("there will be none");
        let told = spool.room_unless_failed(1).await;
        assert!(matches!(told, Err(SpoolError::Disk { .. })));
    });
}

/// Polls a future once. Returns true if it waits.
async fn waits<T>(future: &mut (impl Future<Output = T> + Unpin)) -> bool {
    let look = std::future::poll_fn(|context| {
        Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending())
    });
    look.await
}

/// The disk hangs in a put that was dropped. Returns the waiter for room that has taken that over.
async fn taken_over<'a>(disk: &SimulatedDisk, spool: &'a Spool) -> impl Future<Output = ()> + 'a {
    disk.hold();
    assert!(put_and_leave(spool, "data/00/a", 1).await.is_none());
    let mut room = Box::pin(spool.room(15_000));
    assert!(waits(&mut room).await);
    room
}

#[test]
fn the_end_waits_for_all_that_the_disk_writes() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let room = taken_over(&disk, &spool).await;
        let mut end = Box::pin(spool.end());
        assert!(waits(&mut end).await, "the disk still writes");
        disk.let_go();
        let ((), ended) = tokio::join!(room, end);
        assert_eq!(ended, SpoolUsage::default());
        let left = disk.paths();
        assert!(
            !left.iter().any(|path| path.starts_with(spool.directory())),
            "{left:?}"
        );
        let late = spool.put("data/00/b", &[noise(1, 100)]).await;
        assert!(matches!(late, Err(SpoolError::Ended { .. })));
        let waits = tokio::time::timeout(Duration::from_secs(9), spool.room(1));
        waits.await.expect_err("it takes no more");
    });
}

#[test]
fn the_end_waits_for_a_put() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        disk.hold();
        let body = [noise(1, 100)];
        let mut put = Box::pin(spool.put("data/00/a", &body));
        assert!(waits(&mut put).await);
        let mut end = Box::pin(spool.end());
        assert!(waits(&mut end).await, "the disk still writes");
        disk.let_go();
        let (kept, ended) = tokio::join!(put, end);
        kept.expect("written");
        assert_eq!(ended.files, 1, "the next mount finds it");
    });
}

#[test]
fn a_sweep_waits_for_no_dropped_put() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        disk.hold();
        assert!(put_and_leave(&spool, "data/00/a", 1).await.is_none());
        let sweep = tokio::time::timeout(Duration::from_secs(1), spool.sweep());
        sweep.await.expect("at once");
        disk.let_go();
        assert_eq!(spool.end().await, SpoolUsage::default());
    });
}

#[tokio::test]
async fn the_real_disk_writes_nothing_after_the_end() {
    let place = tempfile::tempdir().expect("a directory");
    for session in 0..20 {
        let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
        let spool = Spool::create(disk, place.path(), session, 1 << 20).await;
        let spool = spool.expect("is made");
        if let Some(kept) = put_and_leave(&spool, "data/00/a", 1).await {
            spool.release(&kept);
        }
        assert_eq!(spool.end().await, SpoolUsage::default());
        let left = std::fs::read_dir(place.path()).expect("lists").count();
        assert_eq!(left, 0, "session {session}");
    }
}

/// Another put that began to write would leave its bytes in memory too, and so on.
#[test]
fn one_dropped_put_at_a_time_is_left_to_a_disk_that_hangs() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let room = taken_over(&disk, &spool).await;
        for number in 0..9 {
            let key = format!("data/00/b{number}");
            assert!(put_and_leave(&spool, &key, 1).await.is_none());
        }
        assert!(spool.lacks_room(11_000) && !spool.lacks_room(9_000));
        disk.let_go();
        room.await;
    });
}
