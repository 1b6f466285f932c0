//! A writer who has the password: repositories whose seals are valid and whose contents are not.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bkfs::repository::{Opening, Repository, open};
use bkfs::root::commit::RootCommitter;
use bkfs::root::commit_request::CommitRequest;
use bkfs::root::repository::{Accepted, NewRepository, create};
use bkfs::root::request::VolumeRequest;
use bkfs::root::session::OpenSession;
use bkfs::root::shard::{ListRef, encode_shard};
use bkfs::root::snapshots::{NewSnapshot, SnapshotEntry};
use bkfs::root::state::Root;
use bkfs::tree::item::{Attributes, Item, Timestamp};
use bkfs::tree::key::Key;
use bkfs::volume::ROOT_INODE;
use bkfs::volume::nodes::NewNodes;
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_chunker::crypto::{Class, SlotCost};
use bkfs_chunker::id::{Id, Kind};
use bkfs_chunker::ingest::Ingest;
use bkfs_store::entropy::SystemEntropy;
use bkfs_store::{StoreOptions, open_store, parse_url};
use bytes::Bytes;
use tokio::runtime::Runtime;

use crate::password::Known;

/// The password of every forged repository.
pub const PASSWORD: &str = "the password of a hostile writer";

/// The contents of the honest file of every forgery.
pub const HONEST: &[u8] = b"honest contents\n";

/// The volume that is written.
pub const VOLUME: &str = "main";

/// A repository that a hostile writer writes.
pub struct Forger {
    /// The open repository.
    pub repository: Arc<Repository>,
    ingest: Arc<Ingest>,
    session: OpenSession,
    committer: RootCommitter<Ingest>,
    runtime: Runtime,
}

/// Returns how a repository in a directory is opened.
pub fn opening(path: &Path) -> Opening {
    Opening {
        key: None,
        url: parse_url(path.to_str().expect("a path")).expect("a url"),
        store: StoreOptions {
            create_directory: true,
            ..StoreOptions::default()
        },
        content_store: ContentStoreConfig {
            cache_dir: None,
            workers: 0,
            ..ContentStoreConfig::default()
        },
        timeout: Duration::from_secs(10),
        min_generation: 0,
        accepted: Accepted::default(),
        state_dir: None,
    }
}

/// Returns a runtime for asynchronous work.
pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Makes an empty repository.
pub async fn make(path: &Path) {
    let opening = opening(path);
    let store = open_store(&opening.url, &opening.store).await;
    let new = NewRepository {
        password: Some(PASSWORD.as_bytes()),
        cost: SlotCost {
            memory_kib: 64,
            passes: 1,
            lanes: 1,
        },
        label: "hostile",
        clock: Default::default(),
        lock: None,
    };
    let made = create(&*store.expect("a store"), &SystemEntropy, &new).await;
    made.expect("a repository");
}

impl Forger {
    /// Makes a repository, and takes its volume.
    pub fn begin(path: &Path) -> Forger {
        let runtime = runtime();
        let begun = runtime.block_on(async {
            make(path).await;
            let repository = open(opening(path), &mut Known(Some(PASSWORD))).await;
            let repository = Arc::new(repository.expect("opens"));
            let request = VolumeRequest {
                name: VOLUME.to_owned(),
                steal: false,
                accept_loss: false,
            };
            let machine = &repository.environment;
            let holder = machine.holder("a hostile writer");
            let processes = machine.processes.clone();
            let session = OpenSession::open(
                &repository.handle,
                holder,
                Some(request),
                processes.as_ref(),
            );
            let session = session.await.expect("a session");
            repository.load_index_to_write().await.expect("an index");
            let ingest = Arc::new(Ingest::new(
                repository.content_store.clone(),
                session.id().0,
            ));
            let committer = RootCommitter::new(
                repository.handle.clone(),
                repository.lists.clone(),
                session.id(),
                VOLUME,
                ingest.clone(),
            );
            (repository, ingest, session, committer.expect("a committer"))
        });
        let (repository, ingest, session, committer) = begun;
        Forger {
            repository,
            ingest,
            session,
            committer,
            runtime,
        }
    }

