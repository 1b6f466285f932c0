//! Answers as HTTP has them.
//!
//! Owns bodies, and the headers that tell what a body is. Does not own what is answered (`answer`),
//! nor the headers of all answers (`headers`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION};
use http::{Response, StatusCode};
use http_body::{Body, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::sync::{AcquireError, OwnedSemaphorePermit};

use crate::page::route::Route;

/// The type of a page.
pub const HTML: &str = "text/html; charset=utf-8";

/// The body of an answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, io::Error>;

/// A body that holds a permit until it is sent.
struct Held {
    body: AnswerBody,
    _permit: Result<OwnedSemaphorePermit, AcquireError>,
}

/// Returns the answer, whose body holds the permit until it is sent.
pub fn holding(
    answer: Response<AnswerBody>,
    permit: Result<OwnedSemaphorePermit, AcquireError>,
) -> Response<AnswerBody> {
    answer.map(|body| {
        let held = Held {
            body,
            _permit: permit,
        };
        held.boxed_unsync()
    })
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

/// Returns the style sheet.
pub fn style() -> Response<AnswerBody> {
    let text = Bytes::from_static(include_bytes!("style.css"));
    whole(StatusCode::OK, "text/css; charset=utf-8", text)
}

/// Returns the icon.
pub fn icon() -> Response<AnswerBody> {
    let text = Bytes::from_static(include_bytes!("icon.svg"));
    whole(StatusCode::OK, "image/svg+xml", text)
}

/// Returns the answer to a method that an address does not have. It has those that are `allowed`.
pub fn not_allowed(allowed: &'static str) -> Response<AnswerBody> {
    let mut answer = whole(
        StatusCode::METHOD_NOT_ALLOWED,
        "text/plain; charset=utf-8",
        Bytes::from_static(b"not allowed\n"),
    );
    let allowed = HeaderValue::from_static(allowed);
    answer.headers_mut().insert(ALLOW, allowed);
    answer
}

/// Returns the answer that leads a browser to another page.
pub fn redirect(route: &Route) -> Response<AnswerBody> {
    let mut answer = with_body(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", empty());
    insert_text(&mut answer, LOCATION, &route.address());
    answer
}

/// Returns an answer of a kind of bytes.
pub fn whole(status: StatusCode, kind: &str, bytes: Bytes) -> Response<AnswerBody> {
    let body = Full::new(bytes).map_err(|never| match never {});
    with_body(status, kind, body.boxed_unsync())
}

/// Returns a body without bytes.
pub fn empty() -> AnswerBody {
    let body = Full::new(Bytes::new()).map_err(|never| match never {});
    body.boxed_unsync()
}

/// Returns an answer with a body of a kind of bytes.
pub fn with_body(status: StatusCode, kind: &str, body: AnswerBody) -> Response<AnswerBody> {
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
