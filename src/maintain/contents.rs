//! Walks packs: every blob in them, and everything that nodes and segments refer to.
//!
//! Owns the walk over live packs, and the questions that it answers:
//!
//! - Is every byte the one that was written?
//! - Is the live set closed: is everything that an object in a live metadata pack refers to,
//!   reachable or not, in a live pack (docs/PROTOCOL.md, rule 3)?
//! - Is each node what its parent says of it?
//!
//! Commit records refer weakly: their trees and parents may be collected one day. Those of
//! snapshots and volumes are checked as heads, by [`super::check`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::crypto::Class;
use bkfs_chunker::error::ContentError;
use bkfs_chunker::id::{Id, Kind, Prefix};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{Found, PackContents, PackDamage, Verifier, chunks_of};
use futures::{StreamExt, TryStreamExt};

use super::judge::Damage;
use super::options::CheckProgress;
use super::report::{Problem, ProblemKind, Report};
use super::sample::Sample;
use crate::fault;
use crate::root::record::CommitRecord;
use crate::tree::item::{Item, Target};
use crate::tree::key::{ItemKind, KeyParts, name_cookie};
use crate::tree::node::Node;
use crate::tree::source::{Reference, references};
use crate::volume::nodes::decode_item;

/// Packs that are read at the same time, each within the verifier's memory budget.
const PACKS_AT_ONCE: usize = 6;

/// Faulty entries of one leaf that are reported.
const FAULTS_MAX: usize = 16;

/// A reference to a blob that no live pack holds.
#[derive(Clone, Debug)]
pub struct Dangling {
    /// The pack of the referring object.
    pub pack: PackName,
    /// The key of that pack.
    pub key: String,
    /// The referring object.
    pub from: (Kind, Prefix),
    /// The blob that it refers to.
    pub to: (Kind, Id),
}

/// Facts that were learned from metadata packs.
#[derive(Debug, Default)]
pub struct Learned {
    /// References to blobs that no live pack holds.
    pub dangling: Vec<Dangling>,
    /// Objects that verify but do not decode: the key of the pack, the object, and the reason.
    pub senseless: Vec<(String, Prefix, String)>,
    /// Entries of leaves that no honest writer makes: the key of the pack, the node, and the
    /// reason.
    pub faults: Vec<(String, Prefix, String)>,
    /// Segments with a lost chunk, each with the number of the problem that is the cause.
    pub broken_segments: Vec<(Prefix, usize)>,
    /// Commit records. Empty unless [`Walk::records`] is set.
    pub records: Vec<(Id, CommitRecord)>,
    /// Number of references that were followed.
    pub references: u64,
    nodes: HashMap<Prefix, NodeFact>,
    edges: Vec<Edge>,
}

/// Facts about a node that its parent states as well.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
struct NodeFact {
    level: u8,
    items: u64,
    /// Hash of the node's first key.
    first: u64,
}

/// A parent's statement about a child.
#[derive(Copy, Clone, Debug)]
struct Edge {
    pack: PackName,
    child: Prefix,
    expected: NodeFact,
}

/// The inputs of a walk.
pub struct Walk<'a> {
    /// Reads packs.
    pub verifier: &'a Verifier,
    /// Knows which packs hold a blob.
    pub content_store: &'a ContentStore,
    /// Counts the bytes that are done.
    pub progress: &'a CheckProgress,
    /// Sizes in bytes of all objects in the bucket, as the store lists them.
    pub bucket: &'a BTreeMap<String, u64>,
    /// Whether commit records are collected.
    pub records: bool,
}

/// A pack, whether it is missing, its damage, and whether it was read whole.
type Verdict<'p> = (&'p PackContents, bool, Vec<PackDamage>, bool);

