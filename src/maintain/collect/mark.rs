//! Marking: from a root to all needed blobs. Reads metadata packs and nothing else
//! (docs/PROTOCOL.md, rule 8a).
//!
//! Owns the walk. Writes nothing. A later call, with a newer root or a pack that stays after all,
//! adds to the marks and costs only the difference, but only within an epoch. Another collector
//! moves needed blobs to new packs, and references were followed to the old ones: so a root of
//! another epoch is marked from the beginning.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use bkfs_chunker::catalog::{IndexRef, IndexSources, PackLocation};
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::{Id, Kind, Prefix};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{Found, PackContents, PackDamage, Verifier};
use futures::{StreamExt, TryStreamExt};

use super::super::workspace::Workspace;
use super::super::workspace::questions::{QUESTIONS_MAX, Questions};
use super::doubt::Doubt;
use super::expiry::Expiry;
use super::leaves::{Rule, mark_copies};
use super::marks::Marks;
use super::references::{Below, PackReferences, References};
use super::sightings::Vanished;
use crate::root::error::RootError;
use crate::root::lists::Lists;
use crate::root::record::CommitRecord;
use crate::root::shard::ListRef;
use crate::root::state::{RecoveryBase, Root, SessionId};
use crate::volume::rescue::below;

/// Index objects read at the same time. One of 32 MiB takes about 160 MiB until its packs are known.
const INDEXES_AT_ONCE: usize = 1;

/// Metadata packs read at the same time, each within the verifier's budget.
const PACKS_AT_ONCE: usize = 4;

/// Advice for a needed object that cannot be read.
pub const WAY_OUT: &str = "bkfs check names the snapshots that need it; if nothing brings it back, \
    bkfs forget them, and bkfs check --repair --give-up-forgotten gives them up";

/// Returns the references of an object in a metadata pack. Records refer weakly to their parent, if
/// it exists, so that a lost root can be rebuilt from the chain.
fn refers_to(blob: &Found) -> Below {
    match blob.kind {
        Kind::Commit => {
            let parent = CommitRecord::decode(&blob.bytes)?.parent;
            Ok(parent
                .map(|parent| (Kind::Commit, parent))
                .into_iter()
                .collect())
        }
        kind => below(kind, &blob.bytes),
    }
}

/// Marks the blobs that roots need.
pub struct Marker {
    /// Reads packs and index objects, from the bucket and never from a cache.
    pub verifier: Arc<Verifier>,
    /// Looks blobs up in the index of the latest root.
    pub content_store: ContentStore,
    /// Loads lists.
    pub lists: Lists,
    /// Marks so far.
    pub marks: Marks,
    /// Live packs of the latest root.
    pub live: HashSet<PackName>,
    /// Decides which forgotten snapshots expire.
    pub expiry: Expiry,
    /// Needed objects that no list names: those of vanished snapshots.
    pub vanished: Vec<Vanished>,
    /// Set while the condemned packs are not known.
    pub doubt: Option<Doubt>,
    /// In doubt: marks of the root alone, before those beyond rule 3.
    firm: Option<Marks>,
    /// In doubt: heads of the root for which rule 3 may not hold.
    unproven: Vec<(Kind, Id)>,
    /// Known damage in the latest root.
    quarantine: HashSet<PackLocation>,
    /// Metadata packs of the index, to be walked.
    metadata: HashMap<PackName, PackContents>,
    known: HashSet<PackName>,
    held: HashMap<PackName, Vec<PackName>>,
    /// References that were read in metadata packs and not followed so far.
    references: References,
    /// Needed chunks whose copies are not marked so far.
    leaves: Questions,
    /// Metadata packs that were read.
    pub packs_read: u64,
    /// The epoch of the marked roots.
    epoch: Option<u64>,
}

/// Returns the error for a needed blob that has no copy.
fn missing(kind: Kind, blob: &dyn fmt::Display) -> RootError {
    let what =
        format!("{kind:?} {blob} is needed and in no live pack: nothing was collected; {WAY_OUT}");
    RootError::damaged("the repository", what)
}

/// Whether a pack belongs to a session of the root, at or above its floor. Such a pack is never
/// garbage (rules 2 and 8).
pub fn is_own(root: &Root, pack: &PackName) -> bool {
    let session = root.sessions.get(&SessionId(pack.session));
    session.is_some_and(|session| pack.sequence >= session.floor)
}

