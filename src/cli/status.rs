//! `bkfs status MOUNTPOINT`

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::control::MountClient;
use crate::cli::hydrate::shown;
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output, bytes};
use crate::clock::{Clock, SystemClock};
use crate::units;

/// The time between two looks at what was uploaded. Bytes count once their pack is in the bucket, so
/// a shorter one would often see none.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

/// Files that are named in text. JSON names more.
const FILES_SHOWN: usize = 20;

/// Show the health of a mount
///
/// What was accepted and is not in the bucket yet is listed by where it is, with the rate at which it
/// is uploaded and the time that is left, if packs reached the bucket while this command looked. -v
/// adds the counters of the mount.
///
/// When written data can no longer be stored, the mount takes no more writes: every write, fsync,
/// close and snapshot fails until an operator has seen what was lost. This command shows the
/// losses, and --acknowledge accepts them.
#[derive(Debug, clap::Args)]
pub struct Status {
    /// The mount, or any directory in it
    mountpoint: PathBuf,
    /// Accept the losses: drop the list of lost files, and continue from the last commit without
    /// them
    #[arg(long)]
    acknowledge: bool,
}

/// Prints the health of a mount, or acknowledges its losses and prints them.
///
/// # Errors
/// The [`Failure`] that the mount answers with, or exit code 1 if there is no mount.
pub fn run(command: Status, global: &Global, output: &Output) -> Result<(), Failure> {
    let mount = MountClient::find(&command.mountpoint)?;
    if command.acknowledge {
        let hint = format!(
            "The losses stay listed. To unmount without the lost data: bkfs umount --discard {}",
            mount.mount_point().display()
        );
        let lost = mount
            .request(&json!({ "acknowledge": {} }))
            .map_err(|failure| failure.hint(hint))?;
        for line in spools(&lost) {
            output.warning(line);
        }
        return output.result(&lost, || acknowledged(&lost));
    }
    let status = mount.request(&json!({ "status": {} }))?;
    let rate = match output.is_json() || waiting_bytes(&status) == 0 {
        true => None,
        false => upload_rate(&mount, &status)?,
    };
    let now = SystemClock.now().seconds;
    output.result(&status, || text(&status, rate, now, global.verbose > 0))
}

fn waiting_bytes(status: &Value) -> u64 {
    status["waiting"]["bytes"].as_u64().unwrap_or(0)
}

/// Returns the bytes that a mount uploads per second, by looking twice; none if nothing moves.
fn upload_rate(mount: &MountClient, before: &Value) -> Result<Option<u64>, Failure> {
    let began = Instant::now();
    std::thread::sleep(BETWEEN_LOOKS);
    let after = mount.request(&json!({ "status": {} }))?;
    let sent = |status: &Value| status["metrics"]["bytes_uploaded"].as_u64().unwrap_or(0);
    let sent = sent(&after).saturating_sub(sent(before));
    let rate = (sent as f64 / began.elapsed().as_secs_f64()) as u64;
    Ok((rate > 0).then_some(rate))
}

fn acknowledged(lost: &Value) -> String {
    let generation = lost["generation"].as_u64().unwrap_or(0);
    match files(lost, "lost") {
        lines if lines.is_empty() => "nothing was lost".into(),
        lines => format!(
            "{}\nacknowledged: the mount continues from generation {generation}",
            lines.join("\n")
        ),
    }
}

/// Returns the files of one of the status's lists, a line each.
fn files(status: &Value, which: &str) -> Vec<String> {
    let list = status[format!("{which}_files")].as_array();
    let list = list.map(Vec::as_slice).unwrap_or_default();
    let beyond = status[format!("{which}_beyond")].as_u64().unwrap_or(0);
    let shown = list.iter().take(FILES_SHOWN).map(|file| {
        let path = file["path"].as_str().unwrap_or("?");
        match file["bytes"].as_u64().unwrap_or(0) {
            0 => format!("{which:<12} {path}"),
            count => format!("{which:<12} {path} ({} not stored)", bytes(count)),
        }
    });
    let mut lines: Vec<String> = shown.collect();
    let rest = list.len().saturating_sub(FILES_SHOWN) as u64 + beyond;
    if rest > 0 {
        lines.push(format!("{which:<12} … and {rest} more (--json names them)"));
    }
    lines
}

