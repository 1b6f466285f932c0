//! `bkfs key list|add|remove|passwd|rotate URL`

use std::path::PathBuf;

use bkfs_chunker::crypto::{SlotCost, SlotName, Statement};
use bkfs_store::open_store;
use clap::{Args, Subcommand};
use serde_json::json;
use zeroize::Zeroizing;

use crate::cli::access::Access;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output};
use crate::cli::password::{Password, Sources, Variables};
use crate::cli::runtime::block_on;
use crate::cli::snapshots::columns;
use crate::cli::target::target;
use crate::environment::Environment;
use crate::root::error::RootError;
use crate::root::key_change::{ADD, KeyChange, KeyEntry, PASSWD, REMOVE, ROTATION};
use crate::root::passed_over::PassedOver;
use crate::root::rotation::{self, RotationParts};
use crate::root::slot_error::{self, SlotsError};
use crate::root::slot_facts::SlotFacts;
use crate::root::slots::{Making, Slots};

/// List, add, remove and change the passwords of a repository; begin a new master key
///
/// Each key is a password that opens the repository. The data is encrypted under a master key,
/// which every key can decrypt. So a change of password rewrites no data. An attacker who has had a
/// password and a copy of its key can read all data under the same master key, now and later.
///
/// After such a loss change the password and rotate the master key (bkfs key rotate): the attacker
/// cannot read what is stored from then on, but still what was stored before. If the attacker can
/// also write to the bucket, copy to a new repository (bkfs copy).
///
/// bkfs never removes the last key that the given password opens.
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
    Rotate(Rotate),
}

/// List the keys, and mark the one that the given password opens
///
/// EPOCH is the newest master key that a key holds; only keys of the newest epoch open the
/// repository. VERIFIED says whether label and time are those that the key was created with: yes;
/// changed; no for a key of the first form, which does not bind them; - if only the password of
/// that key can tell.
///
/// Objects below keys/ whose names cannot be those of a key come last, with keys/ in front and
/// unprintable characters escaped. They open nothing.
#[derive(Debug, Args)]
struct List {
    /// The repository, or a mount of one
    url: String,
}

/// Add a key: another password that opens the repository
#[derive(Debug, Args)]
struct Add {
    /// The repository, or a mount of one
    url: String,
    /// The label of the key (default: the name of this host)
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    new: NewPassword,
}

/// Remove keys: their passwords no longer open the repository
///
/// Needs the password of another key, so that one key always remains. An object below keys/ that is
/// not a key, or that bkfs key list does not show, is removed by its whole name. One whose name
/// cannot be that of a key is removed by keys/NAME, as bkfs key list shows it.
///
/// bkfs saves on this machine what --give-up removes, until it knows that nothing needs it. If the
/// master key was rotated meanwhile, bkfs puts the key back.
///
/// A key of the next epoch may belong to a rotation that runs or was interrupted. A key that holds
/// another master key of an epoch may be the only one that holds it. bkfs removes both only with
/// --give-up.
#[derive(Debug, Args)]
struct Remove {
    /// The repository, or a mount of one
    url: String,
    /// The keys, or the beginnings of their names, as bkfs key list shows them
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    /// Remove even what may be the only key that holds a master key
    #[arg(long)]
    give_up: bool,
}

/// Change the password: the old one no longer opens the repository
#[derive(Debug, Args)]
struct Passwd {
    /// The repository, or a mount of one
    url: String,
    #[command(flatten)]
    new: NewPassword,
}

/// Begin a new epoch: a new master key encrypts everything that is stored from now on
///
/// Stored data stays unchanged and readable. Ids and deduplication stay. The given password opens
/// the repository as before, by a new key. Keys of other passwords are dropped, because a new key
/// can be made only with its password. bkfs names them and drops them only with --drop-others; add
/// them again with bkfs key add.
///
/// From then on a key of an older epoch opens nothing, even if its object is put back.
///
/// bkfs refuses the rotation while a session is in the root, live or ending: unmount first.
/// Read-only mounts are not sessions; they see nothing new until they are mounted again. If the
/// command is interrupted, the repository still opens with the given password, and you can repeat
/// the command.
#[derive(Debug, Args)]
struct Rotate {
    /// The repository, or a mount of one
    url: String,
    /// Drop the keys of other passwords
    #[arg(long)]
    drop_others: bool,
}

