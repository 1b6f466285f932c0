//! Mends what can be mended: a lost index, a lost root, lost lists of snapshots; and puts damage in
//! quarantine, so that the next write of the same data stores it again.
//!
//! Owns the plan, which says beforehand what will be done, and its execution: everything that the
//! new root names is written and acknowledged first, then the root is replaced, by a session that
//! is registered in it (protocol.md, rules 1 and 2). Deletes nothing but journals that can never be
//! carried out, of which it leaves copies. Only where no root is left is one written
//! without a session: every session of the past is then gone or ended, and finds itself fenced.
//!
//! What comes back is closed (rule 3): packs that refer to what is nowhere are left out, unless a
//! snapshot or volume needs them; then what is missing is lost, and the next check says so. Footers
//! and commit records are what packs carry for this.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bkfs_chunker::catalog::PackLocation;
use bkfs_chunker::crypto::{Class, Features, Keyring};
use bkfs_chunker::id::Id;
use bkfs_chunker::ingest::Ingest;
use bkfs_chunker::pack::PackName;
use bkfs_store::Store;

use super::abandon::{self, Broken};
use super::anew::{self, Closed};
use super::blame::reach;
use super::check::{Findings, examine_without};
use super::layout::{NamedObject, place_of};
use super::left_journals;
use super::mend::mend;
use super::options::CheckOptions;
use super::rebuild::{self, Remains, Taken};
use super::refusal::{refuse, refuse_newer_keys};
use super::repair_plan::RepairPlan;
use super::reread::{require_lost, require_still_lost};
use super::{lost_root, lost_sessions};
use crate::root::ended_sessions::set_aside;
use crate::root::error::RootError;
use crate::root::form::Form;
use crate::root::lists::put_entries;
use crate::root::repository::probe;
use crate::root::retry::random;
use crate::root::sent::Sent;
use crate::root::snapshots::QuarantineEntry;
use crate::root::snapshots::SnapshotEntry;
use crate::root::state::{ROOT_KEY, Root, SessionId};

/// How often packs that do not belong to anything are left out and the rest is looked at again.
const ROUNDS_MAX: u32 = 8;

/// A check that goes on until what it would bring back is closed, and the plan that follows from
/// it.
///
/// # Errors
/// [`RootError::Rollback`] and [`RootError::Unopenable`] where repair would destroy more than it
/// mends; store errors.
pub async fn plan(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
) -> Result<(Findings, RepairPlan), RootError> {
    let mut left_out = HashSet::new();
    // Of all rounds, since packs are left out because of what a round could not read.
    let mut unread = BTreeSet::new();
    for _ in 0..ROUNDS_MAX {
        let mut findings = examine_without(store.clone(), keyring, options, &left_out).await?;
        unread.extend(std::mem::take(&mut findings.unread));
        refuse(&findings)?;
        if findings.handle.is_none() {
            refuse_newer_keys(&**store, keyring, &findings).await?;
        }
        if findings.handle.is_none() || !findings.report.is_clean() {
            // What is needed is looked up blob by blob.
            findings.load_chunks().await?;
        }
        let tips = tips(&findings).await?;
        let open = strangers(&findings, &tips).await?;
        if open.is_empty() {
            findings.unread = unread.into_iter().collect();
            let sent = match findings.handle {
                None => remembered(options).await,
                Some(_) => Vec::new(),
            };
            let broken = abandon::find(&findings).await?;
            let known = (&tips, &broken);
            let plan = make_plan(&findings, known, keyring, options, &sent)?;
            return Ok((findings, plan));
        }
        left_out.extend(open);
    }
    Err(RootError::damaged(
        "meta/",
        "too much refers to what is nowhere: nothing is repaired",
    ))
}

