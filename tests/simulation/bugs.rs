//! Mistakes that are planted on purpose, to check that runs notice them. README.md describes each
//! of them.

/// A planted mistake. Each is a change of the harness around the engine, never of the engine
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// fsync(2) returns before anything was stored.
    FsyncReturnsEarly,
    /// The store reports success for a data pack before the pack is stored, so that the objects
    /// that name it are written first.
    PackAfterIndex,
    /// A commit does not read the root that it replaces.
    RootNotReadAgain,
    /// A replacement of the root whose outcome is unknown is taken for made.
    UnknownIsSuccess,
    /// A mount that failed starts again by itself, and its users see no failure.
    RecoversByItself,
    /// A snapshot is reported before it is made.
    SnapshotReturnsEarly,
    /// A writer whose volume was taken over still acknowledges.
    FencedAcknowledges,
    /// The operations of a journal are carried out again, over the commit that contains them.
    JournalReplayedTwice,
    /// Spooled data is acknowledged before the disk has flushed it.
    SpoolNotFlushed,
    /// A journal is removed from the spool before it is anywhere else.
    SpoolRemovedEarly,
    /// Sessions are not shown the fences that end them.
    FenceUnread,
}

impl Bug {
    /// All planted mistakes.
    pub const ALL: [Bug; 11] = [
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
        Bug::FenceUnread,
    ];
}
