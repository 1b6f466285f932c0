//! Requests without content: a warm tree is read, and many empty files are renamed and removed.
//!
//! Owns: the steps, for bkfs and for the null filesystem. The kernel's caches are dropped before
//! each reading step, so that its requests reach a daemon whose own memory is warm.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bkfs_fuse::{MountConfig, mount};

use crate::Outcome;
use crate::context::Context;
use crate::disk::{remove, text};
use crate::measure::{self, Run, shell, verified};
use crate::null_fs::NullFs;
use crate::program::Mounted;
use crate::targets::{OPEN, READDIR, REMOVE, RENAME, STAT};

/// Empty files of a directory.
const IN_A_DIRECTORY: usize = 1_000;

/// A step and its run.
type Step = (&'static str, Run);

/// What a step does, with the files and directories that it does it to.
type Pass = fn(&Tree) -> Outcome<()>;

/// A mounted filesystem.
trait Filesystem {
    /// Returns the mount point.
    fn point(&self) -> &Path;

    /// Measures work that changes nothing.
    fn reading(&self, work: &dyn Fn() -> Outcome<()>) -> Outcome<Run>;

    /// Measures changes until they are durable. A filesystem with snapshots makes one of this name.
    fn changing(&self, snapshot: &str, work: &dyn Fn() -> Outcome<()>) -> Outcome<Run>;
}

impl Filesystem for Mounted {
    fn point(&self) -> &Path {
        self.path()
    }

    fn reading(&self, work: &dyn Fn() -> Outcome<()>) -> Outcome<Run> {
        self.measure(work)
    }

    fn changing(&self, snapshot: &str, work: &dyn Fn() -> Outcome<()>) -> Outcome<Run> {
        self.measure(|| work().and_then(|()| self.snapshot(snapshot)))
    }
}

/// The null filesystem, which this process serves.
struct Null<'a>(&'a Path);

impl Filesystem for Null<'_> {
    fn point(&self) -> &Path {
        self.0
    }

    fn reading(&self, work: &dyn Fn() -> Outcome<()>) -> Outcome<Run> {
        let started = Instant::now();
        work()?;
        Ok(Run {
            wall_s: started.elapsed().as_secs_f64(),
            ..Run::default()
        })
    }

    fn changing(&self, _snapshot: &str, work: &dyn Fn() -> Outcome<()>) -> Outcome<Run> {
        self.reading(work)
    }
}

/// The paths of a tree.
#[derive(Default)]
struct Tree {
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Tree {
    fn below(root: &Path) -> Outcome<Self> {
        let mut tree = Self {
            directories: vec![root.to_owned()],
            files: Vec::new(),
        };
        let mut next = 0;
        while let Some(directory) = tree.directories.get(next).cloned() {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                match entry.file_type()?.is_dir() {
                    true => tree.directories.push(entry.path()),
                    false => tree.files.push(entry.path()),
                }
            }
            next += 1;
        }
        Ok(tree)
    }
}

/// Runs all steps on a null filesystem that is served like this.
pub(super) fn null(
    context: &mut Context,
    suite: &'static str,
    system: &str,
    archive: &Path,
    config: &MountConfig,
) -> Outcome<()> {
    let point = context.fresh("null")?;
    let null = Arc::new(NullFs::as_bkfs());
    let session = mount(null, &point, config)?;
    let steps = all(context, &Null(&point), archive);
    session.unmount(false)?;
    session.wait()?;
    note(context, suite, system, steps?);
    Ok(())
}

/// Runs all steps on a mount of bkfs.
pub(super) fn bkfs(context: &mut Context, suite: &'static str, archive: &Path) -> Outcome<()> {
    let bucket = context.fresh("bucket")?;
    let url = text(&bucket).to_owned();
    context.program.init(&url)?;
    let mounted = context.program.mount(&url, &context.fresh("mount")?)?;
    let steps = all(context, &mounted, archive)?;
    mounted.unmount()?;
    note(context, suite, "bkfs", steps);
    remove(&bucket)
}

fn note(context: &mut Context, suite: &'static str, system: &str, steps: Vec<Step>) {
    for (step, run) in steps {
        context.note(suite, step, system, verified(run));
    }
}

fn all(context: &Context, system: &dyn Filesystem, archive: &Path) -> Outcome<Vec<Step>> {
    let mut steps = warm(system, archive)?;
    steps.extend(changes(
        system,
        context.size.choose(2_000, 20_000, 100_000),
    )?);
    Ok(steps)
}

/// Unpacks the archive, and reads names and attributes of that tree.
fn warm(system: &dyn Filesystem, archive: &Path) -> Outcome<Vec<Step>> {
    let root = system.point().join("tree");
    fs::create_dir(&root)?;
    let line = format!("tar -xf {} -C {}", text(archive), text(&root));
    system.changing("unpacked", &|| shell(&line).map(drop))?;
    let tree = Tree::below(&root)?;
    let passes: [(&'static str, Pass); 3] = [(STAT, stat), (READDIR, list), (OPEN, open)];
    let mut steps = Vec::new();
    for (step, pass) in passes {
        measure::drop_caches()?;
        steps.push((step, system.reading(&|| pass(&tree))?));
    }
    Ok(steps)
}

fn stat(tree: &Tree) -> Outcome<()> {
    for file in &tree.files {
        if !fs::symlink_metadata(file)?.is_file() {
            return Err(format!("{} is no file", file.display()).into());
        }
    }
    Ok(())
}

fn list(tree: &Tree) -> Outcome<()> {
    let mut listed = 1;
    for directory in &tree.directories {
        for entry in fs::read_dir(directory)? {
            entry?;
            listed += 1;
        }
    }
    match listed == tree.directories.len() + tree.files.len() {
        true => Ok(()),
        false => Err(format!("{listed} names are listed").into()),
    }
}

fn open(tree: &Tree) -> Outcome<()> {
    for file in &tree.files {
        File::open(file)?;
    }
    Ok(())
}

/// Makes empty files, gives each another name, and removes them all.
fn changes(system: &dyn Filesystem, count: usize) -> Outcome<Vec<Step>> {
    let root = system.point().join("empty");
    system.changing("made", &|| make(&root, count))?;
    let before = Tree::below(&root)?;
    let renamed = system.changing("renamed", &|| rename(&before))?;
    let after = Tree::below(&root)?;
    let is_new = |file: &PathBuf| file.extension().is_some_and(|end| end == "new");
    if before.files.len() != count
        || after.files.iter().filter(|file| is_new(file)).count() != count
    {
        return Err(format!("of {count} files not all have a new name").into());
    }
    let line = format!("rm -rf {}", text(&root));
    let removed = system.changing("removed", &|| shell(&line).map(drop))?;
    match root.symlink_metadata() {
        Err(_) => Ok(vec![(RENAME, renamed), (REMOVE, removed)]),
        Ok(_) => Err(format!("{} is not removed", root.display()).into()),
    }
}

fn make(root: &Path, count: usize) -> Outcome<()> {
    for number in 0..count {
        let directory = root.join(format!("part-{:04}", number / IN_A_DIRECTORY));
        if number % IN_A_DIRECTORY == 0 {
            fs::create_dir_all(&directory)?;
        }
        File::create(directory.join(format!("file-{number:06}")))?;
    }
    Ok(())
}

fn rename(tree: &Tree) -> Outcome<()> {
    for file in &tree.files {
        fs::rename(file, file.with_extension("new"))?;
    }
    Ok(())
}
