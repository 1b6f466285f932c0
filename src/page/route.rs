//! Addresses of pages. Pure.
//!
//! Owns how a path and a query name a page, and the way back. A component of a path stands for the
//! bytes of one name, whatever they are. So `%2F` and `..` lead nowhere: no directory has such a
//! name.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// The longest name of a file, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The longest path, in bytes: as long as a system call takes one (PATH_MAX).
const PATH_BYTES_MAX: usize = 4096;

/// Every byte but these is written as `%XX`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// All repositories.
    Overview,
    /// The style sheet.
    Style,
    /// The icon of all pages.
    Icon,
    /// The form that asks for the token.
    Login,
    /// Ends the use of a token.
    Logout,
    /// Metrics of a repository; none stands for the only one.
    Metrics(Option<usize>),
    /// The snapshots of a volume.
    Volume(VolumeName),
    /// A file or a directory of a snapshot.
    File(FileName, Form),
    /// The restores of this server.
    Restores,
    /// One of them.
    Restore {
        /// Its number, from 1.
        number: u64,
        /// Whether the browser asks again and again.
        is_watched: bool,
    },
}

/// A volume of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeName {
    /// The number of the repository, from 0.
    pub repository: usize,
    /// The name of the volume.
    pub volume: String,
}

/// A path in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileName {
    /// The volume.
    pub volume: VolumeName,
    /// The name of the snapshot.
    pub snapshot: String,
    /// The names from the root to the file.
    pub path: Vec<Vec<u8>>,
}

/// What is wanted of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A page about it; names of a directory begin at this cookie.
    Page {
        /// 0 for the beginning.
        from: u64,
    },
    /// The bytes of the file.
    Contents,
    /// The directory as a tar archive.
    Archive,
    /// The snapshots of the volume that have the path, each with its size and time.
    Versions,
    /// Restoring it to this machine.
    Restore,
    /// Forgetting the snapshot.
    Forget,
    /// Bringing back the forgotten snapshot.
    BringBack,
}

impl Route {
    /// Returns the route of a path, as in the first line of a request, and of its query.
    pub fn parse(path: &str, query: Option<&str>) -> Option<Route> {
        let rest = path.strip_prefix('/')?;
        Some(match rest {
            "" => Route::Overview,
            "style.css" => Route::Style,
            "icon.svg" => Route::Icon,
            "login" => Route::Login,
            "logout" => Route::Logout,
            "metrics" => Route::Metrics(None),
            "restores" => Route::Restores,
            rest => match rest.split_once('/')? {
                ("metrics", number) => Route::Metrics(Some(index(number)?)),
                ("restores", number) => Route::Restore {
                    number: index(number)? as u64 + 1,
                    is_watched: query == Some("watch"),
                },
                ("repository", rest) => of_repository(rest, query)?,
                _ => return None,
            },
        })
    }

    /// Returns the address, from which [`Route::parse`] makes the same route.
    pub fn address(&self) -> String {
        match self {
            Route::Overview => "/".to_owned(),
            Route::Style => "/style.css".to_owned(),
            Route::Icon => "/icon.svg".to_owned(),
            Route::Login => "/login".to_owned(),
            Route::Logout => "/logout".to_owned(),
            Route::Metrics(None) => "/metrics".to_owned(),
            Route::Metrics(Some(repository)) => format!("/metrics/{}", repository + 1),
            Route::Volume(volume) => volume.address(),
            Route::Restores => "/restores".to_owned(),
            Route::Restore { number, is_watched } => {
                let query = if *is_watched { "?watch" } else { "" };
                format!("/restores/{number}{query}")
            }
            Route::File(file, form) => {
                let mut address = file.volume.address();
                address += &encoded(file.snapshot.as_bytes());
                for name in &file.path {
                    address.push('/');
                    address += &encoded(name);
                }
                match form {
                    Form::Page { from: 0 } => address,
                    Form::Page { from } => format!("{address}?from={from}"),
                    Form::Contents => address + "?as=file",
                    Form::Archive => address + "?as=tar",
                    Form::Versions => address + "?as=versions",
                    Form::Restore => address + "?as=restore",
                    Form::Forget => address + "?as=forget",
                    Form::BringBack => address + "?as=bring-back",
                }
            }
        }
    }
}

impl VolumeName {
    /// Returns the root of a snapshot of this volume.
    pub fn snapshot(&self, name: &str) -> FileName {
        FileName {
            volume: self.clone(),
            snapshot: name.to_owned(),
            path: Vec::new(),
        }
    }

    fn address(&self) -> String {
        let volume = encoded(self.volume.as_bytes());
        format!("/repository/{}/{volume}/", self.repository + 1)
    }
}

impl FileName {
    /// Returns the path of a name in this directory.
    pub fn join(&self, name: &[u8]) -> FileName {
        let mut file = self.clone();
        file.path.push(name.to_vec());
        file
    }

    /// Returns the path as bytes, with slashes, from the root of the snapshot.
    pub fn joined(&self) -> Vec<u8> {
        self.path.join(&b'/')
    }
}

