//! `bkfs put URL PATH DIR…`

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use bkfs_store::parse_url;
use serde_json::{Value, json};

use crate::cli::limits::OpenFiles;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, ProgressForm, bytes, complain, name_text};
use crate::cli::progress::{Position, Progress};
use crate::cli::put_session::{Begin, Session};
use crate::cli::runtime::block_on;
use crate::json_name::with_name;
use crate::put_tree::job::{Job, Options};
use crate::put_tree::report::{NamedFiles, Report};
use crate::put_tree::{Origin, open_named, put, survey};
use crate::repository::Repository;
use crate::restore::selection::Selection;
use crate::stream::{StreamError, names_of};
use crate::volume::namespace::NewInode;
use crate::volume::requests::{CommitOutcome, SnapshotRequest};
use crate::{places, stream};

/// The number of files of a kind that are shown. The others are counted.
const SHOWN_MAX: usize = 10;

/// Options that only directories have.
#[derive(Debug, clap::Args)]
pub struct TreeOptions {
    /// Leave out what this pattern names in a DIR; may be repeated
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<OsString>,
    /// Leave out what the patterns of this file name, one on each line; lines that begin with # are
    /// comments; may be repeated
    #[arg(long, value_name = "FILE")]
    exclude_file: Vec<PathBuf>,
    /// Leave out the contents of directories that a CACHEDIR.TAG marks as caches
    #[arg(long)]
    exclude_caches: bool,
    /// Stay on the filesystem of each DIR: mount points in it become empty directories
    #[arg(long)]
    one_file_system: bool,
    /// Read all files of a DIR again, also those that have not changed
    #[arg(long)]
    force: bool,
}

/// A put of directories.
pub struct Directories<'a> {
    /// The repository, or a mount of one.
    pub url: &'a str,
    /// The path in the volume that gets them.
    pub path: &'a OsStr,
    /// The directories.
    pub sources: &'a [PathBuf],
    /// The name of the snapshot, if it is given.
    pub name: Option<&'a str>,
    /// Its tags.
    pub tags: &'a [String],
    /// Take the volume over from its holder.
    pub steal: bool,
    /// Continue without acknowledged changes whose journals are missing.
    pub accept_loss: bool,
    /// The options.
    pub options: &'a TreeOptions,
}

/// A directory to store, and its names in the volume.
#[derive(Debug)]
struct Chosen {
    path: PathBuf,
    names: Vec<Vec<u8>>,
}

impl TreeOptions {
    /// Refuses options of directories for what is none.
    ///
    /// # Errors
    /// Bad usage, which names the option.
    pub fn refuse(&self) -> Result<(), Failure> {
        let given = [
            (!self.exclude.is_empty(), "--exclude"),
            (!self.exclude_file.is_empty(), "--exclude-file"),
            (self.exclude_caches, "--exclude-caches"),
            (self.one_file_system, "--one-file-system"),
            (self.force, "--force"),
        ];
        match given.iter().find(|(is_given, _)| *is_given) {
            Some((_, option)) => Err(Failure::usage(format!("{option} is for directories only"))),
            None => Ok(()),
        }
    }

    /// Returns the patterns, those of files included.
    fn selection(&self) -> Result<Selection, Failure> {
        let mut exclude = self.exclude.clone();
        for file in &self.exclude_file {
            let text = std::fs::read(file)
                .map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
            exclude.extend(patterns(&text));
        }
        Ok(Selection::new(&[], &exclude))
    }
}

/// Returns the patterns in a file: its lines, without comments and empty ones.
fn patterns(text: &[u8]) -> Vec<OsString> {
    let lines = text.split(|byte| *byte == b'\n');
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
        .map(|line| OsString::from_vec(line.to_vec()))
        .collect()
}