/// Where a new password comes from.
#[derive(Debug, Args)]
struct NewPassword {
    /// Read the new password from the first line of this file, which others must not be able to
    /// read
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
    /// Read the new password from the output of this command
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

/// Lists, adds, removes or changes keys, or begins a new epoch, and prints the result.
///
/// # Errors
/// The [`Failure`] of the store or of the keys: exit code 12 if no key opens with the password, 1
/// if the change is refused. Exit code 3 if old keys are left after a rotation.
pub fn run(command: Key, global: &Global, output: &Output) -> Result<(), Failure> {
    let url = match &command.action {
        Action::List(action) => &action.url,
        Action::Add(action) => &action.url,
        Action::Remove(action) => &action.url,
        Action::Passwd(action) => &action.url,
        Action::Rotate(action) => &action.url,
    };
    let (url, global) = &target(url, global)?;
    block_on(async {
        let access = Access::of_command(url, global)?;
        let store = open_store(&access.url, &access.store)
            .await
            .map_err(|error| access.explain(error.into()))?;
        access.recognize(&*store).await?;
        let environment = Environment::this();
        let explained = |error| match error {
            SlotsError::Root(error) => access.explain(error),
            error => failure(error),
        };
        Slots::expect(&*store).await.map_err(explained)?;
        let password = bytes_of(&access.password.existing()?);
        let slots = Slots::open(
            store,
            environment.entropy.clone(),
            password,
            access.choice(),
        )
        .await
        .map_err(explained)?;
        let (access, environment) = (&access, &environment);
        match &command.action {
            Action::List(_) => show(&slots, output),
            Action::Add(action) => add(&slots, action, global, access, environment, output).await,
            Action::Remove(action) => remove(&slots, action, access, environment, output).await,
            Action::Passwd(action) => {
                passwd(&slots, action, global, access, environment, output).await
            }
            Action::Rotate(action) => rotate(&slots, action, access, environment, output).await,
        }
    })
}

fn bytes_of(password: &Password) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(password.as_bytes().to_vec())
}

fn failure(error: SlotsError) -> Failure {
    match error {
        SlotsError::Root(error) => error.into(),
        SlotsError::Interrupted {
            removed,
            put_back,
            lost,
            source,
        } => {
            let message = slot_error::told(&removed, &put_back, &lost, &source);
            Failure {
                message,
                ..failure(*source)
            }
        }
        error @ SlotsError::Own { .. } => Failure::new(error.to_string()).hint(
            "Give the password of another key, add one with bkfs key add, or change it with bkfs \
             key passwd.",
        ),
        error @ SlotsError::Ambiguous { .. } => {
            Failure::new(error.to_string()).hint("bkfs key list shows the keys.")
        }
        error @ SlotsError::Unfinished { .. } => Failure::new(error.to_string()).hint(
            "Finish the rotation with bkfs key rotate, which removes keys that are of no use; if \
             no rotation was begun, remove the key with bkfs key remove --give-up.",
        ),
        error @ SlotsError::Foreign { .. } => Failure::new(error.to_string()).hint(
            "Keep the key until bkfs check --read-data can read everything without it; bkfs key \
             remove --give-up removes it.",
        ),
        error @ SlotsError::Rotated => Failure::new(error.to_string())
            .hint("Check the keys (bkfs key list), and repeat the command."),
        error @ SlotsError::Others { .. } => Failure::new(error.to_string()).hint(
            "Give --drop-others to drop them, and then add each password again with bkfs key add.",
        ),
        error => Failure::new(error.to_string()),
    }
}

fn time_of(slot: &SlotFacts) -> String {
    i64::try_from(slot.created_s)
        .ok()
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
        .map_or_else(|| slot.created_s.to_string(), |time| time.to_string())
}

/// The key of an object that is no key slot by its name, as it is shown and given.
fn shown(stray: &str) -> String {
    stray.escape_debug().to_string()
}

