//! S3 and other servers that speak its protocol, Google Cloud Storage, and Azure Blob Storage,
//! through the crate `object_store`.
//!
//! Owns what the services share as a [`Store`]: keys below a prefix, conditional writes whose
//! outcome is reported only when it is known, and retries where they do no harm. `object_store`
//! itself never retries here (`setup`). Its requests use our own transport (`transport`), and one
//! table maps its errors (`answer`).
//!
//! # Retries
//!
//! Reads and lists are retried until they succeed or [`StoreOptions::retry_for`] has passed. A read
//! or list whose answers make no sense gets three attempts.
//!
//! Writes are retried only while it is certain that nothing was applied: there was no connection,
//! the request ended before its last byte, or the refusal says so. [`Store::put`],
//! [`Store::delete`] and [`Store::extend_lock`] can be repeated without harm, so they are also
//! retried when the outcome is unknown.

mod answer;
mod attempt;
mod contact;
mod departed;
#[cfg(any(test, target_feature = "crt-static"))]
mod hosts;
mod list;
mod lock;
mod locker;
mod profile;
mod region;
#[cfg(target_feature = "crt-static")]
mod resolver;
mod sending;
mod service;
mod setup;
mod short_queue;
mod steady;
mod transport;
mod trust;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, PutResult, UpdateVersion,
};

use crate::lock::Lock;
use crate::{
    ObjectInfo, Operation, RepositoryUrl, Signs, Store, StoreError, StoreErrorKind, StoreOptions,
    Version, WHOLE_OBJECT_BYTES_MAX, check_key, check_prefix, check_range, too_large,
};
pub use answer::Said;
use contact::Contact;
use departed::carrying;
use locker::{Locker, Locking};
use service::{Flavor, Service};
use setup::Setup;

/// Returns the body of an answer that announced `length` bytes, a size that the caller bounds. A
/// longer body is an error and is not read to its end.
async fn body_of(answer: GetResult, length: u64) -> object_store::Result<Bytes> {
    let mut parts = answer.into_stream();
    let mut body = Vec::with_capacity(length as usize);
    while let Some(part) = parts.try_next().await? {
        if (body.len() + part.len()) as u64 > length {
            return Err(other_length("longer"));
        }
        if body.is_empty() && part.len() as u64 == length {
            return Ok(part);
        }
        body.extend_from_slice(&part);
    }
    match body.len() as u64 == length {
        true => Ok(body.into()),
        false => Err(other_length("shorter")),
    }
}

fn other_length(how: &str) -> object_store::Error {
    object_store::Error::Generic {
        store: "remote",
        source: format!("the body is {how} than was announced").into(),
    }
}

/// A bucket of a remote service, or the part of one below a prefix.
#[derive(Debug)]
pub struct RemoteStore {
    service: Arc<dyn Service>,
    flavor: Flavor,
    /// Present only for S3.
    locker: Option<Locker>,
    /// Empty, or ends with a slash.
    prefix: String,
    shown: String,
    retry_for: Duration,
    contact: Arc<Contact>,
}

impl RemoteStore {
    /// Sets up the client for a repository in S3, Google Cloud Storage or Azure. Only the first
    /// request shows whether the bucket exists.
    ///
    /// # Errors
    /// [`StoreErrorKind::Invalid`] if the settings or the endpoint are wrong, a requested profile
    /// has no keys, or `url` names no remote repository.
    pub async fn open(url: &RepositoryUrl, options: &StoreOptions) -> Result<Self, StoreError> {
        let contact = Arc::new(Contact::new(options));
        let (
            Setup {
                service,
                flavor,
                locker,
                endpoint,
            },
            prefix,
        ) = match url {
            RepositoryUrl::S3 { bucket, prefix } => {
                (setup::s3(bucket, options, &contact).await?, prefix)
            }
            RepositoryUrl::Gcs { bucket, prefix } => {
                (setup::gcs(bucket, options, &contact)?, prefix)
            }
            RepositoryUrl::Azure { container, prefix } => {
                (setup::azure(container, options, &contact)?, prefix)
            }
            RepositoryUrl::Local { .. } | RepositoryUrl::Word(_) => {
                return Err(StoreError::new(
                    StoreErrorKind::Invalid,
                    Operation::Open,
                    "",
                    format!("{url} is not a remote repository"),
                ));
            }
        };
        Ok(Self {
            service,
            flavor,
            locker,
            prefix: match prefix.as_str() {
                "" => String::new(),
                prefix => format!("{prefix}/"),
            },
            shown: match endpoint {
                Some(endpoint) => format!("{url} at {endpoint}"),
                None => url.to_string(),
            },
            retry_for: options.retry_for,
            contact,
        })
    }

