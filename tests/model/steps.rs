//! The steps of the protocol. Product code uses their names in its comments.
//!
//! A process that is paused or has crashed takes no more steps, so neither is a step of its own. A
//! CAS that fails changes nothing and is no step either. Reading R, checking, and a CAS that
//! succeeds are one step, since success proves that R did not change in between. Where an answer
//! may be lost, sending and arriving are two steps.

use crate::clones::SNAPSHOTS;
use crate::index::{Absorb, GROUPS, Plane, RUNS, SLICES};
use crate::mutants::Mutant;
use crate::protocol::Protocol;
use crate::state::{EPOCHS, JOURNALS, Pack, Phase, SESSIONS, Session, State};
use crate::world::{Role, Write};
use crate::{
    clones, collector, conversion, damage, descriptions, fences, journal, learned, new_holder,
    rebuild, runs, writer,
};

/// One step of one process, or the arrival of a slow request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Rule 2: a new session enters R by CAS.
    RegisterCas(Session),
    /// Rule 4: the session reads the index again.
    RefreshIndex(Session),
    /// The session accepts an operation, and sends new objects as a pack. `late`: the PUT gets no
    /// answer for now.
    Accept {
        /// The session.
        s: Session,
        /// The content, and how it is stored.
        write: Write,
        /// Whether the PUT is slow.
        late: bool,
    },
    /// A slow pack arrives.
    PackLand(Pack),
    /// The pack's writer receives the answer.
    PackAnswer(Pack),
    /// The pack's writer no longer waits for an answer, and stores the contents again under another
    /// name. The pack may still arrive.
    PackGiveUp(Pack),
    /// Rule 4: objects that were condemned meanwhile are found elsewhere or copied into an own
    /// pack.
    ReplaceCondemned(Session),
    /// Rule 4: the session reads R and publishes a base: the first one, or a higher one.
    BaseSend {
        /// The session.
        s: Session,
        /// Whether the PUT is slow.
        late: bool,
    },
    /// A slow heartbeat arrives.
    BaseLand(Session, u8),
    /// Mutant `BaseBindsWhenAnswered` only: the answer arrives, the base binds.
    BaseAnswer(Session),
    /// Rule 6: the session sends the next journal object, which carries new operations or names
    /// packs again.
    JournalPut {
        /// The session.
        s: Session,
        /// Whether the PUT is slow.
        late: bool,
    },
    /// A slow journal arrives.
    JournalLand(Session, usize),
    /// A journal that R covers is deleted.
    JournalDelete(Session, usize),
    /// The bucket loses a journal, or its bytes change.
    JournalLose(Session, usize),
    /// `fsync=local`: the next journal is settled on the machine's disk, and acknowledged.
    JournalKeep(Session),
    /// A kept journal is sent.
    KeptSend(Session, usize),
    /// Rule 7: a new holder sends the contents of an ended session's spool on its machine.
    SpoolReplay(Session, Session),
    /// Rule 7: the contents of the spool of a session that left R become a snapshot.
    ClaimRecoveryBaseCas(Session, Session),
    /// Rule 7: the user of a new holder says that it may go on without the missing journals.
    AcceptLoss(Session),
    /// Rule 6: GET R after the journal's answer. Acknowledges if the session still holds the
    /// volume.
    FsyncGet(Session),
    /// Mutant `GetBeforeAnswer` only: R is read while the journal is under way.
    EarlyGet(Session),
    /// Rule 5: operations up to `last` are committed. `late`: the answer is lost; the request may
    /// arrive later, or never.
    CommitCas {
        /// The session.
        s: Session,
        /// Last operation covered.
        last: u8,
        /// Whether the answer is lost.
        late: bool,
        /// What it does with an older index object.
        absorb: Absorb,
    },
    /// A slow commit arrives while R is still the one that it was prepared from.
    CommitLand(Session),
    /// Rule 7: the volume's entry names the new holder, the old holder is ending.
    TakeCas(Session),
    /// Rule 7: the journals of all ending sessions of the volume are listed.
    TakeList(Session),
    /// Version 2, rule 7: a new holder writes the fence of a session that R has ended.
    FencePut {
        /// The new holder.
        s: Session,
        /// The ended session.
        v: Session,
        /// Whether the PUT is slow.
        late: bool,
    },
    /// A slow fence arrives.
    FenceLand(Session),
    /// Version 2: a fence is deleted.
    FenceDelete(Session),
    /// Rule 12: a group is begun.
    MergeBeginCas {
        /// The session.
        s: Session,
        /// Whether it is merged from the complete groups too.
        with_groups: bool,
    },
    /// Rule 12: a session reads R, merges a slice, and sends the run.
    MergePrepare {
        /// The session.
        s: Session,
        /// The slice.
        slice: u8,
        /// Whether the PUT is slow.
        late: bool,
    },
    /// A slow run arrives.
    RunLand(usize),
    /// Rule 12: the run enters the group.
    MergeCas {
        /// The session.
        s: Session,
        /// Whether the answer is lost.
        late: bool,
    },
    /// Rule 12: the group becomes complete, and its sources leave R.
    MergeCompleteCas(Session),
    /// A session gives up a slice whose group is no longer built.
    MergeAbandon(Session),
    /// Rule 12: a replacement takes a group out of R.
    GroupLeaveCas(usize),
    /// Rule 12: a run that R does not name is deleted.
    RunDelete(usize),
    /// Rule 7: the uncovered operations of the ending sessions are committed, and these sessions
    /// leave R.
    ReplayCommitCas(Session),
    /// Mutant `RemoveInLaterCas` only: the replayed sessions leave R.
    RemoveReplayedCas(Session),
    /// Rule 7: the holder, with everything committed, gives up its volume and leaves R.
    LeaveCas(Session),
    /// A session without a volume is taken out of R by another process that takes it for dead.
    EndSessionCas(Session),
    /// Rule 8a: R is read, packs are listed, candidates are computed.
    CollectMark {
        /// The session.
        s: Session,
        /// Whether mixed metadata packs are rewritten and condemned too.
        rewrite: bool,
    },
    /// Rule 8b: the candidates that are still garbage are condemned.
    CondemnCas(Session),
    /// Version 2: snapshot k of volume k is made.
    SnapshotCas(usize),
    /// Version 2: snapshot k is forgotten.
    SnapshotForgetCas(usize),
    /// Version 2: volume 0, which no session holds, is removed.
    VolumeRemoveCas,
    /// Version 2, rule 14: a session reads R, and uploads the commit record of a clone of snapshot k.
    ClonePrepare(Session, usize),
    /// Version 2, rule 14: the clone enters R.
    CloneCas(Session),
    /// R is lost.
    RootLose,
    /// A repair lists the objects and the journals of the sessions.
    RebuildList,
    /// It writes their fences.
    RebuildFence,
    /// It lists the journals again.
    RebuildListAgain,
    /// A repair rebuilds R.
    RebuildCas,
    /// Version 2, rule 6: a session reads R after its object was answered.
    AnnounceGet(Session),
    /// Rule 15: a session reads a root of version 1, and uploads lists of version 2.
    ConvertPrepare(Session),
    /// Rule 15: the root becomes one of version 2.
    ConvertCas(Session),
    /// Rule 13: a look-up in a run finds a pack, and its footer is read.
    LearnFooter(Session, usize, Pack),
    /// Mutant `MatchedOutsideLock` only: packs are found for the next operation.
    MatchFind(Session),
    /// Version 2: a collector asks the others to wait.
    TurnCas(Session),
    /// A process ends without a word.
    Crash(Session),
    /// Mutant `DescribedOnce` only: the session's object is written before registration.
    ObjectWriteEarly(Session),
    /// Mutant `SweptByOlderRoot` only: a collector reads R before it lists objects.
    ObjectSweepRead(Session),
    /// Version 2, rule 8: a collector decides to delete the object of a session that is not in R.
    ObjectSweep(Session),
    /// The DELETE of a session's object arrives.
    ObjectDeleteLand(Session),
    /// Rule 8c: a collector finds that the bases of all sessions have reached the epoch.
    CollectDecide(u8),
    /// Rule 8: an epoch whose packs are gone is forgotten.
    ForgetEpochCas {
        /// The epoch.
        epoch: u8,
        /// Whether a program does it that does not know groups.
        old: bool,
    },
    /// Rule 8c: a DELETE arrives, however late.
    DeleteLand(Pack),
    /// A lock ends, at any time by the bucket's clock.
    LockEnd(Pack),
    /// Rule 8c: locked packs move to another condemned epoch.
    MoveLockedCas {
        /// The epoch in which they were condemned.
        from: u8,
        /// The epoch that they join.
        to: u8,
    },
    /// The bytes of a live pack are damaged.
    Rot(Pack),
    /// Rule 11: damage that was found is put in quarantine.
    QuarantineCas(Session),
}

