//! Journals that are left after the root was lost.
//!
//! Owns which of them the new root has sessions for, and what the plan says of the others. Does not
//! own which sessions are finished ([`super::rebuild`]).

use std::collections::{BTreeMap, BTreeSet};

use bkfs_chunker::crypto::Keyring;
use bkfs_chunker::id::Id;

use super::check::Findings;
use super::layout;
use super::rebuild::{self, Left};
use super::repair_plan::RepairPlan;
use crate::root::state::SessionId;

/// Returns the sessions that left journals of volumes with a commit, and that are not finished.
/// Names the journals of others in the plan.
pub(super) fn owned(
    findings: &Findings,
    tips: &BTreeMap<String, Id>,
    keyring: &Keyring,
    plan: &mut RepairPlan,
) -> BTreeSet<Left> {
    let mut unowned: BTreeMap<u64, u64> = BTreeMap::new();
    let mut found: BTreeMap<&str, BTreeMap<SessionId, u64>> = BTreeMap::new();
    for key in findings.bucket.keys() {
        let layout::NamedObject::Journal {
            volume, session, ..
        } = layout::place_of(key)
        else {
            continue;
        };
        let named = tips
            .keys()
            .find(|name| keyring.name_hash(name.as_bytes()) == volume);
        let count = match named {
            Some(name) => found.entry(name).or_default().entry(session).or_default(),
            None => unowned.entry(volume).or_default(),
        };
        *count += 1;
    }
    plan.steps.extend(unowned.iter().map(|(volume, count)| {
        format!(
            "leave {count} journals below journal/{volume:016x}/ to bkfs gc: no commit names their \
             volume, so the new root has no session that would carry them out"
        )
    }));
    let mut owned = BTreeSet::new();
    for (name, sessions) in found {
        let left = sessions.keys().copied().collect();
        let finished = rebuild::finished(&findings.learned.records, tips[name], &left);
        let of_finished = sessions.iter().filter(|(id, _)| finished.contains(id));
        let count: u64 = of_finished.map(|(_, count)| count).sum();
        if count > 0 {
            plan.steps.push(format!(
                "leave {count} journals of {name} to bkfs gc: a commit has carried them out, or \
                 they are of a removed volume of that name"
            ));
        }
        let others = left.iter().filter(|id| !finished.contains(id));
        owned.extend(others.map(|id| (name.to_owned(), *id)));
    }
    owned
}
