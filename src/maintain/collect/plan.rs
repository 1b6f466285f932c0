//! What a collection will do: a pure plan, made of marks.
//!
//! Owns the judgement over each pack and what it will cost. Pure.

use std::collections::{BTreeMap, BTreeSet};

use bkfs_chunker::pack::PackName;
use bkfs_chunker::seal::Class;

use super::marks::Marks;

/// What becomes of packs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// Nothing in them is needed: they are condemned.
    pub dead: BTreeSet<PackName>,
    /// A part of them is needed: that part is stored again, and they are condemned.
    pub rewritten: BTreeSet<PackName>,
    /// In the bucket, in no index object, and nobody's own: condemned, with their sizes in bytes.
    pub unlisted: BTreeMap<PackName, u64>,
    /// Bytes of all packs that are condemned.
    pub condemned_bytes: u64,
    /// About how many bytes are stored again.
    pub rewritten_bytes: u64,
    /// Bytes of packs that are read to store a part of them again.
    pub read_bytes: u64,
    /// Bytes of live packs before.
    pub live_bytes: u64,
}

impl Plan {
    /// True if no pack is condemned.
    pub fn is_empty(&self) -> bool {
        self.dead.is_empty() && self.rewritten.is_empty() && self.unlisted.is_empty()
    }

    /// All packs that it condemns.
    pub fn candidates(&self) -> BTreeSet<PackName> {
        let listed = self.dead.union(&self.rewritten).copied();
        listed.chain(self.unlisted.keys().copied()).collect()
    }
}

/// How hard a collection works.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Effort {
    /// A data pack is written anew when less than this part of it is needed, from 0 to 1. One in quarantine is whenever anything in it is not.
    pub threshold: f64,
    /// At most so many bytes of sparse data packs are read for that.
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

/// Judges each live pack. `is_protected` tells which are own to a session in the root, at or above its floor: those are never garbage (rule 8a).
pub fn plan(
    marks: &Marks,
    is_live: impl Fn(&PackName) -> bool,
    is_protected: impl Fn(&PackName) -> bool,
    unlisted: BTreeMap<PackName, u64>,
    effort: Effort,
) -> Plan {
    let mut plan = Plan {
        condemned_bytes: unlisted.values().sum(),
        unlisted,
        ..Plan::default()
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
            // To keep the live set closed, whatever the threshold.
            Class::MetadataPack if pack.reached < pack.blobs => rewrite(&mut plan, *name, pack),
            // What is damaged in it has another place by now, or is not needed: so the damage leaves the repository.
            Class::DataPack if pack.reached < pack.blobs && pack.is_damaged => {
                rewrite(&mut plan, *name, pack);
            }
            Class::DataPack if pack.reached < pack.blobs && share < effort.threshold => {
                sparse.push((share, *name));
            }
            _ => {}
        }
    }
    // The emptiest first: they free most for what is read.
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

fn rewrite(plan: &mut Plan, name: PackName, pack: &super::marks::PackMarks) {
    plan.rewritten.insert(name);
    plan.condemned_bytes += pack.bytes;
    plan.read_bytes += pack.bytes;
    plan.rewritten_bytes += pack.needed_bytes();
}