/// Adds all steps that may be possible. [`take`] decides whether a step is possible.
pub fn enumerate(model: &Protocol, state: &State, steps: &mut Vec<Step>) {
    for s in 0..SESSIONS {
        match model.scenario.roles[s] {
            _ if state.processes[s].dead => {}
            Role::Unused => {}
            Role::Collector | Role::Merger | Role::Cloner
                if state.processes[s].phase == Phase::Outside =>
            {
                steps.push(Step::RegisterCas(s));
            }
            Role::Merger | Role::Cloner => {}
            Role::Writer { menu, .. } => of_writer(model, state, s, menu, steps),
            Role::Collector => {
                if state.processes[s].phase == Phase::Marked {
                    steps.push(Step::CondemnCas(s));
                    if model.scenario.turns {
                        steps.push(Step::TurnCas(s));
                    }
                } else {
                    steps.extend([false, true].map(|rewrite| Step::CollectMark { s, rewrite }));
                }
                steps.push(Step::QuarantineCas(s));
            }
        }
        let merges = match model.scenario.roles[s] {
            Role::Merger => true,
            Role::Writer { .. } => model.lacks(Mutant::MergedInMountSession),
            _ => false,
        };
        if merges {
            of_merger(s, steps);
        }
        if matches!(model.scenario.roles[s], Role::Cloner) {
            steps.extend((0..SNAPSHOTS).map(|k| Step::ClonePrepare(s, k)));
            steps.push(Step::CloneCas(s));
        }
        if model.scenario.converts {
            steps.extend([Step::ConvertPrepare(s), Step::ConvertCas(s)]);
        }
        if model.scenario.end_sessions {
            steps.push(Step::EndSessionCas(s));
        }
        for n in 0..JOURNALS {
            steps.push(Step::JournalLand(s, n));
            if model.scenario.delete_journals {
                steps.push(Step::JournalDelete(s, n));
            }
            if state.faults.losses > 0 {
                steps.push(Step::JournalLose(s, n));
            }
        }
        for base in 0..EPOCHS as u8 {
            if state.store.flying_bases[s] & 1 << base != 0 {
                steps.push(Step::BaseLand(s, base));
            }
        }
    }
    if model.scenario.rebuilds {
        steps.extend([Step::RootLose, Step::RebuildList, Step::RebuildFence]);
        steps.extend([Step::RebuildListAgain, Step::RebuildCas]);
        steps.extend((0..SESSIONS).map(Step::AnnounceGet));
    }
    if model.scenario.clones {
        let both = |k| [Step::SnapshotCas(k), Step::SnapshotForgetCas(k)];
        steps.extend((0..SNAPSHOTS).flat_map(both));
        steps.push(Step::VolumeRemoveCas);
    }
    if model.scenario.judged {
        of_objects(model, steps);
    }
    if model.scenario.plane != Plane::Table {
        if model.lacks(Mutant::SweptByOlderRoot) {
            steps.extend((0..SESSIONS).map(Step::ObjectSweepRead));
        }
        steps.extend((0..RUNS).flat_map(|r| [Step::RunLand(r), Step::RunDelete(r)]));
        if model.scenario.groups_leave {
            steps.extend((0..GROUPS).map(Step::GroupLeaveCas));
        }
    }
    if model.scenario.fences {
        steps.extend((0..SESSIONS).flat_map(|v| [Step::FenceLand(v), Step::FenceDelete(v)]));
    }
    for p in state.store.flying.iter() {
        steps.push(Step::PackLand(p));
    }
    for epoch in 1..=model.scenario.last_epoch.min(state.root.epoch) {
        steps.push(Step::CollectDecide(epoch));
        steps.push(Step::ForgetEpochCas { epoch, old: false });
        if model.scenario.old != 0 {
            steps.push(Step::ForgetEpochCas { epoch, old: true });
        }
        let others = 1..=state.root.epoch;
        steps.extend(others.map(|to| Step::MoveLockedCas { from: epoch, to }));
    }
    steps.extend(state.store.locked.iter().map(Step::LockEnd));
    if state.faults.rots > 0 {
        steps.extend(state.root.live.iter().map(Step::Rot));
    }
    for p in state.store.doomed.common(state.store.stored).iter() {
        steps.push(Step::DeleteLand(p));
    }
}

