//! Many small files: unpacked, listed, compared, and restored.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use bkfs_fuse::{MountConfig, mount};

use super::{listing, lock, names};
use crate::Outcome;
use crate::context::Context;
use crate::data;
use crate::disk::{flush, remove, text};
use crate::measure::{self, Run, shell, verified};
use crate::null_fs::NullFs;
use crate::targets::{AGAIN, NULL, NULL_BY_CORE, PUT_TREE, RESTIC_TREE, RSYNC};
use crate::verify::same_trees;

const SUITE: &str = "files";

/// Unpacks an archive of small files with every system.
pub(super) fn run(context: &mut Context) -> Outcome<()> {
    let count = context.size.choose(1_000, 10_000, 50_000);
    let source = context.fresh("tree")?;
    data::small_files(&source, count, 21)?;
    let archive = context.work.join("files.tar");
    shell(&format!(
        "tar -cf {} -C {} .",
        text(&archive),
        text(&source)
    ))?;
    for _ in 0..context.repeat {
        shell(&format!("cat {} >/dev/null", text(&archive)))?;
        local(context, &archive, &source)?;
        null(context, NULL, &archive, count, &MountConfig::new("null"))?;
        null(context, NULL_BY_CORE, &archive, count, &by_core())?;
        mounted(context, &archive, &source, count)?;
        names::null(context, SUITE, NULL, &archive, &MountConfig::new("null"))?;
        names::null(context, SUITE, NULL_BY_CORE, &archive, &by_core())?;
        names::bkfs(context, SUITE, &archive)?;
        put(context, &source);
        restic(context, &source);
        borg(context, &source);
    }
    lock::run(context, SUITE, &archive, &source)?;
    remove(&archive)?;
    remove(&source)
}

fn local(context: &mut Context, archive: &Path, source: &Path) -> Outcome<()> {
    let target = context.fresh("local")?;
    let mut run = shell(&format!("tar -xf {} -C {}", text(archive), text(&target)))?;
    run.wall_s += flush(&target)?;
    same_trees(source, &target, true)?;
    remove(&target)?;
    context.note(SUITE, "tar -x", "local disk", verified(run));
    Ok(())
}

/// Returns a configuration with one thread per core, at the niceness of the client. The latency of
/// small requests depends mostly on the core that answers. The default is best for bkfs, but need
/// not be best for a filesystem that does nothing.
fn by_core() -> MountConfig {
    MountConfig {
        threads: thread::available_parallelism().map(Into::into).ok(),
        niceness: 0,
        ..MountConfig::new("null")
    }
}

fn null(
    context: &mut Context,
    system: &str,
    archive: &Path,
    count: usize,
    config: &MountConfig,
) -> Outcome<()> {
    let point = context.fresh("null")?;
    let null = Arc::new(NullFs::as_bkfs());
    let session = mount(null, &point, config)?;
    let unpacked = shell(&format!("tar -xf {} -C {}", text(archive), text(&point)));
    let there = unpacked.is_ok().then(|| names_below(&point));
    session.unmount(false)?;
    session.wait()?;
    let run = Run {
        cpu_s: None,
        anon_bytes: None,
        verified: there == Some(count),
        ..unpacked?
    };
    context.note(SUITE, "tar -x", system, run);
    Ok(())
}

fn names_below(root: &Path) -> usize {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let count = |path: &Path| fs::read_dir(path).map_or(0, Iterator::count);
    entries.map(|entry| count(&entry.path())).sum()
}

fn mounted(context: &mut Context, archive: &Path, source: &Path, count: usize) -> Outcome<()> {
    let bucket = context.fresh("bucket")?;
    let url = text(&bucket).to_owned();
    let program = context.program.clone();
    program.init(&url)?;
    let point = context.fresh("mount")?;
    let mounted = program.mount(&url, &point)?;
    let unpack = format!("tar -xf {} -C {}", text(archive), text(&point));
    let mut first = mounted.measure(|| {
        shell(&unpack)?;
        mounted.snapshot("one")
    })?;
    first.stored_bytes = Some(measure::stored_bytes(&bucket));
    let quiet = |line: String| mounted.measure(|| shell(&line).map(drop));
    let find = quiet(format!("find {} -type f >/dev/null", text(&point)))?;
    let rsync = context.peers.need("rsync").map(|rsync| {
        // The archive does not hold the permissions of the mount's own root.
        quiet(format!(
            "{rsync} -a --omit-dir-times {}/ {}/",
            text(source),
            text(&point)
        ))
    });
    mounted.unmount()?;
    let listing = listing::cold(context, &program, &url, ("", count))?;
    let again = unchanged(context, &url, source)?;
    let target = context.work.join("restored");
    let newest = if again.is_some() { "again" } else { "one" };
    let mut restored = program.restore(&url, newest, &target)?;
    same_trees(source, &target, true)?;
    restored.stored_bytes = Some(measure::stored_bytes(&target));
    remove(&target)?;
    remove(&bucket)?;
    context.note(SUITE, "tar -x", "bkfs", verified(first));
    context.note(SUITE, "find", "bkfs", verified(find));
    match rsync {
        Ok(run) => context.note(SUITE, "rsync, nothing changed", "bkfs", verified(run?)),
        Err(reason) => context.absent("rsync", reason),
    }
    context.note(SUITE, "ls -lR, cold", "bkfs", listing);
    if let Some(again) = again {
        context.note(SUITE, AGAIN, RSYNC, verified(again));
    }
    context.note(SUITE, "restore", "bkfs", verified(restored));
    Ok(())
}

