//! Full frames that wait for a worker: handed out several at a time, so that a thread is not woken for each.
//!
//! Owns the queue, its bound, and the count of the tasks that work it off. What is done with a frame is the session's.
//!
//! The bound is small, so that what a writer has just handed over is still in the processor's caches when it is compressed, and soft: whoever is let in adds
//! all that it has. A wait for room ends by the workers alone, whatever the store does.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::frame::FullFrame;

/// Frames that one job takes: about two milliseconds of compression. A read that waits for a worker waits no longer than that for each job before it.
const FRAMES_AT_ONCE: usize = 8;

/// Bytes that wait for each worker before writers are held back: some ten milliseconds of compression.
const WAITING_BYTES_PER_THREAD: usize = 4 << 20;

/// Frames on their way to the workers.
#[derive(Debug)]
pub(super) struct Backlog {
    queue: Mutex<Queue>,
    /// From the bound on until half of it is worked off: whoever comes meanwhile waits like those before.
    is_full: watch::Sender<bool>,
    bound_bytes: usize,
    tasks_max: usize,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<FullFrame>,
    bytes: usize,
    /// Tasks that take frames until there are none.
    tasks: usize,
    /// From the bound on until a task finds nothing.
    is_behind: bool,
    is_closed: bool,
}

impl Backlog {
    /// An empty one, for so many workers.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            queue: Mutex::default(),
            is_full: watch::Sender::new(false),
            bound_bytes: threads * WAITING_BYTES_PER_THREAD,
            // One job at each worker, and the next one there before it is done.
            tasks_max: 2 * threads,
        }
    }

    /// Waits until the workers have nearly caught up with the writers.
    pub(super) async fn room(&self) {
        // It fails only without a sender, and that is here.
        let _ = self.is_full.subscribe().wait_for(|&is_full| !is_full).await;
    }

    /// Adds a frame, or drops it if the session is over. True if another task must be started for it: there are fewer than they may be.
    pub(super) fn push(&self, full: FullFrame) -> bool {
        let bytes = full.raw.bytes();
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return false;
        }
        queue.frames.push_back(full);
        queue.bytes += bytes;
        if queue.bytes >= self.bound_bytes {
            queue.is_behind = true;
            // Nobody waits for this.
            self.is_full.send_if_modified(|is_full| {
                *is_full = true;
                false
            });
        }
        let is_wanted = queue.tasks < self.tasks_max;
        queue.tasks += usize::from(is_wanted);
        is_wanted
    }

    /// The next frames of a task, which ends if there are none.
    pub(super) fn take(&self) -> Option<Vec<FullFrame>> {
        let mut queue = self.queue.lock();
        if queue.frames.is_empty() {
            queue.tasks -= 1;
            queue.is_behind = false;
            return None;
        }
        let count = queue.frames.len().min(FRAMES_AT_ONCE);
        let taken: Vec<FullFrame> = queue.frames.drain(..count).collect();
        let bytes: usize = taken.iter().map(|full| full.raw.bytes()).sum();
        queue.bytes -= bytes;
        if queue.bytes <= self.bound_bytes / 2 {
            self.is_full.send_if_modified(std::mem::take);
        }
        Some(taken)
    }

    /// Whether writers had to wait for the workers, and these have not caught up since.
    pub(super) fn is_behind(&self) -> bool {
        self.queue.lock().is_behind
    }

    /// Drops what waits and what comes: nobody works it off any more, and it holds a part of the budget that others may wait for.
    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        let dropped = std::mem::take(&mut queue.frames);
        queue.bytes = 0;
        self.is_full.send_replace(false);
        // Giving the budget back wakes others.
        drop(queue);
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use futures::FutureExt;

    use super::super::frame::{BlobKey, Frame, FrameState, RawFrame};
    use super::*;
    use crate::gate::ByteGate;
    use crate::id::{Id, Kind};
    use crate::seal::Class;

    const FRAME_LEN: usize = 1 << 20;
    const BOUND_FRAMES: usize = WAITING_BYTES_PER_THREAD / FRAME_LEN;

    fn frame(gate: &ByteGate, number: u64) -> FullFrame {
        let mut raw = RawFrame::default();
        let key = BlobKey::of(Kind::Chunk, &Id([7; 32]));
        raw.push(key, Bytes::from(vec![0; FRAME_LEN]));
        FullFrame {
            frame: Arc::new(Frame {
                number,
                class: Class::DataPack,
                state: Mutex::new(FrameState::Gathering),
            }),
            raw: Arc::new(raw),
            reservation: gate.try_reserve(1).expect("there is room"),
        }
    }

    fn numbers(taken: Option<Vec<FullFrame>>) -> Option<Vec<u64>> {
        taken.map(|frames| frames.iter().map(|full| full.frame.number).collect())
    }

    #[test]
    fn frames_leave_in_order_and_tasks_are_counted() {
        let (gate, backlog) = (ByteGate::new(100), Backlog::new(1));
        let wanted: Vec<bool> = (0..10).map(|n| backlog.push(frame(&gate, n))).collect();
        let only_two: Vec<bool> = (0..10).map(|n| n < 2).collect();
        assert_eq!(wanted, only_two);
        assert_eq!(numbers(backlog.take()), Some((0..8).collect()));
        assert_eq!(numbers(backlog.take()), Some(vec![8, 9]));
        assert!(backlog.take().is_none(), "one task ends");
        assert!(backlog.push(frame(&gate, 10)), "so that another is wanted");
    }

    #[test]
    fn whoever_comes_while_it_is_full_waits_until_half_is_worked_off() {
        let (gate, backlog) = (ByteGate::new(100), Backlog::new(2));
        for number in 0..2 * BOUND_FRAMES as u64 {
            assert!(backlog.room().now_or_never().is_some());
            backlog.push(frame(&gate, number));
        }
        let mut before = Box::pin(backlog.room());
        assert!((&mut before).now_or_never().is_none());
        let mut taken = 0;
        while taken < BOUND_FRAMES {
            assert!((&mut before).now_or_never().is_none(), "after {taken}");
            assert!(backlog.room().now_or_never().is_none(), "a newcomer, too");
            taken += backlog.take().expect("there are more").len();
        }
        assert!(before.now_or_never().is_some());
        assert!(backlog.room().now_or_never().is_some());
    }

    #[test]
    fn workers_are_behind_until_they_have_caught_up() {
        let (gate, backlog) = (ByteGate::new(100), Backlog::new(1));
        for number in 0..BOUND_FRAMES as u64 {
            assert!(!backlog.is_behind(), "before {number}");
            backlog.push(frame(&gate, number));
        }
        while backlog.take().is_some() {
            assert!(backlog.is_behind());
        }
        assert!(!backlog.is_behind());
    }

    #[test]
    fn a_closed_one_keeps_nothing_and_nobody() {
        let (gate, backlog) = (ByteGate::new(100), Backlog::new(1));
        for number in 0..2 * BOUND_FRAMES as u64 {
            backlog.push(frame(&gate, number));
        }
        let mut waiting = Box::pin(backlog.room());
        assert!((&mut waiting).now_or_never().is_none());
        backlog.close();
        assert!(waiting.now_or_never().is_some());
        assert!(!backlog.push(frame(&gate, 9)));
        assert_eq!(gate.used(), 0);
        assert!(backlog.take().is_none());
    }
}
