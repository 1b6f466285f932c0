//! The plan of a collection, made of marks.
//!
//! Owns the judgement over each pack, and what it will cost. Pure.

use std::collections::{BTreeMap, BTreeSet};

use bkfs_chunker::crypto::Class;
use bkfs_chunker::pack::PackName;

use super::marks::Marks;

/// The packs that a collection removes from the live set.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CollectionPlan {
    /// Packs of which nothing is needed: they are condemned.
    pub dead: BTreeSet<PackName>,
    /// Packs of which a part is needed: that part is stored again, and they are condemned.
    pub rewritten: BTreeSet<PackName>,
    /// Packs in the bucket that no index object lists and no session owns: condemned, with their
    /// sizes in bytes.
    pub unlisted: BTreeMap<PackName, u64>,
    /// Bytes of all packs that are condemned.
    pub condemned_bytes: u64,
    /// About how many bytes are stored again.
    pub rewritten_bytes: u64,
    /// Bytes of the packs that are read for that.
    pub read_bytes: u64,
    /// Bytes of live packs before the collection.
    pub live_bytes: u64,
}

impl CollectionPlan {
    /// Returns true if no pack is condemned.
    pub fn is_empty(&self) -> bool {
        self.dead.is_empty() && self.rewritten.is_empty() && self.unlisted.is_empty()
    }

    /// Returns all packs that it condemns.
    pub fn candidates(&self) -> BTreeSet<PackName> {
        let listed = self.dead.union(&self.rewritten).copied();
        listed.chain(self.unlisted.keys().copied()).collect()
    }
}

/// How much a collection rewrites.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Effort {
    /// A data pack is rewritten when less than this share of its blobs is needed, from 0 to 1. One
    /// with damage in quarantine is rewritten as soon as any of its blobs is not needed.
    pub threshold: f64,
    /// Bytes of sparse data packs that are read for that, at most.
    pub budget_bytes: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            threshold: 0.9,
            budget_bytes: u64::MAX,
        }
    }
}

/// Judges each live pack. `is_protected` returns true for packs that are own to a session in the
/// root, at or above its floor: those are never garbage (rule 8, step 1).
pub fn plan(
    marks: &Marks,
    is_live: impl Fn(&PackName) -> bool,
    is_protected: impl Fn(&PackName) -> bool,
    unlisted: BTreeMap<PackName, u64>,
    effort: Effort,
) -> CollectionPlan {
    let mut plan = CollectionPlan {
        condemned_bytes: unlisted.values().sum(),
        unlisted,
        ..CollectionPlan::default()
    };
    let mut sparse = Vec::new();
    for (name, pack) in marks.packs() {
        if !is_live(name) {
            continue;
        }
        plan.live_bytes += pack.bytes;
        if is_protected(name) {
            continue;
        }
        let share = f64::from(pack.reached) / f64::from(pack.blobs.max(1));
        match pack.class {
            _ if pack.reached == 0 => {
                plan.dead.insert(*name);
                plan.condemned_bytes += pack.bytes;
            }
            // This keeps the live set closed, so no threshold applies.
            Class::MetadataPack if pack.reached < pack.blobs => rewrite(&mut plan, *name, pack),
            // Damaged blobs in it have another copy by now, or are not needed: so the damage leaves
            // the repository.
            Class::DataPack if pack.reached < pack.blobs && pack.is_damaged => {
                rewrite(&mut plan, *name, pack);
            }
            Class::DataPack if pack.reached < pack.blobs && share < effort.threshold => {
                sparse.push((share, *name));
            }
            _ => {}
        }
    }
    // The emptiest packs come first: they free the most for the bytes that are read.
    sparse.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let mut budget = effort.budget_bytes;
    for (_, name) in sparse {
        let Some(pack) = marks.pack(&name) else {
            continue;
        };
        let Some(left) = budget.checked_sub(pack.bytes) else {
            break;
        };
        budget = left;
        rewrite(&mut plan, name, pack);
    }
    plan
}

fn rewrite(plan: &mut CollectionPlan, name: PackName, pack: &super::marks::PackMarks) {
    plan.rewritten.insert(name);
    plan.condemned_bytes += pack.bytes;
    plan.read_bytes += pack.bytes;
    plan.rewritten_bytes += pack.needed_bytes();
}
