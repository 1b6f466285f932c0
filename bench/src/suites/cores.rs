//! What a `bkfs put` of a file costs by kind of thread, on one core and on more.
//!
//! Owns: the part that only one thread can do, and what many cores would store by Amdahl's law
//! (G. M. Amdahl, "Validity of the single processor approach to achieving large scale computing
//! capabilities", 1967).

use std::path::Path;

use super::stream::same_stream;
use crate::Outcome;
use crate::context::Context;
use crate::data::{self, Texture};
use crate::disk::{remove, text};
use crate::measure::{self, Run, median, verified};
use crate::targets::cores::{rate, serial_part};
use crate::threads::{self, Times};

const SUITE: &str = "cores";

/// The thread that reads the file. There is one, whatever the number of cores.
const READING: &str = "bkfs-read";

/// The thread that opens the repository and derives the key, which takes as long for an empty file,
/// and then hands blocks on. There is one as well.
const MAIN: &str = "bkfs";

/// Stores files of both kinds with each number of cores.
pub(super) fn run(context: &mut Context) -> Outcome<()> {
    let length = context.size.choose(24 << 20, 512 << 20, 4 << 30);
    let allowed = threads::allowed_cores()?;
    let opening_s = opening_s(context, &allowed[..1])?;
    for (name, texture) in [("noise", Texture::Noise), ("pages", Texture::Pages)] {
        let source = context.work.join(format!("cores-{name}"));
        data::stream(&source, texture, length, 11)?;
        for count in [1, 2, 4] {
            let Some(cores) = allowed.get(..count) else {
                context.absent(&format!("{count} cores"), "this machine has fewer");
                continue;
            };
            let mut seen = Vec::new();
            for _ in 0..context.repeat {
                seen.push(put(context, name, &source, cores)?);
            }
            note(context, name, (length, opening_s), count, &seen);
        }
        remove(&source)?;
    }
    Ok(())
}

/// Returns what the main thread takes for an empty file, in processor seconds.
fn opening_s(context: &mut Context, cores: &[usize]) -> Outcome<f64> {
    let source = context.work.join("cores-empty");
    std::fs::File::create(&source)?;
    let mut seen = Vec::new();
    for _ in 0..context.repeat {
        let (_, times) = stored(context, &source, cores)?;
        seen.extend(times.get(MAIN));
    }
    remove(&source)?;
    median(seen).ok_or_else(|| "a put has no main thread".into())
}

/// Stores the file. Returns the times by kind of thread.
fn put(context: &mut Context, name: &str, source: &Path, cores: &[usize]) -> Outcome<Times> {
    let (run, times) = stored(context, source, cores)?;
    context.note(SUITE, &step(name, cores.len()), "bkfs put", verified(run));
    Ok(times)
}

/// Stores the file, cold, into a bucket in memory, and compares what is there.
fn stored(context: &Context, source: &Path, cores: &[usize]) -> Outcome<(Run, Times)> {
    let memory = tempfile::Builder::new()
        .prefix("bkfs-bench.")
        .tempdir_in("/dev/shm")?;
    let url = text(memory.path()).to_owned();
    let program = context.program.clone();
    program.init(&url)?;
    measure::drop_caches()?;
    let cores_list = cores.iter().map(usize::to_string).collect::<Vec<_>>();
    let line = format!(
        "exec taskset -c {} \"$BKFS\" put {url} stream {}",
        cores_list.join(","),
        text(source)
    );
    let (mut run, times) = threads::command(&mut program.shell(&line))?;
    run.stored_bytes = Some(measure::stored_bytes(memory.path()));
    same_stream(context, &url, source)?;
    Ok((run, times))
}

fn step(name: &str, cores: usize) -> String {
    let cores = match cores {
        1 => "one core".to_owned(),
        more => format!("{more} cores"),
    };
    format!("{name}, {cores}")
}

/// Notes the medians by kind of thread and, for one core, what follows from them.
fn note(
    context: &mut Context,
    name: &str,
    (length, opening_s): (u64, f64),
    cores: usize,
    seen: &[Times],
) {
    let of = |belongs: &dyn Fn(&str) -> bool| {
        let sums = seen.iter().map(|times| {
            let kinds = times.iter().filter(|(kind, _)| belongs(kind));
            kinds.map(|(_, seconds)| seconds).sum()
        });
        median(sums.collect()).unwrap_or_default()
    };
    let mut figures = Vec::new();
    let kinds: std::collections::BTreeSet<&String> = seen.iter().flat_map(Times::keys).collect();
    for kind in kinds {
        let what = format!("{SUITE}: {}, processor s of {kind}", step(name, cores));
        figures.push((what, of(&|other| other == kind)));
    }
    if cores == 1 {
        let main = (of(&|kind| kind == MAIN) - opening_s).max(0.0);
        let alone = of(&|kind| kind == READING) + main;
        let all = of(&|kind| kind != MAIN) + main;
        figures.push((serial_part(name), alone / all));
        let gib = length as f64 / f64::from(1 << 30);
        for many in [16, 48] {
            let seconds = amdahl_s(alone, all, many);
            figures.push((rate(name, many), gib / seconds));
        }
    }
    context.report.figures.extend(figures);
}

/// Returns the seconds of a work of `all_s` processor seconds on so many cores, of which one thread
/// alone does `alone_s`.
fn amdahl_s(alone_s: f64, all_s: f64, cores: u32) -> f64 {
    alone_s + (all_s - alone_s) / f64::from(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_bounds_what_many_cores_give() {
        assert_eq!(amdahl_s(1.0, 10.0, 1), 10.0);
        assert_eq!(amdahl_s(1.0, 10.0, 9), 2.0);
        assert!(amdahl_s(1.0, 10.0, 10_000) > 1.0);
    }

    #[test]
    fn steps_name_their_cores() {
        assert_eq!(step("noise", 1), "noise, one core");
        assert_eq!(step("pages", 4), "pages, 4 cores");
    }
}
