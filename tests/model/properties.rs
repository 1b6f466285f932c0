//! The properties that must hold in every state.

use stateright::Property;

use crate::conversion;
use crate::descriptions;
use crate::fences;
use crate::index::{self, Absorb, GROUPS, Plane, RunState};
use crate::journal;
use crate::new_holder;
use crate::protocol::Protocol;
use crate::rebuild;
use crate::state::{
    Journal, JournalState, Log, NONE, Objects, PackSet, Phase, SESSIONS, Session, Standing, State,
    VOLUMES,
};
use crate::writer;

/// An operation that fsync or a commit acknowledged is in the tree in R or in a journal that a new
/// holder would replay. No operation is applied twice or out of order.
pub const ACKNOWLEDGED_KEPT: &str = "acknowledged operations are kept, once and in order";
/// All objects that R reaches are in live packs that exist.
pub const ROOT_INTACT: &str = "R reaches only live packs that exist";
/// Every pack in R's table of live packs exists.
pub const LIVE_EXISTS: &str = "every live pack exists";
/// A condemned pack never becomes live again.
pub const NEVER_REVIVED: &str = "no condemned pack is live";
/// All objects that an object in a live pack refers to are in live packs.
pub const CLOSED: &str = "the live set is closed";
/// The objects that an uncovered journal of a session in R refers to exist, and can be found.
pub const JOURNAL_INTACT: &str = "whatever an uncovered journal refers to exists";
/// The packs that the journals name are enough to find these objects.
pub const JOURNAL_NAMES_SUFFICE: &str = "the packs named by journals hold all they refer to";
/// All journals that a new holder has listed can be replayed.
pub const LISTING_INTACT: &str = "whatever a new holder listed can be replayed";
/// No operation is acknowledged on the evidence of an R that names another holder.
pub const FENCED_SILENT: &str = "a fenced writer acknowledges nothing";
/// The objects that a mounted writer refers to exist until they are committed.
pub const HELD_EXISTS: &str = "whatever a mounted writer holds exists";

/// A commit that its writer had reason to take for failed is never made later.
pub const FAILED_STAYS_FAILED: &str = "a commit that has failed is never made";
/// Packs that may be deleted are named by R as condemned until they are gone.
pub const FORGOTTEN_GONE: &str = "what R has forgotten is gone";
/// Data that was written by a writer that knew of all damage can be read, despite the damage.
pub const HEALED: &str = "what is stored again is whole";

/// A new holder that can see the loss of a journal reports it.
pub const LOSS_TOLD: &str = "no visible loss of a journal is passed over in silence";

/// No effect of a crash or a slow store is taken for a loss.
pub const HONEST_BELIEVED: &str = "a bucket that lost nothing is never accused";

/// An operation that the disk of a machine acknowledged is in R, or can be recovered from its
/// spool.
pub const SPOOL_RECOVERABLE: &str = "what a spool alone acknowledged can be brought back";
/// A takeover on the machine of the session leaves no operation behind in its spool.
pub const SPOOL_REPLAYED: &str = "what the disk acknowledged is kept on its machine";

/// Version 2: a fence stands only for sessions that R has ended.
pub const FENCE_TRUE: &str = "a fence stands only for sessions that R has ended";

/// Every live pack can be looked up in each slice in which it has objects, by a program that asks
/// complete groups in the place of the index objects that these cover.
pub const LIVE_FOUND: &str = "every live pack can be looked up in every slice";
/// What such a program takes for live is live.
pub const SEEN_IS_LIVE: &str = "what complete groups show is live";
/// A group says what the index objects say that it covers, for the slices that it has.
pub const GROUPS_TRUE: &str = "groups say what the index objects say that they cover";
/// Packs of other sessions that a mounted writer refers to can be looked up, live or
/// condemned, so that what they hold can be stored again.
pub const HELD_FOUND: &str = "whatever a mounted writer holds can be looked up";
/// Every run that R names exists.
pub const RUNS_EXIST: &str = "every run of R exists";

