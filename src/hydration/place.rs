//! What a user pins: paths of a volume or of its snapshots.
//!
//! Owns the names of places and their form in the description of a pin, which is JSON. A
//! description of another form is of a pin that only `bkfs hydrate --unpin` of everything finds.

use bkfs_chunker::id::Id;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::json_name::with_name;

/// The form of descriptions.
const FORM: u32 = 1;

/// A directory or file of a volume as of its last commit, or of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The volume.
    pub volume: String,
    /// The snapshot's name; none for the volume itself.
    pub snapshot: Option<String>,
    /// The names that lead to it from the root; none for the root.
    pub names: Vec<Vec<u8>>,
}

/// A place, and the tree that it was found in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planted {
    /// The place.
    pub place: Place,
    /// The root node of the tree, in hexadecimal digits.
    tree: String,
}

/// The description of a pin.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    form: u32,
    places: Vec<Planted>,
}

impl Place {
    /// Returns true if this place is `other` or lies below it.
    pub fn is_within(&self, other: &Place) -> bool {
        (&self.volume, &self.snapshot) == (&other.volume, &other.snapshot)
            && self.names.starts_with(&other.names)
    }

    /// Returns the path from the root on, with `/` before each name; `/` for the root.
    pub fn path(&self) -> Vec<u8> {
        match self.names.as_slice() {
            [] => b"/".to_vec(),
            names => names
                .iter()
                .flat_map(|name| [b"/", name.as_slice()].concat())
                .collect(),
        }
    }

    /// Returns the place as JSON.
    pub fn json(&self) -> Value {
        let told = json!({ "volume": self.volume, "snapshot": self.snapshot });
        with_name(told, "path", &self.path())
    }
}

impl Planted {
    /// Returns the place in the tree with this root node.
    pub fn new(place: Place, tree: Id) -> Planted {
        Planted {
            place,
            tree: tree.to_string(),
        }
    }

    /// Returns the root node of the tree, if the description has one.
    pub fn tree(&self) -> Option<Id> {
        Id::from_hex(&self.tree)
    }
}

/// Returns the description of a pin of these places.
pub fn describe(places: &[Planted]) -> Vec<u8> {
    let description = Description {
        form: FORM,
        places: places.to_vec(),
    };
    serde_json::to_vec(&description).unwrap_or_default()
}

/// Returns the places of a pin. None if its description has another form.
pub fn places_of(description: &[u8]) -> Vec<Planted> {
    match serde_json::from_slice::<Description>(description) {
        Ok(read) if read.form == FORM => read.places,
        _ => Vec::new(),
    }
}

/// Returns the names of a path, without empty ones.
///
/// # Errors
/// The name, if it is `.` or `..`.
pub fn names_of(path: &[u8]) -> Result<Vec<Vec<u8>>, Vec<u8>> {
    let names = path.split(|byte| *byte == b'/');
    let names = names.filter(|name| !name.is_empty());
    names
        .map(|name| match name {
            b"." | b".." => Err(name.to_vec()),
            name => Ok(name.to_vec()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(snapshot: Option<&str>, path: &[u8]) -> Place {
        Place {
            volume: "main".into(),
            snapshot: snapshot.map(str::to_owned),
            names: names_of(path).unwrap(),
        }
    }

    #[test]
    fn a_description_tells_the_places_again() {
        let id = Id([0xab; 32]);
        let planted = [
            Planted::new(place(None, b"/a/caf\xe9"), id),
            Planted::new(place(Some("mon"), b"/"), id),
        ];
        assert_eq!(places_of(&describe(&planted)), planted);
        assert_eq!(planted[0].tree(), Some(id));
        for other in [&b"{}"[..], b"", b"{\"form\":2,\"places\":[]}"] {
            assert_eq!(places_of(other), []);
        }
    }

    #[test]
    fn what_lies_below_is_within() {
        let (all, some) = (place(None, b"/"), place(None, b"/a//b/"));
        assert!(some.is_within(&all) && some.is_within(&some) && !all.is_within(&some));
        assert!(!place(None, b"/ab").is_within(&place(None, b"/a")));
        assert!(!place(Some("mon"), b"/a/b").is_within(&all));
        assert_eq!((all.path(), some.path()), (b"/".to_vec(), b"/a/b".to_vec()));
        assert_eq!(names_of(b"a/../b"), Err(b"..".to_vec()));
    }
}