    fn path(&self, operation: Operation, key: &str) -> Result<Path, StoreError> {
        check_key(operation, key)?;
        Path::parse(format!("{}{key}", self.prefix)).map_err(|error| {
            StoreError::new(StoreErrorKind::Invalid, operation, key, error.to_string())
        })
    }

    async fn fetch(
        &self,
        operation: Operation,
        key: &str,
        options: GetOptions,
    ) -> Result<GetResult, StoreError> {
        let path = self.path(operation, key)?;
        self.attempt(operation, key, |departed| {
            let mut options = options.clone();
            options.extensions = carrying(departed);
            self.service.get_opts(&path, options)
        })
        .await
    }

    /// Reads the object as `options` say, with the answer's body.
    async fn read(
        &self,
        operation: Operation,
        key: &str,
        options: GetOptions,
        bytes_max: u64,
    ) -> Result<Read, StoreError> {
        let path = self.path(operation, key)?;
        self.attempt(operation, key, |departed| {
            let mut options = options.clone();
            options.extensions = carrying(departed);
            async {
                let result = self.service.get_opts(&path, options).await?;
                let (range, meta) = (result.range.clone(), result.meta.clone());
                // A body that is too large is not read at all.
                let bytes = match range.end - range.start {
                    size if size > bytes_max => None,
                    size => Some(body_of(result, size).await?),
                };
                Ok(Read { bytes, range, meta })
            }
        })
        .await
    }

    async fn read_whole(
        &self,
        key: &str,
        known: Option<&Version>,
    ) -> Result<(Bytes, Version), StoreError> {
        let options = GetOptions {
            if_none_match: known.and_then(Version::etag).map(str::to_owned),
            ..GetOptions::default()
        };
        let read = self
            .read(Operation::Get, key, options, WHOLE_OBJECT_BYTES_MAX)
            .await?;
        let bytes = read.bytes.ok_or_else(|| too_large(key, read.meta.size))?;
        let version = self.version(read.meta.e_tag, read.meta.version);
        Ok((bytes, version))
    }

    async fn write(
        &self,
        operation: Operation,
        key: &str,
        body: Vec<Bytes>,
        mode: PutMode,
        lock: Option<Locking<'_>>,
    ) -> Result<Version, StoreError> {
        let path = self.path(operation, key)?;
        let payload: PutPayload = body.into_iter().filter(|part| !part.is_empty()).collect();
        let PutResult { e_tag, version, .. } = self
            .attempt(operation, key, |departed| {
                let mut options = PutOptions {
                    mode: mode.clone(),
                    extensions: carrying(departed),
                    ..PutOptions::default()
                };
                let (path, payload) = (&path, payload.clone());
                async move {
                    if let Some((locker, checked, lock)) = lock {
                        options
                            .extensions
                            .insert(locker.locked(checked, lock).await?);
                    }
                    self.service.put_opts(path, payload, options).await
                }
            })
            .await?;
        Ok(self.version(e_tag, version))
    }

    /// Returns the version that the service compares in a conditional write: the generation for
    /// Google, the entity tag for the others. S3 also has a version id in versioned buckets, which
    /// only matters to requests that list versions.
    fn version(&self, etag: Option<String>, generation: Option<String>) -> Version {
        match self.flavor {
            Flavor::Gcs => Version::new(etag, generation),
            Flavor::S3 | Flavor::Azure => Version::new(etag, None),
        }
    }
}

/// The result of a read.
struct Read {
    /// `None` if the body exceeds the limit.
    bytes: Option<Bytes>,
    range: Range<u64>,
    meta: ObjectMeta,
}

fn is_about_range(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::OutOfRange | StoreErrorKind::Invalid
    )
}

#[async_trait]
impl Store for RemoteStore {
    async fn get(&self, key: &str) -> Result<(Bytes, Version), StoreError> {
        self.read_whole(key, None).await
    }

