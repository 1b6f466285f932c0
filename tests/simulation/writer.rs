//! The users of a mount: a tool that writes and syncs, and another one that makes snapshots at the
//! same time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bkfs::volume::requests::SnapshotRequest;
use tokio::time::Instant;

use crate::alphabet::{Answer, Op};
use crate::bugs::Bug;
use crate::held::Held;
use crate::history::Shared as Past;
use crate::mount::Mount;
use crate::run::World;
use crate::store::Power;
use crate::volume::{is_question, note_snapshot};

/// A single call that takes longer than this hangs.
pub const HANGS: Duration = Duration::from_secs(3 * 3600);

/// The state that all parts of a writer share.
pub struct Writer {
    pub world: Rc<World>,
    pub volume: String,
    pub up: Mount,
    pub past: Past,
    /// Its machine.
    pub power: Arc<Power>,
    /// Number of claims of the volume when it was mounted.
    pub claims: u64,
    /// Files that are open.
    pub held: RefCell<Vec<Held>>,
    /// Whether the loss was made on purpose.
    pub is_ours: Rc<Cell<bool>>,
    /// Whether it is still unknown what the mount has lost.
    pub is_falling: Cell<bool>,
    /// Whether an operation was asked for and is not answered.
    pub is_under_way: Cell<bool>,
    since: Instant,
    /// Whether the tool is done. The snapshotter then stops.
    done: Cell<bool>,
}

/// How a tool ended.
pub enum End {
    /// It did everything it wanted.
    Done,
    /// A call failed, and the tool gave up.
    Failed,
}

/// Works on a mount until the tool is done or fails, or a signal comes; then unmounts in some
/// cases.
pub fn work(
    world: Rc<World>,
    volume: String,
    up: Mount,
    past: Past,
    power: Arc<Power>,
) -> impl Future<Output = ()> {
    // Counted now: another mount may claim the volume before the task begins.
    let claims = world.claims(&volume);
    work_since(claims, world, volume, up, past, power)
}

