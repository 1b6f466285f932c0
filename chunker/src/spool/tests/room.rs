//! Waiting for room, and disks that are full or fail meanwhile.

use super::*;

#[test]
fn room_comes_with_what_is_released() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let body = [noise(1, 9_000)];
        let first = spool.put("data/00/a", &body).await.expect("fits");
        let second = spool.put("data/00/b", &body).await.expect("fits");
        let third = spool.put("data/00/c", &body).await;
        assert!(matches!(third, Err(SpoolError::Full { .. })));
        first.uploaded();
        assert_eq!(spool.usage().waiting_files, 1);
        spool.release(&first);
        spool.sweep().await;
        assert_eq!(spool.usage().files, 2, "a reader holds it still");
        drop(first);
        let waiting = async {
            spool.room(9_000).await;
            spool.put("data/00/c", &body).await.expect("fits now")
        };
        let (third, ()) = tokio::join!(waiting, spool.sweep());
        assert_eq!((second.number(), third.number()), (1, 2));
    });
}

#[test]
fn a_waiter_for_room_learns_that_the_disk_has_failed() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let body = [noise(1, 9_000)];
        spool.put("data/00/a", &body).await.expect("fits");
        disk.fail(DiskOperation::Flush, 1, io::ErrorKind::Other);
        let fails = async { spool.put("data/00/b", &body).await };
        let waits = async {
            // The removal of the file hangs, and frees no room.
            disk.hold_removals();
            let told = spool.room_unless_failed(15_000);
            let told = tokio::time::timeout(Duration::from_secs(9), told).await;
            disk.let_go();
            told
        };
        let (failed, told) = tokio::join!(fails, waits);
        failed.expect_err("not flushed");
        let told = told.expect("at once");
        assert!(matches!(told, Err(SpoolError::Disk { .. })));
    });
}

/// Files are removed as long as the disk likes. What fits does not wait for that.
#[test]
fn what_fits_does_not_wait_for_removals() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let body = [noise(1, 100)];
        let spooled = spool.put("data/00/a", &body).await.expect("fits");
        spool.release(&spooled);
        drop(spooled);
        disk.hold_removals();
        let waits = async {
            let second = Duration::from_secs(1);
            let fits = tokio::time::timeout(second, spool.room(100)).await;
            disk.let_go();
            fits
        };
        let (fits, ()) = tokio::join!(waits, spool.sweep());
        fits.expect("there is room");
        assert_eq!(spool.usage().files, 0);
    });
}

/// One put meets a failed flush, and another one a full disk after that.
#[test]
fn a_failed_disk_is_not_trusted_again_because_it_is_full() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        disk.hold();
        disk.fail(DiskOperation::Flush, 1, io::ErrorKind::Other);
        disk.fail(DiskOperation::Flush, 2, io::ErrorKind::StorageFull);
        let body = [noise(1, 100)];
        let first = spool.put("data/00/a", &body);
        let second = spool.put("data/00/b", &body);
        let let_go = async { disk.let_go() };
        let (first, second, ()) = tokio::join!(first, second, let_go);
        assert!(first.is_err() && second.is_err());
        tokio::time::sleep(2 * FULL_DISK_REST).await;
        let refused = spool.put("data/00/c", &body).await;
        assert!(matches!(refused, Err(SpoolError::Disk { .. })));
        assert!(!refused.expect_err("refused").is_full());
    });
}

#[test]
fn a_waiter_for_room_removes_what_is_released() {
    run(async {
        let disk = SimulatedDisk::new();
        let spool = create(&disk, 1).await;
        let body = [noise(1, 9_000)];
        let spooled = spool.put("data/00/a", &body).await.expect("fits");
        let waits = tokio::time::timeout(Duration::from_secs(9), spool.room(15_000));
        let release = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            spooled.uploaded();
            spool.release(&spooled);
            drop(spooled);
        };
        let (waited, ()) = tokio::join!(waits, release);
        waited.expect("there is room");
    });
}
