//! What a pack says of itself: its header and footer, read from the bucket.

use crate::crypto::{Class, HEADER_LEN, Keyring};
use crate::error::ContentError;
use crate::index::PackRecord;
use crate::pack::{Footer, PackName, TRAILER_LEN, Trailer};
use crate::store_client::StoreClient;
use crate::workers::Workers;

/// How many bytes at the end of a pack are fetched first. The footer of a pack of 16 MiB of pages
/// takes about 40 KiB.
const TAIL_BYTES: u64 = 64 << 10;

/// Reads the header and the footer of a pack. `length` is its length in bytes; if it is not known,
/// the store says it.
///
/// # Errors
/// - [`ContentError::Missing`], [`ContentError::Damaged`] or [`ContentError::Unreadable`] names the
///   pack.
/// - [`ContentError::Store`] or [`ContentError::Stalled`] says nothing about the pack.
/// - [`ContentError::Internal`] if a worker's job panics.
pub(crate) async fn describe(
    link: &StoreClient,
    workers: &Workers,
    keyring: &Keyring,
    (name, class): (PackName, Class),
    length: Option<u64>,
) -> Result<PackRecord, ContentError> {
    let key = name.key(class);
    let damaged = |what: &dyn ToString| ContentError::damaged(&key, what.to_string());
    if length.is_some_and(|length| length < (HEADER_LEN + TRAILER_LEN) as u64) {
        return Err(damaged(&"the pack is cut short"));
    }
    let end = async {
        match length {
            Some(length) => {
                let start = length.saturating_sub(TAIL_BYTES).max(HEADER_LEN as u64);
                Ok((link.get_range(&key, start..length).await?, length))
            }
            None => link.get_tail(&key, TAIL_BYTES).await,
        }
    };
    let (header, (mut tail, length)) =
        tokio::try_join!(link.get_range(&key, 0..HEADER_LEN as u64), end)?;
    let trailer = Trailer::decode(&tail).map_err(|error| damaged(&error))?;
    if HEADER_LEN as u64 + trailer.tail_length() > length {
        return Err(damaged(&"the trailer's numbers are out of bounds"));
    }
    if trailer.tail_length() > tail.len() as u64 {
        let start = length - trailer.tail_length();
        tail = link.get_range(&key, start..length).await?;
    }
    let keyring = keyring.clone();
    let job = workers.run(move |scratch| {
        let header = header.first_chunk::<HEADER_LEN>().copied();
        let header = header.ok_or_else(|| ContentError::damaged(&key, "the pack is cut short"))?;
        let opener = keyring
            .object_opener(class, &key, &header)
            .map_err(|error| ContentError::unopened(&key, error))?;
        let end = tail.len() - TRAILER_LEN;
        let sealed = &tail[end - trailer.footer_length as usize..end];
        let decoder = scratch.frame_decoder.decoder();
        let footer = Footer::open(&opener, &trailer, sealed, length, decoder)
            .map_err(|error| ContentError::damaged(&key, format!("its footer: {error}")))?;
        Ok(PackRecord {
            name,
            class,
            length,
            header,
            footer,
        })
    });
    job.await?
}
