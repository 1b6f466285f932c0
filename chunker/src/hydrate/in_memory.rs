//! Chunks of frames in memory, which are found without the index.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::reader::{Answers, FrameKey, Reader};
use crate::id::{Id, Kind};
use crate::pack::NamedFrame;

/// The frames in memory that one read has used. However many of its chunks are in a frame, the read
/// is one use of it.
#[derive(Debug, Default)]
pub(crate) struct UsedFrames(HashMap<FrameKey, Option<Arc<NamedFrame>>>);

impl UsedFrames {
    /// Returns them as answers, for chunks of them that were found in another way.
    pub(crate) fn answers(&self) -> Answers {
        let frames = self.0.iter();
        let known = frames.filter_map(|(key, frame)| Some((*key, Ok(Arc::clone(frame.as_ref()?)))));
        known.collect()
    }
}

impl Reader {
    /// Returns a chunk of a frame in memory, if it is known which one has it.
    pub(crate) fn chunk_in_memory(&self, id: &Id, used: &mut UsedFrames) -> Option<Bytes> {
        let (key, slot) = self.hints.find(id)?;
        let frame = used.0.entry(key).or_insert_with(|| {
            let frame = self.frames.get(&key)?;
            self.link.counters.memory_hits.one();
            Some(frame)
        });
        let frame = frame.as_ref()?;
        frame.blob(&self.keyring, Kind::Chunk, id, slot)
    }
}
