//! Pages as HTML. Pure.
//!
//! Owns the words and the structure of pages. Every name passes through [`shown`], and through the
//! escapes of maud: it is text, whatever it holds. `style.css` owns how pages look.

use maud::{DOCTYPE, Markup, html};

use self::Column::{Number, Text};
use crate::page::MountHealth;
use crate::page::contents::{
    ContentsError, Directory, Entry, FileVersion, SNAPSHOTS_MAX, VolumeSummary,
};
use crate::page::guard::Denial;
use crate::page::route::{FileName, Form, Route, VolumeName};
use crate::printable;
use crate::root::snapshots::{Drill, SnapshotEntry};
use crate::units;

/// Links from the overview to a page, with their words.
pub type Trail = Vec<(String, String)>;

/// What is around the contents of a page.
pub struct Frame<'a> {
    /// The title, and the heading.
    pub title: &'a str,
    /// The links above.
    pub trail: &'a Trail,
    /// Whether there is a session to end.
    pub can_leave: bool,
}

/// Returns a name as text.
pub fn shown(name: &[u8]) -> String {
    printable::name(name)
}

/// Returns a whole page.
pub fn page(frame: &Frame<'_>, contents: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (frame.title) " – bkfs" }
                link rel="stylesheet" href=(Route::Style.address());
                link rel="icon" type="image/svg+xml" href=(Route::Icon.address());
            }
            body {
                a.skip href="#contents" { "Skip to the contents" }
                header {
                    nav aria-label="Location" {
                        ol {
                            li { a href=(Route::Overview.address()) { "bkfs" } }
                            @for (words, address) in frame.trail {
                                li { a href=(address) { (words) } }
                            }
                        }
                    }
                    @if frame.can_leave {
                        form method="post" action=(Route::Logout.address()) {
                            button type="submit" { "Log out" }
                        }
                    }
                }
                main id="contents" {
                    h1 { (frame.title) }
                    (contents)
                }
            }
        }
    };
    page.into_string()
}

/// Returns the form that asks for the token.
pub fn login(is_wrong: bool) -> Markup {
    html! {
        @if is_wrong {
            p.error role="alert" { "This is not the token." }
        }
        form.login method="post" action=(Route::Login.address()) {
            // Password managers want a name to keep the token under.
            input name="username" type="text" value="bkfs" autocomplete="username" hidden readonly;
            label for="token" { "Token" }
            input id="token" name="token" type="password" autocomplete="current-password"
                required autofocus;
            button type="submit" { "Log in" }
        }
        p { "The token is in the file that " code { "bkfs serve --token-file" } " names." }
    }
}

/// The heading of a column.
#[derive(Clone, Copy)]
pub enum Column {
    /// Words, which begin on one line.
    Text(&'static str),
    /// Numbers, which end on one line.
    Number(&'static str),
}

const VOLUME_COLUMNS: &[Column] = &[
    Text("Volume"),
    Text("Newest snapshot"),
    Text("Age"),
    Number("Size"),
    Number("Snapshots"),
];
const MOUNT_COLUMNS: &[Column] = &[
    Text("Mount point"),
    Text("Volume"),
    Text("State"),
    Number("Not in the bucket yet"),
];
const SNAPSHOT_COLUMNS: &[Column] = &[
    Text("Snapshot"),
    Text("Age"),
    Number("Size"),
    Number("New"),
    Number("Files"),
    Text("Time"),
    Text("Host"),
];
const NAME_COLUMNS: &[Column] = &[Text("Name"), Text("Kind"), Number("Size"), Text("Modified")];
const VERSION_COLUMNS: &[Column] = &[
    Text("Snapshot"),
    Text("Age"),
    Text("Kind"),
    Number("Size"),
    Text("Modified"),
];

/// Returns a table, which scrolls by itself where a screen is too narrow for it.
pub fn table(caption: &str, columns: &[Column], rows: &Markup) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label=(caption) { table {
            caption { (caption) }
            thead { tr { @for column in columns {
                @match column {
                    Text(name) => th scope="col" { (name) },
                    Number(name) => th.number scope="col" { (name) },
                }
            } } }
            tbody { (rows) }
        } }
    }
}

