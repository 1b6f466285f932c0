//! The directories of bkfs on a machine.

use std::path::PathBuf;

fn home(name: &str, below_home: &str) -> Option<PathBuf> {
    let given = std::env::var_os(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    given.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(below_home)))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the directory for fetched data and index tables. It may be deleted at any time.
pub fn cache_dir() -> Option<PathBuf> {
    if is_root() && std::env::var_os("XDG_CACHE_HOME").is_none() {
        return Some(PathBuf::from("/var/cache/bkfs"));
    }
    home("XDG_CACHE_HOME", ".cache").map(|path| path.join("bkfs"))
}

/// Returns the directory for the memory of this machine: the newest generation of each repository
/// that it has seen, spools, and its log.
pub fn state_dir() -> Option<PathBuf> {
    if is_root() && std::env::var_os("XDG_STATE_HOME").is_none() {
        return Some(PathBuf::from("/var/lib/bkfs"));
    }
    home("XDG_STATE_HOME", ".local/state").map(|path| path.join("bkfs"))
}

/// Returns the directory for sockets, which a restart of the machine empties.
pub fn runtime_dir() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match given.filter(|path| path.is_absolute()) {
        Some(given) => Some(given.join("bkfs")),
        None if is_root() => Some(PathBuf::from("/run/bkfs")),
        None => None,
    }
}

/// Returns the paths of the configuration files. A later one overrides an earlier one.
pub fn config_files() -> Vec<PathBuf> {
    let user = home("XDG_CONFIG_HOME", ".config").map(|path| path.join("bkfs/bkfs.toml"));
    std::iter::once(PathBuf::from("/etc/bkfs.toml"))
        .chain(user)
        .collect()
}
