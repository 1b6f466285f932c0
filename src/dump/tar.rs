//! The headers of one member of a tar archive: pure.
//!
//! Owns: the encoding (POSIX.1-2001, pax: ustar headers, and extended headers for values that do
//! not fit into those). Does not own: contents and the padding after them.

use bytes::Bytes;

use crate::tree::item::Attributes;

/// Block size: all parts of an archive are multiples of this, in bytes.
pub const BLOCK_BYTES: usize = 512;

/// The longest path in a plain header, in bytes.
const PATH_MAX: usize = 100;

/// The largest numbers in a plain header: seven and eleven octal digits.
const SHORT_MAX: u64 = 0o7_777_777;
const LONG_MAX: u64 = 0o77_777_777_777;

/// The target of a member without contents of its own.
#[derive(Clone, Copy, Debug)]
pub enum Link<'a> {
    /// Another member, which has the contents.
    Hard(&'a [u8]),
    /// Any path.
    Symbolic(&'a [u8]),
}

/// A member.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its path; that of a directory ends with `/`.
    pub path: &'a [u8],
    /// Its attributes.
    pub attributes: &'a Attributes,
    /// Its extended attributes.
    pub xattrs: &'a [(Vec<u8>, Bytes)],
    /// Its target, for a link.
    pub link: Option<Link<'a>>,
}

impl Entry<'_> {
    /// Returns all headers that precede the contents; `None` for a socket, which an archive cannot
    /// hold.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let attributes = self.attributes;
        let (link, type_flag) = match (self.link, attributes.mode & libc::S_IFMT) {
            (Some(Link::Hard(path)), _) => (path, b'1'),
            (Some(Link::Symbolic(path)), _) => (path, b'2'),
            (None, libc::S_IFREG) => (&[][..], b'0'),
            (None, libc::S_IFCHR) => (&[][..], b'3'),
            (None, libc::S_IFBLK) => (&[][..], b'4'),
            (None, libc::S_IFDIR) => (&[][..], b'5'),
            (None, libc::S_IFIFO) => (&[][..], b'6'),
            _ => return None,
        };
        let size = match type_flag {
            b'0' => attributes.size_bytes,
            _ => 0,
        };
        let mut bytes = Vec::new();
        let records = self.records(link, size, type_flag);
        if !records.is_empty() {
            let header = Plain {
                path: b"PaxHeaders/entry",
                mode: 0o644,
                uid: 0,
                gid: 0,
                size: records.len() as u64,
                seconds: 0,
                type_flag: b'x',
                link: &[],
                device: 0,
            };
            bytes.extend_from_slice(&header.encode());
            bytes.extend_from_slice(&records);
            bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        }
        let header = Plain {
            path: self.path,
            mode: attributes.mode & 0o7777,
            uid: attributes.uid,
            gid: attributes.gid,
            size,
            seconds: attributes.modified.seconds,
            type_flag,
            link,
            device: attributes.device,
        };
        bytes.extend_from_slice(&header.encode());
        Some(bytes)
    }

    /// Returns the records of the extended header: the values that do not fit into the plain one.
    fn records(&self, link: &[u8], size: u64, type_flag: u8) -> Vec<u8> {
        let attributes = self.attributes;
        let mut records = Vec::new();
        if self.path.len() > PATH_MAX {
            record(&mut records, b"path", self.path);
        }
        if link.len() > PATH_MAX {
            record(&mut records, b"linkpath", link);
        }
        if size > LONG_MAX {
            record(&mut records, b"size", size.to_string().as_bytes());
        }
        for (name, number) in [(b"uid", attributes.uid), (b"gid", attributes.gid)] {
            if u64::from(number) > SHORT_MAX {
                record(&mut records, name, number.to_string().as_bytes());
            }
        }
        let modified = attributes.modified;
        let fits = u64::try_from(modified.seconds).is_ok_and(|seconds| seconds <= LONG_MAX);
        if modified.nanoseconds != 0 || !fits {
            let time = decimal(modified.seconds, modified.nanoseconds);
            record(&mut records, b"mtime", time.as_bytes());
        }
        if type_flag != b'1' {
            for (name, value) in self.xattrs {
                record(&mut records, &xattr_key(name), value);
            }
        }
        records
    }
}

/// Returns the key of an extended attribute's record. The first `=` of a record ends its key, so
/// `=` in the name becomes `%3D`, and `%` becomes `%25`, as GNU tar writes and reads them.
fn xattr_key(name: &[u8]) -> Vec<u8> {
    let mut key = b"SCHILY.xattr.".to_vec();
    for byte in name {
        match byte {
            b'=' => key.extend_from_slice(b"%3D"),
            b'%' => key.extend_from_slice(b"%25"),
            byte => key.push(*byte),
        }
    }
    key
}

