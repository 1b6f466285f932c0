//! References that were read in metadata and are not resolved yet, and what parents say of nodes.
//!
//! Owns how they are resolved once all metadata was read: each kind is joined with what it is about
//! (`workspace`), and what does not fit comes back in the order in which it was read.

use std::sync::Arc;

use parking_lot::Mutex;

use super::holdings::Holdings;
use super::workspace::join::{JOIN_BYTES, join};
use super::workspace::partitions::Partitions;
use super::workspace::records::{Edge, Holding, ReadNode, Reference};
use super::workspace::{self, WorkError, Workspace};

/// What metadata says of blobs in other packs.
#[derive(Debug)]
pub struct References(Mutex<Noted>);

#[derive(Debug)]
struct Noted {
    references: Partitions<Reference>,
    nodes: Partitions<ReadNode>,
    edges: Partitions<Edge>,
    /// The first error. What was noted is not whole then.
    failed: Option<WorkError>,
}

/// What does not fit, in the order in which it was read.
#[derive(Debug, Default)]
pub struct Unresolved {
    /// References to blobs that no live pack holds.
    pub dangling: Vec<Reference>,
    /// Statements about nodes that say otherwise.
    pub contradicted: Vec<Edge>,
}

impl Noted {
    fn push(&mut self, note: impl FnOnce(&mut Self) -> Result<(), WorkError>) {
        if self.failed.is_none()
            && let Err(error) = note(self)
        {
            self.failed = Some(error);
        }
    }
}

impl References {
    /// Returns a set of none, within the memory of a workspace.
    pub fn new(workspace: &Workspace) -> Self {
        Self(Mutex::new(Noted {
            references: Partitions::new(workspace),
            nodes: Partitions::new(workspace),
            edges: Partitions::new(workspace),
            failed: None,
        }))
    }

    /// Notes a reference.
    pub fn note(&self, reference: Reference) {
        self.0.lock().push(|noted| noted.references.push(reference));
    }

    /// Notes a node.
    pub fn note_node(&self, node: ReadNode) {
        self.0.lock().push(|noted| noted.nodes.push(node));
    }

    /// Notes what a parent says of a child.
    pub fn note_edge(&self, edge: Edge) {
        self.0.lock().push(|noted| noted.edges.push(edge));
    }

    /// Returns the first error of what was noted, so that a walk need not go on in vain.
    ///
    /// # Errors
    /// [`WorkError::Unwritten`].
    pub fn require_whole(&self) -> Result<(), WorkError> {
        match &self.0.lock().failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Returns what does not fit.
    ///
    /// # Errors
    /// Those of [`WorkError`].
    pub async fn resolve(self, holdings: &Holdings) -> Result<Unresolved, WorkError> {
        let noted = self.0.into_inner();
        if let Some(error) = noted.failed {
            return Err(error);
        }
        let held = match holdings {
            Holdings::Spilled(held, _) => Some(Arc::clone(held)),
            Holdings::Loaded(_) => None,
        };
        let (nodes, edges, references) = (noted.nodes, noted.edges, noted.references);
        let is_spilled = held.is_some() || nodes.is_spilled() || edges.is_spilled();
        let work = move || {
            let mut unresolved = Unresolved::default();
            if let Some(held) = held {
                unresolved.dangling = dangling(&held, &references)?;
            }
            unresolved.contradicted = contradicted(&nodes, &edges)?;
            Ok(unresolved)
        };
        workspace::run(is_spilled, work).await
    }
}

/// Returns the references to blobs of which no copy is held.
fn dangling(
    held: &Partitions<Holding>,
    references: &Partitions<Reference>,
) -> Result<Vec<Reference>, WorkError> {
    let mut found = Vec::new();
    join(held, references, JOIN_BYTES, &mut |reference, copies| {
        if copies.is_empty() {
            found.push(*reference);
        }
    })?;
    found.sort_by_key(|reference: &Reference| reference.order);
    Ok(found)
}

/// Returns the statements that are not what their node is. A node that was not read is damaged or
/// missing, which is reported elsewhere. Or it is the empty node, which no parent has as a child.
fn contradicted(
    nodes: &Partitions<ReadNode>,
    edges: &Partitions<Edge>,
) -> Result<Vec<Edge>, WorkError> {
    let mut found = Vec::new();
    join(nodes, edges, JOIN_BYTES, &mut |edge, read| {
        if read.last().is_some_and(|node| node.fact != edge.expected) {
            found.push(*edge);
        }
    })?;
    found.sort_by_key(|edge: &Edge| edge.order);
    Ok(found)
}