/// Returns true if the sources of a put are directories.
///
/// # Errors
/// Bad usage if only some of them are, 1 if one of several is absent.
pub fn are_directories(sources: &[PathBuf]) -> Result<bool, Failure> {
    let is_directory = |path: &PathBuf| match (std::fs::metadata(path), sources.len()) {
        (Ok(metadata), _) => Ok(metadata.is_dir()),
        // The reader of a single file says why it cannot be read.
        (Err(_), 1) => Ok(false),
        (Err(error), _) => Err(Failure::new(format!("{}: {error}", path.display()))),
    };
    let are = sources
        .iter()
        .map(is_directory)
        .collect::<Result<Vec<_>, _>>()?;
    match sources
        .iter()
        .zip(&are)
        .find(|(_, is_directory)| !**is_directory)
    {
        Some((path, _)) if sources.len() > 1 => Err(Failure::usage(format!(
            "{} is no directory: a put takes one file, or directories",
            path.display()
        ))),
        found => Ok(found.is_none() && !sources.is_empty()),
    }
}

/// Returns a path from the root on, without `..`: patterns name such paths. Links stay as they were
/// given, as far as no `..` goes through them.
fn whole(source: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(source)?;
    let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
        return std::fs::canonicalize(&path);
    };
    match parent.components().any(|part| part == Component::ParentDir) {
        true => Ok(std::fs::canonicalize(parent)?.join(name)),
        false => Ok(path),
    }
}

/// Returns the directories with their names below `path` in the volume.
fn chosen(path: &[u8], sources: &[PathBuf]) -> Result<Vec<Chosen>, Failure> {
    let above = names_of(path).map_err(|error| Failure::usage(error.to_string()))?;
    let mut chosen: Vec<Chosen> = Vec::new();
    for source in sources {
        let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", source.display()));
        let path = whole(source).map_err(failed)?;
        let name = path.file_name().map(|name| name.as_bytes().to_vec());
        if name.is_none() && sources.len() > 1 {
            let message = "/ has no last component: put it alone, below a PATH of its own";
            return Err(Failure::usage(message));
        }
        let names: Vec<Vec<u8>> = above.iter().cloned().chain(name).collect();
        if let Some(other) = chosen.iter().find(|other| other.names == names) {
            return Err(Failure::usage(format!(
                "{} and {} have the same last component; put them below different PATHs",
                other.path.display(),
                path.display()
            )));
        }
        // A name of the mount's own is refused here, too.
        let joined: Vec<u8> = names.join(&b'/');
        names_of(&joined).map_err(|error| Failure::usage(error.to_string()))?;
        chosen.push(Chosen { path, names });
    }
    Ok(chosen)
}

/// Refuses a put of / to / into the volume that all puts share: it would remove what others have
/// put there.
fn refuse_whole(chosen: &[Chosen], volume_is_given: bool) -> Result<(), Failure> {
    if volume_is_given || chosen.iter().all(|chosen| !chosen.names.is_empty()) {
        return Ok(());
    }
    let message = "/ would become the whole volume, and all other dumps and directories would \
                   leave it: give a PATH, as the name of this host, or a --volume of its own";
    Err(Failure::usage(message))
}

/// Stores directories, makes a snapshot, and prints it.
///
/// # Errors
/// The [`Failure`] of the repository, the volume or a directory; 2 if the arguments are not valid,
/// 11 if the volume is held or was taken over. No snapshot is made then. 3 if files could not be
/// read: the snapshot is made without them.
pub fn run(command: &Directories<'_>, global: &Global, output: &Output) -> Result<(), Failure> {
    let chosen = chosen(command.path.as_bytes(), command.sources)?;
    refuse_whole(&chosen, global.volume_is_given)?;
    let selection = command.options.selection()?;
    OpenFiles::raise();
    block_on(async {
        let started = Instant::now();
        let begin = Begin {
            url: command.url,
            name: command.name,
            command: format!("bkfs put {}", command.path.to_string_lossy()),
            steal: command.steal,
            accept_loss: command.accept_loss,
        };
        let session = Session::begin(begin, global).await?;
        let (repository, volume) = (session.repository.clone(), session.volume.clone());
        let report = Arc::new(Report::default());
        let cache = global.cache_dir.clone().or_else(places::cache_dir);
        let work = async {
            let options = options(command.options, selection, &chosen, &repository, cache)?;
            let origins = origins(&chosen)?;
            store(&session, Arc::new(options), origins, &report, output).await?;
            let request = SnapshotRequest {
                name: command.name.map(str::to_owned),
                tags: command.tags.to_vec(),
                ..SnapshotRequest::default()
            };
            session.snapshot(request).await
        };
        let work = work.await;
        let made = session.end(work, output).await?;
        let told = Told {
            command,
            volume: &volume,
            report: &report,
            seconds: started.elapsed().as_secs_f64(),
        };
        told.show(&made, &repository, output)?;
        conclude(&report)
    })
}