impl Walk<'_> {
    /// Reads data packs: whole if `sample` takes them, otherwise only header and footer.
    ///
    /// # Errors
    /// [`ContentError::Store`] or [`ContentError::Stalled`] if the store cannot be read. Damage of
    /// a pack is no error.
    pub async fn data(
        &self,
        packs: &[PackContents],
        sample: Sample,
        damage: &mut Damage,
        report: &mut Report,
    ) -> Result<(), ContentError> {
        let data = packs.iter().filter(|pack| pack.class() == Class::DataPack);
        let work = data.map(|pack| async move {
            let whole = sample.takes(pack.name());
            let verdict: Verdict<'_> = match whole {
                true => {
                    let walked = self.verifier.walk(pack, &mut |_| ()).await?;
                    self.progress.verified(walked.verified_bytes);
                    (pack, walked.missing, walked.damage, true)
                }
                false => {
                    let mut found = self.verifier.ends(pack).await?;
                    let missing = found.iter().any(PackDamage::is_absence);
                    found.extend(self.size_damage(pack).filter(|_| found.is_empty()));
                    self.progress.passed(pack.bytes());
                    (pack, missing, found, false)
                }
            };
            Ok::<_, ContentError>(verdict)
        });
        let mut verdicts = futures::stream::iter(work.collect::<Vec<_>>()).buffered(PACKS_AT_ONCE);
        while let Some((pack, missing, found, whole)) = verdicts.try_next().await? {
            report.counts.packs_read += u64::from(whole);
            report.counts.verified_bytes += if whole { pack.bytes() } else { 0 };
            damage.note(pack, missing, found);
        }
        Ok(())
    }

    /// Returns the damage of a pack whose size in the bucket is not the one in the index. A pack
    /// with bytes behind its end still has the header and footer that the index has.
    fn size_damage(&self, pack: &PackContents) -> Option<PackDamage> {
        let listed = self.bucket.get(&pack.key())?;
        let what = format!(
            "it has {listed} bytes where the index says {}",
            pack.bytes()
        );
        (*listed != pack.bytes()).then(|| PackDamage::new(None, what))
    }

    /// Reads every byte of all metadata packs.
    ///
    /// # Errors
    /// [`ContentError::Store`] or [`ContentError::Stalled`] if the store cannot be read. Damage of
    /// a pack is no error.
    pub async fn metadata(
        &self,
        packs: &[PackContents],
        damage: &mut Damage,
        report: &mut Report,
    ) -> Result<Learned, ContentError> {
        let known: &Damage = damage;
        let metadata = packs
            .iter()
            .filter(|pack| pack.class() == Class::MetadataPack);
        let work = metadata.map(|pack| async move {
            let mut learned = Learned::default();
            let walked = self
                .verifier
                .walk(pack, &mut |found| {
                    self.learn(known, pack, found, &mut learned)
                })
                .await?;
            self.progress.verified(walked.verified_bytes);
            Ok::<_, ContentError>((pack, walked, learned))
        });
        let work = work.collect::<Vec<_>>();
        let mut all = Learned::default();
        let mut verdicts = Vec::new();
        {
            let mut done = futures::stream::iter(work).buffered(PACKS_AT_ONCE);
            while let Some((pack, walked, learned)) = done.try_next().await? {
                report.counts.packs_read += 1;
                report.counts.verified_bytes += walked.verified_bytes;
                verdicts.push((pack, walked));
                all.merge(learned);
            }
        }
        for (pack, walked) in verdicts {
            damage.note(pack, walked.missing, walked.damage);
        }
        report.counts.references += all.references;
        Ok(all)
    }

    fn learn(&self, damage: &Damage, pack: &PackContents, found: Found, learned: &mut Learned) {
        let from = (found.kind, found.id.prefix());
        let senseless = |why: String| (pack.key(), from.1, why);
        match found.kind {
            Kind::Chunk => {}
            Kind::Segment => match chunks_of(&found.bytes) {
                Ok(chunks) => {
                    for (id, _) in &chunks {
                        self.follow(pack, from, (Kind::Chunk, *id), learned);
                    }
                    let mut lost = chunks.iter();
                    let lost = lost.find_map(|(id, _)| damage.culprit(&id.prefix()));
                    learned
                        .broken_segments
                        .extend(lost.map(|lost| (from.1, lost)));
                }
                Err(why) => learned.senseless.push(senseless(why)),
            },
            Kind::Node => match Node::decode(found.bytes) {
                Ok(node) => self.learn_node(pack, from, &node, learned),
                Err(error) => learned.senseless.push(senseless(error.to_string())),
            },
            Kind::Commit => match CommitRecord::decode(&found.bytes) {
                Ok(record) if self.records => learned.records.push((found.id, record)),
                Ok(_) => {}
                Err(why) => learned.senseless.push(senseless(why)),
            },
        }
    }

    fn learn_node(
        &self,
        pack: &PackContents,
        from: (Kind, Prefix),
        node: &Node,
        learned: &mut Learned,
    ) {
        if !node.is_empty() {
            let fact = NodeFact {
                level: node.level(),
                items: node.items(),
                first: hash(node.key(0).as_bytes()),
            };
            learned.nodes.insert(from.1, fact);
        }
        for index in 0..node.len() {
            if let Some(child) = node.child(index) {
                learned.edges.push(Edge {
                    pack: pack.name(),
                    child: child.id.prefix(),
                    expected: NodeFact {
                        level: node.level() - 1,
                        items: child.items,
                        first: hash(node.key(index).as_bytes()),
                    },
                });
            }
        }
        for why in self.faults(node) {
            learned.faults.push((pack.key(), from.1, why));
        }
        for reference in references(node) {
            match reference {
                Ok(Reference::Node(id)) => self.follow(pack, from, (Kind::Node, id), learned),
                Ok(Reference::Target(Target::Chunk(id))) => {
                    self.follow(pack, from, (Kind::Chunk, id), learned);
                }
                Ok(Reference::Target(Target::Segment(id))) => {
                    self.follow(pack, from, (Kind::Segment, id), learned);
                }
                Err(error) => {
                    learned
                        .senseless
                        .push((pack.key(), from.1, error.to_string()));
                }
            }
        }
    }

    /// Returns the faults of a leaf's entries: what no honest writer makes, and what does not
    /// decode.
    fn faults(&self, node: &Node) -> Vec<String> {
        let mut faults = Vec::new();
        let cookie = |name: &[u8]| name_cookie(self.content_store.keyring().name_hash(name));
        // The file that the entries belong to, as far as it begins in this leaf: its inode, its
        // size, and the end of its extents in bytes.
        let mut file = (0, None, 0);
        for index in 0..if node.level() == 0 { node.len() } else { 0 } {
            let key = node.key(index);
            let item = match decode_item(&key, &node.value_bytes(index)) {
                Ok(item) => item,
                Err(error) => {
                    // A malformed extent hides what it refers to. `learn_node` reports it as
                    // senseless.
                    if key.kind().is_ok_and(|kind| kind != ItemKind::Extent) {
                        faults.push(error.to_string());
                    }
                    continue;
                }
            };
            if let Some(fault) = fault::of_item(&key, &item, cookie) {
                faults.push(format!("{fault}: {key:?}"));
                continue;
            }
            let inode = key.inode().unwrap_or(0);
            if inode != file.0 {
                file = (inode, None, 0);
            }
            match (key.parse(), item) {
                (_, Item::Attributes(attributes)) => file.1 = Some(attributes.size_bytes),
                (Ok(KeyParts::Extent { offset, .. }), Item::Extent(extent)) => {
                    if offset < file.2 {
                        faults.push(format!("extents of inode {inode} overlap at byte {offset}"));
                    }
                    file.2 = offset.saturating_add(extent.length.into());
                    if file.1.is_some_and(|size| file.2 > size) {
                        faults.push(format!("inode {inode} has contents beyond its size"));
                    }
                }
                _ => {}
            }
        }
        faults.truncate(FAULTS_MAX);
        faults
    }

    fn follow(
        &self,
        pack: &PackContents,
        from: (Kind, Prefix),
        to: (Kind, Id),
        learned: &mut Learned,
    ) {
        learned.references += 1;
        if self.content_store.places(&to.1).is_empty() {
            learned.dangling.push(Dangling {
                pack: pack.name(),
                key: pack.key(),
                from,
                to,
            });
        }
    }
}