/// Version 2: a commit that is possible without a turn is possible with it.
pub const TURN_PASSES: &str = "a turn stops no commit for ever";
/// Version 2: no session is ended without its user's word while its process is alive.
pub const NOT_ENDED_ALIVE: &str = "no live session is taken for dead";
/// Version 2: a dead session whose object is there can be recognised as dead.
pub const DEAD_KNOWN: &str = "a dead session is known as dead on its machine";

/// Version 2: the program of a live session can read R.
pub const NOT_SHUT_OUT: &str = "the program of each live session can read R";

/// Returns all properties.
pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(ACKNOWLEDGED_KEPT, acknowledged_kept),
        Property::always(ROOT_INTACT, root_intact),
        Property::always(LIVE_EXISTS, |_, state: &State| {
            state.root.live.within(state.store.stored)
        }),
        Property::always(NEVER_REVIVED, |_, state: &State| {
            state
                .root
                .live
                .common(state.root.all_condemned())
                .is_empty()
        }),
        Property::always(CLOSED, closed),
        Property::always(JOURNAL_INTACT, |model, state: &State| {
            journals_intact(model, state, true)
        }),
        Property::always(JOURNAL_NAMES_SUFFICE, |model, state: &State| {
            journals_intact(model, state, false)
        }),
        Property::always(LISTING_INTACT, listing_intact),
        Property::always(FENCED_SILENT, |_, state: &State| !state.fenced_acknowledged),
        Property::always(HELD_EXISTS, held_exists),
        Property::always(FAILED_STAYS_FAILED, |_, state: &State| !state.failed_made),
        Property::always(FORGOTTEN_GONE, |_, state: &State| {
            let there = state.store.doomed.common(state.store.stored);
            there.within(state.root.all_condemned())
        }),
        Property::always(HEALED, healed),
        Property::always(SPOOL_RECOVERABLE, spool_recoverable),
        Property::always(SPOOL_REPLAYED, |_, state: &State| !state.spool_ignored),
        Property::always(HONEST_BELIEVED, honest_believed),
        Property::always(LOSS_TOLD, |_, state: &State| !state.lost_untold),
        Property::always(LIVE_FOUND, |model: &Protocol, state: &State| {
            model.scenario.plane == Plane::Table || index::finds(model, state, state.root.live)
        }),
        Property::always(HELD_FOUND, held_found),
        Property::always(RUNS_EXIST, |_, state: &State| {
            let named = state.root.index.runs();
            let runs = state.store.runs.iter().enumerate();
            runs.filter(|(r, _)| named & 1 << r != 0)
                .all(|(_, run)| run.state == RunState::Landed)
        }),
        Property::always(SEEN_IS_LIVE, |model: &Protocol, state: &State| {
            index::seen_live(model, &state.root, &state.store).within(state.root.live)
        }),
        Property::always(GROUPS_TRUE, |_, state: &State| {
            (0..GROUPS).all(|g| index::is_true(state, g))
        }),
        Property::always(NOT_SHUT_OUT, |model: &Protocol, state: &State| {
            (0..SESSIONS)
                .filter(|&s| state.root.sessions[s].standing == Standing::Live)
                .all(|s| !state.root.version_2 || !conversion::is_old(model, s))
        }),
        Property::always(TURN_PASSES, turn_passes),
        Property::always(NOT_ENDED_ALIVE, |_, state: &State| !state.ended_alive),
        Property::always(DEAD_KNOWN, |model: &Protocol, state: &State| {
            !model.scenario.judged || descriptions::dead_are_known(state)
        }),
        Property::always(FENCE_TRUE, |_, state: &State| {
            let ended = |s: Session| {
                let standing = state.root.sessions[s].standing;
                matches!(standing, Standing::Ending | Standing::Removed)
            };
            let is_right = |s: Session| !fences::stands(state, s) || ended(s);
            // A repair fences every session of a root that is lost.
            !rebuild::is_there(state) || (0..SESSIONS).all(is_right)
        }),
    ]
}

