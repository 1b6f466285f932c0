//! The first row of a database that starts on a clone with cold caches, with and without a trace,
//! and on the local disk.
//!
//! Owns: databases of two sizes, so that what depends on the size is seen. The time is that from
//! the mount, or from the server's start on the local disk, to the row.

use std::path::Path;
use std::time::Instant;

use super::places::{Live, Store};
use super::{DELAY, mariadb, postgres};
use crate::Outcome;
use crate::context::Context;
use crate::disk::remove;
use crate::measure::{Run, drop_caches, verified};
use crate::proxy::Proxy;
use crate::servers::Minio;

/// Name of the suite.
pub(crate) const SUITE: &str = "first-row";

/// Bytes of a row of either database, somewhat less than what it takes on disk.
const ROW: u64 = 1900;

/// The systems that are compared.
pub(crate) const DISK: &str = "local disk";
pub(crate) const UNTRACED: &str = "bkfs, scratch, without a trace";
pub(crate) const TRACED: &str = "bkfs, scratch, with a trace";

/// The sizes, by their names in steps.
pub(crate) const SIZES: [&str; 2] = ["smaller", "eight times that"];

/// A database server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    MariaDb,
    Postgres,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::MariaDb, Self::Postgres];

    /// Returns the name of the step with data of this size.
    pub(crate) fn step(self, size: &str) -> String {
        match self {
            Self::MariaDb => format!("MariaDB, {size}"),
            Self::Postgres => format!("PostgreSQL, {size}"),
        }
    }

    /// Returns the name of the trace of a start.
    fn trace(self) -> &'static str {
        match self {
            Self::MariaDb => "mariadb",
            Self::Postgres => "postgres",
        }
    }

    /// Starts a server on the data below `at`, and returns a row of it.
    fn first_row(self, at: &Path, running: &Path, id: u64) -> Outcome<(String, Started)> {
        match self {
            Self::MariaDb => {
                let (row, server) = mariadb::first_row(at, running, id)?;
                Ok((row, Started::MariaDb(server)))
            }
            Self::Postgres => {
                let (row, server) = postgres::first_row(at, id)?;
                Ok((row, Started::Postgres(server)))
            }
        }
    }
}

/// A server that runs.
enum Started {
    MariaDb(crate::server::Server),
    Postgres(postgres::Server),
}

impl Started {
    fn stop(self) -> Outcome<()> {
        match self {
            Self::MariaDb(server) => server.stop(),
            Self::Postgres(server) => server.stop(),
        }
    }
}

/// Runs the suite with data of both sizes.
pub(crate) fn run(context: &mut Context) -> Outcome<()> {
    for needed in ["minio", "mariadbd"] {
        if let Err(reason) = context.peers.need(needed) {
            context.absent(needed, reason);
            return Ok(());
        }
    }
    let bytes = context.size.choose(8 << 20, 128 << 20, 1_u64 << 30);
    for (size, bytes) in SIZES.into_iter().zip([bytes, 8 * bytes]) {
        of_size(context, size, bytes / ROW)?;
    }
    Ok(())
}

fn of_size(context: &mut Context, size: &str, count: u64) -> Outcome<()> {
    let at_rest = context.fresh("at-rest")?;
    let running = context.fresh("running")?;
    mariadb::make_rows(&at_rest, &running, count)?;
    let mut kinds = vec![Kind::MariaDb];
    match postgres::programs() {
        Some(_) => {
            postgres::make_rows(&at_rest, count)?;
            kinds.push(Kind::Postgres);
        }
        None => context.absent("postgres", "there is none below /usr/lib/postgresql"),
    }
    let data = context.fresh("minio")?;
    let server = Minio::start(Path::new(&context.peers.need("minio")?), &data)?;
    let proxy = Proxy::start(server.address, DELAY)?;
    let store = Store::fill(context, &server, proxy.address, &at_rest)?;
    // The snapshot is made, so servers may change what it was made of.
    for kind in kinds {
        let rows = Rows {
            store: &store,
            at_rest: &at_rest,
            running: &running,
            id: count / 2,
        };
        rows.read(context, kind, &kind.step(size))?;
    }
    drop(server);
    remove(&data)?;
    remove(&at_rest)
}

/// Where a row is read from.
struct Rows<'a> {
    store: &'a Store,
    at_rest: &'a Path,
    running: &'a Path,
    /// The row.
    id: u64,
}

impl Rows<'_> {
    /// Reads the row in each system, and records the trace on the way.
    fn read(&self, context: &mut Context, kind: Kind, step: &str) -> Outcome<()> {
        let trace = kind.trace();
        for number in 0..context.repeat {
            drop_caches()?;
            let begun = Instant::now();
            let (row, started) = kind.first_row(self.at_rest, self.running, self.id)?;
            let disk = seconds(begun);
            started.stop()?;
            context.note(SUITE, step, DISK, disk);
            let same = |found: String| match found == row {
                true => Ok(()),
                false => Err(format!(
                    "the row is {row} on the disk, and {found} on a clone"
                )),
            };

            let (found, untraced, live, started) = self.on_a_clone(context, kind, "none")?;
            same(found)?;
            if number == 0 {
                live.record(trace)?;
            }
            started.stop()?;
            live.close()?;
            context.note(SUITE, step, UNTRACED, untraced);

            let (found, traced, live, started) = self.on_a_clone(context, kind, trace)?;
            same(found)?;
            started.stop()?;
            live.close()?;
            context.note(SUITE, step, TRACED, traced);
        }
        Ok(())
    }

    fn on_a_clone(
        &self,
        context: &Context,
        kind: Kind,
        trace: &str,
    ) -> Outcome<(String, Run, Live, Started)> {
        self.store.forget()?;
        let begun = Instant::now();
        let live = self.store.mount_traced(context, trace)?;
        let (row, started) = kind.first_row(live.path(), self.running, self.id)?;
        Ok((row, seconds(begun), live, started))
    }
}

/// Returns a run of the time since then, whose row is compared before it is noted.
fn seconds(begun: Instant) -> Run {
    verified(Run {
        wall_s: begun.elapsed().as_secs_f64(),
        ..Run::default()
    })
}
