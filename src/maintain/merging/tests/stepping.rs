//! One step of a merge, in a repository in memory.

use std::sync::Arc;

use async_trait::async_trait;
use bkfs_chunker::content_store::ContentStoreConfig;
use bkfs_chunker::crypto::HEADER_LEN;
use bkfs_chunker::id::{Kind, Prefix};
use bkfs_chunker::index::PackRecord;
use bkfs_chunker::pack::FooterBuilder;
use bkfs_store::{MemoryStore, StoreOptions, parse_url};

use super::*;
use crate::maintain::collect::verifier;
use crate::repository::{Opening, create_in, open_in};
use crate::root::Passwords;
use crate::root::handle::Transition;

struct Unsealed;

impl Passwords for Unsealed {
    fn is_given(&self) -> bool {
        false
    }

    fn password(&mut self) -> Result<Option<zeroize::Zeroizing<Vec<u8>>>, RootError> {
        Ok(None)
    }
}

async fn open(store: &Arc<MemoryStore>) -> Repository {
    let opening = Opening {
        key: None,
        url: parse_url("/memory").expect("a URL"),
        store: StoreOptions::default(),
        content_store: ContentStoreConfig {
            cache_dir: None,
            ..ContentStoreConfig::default()
        },
        timeout: Duration::from_secs(10),
        min_generation: 0,
        accepted: Default::default(),
        state_dir: None,
    };
    let opened = open_in(store.clone(), opening, &mut Unsealed).await;
    opened.expect("opened")
}

/// A pack of which only an index object tells.
fn pack(number: u64) -> PackContents {
    let mut footer = FooterBuilder::new();
    let blobs = (0..10).map(|slot| {
        let hash = blake3::hash(&(number * 10 + slot).to_le_bytes());
        let prefix = hash.as_bytes().first_chunk().expect("a hash is longer");
        (Kind::Chunk, 16_384, Prefix(*prefix))
    });
    footer.push(150_000, blobs);
    PackContents::from(PackRecord {
        name: name(number as u32),
        class: Class::DataPack,
        length: 16 << 20,
        header: [number as u8; HEADER_LEN],
        footer: footer.finish().expect("small"),
    })
}

/// Puts index objects in the place of others.
struct ChangeIndex(SessionId, IndexChange);

#[async_trait]
impl Transition for ChangeIndex {
    type Output = ();

    fn session(&self) -> Option<SessionId> {
        Some(self.0)
    }

    async fn apply(&mut self, next: &mut Root) -> Result<(), RootError> {
        Ok(next.change_index(&self.1)?)
    }

    async fn seen(&mut self, _: &Root) -> Result<bool, RootError> {
        Ok(false)
    }
}

/// Writes one index object of these packs in the place of all others.
async fn index_of(repository: &Repository, packs: &[PackContents]) {
    let environment = &repository.environment;
    let holder = environment.holder("test");
    let handle = &repository.handle;
    let session = OpenSession::open(handle, holder, None, &*environment.processes).await;
    let session = session.expect("entered");
    let ingest = Ingest::new(repository.content_store.clone(), session.id().0);
    let change = IndexChange {
        absorbed: handle.current().root.index.clone(),
        added: ingest.put_index(packs).await.expect("written"),
    };
    let changed = handle.update(&mut ChangeIndex(session.id(), change)).await;
    changed.expect("changed");
    session.end().await.expect("left");
}

#[tokio::test]
async fn a_step_is_judged_by_the_root_that_it_was_planned_by() {
    let memory = Arc::new(MemoryStore::new());
    create_in(memory.clone(), None).await.expect("created");
    let repository = open(&memory).await;
    let packs: Vec<PackContents> = (0..12).map(pack).collect();
    index_of(&repository, &packs[..11]).await;
    let environment = &repository.environment;
    let handle = &repository.handle;
    let holder = environment.holder("test");
    let session = OpenSession::open(handle, holder, None, &*environment.processes).await;
    let session = session.expect("entered");
    let ingest = Ingest::new(repository.content_store.clone(), session.id().0);
    let verifier = verifier(&repository).expect("opened");
    let mut merger = Merger::new(&repository, &verifier, &ingest, &session);
    let view = handle.current();
    let step = POLICY.next(&view.root, &merger.avoided);
    let step = step.expect("it is enough");
    assert!(matches!(step, Step::Begin(..)), "{step:?}");
    // Another machine changes the index, and a heartbeat learns of that.
    let other = open(&memory).await;
    index_of(&other, &packs).await;
    let newer = handle.refresh().await.expect("read");
    assert_ne!(newer.root.index, view.root.index);
    let outcome = merger.step(&POLICY, &view, step).await;
    let outcome = outcome.expect("the next step is planned anew");
    assert!(matches!(outcome, Outcome::Fruitless), "{outcome:?}");
    let done = merger.work(&POLICY, &|_| true).await;
    assert_eq!(done.expect("merged"), None);
    let view = handle.current();
    let root = &view.root;
    assert_eq!(root.uncovered_index(), []);
    assert_eq!(root.complete_groups().count(), 1);
    session.end().await.expect("left");
}