fn of_objects(model: &Protocol, steps: &mut Vec<Step>) {
    for s in 0..SESSIONS {
        steps.extend([
            Step::Crash(s),
            Step::ObjectSweep(s),
            Step::ObjectDeleteLand(s),
        ]);
        if model.lacks(Mutant::DescribedOnce) {
            steps.push(Step::ObjectWriteEarly(s));
        }
        if model.lacks(Mutant::SweptByOlderRoot) {
            steps.push(Step::ObjectSweepRead(s));
        }
    }
}

fn of_merger(s: Session, steps: &mut Vec<Step>) {
    let both = [false, true];
    steps.extend(both.map(|with_groups| Step::MergeBeginCas { s, with_groups }));
    for slice in 0..SLICES as u8 {
        steps.extend(both.map(|late| Step::MergePrepare { s, slice, late }));
    }
    steps.extend(both.map(|late| Step::MergeCas { s, late }));
    steps.extend([Step::MergeCompleteCas(s), Step::MergeAbandon(s)]);
}

fn push_fences(s: Session, steps: &mut Vec<Step>) {
    for v in (0..SESSIONS).filter(|&v| v != s) {
        steps.extend([false, true].map(|late| Step::FencePut { s, v, late }));
    }
}

fn push_commits(model: &Protocol, s: Session, last: u8, steps: &mut Vec<Step>) {
    let absorbing = match model.scenario.absorbs {
        true => &[Absorb::No, Absorb::Take, Absorb::Copy][..],
        false => &[Absorb::No],
    };
    for &absorb in absorbing {
        steps.extend([false, true].map(|late| Step::CommitCas {
            s,
            last,
            late,
            absorb,
        }));
    }
}

