//! What a volume may hold: the states that its writer has been through, and which of them must not be lost.

use std::cell::RefCell;
use std::rc::Rc;

use crate::alphabet::{Answer, Dump, Op, World as _};
use crate::model::Model;

/// The life of one mount: the state that it began with, and all that was asked of it, in order.
pub struct Lineage {
    base: Model,
    ops: Vec<Op>,
    now: Model,
    /// States before this one are gone for good: this many operations were acknowledged as durable.
    acknowledged: usize,
    /// The volume was taken over, and the taker found the state after this many operations, which looks like this.
    taken: Option<(usize, Dump)>,
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
        Rc::new(RefCell::new(Lineage {
            now: base.clone(),
            base,
            ops: Vec::new(),
            acknowledged: 0,
            taken: None,
        }))
    }

    /// An operation is about to be asked for; what the answer must be.
    pub fn ask(&mut self, op: &Op) -> Answer {
        self.ops.push(op.clone());
        self.now.apply(op)
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

    /// Whether somebody else has the volume.
    pub fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// The newest state between `least` and `most` operations that looks like `seen`.
    pub fn find(&self, seen: &Dump, least: usize, most: usize) -> Option<(usize, Model)> {
        let mut model = self.base.clone();
        let mut found = None;
        for count in 0..=most.min(self.ops.len()) {
            if count > 0 {
                // What it answered was compared when it was asked.
                let _ = model.apply(&self.ops[count - 1]);
            }
            if count >= least && model.dump() == *seen {
                found = Some((count, model.clone()));
            }
        }
        found
    }

    /// The state that a successor found, which must be none that is older than what was acknowledged.
    ///
    /// # Errors
    /// It is no such state.
    pub fn succeed(&mut self, seen: &Dump) -> Result<Model, String> {
        match self.find(seen, self.acknowledged, self.ops.len()) {
            Some((count, model)) => {
                self.taken = Some((count, seen.clone()));
                Ok(model)
            }
            None => Err(self.explain(seen, self.acknowledged, self.ops.len())),
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
