//! What names one state of one object.

use std::fmt;
use std::hash::{Hash, Hasher};

/// One state of one object, as its store names it: opaque, and only good for being given back to the store that it came from.
///
/// Local directories and memory never give two states of an object the same version. S3 and Azure derive theirs from the
/// content or at random, as they please: an object that must not return to an earlier version has to hold something fresh (the root
/// holds a nonce).
#[derive(Clone, Debug)]
pub struct Version {
    /// The entity tag of HTTP, with its quotes.
    etag: Option<Box<str>>,
    /// What Google Cloud Storage counts: its generation. It alone is compared where there is one.
    generation: Option<Box<str>>,
}

impl Version {
    pub(super) fn new(etag: Option<String>, generation: Option<String>) -> Self {
        Self {
            etag: etag.map(String::into_boxed_str),
            generation: generation.map(String::into_boxed_str),
        }
    }

    /// A version that is one token, for stores of our own making.
    pub(super) fn token(token: String) -> Self {
        Self::new(Some(token), None)
    }

    pub(super) fn etag(&self) -> Option<&str> {
        self.etag.as_deref()
    }

    pub(super) fn generation(&self) -> Option<&str> {
        self.generation.as_deref()
    }

    /// What tells one version from another.
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
