//! The queue of full frames that wait for a worker. A job takes several frames, so that not every
//! frame wakes a thread.
//!
//! Owns the queue, its bound, and the number of tasks that empty it. The pipeline processes the
//! frames.
//!
//! The bound is small, so that the data of a writer is still in the processor caches when it is
//! compressed. It is also soft: a writer that is let in adds all its frames. The wait for room
//! depends on the workers alone and never on the store.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::pending::FullFrame;

/// Bytes that one job takes, unless its only frame is larger.
///
/// That is two milliseconds of compression at zstd's lowest level, or eight of sealing
/// incompressible data. A read that waits for a worker waits no longer than that for each job
/// before it.
const JOB_BYTES: usize = 1 << 20;

/// Bytes that may wait for each worker before writers are held back: about ten milliseconds of
/// compression.
const WAITING_BYTES_PER_THREAD: usize = 4 << 20;

/// Divisors of the write budget: at most 1/4 of it waits for the workers, and at most 1/8 is being
/// processed by them, however many workers there are.
///
/// Usage above 3/4 of the budget therefore means that the store is the bottleneck.
const WAITING_SHARE: u64 = 4;
const WORKING_SHARE: u64 = 8;

/// Frames that wait for a worker.
#[derive(Debug)]
pub(super) struct Backlog {
    queue: Mutex<Queue>,
    /// True from the moment that the bound is reached until half of it is processed. Writers that
    /// arrive meanwhile wait as well.
    is_full: watch::Sender<bool>,
    bound_bytes: usize,
    job_bytes: usize,
    tasks_max: usize,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<FullFrame>,
    bytes: usize,
    /// Tasks that take frames until the queue is empty.
    tasks: usize,
    /// True from the moment that the bound is reached until a task finds the queue empty.
    is_behind: bool,
    is_closed: bool,
}

impl Backlog {
    /// Returns an empty backlog for `threads` workers and a write budget of `budget_bytes` bytes.
    pub(super) fn new(threads: usize, budget_bytes: u64) -> Self {
        let part = |share: u64| usize::try_from(budget_bytes / share).unwrap_or(usize::MAX);
        // One job at each worker, and the next one queued before that job ends.
        let tasks_max = 2 * threads;
        Self {
            queue: Mutex::default(),
            is_full: watch::Sender::new(false),
            bound_bytes: part(WAITING_SHARE).min(threads * WAITING_BYTES_PER_THREAD),
            job_bytes: JOB_BYTES.min(part(WORKING_SHARE) / tasks_max),
            tasks_max,
        }
    }

    /// Waits until at most half of the bound is queued, if the bound was reached.
    pub(super) async fn room(&self) {
        // `wait_for` fails only if the sender is gone, and `self` holds it.
        let _ = self.is_full.subscribe().wait_for(|&is_full| !is_full).await;
    }

    /// Adds a frame, or drops it if the backlog is closed. Returns true if the caller must start
    /// another task, because fewer than the maximum are running.
    pub(super) fn push(&self, full: FullFrame) -> bool {
        let bytes = full.bytes;
        let mut queue = self.queue.lock();
        if queue.is_closed {
            return false;
        }
        queue.frames.push_back(full);
        queue.bytes += bytes;
        if queue.bytes >= self.bound_bytes {
            queue.is_behind = true;
            // No receiver waits for this value, so none is notified.
            self.is_full.send_if_modified(|is_full| {
                *is_full = true;
                false
            });
        }
        let is_wanted = queue.tasks < self.tasks_max;
        queue.tasks += usize::from(is_wanted);
        is_wanted
    }

    /// Returns the next frames for a task. `None` if there are none: the task must then end.
    pub(super) fn take(&self) -> Option<Vec<FullFrame>> {
        let mut queue = self.queue.lock();
        if queue.frames.is_empty() {
            queue.tasks -= 1;
            queue.is_behind = false;
            return None;
        }
        let mut bytes = 0;
        let mut taken = Vec::new();
        while let Some(full) = queue.frames.front() {
            let with_this = bytes + full.bytes;
            if !taken.is_empty() && with_this > self.job_bytes {
                break;
            }
            bytes = with_this;
            taken.extend(queue.frames.pop_front());
        }
        queue.bytes -= bytes;
        if queue.bytes <= self.bound_bytes / 2 {
            self.is_full.send_if_modified(std::mem::take);
        }
        Some(taken)
    }

