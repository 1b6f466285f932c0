//! Hostile repositories: a writer who has the password seals what no honest writer makes, and every
//! command meets it.
//!
//! Each command ends within a bound and in bounded memory, says what is wrong, writes nothing
//! outside of its target, and prints no character that a terminal obeys.

// The futures of whole commands are nested deeply.
#![recursion_limit = "256"]

mod archive;
mod asked;
mod commands;
mod forge;
mod forged;
mod forgeries;
mod missing;
mod page;
#[path = "../reference/password.rs"]
mod password;
mod server;
mod spilled;
mod told;
mod user;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use commands::{ARGUMENTS, BETWEEN, Ran, bkfs, obeyed, said, start, wait};
use forge::HONEST;
use forgeries::{CLEAN, FORGERIES, Forgery, HOSTILE, Walked};
use tempfile::TempDir;

/// Runs the program, for the other tests: they start this test as a process of its own.
#[test]
fn the_program_itself() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let arguments = arguments.split(BETWEEN).map(Into::into);
    let program = std::iter::once("bkfs".into());
    std::process::exit(bkfs::cli::run(program.chain(arguments)));
}

/// A forgery on the disk, and the problems that commands had with it.
struct Trial {
    home: TempDir,
    forgery: &'static Forgery,
    problems: Vec<String>,
}