/// Opens the directories.
fn origins(chosen: &[Chosen]) -> Result<Vec<Origin>, Failure> {
    let open = |chosen: &Chosen| {
        let fd = open_named(&chosen.path)
            .map_err(|error| Failure::new(format!("{}: {error}", chosen.path.display())))?;
        Ok(Origin {
            fd,
            path: chosen.path.as_os_str().as_bytes().to_vec(),
            names: chosen.names.clone(),
        })
    };
    chosen.iter().map(open).collect()
}

/// Returns what is stored. The bucket of the repository, the cache and mounts of bkfs are left out.
fn options(
    given: &TreeOptions,
    selection: Selection,
    chosen: &[Chosen],
    repository: &Repository,
    cache: Option<PathBuf>,
) -> Result<Options, Failure> {
    let mut own = HashMap::new();
    let mut leave = |path: &Path, why| {
        if let Ok(metadata) = std::fs::metadata(path) {
            own.insert(identity(&metadata), why);
        }
    };
    if let Some(cache) = cache {
        leave(&cache, "it is the cache of bkfs");
    }
    let url = parse_url(&repository.url).ok();
    if let Some(bucket) = url.as_ref().and_then(|url| url.local_path()) {
        leave(bucket, "it is the bucket that this put writes to");
        let bucket = std::fs::canonicalize(bucket).ok();
        let is_in = |chosen: &&Chosen| {
            let path = std::fs::canonicalize(&chosen.path).ok();
            path.zip(bucket.as_ref())
                .is_some_and(|(path, bucket)| path.starts_with(bucket))
        };
        if let Some(chosen) = chosen.iter().find(is_in) {
            let path = chosen.path.display();
            return Err(Failure::usage(format!("{path} lies in the bucket itself")));
        }
    }
    let mounts = bkfs_fuse::mountinfo::mounts().unwrap_or_default();
    let mounts = mounts.into_iter().filter(|mount| mount.is_bkfs());
    let mounts: HashSet<u64> = mounts
        .map(|mount| rustix::fs::makedev(mount.device.0, mount.device.1))
        .collect();
    Ok(Options {
        selection,
        one_file_system: given.one_file_system,
        exclude_caches: given.exclude_caches,
        force: given.force,
        own,
        mounts,
    })
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Stores all directories in the volume, which shows none of it before the snapshot.
async fn store(
    session: &Session,
    options: Arc<Options>,
    origins: Vec<Origin>,
    report: &Arc<Report>,
    output: &Output,
) -> Result<(), Failure> {
    if session.repository.handle.current().root.chain.is_none() {
        let hint = "End the sessions of older programs (bkfs session list), and run this again.";
        let message = "the repository cannot keep an unfinished tree apart yet";
        return Err(Failure::new(message).hint(hint));
    }
    let volume = session.alone.volume();
    let stop = Stop::default();
    let total = match output.progress_form() {
        ProgressForm::Nothing => Arc::default(),
        _ => survey(&origins, &options, &stop.0),
    };
    let shown = report.clone();
    let bar = Progress::follow(output, move || Position {
        bytes: shown.bytes(),
        total_bytes: Some(total.load(Ordering::Relaxed)).filter(|total| *total > 0),
        message: format!("{} files", shown.inodes()),
    });
    let job = Arc::new(Job::new(volume.clone(), options, report.clone()));
    let new = NewInode {
        mode: libc::S_IFDIR | 0o755,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        device: 0,
        target: None,
        profile: 0,
    };
    let all = async {
        volume.build_apart().await?;
        for origin in origins {
            let path = origin.path.clone();
            let done = put(&job, origin, &new).await;
            done.map_err(|error| failure(error, &path))?;
        }
        Ok(())
    };
    let done = session.stoppable(all).await;
    drop(stop);
    bar.finish().await;
    done
}

/// Ends the survey when the put has ended.
#[derive(Default)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts to find out how much there is. The result is 0 until that is known.
fn survey(origins: &[Origin], options: &Arc<Options>, stop: &Arc<AtomicBool>) -> Arc<AtomicU64> {
    let total = Arc::new(AtomicU64::new(0));
    let (found, options, stop) = (total.clone(), options.clone(), stop.clone());
    let origins = origins.iter().map(|origin| {
        let path = PathBuf::from(OsStr::from_bytes(&origin.path));
        open_named(&path).map(|fd| (fd, origin.path.clone()))
    });
    let Ok(origins) = origins.collect::<Result<Vec<_>, _>>() else {
        return total;
    };
    tokio::task::spawn_blocking(move || {
        let parts = origins.into_iter();
        let mut parts = parts.map(|(fd, path)| survey::bytes(fd, &path, &options, &stop));
        let sum = parts.try_fold(0_u64, |sum, part| Some(sum.saturating_add(part?)));
        found.store(sum.unwrap_or(0), Ordering::Relaxed);
    });
    total
}

fn failure(error: StreamError, path: &[u8]) -> Failure {
    match error {
        stream::StreamError::Volume(error) => error.into(),
        stream::StreamError::Read(error) => Failure::new(format!("{}: {error}", name_text(path))),
        error => Failure::new(error.to_string()),
    }
}

/// What is printed of a put.
struct Told<'a> {
    command: &'a Directories<'a>,
    volume: &'a str,
    report: &'a Report,
    seconds: f64,
}

