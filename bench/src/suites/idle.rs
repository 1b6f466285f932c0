//! Snapshots of an idle mount with very many files, 20 ms away.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use crate::Outcome;
use crate::context::Context;
use crate::disk::remove;
use crate::measure::verified;
use crate::proxy::Proxy;
use crate::servers::{BUCKET, Minio, s3_environment};
use crate::targets::IDLE;

/// The delay of each request.
const DELAY: Duration = Duration::from_millis(20);

/// How long the mount is left alone before each snapshot.
const REST: Duration = Duration::from_secs(3);

/// Makes empty files on a mount, and then snapshots in which nothing has changed.
pub(super) fn run(context: &mut Context, suite: &'static str, minio: &str) -> Outcome<()> {
    let (directories, files) = context.size.choose((10, 200), (100, 1_000), (1_000, 1_000));
    let data = context.fresh("minio")?;
    let server = Minio::start(Path::new(minio), &data)?;
    let proxy = Proxy::start(server.address, DELAY)?;
    let program = context.program.with(&s3_environment(proxy.address));
    let url = format!("s3://{BUCKET}/idle");
    program.init(&url)?;
    let mounted = program.mount(&url, &context.fresh("mount")?)?;
    for directory in 0..directories {
        let directory = mounted.path().join(format!("part-{directory:04}"));
        fs::create_dir(&directory)?;
        for file in 0..files {
            File::create(directory.join(format!("file-{file:06}")))?;
        }
    }
    mounted.snapshot("made")?;
    for number in 0..context.repeat {
        std::thread::sleep(REST);
        let name = format!("idle-{number}");
        let run = mounted.measure(|| mounted.snapshot(&name))?;
        let snapshot = mounted.path().join(".snapshots").join(name);
        if count(&snapshot)? != directories || count(&snapshot.join("part-0000"))? != files {
            return Err(format!("{} lacks names", snapshot.display()).into());
        }
        context.note(suite, IDLE, "bkfs", verified(run));
    }
    mounted.unmount()?;
    drop(server);
    remove(&data)
}

fn count(directory: &Path) -> Outcome<usize> {
    Ok(fs::read_dir(directory)?.count())
}
