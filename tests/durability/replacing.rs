//! A snapshot that replaces the older one of its name, as `bkfs run --replace` asks for it: one of
//! them is always kept.

use std::time::Duration;

use bkfs::mounting::settings::Settings;
use bkfs_fuse::{Ino, OpenFlags, Read, Write};
use bkfs_store::{Operation, StoreErrorKind};
use bkfs_testing::fault::{Fault, Strike};

use crate::host::{Bucket, CALLER, Host, ask, noise};

/// The inode of `.bkfs/control`.
const CONTROL: Ino = Ino(6);

/// Sends a request to the mount, and returns its answer.
fn control(host: &Host, request: &str) -> String {
    let flags = OpenFlags {
        read: true,
        write: true,
        ..OpenFlags::default()
    };
    let opened = ask(host, |vfs, reply| vfs.open(CALLER, CONTROL, flags, reply));
    let handle = opened.recv().expect("answered").expect("opened").handle;
    let write = Write {
        ino: CONTROL,
        handle,
        offset: 0,
        data: request.as_bytes(),
        from_cache: false,
        kill_privileges: false,
    };
    let written = ask(host, |vfs, reply| vfs.write(write, reply));
    written.recv().expect("answered").expect("asked");
    let read = Read {
        ino: CONTROL,
        handle,
        offset: 0,
        size: 1 << 20,
    };
    let answer = ask(host, |vfs, reply| vfs.read(read, reply));
    String::from_utf8(answer.recv().expect("answered").expect("read").to_vec()).expect("text")
}

fn has_weekly(host: &Host) -> bool {
    let list = host.run(host.repository.snapshots()).expect("listed");
    list.named("main", "weekly").is_some()
}

/// Returns a host with a snapshot `weekly`, and something written since.
fn with_weekly(bucket: &Bucket) -> Host {
    let patience = Duration::from_secs(1);
    let host = Host::patient(bucket.memory.clone(), Settings::default(), patience);
    let host = host.expect("mounted");
    host.write("file", 0, noise(1, 10));
    let made = control(&host, r#"{"snapshot":{"name":"weekly","tags":[]}}"#);
    assert!(made.contains("\"weekly\""), "{made}");
    host.write("file", 0, noise(2, 10));
    host
}

#[test]
fn a_tag_that_is_refused_leaves_the_older_snapshot() {
    let host = with_weekly(&Bucket::new());
    // The list of snapshots cannot be read: a name that is taken could not be refused now.
    host.faults
        .plan(Strike::with(Fault::Hang).on(Operation::Get).always());
    let wanted = r#"{"name":"weekly","tags":["a\nb"],"replace":true}"#;
    let answer = control(&host, &format!(r#"{{"name":{wanted}}}"#));
    assert!(answer.contains("error"), "before the tool starts: {answer}");
    host.faults.heal();
    let answer = control(&host, &format!(r#"{{"snapshot":{wanted}}}"#));
    assert!(answer.contains("error"), "{answer}");
    assert!(has_weekly(&host));
}

/// Whichever replacement of the root the store refuses.
#[test]
fn a_store_that_refuses_leaves_one_of_them() {
    for refusal in [StoreErrorKind::Denied, StoreErrorKind::OutcomeUnknown] {
        for nth in 1..=3 {
            let host = with_weekly(&Bucket::new());
            let strike = Strike::with(Fault::FailBefore(refusal)).on(Operation::Replace);
            host.faults.plan(strike.nth(nth).always());
            let wanted = r#"{"snapshot":{"name":"weekly","tags":[],"replace":true}}"#;
            let answer = control(&host, wanted);
            assert_eq!(
                answer.contains("\"replaced\":true"),
                nth > 1,
                "{nth}: {answer}"
            );
            host.faults.heal();
            assert!(has_weekly(&host), "{refusal:?} {nth}: {answer}");
        }
    }
}