fn of_writer(
    model: &Protocol,
    state: &State,
    s: Session,
    menu: &[&[Write]],
    steps: &mut Vec<Step>,
) {
    let process = &state.processes[s];
    let both = [false, true];
    match process.phase {
        Phase::Outside => steps.push(Step::RegisterCas(s)),
        Phase::Registered => {
            steps.push(Step::TakeCas(s));
            if model.lacks(Mutant::FenceBeforeReplacement) {
                push_fences(s, steps);
            }
            if model.lacks(Mutant::ListBeforeTake) {
                steps.push(Step::TakeList(s));
            }
        }
        Phase::Taken => {
            steps.push(Step::TakeList(s));
            if model.scenario.fences {
                push_fences(s, steps);
            }
            if model.scenario.spools {
                steps.extend((0..SESSIONS).map(|v| Step::SpoolReplay(s, v)));
            }
        }
        Phase::Listed => steps.extend([Step::ReplayCommitCas(s), Step::AcceptLoss(s)]),
        Phase::Mounted | Phase::Marked => {}
    }
    if process.phase == Phase::Outside {
        return;
    }
    steps.extend(both.map(|late| Step::BaseSend { s, late }));
    if model.scenario.spools {
        steps.extend((0..SESSIONS).map(|v| Step::ClaimRecoveryBaseCas(s, v)));
        steps.extend((0..JOURNALS).map(|n| Step::KeptSend(s, n)));
    }
    if model.scenario.leave {
        steps.push(Step::LeaveCas(s));
    }
    let accepts_early = model.lacks(Mutant::NewHolderAcceptsEarly) || model.scenario.early_accept;
    if process.phase != Phase::Mounted && !(accepts_early && process.phase != Phase::Registered) {
        return;
    }
    if let Some(choices) = menu.get(usize::from(process.accepted)) {
        for &write in *choices {
            steps.extend(both.map(|late| Step::Accept { s, write, late }));
        }
    }
    steps.extend(both.map(|late| Step::JournalPut { s, late }));
    if model.scenario.spools {
        steps.push(Step::JournalKeep(s));
    }
    if model.scenario.sampled {
        let packs = |r| {
            process
                .index
                .iter()
                .map(move |p| Step::LearnFooter(s, r, p))
        };
        steps.extend(
            (0..RUNS)
                .filter(|r| process.runs & 1 << r != 0)
                .flat_map(packs),
        );
    }
    steps.push(Step::FsyncGet(s));
    steps.push(Step::ReplaceCondemned(s));
    steps.extend(process.unresolved.iter().map(Step::PackAnswer));
    if model.scenario.give_up {
        steps.extend(process.unresolved.iter().map(Step::PackGiveUp));
    }
    if process.phase == Phase::Mounted || model.lacks(Mutant::NewHolderAcceptsEarly) {
        for last in process.covered + 1..=process.accepted {
            push_commits(model, s, last, steps);
        }
        steps.push(Step::CommitLand(s));
    }
    if model.scenario.refresh {
        steps.push(Step::RefreshIndex(s));
    }
    let odd_steps = [
        (Mutant::GetBeforeAnswer, Step::EarlyGet(s)),
        (Mutant::MatchedOutsideLock, Step::MatchFind(s)),
        (Mutant::BaseBindsWhenAnswered, Step::BaseAnswer(s)),
        (Mutant::RemoveInLaterCas, Step::RemoveReplayedCas(s)),
    ];
    steps.extend(
        odd_steps
            .iter()
            .filter(|(m, _)| model.lacks(*m))
            .map(|&(_, step)| step),
    );
}

