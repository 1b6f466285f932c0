//! Damage: one object of a repository is flipped, cut short, swapped, removed or replaced by what
//! it once was, at random, from a seed.
//!
//! After each: `check --read-data` finds it and names the object, and a restore gets the
//! right bytes or an error, never a wrong byte, never a panic, and errors for nothing but the files
//! that the check names. Sealed repositories and plain ones, every class of object.
//!
//! A failing case prints how to replay it: `BKFS_DAMAGE_SEED=S BKFS_DAMAGE_CASE=N cargo test -p
//! bkfs-tests --test damage`.

mod busy;
mod cases;
mod doubted;
mod forgotten;
mod heals;
mod interrupted;
mod large;
mod lists;
mod machine;
#[path = "../reference/password.rs"]
mod password;
mod refused;
mod renewed;
mod repairs;
mod reread;
mod restored;
mod scrubs;
mod spilled;
mod targeted;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use bkfs_store::entropy::{Entropy, SystemEntropy};
use cases::{Case, run_case};
use world::Fixture;

/// Cases of each repository: a hundred together, five hundred with `BKFS_TEST_FULL=1`.
fn case_count() -> u64 {
    match std::env::var("BKFS_TEST_FULL").as_deref() {
        Ok("1") => 250,
        _ => 50,
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Another seed every time, so that many runs see many cases; it is printed.
fn seed() -> u64 {
    number("BKFS_DAMAGE_SEED").unwrap_or_else(|| {
        let mut seed = [0; 4];
        SystemEntropy.fill(&mut seed);
        u64::from(u32::from_le_bytes(seed))
    })
}

fn all_cases(password: Option<&'static str>) {
    let fixture = Fixture::build(password);
    let seed = seed();
    println!("damage: seed {seed}");
    let chosen = number("BKFS_DAMAGE_CASE");
    let mut failures = Vec::new();
    let mut classes = std::collections::BTreeMap::new();
    for number in 0..case_count() {
        if chosen.is_some_and(|chosen| chosen != number) {
            continue;
        }
        let case = Case::draw(&fixture, seed, number);
        *classes.entry(case.class()).or_insert(0) += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| run_case(&fixture, &case)));
        let why = match outcome {
            Ok(Ok(())) => continue,
            Ok(Err(why)) => why,
            Err(_) => "it panicked".to_owned(),
        };
        let replay = format!("BKFS_DAMAGE_SEED={seed} BKFS_DAMAGE_CASE={number}");
        failures.push(format!(
            "case {number}, {case}: {why}\n    replay: {replay}"
        ));
    }
    println!("damage: cases by class: {classes:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    if chosen.is_none() {
        assert_eq!(
            classes.len(),
            fixture.classes(),
            "every class is struck: {classes:?}"
        );
    }
}

#[test]
fn damage_to_a_plain_repository_is_found_and_returns_no_wrong_byte() {
    all_cases(None);
}

#[test]
fn damage_to_a_sealed_repository_is_found_and_returns_no_wrong_byte() {
    all_cases(Some(world::PASSWORD));
}
