//! One long stream: incompressible, compressible, and already stored.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bkfs_fuse::{MountConfig, mount};

use crate::Outcome;
use crate::context::Context;
use crate::data::{self, Texture};
use crate::disk::{flush, remove, text};
use crate::measure::{self, Run, shell, verified};
use crate::null_fs::NullFs;
use crate::targets::PIPED;
use crate::verify::same_bytes;

const SUITE: &str = "stream";

/// Writes streams of both kinds.
pub(super) fn run(context: &mut Context) -> Outcome<()> {
    let length = context.size.choose(24 << 20, 512 << 20, 4 << 30);
    for (name, texture) in [("noise", Texture::Noise), ("pages", Texture::Pages)] {
        let source = context.work.join(format!("stream-{name}"));
        data::stream(&source, texture, length, 11)?;
        for _ in 0..context.repeat {
            // Loads the source into the page cache, so that every system reads it from memory.
            shell(&format!("cat {} >/dev/null", text(&source)))?;
            local(context, name, &source)?;
            null(context, name, &source)?;
            mounted(context, name, &source)?;
            context.peer("bkfs put", |context| {
                put(context, name, "bkfs put", &source)?;
                put(context, name, PIPED, &source)
            });
            rclone(context, name, &source);
            aws(context, name, &source);
        }
        remove(&source)?;
    }
    Ok(())
}

/// Runs dd to the local disk, with fsync.
fn local(context: &mut Context, name: &str, source: &Path) -> Outcome<()> {
    let target = context.fresh("local")?.join("copy");
    let line = format!(
        "dd if={} of={} bs=1M conv=fsync",
        text(source),
        text(&target)
    );
    let run = shell(&line)?;
    same_bytes(source, &target)?;
    remove(&target)?;
    context.note(SUITE, name, "dd, fsync", verified(run));
    Ok(())
}

/// Runs dd onto the null filesystem, to measure the cost of the kernel path. It uses direct I/O, as
/// bkfs does for files that are only written.
fn null(context: &mut Context, name: &str, source: &Path) -> Outcome<()> {
    let point = context.fresh("null")?;
    let null = Arc::new(NullFs::as_bkfs());
    let session = mount(null.clone(), &point, &MountConfig::new("null"))?;
    let written = shell(&format!(
        "dd if={} of={}/copy bs=1M",
        text(source),
        text(&point)
    ));
    session.unmount(false)?;
    session.wait()?;
    let run = Run {
        // The daemon is this process, which does other work too.
        cpu_s: None,
        anon_bytes: None,
        verified: null.written_bytes.load(Ordering::Relaxed) == source.metadata()?.len(),
        ..written?
    };
    context.note(SUITE, name, "null filesystem", run.clone());
    context.note(
        SUITE,
        &format!("{name}, stored already"),
        "null filesystem",
        run,
    );
    Ok(())
}

/// Runs dd onto a mount, up to a snapshot; writes the same bytes again under another name that
/// gives no hint; and restores both.
fn mounted(context: &mut Context, name: &str, source: &Path) -> Outcome<()> {
    let bucket = context.fresh("bucket")?;
    let url = text(&bucket).to_owned();
    let program = context.program.clone();
    program.init(&url)?;
    let mounted = program.mount(&url, &context.fresh("mount")?)?;
    let dd = |to: &str| {
        let target: PathBuf = mounted.path().join(to);
        shell(&format!(
            "dd if={} of={} bs=1M",
            text(source),
            text(&target)
        ))
        .map(drop)
    };
    let mut first = mounted.measure(|| dd("first").and_then(|()| mounted.snapshot("first")))?;
    first.stored_bytes = Some(measure::stored_bytes(&bucket));
    let mut again = mounted.measure(|| dd("other-name"))?;
    mounted.snapshot("second")?;
    again.stored_bytes = Some(measure::stored_bytes(&bucket));
    mounted.unmount()?;
    let target = context.work.join("restored");
    let restored = program.restore(&url, "second", &target)?;
    for copy in ["first", "other-name"] {
        same_bytes(source, &target.join(copy))?;
    }
    remove(&target)?;
    context.note(SUITE, name, "bkfs", verified(first));
    context.note(
        SUITE,
        &format!("{name}, stored already"),
        "bkfs",
        verified(again),
    );
    context.note(
        SUITE,
        &format!("{name}, restore of both"),
        "bkfs",
        verified(restored),
    );
    remove(&bucket)
}

/// Runs `bkfs put` into a repository of its own. The system [`PIPED`] reads the output of cat.
fn put(context: &mut Context, name: &str, system: &str, source: &Path) -> Outcome<()> {
    if !context.program.has("put") {
        return Err("this program has no such command".into());
    }
    let bucket = context.fresh("bucket")?;
    let url = text(&bucket).to_owned();
    let program = context.program.clone();
    program.init(&url)?;
    let mut run = match system {
        PIPED => {
            let line = format!("cat {} | \"$BKFS\" put {url} stream", text(source));
            measure::command(&mut program.shell(&line))?
        }
        _ => measure::command(program.command(&["put", &url, "stream"]).arg(source))?,
    };
    run.stored_bytes = Some(measure::stored_bytes(&bucket));
    same_stream(context, &url, source)?;
    context.note(SUITE, name, system, verified(run));
    remove(&bucket)
}

/// Restores a stream that `bkfs put` has stored under the name `stream`, and compares it.
pub(super) fn same_stream(context: &Context, url: &str, source: &Path) -> Outcome<()> {
    let target = context.work.join("restored");
    remove(&target)?;
    let restore = ["restore", "-q", "--volume", "streams", url, "latest"];
    measure::command(context.program.command(&restore).arg(&target))?;
    same_bytes(source, &target.join("stream"))?;
    remove(&target)
}

fn rclone(context: &mut Context, name: &str, source: &Path) {
    context.peer("rclone rcat", |context| {
        let rclone = context.peers.need("rclone")?;
        let target = context.fresh("local")?.join("copy");
        let mut run = shell(&format!(
            "{rclone} --config /dev/null rcat {} <{}",
            text(&target),
            text(source)
        ))?;
        run.wall_s += flush(&target)?;
        same_bytes(source, &target)?;
        remove(&target)?;
        context.note(SUITE, name, "rclone rcat", verified(run));
        Ok(())
    });
}

fn aws(context: &mut Context, name: &str, source: &Path) {
    use crate::servers::{BUCKET, Minio, endpoint, s3_environment};
    context.peer("aws s3 cp", |context| {
        let (aws, minio) = (context.peers.need("aws")?, context.peers.need("minio")?);
        let data = context.fresh("minio")?;
        let server = Minio::start(Path::new(&minio), &data)?;
        let object = format!("s3://{BUCKET}/stream");
        let command = |line: &str| {
            let mut command = measure::shell_command(&format!(
                "{aws} --endpoint-url {} {line}",
                endpoint(server.address)
            ));
            command.envs(s3_environment(server.address));
            measure::command(&mut command)
        };
        let size = source.metadata()?.len();
        let run = command(&format!(
            "s3 cp --expected-size {size} - {object} <{}",
            text(source)
        ))?;
        let target = context.work.join("restored");
        remove(&target)?;
        command(&format!("s3 cp {object} {}", text(&target)))?;
        same_bytes(source, &target)?;
        remove(&target)?;
        drop(server);
        remove(&data)?;
        context.note(SUITE, name, "aws s3 cp, MinIO", verified(run));
        Ok(())
    });
}
