//! The accepted data of a session: which blob is in which frame, which packs wait for a root, and
//! on which packs the session's references rely.
//!
//! Owns all state of a session that several tasks share, under one lock that is never held across
//! an await. Decides floors and reliances (docs/PROTOCOL.md, rules 2 to 4). Does no I/O.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::frame::{BlobKey, Body, Frame, FrameState, FullFrame, NewBlob, Pending};
use super::pack_writer::{PackWriter, SentPack};
use crate::catalog::Location;
use crate::crypto::Class;
use crate::error::ContentError;
use crate::gate::Reservation;
use crate::id::{Id, Kind};
use crate::pack::{FinishedPack, FrameEntry, PackName};
use crate::spool::Spooled;

/// The stored data that new content is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matching {
    /// All blobs that are stored or in flight: an existing blob is referred to.
    Everything,
    /// None: everything is stored again. Neither the duration nor the number of bytes sent reveals
    /// which data is stored.
    Nothing,
}

/// A line between earlier and later references, drawn by
/// [`Ingest::mark`](crate::ingest::Ingest::mark).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub(crate) floor: u32,
    pub(crate) tick: u64,
}

/// The shared state of a session.
#[derive(Debug)]
pub(crate) struct PendingIndex {
    names: Names,
    next_frame: u64,
    blobs: HashMap<BlobKey, (Arc<Frame>, u16)>,
    data: PackWriter,
    metadata: PackWriter,
    /// Packs that are in the bucket and that no root has taken yet.
    acknowledged: BTreeMap<PackName, StoredPack>,
    operations: BTreeMap<u64, Mark>,
    next_operation: u64,
    /// Packs that uncommitted references name.
    relied: HashMap<PackName, Reliance>,
    /// The number of blobs in `relied`.
    relied_count: usize,
    tick: u64,
    /// The session's floor in the root.
    floor: u32,
    failure: Option<ContentError>,
}

/// The session's counter over all objects that it writes.
#[derive(Debug)]
pub(crate) struct Names {
    session: u64,
    next: u32,
}

impl Names {
    /// Returns the next name. Never returns the same name twice.
    ///
    /// # Errors
    /// [`ContentError::Invalid`] if the session has used all its 2^32 names.
    pub(crate) fn draw(&mut self, random: u32) -> Result<PackName, ContentError> {
        let sequence = self.next;
        self.next = sequence
            .checked_add(1)
            .ok_or(ContentError::Invalid("a session has only 2^32 names"))?;
        Ok(PackName {
            session: self.session,
            sequence,
            random,
        })
    }
}

/// The uncommitted references to one pack.
#[derive(Debug, Default)]
struct Reliance {
    /// The tick of the latest reference.
    tick: u64,
    /// The blobs that are referred to, so that they can be stored again if the pack is condemned
    /// (rule 4). Takes 40 bytes for each blob until the next commit.
    blobs: HashSet<(Kind, Id)>,
}

/// A pack in the bucket that no root names yet.
#[derive(Debug, Clone)]
pub(crate) struct StoredPack {
    pub(crate) pack: Arc<FinishedPack>,
    /// One more than the highest number of its frames.
    end: u64,
}

/// The result of storing one blob.
#[derive(Debug)]
pub(crate) struct Gathered {
    /// The previous frame, if the blob had no room in it.
    pub(crate) full: Option<FullFrame>,
    /// The place of the blob, to be filled. `None` if the blob was stored already; its reservation
    /// was then given back.
    pub(crate) new: Option<NewBlob>,
}

impl PendingIndex {
    pub(crate) fn new(session: u64, target_bytes: u64) -> Self {
        Self {
            names: Names { session, next: 0 },
            next_frame: 0,
            blobs: HashMap::new(),
            data: PackWriter::new(Class::DataPack, target_bytes),
            metadata: PackWriter::new(Class::MetadataPack, target_bytes),
            acknowledged: BTreeMap::new(),
            operations: BTreeMap::new(),
            next_operation: 0,
            relied: HashMap::new(),
            relied_count: 0,
            tick: 1,
            floor: 0,
            failure: None,
        }
    }

    /// Returns the next name, for an object that is not a pack.
    ///
    /// # Errors
    /// [`ContentError::Invalid`] if the session has used all its 2^32 names.
    pub(crate) fn draw_name(&mut self, random: u32) -> Result<PackName, ContentError> {
        self.names.draw(random)
    }

    /// Returns the two parts that are needed to begin a pack.
    pub(crate) fn names_and_pack_writer(&mut self, class: Class) -> (&mut Names, &mut PackWriter) {
        match class {
            Class::MetadataPack => (&mut self.names, &mut self.metadata),
            _ => (&mut self.names, &mut self.data),
        }
    }

    pub(crate) fn pack_writer(&mut self, class: Class) -> &mut PackWriter {
        match class {
            Class::MetadataPack => &mut self.metadata,
            _ => &mut self.data,
        }
    }

    /// Returns the reason why nothing is accepted any more.
    pub(crate) fn failure(&self) -> Option<ContentError> {
        self.failure.clone()
    }

