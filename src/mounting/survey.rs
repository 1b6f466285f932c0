//! What of a dead session's spool can be brought into the bucket, and what of it is damaged.
//!
//! Owns the judgement, which changes nothing: each journal of the spool is read, so that it is
//! known which packs are needed; each pack is read, so that it is known whether it is whole; and
//! the bucket is asked for what the spool does not have. Does not own what is done then
//! (`spooling`).
//!
//! What lies in a spool under the name of an object was flushed, so it may have been acknowledged.
//! A crash leaves packs there that no journal names, and journals whose packs are all there or in
//! the bucket. So anything else is damage: a journal that is not whole, or is missing while a later
//! one is there, and a pack that is neither whole here nor in the bucket while a journal names
//! it. What commits cover is needed no more. The bucket is asked after the session's process has
//! ended.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use bkfs_chunker::ingest::NamedPack;
use bkfs_chunker::pack::PackName;
use bkfs_chunker::spool::{LeftObject, Leftover, SpoolError};
use futures::{StreamExt, TryStreamExt};

use crate::mounting::error::SpoolingError;
use crate::root::error::RootError;
use crate::root::handle::RootHandle;
use crate::root::journal::{JournalEntry, JournalSummary};
use crate::root::kept::{Covered, journal_number};

/// Packs read at the same time, each in memory as a whole.
const READ_AT_ONCE: usize = 4;

/// Questions to the bucket at the same time.
const ASKED_AT_ONCE: usize = 16;

/// Progress of a survey. Other tasks may read it.
#[derive(Debug, Default)]
pub(super) struct SurveyProgress {
    /// Files that were read.
    pub(super) files: AtomicU64,
    /// Their bytes.
    pub(super) bytes: AtomicU64,
}

impl SurveyProgress {
    fn add(&self, object: &LeftObject) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(object.length, Ordering::Relaxed);
    }
}

/// What of a spool can be brought, in the order of arrival.
#[derive(Debug)]
pub(super) struct Survey<'a> {
    /// All of it, if nothing is damaged; else what comes before the first damage.
    pub(super) objects: Vec<&'a LeftObject>,
    /// The last operation in its journals; 0 if there is none.
    pub(super) last: u64,
    /// The first damage.
    pub(super) damage: Option<Damage>,
}

/// What a spool has lost that was acknowledged.
#[derive(Clone, Debug)]
pub(super) enum Damage {
    /// A journal cannot be read.
    Journal {
        /// Its file.
        path: String,
        /// Why.
        why: String,
    },
    /// A journal is nowhere, and a later one is in the spool.
    NoJournal {
        /// Its key.
        key: String,
        /// The file of the first later one in the spool.
        next: String,
    },
    /// A pack is not whole.
    Pack {
        /// Its file; its key if there is none.
        path: String,
        /// Whether there is a file.
        is_there: bool,
        /// The file of the journal that names it.
        journal: String,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Journal { path, why } => write!(formatter, "the journal {path} {why}"),
            Self::NoJournal { key, next } => write!(
                formatter,
                "the journal {key}, which {next} follows, is neither in it nor in the bucket"
            ),
            Self::Pack {
                path,
                is_there: true,
                journal,
            } => write!(
                formatter,
                "the pack {path} is damaged, the bucket does not have it, and the journal \
                 {journal} needs it"
            ),
            Self::Pack {
                path,
                is_there: false,
                journal,
            } => write!(
                formatter,
                "the pack {path} is neither in it nor in the bucket, and the journal {journal} \
                 needs it"
            ),
        }
    }
}

/// A journal that is kept in the spool.
struct KeptJournal<'a> {
    object: &'a LeftObject,
    /// Its operations, or why it cannot be read.
    read: Result<JournalSummary, String>,
}

impl KeptJournal<'_> {
    fn path(&self) -> String {
        self.object.path().display().to_string()
    }
}

/// Judges a spool of a session of whose journals commits have `covered`. Changes nothing.
///
/// # Errors
/// `Spool` if the disk fails; `Root` if the store does.
pub(super) async fn survey<'a>(
    left: &'a Leftover,
    handle: &RootHandle,
    covered: Covered,
    progress: &SurveyProgress,
) -> Result<Survey<'a>, SpoolingError> {
    let named = left.named();
    let mut packs = NamedPacks::default();
    let journals = read_journals(left, handle, covered, &mut packs, progress).await?;
    let whole = whole_packs(left, named, progress).await?;
    let judge = Judge {
        named,
        handle,
        covered,
        journals,
        packs,
        whole,
    };
    let first = judge.first_damage().await?;
    let (end, damage) = match first {
        Some((number, damage)) => (number, Some(damage)),
        None => (u64::MAX, None),
    };
    Ok(Survey {
        objects: judge.before(end),
        last: judge.last(),
        damage,
    })
}

