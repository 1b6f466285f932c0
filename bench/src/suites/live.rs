//! Databases that run where their data lies: on a clone of a snapshot in a store 20 ms away, on the
//! local disk, and on what else can show such a store as a directory.
//!
//! Owns: which systems run which load. A run is the time of [`load::UNIT`] transactions or writes,
//! at the rate of the whole load. Its data is verified after it.

use std::path::Path;
use std::time::Duration;

use crate::Outcome;
use crate::context::Context;
use crate::disk::remove;
use crate::proxy::Proxy;
use crate::servers::Minio;

pub(crate) mod first;
mod load;
mod mariadb;
mod pages;
pub(crate) mod places;
mod postgres;

use load::{Done, Sources};
use places::{Place, Store};

/// Name of the suite.
pub(crate) const SUITE: &str = "live";

/// The delay of each request.
const DELAY: Duration = Duration::from_millis(20);

/// The step of reads while a clone is brought into the cache, and of the same reads afterwards.
pub(crate) const DURING: &str = "oltp_read_only, during hydration";
pub(crate) const AFTER: &str = "oltp_read_only, after hydration";

/// The loads that figures are compared of.
pub(crate) const VOLATILE: &str = "oltp_read_write, durability off";
pub(crate) const DURABLE: &str = "oltp_read_write";
pub(crate) const READ_EIGHTH: &str = "oltp_read_only, a pool of an eighth";
pub(crate) const READ_ALL: &str = "oltp_read_only, a pool of all";

/// A load.
struct Load<'a> {
    name: &'a str,
    /// The directory of the data that it uses.
    part: &'static str,
    /// Runs it below a directory.
    run: &'a dyn Fn(&Sources, &Path) -> Outcome<Done>,
    /// Checks what it has left there.
    check: &'a dyn Fn(&Sources, &Path, &Done) -> Outcome<()>,
}

/// Runs every load in every place.
pub(super) fn run(context: &mut Context) -> Outcome<()> {
    for needed in ["minio", "mariadbd", "sysbench"] {
        if let Err(reason) = context.peers.need(needed) {
            context.absent(needed, reason);
            return Ok(());
        }
    }
    let sources = prepare(context)?;
    let data = context.fresh("minio")?;
    let server = Minio::start(Path::new(&context.peers.need("minio")?), &data)?;
    let proxy = Proxy::start(server.address, DELAY)?;
    let store = Store::fill(context, &server, proxy.address, &sources.directory)?;
    store.fill_restic(context, &sources.directory);
    for _ in 0..context.repeat {
        round(context, &store, &sources)?;
    }
    drop(server);
    remove(&data)?;
    remove(&sources.directory)
}

/// Makes the databases and the file of pages.
fn prepare(context: &Context) -> Outcome<Sources> {
    let directory = context.fresh("at-rest")?;
    let rows = context.size.choose(2_000, 100_000, 1_150_000);
    mariadb::make(&directory, rows)?;
    postgres::make(&directory, context.size.choose(1, 7, 70))?;
    pages::make(&directory, context.size.choose(4 << 20, 64 << 20, 1 << 30))?;
    let tables = mariadb::bytes(&directory);
    Ok(Sources {
        directory,
        rows,
        tables,
        seconds: context.size.choose(2, 15, 120),
    })
}

fn round(context: &mut Context, store: &Store, sources: &Sources) -> Outcome<()> {
    let half = sources.tables / 2;
    let tables: &dyn Fn(&Sources, &Path, &Done) -> Outcome<()> = &mariadb::check;
    let volatile = Load {
        name: VOLATILE,
        part: mariadb::PART,
        run: &|sources, at| mariadb::write(sources, at, half, false),
        check: tables,
    };
    let durable = Load {
        name: DURABLE,
        part: mariadb::PART,
        run: &|sources, at| mariadb::write(sources, at, half, true),
        check: tables,
    };
    steps(context, store, sources, &volatile, &Place::READ)?;
    // A server on s3fs takes minutes to start and to end.
    let places = context.size.choose(5, 6, 6);
    steps(context, store, sources, &durable, &Place::DURABLE[..places])?;
    for (name, pool) in [
        (READ_EIGHTH, sources.tables / 8),
        // With room for what is no table.
        (READ_ALL, sources.tables + (128 << 20)),
    ] {
        let read = Load {
            name,
            part: mariadb::PART,
            run: &|sources, at| mariadb::read(sources, at, pool),
            check: tables,
        };
        steps(context, store, sources, &read, &Place::READ)?;
    }
    during_hydration(context, store, sources)?;
    if postgres::programs().is_some() {
        let load = Load {
            name: "pgbench",
            part: postgres::PART,
            run: &postgres::write,
            check: &|_, at, _| postgres::check(at),
        };
        steps(context, store, sources, &load, &Place::DURABLE[..3])?;
    } else {
        context.absent("postgres", "there is none below /usr/lib/postgresql");
    }
    let pages = Load {
        name: "16 KiB at random, each synced",
        part: pages::PART,
        run: &pages::write,
        check: &|_, at, done| pages::check(at, done.writes),
    };
    steps(context, store, sources, &pages, &Place::DURABLE)
}

/// Runs one load in each of these places. Those that other tools make may fail, which the report
/// tells.
fn steps(
    context: &mut Context,
    store: &Store,
    sources: &Sources,
    load: &Load<'_>,
    places: &[Place],
) -> Outcome<()> {
    for place in places {
        let run = |context: &mut Context| {
            let live = store.open(context, *place, (&sources.directory, load.part))?;
            let done = (load.run)(sources, live.path())?;
            let live = live.again()?;
            (load.check)(sources, live.path(), &done)?;
            live.close()?;
            context.note(SUITE, load.name, place.name(), done.checked()?);
            Ok(())
        };
        match place.is_peer() {
            true => context.peer(&format!("{}, {}", place.name(), load.name), run),
            false => run(context)?,
        }
    }
    Ok(())
}

/// Reads a clone while all of it is brought into the cache, and afterwards.
fn during_hydration(context: &mut Context, store: &Store, sources: &Sources) -> Outcome<()> {
    let pool = sources.tables / 8;
    let live = store.open_cold(context, Place::Scratch)?;
    let during = mariadb::read_during(sources, live.path(), pool, || live.hydrate())?;
    let after = mariadb::read_at_once(sources, live.path(), pool)?;
    mariadb::check(sources, live.path(), &after)?;
    live.close()?;
    let system = Place::Scratch.name();
    match during {
        Some(during) => context.note(SUITE, DURING, system, during.checked()?),
        None => context.absent(DURING, "all was in the cache before the load ended"),
    }
    context.note(SUITE, AFTER, system, after.checked()?);
    Ok(())
}
