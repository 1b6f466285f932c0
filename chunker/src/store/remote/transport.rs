//! How requests travel: one HTTP client for the whole store, with time counted as time without progress, and every answer but success
//! turned into a [`Fault`] that says whether the server can have applied the request.
//!
//! `object_store` would give each request a total time, which a large object on a slow link exceeds, and would not say how far it had come.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpRequestBody, HttpResponse, HttpResponseBody, HttpService,
};
use tokio::time::{Instant, Sleep, sleep};

use super::answer::{Answer, Broken, Fault, element};
use super::lock::Locked;

/// Bytes of a body that are handed on at once: progress is seen in steps of this size.
const STEP_BYTES: usize = 256 * 1024;

/// What may lie in the sockets' buffers after the last step was handed on, in bytes (net.ipv4.tcp_wmem's usual maximum).
const SOCKET_BYTES: u64 = 4 * 1024 * 1024;

/// The slowest link that is waited for, in bytes per second, while those buffers drain.
const SLOWEST_BYTES_PER_SECOND: u64 = 32 * 1024;

/// The longest error document that is read, in bytes.
const DOCUMENT_BYTES_MAX: usize = 64 * 1024;

/// Travels with a request to the store: set as soon as it is on its way. Requests for credentials have none.
#[derive(Clone, Debug, Default)]
pub(super) struct Departed(Arc<AtomicBool>);

impl Departed {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Makes the clients that `object_store` asks for.
#[derive(Debug)]
pub(super) struct Connector {
    pub connect_timeout: Duration,
    pub stall_timeout: Duration,
    /// The client for the store itself, once it is made.
    pub made: Arc<OnceLock<HttpClient>>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = self
            .client(options)
            .map_err(|error| object_store::Error::Generic {
                store: "HTTP client",
                source: Box::new(error),
            })?;
        let client = HttpClient::new(Transport {
            client,
            stall_timeout: self.stall_timeout,
        });
        if !is_for_metadata(options) {
            let _ = self.made.set(client.clone());
        }
        Ok(client)
    }
}

impl Connector {
    fn client(&self, options: &ClientOptions) -> reqwest::Result<reqwest::Client> {
        let setting = |key| options.get_config_value(&key);
        let is_set = |key| setting(key).is_some_and(|value| value == "true");
        let connect_timeout = match is_for_metadata(options) {
            true => Duration::from_secs(1),
            false => self.connect_timeout,
        };
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("bkfs/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(connect_timeout)
            // A peer that is gone is noticed by the kernel, also while it owes nothing.
            .tcp_user_timeout(self.stall_timeout)
            .tcp_keepalive(Duration::from_secs(20))
            .pool_idle_timeout(Duration::from_secs(50))
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            // What was sent once is sent again by nobody but us.
            .retry(reqwest::retry::never())
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate();
        if let Some(proxy) = setting(ClientConfigKey::ProxyUrl) {
            builder = builder.proxy(reqwest::Proxy::all(proxy)?);
        }
        if !is_set(ClientConfigKey::AllowHttp) {
            builder = builder.https_only(true);
        }
        if is_set(ClientConfigKey::AllowInvalidCertificates) {
            builder = builder.tls_danger_accept_invalid_certs(true);
        }
        builder.build()
    }
}

/// So `object_store` marks the client for the machine's own metadata service, which answers at once or is not there.
fn is_for_metadata(options: &ClientOptions) -> bool {
    let timeout = options.get_config_value(&ClientConfigKey::ConnectTimeout);
    timeout.as_deref() == Some("1s")
}

#[derive(Debug)]
struct Transport {
    client: reqwest::Client,
    stall_timeout: Duration,
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = host_of(request.uri());
        if let Some(departed) = request.extensions().get::<Departed>() {
            departed.0.store(true, Ordering::SeqCst);
        }
        if let Some(locked) = request.extensions().get::<Locked>().cloned() {
            let signed = locked.apply(&mut request);
            signed.map_err(|reason| {
                fault(Fault::Broken(Broken {
                    host: host.clone(),
                    sent: false,
                    reason,
                }))
            })?;
        }
        let progress = Arc::new(Progress::default());
        let broken = |reason: String, sent: bool| {
            fault(Fault::Broken(Broken {
                host: host.clone(),
                sent,
                reason,
            }))
        };
        let request = into_request(request, &progress).map_err(|reason| broken(reason, false))?;
        let answer = self.client.execute(request);
        let response = match watched(answer, &progress, self.stall_timeout).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                let sent = progress.is_complete() && !error.is_connect();
                return Err(broken(innermost(&error), sent));
            }
            Err(Stalled) => {
                let seconds = self.stall_timeout.as_secs();
                let reason = format!("no progress for {seconds} s");
                return Err(broken(reason, progress.is_complete()));
            }
        };
        let status = response.status();
        let (parts, body) = http::Response::<reqwest::Body>::from(response).into_parts();
        let body = HttpResponseBody::new(WatchedAnswer {
            body,
            host: host.clone(),
            stall_timeout: self.stall_timeout,
            timer: Box::pin(sleep(self.stall_timeout)),
        });
        if status.is_success() {
            return Ok(HttpResponse::from_parts(parts, body));
        }
        let document = read_document(body).await;
        Err(fault(Fault::Answer(Answer {
            host,
            status: status.as_u16(),
            code: header(&parts, "x-ms-error-code")
                .or_else(|| element(&document, "Code").map(str::to_owned)),
            message: message_in(&document),
            region: header(&parts, "x-amz-bucket-region")
                .or_else(|| element(&document, "Region").map(str::to_owned)),
            retry_after: header(&parts, "retry-after")
                .and_then(|seconds| seconds.parse().ok())
                .map(Duration::from_secs),
        })))
    }
}

