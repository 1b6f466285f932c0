//! The suites of tests/suites: each is listed in the runner, and its head has the lines that the
//! runner needs.
//!
//! This module owns the agreement between tests/run and tests/suites.

use std::collections::BTreeSet;
use std::path::Path;

/// Returns the violations: suites that the runner does not list, listed names without a file, files
/// that are not suites, heads that lack a line.
pub fn violations(root: &Path) -> Vec<String> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let mut found = Vec::new();
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(root.join("tests/suites")).expect("tests/suites exists") {
        let path = entry.expect("can be read").path();
        let file = path
            .file_name()
            .expect("has a name")
            .to_string_lossy()
            .into_owned();
        match file.strip_suffix(".sh") {
            None => found.push(format!(
                "tests/suites/{file}: not a suite (NAME.sh); helpers belong in tests/lib"
            )),
            Some(name) => {
                files.insert(name.to_owned());
                found.extend(head_violations(&file, &read(&path)));
            }
        }
    }
    let runner = read(&root.join("tests/run"));
    let listed = listed_suites(&runner, "SUITES");
    let core = listed_suites(&runner, "CORE_SUITES");
    found.extend(
        core.difference(&listed)
            .map(|name| format!("tests/run: {name} is in the core and in no other list")),
    );
    found.extend(
        files
            .difference(&listed)
            .map(|name| format!("tests/suites/{name}.sh: tests/run does not list it")),
    );
    found.extend(
        listed
            .difference(&files)
            .map(|name| format!("tests/run: no file tests/suites/{name}.sh")),
    );
    found
}

/// Returns the names in `LIST=(…)`.
fn listed_suites(runner: &str, list: &str) -> BTreeSet<String> {
    let Some((_, rest)) = runner.split_once(&format!("\n{list}=(")) else {
        return BTreeSet::new();
    };
    rest.split(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

fn head_violations(file: &str, text: &str) -> Vec<String> {
    let keys = ["# about: ", "# needs:", "# limit: "];
    let missing = keys
        .iter()
        .filter(|key| !text.lines().take(8).any(|line| line.starts_with(**key)));
    missing
        .map(|key| {
            format!(
                "tests/suites/{file}: its head has no line `{}…`",
                key.trim_end()
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_read_from_the_runner() {
        let names = listed_suites("a\nSUITES=(one two\n  three-four)\nSUITES+=(x)\n", "SUITES");
        assert_eq!(
            names.into_iter().collect::<Vec<_>>(),
            ["one", "three-four", "two"]
        );
    }

    #[test]
    fn what_does_not_agree_is_found() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| {
            std::fs::write(root.path().join(name), text).expect("can be written")
        };
        std::fs::create_dir_all(root.path().join("tests/suites")).expect("can be made");
        write(
            "tests/run",
            "#!/bin/bash\nSUITES=(known gone)\nCORE_SUITES=(known absent)\n",
        );
        write(
            "tests/suites/known.sh",
            "# about: x\n# needs:\n# limit: 1\n",
        );
        write("tests/suites/forgotten.sh", "# about: x\n# limit: 1\n");
        write("tests/suites/helper.py", "");
        let found = violations(root.path()).join("\n");
        for expected in [
            "forgotten.sh: tests/run does not list it",
            "no file tests/suites/gone.sh",
            "absent is in the core",
            "forgotten.sh: its head has no line `# needs:…`",
            "helper.py: not a suite",
        ] {
            assert!(found.contains(expected), "{expected} is missing in {found}");
        }
        assert!(!found.contains("known.sh"), "{found}");
    }
}
