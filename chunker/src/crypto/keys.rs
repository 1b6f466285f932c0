//! The keys of one object, and the boxes that are made with them.
//!
//! Owns the formulas of FORMAT.md, "The header of every object" and "A box".

use super::OpenError;
use super::header::{HEADER_LEN, TAGGED_LEN};
use super::object::Algorithm;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use std::fmt;
use zeroize::Zeroizing;

/// A secret key.
pub(super) type Key = Zeroizing<[u8; 32]>;

/// Length of the nonce that begins every box, in bytes.
pub const NONCE_LEN: usize = 12;
/// Length of the tag that ends every box, in bytes.
pub const TAG_LEN: usize = 16;
/// Bytes that a box adds to its payload.
pub const BOX_OVERHEAD: usize = NONCE_LEN + TAG_LEN;
/// The number of the box that holds a pack's footer.
pub const FOOTER_BOX: u32 = u32::MAX;

/// The data that AES-256-GCM authenticates in addition to the payload begins with these bytes; the
/// number of the box follows (u32, little-endian).
const BOX_CONTEXT: &[u8; 8] = b"bkfs box";

/// The keys that seal and tag the boxes of one object.
pub(super) struct ObjectKeys {
    /// Absent in unsealed objects.
    seal: Option<LessSafeKey>,
    /// Makes the header tag, nonces, and the tags of unsealed boxes.
    tag: Key,
}

impl fmt::Debug for ObjectKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ObjectKeys(..)")
    }
}

