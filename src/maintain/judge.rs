//! Decides from the damage that was seen in packs what counts as damage. Pure.
//!
//! Owns the set of unreadable places, and the rule. Damage counts whether anything refers to it or
//! not, with one exception: a frame in quarantine has healed if every blob in it can be read
//! elsewhere. The next write of the data has replaced it, and no reader needs it any more.

use std::collections::{HashMap, HashSet};

use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::id::Prefix;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{Listed, PackContents, PackDamage};

use super::report::{Problem, ProblemKind, Report};

/// The known damage of packs.
#[derive(Debug, Default)]
pub struct Damage {
    /// Frames that cannot be read. Frame `None` means the whole pack.
    bad: HashSet<PackLocation>,
    /// Noted damage, each with whether the whole pack is missing. The first `judged` of them are
    /// problems already.
    seen: Vec<(PackContents, bool, PackDamage)>,
    judged: usize,
    /// Blobs of which no readable copy is left, each with the number of the problem that is the
    /// cause.
    lost: HashMap<Prefix, usize>,
    /// The keys of packs that the store refuses.
    refused: HashSet<String>,
    /// Blobs that have to be stored again: lost ones, ones whose only copy is in a pack that is not
    /// to be trusted, and ones that a live pack refers to and none holds.
    wanted: HashSet<Prefix>,
}

impl Damage {
    /// Records what is wrong with a pack. Its index entry is kept as it is, because readers go by
    /// that.
    pub fn note(&mut self, pack: &PackContents, missing: bool, damage: Vec<PackDamage>) {
        for damage in damage {
            let pack_name = pack.name();
            if missing || damage.frame.is_some() {
                self.bad.insert(PackLocation {
                    pack: pack_name,
                    frame: damage.frame.filter(|_| !missing),
                });
            }
            if damage.refused {
                self.refused.insert(pack.key());
            }
            self.seen.push((pack.clone(), missing, damage));
        }
    }

    /// Returns true if no damage was noted.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Returns true if the place is known to be unreadable.
    pub fn is_bad(&self, place: &PackLocation) -> bool {
        let whole = PackLocation {
            frame: None,
            ..*place
        };
        !self.bad.is_empty() && (self.bad.contains(place) || self.bad.contains(&whole))
    }

    /// Returns true if at least one of these copies can be read, as far as is known.
    pub fn any_good(&self, places: &[PackLocation]) -> bool {
        places.iter().any(|place| !self.is_bad(place))
    }

    /// Returns the number of the problem because of which a blob cannot be read.
    pub fn culprit(&self, blob: &Prefix) -> Option<usize> {
        self.lost.get(blob).copied()
    }

    /// Records that a blob cannot be used because of a problem: a segment whose chunks are lost, or
    /// a blob that no pack holds. The first problem that is recorded for a blob stays.
    pub fn lose(&mut self, blob: Prefix, problem: usize) {
        self.lost.entry(blob).or_insert(problem);
    }

    /// Records a blob that some live pack refers to and no live pack holds.
    pub fn want(&mut self, blob: Prefix) {
        self.wanted.insert(blob);
    }

    /// Returns the blobs that have to be stored again for all damage to be gone.
    pub fn wanted(&self) -> &HashSet<Prefix> {
        &self.wanted
    }

    /// Returns the packs, each once, that are in the bucket and no longer describe themselves.
    /// Refused packs are none of them.
    pub fn untrusted(&self) -> Vec<PackContents> {
        let mut seen = HashSet::new();
        let packs = self.seen.iter().filter(|(.., damage)| !damage.refused);
        let packs = packs.filter(|(_, missing, damage)| !missing && damage.frame.is_none());
        let packs = packs.filter(|(pack, ..)| seen.insert(pack.name()));
        packs.map(|(pack, ..)| pack.clone()).collect()
    }

    /// Returns true if any blob is lost.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns everything that belongs into quarantine: bad frames, missing packs, and packs that
    /// no longer describe themselves. A refused pack may be whole, and does not belong there.
    pub fn places(&self) -> HashSet<PackLocation> {
        let whole = self
            .seen
            .iter()
            .filter(|(_, _, damage)| damage.frame.is_none() && !damage.refused);
        let whole = whole.map(|(pack, ..)| PackLocation {
            pack: pack.name(),
            frame: None,
        });
        self.bad.iter().copied().chain(whole).collect()
    }

    /// Returns true if this is the key of a pack that the store refuses.
    pub fn is_refused(&self, key: &str) -> bool {
        self.refused.contains(key)
    }

    /// Returns the packs that have any damage.
    pub fn packs(&self) -> HashSet<PackName> {
        self.seen.iter().map(|(pack, ..)| pack.name()).collect()
    }

    /// Returns how many of the damages that the next calls of [`Self::judge`] have to judge go
    /// together, and the blobs in their places: about `blobs_max`, or those of one damage if these
    /// are more. Zero if all damage is judged.
    pub fn next(&self, blobs_max: usize) -> (usize, Vec<Prefix>) {
        let (mut count, mut blobs) = (0, Vec::new());
        for (pack, missing, damage) in &self.seen[self.judged..] {
            if count > 0 && blobs.len() + pack.blob_count() > blobs_max {
                break;
            }
            count += 1;
            blobs.extend(blobs_in(pack, *missing, damage).map(|blob| blob.prefix));
        }
        (count, blobs)
    }

    /// Turns the next `count` damages that were noted into problems of `report`.
    ///
    /// `copies` returns the places that hold a blob; `quarantine` holds the places that are known
    /// already. Call it once all packs that can hold other copies have been seen.
    pub fn judge(
        &mut self,
        count: usize,
        report: &mut Report,
        quarantine: &HashSet<PackLocation>,
        copies: impl Fn(&Prefix) -> Vec<PackLocation>,
    ) {
        let judged = self.judged;
        self.judged = self.seen.len().min(judged + count);
        for (pack, missing, damage) in &self.seen[judged..self.judged] {
            let place = PackLocation {
                pack: pack.name(),
                frame: damage.frame,
            };
            let whole = PackLocation {
                frame: None,
                ..place
            };
            let known = quarantine.contains(&place) || quarantine.contains(&whole);
            // Reading needs neither header nor footer, but a pack without them is not trusted with
            // the only copy of anything.
            let mut lost = Vec::new();
            let mut only_here = 0u64;
            for blob in blobs_in(pack, *missing, damage) {
                let all = copies(&blob.prefix);
                let elsewhere = |copy: &&PackLocation| {
                    copy.pack != place.pack || copy.frame != Some(blob.frame)
                };
                if !all.iter().filter(elsewhere).any(|copy| !self.is_bad(copy)) {
                    only_here += 1;
                    if !damage.refused {
                        self.wanted.insert(blob.prefix);
                    }
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
                false if damage.refused => ProblemKind::Refused,
                false => ProblemKind::Damaged,
            };
            let what = match damage.frame {
                Some(frame) => format!("frame {frame}: {}", damage.what),
                None => damage.what.clone(),
            };
            let mut problem = Problem::new(pack.key(), kind, what);
            problem.lost_blobs = lost.len() as u64;
            let number = report.add(problem);
            for blob in lost {
                self.lost.entry(blob).or_insert(number);
            }
        }
    }
}

/// Returns the blobs in the place of a damage.
fn blobs_in<'p>(
    pack: &'p PackContents,
    missing: bool,
    damage: &PackDamage,
) -> impl Iterator<Item = Listed> + use<'p> {
    let frame = damage.frame.filter(|_| !missing);
    pack.blobs()
        .filter(move |blob| frame.is_none_or(|frame| frame == blob.frame))
}
