//! The states that a volume may have: those that its writer has been through, and which of them
//! must not be lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::alphabet::{Answer, Dump, Op, World as _};
use crate::model::Model;
use crate::store::Vitals;
use crate::volume::is_question;

/// Time after which closed data is in the bucket, if the store works: a journal begins within 1 s
/// (SEMANTICS.md, close-is-bounded).
const CLOSED_WITHIN: Duration = Duration::from_secs(3);

/// Time after which any change is in the bucket, if the store works: a commit begins after 30 s.
const COMMITTED_WITHIN: Duration = Duration::from_secs(45);

/// Time after which closed data is in the spool, if the store acknowledges nothing: 10 s, and a few
/// seconds more (SEMANTICS.md, close-in-an-outage).
const KEPT_WITHIN: Duration = Duration::from_secs(15);

/// The life of one mount: the state that it began with, and all operations that were asked of it,
/// in order.
pub struct Lineage {
    base: Model,
    ops: Vec<Op>,
    now: Model,
    /// Number of operations that were acknowledged as durable. States before the last of them are
    /// gone for good.
    acknowledged: usize,
    /// Number of operations that only the disk of this host has acknowledged.
    kept: usize,
    /// The host, if it has a disk.
    home: Option<Home>,
    /// The operations that were answered and the times of the answers, oldest first.
    answered: Vec<Answered>,
    /// Whether the mount has failed. The passing of time then promises nothing more.
    has_failed: bool,
    /// If the volume was taken over: the number of operations in the state that the new holder
    /// found, and that state.
    taken: Option<(usize, Dump)>,
}

/// An operation that was answered.
#[derive(Clone, Copy, Debug)]
struct Answered {
    /// Number of operations up to this one.
    count: usize,
    at: Instant,
    /// Whether it wrote to a file, and close(2) was answered.
    is_close: bool,
}

/// The host of a mount with a spool.
#[derive(Clone, Debug)]
pub struct Home {
    /// The number of the host.
    pub host: u64,
    /// Whether its disk is enough for fsync.
    pub is_local: bool,
    /// Whether its disk has not failed in this life of the mount: another process on the host may
    /// begin with a fault, which strikes the next use of the disk by any of them.
    pub is_disk_well: Rc<Cell<bool>>,
    /// Whether its spool is large.
    pub has_large_spool: bool,
}

impl Home {
    /// Whether there is room for everything, on a disk that works.
    fn is_well(&self) -> bool {
        self.is_disk_well.get() && self.has_large_spool
    }
}

/// A lineage that several owners in one thread share.
pub type Shared = Rc<RefCell<Lineage>>;

/// A snapshot that was asked for.
pub struct Snapshot {
    /// Its volume.
    pub volume: String,
    /// Its name.
    pub name: String,
    /// The mount that was asked.
    pub lineage: Shared,
    /// Least number of operations in its state.
    pub least: usize,
    /// Most operations in its state, or `None` if the snapshot was not acknowledged.
    pub most: Option<usize>,
}

impl Lineage {
    /// Returns the lineage of a mount that begins with `base`.
    pub fn new(base: Model) -> Shared {
        Self::on(base, None)
    }

    /// Returns the same lineage, with a spool on a host.
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

    /// Records an operation that is about to be asked for. Returns the answer that it must get.
    pub fn ask(&mut self, op: &Op) -> Answer {
        self.ops.push(op.clone());
        self.now.apply(op)
    }

    /// Records that the last operation was answered, and done.
    pub fn answered(&mut self) {
        let op = self.ops.last();
        let is_close = matches!(op, Some(Op::Write(..) | Op::Append(..)));
        self.answered.push(Answered {
            count: self.ops.len(),
            at: Instant::now(),
            is_close,
        });
    }

