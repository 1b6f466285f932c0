//! Snapshots as entries of lists: encoding, names, numbers, times, and the merging of shards. Pure.
//!
//! Owns the fields of an entry and the queries on a list. The shards lie in immutable list objects,
//! which [`super::lists`] loads and writes; the root refers to them. A new snapshot is a new shard
//! of one entry, added by the same compare-and-swap that commits its tree. Beyond [`SHARDS_MAX`]
//! shards, the small ones are written together as one, so that an entry is rewritten a logarithmic
//! number of times.
//!
//! Numbers (16 bits) are the upper bits of the inode numbers of a snapshot's files. So they must
//! differ among all snapshots that a mount can show, now or after `forget --undo`: numbers in the
//! trash count as taken. In a small root, those of all volumes count.

use super::error::RootError;
use super::form::Form;
use super::refusal::Refusal;
use super::shard::{ListEntry, ListRef};
use super::state::{NameError, Root, Volume, check_name, check_printable};
use super::wire;
use crate::retain::Dated;
use crate::when::When;
use bkfs_chunker::catalog::name_bytes;
use bkfs_chunker::crypto::RepositoryId;
use bkfs_chunker::id::Id;
use bkfs_chunker::pack::PackName;
use jiff::Timestamp;
use minicbor::{Decode, Encode};
use std::collections::HashSet;
use std::sync::Arc;

/// Most shards of one list before small ones are merged.
pub const SHARDS_MAX: usize = 16;

/// Longest tag in bytes.
pub const TAG_BYTES_MAX: usize = 255;
/// Most tags of a snapshot.
pub const TAGS_MAX: usize = 64;

/// The name that means the newest snapshot of a volume.
pub const LATEST: &str = "latest";

/// One snapshot: an immutable tree with a name.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct SnapshotEntry {
    /// Its name, unique in its volume.
    #[n(0)]
    pub name: String,
    /// Unique among all snapshots of the volume, kept or in the trash, and in a small root among those
    /// of the repository; never 0.
    #[n(1)]
    pub number: u16,
    /// Its volume.
    #[n(2)]
    pub volume: String,
    /// The root node of its tree; `None` for a volume that never held anything.
    #[cbor(n(3), with = "wire::id_option", has_nil)]
    pub tree: Option<Id>,
    /// The record of the commit that made it.
    #[cbor(n(4), with = "wire::id")]
    pub commit: Id,
    /// When it was made, by the host's clock, but never before the volume's preceding snapshot.
    #[cbor(n(5), with = "wire::time")]
    pub time: Timestamp,
    /// Name of the host that made it.
    #[n(6)]
    pub host: String,
    /// Name of the user that made it.
    #[n(7)]
    pub user: String,
    /// Tags, for people and for retention.
    #[n(8)]
    pub tags: Vec<String>,
    /// Inodes in the tree.
    #[n(9)]
    pub files: u64,
    /// Bytes of file contents in the tree, before deduplication.
    #[n(10)]
    pub bytes: u64,
    /// Bytes added to the bucket since the volume's preceding snapshot.
    #[n(11)]
    pub new_bytes: u64,
    /// The generation of the root that made it.
    #[n(12)]
    pub generation: u64,
    /// Its tree comes from the spool of a fenced machine, and was never the volume's state.
    #[cbor(n(13), with = "wire::flag", has_nil)]
    pub recovered: bool,
    /// A repair listed it from its commit record without knowing which packs are condemned: packs
    /// that it needs may be. A later repair that knows them clears the mark of whole snapshots.
    #[cbor(n(14), with = "wire::flag", has_nil)]
    pub rebuilt: bool,
    /// The last drill on a clone of it; absent if there was none. A program that does not know the
    /// field drops it with the next rewrite of the list, which loses a note and no data.
    #[n(15)]
    pub drill: Option<Drill>,
    /// The snapshot that it is a copy of; absent if it was made here. A program that does not know
    /// the field drops it as it drops `drill`.
    #[n(16)]
    pub origin: Option<Origin>,
}

/// Where a snapshot was made, and as which.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Origin {
    /// The repository.
    #[cbor(n(0), with = "wire::repository")]
    pub repository: RepositoryId,
    /// The record of the commit that made it.
    #[cbor(n(1), with = "wire::id")]
    pub commit: Id,
    /// The generation of the root that made it.
    #[n(2)]
    pub generation: u64,
}

