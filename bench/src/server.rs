//! A MariaDB server of the benchmark's own: private data and socket, no network.
//!
//! Owns: starting and ending it, statements, and sysbench on it. Does not own: where its data lies
//! and what is measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::disk::text;
use crate::measure::shell;

/// Number of tables that sysbench makes.
pub const TABLES: u32 = 4;

/// Longest wait for a server to start.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    socket: PathBuf,
}

/// Makes the directory `data` with the system tables.
///
/// # Errors
/// As [`shell`].
pub fn install(data: &Path) -> Outcome<()> {
    fs::create_dir_all(data)?;
    shell(&format!("chown mysql: {}", text(data)))?;
    shell(&format!(
        "mariadb-install-db --no-defaults --user=mysql --datadir={} \
         --auth-root-authentication-method=normal --skip-test-db",
        text(data)
    ))
    .map(drop)
}

impl Server {
    /// Starts a server on `data`, with its socket and log in the directory `runtime`.
    ///
    /// # Errors
    /// An I/O error, or a message if the server ends or does not answer within 300 s.
    pub fn start(data: &Path, runtime: &Path, options: &[&str]) -> Outcome<Self> {
        fs::create_dir_all(runtime)?;
        shell(&format!("chown mysql: {}", text(runtime)))?;
        let socket = runtime.join("socket");
        let child = Command::new("mariadbd")
            .args([
                "--no-defaults",
                "--user=mysql",
                "--skip-networking",
                "--skip-log-bin",
            ])
            .args(options)
            .arg(format!("--datadir={}", text(data)))
            .arg(format!("--socket={}", text(&socket)))
            .arg(format!("--pid-file={}/pid", text(runtime)))
            .arg(format!("--log-error={}/log", text(runtime)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut server = Self { child, socket };
        let deadline = Instant::now() + PATIENCE;
        while server.sql("SELECT 1").is_err() {
            if server.child.try_wait()?.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(runtime.join("log")).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(5)..].join("\n");
                return Err(format!("the database server does not start:\n{last}").into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs a statement, and returns its rows: one on each line, with tabs between values.
    ///
    /// # Errors
    /// What the client says.
    pub fn sql(&self, statement: &str) -> Outcome<String> {
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

    /// Runs a script of sysbench on tables of `rows` rows in the database `sbtest`, and returns what
    /// it prints. Rows are chosen uniformly.
    ///
    /// # Errors
    /// As [`shell`].
    pub fn sysbench(&self, script: &str, rows: u32, rest: &str) -> Outcome<String> {
        let said = self.socket.with_file_name("sysbench");
        shell(&format!(
            "sysbench {script} --db-driver=mysql --mysql-socket={} --mysql-user=root \
             --mysql-db=sbtest --tables={TABLES} --table-size={rows} --rand-type=uniform {rest} \
             >{}",
            text(&self.socket),
            text(&said)
        ))?;
        Ok(fs::read_to_string(said)?)
    }

    /// Makes the database `sbtest` with tables of `rows` rows.
    ///
    /// # Errors
    /// As [`Server::sql`] and [`Server::sysbench`].
    pub fn fill(&self, rows: u32) -> Outcome<()> {
        self.sql("CREATE DATABASE sbtest")?;
        let rest = "--threads=2 --rand-seed=7 prepare";
        self.sysbench("oltp_read_write", rows, rest).map(drop)
    }

    /// Ends the server as its administrator does.
    ///
    /// # Errors
    /// As [`shell`], or a message if the server fails.
    pub fn stop(mut self) -> Outcome<()> {
        shell(&format!(
            "mariadb-admin --no-defaults --user=root --socket={} shutdown",
            text(&self.socket)
        ))?;
        let status = self.child.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the database server ended with {status}").into()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