fn show(slots: &Slots, output: &Output) -> Result<(), Failure> {
    let (slots, strays) = (slots.list(), slots.strays());
    if output.is_json() {
        slots.iter().try_for_each(|slot| {
            let row = json!({
                "key": slot.name.to_string(),
                "label": slot.label,
                "created": time_of(slot),
                "own": slot.is_own,
                "epoch": slot.epoch,
                "in_force": slot.is_in_force,
                "label_verified": slot.statement.map(verified),
                "argon2_memory_kib": slot.cost.memory_kib,
                "argon2_passes": slot.cost.passes,
            });
            output.result(&row, String::new)
        })?;
        return strays.iter().try_for_each(|stray| {
            let row = json!({ "key": shown(stray), "is_key": false });
            output.result(&row, String::new)
        });
    }
    let head = ["", "KEY", "EPOCH", "CREATED", "VERIFIED", "LABEL"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(slots.iter().map(|slot| {
        let mark = match (slot.is_in_force, slot.is_own) {
            (true, _) => "*",
            (false, true) => "not in force",
            (false, false) => "",
        };
        let epoch = slot.epoch.map_or("-".to_owned(), |epoch| epoch.to_string());
        let verified = slot.statement.map_or("-", verified);
        let label = slot.label.escape_debug().to_string();
        let (name, time) = (slot.name.to_string(), time_of(slot));
        [
            mark.to_owned(),
            name,
            epoch,
            time,
            verified.to_owned(),
            label,
        ]
    }));
    rows.extend(strays.iter().map(|stray| {
        let none = || "-".to_owned();
        let label = "(no key)".to_owned();
        [String::new(), shown(stray), none(), none(), none(), label]
    }));
    output.result(&(), || columns(&rows, &[]))
}

/// What the password tells of a key's label and time.
fn verified(statement: Statement) -> &'static str {
    match statement {
        Statement::Bound => "yes",
        Statement::Unbound => "no",
        Statement::Changed => "changed",
    }
}

/// How the command `name` enters the root.
fn entry<'a>(
    slots: &Slots,
    access: &Access,
    environment: &'a Environment,
    name: &str,
) -> KeyEntry<'a> {
    KeyEntry {
        memory: access.memory(slots.keyring()),
        policy: access.policy(),
        min_generation: access.min_generation(),
        accept_rollback: access.accepted.rollback,
        holder: environment.holder(name),
        processes: &*environment.processes,
    }
}