/// The last commit of each volume: as the root says, or the best of the records. A record that some
/// index object holds was stored with all that it needs, before anything was damaged; another must
/// prove it.
async fn tips(findings: &Findings) -> Result<BTreeMap<String, Id>, RootError> {
    let mut tips = BTreeMap::new();
    if let Some(handle) = &findings.handle {
        let view = handle.current();
        let volumes = view.root.volumes.iter();
        tips.extend(volumes.filter_map(|(name, entry)| Some((name.clone(), entry.commit?))));
        return Ok(tips);
    }
    for (volume, records) in rebuild::candidates(&findings.learned.records) {
        for (id, record) in &records {
            let places = findings.content_store.places_in_memory(&id.prefix());
            let is_held = |place: &PackLocation| findings.indexed.packs.contains_key(&place.pack);
            let proven = places.iter().any(is_held)
                || match record.tree {
                    Some(tree) => {
                        reach(
                            &findings.content_store,
                            tree,
                            &mut HashSet::new(),
                            &mut |_| (),
                        )
                        .await?
                    }
                    None => true,
                };
            if proven {
                tips.insert(volume.to_owned(), *id);
                break;
            }
        }
    }
    Ok(tips)
}

/// Packs outside of every index object that refer to what is nowhere, and that no snapshot and no
/// volume needs: what a crash has left.
async fn strangers(
    findings: &Findings,
    tips: &BTreeMap<String, Id>,
) -> Result<HashSet<PackName>, RootError> {
    let outside: HashSet<PackName> = findings.unlisted.iter().map(|pack| pack.name()).collect();
    let mut open = findings.learned.open_packs();
    open.retain(|pack| outside.contains(pack));
    if open.is_empty() {
        return Ok(open);
    }
    let records = &findings.learned.records;
    let mut trees: BTreeSet<Id> = findings
        .listed
        .snapshots
        .iter()
        .filter_map(|entry| entry.tree)
        .collect();
    if let Some(handle) = &findings.handle {
        let view = handle.current();
        let volumes = view.root.volumes.values();
        trees.extend(volumes.flat_map(|entry| entry.tree.into_iter().chain(entry.building)));
    }
    for tip in tips.values() {
        let history = rebuild::history(records, *tip).into_iter();
        let named = history.filter(|(id, record)| id == tip || record.snapshot.is_some());
        trees.extend(named.filter_map(|(_, record)| record.tree));
    }
    let mut seen = HashSet::new();
    for tree in trees {
        let mut visit = |id: Id| {
            for place in findings.content_store.places_in_memory(&id.prefix()) {
                open.remove(&place.pack);
            }
        };
        reach(&findings.content_store, tree, &mut seen, &mut visit).await?;
    }
    Ok(open)
}

/// What this machine remembers of the journals that it sent.
async fn remembered(options: &CheckOptions) -> Vec<(SessionId, Sent)> {
    let Some(memory) = options.memory.as_ref().and_then(|memory| memory.sent()) else {
        return Vec::new();
    };
    let mut sent = Vec::new();
    for id in memory.sessions().await {
        sent.extend(memory.recall(id).await.map(|sent| (id, sent)));
    }
    sent
}

/// Pure: from what was found to what will be done.
fn make_plan(
    findings: &Findings,
    (tips, broken): (&BTreeMap<String, Id>, &Broken),
    keyring: &Keyring,
    options: &CheckOptions,
    sent: &[(SessionId, Sent)],
) -> Result<RepairPlan, RootError> {
    let mut plan = RepairPlan::default();
    match &findings.handle {
        None => {
            plan_lists(findings, tips, &mut plan);
            plan_root(findings, tips, keyring, options, sent, &mut plan);
        }
        Some(_) => {
            if !findings.indexed.lost.is_empty() {
                plan.packs.clone_from(&findings.unlisted);
                plan.steps.push(format!(
                    "write {} lost index objects anew, from what {} packs say of themselves",
                    findings.indexed.lost.len(),
                    plan.packs.len()
                ));
            }
            plan_quarantine(findings, &mut plan);
            if !anew::comes_first(findings, plan.writes_quarantine) {
                plan_lost_lists(findings, tips, &mut plan);
            }
            broken.plan(options.gives_up, &mut plan);
            plan.loses_chain = !findings.listed.lost_chain.is_empty();
            if plan.loses_chain {
                plan.steps.push(
                    "give up the older part of the chain of generations: machines that have seen \
                     one of these ask once"
                        .to_owned(),
                );
            }
            plan.lost_groups.clone_from(&findings.lost_groups);
            if !plan.lost_groups.is_empty() {
                plan.steps.push(format!(
                    "take {} groups of runs out of the root: the index objects that they cover are \
                     read in their place",
                    plan.lost_groups.len()
                ));
            }
            plan_journals(findings, &mut plan);
            plan.mends = !plan.steps.is_empty();
            plan.renewed = anew::lost(findings, !plan.lost_lists.is_empty());
            plan.steps.extend(anew::step(&plan.renewed));
        }
    }
    Ok(plan)
}