impl Trial {
    fn of(name: &str) -> Trial {
        let forgery = FORGERIES.iter().find(|forgery| forgery.name == name);
        let forgery = forgery.expect("there is one");
        let home = TempDir::new().expect("a directory");
        forgery.forge(home.path()).end();
        std::fs::create_dir(home.path().join("outer")).expect("a directory");
        std::fs::write(home.path().join("outer/untouched"), "untouched").expect("a file");
        Trial {
            home,
            forgery,
            problems: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn wrong(&mut self, what: &str, why: &str, ran: &Ran) {
        let name = self.forgery.name;
        self.problems
            .push(format!("{name}: {what}: {why}: {}", ran.says()));
    }

    /// Runs a command, and checks what holds for all commands. Its output may be the bytes of
    /// files, which are not escaped.
    fn run(&mut self, arguments: &[&str], is_text: bool) -> Ran {
        let repository = self.path("repository").to_string_lossy().into_owned();
        let place = |argument: &&str| argument.replace("REPOSITORY", &repository);
        let given: Vec<String> = arguments.iter().map(place).collect();
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let ran = bkfs(&self.path("machine"), &given);
        let what = arguments.join(" ");
        if let Some(bad) = obeyed(&ran.error).or_else(|| obeyed(&ran.out).filter(|_| is_text)) {
            self.wrong(&what, &format!("prints {bad}"), &ran);
        }
        let lines = [&ran.out, &ran.error].map(|said| String::from_utf8_lossy(said).into_owned());
        let is_forged =
            |line: &str| line.starts_with("bkfs: well") || line.starts_with("bkfs: everything");
        if is_text && lines.iter().any(|text| text.lines().any(is_forged)) {
            self.wrong(&what, "a name makes a line of its own", &ran);
        }
        let is_of_run = arguments[0] == "run" && ran.code == 125;
        if !(matches!(ran.code, 0 | 1 | 2 | 3 | 13) || is_of_run) || panicked(&ran) {
            self.wrong(&what, "ends as no command does", &ran);
        }
        if ran.code != 0 && ran.error.is_empty() {
            self.wrong(&what, "does not say what is wrong", &ran);
        }
        ran
    }

    /// Runs a command that walks over all of the hostile tree.
    fn walks(&mut self, arguments: &[&str], is_text: bool, needs_contents: bool) -> Ran {
        let ran = self.run(arguments, is_text);
        let is_right = match self.forgery.walked {
            Walked::Whole => ran.code == 0,
            Walked::LeftOut => ran.code == 3,
            Walked::Damaged => ran.code == 13,
            Walked::Contents if needs_contents => matches!(ran.code, 3 | 13),
            Walked::Contents => ran.code == 0,
            Walked::Any => matches!(ran.code, 0 | 3 | 13),
        };
        if !is_right {
            let expected = format!("should have been {:?}", self.forgery.walked);
            self.wrong(&arguments.join(" "), &expected, &ran);
        }
        ran
    }

    fn reads(&mut self) {
        self.walks(&["ls", "-R", "REPOSITORY", HOSTILE], true, false);
        self.walks(&["ls", "-R", "--names", "REPOSITORY", HOSTILE], true, false);
        self.walks(
            &["find", "REPOSITORY", "*", "--snapshot", HOSTILE],
            true,
            false,
        );
        self.walks(
            &["find", "REPOSITORY", "**", "--snapshot", HOSTILE],
            true,
            false,
        );
        self.walks(&["diff", "REPOSITORY", CLEAN, HOSTILE], true, false);
        self.walks(&["diff", "REPOSITORY", HOSTILE, CLEAN], true, false);
        for command in ["ls", "find"] {
            let pattern = ["--json", command, "REPOSITORY", HOSTILE, "-R"];
            let search = ["--json", command, "REPOSITORY", "*", "--snapshot=hostile"];
            let arguments = if command == "ls" { pattern } else { search };
            let ran = self.run(&arguments, true);
            for line in ran
                .out
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.is_empty())
            {
                if serde_json::from_slice::<serde_json::Value>(line).is_err() {
                    self.wrong(command, "prints what is no JSON", &ran);
                }
            }
        }
        let file = self.run(&["dump", "REPOSITORY", "hostile:/honest"], false);
        if self.forgery.walked != Walked::Damaged && file.out != HONEST {
            self.wrong("dump", "the honest file is not what it was", &file);
        }
        let archive = ["dump", "REPOSITORY", HOSTILE, "--archive", "tar"];
        let ran = self.walks(&archive, false, true);
        if let Some(path) = archive::leads_outside(&archive::members(&ran.out)) {
            self.wrong("dump --archive", &format!("leads outside: {path}"), &ran);
        }
    }

    fn restores(&mut self) {
        for (name, overwrite) in [("target", false), ("target", true), ("other", true)] {
            let target = self.path("outer").join(name);
            let shown = target.to_string_lossy().into_owned();
            let mut arguments = vec!["restore", "REPOSITORY", HOSTILE, &shown];
            arguments.extend(overwrite.then_some("--overwrite"));
            let ran = self.walks(&arguments, true, true);
            let honest = std::fs::read(target.join("honest"));
            if self.forgery.walked != Walked::Damaged
                && !honest.is_ok_and(|honest| honest == HONEST)
            {
                self.wrong("restore", "the honest file is not there", &ran);
            }
            if let Some(strange) = strange(&self.path("outer")) {
                self.wrong("restore", &format!("has written {strange}"), &ran);
            }
        }
    }

    fn maintains(&mut self) {
        for read_data in [false, true] {
            let mut arguments = vec!["check", "REPOSITORY"];
            arguments.extend(read_data.then_some("--read-data"));
            let ran = self.run(&arguments, true);
            let said = String::from_utf8_lossy(&ran.error);
            let shown = String::from_utf8_lossy(&ran.out);
            let expected = self.forgery.check;
            let is_right = match expected {
                "" => ran.code == 0,
                expected if self.forgery.is_noted => ran.code == 0 && shown.contains(expected),
                expected => ran.code == 13 && said.contains(expected),
            };
            if !is_right {
                self.wrong("check", &format!("does not say {expected:?}"), &ran);
            }
        }
        if self.forgery.is_noted {
            self.notes_in_json();
        }
        self.run(&["snapshots", "REPOSITORY"], true);
        self.run(&["--json", "snapshots", "REPOSITORY"], true);
        self.run(&["snapshots", "--all", "REPOSITORY"], true);
        self.run(&["stats", "REPOSITORY"], true);
        self.run(
            &["forget", "--dry-run", "--keep-last=1", "REPOSITORY"],
            true,
        );
        self.run(&["gc", "--dry-run", "REPOSITORY"], true);
        self.run(&["session", "list", "REPOSITORY"], true);
        let copy = self.path("copy");
        forge::runtime().block_on(forge::make(&copy));
        let copy = copy.to_string_lossy().into_owned();
        self.run(&["copy", "REPOSITORY", &copy], true);
        self.run(&["copy", "REPOSITORY", &copy], true);
        self.run(&["lock", "REPOSITORY"], true);
        self.run(&["--json", "lock", "REPOSITORY"], true);
        self.run(&["init", "REPOSITORY"], true);
        self.run(&["init", "--no-encryption", "REPOSITORY"], true);
        self.asks_no_mount();
    }

    /// Checks that scripts see what `check` notes.
    fn notes_in_json(&mut self) {
        let ran = self.run(&["--json", "check", "REPOSITORY"], true);
        let report = serde_json::from_slice::<serde_json::Value>(&ran.out).unwrap_or_default();
        let what = report["notes"][0]["what"].as_str().unwrap_or_default();
        let is_right = ran.code == 0
            && report["clean"] == true
            && report["notes"][0]["tree"] == format!("main/{HOSTILE}")
            && what.contains(self.forgery.check);
        if !is_right {
            self.wrong("--json check", "does not note it", &ran);
        }
    }

    /// Commands of a mount, where there is none.
    fn asks_no_mount(&mut self) {
        let place = self.path("no \u{1b}[31m\u{9b}1mmount\u{202e}\nbkfs: well");
        std::fs::create_dir_all(&place).expect("a directory");
        let place = place.to_string_lossy().into_owned();
        for arguments in [
            &["status", &place][..],
            &["--json", "status", &place],
            &["umount", &place],
            &["run", &place, "--", "true"],
        ] {
            let ran = self.run(arguments, true);
            if ran.code == 0 {
                self.wrong(arguments[0], "there is no mount", &ran);
            }
        }
    }

    /// What changes the hostile volume: a stream into its directories, and a mount of it.
    fn writes(&mut self) {
        let file = self.path("outer/untouched").to_string_lossy().into_owned();
        for path in ["put\u{1b}[31m", "dir\u{1b}]0;title\u{7}/put", "honest/put"] {
            let arguments = ["put", "--volume=main", "REPOSITORY", path, &file];
            self.run(&arguments, true);
            self.run(&[&["--json"], &arguments[..]].concat(), true);
        }
    }

    /// A mount of the hostile volume, and the commands that ask it.
    fn asks_a_mount(&mut self) {
        let place = self.path("mount");
        std::fs::create_dir(&place).expect("a directory");
        let shown = place.to_string_lossy().into_owned();
        let repository = self.path("repository").to_string_lossy().into_owned();
        let arguments = ["mount", "-f", "--volume=main", &repository, &shown];
        let home = self.path("daemon");
        let mut daemon = start(None, &home, &[], &arguments);
        let is_mounted = |shown: &str| {
            let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
            mounts.contains(&format!(" {shown} "))
        };
        let begun = std::time::Instant::now();
        while !is_mounted(&shown) && begun.elapsed().as_secs() < 60 {
            if daemon.try_wait().expect("its end").is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        for arguments in [
            &["status", &shown][..],
            &["--json", "status", &shown],
            &["status", "--acknowledge", &shown],
            &["run", "--name=run", &shown, "--", "true"],
            &["snapshots", &shown],
            &["umount", &shown],
        ] {
            let ran = self.run(arguments, true);
            if ran.code != 0 && !arguments.contains(&"--acknowledge") {
                self.wrong(arguments[0], "the mount does not do it", &ran);
            }
        }
        if is_mounted(&shown) {
            let _ = std::process::Command::new("umount")
                .args(["-l", &shown])
                .status();
        }
        let ran = said(&home, wait(daemon, &arguments));
        if let Some(bad) = obeyed(&ran.error).or_else(|| obeyed(&ran.out)) {
            self.wrong("mount -f", &format!("prints {bad}"), &ran);
        }
        if ran.code != 0 {
            self.wrong("mount -f", "it does not end well", &ran);
        }
    }

    /// Checks that a page shows all that can be shown, and that its forms do what they say.
    fn serves(&mut self) {
        let (seen, ran) = page::crawl(
            self.home.path(),
            &self.path("repository"),
            HOSTILE,
            &self.path("outer"),
        );
        for problem in &seen.problems {
            self.wrong("serve", problem, &ran);
        }
        if let Some(bad) = obeyed(&ran.error) {
            self.wrong("serve", &format!("prints {bad}"), &ran);
        }
        if ran.code != 0 || panicked(&ran) {
            self.wrong("serve", "it does not end well", &ran);
        }
        let is_damaged = self.forgery.walked == Walked::Damaged;
        if !is_damaged && seen.honest.as_deref() != Some(HONEST) {
            self.wrong("serve", "the honest file is not offered as it was", &ran);
        }
        let is_right = matches!(
            (self.forgery.walked, seen.restored.as_str()),
            (Walked::Whole | Walked::Any, "restored")
                | (
                    Walked::LeftOut | Walked::Contents | Walked::Any,
                    "restored in part"
                )
                | (Walked::Damaged, "restored in part" | "failed" | "no form")
        );
        if !is_right {
            let state = format!("a restore of the page ended as {:?}", seen.restored);
            self.wrong("serve", &state, &ran);
        }
        let honest = std::fs::read(self.path("outer/page/1/honest"));
        if !is_damaged && !honest.is_ok_and(|honest| honest == HONEST) {
            self.wrong("serve", "the page has not restored the honest file", &ran);
        }
        if let Some(strange) = strange(&self.path("outer")) {
            self.wrong("serve", &format!("has written {strange}"), &ran);
        }
    }

    /// Checks that a mount can be listed to its end, whatever one of its names is.
    fn mounts(&mut self) {
        let seen = asked::walk(&self.path("repository"), HOSTILE);
        let name = self.forgery.name;
        let seen = match seen {
            Ok(seen) => seen,
            Err(_) if self.forgery.walked == Walked::Damaged => return,
            Err(error) => return self.problems.push(format!("{name}: mount: {error}")),
        };
        if self.forgery.walked == Walked::Damaged {
            return;
        }
        let is_root_whole = !seen.failed.iter().any(|(name, _)| name == b"/");
        if !is_root_whole || !seen.names.iter().any(|name| name == b"honest") {
            self.problems
                .push(format!("{name}: mount: the root is not listed: {seen:?}"));
        }
        // However a directory was reached, it is one: a walk that knows where it was ends.
        let again = match name {
            "cycle" | "second-name" => 1,
            "lattice" => 60,
            _ => 0,
        };
        let met: BTreeSet<u64> = seen.again.iter().copied().collect();
        if seen.again.len() != again || met.len() != again {
            let problem = format!("{name}: mount: met again: {:?}", seen.again);
            self.problems.push(problem);
        }
        let is_bad = |name: &Vec<u8>| {
            name.is_empty() || name.contains(&b'/') || name.contains(&0) || name.len() > 255
        };
        if let Some(bad) = seen.names.iter().find(|name| is_bad(name)) {
            self.problems
                .push(format!("{name}: mount: it lists {bad:?}"));
        }
    }
}

fn panicked(ran: &Ran) -> bool {
    String::from_utf8_lossy(&ran.error).contains("panicked at")
}

/// Returns what a restore wrote outside of the target.
fn strange(outer: &Path) -> Option<String> {
    let entries = std::fs::read_dir(outer).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names = names.map(|name| name.to_string_lossy().into_owned());
    let known = ["target", "other", "page", "untouched"];
    let strange = names.find(|name| !known.contains(&name.as_str()));
    let untouched = std::fs::read(outer.join("untouched")).expect("the file outside");
    let spoiled = (untouched != b"untouched").then(|| "the file outside".to_owned());
    let escaped = Path::new("/tmp/escaped").exists();
    strange
        .or(spoiled)
        .or(escaped.then(|| "/tmp/escaped".to_owned()))
}

/// Runs every command against one forgery.
fn trial(name: &str) {
    let mut trial = Trial::of(name);
    trial.reads();
    trial.restores();
    trial.maintains();
    trial.serves();
    trial.mounts();
    trial.writes();
    if name == "controls" {
        trial.asks_a_mount();
    }
    assert!(trial.problems.is_empty(), "{}", trial.problems.join("\n"));
}

macro_rules! trials {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                trial($name);
            }
        )*

