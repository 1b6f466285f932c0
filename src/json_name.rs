//! Names in JSON. A name of a file is bytes, and a string of JSON is not.
//!
//! Owns the form: `path` alone for UTF-8; for all other names `path` in a lossy form, and the bytes
//! as `path_b64`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// A name as the fields of a JSON object: `#[serde(flatten)]` puts them next to the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonName {
    /// The key of the field.
    pub key: &'static str,
    /// The bytes of the name.
    pub name: Vec<u8>,
}

/// Returns the name as text, and its bytes in base64 if the text is not exactly the name.
pub fn forms(name: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(name) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => {
            let lossy = String::from_utf8_lossy(name).into_owned();
            (lossy, Some(STANDARD.encode(name)))
        }
    }
}

impl Serialize for JsonName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (text, exact) = forms(&self.name);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(self.key, &text)?;
        if let Some(exact) = exact {
            map.serialize_entry(&format!("{}_b64", self.key), &exact)?;
        }
        map.end()
    }
}

/// Returns `object` with a name in its field `key`.
pub fn with_name(mut object: Value, key: &str, name: &[u8]) -> Value {
    let (text, exact) = forms(name);
    object[key] = json!(text);
    if let Some(exact) = exact {
        object[format!("{key}_b64")] = json!(exact);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Row {
        #[serde(flatten)]
        path: JsonName,
        #[serde(flatten)]
        target: Option<JsonName>,
        size: u64,
    }

    fn named(key: &'static str, name: &[u8]) -> JsonName {
        let name = name.to_vec();
        JsonName { key, name }
    }

    #[test]
    fn names_that_are_not_utf8_have_their_bytes_too() {
        let object = with_name(json!({ "size": 1 }), "path", b"caf\xe9");
        assert_eq!(
            object,
            json!({ "size": 1, "path": "caf\u{fffd}", "path_b64": "Y2Fm6Q==" })
        );
        // Neither an escaped form nor U+FFFD in a name can be taken for other bytes.
        for text in ["caf\u{fffd}", "caf\\xe9", "caf\u{e9}\n"] {
            let object = with_name(json!({}), "path", text.as_bytes());
            assert_eq!(object, json!({ "path": text }));
        }
    }

    #[test]
    fn a_row_has_them_next_to_its_fields() {
        let row = Row {
            path: named("path", b"link"),
            target: Some(named("target", b"\xff")),
            size: 1,
        };
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            "{\"path\":\"link\",\"target\":\"\u{fffd}\",\"target_b64\":\"/w==\",\"size\":1}"
        );
        let row = Row {
            target: None,
            ..row
        };
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            "{\"path\":\"link\",\"size\":1}"
        );
    }
}
