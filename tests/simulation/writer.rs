//! Who works on a mount: a tool that writes and syncs, and one that makes snapshots beside it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bkfs::volume::commit::SnapshotRequest;

use crate::alphabet::{Answer, Op};
use crate::bugs::Bug;
use crate::history::Shared as Past;
use crate::mount::Mount;
use crate::run::World;
use crate::volume::{is_question, note_snapshot};

/// A single call that takes longer than this hangs its tool.
const HANGS: Duration = Duration::from_secs(3 * 3600);

/// What an unmount says that did not wait for the store any longer, and has put all the rest on the disk.
const STAYS: &str = "the rest stays in the spool";

/// What every part of a writer has at hand.
struct Writer {
    world: Rc<World>,
    volume: String,
    up: Mount,
    past: Past,
    /// The tool is done: whoever works beside it stops.
    done: Cell<bool>,
}

/// How a tool ended.
enum End {
    /// It did all that it wanted.
    Done,
    /// A call failed, and it gave up.
    Failed,
}

/// Works on a mount until the tool is done or fails, then unmounts if it feels like it.
pub async fn work(world: Rc<World>, volume: String, up: Mount, past: Past) {
    let writer = Writer {
        world,
        volume,
        up,
        past,
        done: Cell::new(false),
    };
    let tool = async {
        let end = writer.tool().await;
        writer.done.set(true);
        end
    };
    let (end, ()) = futures::future::join(tool, writer.snapshotter()).await;
    match end {
        Ok(End::Done) if writer.world.chance(50) => writer.unmount().await,
        Ok(_) => {}
        Err(error) => writer.fail(error),
    }
}

/// Errors of the machinery, as opposed to answers about files.
fn is_trouble(answer: &Answer) -> bool {
    matches!(answer, Err(libc::EIO | libc::ENOSPC | libc::ESTALE))
}

fn shown(answer: &Answer) -> String {
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
            let end = match self.world.draw(0..100) {
                0..8 => self.sync().await?,
                8..14 => self.snapshot().await?,
                _ => self.change().await?,
            };
            if let Some(end) = end {
                return Ok(end);
            }
        }
        Ok(End::Done)
    }

    /// Waits for a call, but not for ever.
    async fn bounded<T>(&self, what: &str, call: impl Future<Output = T>) -> Result<T, String> {
        let answer = tokio::time::timeout(HANGS, call).await;
        answer.map_err(|_| format!("{what} hangs"))
    }

    /// One operation of the alphabet, compared with the model's.
    async fn change(&self) -> Result<Option<End>, String> {
        let op = self.world.operation();
        if matches!(op, Op::Sync) {
            return self.sync().await;
        }
        let expected = self.past.borrow_mut().ask(&op);
        self.world.counts.borrow_mut().operations += 1;
        let answer = self
            .bounded(&format!("{op:?}"), self.up.client.apply(&op))
            .await?;
        self.world
            .shared
            .trace
            .note(format_args!("{} {op:?}: {}", self.volume, shown(&answer)));
        if is_trouble(&answer) && !is_trouble(&expected) {
            // Whether a change was made is not known then; a question may be asked again.
            let goes_on = is_question(&op) && !self.is_poisoned();
            return Ok((!goes_on).then_some(End::Failed));
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

    fn is_poisoned(&self) -> bool {
        let volume = self.up.assembled.volume();
        volume.is_some_and(|volume| volume.failure().is_some())
    }

    /// fsync(2): what it acknowledges must never be lost.
    async fn sync(&self) -> Result<Option<End>, String> {
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
        // A disk does not know who has the volume: what it acknowledged then becomes a snapshot.
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

    /// A mount that has failed once fails until somebody acknowledges it.
    async fn stays_poisoned(&self) -> Result<(), String> {
        for op in [Op::Sync, Op::Create(vec![0, 0, 0]), Op::Sync] {
            let answer = self.bounded("a call", self.up.client.apply(&op)).await?;
            if matches!(op, Op::Sync) && answer.is_ok() {
                return Err("a poisoned mount took up its work by itself".to_owned());
            }
        }
        Ok(())
    }

    /// A snapshot by the tool itself: exactly what it has written.
    async fn snapshot(&self) -> Result<Option<End>, String> {
        self.one_snapshot(0).await?;
        Ok(self.is_poisoned().then_some(End::Failed))
    }

    /// Snapshots at any moment, while the tool works.
    async fn snapshotter(&self) {
        let pause = self.world.draw(50..20_000);
        let mut left = self.world.draw(0..4);
        while left > 0 && !self.done.get() {
            left -= 1;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if self.done.get() || self.world.has_failed() {
                return;
            }
            if let Err(error) = self.one_snapshot(1).await {
                self.fail(error);
            }
        }
    }

    /// A snapshot, while so many operations may be under way.
    async fn one_snapshot(&self, under_way: usize) -> Result<(), String> {
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
            tags: Vec::new(),
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

    /// Everything is in the bucket if this ends well; or it is told to be on the disk.
    async fn unmount(self) {
        let count = self.past.borrow().length();
        let hurries = self.past.borrow().host().is_some() && self.world.chance(40);
        let limit = hurries.then(|| Duration::from_millis(self.world.draw(0..1_500)));
        let finish = self.up.assembled.finish_within(limit);
        let Ok(ended) = tokio::time::timeout(HANGS, finish).await else {
            return self
                .world
                .fail(format!("{}: an unmount hangs", self.volume));
        };
        let said = ended
            .as_ref()
            .map_or_else(ToString::to_string, |()| "well".into());
        self.world
            .shared
            .trace
            .note(format_args!("{} unmounted: {said}", self.volume));
        if said.contains(STAYS) {
            self.world.shared.faults.count("hurried");
            self.past.borrow_mut().keep(count);
        }
        if ended.is_ok()
            && let Err(error) = self.past.borrow_mut().acknowledge(count)
        {
            self.world.fail(format!("{}: {error}", self.volume));
        }
    }
}