impl Marker {
    /// Returns a marker without marks.
    pub fn new(
        verifier: Arc<Verifier>,
        content_store: ContentStore,
        lists: Lists,
        expiry: Expiry,
        workspace: Workspace,
    ) -> Self {
        Self {
            verifier,
            content_store,
            lists,
            marks: Marks::default(),
            live: HashSet::new(),
            expiry,
            vanished: Vec::new(),
            doubt: None,
            firm: None,
            unproven: Vec::new(),
            quarantine: HashSet::new(),
            metadata: HashMap::new(),
            known: HashSet::new(),
            held: HashMap::new(),
            references: References::default(),
            leaves: Questions::new(workspace),
            packs_read: 0,
            epoch: None,
        }
    }

    /// Step `CollectMark`. Marks everything that `root` needs. Reads nothing again that it read for
    /// another root of the same epoch.
    ///
    /// # Errors
    /// `Damaged` if a needed object is in no live pack, or cannot be read: nothing may be collected
    /// then. Store errors.
    pub async fn mark(&mut self, root: &Root) -> Result<(), RootError> {
        if self.epoch != Some(root.epoch) {
            self.start_over();
            self.epoch = Some(root.epoch);
        }
        if let Some(firm) = self.firm.take() {
            self.marks = firm;
        }
        if let Some(doubt) = &mut self.doubt {
            doubt.beyond_rule_3 = false;
        }
        self.learn(root).await?;
        for (kind, id) in self.heads(root).await? {
            self.need(kind, id).await?;
        }
        // Packs of live sessions stay, with everything that their objects refer to, reachable or
        // not.
        let own: Vec<PackName> = self
            .live
            .iter()
            .filter(|pack| is_own(root, pack))
            .copied()
            .collect();
        own.into_iter().for_each(|pack| self.marks.need_all(pack));
        self.follow().await?;
        self.mark_beyond().await
    }

    /// Marks needed objects that no list of the root names. Runs last, since these prove no pack
    /// live; once the next root needs them, they prove their packs.
    async fn mark_beyond(&mut self) -> Result<(), RootError> {
        let trees = self.vanished.iter().filter_map(|gone| gone.tree);
        let mut heads: Vec<(Kind, Id)> = trees.map(|tree| (Kind::Node, tree)).collect();
        if let Some(doubt) = &mut self.doubt {
            heads.extend(&doubt.rebuilt);
            heads.append(&mut self.unproven);
            if heads.is_empty() {
                return Ok(());
            }
            doubt.beyond_rule_3 = true;
            self.firm = Some(self.marks.clone());
        }
        for (kind, id) in heads {
            self.need(kind, id).await?;
        }
        self.follow().await
    }

    /// Marks what the root itself needs.
    pub fn firm(&self) -> &Marks {
        self.firm.as_ref().unwrap_or(&self.marks)
    }

    fn start_over(&mut self) {
        self.marks = Marks::default();
        self.leaves.clear();
        self.firm = None;
        self.live.clear();
        self.metadata.clear();
        self.known.clear();
        self.held.clear();
        if let Some(doubt) = &mut self.doubt {
            doubt.start_over();
        }
    }

    /// Returns the packs that `root` names as condemned, as far as they are known.
    ///
    /// # Errors
    /// Those of [`Lists::condemned`].
    pub async fn condemned(&self, root: &Root) -> Result<HashSet<PackName>, RootError> {
        match &self.doubt {
            Some(doubt) => self.lists.condemned_but(root, &doubt.lost).await,
            None => self.lists.condemned(root).await,
        }
    }

