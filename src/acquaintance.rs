//! The repository that this machine has seen at an address.
//!
//! This module owns the files `STATE_DIR/known/ADDRESS`, one for each address (its hash). Every
//! party with write access to a bucket can replace its config, by that of another repository or of
//! one that is not encrypted. The user's password or data would then go to a repository that they
//! were not meant for. These files detect this. The loss of a file loses the alarm, never data.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use bkfs_chunker::crypto::{Keyring, RepositoryId};
use bkfs_store::{RepositoryUrl, StoreOptions};

use crate::private;
use crate::root::blocking::blocking;

/// The properties of a repository that a machine remembers.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Acquaintance {
    /// The repository's id.
    pub repository: RepositoryId,
    /// Whether the repository is encrypted.
    pub sealed: bool,
}

impl Acquaintance {
    /// Returns the properties of the repository that `keyring` belongs to.
    pub fn of(keyring: &Keyring) -> Self {
        Self {
            repository: keyring.repository(),
            sealed: keyring.is_sealed(),
        }
    }

    /// Parses `ID encrypted` or `ID plain` from the first line. Returns `None` for anything else.
    fn parse(text: &str) -> Option<Self> {
        let (id, sealed) = text.lines().next()?.split_once(' ')?;
        match sealed {
            "encrypted" => Self::named(id, true),
            "plain" => Self::named(id, false),
            _ => None,
        }
    }

    /// Returns the repository with this id (32 hexadecimal digits), or `None` if `id` does not have
    /// this form.
    pub fn named(id: &str, sealed: bool) -> Option<Self> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(id, &mut bytes).ok()?;
        Some(Self {
            repository: RepositoryId(bytes),
            sealed,
        })
    }
}

impl fmt::Display for Acquaintance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { repository, sealed } = self;
        let how = if *sealed {
            "encrypted"
        } else {
            "not encrypted"
        };
        write!(formatter, "repository {repository} ({how})")
    }
}

/// The address of a repository, and the file in which this machine remembers the repository there.
#[derive(Clone, Debug)]
pub struct AddressRecord {
    file: PathBuf,
    address: String,
}

impl AddressRecord {
    /// Returns the address that `url` and the options of its store make. Touches no file.
    pub fn of(state_dir: &Path, url: &RepositoryUrl, store: &StoreOptions) -> Self {
        let endpoint = store.endpoint.as_deref().unwrap_or_default();
        // The part before the host may be a password.
        let endpoint = endpoint.rsplit('@').next().unwrap_or_default();
        let address = format!("{url} {endpoint}").trim_end().to_owned();
        let hash = blake3::hash(address.as_bytes()).to_hex();
        Self {
            file: state_dir.join("known").join(&hash[..32]),
            address,
        }
    }

    /// Returns the remembered repository.
    ///
    /// A file that cannot be read counts as none, and a warning is logged.
    pub async fn recall(&self) -> Option<Acquaintance> {
        let file = self.file.clone();
        let read = blocking(move || match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(|text| Acquaintance::parse(&text)),
        });
        read.await.unwrap_or_else(|error| {
            tracing::warn!(%error,
                "cannot read which repository was here; another one in its place would go \
                 unnoticed");
            None
        })
    }

    /// Records the repository that was opened at this address.
    ///
    /// A failure only loses an alarm, and is logged as a warning. If the future is dropped, the
    /// record may or may not have been written.
    pub async fn remember(&self, found: Acquaintance) {
        let Self { file, address } = self.clone();
        let written = blocking(move || write(&file, &address, found)).await;
        if let Err(error) = written {
            tracing::warn!(%error,
                "cannot remember which repository is here; another one in its place would go \
                 unnoticed");
        }
    }
}

/// Returns the repository that is remembered at `place`, or `None` if the user accepts another one
/// (`accepted`).
pub async fn known_at(place: Option<&AddressRecord>, accepted: bool) -> Option<Acquaintance> {
    match (place, accepted) {
        (Some(place), false) => place.recall().await,
        _ => None,
    }
}

/// Replaces the file atomically, unless it already holds the same record.
fn write(file: &Path, address: &str, found: Acquaintance) -> io::Result<()> {
    let known = std::fs::read_to_string(file).ok();
    if known.and_then(|text| Acquaintance::parse(&text)) == Some(found) {
        return Ok(());
    }
    let directory = file.parent().unwrap_or(Path::new("."));
    if let Some(state) = directory.parent() {
        private::make_directory(state)?;
    }
    private::make_directory(directory)?;
    let how = if found.sealed { "encrypted" } else { "plain" };
    let address = address.escape_debug();
    let text = format!("{} {how}\n{address}\n", found.repository);
    private::replace(file, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bkfs_store::parse_url;

    fn place(state: &Path, url: &str, endpoint: Option<&str>) -> AddressRecord {
        let store = StoreOptions {
            endpoint: endpoint.map(str::to_owned),
            ..StoreOptions::default()
        };
        AddressRecord::of(state, &parse_url(url).unwrap(), &store)
    }

    #[tokio::test]
    async fn each_address_has_a_memory_of_its_own() {
        let state = tempfile::tempdir().unwrap();
        let here = place(state.path(), "s3://bucket/a", Some("https://one.example"));
        let other = place(state.path(), "s3://bucket/a", Some("https://two.example"));
        assert_eq!(here.recall().await, None);
        for sealed in [true, false] {
            let found = Acquaintance {
                repository: RepositoryId([7; 16]),
                sealed,
            };
            here.remember(found).await;
            assert_eq!(here.recall().await, Some(found));
        }
        assert_eq!(other.recall().await, None);
        let user = place(
            state.path(),
            "s3://bucket/a",
            Some("https://me:word@one.example"),
        );
        assert!(!user.address.contains("word"), "{}", user.address);
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_nothing_known() {
        let state = tempfile::tempdir().unwrap();
        let here = place(state.path(), "/backup", None);
        std::fs::create_dir_all(here.file.parent().unwrap()).unwrap();
        for text in [
            "",
            "x",
            "0707 encrypted",
            "07070707070707070707070707070707 maybe",
        ] {
            std::fs::write(&here.file, text).unwrap();
            assert_eq!(here.recall().await, None, "{text:?}");
        }
    }
}
