//! What stands in place of a URL: `-` for `BKFS_REPOSITORY`, and a mount for the repository that it
//! shows, with its store and its volume.
//!
//! Owns when a path means a mount. Does not own how a repository is opened (`access`), nor the names
//! of the configuration (`config`).

use std::ffi::OsString;
use std::path::Path;

use bkfs_fuse::MountInfo;

use crate::cli::control::MountClient;
use crate::cli::options::Global;
use crate::cli::output::{Failure, name_text};
use crate::cli::profile;
use crate::config::RepositoryProfile;

/// Names the repository that `-` stands for.
const VARIABLE: &str = "BKFS_REPOSITORY";

/// Returns the repository of a mount, with the endpoint, the region and the volume that the mount
/// was given, or the URL itself. Arguments of the user win.
///
/// # Errors
/// Exit code 1 if the mount table cannot be read, 2 if the configuration is malformed.
pub fn target(text: &str, global: &Global) -> Result<(String, Global), Failure> {
    let text = meant(text, variable())?;
    match mount_of(&text)? {
        None => of_name(text, global),
        Some(mount) => Ok(of_mount(
            &mount,
            Told::by(&text).unwrap_or_default(),
            global,
        )),
    }
}

/// The same for a command that changes the volume. A mount that does not answer does not say which
/// one that is.
///
/// # Errors
/// Those of [`target`]; exit code 1 if the mount does not say its volume and none is given.
pub fn target_to_change(text: &str, global: &Global) -> Result<(String, Global), Failure> {
    let text = meant(text, variable())?;
    let Some(mount) = mount_of(&text)? else {
        return of_name(text, global);
    };
    let hint = "Give the volume: --volume NAME. bkfs snapshots lists those of one volume, and names \
                the others.";
    let told = match Told::by(&text) {
        Ok(told) if told.volume.is_some() || global.volume_is_given => told,
        Ok(_) => {
            let why = format!("the mount {text} does not say its volume");
            return Err(Failure::new(why).hint(hint));
        }
        Err(_) if global.volume_is_given => Told::default(),
        Err(failure) => {
            let why = "the mount does not answer, so its volume is not known";
            return Err(failure.context(why).hint(hint));
        }
    };
    Ok(of_mount(&mount, told, global))
}

/// The same for a new mount, for the path of a mount point alone and not for directories in it: a
/// new mount may be of a repository that lies in another mount.
///
/// # Errors
/// Those of [`target_to_change`].
pub fn target_of_mount(text: &str, global: &Global) -> Result<(String, Global), Failure> {
    let text = meant(text, variable())?;
    match mount_of(&text)?.filter(|mount| is_at(mount, Path::new(&text))) {
        Some(_) => target_to_change(&text, global),
        None => of_name(text, global),
    }
}

/// Returns the profile of the repository that `text` names, if it is a name of the configuration.
///
/// # Errors
/// Exit code 2 if the configuration is malformed, or if `text` is `-` and `BKFS_REPOSITORY` is not
/// set.
pub fn profile_of(text: &str) -> Result<Option<RepositoryProfile>, Failure> {
    profile::profile(&meant(text, variable())?)
}

/// Returns what is not a mount, with the volume of its profile if none is given.
fn of_name(text: String, global: &Global) -> Result<(String, Global), Failure> {
    let mut global = global.clone();
    let volume = profile::profile(&text)?.and_then(|profile| profile.volume);
    if let Some(volume) = volume.filter(|_| !global.volume_is_given) {
        global.volume = volume;
    }
    Ok((text, global))
}

fn of_mount(mount: &MountInfo, told: Told, global: &Global) -> (String, Global) {
    let mut global = global.clone();
    global.endpoint = global.endpoint.or(told.endpoint);
    global.region = global.region.or(told.region);
    if let Some(volume) = told.volume.filter(|_| !global.volume_is_given) {
        global.volume = volume;
    }
    (source_of(mount), global)
}

/// Returns where a new repository is to be made.
///
/// # Errors
/// Exit code 1 if bkfs is mounted there; otherwise those of [`target`].
pub fn target_of_new(text: &str) -> Result<String, Failure> {
    let text = meant(text, variable())?;
    match mount_of(&text)?.filter(|mount| is_at(mount, Path::new(&text))) {
        None => Ok(text),
        Some(mount) => {
            let message = format!("{text} is a mount of {}", source_of(&mount));
            Err(Failure::new(message).hint("Give the URL of the new repository."))
        }
    }
}

/// The repository that the environment names.
fn variable() -> Option<OsString> {
    std::env::var_os(VARIABLE).filter(|value| !value.is_empty())
}

