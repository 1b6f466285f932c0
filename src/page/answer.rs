//! From a request to an answer.
//!
//! Owns the order: who asks, what for, what is shown. A request changes nothing but the session of
//! its browser.

use std::fmt::Display;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{
    ACCEPT, ALLOW, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue,
    LOCATION, RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE,
};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::{Body, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use maud::Markup;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, oneshot};
use url::form_urlencoded;

use crate::maintain::metrics::metrics_of;
use crate::page::contents::{self, ContentsError};
use crate::page::download::Download;
use crate::page::guard::{Denial, TokenGuard};
use crate::page::headers::{attachment, secure};
use crate::page::markup::{self, Frame, RepositorySummary, Trail, shown};
use crate::page::route::{FileName, Form, Route, VolumeName};
use crate::page::{MountHealth, Page};
use crate::repository::Repository;

/// The largest form that is read, in bytes.
const FORM_BYTES_MAX: usize = 4096;

/// How long a form may take to arrive.
const FORM_PATIENCE: Duration = Duration::from_secs(10);

/// Downloads at the same time. Each reads up to 64 MiB ahead.
const DOWNLOADS_AT_ONCE: usize = 4;

/// Pages that are made, or on their way, at the same time.
const PAGES_AT_ONCE: usize = 16;

/// Links above a page, from its directory upwards.
const TRAIL_MAX: usize = 32;

/// How long the mounts of this machine are waited for.
const MOUNTS_PATIENCE: Duration = Duration::from_secs(3);

/// The type of a page.
const HTML: &str = "text/html; charset=utf-8";

/// The body of an answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, io::Error>;

/// Answers requests.
pub struct Answering {
    page: Page,
    pages: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    /// One question to the mounts at a time: a daemon that hangs must not take one thread after the
    /// other.
    mounts: Arc<Semaphore>,
}

impl Answering {
    /// Returns what answers the requests for a page.
    pub fn new(page: Page) -> Self {
        Self {
            page,
            pages: Arc::new(Semaphore::new(PAGES_AT_ONCE)),
            downloads: Arc::new(Semaphore::new(DOWNLOADS_AT_ONCE)),
            mounts: Arc::new(Semaphore::new(1)),
        }
    }

