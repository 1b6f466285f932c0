//! Files that a tool keeps open, and their state after their mount loses data.

use std::cell::Cell;

use bkfs::volume::error::VolumeError;
use bkfs_fuse::{Handle, Ino, OpenFlags, Read, Write};

use crate::alphabet::{Op, Path, bytes};
use crate::client::{CALLER, Client};
use crate::writer::{End, Writer, is_trouble, shown};

/// The inode of `.bkfs/control`.
const CONTROL: Ino = Ino(6);

/// Most files that are open at the same time.
const HELD_MAX: usize = 3;

/// Number of operations that are drawn until one names a file that is there.
const HOLD_ATTEMPTS: usize = 8;

/// The error of a mount with a loss, for handles that were open on lost data.
const LOST: i32 = libc::EIO;

/// A file that is open.
pub struct Held {
    path: Path,
    ino: Ino,
    handle: Handle,
    /// The number of operations up to the last write through this handle, or `None` if there was no
    /// write.
    written: Option<usize>,
    /// Whether some of these writes are lost.
    is_broken: bool,
}

impl Client {
    async fn open(&self, ino: Ino) -> Result<Handle, i32> {
        let flags = OpenFlags {
            read: true,
            write: true,
            ..OpenFlags::default()
        };
        let opened = self.ask(|vfs, reply| vfs.open(CALLER, ino, flags, reply));
        Ok(opened.await?.handle)
    }

    async fn put(&self, (ino, handle): (Ino, Handle), offset: u64, data: &[u8]) -> Result<(), i32> {
        let request = Write {
            ino,
            handle,
            offset,
            data,
            from_cache: false,
            kill_privileges: false,
        };
        let put = self.ask(|vfs, reply| vfs.write(request, reply)).await;
        put.map(|_| ())
    }

    async fn close(&self, (ino, handle): (Ino, Handle)) -> Result<(), i32> {
        self.ask(|vfs, reply| vfs.flush(ino, handle, reply)).await
    }

    async fn sync(&self, (ino, handle): (Ino, Handle)) -> Result<(), i32> {
        self.ask(|vfs, reply| vfs.fsync(ino, handle, false, reply))
            .await
    }

    async fn release(&self, (ino, handle): (Ino, Handle)) {
        // A release loses no data, so its result does not matter.
        let _ = self.ask(|vfs, reply| vfs.release(ino, handle, reply)).await;
    }

    /// Sends a request to the mount itself, through its control file.
    async fn control(&self, request: &[u8]) -> Result<Vec<u8>, i32> {
        let handle = self.open(CONTROL).await?;
        self.put((CONTROL, handle), 0, request).await?;
        let request = Read {
            ino: CONTROL,
            handle,
            offset: 0,
            size: 1 << 20,
        };
        let answer = self.ask(|vfs, reply| vfs.read(request, reply)).await;
        self.release((CONTROL, handle)).await;
        Ok(answer?.to_vec())
    }
}

impl Writer {
    /// Opens a file, and keeps it open.
    pub async fn hold(&self) {
        if self.held.borrow().len() >= HELD_MAX {
            return;
        }
        for _ in 0..HOLD_ATTEMPTS {
            if let Op::Write(path, ..) | Op::Append(path, ..) = self.world.operation()
                && let Some(held) = self.opened(path).await
            {
                self.held.borrow_mut().push(held);
                return;
            }
        }
    }

    /// Opens the file, if it is there.
    async fn opened(&self, path: Path) -> Option<Held> {
        let client = &self.up.client;
        // The read makes sure that links and directories are refused.
        client.apply(&Op::Read(path.clone(), 0, 1)).await.ok()?;
        let ino = client.find(&path).await.ok()?.attributes.ino;
        let handle = client.open(ino).await.ok()?;
        Some(Held {
            path,
            ino,
            handle,
            written: None,
            is_broken: false,
        })
    }

    /// Uses a file that is open.
    ///
    /// # Errors
    /// A text, if an answer is wrong or a call does not return.
    pub async fn use_held(&self) -> Result<Option<End>, String> {
        let count = self.held.borrow().len();
        if count == 0 {
            return Ok(None);
        }
        let which = self.world.draw(0..count as u64) as usize;
        let mut held = self.held.borrow_mut().swap_remove(which);
        let open = (held.ino, held.handle);
        let client = &self.up.client;
        if held.is_broken {
            self.is_refused(&held).await?;
            self.world.counts.borrow_mut().broken += 1;
        } else {
            let there = client.find(&held.path).await;
            if !there.is_ok_and(|entry| entry.attributes.ino == held.ino) {
                client.release(open).await;
                return Ok(None);
            }
            if let Some(end) = self.write_held(&mut held).await? {
                return Ok(Some(end));
            }
        }
        match self.world.chance(25) {
            true => client.release(open).await,
            false => self.held.borrow_mut().push(held),
        }
        Ok(None)
    }

