//! What a volume may hold: the states that its writer has been through, and which of them must not be lost.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::alphabet::{Answer, Dump, Op, World as _};
use crate::model::Model;
use crate::store::Vitals;
use crate::volume::is_question;

/// Where the store does its part, what is closed is in the bucket after so long: within a second a
/// journal begins (SEMANTICS.md, close-is-bounded).
const CLOSED_WITHIN: Duration = Duration::from_secs(3);

/// And any change after so long: a commit begins after 30 s.
const COMMITTED_WITHIN: Duration = Duration::from_secs(45);

/// Where the store acknowledges nothing, what is closed is in the spool after so long: 10 s, and a
/// few (SEMANTICS.md, close-in-an-outage).
const KEPT_WITHIN: Duration = Duration::from_secs(15);

/// The life of one mount: the state that it began with, and all that was asked of it, in order.
pub struct Lineage {
    base: Model,
    ops: Vec<Op>,
    now: Model,
    /// States before this one are gone for good: this many operations were acknowledged as durable.
    acknowledged: usize,
    /// So many operations were acknowledged by the disk of this host alone.
    kept: usize,
    /// Where it was, if the host has a disk.
    home: Option<Home>,
    /// What was answered when, oldest first.
    answered: Vec<Answered>,
    /// Nothing more counts as promised by the time that passes: the mount has failed.
    has_failed: bool,
    /// The volume was taken over, and the taker found the state after this many operations, which looks like this.
    taken: Option<(usize, Dump)>,
}

/// An operation that was answered.
#[derive(Clone, Copy, Debug)]
struct Answered {
    /// It was the last of so many.
    count: usize,
    at: Instant,
    /// It wrote to a file, which close(2) has answered.
    is_close: bool,
}

/// The host of a mount with a spool.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    /// Its number.
    pub host: u64,
    /// Its disk is enough for fsync.
    pub is_local: bool,
    /// Its disk never fails.
    pub is_disk_well: bool,
    /// And its spool is large.
    pub is_well: bool,
}

/// A lineage in several hands of one thread.
pub type Shared = Rc<RefCell<Lineage>>;

/// A snapshot that was asked for.
pub struct Snapshot {
    /// Its volume.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// The mount that was asked.
    pub lineage: Shared,
    /// It is the state after so many operations at least.
    pub least: usize,
    /// And at most; none if it was not acknowledged.
    pub most: Option<usize>,
}

impl Lineage {
    /// A mount that begins with `base`.
    pub fn new(base: Model) -> Shared {
        Self::on(base, None)
    }

    /// The same, with a spool on a host.
    pub fn on(base: Model, home: Option<Home>) -> Shared {
        Rc::new(RefCell::new(Lineage {
            now: base.clone(),
            base,
            ops: Vec::new(),
            acknowledged: 0,
            kept: 0,
            home,
            answered: Vec::new(),
            has_failed: false,
            taken: None,
        }))
    }

    /// An operation is about to be asked for; what the answer must be.
    pub fn ask(&mut self, op: &Op) -> Answer {
        self.ops.push(op.clone());
        self.now.apply(op)
    }

    /// The last operation that was asked for is answered, and done.
    pub fn answered(&mut self) {
        let op = self.ops.last();
        let is_close = matches!(op, Some(Op::Write(..) | Op::Append(..)));
        self.answered.push(Answered {
            count: self.ops.len(),
            at: Instant::now(),
            is_close,
        });
    }

    /// What a machine has promised by the time that went by, as its store treated it: from now on
    /// that counts as acknowledged. True if that is more than was acknowledged before.
    pub fn promise(&mut self, vitals: Vitals) -> bool {
        if self.has_failed || self.taken.is_some() {
            return false;
        }
        let before = (self.acknowledged, self.kept);
        let last = |is_promised: &dyn Fn(&Answered) -> bool| {
            let found = self.answered.iter().rev().find(|done| is_promised(done));
            found.map_or(0, |done| done.count)
        };
        let since = vitals.well_since;
        let in_bucket = last(&|done| {
            let within = match done.is_close {
                true => CLOSED_WITHIN,
                false => COMMITTED_WITHIN,
            };
            since.is_some_and(|since| since <= done.at) && done.at + within <= vitals.at
        });
        let is_silent = vitals.acknowledged + KEPT_WITHIN <= vitals.at;
        let is_kept = self.home.is_some_and(|home| home.is_well) && is_silent;
        let in_spool = last(&|done| done.is_close && done.at + KEPT_WITHIN <= vitals.at);
        self.acknowledged = self.acknowledged.max(in_bucket);
        if is_kept {
            self.kept = self.kept.max(in_spool);
        }
        before != (self.acknowledged, self.kept)
    }

    /// The mount has failed: what it had promised before is all.
    pub fn failed(&mut self) {
        self.has_failed = true;
    }

    /// The mount has lost something and goes on with the state that is `seen`. Returns after how
    /// many operations that is; what was asked for after them is gone.
    ///
    /// # Errors
    /// It is no such state, or older than what was acknowledged.
    pub fn fall_back(&mut self, seen: &Dump) -> Result<usize, String> {
        let least = self.acknowledged.max(self.kept);
        let Some((count, model)) = self.find(seen, least, self.ops.len()) else {
            return Err(self.explain(seen, least, self.ops.len()));
        };
        self.ops.truncate(count);
        self.answered.retain(|done| done.count <= count);
        self.now = model;
        self.has_failed = false;
        Ok(count)
    }

    /// How many operations were asked for.
    pub fn length(&self) -> usize {
        self.ops.len()
    }