    /// Answers a request.
    ///
    /// Cancel safety: dropped, it changes nothing, or has begun or ended the session of a browser.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<AnswerBody>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut answer = self.routed(request).await.unwrap_or_else(|refusal| {
            let frame = refusal.title;
            self.html(refusal.status, frame, Trail::new(), &refusal.contents)
        });
        secure(answer.headers_mut());
        answer
    }

    async fn routed<B>(&self, request: Request<B>) -> Result<Response<AnswerBody>, Refusal>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let is_form = request.method() == Method::POST;
        let guard = &self.page.guard;
        guard.check_origin(request.headers(), is_form)?;
        let path = request.uri().path();
        let route = Route::parse(path, request.uri().query());
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        match (&route, is_form, is_read) {
            (Some(Route::Style), _, true) => return Ok(style()),
            (Some(Route::Login), true, _) => return self.log_in(request).await,
            (Some(Route::Login), _, true) => return Ok(self.login(StatusCode::OK, false)),
            _ => {}
        }
        if let Err(denial) = guard.check_token(request.headers(), Instant::now()) {
            return Ok(self.without_token(&request, route.as_ref(), denial));
        }
        match (route, is_form, is_read) {
            (Some(Route::Logout), true, _) => Ok(self.log_out(&request)),
            (Some(Route::Logout), ..) | (_, false, false) => Ok(not_allowed()),
            (None, ..) => Err(ContentsError::Absent { what: "page" }.into()),
            (Some(_), true, _) => Ok(not_allowed()),
            (Some(route), ..) => {
                let asked = Asked {
                    is_head: request.method() == Method::HEAD,
                    knows_chunks: request.version() >= Version::HTTP_11,
                };
                drop(request);
                self.show(route, asked).await
            }
        }
    }

    async fn show(&self, route: Route, asked: Asked) -> Result<Response<AnswerBody>, Refusal> {
        if let Route::File(file, form @ (Form::Contents | Form::Archive)) = &route {
            return self.download(file, *form, asked).await;
        }
        // The permit goes with the body: a page on its way to a slow client counts.
        let permit = self.pages.clone().acquire_owned().await;
        let answer = self.page(route).await?;
        let held = |body| Held {
            body,
            _permit: permit,
        };
        Ok(answer.map(|body| held(body).boxed_unsync()))
    }

    async fn page(&self, route: Route) -> Result<Response<AnswerBody>, Refusal> {
        match route {
            Route::Overview => Ok(self.overview().await),
            Route::Metrics(number) => self.metrics(number).await,
            Route::Volume(volume) => self.volume(volume).await,
            Route::File(file, Form::Versions) => self.versions(file).await,
            Route::File(file, Form::Page { from }) => self.file(file, from).await,
            Route::File(..) | Route::Style | Route::Login | Route::Logout => Ok(not_allowed()),
        }
    }

    fn repository(&self, number: usize) -> Result<&Repository, ContentsError> {
        let repository = self.page.repositories.get(number);
        repository.ok_or(ContentsError::Absent { what: "repository" })
    }

    async fn overview(&self) -> Response<AnswerBody> {
        let summaries =
            self.page
                .repositories
                .iter()
                .enumerate()
                .map(async |(number, repository)| RepositorySummary {
                    url: repository.url.clone(),
                    volumes: contents::volumes(repository, number).await,
                    mounts: self.mounts_of(repository).await,
                });
        let summaries = futures::future::join_all(summaries).await;
        let contents = markup::overview(&summaries, self.now());
        self.html(StatusCode::OK, "Repositories", Trail::new(), &contents)
    }

    async fn mounts_of(&self, repository: &Repository) -> Vec<MountHealth> {
        let (mounts, url) = (self.page.mounts.clone(), repository.url.clone());
        let asked = async {
            let permit = self.mounts.clone().acquire_owned().await;
            let (sender, answer) = oneshot::channel();
            // No thread of the runtime, whose end would wait for it.
            std::thread::spawn(move || {
                let _permit = permit;
                // The page may have been sent without it.
                let _ = sender.send(mounts(&url));
            });
            answer.await.unwrap_or_default()
        };
        let asked = tokio::time::timeout(MOUNTS_PATIENCE, asked).await;
        asked.unwrap_or_else(|_| {
            let silent = MountHealth {
                mount_point: "a mount of this machine".to_owned(),
                volume: None,
                is_healthy: false,
                waiting_bytes: 0,
                remarks: vec!["it does not answer".to_owned()],
            };
            vec![silent]
        })
    }

    async fn metrics(&self, number: Option<usize>) -> Result<Response<AnswerBody>, Refusal> {
        let number = match number {
            None if self.page.repositories.len() > 1 => {
                let what = "page: there are several repositories, see /metrics/1, /metrics/2, …";
                return Err(ContentsError::Absent { what }.into());
            }
            number => number.unwrap_or(0),
        };
        let text = metrics_of(self.repository(number)?).await;
        let text = text.map_err(ContentsError::from)?;
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        Ok(whole(StatusCode::OK, kind, text.into()))
    }

    async fn volume(&self, volume: VolumeName) -> Result<Response<AnswerBody>, Refusal> {
        let repository = self.repository(volume.repository)?;
        let snapshots = contents::snapshots(repository, &volume.volume).await?;
        let contents = markup::snapshots(&volume, &snapshots, self.now());
        let title = format!("Volume {}", shown(volume.volume.as_bytes()));
        Ok(self.html(StatusCode::OK, &title, Trail::new(), &contents))
    }

    async fn file(&self, file: FileName, from: u64) -> Result<Response<AnswerBody>, Refusal> {
        let repository = self.repository(file.volume.repository)?;
        let opened = contents::open(repository, &file).await?;
        let contents = match (opened.entry.is_directory(), from) {
            (true, from) => {
                let bytes = 3 * file.joined().len();
                let directory = contents::list(&opened.view, opened.inode, from, bytes).await?;
                markup::directory(&file, &directory)
            }
            (false, 0) => markup::file(&file, &opened.entry),
            (false, _) => return Err(ContentsError::Absent { what: "page" }.into()),
        };
        let title = match file.path.last() {
            Some(name) => shown(name),
            None => shown(file.snapshot.as_bytes()),
        };
        Ok(self.html(StatusCode::OK, &title, trail(&file), &contents))
    }

    async fn versions(&self, file: FileName) -> Result<Response<AnswerBody>, Refusal> {
        let repository = self.repository(file.volume.repository)?;
        let versions = contents::versions(repository, &file).await?;
        let contents = markup::versions(&file, &versions, self.now());
        let title = format!("Versions of /{}", shown(&file.joined()));
        Ok(self.html(StatusCode::OK, &title, trail(&file), &contents))
    }

    async fn download(
        &self,
        file: &FileName,
        form: Form,
        asked: Asked,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let repository = self.repository(file.volume.repository)?;
        let opened = contents::open(repository, file).await?;
        let is_archive = form == Form::Archive;
        let is_fit = match is_archive {
            true => opened.entry.is_directory(),
            false => opened.entry.is_file(),
        };
        if !is_fit {
            return Err(ContentsError::Absent { what: "page" }.into());
        }
        if is_archive && !asked.knows_chunks {
            // The end of the connection would stand for the end of the archive, also after an error.
            let why = "an archive needs HTTP/1.1";
            return Ok(self.refused(StatusCode::HTTP_VERSION_NOT_SUPPORTED, &why));
        }
        let size = opened.entry.attributes.as_ref();
        let size = size.map(|attributes| attributes.size_bytes);
        let body = match (asked.is_head, self.downloads.clone().try_acquire_owned()) {
            (true, _) => empty(),
            (false, Ok(permit)) => Download::start(opened, is_archive, permit).boxed_unsync(),
            (false, Err(_)) => {
                let why =
                    format!("{DOWNLOADS_AT_ONCE} downloads are on their way: try again later");
                let mut answer = self.refused(StatusCode::SERVICE_UNAVAILABLE, &why);
                let headers = answer.headers_mut();
                headers.insert(RETRY_AFTER, HeaderValue::from_static("30"));
                return Ok(answer);
            }
        };
        let (kind, suffix) = match is_archive {
            true => ("application/x-tar", ".tar"),
            false => ("application/octet-stream", ""),
        };
        let name = file.path.last().map(Vec::as_slice);
        let name = name.unwrap_or(file.snapshot.as_bytes());
        let mut answer = with_body(StatusCode::OK, kind, body);
        let headers = answer.headers_mut();
        headers.insert(CONTENT_DISPOSITION, attachment(name, suffix));
        if let Some(size) = size.filter(|_| !is_archive) {
            headers.insert(CONTENT_LENGTH, size.into());
        }
        Ok(answer)
    }

    /// Answers a request that has neither token nor session.
    fn without_token<B>(
        &self,
        request: &Request<B>,
        route: Option<&Route>,
        denial: Denial,
    ) -> Response<AnswerBody> {
        let accepts = request.headers().get(ACCEPT);
        let accepts = accepts.and_then(|value| value.to_str().ok());
        let is_browser = accepts.is_some_and(|value| value.contains("text/html"));
        if is_browser && !matches!(route, Some(Route::Metrics(_))) {
            return redirect(&Route::Login);
        }
        let mut answer = self.refused(StatusCode::UNAUTHORIZED, &denial);
        let scheme = HeaderValue::from_static("Bearer realm=\"bkfs\"");
        answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
        answer
    }

    fn login(&self, status: StatusCode, is_wrong: bool) -> Response<AnswerBody> {
        let frame = Frame {
            title: "Log in",
            trail: &Trail::new(),
            can_leave: false,
        };
        let text = markup::page(&frame, &markup::login(is_wrong));
        whole(status, HTML, text.into())
    }

    async fn log_in<B>(&self, request: Request<B>) -> Result<Response<AnswerBody>, Refusal>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Some(guard) = self.page.guard.token() else {
            return Ok(redirect(&Route::Overview));
        };
        let (head, body) = request.into_parts();
        let body = Limited::new(body, FORM_BYTES_MAX).collect();
        let body = tokio::time::timeout(FORM_PATIENCE, body).await;
        let Ok(Ok(body)) = body else {
            let why = "the form is too large, or did not arrive";
            return Ok(self.refused(StatusCode::BAD_REQUEST, &why));
        };
        match is_right(guard, &body.to_bytes()) {
            true => {
                let mut random = [0; 32];
                let environment = &self.repository(0)?.environment;
                environment.entropy.fill(&mut random);
                let cookie = guard.begin(&head.headers, random, Instant::now());
                let mut answer = redirect(&Route::Overview);
                answer.headers_mut().insert(SET_COOKIE, cookie);
                Ok(answer)
            }
            false => {
                tracing::debug!("a wrong token was given");
                Ok(self.login(StatusCode::FORBIDDEN, true))
            }
        }
    }

    fn log_out<B>(&self, request: &Request<B>) -> Response<AnswerBody> {
        let mut answer = redirect(&Route::Login);
        if let Some(guard) = self.page.guard.token() {
            let cookie = guard.end(request.headers());
            answer.headers_mut().insert(SET_COOKIE, cookie);
        }
        answer
    }

    fn now(&self) -> i64 {
        let first = self.page.repositories.first();
        first.map_or(0, |repository| repository.now().as_second())
    }

    fn refused(&self, status: StatusCode, why: &dyn Display) -> Response<AnswerBody> {
        let title = status.canonical_reason().unwrap_or("Refused");
        self.html(
            status,
            title,
            Trail::new(),
            &markup::message(&why.to_string()),
        )
    }

    fn html(
        &self,
        status: StatusCode,
        title: &str,
        trail: Trail,
        contents: &Markup,
    ) -> Response<AnswerBody> {
        let frame = Frame {
            title,
            trail: &trail,
            // Who is refused has no session to end.
            can_leave: self.page.guard.token().is_some() && status == StatusCode::OK,
        };
        let text = markup::page(&frame, contents);
        whole(status, HTML, text.into())
    }
}

