//! Answers to requests: each is given once, from any thread, inline or later.
//!
//! Owns: [`Reply`], which comes with every request, and [`DirectoryReply`] for directory listings.
//! The filesystem fills a listing entry by entry, up to the size of the kernel's buffer.
//! Does not own: how an answer is encoded for the kernel (adapter), or what it says (the [`Vfs`]).
//!
//! A reply that is dropped without an answer answers EIO and logs an error. Otherwise the program
//! that made the request would wait for ever.
//!
//! [`Vfs`]: crate::Vfs

use std::sync::mpsc::{Receiver, sync_channel};

use tracing::error;

use crate::errno::Errno;
use crate::types::{DirectoryEntry, OwnedDirectoryEntry};

type Answer<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

/// The obligation to answer one request with a `T` or an [`Errno`].
///
/// The holder may answer inline, or move it to another thread or task and answer later. An open
/// reply blocks one program and no thread that serves the mount. Dropping it answers EIO.
#[must_use = "an unanswered reply answers EIO"]
pub struct Reply<T> {
    operation: &'static str,
    answer: Option<Answer<T>>,
}

impl<T> Reply<T> {
    /// Returns a reply that passes its answer to `answer`, exactly once. `operation` names the
    /// request in the log.
    pub fn new(
        operation: &'static str,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) -> Self {
        Self {
            operation,
            answer: Some(Box::new(answer)),
        }
    }

    /// Returns a reply and the receiver of its answer, for driving a filesystem without a mount.
    pub fn channel() -> (Self, Receiver<Result<T, Errno>>)
    where
        T: Send + 'static,
    {
        let (sender, receiver) = sync_channel(1);
        // The receiver may be gone; then the answer is dropped.
        let reply = Reply::new("unmounted", move |answer| drop(sender.send(answer)));
        (reply, receiver)
    }

    /// Answers with success.
    pub fn ok(self, value: T) {
        self.send(Ok(value));
    }

    /// Answers with an error.
    pub fn err(self, errno: Errno) {
        self.send(Err(errno));
    }

    /// Answers with success or an error.
    pub fn send(mut self, result: Result<T, Errno>) {
        if let Some(answer) = self.answer.take() {
            answer(result);
        }
    }

    /// Returns a reply for an inner operation; `convert` turns its success into the success of this
    /// one.
    pub fn map<U>(mut self, convert: impl FnOnce(U) -> T + Send + 'static) -> Reply<U>
    where
        T: 'static,
        U: 'static,
    {
        Reply {
            operation: self.operation,
            answer: self.answer.take().map(|answer| -> Answer<U> {
                Box::new(move |result: Result<U, Errno>| answer(result.map(convert)))
            }),
        }
    }

    /// Returns the name of the request, for logs.
    pub fn operation(&self) -> &'static str {
        self.operation
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            error!(
                operation = self.operation,
                "request dropped without an answer: answering EIO"
            );
            answer(Err(Errno::EIO));
        }
    }
}

impl<T> std::fmt::Debug for Reply<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Reply({})", self.operation)
    }
}

/// The receiver of the entries of a directory listing. The adapter implements it over the kernel's
/// buffer, and the tests' collector implements it over a vector.
pub(crate) trait DirectorySink: Send {
    /// Takes the entry if it fits. On `false` the sink is unchanged.
    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool;

    /// Ends the listing.
    fn finish(self: Box<Self>, result: Result<(), Errno>);
}

/// The reply to one readdir request: push entries until one no longer fits, then call
/// [`ok`](Self::ok).
///
/// An empty listing is the end of the directory. Like [`Reply`], it may be moved to a task, and
/// answers EIO when it is dropped.
#[must_use = "an unanswered reply answers EIO"]
pub struct DirectoryReply {
    plus: bool,
    sink: Option<Box<dyn DirectorySink>>,
}

impl DirectoryReply {
    pub(crate) fn new(plus: bool, sink: Box<dyn DirectorySink>) -> Self {
        Self {
            plus,
            sink: Some(sink),
        }
    }

    /// Returns a reply that takes at most `capacity` entries, and the receiver of these entries.
    pub fn channel(
        plus: bool,
        capacity: usize,
    ) -> (Self, Receiver<Result<Vec<OwnedDirectoryEntry>, Errno>>) {
        let (sender, receiver) = sync_channel(1);
        // The receiver may be gone; then the answer is dropped.
        let reply = Self::collecting(plus, capacity, move |answer| drop(sender.send(answer)));
        (reply, receiver)
    }