/// Returns what was found in spools when the volume was mounted.
fn spools(status: &Value) -> Vec<String> {
    let list = |key: &str| status[key].as_array().cloned().unwrap_or_default();
    let word = |entry: &Value, key: &str| entry[key].as_str().unwrap_or("?").to_owned();
    let recovered = list("recovered").into_iter().map(|made| {
        let (snapshot, volume) = (word(&made, "snapshot"), word(&made, "volume"));
        format!(
            "recovered    snapshot {snapshot} of volume {volume}: data that only this machine had \
             when another one took over"
        )
    });
    let stranded = list("stranded").into_iter().map(|left| {
        let count = bytes(left["bytes"].as_u64().unwrap_or(0));
        let (path, why) = (word(&left, "path"), word(&left, "why"));
        format!("stranded     {count} in {path}: {why}")
    });
    recovered.chain(stranded).collect()
}

/// Returns whether the store answers, and what is wrong with it.
fn store(store: &Value) -> Vec<String> {
    match store["answers"].as_bool() {
        Some(true) => return vec!["store        answers".to_owned()],
        Some(false) => {}
        // A daemon of an older version does not state it.
        None => return Vec::new(),
    }
    let word = |key: &str| store[key].as_str().unwrap_or("?");
    let count = |key: &str| store[key].as_u64().unwrap_or(0);
    let end = match count("fails_in_seconds") {
        0 => "waiting requests fail".to_owned(),
        left => format!("waiting requests fail in {left} s"),
    };
    vec![
        format!(
            "store        has not answered as needed since {} ({} s): {}: {}",
            word("since"),
            count("seconds"),
            word("cause"),
            word("error")
        ),
        format!(
            "waiting      {} are not in the bucket, {} requests are in flight; {end}",
            bytes(count("waiting_bytes")),
            count("waiting_requests")
        ),
    ]
}

/// Returns how much was accepted and is not in the bucket yet, and where that is.
fn waiting(status: &Value, rate: Option<u64>) -> String {
    let left = match (rate, waiting_bytes(status)) {
        (Some(rate), waiting) if waiting > 0 => {
            let left = units::duration(waiting.div_ceil(rate));
            format!("; {}/s, {left} left", bytes(rate))
        }
        _ => String::new(),
    };
    accepted(status) + &left
}

fn accepted(status: &Value) -> String {
    let told = &status["waiting"];
    let files = status["dirty_files"].as_u64().unwrap_or(0);
    let Some(all) = told["bytes"].as_u64() else {
        // A daemon of an older version counts what is in memory only.
        let dirty = status["dirty_bytes"].as_u64().unwrap_or(0);
        return format!("{} in {files} files", bytes(dirty));
    };
    let memory = match status["swap"]["used_bytes"].as_u64() {
        None | Some(0) => "in memory",
        Some(_) => "in memory and the swap file",
    };
    let places = [
        ("dirty_bytes", format!("{memory} ({files} files)")),
        ("in_flight_bytes", "on their way".to_owned()),
        ("spooled_bytes", "in the spool".to_owned()),
    ];
    let parts: Vec<String> = (places.iter())
        .filter_map(|(key, place)| Some((told[key].as_u64().filter(|count| *count > 0)?, place)))
        .map(|(count, place)| format!("{} {place}", bytes(count)))
        .collect();
    match parts.is_empty() {
        true => bytes(all),
        false => format!("{}: {}", bytes(all), parts.join(", ")),
    }
}

/// Returns how much of the swap file is taken.
fn swap(swap: &Value) -> Option<String> {
    let count = |key: &str| swap[key].as_u64();
    let (used, limit) = (count("used_bytes")?, count("limit_bytes")?);
    let (used, limit) = (bytes(used), bytes(limit));
    let failed = match swap["has_failed"].as_bool() {
        Some(true) => "; its disk has failed or does not answer: unmount the clone",
        _ => "",
    };
    Some(format!(
        "swap         {used} of {limit} in the swap file{failed}"
    ))
}

