//! Computes a new root from the remains of a repository. Pure.
//!
//! Owns the rules: which commit record may be a volume's last, which snapshots existed, which
//! sessions left journals to replay, and how far the new generation is above all generations ever
//! seen. [`super::repair`] reads the remains and writes the root.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use bkfs_chunker::crypto::RepositoryId;
use bkfs_chunker::id::Id;
use jiff::Timestamp;

use crate::root::chain::Chain;
use crate::root::form::Form;
use crate::root::record::CommitRecord;
use crate::root::sent::Sent;
use crate::root::snapshots::{SnapshotEntry, TrashEntry, default_name, free_number};
use crate::root::state::{HolderInfo, Root, Session, SessionId, SessionState, StateError, Volume};
use crate::root::transition::TAKING_SESSIONS_MAX;
use crate::root::volumes::is_scratch;

/// The least room that a rebuilt root must have to be a small one, in bytes of CBOR: for a session and
/// its first changes.
const ROOM_BYTES_MIN: usize = 1024;

/// Gap between the highest known generation and the new one, so that no machine has seen a higher
/// one. A million replacements are a year of one busy volume.
const GENERATION_GAP: u64 = 1_000_000;

/// The greatest generation that comes of a sum. One of records and lists has no such limit.
const ESTIMATE_MAX: u64 = 1 << 44;

/// A record with its id.
pub type Record = (Id, CommitRecord);

/// Returns the records of each volume, the best candidate for its last commit first: by number,
/// then by generation, then by time. Those of a volume that was removed come last, since with older
/// programs a later volume of the same name counts its commits from 1. Without a later one, the
/// removed volume comes back: nothing tells whether its removal was made. Scratch clones have none,
/// since they end with their holders.
pub fn candidates(records: &[Record]) -> BTreeMap<&str, Vec<&Record>> {
    let removals = removals(records).into_iter();
    let removals: Vec<Vec<&Record>> = removals.map(|tip| history(records, tip)).collect();
    let removed = removals.iter().flatten().map(|(id, _)| *id);
    let removed: HashSet<Id> = removed.collect();
    // A commit that was never made, or whose successor is lost, is in no history.
    let precedes_removal = |record: &CommitRecord| {
        let mut removals = removals.iter().filter_map(|history| history.first());
        removals.any(|(_, removal)| removal.volume == record.volume && is_before(record, removal))
    };
    let mut volumes: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records
        .iter()
        .filter(|(_, record)| !record.is_snapshot_only() && !is_scratch(&record.volume))
    {
        volumes.entry(&record.1.volume).or_default().push(record);
    }
    for records in volumes.values_mut() {
        let order = |record: &CommitRecord| {
            std::cmp::Reverse((record.sequence, record.generation, record.time))
        };
        let is_removed = |(id, record): &Record| removed.contains(id) || precedes_removal(record);
        records.sort_by_cached_key(|of| (is_removed(of), order(&of.1), of.0));
        records.dedup_by_key(|record| record.0);
    }
    volumes
}

/// Returns true if a record was made before another one, by the generations of the roots that their
/// sessions knew. Without these the clocks tell.
fn is_before(one: &CommitRecord, other: &CommitRecord) -> bool {
    match (one.generation, other.generation) {
        (Some(one), Some(other)) => one < other,
        _ => one.time < other.time,
    }
}

/// Returns the records that say that their volume was removed.
pub fn removals(records: &[Record]) -> Vec<Id> {
    let removals = records.iter().filter(|(_, record)| record.removes);
    removals.map(|(id, _)| *id).collect()
}

/// Returns the records from `tip` back along their parents, as far as they exist.
pub fn history(records: &[Record], tip: Id) -> Vec<&Record> {
    let by_id: HashMap<Id, &Record> = records.iter().map(|record| (record.0, record)).collect();
    let mut found: Vec<&Record> = Vec::new();
    let mut next = by_id.get(&tip).copied();
    while let Some(record) = next {
        found.push(record);
        // Numbers decrease at each step, so no chain is a loop.
        let parent = record
            .1
            .parent
            .and_then(|parent| by_id.get(&parent).copied());
        next = parent.filter(|parent| parent.1.sequence < record.1.sequence);
    }
    found
}

