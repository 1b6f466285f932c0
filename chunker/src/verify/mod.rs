//! Looking at what lies in the bucket, object by object, and saying exactly what is wrong with it.
//!
//! Owns the walk over index objects, footers, frames and blobs, in the bucket itself and never in a cache. Decides nothing: what is live, what refers to what
//! and what follows from damage is for whoever asks. Writes nothing.
//!
//! Memory: what [`VerifierConfig::memory_bytes`] allows for objects in hand, and what the caller keeps of [`PackContents`] (about 21 bytes per blob).

mod contents;
mod walk;

use std::sync::Arc;
use std::time::Duration;

use crate::catalog::IndexRef;
use crate::entropy::Entropy;
use crate::error::DepotError;
use crate::gate::ByteGate;
use crate::index;
use crate::link::Link;
use crate::pack::{Footer, PackName, TRAILER_LEN, Trailer};
use crate::seal::{Class, HEADER_LEN, Keyring};
use crate::store::Store;
use crate::workers::Workers;

pub use contents::{Listed, PackContents, chunks_of};
pub use walk::{Found, PackDamage, WalkedPack};
pub(crate) use walk::{open_frame, read_footer};

/// The end of a pack that is fetched in the hope that its footer is in it.
const TAIL_BYTES: u64 = 64 << 10;

/// What decoding an index object takes for each byte of the object: a guess that compressed footers keep to.
const INDEX_FACTOR: u64 = 4;

/// How a [`Verifier`] uses the machine and the store.
#[derive(Debug, Clone)]
pub struct VerifierConfig {
    /// Requests at the same time.
    pub downloads: usize,
    /// Threads; 0 works in the calling task, for simulations.
    pub workers: usize,
    /// The most that objects in hand may take, in bytes. A single pack may take more, alone.
    pub memory_bytes: u64,
    /// How long the store may make no progress at all.
    pub timeout_ms: u64,
}

impl Default for VerifierConfig {
    fn default() -> Self {
        Self {
            downloads: 8,
            workers: std::thread::available_parallelism().map_or(2, usize::from),
            memory_bytes: 256 << 20,
            timeout_ms: 300_000,
        }
    }
}

/// Reads and verifies objects of one repository.
#[derive(Debug)]
pub struct Verifier {
    link: Link,
    keyring: Keyring,
    workers: Workers,
    gate: ByteGate,
}

impl Verifier {
    /// Looks into `store` with the keys of `keyring`. `entropy` spreads pauses between attempts.
    ///
    /// # Errors
    /// [`DepotError::Internal`] without threads.
    pub fn new(
        store: Arc<dyn Store>,
        keyring: Keyring,
        entropy: Arc<dyn Entropy>,
        config: &VerifierConfig,
    ) -> Result<Self, DepotError> {
        let timeout = Duration::from_millis(config.timeout_ms);
        let workers = match config.workers {
            0 => Workers::inline(),
            threads => Workers::pool(threads)
                .map_err(|_| DepotError::Internal("the system gives no threads"))?,
        };
        Ok(Self {
            link: Link::new(store, entropy, (1, config.downloads), timeout),
            keyring,
            workers,
            gate: ByteGate::new(config.memory_bytes),
        })
    }

    /// The payload of an object of one box (all classes but packs).
    ///
    /// # Errors
    /// `Missing`, `Damaged` and `Unreadable` name the object; `Store` and `Stalled` say nothing about it.
    pub async fn object(&self, class: Class, key: &str) -> Result<Vec<u8>, DepotError> {
        let object = self.link.get(key).await?;
        self.keyring
            .open_object(class, key, &object)
            .map_err(|error| DepotError::unopened(key, error))
    }

    /// The packs of an index object, which must be as many as the root says.
    ///
    /// # Errors
    /// As [`Verifier::object`].
    pub async fn index(&self, reference: IndexRef) -> Result<Vec<PackContents>, DepotError> {
        let packs = self.index_of(reference.name).await?;
        let blobs = packs.iter().map(PackContents::blob_count);
        let agrees = packs.len() == reference.packs as usize
            && blobs.sum::<usize>() as u64 == reference.blobs
            && index::encoded_length(packs.iter().map(|pack| &pack.0)) == reference.bytes;
        match agrees {
            true => Ok(packs),
            false => {
                let key = reference.name.key(Class::Index);
                Err(DepotError::damaged(key, "it is not what the root says"))
            }
        }
    }

    /// The packs of an index object of which no root tells anything.
    ///
    /// # Errors
    /// As [`Verifier::object`].
    pub async fn index_of(&self, name: PackName) -> Result<Vec<PackContents>, DepotError> {
        let key = name.key(Class::Index);
        let object = self.link.get(&key).await?;
        let room = object.len() as u64 * INDEX_FACTOR;
        let _room = self.gate.reserve(room).await;
        let keyring = self.keyring.clone();
        let job = self.workers.run(move |scratch| {
            let payload = keyring
                .open_object(Class::Index, &key, &object)
                .map_err(|error| DepotError::unopened(&key, error))?;
            let records = index::decode(&payload, scratch.frame_decoder.decoder())
                .map_err(|error| DepotError::damaged(&key, error))?;
            Ok(records.into_iter().map(PackContents).collect())
        });
        job.await?
    }

    /// What a pack of `bytes` bytes says of itself: its header and footer, from the bucket.
    ///
    /// # Errors
    /// As [`Verifier::object`].
    pub async fn describe(
        &self,
        name: PackName,
        class: Class,
        bytes: u64,
    ) -> Result<PackContents, DepotError> {
        let key = name.key(class);
        let damaged = |what: &dyn ToString| DepotError::damaged(&key, what.to_string());
        if bytes < (HEADER_LEN + TRAILER_LEN) as u64 {
            return Err(damaged(&"the pack is cut short"));
        }
        let head = self.link.get_range(&key, 0..HEADER_LEN as u64).await?;
        let mut start = bytes.saturating_sub(TAIL_BYTES).max(HEADER_LEN as u64);
        let mut tail = self.link.get_range(&key, start..bytes).await?;
        let trailer = Trailer::decode(&tail).map_err(|error| damaged(&error))?;
        if trailer.tail_length() > bytes - HEADER_LEN as u64 {
            return Err(damaged(&"the trailer's numbers are out of bounds"));
        }
        if trailer.tail_length() > tail.len() as u64 {
            start = bytes - trailer.tail_length();
            tail = self.link.get_range(&key, start..bytes).await?;
        }
        let keyring = self.keyring.clone();
        let job = self.workers.run(move |scratch| {
            let header = head
                .first_chunk::<HEADER_LEN>()
                .copied()
                .ok_or_else(|| DepotError::damaged(&key, "the pack is cut short"))?;
            let opener = keyring
                .object_opener(class, &key, &header)
                .map_err(|error| DepotError::unopened(&key, error))?;
            let end = tail.len() - TRAILER_LEN;
            let sealed = &tail[end - trailer.footer_length as usize..end];
            let decoder = scratch.frame_decoder.decoder();
            let footer = Footer::open(&opener, &trailer, sealed, bytes, decoder)
                .map_err(|error| DepotError::damaged(&key, format!("its footer: {error}")))?;
            Ok(PackContents(index::PackRecord {
                name,
                class,
                length: bytes,
                header,
                footer,
            }))
        });
        job.await?
    }

    /// Bytes that were read so far, of all objects.
    pub fn bytes_read(&self) -> u64 {
        self.link.counters.snapshot().bytes_fetched
    }
}
