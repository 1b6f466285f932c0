//! The peers: other tools, where they are installed and how they are called.
//!
//! Owns: finding them. The report names each peer that is absent.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every tool that a suite may need, and the argument that prints its version.
/// `bench/install-peers` installs them.
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

/// The tools found.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    found: BTreeMap<&'static str, PathBuf>,
}

impl Peers {
    /// Searches for all of them.
    pub fn look() -> Self {
        let found = KNOWN
            .iter()
            .filter_map(|(name, _)| Some((*name, find(name)?)));
        Self {
            found: found.collect(),
        }
    }

    /// Returns the path of a tool. It needs no quoting, because it holds no blanks.
    ///
    /// # Errors
    /// A message that says how to install the tool, if it is absent.
    pub fn need(&self, name: &str) -> Result<String, String> {
        self.found
            .get(name)
            .map(|path| path.display().to_string())
            .ok_or_else(|| format!("{name} is not on this machine (bench/install-peers brings it)"))
    }

    /// Returns names and versions of the tools found.
    pub fn versions(&self) -> String {
        let version = |(name, path): (&&'static str, &PathBuf)| {
            let argument = KNOWN.iter().find(|(known, _)| known == name)?.1;
            let output = Command::new(path).arg(argument).output().ok()?;
            let said = [output.stdout, output.stderr].concat();
            let version = kept_version(name, path)
                .or_else(|| first_version(&String::from_utf8_lossy(&said)))?;
            Some(format!("{name} {version}"))
        };
        let versions: Vec<String> = self.found.iter().filter_map(version).collect();
        versions.join("; ")
    }
}

/// Returns the version in the name of a tool's directory, `NAME-VERSION`, in the cache in which the
/// tests keep what they build.
fn kept_version(name: &str, path: &Path) -> Option<String> {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let version = parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('-'))?;
    Some(version.to_owned())
}

/// Returns the first word of a tool's output that looks like a version: numbers with a dot between
/// them, after an optional name.
fn first_version(said: &str) -> Option<String> {
    let is_version = |word: &&str| {
        let digits = word.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        let mut parts = digits.split('.');
        let mut is_number = || parts.next()?.chars().next()?.is_ascii_digit().then_some(());
        is_number().is_some() && is_number().is_some()
    };
    let mut words = said.split_whitespace();
    let word = words.find(is_version)?;
    Some(word.trim_matches([',', ';', '(', ')']).to_owned())
}

/// Searches for a program on the PATH, where cargo installs, in /usr/sbin, and in the cache in
/// which the tests keep what they build.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_tools_say() {
        for (said, version) in [
            ("restic 0.14.0 compiled with go1.19.8", Some("0.14.0")),
            ("aws-cli/1.45.11 Python/3.11.7", Some("aws-cli/1.45.11")),
            ("Simple Storage 3 System V1.90 (commit)", Some("V1.90")),
            (
                "/bin/x based on 10.11.19-MariaDB, x86_64",
                Some("10.11.19-MariaDB"),
            ),
            ("x86_64 of 2026, no version.", None),
        ] {
            assert_eq!(first_version(said).as_deref(), version, "{said}");
        }
    }

    #[test]
    fn what_the_tests_build_lies_in_a_directory_with_its_version() {
        let version = |path: &str| kept_version("minio", Path::new(path));
        let kept = version("/cache/bkfs-ci/minio-v0.0.0-2026-7aac/bin/minio");
        assert_eq!(kept.as_deref(), Some("v0.0.0-2026-7aac"));
        assert_eq!(version("/usr/bin/minio"), None);
    }
}
