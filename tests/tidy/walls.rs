//! Rules of imports, as tables: the paths that each part of the tree may not name.
//!
//! This module owns the rules of imports and of purity. A rule may be made stricter, never looser.
//! `limits` owns sizes and bans of single words.

use crate::lexer::{blank_text, without_tests};
use crate::paths::{Path, paths_in};

/// A part of the tree, and the paths that its code may not name.
pub struct Wall {
    /// Path prefixes (from the repository's root) that the rule governs.
    pub rooms: &'static [&'static str],
    /// Path prefixes inside them that the rule leaves out.
    pub except: &'static [&'static str],
    /// Rust paths that may not be named, nor any path below them.
    pub forbidden: &'static [&'static str],
    /// Paths below the forbidden ones that may be named nevertheless.
    pub allowed: &'static [&'static str],
    /// The reason, for the message of a violation.
    pub reason: &'static str,
}

/// Modules that do no I/O, read no clock and draw no randomness.
pub const PURE: &[&str] = &[
    "chunker/src/chunking",
    "chunker/src/id",
    "chunker/src/codec",
    "chunker/src/crypto",
    "chunker/src/pack",
    "chunker/src/index",
    "chunker/store/src/backoff",
    "chunker/store/src/lock",
    "src/tree",
    "src/extents",
    "src/retain",
    "src/schedule",
    "src/exposition",
    "src/printable",
    "src/json_name",
    "src/units",
    "src/when",
    "chunker/src/extent",
    "src/root/chain",
    "src/root/padding",
    "src/root/record",
    "src/root/refusal",
    "src/root/shard",
    "src/root/state",
    "src/root/transition",
    "src/root/wire",
    "src/root/snapshots",
    "src/root/volumes",
    "src/trace/coverage",
    "src/trace/format",
    "src/trace/plan",
    "src/trace/recorder",
];

/// Paths that a pure module may not name.
const IMPURE: &[&str] = &[
    "tokio",
    "object_store",
    "fuser",
    "std::fs",
    "std::io::stdin",
    "std::io::stdout",
    "std::io::stderr",
    "std::os",
    "std::net",
    "std::process",
    "std::thread",
    "std::env",
    "std::time::Instant",
    "std::time::SystemTime",
    "libc",
    "rustix",
    "memmap2",
    "tempfile",
    "jiff::Timestamp::now",
    "jiff::Zoned::now",
    "jiff::tz",
    "rand::rng",
    "rand::random",
    "rand::thread_rng",
    "rand::rngs",
    "getrandom",
    "aws_lc_rs::rand",
    "tracing",
    "println",
    "eprintln",
];

