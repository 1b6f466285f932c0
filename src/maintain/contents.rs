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

use bkfs_chunker::crypto::{Class, Keyring};
use bkfs_chunker::id::{Id, Kind, Prefix};
use bkfs_chunker::pack::PackName;
use bkfs_chunker::verify::{Found, PackContents, PackDamage, Verifier, WalkedPack, chunks_of};
use futures::{StreamExt, TryStreamExt};

use super::holdings::Holdings;
use super::judge::Damage;
use super::options::CheckProgress;
use super::references::References;
use super::report::{Problem, ProblemKind, Report};
use super::sample::Sample;
use super::workspace::Workspace;
use super::workspace::records::Reference as Noted;
use super::workspace::records::{Edge, NodeFact, Order, Ordinal, ReadNode};
use super::workspace::shelf::ShelvedPack;
use crate::fault;
use crate::root::error::RootError;
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
    /// Statements of parents that are not what the child is: the parent's pack, and the child.
    contradicted: Vec<(PackName, Prefix)>,
}

/// What was learned from one pack.
struct Lesson<'p> {
    ordinal: Ordinal,
    pack: &'p PackContents,
    learned: Learned,
    /// Number of statements about children.
    edges: u32,
}

/// The inputs of a walk.
pub struct Walk<'a> {
    /// Reads packs.
    pub verifier: &'a Verifier,
    /// Knows which packs hold a blob.
    pub holdings: &'a Holdings,
    /// Hashes names.
    pub keyring: &'a Keyring,
    /// Where references are noted.
    pub workspace: &'a Workspace,
    /// Counts the bytes that are done.
    pub progress: &'a CheckProgress,
    /// Sizes in bytes of all objects in the bucket, as the store lists them.
    pub bucket: &'a BTreeMap<String, u64>,
    /// Whether commit records are collected.
    pub records: bool,
}

/// A pack, whether it is missing, its damage, and whether it was read whole.
type Verdict = (PackContents, bool, Vec<PackDamage>, bool);

