//! Deterministic simulation: the engine on machines that crash, over a network that loses and
//! damages, with a bucket that does neither. Everything derives from one seed. See README.md.

#[path = "../reference/alphabet.rs"]
mod alphabet;
mod ambient;
mod bugs;
mod campaign;
#[path = "../reference/client.rs"]
mod client;
mod collector;
mod disk;
mod ending;
mod faults;
mod held;
mod history;
mod manners;
#[path = "../reference/model.rs"]
mod model;
mod mount;
#[path = "../reference/password.rs"]
mod password;
mod run;
mod store;
mod sweep;
mod trace;
mod uploads;
mod verify;
mod volume;
mod weather;
mod writer;

use bugs::Bug;
use campaign::{Campaign, report};
use run::{Order, run, run_here};

/// Runs as many seeds as time allows, or all seeds of the long run. No acknowledged operation may
/// be lost or wrong.
#[test]
fn nothing_acknowledged_is_lost() {
    let failures = Campaign::asked().make();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs one seed (`BKFS_SIM_SEED`) and prints everything that happens in it.
#[test]
fn replay() {
    let Some(seed) = std::env::var("BKFS_SIM_SEED").ok() else {
        println!("BKFS_SIM_SEED is not set: nothing to replay");
        return;
    };
    let seed = seed.parse().expect("BKFS_SIM_SEED is a number");
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt().without_time().init();
    }
    let bug = std::env::var("BKFS_SIM_BUG").ok().map(|name| {
        let named = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
        named.expect("BKFS_SIM_BUG names a bug")
    });
    let silent = std::env::var_os("BKFS_SIM_SILENT").is_some();
    let outcome = run_here(Order {
        seed,
        printed: !silent,
        bug,
    });
    if silent {
        println!("\n{}", outcome.line());
        return;
    }
    println!("trace {} of {} lines", outcome.trace, outcome.lines);
    println!("{:?} {:?}", outcome.faults, outcome.counts);
    assert!(
        outcome.failure.is_none(),
        "{}",
        report(seed, &outcome.failure.unwrap_or_default())
    );
}

/// Number of seeds that are tried for each planted mistake.
const SEEDS_PER_BUG: u64 = 300;

/// A run notices each planted mistake.
#[test]
fn planted_mistakes_are_seen() {
    let mut unseen = Vec::new();
    for bug in Bug::ALL {
        let found = (0..SEEDS_PER_BUG).find_map(|seed| {
            let order = Order {
                seed,
                printed: false,
                bug: Some(bug),
            };
            run(order).failure.map(|failure| (seed, failure))
        });
        match found {
            Some((seed, failure)) => println!("{bug:?}: seed {seed}: {failure}"),
            None => unseen.push(bug),
        }
    }
    assert!(unseen.is_empty(), "not seen: {unseen:?}");
}