/// All rules.
pub const WALLS: &[Wall] = &[
    Wall {
        rooms: PURE,
        except: &[],
        forbidden: IMPURE,
        allowed: &[],
        reason: "a pure room: clocks, randomness and I/O are arguments or stand outside",
    },
    Wall {
        rooms: &["fuse/"],
        except: &[],
        forbidden: &["bkfs", "bkfs_chunker", "bkfs_store", "object_store"],
        allowed: &[],
        reason: "fuse/ depends on nothing of ours and knows no bucket",
    },
    Wall {
        rooms: &["chunker/"],
        except: &[],
        forbidden: &["bkfs", "bkfs_fuse", "fuser"],
        allowed: &[],
        reason: "chunker/ depends on its store alone and knows no kernel",
    },
    Wall {
        rooms: &["chunker/store/"],
        except: &[],
        forbidden: &["bkfs_chunker"],
        allowed: &[],
        reason: "chunker/store/ depends on nothing of ours",
    },
    Wall {
        rooms: &["src/", "fuse/", "chunker/"],
        except: &[],
        forbidden: &["bkfs_testing"],
        allowed: &[],
        reason: "no product code imports the fakes of tests",
    },
    Wall {
        rooms: &[""],
        except: &["fuse/"],
        forbidden: &["fuser"],
        allowed: &[],
        reason: "only fuse/ imports fuser",
    },
    Wall {
        rooms: &[""],
        except: &["chunker/store/", "bench/"],
        forbidden: &["object_store"],
        allowed: &[],
        reason: "only chunker/store imports object_store",
    },
    Wall {
        rooms: &["src/"],
        except: &[],
        forbidden: &[
            "bkfs_chunker::pack",
            "bkfs_chunker::chunking",
            "bkfs_chunker::codec",
        ],
        allowed: &["bkfs_chunker::pack::PackName"],
        reason: "src/ knows packs by name only, never their layout",
    },
    Wall {
        rooms: &[
            "chunker/src/chunking",
            "chunker/src/id",
            "chunker/src/codec",
            "chunker/src/crypto",
            "chunker/src/pack",
            "chunker/src/index",
        ],
        except: &[],
        forbidden: &[
            "bkfs_store",
            "crate::store_client",
            "crate::content_store",
            "crate::runtime",
            "crate::ingest",
            "crate::pending",
            "crate::hydrate",
            "crate::spool",
            "crate::cache",
        ],
        allowed: &["bkfs_store::lock"],
        reason: "the pure rooms of chunker/ know none of its edges",
    },
    Wall {
        rooms: &["chunker/src/hydrate", "chunker/src/pending"],
        except: &[],
        forbidden: &["crate::content_store", "crate::runtime", "crate::ingest"],
        allowed: &[],
        reason: "the read path does not know the write path, and pending data knows neither",
    },
    Wall {
        rooms: &["chunker/src/content_store"],
        except: &[],
        forbidden: &["crate::ingest"],
        allowed: &[],
        reason: "what is read does not depend on how it is written",
    },
    Wall {
        rooms: &["chunker/src/pending"],
        except: &[],
        forbidden: &[
            "crate::hydrate",
            "crate::store_client",
            "bkfs_store",
            "tokio",
        ],
        allowed: &[],
        reason: "pending data is kept in memory, without I/O",
    },
    Wall {
        rooms: &["src/tree", "src/extents", "src/retain"],
        except: &[],
        forbidden: &[
            "crate::root",
            "crate::volume",
            "crate::vfs",
            "crate::maintain",
            "crate::mounting",
            "crate::cli",
            "crate::config",
            "bkfs_fuse",
        ],
        allowed: &[],
        reason: "the pure rooms of src/ know none of its edges",
    },
    Wall {
        rooms: &["src/root", "src/volume", "src/maintain"],
        except: &[],
        forbidden: &["crate::cli", "crate::vfs", "clap", "indicatif", "rpassword"],
        allowed: &[],
        reason: "the filesystem does not know its command line",
    },
    Wall {
        rooms: &["src/root"],
        except: &[],
        forbidden: &["crate::volume", "bkfs_fuse"],
        allowed: &[],
        reason: "the root's protocol stands below the volume",
    },
];

/// Returns the violations of all rules by one file.
pub fn violations(file: &str, source: &str) -> Vec<String> {
    let (code, _) = without_tests(&blank_text(source));
    let paths = paths_in(&code);
    WALLS
        .iter()
        .filter(|wall| governs(wall, file))
        .flat_map(|wall| breaches(wall, file, &paths))
        .collect()
}

/// The source directories of the crates that rules name.
const CRATES: &[(&str, &str)] = &[
    ("bkfs", "src"),
    ("bkfs_chunker", "chunker/src"),
    ("bkfs_fuse", "fuse/src"),
    ("bkfs_store", "chunker/store/src"),
    ("bkfs_testing", "tests/testing/src"),
];

/// Returns what rules name and none of `files` is: a rule about a room or a module that was renamed
/// or removed holds nothing. Names of other crates are not looked at.
pub fn dead_names(files: &[String]) -> Vec<String> {
    WALLS.iter().flat_map(|wall| dead_in(wall, files)).collect()
}