    /// Loads the index of `root`, and its live packs.
    async fn learn(&mut self, root: &Root) -> Result<(), RootError> {
        let condemned = self.condemned(root).await?;
        self.quarantine = self.lists.quarantine(root).await?;
        self.content_store
            .load_index(&IndexSources::of_objects(&root.index), &condemned)
            .await?;
        let unknown = |index: &&IndexRef| !self.known.contains(&index.name);
        let missing: Vec<IndexRef> = root.index.iter().filter(unknown).copied().collect();
        let verifier = self.verifier.clone();
        let mut reads = futures::stream::iter(missing)
            .map(|index| {
                let verifier = verifier.clone();
                async move { Ok::<_, RootError>((index, verifier.index(index).await?)) }
            })
            .buffered(INDEXES_AT_ONCE);
        while let Some((index, packs)) = reads.try_next().await? {
            self.known.insert(index.name);
            self.held
                .insert(index.name, packs.iter().map(PackContents::name).collect());
            for pack in packs {
                self.marks.know(&pack);
                if pack.class() == Class::MetadataPack {
                    self.metadata.insert(pack.name(), pack.apart());
                }
            }
        }
        for place in &self.quarantine {
            self.marks.note_damage(&place.pack);
        }
        let held = root
            .index
            .iter()
            .filter_map(|index| self.held.get(&index.name));
        let held = held.flatten().filter(|pack| !condemned.contains(pack));
        self.live = held.copied().collect();
        Ok(())
    }

    /// Returns the trees and commit records of volumes, snapshots, unexpired trash, and recovery
    /// bases. In doubt, snapshots that were listed from their commit records alone go to
    /// `unproven`: packs that they need may have been condemned.
    async fn heads(&mut self, root: &Root) -> Result<Vec<(Kind, Id)>, RootError> {
        let mut heads = Vec::new();
        for volume in root.volumes.values() {
            heads.extend(volume.tree.map(|tree| (Kind::Node, tree)));
            heads.extend(volume.building.map(|tree| (Kind::Node, tree)));
            heads.extend(volume.commit.map(|commit| (Kind::Commit, commit)));
        }
        let snapshots = self.readable(&root.snapshots);
        let snapshots = self.lists.snapshot_shards(&snapshots).await?;
        let snapshots = snapshots.iter().flat_map(|shard| shard.iter());
        let trash = self.readable(&root.trash);
        let trash = self.lists.trash_shards(&trash).await?;
        let trash = trash.iter().flat_map(|shard| shard.iter());
        let trash = trash.filter(|entry| !self.expiry.has_come(entry));
        let mut unproven = Vec::new();
        for entry in snapshots.chain(trash.map(|entry| &entry.snapshot)) {
            let heads = match entry.rebuilt && self.doubt.is_some() {
                true => &mut unproven,
                false => &mut heads,
            };
            heads.extend(entry.tree.map(|tree| (Kind::Node, tree)));
            heads.push((Kind::Commit, entry.commit));
        }
        self.unproven = unproven;
        for recovery_base in root.recovery_bases() {
            heads.extend(self.heads_of_recovery_base(recovery_base).await?);
        }
        Ok(heads)
    }

    /// Returns the heads of those lists of snapshots that are not known to be lost.
    pub fn readable(&self, lists: &[ListRef]) -> Vec<ListRef> {
        let is_lost = |list: &ListRef| {
            let doubt = self.doubt.as_ref();
            doubt.is_some_and(|doubt| doubt.lost_snapshots.contains(&list.name))
        };
        lists
            .iter()
            .filter(|list| !is_lost(list))
            .copied()
            .collect()
    }

    /// Returns the commits that a spool may follow, with their trees.
    async fn heads_of_recovery_base(
        &self,
        recovery_base: &RecoveryBase,
    ) -> Result<Vec<(Kind, Id)>, RootError> {
        let mut heads = Vec::new();
        for id in recovery_base.records() {
            let record = match self.content_store.read_blob(Kind::Commit, id).await {
                Ok(bytes) => CommitRecord::decode(&bytes),
                Err(error @ (ContentError::Unknown { .. } | ContentError::Damaged { .. })) => {
                    Err(error.to_string())
                }
                Err(error) => return Err(error.into()),
            };
            let record = record.map_err(|why| {
                let (session, host) = (recovery_base.session, recovery_base.host());
                let what = format!(
                    "the commit {id}, which a spool on host {host} may follow, cannot be read \
                     ({why}): nothing was collected; bkfs session end --give-up {session} gives \
                     up what that spool alone holds"
                );
                RootError::damaged("the repository", what)
            })?;
            heads.extend(record.tree.map(|tree| (Kind::Node, tree)));
            heads.push((Kind::Commit, id));
        }
        Ok(heads)
    }

    /// Marks all live copies of a blob, since it is not known which are good. Copies in quarantine
    /// count only if there is no other.
    async fn need(&mut self, kind: Kind, id: Id) -> Result<(), RootError> {
        match self.want(&id.prefix(), true).await? || self.may_lack(kind) {
            true => Ok(()),
            false => Err(missing(kind, &id)),
        }
    }