    async fn get_if_changed(
        &self,
        key: &str,
        known: &Version,
    ) -> Result<Option<(Bytes, Version)>, StoreError> {
        match self.read_whole(key, Some(known)).await {
            // Some servers ignore the condition.
            Ok((_, version)) if version == *known => Ok(None),
            Ok(changed) => Ok(Some(changed)),
            Err(error) if error.kind() == StoreErrorKind::NotModified => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let operation = Operation::GetRange;
        if range.is_empty() {
            // HTTP has no empty ranges.
            let size = self.size(operation, key).await?;
            check_range(key, &range, size)?;
            return Ok(Bytes::new());
        }
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            ..GetOptions::default()
        };
        let read = match self.read(operation, key, options, u64::MAX).await {
            // Servers report in many ways that the range does not lie in the object.
            Err(error) if is_about_range(&error) => {
                let size = self.size(operation, key).await?;
                check_range(key, &range, size)?;
                return Err(error);
            }
            other => other?,
        };
        check_range(key, &range, read.meta.size)?;
        match read.bytes {
            Some(bytes) if read.range == range && bytes.len() as u64 == range.end - range.start => {
                Ok(bytes)
            }
            _ => Err(StoreError::new(
                StoreErrorKind::Invalid,
                operation,
                key,
                format!("the store gave other bytes than {range:?}, which were asked for"),
            )),
        }
    }

    async fn get_tail(&self, key: &str, bytes: u64) -> Result<(Bytes, u64), StoreError> {
        let operation = Operation::GetTail;
        if bytes == 0 || self.flavor == Flavor::Azure {
            // HTTP has no empty ranges, and Azure has no ranges counted from the end.
            let size = self.size(operation, key).await?;
            let range = size.saturating_sub(bytes)..size;
            let tail = match range.is_empty() {
                true => Bytes::new(),
                false => self.get_range(key, range).await?,
            };
            return Ok((tail, size));
        }
        let options = GetOptions {
            range: Some(GetRange::Suffix(bytes)),
            ..GetOptions::default()
        };
        match self
            .read(operation, key, options, WHOLE_OBJECT_BYTES_MAX)
            .await
        {
            Ok(read) => {
                let tail = read.bytes.ok_or_else(|| too_large(key, bytes))?;
                Ok((tail, read.meta.size))
            }
            // An empty object has no last bytes.
            Err(error) if is_about_range(&error) => match self.size(operation, key).await? {
                0 => Ok((Bytes::new(), 0)),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        Ok(ObjectInfo {
            key: key.to_owned(),
            size: self.size(Operation::Head, key).await?,
        })
    }

    async fn put_new(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        self.write(Operation::PutNew, key, body, PutMode::Create, None)
            .await
    }

    async fn put(&self, key: &str, body: Vec<Bytes>) -> Result<Version, StoreError> {
        self.write(Operation::Put, key, body, PutMode::Overwrite, None)
            .await
    }

    async fn replace(
        &self,
        key: &str,
        body: Vec<Bytes>,
        expected: &Version,
    ) -> Result<Version, StoreError> {
        let expected = UpdateVersion {
            e_tag: expected.etag().map(str::to_owned),
            version: expected.generation().map(str::to_owned),
        };
        self.write(
            Operation::Replace,
            key,
            body,
            PutMode::Update(expected),
            None,
        )
        .await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let operation = Operation::Delete;
        let path = self.path(operation, key)?;
        let deleted = self
            .attempt(operation, key, |_| self.service.delete(&path))
            .await;
        match deleted {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        check_prefix(prefix)?;
        self.list_keys(prefix, after, limit).await
    }

    async fn put_locked(
        &self,
        key: &str,
        body: Vec<Bytes>,
        lock: &Lock,
    ) -> Result<Version, StoreError> {
        self.create_locked(key, body, lock).await
    }

    async fn lock(&self, key: &str) -> Result<Option<Lock>, StoreError> {
        self.read_lock(key).await
    }

    async fn extend_lock(&self, key: &str, lock: &Lock) -> Result<(), StoreError> {
        self.write_lock(key, lock).await
    }

    fn describe(&self) -> String {
        self.shown.clone()
    }

    fn signs(&self) -> Signs {
        self.contact.signs().clone()
    }
}

impl RemoteStore {
    async fn size(&self, operation: Operation, key: &str) -> Result<u64, StoreError> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        Ok(self.fetch(operation, key, options).await?.meta.size)
    }
}
