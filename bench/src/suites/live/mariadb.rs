//! MariaDB with the transactions of sysbench, eight at a time.

use std::path::Path;
use std::process::Child;

use super::load::{Done, Sources};
use crate::Outcome;
use crate::measure::stored_bytes;
use crate::server::{self, Server, TABLES};

/// The part of the data that is MariaDB's.
pub(super) const PART: &str = "mariadb";

/// Seconds of a load that runs while a clone is brought into the cache, at most: less than that
/// takes.
const EARLY_S: u64 = 4;

/// Makes the data directory, with the server ended in order.
pub(super) fn make(directory: &Path, rows: u32) -> Outcome<()> {
    let data = directory.join(PART);
    server::install(&data)?;
    let runtime = runtime(directory);
    let server = Server::start(&data, &runtime, &["--innodb-log-file-size=256M"])?;
    server.fill(rows)?;
    server.sql("SET GLOBAL innodb_fast_shutdown = 0")?;
    server.stop()
}

/// Makes the data directory with one table of so many rows, half of each of them incompressible.
pub(super) fn make_rows(directory: &Path, running: &Path, rows: u64) -> Outcome<()> {
    let data = directory.join(PART);
    server::install(&data)?;
    let server = Server::start(&data, running, &["--innodb-log-file-size=256M"])?;
    server.sql(&format!(
        "CREATE DATABASE shop; USE shop; SET unique_checks = 0, foreign_key_checks = 0; \
         CREATE TABLE shop.orders (id INT PRIMARY KEY, value VARBINARY(1900)); \
         INSERT INTO shop.orders \
         SELECT seq, CONCAT(RANDOM_BYTES(940), REPEAT(MD5(seq), 29)) FROM seq_1_to_{rows}; \
         SET GLOBAL innodb_fast_shutdown = 0"
    ))?;
    server.stop()
}

/// Starts a server on such data, and reads a row.
pub(super) fn first_row(at: &Path, running: &Path, id: u64) -> Outcome<(String, Server)> {
    let options = [
        "--innodb-log-file-size=256M",
        "--innodb-buffer-pool-load-at-startup=0",
    ];
    let server = Server::start(&at.join(PART), running, &options)?;
    let row = server.sql(&format!(
        "SELECT SHA2(value, 256) FROM shop.orders WHERE id = {id}"
    ))?;
    match row.trim().len() {
        64 => Ok((row, server)),
        _ => Err(format!("row {id} is {row}").into()),
    }
}

/// Returns the bytes of the tables.
pub(super) fn bytes(directory: &Path) -> u64 {
    stored_bytes(&directory.join(PART).join("sbtest"))
}

/// Runs reading and writing transactions with a buffer pool of `pool` bytes.
pub(super) fn write(sources: &Sources, at: &Path, pool: u64, is_durable: bool) -> Outcome<Done> {
    let durability: &[&str] = match is_durable {
        true => &["--innodb-flush-log-at-trx-commit=1"],
        false => &[
            "--innodb-flush-log-at-trx-commit=0",
            "--skip-innodb-doublewrite",
        ],
    };
    let server = start(sources, at, pool, durability)?;
    let done = load(&server, sources, "oltp_read_write", sources.seconds, true)?;
    let checksums = checksums(&server)?;
    server.stop()?;
    Ok(Done { checksums, ..done })
}

/// Runs reading transactions, once the pool is warm.
pub(super) fn read(sources: &Sources, at: &Path, pool: u64) -> Outcome<Done> {
    let server = start(sources, at, pool, &[])?;
    let seconds = sources.seconds / 2;
    let done = load(&server, sources, "oltp_read_only", seconds, true)?;
    server.stop()?;
    Ok(done)
}

/// Runs reading transactions as soon as the server answers and `begin` has begun something. `None`
/// if that ended first.
pub(super) fn read_during(
    sources: &Sources,
    at: &Path,
    pool: u64,
    begin: impl FnOnce() -> Outcome<Child>,
) -> Outcome<Option<Done>> {
    let server = start(sources, at, pool, &[])?;
    let mut begun = begin()?;
    let done = load(&server, sources, "oltp_read_only", early(sources), false);
    let is_over = begun.try_wait()?.is_some();
    let status = begun.wait()?;
    let done = done?;
    server.stop()?;
    match status.success() {
        true => Ok((!is_over).then_some(done)),
        false => Err(format!("what ran with the load ended with {status}").into()),
    }
}