    /// Returns true if writers had to wait for the workers, and the workers have not emptied the
    /// queue since.
    pub(super) fn is_behind(&self) -> bool {
        self.queue.lock().is_behind
    }

    /// Drops all queued and all later frames. No worker processes them any more, and they hold a
    /// part of the budget that other callers may wait for.
    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        let dropped = std::mem::take(&mut queue.frames);
        queue.bytes = 0;
        self.is_full.send_replace(false);
        // Dropping the frames gives back the budget, which wakes other callers, so the lock is
        // released first.
        drop(queue);
        drop(dropped);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;

    use super::*;
    use crate::crypto::Class;
    use crate::gate::ByteGate;
    use crate::pending::Frame;

    const FRAME_LEN: usize = JOB_BYTES / 8;
    const BOUND_FRAMES: usize = WAITING_BYTES_PER_THREAD / FRAME_LEN;
    /// A budget that imposes no bound in these tests.
    const AMPLE: u64 = 1 << 30;

    fn frame(gate: &ByteGate, number: u64) -> FullFrame {
        frame_of(gate, number, FRAME_LEN)
    }

    fn frame_of(gate: &ByteGate, number: u64, length: usize) -> FullFrame {
        FullFrame {
            frame: Arc::new(Frame::new(number, Class::DataPack)),
            blobs: 1,
            bytes: length,
            reservation: gate.try_reserve(1).expect("there is room"),
        }
    }

    fn numbers(taken: Option<Vec<FullFrame>>) -> Option<Vec<u64>> {
        taken.map(|frames| frames.iter().map(|full| full.frame.number).collect())
    }

    #[test]
    fn frames_leave_in_order_and_tasks_are_counted() {
        let (gate, backlog) = (ByteGate::new(100), Backlog::new(1, AMPLE));
        let wanted: Vec<bool> = (0..10).map(|n| backlog.push(frame(&gate, n))).collect();
        let only_two: Vec<bool> = (0..10).map(|n| n < 2).collect();
        assert_eq!(wanted, only_two);
        assert_eq!(numbers(backlog.take()), Some((0..8).collect()));
        assert_eq!(numbers(backlog.take()), Some(vec![8, 9]));
        assert!(backlog.take().is_none(), "one task ends");
        assert!(backlog.push(frame(&gate, 10)), "so that another is wanted");
    }

    #[test]
    fn a_writer_that_comes_while_it_is_full_waits_until_half_is_done() {
        let (gate, backlog) = (ByteGate::new(100), Backlog::new(2, AMPLE));
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
    fn a_job_is_bounded_by_its_bytes_and_never_empty() {
        let (gate, backlog) = (ByteGate::new(100), Backlog::new(1, AMPLE));
        let lengths = [3 * JOB_BYTES, JOB_BYTES, JOB_BYTES / 2, JOB_BYTES / 2, 1];
        for (number, length) in (0..).zip(lengths) {
            backlog.push(frame_of(&gate, number, length));
        }
        let jobs: Vec<_> = std::iter::from_fn(|| numbers(backlog.take())).collect();
        assert_eq!(jobs, [vec![0], vec![1], vec![2, 3], vec![4]]);
    }

    #[test]
    fn many_workers_leave_most_of_a_small_budget_to_the_store() {
        const THREADS: usize = 64;
        const BUDGET: u64 = 40 << 20;
        let (gate, backlog) = (ByteGate::new(1000), Backlog::new(THREADS, BUDGET));
        let (mut held, mut tasks) = (0, 0);
        while backlog.room().now_or_never().is_some() {
            tasks += usize::from(backlog.push(frame_of(&gate, 0, 32 << 10)));
            held += 32 << 10;
        }
        assert_eq!(held, BUDGET / WAITING_SHARE);
        let taken = (0..tasks).filter_map(|_| backlog.take());
        let bytes = taken.flatten().map(|full| full.bytes as u64);
        assert!(bytes.sum::<u64>() <= BUDGET / WORKING_SHARE);
    }

    #[test]
    fn workers_are_behind_until_they_have_caught_up() {
        let (gate, backlog) = (ByteGate::new(100), Backlog::new(1, AMPLE));
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
    fn a_closed_one_holds_no_bytes_and_no_waiter() {
        let (gate, backlog) = (ByteGate::new(100), Backlog::new(1, AMPLE));
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