    /// Returns the position of a name in its directory.
    pub fn cookie(&self, name: &[u8]) -> u64 {
        self.repository.nodes.names().cookie(name)
    }

    /// Stores a blob.
    pub fn blob(&self, kind: Kind, bytes: Vec<u8>) -> Id {
        let stored = self.ingest.store_blob(kind, Bytes::from(bytes));
        self.runtime.block_on(stored).expect("stored")
    }

    /// Stores a node of these entries, valid or not.
    pub fn node(&self, level: u8, entries: &[(Vec<u8>, Vec<u8>)]) -> Id {
        self.blob(Kind::Node, encode_node(level, entries))
    }

    /// Stores a tree of these items, in valid nodes.
    pub fn tree(&self, items: &Items) -> Id {
        let nodes = self.repository.nodes.as_ref();
        let sink = NewNodes {
            ingest: &self.ingest,
            cache: nodes,
        };
        let changes = items.0.clone().into_iter();
        let changes = changes.map(|(key, value)| (key, Some(value)));
        let made = async {
            let empty = bkfs::tree::empty(&sink).await?;
            bkfs::tree::apply(nodes, &sink, empty, changes).await
        };
        self.runtime.block_on(made).expect("a tree")
    }

    /// Commits a tree, and makes a snapshot of it.
    pub fn snapshot(&self, name: &str, tree: Id) {
        let request = CommitRequest {
            mark: self.ingest.mark(),
            tree: Some(tree),
            building: None,
            covered: 0,
            covered_journal: None,
            next_inode: 1 << 40,
            inodes: 3,
            bytes: HONEST.len() as u64,
            clock: self.repository.now(),
            snapshot: Some(NewSnapshot {
                name: Some(name.to_owned()),
                host: "host".into(),
                user: "user".into(),
                tags: Vec::new(),
                clock: self.repository.now(),
                recovered: false,
                replaces: false,
                replaced_at: None,
                drill: None,
                origin: None,
            }),
        };
        let committed = self.runtime.block_on(self.committer.commit(request));
        committed.expect("a commit");
    }

    /// Replaces the entries of the list of snapshots, and changes the root with `change`.
    pub fn relist(
        &self,
        entries: impl FnOnce(Vec<SnapshotEntry>) -> Vec<SnapshotEntry>,
        change: impl FnOnce(&mut Root),
    ) {
        self.runtime.block_on(async {
            let repository = &self.repository;
            let list = repository.snapshots().await.expect("a list");
            let entries = entries(list.iter().cloned().collect());
            let count = entries.len() as u32;
            let payload = encode_shard(entries);
            let bytes = payload.len() as u64;
            let name = self.ingest.put_list(&payload).await.expect("a list");
            let current = repository.handle.current();
            let mut root = current.root.clone();
            if let Some(chain) = &mut root.chain {
                chain.enter(current.root.mark());
            }
            root.snapshots = vec![ListRef { name, count, bytes }];
            root.generation += 1;
            change(&mut root);
            let keyring = repository.handle.keyring();
            let payload = root.encode().expect("a root");
            let object =
                keyring.seal_object(Class::Root, "root", current.features, [7; 32], &payload);
            let store = repository.handle.store();
            let (_, version) = store.get("root").await.expect("a root");
            let replaced = store.replace("root", vec![object], &version).await;
            replaced.expect("the root is replaced");
        });
    }

    /// Leaves the repository as a clean unmount does.
    pub fn end(self) {
        let ended = self.runtime.block_on(self.session.end());
        // A forged root may refuse that; then the session stays.
        drop(ended);
    }
}

/// The items of a tree.
#[derive(Clone)]
pub struct Items(pub BTreeMap<Key, Vec<u8>>);

