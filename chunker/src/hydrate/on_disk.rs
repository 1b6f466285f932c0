//! Chunks of frames that lie decoded on disk: when frames are put there, and reads of their chunks.

use std::sync::Arc;

use bkfs_store::urgency::{SharedUrgency, Urgency};
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::reader::{FrameKey, Reader};
use crate::cache::DecodedBlobs;
use crate::crypto::Class;
use crate::id::{Id, Kind};
use crate::pack::NamedFrame;

/// With less room on disk than this no frame is kept, in bytes.
const LEAST_LIMIT: u64 = 1 << 20;

/// Chunks of one frame that lies decoded on disk, with their ids and the right to read them.
pub(crate) struct DecodedChunks {
    ids: Vec<Id>,
    blobs: DecodedBlobs,
    right: OwnedSemaphorePermit,
}

impl Reader {
    /// Begins to put a frame on disk that was decoded from there, if that is worth its time.
    pub(super) fn keep_decoded(self: &Arc<Self>, key: FrameKey, frame: &Arc<NamedFrame>) {
        let (Some(decoded), Some(disk)) = (&self.decoded, &self.disk) else {
            return;
        };
        if frame.class() != Class::DataPack {
            return;
        }
        let Some(right) = decoded.note_decoded(key) else {
            return;
        };
        let limit = self.decoded_limit(disk);
        if limit < LEAST_LIMIT {
            return;
        }
        let (reader, frame) = (Arc::clone(self), Arc::clone(frame));
        let decoded = Arc::clone(decoded);
        tokio::spawn(async move {
            decoded.keep(right, key, frame.contents(), limit).await;
            reader.divide_disk();
        });
    }

    /// Begins to divide the disk among the caches. Another process may have pinned something, which
    /// leaves less room.
    fn divide_disk(self: &Arc<Self>) {
        let reader = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            match reader.pins.as_ref().is_some_and(|pins| pins.refresh()) {
                true => reader.heed_pins(),
                false => reader.share_disk(),
            }
        });
    }

    /// Returns the chunks with these ids and slots of a frame, if it lies decoded on disk and not in
    /// memory.
    pub(crate) fn decoded_chunks(
        self: &Arc<Self>,
        key: &FrameKey,
        chunks: impl Iterator<Item = (Id, u16)>,
    ) -> Option<DecodedChunks> {
        let decoded = self.decoded.as_ref()?;
        if self.frames.has(key) {
            return None;
        }
        let (ids, slots): (Vec<Id>, Vec<u16>) = chunks.unzip();
        let (blobs, right) = decoded.find(key, &slots)?;
        if decoded.is_to_be_divided() {
            self.divide_disk();
        }
        // Its sealed form must not be evicted first because it is not read.
        self.disk.iter().for_each(|disk| disk.note_use(&key.0));
        Some(DecodedChunks { ids, blobs, right })
    }

    /// Reads chunks, and verifies them. Returns nothing for those that cannot be read or are not what
    /// their ids say. `at_once`: what the kernel has in memory is read on this thread.
    pub(crate) async fn read_decoded(
        self: &Arc<Self>,
        chunks: DecodedChunks,
        at_once: bool,
    ) -> Vec<Option<Bytes>> {
        let DecodedChunks { ids, blobs, right } = chunks;
        // To wake another thread takes longer than this.
        if at_once && let Some(read) = blobs.read_in_memory() {
            return self.verified(ids, read);
        }
        let (count, reader) = (ids.len(), Arc::clone(self));
        let urgency = SharedUrgency::new(Urgency::Now);
        let room = self.room(blobs.memory(), &urgency).await;
        let read = move || {
            let _held = (right, room);
            let decoded = reader.decoded.as_ref();
            let Some(read) = decoded.and_then(|decoded| blobs.read(decoded)) else {
                reader.share_disk();
                return vec![None; ids.len()];
            };
            reader.verified(ids, read)
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|_| vec![None; count])
    }

    /// Returns those of the bytes that are what their ids say.
    fn verified(&self, ids: Vec<Id>, read: Vec<Bytes>) -> Vec<Option<Bytes>> {
        let verify = |(id, bytes): (Id, Bytes)| {
            let is_it = self.keyring.id(Kind::Chunk, &bytes) == id;
            is_it.then_some(bytes)
        };
        let verified: Vec<_> = ids.into_iter().zip(read).map(verify).collect();
        let hits = verified.iter().flatten().count() as u64;
        self.link.counters.decoded_hits.add(hits);
        verified
    }
}