    /// Ends the acceptance of data. The first reason is kept.
    pub(crate) fn fail(&mut self, error: ContentError) {
        self.failure.get_or_insert_with(|| error.into_failed());
    }

    /// Returns true if this session holds the blob. Records the reference if the blob has a place
    /// in a pack.
    pub(crate) fn has(&mut self, kind: Kind, id: Id) -> bool {
        let Some((frame, _)) = self.blobs.get(&BlobKey::of(kind, &id)) else {
            return false;
        };
        let placed = frame.pack();
        if let Some(pack) = placed {
            self.rely_on(pack, kind, id);
        }
        true
    }

    /// As [`PendingIndex::has`] for [`Matching::Everything`]. Always false for
    /// [`Matching::Nothing`].
    pub(crate) fn matches(&mut self, kind: Kind, id: Id, matching: Matching) -> bool {
        matching == Matching::Everything && self.has(kind, id)
    }

    /// Accepts a blob of `length` bytes, unless the session holds it already. With
    /// [`Matching::Nothing`] a second copy is accepted. Look-ups find the second copy from then on,
    /// and both copies reach the bucket.
    pub(crate) fn gather(
        &mut self,
        (kind, id): (Kind, Id),
        length: usize,
        reservation: Reservation,
        matching: Matching,
    ) -> Gathered {
        let key = BlobKey::of(kind, &id);
        if self.matches(kind, id, matching) {
            return Gathered {
                full: None,
                new: None,
            };
        }
        let Self {
            next_frame,
            data,
            metadata,
            ..
        } = self;
        let pack_writer = match class_of(key.kind) {
            Class::MetadataPack => metadata,
            _ => data,
        };
        let draw = || {
            *next_frame += 1;
            *next_frame - 1
        };
        let (new, full) = pack_writer.gather(key, length, reservation, draw);
        self.blobs.insert(key, (Arc::clone(&new.frame), new.slot));
        Gathered {
            full,
            new: Some(new),
        }
    }

    /// Returns the place where a reader finds a blob of this session.
    pub(crate) fn find(&self, key: &BlobKey) -> Option<Pending> {
        let (frame, slot) = self.blobs.get(key)?;
        frame.find(*slot)
    }

    /// Returns the frame number that separates all data accepted so far from later data.
    pub(crate) fn frontier(&self) -> u64 {
        self.next_frame
    }

    /// Records that a pack is in the bucket. The bytes of its frames need not be kept any more.
    pub(crate) fn acknowledge(&mut self, sent: &SentPack, pack: FinishedPack) {
        self.pack_writer(sent.class).acknowledge(&sent.frames);
        let pack = Arc::new(pack);
        let end = sent.end();
        for (frame, entry) in sent.frames.iter().zip(pack.footer.frames()) {
            let location = Location {
                pack: pack.name,
                class: pack.class,
                frame: entry.number,
                offset: u64::from(entry.offset),
                length: entry.stored_length,
                raw_length: entry.raw_length,
                slot: 0,
            };
            *frame.state.lock() = FrameState::Stored(location, Arc::clone(&pack));
        }
        self.acknowledged
            .insert(pack.name, StoredPack { pack, end });
    }

    /// Adds a pack of an ended session to those that wait for a root. Its blobs are found from then
    /// on.
    pub(crate) fn adopt(&mut self, pack: FinishedPack) {
        let pack = Arc::new(pack);
        let frame = |entry: FrameEntry| {
            let location = Location {
                pack: pack.name,
                class: pack.class,
                frame: entry.number,
                offset: u64::from(entry.offset),
                length: entry.stored_length,
                raw_length: entry.raw_length,
                slot: 0,
            };
            Arc::new(Frame {
                number: 0,
                class: pack.class,
                state: Mutex::new(FrameState::Stored(location, Arc::clone(&pack))),
            })
        };
        let frames: Vec<Arc<Frame>> = pack.footer.frames().map(frame).collect();
        for blob in pack.footer.blobs() {
            let key = BlobKey {
                kind: blob.kind,
                prefix: blob.prefix,
            };
            let place = (Arc::clone(&frames[usize::from(blob.frame)]), blob.slot);
            self.blobs.entry(key).or_insert(place);
        }
        // It holds no data that was accepted here, so no seal waits for it or leaves it out.
        let stored = StoredPack { pack, end: 0 };
        self.acknowledged.insert(stored.pack.name, stored);
    }

    /// Records that a pack is in the spool. Its frames are read there from then on.
    pub(crate) fn spool(&mut self, sent: &SentPack, pack: &FinishedPack, spooled: &Arc<Spooled>) {
        self.pack_writer(sent.class).keep(&sent.frames);
        for (frame, entry) in sent.frames.iter().zip(pack.footer.frames()) {
            if let FrameState::Sealed(sealed) = &mut *frame.state.lock() {
                let start = u64::from(entry.offset);
                let range = start..start + u64::from(entry.stored_length);
                sealed.body = Body::Spool(Arc::clone(spooled), range);
            }
        }
    }

    /// Returns the packs that wait for a root and hold only data accepted before `frontier`.
    pub(crate) fn waiting(&self, frontier: u64) -> Vec<StoredPack> {
        let packs = self.acknowledged.values();
        packs.filter(|pack| pack.end <= frontier).cloned().collect()
    }

