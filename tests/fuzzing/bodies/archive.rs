//! The writer of tar archives, with names, sizes and attributes of a hostile tree.
//!
//! The input describes members. The writer gets those that a dump hands to it: entries without a
//! fault. A strict reader then finds the same members, with the same values.

use super::Draw;
use bkfs::dump::tar::{BLOCK_BYTES, Entry, Link};
use bkfs::fault;
use bkfs::tree::item::MAX_SYMLINK_BYTES;
use bkfs::tree::{Attributes, Item, Key, Timestamp};
use bytes::Bytes;

/// The most contents that this body writes into an archive, in bytes.
const CONTENTS_MAX: u64 = 2048;

/// What a member is: all that a reader restores of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Member {
    path: Vec<u8>,
    type_flag: u8,
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    modified: (i64, u32),
    link: Vec<u8>,
    device: (u32, u32),
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// An archive of the members that the input describes.
pub fn archive(input: &[u8]) {
    let mut draw = Draw(input);
    let (mut bytes, mut expected) = (Vec::new(), Vec::new());
    while !draw.is_empty() && expected.len() < 8 {
        let Some(drawn) = Drawn::draw(&mut draw) else {
            continue;
        };
        let link = match (&drawn.hard, &drawn.target) {
            (Some(path), _) => Some(Link::Hard(path)),
            (None, Some(target)) => Some(Link::Symbolic(target)),
            (None, None) => None,
        };
        let entry = Entry {
            path: &drawn.path,
            attributes: &drawn.attributes,
            xattrs: &drawn.xattrs,
            link,
        };
        let Some(header) = entry.encode() else {
            assert_eq!(drawn.attributes.mode & libc::S_IFMT, libc::S_IFSOCK);
            continue;
        };
        assert!(header.len().is_multiple_of(BLOCK_BYTES));
        let member = drawn.member();
        // A member of petabytes ends the archive here: its contents stay out.
        let is_last = member.size > CONTENTS_MAX;
        bytes.extend_from_slice(&header);
        if !is_last {
            bytes.resize(bytes.len() + member.size as usize, b'c');
            bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        }
        expected.push(member);
        if is_last {
            break;
        }
    }
    assert_eq!(read(&bytes), Ok(expected));
}

/// A member as a tree holds it, without faults.
struct Drawn {
    path: Vec<u8>,
    attributes: Attributes,
    xattrs: Vec<(Vec<u8>, Bytes)>,
    hard: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

impl Drawn {
    /// Returns the next member of the input; none if a dump leaves it out.
    fn draw(draw: &mut Draw<'_>) -> Option<Drawn> {
        let types = [
            libc::S_IFREG,
            libc::S_IFDIR,
            libc::S_IFLNK,
            libc::S_IFCHR,
            libc::S_IFBLK,
            libc::S_IFIFO,
            libc::S_IFSOCK,
        ];
        let kind = draw.byte();
        let file_type = types[usize::from(kind & 0x0f) % types.len()];
        let attributes = Attributes {
            mode: file_type | (draw.number(2) as u32 & 0o7777),
            uid: draw.number(4) as u32,
            gid: draw.number(4) as u32,
            size_bytes: match kind & 0x10 {
                0 => draw.number(8),
                _ => draw.number(2) % CONTENTS_MAX,
            },
            modified: Timestamp {
                seconds: draw.number(8) as i64,
                nanoseconds: draw.number(4) as u32 % 1_000_000_000,
            },
            device: draw.number(4) as u32,
            ..Attributes::default()
        };
        let depth = kind >> 4;
        let path = path(draw, depth);
        let xattrs = xattrs(draw);
        let is_link = file_type == libc::S_IFLNK;
        let is_hard = kind & 0x80 != 0 && file_type == libc::S_IFREG;
        let hard = match is_hard {
            true => Some(self::path(draw, 2)?),
            false => None,
        };
        let target = is_link.then(|| draw.string().to_vec());
        let is_faulty = fault::of_attributes(100, &attributes).is_some()
            || target.as_ref().is_some_and(|target| {
                target.len() > MAX_SYMLINK_BYTES || fault::of_target(100, target).is_some()
            });
        let mut path = path?;
        if file_type == libc::S_IFDIR {
            path.push(b'/');
        }
        (!is_faulty).then_some(Drawn {
            path,
            attributes,
            xattrs,
            hard,
            target,
        })
    }