/// The result of a drill: a command that ran on a clone of a snapshot.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Drill {
    /// When it ended, by the clock of the host that ran it.
    #[cbor(n(0), with = "wire::time")]
    pub time: Timestamp,
    /// Whether the command succeeded, and the clone returned no error.
    #[n(1)]
    pub is_good: bool,
    /// The command's name, without its arguments.
    #[n(2)]
    pub command: String,
    /// How long the command ran, in seconds.
    #[n(3)]
    pub seconds: u64,
    /// The share of the bytes of files that was read, in thousandths.
    #[n(4)]
    pub read_permille: u16,
    /// It was made in another repository, of which this snapshot is a copy.
    #[cbor(n(5), with = "wire::flag", has_nil)]
    pub is_of_source: bool,
}

impl Drill {
    /// Returns `ok` or `failed`.
    pub fn verdict(&self) -> &'static str {
        match self.is_good {
            true => "ok",
            false => "failed",
        }
    }
}

/// A forgotten snapshot, which can be restored until a collection empties the trash.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct TrashEntry {
    /// The snapshot, unchanged.
    #[n(0)]
    pub snapshot: SnapshotEntry,
    /// When it was forgotten, by the clock of the host that forgot it.
    #[cbor(n(1), with = "wire::time")]
    pub forgotten: Timestamp,
}

/// A name in a list of packs.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(transparent)]
pub struct PackEntry(#[cbor(n(0), with = "name_bytes")] pub PackName);

/// Damage, in a list of quarantined places (rule 11).
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct QuarantineEntry {
    /// The pack.
    #[cbor(n(0), with = "name_bytes")]
    pub pack: PackName,
    /// The frame in it; `None` for the whole pack.
    #[n(1)]
    pub frame: Option<u16>,
}

impl ListEntry for SnapshotEntry {}
impl ListEntry for TrashEntry {}
impl ListEntry for PackEntry {}
impl ListEntry for QuarantineEntry {}

/// Checks the name of a new snapshot. Refuses `latest` as well as the names that [`check_name`]
/// refuses.
///
/// # Errors
/// [`RootError::BadName`].
pub fn check_snapshot_name(name: &str) -> Result<(), RootError> {
    let reserved = if name == LATEST {
        Err(NameError::Reserved)
    } else {
        Ok(())
    };
    check_name(name)
        .and(reserved)
        .map_err(|source| RootError::BadName {
            name: name.to_owned(),
            source,
        })
}

/// A snapshot, as people name it in order to read it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SnapshotReference {
    /// The snapshot with this name.
    Name(String),
    /// The newest of the volume: `latest`.
    Latest,
    /// The newest of the volume at or before an instant: `@TIME`.
    At(Timestamp),
}

impl SnapshotReference {
    /// Parses NAME, `latest` or `@TIME` at the time `now`. Of a day the end counts: the newest
    /// snapshot of that day is meant.
    ///
    /// # Errors
    /// [`RootError::BadTime`] and [`RootError::BadName`].
    pub fn parse(text: &str, now: Timestamp) -> Result<Self, RootError> {
        if text == LATEST {
            return Ok(Self::Latest);
        }
        if let Some(time) = text.strip_prefix('@') {
            let when = When::parse(time, now).ok_or_else(|| RootError::BadTime {
                text: text.to_owned(),
            })?;
            return Ok(Self::At(when.last));
        }
        check_snapshot_name(text)?;
        Ok(Self::Name(text.to_owned()))
    }
}

/// All kept snapshots of one root.
#[derive(Clone, Debug, Default)]
pub struct SnapshotList {
    shards: Vec<Arc<Vec<SnapshotEntry>>>,
}

impl SnapshotList {
    /// Returns the list of these shards.
    pub fn new(shards: Vec<Arc<Vec<SnapshotEntry>>>) -> Self {
        Self { shards }
    }

    /// Returns every snapshot, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &SnapshotEntry> {
        self.shards.iter().flat_map(|shard| shard.iter())
    }

    /// Returns the snapshots of a volume, oldest first.
    pub fn of_volume(&self, volume: &str) -> Vec<&SnapshotEntry> {
        let mut found: Vec<_> = self.iter().filter(|entry| entry.volume == volume).collect();
        found.sort_by_key(|entry| entry.age_order());
        found
    }

    /// Returns the snapshot of `volume` with this name.
    pub fn named(&self, volume: &str, name: &str) -> Option<&SnapshotEntry> {
        self.iter()
            .find(|entry| entry.volume == volume && entry.name == name)
    }

    /// Returns the newest snapshot that was the state of `volume`; recovered ones never were.
    pub fn latest(&self, volume: &str) -> Option<&SnapshotEntry> {
        self.at(volume, Timestamp::MAX)
    }

    /// Returns the newest of them at or before `time`.
    pub fn at(&self, volume: &str, time: Timestamp) -> Option<&SnapshotEntry> {
        let of_volume = self.iter().filter(|entry| entry.volume == volume);
        newest_of(of_volume.filter(|entry| entry.time <= time))
    }

    /// Returns the snapshot that `reference` names in `volume`.
    ///
    /// # Errors
    /// [`RootError::NoSnapshot`] if there is none.
    pub fn resolve(
        &self,
        volume: &str,
        reference: &SnapshotReference,
    ) -> Result<&SnapshotEntry, RootError> {
        let (found, text) = match reference {
            SnapshotReference::Name(name) => (self.named(volume, name), name.clone()),
            SnapshotReference::Latest => (self.latest(volume), LATEST.to_owned()),
            SnapshotReference::At(time) => (self.at(volume, *time), format!("@{time}")),
        };
        found.ok_or_else(|| RootError::NoSnapshot {
            name: text,
            volume: volume.to_owned(),
        })
    }
}

