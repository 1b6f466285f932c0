//! The name of one state of one object.

use std::fmt;
use std::hash::{Hash, Hasher};

/// One state of one object, as its store names it. The value is opaque: it can only be handed back
/// to the store that it came from.
///
/// Local directories and memory never give two states of an object the same version. S3 and Azure
/// may derive the version from the content, or draw it at random. An object that must not return to
/// an earlier version therefore has to hold something fresh (the root holds a nonce).
#[derive(Clone, Debug)]
pub struct Version {
    /// The entity tag of HTTP (ETag), with its quotes.
    etag: Option<Box<str>>,
    /// The generation of Google Cloud Storage. If it is present, only the generation is compared.
    generation: Option<Box<str>>,
}

impl Version {
    pub(super) fn new(etag: Option<String>, generation: Option<String>) -> Self {
        Self {
            etag: etag.map(String::into_boxed_str),
            generation: generation.map(String::into_boxed_str),
        }
    }

    /// Returns a version that consists of one token, for the stores that this crate implements
    /// itself.
    pub(super) fn token(token: String) -> Self {
        Self::new(Some(token), None)
    }

    pub(super) fn etag(&self) -> Option<&str> {
        self.etag.as_deref()
    }

    pub(super) fn generation(&self) -> Option<&str> {
        self.generation.as_deref()
    }

    /// Returns the fields that tell one version from another.
    fn name(&self) -> (Option<&str>, Option<&str>) {
        match self.generation() {
            Some(generation) => (Some(generation), None),
            None => (None, self.etag()),
        }
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Version {}

impl Hash for Version {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.generation, &self.etag) {
            (Some(generation), _) => formatter.write_str(generation),
            (None, Some(etag)) => formatter.write_str(etag),
            (None, None) => formatter.write_str("-"),
        }
    }
}