    /// Returns what a reader has to find.
    fn member(&self) -> Member {
        let attributes = &self.attributes;
        let type_flag = match (&self.hard, attributes.mode & libc::S_IFMT) {
            (Some(_), _) => b'1',
            (None, libc::S_IFLNK) => b'2',
            (None, libc::S_IFCHR) => b'3',
            (None, libc::S_IFBLK) => b'4',
            (None, libc::S_IFDIR) => b'5',
            (None, libc::S_IFIFO) => b'6',
            _ => b'0',
        };
        let number = u64::from(attributes.device);
        let xattrs = self.xattrs.iter().filter(|_| type_flag != b'1');
        Member {
            path: self.path.clone(),
            type_flag,
            mode: attributes.mode & 0o7777,
            uid: attributes.uid,
            gid: attributes.gid,
            size: if type_flag == b'0' {
                attributes.size_bytes
            } else {
                0
            },
            modified: (attributes.modified.seconds, attributes.modified.nanoseconds),
            link: self
                .hard
                .clone()
                .or(self.target.clone())
                .unwrap_or_default(),
            device: match type_flag {
                b'3' | b'4' => (libc::major(number), libc::minor(number)),
                _ => (0, 0),
            },
            xattrs: xattrs
                .map(|(name, value)| (name.clone(), value.to_vec()))
                .collect(),
        }
    }
}

/// Returns a path of names that files can have; none if one of the names is faulty.
fn path(draw: &mut Draw<'_>, depth: u8) -> Option<Vec<u8>> {
    let names: Vec<&[u8]> = (0..=depth).map(|_| draw.string()).collect();
    names
        .iter()
        .all(|name| fault::is_name(name))
        .then(|| names.join(&b'/'))
}

/// Returns extended attributes that a tree can have, each name once.
fn xattrs(draw: &mut Draw<'_>) -> Vec<(Vec<u8>, Bytes)> {
    let mut xattrs: Vec<(Vec<u8>, Bytes)> = Vec::new();
    for _ in 0..draw.byte() % 4 {
        let (name, value) = (draw.string(), Bytes::copy_from_slice(draw.string()));
        let item = Item::Xattr(value.clone());
        let is_faulty = fault::of_item(&Key::xattr(100, name), &item, |_| 0).is_some();
        if !is_faulty && xattrs.iter().all(|(other, _)| other != name) {
            xattrs.push((name.to_vec(), value));
        }
    }
    xattrs
}

/// Reads an archive; an error for anything that a strict reader refuses.
fn read(archive: &[u8]) -> Result<Vec<Member>, String> {
    let mut members = Vec::new();
    let mut records: Option<Vec<(Vec<u8>, Vec<u8>)>> = None;
    let mut rest = archive;
    while let Some((block, after)) = rest.split_first_chunk::<BLOCK_BYTES>() {
        rest = after;
        let mut member = plain(block)?;
        if member.type_flag == b'x' {
            let (body, after) = contents(rest, member.size)?;
            rest = after;
            if records.replace(extended(body)?).is_some() {
                return Err("two extended headers of one member".to_owned());
            }
            continue;
        }
        for (key, value) in records.take().unwrap_or_default() {
            overridden(&mut member, &key, value)?;
        }
        if member.size <= CONTENTS_MAX {
            let (body, after) = contents(rest, member.size)?;
            if body.iter().any(|byte| *byte != b'c') {
                return Err("other contents".to_owned());
            }
            rest = after;
        }
        members.push(member);
    }
    match (rest.len(), records) {
        (0, None) => Ok(members),
        (0, Some(_)) => Err("an extended header of no member".to_owned()),
        (left, _) => Err(format!("{left} bytes are left")),
    }
}

/// Returns contents of this size, and what follows the padding.
fn contents(rest: &[u8], size: u64) -> Result<(&[u8], &[u8]), String> {
    let size = size as usize;
    let padded = size.next_multiple_of(BLOCK_BYTES);
    let body = rest.get(..padded).ok_or("the contents are cut short")?;
    let (body, padding) = body.split_at(size);
    match padding.iter().all(|byte| *byte == 0) {
        true => Ok((body, &rest[padded..])),
        false => Err("padding that is not zero".to_owned()),
    }
}

/// Reads a plain header (ustar).
fn plain(block: &[u8; BLOCK_BYTES]) -> Result<Member, String> {
    if &block[257..265] != b"ustar\x0000" || block[345..].iter().any(|byte| *byte != 0) {
        return Err("not a header of ustar".to_owned());
    }
    let sum: u64 = (0..BLOCK_BYTES)
        .map(|at| match at {
            148..156 => u64::from(b' '),
            at => u64::from(block[at]),
        })
        .sum();
    if octal(&block[148..155])? != sum || block[155] != b' ' {
        return Err("a wrong checksum".to_owned());
    }
    let is_device = matches!(block[156], b'3' | b'4');
    Ok(Member {
        path: until_zero(&block[..100]),
        type_flag: block[156],
        mode: octal(&block[100..108])? as u32,
        uid: octal(&block[108..116])? as u32,
        gid: octal(&block[116..124])? as u32,
        size: octal(&block[124..136])?,
        modified: (octal(&block[136..148])? as i64, 0),
        link: until_zero(&block[157..257]),
        device: match is_device {
            true => (
                octal(&block[329..337])? as u32,
                octal(&block[337..345])? as u32,
            ),
            false => (0, 0),
        },
        xattrs: Vec::new(),
    })
}

fn until_zero(field: &[u8]) -> Vec<u8> {
    let end = field.iter().position(|byte| *byte == 0);
    field[..end.unwrap_or(field.len())].to_vec()
}

/// Reads a field of octal digits and a zero byte.
fn octal(field: &[u8]) -> Result<u64, String> {
    let wrong = || format!("no octal number: {}", field.escape_ascii());
    let (last, digits) = field.split_last().ok_or_else(wrong)?;
    if *last != 0 || !digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) {
        return Err(wrong());
    }
    Ok(digits
        .iter()
        .fold(0, |number, digit| number * 8 + u64::from(digit - b'0')))
}

