//! The protocol as a transition system. [`Protocol`] joins a scenario, the clauses that are left
//! out, and the record of the events that were reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stateright::{Model, Property};

use crate::clones::Tree;
use crate::conversion;
use crate::index;
use crate::mutants::Mutant;
use crate::properties;
use crate::state::{Content, Log, NONE, Objects, PackSet, Phase, Session, Standing, State, Volume};
use crate::steps::{self, Step};
use crate::world::Scenario;

/// An event that a search of the right protocol must reach somewhere, or else the search proves
/// little. It is recorded outside of the state, in which it would multiply the number of states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Event {
    /// A commit replaced R.
    Committed,
    /// A commit whose answer was lost was applied and later recognised.
    LostCommitRecognised,
    /// A commit left out an own pack because an object that it refers to was condemned.
    FailingPackLeftOut,
    /// fsync was acknowledged by a journal.
    FsyncAcknowledged,
    /// A writer learnt from its GET that it is fenced, with its journal in the store.
    FsyncRefused,
    /// A new holder replayed at least one operation.
    Replayed,
    /// A new holder replayed journals of a session other than the last holder.
    ReplayedOlderSession,
    /// A new holder had to copy objects that a journal refers to out of condemned packs.
    ReplayCopied,
    /// A journal arrived after a new holder had listed.
    JournalLandedAfterListing,
    /// A writer copied condemned objects into an own pack.
    CopiedCondemned,
    /// A writer found condemned objects in another live pack.
    FoundElsewhere,
    /// A higher base was sent while references were uncommitted.
    BaseRaisedHolding,
    /// A base was held back by a reference to a condemned pack.
    BaseHeldBack,
    /// A heartbeat arrived late.
    LateHeartbeat,
    /// A pack arrived late.
    LatePack,
    /// A reference was made into a pack that was condemned by then.
    ReusedCondemned,
    /// Packs were condemned.
    Condemned,
    /// Candidates were dropped because R had changed since they were marked.
    Shrunk,
    /// Candidates were dropped because a live pack refers to them.
    ClosedAgain,
    /// A metadata pack was rewritten.
    Rewritten,
    /// A rewritten pack failed its check.
    RewriteRefused,
    /// Deletion of an epoch waited for a base.
    DeletionHeldBack,
    /// A pack was deleted.
    Deleted,
    /// A session without a volume was ended.
    SessionEnded,
    /// A process acted on R after its session had been ended, and was refused.
    DeadSessionRefused,
    /// A volume was given up cleanly.
    Left,
    /// A condemned epoch was forgotten.
    EpochForgotten,
    /// A journal was deleted because R covers it.
    JournalDeleted,
    /// A pack that could be deleted was locked.
    LockHeld,
    /// A locked pack moved to a newer epoch.
    LockedMoved,
    /// Damage was put in quarantine.
    Quarantined,
    /// An operation was accepted by a writer that knew of all damage.
    AcceptedHealing,
    /// A damaged pack was condemned because its needed objects had been stored again.
    DamagedCondemned,
    /// A writer gave up on a pack, and stored its contents again.
    StoredAgain,
    /// The bucket lost a journal.
    JournalLost,
    /// A new holder went on without a journal, because its user had said so.
    LossAccepted,
    /// A new holder copied objects from a whole pack that were live in a damaged pack only.
    ReplayHealed,
    /// The disk of a machine acknowledged an operation.
    KeptAcknowledged,
    /// A new holder sent the contents of a spool of its machine.
    SpoolReplayed,
    /// A session left R while its spool held more.
    RecoveryBaseLeft,
    /// Deletion of an epoch waited for a recovery base.
    RecoveryBaseHeldBack,
    /// The contents of a spool became a snapshot.
    RecoveryBaseClaimed,

    // Version 2.
    /// A session that R had ended acknowledged an operation, because its fence was not written yet.
    AcknowledgedUnfenced,
    /// A new holder wrote the fence of a session that an earlier new holder had ended.
    FencedAgain,
    /// A fence arrived late.
    LateFence,
    /// A fence was deleted.
    FenceDeleted,
    /// A group was begun.
    GroupBegun,
    /// A slice entered a group.
    SliceNamed,
    /// A run was named that has packs which were condemned by then.
    MergedCondemned,
    /// A run was named that has packs which were dropped by then.
    MergedDropped,
    /// A slice was refused, because its group was no longer built or had it.
    MergeRefused,
    /// A group of index objects became complete.
    GroupCompleted,
    /// A group that was merged from others became complete.
    GroupsMerged,
    /// A complete group dropped a forgotten pack.
    Dropped,
    /// A group that was being built dropped a forgotten pack.
    DroppedWhileBuilt,
    /// A group left R.
    GroupLeft,
    /// A group left R with an index object that it covered.
    GroupLeftWithObject,
    /// A program that does not know groups lost them.
    GroupsLost,
    /// A run was deleted.
    RunDeleted,
    /// A collector set a turn.
    TurnSet,
    /// A commit replaced R while a turn stood.
    TurnIgnored,
    /// A process crashed.
    Crashed,
    /// A session whose object was absent was taken for alive.
    TakenForAlive,
    /// A snapshot was forgotten.
    SnapshotForgotten,
    /// A volume that had been cloned was removed.
    SourceRemoved,
    /// A snapshot was cloned.
    Cloned,
    /// A snapshot of a clone was cloned.
    CloneCloned,
    /// A clone was refused, because its source or its name was no longer as it had been.
    CloneRefused,
    /// A repository was converted.
    Converted,
    /// A conversion was refused, because another session stood in the root or had converted it.
    ConversionRefused,
    /// A repair rebuilt R.
    Rebuilt,
    /// A session acknowledged an operation while R was lost.
    AcknowledgedWhileLost,
    /// A writer took over a footer that its machine had from before.
    CachedFooterTaken,
    /// A writer learned a footer.
    FooterLearned,
    /// A writer dropped a footer, since it does not stand by R.
    FooterDropped,
    /// The object of a session was deleted.
    ObjectDeleted,
}