/// How something is asked for.
#[derive(Clone, Copy)]
struct Asked {
    /// The headers alone.
    is_head: bool,
    /// The client can tell the end of a body of unknown length from an error.
    knows_chunks: bool,
}

/// A body that holds a permit until it is sent.
struct Held {
    body: AnswerBody,
    _permit: Result<OwnedSemaphorePermit, AcquireError>,
}

impl Body for Held {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<http_body::Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer that says why something is not shown.
struct Refusal {
    status: StatusCode,
    title: &'static str,
    contents: Markup,
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            title: "Refused",
            contents: markup::denied(denial),
        }
    }
}

impl From<ContentsError> for Refusal {
    fn from(error: ContentsError) -> Self {
        let (status, title) = match &error {
            ContentsError::Absent { .. } => (StatusCode::NOT_FOUND, "Not found"),
            error if contents::is_passing(error) => {
                (StatusCode::SERVICE_UNAVAILABLE, "The store does not answer")
            }
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "It cannot be read"),
        };
        if status.is_server_error() {
            tracing::warn!("a page cannot be shown: {error}");
        }
        Self {
            status,
            title,
            contents: markup::message(&error.to_string()),
        }
    }
}

/// Returns the links from a volume to the directory of `file`.
fn trail(file: &FileName) -> Trail {
    let volume = Route::Volume(file.volume.clone()).address();
    let mut trail = vec![(shown(file.volume.volume.as_bytes()), volume)];
    let page = |file: &FileName| Route::File(file.clone(), Form::Page { from: 0 }).address();
    let mut above = FileName {
        path: Vec::new(),
        ..file.clone()
    };
    if file.path.is_empty() {
        return trail;
    }
    trail.push((shown(file.snapshot.as_bytes()), page(&above)));
    let parents = file.path.len() - 1;
    for (depth, name) in file.path[..parents].iter().enumerate() {
        above.path.push(name.clone());
        if depth + TRAIL_MAX >= parents {
            trail.push((shown(name), page(&above)));
        }
    }
    trail
}

