//! How much of the contents of a repository is gone, and whether that is too much to delete it
//! unasked.
//!
//! Owns the file `STATE_DIR/REPOSITORY/needed`, and the rule. Each collection remembers which packs
//! were needed, and how many bytes of each. Bytes that the next one does not need any more are
//! gone. Their sum over the undelete window counts. Garbage that no collection ever found needed
//! does not count, nor do blobs that a collection stores again.
//!
//! In steady state less than half is gone, however few snapshots are kept. Snapshots that left
//! within the window were in the trash for as long as the window, and the trash holds as much
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bkfs_chunker::crypto::RepositoryId;
use bkfs_chunker::pack::PackName;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::sightings::{change, read};
use crate::root::blocking::blocking;

/// The limit of the gone bytes, in percent of the bytes that were held in the window. More is not
/// deleted unasked.
pub const LIMIT_PERCENT: u64 = 50;

/// Up to this many bytes are never too much: small repositories change as a whole.
pub const FLOOR_BYTES: u64 = 64 << 20;

/// The name of the file.
const FILE: &str = "needed";

/// Bytes that were gone at a collection.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
struct Gone {
    /// The time of the collection, in seconds since 1970.
    at_s: i64,
    bytes: u64,
}

/// The memory of collections on this machine.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct PendingIndex {
    /// Needed bytes of each pack as of the last collection, by the pack's name. None before the
    /// first.
    needed: Option<BTreeMap<String, u64>>,
    gone: Vec<Gone>,
}

/// The state of a pack that was needed once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Became {
    /// It is live, and this many bytes of it are needed.
    Live(u64),
    /// It is in the bucket, and not live.
    Going,
    /// It is not in the bucket: another collector has deleted it.
    Deleted,
}

/// How much is gone.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Share {
    /// Bytes that were needed at the last collection and are not any more.
    pub bytes: u64,
    /// Bytes that earlier collections within the window found to be gone.
    pub earlier_bytes: u64,
    /// Bytes that are needed.
    pub needed_bytes: u64,
    /// Nothing is remembered: everything that is not needed counts, whether it was ever needed or
    /// not.
    pub is_first: bool,
}

impl Share {
    /// Returns the bytes that are gone within the window.
    pub fn gone_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.earlier_bytes)
    }

    /// Returns the bytes that the repository held at any time of the window.
    pub fn held_bytes(&self) -> u64 {
        self.gone_bytes().saturating_add(self.needed_bytes)
    }

    /// Returns the share that is gone, in percent, rounded up.
    pub fn percent(&self) -> u64 {
        let (gone, held) = (u128::from(self.gone_bytes()), u128::from(self.held_bytes()));
        (gone * 100).div_ceil(held.max(1)) as u64
    }

    /// Returns true if a person has to confirm the collection. One that adds nothing to what is
    /// gone takes nothing, and needs no confirmation.
    pub fn is_too_much(&self) -> bool {
        let (gone, held) = (u128::from(self.gone_bytes()), u128::from(self.held_bytes()));
        self.bytes > 0
            && self.gone_bytes() > FLOOR_BYTES
            && gone * 100 > held * u128::from(LIMIT_PERCENT)
    }
}

/// The counts that a collection makes for its share.
pub struct Found {
    /// Needed bytes of live packs, without packs that are own to a session in the root.
    pub needed: BTreeMap<PackName, u64>,
    /// Bytes that leave. Used if nothing is remembered.
    pub leaving_bytes: u64,
}

impl PendingIndex {
    /// Returns the share. `became` tells the state of each pack that was needed. What earlier
    /// collections found counts if it is newer than `before`.
    pub fn judge(
        &self,
        found: &Found,
        became: impl Fn(&PackName) -> Became,
        before: Timestamp,
    ) -> Share {
        let needed_bytes = sum(found.needed.values());
        let Some(known) = &self.needed else {
            return Share {
                bytes: found.leaving_bytes,
                earlier_bytes: 0,
                needed_bytes,
                is_first: true,
            };
        };
        let lost = known.iter().filter_map(|(name, bytes)| {
            let left = match became(&parse(name)?) {
                Became::Live(left) => left,
                Became::Going => 0,
                Became::Deleted => *bytes,
            };
            Some(bytes.saturating_sub(left))
        });
        let earlier = self
            .gone
            .iter()
            .filter(|gone| gone.at_s > before.as_second());
        Share {
            bytes: lost.fold(0, u64::saturating_add),
            earlier_bytes: sum(earlier.map(|gone| &gone.bytes)),
            needed_bytes,
            is_first: false,
        }
    }

