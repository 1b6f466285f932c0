//! The locks of a [`RemoteStore`]'s objects.
//!
//! Owns the calls of the store. `locker` owns their requests.

use bytes::Bytes;
use http::Method;

use super::RemoteStore;
use super::locker::{Locker, date, digest, has_no_lock, parse};
use crate::lock::Lock;
use crate::{Operation, StoreError, StoreErrorKind};

impl RemoteStore {
    fn locker(&self, operation: Operation, key: &str) -> Result<&Locker, StoreError> {
        let locker = self.locker.as_ref();
        locker.ok_or_else(|| crate::without_locks(operation, key))
    }

    /// Implements [`crate::Store::put_locked`].
    pub(super) async fn create_locked(
        &self,
        key: &str,
        body: Vec<Bytes>,
        lock: &Lock,
    ) -> Result<crate::Version, StoreError> {
        let locker = self.locker(Operation::PutNew, key)?;
        let parts = body.clone();
        let checked = tokio::task::spawn_blocking(move || digest(&parts)).await;
        let checked = checked.map_err(|error| {
            let message = format!("its checksum was not made: {error}");
            StoreError::new(StoreErrorKind::Other, Operation::PutNew, key, message)
        })?;
        let with = Some((locker, &checked, lock));
        self.write(
            Operation::PutNew,
            key,
            body,
            object_store::PutMode::Create,
            with,
        )
        .await
    }

    /// Implements [`crate::Store::lock`].
    pub(super) async fn read_lock(&self, key: &str) -> Result<Option<Lock>, StoreError> {
        let operation = Operation::ReadLock;
        let locker = self.locker(operation, key)?;
        let path = self.path(operation, key)?;
        let document = self
            .attempt(operation, key, |departed| async {
                let asked = locker.retention(&path, Method::GET, None, departed).await;
                match asked {
                    Err(error) if has_no_lock(&error) => Ok(None),
                    other => other.map(Some),
                }
            })
            .await?;
        let Some(document) = document else {
            return Ok(None);
        };
        let lock = parse(&document);
        let strange = || {
            let message = "the store's answer makes no sense: it is no lock";
            StoreError::new(StoreErrorKind::Invalid, operation, key, message)
        };
        lock.map(Some).ok_or_else(strange)
    }

    /// Implements [`crate::Store::extend_lock`].
    pub(super) async fn write_lock(&self, key: &str, lock: &Lock) -> Result<(), StoreError> {
        let operation = Operation::ExtendLock;
        let locker = self.locker(operation, key)?;
        let path = self.path(operation, key)?;
        let body = Bytes::from(format!(
            "<Retention \
             xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>{}</Mode><RetainUntilDate>{}</RetainUntilDate></Retention>",
            lock.mode.name(),
            date(lock)
        ));
        self.attempt(operation, key, |departed| {
            locker.retention(&path, Method::PUT, Some(body.clone()), departed)
        })
        .await?;
        Ok(())
    }
}
