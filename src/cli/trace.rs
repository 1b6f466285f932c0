//! `bkfs trace record MOUNTPOINT NAME`, `bkfs trace list|show|remove URL …`

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::access::open;
use crate::cli::control::MountClient;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, bytes, name_text};
use crate::cli::patience::{self, Interrupt, Waited};
use crate::cli::runtime::block_on;
use crate::cli::snapshots::columns;
use crate::cli::target::target;
use crate::cli::tool::run_tool;
use crate::json_name::with_name;
use crate::mounting::control::time_text;
use crate::mounting::trace_store::{TraceStoreError, remove};
use crate::repository::Repository;
use crate::trace::format::{PAGE_BYTES, Trace};
use crate::trace::stored::{Stored, StoredError, check_trace_name, load};
use crate::units::{LetterM, stretch};

/// The time between two looks at what was touched.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Record and manage traces: which places of a clone were read first
#[derive(Debug, clap::Subcommand)]
pub enum TraceCommand {
    /// Store which places of a clone were read first, in which order
    Record(Record),
    /// List the traces of a repository
    List(List),
    /// Show the ranges of a trace, in their order
    Show(Show),
    /// Remove a trace
    Remove(Remove),
}

/// `bkfs trace record MOUNTPOINT NAME`
///
/// A clone (bkfs mount -o clone=SNAPSHOT) notes from the mount on which places of files are read
/// first. This command stores that as a trace of the snapshot's volume: at once, or when COMMAND has
/// succeeded, or after the time that an option says. Later clones of the volume fetch these places
/// before they are asked for. An older trace of the name is replaced.
///
/// If COMMAND fails, its exit code is that of this command, and no trace is stored. If COMMAND
/// succeeds and the trace is not stored, the exit code is 125.
#[derive(Debug, clap::Args)]
pub struct Record {
    /// The mount, or any directory in it
    mountpoint: PathBuf,
    /// The name of the trace
    name: String,
    /// Wait until for this time no place was read for the first time (2s, 1m)
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "for")]
    until_quiet: Option<Duration>,
    /// Wait for this time (60s, 5m)
    #[arg(long, value_name = "TIME", value_parser = time)]
    r#for: Option<Duration>,
    /// A command, after --, that ends when the program on the clone is ready
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// `bkfs trace list URL`
///
/// With --volume, only the traces for snapshots of that volume are listed.
#[derive(Debug, clap::Args)]
pub struct List {
    /// The repository, or a mount of one
    url: String,
}

/// `bkfs trace show URL NAME`
///
/// --volume names the volume of the snapshots that the trace is for.
#[derive(Debug, clap::Args)]
pub struct Show {
    /// The repository, or a mount of one
    url: String,
    /// The name of the trace
    name: String,
}

/// `bkfs trace remove URL NAME`
///
/// --volume names the volume of the snapshots that the trace is for.
#[derive(Debug, clap::Args)]
pub struct Remove {
    /// The repository, or a mount of one
    url: String,
    /// The name of the trace
    name: String,
}

fn time(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.or_else(|| stretch(text, LetterM::Minutes));
    let time = seconds.filter(|seconds| *seconds > 0);
    let time = time.map(Duration::from_secs);
    time.ok_or_else(|| "expected a time such as 2s, 90s or 5m".to_owned())
}

/// Records, lists, shows or removes traces. Returns the exit code of the command of `record`, else
/// 0.
///
/// # Errors
/// The [`Failure`] of the mount or the repository; 1 if there is no such trace, 11 if another
/// session writes to the volume of traces, 13 if a trace is damaged, 125 if the command succeeded
/// and its trace was not stored.
pub fn run(command: TraceCommand, global: &Global, output: &Output) -> Result<i32, Failure> {
    match command {
        TraceCommand::Record(command) => return record(&command, output),
        TraceCommand::List(command) => block_on(list(&command, global, output))?,
        TraceCommand::Show(command) => block_on(show(&command, global, output))?,
        TraceCommand::Remove(command) => block_on(take_out(&command, global, output))?,
    }
    Ok(0)
}

impl From<StoredError> for Failure {
    fn from(error: StoredError) -> Self {
        match error {
            StoredError::Root(error) => error.into(),
            StoredError::Volume(error) => error.into(),
            error @ StoredError::NoTrace { .. } => {
                Failure::new(error.to_string()).code(Code::Damaged)
            }
            error @ StoredError::Absent { .. } => {
                Failure::new(error.to_string()).hint("bkfs trace list lists the traces.")
            }
            error @ StoredError::Name(_) => Failure::usage(error.to_string()),
        }
    }
}

impl From<TraceStoreError> for Failure {
    fn from(error: TraceStoreError) -> Self {
        match error {
            TraceStoreError::Stored(error) => error.into(),
            TraceStoreError::Session(error) => error.into(),
            TraceStoreError::Stream(error) => Failure::new(error.to_string()),
        }
    }
}

fn record(command: &Record, output: &Output) -> Result<i32, Failure> {
    check_trace_name(&command.name)?;
    let mount = MountClient::find(&command.mountpoint)?;
    let ours = |failure: Failure| match command.command.is_empty() {
        true => failure,
        false => failure.code(Code::RunFailed),
    };
    // A mount that records nothing is refused before the command starts.
    mount.request(&json!({ "touches": {} })).map_err(ours)?;
    if let Some(program) = command.command.first() {
        let status = block_on(run_tool(&command.command)).map_err(ours)?;
        if status != 0 {
            let tool = program.to_string_lossy();
            output.finding(format_args!(
                "{tool} ended with {status}: no trace was stored"
            ));
            return Ok(status);
        }
    }
    stored(command, &mount, output).map_err(ours)?;
    Ok(0)
}