/// Returns the argument, or `variable` if the argument is `-`. Without a `-` the variable changes
/// nothing.
fn meant(text: &str, variable: Option<OsString>) -> Result<String, Failure> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    let Some(value) = variable else {
        let why = format!("- stands for the repository that {VARIABLE} names, which is not set");
        return Err(Failure::usage(why));
    };
    value.into_string().map_err(|value| {
        let value = name_text(value.as_encoded_bytes());
        Failure::usage(format!("{VARIABLE} is not UTF-8: {value}"))
    })
}

/// What a mount says of its repository.
#[derive(Default)]
struct Told {
    endpoint: Option<String>,
    region: Option<String>,
    volume: Option<String>,
}

impl Told {
    /// Asks a mount.
    ///
    /// # Errors
    /// Exit code 1 if it does not answer.
    fn by(mount: &str) -> Result<Told, Failure> {
        let status = MountClient::find(Path::new(mount))?.status()?;
        let told = |name: &str| status[name].as_str().map(str::to_owned);
        Ok(Told {
            endpoint: told("endpoint"),
            region: told("region"),
            volume: told("volume"),
        })
    }
}

fn source_of(mount: &MountInfo) -> String {
    mount.source.to_string_lossy().into_owned()
}

/// Returns the bkfs mount that `text` means: its mount point, or a directory in it that is no
/// repository. A bare word means one only if bkfs is mounted right there, and if it names no
/// repository of the configuration.
fn mount_of(text: &str) -> Result<Option<MountInfo>, Failure> {
    let path = Path::new(text);
    if text.contains("://") || !may_be_mounted(path) {
        return Ok(None);
    }
    let mount = match bkfs_fuse::find_mount(path) {
        Ok(mount) => mount,
        // Nothing tells of mounts where /proc is not mounted, as in a bare root directory.
        Err(_) if !Path::new("/proc/self").exists() => None,
        Err(error) => return Err(Failure::new(format!("{text}: {error}"))),
    };
    let Some(mount) = mount.filter(MountInfo::is_bkfs) else {
        return Ok(None);
    };
    if is_at(&mount, path) {
        return Ok(profile::profile(text)?.is_none().then_some(mount));
    }
    let is_path = text.contains('/') || matches!(text, "." | "..");
    let means_it = is_path && !holds_repository(path);
    Ok(means_it.then_some(mount))
}

/// Returns true for directories, and for mount points whose daemon has ended or does not let this
/// user in.
fn may_be_mounted(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(found) => found.is_dir(),
        Err(error) => matches!(
            error.raw_os_error(),
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EACCES)
        ),
    }
}

/// Returns true if the path leads to the mount point itself.
fn is_at(mount: &MountInfo, path: &Path) -> bool {
    // The mount point of a daemon that has ended cannot be resolved, but the directory above can.
    let resolved = std::fs::canonicalize(path).or_else(|error| {
        let absolute = std::path::absolute(path)?;
        match (absolute.parent(), absolute.file_name()) {
            (Some(above), Some(name)) => Ok(std::fs::canonicalize(above)?.join(name)),
            _ => Err(error),
        }
    });
    resolved.is_ok_and(|path| path == mount.mount_point)
}

/// Returns true if a repository lies in this directory.
fn holds_repository(path: &Path) -> bool {
    path.join("config").is_file() && path.join("root").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Code;

    #[test]
    fn a_repository_in_a_directory_is_known_by_its_objects() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!holds_repository(directory.path()));
        std::fs::write(directory.path().join("config"), "of a tool").unwrap();
        assert!(!holds_repository(directory.path()));
        std::fs::write(directory.path().join("root"), "").unwrap();
        assert!(holds_repository(directory.path()));
    }

    #[test]
    fn only_a_dash_means_the_variable() {
        let variable = || Some("s3://bucket/one".into());
        assert_eq!(meant("s3://other", variable()).unwrap(), "s3://other");
        assert_eq!(meant("-", variable()).unwrap(), "s3://bucket/one");
        assert_eq!(meant("./-", None).unwrap(), "./-");
        assert_eq!(meant("-", None).unwrap_err().code, Code::Usage);
    }

    #[test]
    fn only_directories_can_be_mounts() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(may_be_mounted(directory.path()));
        assert!(!may_be_mounted(&file) && !may_be_mounted(&directory.path().join("absent")));
        assert!(mount_of("s3://bucket/prefix").unwrap().is_none());
        assert!(
            mount_of(&directory.path().to_string_lossy())
                .unwrap()
                .is_none()
        );
    }
}