/// The packs that journals name, and the lowest numbers of these journals. Successive journals name
/// mostly the same packs, so that one list for each would grow with the square.
#[derive(Default)]
struct NamedPacks(HashMap<PackName, Needed>);

struct Needed {
    pack: NamedPack,
    /// The first journal that names it.
    by: u64,
    /// The first one that commits do not cover.
    by_uncovered: Option<u64>,
}

impl NamedPacks {
    /// Adds those of a journal, and returns its operations.
    fn add(&mut self, number: u64, entry: &JournalEntry, covered: Covered) -> JournalSummary {
        let summary = entry.summary();
        let uncovered = (summary.last > covered.operation).then_some(number);
        for pack in entry.packs().own {
            let needed = self.0.entry(pack.name).or_insert(Needed {
                pack,
                by: number,
                by_uncovered: None,
            });
            needed.by = needed.by.min(number);
            let both = needed
                .by_uncovered
                .zip(uncovered)
                .map(|(one, other)| one.min(other));
            needed.by_uncovered = both.or(needed.by_uncovered).or(uncovered);
        }
        summary
    }
}

/// The journals by their numbers. Of several files with the same key a whole one counts.
async fn read_journals<'a>(
    left: &'a Leftover,
    handle: &RootHandle,
    covered: Covered,
    packs: &mut NamedPacks,
    progress: &SurveyProgress,
) -> Result<BTreeMap<u64, KeptJournal<'a>>, SpoolError> {
    let mut found: BTreeMap<u64, KeptJournal<'a>> = BTreeMap::new();
    for object in left.named() {
        let Some(number) = journal_number(&object.key) else {
            continue;
        };
        // One after the other: what it says is not kept in memory.
        let read = match left.read(object).await? {
            Some(bytes) => handle
                .read_kept(&object.key, &bytes)
                .map(|entry| packs.add(number, &entry, covered))
                .map_err(|error| format!("cannot be read ({error})")),
            None => Err("is damaged".to_owned()),
        };
        progress.add(object);
        let is_better = found.get(&number).is_none_or(|other| other.read.is_err());
        if is_better {
            found.insert(number, KeptJournal { object, read });
        }
    }
    Ok(found)
}

/// Those files of a spool that are no journals and are whole.
async fn whole_packs<'a>(
    left: &Leftover,
    named: &'a [LeftObject],
    progress: &SurveyProgress,
) -> Result<HashMap<&'a str, &'a LeftObject>, SpoolError> {
    let packs = named.iter().filter(|object| !is_journal(object));
    let reads = packs.map(|object| async move {
        let read = left.read(object).await?;
        progress.add(object);
        Ok::<_, SpoolError>(read.map(|_| (object.key.as_str(), object)))
    });
    let found: Vec<_> = futures::stream::iter(reads.collect::<Vec<_>>())
        .buffered(READ_AT_ONCE)
        .try_collect()
        .await?;
    Ok(found.into_iter().flatten().collect())
}

fn is_journal(object: &LeftObject) -> bool {
    journal_number(&object.key).is_some()
}

/// What is known of a spool.
struct Judge<'a, 'b> {
    named: &'a [LeftObject],
    handle: &'b RootHandle,
    covered: Covered,
    journals: BTreeMap<u64, KeptJournal<'a>>,
    packs: NamedPacks,
    /// Whole files that are no journals, by key.
    whole: HashMap<&'a str, &'a LeftObject>,
}

