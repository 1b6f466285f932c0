//! Mount options of `-o`.
//!
//! Owns: the grammar of option strings, the options that every filesystem has (`ro`, `noexec`, …),
//! those of FUSE (`allow_other`, …), and the fstab options that are ignored.
//! Does not own: bkfs's own options. [`MountOptions::others`] holds those, in order; their reader
//! refuses unknown ones with [`OptionError::Unknown`].
//!
//! Grammar: options are separated by commas and have the form `key` or `key=value`. A value may
//! stand in double quotes, inside which commas have no special meaning. `\,` and `\\` stand for a
//! comma and a backslash anywhere. Several strings are read one after another; of contradicting
//! options the last one wins.

use thiserror::Error;

/// The users who may use the mount. Permissions are checked in addition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Only the user who mounted it.
    #[default]
    Owner,
    /// That user and root (`allow_root`).
    OwnerAndRoot,
    /// All users (`allow_other`).
    Everyone,
}

/// Owners and permissions that the mount shows for all files, whatever is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// `uid=`: the owner shown.
    pub uid: Option<u32>,
    /// `gid=`: the group shown.
    pub gid: Option<u32>,
    /// `umask=`, octal: permission bits that are not shown.
    pub umask: Option<u16>,
}

/// Flags of mount(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountFlags {
    /// `ro`.
    pub read_only: bool,
    /// `nosuid`; set unless `suid` or `allow_suid` is given, as in other FUSE mounts.
    pub nosuid: bool,
    /// `nodev`; set unless `dev` or `allow_dev` is given.
    pub nodev: bool,
    /// `noexec`.
    pub noexec: bool,
    /// `sync`.
    pub synchronous: bool,
    /// `dirsync`.
    pub dirsync: bool,
    /// `noatime`.
    pub noatime: bool,
    /// `nodiratime`.
    pub nodiratime: bool,
    /// `relatime`.
    pub relatime: bool,
    /// `strictatime`.
    pub strictatime: bool,
    /// `lazytime`.
    pub lazytime: bool,
    /// `nosymfollow`.
    pub nosymfollow: bool,
    /// `silent`.
    pub silent: bool,
}

impl Default for MountFlags {
    fn default() -> Self {
        Self {
            read_only: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            synchronous: false,
            dirsync: false,
            noatime: false,
            nodiratime: false,
            relatime: false,
            strictatime: false,
            lazytime: false,
            nosymfollow: false,
            silent: false,
        }
    }
}

/// An option that this module does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherOption {
    /// The part before `=`.
    pub key: String,
    /// The part after `=`; `None` without `=`.
    pub value: Option<String>,
}

/// The parsed `-o` strings of one mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Flags for mount(2).
    pub flags: MountFlags,
    /// `allow_other`, `allow_root`.
    pub access: Access,
    /// `uid=`, `gid=`, `umask=`.
    pub ownership: Ownership,
    /// Security labels (`context=`, `fscontext=`, `defcontext=`, `rootcontext=`), passed to the
    /// kernel unchanged.
    pub security: Vec<String>,
    /// Options that this module does not know, in order of appearance, with repetitions.
    pub others: Vec<OtherOption>,
}

/// An error in an option.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    /// No module knows the option.
    #[error("unknown mount option '{0}'")]
    Unknown(String),
    /// The option needs a value.
    #[error("mount option '{0}' needs a value")]
    NoValue(String),
    /// The option takes no value.
    #[error("mount option '{0}' takes no value")]
    UnwantedValue(String),
    /// The value of the option is invalid.
    #[error("mount option '{key}={value}': expected {expected}")]
    BadValue {
        /// The option.
        key: String,
        /// The value given.
        value: String,
        /// The form of a valid value.
        expected: &'static str,
    },
    /// The option is not supported for this kind of filesystem.
    #[error("mount option '{0}' is not supported: unmount and mount again")]
    Unsupported(String),
    /// A quotation mark has no closing quotation mark.
    #[error("the mount options end inside a quotation: {0}")]
    OpenQuotation(String),
}

