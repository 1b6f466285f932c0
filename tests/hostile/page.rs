//! The page of a hostile repository: every link of it is followed, and its forms restore and forget.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::archive;
use crate::commands::{Ran, obeyed, said, start, wait};

/// Pages that are looked at; a directory that holds itself has links without end.
const PAGES_MAX: usize = 120;

/// Bytes of a download that are read: some forged files never end.
const DOWNLOAD_BYTES: u64 = 4 << 20;

/// How long a page may take, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a crawl has seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// What must not be.
    pub problems: Vec<String>,
    /// Pages of directories and files.
    pub pages: usize,
    /// The contents of `honest` in the hostile snapshot, if its link was found.
    pub honest: Option<Vec<u8>>,
    /// What became of a restore.
    pub restored: String,
}

struct Answer {
    code: u16,
    location: String,
    body: Vec<u8>,
}

/// A client of the server at a socket.
struct Client(PathBuf);

impl Client {
    /// Sends a request, and reads at most so many bytes of its answer.
    fn ask(&self, method: &str, path: &str, form: &str, limit: u64) -> Result<Answer, String> {
        let asked = || -> std::io::Result<Vec<u8>> {
            let mut stream = UnixStream::connect(&self.0)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let length = form.len();
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\
                 Content-Length: {length}\r\n\r\n{form}"
            )?;
            let mut answer = Vec::new();
            stream.take(limit).read_to_end(&mut answer)?;
            Ok(answer)
        };
        let answer = asked().map_err(|error| format!("{path}: {error}"))?;
        let end = answer.windows(4).position(|part| part == b"\r\n\r\n");
        let end = end.ok_or_else(|| format!("{path}: no answer: {answer:?}"))?;
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let field = |name: &str| {
            let is_it = |line: &&str| line.to_ascii_lowercase().starts_with(name);
            let line = head.lines().find(is_it)?;
            Some(line[name.len()..].trim().to_owned())
        };
        let body = &answer[end + 4..];
        let is_chunked = field("transfer-encoding:").is_some();
        Ok(Answer {
            code: code.ok_or_else(|| format!("{path}: {head}"))?,
            location: field("location:").unwrap_or_default(),
            body: if is_chunked {
                unchunked(body)
            } else {
                body.to_vec()
            },
        })
    }

    fn get(&self, path: &str) -> Result<Answer, String> {
        self.ask("GET", path, "", 64 << 20)
    }
}

/// Returns the bytes of the chunks that are there.
fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(end) = body.windows(2).position(|part| part == b"\r\n") {
        let size = std::str::from_utf8(&body[..end]).unwrap_or_default();
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        let chunk = &body[end + 2..];
        bytes.extend_from_slice(&chunk[..size.min(chunk.len())]);
        if size == 0 || size + 2 > chunk.len() {
            break;
        }
        body = &chunk[size + 2..];
    }
    bytes
}

fn links(page: &str) -> impl Iterator<Item = &str> {
    let parts = page.split("href=\"").skip(1);
    parts.filter_map(|part| part.split('"').next())
}

fn between<'a>(page: &'a str, before: &str, after: &str) -> Option<&'a str> {
    page.split_once(before)?.1.split(after).next()
}

/// Starts a server, follows its links, restores the snapshot below `outer` as `page`, forgets it,
/// and ends the server.
///
/// # Panics
/// If the server does not end, or takes too much memory.
pub fn crawl(home: &Path, repository: &Path, snapshot: &str, outer: &Path) -> (Seen, Ran) {
    let machine = home.join("server");
    let socket = home.join("serve.sock");
    let shown = socket.to_string_lossy().into_owned();
    let below = outer.to_string_lossy();
    let repository = repository.to_string_lossy();
    let arguments = [
        "serve",
        &repository,
        "--listen",
        &shown,
        "--allow-forget",
        "--allow-restore",
        &below,
    ];
    let server = start(None, &machine, &[], &arguments);
    let id = rustix::process::Pid::from_child(&server);
    let begun = Instant::now();
    // The socket has a name before it listens.
    while UnixStream::connect(&socket).is_err() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    let crawled = std::thread::spawn({
        let snapshot = snapshot.to_owned();
        move || {
            let mut seen = Seen::default();
            let client = Client(socket);
            if let Err(problem) = follow(&client, &snapshot, &mut seen)
                .and_then(|()| restore(&client, &snapshot, &mut seen))
                .and_then(|()| forget(&client, &snapshot))
            {
                seen.problems.push(problem);
            }
            rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it is told");
            seen
        }
    });
    // Watches its memory meanwhile.
    let code = wait(server, &arguments);
    let seen = crawled.join().expect("the client");
    (seen, said(&machine, code))
}

