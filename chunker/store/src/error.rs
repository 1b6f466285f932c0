//! Errors of store requests, in kinds that say what the caller should do.

use std::fmt;

/// The request that was sent to the store.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Operation {
    /// Opening the store.
    Open,
    /// [`Store::get`](super::Store::get) and
    /// [`Store::get_if_changed`](super::Store::get_if_changed).
    Get,
    /// [`Store::get_range`](super::Store::get_range).
    GetRange,
    /// [`Store::get_tail`](super::Store::get_tail).
    GetTail,
    /// [`Store::head`](super::Store::head).
    Head,
    /// [`Store::put_new`](super::Store::put_new).
    PutNew,
    /// [`Store::put`](super::Store::put).
    Put,
    /// [`Store::replace`](super::Store::replace).
    Replace,
    /// [`Store::delete`](super::Store::delete).
    Delete,
    /// [`Store::list`](super::Store::list).
    List,
    /// [`Store::lock`](super::Store::lock).
    ReadLock,
    /// [`Store::extend_lock`](super::Store::extend_lock).
    ExtendLock,
}

impl Operation {
    /// All operations, in the order in which counters keep them.
    pub const ALL: [Operation; 12] = [
        Operation::Open,
        Operation::Get,
        Operation::GetRange,
        Operation::GetTail,
        Operation::Head,
        Operation::PutNew,
        Operation::Put,
        Operation::Replace,
        Operation::Delete,
        Operation::List,
        Operation::ReadLock,
        Operation::ExtendLock,
    ];

    /// Returns a short name for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Open => "open",
            Operation::Get => "get",
            Operation::GetRange => "get_range",
            Operation::GetTail => "get_tail",
            Operation::Head => "head",
            Operation::PutNew => "put_new",
            Operation::Put => "put",
            Operation::Replace => "replace",
            Operation::Delete => "delete",
            Operation::List => "list",
            Operation::ReadLock => "read_lock",
            Operation::ExtendLock => "extend_lock",
        }
    }

    /// Returns whether the operation changes the bucket.
    pub fn is_write(self) -> bool {
        matches!(
            self,
            Operation::PutNew
                | Operation::Put
                | Operation::Replace
                | Operation::Delete
                | Operation::ExtendLock
        )
    }

    /// Returns whether the operation can safely be sent again when its outcome is unknown.
    pub(super) fn is_repeatable(self) -> bool {
        matches!(
            self,
            Operation::Put | Operation::Delete | Operation::ExtendLock
        )
    }

    fn verb(self) -> &'static str {
        match self {
            Operation::Open => "open",
            Operation::Get | Operation::GetRange | Operation::GetTail => "read",
            Operation::Head => "look at",
            Operation::PutNew => "create",
            Operation::Put => "write",
            Operation::Replace => "replace",
            Operation::Delete => "delete",
            Operation::List => "list",
            Operation::ReadLock => "read the lock of",
            Operation::ExtendLock => "lock",
        }
    }
}

/// What the caller should do about a [`StoreError`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum StoreErrorKind {
    /// The object is absent. The bucket itself was reached.
    NotFound,
    /// [`Store::put_new`](super::Store::put_new): an object of that name exists, and this call did
    /// not create it.
    AlreadyExists,
    /// [`Store::replace`](super::Store::replace): the object no longer has the expected version,
    /// and this call did not change it. Read the object again.
    Conflict,
    /// The object still has the known version. Occurs only inside the store:
    /// [`Store::get_if_changed`](super::Store::get_if_changed) turns it into `None`.
    NotModified,
    /// The requested range goes past the end of the object, so the object is not the expected one.
    OutOfRange,
    /// The store refused because of credentials or permissions. A person must act.
    Denied,
    /// The bucket, container or directory does not exist. A person must act.
    NoBucket,
    /// No server was ever reached at this address: its name is unknown, it refuses connections, or
    /// its certificate is wrong. A person must act, or choose to wait.
    NoServer,
    /// The store did not answer: name resolution, connection or timeout failed. This call changed
    /// nothing. Try again later.
    Unreachable,
    /// The store asks for fewer requests, or lacks a resource that will become free again. This
    /// call changed nothing. Try again later, with fewer requests.
    Throttled,
    /// A write may or may not have been applied, and may still be applied. Read the object before
    /// any other step.
    OutcomeUnknown,
    /// The store is full, or its quota is used up.
    NoSpace,
    /// A key, URL, option or answer is invalid: this program has a fault, or the store breaks its
    /// protocol.
    Invalid,
    /// No other kind fits. It is not known whether another attempt helps.
    Other,
}

/// A failed request to the store.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    operation: Operation,
    key: String,
    message: String,
    is_of_one_object: bool,
}

impl StoreError {
    /// Returns an error of `kind` in `operation` on `key`. `key` is the prefix for lists, and empty
    /// for the store itself. `message` says why, in words for people.
    pub fn new(
        kind: StoreErrorKind,
        operation: Operation,
        key: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            operation,
            key: key.into(),
            message: message.into(),
            is_of_one_object: false,
        }
    }

    /// Returns the same error, marked as one of a store that gives other objects: see
    /// [`Self::is_of_one_object`].
    pub fn of_one_object(mut self) -> Self {
        self.is_of_one_object = true;
        self
    }

    /// Returns the same error with the kind [`StoreErrorKind::NoServer`].
    pub(super) fn of_no_server(mut self) -> Self {
        self.kind = StoreErrorKind::NoServer;
        self
    }

    /// Returns the kind, which says what the caller should do.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns the key of the request: the prefix for lists, empty for the store itself.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the reason, without the operation and the key.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns whether the same request may succeed later by itself, and is safe to send again
    /// because this one changed nothing. [`StoreErrorKind::OutcomeUnknown`] is not transient: read
    /// the object first.
    pub fn is_transient(&self) -> bool {
        match self.kind {
            StoreErrorKind::Unreachable | StoreErrorKind::Throttled => true,
            StoreErrorKind::NotFound
            | StoreErrorKind::AlreadyExists
            | StoreErrorKind::Conflict
            | StoreErrorKind::NotModified
            | StoreErrorKind::OutOfRange
            | StoreErrorKind::Denied
            | StoreErrorKind::NoBucket
            | StoreErrorKind::NoServer
            | StoreErrorKind::OutcomeUnknown
            | StoreErrorKind::NoSpace
            | StoreErrorKind::Invalid
            | StoreErrorKind::Other => false,
        }
    }

    /// Returns whether the store did not give one object that was asked for repeatedly, and gave
    /// another one meanwhile. The object may be at fault as well as the store.
    pub fn is_of_one_object(&self) -> bool {
        let is_read = matches!(
            self.operation,
            Operation::Get | Operation::GetRange | Operation::GetTail | Operation::Head
        );
        self.is_of_one_object && is_read
    }

    /// Returns whether the object is known to be absent.
    pub fn is_not_found(&self) -> bool {
        self.kind == StoreErrorKind::NotFound
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.operation.verb();
        match (self.operation, self.key.as_str()) {
            (Operation::List, "") => write!(formatter, "cannot list the bucket")?,
            (_, "") => write!(formatter, "cannot {verb} the bucket")?,
            (_, key) => write!(formatter, "cannot {verb} {key}")?,
        }
        match self.kind {
            StoreErrorKind::OutcomeUnknown => {
                write!(
                    formatter,
                    ": it is not known whether the write was applied: {}",
                    self.message
                )
            }
            _ => write!(formatter, ": {}", self.message),
        }
    }
}

impl std::error::Error for StoreError {}