/// Returns how much of the bucket is verified, and what was found.
fn scrub(scrub: &Value) -> Vec<String> {
    let count = |key: &str| scrub[key].as_u64().unwrap_or(0);
    if scrub.is_null() {
        return Vec::new();
    }
    let last = match scrub["last_round"].as_str() {
        Some(time) => format!("last round ended {time}"),
        None => "no complete round yet".to_owned(),
    };
    let mut lines = vec![format!(
        "scrubbing    {} of {} verified, {} per second; {last}",
        bytes(count("round_bytes")),
        bytes(count("total_bytes")),
        bytes(count("rate")),
    )];
    let damaged = count("damaged") + count("last_round_damaged");
    if damaged > 0 || count("quarantined") > 0 {
        lines.push(format!(
            "damage       {damaged} packs or index objects found by this round and the last, {} \
             places in quarantine: bkfs check --read-data names the files",
            count("quarantined")
        ));
    }
    if let Some(error) = scrub["error"].as_str() {
        lines.push(format!("             scrubbing: {error}"));
    }
    lines
}

/// Returns what is pinned in the cache, and how far the task is that brings more.
fn hydration(told: &Value) -> Vec<String> {
    let count = |of: &Value, key: &str| of[key].as_u64().unwrap_or(0);
    let pins = told["pins"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut lines = Vec::new();
    for pin in pins {
        let places = pin["places"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let places: Vec<String> = places.iter().map(shown).collect();
        let lacks = match pin["complete"].as_bool() {
            Some(true) => "",
            _ => "; not all of it is there",
        };
        let stored = bytes(count(pin, "stored_bytes"));
        lines.push(format!(
            "pinned       {stored}: {}{lacks}",
            places.join(", ")
        ));
    }
    if !pins.is_empty() {
        lines.push(format!(
            "             {} of the {} of the cache are pinned",
            bytes(count(told, "pinned_bytes")),
            bytes(count(told, "cache_bytes")),
        ));
    }
    let task = &told["task"];
    let done = bytes(count(task, "found_bytes") + count(task, "fetched_bytes"));
    let total = bytes(count(task, "total_bytes"));
    lines.extend(match task["phase"].as_str() {
        Some("planning") => {
            Some("hydrating    reads metadata, to know how much there is".to_owned())
        }
        Some("fetching") => {
            let left = match task["seconds_left"].as_u64() {
                Some(left) => format!(", {} left", units::duration(left)),
                None => String::new(),
            };
            let rate = bytes(count(task, "bytes_per_second"));
            Some(format!("hydrating    {done} of {total}, {rate}/s{left}"))
        }
        Some("failed") => {
            let error = task["error"].as_str().unwrap_or("?");
            Some(format!("hydrating    ended at {done} of {total}: {error}"))
        }
        _ => None,
    });
    lines
}

/// Returns how far the replay of a trace is, and how many first reads it came before.
fn replay(told: &Value) -> Vec<String> {
    let count = |of: &Value, key: &str| of[key].as_u64().unwrap_or(0);
    let replay = &told["replay"];
    let name = replay["name"].as_str().unwrap_or("?");
    let done = bytes(count(replay, "done_bytes"));
    let total = bytes(count(replay, "total_bytes"));
    let fetched = bytes(count(replay, "fetched_bytes"));
    let first = match replay["phase"].as_str() {
        Some("reading") => "trace        is being read".to_owned(),
        Some("fetching") => {
            let left = match replay["seconds_left"].as_u64() {
                Some(left) => format!(", {} left", units::duration(left)),
                None => String::new(),
            };
            let rate = bytes(count(replay, "bytes_per_second"));
            format!("trace        {name}: {done} of {total} of files, {rate}/s fetched{left}")
        }
        Some("done") => format!("trace        {name}: {total} of files, {fetched} fetched"),
        Some("failed") => {
            let error = replay["error"].as_str().unwrap_or("?");
            format!("trace        ended at {done} of {total} of files: {error}")
        }
        _ => return Vec::new(),
    };
    let mut lines = vec![first];
    let touches = &told["touches"];
    let reads = count(touches, "first_touches");
    if reads > 0 {
        let hits = count(touches, "hits");
        lines.push(format!(
            "             {hits} of {reads} first reads came after it"
        ));
    }
    lines
}

/// Returns the command that comes next if something is wrong; nothing if all is well.
fn next(status: &Value) -> Option<String> {
    let place = status["mount_point"].as_str().unwrap_or("MOUNTPOINT");
    if status["failure"].is_string() {
        return Some(format!(
            "next         mend the cause, then accept the loss and go on from the last commit: \
             bkfs status --acknowledge {place}"
        ));
    }
    let store = &status["store"];
    (store["cause"] == "full").then(|| {
        "next         free room in the bucket, or raise its quota: the mount then goes on by itself"
            .to_owned()
    })
}

/// Where the newest snapshot stands: below the volume.
const LAST_SNAPSHOT_LINE: usize = 3;

/// Returns the newest snapshot and its age; `now` is in seconds since 1970.
fn last_snapshot(status: &Value, now: i64) -> Option<String> {
    let last = status.get("last_snapshot")?;
    let name = match last["name"].as_str() {
        Some(name) => name,
        None if last.is_null() => return Some("none yet".to_owned()),
        // The store does not say.
        None => return None,
    };
    let time: jiff::Timestamp = last["time"].as_str()?.parse().ok()?;
    let age = units::age(now.saturating_sub(time.as_second()).max(0) as u64);
    let drill = &last["drill"];
    let drilled = match (drill["time"].as_str(), drill["ok"].as_bool()) {
        (Some(time), Some(true)) => format!(", drilled {time}: ok"),
        (Some(time), Some(false)) => format!(", drilled {time}: FAILED"),
        _ => String::new(),
    };
    Some(format!("{name}, {age}{drilled}"))
}

/// Returns what the command shows. `rate` is the bytes that are uploaded per second, `now` in
/// seconds since 1970.
fn text(status: &Value, rate: Option<u64>, now: i64, has_counters: bool) -> String {
    let word = |key: &str| status[key].as_str().unwrap_or("-").to_owned();
    let count = |key: &str| status[key].as_u64().unwrap_or(0);
    let health = match (status["failure"].as_str(), status["health"].as_str()) {
        (Some(failure), _) => format!("FAILED: {failure}"),
        (None, Some(health)) => health.to_owned(),
        // A daemon of an older version does not state it.
        (None, None) => "healthy".to_owned(),
    };
    let mut lines = vec![
        format!("health       {health}"),
        format!("repository   {} ({})", word("repository"), word("mode")),
        format!(
            "volume       {}, generation {}",
            word("volume"),
            count("generation")
        ),
        format!(
            "contents     {} in {} inodes",
            bytes(count("bytes")),
            count("inodes")
        ),
        format!("not stored   {}", waiting(status, rate)),
        format!("last commit  {}", word("last_commit")),
        format!(
            "daemon       process {}, since {}",
            count("pid"),
            word("since")
        ),
    ];
    if let Some(snapshot) = last_snapshot(status, now) {
        lines.insert(LAST_SNAPSHOT_LINE, format!("snapshot     {snapshot}"));
    }
    lines.extend(next(status));
    if count("losses") > 0 {
        lines.insert(
            1,
            format!("losses       {} since it was mounted", count("losses")),
        );
    }
    // The store comes right below the health.
    lines.splice(1..1, store(&status["store"]));
    lines.extend(scrub(&status["scrub"]));
    lines.extend(hydration(&status["hydration"]));
    lines.extend(swap(&status["swap"]));
    lines.extend(replay(&status["trace"]));
    lines.extend(spools(status));
    lines.extend(files(status, "lost"));
    lines.extend(files(status, "pending"));
    if let Some(metrics) = status["metrics"].as_object().filter(|_| has_counters) {
        for (name, value) in metrics {
            let value = value.as_u64().unwrap_or(0);
            let shown = if name.contains("bytes") {
                bytes(value)
            } else {
                value.to_string()
            };
            lines.push(format!("  {:<28} {shown}", name.replace('_', " ")));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_waits_for_the_bucket_is_told() {
        let status = |dirty: u64, in_flight: u64, spooled: u64| {
            json!({
                "dirty_files": 2,
                "waiting": {
                    "bytes": dirty + in_flight + spooled,
                    "dirty_bytes": dirty,
                    "in_flight_bytes": in_flight,
                    "spooled_bytes": spooled,
                },
            })
        };
        assert_eq!(waiting(&status(0, 0, 0), None), "0 B");
        assert_eq!(
            waiting(&status(0, 60 << 20, 0), None),
            "60.0 MiB: 60.0 MiB on their way"
        );
        assert_eq!(
            waiting(&status(1 << 20, 2 << 20, 3 << 20), None),
            "6.00 MiB: 1.00 MiB in memory (2 files), 2.00 MiB on their way, 3.00 MiB in the spool"
        );
        assert_eq!(
            waiting(&status(0, 60 << 20, 0), Some(2 << 20)),
            "60.0 MiB: 60.0 MiB on their way; 2.00 MiB/s, 30 seconds left"
        );
        assert_eq!(waiting(&status(0, 0, 0), Some(1)), "0 B");
        let older = json!({ "dirty_bytes": 7, "dirty_files": 1 });
        assert_eq!(waiting(&older, None), "7 B in 1 files");
    }

    #[test]
    fn the_newest_snapshot_has_an_age() {
        let told = |last: Value| last_snapshot(&json!({ "last_snapshot": last }), 1_000_000_000);
        let last = json!({ "name": "monday", "time": "2001-09-08T23:46:40Z" });
        assert_eq!(told(last).as_deref(), Some("monday, 2 hours ago"));
        // A clock that is behind makes no negative age.
        let last = json!({ "name": "monday", "time": "2026-01-01T00:00:00Z" });
        assert_eq!(told(last).as_deref(), Some("monday, 0 seconds ago"));
        assert_eq!(told(Value::Null).as_deref(), Some("none yet"));
        assert_eq!(told(json!({})), None);
        assert_eq!(last_snapshot(&json!({}), 0), None);
    }

    #[test]
    fn what_is_pinned_and_how_far_the_rest_is() {
        assert_eq!(hydration(&Value::Null), [""; 0]);
        let place = json!({ "volume": "main", "snapshot": "mon", "path": "/db" });
        let told = json!({
            "pins": [{ "places": [place], "complete": false, "stored_bytes": 3 << 20 }],
            "pinned_bytes": 4 << 20,
            "cache_bytes": 1 << 30,
            "task": {
                "phase": "fetching", "found_bytes": 0, "fetched_bytes": 1 << 20,
                "total_bytes": 3 << 20, "bytes_per_second": 1 << 20, "seconds_left": 2,
            },
        });
        assert_eq!(
            hydration(&told),
            [
                "pinned       3.00 MiB: /db of snapshot mon of main; not all of it is there",
                "             4.00 MiB of the 1.00 GiB of the cache are pinned",
                "hydrating    1.00 MiB of 3.00 MiB, 1.00 MiB/s, 2 seconds left",
            ]
        );
    }

    #[test]
    fn how_far_a_replay_is_and_what_it_served() {
        assert_eq!(replay(&json!({ "replay": null, "touches": null })), [""; 0]);
        let told = json!({
            "replay": {
                "name": "warm", "phase": "fetching", "done_bytes": 1 << 20,
                "total_bytes": 3 << 20, "fetched_bytes": 2 << 20,
                "bytes_per_second": 1 << 20, "seconds_left": 2,
            },
            "touches": { "first_touches": 40, "hits": 38 },
        });
        let lines = replay(&told);
        let first = "trace        warm: 1.00 MiB of 3.00 MiB of files, 1.00 MiB/s fetched, \
                     2 seconds left";
        assert_eq!(
            lines,
            [first, "             38 of 40 first reads came after it"]
        );
        let failed = json!({ "replay": { "phase": "failed", "error": "gone" } });
        assert_eq!(
            replay(&failed),
            ["trace        ended at 0 B of 0 B of files: gone"]
        );
    }

    #[test]
    fn counters_are_shown_on_demand() {
        let status = json!({ "volume": "main", "metrics": { "get_requests": 7 } });
        assert!(!text(&status, None, 0, false).contains("get requests"));
        assert!(text(&status, None, 0, true).contains("get requests"));
    }
}
