//! Why a request to the store failed, in kinds that say what the caller should do.

use std::fmt;

/// What was asked of the store.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Operation {
    /// Opening the store.
    Open,
    /// [`Store::get`](super::Store::get) and [`Store::get_if_changed`](super::Store::get_if_changed).
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
    /// Every operation, in the order in which counters keep them.
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

    /// A short name for metrics and logs.
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

    /// Whether it changes the bucket.
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

    /// Whether it does no harm to send it again when nobody knows what became of it.
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
    /// The object is not there. The bucket itself was reached.
    NotFound,
    /// [`Store::put_new`](super::Store::put_new): there is an object of that name, and it is not from this call.
    AlreadyExists,
    /// [`Store::replace`](super::Store::replace): the object is no longer what was expected, and not by this call. Read it again.
    Conflict,
    /// The object still is what is known of it. Met only inside the store: [`Store::get_if_changed`](super::Store::get_if_changed) makes `None` of it.
    NotModified,
    /// The range asked for goes past the end of the object: the object is not what it should be.
    OutOfRange,
    /// The store refused: credentials or permissions. A person must act.
    Denied,
    /// The bucket, container or directory does not exist. A person must act.
    NoBucket,
    /// No server was ever reached there: its name is unknown, it refuses connections, or its
    /// certificate is wrong. A person must act, or ask for waiting.
    NoServer,
    /// The store did not answer: name resolution, connection, time. Nothing was changed by this call. Try again later.
    Unreachable,
    /// The store asks for patience, or is short of something that will be there again; nothing was changed by this call. Try again later, with fewer requests.
    Throttled,
    /// A write may or may not have been applied, and may be applied yet. Look before doing anything else.
    OutcomeUnknown,
    /// The store is full, or a quota is used up.
    NoSpace,
    /// A key, URL, option or answer that makes no sense: a mistake here, or a store that does not keep to its protocol.
    Invalid,
    /// None of these; trying again is not known to help.
    Other,
}

/// A request to the store failed.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    operation: Operation,
    key: String,
    message: String,
}

impl StoreError {
    /// An error of `kind` in `operation` on `key` (the prefix for lists; empty for the store itself). The message says why, in words for people.
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
        }
    }

    /// The same, of a server that was never reached.
    pub(super) fn of_no_server(mut self) -> Self {
        self.kind = StoreErrorKind::NoServer;
        self
    }

    /// What the caller should do about it.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// What was asked of the store.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The key it was about: the prefix for lists, empty for the store itself.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Why, without what and where.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the same request may succeed later without anybody's doing, and is safe to send again: nothing was changed by this one.
    /// [`StoreErrorKind::OutcomeUnknown`] is not among them: look first.
    pub fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Unreachable | StoreErrorKind::Throttled
        )
    }

    /// Whether the store answered a read of one object again and again, and never with what was
    /// asked for: as much a fault of the object as of the store.
    pub fn is_of_one_object(&self) -> bool {
        let is_read = matches!(
            self.operation,
            Operation::Get | Operation::GetRange | Operation::GetTail | Operation::Head
        );
        self.kind == StoreErrorKind::Invalid && is_read
    }

    /// Whether the object is known to be absent.
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