/// The events that a search has met.
#[derive(Clone, Default)]
pub struct Coverage(Arc<[AtomicU64; 2]>);

impl Coverage {
    /// Records that an event was met.
    pub fn note(&self, event: Event) {
        let (word, bit) = self.place(event);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
    /// Whether the event was met.
    pub fn has(&self, event: Event) -> bool {
        let (word, bit) = self.place(event);
        word.load(Ordering::Relaxed) & bit != 0
    }
    /// Returns the word and the bit of the event.
    fn place(&self, event: Event) -> (&AtomicU64, u64) {
        let number = event as usize;
        (&self.0[number / 64], 1 << (number % 64))
    }
}

/// A scenario under the rules, or under all rules except some clauses.
#[derive(Clone)]
pub struct Protocol {
    /// The bounded world.
    pub scenario: Scenario,
    /// The clauses left out.
    pub mutants: &'static [Mutant],
    /// If set, the only property that is checked: the search for a mutant stops at its first
    /// counterexample.
    pub only: Option<&'static str>,
    /// The events that were reached.
    pub coverage: Coverage,
}

impl Protocol {
    /// Returns the right protocol.
    pub fn new(scenario: Scenario) -> Self {
        Self {
            scenario,
            mutants: &[],
            only: None,
            coverage: Coverage::default(),
        }
    }

    /// Returns the protocol without some clauses.
    pub fn without(scenario: Scenario, mutants: &'static [Mutant]) -> Self {
        Self {
            mutants,
            ..Self::new(scenario)
        }
    }

    /// Whether the clause is left out.
    pub fn lacks(&self, mutant: Mutant) -> bool {
        self.mutants.contains(&mutant)
    }

    /// Whether `s` may act as the holder of its volume, by the present R.
    pub fn holds(&self, state: &State, s: Session) -> bool {
        self.scenario
            .volume(s)
            .is_some_and(|v| usize::from(state.root.volumes[v].holder) == s)
            && state.root.sessions[s].standing == Standing::Live
    }