impl Told<'_> {
    fn show(
        &self,
        made: &CommitOutcome,
        repository: &Repository,
        output: &Output,
    ) -> Result<(), Failure> {
        let report = self.report;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        remarks(report, output);
        let metrics = repository.content_store.metrics();
        let name = made.snapshot.as_deref().unwrap_or_default();
        let (path, seconds) = (self.command.path.as_bytes(), self.seconds);
        let (stored, unchanged) = (count(&report.stored), count(&report.unchanged));
        let (removed, read) = (count(&report.removed), count(&report.read.bytes));
        let answer = json!({
            "name": name,
            "generation": made.generation,
            "volume": self.volume,
            "directories": count(&report.directories),
            "stored": stored,
            "unchanged": unchanged,
            "removed": removed,
            "bytes": report.bytes(),
            "read_bytes": read,
            "new_bytes": metrics.bytes_new,
            "uploaded_bytes": metrics.bytes_uploaded,
            "seconds": seconds,
            "sockets": count(&report.sockets),
            "vanished": count(&report.vanished),
            "access_lists": count(&report.lists),
            "unread": listed(&report.unread.lock()),
            "changing": listed(&report.changing.lock()),
            "passed": listed(&report.passed.lock()),
        });
        let answer = with_name(answer, "path", path);
        output.result(&answer, || {
            let rate = bytes((read as f64 / seconds.max(0.001)) as u64);
            format!(
                "snapshot {name} (generation {}): {}: {stored} stored, {unchanged} unchanged, \
                 {removed} removed; {} read in {seconds:.1} s ({rate}/s), {} new",
                made.generation,
                name_text(path),
                bytes(read),
                bytes(metrics.bytes_new),
            )
        })
    }
}

/// Says what the snapshot does not have as the source has it, but for files that could not be read.
fn remarks(report: &Report, output: &Output) {
    let shown = |files: &NamedFiles, what: &str| {
        for (path, why) in files.listed.iter().take(SHOWN_MAX) {
            output.finding(format_args!("{what}: {}: {why}", name_text(path)));
        }
        let rest = files.count().saturating_sub(SHOWN_MAX as u64);
        if rest > 0 {
            output.finding(format_args!(
                "{what}: {rest} more; --json names the first 1000"
            ));
        }
    };
    shown(&report.passed.lock(), "left out");
    shown(&report.changing.lock(), "changed while it was read");
    let sockets = report.sockets.load(Ordering::Relaxed);
    if sockets > 0 {
        output.remark(format_args!("left out {sockets} sockets"));
    }
    let vanished = report.vanished.load(Ordering::Relaxed);
    if vanished > 0 {
        output.remark(format_args!(
            "{vanished} files were gone before they were read"
        ));
    }
    let lists = report.lists.load(Ordering::Relaxed);
    if lists > 0 {
        output.remark(format_args!(
            "left out {lists} access control lists, which bkfs does not store"
        ));
    }
}

