//! Counts objects of the bucket that a root does not need.
//!
//! Owns which objects these are, by their keys and by the lists and index objects of the root.
//! Pure.

use std::collections::{BTreeMap, HashSet};

use bkfs_chunker::crypto::Class;
use bkfs_chunker::pack::PackName;

use super::layout::{self, place_of};
use super::report::Report;
use super::workspace::shelf::ShelvedPack;
use crate::root::shard::ListRef;
use crate::root::state::{Root, SessionId};

/// Counts objects that the root does not need.
pub fn count_orphans(
    root: &Root,
    packs: &BTreeMap<PackName, ShelvedPack>,
    condemned: &HashSet<PackName>,
    bucket: &BTreeMap<String, u64>,
    report: &mut Report,
) {
    let lists: HashSet<PackName> = list_refs(root).map(|list| list.name).collect();
    let indexes: HashSet<PackName> = root.index.iter().map(|index| index.name).collect();
    let runs: HashSet<PackName> = root.run_names().collect();
    let is_at_work = |session: u64| root.sessions.contains_key(&SessionId(session));
    for (key, bytes) in bucket {
        let orphans = &mut report.orphans;
        let (needed, count, session) = match place_of(key) {
            layout::NamedObject::Config
            | layout::NamedObject::Root
            | layout::NamedObject::Slot(_)
            // It stays for ever.
            | layout::NamedObject::Fence(_) => continue,
            layout::NamedObject::Session(id) => (is_at_work(id.0), &mut orphans.sessions, id.0),
            layout::NamedObject::Journal { session, .. } => {
                (is_at_work(session.0), &mut orphans.journals, session.0)
            }
            layout::NamedObject::Named(Class::List, name) => {
                (lists.contains(&name), &mut orphans.lists, name.session)
            }
            layout::NamedObject::Named(Class::Index, name) => {
                let needed = indexes.contains(&name);
                (needed, &mut orphans.indexes, name.session)
            }
            layout::NamedObject::Named(Class::Run, name) => {
                let needed = runs.contains(&name);
                (needed, &mut orphans.indexes, name.session)
            }
            layout::NamedObject::Named(_, name) => {
                let needed = packs.contains_key(&name) || condemned.contains(&name);
                (needed, &mut orphans.packs, name.session)
            }
            layout::NamedObject::Probe => (false, &mut orphans.probes, 0),
            layout::NamedObject::Foreign => (false, &mut orphans.foreign, 0),
        };
        if needed {
            continue;
        }
        match is_at_work(session) {
            true => orphans.in_progress += 1,
            false => *count += 1,
        }
        report.orphans.bytes += bytes;
    }
}

/// Returns all lists that a root names.
pub fn list_refs(root: &Root) -> impl Iterator<Item = &ListRef> {
    let condemned = root.condemned.iter().map(|condemned| &condemned.list);
    let lists = root.snapshots.iter().chain(&root.trash);
    let older = root.chain.iter().flat_map(|chain| &chain.older);
    let older = older.map(|part| &part.list);
    let dropped = root.run_groups().iter().flat_map(|group| &group.dropped);
    lists
        .chain(&root.quarantine)
        .chain(condemned)
        .chain(older)
        .chain(dropped)
}
