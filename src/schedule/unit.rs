//! The systemd units of a job: a service of `Type=oneshot`, and its timer.

use std::path::{Path, PathBuf};

use super::{Job, Needs, ScheduleError};

/// The first words of every unit that bkfs writes. The name of the profile follows.
const MARK: &str = "# bkfs schedule of ";

/// Limits of every job: nothing that a backup tool or a drill needs.
const FOR_ALL: &str = "\
NoNewPrivileges=yes
LockPersonality=yes
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
KeyringMode=private
# The memory of bkfs holds keys and passwords.
LimitCORE=0
LimitMEMLOCK=8M
UMask=0077
";

/// More limits of a backup. Its tool reads what it saves, speaks to databases and makes files of all
/// owners.
const FOR_BACKUPS: &str = "\
ProtectSystem=full
ProtectHome=read-only
PrivateDevices=yes
PrivateMounts=yes
RestrictNamespaces=yes
CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID \
CAP_IPC_LOCK CAP_SETFCAP CAP_SETGID CAP_SETUID
SystemCallFilter=@system-service
";

/// More limits of a drill. It mounts a clone, and starts a database or another program with the
/// rights of its user, in namespaces of its own. runuser(1) writes to the audit log, and a drill ends
/// processes of that user.
const FOR_DRILLS: &str = "\
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateMounts=yes
DevicePolicy=closed
DeviceAllow=/dev/fuse rw
ReadWritePaths=/run
RestrictNamespaces=mnt net pid
CapabilityBoundingSet=CAP_AUDIT_WRITE CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER \
CAP_FSETID CAP_IPC_LOCK CAP_KILL CAP_NET_ADMIN CAP_SETGID CAP_SETUID CAP_SYS_ADMIN
SystemCallFilter=@system-service @mount
";

/// What `ProtectHome=` covers (systemd.exec(5)).
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// More limits of maintenance, which needs nothing but the store and the files of bkfs. It sees all
/// processes: whether the holder of a volume lives is judged by that.
const FOR_MAINTENANCE: &str = "\
ProtectSystem=strict
ProtectHome=read-only
PrivateDevices=yes
PrivateTmp=yes
RestrictNamespaces=yes
CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_IPC_LOCK
MemoryDenyWriteExecute=yes
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
Nice=10
";

/// The directories of bkfs, which others must not read.
const DIRECTORIES: &str = "\
StateDirectory=bkfs
StateDirectoryMode=0700
CacheDirectory=bkfs
CacheDirectoryMode=0700
";

/// Where the units of a schedule find what they need.
#[derive(Debug, Clone)]
pub struct Surroundings<'a> {
    /// The name of the profile.
    pub name: &'a str,
    /// The path of bkfs.
    pub program: &'a Path,
    /// Directories of this machine that are repositories, and that maintenance writes to.
    pub buckets: Vec<PathBuf>,
}

/// Returns the profile whose units the text of a unit belongs to; none if bkfs did not write it.
pub fn owner(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix(MARK)
}

/// Returns the text of the service of a job.
///
/// # Errors
/// [`ScheduleError::Text`] if a line of it cannot hold what stands in the job.
pub fn service(job: &Job, around: &Surroundings<'_>) -> Result<String, ScheduleError> {
    let name = around.name;
    let mut lines = vec![
        format!("{MARK}{name}"),
        "# `bkfs schedule install` replaces this file. `systemctl edit` adds to it.".to_owned(),
        String::new(),
        "[Unit]".to_owned(),
        format!("Description={}", job.description),
        "Documentation=man:bkfs(1) man:bkfs.toml(5)".to_owned(),
        "Wants=network-online.target".to_owned(),
        "After=network-online.target".to_owned(),
    ];
    if let Some(mount) = job.mount() {
        lines.push(format!("RequiresMountsFor={}", path(mount)?));
    }
    lines.push("\n[Service]\nType=oneshot".to_owned());
    // The configuration of root counts, and tools look for theirs there.
    lines.push("Environment=HOME=%h".to_owned());
    lines.push(format!("EnvironmentFile=-/etc/bkfs/{name}.env"));
    for command in &job.commands {
        let mut words = vec![path(around.program)?];
        for argument in command {
            words.push(argument_word(argument)?);
        }
        lines.push(format!("ExecStart={}", words.join(" ")));
    }
    let limits = match &job.needs {
        Needs::Mount(_) => FOR_BACKUPS.to_owned(),
        Needs::Nothing | Needs::File(_) => format!("{FOR_MAINTENANCE}{DIRECTORIES}"),
        Needs::Namespaces => format!("{FOR_DRILLS}{DIRECTORIES}"),
    };
    lines.push(format!("\n{FOR_ALL}{}", limits.trim_end()));
    for place in written(job, around) {
        lines.push(format!("ReadWritePaths={}", path(place)?));
    }
    Ok(lines.join("\n") + "\n")
}

/// Returns the places that a job writes to, and that its limits do not name.
fn written<'a>(job: &'a Job, around: &'a Surroundings<'_>) -> Vec<&'a Path> {
    let buckets = around.buckets.iter().map(PathBuf::as_path);
    match &job.needs {
        Needs::Mount(mount) => {
            let is_at_home = HOMES.iter().any(|home| mount.starts_with(home));
            is_at_home.then_some(&**mount).into_iter().collect()
        }
        Needs::Nothing | Needs::Namespaces => buckets.collect(),
        Needs::File(file) => buckets.chain(file.parent()).collect(),
    }
}

/// Returns the text of the timer of a job.
///
/// # Errors
/// As [`service`].
pub fn timer(job: &Job, name: &str) -> Result<String, ScheduleError> {
    Ok(format!(
        "{MARK}{name}\n\n[Unit]\nDescription={}\n\n[Timer]\nOnCalendar={}\nRandomizedDelaySec={}\n\
         # A time at which the machine was off is made up for.\nPersistent=true\n\n\
         [Install]\nWantedBy=timers.target\n",
        job.description,
        plain(&job.at)?,
        plain(&job.delay)?
    ))
}

/// Returns a text that stands in a line as it is.
fn plain(text: &str) -> Result<&str, ScheduleError> {
    match text.chars().any(char::is_control) {
        true => Err(ScheduleError::Text(text.to_owned())),
        false => Ok(text),
    }
}

/// Returns an argument as a word of a command line of systemd.service(5): variables and specifiers
/// stand for themselves.
fn argument_word(argument: &str) -> Result<String, ScheduleError> {
    Ok(quoted(plain(argument)?).replace('$', "$$"))
}

/// Returns a path as a word. systemd.unit(5): `%` begins a specifier.
fn path(path: &Path) -> Result<String, ScheduleError> {
    let text = path.to_str();
    let text = text.ok_or_else(|| ScheduleError::Text(path.to_string_lossy().into_owned()))?;
    Ok(quoted(plain(text)?))
}

fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-=:,+@".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", escaped.replace('%', "%%"))
}