/// Formats a time as a decimal number. `nanoseconds` count upwards from `seconds`.
fn decimal(seconds: i64, nanoseconds: u32) -> String {
    if seconds >= 0 || nanoseconds == 0 {
        return format!("{seconds}.{nanoseconds:09}");
    }
    let (whole, part) = (-(seconds + 1), 1_000_000_000 - nanoseconds);
    format!("-{whole}.{part:09}")
}

/// Appends `LENGTH KEY=VALUE\n`, in which the length includes its own digits.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() > length {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(length.to_string().as_bytes());
    records.push(b' ');
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// The fields of a plain header.
struct Plain<'a> {
    path: &'a [u8],
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    seconds: i64,
    type_flag: u8,
    link: &'a [u8],
    device: u32,
}

impl Plain<'_> {
    fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        let text = |block: &mut [u8; BLOCK_BYTES], at: usize, room: usize, bytes: &[u8]| {
            let length = bytes.len().min(room);
            block[at..at + length].copy_from_slice(&bytes[..length]);
        };
        // The extended header holds numbers that do not fit; the plain one then has the largest
        // that fits.
        let number = |block: &mut [u8; BLOCK_BYTES], at: usize, digits: usize, number: u64| {
            let most = (1_u64 << (3 * digits)) - 1;
            let digits = format!("{:0digits$o}", number.min(most));
            text(block, at, digits.len(), digits.as_bytes());
        };
        text(&mut block, 0, PATH_MAX, self.path);
        number(&mut block, 100, 7, u64::from(self.mode));
        number(&mut block, 108, 7, u64::from(self.uid));
        number(&mut block, 116, 7, u64::from(self.gid));
        number(&mut block, 124, 11, self.size);
        number(
            &mut block,
            136,
            11,
            u64::try_from(self.seconds).unwrap_or(0),
        );
        block[156] = self.type_flag;
        text(&mut block, 157, PATH_MAX, self.link);
        text(&mut block, 257, 8, b"ustar\x0000");
        if matches!(self.type_flag, b'3' | b'4') {
            let device = u64::from(self.device);
            number(&mut block, 329, 7, u64::from(libc::major(device)));
            number(&mut block, 337, 7, u64::from(libc::minor(device)));
        }
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        number(&mut block, 148, 6, sum);
        block[154] = 0;
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::item::Timestamp;

    #[test]
    fn a_record_counts_itself() {
        for length in [1, 80, 81, 82, 83, 900, 975, 976, 977, 978, 979, 9960, 9990] {
            let mut bytes = Vec::new();
            record(&mut bytes, b"key", &vec![b'v'; length]);
            let text = String::from_utf8(bytes).unwrap();
            let (count, _) = text.split_once(' ').unwrap();
            assert_eq!(count.parse::<usize>().unwrap(), text.len());
        }
    }

    #[test]
    fn a_key_has_no_other_equals_sign() {
        assert_eq!(xattr_key(b"user.note"), b"SCHILY.xattr.user.note");
        assert_eq!(xattr_key(b"user.a=b%c"), b"SCHILY.xattr.user.a%3Db%25c");
    }

    #[test]
    fn times_before_1970_are_right() {
        assert_eq!(decimal(5, 7), "5.000000007");
        assert_eq!(decimal(-1, 0), "-1.000000000");
        // 0.25 s after -2 s.
        assert_eq!(decimal(-2, 250_000_000), "-1.750000000");
        assert_eq!(decimal(-1, 999_999_999), "-0.000000001");
    }

    #[test]
    fn sockets_have_no_header_and_others_are_whole_blocks() {
        let mut attributes = Attributes {
            mode: libc::S_IFSOCK | 0o600,
            modified: Timestamp {
                seconds: 1,
                nanoseconds: 1,
            },
            uid: u32::MAX - 1,
            size_bytes: 1 << 40,
            ..Attributes::default()
        };
        let path = vec![b'p'; 300];
        let encode = |attributes: &Attributes| {
            let entry = Entry {
                path: &path,
                attributes,
                xattrs: &[(b"user.a".to_vec(), Bytes::from_static(b"\0\n="))],
                link: None,
            };
            entry.encode()
        };
        assert!(encode(&attributes).is_none());
        attributes.mode = libc::S_IFREG | 0o600;
        let bytes = encode(&attributes).unwrap();
        assert!(bytes.len().is_multiple_of(BLOCK_BYTES));
        let text = String::from_utf8_lossy(&bytes);
        for part in [
            "path=ppp",
            "size=1099511627776\n",
            "uid=4294967294\n",
            "mtime=1.000000001\n",
            "SCHILY.xattr.user.a=\0\n=\n",
        ] {
            assert!(text.contains(part), "{part:?}");
        }
    }
}
