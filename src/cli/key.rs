//! `bkfs key list|add|remove|passwd URL`

use std::path::PathBuf;

use bkfs_chunker::seal::{SlotCost, SlotName};
use bkfs_chunker::store::open_store;
use clap::{Args, Subcommand};
use serde_json::json;
use zeroize::Zeroizing;

use crate::cli::access::{Access, explain, target_url};
use crate::cli::output::{Failure, Output};
use crate::cli::password::{Password, Sources, Variables};
use crate::cli::snapshots::columns;
use crate::cli::{Global, block_on};
use crate::machine::Machine;
use crate::root::slots::{Making, SlotFacts, Slots, SlotsError};

/// List, add, remove and change the passwords of a repository
///
/// Each key is a password that opens the repository; the data is sealed under a master key that all of them lead to. So changing passwords rewrites no data, and
/// whoever has copied the bucket while knowing a password can still read that copy with it: after such a loss, copy to a new repository (bkfs copy).
///
/// The last key that the given password opens is never removed.
#[derive(Debug, Args)]
pub struct Key {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(List),
    Add(Add),
    Remove(Remove),
    Passwd(Passwd),
}

/// List the keys; the one that the given password opens is marked
#[derive(Debug, Args)]
struct List {
    /// The repository, or a mount of one
    url: String,
}

/// Add a key: a further password that opens the repository
#[derive(Debug, Args)]
struct Add {
    /// The repository, or a mount of one
    url: String,
    /// What the key is called (default: this host's name)
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    new: NewPassword,
}

/// Remove a key: its password opens the repository no more
///
/// Needs the password of another key, so that one always remains.
#[derive(Debug, Args)]
struct Remove {
    /// The repository, or a mount of one
    url: String,
    /// The key, or the beginning of its name, as bkfs key list shows it
    key: String,
}

/// Change the password: the old one opens the repository no more
#[derive(Debug, Args)]
struct Passwd {
    /// The repository, or a mount of one
    url: String,
    #[command(flatten)]
    new: NewPassword,
}

/// Where a new password comes from.
#[derive(Debug, Args)]
struct NewPassword {
    /// Read the new password from the first line of this file, which others must not be able to read
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
    /// Read the new password from what this command prints
    #[arg(long, value_name = "COMMAND")]
    new_password_command: Option<String>,
}

impl NewPassword {
    fn get(&self, global: &Global) -> Result<Password, Failure> {
        let sources = Sources {
            file: self.new_password_file.clone(),
            command: self.new_password_command.clone(),
            variables: Variables::New,
            handed: global.handed.clone(),
        };
        sources.new_password()
    }
}

pub fn run(command: Key, global: &Global, output: &Output) -> Result<(), Failure> {
    let url = match &command.action {
        Action::List(action) => &action.url,
        Action::Add(action) => &action.url,
        Action::Remove(action) => &action.url,
        Action::Passwd(action) => &action.url,
    };
    let url = target_url(url)?;
    block_on(async {
        let access = Access::of_command(&url, global)?;
        let store = open_store(&access.url, &access.store)
            .await
            .map_err(|error| explain(error.into(), &access.url))?;
        access.recognize(&*store).await?;
        let machine = Machine::this();
        let explained = |error| match error {
            SlotsError::Root(error) => explain(error, &access.url),
            error => failure(error),
        };
        Slots::expect(&*store).await.map_err(explained)?;
        let password = bytes_of(&access.password.existing()?);
        let slots = Slots::open(&*store, &*machine.entropy, password)
            .await
            .map_err(explained)?;
        match &command.action {
            Action::List(_) => show(slots.list(), output),
            Action::Add(action) => add(&slots, action, global, &machine, output).await,
            Action::Remove(action) => remove(&slots, action, &machine, output).await,
            Action::Passwd(action) => passwd(&slots, action, global, &machine, output).await,
        }
    })
}

fn bytes_of(password: &Password) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(password.as_bytes().to_vec())
}

fn failure(error: SlotsError) -> Failure {
    match error {
        SlotsError::Root(error) => error.into(),
        error @ SlotsError::Own { .. } => Failure::new(error.to_string()).hint(
            "Give the password of another key, add one with bkfs key add, or change it with bkfs key passwd.",
        ),
        error @ SlotsError::Ambiguous { .. } => {
            Failure::new(error.to_string()).hint("bkfs key list names them.")
        }
        error => Failure::new(error.to_string()),
    }
}

fn time_of(slot: &SlotFacts) -> String {
    i64::try_from(slot.created_s)
        .ok()
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
        .map_or_else(|| slot.created_s.to_string(), |time| time.to_string())
}

fn show(slots: &[SlotFacts], output: &Output) -> Result<(), Failure> {
    if output.is_json() {
        return slots.iter().try_for_each(|slot| {
            let row = json!({
                "key": slot.name.to_string(),
                "label": slot.label,
                "created": time_of(slot),
                "own": slot.is_own,
                "argon2_memory_kib": slot.cost.memory_kib,
                "argon2_passes": slot.cost.passes,
            });
            output.result(&row, String::new)
        });
    }
    let mut rows = vec![["", "KEY", "CREATED", "LABEL"].map(str::to_owned)];
    rows.extend(slots.iter().map(|slot| {
        let mark = if slot.is_own { "*" } else { "" };
        let label = slot.label.escape_debug().to_string();
        [mark.to_owned(), slot.name.to_string(), time_of(slot), label]
    }));
    output.result(&(), || columns(&rows, &[]))
}

async fn add(
    slots: &Slots<'_>,
    action: &Add,
    global: &Global,
    machine: &Machine,
    output: &Output,
) -> Result<(), Failure> {
    let password = action.new.get(global)?;
    let label = action.label.as_deref().unwrap_or(&machine.process.host);
    let added = slots.add(making(&password, label, machine)).await;
    let key = added.map_err(failure)?;
    let answer = json!({ "key": key.to_string(), "label": label });
    output.result(&answer, || format!("added key {key} ({label})"))
}

async fn remove(
    slots: &Slots<'_>,
    action: &Remove,
    machine: &Machine,
    output: &Output,
) -> Result<(), Failure> {
    let key = slots.find(&action.key).map_err(failure)?;
    slots.remove(key, machine.now()).await.map_err(failure)?;
    output.result(&json!({ "removed": key.to_string() }), || {
        format!("removed key {key}")
    })
}

async fn passwd(
    slots: &Slots<'_>,
    action: &Passwd,
    global: &Global,
    machine: &Machine,
    output: &Output,
) -> Result<(), Failure> {
    let password = action.new.get(global)?;
    let own: Vec<&SlotFacts> = slots.list().iter().filter(|slot| slot.is_own).collect();
    let label = own.first().map_or("", |slot| slot.label.as_str());
    let changed = slots.change(making(&password, label, machine)).await;
    let key = changed.map_err(failure)?;
    let removed: Vec<SlotName> = own.iter().map(|slot| slot.name).collect();
    let answer = json!({
        "key": key.to_string(),
        "removed": removed.iter().map(SlotName::to_string).collect::<Vec<_>>(),
    });
    output.result(&answer, || {
        format!("changed the password: key {key} took the place of {}", {
            let names: Vec<String> = removed.iter().map(SlotName::to_string).collect();
            names.join(", ")
        })
    })
}

fn making<'a>(password: &'a Password, label: &'a str, machine: &Machine) -> Making<'a> {
    Making {
        password: password.as_bytes(),
        label,
        clock: machine.now(),
        cost: SlotCost::DEFAULT,
    }
}
