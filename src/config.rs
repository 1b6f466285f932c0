//! The configuration file: profiles of repositories, and the prices of a store.
//!
//! docs/configuration.md describes the file for users.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};

use crate::retain::{Policy, Span};
use crate::schedule::Schedule;

/// The content of one or several configuration files.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The profiles of the repositories, by name.
    #[serde(default, rename = "repository")]
    pub repositories: BTreeMap<String, RepositoryProfile>,
    /// The prices of stores for which the profile has none.
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

/// What a name stands for: a repository, and how it is used on this machine.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepositoryProfile {
    /// The URL of the repository.
    pub url: String,
    /// The volume of commands and mounts that are given none.
    pub volume: Option<String>,
    /// The mount options, as after `-o`.
    pub options: Option<String>,
    /// The rules by which `bkfs forget` keeps snapshots if it is given none.
    pub retention: Option<Retention>,
    /// What runs when on this machine.
    pub schedule: Option<Schedule>,
    /// The prices of the store.
    pub prices: Option<Prices>,
    /// The address of the store.
    pub endpoint: Option<String>,
    /// The region of the store.
    pub region: Option<String>,
    /// The path of a file with the password.
    pub password_file: Option<PathBuf>,
    /// The command that prints the password.
    pub password_command: Option<String>,
}

/// The rules of retention. The fields are the options of `bkfs forget` of these names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    keep_last: u32,
    keep_hourly: u32,
    keep_daily: u32,
    keep_weekly: u32,
    keep_monthly: u32,
    keep_yearly: u32,
    #[serde(deserialize_with = "span")]
    keep_within: Option<Span>,
    keep_tag: Vec<String>,
}

impl From<Retention> for Policy {
    fn from(rules: Retention) -> Self {
        Self {
            last: rules.keep_last,
            hourly: rules.keep_hourly,
            daily: rules.keep_daily,
            weekly: rules.keep_weekly,
            monthly: rules.keep_monthly,
            yearly: rules.keep_yearly,
            within: rules.keep_within,
            tags: rules.keep_tag,
        }
    }
}

/// Reads a stretch of time such as `30d`.
fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Span>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
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
        let whole = file(
            "whole",
            "[repository.a]\nurl = 's3://a'\nvolume = 'db'\noptions = 'memory=1G,allow_other'\n\
             [repository.a.retention]\nkeep_last = 3\nkeep_within = '30d'\nkeep_tag = ['x']\n\
             [repository.a.prices]\ncurrency = 'EUR'\n",
        );
        let profile = Config::load(&[whole]).unwrap().repositories.remove("a");
        let profile = profile.unwrap();
        assert_eq!(profile.volume.as_deref(), Some("db"));
        assert_eq!(profile.options.as_deref(), Some("memory=1G,allow_other"));
        assert_eq!(profile.prices.unwrap().currency, "EUR");
        let policy = Policy::from(profile.retention.unwrap());
        let expected = Policy {
            last: 3,
            within: Some("30d".parse().unwrap()),
            tags: vec!["x".to_owned()],
            ..Policy::default()
        };
        assert_eq!(policy, expected);
        let bad = file(
            "bad",
            "[repository.a]\nurl = 's3://a'\nretention = { keep_within = 'soon' }\n",
        );
        let error = Config::load(&[bad]).unwrap_err().to_string();
        assert!(error.contains("soon") && error.contains("12h"), "{error}");
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
