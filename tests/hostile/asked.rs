//! A mount without a kernel, and a walk over everything in it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bkfs::mounting::MountPlan;
use bkfs::mounting::settings::Settings;
use bkfs::repository::open;
use bkfs::vfs::BkfsVfs;
use bkfs_fuse::{
    Caller, DirectoryReply, Errno, FileKind, Handle, Ino, Lookup, MountOptions, OpenFlags,
    OwnedDirectoryEntry, Read, Reply, Vfs,
};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::forge::{PASSWORD, VOLUME, opening, runtime};
use crate::password::Known;

const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 1,
};

/// Directories that a walk visits, at most. A cycle would never end otherwise.
const DIRECTORIES_MAX: usize = 2_000;

/// The results of a walk over a mount.
#[derive(Debug, Default)]
pub struct Seen {
    /// Names, as the mount returned them.
    pub names: Vec<Vec<u8>>,
    /// Names that could not be listed or read, each with its errno.
    pub failed: Vec<(Vec<u8>, i32)>,
    /// Inode numbers of directories that were met more than once.
    pub again: Vec<u64>,
}

struct Asked(BkfsVfs);

type Res<T> = Result<T, i32>;

impl Asked {
    async fn ask<T: Send + 'static>(&self, request: impl FnOnce(&dyn Vfs, Reply<T>)) -> Res<T> {
        let (sender, answer) = oneshot::channel();
        let reply = Reply::new("hostile", move |answer| drop(sender.send(answer)));
        request(&self.0, reply);
        answer
            .await
            .expect("every request is answered")
            .map_err(Errno::raw)
    }

    async fn list(&self, ino: Ino, plus: bool) -> Res<Vec<OwnedDirectoryEntry>> {
        let handle = self
            .ask(|vfs, reply| vfs.opendir(CALLER, ino, reply))
            .await?;
        let mut all = Vec::new();
        let mut cookie = 0;
        loop {
            let (sender, answer) = oneshot::channel();
            let reply =
                DirectoryReply::collecting(plus, 100, move |answer| drop(sender.send(answer)));
            self.0.readdir(ino, handle.handle, cookie, reply);
            let page = answer.await.expect("answered").map_err(Errno::raw)?;
            let Some(last) = page.last() else {
                return Ok(all);
            };
            cookie = last.cookie;
            all.extend(page);
        }
    }

    async fn read(&self, ino: Ino, size: u64) -> Res<()> {
        let flags = OpenFlags {
            read: true,
            ..OpenFlags::default()
        };
        let opened = self
            .ask(|vfs, reply| vfs.open(CALLER, ino, flags, reply))
            .await?;
        let read = |offset| Read {
            ino,
            handle: opened.handle,
            offset,
            size: 4096,
        };
        let mut result = Ok(());
        for offset in [0, size.saturating_sub(4096), size / 2] {
            let read = self.ask(|vfs, reply| vfs.read(read(offset), reply)).await;
            result = result.and(read.map(drop));
        }
        let handle: Handle = opened.handle;
        self.ask(|vfs, reply| vfs.release(ino, handle, reply))
            .await?;
        result
    }

    async fn walk(&self) -> Seen {
        let mut seen = Seen::default();
        let mut met = HashSet::new();
        let mut open = vec![(Ino::ROOT, b"/".to_vec())];
        while let Some((directory, path)) = open.pop() {
            if !met.insert(directory.0) {
                seen.again.push(directory.0);
                if met.len() + seen.again.len() > DIRECTORIES_MAX {
                    return seen;
                }
                continue;
            }
            for plus in [false, true] {
                match self.list(directory, plus).await {
                    Ok(listed) if plus => {
                        for entry in listed {
                            self.look(directory, &entry.name, &mut seen, &mut open)
                                .await;
                        }
                    }
                    Ok(_) => {}
                    Err(errno) => seen.failed.push((path.clone(), errno)),
                }
            }
        }
        seen
    }

    async fn look(
        &self,
        directory: Ino,
        name: &[u8],
        seen: &mut Seen,
        open: &mut Vec<(Ino, Vec<u8>)>,
    ) {
        if name == b"." || name == b".." {
            return;
        }
        seen.names.push(name.to_vec());
        let found = self
            .ask(|vfs, reply| vfs.lookup(CALLER, directory, name, reply))
            .await;
        let entry = match found {
            Ok(Lookup::Found(entry)) => entry,
            Ok(Lookup::Absent { .. }) => return seen.failed.push((name.to_vec(), libc::ENOENT)),
            Err(errno) => return seen.failed.push((name.to_vec(), errno)),
        };
        let shown = entry.attributes;
        let read = match shown.kind {
            FileKind::Directory => {
                open.push((shown.ino, name.to_vec()));
                Ok(())
            }
            FileKind::Regular => self.read(shown.ino, shown.size).await,
            FileKind::Symlink => self
                .ask(|vfs, reply| vfs.readlink(shown.ino, reply))
                .await
                .map(drop),
            _ => Ok(()),
        };
        if let Err(errno) = read {
            seen.failed.push((name.to_vec(), errno));
        }
    }
}

/// Mounts a snapshot without a kernel, and walks over it.
///
/// # Errors
/// The text of the error that kept the snapshot from being mounted.
pub fn walk(path: &std::path::Path, snapshot: &str) -> Result<Seen, String> {
    walk_on(runtime(), path, snapshot)
}

/// The same on this runtime.
pub fn walk_on(runtime: Runtime, path: &std::path::Path, snapshot: &str) -> Result<Seen, String> {
    let seen = runtime.block_on(async {
        let repository = open(opening(path), &mut Known(Some(PASSWORD))).await;
        let plan = MountPlan {
            clone_of: None,
            observed: Default::default(),
            repository: Arc::new(repository.map_err(|error| error.to_string())?),
            mount_point: "/nowhere".into(),
            options: MountOptions::default(),
            settings: Settings {
                snapshot: Some(snapshot.to_owned()),
                ..Settings::default()
            },
            volume: VOLUME.into(),
            steal: false,
            spool: None,
        };
        let assembled = plan.assemble(runtime.handle()).await;
        let assembled = assembled.map_err(|error| error.to_string())?;
        let asked = Asked(assembled.vfs.clone());
        let walk = tokio::time::timeout(Duration::from_secs(300), asked.walk());
        walk.await.map_err(|_| "the walk does not end".to_owned())
    });
    runtime.shutdown_background();
    seen
}
