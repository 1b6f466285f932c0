//! Conversion of a repository of version 1 (rule 15).
//!
//! A session that stands alone in the root uploads lists of version 2 and replaces the root. Index
//! objects and groups stay as they are. Programs that know version 1 only read from the
//! feature bits of the root that they may not go on.

use crate::fences;
use crate::index::{INDEX_OBJECTS, IndexObject};
use crate::mutants::Mutant;
use crate::protocol::{Event, Protocol};
use crate::state::{Phase, SESSIONS, Session, Standing, State};
use crate::steps::Step;

/// A conversion whose lists were uploaded. The index objects are those of the root that was read;
/// they are recorded only for the mutant `ConvertedOlderRoot`.
pub type Converting = [IndexObject; INDEX_OBJECTS];

/// Whether the program of `s` knows version 1 only.
pub fn is_old(model: &Protocol, s: Session) -> bool {
    model.scenario.old & 1 << s != 0
}

/// Whether the program of `s` cannot read R.
pub fn is_shut_out(model: &Protocol, state: &State, s: Session) -> bool {
    is_old(model, s) && state.root.version_2 && !model.lacks(Mutant::OldProgramsGoOn)
}

/// Returns the session that reads or replaces R in this step.
pub fn reader(step: Step) -> Option<Session> {
    match step {
        Step::RegisterCas(s)
        | Step::RefreshIndex(s)
        | Step::ReplaceCondemned(s)
        | Step::BaseSend { s, .. }
        | Step::FsyncGet(s)
        | Step::CommitCas { s, .. }
        | Step::TakeCas(s)
        | Step::TakeList(s)
        | Step::ReplayCommitCas(s)
        | Step::LeaveCas(s)
        | Step::CollectMark { s, .. }
        | Step::CondemnCas(s)
        | Step::QuarantineCas(s)
        | Step::ClaimRecoveryBaseCas(s, _)
        | Step::AcceptLoss(s) => Some(s),
        _ => None,
    }
}

/// Whether the step cannot be taken while R is lost. With fences fsync needs no R.
pub fn needs_root(model: &Protocol, state: &State, step: Step) -> bool {
    match step {
        Step::FsyncGet(s) => !fences::are_used(model, state, s),
        Step::BaseSend { .. } | Step::FencePut { .. } => false,
        step => reader(step).is_some(),
    }
}

/// Whether `s` may convert by the present R: no other session stands in it, live or ending.
fn stands_alone(state: &State, s: Session) -> bool {
    let is_live = state.root.sessions[s].standing == Standing::Live;
    is_live && !(0..SESSIONS).any(|t| t != s && state.root.stands(t))
}

/// Rule 15: the session reads R, and uploads the lists of version 2. An interruption leaves lists
/// that no root names.
pub fn prepare(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let process = &state.processes[s];
    let is_ready = matches!(process.phase, Phase::Registered | Phase::Mounted);
    if state.root.version_2 || process.converting.is_some() || !is_ready || is_old(model, s) {
        return None;
    }
    if !stands_alone(state, s) {
        return None;
    }
    let mut next = *state;
    next.processes[s].converting = Some(match model.lacks(Mutant::ConvertedOlderRoot) {
        true => state.root.index.objects,
        false => Default::default(),
    });
    Some(next)
}

/// Rule 15: the root becomes one of version 2. The lists describe the root that is replaced.
pub fn convert_cas(model: &Protocol, state: &State, s: Session) -> Option<State> {
    let objects = state.processes[s].converting?;
    let mut next = *state;
    next.processes[s].converting = None;
    let is_live = state.root.sessions[s].standing == Standing::Live;
    let is_alone = stands_alone(state, s) || (is_live && model.lacks(Mutant::ConvertedAlongside));
    if state.root.version_2 || !is_alone {
        model.coverage.note(Event::ConversionRefused);
        return Some(next);
    }
    next.root.version_2 = true;
    next.processes[s].knows_version_2 = true;
    if model.lacks(Mutant::ConvertedOlderRoot) {
        next.root.index.objects = objects;
    }
    if model.lacks(Mutant::ConvertedRecoveryBasesDropped) {
        next.root.recovery_bases = Default::default();
    }
    crate::index::settle(model, &mut next);
    model.root_replaced(&mut next, Some(s));
    model.coverage.note(Event::Converted);
    Some(next)
}