/// Returns the log of the volume after a takeover right now: R's operations, then those of the
/// ending sessions, oldest first, then those of the holder.
fn recovered(model: &Protocol, state: &State, volume: usize) -> Log {
    let mut log = state.root.volumes[volume].log;
    let mut order = model.ending(state, volume);
    let holder = usize::from(state.root.volumes[volume].holder);
    if holder < SESSIONS {
        order.push(holder);
    }
    for s in order {
        let covered = state.root.sessions[s].covered;
        let last = journal::contiguous(state, s, covered, journal::there(state, s));
        for n in covered + 1..=last {
            log.push(s, n);
        }
    }
    log
}

fn acknowledged_kept(model: &Protocol, state: &State) -> bool {
    let mut kept = [0; SESSIONS];
    for volume in 0..VOLUMES {
        let mut before = None;
        for (s, n) in recovered(model, state, volume).iter() {
            let place = Some((state.root.sessions[s].rank, n));
            if place <= before || n != kept[s] + 1 {
                return false;
            }
            before = place;
            kept[s] = n;
        }
    }
    (0..SESSIONS).all(|s| {
        let damaged = state.store.lost[s] != 0;
        state.processes[s].acknowledged <= kept[s] || damaged
    })
}

fn root_intact(model: &Protocol, state: &State) -> bool {
    let there = state
        .store
        .objects(state.root.live.common(state.store.stored));
    model.reachable(state).without(there).is_empty()
}

fn closed(_: &Protocol, state: &State) -> bool {
    let there = state.store.objects(state.root.live);
    there.references().without(there).is_empty()
}

/// Returns the objects that operations `first..=last` refer to, regardless of mutants.
fn content_of(state: &State, s: Session, first: u8, last: u8) -> Objects {
    (first..=last).fold(Objects::default(), |all, n| {
        all.and(Objects::content(
            state.processes[s].operations[usize::from(n) - 1],
        ))
    })
}

/// Returns the packs in which references can be looked up: the index lists live packs, and
/// condemned ones until they are deleted.
fn indexed(state: &State) -> PackSet {
    state.root.live.and(state.root.all_condemned())
}

fn journals_intact(_: &Protocol, state: &State, with_index: bool) -> bool {
    (0..SESSIONS).filter(|&s| state.root.stands(s)).all(|s| {
        let listed = journal::there(state, s);
        let covered = state.root.sessions[s].covered;
        let needs = content_of(
            state,
            s,
            covered + 1,
            journal::contiguous(state, s, covered, listed),
        );
        let mut places = journal::named(state, s, listed);
        if with_index {
            places = places.and(indexed(state));
        }
        needs
            .without(state.store.objects(places.common(state.store.stored)))
            .is_empty()
    })
}

fn listing_intact(model: &Protocol, state: &State) -> bool {
    (0..SESSIONS)
        .filter(|&s| state.processes[s].phase == Phase::Listed && model.holds(state, s))
        .all(|s| {
            let Some(volume) = model.scenario.volume(s) else {
                return true;
            };
            let replay = new_holder::replay(model, state, s, volume);
            let places = replay.named.and(indexed(state)).common(state.store.stored);
            let there = state.store.objects(places);
            replay.ended_sessions.iter().all(|&(v, before, after)| {
                content_of(state, v, before + 1, after)
                    .without(there)
                    .is_empty()
            })
        })
}

/// Returns the packs that journals of `s` name, those in its spool included.
fn named_in_spool(state: &State, s: Session) -> PackSet {
    let there = |j: &&Journal| matches!(j.state, JournalState::Kept | JournalState::Landed);
    let journals = state.store.journals[s].iter().filter(there);
    journals.fold(PackSet::EMPTY, |all, j| all.and(j.named))
}