fn follow(client: &Client, snapshot: &str, seen: &mut Seen) -> Result<(), String> {
    let mut known = BTreeSet::new();
    let mut open = VecDeque::from(["/".to_owned()]);
    while let Some(path) = open.pop_front() {
        if seen.pages >= PAGES_MAX {
            break;
        }
        if path.contains("?as=file") || path.contains("?as=tar") {
            download(client, &path, snapshot, seen)?;
            continue;
        }
        seen.pages += 1;
        let answer = client.get(&path)?;
        if !matches!(answer.code, 200 | 404 | 500) {
            seen.problems.push(format!("{path}: {}", answer.code));
        }
        if path.ends_with(".css") || path.ends_with(".svg") {
            continue;
        }
        let page = String::from_utf8_lossy(&answer.body).into_owned();
        if let Some(bad) = obeyed(&answer.body) {
            seen.problems.push(format!("{path}: shows {bad}"));
        }
        if !page.ends_with("</html>") || page.contains("<script") || page.contains("<img") {
            seen.problems.push(format!("{path}: is no page: {page}"));
        }
        for link in links(&page) {
            if !link.starts_with('/') && !link.starts_with('#') {
                seen.problems.push(format!("{path}: leads to {link}"));
            }
            if link.starts_with('/') && known.insert(link.to_owned()) {
                open.push_back(link.replace("&amp;", "&"));
            }
        }
    }
    Ok(())
}

fn download(client: &Client, path: &str, snapshot: &str, seen: &mut Seen) -> Result<(), String> {
    let answer = client.ask("GET", path, "", DOWNLOAD_BYTES)?;
    if !matches!(answer.code, 200 | 404 | 500) {
        seen.problems.push(format!("{path}: {}", answer.code));
    }
    if answer.code != 200 {
        return Ok(());
    }
    if path.contains("?as=tar")
        && let Some(member) = archive::leads_outside(&archive::members(&answer.body))
    {
        seen.problems
            .push(format!("{path}: leads outside: {member}"));
    }
    if path.ends_with(&format!("/{snapshot}/honest?as=file")) {
        seen.honest = Some(answer.body);
    }
    Ok(())
}

fn restore(client: &Client, snapshot: &str, seen: &mut Seen) -> Result<(), String> {
    let path = format!("/repository/1/main/{snapshot}?as=restore");
    let page = client.get(&path)?;
    let page = String::from_utf8_lossy(&page.body).into_owned();
    let Some(key) = between(&page, "name=\"key\" type=\"hidden\" value=\"", "\"") else {
        // A snapshot whose root cannot be read has no form.
        seen.restored = "no form".to_owned();
        return Ok(());
    };
    let form = format!("key={key}&root=0&below=page%2F1&existing=refused");
    let begun = client.ask("POST", &path, &form, 1 << 20)?;
    if begun.code != 303 {
        return Err(format!("{path}: {}", begun.code));
    }
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let page = client.get(&begun.location)?;
        if let Some(bad) = obeyed(&page.body) {
            return Err(format!("{}: shows {bad}", begun.location));
        }
        let page = String::from_utf8_lossy(&page.body).into_owned();
        let state = between(&page, "<dt>State</dt><dd>", "<").unwrap_or_default();
        if state != "on its way" {
            state.clone_into(&mut seen.restored);
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("a restore of the page does not end".to_owned())
}

/// Forgets the snapshot, and brings it back.
fn forget(client: &Client, snapshot: &str) -> Result<(), String> {
    let path = |form: &str| format!("/repository/1/main/{snapshot}?as={form}");
    let page = client.get(&path("forget"))?;
    let page = String::from_utf8_lossy(&page.body).into_owned();
    let Some(key) = between(&page, "name=\"key\" type=\"hidden\" value=\"", "\"") else {
        return Ok(());
    };
    for form in ["forget", "bring-back"] {
        let sent = client.ask("POST", &path(form), &format!("key={key}"), 1 << 20)?;
        if sent.code != 303 {
            return Err(format!("{form}: {}", sent.code));
        }
    }
    Ok(())
}