/// Runs reading transactions as soon as the server answers.
pub(super) fn read_at_once(sources: &Sources, at: &Path, pool: u64) -> Outcome<Done> {
    let server = start(sources, at, pool, &[])?;
    let done = load(&server, sources, "oltp_read_only", early(sources), false)?;
    server.stop()?;
    Ok(done)
}

fn early(sources: &Sources) -> u64 {
    sources.seconds.min(EARLY_S)
}

/// Returns what the server says of the contents of each table.
fn checksums(server: &Server) -> Outcome<String> {
    let tables = (1..=TABLES).map(|table| format!("sbtest.sbtest{table}"));
    let tables = tables.collect::<Vec<_>>().join(", ");
    server.sql(&format!("CHECKSUM TABLE {tables}"))
}

/// Checks on a server that starts on the data that each table is sound, has all of its rows, and has
/// what it had at the end of the load.
pub(super) fn check(sources: &Sources, at: &Path, done: &Done) -> Outcome<()> {
    let (server, rows) = (start(sources, at, sources.tables / 2, &[])?, sources.rows);
    for table in 1..=TABLES {
        let told = server.sql(&format!("CHECK TABLE sbtest.sbtest{table}"))?;
        let count = server.sql(&format!("SELECT COUNT(*) FROM sbtest.sbtest{table}"))?;
        if !told.trim_end().ends_with("\tOK") || count.trim() != rows.to_string() {
            return Err(format!("table {table}: {told}{count} of {rows} rows").into());
        }
    }
    let checksums = checksums(&server)?;
    if !done.checksums.is_empty() && checksums != done.checksums {
        return Err(format!("had {}, has {checksums}", done.checksums).into());
    }
    server.stop()
}

fn runtime(directory: &Path) -> std::path::PathBuf {
    directory.with_file_name("running")
}

fn start(sources: &Sources, at: &Path, pool: u64, more: &[&str]) -> Outcome<Server> {
    let pool = format!("--innodb-buffer-pool-size={}", pool.max(16 << 20));
    let mut options = vec![pool.as_str(), "--innodb-log-file-size=256M"];
    // A pool that the last server had would make the next one warm.
    options.push("--innodb-buffer-pool-load-at-startup=0");
    options.extend(more);
    Server::start(&at.join(PART), &runtime(&sources.directory), &options)
}

fn load(
    server: &Server,
    sources: &Sources,
    script: &str,
    seconds: u64,
    is_warm: bool,
) -> Outcome<Done> {
    let run = |seconds: u64| {
        let rest = format!("--threads=8 --events=0 --time={seconds} --percentile=99 run");
        server.sysbench(script, sources.rows, &rest)
    };
    if is_warm {
        run(seconds.div_ceil(4))?;
    }
    let said = run(seconds.max(1))?;
    Ok(Done {
        rate: figure(&said, "transactions:", '(').ok_or("sysbench tells no rate")?,
        p99_ms: figure(&said, "99th percentile:", ':'),
        writes: 0,
        checksums: String::new(),
    })
}

/// Returns the number after `mark` on the line with this name.
fn figure(said: &str, name: &str, mark: char) -> Option<f64> {
    let line = said.lines().find(|line| line.trim().starts_with(name))?;
    let (_, rest) = line.rsplit_once(mark)?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::figure;

    #[test]
    fn figures_of_sysbench_are_found() {
        let said = "    transactions:    4321   (205.72 per sec.)\n  99th percentile:   65.65\n";
        assert_eq!(figure(said, "transactions:", '('), Some(205.72));
        assert_eq!(figure(said, "99th percentile:", ':'), Some(65.65));
        assert_eq!(figure(said, "95th percentile:", ':'), None);
    }
}
