//! The configuration file: named repositories, and the prices of a store.
//!
//! ```toml
//! [repository.offsite]
//! url = "s3://backups/db1"
//! endpoint = "https://minio.example"
//! password_file = "/etc/bkfs.password"
//!
//! [prices]
//! currency = "EUR"
//! storage_gb_month = 0.02
//! put_1000 = 0.005
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The content of one or several configuration files.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The repositories by name.
    #[serde(default, rename = "repository")]
    pub repositories: BTreeMap<String, NamedRepository>,
    /// The prices of the store.
    pub prices: Option<Prices>,
}

/// The prices of a store.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// The currency of the prices.
    pub currency: String,
    /// Price of one gigabyte (2^30 bytes) for one month.
    pub storage_gb_month: f64,
    /// Price of one thousand write requests.
    pub put_1000: f64,
}

impl Default for Prices {
    /// Returns the list prices of S3 Standard in us-east-1, first 50 TB, as of 2025.
    fn default() -> Self {
        Prices {
            currency: "USD".to_owned(),
            storage_gb_month: 0.023,
            put_1000: 0.005,
        }
    }
}

/// A repository with a name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedRepository {
    /// The URL of the repository.
    pub url: String,
    /// The address of the store.
    pub endpoint: Option<String>,
    /// The region of the store.
    pub region: Option<String>,
    /// The path of a file with the password.
    pub password_file: Option<PathBuf>,
    /// The command that prints the password.
    pub password_command: Option<String>,
}

/// The reason why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("configuration {}: {reason}", path.display())]
pub struct ConfigError {
    path: PathBuf,
    reason: String,
}

impl Config {
    /// Reads all files that exist, in order.
    ///
    /// A repository or the prices of a later file replace those of an earlier one.
    ///
    /// # Errors
    /// [`ConfigError`] for the first file that cannot be read or has a wrong form. A file that does
    /// not exist is no error.
    pub fn load(files: &[PathBuf]) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        for path in files {
            if let Some(more) = Config::read(path)? {
                config.repositories.extend(more.repositories);
                config.prices = more.prices.or(config.prices);
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
        let user = file(
            "user",
            "[repository.b]\nurl = '/mnt/b'\nregion = 'x'\n[prices]\nput_1000 = 0.01\n",
        );
        assert_eq!(
            Config::load(std::slice::from_ref(&system)).unwrap().prices,
            None
        );
        let absent = directory.path().join("absent");
        let config = Config::load(&[system.clone(), absent, user]).unwrap();
        assert_eq!(config.repositories["a"].url, "s3://a");
        assert_eq!(config.repositories["b"].url, "/mnt/b");
        let prices = config.prices.unwrap();
        assert_eq!((prices.put_1000, prices.currency.as_str()), (0.01, "USD"));
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