/// Returns the sessions whose journals the volume with this last commit must not have: those that
/// its commits before the last one have carried out, and those of a volume of its name that was
/// removed before. A volume is removed only when all its sessions have ended and their journals are
/// carried out.
///
/// The last commit may not have been made. Then a later holder may have acknowledged more of the
/// sessions that it carried out. A session that left `journals` had made its first commit before.
///
/// A session with a commit in the chain is not finished by a removal: that was never made then, or
/// records between them are lost.
pub fn finished(records: &[Record], tip: Id, journals: &BTreeSet<SessionId>) -> HashSet<SessionId> {
    let chain = history(records, tip);
    let carried = |(_, record): &&Record| {
        let replayed = record.replayed.iter().flatten();
        let sessions = replayed.map(|replayed| replayed.session);
        sessions.collect::<Vec<SessionId>>()
    };
    let (Some((_, last)), Some((_, first))) = (chain.first(), chain.last()) else {
        return HashSet::new();
    };
    let unproven = usize::from(!journals.contains(&last.session));
    let made = chain.iter().skip(unproven);
    let mut finished: HashSet<SessionId> = made.flat_map(carried).collect();
    if first.parent.is_some() {
        return finished;
    }
    let ids: HashSet<Id> = chain.iter().map(|(id, _)| *id).collect();
    let own: HashSet<SessionId> = chain.iter().map(|(_, record)| record.session).collect();
    for removal in removals(records) {
        let former = history(records, removal);
        let is_same = |(id, record): &&Record| ids.contains(id) || record.volume != last.volume;
        if !former.iter().any(is_same) {
            let sessions = former.iter().map(|(_, record)| record.session);
            let sessions = sessions.chain(former.iter().flat_map(carried));
            finished.extend(sessions.filter(|session| !own.contains(session)));
        }
    }
    finished
}

/// Snapshots that are known already, whose names and numbers are taken.
#[derive(Clone, Debug)]
pub struct Taken {
    form: Option<Form>,
    names: HashSet<(String, String)>,
    numbers: Numbers,
    /// Numbers of snapshots that may be added.
    spared: Numbers,
    /// The number that is tried next for a snapshot that needs one.
    next: u16,
    commits: HashSet<Id>,
}

impl Taken {
    /// Returns no snapshots. `root` lists those that are added. If there is none yet, its form is not
    /// decided, and snapshots of two volumes have one number only if there are too few.
    pub fn new(root: Option<&Root>) -> Self {
        Self {
            form: root.map(|root| root.form),
            names: HashSet::new(),
            numbers: Numbers::default(),
            spared: Numbers::default(),
            next: root.map_or(1, |root| root.next_snapshot),
            commits: HashSet::new(),
        }
    }

    /// Returns `entries`, which a root lists whose form is not decided yet.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a SnapshotEntry>) -> Self {
        let mut taken = Self::new(None);
        entries.into_iter().for_each(|entry| taken.take(entry));
        taken
    }

    /// Gives the numbers of `entries` to other snapshots only if no other ones are free: they may be
    /// added themselves.
    pub fn spare<'a>(&mut self, entries: impl IntoIterator<Item = &'a SnapshotEntry>) {
        let entries = entries.into_iter();
        entries.for_each(|entry| self.spared.insert(entry));
    }

    /// Adds an existing snapshot.
    pub fn take(&mut self, entry: &SnapshotEntry) {
        self.names
            .insert((entry.volume.clone(), entry.name.clone()));
        self.numbers.insert(entry);
        self.commits.insert(entry.commit);
    }

    /// Returns true if snapshots of two volumes have one number, so that only a large root may list
    /// them.
    pub fn shares_numbers(&self) -> bool {
        let in_volumes: usize = self.numbers.of_volumes.values().map(HashSet::len).sum();
        in_volumes > self.numbers.all.len()
    }

    /// Adds a snapshot that is to be listed, and returns it with a free number and whether its name
    /// was taken. `None` if its commit is listed already, or all numbers are taken.
    pub fn admit(&mut self, mut entry: SnapshotEntry) -> Option<(SnapshotEntry, bool)> {
        if self.commits.contains(&entry.commit) {
            return None;
        }
        let is_by_volume = match self.form {
            Some(form) => form.numbers_by_volume(),
            None => self.numbers.all.len() >= usize::from(u16::MAX),
        };
        let volume = is_by_volume.then_some(entry.volume.as_str());
        let (taken, spared) = (self.numbers.of(volume), self.spared.of(volume));
        let is_taken = |number: &u16| taken.is_some_and(|taken| taken.contains(number));
        if entry.number == 0 || is_taken(&entry.number) {
            let is_known = |number: &u16| spared.is_some_and(|spared| spared.contains(number));
            let is_spared = |number: &u16| is_taken(number) || is_known(number);
            let unknown = free_number(self.next, is_spared);
            entry.number = unknown.or_else(|| free_number(self.next, is_taken))?;
            self.next = entry.number.wrapping_add(1);
        }
        let name = (entry.volume.clone(), entry.name.clone());
        let is_taken = self.names.contains(&name);
        self.take(&entry);
        Some((entry, is_taken))
    }

    /// Returns the number that a root tries next.
    pub fn next_number(&self) -> u16 {
        let last = self.numbers.all.iter().max();
        last.map_or(1, |last| last.wrapping_add(1))
    }
}