fn fault(fault: Fault) -> HttpError {
    // Of this kind nothing is tried again inside `object_store`.
    HttpError::new(HttpErrorKind::Unknown, fault)
}

fn host_of(uri: &http::Uri) -> String {
    uri.authority()
        .map(|authority| authority.as_str())
        .map(|text| text.rsplit_once('@').map_or(text, |(_, host)| host))
        .unwrap_or("the server")
        .to_owned()
}

fn header(parts: &http::response::Parts, name: &str) -> Option<String> {
    let value = parts.headers.get(name)?.to_str().ok()?;
    Some(value.to_owned()).filter(|value| !value.is_empty())
}

fn into_request(
    request: HttpRequest,
    progress: &Arc<Progress>,
) -> Result<reqwest::Request, String> {
    let (parts, body) = request.into_parts();
    let url = reqwest::Url::parse(&parts.uri.to_string()).map_err(|error| error.to_string())?;
    let mut request = reqwest::Request::new(parts.method, url);
    *request.headers_mut() = parts.headers;
    let length = body.content_length();
    progress.left.store(length as u64, Ordering::SeqCst);
    *request.body_mut() = Some(match length {
        0 => reqwest::Body::from(Bytes::new()),
        _ => reqwest::Body::wrap(WatchedRequest {
            body,
            step: Bytes::new(),
            progress: Arc::clone(progress),
        }),
    });
    Ok(request)
}

/// How far a request's body has come.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes that have not been handed to the connection.
    left: AtomicU64,
}

impl Progress {
    /// Whether the server may have the whole request.
    fn is_complete(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

/// Nothing moved for too long.
struct Stalled;

/// Waits for an answer as long as the request makes progress.
async fn watched<T>(
    answer: impl Future<Output = T>,
    progress: &Progress,
    stall_timeout: Duration,
) -> Result<T, Stalled> {
    let whole = progress.left.load(Ordering::SeqCst);
    let draining = Duration::from_secs(whole.min(SOCKET_BYTES) / SLOWEST_BYTES_PER_SECOND);
    let mut answer = std::pin::pin!(answer);
    let mut left = whole;
    loop {
        let patience = match left {
            0 => stall_timeout + draining,
            _ => stall_timeout,
        };
        tokio::select! {
            biased;
            answer = &mut answer => return Ok(answer),
            () = sleep(patience) => {}
        }
        let now = progress.left.load(Ordering::SeqCst);
        if now == left {
            return Err(Stalled);
        }
        left = now;
    }
}

/// A request's body that counts what is taken from it.
struct WatchedRequest {
    body: HttpRequestBody,
    step: Bytes,
    progress: Arc<Progress>,
}

impl Body for WatchedRequest {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        while self.step.is_empty() {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.step = frame.into_data().unwrap_or_default();
                }
                other => return other,
            }
        }
        let length = self.step.len().min(STEP_BYTES);
        let step = self.step.split_to(length);
        self.progress
            .left
            .fetch_sub(length as u64, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Frame::data(step))))
    }

    fn is_end_stream(&self) -> bool {
        self.progress.is_complete()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.progress.left.load(Ordering::SeqCst))
    }
}

/// An answer's body that is waited for only while it makes progress.
struct WatchedAnswer {
    body: reqwest::Body,
    host: String,
    stall_timeout: Duration,
    timer: Pin<Box<Sleep>>,
}

impl WatchedAnswer {
    fn broken(&self, reason: String) -> HttpError {
        fault(Fault::Broken(Broken {
            host: self.host.clone(),
            sent: true,
            reason,
        }))
    }
}

impl Body for WatchedAnswer {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                let deadline = Instant::now() + self.stall_timeout;
                self.timer.as_mut().reset(deadline);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(self.broken(innermost(&error))))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => match self.timer.as_mut().poll(context) {
                Poll::Ready(()) => {
                    let seconds = self.stall_timeout.as_secs();
                    let reason = format!("no progress for {seconds} s in the middle of the answer");
                    Poll::Ready(Some(Err(self.broken(reason))))
                }
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The document that comes with an error, as far as it comes.
async fn read_document(body: HttpResponseBody) -> String {
    use futures::StreamExt;
    let mut document = Vec::new();
    let mut stream = body.bytes_stream();
    while let Some(Ok(bytes)) = stream.next().await {
        let room = DOCUMENT_BYTES_MAX - document.len();
        document.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if document.len() == DOCUMENT_BYTES_MAX {
            break;
        }
    }
    String::from_utf8_lossy(&document).into_owned()
}

/// The words for people in an error document, which is XML, JSON or plain text.
fn message_in(document: &str) -> Option<String> {
    const SHOWN_MAX: usize = 200;
    if let Some(message) = element(document, "Message") {
        return Some(message.to_owned());
    }
    let text = document.trim();
    let shown = !text.is_empty() && !text.starts_with('<') && text.len() <= SHOWN_MAX;
    shown.then(|| text.to_owned())
}

/// The last words of an error and of what caused it: the outer ones say only that a request failed.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        // Some errors repeat what caused them.
        if !texts.iter().any(|outer| outer.contains(&text)) {
            texts.push(text);
        }
        next = error.source();
    }
    let skipped = texts.len().saturating_sub(2);
    texts[skipped..].join(": ")
}
