//! Pages of changes as HTML. Pure.
//!
//! Owns forms, and what became of restores. Does not own the other pages (`markup`).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use maud::{Markup, html};

use crate::page::changes::OVERWRITE;
use crate::page::contents::SNAPSHOTS_MAX;
use crate::page::markup::{Column, shown, table};
use crate::page::restores::{Outcome, PageRestore, RestoreRoot};
use crate::page::route::{FileName, Form, Route, VolumeName};
use crate::printable;
use crate::restore::job::Problem;
use crate::root::snapshots::TrashEntry;
use crate::units;

const FORGOTTEN_COLUMNS: &[Column] = &[
    Column::Text("Snapshot"),
    Column::Text("Forgotten"),
    Column::Number("Size"),
    Column::Text("Change"),
];
const RESTORE_COLUMNS: &[Column] = &[
    Column::Text("Restore"),
    Column::Text("From"),
    Column::Text("To"),
    Column::Text("State"),
    Column::Number("Restored"),
];

/// What may be changed.
#[derive(Debug, Clone, Copy)]
pub struct Allowed {
    /// Snapshots may be forgotten and brought back.
    pub forget: bool,
    /// Files and directories may be restored.
    pub restore: bool,
}

fn hidden_key(key: &str) -> Markup {
    html! { input name="key" type="hidden" value=(key); }
}

/// Returns the links to the forms about a file or directory.
pub fn actions(file: &FileName, allowed: Allowed) -> Markup {
    let address = |form| Route::File(file.clone(), form).address();
    let may_forget = allowed.forget && file.path.is_empty();
    html! {
        @if allowed.restore || may_forget {
            p.actions {
                @if allowed.restore {
                    a.button href=(address(Form::Restore)) { "Restore to this machine …" }
                }
                @if may_forget {
                    a.button href=(address(Form::Forget)) { "Forget this snapshot …" }
                }
            }
        }
    }
}

/// Returns the question whether a snapshot is to be forgotten.
pub fn forget(file: &FileName, key: &str) -> Markup {
    let back = Route::File(file.clone(), Form::Page { from: 0 }).address();
    html! {
        p {
            "A forgotten snapshot can be brought back from the page of its volume, until "
            code { "bkfs gc" } " empties the trash: after seven days, if nothing else was asked for."
        }
        form method="post" action=(Route::File(file.clone(), Form::Forget).address()) {
            (hidden_key(key))
            p.actions {
                button type="submit" { "Forget " (shown(file.snapshot.as_bytes())) }
                a href=(back) { "Keep it" }
            }
        }
    }
}

/// Returns the forgotten snapshots of a volume, each with the form that brings it back. `now` is in
/// seconds since 1970.
pub fn forgotten(volume: &VolumeName, forgotten: &[TrashEntry], key: &str, now: i64) -> Markup {
    if forgotten.is_empty() {
        return html! {};
    }
    let address =
        |snapshot: &str| Route::File(volume.snapshot(snapshot), Form::BringBack).address();
    let age = |entry: &TrashEntry| {
        units::age(now.saturating_sub(entry.forgotten.as_second()).max(0) as u64)
    };
    let rows = html! {
        @for entry in forgotten.iter().take(SNAPSHOTS_MAX) {
            @let name = shown(entry.snapshot.name.as_bytes());
            tr {
                th scope="row" { (name) }
                td { (age(entry)) }
                td.number { (units::bytes(entry.snapshot.bytes)) }
                td {
                    form method="post" action=(address(&entry.snapshot.name)) {
                        (hidden_key(key))
                        button type="submit" aria-label={ "Bring back " (name) } { "Bring back" }
                    }
                }
            }
        }
    };
    html! {
        h2 { "Forgotten" }
        (table("Forgotten snapshots, the last one first", FORGOTTEN_COLUMNS, &rows))
        @if forgotten.len() > SNAPSHOTS_MAX {
            p {
                "Only the last " (SNAPSHOTS_MAX) " are shown: "
                code { "bkfs forget --undo" } " brings others back."
            }
        }
    }
}

/// Returns the form of a restore.
pub fn restore(file: &FileName, is_directory: bool, roots: &[RestoreRoot], key: &str) -> Markup {
    html! {
        p {
            @if is_directory {
                "The contents of the directory appear directly in the one that you name, which is \
                 made if it is absent."
            } @else {
                "The file gets the name that you give it. Directories above it are made."
            }
            " Set-id bits, devices, fifos, sockets, and extended attributes other than user.* are left \
             out."
        }
        form.fields method="post" action=(Route::File(file.clone(), Form::Restore).address()) {
            (hidden_key(key))
            label for="root" { "Below" }
            select id="root" name="root" {
                @for (index, root) in roots.iter().enumerate() {
                    option value=(index) { (path_text(&root.path)) }
                }
            }
            label for="below" { @if is_directory { "Directory" } @else { "File" } }
            input id="below" name="below" type="text" value=(proposed(file)) required
                autocomplete="off" spellcheck="false";
            label for="existing" { "If files are there" }
            select id="existing" name="existing" {
                @for (name, words, _) in OVERWRITE { option value=(name) { (words) } }
            }
            button type="submit" { "Restore" }
        }
    }
}