/// Returns valid attributes.
pub fn attributes(mode: u32, size_bytes: u64) -> Attributes {
    let time = Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 0,
    };
    Attributes {
        mode,
        uid: 0,
        gid: 0,
        links: if mode & libc::S_IFMT == libc::S_IFDIR {
            2
        } else {
            1
        },
        size_bytes,
        allocated_bytes: 0,
        accessed: time,
        modified: time,
        changed: time,
        ..Attributes::default()
    }
}

/// The inode of the honest file.
pub const HONEST_INODE: u64 = 70;

/// The modes of a regular file and of a directory.
pub const FILE: u32 = libc::S_IFREG | 0o644;
pub const DIRECTORY: u32 = libc::S_IFDIR | 0o755;

impl Items {
    /// Returns a root directory with an honest file.
    pub fn new(forger: &Forger) -> Items {
        let mut items = Items(BTreeMap::new());
        items.inode(ROOT_INODE, attributes(DIRECTORY, 1));
        items.file(forger, ROOT_INODE, b"honest", HONEST_INODE);
        items
    }

    /// Adds any bytes under a key.
    pub fn raw(&mut self, key: Key, value: impl Into<Vec<u8>>) {
        self.0.insert(key, value.into());
    }

    /// Adds an inode.
    pub fn inode(&mut self, inode: u64, attributes: Attributes) {
        self.raw(
            Key::attributes(inode),
            Item::Attributes(attributes).encode(),
        );
    }

    /// Adds a name at its valid position.
    pub fn name(&mut self, forger: &Forger, directory: u64, name: &[u8], inode: u64, mode: u32) {
        self.name_at(forger.cookie(name), directory, name, inode, mode);
    }

    /// Adds a name at any position.
    pub fn name_at(&mut self, cookie: u64, directory: u64, name: &[u8], inode: u64, mode: u32) {
        let file_type = (mode >> 12) as u8;
        let item = Item::Name { inode, file_type };
        self.raw(Key::name(directory, cookie, name), item.encode());
    }

    /// Adds a file with the honest contents.
    pub fn file(&mut self, forger: &Forger, directory: u64, name: &[u8], inode: u64) {
        self.name(forger, directory, name, inode, FILE);
        self.contents(inode);
    }

    /// Adds an inode with the honest contents.
    pub fn contents(&mut self, inode: u64) {
        self.inode(inode, attributes(FILE, HONEST.len() as u64));
        self.raw(Key::inline(inode), HONEST);
    }

    /// Adds a directory.
    pub fn directory(&mut self, forger: &Forger, parent: u64, name: &[u8], inode: u64) {
        self.name(forger, parent, name, inode, DIRECTORY);
        self.inode(inode, attributes(DIRECTORY, 1));
    }

    /// Returns the entries of a raw node that holds all items.
    pub fn entries(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let entries = self.0.iter();
        entries
            .map(|(key, value)| (key.as_bytes().to_vec(), value.clone()))
            .collect()
    }
}

/// Appends a number of variable length, as nodes have them.
pub fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Returns the bytes of a node, without any of the rules for its contents.
pub fn encode_node(level: u8, entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let prefix = match (entries.first(), entries.last()) {
        (Some((first, _)), Some((last, _))) => {
            first.iter().zip(last).take_while(|(a, b)| a == b).count()
        }
        _ => 0,
    };
    let mut out = vec![1, level];
    varint(&mut out, entries.len() as u64);
    varint(&mut out, prefix as u64);
    out.extend_from_slice(entries.first().map_or(&[], |(key, _)| &key[..prefix]));
    for (key, _) in entries {
        varint(&mut out, key.len().saturating_sub(prefix) as u64);
    }
    for (_, value) in entries {
        varint(&mut out, value.len() as u64);
    }
    for (key, _) in entries {
        out.extend_from_slice(&key[prefix.min(key.len())..]);
    }
    for (_, value) in entries {
        out.extend_from_slice(value);
    }
    out
}

/// Returns the statement of a node about a node below it.
pub fn child(id: Id, items: u64) -> Vec<u8> {
    let mut out = id.0.to_vec();
    varint(&mut out, items);
    out
}