fn dead_in(wall: &Wall, files: &[String]) -> Vec<String> {
    let exists = |room: &str| files.iter().any(|file| lies_in(file, room));
    let mut dead = Vec::new();
    for room in wall.rooms.iter().chain(wall.except) {
        if !exists(room) {
            dead.push(format!("tests/tidy/walls.rs: there is no room {room}"));
        }
    }
    for path in wall.forbidden.iter().chain(wall.allowed) {
        let mut names = path.split("::");
        let (of, module) = (names.next().unwrap_or_default(), names.next());
        let is_there = |module: &str| match of {
            // In whichever crate the rule governs.
            "crate" => CRATES.iter().any(|(_, source)| {
                let is_governed = wall.rooms.iter().any(|room| room.starts_with(source));
                is_governed && exists(&format!("{source}/{module}"))
            }),
            _ => match CRATES.iter().find(|(name, _)| *name == of) {
                Some((_, source)) => exists(&format!("{source}/{module}")),
                None => true,
            },
        };
        if module.is_some_and(|module| !is_there(module)) {
            dead.push(format!("tests/tidy/walls.rs: there is no module {path}"));
        }
    }
    dead
}

/// Whether this is a file of tests. The rules of imports, the sizes of functions and the bans on
/// panics do not bind it.
pub fn is_test_file(file: &str) -> bool {
    file.starts_with("tests/")
        || file.ends_with("/tests.rs")
        || file.contains("/tests/")
        || file.contains("/benches/")
}

/// Whether `file` is in `room`. `src/tree` governs `src/tree.rs` and everything in `src/tree/`, but
/// not `src/treetop.rs`.
fn lies_in(file: &str, room: &str) -> bool {
    room.is_empty()
        || file
            .strip_prefix(room)
            .is_some_and(|rest| room.ends_with('/') || rest.starts_with('/') || rest == ".rs")
}

fn governs(wall: &Wall, file: &str) -> bool {
    wall.rooms.iter().any(|room| lies_in(file, room))
        && !wall.except.iter().any(|room| lies_in(file, room))
}