/// Waits as the options say, and lets the mount store the trace.
fn stored(command: &Record, mount: &MountClient, output: &Output) -> Result<(), Failure> {
    let interrupt = Interrupt::hear()?;
    let broken_off = || Failure::new("interrupted: no trace was stored");
    if !wait(command, mount, &interrupt)? {
        return Err(broken_off());
    }
    let request = json!({ "record": command.name });
    let told = match patience::request(mount, &request, &interrupt, output)? {
        Waited::Answer(told) => told,
        Waited::Interrupted { .. } => {
            let message = "interrupted: the mount goes on to store the trace";
            return Err(Failure::new(message).code(Code::Unknown));
        }
    };
    if told["full"] == true {
        output.warning("the record was full: places that were read later are not in the trace");
    }
    if told["whole"] == false {
        output.warning("the tree has too many names: files whose names come late are left out");
    }
    if !command.command.is_empty() && !output.is_json() {
        // Standard output belongs to the command.
        output.finding(recorded(&told));
        return Ok(());
    }
    output.result(&told, || recorded(&told))
}

fn recorded(told: &Value) -> String {
    format!(
        "trace {} of volume {}: {} in {} ranges of {} files",
        told["name"].as_str().unwrap_or_default(),
        told["volume"].as_str().unwrap_or_default(),
        bytes(told["bytes"].as_u64().unwrap_or_default()),
        told["ranges"],
        told["files"],
    )
}

/// Waits. Returns false after Ctrl-C.
fn wait(command: &Record, mount: &MountClient, interrupt: &Interrupt) -> Result<bool, Failure> {
    let begun = Instant::now();
    loop {
        let is_over = match (command.r#for, command.until_quiet) {
            (Some(time), _) => begun.elapsed() >= time,
            (None, Some(time)) => {
                let told = mount.request(&json!({ "touches": {} }))?;
                let quiet = Duration::from_millis(told["quiet_ms"].as_u64().unwrap_or_default());
                quiet >= time && told["ranges"] != 0
            }
            (None, None) => true,
        };
        if is_over || interrupt.is_heard() {
            return Ok(is_over);
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

async fn list(command: &List, global: &Global, output: &Output) -> Result<(), Failure> {
    let volume = global.volume_is_given.then(|| global.volume.clone());
    let (url, global) = target(&command.url, global)?;
    let repository = Arc::new(open(&url, &global).await?);
    let listed = match Stored::open(&repository).await? {
        Some(stored) => stored.list(volume.as_deref()).await?,
        None => Vec::new(),
    };
    if output.is_json() {
        for trace in &listed {
            let row = json!({
                "name": trace.name,
                "volume": trace.volume,
                "time": time_text(trace.made),
                "bytes": trace.bytes,
            });
            output.result(&row, String::new)?;
        }
        return Ok(());
    }
    if listed.is_empty() {
        output.remark("no traces");
        return Ok(());
    }
    let mut table = vec![["NAME", "VOLUME", "TIME", "SIZE"].map(str::to_owned)];
    table.extend(listed.iter().map(|trace| {
        [
            name_text(trace.name.as_bytes()),
            name_text(trace.volume.as_bytes()),
            time_text(trace.made),
            bytes(trace.bytes),
        ]
    }));
    output.result(&(), || columns(&table, &[3]))
}

async fn show(command: &Show, global: &Global, output: &Output) -> Result<(), Failure> {
    let (repository, volume) = repository(&command.url, global).await?;
    let trace = load(&repository, &volume, &command.name).await?;
    for (rank, touch) in trace.touches.iter().enumerate() {
        let path = path_of(&trace, touch.file);
        let (offset, length) = (touch.page * PAGE_BYTES, touch.pages * PAGE_BYTES);
        let row = json!({ "rank": rank, "offset": offset, "bytes": length });
        output.result(&with_name(row, "path", path), || {
            format!("{offset:>16} {:>10} {}", bytes(length), name_text(path))
        })?;
    }
    Ok(())
}

fn path_of(trace: &Trace, file: u32) -> &[u8] {
    let path = trace.paths.get(file as usize);
    path.map(Vec::as_slice).unwrap_or_default()
}

async fn take_out(command: &Remove, global: &Global, output: &Output) -> Result<(), Failure> {
    let (repository, volume) = repository(&command.url, global).await?;
    let name = (volume.as_str(), command.name.as_str());
    // What is absent costs no session.
    match Stored::open(&repository).await? {
        Some(_) => remove(&repository, name, "bkfs trace remove").await?,
        None => drop(load(&repository, &volume, &command.name).await?),
    }
    let told = json!({ "name": command.name, "volume": volume });
    output.result(&told, || {
        let name = name_text(command.name.as_bytes());
        format!("trace {name} of volume {volume} was removed")
    })
}

/// Opens the repository. Returns it with the volume that is meant: that of --volume, for a mount
/// the one whose snapshots its traces are for.
async fn repository(url: &str, global: &Global) -> Result<(Arc<Repository>, String), Failure> {
    let is_given = global.volume_is_given;
    let of_mount = match MountClient::find(Path::new(url)) {
        Ok(mount) if !is_given && Path::new(url).is_dir() => {
            let status = mount.status()?;
            status["trace"]["volume"].as_str().map(str::to_owned)
        }
        _ => None,
    };
    let (url, global) = target(url, global)?;
    let repository = Arc::new(open(&url, &global).await?);
    Ok((repository, of_mount.unwrap_or(global.volume)))
}
