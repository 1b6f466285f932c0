//! Full frames that wait for a worker: handed out several at a time, so that a thread is not woken for each.
//!
//! Owns the queue and the count of the tasks that work it off. What is done with a frame is the session's.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::frame::FullFrame;

/// Frames that one job takes: about a millisecond of compression. A read that waits for a worker waits no longer than that for each job before it.
const FRAMES_AT_ONCE: usize = 4;

/// Frames on their way to the workers, bounded by the budget that each of them holds a part of.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<FullFrame>,
    /// Tasks that take frames until there are none.
    tasks: usize,
    is_closed: bool,
}

impl Backlog {
    /// Adds a frame, or drops it if the session is over. True if another task must be started for it: there are fewer than `tasks_max`.
    pub(super) fn push(&self, full: FullFrame, tasks_max: usize) -> bool {
        let mut queue = self.0.lock();
        if queue.is_closed {
            return false;
        }
        queue.frames.push_back(full);
        let is_wanted = queue.tasks < tasks_max;
        queue.tasks += usize::from(is_wanted);
        is_wanted
    }

    /// The next frames of a task, which ends if there are none.
    pub(super) fn take(&self) -> Option<Vec<FullFrame>> {
        let mut queue = self.0.lock();
        if queue.frames.is_empty() {
            queue.tasks -= 1;
            return None;
        }
        let count = queue.frames.len().min(FRAMES_AT_ONCE);
        Some(queue.frames.drain(..count).collect())
    }

    /// Drops what waits and what comes: nobody works it off any more, and it holds a part of the budget that others may wait for.
    pub(super) fn close(&self) {
        let mut queue = self.0.lock();
        queue.is_closed = true;
        let dropped = std::mem::take(&mut queue.frames);
        // Giving the budget back wakes others.
        drop(queue);
        drop(dropped);
    }
}