    /// Counts as acknowledged all operations that a machine has promised by the passing of time,
    /// given how its store treated it. Of a mount whose volume another one claims, only its disk
    /// promises. Returns whether that is more than was acknowledged before.
    pub fn promise(&mut self, vitals: Vitals, is_claimed: bool) -> bool {
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
        let is_kept = self.has_good_spool() && is_silent;
        let in_spool = last(&|done| done.is_close && done.at + KEPT_WITHIN <= vitals.at);
        if !is_claimed {
            self.acknowledged = self.acknowledged.max(in_bucket);
        }
        if is_kept {
            self.kept = self.kept.max(in_spool);
        }
        before != (self.acknowledged, self.kept)
    }

    /// Records that the mount has failed: it promises nothing more.
    pub fn failed(&mut self) {
        self.has_failed = true;
    }

    /// Records that the mount has lost data and goes on with the state `seen`. Returns the number
    /// of operations in that state; later operations are gone.
    ///
    /// # Errors
    /// A text, if the mount never had this state, or if it is older than the acknowledged one.
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

    /// Returns the number of operations that were asked for.
    pub fn length(&self) -> usize {
        self.ops.len()
    }

    /// Returns the last `count` operations that were asked for.
    pub fn tail(&self, count: usize) -> Vec<Op> {
        self.ops[self.ops.len().saturating_sub(count)..].to_vec()
    }

    /// Returns the state after all operations.
    pub fn now(&self) -> &Model {
        &self.now
    }

    /// Records that the first `count` operations were acknowledged as durable.
    ///
    /// # Errors
    /// A text, if the volume was taken over before, without them.
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

    /// Records that fsync acknowledged the first `count` operations. With `fsync=local` the
    /// acknowledgement is that of the host's disk.
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

    /// Records that the disk of the host has the first `count` operations.
    pub fn keep(&mut self, count: usize) {
        self.kept = self.kept.max(count);
    }

    /// Returns the host, if it has a disk.
    pub fn host(&self) -> Option<u64> {
        self.home.as_ref().map(|home| home.host)
    }

    /// Whether there is a spool with room for everything, on a disk that works.
    pub fn has_good_spool(&self) -> bool {
        self.home.as_ref().is_some_and(Home::is_well)
    }

    /// Whether there is a disk that fails at times, or is full.
    pub fn has_bad_disk(&self) -> bool {
        let home = self.home.as_ref();
        home.is_some_and(|home| !home.is_disk_well.get())
    }

    /// Whether the disk of the host is enough for fsync.
    pub fn is_local(&self) -> bool {
        self.home.as_ref().is_some_and(|home| home.is_local)
    }

    /// Whether the disk of the host has acknowledged operations that the successor does not have.
    /// They must have become a snapshot.
    pub fn is_owed(&self) -> bool {
        match &self.taken {
            Some((_, seen)) => {
                self.kept > 0 && self.find(seen, self.kept, self.ops.len()).is_none()
            }
            None => false,
        }
    }

    /// Whether this state holds all operations that were acknowledged here.
    pub fn is_paid_by(&self, seen: &Dump) -> bool {
        self.find(seen, self.kept, self.ops.len()).is_some()
    }

    /// Whether another mount has the volume.
    pub fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// Returns the newest state between `least` and `most` operations that equals `seen`.
    pub fn find(&self, seen: &Dump, least: usize, most: usize) -> Option<(usize, Model)> {
        let mut model = self.base.clone();
        let (mut found, mut is_like) = (None, None);
        for count in 0..=most.min(self.ops.len()) {
            if count > 0 {
                // The answer of the operation was compared when it was asked.
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

    /// Records the state that a successor found. It must not be older than the acknowledged one. A
    /// successor `at_home`, which is on the same host with no other mount in between, also finds
    /// what the disk has acknowledged.
    ///
    /// # Errors
    /// A text, if the mount never had this state, or if it is older than the acknowledged one.
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

    /// Returns a text that says why `seen` is none of the states from `least` to `most`.
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

/// Returns the differences between two trees, one line for each path.
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