    /// Records that the root took these packs and holds this floor. The index lists their blobs
    /// now.
    pub(crate) fn commit(&mut self, packs: &[PackName], floor: u32, mark: Mark) {
        for name in packs {
            let Some(stored) = self.acknowledged.remove(name) else {
                continue;
            };
            for entry in stored.pack.footer.blobs() {
                let key = BlobKey {
                    kind: entry.kind,
                    prefix: entry.prefix,
                };
                let frame = self.blobs.get(&key).map(|(frame, _)| frame);
                if frame.is_some_and(|frame| frame.pack() == Some(*name)) {
                    self.blobs.remove(&key);
                }
            }
        }
        self.floor = self.floor.max(floor);
        self.let_go_before(mark);
    }

    /// Ends all reliances whose latest reference was made before this mark.
    pub(crate) fn let_go_before(&mut self, mark: Mark) {
        let count = &mut self.relied_count;
        self.relied.retain(|_, reliance| {
            let stays = reliance.tick > mark.tick;
            *count -= if stays { 0 } else { reliance.blobs.len() };
            stays
        });
    }

    /// Records a reference to a blob in `pack`.
    pub(crate) fn rely_on(&mut self, pack: PackName, kind: Kind, id: Id) {
        let reliance = self.relied.entry(pack).or_default();
        reliance.tick = self.tick;
        self.relied_count += usize::from(reliance.blobs.insert((kind, id)));
    }

    /// Returns the blobs in these packs that uncommitted references name.
    pub(crate) fn relied_blobs(&self, packs: &[PackName]) -> Vec<(Kind, Id)> {
        let reliances = packs.iter().filter_map(|pack| self.relied.get(pack));
        let blobs = reliances.flat_map(|reliance| reliance.blobs.iter().copied());
        let mut blobs: Vec<(Kind, Id)> = blobs.collect();
        blobs.sort_unstable_by_key(|(kind, id)| (*kind as u8, id.0));
        blobs.dedup();
        blobs
    }

    /// Ends the reliance on `packs` for these blobs, which have another place now.
    pub(crate) fn let_go(&mut self, packs: &[PackName], blobs: &[(Kind, Id)]) {
        for pack in packs {
            let Some(reliance) = self.relied.get_mut(pack) else {
                continue;
            };
            for blob in blobs {
                self.relied_count -= usize::from(reliance.blobs.remove(blob));
            }
            if reliance.blobs.is_empty() {
                self.relied.remove(pack);
            }
        }
    }

    /// Returns the packs that references rely on and that are not the session's own by the root's
    /// floor.
    pub(crate) fn relied_on(&self) -> HashSet<PackName> {
        let (session, floor) = (self.names.session, self.floor);
        let own = |pack: &PackName| pack.session == session && pack.sequence >= floor;
        let packs = self.relied.keys().copied();
        packs.filter(|pack| !own(pack)).collect()
    }

    /// Returns the number of blobs that uncommitted references name, counted one by one.
    #[cfg(test)]
    pub(crate) fn count_relied(&self) -> usize {
        let reliances = self.relied.values();
        reliances.map(|reliance| reliance.blobs.len()).sum()
    }

    /// Returns true if any reference relies on this pack, own or not.
    #[cfg(test)]
    pub(crate) fn is_relied_on(&self, pack: &PackName) -> bool {
        self.relied.contains_key(pack)
    }

    /// Draws a mark: all references below it have been returned to callers. See [`Mark`].
    pub(crate) fn mark(&mut self) -> Mark {
        let now = self.here();
        self.tick += 1;
        self.operations.values().fold(now, |mark, operation| Mark {
            floor: mark.floor.min(operation.floor),
            tick: mark.tick.min(operation.tick.saturating_sub(1)),
        })
    }

    /// Begins an operation whose references no tree can hold yet.
    pub(crate) fn begin_operation(&mut self) -> u64 {
        let number = self.next_operation;
        self.next_operation += 1;
        let here = self.here();
        self.operations.insert(number, here);
        number
    }

    /// Ends an operation: its references have been returned.
    pub(crate) fn end_operation(&mut self, number: u64) {
        self.operations.remove(&number);
    }

    /// Returns the number of blobs that no index lists yet.
    pub(crate) fn blob_count(&self) -> usize {
        self.blobs.len()
    }

    /// Returns the number of blobs in packs that uncommitted references name.
    pub(crate) fn relied_count(&self) -> usize {
        self.relied_count
    }

    fn here(&self) -> Mark {
        let open = [self.data.lowest_open(), self.metadata.lowest_open()];
        let lowest = open.into_iter().flatten().min();
        Mark {
            floor: lowest.unwrap_or(self.names.next),
            tick: self.tick,
        }
    }
}

/// Returns the class of the packs that hold blobs of this kind.
pub(crate) fn class_of(kind: Kind) -> Class {
    match kind {
        Kind::Chunk => Class::DataPack,
        Kind::Segment | Kind::Node | Kind::Commit => Class::MetadataPack,
    }
}
