//! PostgreSQL with the transactions of pgbench, eight at a time.

use std::fs;
use std::path::{Path, PathBuf};

use super::load::{Done, Sources};
use crate::Outcome;
use crate::disk::{remove, text};
use crate::measure::shell;

/// The part of the data that is PostgreSQL's.
pub(super) const PART: &str = "postgres";

/// Returns the directory of the programs of a server of Debian's.
pub(super) fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut programs: Vec<PathBuf> = versions
        .flatten()
        .map(|version| version.path().join("bin"))
        .filter(|programs| programs.join("pg_ctl").exists())
        .collect();
    programs.sort_by_key(|programs| {
        let version = programs.parent()?.file_name()?.to_str()?;
        version.split('.').next()?.parse::<u32>().ok()
    });
    programs.pop()
}

/// Makes the data directory, with the server ended in order. Nothing if there is no PostgreSQL.
pub(super) fn make(directory: &Path, scale: u32) -> Outcome<()> {
    let data = directory.join(PART);
    fs::create_dir_all(&data)?;
    if programs().is_none() {
        return Ok(());
    }
    create(&data)?;
    let server = Server::start(&data, "-c fsync=off")?;
    run(&format!(
        "pgbench -q -i -s {scale} -h {} postgres",
        text(&server.socket)
    ))?;
    server.stop()
}

/// Makes the data directory with one table of so many rows.
pub(super) fn make_rows(directory: &Path, rows: u64) -> Outcome<()> {
    let data = directory.join(PART);
    create(&data)?;
    let server = Server::start(
        &data,
        "-c fsync=off -c wal_level=minimal -c max_wal_senders=0",
    )?;
    server.ask(&format!(
        "CREATE TABLE orders AS \
         SELECT i AS id, rpad(md5(i::text), 1900, sha512(i::text::bytea)::text) AS value \
         FROM generate_series(1, {rows}) i"
    ))?;
    server.ask("ALTER TABLE orders ADD PRIMARY KEY (id)")?;
    server.ask("VACUUM FREEZE")?;
    server.stop()?;
    // The first start with other settings writes them down, which a clone would do each time.
    Server::start(&data, "-c fsync=on")?.stop()
}

/// Starts a server on such data, and reads a row.
pub(super) fn first_row(at: &Path, id: u64) -> Outcome<(String, Server)> {
    let server = Server::start(&at.join(PART), "-c fsync=on")?;
    let row = server.ask(&format!("SELECT md5(value) FROM orders WHERE id = {id}"))?;
    match row.trim().len() {
        32 => Ok((row, server)),
        _ => Err(format!("row {id} is {row}").into()),
    }
}

/// Runs transactions with the settings of a new server.
pub(super) fn write(sources: &Sources, at: &Path) -> Outcome<Done> {
    let data = at.join(PART);
    let server = Server::start(&data, "-c fsync=on")?;
    let said = server.socket.join("said");
    run(&format!(
        "pgbench -n -c 8 -j 2 -T {} -h {} postgres >{}",
        sources.seconds,
        text(&server.socket),
        text(&said)
    ))?;
    let told = fs::read_to_string(&said)?;
    server.stop()?;
    let line = told.lines().find_map(|line| line.strip_prefix("tps = "));
    let rate = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    Ok(Done {
        rate: rate.ok_or("pgbench tells no rate")?,
        p99_ms: None,
        writes: 0,
        checksums: String::new(),
    })
}

/// Checks on a server that starts on the data that the sums of all tables agree.
pub(super) fn check(at: &Path) -> Outcome<()> {
    let server = Server::start(&at.join(PART), "-c fsync=on")?;
    let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = \
                (SELECT sum(delta) FROM pgbench_history) AND \
                (SELECT sum(bbalance) FROM pgbench_branches) = \
                (SELECT sum(tbalance) FROM pgbench_tellers) AS equal";
    run(&format!(
        "[ \"$(psql -X -A -t -h {} -d postgres -c '{sums}')\" = t ]",
        text(&server.socket)
    ))?;
    server.stop()
}

/// Makes a data directory without tables.
fn create(data: &Path) -> Outcome<()> {
    fs::create_dir_all(data)?;
    shell(&format!("chown postgres: {}", text(data)))?;
    run(&format!(
        "initdb -D {} -k -A trust -U postgres --no-sync",
        text(data)
    ))
}

/// Runs a line of bash as the user of the server.
fn run(line: &str) -> Outcome<()> {
    let programs = programs().ok_or("there is no PostgreSQL")?;
    let line = format!("export PATH={}:$PATH; {line}", text(&programs)).replace('\'', "'\\''");
    shell(&format!(
        "setpriv --reuid postgres --regid postgres --init-groups env HOME=/var/lib/postgresql \
         bash -euo pipefail -c '{line}'"
    ))
    .map(drop)
}

/// A running server, which ends with this value.
pub(super) struct Server {
    data: PathBuf,
    /// The directory of its socket.
    socket: PathBuf,
}

impl Server {
    fn start(data: &Path, options: &str) -> Outcome<Self> {
        // A path of a socket has 107 bytes at most.
        let socket = tempfile::Builder::new()
            .prefix("pg.")
            .tempdir_in("/tmp")?
            .keep();
        let server = Self {
            data: data.to_owned(),
            socket,
        };
        let socket = text(&server.socket);
        shell(&format!(
            "chown postgres: {socket}; chmod 700 {}",
            text(data)
        ))?;
        run(&format!(
            "pg_ctl start -D {} -w -t 300 -l {socket}/log -s \
             -o \"-c listen_addresses= -c unix_socket_directories={socket} {options}\"",
            text(data)
        ))?;
        Ok(server)
    }

    /// Runs a statement, and returns its rows.
    fn ask(&self, statement: &str) -> Outcome<String> {
        let said = self.socket.join("said");
        run(&format!(
            "psql -X -A -t -q -v ON_ERROR_STOP=1 -h {} -d postgres -c '{statement}' >{}",
            text(&self.socket),
            text(&said)
        ))?;
        Ok(fs::read_to_string(said)?)
    }

    pub(super) fn stop(self) -> Outcome<()> {
        run(&format!(
            "pg_ctl stop -D {} -w -t 300 -s -m fast",
            text(&self.data)
        ))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a failure it may still run. Otherwise this command finds no server.
        let _ = run(&format!(
            "pg_ctl stop -D {} -s -m immediate 2>/dev/null",
            text(&self.data)
        ));
        let _ = remove(&self.socket);
    }
}