fn breaches(wall: &Wall, file: &str, paths: &[Path]) -> Vec<String> {
    let is_breach = |path: &&Path| {
        // Each bare word counts as a path as well, so that a crate or a macro is found by its name
        // alone.
        wall.forbidden.iter().any(|prefix| path.is_within(prefix))
            && !wall.allowed.iter().any(|prefix| path.is_within(prefix))
    };
    paths
        .iter()
        .filter(is_breach)
        .map(|path| format!("{file}:{}: names {path}: {}", path.line, wall.reason))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wall_is_held() {
        let cases = [
            (
                "chunker/src/chunking/grid.rs",
                "use std::{collections::HashMap, fs::File};",
                "pure",
            ),
            (
                "chunker/src/id.rs",
                "fn f() -> u64 { rand::random() }",
                "pure",
            ),
            (
                "chunker/src/crypto/mod.rs",
                "use aws_lc_rs::{aead, rand::SystemRandom};",
                "pure",
            ),
            ("src/tree/map.rs", "use tokio::sync::Mutex;", "pure"),
            (
                "src/extents.rs",
                "fn f() { let t = std::time::Instant::now(); }",
                "pure",
            ),
            ("src/retain.rs", "use std::time::*;", "pure"),
            (
                "fuse/src/adapter.rs",
                "use bkfs_chunker::ContentStore;",
                "fuse/",
            ),
            (
                "chunker/store/src/lib.rs",
                "use bkfs_fuse::Vfs;",
                "chunker/",
            ),
            (
                "chunker/store/src/local/mod.rs",
                "use bkfs_chunker::id::Id;",
                "nothing of ours",
            ),
            (
                "chunker/store/src/lock.rs",
                "fn f() { jiff::Timestamp::now(); }",
                "pure",
            ),
            (
                "chunker/src/store_client.rs",
                "use bkfs_testing::fault::FaultStore;",
                "no product code",
            ),
            (
                "src/environment.rs",
                "fn f() { bkfs_testing::entropy::SeededEntropy::new(1); }",
                "no product code",
            ),
            ("src/vfs/read.rs", "use fuser::ReplyData;", "only fuse/"),
            (
                "chunker/src/ingest/mod.rs",
                "fn f(s: &dyn object_store::ObjectStore) {}",
                "only chunker/store",
            ),
            (
                "src/volume/mod.rs",
                "use bkfs_chunker::pack::{Footer, PackName};",
                "layout",
            ),
            ("chunker/src/pack/mod.rs", "use bkfs_store::Store;", "edges"),
            (
                "chunker/src/hydrate/fetch.rs",
                "use crate::ingest::Ingest;",
                "write path",
            ),
            (
                "chunker/src/pending/pending_index.rs",
                "use crate::store_client::StoreClient;",
                "without I/O",
            ),
            ("src/tree/mod.rs", "use crate::volume::Volume;", "edges"),
            (
                "src/volume/mod.rs",
                "use crate::cli::Options;",
                "command line",
            ),
            (
                "src/root/mod.rs",
                "use crate::volume::Volume;",
                "below the volume",
            ),
        ];
        for (file, source, reason) in cases {
            let found = violations(file, source);
            assert!(
                found.iter().any(|text| text.contains(reason)),
                "{file}: {source}: {found:?}"
            );
        }
    }

    #[test]
    fn a_rule_about_nothing_is_found() {
        let files = ["src/root/mod.rs", "src/volume.rs", "chunker/src/id.rs"].map(str::to_owned);
        let wall = |rooms, except, forbidden| Wall {
            rooms,
            except,
            forbidden,
            allowed: &[],
            reason: "",
        };
        let cases: [(Wall, &[&str]); 5] = [
            (
                wall(&["src/root"], &[], &["crate::volume", "tokio", "std::fs"]),
                &[],
            ),
            (wall(&["src/root", "src/gone"], &[], &[]), &["src/gone"]),
            (wall(&["src/"], &["src/vol"], &[]), &["src/vol"]),
            (wall(&["src/root"], &[], &["crate::id"]), &["crate::id"]),
            (
                wall(&["src/"], &[], &["bkfs_chunker::id", "bkfs_chunker::pack"]),
                &["bkfs_chunker::pack"],
            ),
        ];
        for (number, (wall, expected)) in cases.iter().enumerate() {
            let found = dead_in(wall, &files);
            assert_eq!(found.len(), expected.len(), "case {number}: {found:?}");
            let names = found.iter().zip(*expected);
            for (text, name) in names {
                assert!(text.ends_with(name), "case {number}: {text}");
            }
        }
    }

    #[test]
    fn what_is_allowed_passes() {
        let cases = [
            (
                "fuse/src/session.rs",
                "use fuser::Session; use std::fs::File;",
            ),
            (
                "chunker/store/src/s3.rs",
                "use object_store::aws::AmazonS3; use tokio::time;",
            ),
            (
                "chunker/src/crypto/config.rs",
                "use bkfs_store::lock::LockRule;",
            ),
            (
                "chunker/src/store_client.rs",
                "use bkfs_store::Store;\n#[cfg(test)]\nmod tests { use bkfs_testing::fault::Fault; }",
            ),
            (
                "src/volume/mod.rs",
                "use bkfs_chunker::pack::PackName; use bkfs_fuse::Vfs; use tokio::sync::Mutex;",
            ),
            (
                "src/tree/mod.rs",
                "use std::time::Duration; // tokio::spawn and std::fs are named in a comment\nconst A: &str = \"std::fs::File\";",
            ),
            (
                "src/tree/mod.rs",
                "fn f() {}\n#[cfg(test)]\nmod tests { use std::fs::File; use rand::random; }",
            ),
            ("src/treetop.rs", "use std::fs::File;"),
            (
                "chunker/src/id.rs",
                "use rand::Rng; fn f(rng: &mut impl Rng) {}",
            ),
        ];
        for (file, source) in cases {
            assert_eq!(
                violations(file, source),
                Vec::<String>::new(),
                "{file}: {source}"
            );
        }
    }
}