impl ObjectKeys {
    /// Derives the keys of the object that has this header and lies under `key` in the bucket.
    pub(super) fn derive(
        master: &[u8; 32],
        algorithm: Algorithm,
        header: &[u8; HEADER_LEN],
        key: &str,
    ) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(master);
        hasher.update(b"bkfs object key");
        hasher.update(&header[..TAGGED_LEN]);
        hasher.update(key.as_bytes());
        Self::from_hasher(&hasher, algorithm)
    }

    /// Takes the keys from a hasher's extended output: the first 32 bytes seal, the next 32 bytes
    /// make tags.
    pub(super) fn from_hasher(hasher: &blake3::Hasher, algorithm: Algorithm) -> Self {
        let mut seal = Key::default();
        let mut tag = Key::default();
        let mut output = hasher.finalize_xof();
        output.fill(seal.as_mut());
        output.fill(tag.as_mut());
        let seal = match algorithm {
            Algorithm::Unsealed => None,
            Algorithm::Aes256Gcm => Some(LessSafeKey::new(
                UnboundKey::new(&AES_256_GCM, seal.as_ref()).expect("AES-256 keys have 32 bytes"),
            )),
        };
        Self { seal, tag }
    }

    /// Returns the tag over the first 112 bytes of a header.
    pub(super) fn header_tag(&self, header: &[u8; HEADER_LEN]) -> [u8; TAG_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&self.tag);
        hasher.update(b"bkfs header");
        hasher.update(&header[..TAGGED_LEN]);
        let mut tag = [0; TAG_LEN];
        hasher.finalize_xof().fill(&mut tag);
        tag
    }

    /// Checks the tag of a header.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] if the tag is wrong.
    pub(super) fn verify_header(&self, header: &[u8; HEADER_LEN]) -> Result<(), OpenError> {
        let tag = self.header_tag(header);
        verify_slices_are_equal(&tag, &header[TAGGED_LEN..]).map_err(|_| OpenError::Damaged {
            what: "the header does not verify",
        })
    }

    /// Returns the nonce of a box, followed by the tag that the box has if it is not sealed. Takes
    /// one pass over the payload.
    fn digest(&self, number: u32, payload: &[u8]) -> [u8; BOX_OVERHEAD] {
        let mut hasher = blake3::Hasher::new_keyed(&self.tag);
        hasher.update(BOX_CONTEXT);
        hasher.update(&number.to_le_bytes());
        hasher.update(payload);
        let mut digest = [0; BOX_OVERHEAD];
        hasher.finalize_xof().fill(&mut digest);
        digest
    }

    /// Makes a box in place. `buffer[start..]` holds [`NONCE_LEN`] bytes for the nonce and then the
    /// payload; the tag is appended.
    ///
    /// # Panics
    /// If fewer than [`NONCE_LEN`] bytes follow `start`, which is a mistake of the caller in this
    /// crate.
    pub(super) fn seal_in_place(&self, number: u32, buffer: &mut Vec<u8>, start: usize) {
        let (nonce, payload) = buffer[start..]
            .split_first_chunk_mut::<NONCE_LEN>()
            .expect("the caller leaves room for the nonce");
        let digest = self.digest(number, payload);
        nonce.copy_from_slice(&digest[..NONCE_LEN]);
        let Some(seal) = &self.seal else {
            buffer.extend_from_slice(&digest[NONCE_LEN..]);
            return;
        };
        let tag = seal
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(*nonce),
                associated_data(number),
                payload,
            )
            .expect("payloads are far below the 64 GiB that AES-GCM can seal");
        buffer.extend_from_slice(tag.as_ref());
    }

    /// Opens a box and returns its payload. The payload lies in `sealed` itself if the box is in
    /// the clear, else in `room`, whose former contents are lost.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] if the box is too short or does not verify.
    pub(super) fn open<'a>(
        &self,
        number: u32,
        sealed: &'a [u8],
        room: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], OpenError> {
        let (nonce, body, tag) = split_box(sealed)?;
        let Some(seal) = &self.seal else {
            self.verify_clear(number, nonce, body, tag)?;
            return Ok(body);
        };
        room.clear();
        room.resize(body.len(), 0);
        seal.open_separate_gather(
            Nonce::assume_unique_for_key(*nonce),
            associated_data(number),
            body,
            tag,
            room,
        )
        .map_err(|_| BOX_DAMAGED)?;
        Ok(room)
    }

    /// Opens a box in place and returns its payload. An error leaves the contents of the buffer
    /// undefined.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] if the box is too short or does not verify.
    pub(super) fn open_in_place<'a>(
        &self,
        number: u32,
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], OpenError> {
        let (nonce, rest) = sealed
            .split_first_chunk_mut::<NONCE_LEN>()
            .ok_or(BOX_SHORT)?;
        let (body, tag) = rest.split_last_chunk_mut::<TAG_LEN>().ok_or(BOX_SHORT)?;
        let Some(seal) = &self.seal else {
            self.verify_clear(number, nonce, body, tag)?;
            return Ok(body);
        };
        seal.open_in_place_separate_tag(
            Nonce::assume_unique_for_key(*nonce),
            associated_data(number),
            tag,
            body,
        )
        .map_err(|_| BOX_DAMAGED)
    }

    fn verify_clear(
        &self,
        number: u32,
        nonce: &[u8; NONCE_LEN],
        body: &[u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), OpenError> {
        let digest = self.digest(number, body);
        verify_slices_are_equal(&digest[..NONCE_LEN], nonce)
            .and(verify_slices_are_equal(&digest[NONCE_LEN..], tag))
            .map_err(|_| BOX_DAMAGED)
    }
}

const BOX_SHORT: OpenError = OpenError::Damaged {
    what: "the contents are cut short",
};
const BOX_DAMAGED: OpenError = OpenError::Damaged {
    what: "the contents do not verify",
};

fn associated_data(number: u32) -> Aad<[u8; 12]> {
    let mut data = [0; 12];
    data[..8].copy_from_slice(BOX_CONTEXT);
    data[8..].copy_from_slice(&number.to_le_bytes());
    Aad::from(data)
}

type BoxParts<'a> = (&'a [u8; NONCE_LEN], &'a [u8], &'a [u8; TAG_LEN]);

fn split_box(sealed: &[u8]) -> Result<BoxParts<'_>, OpenError> {
    let (nonce, rest) = sealed.split_first_chunk().ok_or(BOX_SHORT)?;
    let (body, tag) = rest.split_last_chunk().ok_or(BOX_SHORT)?;
    Ok((nonce, body, tag))
}
