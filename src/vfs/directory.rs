//! Listing directories.

use bkfs_fuse::{DirectoryEntry, DirectoryReply, FileKind, Handle, Ino};

use crate::printable;
use crate::tree::key::{self, FIRST_NAME_COOKIE};
use crate::vfs::convert;
use crate::vfs::handles::{Open, OpenDirectory};
use crate::vfs::numbers::{CONTROL_DIRECTORY, Number, SNAPSHOTS};
use crate::vfs::{Mount, special};
use crate::volume::ROOT_INODE;
use crate::volume::error::VolumeError;
use crate::volume::state::Scope;
use crate::volume::view::View;
use crate::walk::{self, Faulty, Named};

/// Names read from the tree at once: more than fit into a reply of the usual 4 KiB to 32 KiB.
const PAGE_NAMES: usize = 256;

/// Cookies of the positions after `.` and after `..`.
const BEHIND_SELF: u64 = 1;
const BEHIND_PARENT: u64 = 2;

/// A name to be listed.
struct Listed {
    number: Number,
    kind: FileKind,
    name: Vec<u8>,
    /// Position of this name; the listing continues after it at this number plus 1.
    cookie: u64,
}

impl Mount {
    /// Lists names from `cookie` on, as many as fit into the reply.
    pub(super) async fn readdir(
        &self,
        number: Number,
        handle: Handle,
        cookie: u64,
        reply: &mut DirectoryReply,
    ) -> Result<(), VolumeError> {
        if cookie < BEHIND_SELF && !push_plain(reply, number.ino(), b".", BEHIND_SELF) {
            return Ok(());
        }
        let parent = self.parent_of(number).ino();
        if cookie < BEHIND_PARENT && !push_plain(reply, parent, b"..", BEHIND_PARENT) {
            return Ok(());
        }
        match number {
            SNAPSHOTS => return self.list_snapshots(cookie, reply).await,
            CONTROL_DIRECTORY => return self.list_control(cookie, reply),
            _ => {}
        }
        let view = match self.handles.get(handle).as_deref() {
            Some(Open::Directory(OpenDirectory {
                view: Some(view), ..
            })) => view.clone(),
            _ => self.view_of(number).await?,
        };
        let mut range = key::names_from(number.inode, cookie.max(FIRST_NAME_COOKIE));
        loop {
            let page = walk::page(&view, number.inode, range.clone(), PAGE_NAMES).await?;
            self.log_hidden(number, &page.faulty);
            let mut names = Vec::with_capacity(page.names.len());
            for Named {
                name,
                inode,
                file_type,
                cookie,
            } in page.names
            {
                let listed = match number.named(inode) {
                    Ok(listed) => listed,
                    Err(error) => {
                        tracing::error!("left out of a listing: {error}");
                        continue;
                    }
                };
                names.push(Listed {
                    number: listed,
                    kind: convert::kind(u32::from(file_type) << 12)?,
                    name,
                    cookie,
                });
            }
            if !self.push_all(&view, number, names, reply).await? {
                return Ok(());
            }
            match page.next {
                Some(next) => range.start = next,
                None => return Ok(()),
            }
        }
    }

    /// Logs which names of a directory are hidden, each once. The others are listed all the same.
    fn log_hidden(&self, directory: Number, faulty: &[Faulty]) {
        let is_news = |faulty: &&Faulty| self.hidden.is_news(directory.inode, &faulty.name);
        let news: Vec<&Faulty> = faulty.iter().filter(is_news).collect();
        if let Some(first) = news.first() {
            tracing::warn!(
                "{} names in inode {} are hidden; the first, {}: {}",
                news.len(),
                directory.inode,
                printable::name(&first.name),
                first.fault
            );
        }
    }

    /// Pushes names until one does not fit; returns false then. Only the last of the names that
    /// share a cookie has the cookie of the position after it; the others have the shared cookie
    /// itself. If a reply ends between such names, the next reply therefore lists all of them
    /// again.
    async fn push_all(
        &self,
        view: &View,
        directory: Number,
        names: Vec<Listed>,
        reply: &mut DirectoryReply,
    ) -> Result<bool, VolumeError> {
        for (index, listed) in names.iter().enumerate() {
            let shares = names
                .get(index + 1)
                .is_some_and(|next| next.cookie == listed.cookie);
            let mut entry = DirectoryEntry {
                ino: listed.number.ino(),
                kind: listed.kind,
                name: &listed.name,
                cookie: if shares {
                    listed.cookie
                } else {
                    listed.cookie + 1
                },
                plus: None,
            };
            // If the inode of a name was removed meanwhile, the name may lead to another by now. It
            // is listed without attributes, and the kernel looks it up when it needs them.
            if reply.plus()
                && let Ok(attributes) = view.attributes(Scope::Live, listed.number.inode).await
                && let Ok(shown) = self.entry_shown(listed.number, &attributes)
            {
                entry.plus = Some(shown);
            }
            if !reply.push(&entry) {
                return Ok(false);
            }
            if entry.plus.is_some() {
                self.looked_up(listed.number, directory, listed.kind == FileKind::Directory);
            }
        }
        Ok(true)
    }

    async fn list_snapshots(
        &self,
        cookie: u64,
        reply: &mut DirectoryReply,
    ) -> Result<(), VolumeError> {
        for (name, number) in self.history()?.list().await? {
            // Numbers of snapshots are unique and stable, so they serve as cookies. There are few
            // names.
            let behind = BEHIND_PARENT + 1 + u64::from(number);
            if behind <= cookie {
                continue;
            }
            let ino = Number {
                snapshot: number,
                inode: ROOT_INODE,
            }
            .ino();
            // A snapshot that was forgotten after it was listed is left out.
            let plus = match reply.plus() {
                true => match self.snapshot_entry(name.as_bytes()).await {
                    Ok(entry) => Some(entry),
                    Err(_) => continue,
                },
                false => None,
            };
            let entry = DirectoryEntry {
                ino,
                kind: FileKind::Directory,
                name: name.as_bytes(),
                cookie: behind,
                plus,
            };
            if !reply.push(&entry) {
                break;
            }
        }
        Ok(())
    }

    fn list_control(&self, cookie: u64, reply: &mut DirectoryReply) -> Result<(), VolumeError> {
        for (index, (name, number)) in special::CONTROL_FILES.iter().enumerate() {
            let behind = BEHIND_PARENT + 1 + index as u64;
            if behind <= cookie {
                continue;
            }
            let plus = reply
                .plus()
                .then(|| self.special_entry(*number))
                .transpose()?;
            let entry = DirectoryEntry {
                ino: number.ino(),
                kind: FileKind::Regular,
                name: name.as_bytes(),
                cookie: behind,
                plus,
            };
            if !reply.push(&entry) {
                break;
            }
        }
        Ok(())
    }
}

fn push_plain(reply: &mut DirectoryReply, ino: Ino, name: &[u8], cookie: u64) -> bool {
    reply.push(&DirectoryEntry {
        ino,
        kind: FileKind::Directory,
        name,
        cookie,
        plus: None,
    })
}
