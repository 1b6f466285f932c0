//! Mistakes that are planted on purpose, so that it is seen that runs notice them. README.md says what each stands for.

/// A mistake. Each is a change of the harness around the engine, never of the engine itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// fsync(2) returns before anything was stored.
    FsyncReturnsEarly,
    /// The store's success for a data pack is reported before the pack is there, so that what names it is written first.
    PackAfterIndex,
    /// A commit does not look at the root that it replaces.
    RootNotReadAgain,
    /// A replacement of the root whose outcome is unknown is taken for made.
    UnknownIsSuccess,
    /// A mount that failed begins anew by itself and lets its users believe that nothing happened.
    RecoversByItself,
    /// A snapshot is reported before it is made.
    SnapshotReturnsEarly,
    /// A writer that was taken over goes on to acknowledge.
    FencedAcknowledges,
    /// What a journal holds is carried out again, over the commit that had it.
    JournalReplayedTwice,
    /// What is spooled is acknowledged before the disk has flushed it.
    SpoolNotFlushed,
    /// A journal leaves the spool before it is anywhere else.
    SpoolRemovedEarly,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 10] = [
        Bug::FsyncReturnsEarly,
        Bug::PackAfterIndex,
        Bug::RootNotReadAgain,
        Bug::UnknownIsSuccess,
        Bug::RecoversByItself,
        Bug::SnapshotReturnsEarly,
        Bug::FencedAcknowledges,
        Bug::JournalReplayedTwice,
        Bug::SpoolNotFlushed,
        Bug::SpoolRemovedEarly,
    ];
}
