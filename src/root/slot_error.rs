//! Errors of changes of the key slots, with their texts.
//!
//! Owns [`SlotsError`], and [`Lost`], which carries the object of a removed slot to the user.
//! [`super::slots`], [`super::slot_removal`], [`super::put_back`] and [`super::rotation`] return
//! them.

use super::error::RootError;
use super::slot_facts::{SLOTS_MAX, SlotFacts};
use bkfs_chunker::crypto::{Secrets, SlotName};
use bytes::Bytes;
use std::fmt;
use std::path::PathBuf;

/// Reasons why slots were not changed.
#[derive(Debug, thiserror::Error)]
pub enum SlotsError {
    /// The store, the config, the root or a slot failed.
    #[error(transparent)]
    Root(#[from] RootError),
    /// There are no slots to change.
    #[error("this repository is not encrypted: it has no keys")]
    NotEncrypted,
    /// The text fits no slot, or more than one.
    #[error("{count} keys begin with {text:?}")]
    Ambiguous {
        /// The text.
        text: String,
        /// How many slots it fits.
        count: usize,
    },
    /// As far as is known, no slot would be left that opens the repository.
    #[error("key {slot} was not removed: it is the only one that the given password opens")]
    Own {
        /// The slot.
        slot: SlotName,
    },
    /// The repository has the most slots that it may have.
    #[error(
        "the repository has the maximum of {} keys: remove one first",
        SLOTS_MAX
    )]
    Full,
    /// The slot belongs to a rotation that is under way or was interrupted.
    #[error(
        "key {slot} is of a newer epoch than the root: a rotation of the master key is under way, \
         or was interrupted"
    )]
    Unfinished {
        /// The slot.
        slot: SlotName,
    },
    /// It may hold a master key that no other slot holds, and that objects are sealed under.
    #[error(
        "key {slot} may hold another master key than the given password's key, and objects \
         may be sealed under it: two rotations of the master key were begun, or the root that \
         tells which key is in force is lost"
    )]
    Foreign {
        /// The slot.
        slot: SlotName,
    },
    /// The master key was rotated since the slots were read.
    #[error(
        "the master key was rotated meanwhile: the keys from before the rotation, and keys added \
         to them, no longer open the repository"
    )]
    Rotated,
    /// The change was made, and it is not known that no rotation came between.
    #[error(
        "the keys were changed, but a rotation of the master key may have come between: {reason}; \
         check the keys (bkfs key list)"
    )]
    Unconfirmed {
        /// Why it is not known.
        reason: String,
    },
    /// Another program may have changed keys meanwhile, so no key was removed.
    #[error("no key was removed: {}", overtaken(reason, left, lost))]
    Overtaken {
        /// Why the change does not go on.
        reason: Box<SlotsError>,
        /// Slots that the change added, and that may be needed or could not be deleted.
        left: Vec<SlotName>,
        /// Slots that the change added and deleted, and that may have been the only ones.
        lost: Vec<Lost>,
    },
    /// A copy of the own slot was deleted although it may have been the only one.
    #[error("{0}")]
    LastKeyLost(Lost),
    /// The master key was rotated, and it is not known which keys are there.
    #[error(
        "the master key was rotated, but it is not known which keys are there: {reason}; check the \
         keys (bkfs key list)"
    )]
    RotationUnconfirmed {
        /// What failed, and which keys may have been added.
        reason: String,
    },
    /// Keys were removed, and then something failed, or some of them turned out to be needed.
    #[error("{}", told(removed, put_back, lost, source))]
    Interrupted {
        /// Slots that were removed, and are absent.
        removed: Vec<SlotName>,
        /// Slots that were given up, and are present again.
        put_back: Vec<SlotName>,
        /// Slots that were given up, may be needed, and are not known to be present.
        lost: Vec<Lost>,
        /// The failure.
        source: Box<SlotsError>,
    },
    /// A rotation would drop keys of other passwords.
    #[error("the rotation would drop the keys of other passwords: {}", shown(keys))]
    Others {
        /// Those keys.
        keys: Vec<SlotFacts>,
    },
    /// The repository has had the most epochs that there may be.
    #[error(
        "the repository has had the maximum of {} master keys: copy it to a new repository (bkfs \
         copy)",
        Secrets::EPOCHS_MAX
    )]
    NoMoreEpochs,
}

/// Describes the fate of each slot, and the reason.
pub(crate) fn told(
    removed: &[SlotName],
    put_back: &[SlotName],
    lost: &[Lost],
    source: &SlotsError,
) -> String {
    let removed = removed.iter().map(|slot| format!("removed key {slot}"));
    let put_back = put_back.iter().map(|slot| format!("put key {slot} back"));
    let lost = lost.iter().map(Lost::to_string);
    let parts: Vec<String> = removed.chain(put_back).chain(lost).collect();
    format!("{}; then: {source}", parts.join(", "))
}

/// Names and labels of slots.
fn shown(keys: &[SlotFacts]) -> String {
    let shown = keys
        .iter()
        .map(|key| format!("{} ({})", key.name, key.label));
    shown.collect::<Vec<_>>().join(", ")
}

/// A removed slot that may be needed and is not known to be in the bucket again.
#[derive(Debug)]
pub struct Lost {
    /// Its name.
    pub slot: SlotName,
    /// Why it could not be put back.
    pub why: String,
    /// The file on this machine that holds its object.
    pub saved: Option<PathBuf>,
    /// Its object.
    pub object: Bytes,
}

impl fmt::Display for Lost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            slot, why, object, ..
        } = self;
        let key = slot.key();
        write!(
            formatter,
            "removed key {slot}, which may be the only one that opens the repository, and which \
             could not be put back ({why}): "
        )?;
        match &self.saved {
            Some(file) => {
                let file = file.display();
                write!(formatter, "store the file {file} in the bucket as {key}")
            }
            None => {
                let object = hex::encode(object);
                write!(
                    formatter,
                    "store these bytes (hexadecimal) in the bucket as {key}: {object}"
                )
            }
        }
    }
}

/// Says why a change of keys does not go on, and what became of the slots that it had added.
fn overtaken(reason: &SlotsError, left: &[SlotName], lost: &[Lost]) -> String {
    let reason = match reason {
        SlotsError::Unconfirmed { reason } => reason.clone(),
        other => other.to_string(),
    };
    let mut parts = vec![reason];
    if !left.is_empty() {
        let left: Vec<String> = left.iter().map(SlotName::to_string).collect();
        parts.push(format!(
            "what this change had added stays: {}; check the keys (bkfs key list), and remove \
             those that are to open nothing (bkfs key remove)",
            left.join(", ")
        ));
    }
    parts.extend(lost.iter().map(Lost::to_string));
    if parts.len() == 1 {
        parts.push("check the keys (bkfs key list), and repeat the command".to_owned());
    }
    parts.join("; ")
}
