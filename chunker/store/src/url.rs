//! Repository URLs, as users give them on the command line.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::key::fault_of_part;

/// The location of a repository.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum RepositoryUrl {
    /// `s3://bucket/prefix`: S3 and every server that speaks its protocol.
    S3 {
        /// The bucket's name.
        bucket: String,
        /// The beginning of all keys of the repository, without slashes at its ends. Empty if the
        /// repository has the whole bucket.
        prefix: String,
    },
    /// `gs://bucket/prefix`: Google Cloud Storage.
    Gcs {
        /// The bucket's name.
        bucket: String,
        /// As for S3.
        prefix: String,
    },
    /// `az://container/prefix`: Azure Blob Storage. The environment or the configuration file names
    /// the account.
    Azure {
        /// The container's name.
        container: String,
        /// As for S3.
        prefix: String,
    },
    /// `file:///dir`, or a path with a slash: a directory that is used as a bucket.
    Local {
        /// The directory. It is relative to the current directory if the user gave a relative path.
        path: PathBuf,
    },
    /// A bare word: a name from the configuration file if it is there, otherwise a bucket of S3
    /// (see [`RepositoryUrl::or_bucket`]).
    Word(String),
}

/// A repository URL that cannot be parsed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{url:?} is not a repository: {reason}")]
pub struct UrlError {
    url: String,
    reason: String,
}

impl UrlError {
    fn new(url: &str, reason: impl Into<String>) -> Self {
        Self {
            url: without_credentials(url),
            reason: reason.into(),
        }
    }
}

/// Parses a repository URL: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///dir`, a path with a
/// slash, or a bare word.
///
/// # Errors
/// [`UrlError`] if the text is empty, has a NUL character or an unknown scheme, holds credentials,
/// or names an invalid bucket, prefix or path. The error never repeats credentials.
pub fn parse_url(text: &str) -> Result<RepositoryUrl, UrlError> {
    if text.is_empty() {
        return Err(UrlError::new(text, "it is empty"));
    }
    if text.contains('\0') {
        return Err(UrlError::new(text, "it has a NUL character"));
    }
    match text.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => parse_scheme(text, scheme, rest),
        _ if text.contains('/') || text == "." || text == ".." => Ok(RepositoryUrl::Local {
            path: PathBuf::from(text),
        }),
        _ => {
            check_bucket(text, text)?;
            Ok(RepositoryUrl::Word(text.to_owned()))
        }
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text
            .chars()
            .all(|each| each.is_ascii_alphanumeric() || "+-.".contains(each))
}

fn parse_scheme(text: &str, scheme: &str, rest: &str) -> Result<RepositoryUrl, UrlError> {
    match scheme.to_ascii_lowercase().as_str() {
        "file" => parse_file(text, rest),
        "s3" => {
            let (bucket, prefix) = parse_bucket(text, rest)?;
            Ok(RepositoryUrl::S3 { bucket, prefix })
        }
        "gs" => {
            let (bucket, prefix) = parse_bucket(text, rest)?;
            Ok(RepositoryUrl::Gcs { bucket, prefix })
        }
        "az" => {
            let (container, prefix) = parse_bucket(text, rest)?;
            Ok(RepositoryUrl::Azure { container, prefix })
        }
        "http" | "https" => Err(UrlError::new(
            text,
            "give the bucket as s3://bucket/prefix, and the server with -o endpoint= or \
             AWS_ENDPOINT_URL",
        )),
        other => Err(UrlError::new(
            text,
            format!(
                "{other}:// is not known; known are s3://bucket/prefix, gs://bucket/prefix, \
                 az://container/prefix, file:///directory, and a path with a slash"
            ),
        )),
    }
}

fn parse_bucket(text: &str, rest: &str) -> Result<(String, String), UrlError> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    check_bucket(text, bucket)?;
    let prefix = prefix.trim_matches('/');
    if prefix.len() > 256 {
        return Err(UrlError::new(text, "its prefix is longer than 256 bytes"));
    }
    if !prefix.is_empty()
        && let Some(fault) = prefix.split('/').find_map(fault_of_part)
    {
        return Err(UrlError::new(text, format!("of its prefix: {fault}")));
    }
    Ok((bucket.to_owned(), prefix.to_owned()))
}

fn check_bucket(text: &str, bucket: &str) -> Result<(), UrlError> {
    if bucket.is_empty() {
        return Err(UrlError::new(text, "the bucket's name is missing"));
    }
    if bucket.contains('@') {
        return Err(UrlError::new(
            text,
            "it has an @: credentials come from the environment or the configuration file, never \
             from the URL",
        ));
    }
    let allowed = |each: char| each.is_ascii_alphanumeric() || "-._".contains(each);
    if !bucket.chars().all(allowed) || bucket.len() > 255 || bucket.starts_with('.') {
        return Err(UrlError::new(
            text,
            "a bucket's name has letters, digits, hyphens, dots and underscores; a directory is \
             given with a slash, as ./directory",
        ));
    }
    Ok(())
}

fn parse_file(text: &str, rest: &str) -> Result<RepositoryUrl, UrlError> {
    let path = match rest.strip_prefix("localhost") {
        Some(path) if path.starts_with('/') => path,
        _ => rest,
    };
    if !path.starts_with('/') {
        return Err(UrlError::new(
            text,
            "a file URL has three slashes and an absolute path, as file:///srv/bucket",
        ));
    }
    let path = decode_percent(path).ok_or_else(|| {
        UrlError::new(
            text,
            "a % in it is not followed by two hexadecimal digits of a character; write %25 for \
             the character itself",
        )
    })?;
    Ok(RepositoryUrl::Local {
        path: PathBuf::from(path),
    })
}

fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            let digits = after.get(..2)?;
            let mut byte = [0];
            hex::decode_to_slice(digits, &mut byte).ok()?;
            bytes.push(byte[0]);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes)
        .ok()
        .filter(|path| !path.contains('\0'))
}

/// Returns the URL for a message, without the text before an `@`, which may be a password.
fn without_credentials(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at && !url[..scheme].contains('@') => {
            format!("{}://…{}", &url[..scheme], &url[at..])
        }
        (_, Some(at)) => format!("…{}", &url[at..]),
        (_, None) => url.to_owned(),
    }
}

impl RepositoryUrl {
    /// Returns the meaning of a bare word that the configuration file does not list: a bucket of
    /// S3. Returns every other URL unchanged.
    pub fn or_bucket(self) -> Self {
        match self {
            RepositoryUrl::Word(bucket) => RepositoryUrl::S3 {
                bucket,
                prefix: String::new(),
            },
            other => other,
        }
    }

    /// Returns the directory if this is a local repository.
    pub fn local_path(&self) -> Option<&Path> {
        match self {
            RepositoryUrl::Local { path } => Some(path),
            _ => None,
        }
    }
}

impl FromStr for RepositoryUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        parse_url(text)
    }
}

impl fmt::Display for RepositoryUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, bucket, prefix) = match self {
            RepositoryUrl::S3 { bucket, prefix } => ("s3", bucket, prefix),
            RepositoryUrl::Gcs { bucket, prefix } => ("gs", bucket, prefix),
            RepositoryUrl::Azure { container, prefix } => ("az", container, prefix),
            RepositoryUrl::Local { path } => return write!(formatter, "{}", path.display()),
            RepositoryUrl::Word(word) => return formatter.write_str(word),
        };
        write!(formatter, "{scheme}://{bucket}")?;
        match prefix.as_str() {
            "" => Ok(()),
            prefix => write!(formatter, "/{prefix}"),
        }
    }
}
