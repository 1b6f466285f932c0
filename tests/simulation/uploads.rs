//! Uploads that are held one by one while later ones pass, and what meets them.
//!
//! A commit sends the nodes of the tree in packs, which finish in any order. The scene of this file
//! makes a commit of many nodes while an fsync waits for data that was written before, and kills
//! the machine as soon as the fsync returns while an upload is held.

use std::time::Duration;

use crate::alphabet::Op;
use crate::writer::{End, Writer};

/// Percentage of the steps of a tool in which it gives a file a long extended attribute, in wide
/// worlds.
const WIDENS_PERCENT: u64 = 20;

/// Percentage of the steps of a tool with such an fsync, in worlds that hold uploads.
const SYNCS_PERCENT: u64 = 8;

/// Percentage of these fsyncs after which the machine dies, if an upload is held.
const DIES_PERCENT: u64 = 80;

/// Number of files that get long extended attributes.
const WIDE_FILES: u64 = 7;

/// The lengths of long extended attributes, in bytes. Few of them fill a node of the tree.
const XATTR_BYTES: std::ops::Range<u64> = 5_000..50_000;

/// Length of each of two writes, in bytes. Together they are too long for a journal to hold them,
/// so an fsync waits for their packs.
const LARGE_BYTES: u64 = 700_000;

impl Writer {
    /// Whether the next step of the tool makes the tree wider.
    pub fn is_wide_step(&self) -> bool {
        self.world.manners.is_wide && self.world.chance(WIDENS_PERCENT)
    }

    /// Whether the next step of the tool is an fsync while uploads are held.
    pub fn is_held_step(&self) -> bool {
        self.world.manners.held_percent > 0 && self.world.chance(SYNCS_PERCENT)
    }

    /// Gives a file a long extended attribute. With several such files, the tree has many nodes.
    ///
    /// # Errors
    /// A text, if an answer is wrong or a call does not return.
    pub async fn widen(&self) -> Result<Option<End>, String> {
        let number = self.world.draw(0..WIDE_FILES) as u8;
        let (directory, path) = match number.checked_sub(3) {
            None => (None, vec![number]),
            Some(number) => (Some(vec![3]), vec![3, number]),
        };
        // The values under these names do not compress.
        let name = self.world.draw(1..3) as u8;
        let length = self.world.draw(XATTR_BYTES) as usize;
        let ops = [
            directory.map(Op::Mkdir),
            Some(Op::Create(path.clone())),
            Some(Op::SetXattr(path, name, length)),
        ];
        for op in ops.into_iter().flatten() {
            if let Some(end) = self.carry_out(op).await? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// Calls fsync while a commit sends many nodes. The machine may die as soon as the fsync
    /// returns.
    ///
    /// # Errors
    /// A text, if an answer is wrong or a call does not return.
    pub async fn sync_while_uploads_are_held(&self) -> Result<Option<End>, String> {
        for _ in 0..self.world.draw(2..8) {
            if let Some(end) = self.widen().await? {
                return Ok(Some(end));
            }
        }
        let pause = Duration::from_millis(self.world.draw(0..1_000));
        let snapshot = async {
            tokio::time::sleep(pause).await;
            self.one_snapshot(1).await
        };
        let (end, made) = futures::future::join(self.write_and_sync(), snapshot).await;
        made?;
        end
    }

    /// Writes a large file, calls fsync, and may die as soon as that returns.
    async fn write_and_sync(&self) -> Result<Option<End>, String> {
        let file = vec![self.world.draw(0..3) as u8];
        for offset in [0, LARGE_BYTES] {
            let seed = self.world.draw(0..256) as u8;
            let data = Op::Write(file.clone(), offset, LARGE_BYTES as usize, seed);
            if let Some(end) = self.carry_out(data).await? {
                return Ok(Some(end));
            }
        }
        let end = self.sync().await?;
        if self.power.is_holding() && self.world.chance(DIES_PERCENT) {
            self.note(format_args!("dies while an upload is held"));
            self.power.cut();
            std::future::pending::<()>().await;
        }
        Ok(end)
    }
}
