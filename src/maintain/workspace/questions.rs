//! Questions about many blobs, asked in any order and answered in the order of prefixes.
//!
//! Owns the batches in which they are read again. A question that was asked stays until it is
//! cleared, whatever becomes of the batches.

use std::sync::Arc;

use bkfs_chunker::id::Prefix;
use parking_lot::Mutex;

use super::partitions::{PARTITIONS, Partitions, Record};
use super::records::Question;
use super::{WorkError, Workspace, run};

/// Questions beyond which they should be answered before more are asked: a gibibyte of them.
pub const QUESTIONS_MAX: u64 = 64 << 20;

/// A part of the questions.
#[derive(Copy, Clone, Debug)]
pub struct Batch {
    partition: Option<usize>,
    generation: u64,
}

/// Questions about blobs.
#[derive(Debug)]
pub struct Questions {
    workspace: Workspace,
    asked: Arc<Mutex<Partitions<Question>>>,
    count: u64,
    /// How often all questions were dropped.
    generation: u64,
    /// Why a question was lost.
    lost: Option<WorkError>,
}

impl Questions {
    /// Returns no question. They stay in memory up to a sixteenth of that of the workspace.
    pub fn new(workspace: Workspace) -> Self {
        let workspace = Workspace {
            memory_bytes: workspace.memory_bytes / 4,
            ..workspace
        };
        Self {
            asked: Arc::new(Mutex::new(Partitions::new(&workspace))),
            workspace,
            count: 0,
            generation: 0,
            lost: None,
        }
    }

    /// Asks for a blob.
    ///
    /// # Errors
    /// [`WorkError::Unwritten`]. Questions may be lost then, so nothing more is taken or read until
    /// all are dropped.
    pub fn ask(&mut self, blob: Prefix) -> Result<(), WorkError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        self.count += 1;
        let asked = self.asked.lock().push(Question(blob));
        if let Err(error) = &asked {
            self.lost = Some(error.clone());
        }
        asked
    }

    /// Returns the number of questions, repeated ones included.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Drops all questions.
    pub fn clear(&mut self) {
        self.asked = Arc::new(Mutex::new(Partitions::new(&self.workspace)));
        self.count = 0;
        self.generation += 1;
        self.lost = None;
    }

    /// Divides the questions into batches.
    ///
    /// # Errors
    /// That of an earlier [`Questions::ask`].
    pub fn batches(&self) -> Result<Vec<Batch>, WorkError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        let asked = self.asked.lock();
        let partitions: Vec<Option<usize>> = match asked.is_spilled() {
            true => (0..PARTITIONS).map(Some).collect(),
            false => vec![None],
        };
        let generation = self.generation;
        let batches = partitions.into_iter().filter_map(|partition| {
            (asked.count(partition) > 0).then_some(Batch {
                partition,
                generation,
            })
        });
        Ok(batches.collect())
    }

    /// Returns the blobs of a batch, sorted, each once.
    ///
    /// # Errors
    /// [`WorkError::Unread`], [`WorkError::Changed`]; [`WorkError::Ended`], also if the questions
    /// were dropped since the batch was made.
    pub async fn read(&self, batch: Batch) -> Result<Arc<[Prefix]>, WorkError> {
        if batch.generation != self.generation {
            return Err(WorkError::Ended);
        }
        let (asked, partition) = (self.asked.clone(), batch.partition);
        run(partition.is_some(), move || {
            let mut blobs = Distinct::default();
            let mut take = |question: Question| blobs.push(question.prefix());
            asked.lock().read(partition, &mut take)?;
            Ok(blobs.finish())
        })
        .await
    }
}

/// Collects blobs, each once, in little more memory than they take.
#[derive(Default)]
struct Distinct {
    blobs: Vec<Prefix>,
    /// The number of blobs at which repeated ones are dropped.
    next_look: usize,
}

impl Distinct {
    fn push(&mut self, blob: Prefix) {
        self.blobs.push(blob);
        if self.blobs.len() > self.next_look {
            self.drop_repeated();
            self.next_look = (2 * self.blobs.len()).max(1 << 16);
        }
    }

    fn drop_repeated(&mut self) {
        self.blobs.sort_unstable();
        self.blobs.dedup();
    }

    fn finish(mut self) -> Arc<[Prefix]> {
        self.drop_repeated();
        self.blobs.into()
    }
}
