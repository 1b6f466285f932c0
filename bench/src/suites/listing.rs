//! Cold listings: `ls -lR` on a fresh mount without caches.

use std::fs;

use crate::Outcome;
use crate::context::Context;
use crate::disk::{remove, text};
use crate::measure::{self, Run, shell, verified};
use crate::program::Program;

/// Lists the directory `below` of a repository on a fresh mount, and counts its files.
///
/// # Errors
/// A message if there are not `count` files, or the error of the mount or of ls.
pub(super) fn cold(
    context: &Context,
    program: &Program,
    url: &str,
    (below, count): (&str, usize),
) -> Outcome<Run> {
    program.forget_caches()?;
    measure::drop_caches()?;
    let mounted = program.mount(url, &context.fresh("mount")?)?;
    let list = context.work.join("listing");
    let directory = mounted.path().join(below);
    let line = format!("ls -lR {} >{}", text(&directory), text(&list));
    let run = mounted.measure(|| shell(&line).map(drop))?;
    mounted.unmount()?;
    let listed = fs::read_to_string(&list)?;
    let files = listed.lines().filter(|line| line.starts_with('-')).count();
    remove(&list)?;
    match files == count {
        true => Ok(verified(run)),
        false => Err(format!("ls lists {files} files of {count}").into()),
    }
}