/// Returns the newest state of a volume among snapshots of it. Recovered snapshots are none.
pub fn newest_of<'a>(
    snapshots: impl Iterator<Item = &'a SnapshotEntry>,
) -> Option<&'a SnapshotEntry> {
    let states = snapshots.filter(|entry| !entry.recovered);
    states.max_by_key(|entry| entry.age_order())
}

impl SnapshotEntry {
    /// Orders the snapshots of a volume by age. Times never go back within a volume; the root's
    /// generation decides between equal times.
    fn age_order(&self) -> (Timestamp, u64) {
        (self.time, self.generation)
    }
}

impl Dated for SnapshotEntry {
    fn volume(&self) -> &str {
        &self.volume
    }

    fn host(&self) -> &str {
        &self.host
    }

    fn time(&self) -> Timestamp {
        self.time
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }

    fn is_recovered(&self) -> bool {
        self.recovered
    }
}

/// A request for a new snapshot.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NewSnapshot {
    /// Its name; `None` names it after its time.
    pub name: Option<String>,
    /// Name of the host.
    pub host: String,
    /// Name of the user.
    pub user: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// Current time of the host's clock.
    pub clock: Timestamp,
    /// True if its tree comes from the spool of a fenced machine, and was never the volume's state.
    pub recovered: bool,
    /// True if an older snapshot of the volume with this name goes to the trash.
    pub replaces: bool,
    /// When that one is forgotten; none for `clock`.
    pub replaced_at: Option<Timestamp>,
    /// The drill of the snapshot that it is a copy of.
    pub drill: Option<Drill>,
    /// The snapshot that it is a copy of.
    pub origin: Option<Origin>,
}

/// Checks that a new snapshot of `volume` may have this name and these tags. Without a name it will
/// be named after its time.
///
/// # Errors
/// [`RootError::NameTaken`] if a kept snapshot of the volume has the name; [`RootError::BadName`]
/// for a name or tag that is not allowed.
pub fn check_new(
    kept: &SnapshotList,
    volume: &str,
    name: Option<&str>,
    tags: &[String],
) -> Result<(), RootError> {
    let is_taken = |name: &&str| kept.named(volume, name).is_some();
    if let Some(name) = name.filter(is_taken).map(str::to_owned) {
        return Err(RootError::NameTaken { name });
    }
    check_words(name, tags)
}

/// Checks that a new snapshot may have this name and these tags, unless the name is taken.
///
/// # Errors
/// [`RootError::BadName`] for a name or tag that is not allowed.
pub fn check_words(name: Option<&str>, tags: &[String]) -> Result<(), RootError> {
    if let Some(name) = name {
        check_snapshot_name(name)?;
    }
    let refused = |word: &str, source| RootError::BadName {
        name: word.to_owned(),
        source,
    };
    let beyond = tags.iter().skip(TAGS_MAX);
    let long = tags.iter().filter(|tag| tag.len() > TAG_BYTES_MAX);
    if let Some(tag) = beyond.chain(long).next() {
        return Err(refused(tag, NameError::Length));
    }
    let words = tags.iter().map(String::as_str).chain(name);
    for word in words {
        check_printable(word).map_err(|source| refused(word, source))?;
    }
    Ok(())
}

