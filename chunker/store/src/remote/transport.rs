//! The transport of requests: one HTTP client for the whole store.
//!
//! Time limits apply to time without progress, and to bodies below a least rate (`sending`). Every
//! answer but success becomes a [`Fault`] that says whether the server may have applied the request.
//! `object_store` would limit the total time of a request, which a large object on a slow link
//! exceeds, and would not say how much was sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpResponseBody, HttpService,
};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep};

use super::answer::{Answer, Broken, Fault, Said, Senseless, is_metadata_service};
use super::contact::{Contact, QUIET};
use super::departed::Departed;
use super::locker::Locked;
use super::sending::{BodyProgress, GivenUp, Patience, WatchedRequest, watched};
use super::short_queue::ShortQueue;
use super::trust::lacks_authorities;

/// The connect timeout of the machine's own metadata service, which is near or absent.
const NEAR_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest error document that is read, in bytes.
const DOCUMENT_BYTES_MAX: usize = 64 * 1024;

/// Creates the clients that `object_store` asks for.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    pub connect_timeout: Duration,
    pub patience: Patience,
    pub contact: Arc<Contact>,
    /// The client that was created last. `object_store` creates the clients for credentials before
    /// the client for the store itself.
    pub made: Arc<Mutex<Option<HttpClient>>>,
    /// The shared clients below them, because each one loads the system's certificates.
    pub clients: Arc<Mutex<Vec<(Wanted, reqwest::Client)>>>,
}

/// The settings in which the clients of a store differ.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    connect_timeout: Duration,
    proxy: Option<String>,
    allows_http: bool,
    allows_any_certificate: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = |timeout| {
            self.client(options, timeout)
                .map_err(|error| object_store::Error::Generic {
                    store: "HTTP client",
                    source: Box::new(error),
                })
        };
        let client = HttpClient::new(Transport {
            far: client(self.connect_timeout)?,
            near: client(self.connect_timeout.min(NEAR_TIMEOUT))?,
            patience: self.patience,
            contact: Arc::clone(&self.contact),
        });
        *self.made.lock() = Some(client.clone());
        Ok(client)
    }
}

impl Connector {
    fn client(
        &self,
        options: &ClientOptions,
        connect_timeout: Duration,
    ) -> reqwest::Result<reqwest::Client> {
        let setting = |key| options.get_config_value(&key);
        let is_set = |key| setting(key).is_some_and(|value| value == "true");
        let wanted = Wanted {
            connect_timeout,
            proxy: setting(ClientConfigKey::ProxyUrl),
            allows_http: is_set(ClientConfigKey::AllowHttp),
            allows_any_certificate: is_set(ClientConfigKey::AllowInvalidCertificates),
        };
        let mut clients = self.clients.lock();
        if let Some((_, client)) = clients.iter().find(|(known, _)| *known == wanted) {
            return Ok(client.clone());
        }
        let client = match client_builder(&wanted)?.build() {
            Err(error) if wanted.allows_http && lacks_authorities(&error) => {
                client_builder(&wanted)?.tls_certs_only([]).build()?
            }
            built => built?,
        };
        clients.push((wanted, client.clone()));
        Ok(client)
    }
}

