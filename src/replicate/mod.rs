//! Copies of snapshots in another repository: the same files under other keys.
//!
//! Owns: which snapshots are copied and in what order, and the session that writes them. Does not
//! own: the translation of a tree (`tree`), nor that of contents (the chunker).
//!
//! Each repository names and encrypts its objects under keys of its own, so no object can be copied
//! unchanged. A copy reads a snapshot, verifies it and stores it again, with the same inode
//! numbers. From the second snapshot on it copies only what differs from a snapshot that both
//! repositories have. Blobs that an interrupted copy has stored are found in the index and not sent
//! again.
//!
//! While a snapshot is being copied, the volume shows what it did before. The volume's
//! entry in the root holds the unfinished tree in a field of its own (`building`), so that a
//! collection keeps its blobs. The next copy begins at the last whole snapshot again. It finds in
//! the index the blobs that the copy before it stored, and sends only the rest, even if the volume
//! was mounted in between.
//!
//! A root without a chain has no such field. There the volume's tree is the unfinished one. The
//! session of the volume's last commit, which stands in the root until the next one, tells that a
//! copy left it so, and that nothing has changed it since.

use std::collections::HashSet;
use std::sync::Arc;

use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::Ingest;

use crate::maintain::recovery_bases::record_of;
use crate::mounting::format;
use crate::replicate::copies::{Sides, without_late};
pub use crate::replicate::outcome::{Outcome, ReplicateError};
use crate::replicate::progress::CopyProgress;
pub use crate::replicate::tree::Pace;
use crate::replicate::tree::{Ends, Translation};
use crate::replicate::writer::{Begun, Whole, Writer};
use crate::repository::Repository;
use crate::root::commit::RootCommitter;
use crate::root::commit_request::RootCommit;
use crate::root::error::{ErrorKind, RootError};
use crate::root::record::Replayed;
use crate::root::repository::{probe, probe_lock};
use crate::root::request::VolumeRequest;
use crate::root::session::OpenSession;
use crate::root::snapshots::{Drill, NewSnapshot, SnapshotEntry, SnapshotList};
use crate::root::state::Volume;
use crate::tree::key::{self, Key};
use crate::tree::map::Tree;
use crate::volume::ROOT_INODE;
use crate::volume::error::VolumeError;
use crate::volume::state::Totals;
use crate::volumes::{next_inode, unused_inode};

mod copies;
mod outcome;
pub mod progress;
mod tree;
mod writer;

/// A copy of snapshots of one volume.
pub struct Replication<'a> {
    /// The source.
    pub from: &'a Repository,
    /// The target.
    pub to: &'a Arc<Repository>,
    /// Name of the volume, on both sides.
    pub volume: &'a str,
    /// Names of the snapshots to copy. If empty, all that are newer than those of the target: its
    /// retention may have forgotten older ones.
    pub names: &'a [String],
    /// Take over the target's volume from its present holder.
    pub steal: bool,
    /// Go on without changes that the target's volume acknowledged and that are in no journal any
    /// more.
    pub accept_loss: bool,
    /// Give up changes of the target's volume that are in no snapshot: the volume starts again from
    /// the last snapshot that was copied.
    pub anew: bool,
    /// When a commit is due within a snapshot.
    pub pace: Pace,
    /// Replace a snapshot of the target that the source has made anew under its name: the older one
    /// goes to the target's trash.
    pub replaces: bool,
    /// Counters for a progress display.
    pub progress: &'a CopyProgress,
}

/// The plan of a copy.
struct CopyPlan {
    /// Requested snapshots, in order of time.
    wanted: Vec<SnapshotEntry>,
    /// Pairs of trees, in the source and in the target, of snapshots that both have; the newest
    /// last.
    common: Vec<(Id, Whole)>,
    /// The newest of these in the target that was the state of the volume.
    state: Option<Whole>,
    /// Names that the target has already.
    present: HashSet<String>,
    /// The trees of all snapshots of the target's volume.
    kept: HashSet<Id>,
    /// Snapshots that are left out, in order of time.
    left_out: Vec<SnapshotEntry>,
    /// Names of the target whose snapshots the source has made anew since they were copied.
    replaced: HashSet<String>,
}

