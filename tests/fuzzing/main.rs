//! Generated inputs for every decoder of untrusted bytes.
//!
//! `bodies` holds a function for each decoder, `corpus` the examples that inputs begin with,
//! `mutate` the generator, and `campaign` the run over many inputs. The quick run has 20,000 inputs
//! for each body, the long one (`BKFS_TEST_FULL=1`) 1,000,000. tests/fuzz holds targets of
//! cargo-fuzz with the same bodies.

mod bodies;
mod campaign;
mod cbor;
mod corpus;
mod mutate;

use bodies::{BODIES, Body, bounded};
use campaign::Found;
use std::path::PathBuf;

/// Each body on its corpus and on generated inputs. A body must not find a fault.
#[test]
fn no_input_finds_a_fault() {
    let seeds = campaign::seeds();
    let mut faults = Vec::new();
    for body in BODIES {
        let began = std::time::Instant::now();
        let found = campaign::run(*body, &corpus::of(body.name), seeds.clone());
        println!("{:<12} {:>6} ms", body.name, began.elapsed().as_millis());
        faults.extend(found.map(|found| campaign::report(*body, &found)));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Runs the body `BKFS_FUZZING_BODY` on the input of `BKFS_FUZZING_SEED`, or on the file
/// `BKFS_FUZZING_INPUT`.
#[test]
fn replay() {
    let Ok(name) = std::env::var("BKFS_FUZZING_BODY") else {
        println!("BKFS_FUZZING_BODY is not set: nothing to replay");
        return;
    };
    let input = match std::env::var_os("BKFS_FUZZING_INPUT") {
        Some(file) => std::fs::read(file).expect("BKFS_FUZZING_INPUT names a file"),
        None => {
            let seed = std::env::var("BKFS_FUZZING_SEED").expect("BKFS_FUZZING_SEED is set");
            let seed = seed.parse().expect("BKFS_FUZZING_SEED is a number");
            mutate::input(&corpus::of(&name), seed)
        }
    };
    println!("{} bytes: {}", input.len(), input.escape_ascii());
    bodies::run(&name, &input);
}

/// Writes the corpora for cargo-fuzz below the directory `BKFS_FUZZING_CORPUS`. Without it, only
/// sees that each body has a corpus that it reads.
#[test]
fn every_body_has_a_corpus() {
    let directory = std::env::var_os("BKFS_FUZZING_CORPUS").map(PathBuf::from);
    for body in BODIES {
        let examples = corpus::of(body.name);
        assert!(!examples.is_empty(), "{} has no example", body.name);
        let Some(directory) = directory.as_ref().map(|all| all.join(body.name)) else {
            continue;
        };
        std::fs::create_dir_all(&directory).expect("a directory can be made");
        for (number, example) in examples.iter().enumerate() {
            let file = directory.join(format!("golden-{number:03}"));
            std::fs::write(file, example).expect("an example can be written");
        }
    }
}

/// Each body has a target of cargo-fuzz, and no target is without a body.
#[test]
fn every_body_has_a_target() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("a manifest");
    for body in BODIES {
        let file = root.join(format!("fuzz_targets/{}.rs", body.name));
        let target = std::fs::read_to_string(&file).expect("a target exists");
        assert!(
            target.contains(&format!("run(\"{}\"", body.name)),
            "{target}"
        );
        assert!(manifest.contains(&format!("name = \"{}\"", body.name)));
    }
    let targets = std::fs::read_dir(root.join("fuzz_targets")).expect("a directory");
    assert_eq!(targets.count(), BODIES.len());
}

fn planted(name: &'static str, run: fn(&[u8])) -> Body {
    Body { name, run }
}

/// Runs a body with a planted fault. The corpus does not reach the fault; a mutation does.
fn found(body: Body, corpus: &[Vec<u8>]) -> Found {
    let found = campaign::run(body, corpus, 0..20_000).expect("the planted fault is found");
    let seed = found.seed.expect("no example of the corpus has the fault");
    assert_eq!(
        campaign::one(body, corpus, seed),
        Some(found.clone()),
        "the seed replays it"
    );
    assert!(campaign::report(body, &found).contains(&format!("BKFS_FUZZING_SEED={seed}")));
    found
}

#[test]
fn a_planted_panic_is_found() {
    let body = planted("planted", |input| {
        if input.len() >= 8 && input.starts_with(b"bkfs") {
            let length = u32::from_le_bytes([input[4], input[5], input[6], input[7]]);
            assert!(length != u32::MAX, "a length that no input has");
        }
    });
    let found = found(body, &[b"bkfs\x04\0\0\0four".to_vec()]);
    assert_eq!(found.message, "a length that no input has");
}

#[test]
fn planted_memory_is_found() {
    let body = planted("planted", |input| {
        let stated = input.first().map_or(0, |byte| usize::from(*byte) << 12);
        bounded(16, input.len(), || Vec::<u8>::with_capacity(stated));
    });
    let found = found(body, &[b"\x01 4 KiB are allowed".to_vec()]);
    assert!(
        found.message.starts_with("the decoder held "),
        "{}",
        found.message
    );
}

#[test]
fn a_planted_fault_behind_a_repeated_item_is_found() {
    let body = planted("planted", |input| {
        let items = cbor::items(input, 0);
        let is_whole = items
            .last()
            .is_some_and(|item| item.whole == (0..input.len()));
        let names = items.iter().filter(|item| item.major == 3).count();
        assert!(!is_whole || names < 20, "more names than a list has");
    });
    // {0: ["name"]}
    let found = found(body, &[vec![0xa1, 0, 0x81, 0x64, b'n', b'a', b'm', b'e']]);
    assert_eq!(found.message, "more names than a list has");
}
