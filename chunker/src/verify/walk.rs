//! Verification of one pack, byte by byte: header, every frame, every blob, footer, trailer.
//!
//! Readers rely on the index, so frames are opened with the index's copy of the header. The header
//! and footer of the pack itself are compared with it, because a lost index is rebuilt from them.

use std::ops::Range;
use std::sync::Arc;

use bkfs_store::{StoreError, StoreErrorKind, WHOLE_OBJECT_BYTES_MAX};
use bytes::Bytes;

use super::{PackContents, Verifier};
use crate::crypto::{HEADER_LEN, Keyring, ObjectOpener};
use crate::error::ContentError;
use crate::id::{Id, Kind};
use crate::pack::{BlobEntry, Footer, FrameEntry, TRAILER_LEN, Trailer};
use crate::workers::Scratch;

/// The description of a pack that does not exist.
const MISSING: &str = "it is missing";

/// Frames that one job decodes, in bytes of decoded length.
const JOB_BYTES: u64 = 4 << 20;

/// One damage of a pack.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PackDamage {
    /// The frame that cannot be read, or not completely. `None` for the pack as a whole, its header
    /// or its footer.
    pub frame: Option<u16>,
    /// The damage in words.
    pub what: String,
    /// True if the store refuses the pack and gives other objects. What is in it is not known, so
    /// nothing may be written in its place.
    pub refused: bool,
}

/// A blob that verified.
#[derive(Clone, Debug)]
pub struct Found {
    /// The kind of the blob.
    pub kind: Kind,
    /// The whole id of the blob.
    pub id: Id,
    /// The number of the frame that holds the blob.
    pub frame: u16,
    /// The number of the blob in the frame.
    pub slot: u16,
    /// The bytes of the blob.
    pub bytes: Bytes,
}

/// The result of reading a whole pack.
#[derive(Clone, Debug, Default)]
pub struct WalkedPack {
    /// All damage of the pack.
    pub damage: Vec<PackDamage>,
    /// Number of bytes that were read and verified.
    pub verified_bytes: u64,
    /// True if the pack does not exist.
    pub missing: bool,
}

impl PackDamage {
    /// Returns damage that was read in the pack.
    pub fn new(frame: Option<u16>, what: impl ToString) -> Self {
        Self {
            frame,
            what: what.to_string(),
            refused: false,
        }
    }

    /// Returns what is noted of a pack that the store does not give.
    fn unread(error: &StoreError) -> Self {
        Self {
            refused: error.kind() == StoreErrorKind::Denied,
            ..Self::new(None, format!("it cannot be read: {error}"))
        }
    }

    /// Returns true if the damage is that the whole pack does not exist.
    pub fn is_absence(&self) -> bool {
        self.frame.is_none() && self.what == MISSING
    }
}

impl WalkedPack {
    fn note(&mut self, frame: Option<u16>, what: impl ToString) {
        self.damage.push(PackDamage::new(frame, what));
    }
}

/// A frame and its blobs, as the footer lists them.
type Expected = (FrameEntry, Vec<BlobEntry>);

/// The number of a frame, and the blobs in it or the reason why it cannot be opened.
type Opened = (u16, Result<Vec<Found>, String>);

impl Verifier {
    /// Reads a whole pack and verifies every byte: its length, header and footer against those of
    /// `pack` (from the index), and every blob against its name.
    ///
    /// Passes the blobs that verify to `visit`, in order.
    ///
    /// # Errors
    /// Only if the store cannot be read ([`ContentError::Store`], [`ContentError::Stalled`]) or a
    /// worker's job panics ([`ContentError::Internal`]). Damage is part of the result.
    pub async fn walk(
        &self,
        pack: &PackContents,
        visit: &mut (dyn FnMut(Found) + Send),
    ) -> Result<WalkedPack, ContentError> {
        let key = pack.key();
        let _room = self.gate.reserve(pack.bytes() + JOB_BYTES).await;
        let mut walked = WalkedPack::default();
        let object = match self.link.get(&key).await {
            Ok(object) => object,
            Err(ContentError::Missing { .. }) => {
                walked.missing = true;
                walked.note(None, MISSING);
                return Ok(walked);
            }
            Err(ContentError::Store(error)) => {
                // No object that is read whole is so large. The object was changed, and the store
                // is not at fault.
                let damage = match self.link.store.head(&key).await {
                    Ok(info) if info.size > WHOLE_OBJECT_BYTES_MAX => {
                        PackDamage::new(None, format!("it has {} bytes", info.size))
                    }
                    Ok(_) if error.is_of_one_object() => PackDamage::unread(&error),
                    // A refused object is refused to a HEAD as well. Any other error of both may
                    // be the store's.
                    Err(head)
                        if head.kind() == StoreErrorKind::Denied && error.is_of_one_object() =>
                    {
                        PackDamage::unread(&error)
                    }
                    Err(head) => return Err(head.into()),
                    Ok(_) => return Err(ContentError::Store(error)),
                };
                walked.damage.push(damage);
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

    /// Reads only the header and footer of a pack, and compares them with those in the index.
    /// Returns the differences.
    ///
    /// # Errors
    /// As [`Verifier::walk`].
    pub async fn ends(&self, pack: &PackContents) -> Result<Vec<PackDamage>, ContentError> {
        let record = &pack.0;
        let damage = |what: String| vec![PackDamage::new(None, what)];
        match self
            .describe(record.name, record.class, record.length)
            .await
        {
            Ok(found) if found == *pack => Ok(Vec::new()),
            Ok(_) => Ok(damage("its footer is not what the index has".to_owned())),
            Err(ContentError::Missing { .. }) => Ok(damage(MISSING.to_owned())),
            Err(ContentError::Damaged { what, .. }) => Ok(damage(what)),
            Err(ContentError::Unreadable { source, .. }) => Ok(damage(source.to_string())),
            Err(ContentError::Store(error)) if error.is_of_one_object() => {
                Ok(vec![PackDamage::unread(&error)])
            }
            Err(error) => Err(error),
        }
    }

    /// Compares header, footer and trailer of a pack in memory with those in the index.
    async fn compare_ends(
        &self,
        pack: &PackContents,
        object: &Bytes,
        walked: &mut WalkedPack,
    ) -> Result<(), ContentError> {
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
    ) -> Result<(), ContentError> {
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
    ) -> Result<Vec<Opened>, ContentError> {
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

/// Returns the footer of a pack whose bytes are all in memory.
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

/// Opens a frame and compares every blob in it with its entry in the footer. The result holds the
/// bytes of the blobs only if `with_bytes` is true.
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
