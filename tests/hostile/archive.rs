//! A reader of tar archives that trusts none of them.

use std::collections::HashMap;

/// The path and type of each member of an archive, in order.
pub type Members = Vec<(String, u8)>;

fn number(field: &[u8]) -> u64 {
    let digits: String = field
        .iter()
        .filter(|byte| byte.is_ascii_digit())
        .map(|byte| char::from(*byte))
        .collect();
    u64::from_str_radix(&digits, 8).unwrap_or(0)
}

fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&field[..end.unwrap_or(field.len())]).into_owned()
}

/// Returns the records of an extended header.
fn records(mut body: &[u8]) -> HashMap<String, String> {
    let mut records = HashMap::new();
    while let Some(space) = body.iter().position(|byte| *byte == b' ') {
        let Ok(length) = String::from_utf8_lossy(&body[..space]).parse::<usize>() else {
            break;
        };
        let record = String::from_utf8_lossy(&body[space + 1..length - 1]).into_owned();
        if let Some((key, value)) = record.split_once('=') {
            records.insert(key.to_owned(), value.to_owned());
        }
        body = &body[length..];
    }
    records
}

/// Reads an archive, as far as it can be read.
pub fn members(archive: &[u8]) -> Members {
    let mut members = Vec::new();
    let mut extended = HashMap::new();
    let mut at = 0;
    while let Some(head) = archive.get(at..at + 512).filter(|head| head[0] != 0) {
        let kind = head[156];
        let size = extended
            .get("size")
            .and_then(|size: &String| size.parse().ok())
            .unwrap_or(number(&head[124..136]));
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        at += 512;
        let body = archive.get(at..at.saturating_add(size)).unwrap_or_default();
        at = at.saturating_add(size.checked_next_multiple_of(512).unwrap_or(usize::MAX));
        if kind == b'x' {
            extended = records(body);
            continue;
        }
        let path = extended
            .remove("path")
            .unwrap_or_else(|| text(&head[..100]));
        extended.clear();
        members.push((path, kind));
    }
    members
}

/// Returns the first member of an archive that leads out of the directory in which it is unpacked.
pub fn leads_outside(members: &Members) -> Option<String> {
    let mut links: Vec<String> = Vec::new();
    for (path, kind) in members {
        let through = |link: &String| path == link || path.starts_with(&format!("{link}/"));
        let is_outside = path.starts_with('/')
            || path.split('/').any(|part| part == "..")
            || links.iter().any(through);
        if is_outside {
            return Some(path.clone());
        }
        if *kind == b'2' {
            links.push(path.clone());
        }
    }
    None
}
