//! Random reads of a long file in a snapshot, 20 ms away, one at a time and 32 at once; and as many
//! ranged requests to the store alone.
//!
//! Owns: which pages are read. No two of them are in one frame, so that no read is answered by what
//! an earlier one fetched.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bkfs_store::{StoreOptions, open_store};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::context::Context;
use crate::data::Numbers;
use crate::disk::{remove, text};
use crate::measure::{Run, drop_caches, median, shell, verified};
use crate::program::Program;
use crate::proxy::Proxy;
use crate::servers::{BUCKET, Minio, USER, endpoint, s3_environment};
use crate::targets::{AT_DEPTH_1, AT_DEPTH_32, READS_ALONE};

/// Bytes of a read, as of a page of a database.
const PAGE: usize = 16 << 10;

/// Bytes of content that are stored, and fetched, together.
const FRAME: u64 = 128 << 10;

/// The delay of each request.
const DELAY: Duration = Duration::from_millis(20);

/// Reads at once, when they are not one after the other.
const DEPTH: usize = 32;

/// Packs of fewer bytes are not read from the store alone.
const PACK_MIN: u64 = 1 << 20;

/// How many reads: those that only warm up, and those that are counted.
#[derive(Clone, Copy)]
struct Count {
    before: usize,
    counted: usize,
}

/// A store with one long file in a snapshot, and the file that this is a copy of.
struct Far<'a> {
    program: Program,
    proxy: Proxy,
    url: String,
    source: &'a Path,
}

/// The reads per second of each run, by the name of the figure.
type Rates = BTreeMap<&'static str, Vec<f64>>;

/// Measures reads at both depths, and requests to MinIO alone.
pub(super) fn run(
    context: &mut Context,
    suite: &'static str,
    minio: &str,
    source: &Path,
) -> Outcome<()> {
    let data = context.fresh("minio")?;
    let server = Minio::start(Path::new(minio), &data)?;
    let far = store(context, &server, source)?;
    let alone = Count {
        before: 0,
        counted: context.size.choose(20, 100, 200),
    };
    let deep = Count {
        before: context.size.choose(20, 100, 100),
        counted: context.size.choose(100, 1_000, 3_200),
    };
    let mut rates = Rates::new();
    for _ in 0..context.repeat {
        for (figure, depth, count) in [(AT_DEPTH_1, 1, alone), (AT_DEPTH_32, DEPTH, deep)] {
            let run = mounted(context, &far, depth, count)?;
            let rate = count.counted as f64 / run.wall_s;
            rates.entry(figure).or_default().push(rate);
            let step = format!("{} random reads, depth {depth}, 20 ms", count.counted);
            context.note(suite, &step, "bkfs", run);
        }
        let rate = requests(&far, deep)?;
        rates.entry(READS_ALONE).or_default().push(rate);
    }
    for (figure, rates) in rates {
        let figures = &mut context.report.figures;
        figures.extend(median(rates).map(|rate| (figure.to_owned(), rate)));
    }
    drop(server);
    remove(&data)
}

/// Stores the file without a delay.
fn store<'a>(context: &Context, server: &Minio, source: &'a Path) -> Outcome<Far<'a>> {
    let url = format!("s3://{BUCKET}/random");
    let near = context.program.with(&s3_environment(server.address));
    near.init(&url)?;
    let mounted = near.mount(&url, &context.fresh("mount")?)?;
    shell(&format!("cp {} {}/", text(source), text(mounted.path())))?;
    mounted.snapshot("one")?;
    mounted.unmount()?;
    let proxy = Proxy::start(server.address, DELAY)?;
    Ok(Far {
        program: context.program.with(&s3_environment(proxy.address)),
        proxy,
        url,
        source,
    })
}

/// Reads pages of the file in the snapshot from a fresh mount without caches. The seconds are those
/// of the counted reads, all else is of all reads.
fn mounted(context: &Context, far: &Far<'_>, depth: usize, count: Count) -> Outcome<Run> {
    let pages = pages(far.source.metadata()?.len(), count, depth as u64);
    far.program.forget_caches()?;
    drop_caches()?;
    let mounted = far.program.mount(&far.url, &context.fresh("mount")?)?;
    let name = far.source.file_name().unwrap_or_default();
    let file = File::open(mounted.path().join(".snapshots/one").join(name))?;
    let page = |number: usize| read(&file, pages[number]);
    let mut done = None;
    let run = mounted.measure(|| {
        done = Some(concurrently(depth, count, &page)?);
        Ok(())
    })?;
    drop(file);
    mounted.unmount()?;
    let (wall_s, contents) = done.ok_or("no page was read")?;
    let source = File::open(far.source)?;
    for (&offset, content) in pages.iter().zip(contents) {
        if read(&source, offset)? != content {
            return Err(format!("the page at {offset} differs").into());
        }
    }
    Ok(verified(Run { wall_s, ..run }))
}