/// A repository in the overview.
pub struct RepositorySummary {
    /// Its URL.
    pub url: String,
    /// Its volumes, or why they cannot be read.
    pub volumes: Result<Vec<VolumeSummary>, ContentsError>,
    /// Its mounts on this machine.
    pub mounts: Vec<MountHealth>,
}

/// Returns the overview of all repositories. `now` is in seconds since 1970.
pub fn overview(repositories: &[RepositorySummary], now: i64) -> Markup {
    html! {
        @for repository in repositories {
            section {
                h2 { (printable::line(&repository.url)) }
                @match &repository.volumes {
                    Ok(volumes) if volumes.is_empty() => p { "It has no volumes yet." },
                    Ok(volumes) => (volumes_table(volumes, now)),
                    Err(error) => p.error role="alert" { (printable::line(&error.to_string())) },
                }
                @if !repository.mounts.is_empty() {
                    (mounts_table(&repository.mounts))
                }
            }
        }
    }
}

fn volumes_table(volumes: &[VolumeSummary], now: i64) -> Markup {
    let rows = html! {
        @for volume in volumes {
            tr {
                th scope="row" {
                    a href=(Route::Volume(volume.name.clone()).address()) {
                        (shown(volume.name.volume.as_bytes()))
                    }
                }
                @match &volume.newest {
                    Some(newest) => {
                        td { (snapshot_link(&volume.name, newest)) }
                        td { (age(newest, now)) }
                        td.number { (units::bytes(newest.bytes)) }
                    }
                    None => { td { "none" } td {} td {} }
                }
                td.number { (volume.snapshots) }
            }
        }
    };
    table("Volumes", VOLUME_COLUMNS, &rows)
}

fn mounts_table(mounts: &[MountHealth]) -> Markup {
    let rows = html! {
        @for mount in mounts {
            tr {
                th scope="row" { (printable::line(&mount.mount_point)) }
                td { (printable::line(mount.volume.as_deref().unwrap_or("unknown"))) }
                td {
                    @if mount.is_healthy {
                        "healthy"
                    } @else {
                        strong.error { "not healthy" }
                    }
                    @for remark in &mount.remarks {
                        br; (printable::line(remark))
                    }
                }
                td.number { (units::bytes(mount.waiting_bytes)) }
            }
        }
    };
    table("Mounts on this machine", MOUNT_COLUMNS, &rows)
}

/// Returns the snapshots of a volume, the newest first.
pub fn snapshots(volume: &VolumeName, snapshots: &[SnapshotEntry], now: i64) -> Markup {
    html! {
        (only_the_newest(snapshots.len()))
        @if snapshots.is_empty() {
            p { "It has no snapshots yet: " code { "bkfs snapshot" } " makes one of a mount." }
        } @else {
            (table("Snapshots, the newest first", SNAPSHOT_COLUMNS, &html! {
                @for snapshot in snapshots {
                    tr {
                        th scope="row" {
                            (snapshot_link(volume, snapshot))
                            @if snapshot.recovered { " (recovered)" }
                            @if let Some(drill) = &snapshot.drill { (drilled(drill)) }
                            @for tag in &snapshot.tags { " #" (printable::line(tag)) }
                        }
                        td { (age(snapshot, now)) }
                        td.number { (units::bytes(snapshot.bytes)) }
                        td.number { (units::bytes(snapshot.new_bytes)) }
                        td.number { (snapshot.files) }
                        td { (time(snapshot)) }
                        td { (printable::line(&snapshot.host)) }
                    }
                }
            }))
        }
    }
}

/// Returns the last drill of a snapshot in a few words.
fn drilled(drill: &Drill) -> Markup {
    let time = drill.time.strftime("%Y-%m-%d");
    html! { " (drilled " (time) ": " (drill.verdict()) ")" }
}

