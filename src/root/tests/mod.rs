//! Tests of the root's modules, on stores in memory and on disk, with lost answers.

mod adding;
mod commit;
mod commit_packs;
mod handle;
mod journal;
mod journal_slow;
mod journal_spool;
mod keys;
mod keys_changes;
mod keys_copies;
mod keys_damage;
mod keys_exclusion;
mod keys_rotation;
mod keys_support;
mod keys_taken_back;
mod lists;
mod missing;
mod overtaken;
mod repository;
mod run_groups;
mod session;
mod shards;
mod state;
mod support;
mod transition;
mod witness;