/// Returns the route of `NUMBER/VOLUME/` or `NUMBER/VOLUME/SNAPSHOT[/NAME…]`.
fn of_repository(rest: &str, query: Option<&str>) -> Option<Route> {
    let (number, rest) = rest.split_once('/')?;
    let (volume, rest) = rest.split_once('/')?;
    let volume = VolumeName {
        repository: index(number)?,
        volume: text(volume)?,
    };
    if rest.is_empty() {
        return Some(Route::Volume(volume));
    }
    let (snapshot, path) = match rest.split_once('/') {
        Some((snapshot, path)) => (snapshot, path.split('/').map(name).collect::<Option<_>>()?),
        None => (rest, Vec::new()),
    };
    let file = FileName {
        volume,
        snapshot: text(snapshot)?,
        path,
    };
    // A directory that holds itself makes longer ones.
    if file.joined().len() > PATH_BYTES_MAX {
        return None;
    }
    Some(Route::File(file, form(query)?))
}

fn form(query: Option<&str>) -> Option<Form> {
    Some(match query {
        None | Some("") => Form::Page { from: 0 },
        Some("as=file") => Form::Contents,
        Some("as=tar") => Form::Archive,
        Some("as=versions") => Form::Versions,
        Some("as=restore") => Form::Restore,
        Some("as=forget") => Form::Forget,
        Some("as=bring-back") => Form::BringBack,
        Some(query) => Form::Page {
            from: query.strip_prefix("from=")?.parse().ok()?,
        },
    })
}

/// Returns the index of a number that counts from 1.
fn index(number: &str) -> Option<usize> {
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: usize = number.parse().ok().filter(|_| is_plain)?;
    number.checked_sub(1)
}

fn encoded(bytes: &[u8]) -> String {
    percent_encode(bytes, ENCODED).to_string()
}

/// Returns the name that a component stands for; none for what is no name of a file.
fn name(component: &str) -> Option<Vec<u8>> {
    let bytes: Vec<u8> = percent_decode_str(component).collect();
    let is_name = !bytes.is_empty()
        && bytes.len() <= NAME_BYTES_MAX
        && !bytes.contains(&b'/')
        && !bytes.contains(&0)
        && bytes != b"."
        && bytes != b"..";
    is_name.then_some(bytes)
}

fn text(component: &str) -> Option<String> {
    String::from_utf8(name(component)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(address: &str) -> Option<Route> {
        match address.split_once('?') {
            Some((path, query)) => Route::parse(path, Some(query)),
            None => Route::parse(address, None),
        }
    }

    fn file(path: &[&[u8]]) -> FileName {
        FileName {
            volume: VolumeName {
                repository: 1,
                volume: "main".into(),
            },
            snapshot: "monday".into(),
            path: path.iter().map(|name| name.to_vec()).collect(),
        }
    }

    #[test]
    fn addresses_of_files_are_readable() {
        let address = Route::File(file(&[b"etc", b"a b&c"]), Form::Contents).address();
        assert_eq!(address, "/repository/2/main/monday/etc/a%20b%26c?as=file");
    }

    #[test]
    fn what_is_no_name_leads_nowhere() {
        for path in [
            "..",
            ".",
            "%2e%2e",
            "%2F",
            "a%2Fb",
            "a%00",
            "",
            "a//b",
            "a/",
            "%2e%2e/etc",
        ] {
            let address = format!("/repository/1/main/monday/{path}");
            assert_eq!(parse(&address), None, "{path}");
        }
        let long = "a".repeat(256);
        assert_eq!(parse(&format!("/repository/1/main/monday/{long}")), None);
        let deep = "a/".repeat(2_100);
        assert_eq!(parse(&format!("/repository/1/main/monday/{deep}a")), None);
        for address in [
            "",
            "repository/1/main/",
            "//",
            "/login/",
            "/repository/0/main/",
            "/repository/-1/main/",
            "/repository/+1/main/",
            "/repository/1/main",
            "/repository/1/../monday",
            "/repository/1/%ff/",
            "/repository/1/main/%ff",
            "/repository/1/main/monday?as=zip",
            "/repository/1/main/monday?from=x",
            "/metrics/0",
            "/restores/0",
            "/restores/x",
            "/metrics/",
        ] {
            assert_eq!(parse(address), None, "{address}");
        }
    }

    proptest! {
        #[test]
        fn each_route_is_found_by_its_address(
            repository in 0..9_usize,
            volume in "[^/\0]{1,20}",
            snapshot in "[^/\0]{1,20}",
            path in prop::collection::vec(prop::collection::vec(1..=255_u8, 1..50), 0..4),
            form in prop_oneof![
                any::<u64>().prop_map(|from| Form::Page { from }),
                Just(Form::Contents), Just(Form::Archive), Just(Form::Versions),
                Just(Form::Restore), Just(Form::Forget), Just(Form::BringBack),
            ],
        ) {
            let is_name = |name: &[u8]| !name.contains(&b'/') && name != b"." && name != b"..";
            prop_assume!(is_name(volume.as_bytes()) && is_name(snapshot.as_bytes()));
            prop_assume!(path.iter().all(|name| is_name(name)));
            let volume = VolumeName { repository, volume };
            let route = Route::Volume(volume.clone());
            prop_assert_eq!(parse(&route.address()), Some(route));
            let route = Route::Metrics(Some(repository));
            prop_assert_eq!(parse(&route.address()), Some(route));
            let route = Route::Restore { number: 1 + repository as u64, is_watched: repository > 3 };
            prop_assert_eq!(parse(&route.address()), Some(route));
            let route = Route::File(FileName { volume, snapshot, path }, form);
            prop_assert_eq!(parse(&route.address()), Some(route));
        }
    }
}