impl Walk<'_> {
    /// Reads data packs: whole if `sample` takes them, otherwise only header and footer.
    ///
    /// # Errors
    /// [`RootError::Content`] if the store cannot be read (`Store`, `Stalled`), and
    /// [`RootError::Local`] if the list of a pack cannot. Damage of a pack is no error.
    pub async fn data(
        &self,
        packs: &[ShelvedPack],
        sample: Sample,
        damage: &mut Damage,
        report: &mut Report,
    ) -> Result<(), RootError> {
        let data = packs.iter().filter(|pack| pack.class() == Class::DataPack);
        let work = data.map(|pack| self.read_data(pack, sample));
        let mut verdicts = futures::stream::iter(work).buffered(PACKS_AT_ONCE);
        while let Some((pack, missing, found, whole)) = verdicts.try_next().await? {
            report.counts.packs_read += u64::from(whole);
            report.counts.verified_bytes += if whole { pack.bytes() } else { 0 };
            damage.note(&pack, missing, found);
        }
        Ok(())
    }

    async fn read_data(&self, pack: &ShelvedPack, sample: Sample) -> Result<Verdict, RootError> {
        let pack = pack.contents()?;
        if sample.takes(pack.name()) {
            let walked = self.verifier.walk(&pack, &mut |_| ()).await?;
            self.progress.verified(walked.verified_bytes);
            return Ok((pack, walked.missing, walked.damage, true));
        }
        let mut found = self.verifier.ends(&pack).await?;
        let missing = found.iter().any(PackDamage::is_absence);
        found.extend(self.size_damage(&pack).filter(|_| found.is_empty()));
        self.progress.passed(pack.bytes());
        Ok((pack, missing, found, false))
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
    /// [`RootError::Content`] if the store cannot be read (`Store`, `Stalled`), and
    /// [`RootError::Local`] if working data can be neither written nor read. Damage of a pack is no
    /// error.
    pub async fn metadata(
        &self,
        packs: &[ShelvedPack],
        damage: &mut Damage,
        report: &mut Report,
    ) -> Result<Learned, RootError> {
        let mut all = Learned::default();
        let mut verdicts = Vec::new();
        let noted = References::new(self.workspace);
        {
            let known: &Damage = damage;
            let packs = packs.iter().enumerate();
            let metadata = packs.filter(|(_, pack)| pack.class() == Class::MetadataPack);
            let work = metadata
                .map(|(ordinal, pack)| self.read_metadata(ordinal as Ordinal, pack, known, &noted));
            let mut done = futures::stream::iter(work).buffered(PACKS_AT_ONCE);
            while let Some((pack, walked, learned)) = done.try_next().await? {
                report.counts.packs_read += 1;
                report.counts.verified_bytes += walked.verified_bytes;
                if !walked.damage.is_empty() {
                    verdicts.push((pack, walked));
                }
                all.merge(learned);
            }
        }
        for (pack, walked) in verdicts {
            damage.note(&pack, walked.missing, walked.damage);
        }
        let unresolved = noted.resolve(self.holdings).await?;
        let pack_of = |order: Order| &packs[order.pack as usize];
        all.dangling.extend(unresolved.dangling.iter().map(|noted| {
            let pack = pack_of(noted.order);
            Dangling {
                pack: pack.name(),
                key: pack.key(),
                from: noted.from,
                to: noted.to,
            }
        }));
        let contradicted = unresolved.contradicted.iter();
        all.contradicted = contradicted
            .map(|edge| (pack_of(edge.order).name(), edge.child))
            .collect();
        report.counts.references += all.references;
        Ok(all)
    }

    async fn read_metadata(
        &self,
        ordinal: Ordinal,
        pack: &ShelvedPack,
        damage: &Damage,
        noted: &References,
    ) -> Result<(PackContents, WalkedPack, Learned), RootError> {
        let contents = pack.contents()?;
        let mut lesson = Lesson {
            ordinal,
            pack: &contents,
            learned: Learned::default(),
            edges: 0,
        };
        let mut learn = |found| self.learn(damage, found, &mut lesson, noted);
        let walked = self.verifier.walk(&contents, &mut learn).await?;
        noted.require_whole()?;
        self.progress.verified(walked.verified_bytes);
        let learned = lesson.learned;
        Ok((contents, walked, learned))
    }

    fn learn(&self, damage: &Damage, found: Found, lesson: &mut Lesson<'_>, noted: &References) {
        let from = (found.kind, found.id.prefix());
        let pack = lesson.pack;
        let key = || pack.key();
        match found.kind {
            Kind::Chunk => {}
            Kind::Segment => match chunks_of(&found.bytes) {
                Ok(chunks) => {
                    for (id, _) in &chunks {
                        self.follow(from, (Kind::Chunk, *id), lesson, noted);
                    }
                    let mut lost = chunks.iter();
                    let lost = lost.find_map(|(id, _)| damage.culprit(&id.prefix()));
                    let broken = lost.map(|lost| (from.1, lost));
                    lesson.learned.broken_segments.extend(broken);
                }
                Err(why) => lesson.learned.senseless.push((key(), from.1, why)),
            },
            Kind::Node => match Node::decode(found.bytes) {
                Ok(node) => self.learn_node(from, &node, lesson, noted),
                Err(error) => {
                    let why = error.to_string();
                    lesson.learned.senseless.push((key(), from.1, why));
                }
            },
            Kind::Commit => match CommitRecord::decode(&found.bytes) {
                Ok(record) if self.records => lesson.learned.records.push((found.id, record)),
                Ok(_) => {}
                Err(why) => lesson.learned.senseless.push((key(), from.1, why)),
            },
        }
    }

    fn learn_node(
        &self,
        from: (Kind, Prefix),
        node: &Node,
        lesson: &mut Lesson<'_>,
        noted: &References,
    ) {
        if !node.is_empty() {
            let fact = NodeFact {
                level: node.level(),
                items: node.items(),
                first: hash(node.key(0).as_bytes()),
            };
            noted.note_node(ReadNode { node: from.1, fact });
        }
        for index in 0..node.len() {
            if let Some(child) = node.child(index) {
                noted.note_edge(Edge {
                    child: child.id.prefix(),
                    expected: NodeFact {
                        level: node.level() - 1,
                        items: child.items,
                        first: hash(node.key(index).as_bytes()),
                    },
                    order: Order {
                        pack: lesson.ordinal,
                        number: lesson.edges,
                    },
                });
                lesson.edges += 1;
            }
        }
        for why in self.faults(node) {
            lesson.learned.faults.push((lesson.pack.key(), from.1, why));
        }
        for reference in references(node) {
            let to = match reference {
                Ok(Reference::Node(id)) => (Kind::Node, id),
                Ok(Reference::Target(Target::Chunk(id))) => (Kind::Chunk, id),
                Ok(Reference::Target(Target::Segment(id))) => (Kind::Segment, id),
                Err(error) => {
                    let why = error.to_string();
                    let key = lesson.pack.key();
                    lesson.learned.senseless.push((key, from.1, why));
                    continue;
                }
            };
            self.follow(from, to, lesson, noted);
        }
    }

    /// Returns the faults of a leaf's entries: what no honest writer makes, and what does not
    /// decode.
    fn faults(&self, node: &Node) -> Vec<String> {
        let mut faults = Vec::new();
        let cookie = |name: &[u8]| name_cookie(self.keyring.name_hash(name));
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

    /// Notes a reference whose target may be missing, or is.
    fn follow(
        &self,
        from: (Kind, Prefix),
        to: (Kind, Id),
        lesson: &mut Lesson<'_>,
        noted: &References,
    ) {
        let order = Order {
            pack: lesson.ordinal,
            number: lesson.learned.references as u32,
        };
        lesson.learned.references += 1;
        match self.holdings.holds(&to.1) {
            Some(true) => {}
            Some(false) => lesson.learned.dangling.push(Dangling {
                pack: lesson.pack.name(),
                key: lesson.pack.key(),
                from,
                to,
            }),
            None => noted.note(Noted { from, to, order }),
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
        for (pack, child) in &self.contradicted {
            let what = format!("node {child} does not match the entry of its parent");
            let key = pack.key(Class::MetadataPack);
            report.add(Problem::new(key, ProblemKind::Inconsistent, what));
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
