//! Files of index tables: whatever becomes of them, no answer is wrong, and they are made anew.

use std::fs;

use bkfs_store::Operation;
use bkfs_store::StoreErrorKind;

use super::bucket::Verdict;
use super::*;
use crate::index::BLOCK_LEN;

/// A repository with one file, an index object and its table in a cache directory.
struct Machine {
    world: World,
    directory: tempfile::TempDir,
    file: Bytes,
    stored: StoredRun,
}

impl Machine {
    async fn new(seed: u64) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut world = World::new(seed, true);
        world.cache_dir = Some(directory.path().to_owned());
        let content_store = world.loaded().await;
        let ingest = world.ingest(&content_store);
        let file = noise(seed, 3 * MIB);
        let stored = store_file(&ingest, Profile::Content, &file, MIB).await;
        world.commit(&ingest).await;
        assert_eq!(world.index.len(), 1);
        Self {
            world,
            directory,
            file,
            stored,
        }
    }

    fn path(&self) -> PathBuf {
        self.path_of(&self.world.index[0])
    }

    fn path_of(&self, index: &IndexRef) -> PathBuf {
        let repository = self.world.keyring.repository().to_string();
        let directory = self.directory.path().join(repository).join("index");
        directory.join(index.name.to_string())
    }

    fn table(&self) -> Vec<u8> {
        fs::read(self.path()).expect("the table is a file")
    }

    /// Returns how often the index object was fetched since the last call.
    fn fetched(&self) -> u64 {
        let fetched = self.world.bucket.requests(Operation::Get, "index/");
        self.world.bucket.forget_requests();
        fetched
    }

    async fn assert_reads(&self, content_store: &ContentStore) {
        let read = read_file(content_store, &self.stored).await;
        assert!(read.expect("reads") == self.file);
        assert_eq!(content_store.metrics().damaged, 0, "the bucket is whole");
    }

    fn some_id(&self) -> Id {
        self.ids()[0]
    }

    fn ids(&self) -> Vec<Id> {
        let extents = self.stored.extents.iter();
        let ids = extents.map(|extent| match extent.target {
            Some(Target::Chunk(id) | Target::Segment(id)) => id,
            None => panic!("the file has no holes"),
        });
        ids.collect()
    }

    fn lose_index_objects(&self) {
        self.world.bucket.script(|_, key| match is_index(key) {
            true => Verdict::Fail(StoreErrorKind::NotFound),
            false => Verdict::Pass,
        });
    }
}

fn is_index(key: &str) -> bool {
    key.starts_with("index/")
}

/// Changes a file that is open elsewhere, without another one in its place.
fn overwrite(path: &PathBuf, bytes: &[u8]) {
    fs::write(path, bytes).expect("writes");
}

/// Returns the bytes with each block changed.
fn spoiled(bytes: &[u8]) -> Vec<u8> {
    let mut spoiled = bytes.to_vec();
    spoiled
        .iter_mut()
        .step_by(BLOCK_LEN / 2)
        .for_each(|byte| *byte ^= 1);
    spoiled
}

#[tokio::test]
async fn a_read_that_meets_a_damaged_block_answers_and_the_table_is_whole_again() {
    let machine = Machine::new(80).await;
    let whole = machine.table();
    assert!(whole.len() >= 9 * BLOCK_LEN);
    for at in (0..whole.len()).step_by(BLOCK_LEN) {
        let mut changed = whole.clone();
        changed[at + 7] ^= 1;
        overwrite(&machine.path(), &changed);
        machine.fetched();
        let content_store = machine.world.loaded().await;
        machine.assert_reads(&content_store).await;
        assert_eq!(machine.fetched(), 1, "block {}", at / BLOCK_LEN);
        assert!(machine.table() == whole);
    }
}

#[tokio::test]
async fn opening_reads_the_first_block_alone() {
    let machine = Machine::new(81).await;
    let whole = machine.table();
    let mut changed = whole.clone();
    changed[BLOCK_LEN..].fill(0);
    overwrite(&machine.path(), &changed);
    machine.fetched();
    let content_store = machine.world.loaded().await;
    assert_eq!(machine.fetched(), 0);
    assert!(machine.table() == changed, "nothing has looked at the rest");
    machine.assert_reads(&content_store).await;
    assert_eq!(machine.fetched(), 1);
    assert!(machine.table() == whole);
}

