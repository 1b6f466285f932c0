//! What is known of which packs are live while lists of condemned packs cannot be read. Pure.

use std::collections::{BTreeSet, HashSet};

use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::pack::PackName;

/// What stands in for lists of condemned packs that cannot be read.
///
/// What the root needs lies in live packs (protocol.md, rule 3). So a pack with the only copy of
/// something that is needed is live, and each of the others may be condemned. This says nothing of
/// what is needed for another reason: that may lie in a condemned pack.
#[derive(Debug, Default)]
pub struct Doubt {
    /// The lists.
    pub lost: HashSet<PackName>,
    /// Lists of snapshots, kept or forgotten, that cannot be read either.
    pub lost_snapshots: HashSet<PackName>,
    /// What commit records tell of in place of those. It may have been collected.
    pub rebuilt: Vec<(Kind, Id)>,
    /// Packs that are not in the bucket, or cannot be read.
    pub gone: HashSet<PackName>,
    /// Packs that are known to be live.
    pub proven: HashSet<PackName>,
    /// The copies of each thing that the root needs and that only packs in `gone` hold, more than
    /// one of them: one of these packs is live, and which one is not known.
    undecided: BTreeSet<Vec<(PackName, u16, u16)>>,
    /// What is marked now is needed, but not by the root: no pack is proven by it, and it may be
    /// gone.
    pub(super) beyond_rule_3: bool,
}

impl Doubt {
    /// Nothing is known to be live any more: another root is marked.
    pub(super) fn start_over(&mut self) {
        self.proven.clear();
        self.undecided.clear();
    }

    /// Returns those of some copies that can be read. If they are copies of something that
    /// `is_needed` it also learns from them, and returns all if none can be read.
    pub(super) fn weigh(
        &mut self,
        copies: Vec<(PackName, u16, u16)>,
        is_needed: bool,
    ) -> Vec<(PackName, u16, u16)> {
        let (gone, there): (Vec<_>, Vec<_>) = copies
            .into_iter()
            .partition(|(pack, ..)| self.gone.contains(pack));
        if !is_needed {
            return there;
        }
        if !self.beyond_rule_3 {
            self.learn(&gone, &there);
        }
        match there.is_empty() {
            true => gone,
            false => there,
        }
    }

    /// One of these copies of something that the root needs is in a live pack.
    fn learn(&mut self, gone: &[(PackName, u16, u16)], there: &[(PackName, u16, u16)]) {
        let mut packs = gone.iter().chain(there).map(|(pack, ..)| *pack);
        let first = packs.next();
        if packs.all(|pack| Some(pack) == first) {
            self.proven.extend(first);
        }
        if there.is_empty() && gone.iter().any(|(pack, ..)| Some(*pack) != first) {
            self.undecided.insert(gone.to_vec());
        }
    }

    /// Whether one of these packs is known to be live.
    fn is_decided(&self, copies: &[(PackName, u16, u16)]) -> bool {
        copies.iter().any(|(pack, ..)| self.proven.contains(pack))
    }

    /// Packs that cannot be read and of which it is not known which are live, though one of each
    /// group is.
    pub fn undecided(&self) -> BTreeSet<PackName> {
        let groups = self.undecided.iter();
        let groups = groups.filter(|copies| !self.is_decided(copies));
        groups.flatten().map(|(pack, ..)| *pack).collect()
    }

    /// Places in a pack of what a pack that is known to be live holds too, and neither can be read:
    /// nothing is lost with them.
    pub fn lost_elsewhere(&self, pack: &PackName) -> HashSet<(u16, u16)> {
        let groups = self.undecided.iter();
        let groups = groups.filter(|copies| self.is_decided(copies)).flatten();
        let own = groups.filter(|(copy, ..)| copy == pack);
        own.map(|(_, frame, slot)| (*frame, *slot)).collect()
    }

    /// Whether this may be in no live pack without stopping the renewal.
    pub(super) fn may_lack(&self, kind: Kind) -> bool {
        self.beyond_rule_3 || kind == Kind::Chunk
    }
}