/// Returns the entry of a new snapshot of `volume` in `next` (a root with its new generation).
/// `entry` is the volume to take, usually as its last commit left it.
///
/// # Errors
/// [`RootError::NameTaken`], [`RootError::BadName`] for a name or tag; [`RootError::Damaged`] if
/// the volume was never committed; a refusal if all numbers are taken.
pub fn new_entry(
    next: &Root,
    kept: &SnapshotList,
    trash: &[Arc<Vec<TrashEntry>>],
    (volume, entry): (&str, &Volume),
    request: &NewSnapshot,
) -> Result<SnapshotEntry, RootError> {
    let commit = entry.commit.ok_or_else(|| {
        RootError::damaged("root", format!("volume {volume:?} was never committed"))
    })?;
    let time = kept
        .latest(volume)
        .map_or(request.clock, |before| request.clock.max(before.time));
    let name = match &request.name {
        Some(name) => name.clone(),
        None => default_name(time, |name| kept.named(volume, name).is_some()),
    };
    match request.replaces {
        true => check_words(Some(&name), &request.tags)?,
        false => check_new(kept, volume, Some(&name), &request.tags)?,
    }
    let trashed = trash.iter().flat_map(|shard| shard.iter());
    let listed = kept.iter().chain(trashed.map(|entry| &entry.snapshot));
    let taken = taken_numbers(next.form, volume, listed);
    let number = free_number(next.next_snapshot, |number| taken.contains(number));
    let number = number.ok_or_else(|| no_number(next.form))?;
    Ok(SnapshotEntry {
        name,
        number,
        volume: volume.to_owned(),
        tree: entry.tree,
        commit,
        time,
        host: request.host.clone(),
        user: request.user.clone(),
        tags: request.tags.clone(),
        files: entry.inodes,
        bytes: entry.bytes,
        new_bytes: entry.unsnapshotted_bytes,
        generation: next.generation,
        recovered: request.recovered && next.chain.is_some(),
        rebuilt: false,
        drill: request.drill.clone(),
        origin: request.origin,
    })
}

#[cfg(test)]
impl SnapshotEntry {
    /// Returns an entry of a volume, with nothing in it, for tests.
    pub(crate) fn plain(volume: &str, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            number: 1,
            volume: volume.to_owned(),
            tree: None,
            commit: Id([0; 32]),
            time: Timestamp::UNIX_EPOCH,
            host: String::new(),
            user: String::new(),
            tags: Vec::new(),
            files: 0,
            bytes: 0,
            new_bytes: 0,
            generation: 1,
            recovered: false,
            rebuilt: false,
            drill: None,
            origin: None,
        }
    }
}

/// Returns the UTC time to the second, with a counter behind it if that name is taken.
pub(crate) fn default_name(time: Timestamp, taken: impl Fn(&str) -> bool) -> String {
    let seconds = Timestamp::new(time.as_second(), 0)
        .unwrap_or(time)
        .to_string();
    let mut name = seconds.clone();
    let mut count = 1;
    while taken(&name) {
        count += 1;
        name = format!("{seconds}-{count}");
    }
    name
}

/// Returns the refusal of a root of this form that has no number left for a snapshot.
pub(crate) fn no_number(form: Form) -> Refusal {
    let what = match form.numbers_by_volume() {
        true => "snapshots in one volume",
        false => "snapshots",
    };
    Refusal::Full { what }
}

/// Returns the numbers that a snapshot of `volume` cannot have in a root of this form, because some
/// of `listed` have them.
pub(crate) fn taken_numbers<'a>(
    form: Form,
    volume: &str,
    listed: impl Iterator<Item = &'a SnapshotEntry>,
) -> HashSet<u16> {
    listed
        .filter(|entry| !form.numbers_by_volume() || entry.volume == volume)
        .map(|entry| entry.number)
        .collect()
}

/// Returns the first number from `start` on, cyclically, that is neither 0 nor taken.
pub(crate) fn free_number(start: u16, is_taken: impl Fn(&u16) -> bool) -> Option<u16> {
    (0..=u16::MAX)
        .map(|step| start.wrapping_add(step))
        .find(|number| *number != 0 && !is_taken(number))
}

/// Returns the shards to write together with an entry that is about to be added. Below
/// [`SHARDS_MAX`] shards there are none. Else these are the smallest ones, up to the first that is
/// more than twice as large as all before it together (at least one, so that the number never
/// grows). Sizes then stay about geometric: of 20,000 snapshots made one by one, each is written 7
/// times.
pub fn shards_to_merge(refs: &[ListRef]) -> Vec<ListRef> {
    if refs.len() < SHARDS_MAX {
        return Vec::new();
    }
    let mut by_count = refs.to_vec();
    by_count.sort_by_key(|shard| shard.count);
    let mut sum = 1;
    let mut fits = |shard: &&ListRef| {
        let first = sum == 1;
        let fits = first || u64::from(shard.count) <= 2 * sum;
        sum += u64::from(shard.count);
        fits
    };
    let merged = by_count.iter().take_while(|shard| fits(shard)).count();
    by_count.truncate(merged.max(1));
    by_count
}
