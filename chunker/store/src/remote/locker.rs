//! Object Lock of S3, for which `object_store` has no calls.
//!
//! Owns the requests and the reading of answers. A locked upload is the upload of `object_store`:
//! headers are added and it is signed again just before it is sent. Reading and extending an
//! object's lock are requests of our own, with addresses and credentials from `object_store`.

use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use futures::TryStreamExt;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request};
use object_store::aws::{AmazonS3, AwsAuthorizer, AwsCredential};
use object_store::client::{HttpClient, HttpRequest};
use object_store::path::Path;
use object_store::signer::Signer;

use super::answer::{Fault, element, fault_in};
use super::departed::Departed;
use crate::lock::{Lock, LockMode};

const MODE: HeaderName = HeaderName::from_static("x-amz-object-lock-mode");
const UNTIL: HeaderName = HeaderName::from_static("x-amz-object-lock-retain-until-date");
/// S3 requires a checksum in every request that sets a lock.
const CHECKSUM: HeaderName = HeaderName::from_static("x-amz-checksum-sha256");

/// How long a signed address stays valid. Only the address is used, not its signature.
const ADDRESS_FOR: Duration = Duration::from_secs(60);

/// The longest answer that is read, in bytes.
const DOCUMENT_BYTES_MAX: usize = 64 * 1024;

/// The parts that S3 requests of our own need.
#[derive(Clone, Debug)]
pub(super) struct Locker {
    pub(super) service: Arc<AmazonS3>,
    pub(super) client: HttpClient,
    pub(super) region: String,
}

/// The headers that lock an upload, and the data for signing them. They travel with the upload as
/// an extension.
#[derive(Clone, Debug)]
pub(super) struct Locked {
    headers: Vec<(HeaderName, HeaderValue)>,
    digest: [u8; 32],
    credential: Arc<AwsCredential>,
    region: Arc<str>,
}

impl Locked {
    /// Adds the headers and signs the request again.
    pub(super) fn apply(&self, request: &mut HttpRequest) -> Result<(), String> {
        request.headers_mut().remove(AUTHORIZATION);
        for (name, value) in &self.headers {
            request.headers_mut().insert(name, value.clone());
        }
        AwsAuthorizer::new(&self.credential, "s3", &self.region)
            .try_authorize(request, Some(&self.digest))
            .map_err(|error| error.to_string())
    }
}

/// The SHA-256 digest of a body, as bytes and as a header value.
pub(super) type Checked = ([u8; 32], HeaderValue);

/// The client, the digest and the lock of a locked upload.
pub(super) type Locking<'a> = (&'a Locker, &'a Checked, &'a Lock);

pub(super) fn digest(parts: &[Bytes]) -> Checked {
    use aws_lc_rs::digest::{Context, SHA256};
    let mut context = Context::new(&SHA256);
    parts.iter().for_each(|part| context.update(part));
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.finish().as_ref());
    let value = HeaderValue::from_str(&BASE64_STANDARD.encode(bytes));
    (bytes, value.expect("base64 is visible ASCII"))
}

/// Returns a lock's end in the form that S3 expects.
pub(super) fn date(lock: &Lock) -> String {
    lock.until.to_string()
}

fn header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("names and dates are visible ASCII")
}

/// Wraps an error of our own transport as an error of `object_store`.
fn generic(error: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    object_store::Error::Generic {
        store: "S3",
        source: Box::new(error),
    }
}

fn unsigned(reason: String) -> object_store::Error {
    object_store::Error::Generic {
        store: "S3",
        source: reason.into(),
    }
}

impl Locker {
    async fn credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.service.credentials().get_credential().await
    }

    /// Returns the extension that makes an upload of this body a locked upload.
    pub(super) async fn locked(
        &self,
        checked: &Checked,
        lock: &Lock,
    ) -> object_store::Result<Locked> {
        Ok(Locked {
            headers: vec![
                (MODE, header(lock.mode.name())),
                (UNTIL, header(&date(lock))),
                (CHECKSUM, checked.1.clone()),
            ],
            digest: checked.0,
            credential: self.credential().await?,
            region: self.region.as_str().into(),
        })
    }

    /// Reads or sets the lock of an object. Returns the answer's document.
    pub(super) async fn retention(
        &self,
        path: &Path,
        method: Method,
        body: Option<Bytes>,
        departed: Departed,
    ) -> object_store::Result<String> {
        let address = self.service.signed_url(method.clone(), path, ADDRESS_FOR);
        let mut address = address.await?;
        address.set_query(Some("retention"));
        let body = body.unwrap_or_default();
        let (bytes, value) = digest(std::slice::from_ref(&body));
        let mut request = Request::builder()
            .method(method.clone())
            .uri(address.as_str())
            .extension(departed);
        if method == Method::PUT {
            request = request
                .header(CHECKSUM, value)
                .header(CONTENT_TYPE, "application/xml");
        }
        let mut request: HttpRequest = request.body(body.into()).map_err(generic)?;
        let credential = self.credential().await?;
        AwsAuthorizer::new(&credential, "s3", &self.region)
            .try_authorize(&mut request, Some(&bytes))?;
        let answer = self.client.execute(request).await.map_err(generic)?;
        let mut stream = answer.into_body().bytes_stream();
        let mut document = Vec::new();
        while let Some(part) = stream.try_next().await.map_err(generic)? {
            document.extend_from_slice(&part);
            if document.len() > DOCUMENT_BYTES_MAX {
                return Err(unsigned("the answer is too long".to_owned()));
            }
        }
        Ok(String::from_utf8_lossy(&document).into_owned())
    }
}

/// Returns whether the server says that an existing object has no lock.
pub(super) fn has_no_lock(error: &object_store::Error) -> bool {
    match fault_in(error) {
        Some(Fault::Answer(answer)) => {
            answer.code.as_deref() == Some("NoSuchObjectLockConfiguration")
        }
        _ => false,
    }
}

/// Parses the lock in a document of S3.
pub(super) fn parse(document: &str) -> Option<Lock> {
    Some(Lock {
        mode: element(document, "Mode")?.parse::<LockMode>().ok()?,
        until: element(document, "RetainUntilDate")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_named_by_its_hash_in_base64() {
        let (_, header) = digest(&[Bytes::from_static(b"a"), Bytes::from_static(b"bc")]);
        // The example of FIPS 180-4.
        assert_eq!(header, "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }

    #[test]
    fn locks_are_read_from_documents() {
        let document = "<?xml version=\"1.0\"?><Retention \
             xmlns=\"x\"><Mode>GOVERNANCE</Mode><RetainUntilDate>2026-12-01T10:00:00.000Z</RetainUntilDate></Retention>";
        let lock = parse(document).expect("a lock");
        assert_eq!(lock.mode, LockMode::Governance);
        assert_eq!(date(&lock), "2026-12-01T10:00:00Z");
        assert!(parse("<Retention/>").is_none());
        assert!(parse("<Mode>LEGAL</Mode><RetainUntilDate>x</RetainUntilDate>").is_none());
    }
}