fn read(file: &File, offset: u64) -> Outcome<Vec<u8>> {
    let mut content = vec![0; PAGE];
    file.read_exact_at(&mut content, offset)?;
    Ok(content)
}

/// Returns the offsets of random pages of different frames.
fn pages(length: u64, count: Count, seed: u64) -> Vec<u64> {
    let mut numbers = Numbers(seed);
    let mut frames: Vec<u64> = (0..length / FRAME).collect();
    let wanted = (count.before + count.counted).min(frames.len());
    for place in 0..wanted {
        let other = place + numbers.draw() as usize % (frames.len() - place);
        frames.swap(place, other);
    }
    let inside = FRAME / PAGE as u64;
    let offset = |frame: &u64| frame * FRAME + numbers.draw() % inside * PAGE as u64;
    frames[..wanted].iter().map(offset).collect()
}

/// Sends ranged requests for 16 KiB of the same packs, without a filesystem. Returns requests per
/// second.
fn requests(far: &Far<'_>, count: Count) -> Outcome<f64> {
    let runtime = Runtime::new()?;
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let options = StoreOptions {
        endpoint: Some(endpoint(far.proxy.address)),
        region: Some("us-east-1".to_owned()),
        settings: vec![
            setting("AWS_ACCESS_KEY_ID", USER.0),
            setting("AWS_SECRET_ACCESS_KEY", USER.1),
        ],
        use_environment: false,
        ..StoreOptions::default()
    };
    let store = runtime.block_on(open_store(&far.url.parse()?, &options))?;
    let mut packs = runtime.block_on(store.list("data/", None, 1_000))?;
    packs.retain(|pack| pack.size >= PACK_MIN);
    if packs.is_empty() {
        return Err("the store has no pack to read from".into());
    }
    let (seconds, contents) = concurrently(DEPTH, count, &|number| {
        let mut numbers = Numbers(number as u64);
        let pack = &packs[numbers.draw() as usize % packs.len()];
        let start = numbers.draw() % (pack.size - PAGE as u64);
        let range = start..start + PAGE as u64;
        Ok(runtime.block_on(store.get_range(&pack.key, range))?)
    })?;
    match contents.iter().all(|content| content.len() == PAGE) {
        true => Ok(count.counted as f64 / seconds),
        false => Err("the store does not return whole ranges".into()),
    }
}

/// Calls `read` with each number, in `depth` threads. Returns the seconds from the start of the
/// first counted one, and the results in the order of the numbers.
fn concurrently<T: Send>(
    depth: usize,
    count: Count,
    read: &(dyn Fn(usize) -> Outcome<T> + Sync),
) -> Outcome<(f64, Vec<T>)> {
    let next = AtomicUsize::new(0);
    let began = Mutex::new(Instant::now());
    let work = || {
        let mut results = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count.before + count.counted {
                return Ok(results);
            }
            if number == count.before {
                *began.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            }
            results.push((number, read(number)?));
        }
    };
    let results: Vec<Outcome<Vec<(usize, T)>>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..depth).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        let failed = |_| Err("a reading thread panicked".into());
        joined.map(|result| result.unwrap_or_else(failed)).collect()
    });
    let seconds = (began.into_inner())
        .unwrap_or_else(PoisonError::into_inner)
        .elapsed();
    let mut all = BTreeMap::new();
    for result in results {
        all.extend(result?);
    }
    Ok((seconds.as_secs_f64(), all.into_values().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: Count = Count {
        before: 5,
        counted: 20,
    };

    #[test]
    fn no_two_pages_are_in_one_frame() {
        let mut frames: Vec<u64> = pages(40 * FRAME, COUNT, 1)
            .iter()
            .map(|offset| offset / FRAME)
            .collect();
        frames.sort_unstable();
        frames.dedup();
        assert_eq!(frames.len(), 25);
        assert!(frames.iter().all(|frame| *frame < 40));
    }

    #[test]
    fn every_number_is_read_once_and_results_keep_their_order() {
        let (seconds, results) = concurrently(4, COUNT, &|number| Ok(2 * number)).unwrap();
        assert!(seconds >= 0.0);
        assert_eq!(
            results,
            (0..25).map(|number| 2 * number).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_failed_read_is_told() {
        let read = |number| match number {
            7 => Err("not there".into()),
            _ => Ok(()),
        };
        assert!(concurrently(3, COUNT, &read).is_err());
    }
}
