//! The clauses of the protocol that can be switched off, one at a time.
//!
//! A mutant is the protocol without one clause. The checker must find a counterexample for each
//! mutant. If it does not, either the clause is superfluous or the model does not cover the
//! clause's purpose.

/// A clause that is left out. The comment gives the rule of the protocol and the behaviour without
/// the clause.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mutant {
    // Clauses at the core of the protocol.
    /// Rule 5: a commit is applied to the present R, although it was checked by an R that was read
    /// before.
    CommitWithoutRereading,
    /// Rule 6: fsync returns once its journal PUT is answered, without a GET of R.
    FsyncWithoutRereading,
    /// Rule 8c: condemned packs are deleted without waiting for the bases of the sessions.
    DeleteWithoutWaiting,
    /// Rule 7: the taking CAS removes the old holder's session before its journal is committed.
    EndBeforeJournalCommitted,
    /// Rules 3, 4: a session that reuses a segment holds a reference to the segment only, and
    /// assumes that its chunks exist.
    ReusedSegmentAsProof,
    /// Rule 8b: candidates marked from an older root are condemned in the root being replaced.
    MarkFromOlderRoot,

    // The clauses marked ‡, in the order of the text.
    /// Rule 2: a CAS does not check that its own session is live in R.
    CasWithoutLiveSession,
    /// Rule 2: a commit's floor passes a pack whose PUT is unresolved.
    FloorPastUnresolved,
    /// Rule 2: a commit's floor passes a pack whose references are uncommitted.
    FloorPastUncommitted,
    /// Rule 3: a commit checks only the objects that its tree reaches.
    CommitChecksReachableOnly,
    /// Rule 3: a collector's rewritten packs are not checked.
    RewrittenPacksUnchecked,
    /// Rule 4: a session goes on with an index older than the R that registered it.
    IndexOlderThanRegistration,
    /// Rule 4: the first base is the epoch at the time of the first heartbeat, not that of the R
    /// that registered the session.
    FirstBaseOfLaterRoot,
    /// Rule 4: a higher base is published without a GET of R that shows that the session still
    /// holds the volume.
    BaseWithoutRereading,
    /// Rule 4: a base binds only once its PUT is answered.
    BaseBindsWhenAnswered,
    /// Rule 5: R does not hold the last covered operation, so that a new holder replays all
    /// journals that it finds.
    CoveredNotInRoot,
    /// Rule 6: journal n is acknowledged although one before it is not.
    AcknowledgedWithGap,
    /// Rule 6: the GET of R is sent at the same time as the PUT instead of after its answer.
    GetBeforeAnswer,
    /// Rule 7: journals are replayed newest session first.
    ReplayNewestFirst,
    /// Rule 7: the commit that replays a session leaves it in R; a later CAS removes it.
    RemoveInLaterCas,
    /// Rule 7: a new holder accepts and commits operations before it has replayed.
    NewHolderAcceptsEarly,
    /// Rule 8b: after the candidates shrank they are not closed again.
    NotClosedAgain,

    // Clauses without a mark, or clauses that this model added. Their mutants show that the model
    // covers them.
    /// Rule 2: a session takes for its own the packs that it remembers to have uploaded, not those
    /// at or above its floor in the R just read.
    OwnByMemory,
    /// Rule 1: an object is named that has not been acknowledged.
    UnacknowledgedNamed,
    /// Rule 4: an absent heartbeat does not block deletion.
    AbsentHeartbeatIgnored,
    /// Rule 4, read literally: only *acknowledged* journals count when a base is raised, not those
    /// whose PUT is unresolved.
    UnresolvedJournalIgnored,
    /// Rule 4: when a base is raised, a reference that has a good place keeps its condemned place
    /// as well.
    StalePlaceKept,
    /// Rule 4: the higher base is published before the replacement journal is in the store.
    BaseBeforeReplacement,
    /// Rule 4: names in a journal that R covers, and that may therefore be deleted, are taken to
    /// serve later operations too.
    CoveredJournalTrusted,
    /// Rule 6: a journal names the packs of the segments only.
    NamesNotTransitive,
    /// Rule 7: journals are listed before the taking CAS.
    ListBeforeTake,
    /// Rule 8a: packs at or above their session's floor are candidates like others.
    OwnPacksCollected,
    /// Rule 8c: only live sessions hold back deletion, ending ones do not.
    EndingSessionsIgnored,
    /// Rule 8a: a metadata pack with an unreachable object stays live, and only the objects that
    /// its reachable objects refer to stay with it.
    MixedPackLeftOpen,
    /// Rule 8: candidates are deleted as soon as they are marked, before a root has condemned them.
    SweepBeforeSwap,
    /// Objects: a pack is named by its contents, so that a session that stores the same contents
    /// again uses a name again.
    NamesOfContents,
    /// Objects: R has no generation and no nonce, so that it can get the same bytes, and the same
    /// ETag, as an earlier R.
    UnchangedEtagTrusted,
    /// Rule 8c: an epoch is forgotten once it may be deleted, although one of its packs still
    /// exists (a lock protects it).
    LockedPackForgotten,
    /// Rule 8c: a locked pack moves to another epoch before every base has reached its own.
    LockedPackMovedEarly,
    /// Rule 4: a reference to a condemned pack is taken to stand while a lock protects the pack.
    LockTrusted,
    /// Rule 11: new data is matched with damaged chunks.
    QuarantinedChunkMatched,
    /// Rule 11: a segment is matched without a check of the chunks that it refers to.
    SegmentMatchedFirst,
    /// Rules 4, 11: a condemned object is found again in a damaged pack.
    QuarantinedPlaceTaken,
    /// Rules 3, 11: a commit checks whether the objects that it refers to are live somewhere, not
    /// whether the packs that it relies on are live.
    LeansOnAnyCopy,
    /// Rules 8a, 11: of several copies the first is kept, even if it is known to be damaged.
    FirstCopyKept,
    /// Rule 6: a journal names a pack whose segments refer to chunks in a pack that has no answer
    /// yet.
    ParentNamedAlone,
    /// Rule 1: a pack that its writer has given up on is named like an acknowledged one.
    FailedPackNamed,
    /// Rules 4, 5, 11: a damaged place is enough to raise a base or to make a commit, while a whole
    /// place is about to be deleted.
    DamagedPlaceStands,
    /// Rules 7, 11: a new holder accepts a damaged copy where a journal names a whole one.
    NewHolderReliesOnDamaged,
    /// Rule 7: a new holder carries out journals behind one that is missing.
    GapPassedOver,
    /// Rule 7: a new holder takes a journal that is missing between others for the end of the
    /// journals.
    GapTakenForEnd,
    /// Rule 6: a journal is sent before the one before it is answered, although a new holder takes
    /// a gap for a loss.
    SentOutOfTurn,
    /// Rule 7: a session leaves R and its spool is not recorded.
    RecoveryBaseNotLeft,
    /// Rules 7, 8c: a recovery base keeps the tree that a spool follows, but not the objects that
    /// the spool refers to.
    RecoveryBaseWithoutCommit,
    /// Rule 7: a new holder does not read the spools of its own machine.
    SpoolIgnored,
    /// Rule 4: a journal on the disk of its machine does not count when a base is raised.
    KeptJournalIgnored,
    /// Rule 7: a machine does not compare the journals that it finds with those that it has
    /// acknowledged.
    MemoryIgnored,

    // Version 2: fences.
    /// Rule 7: the fence of a session is written before the CAS that ends the session.
    FenceBeforeReplacement,
    /// Rule 7: a new holder looks for journals before it has written the fences.
    ListBeforeFence,
    /// Rule 7: a new holder goes on although the PUT of a fence has no answer.
    UnansweredFenceTrusted,
    /// Rule 7: a new holder writes the fence of the last holder only, and takes it that an earlier
    /// new holder has written those of the sessions before.
    EarlierFenceAssumed,
    /// A fence is deleted once its session has left R.
    FenceDeletedWithSession,
    /// Rule 6: a session journals before its object was answered.
    JournaledUnannounced,
    /// Rule 6: a session journals once its object was answered, without reading R after that.
    AnnouncedWithoutReading,
    /// A repair writes no fences.
    RebuiltUnfenced,
    /// A repair lists the journals before it writes the fences.
    RebuiltListedBeforeFence,

    // Runs and groups.
    /// Rule 12: a commit absorbs an index object that a group covers, and the group stays.
    GroupOutlivesObject,
    /// Rule 12: a look-up in a run ignores the dropped list of its group.
    DroppedIgnored,
    /// Rule 12: an epoch is forgotten, and its packs do not enter the dropped lists of complete
    /// groups.
    CompleteGroupKeepsDropped,
    /// Rule 12: an epoch is forgotten, and its packs do not enter the dropped list of the group that
    /// is being built.
    BuildingGroupKeepsDropped,
    /// Rule 12: index objects that different groups cover are written into one.
    WrittenTogether,
    /// Rule 12: a program that does not know groups keeps them when it replaces R.
    UnknownFieldKept,
    /// Rule 12: a group that is being built answers for what it covers.
    BuildingGroupAnswers,
    /// Rule 12: a slice enters another group than the one that it was made for.
    AnotherGroupTaken,
    /// Rule 12: a slice is made by a root in which its group has not begun.
    SliceOfOlderRoot,
    /// Rule 12: a replacement writes the groups as they were when the slice was made.
    GroupsOfOlderRoot,
    /// Rule 12: a slice has packs that a source had dropped.
    SliceNamesDropped,
    /// Rule 12: a slice drops condemned packs.
    MergeDropsCondemned,
    /// Rule 12: a slice is made without a source that could not be read.
    UnreadableSourceSkipped,
    /// Rule 12: a group becomes complete before it has all slices.
    CompletedEarly,
    /// Rule 12: a run that R does not name is deleted although its session stands in R.
    OwnRunsSwept,
    /// Rule 12: a mount merges in its own session, so that its commits raise the floor past the
    /// run.
    MergedInMountSession,
    /// Rules 3, 12: a commit takes every pack for live that no list names, also one that no index
    /// object names.
    LiveByListsOnly,

    // Version 2: turns, and who a session is.
    /// Rule 8: a collector whose turn stands in R condemns what it had marked, without marking the
    /// difference, because the others wait.
    TurnTakenForLock,
    /// Rule 8: a turn is obeyed for as long as it stands.
    TurnObeyedForEver,
    /// Rule 2: a session whose object is absent is taken for dead.
    AbsentTakenForDead,
    /// Rule 2: who a session is, is written before its registration, and not again with its
    /// heartbeats.
    DescribedOnce,
    /// Rule 8: a collector reads R before it lists the objects of the sessions and the runs.
    SweptByOlderRoot,

    // Learned footers.
    /// Rule 13: a footer is matched although the run that had named its pack belongs to no complete
    /// group of the loaded root.
    FooterOutlivesRun,
    /// Rule 13: a footer is matched although its pack is on a dropped list.
    DroppedFooterMatched,
    /// Rule 13: a footer is matched although its pack is condemned.
    CondemnedFooterMatched,
    /// Rule 13: a pack is found, and the reference is recorded later, when another root is known.
    MatchedOutsideLock,
    /// Rules 3, 13: a commit does not check again whether what was matched is live.
    CommitTrustsMatches,

    // Version 2: clones.
    /// Rule 14: a clone is made of a snapshot that is no longer in R.
    ForgottenCloned,
    /// Rule 14: a clone replaces a volume of the same name that was made since R was read.
    CloneOverwrites,

    // Version 2: conversion.
    /// Rule 15: a repository is converted although another session stands in the root that is
    /// replaced.
    ConvertedAlongside,
    /// Rule 15: a program that knows version 1 only works on a root of version 2.
    OldProgramsGoOn,
    /// Rule 15: a conversion writes the lists of the root that it had read.
    ConvertedOlderRoot,
    /// Rule 15: in a root of version 1 a new program goes by fences.
    FenceReadInVersion1,
    /// Rule 15: a conversion drops the recovery bases of version 1.
    ConvertedRecoveryBasesDropped,

    // Clauses that others imply, or that save cost only: a test shows that nothing is violated
    // without them.
    /// Rule 12: a slice has packs that its own group has dropped.
    SliceNamesOwnDropped,
    /// Rule 12: a slice enters a group that has it.
    SliceAddedTwice,
    /// Rule 12: a group is begun while another one is being built.
    SecondGroupBegun,
    /// Rule 12: the sources of a group stay when it becomes complete.
    SourcesStay,
}