    fn may_lack(&self, kind: Kind) -> bool {
        let doubt = self.doubt.as_ref();
        doubt.is_some_and(|doubt| doubt.may_lack(kind))
    }

    /// Marks a blob that is only useful, unless all its copies are known to be damaged: the mark
    /// would only keep damaged packs.
    async fn want_if_whole(&mut self, id: Id) -> Result<(), RootError> {
        let copies = self.content_store.slots_of(&id.prefix()).await?;
        let is_good = |(pack, frame, _): &(PackName, u16, u16)| self.is_good(pack, *frame);
        if copies.is_empty() || copies.iter().any(is_good) {
            self.want(&id.prefix(), false).await?;
        }
        Ok(())
    }

    /// Returns the known damage of the latest root.
    pub fn quarantine(&self) -> &HashSet<PackLocation> {
        &self.quarantine
    }

    /// Whether no damage of this frame is known.
    fn is_good(&self, pack: &PackName, frame: u16) -> bool {
        let quarantined = |frame| {
            self.quarantine
                .contains(&PackLocation { pack: *pack, frame })
        };
        !quarantined(Some(frame)) && !quarantined(None)
    }

    /// Marks the copies of a blob; true if there is one. By rule 3, a blob with `is_needed` has a
    /// copy in a live pack.
    async fn want(&mut self, blob: &Prefix, is_needed: bool) -> Result<bool, RootError> {
        let mut copies = self.content_store.slots_of(blob).await?;
        copies.retain(|(pack, ..)| self.live.contains(pack));
        if let Some(doubt) = &mut self.doubt {
            copies = doubt.weigh(copies, is_needed);
        }
        let is_good = |(pack, frame, _): &(PackName, u16, u16)| self.is_good(pack, *frame);
        if !self.quarantine.is_empty() && copies.iter().any(is_good) {
            copies.retain(is_good);
        }
        let needed = copies
            .into_iter()
            .map(|(pack, frame, slot)| self.marks.need(pack, frame, slot));
        Ok(needed.fold(false, |any, is_there| any | is_there))
    }

    /// Follows all references, until no new blob is needed. In doubt it skips unreadable packs, so
    /// that all of them are known afterwards.
    ///
    /// # Errors
    /// Those of [`Self::mark`].
    pub async fn follow(&mut self) -> Result<(), RootError> {
        loop {
            self.follow_metadata().await?;
            self.mark_leaves().await?;
            if self.marks.next_open().is_none() {
                return Ok(());
            }
        }
    }

    async fn follow_metadata(&mut self) -> Result<(), RootError> {
        let mut unreadable = None;
        while let Some(pack) = self.marks.next_open() {
            if self.leaves.count() > QUESTIONS_MAX {
                self.mark_leaves().await?;
            }
            if self.follow_known(pack).await? {
                continue;
            }
            let damage = self.read(pack).await?;
            if !self.follow_known(pack).await? {
                if let Some(doubt) = &mut self.doubt {
                    if !doubt.proven.contains(&pack) {
                        doubt.gone.insert(pack);
                    }
                    self.marks.leave(pack);
                    if doubt.beyond_rule_3 {
                        continue;
                    }
                }
                let what = damage.map_or_else(
                    || "it is not what the index says".to_owned(),
                    |damage| damage.what,
                );
                let what = format!("{what}; {WAY_OUT}");
                let error = RootError::damaged(&pack.key(Class::MetadataPack), what);
                if self.doubt.is_none() {
                    return Err(error);
                }
                unreadable.get_or_insert(error);
            }
        }
        unreadable.map_or(Ok(()), Err)
    }

    /// Marks the chunks that were asked for.
    async fn mark_leaves(&mut self) -> Result<(), RootError> {
        for batch in self.leaves.batches()? {
            let asked = self.leaves.read(batch).await?;
            let absent = match self.doubt.is_some() {
                true => self.mark_one_by_one(&asked).await?,
                false => {
                    let listed = self.content_store.copies_of(&asked).await?;
                    let rule = Rule {
                        live: &self.live,
                        quarantine: &self.quarantine,
                    };
                    mark_copies(&mut self.marks, &asked, &listed, &rule)
                }
            };
            if let Some(blob) = absent {
                return Err(missing(Kind::Chunk, &blob));
            }
        }
        self.leaves.clear();
        Ok(())
    }