/// Returns the path that a form proposes: empty where a text field cannot hold it.
fn proposed(file: &FileName) -> String {
    let path = [file.snapshot.as_bytes().to_vec(), file.joined()];
    let path = path.join(&b'/');
    let text = String::from_utf8(path).unwrap_or_default();
    let text = text.trim_end_matches('/').to_owned();
    match printable::line(&text) == text {
        true => text,
        false => String::new(),
    }
}

fn path_text(path: &Path) -> String {
    printable::name(path.as_os_str().as_encoded_bytes())
}

/// Returns the link to the restores, for the overview.
pub fn restores_link() -> Markup {
    html! { p { a href=(Route::Restores.address()) { "Restores to this machine" } } }
}

fn source(file: &FileName) -> Markup {
    let page = Route::File(file.clone(), Form::Page { from: 0 }).address();
    let words = [file.snapshot.as_bytes(), b":/", &file.joined()].concat();
    html! { a href=(page) { (shown(&words)) } }
}

fn state_text(restore: &PageRestore) -> &'static str {
    let is_held = restore.is_held();
    match &restore.state().0 {
        None => "on its way",
        Some(Outcome::Done(problems)) if problems.is_empty() => "restored",
        Some(Outcome::Done(_)) => "restored in part",
        Some(Outcome::Failed(_)) => "failed",
        Some(Outcome::Stopped) if is_held => "stopped, and waits for the disk",
        Some(Outcome::Stopped) => "stopped",
    }
}

/// Returns the restores that are remembered.
pub fn restores(restores: &[Arc<PageRestore>]) -> Markup {
    let is_watched = false;
    html! {
        @if restores.is_empty() {
            p { "There are none yet. The page of each directory and file has a button for it." }
        } @else {
            (table("Restores since the server was started, the newest first", RESTORE_COLUMNS, &html! {
                @for restore in restores {
                    @let number = restore.number;
                    tr {
                        th scope="row" {
                            a href=(Route::Restore { number, is_watched }.address()) { (number) }
                        }
                        td { (source(&restore.file)) }
                        td { (path_text(&restore.target)) }
                        td { (state_text(restore)) }
                        td.number { (units::bytes(restore.bytes())) }
                    }
                }
            }))
        }
    }
}

/// Returns how far a restore is. `is_watched` says that the page is asked for again by itself.
pub fn progress(restore: &PageRestore, key: &str, is_watched: bool) -> Markup {
    let (outcome, took) = restore.state();
    let bytes = restore.bytes();
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let inodes = load(&restore.progress.inodes);
    let left_out = [
        (
            load(&restore.progress.special),
            "devices, fifos and sockets",
        ),
        (
            load(&restore.progress.set_ids),
            "inodes without their set-id bits",
        ),
        (
            load(&restore.progress.privileged_xattrs),
            "extended attributes",
        ),
    ];
    let here = |is_watched| {
        let number = restore.number;
        Route::Restore { number, is_watched }.address()
    };
    html! {
        @if let Some(total) = restore.total_bytes.filter(|total| *total > 0) {
            progress value=(bytes.min(total)) max=(total) aria-label="Restored bytes" {}
        }
        dl {
            dt { "State" } dd { (state_text(restore)) }
            dt { "From" } dd { (source(&restore.file)) }
            dt { "To" } dd { (path_text(&restore.target)) }
            dt { "Restored" } dd { (amount(bytes, restore.total_bytes)) ", " (inodes) " inodes" }
            dt { "Time" } dd { (units::duration(took.as_secs())) }
            @for (count, what) in left_out.iter().filter(|(count, _)| *count > 0) {
                dt { "Left out" } dd { (count) " " (what) }
            }
            @if outcome.is_none() {
                @if let Some(left) = left(bytes, restore.total_bytes, took) {
                    dt { "Time left" } dd { (left) }
                }
            }
        }
        @match &outcome {
            Some(Outcome::Failed(reason)) => p.error role="alert" { (printable::line(reason)) },
            Some(Outcome::Done(problems)) if !problems.is_empty() => {
                (not_restored(problems, load(&restore.progress.problems)))
            },
            Some(Outcome::Stopped) => p {
                "Files that are whole stay. To go on, restore again and replace files of another \
                 size or time."
            },
            Some(_) => {},
            None => {
                p {
                    @if is_watched {
                        "This page updates itself. " a href=(here(false)) { "Stop the updates" }
                    } @else {
                        a href=(here(true)) { "Update this page by itself" }
                    }
                }
                form method="post" action=(here(false)) {
                    (hidden_key(key))
                    button type="submit" { "Stop the restore" }
                }
            },
        }
    }
}

fn not_restored(problems: &[Problem], count: u64) -> Markup {
    let more = count.saturating_sub(problems.len() as u64);
    html! {
        p.error role="alert" { (count) " are not restored, or not completely:" }
        ul {
            @for problem in problems {
                li { (path_text(&problem.path)) ": " (printable::line(&problem.reason)) }
            }
        }
        @if more > 0 { p { "… and " (more) " more" } }
    }
}

fn amount(bytes: u64, total: Option<u64>) -> String {
    match total {
        Some(total) => format!("{} of {}", units::bytes(bytes), units::bytes(total)),
        None => units::bytes(bytes),
    }
}

/// Returns the time that is left at the rate so far.
fn left(bytes: u64, total: Option<u64>, took: Duration) -> Option<String> {
    let left_bytes = total?.checked_sub(bytes)?;
    let rate = bytes as f64 / took.as_secs_f64().max(0.001);
    (rate > 0.0).then(|| units::duration((left_bytes as f64 / rate) as u64))
}