#[tokio::test]
async fn a_file_that_changes_while_it_is_open_gives_no_wrong_answer() {
    let machine = Machine::new(82).await;
    let other = Machine::new(83).await;
    let whole = machine.table();
    let changes = [
        Vec::new(),
        whole[..BLOCK_LEN].to_vec(),
        whole[..2 * BLOCK_LEN].to_vec(),
        vec![0; whole.len()],
        other.table(),
        spoiled(&whole),
    ];
    for changed in changes {
        let content_store = machine.world.loaded().await;
        let places = content_store.places(&machine.some_id()).await;
        let places = places.expect("answers");
        overwrite(&machine.path(), &changed);
        let again = content_store.places(&machine.some_id()).await;
        assert_eq!(again.expect("answers"), places);
        for place in &places {
            assert!(content_store.is_live(&place.pack).await.expect("answers"));
        }
        machine.assert_reads(&content_store).await;
        assert!(machine.table() == whole);
    }
}

#[tokio::test]
async fn tables_of_other_versions_and_repositories_are_made_anew() {
    let mut machine = Machine::new(84).await;
    let whole = machine.table();
    let other_repository = Machine::new(85).await.table();
    let mut older = b"bkfstab\0\x02\0\0\0".to_vec();
    older.resize(whole.len(), 7);
    for changed in [older, other_repository, b"bkfs".to_vec()] {
        overwrite(&machine.path(), &changed);
        machine.fetched();
        let content_store = machine.world.loaded().await;
        assert_eq!(machine.fetched(), 1);
        assert!(machine.table() == whole);
        machine.assert_reads(&content_store).await;
    }
    // Another index object of the same repository.
    let content_store = machine.world.loaded().await;
    let ingest = machine.world.ingest(&content_store);
    store_file(&ingest, Profile::Content, &noise(86, MIB), MIB).await;
    machine.world.commit(&ingest).await;
    let newer = machine.world.index.last().expect("it is listed");
    let path = machine.path_of(newer);
    assert!(path.exists() && fs::read(&path).expect("reads") != whole);
    overwrite(&path, &whole);
    machine.fetched();
    machine.world.loaded().await;
    assert_eq!(machine.fetched(), 1);
}

#[tokio::test]
async fn what_a_damaged_table_holds_is_not_stored_again() {
    let mut machine = Machine::new(87).await;
    let packs = machine.world.bucket.count("data/");
    let content_store = machine.world.loaded().await;
    let ingest = machine.world.ingest(&content_store);
    overwrite(&machine.path(), &spoiled(&machine.table()));
    let file = machine.file.clone();
    let again = store_file(&ingest, Profile::Content, &file, MIB).await;
    assert_eq!(again, machine.stored);
    machine.world.commit(&ingest).await;
    assert_eq!(machine.world.bucket.count("data/"), packs);
}

#[tokio::test]
async fn without_the_index_object_a_damaged_table_is_an_error() {
    let mut machine = Machine::new(88).await;
    let content_store = machine.world.loaded().await;
    let ingest = machine.world.ingest(&content_store);
    overwrite(&machine.path(), &spoiled(&machine.table()));
    machine.lose_index_objects();
    // Nothing says that the blobs are absent.
    let missing = |error: &ContentError| {
        matches!(error, ContentError::Index(_)) && error.wants_newer_root() && !error.is_lost()
    };
    let places = content_store.places(&machine.some_id()).await;
    assert!(missing(&places.expect_err("no table answers")));
    let read = read_file(&content_store, &machine.stored).await;
    assert!(missing(&read.expect_err("no table answers")));
    let adopted = ingest.adopt(machine.stored.extents[0].target.expect("is there"));
    assert!(missing(&adopted.await.expect_err("no table answers")));
    // Once the store gives it again, it is made anew.
    machine.world.bucket.behave();
    machine.fetched();
    let loaded = content_store
        .load_index(
            &IndexSources::of_objects(&machine.world.index),
            &HashSet::new(),
        )
        .await;
    loaded.expect("loads");
    assert_eq!(machine.fetched(), 1, "loading does it, before a read");
    machine.assert_reads(&content_store).await;
    assert_eq!(machine.fetched(), 0);
}

#[tokio::test]
async fn a_table_that_is_damaged_twice_stays_in_memory() {
    let machine = Machine::new(89).await;
    let content_store = machine.world.loaded().await;
    machine.fetched();
    for _ in 0..2 {
        overwrite(&machine.path(), &spoiled(&machine.table()));
        // A read of what is in memory asks no table.
        let places = content_store.places(&machine.some_id()).await;
        assert!(!places.expect("it is made anew").is_empty());
        machine.assert_reads(&content_store).await;
        assert_eq!(machine.fetched(), 1);
    }
    assert!(!machine.path().exists());
    let places = content_store.places(&machine.some_id()).await;
    assert!(!places.expect("it is in memory").is_empty());
    machine.assert_reads(&content_store).await;
    assert_eq!(machine.fetched(), 0);
}

