//! A scripted server, and stores that talk to it.

use super::*;

/// The server's reaction to one request.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Reads all of it and answers.
    Answer(&'static str, Vec<(&'static str, String)>, String),
    /// Reads all of it and closes the connection.
    Forget,
    /// Reads this many bytes of the body and closes the connection.
    Leave(usize),
    /// Reads all of it and never answers.
    Hang,
    /// Reads nothing of the body and never answers.
    Ignore,
    /// Announces a body of the second size, sends the first number of bytes, and then nothing.
    Stop(usize, usize),
    /// Announces three bytes of an object, and sends more without end.
    Endless,
    /// Reads the body slowly, this many bytes (at most 1 MiB) at a time with a pause, then answers.
    Slow(usize, Duration),
    /// Reads the body like [`Step::Slow`], and never answers.
    Swallow(usize, Duration),
    /// Reads so many bytes of the body like [`Step::Slow`], and closes the connection.
    Reset(usize, usize, Duration),
    /// Reads so many bytes of the body like [`Step::Slow`], and then nothing more.
    Stall(usize, usize, Duration),
    /// Announces a large body, and sends a byte of it every 100 ms.
    Trickle,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    /// Returns the heads of the requests so far.
    pub(super) fn heads(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(super) fn count(&self) -> usize {
        self.heads().len()
    }
}

pub(super) fn success() -> Step {
    answer("200 OK", "")
}

pub(super) fn answer(status: &'static str, body: &str) -> Step {
    let etag = ("ETag", "\"tag\"".to_owned());
    Step::Answer(status, vec![etag], body.to_owned())
}

pub(super) fn error(status: &'static str, code: &str) -> Step {
    answer(
        status,
        &format!("<Error><Code>{code}</Code><Message>words</Message></Error>"),
    )
}

/// Serves one connection for each step of the script. Refuses each further connection with 418.
pub(super) async fn serve(script: Vec<Step>) -> (String, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let seen = Seen::default();
    tokio::spawn({
        let seen = seen.clone();
        async move {
            let mut script = script.into_iter();
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                let step = script.next().unwrap_or(answer("418 Unexpected", ""));
                tokio::spawn(play(connection, step, seen.clone()));
            }
        }
    });
    (endpoint, seen)
}

pub(super) async fn play(mut connection: TcpStream, step: Step, seen: Seen) {
    let (head, taken) = read_head(&mut connection).await;
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.parse().unwrap());
    let is_head = head.starts_with("HEAD");
    seen.0.lock().unwrap().push(head);
    take_body(&mut connection, &step, (taken, length)).await;
    match step {
        Step::Answer(status, headers, text) => {
            write_answer(
                &mut connection,
                status,
                &headers,
                text.len(),
                is_head,
                text.as_bytes(),
            )
            .await;
        }
        Step::Slow(..) => {
            let etag = [("ETag", "\"slow\"".to_owned())];
            write_answer(&mut connection, "200 OK", &etag, 0, is_head, b"").await;
        }
        Step::Stop(sent, length) => {
            let etag = [("ETag", "\"tag\"".to_owned())];
            write_answer(
                &mut connection,
                "200 OK",
                &etag,
                length,
                false,
                &vec![b'x'; sent],
            )
            .await;
            std::future::pending().await
        }
        Step::Endless => {
            let head = "HTTP/1.1 206 Partial Content\r\nETag: \"tag\"\r\nContent-Length: 1099511627776\r\nContent-Range: bytes 4-6/10\r\nConnection: close\r\n\r\n";
            let _ = connection.write_all(head.as_bytes()).await;
            let part = "x".repeat(1 << 16);
            while connection.write_all(part.as_bytes()).await.is_ok() {}
        }
        Step::Trickle => {
            let etag = [("ETag", "\"tag\"".to_owned())];
            let length = 1 << 20;
            write_answer(&mut connection, "200 OK", &etag, length, false, b"").await;
            while connection.write_all(b"x").await.is_ok() {
                sleep(Duration::from_millis(100)).await;
            }
        }
        Step::Forget | Step::Leave(_) | Step::Reset(..) => {}
        Step::Hang | Step::Ignore | Step::Swallow(..) | Step::Stall(..) => {
            std::future::pending().await
        }
    }
}

/// Reads the part of a body that the step takes, at its speed. `body` bytes came with the head.
async fn take_body(connection: &mut TcpStream, step: &Step, (mut body, length): (usize, usize)) {
    let mut buffer = vec![0; 1 << 20];
    let (stop_at, step_bytes, pause) = match step {
        Step::Ignore => (0, buffer.len(), Duration::ZERO),
        Step::Leave(bytes) => (*bytes, buffer.len(), Duration::ZERO),
        Step::Slow(bytes, pause) | Step::Swallow(bytes, pause) => (length, *bytes, *pause),
        Step::Reset(stop_at, bytes, pause) | Step::Stall(stop_at, bytes, pause) => {
            (*stop_at, *bytes, *pause)
        }
        _ => (length, buffer.len(), Duration::ZERO),
    };
    while body < stop_at {
        let room = step_bytes.min(stop_at - body);
        body += connection.read_exact(&mut buffer[..room]).await.unwrap();
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }
}

pub(super) async fn read_head(connection: &mut TcpStream) -> (String, usize) {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            return (head, bytes.len() - end - 4);
        }
        assert!(connection.read_buf(&mut bytes).await.unwrap() > 0);
    }
}

pub(super) async fn write_answer(
    connection: &mut TcpStream,
    status: &str,
    headers: &[(&str, String)],
    length: usize,
    is_head: bool,
    body: &[u8],
) {
    let mut head =
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    connection.write_all(head.as_bytes()).await.unwrap();
    if !is_head {
        connection.write_all(body).await.unwrap();
    }
    connection.flush().await.unwrap();
}

pub(super) fn options(endpoint: &str) -> StoreOptions {
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    StoreOptions {
        endpoint: Some(endpoint.to_owned()),
        region: Some("us-east-1".to_owned()),
        settings: vec![
            setting("AWS_ACCESS_KEY_ID", "id"),
            setting("AWS_SECRET_ACCESS_KEY", "secret"),
        ],
        use_environment: false,
        stall_timeout: Duration::from_millis(300),
        retry_for: Duration::from_secs(20),
        ..StoreOptions::default()
    }
}

/// Returns a store in front of a scripted server. If the script always answers, the timeouts are
/// long, because a busy machine takes a while.
pub(super) async fn scripted(script: impl Into<Vec<Step>>) -> (RemoteStore, Seen) {
    let script = script.into();
    let falls_silent = |step: &Step| matches!(step, Step::Hang | Step::Ignore | Step::Stop(..));
    let stalls = script.iter().any(falls_silent);
    let (endpoint, seen) = serve(script).await;
    let mut options = options(&endpoint);
    if !stalls {
        options.stall_timeout = Duration::from_secs(60);
    }
    let url = "s3://bucket/prefix".parse().unwrap();
    let store = RemoteStore::open(&url, &options).await.unwrap();
    (store, seen)
}

pub(super) fn body(bytes: usize) -> Vec<Bytes> {
    vec![
        Bytes::from(vec![b'x'; bytes]),
        Bytes::new(),
        Bytes::from_static(b"y"),
    ]
}

pub(super) fn version() -> Version {
    Version::new(Some("\"tag\"".to_owned()), None)
}
