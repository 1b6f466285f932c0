//! The destination of log lines: first the terminal, then the journal or a file once the terminal
//! is gone.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::printable;

/// The destination of a process's lines.
enum Sink {
    Terminal,
    /// To stderr, as what a command says itself.
    Command,
    File(File),
    /// The layer of the journal takes the lines.
    Nowhere,
}

/// The log of this process.
#[derive(Clone)]
pub struct Log(Arc<Mutex<Sink>>);

impl Log {
    /// Starts logging to stderr.
    ///
    /// `BKFS_LOG` overrides the level, in the syntax of tracing's `Targets`.
    pub fn start(verbose: u8, quiet: bool) -> Log {
        let log = Log(Arc::new(Mutex::new(Sink::Terminal)));
        let (filter, unread) = filter(verbose, quiet);
        let writer = log.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_target(false)
            .with_writer(move || writer.clone());
        let journal = is_journal_wanted()
            .then(|| tracing_journald::layer().ok())
            .flatten();
        // A second start, as in tests, has no effect: the first stays.
        let _ = tracing_subscriber::registry()
            .with(lines.and_then(journal).with_filter(filter))
            .try_init();
        complain_of(&unread);
        log
    }

    /// Starts the log of a command: plain lines on stderr.
    pub fn start_for_command(verbose: u8, quiet: bool) {
        let log = Log(Arc::new(Mutex::new(Sink::Command)));
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_target(false)
            .with_level(false)
            .without_time()
            .with_writer(move || log.clone());
        let (filter, unread) = filter(verbose, quiet);
        let _ = tracing_subscriber::registry()
            .with(lines.with_filter(filter))
            .try_init();
        complain_of(&unread);
    }

    /// Stops writing to the terminal, which is gone.
    pub fn detach(&self) {
        *self.0.lock() = match (is_journal_wanted(), log_file()) {
            (false, Some(file)) => Sink::File(file),
            _ => Sink::Nowhere,
        };
    }
}

/// What is logged, and those parts of `BKFS_LOG`, which overrides it, that cannot be read.
fn filter(verbose: u8, quiet: bool) -> (Targets, Vec<String>) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, _) => LevelFilter::DEBUG,
    };
    let wanted = std::env::var("BKFS_LOG").unwrap_or_default();
    let (named, unread) = targets(&wanted);
    let usual = || Targets::new().with_default(level);
    (named.unwrap_or_else(usual), unread)
}

fn complain_of(unread: &[String]) {
    for part in unread {
        tracing::warn!("BKFS_LOG: {part} is neither a level nor PART=LEVEL");
    }
}

/// Returns what a list as `info,bkfs=debug` names, `None` if that is nothing, and the parts that
/// cannot be read. These are left out, since a typing error must not end a backup.
fn targets(wanted: &str) -> (Option<Targets>, Vec<String>) {
    let parts = wanted.split(',').map(|part| part.trim().to_owned());
    let (read, unread): (Vec<String>, Vec<String>) = parts
        .filter(|part| !part.is_empty())
        .partition(|part| part.parse::<Targets>().is_ok());
    let named = (!read.is_empty()).then(|| read.join(",").parse().ok());
    (named.flatten(), unread)
}

impl Write for Log {
    /// Takes a whole line from the layer, and writes it as one line whatever characters it has.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let shown = printable::line(text.trim_end_matches('\n'));
        match &mut *self.0.lock() {
            Sink::Terminal => writeln!(io::stderr(), "{shown}")?,
            Sink::Command => writeln!(io::stderr(), "bkfs: {}", shown.trim_start())?,
            Sink::File(file) => writeln!(file, "{shown}")?,
            Sink::Nowhere => {}
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the system has a journal that should get the lines.
///
/// With `-f` under systemd, stderr is connected to the journal anyway.
fn is_journal_wanted() -> bool {
    std::path::Path::new("/run/systemd/journal/socket").exists()
        && std::env::var_os("JOURNAL_STREAM").is_none()
}

/// Returns the path of the log file that this user's daemons write without a journal.
pub fn log_path() -> Option<PathBuf> {
    crate::places::state_dir().map(|directory| directory.join("bkfs.log"))
}

fn log_file() -> Option<File> {
    let path = log_path()?;
    crate::private::make_directory(path.parent()?).ok()?;
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .ok()
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_list_names_a_level_for_all_and_levels_of_parts() {
        let (named, unread) = targets("info, bkfs_store=debug,bkfs::cache=off");
        let named = named.unwrap();
        for (part, level, is_logged) in [
            ("bkfs", Level::INFO, true),
            ("bkfs", Level::DEBUG, false),
            ("bkfs_store::remote", Level::DEBUG, true),
            ("bkfs::cache", Level::ERROR, false),
        ] {
            assert_eq!(
                named.would_enable(part, &level),
                is_logged,
                "{part} {level}"
            );
        }
        assert!(unread.is_empty());
    }

    #[test]
    fn what_cannot_be_read_leaves_the_rest_in_force() {
        let loud = || vec!["bkfs=loud".to_owned()];
        assert_eq!(targets("bkfs=loud,warn"), (targets("warn").0, loud()));
        assert_eq!(targets("bkfs=loud"), (None, loud()));
        for nothing in ["", " ,"] {
            assert_eq!(targets(nothing), (None, Vec::new()), "{nothing:?}");
        }
    }
}