fn only_the_newest(count: usize) -> Markup {
    html! {
        @if count >= SNAPSHOTS_MAX {
            p {
                "Only the newest " (SNAPSHOTS_MAX) " are shown: "
                code { "bkfs snapshots" } " lists all of them."
            }
        }
    }
}

fn snapshot_link(volume: &VolumeName, snapshot: &SnapshotEntry) -> Markup {
    let words = shown(snapshot.name.as_bytes());
    html! { a href=(page_of(volume.snapshot(&snapshot.name))) { (words) } }
}

fn page_of(file: FileName) -> String {
    Route::File(file, Form::Page { from: 0 }).address()
}

fn time(snapshot: &SnapshotEntry) -> Markup {
    let exact = snapshot.time.to_string();
    let shown = snapshot.time.strftime("%Y-%m-%d %H:%M:%S UTC");
    html! { time datetime=(exact) { (shown) } }
}

fn age(snapshot: &SnapshotEntry, now: i64) -> String {
    units::age(now.saturating_sub(snapshot.time.as_second()).max(0) as u64)
}

/// Returns the names of a directory.
pub fn directory(file: &FileName, directory: &Directory) -> Markup {
    let archive = Route::File(file.clone(), Form::Archive).address();
    html! {
        p { a.button href=(archive) download { "Download as a tar archive" } }
        @if !directory.is_whole {
            p { "This directory is large. Its names come in parts, and are not sorted." }
        }
        @if directory.faulty > 0 {
            p.error role="alert" {
                (directory.faulty) " names that no file can have are left out: "
                code { "bkfs check" } " shows the reasons."
            }
        }
        @if directory.entries.is_empty() && directory.faulty == 0 {
            p { "It is empty." }
        } @else {
            (table("Names", NAME_COLUMNS, &html! {
                @for entry in &directory.entries {
                    tr { (entry_cells(&file.join(&entry.name), entry)) }
                }
            }))
        }
        @if let Some(from) = directory.next {
            p { a href=(Route::File(file.clone(), Form::Page { from }).address()) { "Next part" } }
        }
    }
}

fn entry_cells(file: &FileName, entry: &Entry) -> Markup {
    html! {
        th scope="row" {
            a href=(page_of(file.clone())) {
                (shown(&entry.name)) @if entry.is_directory() { "/" }
            }
            @if let Some(target) = &entry.target { " → " (shown(target)) }
        }
        td { (kind(entry)) }
        td.number { (size(entry)) }
        td { (modified(entry)) }
    }
}

fn kind(entry: &Entry) -> &'static str {
    let Some(attributes) = &entry.attributes else {
        return "cannot be read";
    };
    match attributes.mode & libc::S_IFMT {
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symbolic link",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR | libc::S_IFBLK => "device",
        _ => "file",
    }
}

fn size(entry: &Entry) -> String {
    match &entry.attributes {
        Some(attributes) if entry.is_file() => units::bytes(attributes.size_bytes),
        _ => String::new(),
    }
}

fn modified(entry: &Entry) -> Markup {
    let time = entry.attributes.as_ref().and_then(|attributes| {
        let modified = attributes.modified;
        jiff::Timestamp::new(modified.seconds, 0).ok()
    });
    html! {
        @if let Some(time) = time {
            time datetime=(time) { (time.strftime("%Y-%m-%d %H:%M:%S UTC")) }
        }
    }
}