/// Lists of snapshots of a root that is there.
fn plan_lost_lists(findings: &Findings, tips: &BTreeMap<String, Id>, plan: &mut RepairPlan) {
    if findings.listed.lost.is_empty() {
        return;
    }
    plan_lists(findings, tips, plan);
    plan.lost_lists.clone_from(&findings.listed.lost);
    plan.steps.push(format!(
        "write {} lost lists of snapshots anew: {} snapshots and {} in the trash are known from \
         commit records",
        plan.lost_lists.len(),
        plan.snapshots.len(),
        plan.trash.len()
    ));
}

fn plan_lists(findings: &Findings, tips: &BTreeMap<String, Id>, plan: &mut RepairPlan) {
    // A root that is written anew may have either form.
    let current = findings.handle.as_ref().map(|handle| handle.current());
    let mut taken = Taken::new(current.as_ref().map(|current| &current.root));
    taken.spare(&findings.leftover_snapshots);
    let kept = findings.listed.snapshots.iter();
    let trash = findings.listed.trash.iter().map(|entry| &entry.snapshot);
    let listed = kept.chain(trash);
    if findings.handle.is_some() {
        listed.clone().for_each(|entry| taken.take(entry));
    }
    let known = listed.chain(&findings.leftover_snapshots);
    let known = known.map(|entry| (entry.commit, entry.generation));
    let known = known.collect();
    // Those of removed volumes come after all others, which keep their names. A removed volume that
    // came back begins anew: only the remaining lists name what is left of its first history.
    let removals = rebuild::removals(&findings.learned.records);
    let mut named: Vec<&SnapshotEntry> = findings.leftover_snapshots.iter().collect();
    named.sort_by_key(|entry| std::cmp::Reverse(entry.generation));
    let named = named.iter().map(|entry| &entry.commit);
    let mut walked: HashSet<Id> = HashSet::new();
    for tip in tips.values().chain(&removals).chain(named) {
        if walked.contains(tip) {
            continue;
        }
        let records = &findings.learned.records;
        let mut history = rebuild::history(records, *tip);
        walked.extend(history.iter().map(|(id, _)| *id));
        let of = history.first().map(|(_, record)| record.volume.clone());
        // Snapshots outside the chain: what an index object holds was stored with all that it
        // needs.
        history.extend(records.iter().filter(|(id, record)| {
            let is_held = |place: &PackLocation| findings.indexed.packs.contains_key(&place.pack);
            let places = || findings.content_store.places_in_memory(&id.prefix());
            record.is_snapshot_only()
                && Some(&record.volume) == of.as_ref()
                && places().iter().any(is_held)
        }));
        let listed = &findings.leftover_snapshots;
        let generations = rebuild::generations(&history, &known);
        // What was collected since does not come back: its tree is in no live pack.
        history.retain(|(_, record)| {
            let places = |tree: &Id| findings.content_store.places_in_memory(&tree.prefix());
            let is_live = |tree: &Id| !places(tree).is_empty();
            record.tree.as_ref().is_none_or(is_live)
        });
        let (kept, trash) = rebuild::snapshots(&history, listed, &generations, &mut taken);
        plan.snapshots.extend(kept);
        plan.trash.extend(trash);
    }
}