    /// Writes through the handle, and closes a duplicate of it.
    async fn write_held(&self, held: &mut Held) -> Result<Option<End>, String> {
        let (offset, length) = (self.world.draw(0..100_000), self.world.draw(1..60_000));
        let seed = self.world.draw(0..256) as u8;
        let op = Op::Write(held.path.clone(), offset, length as usize, seed);
        let expected = self.past.borrow_mut().ask(&op);
        if let Err(errno) = expected {
            return Err(format!("an open file is not there: errno {errno}"));
        }
        self.world.counts.borrow_mut().operations += 1;
        let open = (held.ino, held.handle);
        let before = held.written.replace(self.past.borrow().length());
        let client = &self.up.client;
        let data = bytes(offset, length as usize, seed);
        let is_accepted = Cell::new(false);
        let writes = async {
            client.put(open, offset, &data).await?;
            is_accepted.set(true);
            client.close(open).await?;
            Ok::<_, i32>(Vec::new())
        };
        self.is_under_way.set(true);
        let answer = self.bounded("a write to an open file", writes).await?;
        self.is_under_way.set(false);
        if !is_accepted.get() {
            // A write that was refused is no loss of this handle.
            held.written = before;
        }
        self.note(format_args!("{op:?} through a handle: {}", shown(&answer)));
        if answer.is_ok() {
            self.past.borrow_mut().answered();
            return Ok(None);
        }
        match is_trouble(&answer) {
            true => {
                self.held.borrow_mut().push(Held {
                    path: held.path.clone(),
                    ..*held
                });
                Ok(Some(End::Failed))
            }
            false => Err(format!("{op:?} through a handle: {}", shown(&answer))),
        }
    }

    /// Checks that a handle which was open at a loss, and has lost data, fails until its release.
    async fn is_refused(&self, held: &Held) -> Result<(), String> {
        let client = &self.up.client;
        let open = (held.ino, held.handle);
        let data = bytes(3, 100, 3);
        let answers = async {
            [
                ("write", client.put(open, 0, &data).await),
                ("fsync", client.sync(open).await),
                ("close", client.close(open).await),
            ]
        };
        for (what, answer) in self.bounded("an open file", answers).await? {
            if answer != Err(LOST) {
                return Err(format!(
                    "{what} of a file that was open when it lost something: {answer:?}"
                ));
            }
        }
        Ok(())
    }

    /// Makes the mount lose data without a cause.
    pub fn lose(&self) {
        if let Some(volume) = self.up.assembled.volume() {
            self.note(format_args!("loses"));
            self.world.shared.faults.count("lost");
            self.is_ours.set(true);
            self.promise();
            self.past.borrow_mut().failed();
            volume.poison(VolumeError::Commit("a loss of the simulation".into()));
        }
    }

    /// Runs `bkfs status --acknowledge`. Returns whether the mount goes on.
    ///
    /// # Errors
    /// A text, if a call does not return, if the mount was taken over before, or if its state is
    /// wrong.
    pub async fn acknowledge(&self) -> Result<bool, String> {
        let was_taken = self.past.borrow().is_taken();
        self.is_falling.set(true);
        let asked = self.up.client.control(br#"{"acknowledge":{}}"#);
        let said = self.bounded("acknowledging", asked).await?;
        let said = String::from_utf8_lossy(&said.unwrap_or_default()).into_owned();
        self.note(format_args!("acknowledged: {said}"));
        if self.is_poisoned() {
            return Ok(false);
        }
        if was_taken {
            return Err("a mount whose volume was taken over before goes on".to_owned());
        }
        let Ok(seen) = self.up.dump().await else {
            return Ok(false);
        };
        if self.past.borrow().is_taken() {
            return Ok(false);
        }
        let count = self.past.borrow_mut().fall_back(&seen);
        let count =
            count.map_err(|error| format!("after an acknowledged loss there is {error}"))?;
        // A file that lost something fails on every handle that was open then.
        let mut all = self.held.borrow_mut();
        let is_lost = |held: &&Held| held.written.is_some_and(|written| written > count);
        let lost: Vec<_> = all.iter().filter(is_lost).map(|held| held.ino).collect();
        for held in all.iter_mut() {
            held.is_broken |= lost.contains(&held.ino);
        }
        drop(all);
        self.note(format_args!("goes on after {count} operations"));
        self.world.counts.borrow_mut().acknowledged += 1;
        self.is_falling.set(false);
        self.is_ours.set(false);
        self.watch();
        Ok(true)
    }
}