fn client_builder(wanted: &Wanted) -> reqwest::Result<reqwest::ClientBuilder> {
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("bkfs/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(wanted.connect_timeout)
        // The kernel notices a peer that is gone while no request is pending, within 35 s.
        // TCP_USER_TIMEOUT would also end connections to a peer that reads slowly: the time in
        // which its window is closed adds up over several openings. Limits of requests are ours.
        .tcp_user_timeout(None)
        .tcp_keepalive(Duration::from_secs(20))
        .tcp_keepalive_interval(Duration::from_secs(5))
        .tcp_keepalive_retries(3)
        .connector_layer(ShortQueue)
        .pool_idle_timeout(Duration::from_secs(50))
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        // Only this crate repeats a request that was sent.
        .retry(reqwest::retry::never())
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate();
    #[cfg(target_feature = "crt-static")]
    {
        let resolver = super::resolver::Resolver::within(wanted.connect_timeout);
        builder = builder.dns_resolver(resolver);
    }
    if let Some(proxy) = &wanted.proxy {
        builder = builder.proxy(reqwest::Proxy::all(proxy)?);
    }
    if !wanted.allows_http {
        builder = builder.https_only(true);
    }
    if wanted.allows_any_certificate {
        builder = builder.tls_danger_accept_invalid_certs(true);
    }
    Ok(builder)
}

#[derive(Debug)]
struct Transport {
    /// For all other servers.
    far: reqwest::Client,
    /// For the machine's own metadata service.
    near: reqwest::Client,
    patience: Patience,
    contact: Arc<Contact>,
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = host_of(request.uri());
        if let Some(departed) = request.extensions().get::<Departed>() {
            departed.set();
        }
        let unsent = |reason: String| {
            fault(Fault::Broken(Broken {
                host: host.clone(),
                sent: false,
                connected: true,
                moved: None,
                reason,
            }))
        };
        if let Some(locked) = request.extensions().get::<Locked>().cloned() {
            locked.apply(&mut request).map_err(unsent)?;
        }
        let asked = Asked::of(&request);
        let length = request.body().content_length() as u64;
        let progress = BodyProgress::new(length, self.patience, &self.contact);
        let request = into_request(request, &progress).map_err(unsent)?;
        let response = self.answer(&host, request, &progress).await?;
        let status = response.status();
        let (parts, body) = http::Response::<reqwest::Body>::from(response).into_parts();
        if asked.part && status == http::StatusCode::OK {
            return Err(fault(Fault::Senseless(Senseless {
                host,
                reason: "sends whole objects where a part is asked for (it ignores Range)",
            })));
        }
        let body = HttpResponseBody::new(WatchedAnswer::new(body, host.clone(), self));
        if status.is_success() {
            return Ok(HttpResponse::from_parts(parts, body));
        }
        let said = Said::in_document(&read_document(body).await);
        Err(fault(Fault::Answer(Answer {
            host,
            status: status.as_u16(),
            code: header(&parts, "x-ms-error-code").or(said.code),
            message: said.message,
            region: header(&parts, "x-amz-bucket-region")
                .or(said.region)
                .filter(|region| asked.region.as_ref() != Some(region)),
            location: header(&parts, "location"),
            retry_after: header(&parts, "retry-after")
                .and_then(|seconds| seconds.parse().ok())
                .map(Duration::from_secs),
        })))
    }
}

impl Transport {
    /// Sends a request and waits for the head of its answer.
    async fn answer(
        &self,
        host: &str,
        request: reqwest::Request,
        progress: &BodyProgress,
    ) -> Result<reqwest::Response, HttpError> {
        let client = match is_metadata_service(host) {
            true => &self.near,
            false => &self.far,
        };
        let broken = |sent, connected, moved, reason| {
            fault(Fault::Broken(Broken {
                host: host.to_owned(),
                sent,
                connected,
                moved,
                reason,
            }))
        };
        let quiet = || {
            let seconds = QUIET.as_secs();
            let cause = format!("{host} does not answer: no progress for {seconds} s");
            self.contact.trouble(&cause);
        };
        let answer = client.execute(request);
        match watched(answer, progress, quiet).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                let connected = !error.is_connect();
                let sent = progress.is_complete() && connected;
                Err(broken(sent, connected, progress.moved(), innermost(&error)))
            }
            Err(given_up) => {
                let moved = match given_up {
                    GivenUp::Silent(_) => progress.moved(),
                    // The next attempt is as slow.
                    GivenUp::Slow(..) => None,
                };
                Err(broken(
                    progress.is_complete(),
                    true,
                    moved,
                    given_up.to_string(),
                ))
            }
        }
    }
}

/// Properties of a request that decide how its answer is read.
struct Asked {
    /// Whether it asks for a part of an object.
    part: bool,
    /// The region that it is signed for.
    region: Option<String>,
}

