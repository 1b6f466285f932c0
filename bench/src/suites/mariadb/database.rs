//! A MariaDB server of the benchmark's own: private data and socket, no network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::disk::text;
use crate::measure::{shell, shell_command};
use crate::verify::same_bytes;

/// Number of tables that sysbench makes.
const TABLES: u32 = 4;

/// Longest wait for the server to start, or to write its pages.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running server.
pub(super) struct Database {
    child: Child,
    data: PathBuf,
    socket: PathBuf,
    rows: u32,
}

impl Database {
    /// Starts a server with four tables of `rows` rows below `root`.
    pub(super) fn start(root: &Path, rows: u32) -> Outcome<Self> {
        let (data, runtime) = (root.join("data"), root.join("run"));
        fs::create_dir_all(&data)?;
        fs::create_dir_all(&runtime)?;
        for directory in root.ancestors().take(2) {
            shell(&format!("chmod a+rx {}", text(directory)))?;
        }
        shell(&format!("chown mysql: {} {}", text(&data), text(&runtime)))?;
        let data_text = text(&data);
        shell(&format!(
            "mariadb-install-db --no-defaults --user=mysql --datadir={data_text} \
             --auth-root-authentication-method=normal --skip-test-db"
        ))?;
        let socket = runtime.join("socket");
        let child = Command::new("mariadbd")
            .args([
                "--no-defaults",
                "--user=mysql",
                "--skip-networking",
                "--skip-log-bin",
            ])
            .args([
                "--innodb-buffer-pool-size=512M",
                "--innodb-log-file-size=256M",
                "--innodb-file-per-table=1",
            ])
            .args([
                "--innodb-flush-log-at-trx-commit=2",
                "--innodb-max-dirty-pages-pct=0",
            ])
            .args([
                "--innodb-stats-persistent=0",
                "--innodb-stats-auto-recalc=0",
            ])
            .arg(format!("--datadir={data_text}"))
            .arg(format!("--socket={}", text(&socket)))
            .arg(format!("--pid-file={}/pid", text(&runtime)))
            .arg(format!("--log-error={}/log", text(&runtime)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut database = Self {
            child,
            data,
            socket,
            rows,
        };
        let deadline = Instant::now() + PATIENCE;
        while database.sql("SELECT 1").is_err() {
            if database.child.try_wait()?.is_some() || Instant::now() > deadline {
                return Err("the database server does not start".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        database.sql("CREATE DATABASE sbtest")?;
        database.sysbench("oltp_read_write", "prepare", 0)?;
        Ok(database)
    }

    fn sql(&self, statement: &str) -> Outcome<String> {
        let output = Command::new("mariadb")
            .args([
                "--no-defaults",
                "--user=root",
                "--batch",
                "--skip-column-names",
            ])
            .arg(format!("--socket={}", text(&self.socket)))
            .args(["-e", statement])
            .output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
        }
    }

    fn sysbench(&self, script: &str, command: &str, round: usize) -> Outcome<()> {
        let seed = 7 + round;
        let (socket, rows) = (text(&self.socket), self.rows);
        shell(&format!(
            "sysbench {script} --db-driver=mysql --mysql-socket={socket} --mysql-user=root \
             --mysql-db=sbtest --tables={TABLES} --table-size={rows} --threads=2 --time=0 \
             --rand-type=uniform --rand-seed={seed} {command}"
        ))
        .map(drop)
    }

    /// Changes this many rows, chosen uniformly at random, to values that no other round writes.
    pub(super) fn update(&self, rows: u32, round: usize) -> Outcome<()> {
        let run = format!("--events={rows} run");
        self.sysbench("oltp_update_non_index", &run, round + 1)
    }

    /// Waits until every page is in its file.
    pub(super) fn settle(&self) -> Outcome<()> {
        self.sql("FLUSH TABLES")?;
        let deadline = Instant::now() + PATIENCE;
        let mut quiet = 0;
        while quiet < 5 {
            let dirty = self.sql("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")?;
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
        let stream = self.socket.with_file_name("stream");
        format!(
            "{} --stream=xbstream --target-dir={}",
            self.mariabackup(),
            text(&stream)
        )
    }

    fn mariabackup(&self) -> String {
        let (socket, data) = (text(&self.socket), text(&self.data));
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
    pub(super) fn stop(mut self) -> Outcome<()> {
        let mut shutdown = shell_command(&format!(
            "mariadb-admin --no-defaults --user=root --socket={} shutdown",
            text(&self.socket)
        ));
        shutdown.status()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