fn is_right(guard: &TokenGuard, form: &[u8]) -> bool {
    let mut fields = form_urlencoded::parse(form);
    let token = fields.find(|(name, _)| name == "token");
    token.is_some_and(|(_, token)| guard.is_token(&token))
}

fn style() -> Response<AnswerBody> {
    let text = Bytes::from_static(include_bytes!("style.css"));
    whole(StatusCode::OK, "text/css; charset=utf-8", text)
}

fn not_allowed() -> Response<AnswerBody> {
    let mut answer = whole(
        StatusCode::METHOD_NOT_ALLOWED,
        "text/plain; charset=utf-8",
        Bytes::from_static(b"not allowed\n"),
    );
    let allowed = HeaderValue::from_static("GET, HEAD");
    answer.headers_mut().insert(ALLOW, allowed);
    answer
}

fn redirect(route: &Route) -> Response<AnswerBody> {
    let mut answer = with_body(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", empty());
    insert_text(&mut answer, LOCATION, &route.address());
    answer
}

fn whole(status: StatusCode, kind: &str, bytes: Bytes) -> Response<AnswerBody> {
    let body = Full::new(bytes).map_err(|never| match never {});
    with_body(status, kind, body.boxed_unsync())
}

fn empty() -> AnswerBody {
    let body = Full::new(Bytes::new()).map_err(|never| match never {});
    body.boxed_unsync()
}

fn with_body(status: StatusCode, kind: &str, body: AnswerBody) -> Response<AnswerBody> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    insert_text(&mut answer, CONTENT_TYPE, kind);
    answer
}

fn insert_text(answer: &mut Response<AnswerBody>, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        answer.headers_mut().insert(name, value);
    }
}