/// All mutants that must be refuted, for a test that each one is.
pub const ALL: &[Mutant] = &[
    Mutant::CommitWithoutRereading,
    Mutant::FsyncWithoutRereading,
    Mutant::DeleteWithoutWaiting,
    Mutant::EndBeforeJournalCommitted,
    Mutant::ReusedSegmentAsProof,
    Mutant::MarkFromOlderRoot,
    Mutant::CasWithoutLiveSession,
    Mutant::FloorPastUnresolved,
    Mutant::FloorPastUncommitted,
    Mutant::CommitChecksReachableOnly,
    Mutant::RewrittenPacksUnchecked,
    Mutant::IndexOlderThanRegistration,
    Mutant::FirstBaseOfLaterRoot,
    Mutant::BaseWithoutRereading,
    Mutant::BaseBindsWhenAnswered,
    Mutant::CoveredNotInRoot,
    Mutant::AcknowledgedWithGap,
    Mutant::GetBeforeAnswer,
    Mutant::ReplayNewestFirst,
    Mutant::RemoveInLaterCas,
    Mutant::NewHolderAcceptsEarly,
    Mutant::NotClosedAgain,
    Mutant::OwnByMemory,
    Mutant::UnacknowledgedNamed,
    Mutant::AbsentHeartbeatIgnored,
    Mutant::UnresolvedJournalIgnored,
    Mutant::StalePlaceKept,
    Mutant::BaseBeforeReplacement,
    Mutant::CoveredJournalTrusted,
    Mutant::NamesNotTransitive,
    Mutant::ListBeforeTake,
    Mutant::OwnPacksCollected,
    Mutant::EndingSessionsIgnored,
    Mutant::MixedPackLeftOpen,
    Mutant::SweepBeforeSwap,
    Mutant::NamesOfContents,
    Mutant::UnchangedEtagTrusted,
    Mutant::LockedPackForgotten,
    Mutant::LockedPackMovedEarly,
    Mutant::LockTrusted,
    Mutant::QuarantinedChunkMatched,
    Mutant::SegmentMatchedFirst,
    Mutant::QuarantinedPlaceTaken,
    Mutant::LeansOnAnyCopy,
    Mutant::FirstCopyKept,
    Mutant::ParentNamedAlone,
    Mutant::FailedPackNamed,
    Mutant::DamagedPlaceStands,
    Mutant::NewHolderReliesOnDamaged,
    Mutant::GapPassedOver,
    Mutant::GapTakenForEnd,
    Mutant::SentOutOfTurn,
    Mutant::RecoveryBaseNotLeft,
    Mutant::RecoveryBaseWithoutCommit,
    Mutant::SpoolIgnored,
    Mutant::KeptJournalIgnored,
    Mutant::MemoryIgnored,
    Mutant::FenceBeforeReplacement,
    Mutant::ListBeforeFence,
    Mutant::UnansweredFenceTrusted,
    Mutant::EarlierFenceAssumed,
    Mutant::FenceDeletedWithSession,
    Mutant::JournaledUnannounced,
    Mutant::AnnouncedWithoutReading,
    Mutant::RebuiltUnfenced,
    Mutant::RebuiltListedBeforeFence,
    Mutant::GroupOutlivesObject,
    Mutant::DroppedIgnored,
    Mutant::CompleteGroupKeepsDropped,
    Mutant::BuildingGroupKeepsDropped,
    Mutant::WrittenTogether,
    Mutant::UnknownFieldKept,
    Mutant::BuildingGroupAnswers,
    Mutant::AnotherGroupTaken,
    Mutant::SliceOfOlderRoot,
    Mutant::GroupsOfOlderRoot,
    Mutant::SliceNamesDropped,
    Mutant::MergeDropsCondemned,
    Mutant::UnreadableSourceSkipped,
    Mutant::CompletedEarly,
    Mutant::OwnRunsSwept,
    Mutant::MergedInMountSession,
    Mutant::LiveByListsOnly,
    Mutant::TurnTakenForLock,
    Mutant::TurnObeyedForEver,
    Mutant::AbsentTakenForDead,
    Mutant::DescribedOnce,
    Mutant::SweptByOlderRoot,
    Mutant::FooterOutlivesRun,
    Mutant::DroppedFooterMatched,
    Mutant::CondemnedFooterMatched,
    Mutant::MatchedOutsideLock,
    Mutant::CommitTrustsMatches,
    Mutant::ForgottenCloned,
    Mutant::CloneOverwrites,
    Mutant::ConvertedAlongside,
    Mutant::OldProgramsGoOn,
    Mutant::ConvertedOlderRoot,
    Mutant::ConvertedRecoveryBasesDropped,
    Mutant::FenceReadInVersion1,
];