    /// Remembers what a collection left needed: everything in `found` but the packs in `moved`,
    /// whose new packs the next collection finds. If a person `accepted` what is gone, it counts no
    /// more.
    pub fn settle(
        &mut self,
        found: &Found,
        moved: &BTreeSet<PackName>,
        share: &Share,
        (now, before): (Timestamp, Timestamp),
        accepted: bool,
    ) {
        // An entry from a clock that was ahead does not count for longer than others.
        let now_s = now.as_second();
        for gone in &mut self.gone {
            gone.at_s = gone.at_s.min(now_s);
        }
        self.gone
            .retain(|gone| !accepted && gone.at_s > before.as_second());
        if !accepted && !share.is_first && share.bytes > 0 {
            self.gone.push(Gone {
                at_s: now_s,
                bytes: share.bytes,
            });
        }
        let stays = found
            .needed
            .iter()
            .filter(|(name, _)| !moved.contains(name));
        let stays = stays.map(|(name, bytes)| (name.to_string(), *bytes));
        self.needed = Some(stays.collect());
    }
}

fn sum<'a>(bytes: impl Iterator<Item = &'a u64>) -> u64 {
    bytes.copied().fold(0, u64::saturating_add)
}

fn parse(name: &str) -> Option<PackName> {
    name.parse().ok()
}

/// The file that keeps the pending index across processes. Without a state directory nothing is
/// kept.
#[derive(Clone, Debug)]
pub struct LedgerFile {
    directory: Option<PathBuf>,
}

impl LedgerFile {
    /// Creates the memory of `repository` below `state_dir`. Does no I/O.
    pub fn new(state_dir: Option<&Path>, repository: RepositoryId) -> Self {
        Self {
            directory: state_dir.map(|directory| directory.join(repository.to_string())),
        }
    }

    /// Returns the ledger. One that cannot be read counts as empty, and the log has a warning.
    pub async fn recall(&self) -> PendingIndex {
        let Some(directory) = self.directory.clone() else {
            return PendingIndex::default();
        };
        let pending_index = blocking(move || read(&directory, FILE)).await;
        pending_index.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot recall what was needed at the last collection");
            PendingIndex::default()
        })
    }

    /// Changes the ledger. If that fails, the log has a warning. Cancel safety: dropped, it leaves
    /// the file changed or not.
    pub async fn change(&self, settle: impl FnOnce(&mut PendingIndex) + Send + 'static) {
        let Some(directory) = self.directory.clone() else {
            return;
        };
        let changed = blocking(move || change(&directory, FILE, settle)).await;
        if let Err(error) = changed {
            tracing::warn!(%error,
                "cannot remember what is needed: the next collection cannot tell how much is gone \
                 since");
        }
    }
}

/// The counts of a collection, to be remembered once it has condemned.
pub struct Count {
    /// How much is gone.
    pub share: Share,
    /// A person confirms the loss, or the undelete window is zero, so that nothing could come back
    /// anyway.
    pub is_accepted: bool,
    /// The needed packs.
    pub(super) found: Found,
    /// Packs of which a part is needed and is stored again.
    pub(super) moved: BTreeSet<PackName>,
    /// When it was counted, and when the undelete window begins.
    pub(super) times: (Timestamp, Timestamp),
    pub(super) file: LedgerFile,
}

impl Count {
    /// Returns true if nothing may be condemned before a person has confirmed it.
    pub fn is_refused(&self) -> bool {
        self.share.is_too_much() && !self.is_accepted
    }

