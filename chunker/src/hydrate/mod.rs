//! The read path: find, fetch, verify, decode, cache.
//!
//! Owns the choice of the copy of a blob that is read, and the handling of missing and damaged
//! copies. `reader` holds the state, `fetch` fetches frames, and `read` assembles file contents
//! from chunks. Every returned blob was verified against its whole id, whatever its source.

mod fetch;
mod plan;
mod read;
mod reader;
mod single_flight;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::ContentError;
use crate::id::{Id, Kind};
use crate::pending::Pending;
use reader::{FrameAnswer, FrameKey, Source};

pub(crate) use reader::{Reader, ReaderParts};

/// The search for one blob.
struct Search {
    kind: Kind,
    id: Id,
    sources: VecDeque<Source>,
    error: Option<ContentError>,
    found: Option<Bytes>,
}

impl Reader {
    /// Reads blobs. Returns one result for each.
    pub(crate) async fn blobs(
        self: &Arc<Self>,
        wanted: &[(Kind, Id)],
    ) -> Vec<Result<Bytes, ContentError>> {
        let searches = wanted.iter().map(|&(kind, id)| self.search(kind, id));
        let mut searches: Vec<Search> = searches.collect();
        loop {
            let (asked, sources) = next_sources(&mut searches);
            if sources.is_empty() {
                break;
            }
            let keys: Vec<(FrameKey, u16)> = sources.iter().map(Source::place).collect();
            let answers = self.frames(sources).await;
            for (position, (key, slot)) in asked.into_iter().zip(keys) {
                let answer = answers.get(&key).cloned();
                self.consider(&mut searches[position], key, slot, answer);
            }
        }
        let answers = searches.into_iter().map(|search| {
            let Search {
                kind, id, error, ..
            } = search;
            let otherwise = error.unwrap_or(ContentError::Unknown { kind, id });
            search.found.ok_or(otherwise)
        });
        answers.collect()
    }

    /// Finds the copies of a blob.
    fn search(&self, kind: Kind, id: Id) -> Search {
        let mut search = Search {
            kind,
            id,
            sources: VecDeque::new(),
            error: None,
            found: None,
        };
        let pending = self.pending.read();
        for found in pending
            .iter()
            .filter_map(|blobs| blobs.find(kind, id.prefix()))
        {
            match found {
                Pending::Bytes(bytes) => {
                    search.found = Some(bytes);
                    return search;
                }
                Pending::Sealed(sealed, slot) => {
                    search.sources.push_back(Source::Sealed(sealed, slot));
                }
                Pending::Stored(candidate) => {
                    search.sources.push_back(Source::Bucket(candidate));
                }
            }
        }
        let found = self.catalog.locate(&id).into_iter();
        search
            .sources
            .extend(found.map(|candidate| Source::Bucket(Box::new(candidate))));
        search
    }

    /// Takes a blob out of a fetched frame, or records why that failed.
    fn consider(&self, search: &mut Search, key: FrameKey, slot: u16, answer: Option<FrameAnswer>) {
        let error = match answer {
            Some(Ok(frame)) => match frame.blob(&self.keyring, search.kind, &search.id, slot) {
                Some(bytes) => {
                    search.found = Some(bytes);
                    return;
                }
                None => ContentError::damaged(
                    key.0.key(frame.class),
                    format_args!("{:?} {} is not what its id says", search.kind, search.id),
                ),
            },
            Some(Err(error)) => error,
            None => ContentError::Internal("a fetch without an answer"),
        };
        if matches!(error, ContentError::Damaged { .. }) {
            self.link.counters.damaged.one();
            self.catalog.note_damaged(key.0, key.1);
        }
        search.error.get_or_insert(error);
    }
}

/// Takes the next copy of each blob that is not found yet. Returns the positions of these blobs,
/// and the copies.
fn next_sources(searches: &mut [Search]) -> (Vec<usize>, Vec<Source>) {
    let (mut asked, mut sources) = (Vec::new(), Vec::new());
    for (position, search) in searches.iter_mut().enumerate() {
        if search.found.is_some() {
            continue;
        }
        if let Some(source) = search.sources.pop_front() {
            asked.push(position);
            sources.push(source);
        }
    }
    (asked, sources)
}
