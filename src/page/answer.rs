//! From a request to an answer.
//!
//! Owns the order: who asks, what for, what is shown. What forms change is owned by `changes`.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{
    ACCEPT, CONTENT_DISPOSITION, CONTENT_LENGTH, HeaderMap, HeaderValue, REFRESH, RETRY_AFTER,
    SET_COOKIE, WWW_AUTHENTICATE,
};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use maud::{Markup, html};
use tokio::sync::{Semaphore, oneshot};

use crate::maintain::forgetting::forgotten;
use crate::maintain::metrics::metrics_of;
use crate::page::changes::{Changes, Fields};
use crate::page::contents::{self, ContentsError};
use crate::page::download::Download;
use crate::page::forms::{self, Allowed};
use crate::page::guard::Denial;
use crate::page::headers::{attachment, secure};
use crate::page::markup::{self, Frame, RepositorySummary, Trail, shown};
use crate::page::refusal::Refusal;
use crate::page::response::{
    AnswerBody, HTML, empty, holding, icon, not_allowed, redirect, style, whole, with_body,
};
use crate::page::route::{FileName, Form, Route, VolumeName};
use crate::page::{MountHealth, Page};
use crate::repository::Repository;

/// The largest form that is read, in bytes.
const FORM_BYTES_MAX: usize = 16 << 10;

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

/// How often a browser asks again how far a restore is, in seconds.
const WATCH_SECONDS: &str = "5";

/// Answers requests.
pub struct Answering {
    page: Arc<Page>,
    changes: Changes,
    pages: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    /// One question to the mounts at a time: a daemon that hangs must not take one thread after the
    /// other.
    mounts: Arc<Semaphore>,
}

impl Answering {
    /// Returns what answers the requests for a page.
    pub fn new(page: Page) -> Self {
        let page = Arc::new(page);
        Self {
            changes: Changes::new(page.clone()),
            page,
            pages: Arc::new(Semaphore::new(PAGES_AT_ONCE)),
            downloads: Arc::new(Semaphore::new(DOWNLOADS_AT_ONCE)),
            mounts: Arc::new(Semaphore::new(1)),
        }
    }

    /// Ends restores, and waits for changes that go on without a request.
    pub async fn end(&self) {
        self.changes.end().await;
    }

