//! What each command of the program measures.

use std::time::{Duration, Instant};

use bkfs::maintain::collect::verifier;
use bkfs::maintain::merging::{MergePolicy, merge_runs};
use bkfs::mounting::MountPlan;
use bkfs::mounting::alone::{Alone, AloneParts};
use bkfs::mounting::settings::Settings;
use bkfs::restore::resolve;
use bkfs::tree::item::Item;
use bkfs::tree::key;
use bkfs::volume::requests::SnapshotRequest;
use bkfs::volume::state::Scope;
use bkfs_bench::data::Numbers;
use bkfs_bench::measure::{anonymous_bytes, processor_s};
use bkfs_chunker::chunking::Profile;
use bkfs_chunker::content_store::ContentStore;
use bkfs_chunker::id::{Id, Prefix};
use bkfs_fuse::MountOptions;
use futures::StreamExt;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::files::{Content, PAGE, add_file};
use crate::forgery::{Forgery, PACK_CHUNKS};
use crate::{Machine, Outcome};

/// Memory of a machine that only reads, in bytes.
const READING_BYTES: u64 = 256 << 20;

/// Names of a directory that are asked for at a time.
const NAMES: usize = 1024;

/// Bytes that are read of the file of data.
const BEGIN_BYTES: u64 = 4096;

/// Fresh chunks that are looked up.
const FRESH: u64 = 4 << 20;

/// Packs of which all chunks are looked up.
const KNOWN_PACKS: u64 = 400;

/// Look-ups of fresh chunks that may wait for the store at the same time, and packs that are looked
/// up at the same time.
const AT_ONCE: usize = 16;

/// Returns the content of so many bytes of incompressible pages.
pub fn content(bytes: u64, profile: &str) -> Outcome<Content> {
    let profile = match profile {
        "grid" => Profile::Grid,
        "content" => Profile::Content,
        _ => return Err(crate::USAGE.into()),
    };
    Ok(Content {
        pages: bytes / PAGE as u64,
        random_bytes: PAGE,
        profile,
    })
}