    /// Whether `s` may replace R as the holder of its volume. In addition to rule 5, rule 2
    /// requires the session to be live.
    pub fn may_replace(&self, state: &State, s: Session) -> bool {
        let holder = self
            .scenario
            .volume(s)
            .is_some_and(|v| usize::from(state.root.volumes[v].holder) == s);
        self.holds(state, s) || (holder && self.lacks(Mutant::CasWithoutLiveSession))
    }

    /// Returns the packs that `s` takes for its own. By rule 2 these are the packs at or above the
    /// floor in the R just read.
    pub fn own(&self, state: &State, s: Session) -> PackSet {
        // If a name states the contents of a pack, it does not tell the owner.
        if self.lacks(Mutant::OwnByMemory) || self.lacks(Mutant::NamesOfContents) {
            state.processes[s]
                .uncommitted
                .and(state.processes[s].unresolved)
        } else {
            state.root.own(s)
        }
    }

    /// Returns the packs that a reference of `s` may name when its base rises (rule 4).
    pub fn good(&self, state: &State, s: Session) -> PackSet {
        let live = index::seen_live(self, &state.root, &state.store);
        let good = live.and(self.own(state, s));
        match self.lacks(Mutant::LockTrusted) {
            true => good.and(state.store.locked),
            false => good,
        }
    }

    /// Returns the objects that a session with a reference to content `k` must keep from being
    /// deleted.
    pub fn needed(&self, k: Content) -> Objects {
        if self.lacks(Mutant::ReusedSegmentAsProof) {
            Objects::segment(k)
        } else {
            Objects::content(k)
        }
    }

    /// Returns the objects that operations `first..=last` of session `s` refer to.
    pub fn needed_by(&self, state: &State, s: Session, first: u8, last: u8) -> Objects {
        (first..=last).fold(Objects::default(), |all, n| {
            all.and(self.needed(state.processes[s].operations[usize::from(n) - 1]))
        })
    }

    /// Returns the objects that a volume's tree reaches after these operations: for each file the
    /// content written last, or else the content from the start.
    pub fn tree(&self, state: &State, volume: usize, log: Log) -> Objects {
        let files = self.scenario.files;
        let mut reached = Objects::default();
        let mut written = 0u8;
        let mut write = |content: Content| {
            let file = 1 << (content % files);
            if written & file == 0 {
                written |= file;
                reached = reached.and(Objects::content(content));
            }
        };
        let entry = &state.root.volumes[volume];
        for (s, n) in log.newest().chain(entry.origin.newest()) {
            write(state.processes[s].operations[usize::from(n) - 1]);
        }
        if entry.start != NONE {
            write(entry.start);
        }
        reached
    }

    /// Returns the objects that the tree of a snapshot reaches.
    fn snapshot(&self, state: &State, tree: Tree) -> Objects {
        let mut with = *state;
        with.root.volumes[0] = Volume {
            origin: tree.log,
            start: tree.start,
            ..Volume::EMPTY
        };
        self.tree(&with, 0, Log::default())
    }