fn plan_root(
    findings: &Findings,
    tips: &BTreeMap<String, Id>,
    keyring: &Keyring,
    options: &CheckOptions,
    sent: &[(SessionId, Sent)],
    plan: &mut RepairPlan,
) {
    let mut journals = left_journals::owned(findings, tips, keyring, plan);
    for missed in rebuild::missed(&findings.learned.records, &journals, sent) {
        plan.steps.push(missed.to_string());
        // It stands in the root until the loss is accepted.
        let volume = missed.volume.filter(|volume| tips.contains_key(volume));
        journals.extend(volume.map(|volume| (volume, missed.session)));
    }
    let listed = findings.leftover_snapshots.iter();
    let listed = listed.map(|entry| entry.generation).max().unwrap_or(0);
    let trash = plan.trash.iter().map(|entry| &entry.snapshot);
    let remains = Remains {
        repository: keyring.repository(),
        nonce: random(&*options.entropy),
        records: &findings.learned.records,
        tips,
        journals: &journals,
        epoch: findings.leftover_epoch,
        seen: findings.known_generation.max(listed),
        shares_numbers: Taken::of(plan.snapshots.iter().chain(trash)).shares_numbers(),
    };
    let (root, left_out) = rebuild::root(&remains);
    if root.form == Form::Large {
        plan.steps.push(LARGE.to_owned());
    } else if findings.bucket.keys().any(|key| is_fence(key)) {
        plan.steps.push(SMALL.to_owned());
    }
    plan.packs = findings
        .indexed
        .packs
        .values()
        .chain(&findings.unlisted)
        .cloned()
        .collect();
    let volumes = root.volumes.iter();
    let volumes: Vec<String> = volumes
        .map(|(name, volume)| format!("{name} as of its commit {}", volume.sequence))
        .collect();
    plan.steps.push(format!(
        "write a new root of generation {}: {} packs; volumes: {}; {} snapshots, {} in the trash; \
         {} ended sessions with journals",
        root.generation,
        plan.packs.len(),
        if volumes.is_empty() {
            "none".to_owned()
        } else {
            volumes.join(", ")
        },
        plan.snapshots.len(),
        plan.trash.len(),
        root.sessions.len(),
    ));
    if !left_out.is_empty() {
        plan.steps.push(format!(
            "leave {} removed volumes out, for which the new root has no room: their last \
             snapshots are listed: {}",
            left_out.len(),
            left_out.join(", ")
        ));
    }
    plan.root = Some(root);
}

fn plan_journals(findings: &Findings, plan: &mut RepairPlan) {
    for broken in &findings.unreplayable {
        plan.steps.extend(broken.steps());
        plan.given_up.extend(broken.given_up());
        plan.set_aside.extend(broken.covered.iter().cloned());
        plan.set_aside.extend(broken.keys.iter().cloned());
    }
}

fn plan_quarantine(findings: &Findings, plan: &mut RepairPlan) {
    let known = &findings.listed.quarantine;
    let mut found: Vec<PackLocation> = findings.damage.places().into_iter().collect();
    found.retain(|place| {
        let whole = PackLocation {
            frame: None,
            ..*place
        };
        !known.contains(place) && !known.contains(&whole)
    });
    plan.writes_quarantine = !found.is_empty() || !findings.listed.lost_quarantine.is_empty();
    if !plan.writes_quarantine {
        return;
    }
    plan.steps.push(format!(
        "put {} damaged places in quarantine, so that the next write of the same data stores it \
         again",
        found.len()
    ));
    found.sort();
    found.dedup();
    let entry = |place: PackLocation| QuarantineEntry {
        pack: place.pack,
        frame: place.frame,
    };
    plan.quarantine = found.into_iter().map(entry).collect();
}

/// Does what was planned, unless something that it gives up can be read now.
///
/// Between the last look at that and the first change nothing is asked of the store, except for the
/// sessions of a lost root. Only the renewal of condemned packs comes before the last look: it may
/// take minutes, and gives nothing up.
///
/// Cancel safety: dropped, it leaves some of the steps done. The next repair finds the rest.
///
/// # Errors
/// [`RootError::NoLongerLost`], which says whether anything was changed before; store errors, and
/// those of a session's entry; [`RootError::OutcomeUnknown`]. Doing it again is safe.
pub async fn execute(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    findings: &Findings,
    plan: RepairPlan,
) -> Result<(), RootError> {
    // This may wait for the store for minutes.
    probe(&**store, &*options.entropy, &options.policy).await?;
    if let Some(root) = plan.root.clone() {
        return write_root(store, keyring, options, findings, plan, root).await;
    }
    let (renewed, rebuilt) = (plan.renewed.clone(), plan.rebuilt());
    let abandoned = plan.abandoned.clone();
    let is_renewed = !renewed.is_empty();
    let renew = anew::renew(store, keyring, options, findings, &renewed, rebuilt);
    if plan.lost_lists.is_empty() {
        require_lost(store, keyring, options, findings, &plan).await?;
        give_journals_up(store, options, &plan).await?;
        mend_planned(store, keyring, findings, plan, Closed::default()).await?;
        abandon::remember(options, keyring, abandoned).await;
        return renew.await.map(drop);
    }
    if is_renewed {
        require_lost(store, keyring, options, findings, &plan).await?;
    }
    // What the lists name from then on is in live packs (rule 3), unless that was not to be found
    // out: the entries say so.
    let closed = renew.await?;
    match is_renewed {
        true => require_still_lost(store, keyring, options, findings, &plan).await?,
        false => require_lost(store, keyring, options, findings, &plan).await?,
    }
    give_journals_up(store, options, &plan).await?;
    mend_planned(store, keyring, findings, plan, closed).await?;
    abandon::remember(options, keyring, abandoned).await;
    Ok(())
}

