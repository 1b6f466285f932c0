//! Verification of the objects in the bucket, one by one, with an exact description of each damage.
//!
//! Owns the walk over index objects, footers, frames and blobs. Reads from the bucket itself and
//! never from a cache. The caller decides which objects are live, which refer to which, and what
//! follows from damage. Writes nothing.
//!
//! Memory: up to [`VerifierConfig::memory_bytes`] for objects under verification, and the
//! [`PackContents`] that the caller keeps (about 21 bytes per blob).

mod contents;
mod walk;

use std::sync::Arc;
use std::time::Duration;

use bkfs_store::Store;
use bkfs_store::entropy::Entropy;

use crate::catalog::{IndexRef, describe};
use crate::crypto::{Class, Keyring};
use crate::error::ContentError;
use crate::gate::ByteGate;
use crate::index;
use crate::pack::PackName;
use crate::store_client::StoreClient;
use crate::workers::Workers;

pub use contents::{Listed, PackContents, chunks_of};
pub use walk::{Found, PackDamage, WalkedPack};
pub(crate) use walk::{open_frame, read_footer};

/// Estimate of the memory that decoding an index object takes, for each byte of the object.
/// Compressed footers stay below it.
const INDEX_FACTOR: u64 = 4;

/// How a [`Verifier`] uses the machine and the store.
#[derive(Debug, Clone)]
pub struct VerifierConfig {
    /// Maximum number of concurrent requests.
    pub downloads: usize,
    /// Number of threads. 0 does the work in the calling task, for simulations.
    pub workers: usize,
    /// Maximum memory for objects under verification, in bytes. A single larger pack is verified
    /// alone.
    pub memory_bytes: u64,
    /// Time without any progress at the store after which a call gives up, in milliseconds.
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

/// Reads and verifies the objects of one repository.
#[derive(Debug)]
pub struct Verifier {
    link: StoreClient,
    keyring: Keyring,
    workers: Workers,
    gate: ByteGate,
}

impl Verifier {
    /// Returns a verifier of `store` with the keys of `keyring`. `entropy` randomizes the back-off
    /// between attempts.
    ///
    /// # Errors
    /// [`ContentError::Internal`] if the operating system refuses a thread.
    pub fn new(
        store: Arc<dyn Store>,
        keyring: Keyring,
        entropy: Arc<dyn Entropy>,
        config: &VerifierConfig,
    ) -> Result<Self, ContentError> {
        let timeout = Duration::from_millis(config.timeout_ms);
        let workers = match config.workers {
            0 => Workers::inline(),
            threads => Workers::pool(threads)
                .map_err(|_| ContentError::Internal("the system gives no threads"))?,
        };
        Ok(Self {
            link: StoreClient::new(store, entropy, (1, config.downloads), timeout),
            keyring,
            workers,
            gate: ByteGate::new(config.memory_bytes),
        })
    }

    /// Returns the payload of an object that has a single box (all classes but packs).
    ///
    /// # Errors
    /// - [`ContentError::Missing`], [`ContentError::Damaged`] or [`ContentError::Unreadable`] names
    ///   the object.
    /// - [`ContentError::Store`] or [`ContentError::Stalled`] says nothing about the object.
    pub async fn object(&self, class: Class, key: &str) -> Result<Vec<u8>, ContentError> {
        let object = self.link.get(key).await?;
        self.keyring
            .open_object(class, key, &object)
            .map_err(|error| ContentError::unopened(key, error))
    }

    /// Returns the packs of an index object, and checks it against the numbers that the root
    /// states.
    ///
    /// # Errors
    /// As [`Verifier::index_of`], and [`ContentError::Damaged`] if the numbers of packs, blobs or
    /// bytes differ from those of the root.
    pub async fn index(&self, reference: IndexRef) -> Result<Vec<PackContents>, ContentError> {
        let packs = self.index_of(reference.name).await?;
        let blobs = packs.iter().map(PackContents::blob_count);
        let agrees = packs.len() == reference.packs as usize
            && blobs.sum::<usize>() as u64 == reference.blobs
            && index::encoded_length(packs.iter().map(|pack| &pack.0)) == reference.bytes;
        match agrees {
            true => Ok(packs),
            false => {
                let key = reference.name.key(Class::Index);
                Err(ContentError::damaged(key, "it is not what the root says"))
            }
        }
    }

    /// Returns the packs of an index object without a reference in a root.
    ///
    /// # Errors
    /// As [`Verifier::object`], and [`ContentError::Internal`] if a worker's job panics.
    pub async fn index_of(&self, name: PackName) -> Result<Vec<PackContents>, ContentError> {
        let key = name.key(Class::Index);
        let object = self.link.get(&key).await?;
        let room = object.len() as u64 * INDEX_FACTOR;
        let _room = self.gate.reserve(room).await;
        let keyring = self.keyring.clone();
        let job = self.workers.run(move |scratch| {
            let payload = keyring
                .open_object(Class::Index, &key, &object)
                .map_err(|error| ContentError::unopened(&key, error))?;
            let records = index::decode(&payload, scratch.frame_decoder.decoder())
                .map_err(|error| ContentError::damaged(&key, error))?;
            Ok(records.into_iter().map(PackContents).collect())
        });
        job.await?
    }

    /// Returns the contents of a pack of `bytes` bytes, from its own header and footer in the
    /// bucket.
    ///
    /// # Errors
    /// As [`Verifier::index_of`].
    pub async fn describe(
        &self,
        name: PackName,
        class: Class,
        bytes: u64,
    ) -> Result<PackContents, ContentError> {
        let (link, workers, keyring) = (&self.link, &self.workers, &self.keyring);
        let described = describe(link, workers, keyring, (name, class), Some(bytes));
        Ok(PackContents(described.await?))
    }

    /// Returns the number of bytes read so far, of all objects.
    pub fn bytes_read(&self) -> u64 {
        self.link.counters.snapshot().bytes_fetched
    }
}