#[tokio::test]
async fn many_look_ups_that_meet_one_damage_fetch_the_index_object_once() {
    let machine = Machine::new(90).await;
    let content_store = machine.world.loaded().await;
    overwrite(&machine.path(), &spoiled(&machine.table()));
    machine.fetched();
    let id = machine.some_id();
    let looks = (0..20).map(|_| content_store.places(&id));
    for found in futures::future::join_all(looks).await {
        assert_eq!(found.expect("answers").len(), 1);
    }
    assert_eq!(machine.fetched(), 1);
}

#[tokio::test]
async fn without_the_index_object_one_attempt_serves_all_chunks_of_a_writer() {
    let mut machine = Machine::new(91).await;
    let packs = machine.world.bucket.count("data/");
    let content_store = machine.world.loaded().await;
    let ingest = machine.world.ingest(&content_store);
    overwrite(&machine.path(), &spoiled(&machine.table()));
    machine.lose_index_objects();
    machine.fetched();
    let file = machine.file.clone();
    let again = store_file(&ingest, Profile::Content, &file, MIB).await;
    assert_eq!(again, machine.stored);
    assert_eq!(machine.fetched(), 1);
    machine.world.bucket.behave();
    machine.world.commit(&ingest).await;
    assert!(
        machine.world.bucket.count("data/") > packs,
        "it was stored again"
    );
}

#[tokio::test]
async fn without_the_index_object_many_look_ups_make_few_attempts() {
    let machine = Machine::new(92).await;
    let content_store = machine.world.loaded().await;
    overwrite(&machine.path(), &spoiled(&machine.table()));
    machine.lose_index_objects();
    machine.fetched();
    let ids = machine.ids();
    let looks = ids.iter().cycle().take(200);
    let looks = looks.map(|id| content_store.places(id));
    for found in futures::future::join_all(looks).await {
        assert!(matches!(found, Err(ContentError::Index(_))));
    }
    // A failure counts for a second.
    assert!((1..=3).contains(&machine.fetched()));
}

#[tokio::test]
async fn a_dropped_look_up_leaves_the_making_of_a_table_to_the_next_one() {
    let machine = Machine::new(93).await;
    let whole = machine.table();
    let content_store = machine.world.loaded().await;
    overwrite(&machine.path(), &spoiled(&whole));
    machine.world.bucket.script(|_, key| match is_index(key) {
        true => Verdict::Hang,
        false => Verdict::Pass,
    });
    machine.fetched();
    let id = machine.some_id();
    let is_asked = async {
        while machine.fetched() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        found = content_store.places(&id) => panic!("{found:?} without the index object"),
        () = is_asked => {}
    }
    machine.world.bucket.behave();
    machine.fetched();
    machine.assert_reads(&content_store).await;
    assert_eq!(machine.fetched(), 1);
    assert!(machine.table() == whole, "it was not made anew before");
}

/// Asserts that a look-up of many blobs answers as look-ups of one do.
async fn assert_copies(content_store: &ContentStore, ids: &[Id]) {
    let mut asked: Vec<Prefix> = ids.iter().map(Id::prefix).collect();
    asked.push(Prefix([7; Prefix::LEN]));
    asked.sort_unstable();
    asked.dedup();
    let asked: Arc<[Prefix]> = asked.into();
    let listed = content_store.copies_of(&asked).await.expect("answers");
    let mut found = vec![Vec::new(); asked.len()];
    for index in &listed {
        assert!(index.copies.is_sorted());
        for copy in &index.copies {
            let pack = index.packs[copy.pack as usize];
            found[copy.asked as usize].push((pack, copy.frame, copy.slot));
        }
    }
    for (prefix, mut found) in asked.iter().zip(found) {
        let mut one = content_store.slots_of(prefix).await.expect("answers");
        found.sort_unstable();
        one.sort_unstable();
        assert_eq!(found, one);
    }
}

#[tokio::test]
async fn many_look_ups_at_once_answer_as_one_by_one_whatever_becomes_of_the_file() {
    let machine = Machine::new(94).await;
    let whole = machine.table();
    let ids = machine.ids();
    let content_store = machine.world.loaded().await;
    assert_copies(&content_store, &ids).await;
    // Once the table is made anew in the middle of the look-up, and then it stays in memory.
    machine.fetched();
    for _ in 0..2 {
        overwrite(&machine.path(), &spoiled(&whole));
        assert_copies(&content_store, &ids).await;
        assert_eq!(machine.fetched(), 1);
    }
    assert_copies(&content_store, &ids).await;
    assert_eq!(machine.fetched(), 0);
}

#[tokio::test]
async fn many_look_ups_at_once_fail_without_the_index_object() {
    let machine = Machine::new(95).await;
    let content_store = machine.world.loaded().await;
    overwrite(&machine.path(), &spoiled(&machine.table()));
    machine.lose_index_objects();
    let asked: Arc<[Prefix]> = [machine.some_id().prefix()].into();
    let found = content_store.copies_of(&asked).await;
    assert!(matches!(found, Err(ContentError::Index(_))));
}
