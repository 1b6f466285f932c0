//! `bkfs put URL PATH [FILE]`, and the arguments of `bkfs put URL PATH DIR…` (`put_tree`)

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::pipe::PipeFlags;
use serde_json::json;
use tokio::process::{Child, Command};

use crate::cli::hooks::Hooks;
use crate::cli::limits::OpenFiles;
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output, bytes, name_text};
use crate::cli::progress::{Position, Progress};
use crate::cli::put_session::{Begin, Session};
use crate::cli::put_tree::{self, Directories, TreeOptions};
use crate::cli::runtime::block_on;
use crate::cli::tool::{code_of, code_without_start};
use crate::json_name::with_name;
use crate::repository::Repository;
use crate::stream::source::{Facts, Source, Subject};
use crate::stream::{
    Received, StreamError, StreamProgress, VolumePath, abandon, keep, new_file, receive,
};
use crate::tree::item::Timestamp;
use crate::volume::namespace::NewInode;
use crate::volume::requests::{CommitOutcome, SnapshotRequest};

/// Store a stream, a file or directories as a snapshot, without a mount
///
/// Standard input, FILE, or the output of COMMAND replaces PATH in the volume (`streams` unless
/// --volume is given), and bkfs makes a snapshot of the volume. When the command returns 0, the
/// snapshot is in the bucket. If the stream cannot be read or stored to its end, bkfs makes no
/// snapshot and changes nothing.
///
/// The end of a pipe does not say whether its writer succeeded. `bkfs put URL PATH -- COMMAND` runs
/// the writer itself, and stores its output only if it ends with 0. If it fails, the exit code is
/// the writer's own: 126 or 127 if it cannot be run, 128 and the number of a signal that ended it.
///
///   bkfs put s3://bucket/prefix db/main.sql -- mariadb-dump --all-databases
///   bkfs restore s3://bucket/prefix --volume streams latest:/db/main.sql main.sql
///
/// Each DIR becomes the directory PATH/DIR of the volume, under its last component: with files,
/// links, devices, fifos, holes, owners, times and extended attributes. What DIR does not have any
/// more leaves PATH/DIR. Files that have not changed since the last put to this PATH are not read
/// again. Until the snapshot is made, the volume shows nothing of it. A DIR of / becomes PATH itself.
/// All hosts that put into one volume share its paths: give each host a PATH of its own.
///
/// The exit code is 3 if files could not be read. They are named, and the snapshot lacks them.
///
/// --exclude takes patterns for names, or for whole paths on this machine (from /) if they have a
/// slash. * matches any characters but a slash, ** any characters, ? one character, [a-z] one of
/// these.
///
///   bkfs put s3://bucket/prefix web1 /etc /home --exclude '/home/*/.cache' --exclude '*.tmp'
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Put {
    /// The repository, or a mount of one
    pub(super) url: String,
    #[command(flatten)]
    pub(super) hooks: Hooks,
    /// The path of the file in the volume, or of the directory that gets each DIR; missing
    /// directories are created
    path: OsString,
    /// The file to store, with its mode, owner and time (default: standard input), or directories
    #[arg(conflicts_with = "command", value_name = "FILE|DIR")]
    sources: Vec<PathBuf>,
    #[command(flatten)]
    tree: TreeOptions,
    /// The name of the snapshot (default: the time in UTC)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Tag the snapshot; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Take the volume over from its holder
    #[arg(long)]
    steal: bool,
    /// Continue without acknowledged changes whose journals are missing from the bucket; journals
    /// after the gap are moved to damaged/
    #[arg(long)]
    accept_loss: bool,
    /// A command, after --, whose standard output is stored
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The stream that is stored, and the process that tells whether it was whole.
struct Input {
    subject: Subject,
    facts: Facts,
    child: Option<Child>,
}

/// Stores one stream, makes a snapshot, and prints it.
///
/// # Errors
/// The [`Failure`] of the repository, the volume or the stream; 2 if the path or the input is not
/// valid, 11 if the volume is held or was taken over; that of the command if it failed. No snapshot
/// is made then.
pub fn run(command: Put, global: &Global, output: &Output) -> Result<(), Failure> {
    if put_tree::are_directories(&command.sources)? {
        let directories = Directories {
            url: &command.url,
            path: &command.path,
            sources: &command.sources,
            name: command.name.as_deref(),
            tags: &command.tags,
            steal: command.steal,
            accept_loss: command.accept_loss,
            options: &command.tree,
        };
        return put_tree::run(&directories, global, output);
    }
    command.tree.refuse()?;
    let place = VolumePath::parse(command.path.as_bytes())
        .map_err(|error| Failure::usage(error.to_string()))?;
    let limit = OpenFiles::raise();
    let umask = umask();
    block_on(async {
        let started = Instant::now();
        let begin = Begin {
            url: &command.url,
            name: command.name.as_deref(),
            command: format!("bkfs put {}", command.path.to_string_lossy()),
            steal: command.steal,
            accept_loss: command.accept_loss,
        };
        let session = Session::begin(begin, global).await?;
        let (repository, volume) = (session.repository.clone(), session.volume.clone());
        let put = put(&command, &place, &session, umask, &limit, output).await;
        let (made, length) = session.end(put, output).await?;
        let seconds = started.elapsed().as_secs_f64();
        let stored = Stored {
            path: command.path.as_bytes().to_vec(),
            volume,
            bytes: length,
            seconds,
        };
        stored.show(&made, &repository, output)
    })
}

/// Does everything but the session: stores the stream, gives it its name, makes the snapshot.
async fn put(
    command: &Put,
    place: &VolumePath,
    session: &Session,
    umask: u32,
    limit: &OpenFiles,
    output: &Output,
) -> Result<(CommitOutcome, u64), Failure> {
    let volume = session.alone.volume();
    let checked = async { place.check(volume).await.map_err(failure) };
    session.stoppable(checked).await?;
    let begun = Input::begin(command, limit);
    let (source, mut input) = session.stoppable(begun).await?;
    let new = new_file(place, &input.facts, umask);
    let received = input.receive(source, &new, session, output).await?;
    let length = received.bytes;
    let concluded = input.conclude(command, length, output);
    if let Err(failure) = session.stoppable(concluded).await {
        abandon(volume, received).await;
        return Err(failure);
    }
    let modified = input.facts.file.map_or_else(
        || volume.now(),
        |file| Timestamp {
            seconds: file.modified.0,
            nanoseconds: file.modified.1,
        },
    );
    let kept = keep(volume, place, &new, received, modified);
    let kept = async { kept.await.map_err(failure) };
    session.stoppable(kept).await?;
    let request = SnapshotRequest {
        name: command.name.clone(),
        tags: command.tags.clone(),
        ..SnapshotRequest::default()
    };
    Ok((session.snapshot(request).await?, length))
}

impl Input {
    async fn begin(command: &Put, limit: &OpenFiles) -> Result<(Source, Input), Failure> {
        let mut child = None;
        let source = if let Some(path) = command.sources.first() {
            let opened = path.clone();
            // The open of a pipe waits for its writer.
            let opened = tokio::task::spawn_blocking(move || Source::open(&opened)).await;
            let opened = opened.map_err(std::io::Error::other).flatten();
            opened.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?
        } else if let Some(program) = command.command.first() {
            let failed = |error: std::io::Error| {
                Failure::new(format!("cannot run {}: {error}", program.to_string_lossy()))
            };
            let not_started = |error: std::io::Error| {
                let code = code_without_start(&error);
                failed(error).tool(code)
            };
            let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
                .map_err(|error| failed(error.into()))?;
            let mut running = Command::new(program);
            running.args(&command.command[1..]).stdout(write);
            let started = limit.without(|| running.spawn());
            child = Some(started.map_err(not_started)?);
            Source::of(read)
        } else {
            if std::io::stdin().is_terminal() {
                let hint = "Pipe something into it, name a FILE, or give a command after --.";
                return Err(Failure::usage("standard input is a terminal").hint(hint));
            }
            let input = rustix::io::dup(std::io::stdin())
                .map_err(|error| Failure::new(format!("standard input: {error}")))?;
            Source::of(input)
        };
        let unknown = |error: std::io::Error| {
            Failure::new(format!("cannot read the attributes of the stream: {error}"))
        };
        let subject = source.subject().map_err(unknown)?;
        let facts = subject.facts().map_err(unknown)?;
        let input = Input {
            subject,
            facts,
            child,
        };
        Ok((source, input))
    }

    async fn receive(
        &self,
        source: Source,
        new: &NewInode,
        session: &Session,
        output: &Output,
    ) -> Result<Received, Failure> {
        let progress = Arc::new(StreamProgress::default());
        let shown = progress.clone();
        let total = self.facts.total_bytes;
        let bar = Progress::follow(output, move || Position {
            bytes: shown.bytes.load(Ordering::Relaxed),
            total_bytes: total.filter(|total| *total > 0),
            message: String::new(),
        });
        let received = async {
            let mut blocks = source.blocks()?;
            let stop = session.signalled();
            receive(session.alone.volume(), new, &mut blocks, &progress, stop).await
        };
        let received = received.await;
        bar.finish().await;
        received.map_err(failure)
    }

    /// Waits for the command that writes the stream, and fails if it failed. A file that was
    /// changed while it was read is only remarked on.
    async fn conclude(
        &mut self,
        command: &Put,
        length: u64,
        output: &Output,
    ) -> Result<(), Failure> {
        if let Some(mut child) = self.child.take() {
            let program = command.command[0].to_string_lossy();
            let status = child.wait().await;
            let status = status.map_err(|error| Failure::new(format!("{program}: {error}")))?;
            if !status.success() {
                let message = format!("{program} ended with {status}");
                return Err(Failure::new(message).tool(code_of(status)));
            }
        }
        let now = self.subject.facts().ok().and_then(|facts| facts.file);
        let before = self.facts.file;
        if !command.sources.is_empty()
            && (now != before || now.is_some_and(|now| now.length != length))
        {
            output.finding("the file changed while it was read; bkfs stored what it read");
        }
        Ok(())
    }
}

/// Returns the bits that a shell would take from the mode of a new file. It must be called before
/// there are other threads, since it sets the umask to 0 for a moment.
fn umask() -> u32 {
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

fn failure(error: StreamError) -> Failure {
    match error {
        StreamError::Volume(error) => error.into(),
        error => Failure::new(error.to_string()),
    }
}

/// The facts about a stored stream that are printed.
struct Stored {
    path: Vec<u8>,
    volume: String,
    bytes: u64,
    seconds: f64,
}

impl Stored {
    fn show(
        &self,
        made: &CommitOutcome,
        repository: &Repository,
        output: &Output,
    ) -> Result<(), Failure> {
        let metrics = repository.content_store.metrics();
        let name = made.snapshot.as_deref().unwrap_or_default();
        let (path, seconds) = (name_text(&self.path), self.seconds);
        let answer = json!({
            "name": name,
            "generation": made.generation,
            "volume": self.volume,
            "bytes": self.bytes,
            "new_bytes": metrics.bytes_new,
            "uploaded_bytes": metrics.bytes_uploaded,
            "seconds": seconds,
        });
        let answer = with_name(answer, "path", &self.path);
        output.result(&answer, || {
            let rate = bytes((self.bytes as f64 / seconds.max(0.001)) as u64);
            format!(
                "snapshot {name} (generation {}): {path}, {} in {seconds:.1} s ({rate}/s), {} new",
                made.generation,
                bytes(self.bytes),
                bytes(metrics.bytes_new),
            )
        })
    }
}