/// Numbers of snapshots.
#[derive(Clone, Debug, Default)]
struct Numbers {
    all: HashSet<u16>,
    of_volumes: HashMap<String, HashSet<u16>>,
}

impl Numbers {
    fn insert(&mut self, entry: &SnapshotEntry) {
        self.all.insert(entry.number);
        let of_volume = self.of_volumes.entry(entry.volume.clone()).or_default();
        of_volume.insert(entry.number);
    }

    /// Returns the numbers of the snapshots of `volume`, or of all (none).
    fn of(&self, volume: Option<&str>) -> Option<&HashSet<u16>> {
        match volume {
            Some(volume) => self.of_volumes.get(volume),
            None => Some(&self.all),
        }
    }
}

/// Returns the least generation with which each record of a volume's `history` (newest first) can
/// have been committed, given those that are `known`: each commit takes one more. Rebuilt snapshots
/// are then in order between their neighbours, and before all later ones. A record outside the
/// chain comes right after the commit that it follows.
pub fn generations(history: &[&Record], known: &HashMap<Id, u64>) -> HashMap<Id, u64> {
    let mut found: HashMap<Id, u64> = HashMap::new();
    let (mut sequence, mut last) = (0, 0);
    let chain = history.iter().rev();
    for (id, record) in chain
        .clone()
        .filter(|(_, record)| !record.is_snapshot_only())
    {
        let least = record
            .sequence
            .saturating_sub(sequence)
            .saturating_add(last);
        last = known.get(id).copied().unwrap_or(least).max(least);
        sequence = record.sequence;
        found.insert(*id, last);
    }
    for (id, record) in chain.filter(|(_, record)| record.is_snapshot_only()) {
        let before = record.parent.and_then(|parent| found.get(&parent).copied());
        let least = before.map_or(0, |before| before.saturating_add(1));
        found.insert(*id, known.get(id).copied().unwrap_or(least));
    }
    found
}

/// Returns the snapshots of a volume's `history` that are not `taken`, newest first; of two with
/// one name the older one goes to the trash. `listed` are entries of the remaining lists, with
/// numbers that records lack. `generations` has the generations of the others. Forgotten snapshots
/// become kept ones.
pub fn snapshots(
    history: &[&Record],
    listed: &[SnapshotEntry],
    generations: &HashMap<Id, u64>,
    taken: &mut Taken,
) -> (Vec<SnapshotEntry>, Vec<TrashEntry>) {
    let by_commit: HashMap<Id, &SnapshotEntry> =
        listed.iter().map(|entry| (entry.commit, entry)).collect();
    let (mut kept, mut trash) = (Vec::new(), Vec::new());
    for (id, record) in history {
        if taken.commits.contains(id) {
            continue;
        }
        let entry = match (by_commit.get(id), &record.snapshot) {
            (Some(entry), _) => (*entry).clone(),
            (None, Some(_)) => SnapshotEntry {
                generation: generations.get(id).copied().unwrap_or(record.sequence),
                ..entry_of(*id, record, taken)
            },
            (None, None) => continue,
        };
        match taken.admit(entry) {
            Some((entry, false)) => kept.push(entry),
            Some((entry, true)) => trash.push(TrashEntry {
                forgotten: entry.time,
                snapshot: entry,
            }),
            None => break,
        }
    }
    (kept, trash)
}

/// Returns the entry of a snapshot from its record alone.
fn entry_of(id: Id, record: &CommitRecord, taken: &Taken) -> SnapshotEntry {
    let asked = record.snapshot.clone();
    let (mut name, mut host, mut user, mut tags) = Default::default();
    if let Some(asked) = asked {
        (name, host, user, tags) = (asked.name, asked.host, asked.user, asked.tags);
    }
    let is_taken = |name: &str| {
        let key = (record.volume.clone(), name.to_owned());
        taken.names.contains(&key)
    };
    SnapshotEntry {
        name: name.unwrap_or_else(|| default_name(record.time, is_taken)),
        number: 0,
        volume: record.volume.clone(),
        tree: record.tree,
        commit: id,
        time: record.time,
        host,
        user,
        tags,
        files: record.inodes,
        bytes: record.bytes,
        new_bytes: 0,
        generation: record.sequence,
        recovered: record.is_snapshot_only(),
        rebuilt: false,
        drill: None,
        origin: None,
    }
}

