//! `bkfs hydrate MOUNTPOINT [PATH…]`

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cli::control::MountClient;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, bytes};
use crate::cli::patience::Interrupt;
use crate::cli::progress::{Position, Progress};
use crate::cli::runtime::block_on;
use crate::units;

/// The time between two looks at how far the mount is.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Bring a tree of a mount into the local cache, and keep it there
///
/// Reads everything below MOUNTPOINT, or below each PATH, from the bucket into the cache of this
/// machine, in the background: reads of programs come first. When it is done, no read of that tree
/// needs the store, neither of contents nor of names. The tree is pinned: the cache does not evict
/// it, also after the next mount, until --unpin gives it up.
///
/// Before the first byte is fetched, it is known exactly how many bytes there are. If they do not
/// fit into the cache (-o cache_size), nothing is fetched.
///
/// Ctrl-C ends only the wait: the mount goes on, and bkfs status shows how far it is. What is in
/// the cache is not fetched again if the command is repeated, also after a crash.
///
/// Of a volume that is written, the state of its last commit is pinned. What is written later is not
/// a part of it.
#[derive(Debug, clap::Args)]
pub struct Hydrate {
    /// The mount, or a directory in it such as MOUNTPOINT/.snapshots/NAME
    mountpoint: PathBuf,
    /// Directories or files below MOUNTPOINT (default: all of it)
    paths: Vec<PathBuf>,
    /// Give up what is pinned there: the cache may evict it
    #[arg(long, conflicts_with_all = ["check", "trace"])]
    unpin: bool,
    /// Prove that all of what is pinned there is in the cache: read it while the store must not be
    /// asked
    #[arg(long, conflicts_with = "trace")]
    check: bool,
    /// Fetch only the places that this trace tells, by rank, and pin nothing (bkfs trace)
    #[arg(long, value_name = "NAME", conflicts_with = "paths")]
    trace: Option<String>,
}

/// Brings trees into the cache and waits for the end, gives them up, or checks them.
///
/// # Errors
/// The [`Failure`] that the mount answers with, or exit code 1 if there is no mount. Exit code 14
/// after Ctrl-C: the mount goes on. With `--check`, exit code 13 if something is not in the cache.
pub fn run(command: Hydrate, _: &Global, output: &Output) -> Result<(), Failure> {
    let mount = MountClient::find(&command.mountpoint)?;
    if let Some(name) = &command.trace {
        return replay(&mount, name, output);
    }
    let paths = paths_of(&mount, &command)?;
    let paths = json!({ "paths": paths });
    let interrupt = Interrupt::hear()?;
    if command.unpin {
        let answer = ask(&mount, &json!({ "unpin": paths }), &interrupt)?;
        return output.result(&answer, || unpinned(&answer));
    }
    if command.check {
        let answer = ask(&mount, &json!({ "proof": paths }), &interrupt)?;
        return checked(&mount, &answer, output);
    }
    let begun = ask(&mount, &json!({ "hydrate": paths }), &interrupt)?;
    let number = begun["task"].as_u64().unwrap_or_default();
    let last = wait(&mount, ("hydration", number), &interrupt, output)?;
    if matches!(last["phase"].as_str(), Some("planning" | "fetching")) {
        return Err(interrupted(&mount, &last));
    }
    output.result(&last, || hydrated(&last))
}

/// Lets the mount replay a trace, and waits for the end.
fn replay(mount: &MountClient, name: &str, output: &Output) -> Result<(), Failure> {
    let interrupt = Interrupt::hear()?;
    let begun = ask(mount, &json!({ "replay": name }), &interrupt)?;
    let number = begun["task"].as_u64().unwrap_or_default();
    let last = wait(mount, ("replayed", number), &interrupt, output)?;
    if last["phase"] != "done" {
        let done = bytes(count(&last, "done_bytes"));
        let message = format!("interrupted: the mount goes on; {done} are done with");
        return Err(Failure::new(message).code(Code::Unknown));
    }
    if last["full"] == true {
        output.warning("a trace fills at most half of the cache: the rest was not fetched");
    }
    output.result(&last, || {
        format!(
            "{} of files that trace {name} tells: {} fetched, {} found in the cache, {}",
            bytes(count(&last, "done_bytes")),
            bytes(count(&last, "fetched_bytes")),
            bytes(count(&last, "found_bytes")),
            units::duration(count(&last, "seconds")),
        )
    })
}

/// Returns the paths from the mount point on, in base64.
fn paths_of(mount: &MountClient, command: &Hydrate) -> Result<Vec<String>, Failure> {
    let failed = |path: &Path, what: &str| Failure::new(format!("{}: {what}", path.display()));
    let place = std::path::absolute(&command.mountpoint)
        .map_err(|error| failed(&command.mountpoint, &error.to_string()))?;
    let paths = match command.paths.as_slice() {
        [] => vec![place],
        paths => paths.iter().map(|path| place.join(path)).collect(),
    };
    let encoded = paths.into_iter().map(|path| {
        let below = path.strip_prefix(mount.mount_point());
        let below = below.map_err(|_| {
            failed(&path, "it does not lie in the mount").hint(format!(
                "A PATH lies below {}.",
                mount.mount_point().display()
            ))
        })?;
        match below.components().any(|part| part == Component::ParentDir) {
            true => Err(failed(&path, "a PATH has no '..'")),
            false => Ok(STANDARD.encode(below.as_os_str().as_bytes())),
        }
    });
    encoded.collect()
}

