//! Who else is here: other tools, where they lie and how they are called.
//!
//! Owns: finding them. One that is not there is named in the report, never passed over in silence.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Every tool that a suite may ask for, and how its version is asked for. `bench/install-peers` brings them.
const KNOWN: &[(&str, &str)] = &[
    ("restic", "version"),
    ("rustic", "--version"),
    ("borg", "--version"),
    ("rclone", "version"),
    ("s3fs", "--version"),
    ("pigz", "--version"),
    ("aws", "--version"),
    ("minio", "--version"),
    ("mariabackup", "--version"),
    ("mariadbd", "--version"),
    ("sysbench", "--version"),
    ("rsync", "--version"),
];

/// The tools that were found.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    found: BTreeMap<&'static str, PathBuf>,
}

impl Peers {
    /// Looks for all of them.
    pub fn look() -> Self {
        let found = KNOWN
            .iter()
            .filter_map(|(name, _)| Some((*name, find(name)?)));
        Self {
            found: found.collect(),
        }
    }

    /// Where a tool lies, quoted by nothing: names of tools hold no blanks.
    ///
    /// # Errors
    /// How to have it, if it is not here.
    pub fn need(&self, name: &str) -> Result<String, String> {
        self.found
            .get(name)
            .map(|path| path.display().to_string())
            .ok_or_else(|| format!("{name} is not on this machine (bench/install-peers brings it)"))
    }

    /// Names and versions of what was found.
    pub fn versions(&self) -> String {
        let version = |(name, path): (&&'static str, &PathBuf)| {
            let argument = KNOWN.iter().find(|(known, _)| known == name)?.1;
            let output = Command::new(path).arg(argument).output().ok()?;
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            let line = said
                .lines()
                .find(|line| line.contains(|letter: char| letter.is_ascii_digit()))?;
            Some(line.trim().chars().take(80).collect::<String>())
        };
        let versions: Vec<String> = self.found.iter().filter_map(version).collect();
        versions.join("; ")
    }
}

/// Looks for a program on the PATH, where cargo installs, and where the tests keep what they build.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let home = PathBuf::from(env::var_os("HOME")?);
    let cache = env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from);
    let kept = std::fs::read_dir(cache.join("bkfs-ci"))
        .into_iter()
        .flatten()
        .flatten();
    let kept: Vec<PathBuf> = kept
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with(&format!("{name}-"))
        })
        .flat_map(|entry| [entry.path(), entry.path().join("bin")])
        .collect();
    env::split_paths(&path)
        .chain([home.join(".cargo/bin"), PathBuf::from("/usr/sbin")])
        .chain(kept)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}