/// A session that left journals, with its volume.
pub type Left = (String, SessionId);

/// Operations that a machine sent in a session without any journal left, and that no record covers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Missed {
    /// The session.
    pub session: SessionId,
    /// The volume of its commits; `None` if it made none.
    pub volume: Option<String>,
    /// The last operation that a record covers; 0 for none.
    pub covered: u64,
    /// The last operation that the store acknowledged.
    pub sent: u64,
}

impl fmt::Display for Missed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (session, first, last) = (self.session, self.covered + 1, self.sent);
        write!(
            formatter,
            "operations {first} to {last} of session {session}, which the store took from this \
             machine, are in no journal and in no commit"
        )?;
        match &self.volume {
            Some(volume) => write!(formatter, " (volume {volume})"),
            None => Ok(()),
        }
    }
}

/// Returns the sessions in `sent`, this machine's memory, that are missing as a whole. Sessions
/// with `journals` are compared when those are read.
pub fn missed(
    records: &[Record],
    journals: &BTreeSet<Left>,
    sent: &[(SessionId, Sent)],
) -> Vec<Missed> {
    let has_journals = |id: &SessionId| journals.iter().any(|(_, session)| session == id);
    let mut found = Vec::new();
    for (id, sent) in sent.iter().filter(|(id, _)| !has_journals(id)) {
        let own = records.iter().map(|(_, record)| record);
        let own = own.filter(|record| record.session == *id);
        let replayed = records
            .iter()
            .filter_map(|(_, record)| record.replayed.as_ref());
        let replayed = replayed
            .flatten()
            .filter(|replayed| replayed.session == *id);
        let carried = replayed.map(|replayed| replayed.last).max();
        let covered = own.clone().map(|record| record.covered).max();
        let missed = Missed {
            session: *id,
            volume: own.map(|record| record.volume.clone()).next(),
            covered: covered.max(carried).unwrap_or(0),
            sent: sent.last,
        };
        if missed.sent > missed.covered {
            found.push(missed);
        }
    }
    found
}

/// Input for a new root.
#[derive(Clone, Debug)]
pub struct Remains<'a> {
    /// Id of the repository.
    pub repository: RepositoryId,
    /// Fresh random bytes.
    pub nonce: [u8; 16],
    /// All commit records.
    pub records: &'a [Record],
    /// The last commit of each volume.
    pub tips: &'a BTreeMap<String, Id>,
    /// Sessions with journals.
    pub journals: &'a BTreeSet<Left>,
    /// The highest epoch in any heartbeat.
    pub epoch: u64,
    /// The highest generation in this machine's memory or any list.
    pub seen: u64,
    /// True if snapshots of two volumes have one number.
    pub shares_numbers: bool,
}

/// Returns the new root, without lists and index objects, and the volumes that it has no room for.
/// Sessions that left journals are ended in it, so that the next holder of their volume replays
/// them. All others are absent, and find themselves fenced.
///
/// Volumes take at most half of a root. Removed ones are left out first: those without journals, the
/// oldest before all, then those with some. The root is a large one if a small one would leave out
/// any with journals, have no room for sessions that carry those out, or have too few numbers for
/// the snapshots.
pub fn root(remains: &Remains<'_>) -> (Root, Vec<String>) {
    let (mut root, left_out) = root_in(Form::Small, remains);
    let leaves_journals = left_out.iter().any(|(has_journals, _)| *has_journals);
    let is_small = !leaves_journals && !remains.shares_numbers;
    let (root, left_out) = match !is_small || enlarge(&mut root) {
        true => root_in(Form::Large, remains),
        false => (root, left_out),
    };
    (root, left_out.into_iter().map(|(_, name)| name).collect())
}