impl Learned {
    fn merge(&mut self, other: Learned) {
        self.dangling.extend(other.dangling);
        self.senseless.extend(other.senseless);
        self.faults.extend(other.faults);
        self.broken_segments.extend(other.broken_segments);
        self.records.extend(other.records);
        self.references += other.references;
        self.nodes.extend(other.nodes);
        self.edges.extend(other.edges);
    }

    /// Returns the packs with objects that refer to blobs that no live pack holds.
    pub fn open_packs(&self) -> HashSet<PackName> {
        self.dangling.iter().map(|dangling| dangling.pack).collect()
    }

    /// Turns the findings into problems of `report`. Records in `damage` the blobs that cannot be
    /// used because of one.
    pub fn judge(&self, damage: &mut Damage, report: &mut Report) {
        for (segment, problem) in &self.broken_segments {
            damage.lose(*segment, *problem);
        }
        for (key, blob, why) in &self.senseless {
            let what = format!("blob {blob}: {why}");
            let number = report.add(Problem::new(key, ProblemKind::Inconsistent, what));
            damage.lose(*blob, number);
        }
        for (key, blob, why) in &self.faults {
            let what = format!("node {blob}: {why}");
            report.add(Problem::new(key, ProblemKind::Inconsistent, what));
        }
        // One problem for each pack and missing blob, not for each reference.
        let mut known: HashMap<(PackName, Prefix), usize> = HashMap::new();
        for dangling in &self.dangling {
            let (kind, id) = dangling.to;
            damage.want(id.prefix());
            let number = *known
                .entry((dangling.pack, id.prefix()))
                .or_insert_with(|| {
                    let (from_kind, from) = dangling.from;
                    let what = format!(
                        "{from_kind:?} {from} refers to {kind:?} {id}, which no live pack holds"
                    );
                    report.add(Problem::new(&dangling.key, ProblemKind::Unresolved, what))
                });
            damage.lose(id.prefix(), number);
            if dangling.from.0 == Kind::Segment {
                damage.lose(dangling.from.1, number);
            }
        }
        for edge in &self.edges {
            let Some(fact) = self.nodes.get(&edge.child) else {
                // The child is damaged or missing, which is reported elsewhere. Or it is the empty
                // node, which no parent has as a child.
                continue;
            };
            if *fact != edge.expected {
                let what = format!("node {} does not match the entry of its parent", edge.child);
                let key = edge.pack.key(Class::MetadataPack);
                report.add(Problem::new(key, ProblemKind::Inconsistent, what));
            }
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
