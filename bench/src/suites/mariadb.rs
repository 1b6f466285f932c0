//! A database: backed up onto a mount, changed a little, backed up again, restored; and the same
//! with every peer.
//!
//! Owns: the rounds, and which systems take part. `database` is the server.

use std::path::{Path, PathBuf};

use crate::Outcome;
use crate::context::Context;
use crate::disk::{flush, remove, text};
use crate::floor;
use crate::measure::{self, Run, shell, verified};
use crate::servers::{BUCKET, Minio, s3_environment};
use crate::targets::FLOOR;
use crate::verify::same_trees;

mod database;
mod tools;

use database::Database;

const SUITE: &str = "mariadb";
const FIRST: &str = "first full";
const SECOND: &str = "second full";
const RESTORE: &str = "restore";
const FAR: &str = "first full, MinIO";

/// Number of rows changed between the two backups.
const UPDATES: u32 = 3000;

/// Backs up a server's data twice and restores it.
pub(super) fn run(context: &mut Context) -> Outcome<()> {
    for needed in ["mariadbd", "mariabackup", "sysbench"] {
        if let Err(reason) = context.peers.need(needed) {
            context.absent(needed, reason);
            return Ok(());
        }
    }
    let rows = context.size.choose(10_000, 100_000, 1_150_000);
    let database = Database::start(&context.fresh("database")?, rows)?;
    let mut floors = Vec::new();
    for round in 0..context.repeat {
        database.settle()?;
        let mut fulls = Fulls::new(context, &database)?;
        fulls.take(context, &database, FIRST)?;
        // In each round, like the runs that it is compared with, because the speed of the processor
        // varies over time.
        let (seconds, _) = floor::zstd(&context.work.join("finished"))?;
        floors.push(seconds);
        far(context, &database)?;
        database.update(UPDATES, round)?;
        database.settle()?;
        fulls.take(context, &database, SECOND)?;
        fulls.restore(context, &database)?;
    }
    if let Some(seconds) = measure::median(floors) {
        context.report.figures.insert(FLOOR.to_owned(), seconds);
    }
    database.stop()?;
    remove(&context.work.join("finished"))
}

/// State of one round.
struct Fulls {
    bucket: PathBuf,
    mount: PathBuf,
    finished: PathBuf,
    tools: Vec<tools::Tool>,
    runs: Vec<(&'static str, &'static str, Run)>,
}

impl Fulls {
    fn new(context: &mut Context, database: &Database) -> Outcome<Self> {
        let bucket = context.fresh("bucket")?;
        context.program.init(text(&bucket))?;
        database.allow(&context.work)?;
        Ok(Self {
            bucket,
            mount: context.fresh("mount")?,
            finished: context.work.join("finished"),
            tools: tools::Tool::all(context)?,
            runs: Vec::new(),
        })
    }

    /// Makes one full backup with each system in turn.
    fn take(
        &mut self,
        context: &mut Context,
        database: &Database,
        step: &'static str,
    ) -> Outcome<()> {
        let url = text(&self.bucket);
        let mounted = context.program.mount(url, &self.mount)?;
        let target = self.mount.join(step.replace(' ', "-"));
        let backup = database.backup(&target);
        let snapshot = step.replace(' ', "-");
        let mut run = mounted.measure(|| {
            shell(&backup)?;
            mounted.snapshot(&snapshot)
        })?;
        mounted.unmount()?;
        run.stored_bytes = Some(measure::stored_bytes(&self.bucket));
        self.runs.push((step, "bkfs", run));
        self.piped(context, database, step);
        // The finished directory is the input of the backup tools.
        remove(&self.finished)?;
        let mut run = shell(&database.backup(&self.finished))?;
        run.wall_s += flush(&self.finished)?;
        database.same_tables(&self.finished)?;
        run.stored_bytes = Some(measure::stored_bytes(&self.finished));
        context.note(SUITE, step, "mariabackup, local disk, sync", verified(run));
        for tool in &mut self.tools {
            let runs = &mut self.runs;
            let finished = &self.finished;
            let name = tool.name;
            context.peer(name, |_| {
                runs.push((step, name, tool.backup(finished)?));
                Ok(())
            });
        }
        Ok(())
    }