/// Returns the root in this form, and the volumes that it leaves out, each with whether it has
/// journals.
fn root_in(form: Form, remains: &Remains<'_>) -> (Root, Vec<(bool, String)>) {
    let mut root = Root::new(remains.repository, remains.nonce);
    root.form = form;
    let by_id: HashMap<Id, &CommitRecord> = remains
        .records
        .iter()
        .map(|(id, record)| (*id, record))
        .collect();
    let mut commits = 0u64;
    let mut removed = Vec::new();
    for (volume, tip) in remains.tips {
        let Some(record) = by_id.get(tip) else {
            continue;
        };
        commits = commits.saturating_add(record.sequence);
        let entry = Volume {
            tree: record.tree,
            holder: None,
            sequence: record.sequence,
            commit: Some(*tip),
            next_inode: record.next_inode,
            inodes: record.inodes,
            bytes: record.bytes,
            unsnapshotted_bytes: 0,
            building: None,
        };
        root.volumes.insert(volume.clone(), entry);
        if record.removes {
            // A removal whose commit was never made leaves the journals of a living volume.
            let first = (volume.clone(), SessionId(0));
            let mut journals = remains.journals.range(first..);
            let has_journals = journals.next().is_some_and(|left| left.0 == *volume);
            removed.push((has_journals, record.time, volume));
        }
    }
    root.generation = generation(remains, commits);
    // Its ancestors are unknown: machines that remember a root ask the user before they go on.
    root.chain = Some(Chain::new(root.generation, Some(remains.seen)));
    root.epoch = remains.epoch.max(1) + 1;
    let left_out = make_room(&mut root, removed);
    root.sessions = ended_sessions(remains, &root);
    (root, left_out)
}

/// Takes removed volumes out of a root until the root takes no more than half of the bytes that it
/// may have. `removed` has them with whether they left journals and the times of their removals, by
/// which they are ordered. Returns those that it has taken out, each with whether it has journals.
fn make_room(root: &mut Root, mut removed: Vec<(bool, Timestamp, &String)>) -> Vec<(bool, String)> {
    removed.sort();
    let mut left_out = Vec::new();
    for (has_journals, _, volume) in removed {
        let room = root.room();
        if room.is_ok_and(|room| room >= root.bytes_max() / 2) {
            break;
        }
        root.volumes.remove(volume);
        left_out.push((has_journals, volume.clone()));
    }
    left_out
}

/// Makes a rebuilt root a large one if a small one has no room for it and for sessions that carry its
/// journals out. Returns whether it did.
pub fn enlarge(root: &mut Root) -> bool {
    let has_room = match root.room() {
        Ok(bytes) => {
            let places = root.sessions_max() + TAKING_SESSIONS_MAX;
            bytes >= ROOM_BYTES_MIN && root.sessions.len() < places
        }
        Err(StateError::TooLarge { .. }) => false,
        // A large root would be no better.
        Err(_) => true,
    };
    let is_needed = root.form == Form::Small && !has_room;
    if is_needed {
        root.form = Form::Large;
    }
    is_needed
}

/// Returns a generation above all that are known, and above that of the lost root. `commits` is the
/// sum of the numbers of the last commits: old volumes count from 1, and each commit took at least
/// one generation. Newer ones begin with a generation, so the sum would grow with each repair.
fn generation(remains: &Remains<'_>, commits: u64) -> u64 {
    let records = remains.records.iter().map(|(_, record)| record);
    let numbers = records.map(|record| record.sequence.max(record.generation.unwrap_or(0)));
    let known = numbers.fold(remains.seen, u64::max);
    let estimate = known.max(commits).saturating_mul(2);
    let base = match estimate <= ESTIMATE_MAX {
        true => estimate,
        false => known.saturating_add(known / 2),
    };
    base.saturating_add(GENERATION_GAP)
}

/// Returns the sessions that left journals, in the order of their commits; those without a commit
/// come last.
fn ended_sessions(remains: &Remains<'_>, root: &Root) -> BTreeMap<SessionId, Session> {
    let mut left: Vec<(u64, u64, &Left)> = Vec::new();
    for session in remains.journals {
        let tip = remains.tips.get(&session.0);
        let Some(tip) = tip.filter(|_| root.volumes.contains_key(&session.0)) else {
            continue;
        };
        let chain = history(remains.records, *tip);
        let own = chain
            .iter()
            .filter(|(_, record)| record.session == session.1);
        let order = own.clone().map(|(_, record)| record.sequence).max();
        let carried = chain.iter().flat_map(|(_, record)| &record.replayed);
        let carried = carried.flatten().filter(|of| of.session == session.1);
        let carried = carried.map(|replayed| replayed.last).max();
        let covered = own.map(|(_, record)| record.covered).max().max(carried);
        left.push((order.unwrap_or(u64::MAX), covered.unwrap_or(0), session));
    }
    left.sort();
    let ended = left.into_iter().enumerate();
    let ended = ended.map(|(order, (_, covered, (volume, id)))| {
        let session = Session {
            state: SessionState::Ending,
            floor: 0,
            volume: Some(volume.clone()),
            registered_epoch: root.epoch,
            covered,
            holder: HolderInfo::default(),
            claimed_generation: order as u64 + 1,
            covered_journal: None,
            spool: None,
        };
        (*id, session)
    });
    ended.collect()
}
