//! The helpers of mount(8) and umount(8): the arguments that they pass on. A script that prints its
//! arguments replaces the program that they call.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs a helper; returns its exit code, and the arguments that it passed on, one per line.
fn run(helper: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let tell = directory.path().join("tell");
    fs::write(&tell, "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 11\n").unwrap();
    fs::set_permissions(&tell, PermissionsExt::from_mode(0o755)).unwrap();
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    let script = fs::read_to_string(packaging.join(helper)).unwrap();
    let installed = script.replace("program=bkfs\n", &format!("program={}\n", tell.display()));
    assert_ne!(installed, script, "the install target replaces this line");
    // The test must not run umount(8) itself.
    let installed = installed.replace(
        "set -- umount ",
        &format!("set -- {} umount(8) ", tell.display()),
    );
    let output = Command::new("sh")
        .args(["-c", &installed.replace("umount(8)", "'umount(8)'"), helper])
        .args(arguments)
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

#[test]
fn mount_passes_options_on() {
    let (code, arguments) = run(
        "mount.bkfs",
        &[
            "s3://bucket/with blank",
            "/backup dir",
            "-v",
            "-n",
            "-o",
            "rw,volume=a b",
            "-o",
            "-odd",
            "-t",
            "bkfs",
        ],
    );
    assert_eq!(
        arguments,
        "mount\n-v\n-o\nrw,volume=a b\n-o\n-odd\n--\ns3://bucket/with blank\n/backup dir\n"
    );
    assert_eq!(code, Some(11), "the program's exit code is the helper's");
}

#[test]
fn mount_without_options_is_enough() {
    let (_, arguments) = run("mount.bkfs", &["file:///x", "/backup"]);
    assert_eq!(arguments, "mount\n--\nfile:///x\n/backup\n");
}

#[test]
fn mount_in_jest_mounts_nothing() {
    let (code, arguments) = run("mount.bkfs", &["file:///x", "/backup", "-f", "-o", "ro"]);
    assert_eq!((code, arguments.as_str()), (Some(0), ""));
}

#[test]
fn umount_drains_unless_told_to_hurry() {
    let (code, arguments) = run("umount.fuse.bkfs", &["/backup dir"]);
    assert_eq!(arguments, "umount\n--\n/backup dir\n");
    assert_eq!(code, Some(11));
    let (_, arguments) = run(
        "umount.fuse.bkfs",
        &["/b", "-n", "-r", "-v", "-t", "fuse.bkfs"],
    );
    assert_eq!(arguments, "umount\n-v\n--\n/b\n");
    let (_, arguments) = run("umount.fuse.bkfs", &["/b", "-l", "-f"]);
    assert_eq!(arguments, "umount(8)\n-i\n-l\n-f\n--\n/b\n");
}

#[test]
fn wrong_calls_are_refused() {
    for (helper, arguments) in [
        ("mount.bkfs", vec!["only-one"]),
        ("mount.bkfs", vec!["url", "/dir", "-x"]),
        ("mount.bkfs", vec!["url", "/dir", "more"]),
        ("mount.bkfs", vec!["url", "/dir", "-v", "more"]),
        ("umount.fuse.bkfs", vec![]),
        ("umount.fuse.bkfs", vec!["/dir", "more"]),
        ("umount.fuse.bkfs", vec!["/dir", "-q"]),
    ] {
        assert_eq!(
            run(helper, &arguments),
            (Some(2), String::new()),
            "{helper} {arguments:?}"
        );
    }
}
