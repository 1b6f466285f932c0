//! `bkfs-bench SUITE`: whole workloads of bkfs and of its peers.
//!
//! Owns: the command line, the order of suites, and where results are written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use bkfs_bench::Outcome;
use bkfs_bench::context::{Context, Size};
use bkfs_bench::loop_disk::LoopDisk;
use bkfs_bench::peers::Peers;
use bkfs_bench::program::Program;
use bkfs_bench::report::Report;
use bkfs_bench::suites::{BY_NAME, SUITES, Suite};
use bkfs_bench::{output, targets};
use clap::{Parser, ValueEnum};

/// Benchmarks of bkfs and its peers
///
/// Prepares its own data from fixed seeds, runs everybody in turn on the same machine, checks that
/// what was stored comes back byte by byte, and writes tables, JSON and plots. Mounts filesystems,
/// drops the kernel's caches and starts servers on 127.0.0.1: run it as root, on a machine with
/// nothing else to do.
#[derive(Debug, Parser)]
struct Arguments {
    /// mariadb, stream, files, latency, micro, index, runs, cores, live, first-row, or all, which is all but the last two
    #[arg(required = true)]
    suites: Vec<String>,
    /// Runs of each step
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// How much data
    #[arg(long, value_enum, default_value = "full")]
    size: Sizes,
    /// Where report.json, tables.md and the plots go
    #[arg(long, default_value = "bench/results")]
    output: PathBuf,
    /// A page that takes the tables between its marks, such as PERFORMANCE.md
    #[arg(long)]
    page: Option<PathBuf>,
    /// Where data is prepared, stored and restored (default: the system's directory for temporary
    /// files)
    #[arg(long)]
    work: Option<PathBuf>,
    /// Run the suites `mariadb`, `stream` and `files` on ext4 on a loop device in /dev/shm: needs root
    /// and up to 18 GiB of memory
    #[arg(long = "loop")]
    on_loop: bool,
    /// The bkfs to measure (default: $BKFS_BIN, or one that is built now)
    #[arg(long, env = "BKFS_BIN")]
    bkfs: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sizes {
    Small,
    Middle,
    Full,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bkfs-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Outcome<()> {
    let wanted = |name: &str| {
        arguments
            .suites
            .iter()
            .any(|suite| suite == name || suite == "all" && !BY_NAME.contains(&name))
    };
    let unknown =
        |suite: &&String| *suite != "all" && !SUITES.iter().any(|(name, _)| name == suite);
    if let Some(suite) = arguments.suites.iter().find(unknown) {
        return Err(format!("there is no suite {suite}").into());
    }
    let place = arguments.work.clone().unwrap_or_else(std::env::temp_dir);
    let work = tempfile::Builder::new()
        .prefix("bkfs-bench.")
        .tempdir_in(place)?;
    // The database server's own user must be able to read it.
    fs::set_permissions(
        work.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )?;
    let binary = match &arguments.bkfs {
        Some(binary) => fs::canonicalize(binary)?,
        None => build()?,
    };
    let mut context = Context {
        work: work.path().to_owned(),
        repeat: arguments.repeat.max(1),
        size: match arguments.size {
            Sizes::Small => Size::Small,
            Sizes::Middle => Size::Middle,
            Sizes::Full => Size::Full,
        },
        program: Program::new(binary, work.path().join("home")),
        peers: Peers::look(),
        report: Report::default(),
    };
    describe(&mut context);
    for (name, suite) in SUITES {
        if wanted(name) {
            eprintln!("{name}");
            let on_loop = arguments.on_loop && ON_LOOP.contains(&name);
            let done = match on_loop {
                true => run_on_loop(&mut context, name, suite),
                false => suite(&mut context),
            };
            done.map_err(|error| format!("{name}: {error}"))?;
            // Written after each suite, so that results stay if a later suite fails.
            output::write(&context.report, &arguments.output)?;
        }
    }
    if let Some(page) = &arguments.page {
        let plots = arguments.output.display().to_string();
        output::write_into(&context.report, page, &plots)?;
    }
    println!("{}", targets::table(&targets::verdicts(&context.report)));
    for (name, reason) in &context.report.absent {
        println!(
            "absent: {name}: {}",
            reason.lines().next().unwrap_or_default()
        );
    }
    Ok(())
}

/// The suites that run on a disk in memory with `--loop`: they compare what is written and read.
const ON_LOOP: [&str; 3] = ["mariadb", "stream", "files"];

/// Runs a suite on a disk in memory or, where none can be made, in the work directory. The report
/// tells which.
fn run_on_loop(context: &mut Context, name: &str, suite: Suite) -> Outcome<()> {
    let point = context.work.join("loop");
    let disk = LoopDisk::mount(&point, context.size.choose(4 << 30, 8 << 30, 18 << 30));
    let told = match &disk {
        Ok(_) => "ext4 on a loop device in /dev/shm".to_owned(),
        Err(error) => format!("the work directory, without a loop device: {error}"),
    };
    let about = &mut context.report.about;
    about.push((format!("disk of the suite {name}"), told));
    let Ok(disk) = disk else {
        return suite(context);
    };
    let before = context.move_to(&point);
    let done = suite(context);
    context.move_to(&before);
    drop(disk);
    done
}

/// Builds the program in release mode, as users do.
fn build() -> Outcome<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "build",
            "--release",
            "--bin",
            "bkfs",
            "--message-format=json",
        ])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let executable = text.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    match (output.status.success(), executable) {
        (true, Some(binary)) => Ok(binary),
        _ => Err("the program does not build".into()),
    }
}

/// Notes the machine, the versions and the command line in the report.
fn describe(context: &mut Context) {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let processor = field(&read("/proc/cpuinfo"), "model name").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let command: Vec<String> = std::env::args().skip(1).collect();
    context.report.about = vec![
        (
            "machine".to_owned(),
            format!("{processor}, {cores} cores, {memory}, Linux {kernel}"),
        ),
        ("bkfs".to_owned(), context.program.version()),
        ("peers".to_owned(), context.peers.versions()),
        (
            "command".to_owned(),
            format!("bkfs-bench {}", command.join(" ")),
        ),
        ("disk".to_owned(), disk_of(&context.work)),
        ("runs of each step".to_owned(), context.repeat.to_string()),
        (
            "load before".to_owned(),
            read("/proc/loadavg").trim().to_owned(),
        ),
    ];
}

/// Returns the kind of filesystem and the device of a path.
fn disk_of(path: &Path) -> String {
    let mut command = Command::new("findmnt");
    let output = command
        .args(["-n", "-o", "FSTYPE,SOURCE", "-T"])
        .arg(path)
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" on ")
}
