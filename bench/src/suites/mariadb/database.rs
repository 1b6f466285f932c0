//! The database whose server runs while it is backed up.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::disk::text;
use crate::measure::shell;
use crate::server::{self, Server, TABLES};
use crate::verify::same_bytes;

/// Longest wait for the server to write its pages.
const PATIENCE: Duration = Duration::from_secs(300);

/// Options of the server, besides those of every server here.
const OPTIONS: [&str; 7] = [
    "--innodb-buffer-pool-size=512M",
    "--innodb-log-file-size=256M",
    "--innodb-file-per-table=1",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-max-dirty-pages-pct=0",
    "--innodb-stats-persistent=0",
    "--innodb-stats-auto-recalc=0",
];

/// A running server with its data.
pub(super) struct Database {
    server: Server,
    data: PathBuf,
    rows: u32,
}

impl Database {
    /// Starts a server with four tables of `rows` rows below `root`.
    pub(super) fn start(root: &Path, rows: u32) -> Outcome<Self> {
        let data = root.join("data");
        for directory in root.ancestors().take(2) {
            shell(&format!("chmod a+rx {}", text(directory)))?;
        }
        server::install(&data)?;
        let server = Server::start(&data, &root.join("run"), &OPTIONS)?;
        server.fill(rows)?;
        Ok(Self { server, data, rows })
    }

    /// Changes this many rows, chosen uniformly at random, to values that no other round writes.
    pub(super) fn update(&self, rows: u32, round: usize) -> Outcome<()> {
        let seed = 8 + round;
        let rest = format!("--threads=2 --time=0 --rand-seed={seed} --events={rows} run");
        let script = "oltp_update_non_index";
        self.server.sysbench(script, self.rows, &rest).map(drop)
    }

    /// Waits until every page is in its file.
    pub(super) fn settle(&self) -> Outcome<()> {
        self.server.sql("FLUSH TABLES")?;
        let deadline = Instant::now() + PATIENCE;
        let mut quiet = 0;
        while quiet < 5 {
            let dirty = self
                .server
                .sql("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")?;
            let none = dirty.split_whitespace().last() == Some("0");
            quiet = if none { quiet + 1 } else { 0 };
            if Instant::now() > deadline {
                return Err(format!("pages stay dirty: {dirty}").into());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        shell("sync").map(drop)
    }

    /// Returns the shell line that makes a full backup in `target`.
    pub(super) fn backup(&self, target: &Path) -> String {
        format!("{} --target-dir={}", self.mariabackup(), text(target))
    }

    /// Returns the shell line that writes a full backup to its standard output.
    pub(super) fn stream(&self) -> String {
        let stream = self.server.socket().with_file_name("stream");
        format!(
            "{} --stream=xbstream --target-dir={}",
            self.mariabackup(),
            text(&stream)
        )
    }

    fn mariabackup(&self) -> String {
        let (socket, data) = (text(self.server.socket()), text(&self.data));
        format!(
            "mariabackup --no-defaults --backup --user=root --socket={socket} --datadir={data} \
             --parallel=2 2>/dev/null"
        )
    }

    /// Compares the files of the tables in a backup with the server's own, which must not change
    /// meanwhile.
    pub(super) fn same_tables(&self, backup: &Path) -> Outcome<()> {
        let mut compared = 0;
        for entry in fs::read_dir(self.data.join("sbtest"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "ibd") {
                let name = path.file_name().unwrap_or_default();
                same_bytes(&path, &backup.join("sbtest").join(name))?;
                compared += 1;
            }
        }
        match compared == TABLES {
            true => Ok(()),
            false => Err(format!("{compared} tables instead of {TABLES}").into()),
        }
    }

    /// Permits the server's user to reach the files below `work`.
    pub(super) fn allow(&self, work: &Path) -> Outcome<()> {
        shell(&format!("chmod a+rx {}", text(work))).map(drop)
    }

    /// Ends the server.
    pub(super) fn stop(self) -> Outcome<()> {
        self.server.stop()
    }
}