impl MountOptions {
    /// Parses the strings of all `-o`, in order.
    ///
    /// # Errors
    /// For the first malformed option: [`OptionError::NoValue`], [`OptionError::UnwantedValue`],
    /// [`OptionError::BadValue`], [`OptionError::Unsupported`] or [`OptionError::OpenQuotation`].
    pub fn parse<S: AsRef<str>>(strings: impl IntoIterator<Item = S>) -> Result<Self, OptionError> {
        let mut options = MountOptions::default();
        let mut leave = Leave::default();
        for string in strings {
            for option in split(string.as_ref())? {
                leave.note(&option.key);
                options.apply(option)?;
            }
        }
        leave.apply(&mut options.flags);
        Ok(options)
    }

    fn apply(&mut self, option: RawOption) -> Result<(), OptionError> {
        let RawOption { key, value, raw } = option;
        if is_noise(&key) {
            if matches!(key.as_str(), "user" | "users" | "owner" | "group") {
                // As in mount(8): mounts by ordinary users get the harmless flags.
                self.flags.nosuid = true;
                self.flags.nodev = true;
                self.flags.noexec |= matches!(key.as_str(), "user" | "users");
            }
            return Ok(());
        }
        match key.as_str() {
            "uid" => self.ownership.uid = Some(number(&key, value)?),
            "gid" => self.ownership.gid = Some(number(&key, value)?),
            "umask" => self.ownership.umask = Some(mask(&key, value)?),
            "context" | "fscontext" | "defcontext" | "rootcontext" => self.security.push(raw),
            "remount" => return Err(OptionError::Unsupported(key)),
            _ => return self.apply_flag(key, value),
        }
        Ok(())
    }

    fn apply_flag(&mut self, key: String, value: Option<String>) -> Result<(), OptionError> {
        let flags = &mut self.flags;
        match key.as_str() {
            "ro" => flags.read_only = true,
            "rw" => flags.read_only = false,
            "suid" => flags.nosuid = false,
            "nosuid" => flags.nosuid = true,
            "dev" => flags.nodev = false,
            "nodev" => flags.nodev = true,
            "exec" => flags.noexec = false,
            "noexec" => flags.noexec = true,
            "async" => flags.synchronous = false,
            "sync" => flags.synchronous = true,
            "dirsync" => flags.dirsync = true,
            "atime" => flags.noatime = false,
            "noatime" => flags.noatime = true,
            "diratime" => flags.nodiratime = false,
            "nodiratime" => flags.nodiratime = true,
            "relatime" => flags.relatime = true,
            "norelatime" => flags.relatime = false,
            "strictatime" => flags.strictatime = true,
            "nostrictatime" => flags.strictatime = false,
            "lazytime" => flags.lazytime = true,
            "nolazytime" => flags.lazytime = false,
            "symfollow" => flags.nosymfollow = false,
            "nosymfollow" => flags.nosymfollow = true,
            "silent" => flags.silent = true,
            "loud" => flags.silent = false,
            "allow_other" => self.access = Access::Everyone,
            "allow_root" => self.access = Access::OwnerAndRoot,
            // Always on: the filesystem checks no permissions itself.
            "default_permissions" => {}
            // See `Leave`.
            "allow_suid" | "allow_dev" => {}
            _ => {
                self.others.push(OtherOption { key, value });
                return Ok(());
            }
        }
        match value {
            None => Ok(()),
            Some(_) => Err(OptionError::UnwantedValue(key)),
        }
    }
}

