//! One pack, byte by byte: header, every frame, every blob, footer, trailer.
//!
//! What the index says of the pack is what readers go by, so frames are opened with the index's copy of the header; the pack's own header and footer are compared
//! with it, since they are what a lost index is rebuilt from.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::{PackContents, Verifier};
use crate::error::DepotError;
use crate::id::{Id, Kind};
use crate::pack::{BlobEntry, Footer, FrameEntry, TRAILER_LEN, Trailer};
use crate::seal::{HEADER_LEN, Keyring, ObjectOpener};
use crate::store::WHOLE_OBJECT_BYTES_MAX;
use crate::workers::Scratch;

/// What is said of a pack that is not there.
const MISSING: &str = "it is missing";

/// Frames that one job decodes, in decoded bytes.
const JOB_BYTES: u64 = 4 << 20;

/// What is wrong with a pack.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PackDamage {
    /// The frame that cannot be read, or not all of it; none if it is the pack as a whole, its header or its footer.
    pub frame: Option<u16>,
    /// What is wrong, in words.
    pub what: String,
}

/// A blob that verified.
#[derive(Clone, Debug)]
pub struct Found {
    /// What it is.
    pub kind: Kind,
    /// Its whole id.
    pub id: Id,
    /// Which frame of the pack holds it.
    pub frame: u16,
    /// Which blob of the frame.
    pub slot: u16,
    /// Its bytes.
    pub bytes: Bytes,
}

/// What came of reading a whole pack.
#[derive(Clone, Debug, Default)]
pub struct WalkedPack {
    /// Everything that is wrong with it.
    pub damage: Vec<PackDamage>,
    /// Bytes that were verified.
    pub verified_bytes: u64,
    /// The pack is not there at all.
    pub missing: bool,
}

impl PackDamage {
    /// Whether the whole pack is not there.
    pub fn is_absence(&self) -> bool {
        self.frame.is_none() && self.what == MISSING
    }
}

impl WalkedPack {
    fn note(&mut self, frame: Option<u16>, what: impl ToString) {
        let what = what.to_string();
        self.damage.push(PackDamage { frame, what });
    }
}

/// A frame and its blobs, as the footer lists them.
type Expected = (FrameEntry, Vec<BlobEntry>);

/// What a job made of one frame.
type Opened = (u16, Result<Vec<Found>, String>);

impl Verifier {
    /// Reads a whole pack and verifies every byte: that it has the length, header and footer that `pack` (from the index) has, and that every blob is what it
    /// is called. Blobs that verify are shown to `visit`, in order.
    ///
    /// # Errors
    /// Only if the store does not let itself be read; damage is in the answer.
    pub async fn walk(
        &self,
        pack: &PackContents,
        visit: &mut (dyn FnMut(Found) + Send),
    ) -> Result<WalkedPack, DepotError> {
        let key = pack.key();
        let _room = self.gate.reserve(pack.bytes() + JOB_BYTES).await;
        let mut walked = WalkedPack::default();
        let object = match self.link.get(&key).await {
            Ok(object) => object,
            Err(DepotError::Missing { .. }) => {
                walked.missing = true;
                walked.note(None, MISSING);
                return Ok(walked);
            }
            Err(DepotError::Store(error)) => {
                // Nothing that is read whole is so large: such an object is not what it was, and the store is not to blame.
                let size = self.link.store.head(&key).await?.size;
                let what = match size <= WHOLE_OBJECT_BYTES_MAX {
                    false => format!("it has {size} bytes"),
                    true if error.is_of_one_object() => format!("it cannot be read: {error}"),
                    true => return Err(DepotError::Store(error)),
                };
                walked.note(None, what);
                return Ok(walked);
            }
            Err(error) => return Err(error),
        };
        walked.verified_bytes = object.len() as u64;
        if object.len() as u64 != pack.bytes() {
            let (found, known) = (object.len(), pack.bytes());
            walked.note(
                None,
                format!("it has {found} bytes where the index says {known}"),
            );
        }
        self.compare_ends(pack, &object, &mut walked).await?;
        self.walk_frames(pack, &object, visit, &mut walked).await?;
        Ok(walked)
    }

    /// Reads only a pack's header and footer and compares them with what the index has.
    ///
    /// # Errors
    /// As [`Verifier::walk`].
    pub async fn ends(&self, pack: &PackContents) -> Result<Vec<PackDamage>, DepotError> {
        let record = &pack.0;
        let damage = |what: String| vec![PackDamage { frame: None, what }];
        match self
            .describe(record.name, record.class, record.length)
            .await
        {
            Ok(found) if found == *pack => Ok(Vec::new()),
            Ok(_) => Ok(damage("its footer is not what the index has".to_owned())),
            Err(DepotError::Missing { .. }) => Ok(damage(MISSING.to_owned())),
            Err(DepotError::Damaged { what, .. }) => Ok(damage(what)),
            Err(DepotError::Unreadable { source, .. }) => Ok(damage(source.to_string())),
            Err(error) => Err(error),
        }
    }