    /// Marks chunks in doubt. Returns the first one that may not be absent and is.
    async fn mark_one_by_one(&mut self, asked: &[Prefix]) -> Result<Option<Prefix>, RootError> {
        for blob in asked {
            if !self.want(blob, true).await? && !self.may_lack(Kind::Chunk) {
                return Ok(Some(*blob));
            }
        }
        Ok(None)
    }

    /// Follows the due references of a pack that were read. True if no reference of it is left to
    /// follow.
    async fn follow_known(&mut self, pack: PackName) -> Result<bool, RootError> {
        // Objects of one pack refer to each other, in either direction.
        while self.follow_once(pack).await? {}
        Ok(self.marks.close(pack))
    }

    /// Walks the due references of a pack once; true if any was followed.
    async fn follow_once(&mut self, pack: PackName) -> Result<bool, RootError> {
        let mut from = (0, 0);
        let mut is_any = false;
        loop {
            let is_due = |frame, slot| self.marks.is_due(pack, frame, slot);
            let Some((place, below)) = self.references.next_due(&pack, from, is_due) else {
                return Ok(is_any);
            };
            let below = below
                .clone()
                .map_err(|why| RootError::damaged(&pack.key(Class::MetadataPack), why))?;
            for (kind, id) in below {
                match kind {
                    Kind::Commit => {
                        self.want_if_whole(id).await?;
                    }
                    // In doubt a copy that is needed proves its pack, at once.
                    Kind::Chunk if self.doubt.is_none() => self.leaves.ask(id.prefix())?,
                    kind => self.need(kind, id).await?,
                }
            }
            // Not before: if a referred object is absent, the next root may have it. A chunk stays
            // asked for until then.
            self.marks.followed(pack, place.0, place.1);
            self.references.followed(&pack, place);
            (from, is_any) = (place, true);
        }
    }

    /// Reads a pack, together with others that wait, and keeps their references. Returns the damage
    /// of this pack.
    async fn read(&mut self, pack: PackName) -> Result<Option<PackDamage>, RootError> {
        let others = self
            .marks
            .open()
            .filter(|other| *other != pack && !self.references.holds(other));
        // It comes last, so that the others cannot evict it.
        let mut names: Vec<PackName> = others.take(PACKS_AT_ONCE - 1).collect();
        names.push(pack);
        let mut contents = Vec::new();
        for name in names {
            let known = self.metadata.get(&name).cloned();
            contents.push(known.ok_or_else(|| {
                RootError::damaged("the index", format!("it does not hold {name}"))
            })?);
        }
        let verifier = &self.verifier;
        let mut reads = futures::stream::iter(contents)
            .map(|contents| async move {
                let mut found = PackReferences::new();
                let mut learn = |blob: Found| {
                    found.insert((blob.frame, blob.slot), refers_to(&blob));
                };
                let walked = verifier.walk(&contents, &mut learn).await?;
                Ok::<_, RootError>((contents.name(), found, walked))
            })
            .buffered(PACKS_AT_ONCE);
        let mut damage = None;
        while let Some((name, found, walked)) = reads.try_next().await? {
            self.packs_read += 1;
            self.references.keep(name, found);
            damage = walked.damage.into_iter().next();
        }
        Ok(damage)
    }

    /// Returns all packs that the index objects of a root list, condemned ones included. Call it
    /// after the root was marked.
    pub fn listed(&self, root: &Root) -> BTreeSet<PackName> {
        let held = root
            .index
            .iter()
            .filter_map(|index| self.held.get(&index.name));
        held.flatten().copied().collect()
    }

    /// Returns the contents of a marked pack, to be walked.
    ///
    /// # Errors
    /// Store errors; `Damaged` if the footer cannot be read, or no marked root knows the pack.
    pub async fn contents(&self, name: PackName) -> Result<PackContents, RootError> {
        if let Some(contents) = self.metadata.get(&name) {
            return Ok(contents.clone());
        }
        match self.marks.pack(&name) {
            Some(pack) => Ok(self.verifier.describe(name, pack.class, pack.bytes).await?),
            None => Err(RootError::damaged(
                "the index",
                format!("it does not hold {name}"),
            )),
        }
    }
}