/// Returns what there is to know of a file that is no directory.
pub fn file(file: &FileName, entry: &Entry) -> Markup {
    let address = |form| Route::File(file.clone(), form).address();
    html! {
        @if entry.is_file() {
            p { a.button href=(address(Form::Contents)) download { "Download" } }
        }
        dl {
            dt { "Kind" } dd { (kind(entry)) }
            @if entry.is_file() { dt { "Size" } dd { (size(entry)) } }
            @if let Some(target) = &entry.target { dt { "Target" } dd { (shown(target)) } }
            dt { "Modified" } dd { (modified(entry)) }
            @if let Some(attributes) = &entry.attributes {
                dt { "Owner" } dd { (attributes.uid) ":" (attributes.gid) }
                dt { "Permissions" } dd { (format!("{:04o}", attributes.mode & 0o7777)) }
            }
        }
        p { a href=(address(Form::Versions)) { "Versions in all snapshots" } }
    }
}

/// Returns the versions of a file.
pub fn versions(file: &FileName, versions: &[FileVersion], now: i64) -> Markup {
    html! {
        (only_the_newest(versions.len()))
        (table("Versions, the newest first", VERSION_COLUMNS, &html! {
            @for version in versions {
                @let there = FileName { snapshot: version.snapshot.name.clone(), ..file.clone() };
                tr {
                    th scope="row" {
                        @if version.entry.is_some() {
                            a href=(page_of(there)) { (shown(version.snapshot.name.as_bytes())) }
                        } @else {
                            (shown(version.snapshot.name.as_bytes()))
                        }
                    }
                    td { (age(&version.snapshot, now)) }
                    @match &version.entry {
                        Some(entry) => {
                            td { (kind(entry)) }
                            td.number { (size(entry)) }
                            td { (modified(entry)) }
                        }
                        None => { td { "not there" } td {} td {} }
                    }
                }
            }
        }))
    }
}

/// Returns the page of a refusal or an error.
pub fn message(text: &str) -> Markup {
    html! { p.error role="alert" { (printable::line(text)) } }
}

/// Returns the page of a denied request.
pub fn denied(denial: Denial) -> Markup {
    message(&format!("Refused: {denial}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that would be markup, script, or text in another order.
    const HOSTILE: &[&[u8]] = &[
        b"<script>alert(1)",
        b"\"><img src=x onerror=alert(1)>",
        b"javascript:alert(1)",
        b"a\nb\x1b[31m",
        "\u{202e}fdp.exe".as_bytes(),
        b"\xff\xfe\x80",
        b"&lt;b&gt;",
        b"' onmouseover='alert(1)",
    ];

    fn entry(name: &[u8]) -> Entry {
        Entry {
            name: name.to_vec(),
            attributes: None,
            target: Some(name.to_vec()),
        }
    }

    #[test]
    fn hostile_names_are_text() {
        let volume = VolumeName {
            repository: 0,
            volume: "<i>".into(),
        };
        let file = volume.snapshot("<b>");
        let directory = Directory {
            entries: HOSTILE.iter().map(|name| entry(name)).collect(),
            faulty: 1,
            is_whole: false,
            next: Some(7),
        };
        let contents = super::directory(&file, &directory);
        let trail = HOSTILE
            .iter()
            .map(|name| (shown(name), page_of(file.join(name))))
            .collect();
        let frame = Frame {
            title: &shown(HOSTILE[0]),
            trail: &trail,
            can_leave: true,
        };
        let page = page(&frame, &contents);
        for bad in ["<script", "<img", "<b>", "<i>", "\u{202e}", "\x1b"] {
            assert!(!page.contains(bad), "{bad:?} in {page}");
        }
        assert!(page.contains("&lt;script&gt;"), "{page}");
        // The value of an attribute ends at its own quote.
        for part in page.split("href=\"").skip(1) {
            let address = part.split('"').next().unwrap();
            let is_safe = |char: char| char.is_ascii_alphanumeric() || "/-._~%?=#".contains(char);
            assert!(address.chars().all(is_safe), "{address}");
            assert!(address.starts_with(['/', '#']), "{address}");
        }
        // `Route::parse` finds each name again.
        for name in HOSTILE {
            let address = page_of(file.join(name));
            let Some(Route::File(found, _)) = Route::parse(&address, None) else {
                panic!("{address}");
            };
            assert_eq!(found.path, [name.to_vec()]);
        }
    }
}