    /// Compares header, footer and trailer of a pack that was read with what the index has.
    async fn compare_ends(
        &self,
        pack: &PackContents,
        object: &Bytes,
        walked: &mut WalkedPack,
    ) -> Result<(), DepotError> {
        let record = pack.0.clone();
        let (keyring, object) = (self.keyring.clone(), object.clone());
        let job = self.workers.run(move |scratch| {
            let Some(header) = object.first_chunk::<HEADER_LEN>() else {
                return Err("its header is cut short".to_owned());
            };
            if *header != record.header {
                return Err("its header is not what the index has".to_owned());
            }
            let opener = keyring
                .object_opener(record.class, &record.name.key(record.class), header)
                .map_err(|error| error.to_string())?;
            let footer = read_footer(&opener, &object, scratch)?;
            match footer == record.footer {
                true => Ok(()),
                false => Err("its footer is not what the index has".to_owned()),
            }
        });
        if let Err(what) = job.await? {
            walked.note(None, what);
        }
        Ok(())
    }

    async fn walk_frames(
        &self,
        pack: &PackContents,
        object: &Bytes,
        visit: &mut (dyn FnMut(Found) + Send),
        walked: &mut WalkedPack,
    ) -> Result<(), DepotError> {
        let record = &pack.0;
        let key = pack.key();
        let opener = match self
            .keyring
            .object_opener(record.class, &key, &record.header)
        {
            Ok(opener) => Arc::new(opener),
            Err(error) => {
                walked.note(None, format!("its header, as the index has it: {error}"));
                return Ok(());
            }
        };
        let mut blobs = record.footer.blobs().peekable();
        let mut batch: Vec<(Expected, Range<usize>)> = Vec::new();
        let mut batched = 0;
        let frames = record.footer.frames().map(Some).chain([None]);
        for frame in frames {
            if batched > JOB_BYTES || frame.is_none() {
                let batch = std::mem::take(&mut batch);
                batched = 0;
                let opened = self.open_frames(&opener, object, batch);
                for (frame, answer) in opened.await? {
                    match answer {
                        Ok(found) => found.into_iter().for_each(&mut *visit),
                        Err(what) => walked.note(Some(frame), what),
                    }
                }
            }
            let Some(frame) = frame else { break };
            let mut listed = Vec::with_capacity(usize::from(frame.blob_count));
            while let Some(blob) = blobs.next_if(|blob| blob.frame == frame.number) {
                listed.push(blob);
            }
            batched += u64::from(frame.raw_length);
            let range = frame.range();
            batch.push(((frame, listed), range.start as usize..range.end as usize));
        }
        Ok(())
    }

    async fn open_frames(
        &self,
        opener: &Arc<ObjectOpener>,
        object: &Bytes,
        batch: Vec<(Expected, Range<usize>)>,
    ) -> Result<Vec<Opened>, DepotError> {
        let (opener, object) = (Arc::clone(opener), object.clone());
        let keyring = self.keyring.clone();
        let job = self.workers.run(move |scratch| {
            let open = |((frame, listed), range): (Expected, Range<usize>)| {
                let found = match object.get(range) {
                    Some(sealed) => {
                        open_frame(&keyring, &opener, true, (&frame, &listed), sealed, scratch)
                    }
                    None => Err("the pack ends before it".to_owned()),
                };
                (frame.number, found)
            };
            batch.into_iter().map(open).collect()
        });
        job.await
    }
}

/// The footer of a pack that is here as a whole.
pub(crate) fn read_footer(
    opener: &ObjectOpener,
    object: &[u8],
    scratch: &mut Scratch,
) -> Result<Footer, String> {
    let trailer = Trailer::decode(object).map_err(|error| error.to_string())?;
    let end = object.len() - TRAILER_LEN;
    let sealed = end
        .checked_sub(trailer.footer_length as usize)
        .and_then(|start| object.get(start..end))
        .ok_or("the trailer's numbers are out of bounds")?;
    let decoder = scratch.frame_decoder.decoder();
    Footer::open(opener, &trailer, sealed, object.len() as u64, decoder)
        .map_err(|error| format!("its footer: {error}"))
}

/// Opens a frame and compares every blob in it with what the footer calls it. The bytes of blobs are in the answer if `with_bytes`.
pub(crate) fn open_frame(
    keyring: &Keyring,
    opener: &ObjectOpener,
    with_bytes: bool,
    (frame, listed): (&FrameEntry, &[BlobEntry]),
    sealed: &[u8],
    scratch: &mut Scratch,
) -> Result<Vec<Found>, String> {
    let opened = scratch
        .frame_decoder
        .open(opener, u32::from(frame.number), sealed)
        .map_err(|error| error.to_string())?;
    if opened.blob_count() != listed.len() {
        return Err("it holds another number of blobs than the footer says".to_owned());
    }
    let mut found = Vec::with_capacity(listed.len());
    for (entry, bytes) in listed.iter().zip(opened.blobs()) {
        let id = keyring.id(entry.kind, &bytes);
        if id.prefix() != entry.prefix || bytes.len() != entry.length as usize {
            let (kind, slot, prefix) = (entry.kind, entry.slot, entry.prefix);
            return Err(format!("blob {slot} is not the {kind:?} {prefix}"));
        }
        found.push(Found {
            kind: entry.kind,
            id,
            frame: frame.number,
            slot: entry.slot,
            bytes: match with_bytes {
                true => bytes,
                false => Bytes::new(),
            },
        });
    }
    Ok(found)
}
