//! From what was seen of packs to what is damage. Pure.
//!
//! Owns the set of places that cannot be read, and the rule what counts: damage is damage whether anything refers to it or not, with one exception. A frame in
//! quarantine everything in which lies readable elsewhere has healed: the next write of the data has replaced it, and no reader needs it any more.

use std::collections::{HashMap, HashSet};

use bkfs_chunker::catalog::Place;
use bkfs_chunker::id::Prefix;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{PackContents, PackDamage};

use super::report::{Problem, ProblemKind, Report};

/// What is known of damage to packs.
#[derive(Debug, Default)]
pub struct Damage {
    /// Frames that cannot be read; `None` for all of a pack.
    bad: HashSet<Place>,
    /// What was noted, with whether the pack is gone as a whole; those before `judged` are problems already.
    seen: Vec<(PackContents, bool, PackDamage)>,
    judged: usize,
    /// Blobs of which no readable copy is left, and the number of the problem that says why.
    lost: HashMap<Prefix, usize>,
    /// Blobs that have to be stored again: all that are lost themselves, and those whose only copy lies where it is not to be trusted.
    wanted: HashSet<Prefix>,
}

impl Damage {
    /// Takes note of what is wrong with a pack. Its index entry stays what it is: readers go by that.
    pub fn note(&mut self, pack: &PackContents, missing: bool, damage: Vec<PackDamage>) {
        for damage in damage {
            let pack_name = pack.name();
            if missing || damage.frame.is_some() {
                self.bad.insert(Place {
                    pack: pack_name,
                    frame: damage.frame.filter(|_| !missing),
                });
            }
            self.seen.push((pack.clone(), missing, damage));
        }
    }

    /// Whether nothing at all is wrong.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Whether what lies there can be read, as far as is known.
    pub fn is_bad(&self, place: &Place) -> bool {
        let whole = Place {
            frame: None,
            ..*place
        };
        !self.bad.is_empty() && (self.bad.contains(place) || self.bad.contains(&whole))
    }

    /// Whether one of these copies can be read.
    pub fn any_good(&self, places: &[Place]) -> bool {
        places.iter().any(|place| !self.is_bad(place))
    }

    /// The problem because of which a blob cannot be read.
    pub fn culprit(&self, blob: &Prefix) -> Option<usize> {
        self.lost.get(blob).copied()
    }

    /// A blob cannot be used because of a problem: a segment whose chunks are lost, or one that no pack holds.
    pub fn lose(&mut self, blob: Prefix, problem: usize) {
        self.lost.entry(blob).or_insert(problem);
    }

    /// A blob that some live pack refers to is in none.
    pub fn want(&mut self, blob: Prefix) {
        self.wanted.insert(blob);
    }

    /// Blobs that have to be stored again for nothing to be damaged any more.
    pub fn wanted(&self) -> &HashSet<Prefix> {
        &self.wanted
    }

    /// Packs that are there and do not describe themselves any more, each once.
    pub fn untrusted(&self) -> Vec<PackContents> {
        let mut seen = HashSet::new();
        let packs = self.seen.iter();
        let packs = packs.filter(|(_, missing, damage)| !missing && damage.frame.is_none());
        let packs = packs.filter(|(pack, ..)| seen.insert(pack.name()));
        packs.map(|(pack, ..)| pack.clone()).collect()
    }

    /// Whether any blob is lost.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Everything that is bad, for the quarantine: frames, whole packs that are gone, and whole packs that no longer describe themselves.
    pub fn places(&self) -> HashSet<Place> {
        let whole = self
            .seen
            .iter()
            .filter(|(_, _, damage)| damage.frame.is_none());
        let whole = whole.map(|(pack, ..)| Place {
            pack: pack.name(),
            frame: None,
        });
        self.bad.iter().copied().chain(whole).collect()
    }

    /// Packs of which anything is damaged.
    pub fn packs(&self) -> HashSet<PackName> {
        self.seen.iter().map(|(pack, ..)| pack.name()).collect()
    }

    /// Turns everything that was noted since the last call into problems of `report`. `copies` says where a blob lies, `quarantine` what is known
    /// already. Call it when all packs that can hold other copies have been seen.
    pub fn judge(
        &mut self,
        report: &mut Report,
        quarantine: &HashSet<Place>,
        copies: impl Fn(&Prefix) -> Vec<Place>,
    ) {
        let judged = std::mem::replace(&mut self.judged, self.seen.len());
        for (pack, missing, damage) in &self.seen[judged..] {
            let place = Place {
                pack: pack.name(),
                frame: damage.frame,
            };
            let whole = Place {
                frame: None,
                ..place
            };
            let known = quarantine.contains(&place) || quarantine.contains(&whole);
            // Header and footer are not needed for reading, but the pack is not to be trusted with the only copy of anything.
            let in_place = pack
                .blobs()
                .filter(|blob| *missing || damage.frame.is_none_or(|frame| frame == blob.frame));
            let mut lost = Vec::new();
            let mut only_here = 0u64;
            for blob in in_place {
                let all = copies(&blob.prefix);
                let elsewhere =
                    |copy: &&Place| copy.pack != place.pack || copy.frame != Some(blob.frame);
                if !all.iter().filter(elsewhere).any(|copy| !self.is_bad(copy)) {
                    only_here += 1;
                    self.wanted.insert(blob.prefix);
                    if *missing || damage.frame.is_some() {
                        lost.push(blob.prefix);
                    }
                }
            }
            if known && only_here == 0 {
                report.counts.healed += 1;
                continue;
            }
            let kind = match missing {
                true => ProblemKind::Missing,
                false => ProblemKind::Damaged,
            };
            let what = match damage.frame {
                Some(frame) => format!("frame {frame}: {}", damage.what),
                None => damage.what.clone(),
            };
            let mut problem = Problem::new(pack.key(), kind, what);
            problem.lost_blobs = lost.len() as u64;
            if let Some(number) = report.add(problem) {
                for blob in lost {
                    self.lost.entry(blob).or_insert(number);
                }
            }
        }
    }
}