    fn piped(&self, context: &mut Context, database: &Database, step: &'static str) {
        context.peer("mariabackup, pigz", |context| {
            let pigz = context.peers.need("pigz")?;
            let directory = context.fresh("piped")?;
            let (file, target) = (directory.join("stream.gz"), directory.join("unpacked"));
            let line = format!("{} | {pigz} --fast -p2 >{}", database.stream(), text(&file));
            let mut run = shell(&line)?;
            run.wall_s += flush(&file)?;
            run.stored_bytes = Some(measure::stored_bytes(&file));
            std::fs::create_dir(&target)?;
            shell(&format!(
                "{pigz} -dc {} | mbstream -x -C {}",
                text(&file),
                text(&target)
            ))?;
            database.same_tables(&target)?;
            remove(&directory)?;
            context.note(SUITE, step, "mariabackup, pigz", verified(run));
            Ok(())
        });
    }

    /// Restores the second backup with every system. Only then adds the runs of this round to the
    /// report.
    fn restore(mut self, context: &mut Context, database: &Database) -> Outcome<()> {
        let target = context.work.join("restored");
        let what = format!("second-full:/{}", SECOND.replace(' ', "-"));
        let run = context
            .program
            .restore(text(&self.bucket), &what, &target)?;
        database.same_tables(&target)?;
        self.runs.push((RESTORE, "bkfs", run));
        let mut good = vec!["bkfs"];
        for tool in &self.tools {
            let finished = &self.finished;
            let (runs, good) = (&mut self.runs, &mut good);
            let name = tool.name;
            context.peer(name, |context| {
                let target = context.fresh("restored")?;
                runs.push((RESTORE, name, tool.restore(&target)?));
                same_trees(
                    finished,
                    &target.join(text(finished).trim_start_matches('/')),
                    true,
                )?;
                good.push(name);
                Ok(())
            });
        }
        remove(&target)?;
        remove(&self.bucket)?;
        for (step, system, run) in self.runs {
            let verified = good.contains(&system);
            context.note(SUITE, step, system, Run { verified, ..run });
        }
        Ok(())
    }
}

/// Makes the first full backup onto mounts of the same MinIO.
fn far(context: &mut Context, database: &Database) -> Outcome<()> {
    let minio = match context.peers.need("minio") {
        Ok(minio) => minio,
        Err(reason) => {
            context.absent("minio", reason);
            return Ok(());
        }
    };
    let data = context.fresh("minio")?;
    let server = Minio::start(Path::new(&minio), &data)?;
    let program = context.program.with(&s3_environment(server.address));
    let url = format!("s3://{BUCKET}/backups");
    program.init(&url)?;
    let point = context.fresh("mount")?;
    let mounted = program.mount(&url, &point)?;
    let backup = database.backup(&point.join("full"));
    let run = mounted.measure(|| {
        shell(&backup)?;
        mounted.snapshot("one")
    })?;
    mounted.unmount()?;
    let target = context.work.join("restored");
    program.restore(&url, "one:/full", &target)?;
    database.same_tables(&target)?;
    remove(&target)?;
    context.note(SUITE, FAR, "bkfs", verified(run));
    for (name, mount) in [
        ("s3fs", tools::s3fs as tools::Backup),
        ("rclone", tools::rclone),
    ] {
        context.peer(name, |context| {
            let binary = context.peers.need(name)?;
            let point = context.fresh("mount")?;
            let place = tools::Far {
                binary: &binary,
                address: server.address,
                point: &point,
                work: &context.work,
            };
            let run = mount(&place, database)?;
            context.note(SUITE, FAR, name, verified(run));
            Ok(())
        });
    }
    drop(server);
    remove(&data)
}
