//! A distant store: the same work with 0, 20 and 100 ms added to every request.

use std::path::Path;
use std::time::Duration;

use super::{idle, listing, random_reads};
use crate::Outcome;
use crate::context::Context;
use crate::data::{self, Texture};
use crate::disk::{remove, text};
use crate::measure::{self, shell, verified};
use crate::proxy::Proxy;
use crate::servers::{BUCKET, Minio, s3_environment};
use crate::targets::LISTING_NEAR;
use crate::verify::{same_bytes, same_trees};

const SUITE: &str = "latency";

/// Writes and reads one long file and many small ones.
pub(super) fn run(context: &mut Context) -> Outcome<()> {
    let minio = match context.peers.need("minio") {
        Ok(minio) => minio,
        Err(reason) => {
            context.absent("minio", reason);
            return Ok(());
        }
    };
    let source = context.fresh("far")?;
    let length = context.size.choose(24 << 20, 512 << 20, 4 << 30);
    data::stream(&source.join("long"), Texture::Pages, length, 31)?;
    let count = context.size.choose(200, 2_000, 50_000);
    data::small_files(&source.join("small"), count, 32)?;
    for _ in 0..context.repeat {
        near(context, &source, count)?;
        for delay in [0, 20, 100] {
            far(context, &minio, &source, count, delay)?;
        }
    }
    random_reads::run(context, SUITE, &minio, &source.join("long"))?;
    remove(&source)?;
    idle::run(context, SUITE, &minio)
}

/// Lists the small files from a bucket in a local directory, to compare listings from afar with.
fn near(context: &mut Context, source: &Path, count: usize) -> Outcome<()> {
    let bucket = context.fresh("bucket")?;
    let url = text(&bucket).to_owned();
    let program = context.program.clone();
    program.init(&url)?;
    let mounted = program.mount(&url, &context.fresh("mount")?)?;
    let small = source.join("small");
    shell(&format!("cp -a {} {}/", text(&small), text(mounted.path())))?;
    mounted.snapshot("one")?;
    mounted.unmount()?;
    let run = listing::cold(context, &program, &url, ("small", count))?;
    context.note(SUITE, LISTING_NEAR, "bkfs", run);
    remove(&bucket)
}

fn far(context: &mut Context, minio: &str, source: &Path, count: usize, delay: u64) -> Outcome<()> {
    let data = context.fresh("minio")?;
    let server = Minio::start(Path::new(minio), &data)?;
    let proxy = Proxy::start(server.address, Duration::from_millis(delay))?;
    let program = context.program.with(&s3_environment(proxy.address));
    let url = format!("s3://{BUCKET}/far");
    program.init(&url)?;
    let point = context.fresh("mount")?;
    let mounted = program.mount(&url, &point)?;
    let write = |what: &str, name: &str| {
        mounted.measure(|| {
            shell(&format!("cp -a {}/{what} {}/", text(source), text(&point)))?;
            mounted.snapshot(name)
        })
    };
    let long = write("long", "one")?;
    let small = write("small", "two")?;
    mounted.unmount()?;
    let listed = listing::cold(context, &program, &url, ("small", count))?;
    program.forget_caches()?;
    measure::drop_caches()?;
    let mounted = program.mount(&url, &point)?;
    let inside = point.join(".snapshots/two");
    let read = mounted
        .measure(|| shell(&format!("dd if={}/long of=/dev/null bs=1M", text(&inside))).map(drop))?;
    same_bytes(&source.join("long"), &inside.join("long"))?;
    mounted.unmount()?;
    let target = context.work.join("restored");
    let restored = program.restore(&url, "two", &target)?;
    same_bytes(&source.join("long"), &target.join("long"))?;
    same_trees(&source.join("small"), &target.join("small"), true)?;
    remove(&target)?;
    drop(server);
    remove(&data)?;
    let steps = [
        ("write a long file", long),
        ("write small files", small),
        ("ls -lR, cold", listed),
        ("read a snapshot", read),
        ("restore both", restored),
    ];
    for (step, run) in steps {
        context.note(SUITE, &format!("{step}, {delay} ms"), "bkfs", verified(run));
    }
    Ok(())
}
