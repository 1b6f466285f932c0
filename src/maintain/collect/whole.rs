//! Of which trees nothing is lacking, as far as an index and the metadata packs say.
//!
//! Owns the walk, which reads each node and each segment once for all trees. Contents are not read:
//! where its copies lie says whether a chunk is there.
//!
//! Memory: about 50 bytes for each node and each segment of the trees, and for each thing that is
//! lacking.

use std::collections::{HashMap, HashSet};

use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::{Id, Kind};

use crate::root::error::RootError;
use crate::volume::rescue::below;

/// Something whose children are looked at.
struct Step {
    id: Id,
    left: Vec<(Kind, Id)>,
    is_whole: bool,
}

/// What is known of trees.
pub(in crate::maintain) struct Wholeness<'a, F> {
    content_store: &'a ContentStore,
    /// Whether something is there whose copies lie in these places.
    is_there: F,
    /// Whether what the store does not give counts as whole.
    keeps_unread: bool,
    known: HashMap<Id, bool>,
    /// What was found to be lacking, without the nodes above it.
    lacking: HashSet<Id>,
    /// What counts as there though it is lacking.
    pardoned: HashSet<Id>,
}

impl<'a, F: Fn(&[PackLocation]) -> bool> Wholeness<'a, F> {
    /// Of trees in the packs that `content_store` has in its index. `is_there` says whether
    /// something is there whose copies lie in some places. A node or a segment must be readable as
    /// well.
    pub(in crate::maintain) fn new(content_store: &'a ContentStore, is_there: F) -> Self {
        Self::but(content_store, is_there, HashSet::new())
    }

    /// As [`Wholeness::new`]. What is `pardoned` counts as there, with all that is below it.
    pub(in crate::maintain) fn but(
        content_store: &'a ContentStore,
        is_there: F,
        pardoned: HashSet<Id>,
    ) -> Self {
        Self {
            content_store,
            is_there,
            keeps_unread: false,
            known: HashMap::new(),
            lacking: HashSet::new(),
            pardoned,
        }
    }

    /// The same, where a node or segment counts as whole that the store does not give while it
    /// gives other objects.
    pub(in crate::maintain) fn keeping_unread(self) -> Self {
        Self {
            keeps_unread: true,
            ..self
        }
    }

    /// Returns what the trees lack that were walked so far.
    pub(in crate::maintain) fn into_lacking(self) -> HashSet<Id> {
        self.lacking
    }

    /// Whether all that the tree with this root node needs is there.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(in crate::maintain) async fn of(&mut self, tree: Id) -> Result<bool, RootError> {
        let mut path: Vec<Step> = Vec::new();
        let mut next = Some((Kind::Node, tree));
        loop {
            let found = match next.take() {
                Some((kind, id)) => self.look(kind, id, &mut path).await?,
                None => None,
            };
            if let (Some(false), Some(parent)) = (found, path.last_mut()) {
                parent.is_whole = false;
            }
            let Some(step) = path.last_mut() else {
                let known = self.known.get(&tree).copied();
                return Ok(found.or(known).unwrap_or(false));
            };
            next = step.left.pop();
            if next.is_none()
                && let Some(done) = path.pop()
            {
                self.known.insert(done.id, done.is_whole);
                if let Some(parent) = path.last_mut() {
                    parent.is_whole &= done.is_whole;
                }
            }
        }
    }

    /// Whether this is whole; nothing if its children, which are put on the path, decide.
    async fn look(
        &mut self,
        kind: Kind,
        id: Id,
        path: &mut Vec<Step>,
    ) -> Result<Option<bool>, RootError> {
        if let Some(known) = self.known.get(&id) {
            return Ok(Some(*known));
        }
        if self.pardoned.contains(&id) {
            return Ok(Some(true));
        }
        if !(self.is_there)(&self.content_store.places(&id).await?) {
            self.lacking.insert(id);
            return Ok(Some(false));
        }
        if !matches!(kind, Kind::Node | Kind::Segment) {
            return Ok(Some(true));
        }
        let read = match self.content_store.read_blob(kind, id).await {
            Ok(bytes) => below(kind, &bytes).ok(),
            Err(
                ContentError::Damaged { .. }
                | ContentError::Missing { .. }
                | ContentError::Unknown { .. }
                | ContentError::Unreadable { .. },
            ) => None,
            Err(ContentError::Store(error)) if self.keeps_unread && error.is_of_one_object() => {
                self.known.insert(id, true);
                return Ok(Some(true));
            }
            Err(error) => return Err(error.into()),
        };
        let Some(left) = read else {
            self.lacking.insert(id);
            self.known.insert(id, false);
            return Ok(Some(false));
        };
        path.push(Step {
            id,
            left,
            is_whole: true,
        });
        Ok(None)
    }
}