/// The effect of `allow_suid` and `allow_dev`: the same as `suid` and `dev`, which mount(8) does
/// not pass to its helpers because they are its defaults.
///
/// mount(8) puts its own options before those that it does not know, so the rule "the last one
/// wins" does not apply here. `nosuid` and `nodev` always win, whether given or implied by `user`,
/// `users`, `owner` or `group`.
#[derive(Default)]
struct Leave {
    allow_suid: bool,
    allow_dev: bool,
    refuse_suid: bool,
    refuse_dev: bool,
}

impl Leave {
    fn note(&mut self, key: &str) {
        match key {
            "allow_suid" => self.allow_suid = true,
            "allow_dev" => self.allow_dev = true,
            "nosuid" => self.refuse_suid = true,
            "nodev" => self.refuse_dev = true,
            "user" | "users" | "owner" | "group" => {
                self.refuse_suid = true;
                self.refuse_dev = true;
            }
            _ => {}
        }
    }

    fn apply(&self, flags: &mut MountFlags) {
        flags.nosuid &= !self.allow_suid || self.refuse_suid;
        flags.nodev &= !self.allow_dev || self.refuse_dev;
    }
}

/// Returns true for fstab options that are meant for mount(8) or systemd, or that have no effect.
fn is_noise(key: &str) -> bool {
    matches!(
        key,
        "" | "defaults"
            | "auto"
            | "noauto"
            | "nofail"
            | "fail"
            | "_netdev"
            | "user"
            | "nouser"
            | "users"
            | "nousers"
            | "owner"
            | "noowner"
            | "group"
            | "nogroup"
            | "comment"
            | "uhelper"
            | "helper"
            | "mand"
            | "nomand"
            | "iversion"
            | "noiversion"
            | "nonempty"
    ) || key.starts_with("x-")
        || key.starts_with("X-")
}

fn number(key: &str, value: Option<String>) -> Result<u32, OptionError> {
    let value = value.ok_or_else(|| OptionError::NoValue(key.to_owned()))?;
    // The largest number means "no such id" in chown(2) and similar calls.
    match value.parse() {
        Ok(u32::MAX) | Err(_) => Err(OptionError::BadValue {
            key: key.to_owned(),
            value,
            expected: "a numeric id",
        }),
        Ok(number) => Ok(number),
    }
}

fn mask(key: &str, value: Option<String>) -> Result<u16, OptionError> {
    let value = value.ok_or_else(|| OptionError::NoValue(key.to_owned()))?;
    let is_octal = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    match u16::from_str_radix(&value, 8) {
        Ok(mask) if is_octal && mask <= 0o777 => Ok(mask),
        _ => Err(OptionError::BadValue {
            key: key.to_owned(),
            value,
            expected: "an octal number up to 777",
        }),
    }
}

/// One option: key and value unescaped, and `raw` as given.
#[derive(Debug, Default, PartialEq, Eq)]
struct RawOption {
    key: String,
    value: Option<String>,
    raw: String,
}

impl RawOption {
    fn push(&mut self, character: char) {
        self.value.as_mut().unwrap_or(&mut self.key).push(character);
    }
}

fn split(string: &str) -> Result<Vec<RawOption>, OptionError> {
    let mut options = Vec::new();
    let mut option = RawOption::default();
    let mut is_quoted = false;
    let mut characters = string.chars().peekable();
    while let Some(character) = characters.next() {
        if character == ',' && !is_quoted {
            options.push(std::mem::take(&mut option));
            continue;
        }
        option.raw.push(character);
        match character {
            '\\' => match characters.next_if(|&next| next == ',' || next == '\\') {
                Some(escaped) => {
                    option.raw.push(escaped);
                    option.push(escaped);
                }
                None => option.push('\\'),
            },
            '"' if option.value.is_some() => is_quoted = !is_quoted,
            '=' if option.value.is_none() => option.value = Some(String::new()),
            other => option.push(other),
        }
    }
    if is_quoted {
        return Err(OptionError::OpenQuotation(option.raw));
    }
    options.push(option);
    Ok(options)
}

#[cfg(test)]
mod tests;