    /// The last operations that were asked for.
    pub fn tail(&self, count: usize) -> Vec<Op> {
        self.ops[self.ops.len().saturating_sub(count)..].to_vec()
    }

    /// The state after all of them.
    pub fn now(&self) -> &Model {
        &self.now
    }

    /// The first `count` operations were acknowledged as durable.
    ///
    /// # Errors
    /// The volume was taken over before, without them.
    pub fn acknowledge(&mut self, count: usize) -> Result<(), String> {
        if let Some((taken, seen)) = &self.taken
            && count > *taken
            && self.find(seen, count, count).is_none()
        {
            return Err(format!(
                "a mount acknowledged {count} operations after it was taken over with {taken}"
            ));
        }
        self.acknowledged = self.acknowledged.max(count);
        Ok(())
    }

    /// The first `count` operations were acknowledged by fsync: by the disk of the host, where that is enough.
    ///
    /// # Errors
    /// As [`Lineage::acknowledge`].
    pub fn sync(&mut self, count: usize) -> Result<(), String> {
        match self.is_local() {
            false => self.acknowledge(count),
            true => {
                self.keep(count);
                Ok(())
            }
        }
    }

    /// The disk of the host has the first `count` operations.
    pub fn keep(&mut self, count: usize) {
        self.kept = self.kept.max(count);
    }

    /// The host, if it has a disk.
    pub fn host(&self) -> Option<u64> {
        self.home.map(|home| home.host)
    }

    /// Whether there is a spool that holds everything, on a disk that works.
    pub fn has_good_spool(&self) -> bool {
        self.home.is_some_and(|home| home.is_well)
    }

    /// Whether there is a disk that fails at times, or is full.
    pub fn has_bad_disk(&self) -> bool {
        self.home.is_some_and(|home| !home.is_disk_well)
    }

    /// Whether fsync is content with the disk of the host.
    pub fn is_local(&self) -> bool {
        self.home.is_some_and(|home| home.is_local)
    }

    /// Whether something was acknowledged by the disk of the host that the successor does not have: it must have become a snapshot.
    pub fn is_owed(&self) -> bool {
        match &self.taken {
            Some((_, seen)) => {
                self.kept > 0 && self.find(seen, self.kept, self.ops.len()).is_none()
            }
            None => false,
        }
    }

    /// Whether this is a state that holds all that was acknowledged here.
    pub fn is_paid_by(&self, seen: &Dump) -> bool {
        self.find(seen, self.kept, self.ops.len()).is_some()
    }

    /// Whether somebody else has the volume.
    pub fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// The newest state between `least` and `most` operations that looks like `seen`.
    pub fn find(&self, seen: &Dump, least: usize, most: usize) -> Option<(usize, Model)> {
        let mut model = self.base.clone();
        let (mut found, mut is_like) = (None, None);
        for count in 0..=most.min(self.ops.len()) {
            if count > 0 {
                // What it answered was compared when it was asked.
                let op = &self.ops[count - 1];
                if model.apply(op).is_ok() && !is_question(op) {
                    is_like = None;
                }
            }
            if count >= least && *is_like.get_or_insert_with(|| model.dump() == *seen) {
                found = Some(count);
            }
        }
        let found = found?;
        let mut model = self.base.clone();
        for op in &self.ops[..found] {
            let _ = model.apply(op);
        }
        Some((found, model))
    }

    /// The state that a successor found, which must be none that is older than what was acknowledged; a successor `at_home`, on the same host before anybody else, finds what
    /// the disk acknowledged, too.
    ///
    /// # Errors
    /// It is no such state.
    pub fn succeed(&mut self, seen: &Dump, at_home: bool) -> Result<Model, String> {
        let least = match at_home {
            true => self.acknowledged.max(self.kept),
            false => self.acknowledged,
        };
        match self.find(seen, least, self.ops.len()) {
            Some((count, model)) => {
                self.taken = Some((count, seen.clone()));
                Ok(model)
            }
            None => Err(self.explain(seen, least, self.ops.len())),
        }
    }

    /// Why `seen` is none of the states from `least` to `most`.
    pub fn explain(&self, seen: &Dump, least: usize, most: usize) -> String {
        let older = self.find(seen, 0, self.ops.len());
        match older {
            Some((count, _)) if count < least => {
                format!("the state after {count} operations, though {least} were acknowledged")
            }
            Some((count, _)) => {
                format!(
                    "the state after {count} operations, though at most {most} had been asked for"
                )
            }
            None => {
                let mut model = self.base.clone();
                for op in &self.ops[..most.min(self.ops.len())] {
                    let _ = model.apply(op);
                }
                let difference = differences(&model.dump(), seen);
                format!(
                    "no state that the mount ever had ({least} to {most} operations); the newest of them differs in\n{difference}"
                )
            }
        }
    }
}

/// Where two trees differ, a line for each path.
pub fn differences(expected: &Dump, seen: &Dump) -> String {
    let paths: std::collections::BTreeSet<_> = expected.keys().chain(seen.keys()).collect();
    let mut text = String::new();
    for path in paths {
        let (one, other) = (expected.get(path), seen.get(path));
        if one == other {
            continue;
        }
        let shown = |side: Option<&crate::alphabet::Seen>| match side {
            None => "absent".to_owned(),
            Some(seen) => format!(
                "mode {:o}, {} links, {} bytes {}, {} attributes, {} names",
                seen.mode,
                seen.links,
                seen.size,
                &blake3::hash(&seen.contents).to_hex()[..8],
                seen.xattrs.len(),
                seen.names.len()
            ),
        };
        text += &format!(
            "  {}: expected {}, found {}\n",
            path.escape_ascii(),
            shown(one),
            shown(other)
        );
    }
    text
}
