//! Writes a run: the index records of one range of prefixes, merged from packs and from other runs
//! (docs/PROTOCOL.md, rule 12).
//!
//! Owns the name of the run, and that a reference to it is returned only once it is in the bucket.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use bkfs_store::entropy::{number, salt};

use super::handle::{Ingest, Operation};
use crate::catalog::{MergeInput, NewRun, OpenedRun, RunRef, merge};
use crate::codec::Balance;
use crate::crypto::{Class, Features};
use crate::error::ContentError;
use crate::id::Prefix;
use crate::verify::PackContents;

/// What a run is made of.
#[derive(Debug)]
pub struct RunPlan<'a> {
    /// The class of the packs that it names.
    pub class: Class,
    /// Its range.
    pub prefixes: RangeInclusive<Prefix>,
    /// The packs of index objects.
    pub packs: &'a [PackContents],
    /// Other runs.
    pub runs: &'a [OpenedRun],
    /// Packs that it leaves out.
    pub gone: &'a HashSet<crate::pack::PackName>,
}

impl Ingest {
    /// Merges a run and writes it. A root may name it from then on.
    ///
    /// Takes memory for the whole run, for a few requests to each of the other runs, and for 48
    /// bytes of each record of the packs that lies in the range.
    ///
    /// Cancel safety: dropped, it leaves nothing, or a run in the bucket that no root names.
    ///
    /// # Errors
    /// - [`ContentError::Damaged`] if another run is damaged, and those of a read.
    /// - [`ContentError::Invalid`] if the range has more than one run may hold, or if the session
    ///   has used all its names.
    /// - [`ContentError::Store`] or [`ContentError::Stalled`] if the run is not acknowledged. A store
    ///   that denies it is not waited for, since no data depends on a run.
    pub async fn put_run(&self, plan: RunPlan<'_>) -> Result<RunRef, ContentError> {
        let _operation = Operation::begin(&self.session);
        let shared = &self.session.shared;
        let random = number(&*shared.link.entropy);
        let name = self.session.pending_index().draw_name(random)?;
        let key = name.key(Class::Run);
        let salt = salt(&*shared.link.entropy);
        let new = NewRun {
            sealer: (shared.keyring).object_sealer(Class::Run, &key, Features::NONE, salt),
            class: plan.class,
            range: plan.prefixes.clone(),
            gone: plan.gone,
            effort: shared.effort(Balance::Even),
        };
        let mut inputs: Vec<MergeInput<'_>> = plan.runs.iter().map(MergeInput::Run).collect();
        if !plan.packs.is_empty() {
            let packs = plan.packs.iter().map(|pack| &pack.0);
            inputs.push(MergeInput::Packs(packs.collect()));
        }
        let merged = merge(new, inputs).await?;
        let bytes = merged.body.iter().map(|part| part.len() as u64).sum();
        let created = shared.link.create_for_speed(&key, &merged.body);
        shared.link.progress.watch(created).await??;
        Ok(RunRef {
            name,
            bytes,
            class: plan.class,
            first: *plan.prefixes.start(),
            last: *plan.prefixes.end(),
            records: merged.records,
        })
    }
}
