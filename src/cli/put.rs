//! `bkfs put URL PATH [FILE]`

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
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::access::open;
use crate::cli::hooks::Hooks;
use crate::cli::limits::OpenFiles;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, bytes, name_text};
use crate::cli::progress::{Position, Progress};
use crate::cli::runtime::block_on;
use crate::cli::target::target;
use crate::cli::tool::{code_of, code_without_start};
use crate::json_name::with_name;
use crate::mounting::alone::{Alone, AloneParts};
use crate::mounting::error::MountingError;
use crate::mounting::settings::Settings;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::snapshots::SnapshotReference;
use crate::stream::source::{Facts, Source};
use crate::stream::{
    Received, StreamError, StreamProgress, VolumePath, abandon, keep, new_file, receive,
};
use crate::tree::item::Timestamp;
use crate::volume::namespace::NewInode;
use crate::volume::requests::{CommitOutcome, SnapshotRequest};

/// The volume that streams go to unless --volume is given. A mount of the default volume does not
/// hold it.
const VOLUME: &str = "streams";

/// Store one stream or file as a snapshot, without a mount
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
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Put {
    /// The repository, or a mount of one
    pub(super) url: String,
    #[command(flatten)]
    pub(super) hooks: Hooks,
    /// The path of the file in the volume; missing directories are created
    path: OsString,
    /// The file to store, with its mode, owner and time (default: standard input)
    #[arg(conflicts_with = "command")]
    file: Option<PathBuf>,
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
    source: Source,
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
    let place = VolumePath::parse(command.path.as_bytes())
        .map_err(|error| Failure::usage(error.to_string()))?;
    let limit = OpenFiles::raise();
    let umask = umask();
    block_on(async {
        let started = Instant::now();
        let (url, global) = target(&command.url, global)?;
        let repository = Arc::new(open(&url, &global).await?);
        let volume = match global.volume_is_given {
            true => global.volume.clone(),
            false => VOLUME.to_owned(),
        };
        refuse_name(&command, &volume, &repository).await?;
        let alone = Alone::begin(AloneParts {
            repository: repository.clone(),
            volume: volume.clone(),
            command: format!("bkfs put {}", command.path.to_string_lossy()),
            memory_bytes: Settings::default().memory_bytes,
            steal: command.steal,
            accept_loss: command.accept_loss,
        })
        .await
        .map_err(held)?;
        let put = put(&command, &place, &alone, umask, &limit, output).await;
        let put = match put {
            // The reason why nothing can be committed any more says more than the error that
            // follows from it.
            Err(failure) => Err(match alone.fenced().await {
                Some(refusal) => Failure::from(RootError::from(refusal)).hint(
                    "Another session took the volume over. Run this again, or with another \
                     --volume.",
                ),
                None => failure,
            }),
            made => made,
        };
        let finished = alone.finish().await;
        let (made, length) = put.map_err(|failure| Failure {
            message: format!("no snapshot was made: {}", failure.message),
            ..failure
        })?;
        // The snapshot is made, whatever the end of the session returns.
        if let Err(error) = finished {
            output.remark(format_args!("could not end the session: {error}"));
        }
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

/// Refuses a name that is taken before the stream is read.
async fn refuse_name(command: &Put, volume: &str, repository: &Repository) -> Result<(), Failure> {
    let Some(name) = &command.name else {
        return Ok(());
    };
    let list = repository.snapshots().await?;
    SnapshotReference::parse(name, repository.now())?;
    match list.named(volume, name) {
        Some(_) => Err(RootError::NameTaken { name: name.clone() }.into()),
        None => Ok(()),
    }
}

fn held(error: MountingError) -> Failure {
    let mut failure = Failure::from(error);
    if failure.code == Code::Held {
        let hint = "Give another --volume, wait, or give --steal to take it over (unsent writes \
                    of its holder then fail).";
        failure.hint = Some(hint.into());
    }
    failure
}

/// Does everything but the session: stores the stream, gives it its name, makes the snapshot.
async fn put(
    command: &Put,
    place: &VolumePath,
    alone: &Alone,
    umask: u32,
    limit: &OpenFiles,
    output: &Output,
) -> Result<(CommitOutcome, u64), Failure> {
    let volume = alone.volume();
    place.check(volume).await.map_err(failure)?;
    let mut input = Input::begin(command, limit)?;
    let new = new_file(place, &input.facts, umask);
    let received = input.receive(&new, alone, output).await?;
    let length = received.bytes;
    if let Err(failure) = input.conclude(command, length, output).await {
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
    keep(volume, place, &new, received, modified)
        .await
        .map_err(failure)?;
    let request = SnapshotRequest {
        name: command.name.clone(),
        tags: command.tags.clone(),
        ..SnapshotRequest::default()
    };
    Ok((volume.snapshot(request).await?, length))
}

impl Input {
    fn begin(command: &Put, limit: &OpenFiles) -> Result<Input, Failure> {
        let mut child = None;
        let source = if let Some(path) = &command.file {
            Source::open(path)
                .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?
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
        let facts = source.facts().map_err(|error| {
            Failure::new(format!("cannot read the attributes of the stream: {error}"))
        })?;
        Ok(Input {
            source,
            facts,
            child,
        })
    }

    async fn receive(
        &self,
        new: &NewInode,
        alone: &Alone,
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
            let mut blocks = self.source.try_clone()?.blocks()?;
            receive(alone.volume(), new, &mut blocks, &progress, signals()).await
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
            let status = tokio::select! {
                status = child.wait() => status
                    .map_err(|error| Failure::new(format!("{program}: {error}")))?,
                why = signals() => return Err(Failure::new(why)),
            };
            if !status.success() {
                let message = format!("{program} ended with {status}");
                return Err(Failure::new(message).tool(code_of(status)));
            }
        }
        let now = self.source.facts().ok().and_then(|facts| facts.file);
        let before = self.facts.file;
        if command.file.is_some() && (now != before || now.is_some_and(|now| now.length != length))
        {
            output.finding("the file changed while it was read; bkfs stored what it read");
        }
        Ok(())
    }
}

/// Returns when a signal asks for the end, so that neither half a file nor a held volume is left
/// behind.
async fn signals() -> &'static str {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let [interrupt, terminate, hangup] = kinds.map(|kind| async move {
        match signal(kind) {
            Ok(mut signal) => signal.recv().await,
            // A signal that cannot be waited for ends the process as it always does.
            Err(_) => std::future::pending().await,
        }
    });
    tokio::select! {
        _ = interrupt => "interrupted",
        _ = terminate => "ended by a signal",
        _ = hangup => "the terminal was closed",
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