    /// Remembers the counts for the next collection. Cancel safety: dropped, it leaves them
    /// remembered or not.
    pub(super) async fn remember(self) {
        let Self {
            share,
            is_accepted,
            found,
            moved,
            times,
            file,
        } = self;
        let settle = move |pending_index: &mut PendingIndex| {
            pending_index.settle(&found, &moved, &share, times, is_accepted)
        };
        file.change(settle).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 1 << 30;
    const DAY_S: i64 = 86_400;

    fn name(sequence: u32) -> PackName {
        PackName {
            session: 9,
            sequence,
            random: 1,
        }
    }

    fn day(day: u32) -> Timestamp {
        Timestamp::from_second(i64::from(day) * DAY_S).expect("a time")
    }

    fn found(packs: impl Iterator<Item = u32>) -> Found {
        Found {
            needed: packs.map(|pack| (name(pack), UNIT)).collect(),
            leaving_bytes: 0,
        }
    }

    /// Runs one collection a day. Each day stores one pack; `needs` returns true if today needs the
    /// pack.
    fn shares(window: u32, days: u32, needs: impl Fn(u32, u32) -> bool) -> Vec<Share> {
        let mut pending_index = PendingIndex::default();
        let mut shares = Vec::new();
        for today in 1..=days {
            let now = found((1..=today).filter(|pack| needs(today, *pack)));
            let became = |pack: &PackName| match now.needed.get(pack) {
                Some(bytes) => Became::Live(*bytes),
                None => Became::Going,
            };
            let before = day(today.saturating_sub(window));
            let share = pending_index.judge(&now, became, before);
            pending_index.settle(&now, &BTreeSet::new(), &share, (day(today), before), false);
            shares.push(share);
        }
        shares
    }

    #[test]
    fn daily_use_is_never_too_much_however_few_are_kept() {
        for (kept, window) in [(1, 1), (1, 7), (2, 7), (7, 7), (7, 30), (30, 7)] {
            // The snapshots of two days share nothing, and each stays in the trash.
            let shares = shares(window, 120, |today, pack| pack + kept + window > today);
            let worst = shares.iter().map(Share::percent).max();
            assert!(
                !shares.iter().any(Share::is_too_much),
                "{kept} kept, {window} days of trash: {worst:?} %"
            );
            assert!(shares.iter().any(|share| share.gone_bytes() > 0));
        }
    }

    #[test]
    fn what_goes_in_small_steps_is_counted_together() {
        // More than half of twenty packs leave: 11 on one day, or 3 on each of four days.
        for by_day in [11, 3] {
            let gone = |today: u32| today.saturating_sub(21) * by_day;
            let shares = shares(7, 25, |today, pack| pack <= 20 && pack > gone(today));
            let first = shares.iter().position(Share::is_too_much);
            let expected = match by_day {
                11 => 21,
                _ => 24,
            };
            assert_eq!(first, Some(expected), "{shares:?}");
        }
    }

    #[test]
    fn what_was_accepted_counts_no_more() {
        let mut pending_index = PendingIndex::default();
        let all = found(1..=10);
        let before = day(0);
        let nothing = BTreeSet::new();
        pending_index.settle(&all, &nothing, &Share::default(), (day(1), before), false);
        let rest = found(1..=3);
        let became = |pack: &PackName| match rest.needed.contains_key(pack) {
            true => Became::Live(UNIT),
            false => Became::Going,
        };
        let share = pending_index.judge(&rest, became, before);
        assert!(share.is_too_much(), "{share:?}");
        assert_eq!((share.percent(), share.bytes), (70, 7 * UNIT));
        pending_index.settle(&rest, &nothing, &share, (day(1), before), true);
        let share = pending_index.judge(&rest, |_| Became::Live(UNIT), before);
        assert_eq!((share.gone_bytes(), share.is_too_much()), (0, false));
    }

    #[test]
    fn packs_that_another_hand_took_out_of_the_index_are_gone() {
        let mut pending_index = PendingIndex::default();
        let all = found(1..=10);
        let (before, nothing) = (day(0), BTreeSet::new());
        pending_index.settle(&all, &nothing, &Share::default(), (day(1), before), false);
        let empty = found(0..0);
        let share = pending_index.judge(&empty, |_| Became::Going, before);
        assert!(share.is_too_much(), "an emptied root: {share:?}");
        let share = pending_index.judge(&empty, |_| Became::Deleted, before);
        assert!(
            !share.is_too_much(),
            "nothing is left to be refused: {share:?}"
        );
    }

    #[test]
    fn what_is_moved_is_not_gone() {
        let mut pending_index = PendingIndex::default();
        let all = found(1..=10);
        let (before, moved) = (day(0), (1..=9).map(name).collect());
        pending_index.settle(&all, &moved, &Share::default(), (day(1), before), false);
        let share = pending_index.judge(&found(10..=20), |_| Became::Live(UNIT), before);
        assert_eq!(share.gone_bytes(), 0);
    }

    #[test]
    fn without_a_memory_all_that_leaves_counts() {
        let found = Found {
            leaving_bytes: 5 * UNIT,
            ..found(1..=4)
        };
        let share = PendingIndex::default().judge(&found, |_| Became::Deleted, day(0));
        assert!(share.is_first && share.is_too_much(), "{share:?}");
    }

    #[test]
    fn small_repositories_change_as_a_whole() {
        let share = Share {
            bytes: FLOOR_BYTES,
            ..Share::default()
        };
        assert!(!share.is_too_much());
    }
}
