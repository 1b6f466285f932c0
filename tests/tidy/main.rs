//! Reads the source and checks its structure: which module imports which, how long files and
//! functions are, which words are banned, how long sentences of documents are.
//!
//! Each rule has a test of its own that shows that it finds a violation. `the_house_is_tidy` then
//! applies all rules.

mod circles;
mod language;
mod lexer;
mod limits;
mod paths;
mod suites;
mod walls;

use std::path::{Path, PathBuf};

/// Returns the root directory of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the repository")
        .to_owned()
}

/// Returns every Rust file of the repository: its path from the root, and its text.
fn rust_files(root: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut directories: Vec<PathBuf> = ["src", "fuse", "chunker", "tests", "bench"]
        .iter()
        .map(|room| root.join(room))
        .collect();
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        {
            let path = entry.expect("a directory of ours can be read").path();
            if path.is_dir() && !path.ends_with("target") {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path
                    .strip_prefix(root)
                    .expect("below the root")
                    .to_string_lossy()
                    .into_owned();
                files.push((
                    name,
                    std::fs::read_to_string(&path).expect("source is text"),
                ));
            }
        }
    }
    files.sort();
    files
}

/// Returns the violations by dependencies in the manifests, so that no rule is bypassed by a path
/// that it does not know.
fn manifest_violations(root: &Path) -> Vec<String> {
    let forbidden: [(&str, &[&str]); 5] = [
        (
            "fuse/Cargo.toml",
            &["bkfs", "bkfs-chunker", "bkfs-store", "object_store"],
        ),
        (
            "chunker/store/Cargo.toml",
            &["bkfs", "bkfs-chunker", "bkfs-fuse", "bkfs-testing", "fuser"],
        ),
        (
            "chunker/Cargo.toml",
            &["bkfs", "bkfs-fuse", "fuser", "object_store"],
        ),
        (
            "tests/testing/Cargo.toml",
            &["bkfs", "bkfs-chunker", "bkfs-fuse", "fuser", "object_store"],
        ),
        ("Cargo.toml", &["fuser", "object_store"]),
    ];
    let read = |file| std::fs::read_to_string(root.join(file)).expect("each crate has a manifest");
    let mut found = Vec::new();
    for (file, names) in forbidden {
        let text = read(file);
        found.extend(
            names
                .iter()
                .filter(|name| depends_on(&text, name))
                .map(|name| format!("{file}: may not depend on {name}")),
        );
    }
    let product = [
        "fuse/Cargo.toml",
        "chunker/store/Cargo.toml",
        "chunker/Cargo.toml",
        "Cargo.toml",
    ];
    found.extend(
        product
            .iter()
            .filter(|file| is_built_with(&read(file), "bkfs-testing"))
            .map(|file| format!("{file}: only its tests may depend on bkfs-testing")),
    );
    found
}

/// Whether `name` is in a section of dependencies (other than the workspace's list of versions).
fn depends_on(manifest: &str, name: &str) -> bool {
    lists(manifest, name, |section| section.ends_with("dependencies"))
}

/// Whether `name` is in a section of dependencies that are not for tests only.
fn is_built_with(manifest: &str, name: &str) -> bool {
    lists(manifest, name, |section| {
        section.ends_with("dependencies") && !section.ends_with("dev-dependencies")
    })
}

/// Whether `name` is in a section that `is_wanted` takes (other than the workspace's).
fn lists(manifest: &str, name: &str, is_wanted: impl Fn(&str) -> bool) -> bool {
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = is_wanted(line.trim_matches(['[', ']'])) && !line.contains("workspace");
        }
        let key = line
            .split(['=', '.', ' '])
            .next()
            .unwrap_or("")
            .trim_matches('"');
        if inside && key == name {
            return true;
        }
    }
    false
}

#[test]
fn the_house_is_tidy() {
    let root = root();
    let files = rust_files(&root);
    assert!(
        files.iter().any(|(name, _)| name == "src/main.rs"),
        "no source was found below {}",
        root.display()
    );
    let mut found: Vec<String> = files
        .iter()
        .flat_map(|(name, text)| [walls_of(name, text), limits::violations(name, text)].concat())
        .collect();
    let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
    found.extend(walls::dead_names(&names));
    found.extend(circles::violations(&files));
    found.extend(manifest_violations(&root));
    found.extend(suites::violations(&root));
    found.extend(language::violations(&root));
    assert!(
        found.is_empty(),
        "{} violations:\n{}",
        found.len(),
        found.join("\n")
    );
}

fn walls_of(name: &str, text: &str) -> Vec<String> {
    if walls::is_test_file(name) {
        Vec::new()
    } else {
        walls::violations(name, text)
    }
}

#[test]
fn a_dependency_is_found_in_each_way_of_writing_it() {
    for line in [
        "fuser.workspace = true",
        "fuser = \"0.18\"",
        "fuser = { version = \"0.18\" }",
    ] {
        assert!(
            depends_on(
                &format!("[package]\nname = \"x\"\n[dependencies]\n{line}\n"),
                "fuser"
            ),
            "{line}"
        );
        assert!(
            depends_on(
                &format!("[target.'cfg(unix)'.dev-dependencies]\n{line}\n"),
                "fuser"
            ),
            "{line}"
        );
    }
    let for_tests = "[dependencies]\nbytes = \"1\"\n[dev-dependencies]\nfuser = \"0.18\"\n";
    assert!(depends_on(for_tests, "fuser") && !is_built_with(for_tests, "fuser"));
    let for_all = "[dependencies]\nfuser.workspace = true\n[dev-dependencies]\nbytes = \"1\"\n";
    assert!(is_built_with(for_all, "fuser"));
    assert!(!depends_on(
        "[workspace.dependencies]\nfuser = \"0.18\"\n[dependencies]\nbkfs-fuse.workspace = true\n",
        "fuser"
    ));
}