    /// Returns a reply that takes at most `capacity` entries and passes them to `answer`, exactly
    /// once.
    pub fn collecting(
        plus: bool,
        capacity: usize,
        answer: impl FnOnce(Result<Vec<OwnedDirectoryEntry>, Errno>) + Send + 'static,
    ) -> Self {
        let collector = Collector {
            capacity,
            entries: Vec::new(),
            answer: Box::new(answer),
        };
        DirectoryReply::new(plus, Box::new(collector))
    }

    /// Returns true if the kernel wants attributes with the names (READDIRPLUS). Then every entry
    /// except `.` and `..` must carry its [`Entry`](crate::Entry). Each such entry that
    /// [`push`](Self::push) accepts counts as one lookup, which the kernel gives back later.
    pub fn plus(&self) -> bool {
        self.plus
    }

    /// Adds one entry. Returns `false` if it did not fit: nothing was added, no lookup was counted,
    /// and the caller must push no further entry.
    #[must_use = "an entry that did not fit counts no lookup"]
    pub fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        self.sink.as_mut().is_some_and(|sink| sink.push(entry))
    }

    /// Ends the listing successfully with the pushed entries.
    pub fn ok(mut self) {
        if let Some(sink) = self.sink.take() {
            sink.finish(Ok(()));
        }
    }

    /// Answers with an error. The lookups of earlier pushes then do not count.
    pub fn err(mut self, errno: Errno) {
        if let Some(sink) = self.sink.take() {
            sink.finish(Err(errno));
        }
    }
}

impl Drop for DirectoryReply {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            error!(
                operation = "readdir",
                "request dropped without an answer: answering EIO"
            );
            sink.finish(Err(Errno::EIO));
        }
    }
}

impl std::fmt::Debug for DirectoryReply {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "DirectoryReply(plus: {})", self.plus)
    }
}

struct Collector {
    capacity: usize,
    entries: Vec<OwnedDirectoryEntry>,
    answer: Answer<Vec<OwnedDirectoryEntry>>,
}

impl DirectorySink for Collector {
    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        if self.entries.len() >= self.capacity {
            return false;
        }
        self.entries.push(entry.to_owned());
        true
    }

    fn finish(self: Box<Self>, result: Result<(), Errno>) {
        let Collector {
            entries, answer, ..
        } = *self;
        answer(result.map(|()| entries));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{FileKind, Ino};

    #[test]
    fn an_answer_arrives_once() {
        let (reply, answer) = Reply::channel();
        reply.ok(7_u32);
        assert_eq!(answer.recv(), Ok(Ok(7)));
        assert!(answer.recv().is_err(), "the drop must not answer again");
    }

    #[test]
    fn a_dropped_reply_answers_eio() {
        let (reply, answer) = Reply::<u32>::channel();
        drop(reply);
        assert_eq!(answer.recv(), Ok(Err(Errno::EIO)));
    }

    #[test]
    fn a_dropped_mapped_reply_answers_eio() {
        let (reply, answer) = Reply::<u32>::channel();
        let inner: Reply<u8> = reply.map(u32::from);
        drop(inner);
        assert_eq!(answer.recv(), Ok(Err(Errno::EIO)));
    }

    #[test]
    fn map_converts_success_and_passes_errors() {
        let (reply, answer) = Reply::<u32>::channel();
        reply.map(|byte: u8| u32::from(byte) + 1).ok(1);
        assert_eq!(answer.recv(), Ok(Ok(2)));
        let (reply, answer) = Reply::<u32>::channel();
        reply.map(|byte: u8| u32::from(byte)).err(Errno::EROFS);
        assert_eq!(answer.recv(), Ok(Err(Errno::EROFS)));
    }

    #[test]
    fn a_reply_is_answered_by_unwinding() {
        let (reply, answer) = Reply::<u32>::channel();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _held = reply;
            panic!("on purpose");
        }));
        assert!(result.is_err());
        assert_eq!(answer.recv(), Ok(Err(Errno::EIO)));
    }

    #[test]
    fn a_listing_stops_at_its_capacity() {
        let (mut reply, answer) = DirectoryReply::channel(false, 2);
        let entry = |cookie| DirectoryEntry {
            ino: Ino(cookie),
            kind: FileKind::Regular,
            name: b"n",
            cookie,
            plus: None,
        };
        assert!(reply.push(&entry(1)));
        assert!(reply.push(&entry(2)));
        assert!(!reply.push(&entry(3)));
        reply.ok();
        let entries = answer.recv().unwrap().unwrap();
        assert_eq!(
            entries.iter().map(|e| e.cookie).collect::<Vec<_>>(),
            [1, 2],
            "what did not fit is not there"
        );
        let (reply, answer) = DirectoryReply::channel(true, 2);
        drop(reply);
        assert_eq!(answer.recv().unwrap(), Err(Errno::EIO));
    }
}