impl<'a> Judge<'a, '_> {
    /// The number of the first journal that cannot be carried out, and why.
    async fn first_damage(&self) -> Result<Option<(u64, Damage)>, RootError> {
        let absent = self.absent_packs().await?;
        let mut previous = None;
        for (number, journal) in &self.journals {
            let Ok(read) = &journal.read else {
                if let Some(damage) = self.unreadable(*number, journal).await? {
                    return Ok(Some((*number, damage)));
                }
                continue;
            };
            if read.last <= self.covered.operation {
                continue;
            }
            let before = previous.replace(*number);
            if let Some(key) = self.missing_before(*number, before, journal).await? {
                let next = journal.path();
                return Ok(Some((*number, Damage::NoJournal { key, next })));
            }
            if let Some(key) = absent.get(number) {
                return Ok(Some((*number, self.lost_pack(key.clone(), journal))));
            }
        }
        Ok(None)
    }

    /// What a journal that cannot be read means: nothing if it is covered or has arrived.
    async fn unreadable(
        &self,
        number: u64,
        journal: &KeptJournal<'_>,
    ) -> Result<Option<Damage>, RootError> {
        let mut later = self.journals.range(number..).filter_map(|(_, journal)| {
            let read = journal.read.as_ref();
            read.ok().map(|read| read.first)
        });
        let follows_covered = later.any(|first| self.follows_commits(first));
        let is_covered = self.covered.journal.is_some_and(|last| number <= last) || follows_covered;
        let key = &journal.object.key;
        if is_covered || self.handle.landed_journal(key).await?.is_some() {
            return Ok(None);
        }
        let path = journal.path();
        let why = journal.read.as_ref().err().cloned().unwrap_or_default();
        Ok(Some(Damage::Journal { path, why }))
    }

    /// The key of the last needed journal between `before`, the last uncovered one of the spool, and
    /// `number` that the bucket does not have. If the root does not say which journals commits
    /// cover, and there is none in the spool, only the one right before `number` is asked for:
    /// others may be covered and deleted.
    async fn missing_before(
        &self,
        number: u64,
        before: Option<u64>,
        journal: &KeptJournal<'_>,
    ) -> Result<Option<String>, RootError> {
        let first = journal.read.as_ref().map_or(0, |read| read.first);
        let after = self.covered.journal.max(before).unwrap_or(0);
        if number <= after.saturating_add(1) || self.follows_commits(first) {
            return Ok(None);
        }
        let (below, _) = (journal.object.key.rsplit_once('/')).unwrap_or_default();
        let key_of = |number: u64| format!("{below}/{number:016x}");
        let says_which = self.covered.journal.is_some() || self.covered.operation == 0;
        let is_known = says_which || before.is_some();
        let from = if is_known { after + 1 } else { number - 1 };
        let asked = (from..number).map(|number| async move {
            let is_there = self.handle.length_of(&key_of(number)).await?.is_some();
            Ok::<_, RootError>((!is_there).then_some(number))
        });
        let asked = futures::stream::iter(asked).buffered(ASKED_AT_ONCE);
        let missing = asked.try_fold(None, async |last, missing| Ok(missing.or(last)));
        let Some(missing) = missing.await? else {
            return Ok(None);
        };
        // A commit may cover more journals than the root says: those that were settled after it
        // began.
        if missing + 1 < number {
            let next = self.handle.landed_journal(&key_of(missing + 1)).await?;
            if next.is_some_and(|next| self.follows_commits(next.first)) {
                return Ok(None);
            }
        }
        Ok(Some(key_of(missing)))
    }

    /// Whether commits cover every operation before this one.
    fn follows_commits(&self, first: u64) -> bool {
        first <= self.covered.operation + 1
    }

    /// The packs that uncovered journals need and that are neither whole here nor in the bucket: of
    /// each journal that is the first to name one, the key of one.
    async fn absent_packs(&self) -> Result<BTreeMap<u64, String>, RootError> {
        let wanted = self.packs.0.values().filter_map(|needed| {
            let (key, by) = (needed.pack.key(), needed.by_uncovered?);
            let is_here = self.whole.contains_key(key.as_str());
            (!is_here).then_some((by, key, needed.pack.length))
        });
        let asked = wanted.map(|(by, key, length)| async move {
            let is_there = self.handle.length_of(&key).await? == Some(length);
            Ok::<_, RootError>((!is_there).then_some((by, key)))
        });
        let absent: Vec<_> = futures::stream::iter(asked.collect::<Vec<_>>())
            .buffer_unordered(ASKED_AT_ONCE)
            .try_collect()
            .await?;
        Ok(absent.into_iter().flatten().collect())
    }

    fn lost_pack(&self, key: String, journal: &KeptJournal<'_>) -> Damage {
        let mut objects = self.named.iter();
        let file = objects.find(|object| object.key == key);
        Damage::Pack {
            is_there: file.is_some(),
            path: file.map_or(key, |file| file.path().display().to_string()),
            journal: journal.path(),
        }
    }

    /// The last operation in the journals that can be read; 0 if there is none.
    fn last(&self) -> u64 {
        let read = self.journals.values();
        let read = read.filter_map(|journal| journal.read.as_ref().ok());
        read.map(|read| read.last).max().unwrap_or(0)
    }

    /// What is whole and comes before the journal of this number, or is needed by those that do.
    fn before(&self, end: u64) -> Vec<&'a LeftObject> {
        let sent = self.journals.range(..end);
        let readable = sent.filter(|(_, journal)| journal.read.is_ok());
        let journals: HashSet<&LeftObject> = readable.map(|(_, journal)| journal.object).collect();
        let needed = self.packs.0.values().filter(|needed| needed.by < end);
        let needed: HashSet<String> = needed.map(|needed| needed.pack.key()).collect();
        let last = self
            .named
            .iter()
            .rposition(|object| journals.contains(object));
        let last = last.map_or(0, |last| last + 1);
        let objects = self.named.iter().enumerate();
        let objects = objects.filter(|(place, object)| match is_journal(object) {
            true => journals.contains(object),
            false => {
                let is_whole = self.whole.get(object.key.as_str()) == Some(object);
                is_whole && (*place < last || needed.contains(&object.key))
            }
        });
        objects.map(|(_, object)| object).collect()
    }
}