async fn work_since(
    claims: u64,
    world: Rc<World>,
    volume: String,
    up: Mount,
    past: Past,
    power: Arc<Power>,
) {
    let writer = Writer {
        claims,
        world,
        volume,
        up,
        past,
        power,
        held: RefCell::default(),
        is_ours: Rc::default(),
        is_falling: Cell::new(false),
        is_under_way: Cell::new(false),
        since: Instant::now(),
        done: Cell::new(false),
    };
    writer.watch();
    let end = {
        let tool = async {
            let end = writer.tool().await;
            writer.done.set(true);
            end
        };
        let works = futures::future::join(tool, writer.snapshotter());
        tokio::select! {
            biased;
            (end, ()) = works => Some(end),
            () = writer.told() => None,
        }
    };
    match end {
        None => writer.end_by_signal().await,
        Some(Ok(End::Done)) if writer.world.chance(50) => writer.unmount().await,
        Some(Ok(_)) if writer.world.chance(40) => {
            // In this time the mount keeps the promises that depend on time.
            let pause = writer.world.draw(0..60_000);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Some(Ok(_)) => {}
        Some(Err(error)) => writer.fail(error),
    }
}

/// Whether the answer is an error of the machinery, as opposed to an answer about files.
pub fn is_trouble(answer: &Answer) -> bool {
    matches!(answer, Err(libc::EIO | libc::ENOSPC | libc::ESTALE))
}

pub fn shown(answer: &Answer) -> String {
    match answer {
        Ok(bytes) if bytes.is_empty() => "ok".to_owned(),
        Ok(bytes) => format!("{} bytes", bytes.len()),
        Err(errno) => format!("errno {errno}"),
    }
}

impl Writer {
    fn fail(&self, error: String) {
        self.world.fail(format!("{}: {error}", self.volume));
    }

    /// Records an event of this writer.
    pub fn note(&self, what: std::fmt::Arguments<'_>) {
        let trace = &self.world.shared.trace;
        trace.note(format_args!("{} {what}", self.volume));
    }

    /// Returns the number of operations that were answered.
    pub fn done_count(&self) -> usize {
        self.past.borrow().length() - usize::from(self.is_under_way.get())
    }

    /// Checks that the mount fails only for a reason: it has lost its volume, its disk has a fault,
    /// or the weather was bad for at least half of `timeout=`.
    pub fn watch(&self) {
        let Some(volume) = self.up.assembled.volume() else {
            return;
        };
        let mut health = volume.health();
        let (world, volume) = (self.world.clone(), self.volume.clone());
        let (past, power) = (self.past.clone(), self.power.clone());
        let (claims, since, is_ours) = (self.claims, self.since, self.is_ours.clone());
        tokio::task::spawn_local(async move {
            let Ok(failed) = health.wait_for(Option::is_some).await else {
                return;
            };
            let why = failed.as_ref().map(ToString::to_string).unwrap_or_default();
            if is_ours.get() || power.is_dead() {
                return;
            }
            let has_bad_disk = past.borrow().has_bad_disk();
            past.borrow_mut().failed();
            let trace = &world.shared.trace;
            trace.note(format_args!("{volume} fails: {why}"));
            let weather = world.shared.faults.longest_weather(since);
            let is_excused = has_bad_disk
                || world.claims(&volume) > claims
                || weather >= world.manners.timeout / 2;
            if !is_excused {
                world.fail(format!("{volume}: a mount fails without a reason: {why}"));
            }
        });
    }

    fn bug(&self) -> Option<Bug> {
        self.world.order.bug
    }

    async fn tool(&self) -> Result<End, String> {
        let count = self.world.draw(1..60);
        for _ in 0..count {
            if self.world.has_failed() {
                return Ok(End::Failed);
            }
            self.world.idle().await;
            let end = match self.world.draw(0..1_000) {
                _ if self.is_wide_step() => self.widen().await?,
                _ if self.is_held_step() => self.sync_while_uploads_are_held().await?,
                0..80 => self.sync().await?,
                80..140 => self.snapshot().await?,
                140..180 => {
                    self.hold().await;
                    None
                }
                180..260 => self.use_held().await?,
                260..268 => match self.use_held().await? {
                    None => {
                        self.lose();
                        Some(End::Failed)
                    }
                    end => end,
                },
                _ => self.change().await?,
            };
            let Some(end) = end else { continue };
            let goes_on = self.is_poisoned()
                && self.bug().is_none()
                && self.world.chance(70)
                && self.acknowledge().await?;
            if !goes_on {
                return Ok(end);
            }
            for _ in 0..2 {
                if let Some(end) = self.use_held().await? {
                    return Ok(end);
                }
            }
        }
        Ok(End::Done)
    }

    /// Waits for a call, but no longer than [`HANGS`].
    ///
    /// # Errors
    /// A text, if the call does not return in this time.
    pub async fn bounded<T>(&self, what: &str, call: impl Future<Output = T>) -> Result<T, String> {
        let answer = tokio::time::timeout(HANGS, call).await;
        answer.map_err(|_| format!("{what} hangs"))
    }

    /// Does one operation of the alphabet.
    async fn change(&self) -> Result<Option<End>, String> {
        match self.world.operation() {
            Op::Sync => self.sync().await,
            op => self.carry_out(op).await,
        }
    }

    /// Does one operation, and compares the answer with the model's.
    pub async fn carry_out(&self, op: Op) -> Result<Option<End>, String> {
        let expected = self.past.borrow_mut().ask(&op);
        self.world.counts.borrow_mut().operations += 1;
        self.is_under_way.set(true);
        let answer = self
            .bounded(&format!("{op:?}"), self.up.client.apply(&op))
            .await?;
        self.is_under_way.set(false);
        self.world
            .shared
            .trace
            .note(format_args!("{} {op:?}: {}", self.volume, shown(&answer)));
        if is_trouble(&answer) && !is_trouble(&expected) {
            // It is then unknown whether a change was made. A question may be asked again.
            let goes_on = is_question(&op) && !self.is_poisoned();
            return Ok((!goes_on).then_some(End::Failed));
        }
        if answer.is_ok() {
            self.past.borrow_mut().answered();
        }
        match answer == expected {
            true => Ok(None),
            false => Err(format!(
                "{op:?} answered {}, and should have {}",
                shown(&answer),
                shown(&expected)
            )),
        }
    }

    pub fn is_poisoned(&self) -> bool {
        let volume = self.up.assembled.volume();
        volume.is_some_and(|volume| volume.failure().is_some())
    }

    /// Calls fsync(2). Operations that it acknowledges must never be lost.
    pub async fn sync(&self) -> Result<Option<End>, String> {
        let count = self.past.borrow().length();
        let was_taken = self.past.borrow().is_taken();
        let answer = match self.bug() {
            Some(Bug::FsyncReturnsEarly) => Ok(Vec::new()),
            _ => {
                self.bounded("fsync", self.up.client.apply(&Op::Sync))
                    .await?
            }
        };
        self.world.shared.trace.note(format_args!(
            "{} fsync of {count}: {}",
            self.volume,
            shown(&answer)
        ));
        let pretends = self.bug() == Some(Bug::FencedAcknowledges) && self.past.borrow().is_taken();
        // A disk does not know who holds the volume. Operations that it acknowledges after a
        // takeover become a snapshot.
        let is_local = self.past.borrow().is_local();
        if answer.is_ok() && was_taken && !is_local {
            return Err(
                "a fsync was acknowledged that began after the volume had been taken over"
                    .to_owned(),
            );
        }
        if answer.is_ok() || pretends {
            self.world.counts.borrow_mut().syncs += 1;
            self.past.borrow_mut().sync(count)?;
            return Ok(None);
        }
        if self.is_poisoned() {
            self.stays_poisoned().await?;
            return Ok(Some(End::Failed));
        }
        Ok(None)
    }

    /// Checks that a mount that has failed goes on failing until the loss is acknowledged.
    async fn stays_poisoned(&self) -> Result<(), String> {
        for op in [Op::Sync, Op::Create(vec![0, 0, 0]), Op::Sync] {
            let answer = self.bounded("a call", self.up.client.apply(&op)).await?;
            if matches!(op, Op::Sync) && answer.is_ok() {
                return Err("a poisoned mount took up its work by itself".to_owned());
            }
        }
        Ok(())
    }

    /// Makes a snapshot in the tool itself. It must hold exactly the tool's writes.
    async fn snapshot(&self) -> Result<Option<End>, String> {
        self.one_snapshot(0).await?;
        Ok(self.is_poisoned().then_some(End::Failed))
    }

    /// Makes snapshots at any moment, while the tool works.
    async fn snapshotter(&self) {
        let pause = self.world.draw(50..20_000);
        let mut left = self.world.draw(0..4);
        while left > 0 && !self.done.get() {
            left -= 1;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if self.done.get() || self.world.has_failed() {
                return;
            }
            if self.is_falling.get() {
                continue;
            }
            if let Err(error) = self.one_snapshot(1).await {
                self.fail(error);
            }
        }
    }

    /// Makes a snapshot while up to `under_way` operations may be unanswered.
    pub async fn one_snapshot(&self, under_way: usize) -> Result<(), String> {
        let world = &self.world;
        let Some(volume) = self.up.assembled.volume() else {
            return Ok(());
        };
        let least = self.past.borrow().length().saturating_sub(under_way);
        let was_taken = self.past.borrow().is_taken();
        let name = format!("snapshot-{}", world.snapshots.borrow().len());
        let number = note_snapshot(world, &self.volume, &name, &self.past, least);
        let request = SnapshotRequest {
            name: Some(name.clone()),
            ..SnapshotRequest::default()
        };
        let made = match self.bug() {
            Some(Bug::SnapshotReturnsEarly) => {
                volume.commit_soon();
                Ok(Default::default())
            }
            _ => self.bounded("a snapshot", volume.snapshot(request)).await?,
        };
        let said = made
            .as_ref()
            .map_or_else(ToString::to_string, |_| "made".into());
        world
            .shared
            .trace
            .note(format_args!("{} {name} of {least}: {said}", self.volume));
        if made.is_ok() && was_taken {
            return Err(format!(
                "{name} was acknowledged, and had been asked for after the volume was taken over"
            ));
        }
        if made.is_ok() {
            world.counts.borrow_mut().snapshots += 1;
            let most = self.past.borrow().length();
            world.snapshots.borrow_mut()[number].most = Some(most);
            self.past.borrow_mut().acknowledge(least)?;
        }
        Ok(())
    }
}