/// Sets journals aside that cannot be carried out, and then lets this machine forget that it sent
/// them and the missing ones.
async fn give_journals_up(
    store: &Arc<dyn Store>,
    options: &CheckOptions,
    plan: &RepairPlan,
) -> Result<(), RootError> {
    set_aside(&**store, &plan.set_aside).await?;
    if let Some(sent) = options.memory.as_ref().and_then(|memory| memory.sent()) {
        for (session, to) in &plan.given_up {
            sent.lower(*session, *to).await;
        }
    }
    Ok(())
}

async fn mend_planned(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    findings: &Findings,
    plan: RepairPlan,
    closed: Closed,
) -> Result<(), RootError> {
    match plan.mends {
        true => mend(store, keyring, findings, plan, closed).await,
        false => Ok(()),
    }
}

/// What a plan says of a root that is large because a small one would not do.
const LARGE: &str = "make the new root a large one, as bkfs upgrade does: otherwise it would have no \
                     room, or too few numbers for snapshots. Earlier versions of bkfs refuse it";

/// What a plan says if the lost root may have been a large one.
const SMALL: &str = "make the new root a small one: bkfs upgrade makes it large again";

fn is_fence(key: &str) -> bool {
    matches!(place_of(key), NamedObject::Fence(_))
}

/// Writes the first root after the last one was lost, unless something that it goes without can be
/// read now.
async fn write_root(
    store: &Arc<dyn Store>,
    keyring: &Keyring,
    options: &CheckOptions,
    findings: &Findings,
    mut plan: RepairPlan,
    mut root: Root,
) -> Result<(), RootError> {
    let whole = anew::whole(findings, &plan.rebuilt().heads).await?;
    let trash = plan.trash.iter_mut().map(|entry| &mut entry.snapshot);
    for entry in plan.snapshots.iter_mut().chain(trash) {
        entry.rebuilt = !whole.contains(&entry.commit);
    }
    // All trees were read since the check: minutes may have passed.
    require_lost(store, keyring, options, findings, &plan).await?;
    let ingest = Ingest::new(
        findings.content_store.clone(),
        u64::from_le_bytes(random(&*options.entropy)),
    );
    root.index = plan.put_index(&ingest).await?;
    root.next_snapshot = Taken::of(&plan.snapshots).next_number();
    root.snapshots
        .extend(put_entries(&ingest, plan.snapshots).await?);
    root.trash.extend(put_entries(&ingest, plan.trash).await?);
    if rebuild::enlarge(&mut root) {
        tracing::warn!("the new root is a large one, as after bkfs upgrade");
    }
    let salt = random(&*options.entropy);
    let payload = root.encode()?;
    let features = root.form.stated_in(Features::NONE.with_witness());
    let object = keyring.seal_object(Class::Root, ROOT_KEY, features, salt, &payload);
    // It ends no session in vain, if it can see that now.
    lost_sessions::require_known(store, findings, &root).await?;
    let examined = findings.lost_root.as_ref();
    let shut = lost_root::shut(store, keyring, options, examined).await?;
    let sessions = lost_sessions::find(store).await?;
    // One that has entered the root of another repair needs no fence.
    lost_root::require_shut(store, shut.as_ref()).await?;
    lost_sessions::fence(store, keyring, options, sessions).await?;
    lost_sessions::require_known(store, findings, &root).await?;
    lost_root::put(store, keyring, shut, (object, root.mark())).await?;
    // This machine knows what the new root goes without: it has just said so.
    if let Some(memory) = &options.memory
        && let Err(error) = memory.accept(root.mark()).await
    {
        tracing::warn!(%error, "cannot remember the root that was written");
    }
    Ok(())
}