    /// Returns the operations of a log whose content is in its tree: for each file the one that
    /// wrote it last.
    pub fn shown<'a>(
        &'a self,
        state: &'a State,
        log: Log,
    ) -> impl Iterator<Item = (Session, u8)> + 'a {
        let mut written = 0u8;
        log.newest().filter(move |&(s, n)| {
            let content = state.processes[s].operations[usize::from(n) - 1];
            let file = 1 << (content % self.scenario.files);
            let is_first = written & file == 0;
            written |= file;
            is_first
        })
    }

    /// Returns all objects that the trees and recovery bases of R reach.
    pub fn reachable(&self, state: &State) -> Objects {
        let volumes = state.root.volumes.iter().enumerate();
        let trees = volumes.fold(Objects::default(), |all, (v, volume)| {
            all.and(self.tree(state, v, volume.log))
        });
        let snapshots = state.root.snapshots.iter().filter_map(|s| s.tree());
        let kept = snapshots.fold(trees, |all, tree| all.and(self.snapshot(state, tree)));
        let recovery_bases = state.root.recovery_bases.iter().flatten();
        recovery_bases.fold(kept, |all, recovery_base| all.and(recovery_base.tree))
    }

    /// Returns the ending sessions of the volume, oldest first.
    pub fn ending(&self, state: &State, volume: usize) -> Vec<Session> {
        let mut ending: Vec<Session> = (0..state.root.sessions.len())
            .filter(|&s| {
                state.root.sessions[s].standing == Standing::Ending
                    && self.scenario.volume(s) == Some(volume)
            })
            .collect();
        ending.sort_by_key(|&s| state.root.sessions[s].rank);
        ending
    }

    /// Drops every CAS that was prepared from the old R, since it can no longer be applied. Every
    /// step that replaces R calls this. `by` is the session whose own CAS it was.
    ///
    /// Then forgets the state that no rule can read any more, so that equal situations are equal
    /// states.
    pub fn root_replaced(&self, state: &mut State, by: Option<Session>) {
        let is_old = by.is_some_and(|s| conversion::is_old(self, s));
        if is_old && !self.lacks(Mutant::UnknownFieldKept) {
            // Rule 12: such a program does not know groups, and loses them.
            if state.root.index.groups.iter().any(|group| group.stands()) {
                self.coverage.note(Event::GroupsLost);
            }
            state.root.index.lose_groups();
        }
        for (s, process) in state.processes.iter_mut().enumerate() {
            let Some(pending) = &mut process.pending else {
                continue;
            };
            if Some(s) != by && !pending.applied {
                pending.given_up = true;
                if !self.lacks(Mutant::UnchangedEtagTrusted) {
                    process.pending = None;
                }
            }
        }
        let acts_without_session = [
            Mutant::CommitWithoutRereading,
            Mutant::FsyncWithoutRereading,
            Mutant::GetBeforeAnswer,
            Mutant::CasWithoutLiveSession,
        ];
        // With fences a writer that is no longer in R goes on until it reads its fence.
        if self.scenario.fences || acts_without_session.iter().any(|&m| self.lacks(m)) {
            return;
        }
        for s in 0..state.processes.len() {
            if state.root.sessions[s].standing == Standing::Removed
                && self.scenario.volume(s).is_some()
                && state.owed[s].is_none()
            {
                Self::forget(state, s);
            }
        }
    }

    /// Forgets a writer that is no longer in R. It can change only objects under its own names,
    /// which no rule reads once its session is gone.
    fn forget(state: &mut State, s: Session) {
        let covered = state.root.sessions[s].covered;
        let process = &mut state.processes[s];
        process.accepted = covered;
        process.kept = process.kept.min(covered);
        process.operations[usize::from(covered)..].fill(0);
        process.phase = Phase::Outside;
        process.index = PackSet::EMPTY;
        process.learned = Default::default();
        process.tables = PackSet::EMPTY;
        process.runs = 0;
        process.quarantine = PackSet::EMPTY;
        // The properties still check whether the operations that R covers stay whole.
        process.healing &= (1 << covered) - 1;
        process.bound = 0;
        process.held = PackSet::EMPTY;
        process.unresolved = PackSet::EMPTY;
        process.uncommitted = PackSet::EMPTY;
        process.pending = None;
        process.listing = Default::default();
        process.accepts_loss = false;
        state.store.journals[s] = Default::default();
        state.store.flying_bases[s] = 0;
        state.store.published[s] = NONE;
        state.store.descriptions.there &= !(1 << s);
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.scenario.initial()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        steps::enumerate(self, state, actions);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        steps::take(self, state, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all = properties::all();
        match self.only {
            Some(name) => all.into_iter().filter(|p| p.name == name).collect(),
            None => all,
        }
    }
}