/// Changes keys while the command stands in the root, so that no rotation comes between.
async fn change<T>(
    slots: &Slots,
    entry: KeyEntry<'_>,
    work: impl AsyncFnOnce(&KeyChange<'_>) -> Result<T, SlotsError>,
) -> Result<T, Failure> {
    let change = KeyChange::begin(slots, &entry).await.map_err(failure)?;
    let changed = work(&change).await;
    change.end(changed).await.map_err(failure)
}

async fn add(
    slots: &Slots,
    action: &Add,
    global: &Global,
    access: &Access,
    environment: &Environment,
    output: &Output,
) -> Result<(), Failure> {
    let password = action.new.get(global)?;
    let label = action.label.as_deref().unwrap_or(&environment.process.host);
    let making = making(&password, label, environment);
    let entry = entry(slots, access, environment, ADD);
    let key = change(slots, entry, async |_| slots.add(making).await).await?;
    let answer = json!({ "key": key.to_string(), "label": label });
    output.result(&answer, || format!("added key {key} ({label})"))
}

async fn remove(
    slots: &Slots,
    action: &Remove,
    access: &Access,
    environment: &Environment,
    output: &Output,
) -> Result<(), Failure> {
    let (mut keys, mut strays) = (Vec::new(), Vec::new());
    for key in &action.keys {
        match slots.strays().iter().find(|stray| shown(stray) == *key) {
            Some(stray) => strays.push(stray.clone()),
            None => keys.push(slots.find(key).map_err(failure)?),
        }
    }
    keys.sort();
    keys.dedup();
    strays.sort();
    strays.dedup();
    if !keys.is_empty() {
        let (gives_up, now) = (action.give_up, environment.now());
        let entry = entry(slots, access, environment, REMOVE);
        change(slots, entry, async |change| {
            slots.remove(&keys, gives_up, now, Some(change)).await
        })
        .await?;
    }
    for key in keys {
        let answer = json!({ "removed": key.to_string() });
        output.result(&answer, || format!("removed key {key}"))?;
    }
    for stray in strays {
        slots.remove_stray(&stray).await.map_err(failure)?;
        let stray = shown(&stray);
        let answer = json!({ "removed": stray });
        output.result(&answer, || format!("removed {stray}, which is not a key"))?;
    }
    Ok(())
}

async fn passwd(
    slots: &Slots,
    action: &Passwd,
    global: &Global,
    access: &Access,
    environment: &Environment,
    output: &Output,
) -> Result<(), Failure> {
    let password = action.new.get(global)?;
    let own: Vec<&SlotFacts> = slots.list().iter().filter(|slot| slot.is_own).collect();
    let label = own.first().map_or("", |slot| slot.label.as_str());
    let making = making(&password, label, environment);
    let entry = entry(slots, access, environment, PASSWD);
    let (key, removed) = change(slots, entry, async |change| {
        slots.change(making, Some(change)).await
    })
    .await?;
    let passed_over = slots.passed_over();
    let not_tried = passed_over.named().iter();
    let not_tried = not_tried.map(|(key, why)| json!({ "key": key.to_string(), "reason": why }));
    let answer = json!({
        "key": key.to_string(),
        "removed": removed.iter().map(SlotName::to_string).collect::<Vec<_>>(),
        "not_tried": not_tried.collect::<Vec<_>>(),
        "not_tried_count": passed_over.count(),
    });
    if let Some(warning) = still_opening(passed_over) {
        output.warning(warning);
    }
    output.result(&answer, || {
        format!("changed the password: key {key} replaces {}", {
            let names: Vec<String> = removed.iter().map(SlotName::to_string).collect();
            names.join(", ")
        })
    })
}

/// Warns of keys that the old password may still open.
fn still_opening(passed_over: &PassedOver) -> Option<String> {
    let count = passed_over.count();
    let keys = match count {
        0 => return None,
        1 => "1 key was".to_owned(),
        _ => format!("{count} keys were"),
    };
    let mut named: Vec<String> = passed_over
        .named()
        .iter()
        .map(|(key, why)| format!("key {key}: {why}"))
        .collect();
    if named.len() < count {
        named.push(format!("{} more", count - named.len()));
    }
    let named = named.join("; ");
    Some(format!(
        "{keys} not tried: {named}. The old password still opens any of them that was made for it. \
         Repeat the command by the old password once they can be read"
    ))
}

async fn rotate(
    slots: &Slots,
    action: &Rotate,
    access: &Access,
    environment: &Environment,
    output: &Output,
) -> Result<(), Failure> {
    let parts = RotationParts {
        entry: entry(slots, access, environment, ROTATION),
        clock: environment.now(),
        drops_others: action.drop_others,
    };
    let rotated = rotation::rotate(slots, parts).await;
    let rotated = rotated.map_err(|error| match error {
        SlotsError::Root(RootError::OutcomeUnknown { .. }) => failure(error).hint(
            "bkfs key list shows which epoch is in force; repeat the command if it is the old \
                 one.",
        ),
        error => failure(error),
    })?;
    let names = |keys: &[SlotName]| keys.iter().map(SlotName::to_string).collect::<Vec<_>>();
    let left: Vec<SlotName> = rotated.left.iter().map(|(name, _)| *name).collect();
    let answer = json!({
        "epoch": rotated.epoch,
        "generation": rotated.generation,
        "key": rotated.slot.to_string(),
        "dropped": names(&rotated.dropped),
        "left": names(&left),
    });
    output.result(&answer, || {
        format!(
            "master key {} seals what is stored from now on; key {} replaces {}",
            rotated.epoch,
            rotated.slot,
            names(&rotated.dropped).join(", ")
        )
    })?;
    match rotated.left.first() {
        None => Ok(()),
        Some((name, why)) => Err(Failure::new(format!(
            "{} dropped keys could not be deleted, one of them {name}: {why}",
            rotated.left.len()
        ))
        .code(Code::Partly)
        .hint("bkfs key remove removes them.")),
    }
}

fn making<'a>(password: &'a Password, label: &'a str, environment: &Environment) -> Making<'a> {
    Making {
        password: password.as_bytes(),
        label,
        clock: environment.now(),
        cost: SlotCost::DEFAULT,
    }
}