/// Returns the state after the step, or `None` if the rules or the state forbid it.
pub fn take(model: &Protocol, state: &State, step: Step) -> Option<State> {
    if !rebuild::is_there(state) && conversion::needs_root(model, state, step) {
        return None;
    }
    if conversion::reader(step).is_some_and(|s| conversion::is_shut_out(model, state, s)) {
        return None;
    }
    match step {
        Step::RegisterCas(s) => new_holder::register(model, state, s),
        Step::RefreshIndex(s) => writer::refresh_index(model, state, s),
        Step::Accept { s, write, late } => writer::accept(model, state, s, write, late),
        Step::PackLand(p) => writer::pack_land(model, state, p),
        Step::PackAnswer(p) => writer::pack_answer(state, p),
        Step::PackGiveUp(p) => writer::pack_give_up(model, state, p),
        Step::ReplaceCondemned(s) => writer::replace_condemned(model, state, s),
        Step::BaseSend { s, late } => writer::base_send(model, state, s, late),
        Step::BaseLand(s, base) => writer::base_land(model, state, s, base),
        Step::BaseAnswer(s) => writer::base_answer(model, state, s),
        Step::JournalPut { s, late } => journal::put(model, state, s, late),
        Step::JournalLand(s, n) => journal::land(model, state, s, n),
        Step::JournalDelete(s, n) => journal::delete(model, state, s, n),
        Step::JournalLose(s, n) => journal::lose(model, state, s, n),
        Step::JournalKeep(s) => journal::keep(model, state, s),
        Step::KeptSend(s, n) => journal::send_kept(model, state, s, n),
        Step::SpoolReplay(s, v) => journal::replay_spool(model, state, s, v),
        Step::ClaimRecoveryBaseCas(s, v) => new_holder::claim_recovery_base_cas(model, state, s, v),
        Step::AcceptLoss(s) => new_holder::accept_loss(model, state, s),
        Step::FsyncGet(s) => journal::fsync_get(model, state, s),
        Step::EarlyGet(s) => journal::early_get(model, state, s),
        Step::CommitCas {
            s,
            last,
            late,
            absorb,
        } => writer::commit_cas(model, state, s, last, late, absorb),
        Step::CommitLand(s) => writer::commit_land(model, state, s),
        Step::TakeCas(s) => new_holder::take_cas(model, state, s),
        Step::TakeList(s) => new_holder::list(model, state, s),
        Step::MergeBeginCas { s, with_groups } => runs::begin_cas(model, state, s, with_groups),
        Step::MergePrepare { s, slice, late } => runs::prepare(model, state, s, slice, late),
        Step::RunLand(r) => runs::land(state, r),
        Step::MergeCas { s, late } => runs::merge_cas(model, state, s, late),
        Step::MergeCompleteCas(s) => runs::complete_cas(model, state, s),
        Step::MergeAbandon(s) => runs::abandon(model, state, s),
        Step::GroupLeaveCas(g) => runs::leave_cas(model, state, g),
        Step::RunDelete(r) => runs::delete(model, state, r),
        Step::FencePut { s, v, late } => fences::put(model, state, s, v, late),
        Step::FenceLand(v) => fences::land(model, state, v),
        Step::FenceDelete(v) => fences::delete(model, state, v),
        Step::ReplayCommitCas(s) => new_holder::replay_commit_cas(model, state, s),
        Step::RemoveReplayedCas(s) => new_holder::remove_replayed_cas(model, state, s),
        Step::LeaveCas(s) => new_holder::leave_cas(model, state, s),
        Step::EndSessionCas(s) => new_holder::end_session_cas(model, state, s),
        Step::CollectMark { s, rewrite } => collector::mark(model, state, s, rewrite),
        Step::CondemnCas(s) => collector::condemn_cas(model, state, s),
        Step::SnapshotCas(k) => clones::snapshot_cas(model, state, k),
        Step::SnapshotForgetCas(k) => clones::forget_cas(model, state, k),
        Step::VolumeRemoveCas => clones::remove_cas(model, state),
        Step::ClonePrepare(s, k) => clones::prepare(state, s, k),
        Step::CloneCas(s) => clones::clone_cas(model, state, s),
        Step::RootLose => rebuild::lose(state),
        Step::RebuildList => rebuild::list(state),
        Step::RebuildFence => rebuild::fence(model, state),
        Step::RebuildListAgain => rebuild::list_again(model, state),
        Step::RebuildCas => rebuild::rebuild_cas(model, state),
        Step::AnnounceGet(s) => rebuild::announce(model, state, s),
        Step::ConvertPrepare(s) => conversion::prepare(model, state, s),
        Step::ConvertCas(s) => conversion::convert_cas(model, state, s),
        Step::LearnFooter(s, r, p) => learned::learn_footer(model, state, s, r, p),
        Step::MatchFind(s) => learned::find(state, s),
        Step::TurnCas(s) => collector::turn_cas(model, state, s),
        Step::Crash(s) => descriptions::crash(model, state, s),
        Step::ObjectWriteEarly(s) => descriptions::write_early(state, s),
        Step::ObjectSweepRead(v) => descriptions::sweep_read(state, v),
        Step::ObjectSweep(v) => descriptions::sweep(model, state, v),
        Step::ObjectDeleteLand(v) => descriptions::delete_land(model, state, v),
        Step::CollectDecide(epoch) => collector::decide(model, state, epoch),
        Step::ForgetEpochCas { epoch, old } => {
            collector::forget_epoch_cas(model, state, epoch, old)
        }
        Step::DeleteLand(p) => collector::delete_land(model, state, p),
        Step::LockEnd(p) => collector::lock_end(state, p),
        Step::MoveLockedCas { from, to } => collector::move_locked_cas(model, state, from, to),
        Step::Rot(p) => damage::rot(state, p),
        Step::QuarantineCas(s) => damage::quarantine_cas(model, state, s),
    }
}