/// Backs the unchanged tree up by rsync onto a fresh mount with cold caches, up to the snapshot
/// `again`. Returns `None` without rsync.
fn unchanged(context: &Context, url: &str, source: &Path) -> Outcome<Option<Run>> {
    let Ok(rsync) = context.peers.need("rsync") else {
        return Ok(None);
    };
    let program = &context.program;
    program.forget_caches()?;
    measure::drop_caches()?;
    let mounted = program.mount(url, &context.fresh("mount")?)?;
    let line = format!(
        "{rsync} -a --omit-dir-times {}/ {}/",
        text(source),
        text(mounted.path())
    );
    let run = mounted.measure(|| {
        shell(&line)?;
        mounted.snapshot("again")
    })?;
    mounted.unmount()?;
    Ok(Some(run))
}

/// Puts the tree without a mount, twice. Programs of before cannot.
fn put(context: &mut Context, source: &Path) {
    context.peer("bkfs put", |context| {
        let bucket = context.fresh("bucket")?;
        let url = text(&bucket).to_owned();
        let program = context.program.clone();
        program.init(&url)?;
        let put = || measure::command(program.command(&["put", "-q", &url, "/"]).arg(source));
        let mut first = put()?;
        first.stored_bytes = Some(measure::stored_bytes(&bucket));
        program.forget_caches()?;
        measure::drop_caches()?;
        let again = put()?;
        let target = context.work.join("restored");
        remove(&target)?;
        let restore = ["restore", "-q", "--volume", "streams", &url, "latest"];
        measure::command(program.command(&restore).arg(&target))?;
        let name = source.file_name().unwrap_or_default();
        same_trees(source, &target.join(name), true)?;
        remove(&target)?;
        remove(&bucket)?;
        context.note(SUITE, "tar -x", PUT_TREE, verified(first));
        context.note(SUITE, AGAIN, PUT_TREE, verified(again));
        Ok(())
    });
}

fn restic(context: &mut Context, source: &Path) {
    context.peer("restic", |context| {
        let restic = context.peers.need("restic")?;
        let repository = context.fresh("restic")?;
        let target = context.fresh("restored")?;
        let base = format!("{restic} --no-cache -q -r {}", text(&repository));
        let base = format!("export RESTIC_PASSWORD=benchmark; {base}");
        shell(&format!("{base} init"))?;
        let mut first = shell(&format!("{base} backup {}", text(source)))?;
        first.wall_s += flush(&repository)?;
        first.stored_bytes = Some(measure::stored_bytes(&repository));
        measure::drop_caches()?;
        let mut again = shell(&format!("{base} backup {}", text(source)))?;
        again.wall_s += flush(&repository)?;
        measure::drop_caches()?;
        let mut restored = shell(&format!("{base} restore latest --target {}", text(&target)))?;
        restored.wall_s += flush(&target)?;
        same_trees(
            source,
            &target.join(text(source).trim_start_matches('/')),
            true,
        )?;
        remove(&target)?;
        remove(&repository)?;
        context.note(SUITE, "tar -x", RESTIC_TREE, verified(first));
        context.note(SUITE, AGAIN, RESTIC_TREE, verified(again));
        context.note(SUITE, "restore", "restic", verified(restored));
        Ok(())
    });
}

fn borg(context: &mut Context, source: &Path) {
    context.peer("borg", |context| {
        let borg = context.peers.need("borg")?;
        let (repository, home) = (context.fresh("borg")?, context.fresh("borg-home")?);
        let target = context.fresh("restored")?;
        let base = format!(
            "export BORG_PASSPHRASE=benchmark BORG_BASE_DIR={}; ",
            text(&home)
        );
        let place = text(&repository);
        shell(&format!("{base}{borg} init -e repokey-blake2 {place}"))?;
        let mut first = shell(&format!(
            "{base}{borg} create -C zstd,1 {place}::one {}",
            text(source)
        ))?;
        first.wall_s += flush(&repository)?;
        first.stored_bytes = Some(measure::stored_bytes(&repository));
        measure::drop_caches()?;
        let mut restored = shell(&format!(
            "{base}cd {}; {borg} extract {place}::one",
            text(&target)
        ))?;
        restored.wall_s += flush(&target)?;
        same_trees(
            source,
            &target.join(text(source).trim_start_matches('/')),
            true,
        )?;
        for path in [target, repository, home] {
            remove(&path)?;
        }
        context.note(
            SUITE,
            "tar -x",
            "borg (backup of the tree)",
            verified(first),
        );
        context.note(SUITE, "restore", "borg", verified(restored));
        Ok(())
    });
}