impl Replication<'_> {
    /// Copies the missing snapshots, oldest first, and calls `done` with the result for each.
    ///
    /// # Errors
    /// The first error, of any variant of [`ReplicateError`]. Snapshots that were copied before it
    /// stay.
    pub async fn run(&self, done: &mut (dyn FnMut(&Outcome) + Send)) -> Result<(), ReplicateError> {
        let sides = self.sides();
        if sides.from == sides.to {
            return Err(ReplicateError::Same);
        }
        let plan = self.plan().await?;
        let has_work = plan
            .wanted
            .iter()
            .any(|entry| !plan.present.contains(&entry.name));
        for entry in &plan.wanted {
            if plan.present.contains(&entry.name) {
                done(&Outcome::of(entry));
            }
        }
        for entry in &plan.left_out {
            done(&Outcome {
                is_left_out: true,
                ..Outcome::of(entry)
            });
        }
        if !has_work {
            return Ok(());
        }
        let (writer, plan) = self.enter().await?;
        let copied = self.copy_all(&writer, plan, done).await;
        writer.leave().await;
        copied
    }

    fn sides(&self) -> Sides {
        Sides {
            from: self.from.handle.current().root.repository,
            to: self.to.handle.current().root.repository,
        }
    }

    async fn plan(&self) -> Result<CopyPlan, ReplicateError> {
        let source = self.from.snapshots().await?;
        let target = self.to.snapshots().await?;
        let forgotten = self.forgotten(self.from).await?;
        let sides = self.sides();
        let mut wanted: Vec<SnapshotEntry> = match self.names {
            [] => source.of_volume(self.volume).into_iter().cloned().collect(),
            names => names
                .iter()
                .map(|name| self.named(&source, name))
                .collect::<Result<_, _>>()?,
        };
        wanted.sort_by_key(|entry| (entry.time, entry.generation));
        wanted.dedup_by_key(|entry| entry.commit);
        let mut plan = CopyPlan {
            wanted,
            common: Vec::new(),
            state: None,
            present: HashSet::new(),
            kept: HashSet::new(),
            left_out: Vec::new(),
            replaced: HashSet::new(),
        };
        let ours = target.of_volume(self.volume);
        for there in &ours {
            let name = there.name.clone();
            let is_source = |here: &&SnapshotEntry| here.name == name && sides.is_copy(here, there);
            let copied = source.named(self.volume, &name).filter(is_source);
            let copied = copied.or_else(|| forgotten.iter().find(is_source));
            if let Some((here, tree)) = copied.and_then(|here| Some((here.tree?, there.tree?))) {
                let whole = Whole::of(tree, there);
                plan.common.push((here, whole));
                if !there.recovered {
                    plan.state = Some(whole);
                }
            }
            match plan.wanted.iter().find(|entry| entry.name == name) {
                None => {}
                Some(here) if sides.is_copy(here, there) => {}
                // The source has made it anew: it still has the one that was copied in its trash,
                // or the copy notes where it came from.
                Some(here)
                    if self.replaces
                        && (copied.is_some_and(|copied| !sides.is_of_target(copied))
                            || sides.is_copy_of_older(here, there)) =>
                {
                    plan.replaced.insert(name);
                }
                Some(_) => return Err(ReplicateError::Taken { name }),
            }
        }
        let names = ours.iter().map(|entry| entry.name.clone());
        plan.present = names.filter(|name| !plan.replaced.contains(name)).collect();
        plan.kept = ours.iter().filter_map(|entry| entry.tree).collect();
        self.leave_older_out(&mut plan, &target)?;
        Ok(plan)
    }

    /// Takes the snapshots out of the plan that are older than the newest one of the target.
    fn leave_older_out(
        &self,
        plan: &mut CopyPlan,
        target: &SnapshotList,
    ) -> Result<(), ReplicateError> {
        let wanted = std::mem::take(&mut plan.wanted);
        let divided = without_late(wanted, &plan.present, (target, self.volume));
        (plan.left_out, plan.wanted) = (divided.late, divided.wanted);
        let is_error = divided.is_last_late || !self.names.is_empty();
        if let Some(older) = plan.left_out.last().filter(|_| is_error) {
            let name = older.name.clone();
            return Err(ReplicateError::Older { name });
        }
        Ok(())
    }

    fn named(&self, source: &SnapshotList, name: &str) -> Result<SnapshotEntry, RootError> {
        let reference = crate::root::snapshots::SnapshotReference::parse(name, self.to.now())?;
        source.resolve(self.volume, &reference).cloned()
    }

    /// Registers a session in the target and takes its volume. Returns the plan as of then: while a
    /// holder was watched, the target may have got snapshots.
    async fn enter(&self) -> Result<(Writer, CopyPlan), ReplicateError> {
        let to = self.to;
        let handle = &to.handle;
        let (store, entropy) = (handle.store().as_ref(), handle.entropy().as_ref());
        probe(store, entropy, &handle.policy()).await?;
        if let Some(rule) = to.lock {
            probe_lock(store, entropy, rule, to.now()).await?;
        }
        let command = command(self.from);
        let request = VolumeRequest {
            name: self.volume.to_owned(),
            steal: self.steal,
            accept_loss: self.accept_loss,
        };
        let holder = to.environment.holder(&command);
        let processes = to.environment.processes.clone();
        let open = OpenSession::open(handle, holder, Some(request), processes.as_ref()).await?;
        match self.begin(&open).await {
            Ok((begun, plan)) => Ok((begun.with(open, to.clone(), self.volume), plan)),
            Err(error) => {
                if let Err(left) = open.end().await {
                    tracing::warn!("the session stays in the root: {left}");
                }
                Err(error)
            }
        }
    }

    async fn begin(&self, open: &OpenSession) -> Result<(Begun, CopyPlan), ReplicateError> {
        let to = self.to;
        let plan = self.plan().await?;
        to.load_index_to_write().await?;
        let ended_sessions = open.ended_sessions();
        if ended_sessions
            .iter()
            .any(|ended| !ended.journals.is_empty())
        {
            return Err(ReplicateError::Unreplayed {
                volume: self.volume.to_owned(),
            });
        }
        let ingest = Arc::new(Ingest::new(to.content_store.clone(), open.id().0));
        let empty = format::empty_tree(&ingest, &to.nodes).await?;
        let entry = to.volume_entry(self.volume);
        let head = entry.tree.filter(|tree| *tree != empty);
        let is_known = match head {
            Some(tree) => self.is_known(tree, &plan).await?,
            None => true,
        };
        let is_unfinished = !is_known && self.was_left_by_copy(&entry).await?;
        if !is_known && !is_unfinished && !self.anew {
            return Err(ReplicateError::Diverged {
                volume: self.volume.to_owned(),
            });
        }
        // Checked above: these sessions have acknowledged nothing.
        let replayed = ended_sessions.iter().map(|ended| Replayed {
            session: ended.session,
            last: 0,
        });
        let committer = RootCommitter::new(
            to.handle.clone(),
            to.lists.clone(),
            open.id(),
            self.volume,
            ingest.clone(),
        )?;
        let nothing = Whole {
            tree: empty,
            totals: Totals::default(),
            is_nothing: true,
        };
        let whole = plan.common.last().map_or(nothing, |(_, there)| *there);
        let shown = head.filter(|_| is_known).map(|tree| Whole {
            tree,
            totals: Totals {
                inodes: entry.inodes,
                bytes: entry.bytes,
            },
            is_nothing: false,
        });
        let begun = Begun {
            committer: committer.replaying(replayed.collect()),
            ingest,
            whole,
            shown: shown.or(plan.state).unwrap_or(nothing),
            next_inode: self.from.volume_entry(self.volume).next_inode,
            is_whole: !is_unfinished,
            left: entry.building.or(entry.tree.filter(|_| is_unfinished)),
        };
        Ok((begun, plan))
    }

    /// Returns true if nothing is lost with a tree of the target: a snapshot has it, or had it until
    /// it was forgotten, or nothing was ever stored in it.
    async fn is_known(&self, tree: Id, plan: &CopyPlan) -> Result<bool, ReplicateError> {
        if plan.kept.contains(&tree) || self.is_unused(tree).await? {
            return Ok(true);
        }
        let forgotten = self.forgotten(self.to).await?;
        Ok(forgotten.iter().any(|entry| entry.tree == Some(tree)))
    }

    /// Returns true if the last commit of the target's volume is that of a copy from this source
    /// that did not leave: its session stands in the root until the next commit. A session that
    /// committed nothing says nothing of what the volume holds.
    async fn was_left_by_copy(&self, entry: &Volume) -> Result<bool, RootError> {
        let Some(commit) = entry.commit else {
            return Ok(false);
        };
        let record = record_of(&self.to.content_store, commit).await?;
        let root = &self.to.handle.current().root;
        let session = record.and_then(|record| root.sessions.get(&record.session));
        Ok(session.is_some_and(|session| session.holder.mount_point == command(self.from)))
    }

    /// Returns true if a tree of the target is that of a volume that was mounted and never used: it
    /// holds nothing but its root directory.
    async fn is_unused(&self, tree: Id) -> Result<bool, VolumeError> {
        let nodes = self.to.nodes.as_ref();
        let mut items = Tree::new(tree).range(key::everything());
        while let Some((key, _)) = items.next(nodes).await? {
            if key != Key::attributes(ROOT_INODE) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the snapshots of the volume that are in the trash of a repository.
    async fn forgotten(&self, repository: &Repository) -> Result<Vec<SnapshotEntry>, RootError> {
        let view = repository.handle.current();
        let shards = repository.lists.known_trash(&view.root.trash).await?;
        let forgotten = shards.iter().flat_map(|shard| shard.iter());
        let snapshots = forgotten.map(|entry| &entry.snapshot);
        let ours = snapshots.filter(|entry| entry.volume == self.volume);
        Ok(ours.cloned().collect())
    }

    async fn copy_all(
        &self,
        writer: &Writer,
        plan: CopyPlan,
        done: &mut (dyn FnMut(&Outcome) + Send),
    ) -> Result<(), ReplicateError> {
        let mut base = plan.common.last().map(|(here, _)| *here);
        for entry in plan.wanted {
            if plan.present.contains(&entry.name) {
                continue;
            }
            let source = entry.tree.ok_or_else(|| {
                RootError::damaged("snapshot", format!("{} has no tree", entry.name))
            })?;
            let replaces = plan.replaced.contains(&entry.name);
            let copied = self.copy_one(writer, base, source, (&entry, replaces));
            let copied = copied.await;
            let made = match copied {
                Ok(made) => made,
                Err(error) => {
                    writer.go_back(&entry).await;
                    return Err(error);
                }
            };
            base = Some(source);
            done(&Outcome {
                is_new: true,
                generation: Some(made.generation),
                ..Outcome::of(&entry)
            });
        }
        Ok(())
    }

    async fn copy_one(
        &self,
        writer: &Writer,
        base: Option<Id>,
        source: Id,
        (entry, replaces): (&SnapshotEntry, bool),
    ) -> Result<RootCommit, ReplicateError> {
        // The source's volume may be gone, or made anew. A recovered tree has numbers of a session
        // that is not in the volume's history.
        writer.reserve_inodes(self.next_inode(entry).await?);
        let tree = self.translate(writer, base, source, entry).await?;
        let snapshot = NewSnapshot {
            name: Some(entry.name.clone()),
            host: entry.host.clone(),
            user: entry.user.clone(),
            tags: entry.tags.clone(),
            clock: entry.time,
            recovered: entry.recovered,
            replaces,
            replaced_at: replaces.then(|| self.to.now()),
            drill: entry.drill.clone().map(|drill| Drill {
                is_of_source: true,
                ..drill
            }),
            origin: Some(self.sides().origin(entry)),
        };
        if !(entry.recovered && writer.is_witnessed()) {
            return Ok(writer.commit(tree, entry, Some(snapshot)).await?);
        }
        Ok(writer.commit_apart(tree, entry, snapshot).await?)
    }

    /// Returns the lowest inode number that the tree of a snapshot never used. The tree says what it
    /// uses now, and its record what it used before. The record of a copy that an older program made
    /// has the number of the source's volume, which may be lower. With a damaged record the tree is
    /// enough.
    async fn next_inode(&self, entry: &SnapshotEntry) -> Result<u64, RootError> {
        let unused = unused_inode(self.from, entry).await?;
        match next_inode(self.from, entry).await {
            Ok(next_inode) => Ok(next_inode.max(unused)),
            Err(error) if error.kind() == ErrorKind::Damaged => Ok(unused),
            Err(error) => Err(error),
        }
    }

    /// Returns the tree of a snapshot in the target. It is built over `base`, which both
    /// repositories have, or over nothing.
    async fn translate(
        &self,
        writer: &Writer,
        base: Option<Id>,
        source: Id,
        entry: &SnapshotEntry,
    ) -> Result<Id, ReplicateError> {
        let start = writer.whole().tree;
        // The copy is built over this tree. The next commit checks that the tree is still live,
        // even if another program forgets its snapshot meanwhile (rule 3).
        writer
            .ingest
            .adopt_blob(Kind::Node, start)
            .await
            .map_err(VolumeError::from)?;
        let ends = Ends {
            from: self.from,
            to: self.to,
        };
        let mut translation = Translation::new(
            ends,
            writer.ingest.clone(),
            (base, source),
            start,
            self.pace,
            self.progress,
        );
        while translation.step().await? {
            // An early commit names the blobs stored so far. An interrupted copy then need not send
            // them again, and the memory for uncommitted blobs stays bounded.
            if translation.wants_commit(writer.unfinished().is_some()) {
                writer.commit(translation.tree(), entry, None).await?;
                translation.committed();
            }
        }
        Ok(translation.tree())
    }
}

/// Returns the command that the holder of a copy from that repository shows.
fn command(from: &Repository) -> String {
    format!("bkfs copy of {}", from.handle.current().root.repository)
}