/// Lists a directory in the middle of the snapshot, and reads the begin of the file of data.
pub async fn read(directory: &str, delay: Duration) -> Outcome<()> {
    let begun = Instant::now();
    let machine = Machine::new(directory, delay, READING_BYTES).await?;
    machine.tell("opened", begun.elapsed().as_secs_f64());
    let (_, view) = machine.repository.snapshot("main", "base").await?;
    let directories = view.totals().inodes / 10_000;
    let name = format!("directory-{:010}", directories / 2 * 10_000);
    let inode = resolve(&view, name.as_bytes()).await?;
    let (mut range, mut names) = (key::names_from(inode, 0), 0);
    loop {
        let page = view.items(Scope::Live, range.clone(), NAMES).await?;
        let is_name = |(_, item): &(_, Item)| matches!(item, Item::Name { .. });
        names += page.items.iter().filter(|item| is_name(item)).count();
        match page.next {
            Some(next) => range.start = next,
            None => break,
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    machine.tell(&format!("{names} names listed"), seconds);
    let data = resolve(&view, b"data").await?;
    let read = view.read(Scope::Live, data, 0..BEGIN_BYTES).await?;
    let read: usize = read.iter().map(|part| part.len()).sum();
    let seconds = begun.elapsed().as_secs_f64();
    machine.tell(&format!("{read} bytes read"), seconds);
    Ok(())
}

/// Begins a mount that writes, and ends it.
pub async fn mount(directory: &str, delay: Duration, memory_bytes: u64) -> Outcome<()> {
    let begun = Instant::now();
    let machine = Machine::new(directory, delay, memory_bytes).await?;
    let plan = MountPlan {
        clone_of: None,
        observed: Default::default(),
        repository: machine.repository.clone(),
        mount_point: "/nowhere".into(),
        options: MountOptions::default(),
        settings: Settings {
            memory_bytes,
            cache_dir: Some(machine.cache.path().to_owned()),
            ..Settings::default()
        },
        volume: "mounted".into(),
        steal: false,
        spool: None,
    };
    let mount = plan.assemble(&tokio::runtime::Handle::current()).await?;
    machine.tell("ready", begun.elapsed().as_secs_f64());
    let anonymous = anonymous_bytes(std::process::id()).unwrap_or_default();
    println!(
        "anonymous memory: {} MiB of {}",
        anonymous >> 20,
        memory_bytes >> 20
    );
    mount.finish().await?;
    Ok(())
}

/// Looks fresh and known chunks up.
pub async fn find(directory: &str, delay: Duration, memory_bytes: u64) -> Outcome<()> {
    let machine = Machine::new(directory, delay, memory_bytes).await?;
    let root = &machine.repository.handle.current().root;
    let forgery = Forgery::in_root(root).ok_or("there is no forged run")?;
    let begun = Instant::now();
    machine.repository.load_index_to_write().await?;
    machine.tell("filters read", begun.elapsed().as_secs_f64());
    let content_store = &machine.repository.content_store;
    let mut numbers = Numbers(1);
    let mut random =
        || (u128::from(numbers.draw()) << 64 | u128::from(numbers.draw())).to_le_bytes();
    let fresh: Vec<Id> = (0..FRESH).map(|_| id(&Prefix(random()))).collect();
    let timed = Timed::begin(&machine);
    let found = futures::stream::iter(&fresh)
        .map(|id| content_store.live_pack(id))
        .buffer_unordered(AT_ONCE)
        .filter(|found| std::future::ready(!matches!(found, Ok(None))))
        .count()
        .await;
    timed.tell("fresh chunks", FRESH, found as u64)?;
    let step = (forgery.packs / KNOWN_PACKS).max(1) as usize;
    let packs: Vec<u64> = (0..forgery.packs).step_by(step).collect();
    let timed = Timed::begin(&machine);
    let found = futures::stream::iter(&packs)
        .map(|pack| known(content_store, forgery, *pack))
        .buffer_unordered(AT_ONCE);
    let found: u64 = found.collect::<Vec<u64>>().await.into_iter().sum();
    timed.tell("known chunks", packs.len() as u64 * PACK_CHUNKS, found)
}

/// Looks all chunks of a pack up, in order. Returns how many were found in it.
async fn known(content_store: &ContentStore, forgery: Forgery, pack: u64) -> u64 {
    let mut found = 0;
    for chunk in 0..PACK_CHUNKS {
        let id = id(&forgery.prefix(pack, chunk));
        let in_pack = content_store.live_pack(&id).await;
        found += u64::from(in_pack.is_ok_and(|found| found == Some(Forgery::name(pack))));
    }
    found
}

/// Returns an id with this prefix.
fn id(prefix: &Prefix) -> Id {
    let mut bytes = [0; 32];
    bytes[..Prefix::LEN].copy_from_slice(&prefix.0);
    Id(bytes)
}

/// The begin of a measurement.
struct Timed<'a> {
    machine: &'a Machine,
    begun: Instant,
    processor_s: f64,
    requests: u64,
}

impl<'a> Timed<'a> {
    fn begin(machine: &'a Machine) -> Self {
        Self {
            machine,
            begun: Instant::now(),
            processor_s: processor_s(std::process::id()).unwrap_or_default(),
            requests: machine.counters.total().requests,
        }
    }

    fn tell(&self, what: &str, asked: u64, found: u64) -> Outcome<()> {
        let wall = self.begun.elapsed().as_secs_f64();
        let processor = processor_s(std::process::id()).ok_or("no times of this process")?;
        let processor = processor - self.processor_s;
        let requests = self.machine.counters.total().requests - self.requests;
        let share = 100.0 * found as f64 / asked as f64;
        println!(
            "{what}: {:.0} a second of wall time, {:.0} a second of processor time, {share:.3} % \
             found, {requests} requests",
            asked as f64 / wall,
            asked as f64 / processor
        );
        Ok(())
    }
}

/// Stores data in one volume, merges what is listed of it, and stores it on another machine in
/// another volume.
pub async fn full(
    directory: &str,
    delay: Duration,
    memory_bytes: u64,
    content: Content,
) -> Outcome<()> {
    store(directory, delay, memory_bytes, content, "one").await?;
    let machine = Machine::new(directory, delay, memory_bytes).await?;
    let policy = MergePolicy {
        least_blobs: 1,
        ..MergePolicy::default()
    };
    let repository = &machine.repository;
    let verifier = verifier(repository)?;
    let merged = merge_runs(repository, &verifier, &policy, &|_| true, "scale").await?;
    println!("merged: {} records in {} runs", merged.records, merged.runs);
    store(directory, delay, memory_bytes, content, "two").await
}

/// Stores data on a machine of its own.
async fn store(
    directory: &str,
    delay: Duration,
    memory_bytes: u64,
    content: Content,
    volume: &str,
) -> Outcome<()> {
    let machine = Machine::new(directory, delay, memory_bytes).await?;
    let alone = Alone::begin(AloneParts {
        repository: machine.repository.clone(),
        volume: volume.into(),
        command: "scale".into(),
        memory_bytes,
        steal: false,
        accept_loss: false,
        session: None,
    })
    .await?;
    let before = machine.counters.total();
    let begun = Instant::now();
    let name = format!("in {volume}");
    add_file(
        alone.volume(),
        &name,
        content,
        &mut StdRng::seed_from_u64(2),
    )
    .await?;
    alone.volume().snapshot(SnapshotRequest::default()).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let after = machine.counters.total();
    alone.finish().await?;
    let stored = (after.bytes_written - before.bytes_written) as f64 / f64::from(1 << 20);
    let of = (content.pages * PAGE as u64) >> 20;
    let requests = after.requests - before.requests;
    println!("{volume}: {of} MiB in {seconds:.1} s, {stored:.1} MiB stored, {requests} requests");
    Ok(())
}
