//! Chunks that marking needs: all of them are looked up together, in the order of the index.
//!
//! Chunks refer to nothing, so the walk need not wait for their places. Nearly all blobs are chunks:
//! single look-ups would read a block of the index for each.
//!
//! A chunk that is asked for stays asked for until the places of all are marked. So a caller that
//! fails half-way, and marks again from a newer root, leaves out none.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bkfs_chunker::catalog::{ListedCopies, ListedCopy, PackLocation};
use bkfs_chunker::id::Prefix;
use bkfs_chunker::pack::PackName;

use super::marks::Marks;

/// Which copies count.
pub struct Rule<'a> {
    /// The live packs.
    pub live: &'a HashSet<PackName>,
    /// Known damage. A copy there counts only if there is no other.
    pub quarantine: &'a HashSet<PackLocation>,
}

/// What is known of the damage in a pack.
enum Damage {
    None,
    /// These frames are damaged.
    Frames(HashSet<u16>),
    /// It is damaged as a whole.
    All,
}

/// A pack of an index object whose copies count.
struct Counted {
    name: PackName,
    damage: Damage,
}

impl Counted {
    fn is_good(&self, copy: &ListedCopy) -> bool {
        match &self.damage {
            Damage::None => true,
            Damage::Frames(frames) => !frames.contains(&copy.frame),
            Damage::All => false,
        }
    }
}

impl Rule<'_> {
    /// Returns the packs of an index object, `None` in the place of each that is not live.
    fn counted(
        &self,
        packs: &[PackName],
        damaged: &HashMap<PackName, Damage>,
    ) -> Vec<Option<Counted>> {
        let counted = packs.iter().map(|name| {
            let damage = match damaged.get(name) {
                None => Damage::None,
                Some(Damage::Frames(frames)) => Damage::Frames(frames.clone()),
                Some(_) => Damage::All,
            };
            let counted = Counted {
                name: *name,
                damage,
            };
            self.live.contains(name).then_some(counted)
        });
        counted.collect()
    }

    fn damaged(&self) -> HashMap<PackName, Damage> {
        let mut damaged = HashMap::new();
        for place in self.quarantine {
            let known = damaged
                .entry(place.pack)
                .or_insert_with(|| Damage::Frames(HashSet::new()));
            match (place.frame, known) {
                (None, known) => *known = Damage::All,
                (Some(frame), Damage::Frames(frames)) => {
                    frames.insert(frame);
                }
                _ => {}
            }
        }
        damaged
    }
}

/// Marks the copies of these blobs as needed. Returns the first blob of which no copy counts.
pub fn mark_copies(
    marks: &mut Marks,
    asked: &Arc<[Prefix]>,
    listed: &[ListedCopies],
    rule: &Rule<'_>,
) -> Option<Prefix> {
    let damaged = rule.damaged();
    let counted: Vec<_> = listed
        .iter()
        .map(|index| rule.counted(&index.packs, &damaged))
        .collect();
    let is_doubtful = !damaged.is_empty();
    let mut has_good = vec![!is_doubtful; asked.len()];
    if is_doubtful {
        for (index, packs) in listed.iter().zip(&counted) {
            for copy in &index.copies {
                let pack = packs[copy.pack as usize].as_ref();
                has_good[copy.asked as usize] |= pack.is_some_and(|pack| pack.is_good(copy));
            }
        }
    }
    let mut is_found = vec![false; asked.len()];
    for (index, packs) in listed.iter().zip(&counted) {
        for copies in index.copies.chunk_by(|one, next| one.pack == next.pack) {
            let Some(pack) = copies
                .first()
                .and_then(|copy| packs[copy.pack as usize].as_ref())
            else {
                continue;
            };
            let counts = |copy: &&ListedCopy| !has_good[copy.asked as usize] || pack.is_good(copy);
            let needed = copies.iter().filter(counts);
            let needed = needed.map(|copy| (copy.asked, copy.frame, copy.slot));
            marks.need_in(pack.name, needed, &mut |asked, is_there| {
                is_found[asked as usize] |= is_there;
            });
        }
    }
    let missing = is_found.iter().position(|is_found| !is_found)?;
    asked.get(missing).copied()
}