    /// Answers a request.
    ///
    /// Cancel safety: dropped, it leaves what the request changes unchanged, changed, or to be
    /// changed by a task of its own.
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
            (Some(Route::Icon), _, true) => return Ok(icon()),
            (Some(Route::Login), true, _) => return self.log_in(request).await,
            (Some(Route::Login), _, true) => return Ok(self.login(StatusCode::OK, false)),
            _ => {}
        }
        if let Err(denial) = guard.check_token(request.headers(), Instant::now()) {
            return Ok(self.without_token(&request, route.as_ref(), denial));
        }
        match (route, is_form, is_read) {
            (Some(Route::Logout), true, _) => Ok(self.log_out(&request)),
            (Some(Route::Logout), ..) => Ok(not_allowed("POST")),
            (_, false, false) => Ok(not_allowed("GET, HEAD")),
            (None, ..) => Err(ContentsError::Absent { what: "page" }.into()),
            (Some(route), true, _) if is_changed(&route) => self.change(route, request).await,
            (Some(Route::File(_, Form::BringBack)), ..) => Ok(not_allowed("POST")),
            (Some(_), true, _) => Ok(not_allowed("GET, HEAD")),
            (Some(route), ..) => {
                let asked = Asked {
                    is_head: request.method() == Method::HEAD,
                    knows_chunks: request.version() >= Version::HTTP_11,
                    form_key: guard.form_key(request.headers(), Instant::now()),
                };
                drop(request);
                self.show(route, asked).await
            }
        }
    }

    async fn change<B>(
        &self,
        route: Route,
        request: Request<B>,
    ) -> Result<Response<AnswerBody>, Refusal>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (headers, fields) = form(request).await?;
        let guard = &self.page.guard;
        guard.check_form(&headers, fields.get("key"), Instant::now())?;
        Ok(redirect(&self.changes.carry_out(route, &fields).await?))
    }

    async fn show(&self, route: Route, asked: Asked) -> Result<Response<AnswerBody>, Refusal> {
        if let Route::File(file, form @ (Form::Contents | Form::Archive)) = &route {
            return self.download(file, *form, &asked).await;
        }
        // The permit goes with the body: a page on its way to a slow client counts.
        let permit = self.pages.clone().acquire_owned().await;
        let answer = self.page(route, &asked).await?;
        Ok(holding(answer, permit))
    }

    async fn page(&self, route: Route, asked: &Asked) -> Result<Response<AnswerBody>, Refusal> {
        self.changes.check(&route)?;
        match route {
            Route::Overview => Ok(self.overview().await),
            Route::Metrics(number) => self.metrics(number).await,
            Route::Volume(volume) => self.volume(volume, asked).await,
            Route::File(file, Form::Versions) => self.versions(file).await,
            Route::File(file, Form::Page { from }) => self.file(file, from).await,
            Route::File(file, Form::Restore) => self.restore_form(file, asked).await,
            Route::File(file, Form::Forget) => self.forget_form(&file, asked).await,
            Route::Restores => {
                let contents = forms::restores(&self.page.restores.all());
                Ok(self.html(StatusCode::OK, "Restores", Trail::new(), &contents))
            }
            Route::Restore { number, is_watched } => self.progress(number, is_watched, asked),
            Route::File(..) | Route::Style | Route::Icon | Route::Login | Route::Logout => {
                Ok(not_allowed("GET, HEAD"))
            }
        }
    }

    fn allowed(&self) -> Allowed {
        Allowed {
            forget: self.page.may_forget,
            restore: !self.page.restores.roots.is_empty(),
        }
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
        let contents = html! {
            (markup::overview(&summaries, self.now()))
            @if self.allowed().restore { (forms::restores_link()) }
        };
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
        let text = metrics_of(self.page.repository(number)?).await;
        let text = text.map_err(ContentsError::from)?;
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        Ok(whole(StatusCode::OK, kind, text.into()))
    }

    async fn volume(
        &self,
        volume: VolumeName,
        asked: &Asked,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let repository = self.page.repository(volume.repository)?;
        let snapshots = contents::snapshots(repository, &volume.volume).await?;
        let forgotten = match self.page.may_forget {
            true => forgotten(repository, &volume.volume).await,
            false => Ok(Vec::new()),
        };
        let forgotten = forgotten.map_err(ContentsError::from)?;
        let now = self.now();
        let contents = html! {
            (markup::snapshots(&volume, &snapshots, now))
            (forms::forgotten(&volume, &forgotten, &asked.form_key, now))
        };
        let title = format!("Volume {}", shown(volume.volume.as_bytes()));
        Ok(self.html(StatusCode::OK, &title, Trail::new(), &contents))
    }

    async fn file(&self, file: FileName, from: u64) -> Result<Response<AnswerBody>, Refusal> {
        let repository = self.page.repository(file.volume.repository)?;
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
        let can_restore = opened.entry.is_directory() || opened.entry.is_file();
        let allowed = Allowed {
            restore: can_restore && self.allowed().restore,
            ..self.allowed()
        };
        let contents = html! { (forms::actions(&file, allowed)) (contents) };
        Ok(self.html(StatusCode::OK, &title, trail(&file), &contents))
    }

    async fn restore_form(
        &self,
        file: FileName,
        asked: &Asked,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let repository = self.page.repository(file.volume.repository)?;
        let opened = contents::open(repository, &file).await?;
        if !opened.entry.is_directory() && !opened.entry.is_file() {
            return Err(ContentsError::Absent { what: "page" }.into());
        }
        let roots = &self.page.restores.roots;
        let is_directory = opened.entry.is_directory();
        let contents = forms::restore(&file, is_directory, roots, &asked.form_key);
        let whole = [file.snapshot.as_bytes(), b":/", &file.joined()].concat();
        let title = format!("Restore {}", shown(&whole));
        Ok(self.html(StatusCode::OK, &title, trail(&file), &contents))
    }

    async fn forget_form(
        &self,
        file: &FileName,
        asked: &Asked,
    ) -> Result<Response<AnswerBody>, Refusal> {
        if !file.path.is_empty() {
            return Err(ContentsError::Absent { what: "page" }.into());
        }
        let repository = self.page.repository(file.volume.repository)?;
        contents::open(repository, file).await?;
        let title = format!("Forget {}?", shown(file.snapshot.as_bytes()));
        let contents = forms::forget(file, &asked.form_key);
        Ok(self.html(StatusCode::OK, &title, trail(file), &contents))
    }

    fn progress(
        &self,
        number: u64,
        is_watched: bool,
        asked: &Asked,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let restore = self.page.restores.find(number);
        let restore = restore.ok_or(ContentsError::Absent { what: "restore" })?;
        let contents = forms::progress(&restore, &asked.form_key, is_watched);
        let trail = vec![("Restores".to_owned(), Route::Restores.address())];
        let title = format!("Restore {number}");
        let mut answer = self.html(StatusCode::OK, &title, trail, &contents);
        if is_watched && restore.state().0.is_none() {
            let every = HeaderValue::from_static(WATCH_SECONDS);
            answer.headers_mut().insert(REFRESH, every);
        }
        Ok(answer)
    }

    async fn versions(&self, file: FileName) -> Result<Response<AnswerBody>, Refusal> {
        let repository = self.page.repository(file.volume.repository)?;
        let versions = contents::versions(repository, &file).await?;
        let contents = markup::versions(&file, &versions, self.now());
        let title = format!("Versions of /{}", shown(&file.joined()));
        Ok(self.html(StatusCode::OK, &title, trail(&file), &contents))
    }

    async fn download(
        &self,
        file: &FileName,
        form: Form,
        asked: &Asked,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let repository = self.page.repository(file.volume.repository)?;
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
        let (headers, fields) = form(request).await?;
        match fields
            .get("token")
            .is_some_and(|token| guard.is_token(token))
        {
            true => {
                let mut random = [0; 32];
                let environment = &self.page.repository(0)?.environment;
                environment.entropy.fill(&mut random);
                let cookie = guard.begin(&headers, random, Instant::now());
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
struct Asked {
    /// The headers alone.
    is_head: bool,
    /// The client can tell the end of a body of unknown length from an error.
    knows_chunks: bool,
    /// What forms on the page bear.
    form_key: String,
}

/// Returns true if a form to this address changes something.
fn is_changed(route: &Route) -> bool {
    matches!(
        route,
        Route::File(_, Form::Restore | Form::Forget | Form::BringBack) | Route::Restore { .. }
    )
}

/// Returns the headers and the fields of a form.
async fn form<B>(request: Request<B>) -> Result<(HeaderMap, Fields), Refusal>
where
    B: Body + Send,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    let body = Limited::new(body, FORM_BYTES_MAX).collect();
    match tokio::time::timeout(FORM_PATIENCE, body).await {
        Ok(Ok(body)) => Ok((head.headers, Fields::parse(&body.to_bytes()))),
        _ => Err(Refusal {
            status: StatusCode::BAD_REQUEST,
            title: "Bad Request",
            contents: markup::message("the form is too large, or did not arrive"),
        }),
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