/// Returns the named files in the answer to `--json`.
fn listed(files: &NamedFiles) -> Vec<Value> {
    let entry = |(path, why): &(Vec<u8>, String)| with_name(json!({ "reason": why }), "path", path);
    files.listed.iter().map(entry).collect()
}

/// Names the files that could not be read.
fn conclude(report: &Report) -> Result<(), Failure> {
    let unread = report.unread.lock();
    if unread.count() == 0 {
        return Ok(());
    }
    for (path, why) in unread.listed.iter().take(SHOWN_MAX) {
        complain(format_args!("bkfs: not read: {}: {why}", name_text(path)));
    }
    let rest = unread.count().saturating_sub(SHOWN_MAX as u64);
    if rest > 0 {
        complain(format_args!(
            "bkfs: not read: {rest} more; --json names the first 1000"
        ));
    }
    let count = unread.count();
    let message = format!("{count} files could not be read; the snapshot lacks them or parts");
    Err(Failure::new(message).code(Code::Partly))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str, sources: &[&str]) -> Result<Vec<String>, String> {
        let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
        let chosen = chosen(path.as_bytes(), &sources).map_err(|failure| failure.message)?;
        let text = |chosen: &Chosen| String::from_utf8_lossy(&chosen.names.join(&b'/')).into();
        Ok(chosen.iter().map(text).collect())
    }

    #[test]
    fn directories_go_below_the_path_under_their_last_components() {
        assert_eq!(names("/", &["/etc", "/home/"]).unwrap(), ["etc", "home"]);
        assert_eq!(names("a//b", &["/etc/."]).unwrap(), ["a/b/etc"]);
        assert_eq!(names("host", &["/"]).unwrap(), ["host"]);
        let here = std::env::current_dir().unwrap();
        let last = here.file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(names("/", &["."]).unwrap(), [last]);
    }

    #[test]
    fn directories_of_one_name_are_refused() {
        let refused = |path, sources: &[&str]| names(path, sources).unwrap_err();
        assert!(refused("/", &["/usr/bin", "/bin/"]).contains("same last component"));
        assert!(refused("/", &["/", "/etc"]).contains("no last component"));
        assert!(refused("/..", &["/etc"]).contains("no names"));
        assert!(refused("/", &["/home/.snapshots"]).contains("mount's own"));
        assert!(names("/x", &["/home/.snapshots"]).is_ok());
    }

    #[test]
    fn patterns_match_directories_that_are_given_with_dots() {
        let home = tempfile::TempDir::new().unwrap();
        let real = std::fs::canonicalize(home.path()).unwrap();
        std::fs::create_dir_all(real.join("a/b")).unwrap();
        std::os::unix::fs::symlink("b", real.join("a/link")).unwrap();
        let path = |below: &str| chosen(b"/", &[real.join(below)]).unwrap().remove(0).path;
        assert_eq!(path("a/b/../link"), real.join("a/link"));
        assert_eq!(path("a/../a/link"), real.join("a/link"));
        assert_eq!(path("a/b/.."), real.join("a"));
        assert_eq!(path("a/link/."), real.join("a/link"));
    }

    #[test]
    fn a_whole_machine_gets_a_path_or_a_volume_of_its_own() {
        let root = [PathBuf::from("/")];
        let whole = chosen(b"/", &root).unwrap();
        assert!(refuse_whole(&whole, false).is_err());
        refuse_whole(&whole, true).unwrap();
        refuse_whole(&chosen(b"host", &root).unwrap(), false).unwrap();
        refuse_whole(&chosen(b"/", &["/etc".into()]).unwrap(), false).unwrap();
    }

    #[test]
    fn a_file_of_patterns_has_comments() {
        let found = patterns(b"# first\n*.tmp\r\n\n/a b\n#\n");
        assert_eq!(found, ["*.tmp", "/a b"]);
    }
}