fn spool_recoverable(_: &Protocol, state: &State) -> bool {
    (0..SESSIONS)
        .filter(|&s| state.root.stands(s) || state.owed[s].is_some())
        .all(|s| {
            let process = &state.processes[s];
            let covered = state.root.sessions[s].covered;
            let needs = content_of(state, s, covered + 1, process.kept.max(covered));
            // A spool keeps a pack until the bucket has a journal that names it.
            let named = journal::named(state, s, journal::landed(state, s));
            let on_disk = process.unresolved.and(process.uncommitted.without(named));
            let there = state.store.stored.and(on_disk);
            let places = named_in_spool(state, s).and(indexed(state)).common(there);
            let below = state.owed[s].unwrap_or_default();
            let exists = state
                .store
                .objects(indexed(state).common(state.store.stored));
            needs.without(state.store.objects(places)).is_empty()
                && below.without(exists).is_empty()
        })
}

fn honest_believed(model: &Protocol, state: &State) -> bool {
    (0..SESSIONS)
        .filter(|&s| state.processes[s].phase == Phase::Listed && model.holds(state, s))
        .all(|s| {
            let Some(volume) = model.scenario.volume(s) else {
                return true;
            };
            let replay = new_holder::replay(model, state, s, volume);
            let lost = replay
                .ended_sessions
                .iter()
                .any(|&(v, ..)| state.store.lost[v] != 0);
            lost || !new_holder::visibly_missing(model, state, s, &replay).any()
        })
}

fn held_exists(model: &Protocol, state: &State) -> bool {
    (0..SESSIONS)
        .filter(|&s| state.processes[s].phase == Phase::Mounted && model.holds(state, s))
        .all(|s| {
            let process = &state.processes[s];
            let needs = content_of(
                state,
                s,
                state.root.sessions[s].covered + 1,
                process.accepted,
            );
            let places = process
                .held
                .common(state.store.stored.and(process.unresolved));
            state.root.sessions[s].standing == Standing::Live
                && needs.without(state.store.objects(places)).is_empty()
        })
}

fn turn_passes(model: &Protocol, state: &State) -> bool {
    if state.root.turn == NONE {
        return true;
    }
    let mut without = *state;
    without.root.turn = NONE;
    (0..SESSIONS)
        .filter(|&s| state.processes[s].phase == Phase::Mounted)
        .all(|s| {
            let last = state.processes[s].accepted;
            let possible =
                |state| writer::commit_cas(model, state, s, last, false, Absorb::No).is_some();
            !possible(&without) || possible(state)
        })
}

fn held_found(model: &Protocol, state: &State) -> bool {
    model.scenario.plane == Plane::Table
        || (0..SESSIONS)
            .filter(|&s| state.processes[s].phase == Phase::Mounted && model.holds(state, s))
            .all(|s| {
                let own = PackSet::own(s, 0);
                index::finds(model, state, state.processes[s].held.without(own))
            })
}

/// Operations that were accepted when all damage was known can be read: while their writer holds
/// them, while a journal carries them, and as long as a tree shows them.
fn healed(model: &Protocol, state: &State) -> bool {
    (0..SESSIONS)
        .filter(|&s| state.processes[s].healing != 0)
        .all(|s| {
            let last = state.processes[s]
                .accepted
                .max(state.root.sessions[s].covered);
            (1..=last)
                .filter(|n| state.processes[s].healing & 1 << (n - 1) != 0)
                .all(|n| healed_one(model, state, s, n))
        })
}

fn healed_one(model: &Protocol, state: &State, s: Session, n: u8) -> bool {
    let whole = state.store.whole();
    let process = &state.processes[s];
    let wanted = content_of(state, s, n, n);
    let covered = state.root.sessions[s].covered;
    let found = if n <= covered {
        let shown = (0..VOLUMES).any(|v| {
            model
                .shown(state, state.root.volumes[v].log)
                .any(|op| op == (s, n))
        });
        if !shown {
            return true;
        }
        state.root.live.common(whole)
    } else if model.holds(state, s) {
        process.held.common(whole.and(process.unresolved))
    } else if state.root.stands(s) {
        let listed = journal::there(state, s);
        if journal::contiguous(state, s, covered, listed) < n {
            return true;
        }
        let places = journal::named(state, s, listed).and(indexed(state));
        places.common(whole)
    } else {
        return true;
    };
    wanted.without(state.store.objects(found)).is_empty()
}