/// Sends a request, and asks for its answer until there is one.
fn ask(mount: &MountClient, request: &Value, interrupt: &Interrupt) -> Result<Value, Failure> {
    let begun = mount.request(&json!({ "begin": request }))?;
    loop {
        let answer = mount.request(&json!({ "job": begun["job"] }))?;
        if answer.get("pending").is_none() {
            return Ok(answer);
        }
        if interrupt.is_heard() {
            let message = "interrupted: the mount goes on with the request";
            return Err(Failure::new(message).code(Code::Unknown));
        }
    }
}

/// Shows how far the task is until it has ended or Ctrl-C is heard. Returns what was told last.
fn wait(
    mount: &MountClient,
    (word, number): (&'static str, u64),
    interrupt: &Interrupt,
    output: &Output,
) -> Result<Value, Failure> {
    let seen = Arc::new(Mutex::new(json!({})));
    let (client, interrupt) = (mount.clone(), interrupt.clone());
    let (noted, shown) = (seen.clone(), seen.clone());
    block_on(async {
        let bar = Progress::follow(output, move || position(&shown.lock()));
        let looking = tokio::task::spawn_blocking(move || {
            loop {
                let told = client.request(&json!({ word: number }))?;
                let is_over = told["phase"] == "done" || interrupt.is_heard();
                *noted.lock() = told;
                if is_over {
                    return Ok(());
                }
                std::thread::sleep(BETWEEN_LOOKS);
            }
        });
        let looked = looking.await;
        bar.finish().await;
        match looked {
            Ok(looked) => looked,
            Err(error) => Err(Failure::new(format!("the wait broke off: {error}"))),
        }
    })?;
    let last = seen.lock().clone();
    Ok(last)
}

fn count(told: &Value, key: &str) -> u64 {
    told[key].as_u64().unwrap_or(0)
}

fn position(told: &Value) -> Position {
    let message = match told["phase"].as_str() {
        Some("planning" | "reading") | None => "reading metadata".to_owned(),
        _ => format!("{} were in the cache", bytes(count(told, "found_bytes"))),
    };
    Position {
        bytes: count(told, "found_bytes") + count(told, "fetched_bytes"),
        total_bytes: told["total_bytes"].as_u64(),
        message,
    }
}

fn interrupted(mount: &MountClient, told: &Value) -> Failure {
    let done = count(told, "found_bytes") + count(told, "fetched_bytes");
    let far = match told["total_bytes"].as_u64() {
        Some(total) => format!("{} of {}", bytes(done), bytes(total)),
        None => "the metadata is being read, and nothing".to_owned(),
    };
    let place = mount.mount_point().display();
    Failure::new(format!(
        "interrupted: the mount goes on; {far} is in the cache"
    ))
    .code(Code::Unknown)
    .hint(format!(
        "bkfs status {place} shows how far it is; bkfs hydrate --unpin {place} ends it."
    ))
}

fn hydrated(told: &Value) -> String {
    format!(
        "all of {} is in the cache: {} fetched, {} found there, {}",
        bytes(count(told, "total_bytes")),
        bytes(count(told, "fetched_bytes")),
        bytes(count(told, "found_bytes")),
        units::duration(count(told, "seconds")),
    )
}

fn unpinned(answer: &Value) -> String {
    let places = answer["unpinned"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let lines = places
        .iter()
        .map(|place| format!("unpinned {}", shown(place)));
    let mut lines: Vec<String> = lines.collect();
    lines.push(format!(
        "{} of disk are free",
        bytes(count(answer, "freed_bytes"))
    ));
    lines.join("\n")
}

/// Returns a place of a mount in words.
pub fn shown(place: &Value) -> String {
    let path = place["path"].as_str().unwrap_or("?");
    let volume = place["volume"].as_str().unwrap_or("?");
    match place["snapshot"].as_str() {
        Some(snapshot) => format!("{path} of snapshot {snapshot} of {volume}"),
        None => format!("{path} of {volume}"),
    }
}

/// Says whether everything was read without the store.
fn checked(mount: &MountClient, answer: &Value, output: &Output) -> Result<(), Failure> {
    let unread = answer["unread"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if answer["holds"] == true {
        return output.result(answer, || {
            let places = answer["places"].as_array();
            let places = places.into_iter().flatten().map(shown);
            format!(
                "all of {} is in the cache: {} in {} inodes were read without the store",
                places.collect::<Vec<_>>().join(", "),
                bytes(count(answer, "bytes")),
                count(answer, "inodes"),
            )
        });
    }
    for file in unread {
        let word = |key: &str| file[key].as_str().unwrap_or("?");
        output.warning(format!("{}: {}", word("path"), word("why")));
    }
    let total = unread.len() as u64 + count(answer, "unread_beyond");
    let message = format!(
        "{total} files or directories are not in the cache as a whole, and {} requests to the \
         store were refused",
        count(answer, "refused_requests")
    );
    let hint = format!(
        "bkfs hydrate {} brings what is missing.",
        mount.mount_point().display()
    );
    Err(Failure::new(message).code(Code::Damaged).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_begins_when_the_total_is_known() {
        assert_eq!(position(&json!({})).total_bytes, None);
        assert_eq!(
            position(&json!({ "phase": "planning" })).message,
            "reading metadata"
        );
        let told = json!({
            "phase": "fetching", "total_bytes": 30, "found_bytes": 10, "fetched_bytes": 5,
        });
        let position = position(&told);
        assert_eq!((position.bytes, position.total_bytes), (15, Some(30)));
    }

    #[test]
    fn a_place_is_told_in_words() {
        let place = json!({ "volume": "main", "snapshot": null, "path": "/" });
        assert_eq!(shown(&place), "/ of main");
        let place = json!({ "volume": "main", "snapshot": "mon", "path": "/db" });
        assert_eq!(shown(&place), "/db of snapshot mon of main");
    }
}
