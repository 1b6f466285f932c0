//! The configuration file: names for repositories.
//!
//! ```toml
//! [repository.offsite]
//! url = "s3://backups/db1"
//! endpoint = "https://minio.example"
//! password_file = "/etc/bkfs.password"
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A file of configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Repositories by name.
    #[serde(default, rename = "repository")]
    pub repositories: BTreeMap<String, NamedRepository>,
}

/// A repository with a name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedRepository {
    /// Its URL.
    pub url: String,
    /// The store's address.
    pub endpoint: Option<String>,
    /// The store's region.
    pub region: Option<String>,
    /// A file with the password.
    pub password_file: Option<PathBuf>,
    /// A command that prints the password.
    pub password_command: Option<String>,
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("configuration {}: {reason}", path.display())]
pub struct ConfigError {
    path: PathBuf,
    reason: String,
}

impl Config {
    /// Reads all files that are there; a later one's repositories replace those of the same name.
    pub fn load(files: &[PathBuf]) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        for path in files {
            if let Some(more) = Config::read(path)? {
                config.repositories.extend(more.repositories);
            }
        }
        Ok(config)
    }

    fn read(path: &Path) -> Result<Option<Config>, ConfigError> {
        let failed = |reason: String| ConfigError {
            path: path.to_owned(),
            reason,
        };
        match std::fs::read_to_string(path) {
            Ok(text) => toml::from_str(&text)
                .map(Some)
                .map_err(|error| failed(error.to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_add_up_and_mistakes_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let system = file(
            "system",
            "[repository.a]\nurl = 's3://a'\n[repository.b]\nurl = 's3://b'\n",
        );
        let user = file("user", "[repository.b]\nurl = '/mnt/b'\nregion = 'x'\n");
        let absent = directory.path().join("absent");
        let config = Config::load(&[system.clone(), absent, user]).unwrap();
        assert_eq!(config.repositories["a"].url, "s3://a");
        assert_eq!(config.repositories["b"].url, "/mnt/b");
        let wrong = file(
            "wrong",
            "[repository.a]\nurl = 's3://a'\npasword_file = 'x'\n",
        );
        let error = Config::load(&[system, wrong]).unwrap_err().to_string();
        assert!(
            error.contains("pasword_file") && error.contains("wrong"),
            "{error}"
        );
    }
}
