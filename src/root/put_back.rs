//! Puts removed key slots back whose removal turns out to be wrong.
//!
//! Owns the objects of given-up slots, from before their deletion until it is known that no root
//! needs them, and the files `STATE_DIR/REPOSITORY/key-SLOT-NUMBER` that hold them in that time. A
//! file of a process that died is logged by the next one, and never deleted by it: it may be the
//! only copy of a key. [`super::slot_removal`] decides which slots are given up, and when they are
//! needed.

use super::blocking::blocking;
use super::error::RootError;
use super::retry::{RetryPolicy, create_surely, patiently, random};
use super::slot_error::{Lost, SlotsError};
use super::slots::Slots;
use crate::private;
use bkfs_chunker::crypto::{RepositoryId, Slot, SlotName};
use bkfs_store::{GuardedStore, Locking, Operation, Signs};
use bytes::Bytes;
use jiff::Timestamp;
use std::fs::File;
use std::path::PathBuf;

/// Prefix of the names of these files.
const SAVED: &str = "key-";

/// A slot that is given up.
pub(super) struct Kept {
    /// Its name.
    pub(super) slot: SlotName,
    object: Bytes,
    saved: Option<PathBuf>,
}

impl Kept {
    /// Logs that the file of a slot is not removed, because a replacement of the root may still
    /// arrive that only this slot opens.
    pub(super) fn tell_of_a_late_rotation(&self) {
        if let Some(file) = &self.saved {
            tracing::warn!(
                "key {} is removed. If the rotation that it is of still ends, only it opens the \
                 repository: then store {} as {}. Delete that file when no rotation can be under \
                 way any more",
                self.slot,
                file.display(),
                self.slot.key()
            );
        }
    }

    /// Logs that the file of a slot is not removed, because a deletion of the slot may still
    /// arrive.
    pub(super) fn tell_that_it_stays(&self) {
        if let Some(file) = &self.saved {
            tracing::warn!(
                "key {} is in the bucket, and its deletion may still arrive: if it does, store \
                 {} as {}",
                self.slot,
                file.display(),
                self.slot.key()
            );
        }
    }

    /// Whether it may hold a newest master key of this epoch, by its own statement.
    pub(super) fn may_be_of(&self, repository: RepositoryId, epoch: u32) -> bool {
        let slot = Slot::open(repository, self.slot, &self.object);
        slot.is_ok_and(|slot| slot.may_be_of(epoch))
    }
}

impl Slots {
    /// Reads the objects of given-up slots, and saves each on this machine if there is a state
    /// directory. A future that is dropped may leave these files.
    ///
    /// # Errors
    /// Store errors.
    pub(super) async fn keep(&self, given_up: &[SlotName]) -> Result<Vec<Kept>, SlotsError> {
        self.tell_of_left_files().await;
        let mut objects = Vec::with_capacity(given_up.len());
        for slot in given_up {
            let (object, _) = (self.store.get(&slot.key()).await).map_err(RootError::from)?;
            objects.push((slot, object));
        }
        let mut kept = Vec::with_capacity(given_up.len());
        for (slot, object) in objects {
            let saved = self.save(*slot, &object).await;
            kept.push(Kept {
                slot: *slot,
                object,
                saved,
            });
        }
        Ok(kept)
    }

    async fn save(&self, slot: SlotName, object: &Bytes) -> Option<PathBuf> {
        let directory = self.choice.directory(self.config.repository())?;
        let object = object.clone();
        let number = u64::from_le_bytes(random(&*self.entropy));
        let written = blocking(move || {
            if let Some(state) = directory.parent() {
                private::make_directory(state)?;
            }
            private::make_directory(&directory)?;
            let file = directory.join(format!("{SAVED}{slot}-{number:016x}"));
            private::replace(&file, &object)?;
            // The key is deleted next, so the file must survive a power loss.
            File::open(&file)?.sync_all()?;
            File::open(&directory)?.sync_all()?;
            Ok(file)
        });
        match written.await {
            Ok(file) => {
                tracing::info!(%slot, "saved in {} until no root can need it", file.display());
                Some(file)
            }
            Err(error) => {
                tracing::warn!(%error, %slot,
                    "cannot save this key on this machine before it is removed");
                None
            }
        }
    }

    /// Logs the files of removals that were interrupted.
    async fn tell_of_left_files(&self) {
        let Some(directory) = self.choice.directory(self.config.repository()) else {
            return;
        };
        let listed = blocking(move || {
            let entries = std::fs::read_dir(directory)?.filter_map(Result::ok);
            let paths = entries.map(|entry| entry.path());
            let is_saved = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with(SAVED))
            };
            Ok(paths.filter(is_saved).collect::<Vec<_>>())
        });
        // Without the directory there are no files.
        for file in listed.await.unwrap_or_default() {
            tracing::warn!(
                "{} holds a key that an earlier `bkfs key remove` gave up and may have removed: \
                 delete the file once the repository opens with every password that should open it",
                file.display()
            );
        }
    }

    /// Removes the files of slots that are useless, or are in the bucket again. Dropped, it leaves
    /// files.
    pub(super) async fn discard(&self, kept: Vec<Kept>) {
        for file in kept.into_iter().filter_map(|kept| kept.saved) {
            let removed = blocking(move || std::fs::remove_file(file)).await;
            if let Err(error) = removed {
                tracing::warn!(%error, "cannot remove the saved object of a key");
            }
        }
    }

    /// Puts a slot back under its name, retries until the stall timeout, and reads it back. An
    /// object there with the same bytes is accepted. Dropped, it may have put the slot back.
    ///
    /// # Errors
    /// The slot, with the reason why it is not known to be in the bucket.
    pub(super) async fn put_back(&self, kept: &Kept, clock: Timestamp) -> Result<(), Lost> {
        let why = match self.create_again(kept, clock).await {
            Ok(()) => return Ok(()),
            Err(error) => error.to_string(),
        };
        Err(Lost {
            slot: kept.slot,
            why,
            saved: kept.saved.clone(),
            object: kept.object.clone(),
        })
    }

    async fn create_again(&self, kept: &Kept, clock: Timestamp) -> Result<(), RootError> {
        let guarded = GuardedStore::new(self.store.clone(), Signs::default());
        if let Some(rule) = self.config.lock() {
            guarded.begin(Locking {
                rule,
                wanted: |_| true,
                now: Box::new(move || clock),
            });
        }
        let (policy, entropy) = (RetryPolicy::default(), &*self.entropy);
        let (key, object) = (kept.slot.key(), &kept.object);
        create_surely(&guarded, &policy, entropy, &key, object).await?;
        let get = || self.store.get(&key);
        let (found, _) = patiently(&policy, entropy, Operation::Get, &key, get).await?;
        match found == *object {
            true => Ok(()),
            false => Err(RootError::damaged(&key, "it is not what was put there")),
        }
    }
}