/// Keys and values of an extended header.
type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads the records of an extended header: `LENGTH KEY=VALUE\n`.
fn extended(mut body: &[u8]) -> Result<Records, String> {
    let mut records = Vec::new();
    while !body.is_empty() {
        let wrong = || format!("no record: {}", body.escape_ascii());
        let space = body
            .iter()
            .position(|byte| *byte == b' ')
            .ok_or_else(wrong)?;
        let length = std::str::from_utf8(&body[..space]).map_err(|_| wrong())?;
        let length: usize = length.parse().map_err(|_| wrong())?;
        let record = body.get(space + 1..length).ok_or_else(wrong)?;
        let record = record.strip_suffix(b"\n").ok_or_else(wrong)?;
        let equals = record
            .iter()
            .position(|byte| *byte == b'=')
            .ok_or_else(wrong)?;
        let (key, value) = (record[..equals].to_vec(), record[equals + 1..].to_vec());
        // Readers in C take a key for a string.
        if key.contains(&0) || records.iter().any(|(other, _)| *other == key) {
            return Err(format!(
                "a key twice, or with a zero byte: {}",
                key.escape_ascii()
            ));
        }
        records.push((key, value));
        body = &body[length..];
    }
    Ok(records)
}

/// Puts a record of the extended header in place of the plain value.
fn overridden(member: &mut Member, key: &[u8], value: Vec<u8>) -> Result<(), String> {
    fn number<T: std::str::FromStr>(value: &[u8]) -> Result<T, String> {
        let text = String::from_utf8_lossy(value);
        text.parse().map_err(|_| format!("no number: {text}"))
    }
    match key {
        b"path" => member.path = value,
        b"linkpath" => member.link = value,
        b"size" => member.size = number(&value)?,
        b"uid" => member.uid = number(&value)?,
        b"gid" => member.gid = number(&value)?,
        b"mtime" => member.modified = time(&value)?,
        key => {
            let name = key.strip_prefix(b"SCHILY.xattr.").ok_or("an unknown key")?;
            member.xattrs.push((decoded(name)?, value));
        }
    }
    Ok(())
}

/// Decodes a key as GNU tar does: `%3D` is `=`, `%25` is `%`.
fn decoded(name: &[u8]) -> Result<Vec<u8>, String> {
    let (mut decoded, mut rest) = (Vec::new(), name);
    while let Some((byte, after)) = rest.split_first() {
        (decoded, rest) = match (byte, after) {
            (b'%', [b'3', b'D', after @ ..]) => ([decoded, b"=".to_vec()].concat(), after),
            (b'%', [b'2', b'5', after @ ..]) => ([decoded, b"%".to_vec()].concat(), after),
            (b'%', _) => return Err("a bare % in a key".to_owned()),
            _ => ([decoded, vec![*byte]].concat(), after),
        };
    }
    Ok(decoded)
}

/// Reads a decimal number of seconds; the nanoseconds count upwards.
fn time(value: &[u8]) -> Result<(i64, u32), String> {
    let text = String::from_utf8_lossy(value);
    let wrong = || format!("no time: {text}");
    let (whole, part) = text.split_once('.').ok_or_else(wrong)?;
    let nanoseconds: u32 = match part.len() {
        9 => part.parse().map_err(|_| wrong())?,
        _ => return Err(wrong()),
    };
    let seconds: i64 = whole.parse().map_err(|_| wrong())?;
    match whole.starts_with('-') && nanoseconds > 0 {
        true => Ok((seconds - 1, 1_000_000_000 - nanoseconds)),
        false => Ok((seconds, nanoseconds)),
    }
}