impl Asked {
    fn of(request: &HttpRequest) -> Self {
        let headers = request.headers();
        let signed = headers.get(http::header::AUTHORIZATION);
        let scope = signed
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once("Credential="))
            .and_then(|(_, scope)| scope.split('/').nth(2));
        Self {
            part: headers.contains_key(http::header::RANGE),
            region: scope.map(str::to_owned),
        }
    }
}

fn fault(fault: Fault) -> HttpError {
    // `object_store` does not retry errors of this kind.
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
    progress: &Arc<BodyProgress>,
) -> Result<reqwest::Request, String> {
    let (parts, body) = request.into_parts();
    let url = reqwest::Url::parse(&parts.uri.to_string()).map_err(|error| error.to_string())?;
    let mut request = reqwest::Request::new(parts.method, url);
    *request.headers_mut() = parts.headers;
    *request.body_mut() = Some(match body.content_length() {
        0 => reqwest::Body::from(Bytes::new()),
        _ => reqwest::Body::wrap(WatchedRequest::new(body, progress)),
    });
    Ok(request)
}

/// An answer's body that is cancelled when it makes no progress.
struct WatchedAnswer {
    body: reqwest::Body,
    host: String,
    patience: Patience,
    contact: Arc<Contact>,
    /// When the head of the answer had arrived.
    began: Instant,
    /// The number of bytes so far.
    received: u64,
    /// The time that they took.
    took: Duration,
    /// The time of the last progress.
    moved: Instant,
    timer: Pin<Box<Sleep>>,
}

impl WatchedAnswer {
    fn new(body: reqwest::Body, host: String, transport: &Transport) -> Self {
        let now = Instant::now();
        Self {
            body,
            host,
            patience: transport.patience,
            contact: Arc::clone(&transport.contact),
            began: now,
            received: 0,
            took: Duration::ZERO,
            moved: now,
            timer: Box::pin(sleep(transport.patience.stall.min(QUIET))),
        }
    }

    /// Records that bytes arrived.
    ///
    /// # Errors
    /// The attempt is too slow.
    fn arrived(&mut self, bytes: u64) -> Result<(), HttpError> {
        let now = Instant::now();
        self.took += self.patience.counted(now - self.moved);
        self.moved = now;
        self.received += bytes;
        if self.patience.is_too_slow(self.received, self.took) {
            let (bytes, seconds) = (self.received, self.took.as_secs());
            return Err(self.broken(format!("only {bytes} bytes of the answer in {seconds} s")));
        }
        self.contact.received(self.began);
        let quiet = now + self.patience.stall.min(QUIET);
        self.timer.as_mut().reset(quiet);
        Ok(())
    }

    fn broken(&self, reason: String) -> HttpError {
        fault(Fault::Broken(Broken {
            host: self.host.clone(),
            sent: true,
            connected: true,
            moved: None,
            reason,
        }))
    }

    /// Called while no bytes arrive. Tells the caller the first time, and returns an error at the
    /// deadline.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<HttpError> {
        let end = self.moved + self.patience.stall;
        while self.timer.as_mut().poll(context).is_ready() {
            let waited = self.moved.elapsed().as_secs();
            let reason = format!("no progress for {waited} s in the middle of the answer");
            if self.timer.deadline() >= end {
                return Poll::Ready(self.broken(reason));
            }
            let cause = format!("{} does not answer: {reason}", self.host);
            self.contact.trouble(&cause);
            self.timer.as_mut().reset(end);
        }
        Poll::Pending
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
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                let arrived = self.arrived(bytes as u64);
                Poll::Ready(Some(arrived.map(|()| frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(self.broken(innermost(&error))))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => self.poll_timer(context).map(|error| Some(Err(error))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the document of an error answer, as far as it arrives.
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

/// Returns the two innermost messages of an error chain. The outer ones only say that a request
/// failed.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        // Some errors repeat the message of their cause.
        if !texts.iter().any(|outer| outer.contains(&text)) {
            texts.push(text);
        }
        next = error.source();
    }
    let skipped = texts.len().saturating_sub(2);
    texts[skipped..].join(": ")
}
