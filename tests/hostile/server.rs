//! A server that answers every request with an error whose text paints a terminal: commands say it
//! before any password is asked for, and escape it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;

use crate::commands::{bkfs_in, obeyed};

/// What each error says.
const PAINT: &str = "painted\u{1b}[31m\u{1b}]0;title\u{7}\u{9b}1m\u{202e}\rbkfs: over\nbkfs: well";

/// Answers with a status and a painted body, for ever.
fn serve(status: &'static str, asked: Arc<AtomicU64>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let asked = asked.clone();
            std::thread::spawn(move || answer(stream, status, &asked));
        }
    });
    url
}

/// Answers one request; what goes wrong ends the connection.
fn answer(mut stream: TcpStream, status: &str, asked: &AtomicU64) {
    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.is_empty() {
            break;
        }
    }
    let _ = reader.take(length).read_to_end(&mut Vec::new());
    asked.fetch_add(1, Ordering::Relaxed);
    let body = format!(
        "<?xml version=\"1.0\"?><Error><Code>Painted{PAINT}</Code><Message>{PAINT}</Message></Error>"
    );
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body.as_bytes());
}

/// Runs a command against the server. Returns whether it shows what the server said.
///
/// # Panics
/// If it ends well, was not heard, or prints what a terminal obeys.
fn tried(home: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> bool {
    let ran = bkfs_in(None, home, environment, arguments);
    let what = format!("{environment:?}: {arguments:?}: {}", ran.says());
    assert_ne!(ran.code, 0, "{what}");
    assert!(!ran.error.is_empty(), "{what}");
    let mut shows = false;
    for said in [&ran.out, &ran.error] {
        assert_eq!(obeyed(said), None, "{what}");
        let said = String::from_utf8_lossy(said);
        let mut lines = said.lines();
        assert!(!lines.any(|line| line.starts_with("bkfs: well")), "{what}");
        assert!(!said.contains("panicked at"), "{what}");
        shows |= said.contains("painted");
    }
    shows
}

/// Runs all commands at once against a server that answers with this status.
fn tries(status: &'static str) {
    let home = TempDir::new().expect("a directory");
    let target = home.path().join("target");
    std::fs::create_dir(&target).expect("a directory");
    let target = target.to_string_lossy().into_owned();
    let url = "s3://bucket/prefix";
    // They differ in how they begin. Refusals of these statuses are not waited for.
    let commands: [&[&str]; 8] = [
        &["init", url],
        &["--json", "snapshots", url],
        &["restore", url, "latest", &target],
        &["check", url],
        &["gc", "--dry-run", url],
        &["key", "list", url],
        &["mount", "-f", "-o", "timeout=2", url, &target],
        &["put", url, "file", "/dev/null"],
    ];
    let shown = std::thread::scope(|scope| {
        let home = home.path();
        let trials: Vec<_> = (0..)
            .zip(commands)
            .map(|(number, arguments)| {
                scope.spawn(move || {
                    let asked = Arc::new(AtomicU64::new(0));
                    let endpoint = serve(status, asked.clone());
                    let environment = [
                        ("AWS_ENDPOINT_URL", &*endpoint),
                        ("AWS_ACCESS_KEY_ID", "key"),
                        ("AWS_SECRET_ACCESS_KEY", "secret"),
                        ("AWS_REGION", "us-east-1"),
                    ];
                    let machine = home.join(format!("machine-{number}"));
                    let shows = tried(&machine, &environment, arguments);
                    let asked = asked.load(Ordering::Relaxed);
                    assert!(asked > 0, "{status}: {arguments:?}: not asked");
                    shows
                })
            })
            .collect();
        let shown = trials.into_iter().map(|trial| trial.join().expect("done"));
        shown.filter(|shows| *shows).count()
    });
    assert!(shown > 0, "{status}: no command says what the server said");
}

#[test]
fn what_a_server_says_is_escaped_before_any_password() {
    std::thread::scope(|scope| {
        for status in ["400 Bad Request", "403 Forbidden"] {
            scope.spawn(move || tries(status));
        }
    });
}