        #[test]
        fn every_forgery_is_tried() {
            let tried = [$($name),*];
            for forgery in FORGERIES {
                assert!(tried.contains(&forgery.name), "{} is not tried", forgery.name);
            }
        }
    };
}

trials! {
    dot_dot: "dot-dot",
    dot: "dot",
    empty: "empty",
    absolute: "absolute",
    slash: "slash",
    nul: "nul",
    long: "long",
    very_long: "very-long",
    controls: "controls",
    twice: "twice",
    cycle: "cycle",
    second_name: "second-name",
    lattice: "lattice",
    root_below: "root-below",
    dangling: "dangling",
    inode_0: "inode-0",
    inode_special: "inode-special",
    inode_high: "inode-high",
    inode_highest: "inode-highest",
    size_2_63: "size-2^63",
    size_2_64: "size-2^64-1",
    beyond: "beyond",
    nested_extents: "nested-extents",
    wrong_kinds: "wrong-kinds",
    segments: "segments",
    unsorted: "unsorted",
    wrong_depth: "wrong-depth",
    tall: "tall",
    file_and_directory: "file-and-directory",
    no_type: "no-type",
    many_xattrs: "many-xattrs",
    system_xattr: "system-xattr",
    nul_xattr: "nul-xattr",
    large_xattr: "large-xattr",
    bad_link: "bad-link",
    bad_item: "bad-item",
    devices: "devices",
    deep: "deep",
    lists: "lists",
}
