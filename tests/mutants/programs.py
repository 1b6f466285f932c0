"""The copies of the tree, the switch that mutants ask, and the programs of tests.

Mutants that are planted in one copy of the tree are all in one program. Each of them first asks
whether the environment names it. So one build serves all of them.
"""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

# The environment variable that names the mutant that is on.
SWITCH = "BKFS_MUTANT"
# The environment variable with the file that lists the mutants whose place a test reaches.
REACHED = "BKFS_MUTANTS_REACHED"
# The file of the lowest crate, which all mutants can ask.
LOWEST = "chunker/store/src/lib.rs"
HELPER = f"""
/// Whether the environment names this mutant. Lists the number, if the environment names a file.
pub fn is_mutant(number: u32) -> bool {{
    use std::sync::atomic::{{AtomicBool, Ordering}};
    static NAMED: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    static REACHED: [AtomicBool; 4096] = [const {{ AtomicBool::new(false) }}; 4096];
    if !REACHED[number as usize].swap(true, Ordering::Relaxed) {{
        if let Some(path) = std::env::var_os("{REACHED}") {{
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let line = format!("{{number}}\\n");
            let _ = file.and_then(|mut file| std::io::Write::write_all(&mut file, line.as_bytes()));
        }}
    }}
    let read = || std::env::var("{SWITCH}").ok().and_then(|text| text.parse().ok());
    *NAMED.get_or_init(read) == Some(number)
}}
"""


class Wrong(Exception):
    """What is wrong with a patch, or with what was made of it."""


def question(file, number):
    """The expression by which code of a file asks for a mutant; nothing if it cannot ask."""
    if file.startswith("chunker/store/src/"):
        return f"crate::is_mutant({number})"
    if file.startswith(("src/", "chunker/src/")) and file != "src/main.rs":
        return f"bkfs_store::is_mutant({number})"
    return None


def copy_tree(root, tree):
    """Brings a copy to the state of the tracked files; what did not change keeps its time."""
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    listed = set(listing.stdout.split("\0")) - {""}
    for name in sorted(listed):
        source = root / name
        if source.is_file():
            write(tree / name, source.read_bytes())
            (tree / name).chmod(source.stat().st_mode & 0o777)
    for copy in tree.rglob("*"):
        if copy.is_file() and str(copy.relative_to(tree)) not in listed:
            copy.unlink()


def write(path, content):
    """Writes a file, but not if it has this content: cargo goes by times."""
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def environment(target):
    """The environment of builds in a target directory, and of their tests."""
    settings = dict(os.environ, CARGO_TARGET_DIR=str(target))
    # No test here is about speed, and no backtrace is read: what a build costs counts.
    settings.setdefault("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
    settings.setdefault("CARGO_PROFILE_DEV_DEBUG", "0")
    settings.pop(SWITCH, None)
    return settings


class Build:
    """A build of the test programs of some targets: the programs by name, or what is wrong."""

    def __init__(self, tree, settings, targets):
        chosen = [["--lib"] if target == "lib" else ["--test", target] for target in targets]
        done = subprocess.run(
            ["cargo", "test", "--workspace", "--no-run", "--message-format=json", *sum(chosen, [])],
            cwd=tree, env=settings, capture_output=True, text=True, check=False,
        )
        messages = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
        texts = (one["message"] for one in messages if one.get("reason") == "compiler-message")
        self.errors = [text for text in texts if text["level"] == "error"]
        self.succeeds = done.returncode == 0
        self.said = done.stderr
        tests = [one for one in messages if one.get("profile", {}).get("test")]
        self.programs = {
            one["target"]["name"]: one["executable"] for one in tests if one.get("executable")
        }


def places(error):
    """The places of an error, and where macros stand that lead to it: pairs of file and line."""
    spans = list(error["spans"])
    while spans:
        span = spans.pop()
        lines = range(span["line_start"], span["line_end"] + 1)
        yield from ((span["file_name"], line) for line in lines)
        if span.get("expansion"):
            spans.append(span["expansion"]["span"])


def build(tree, settings, targets):
    """The test programs of some targets, by name.

    Raises `Wrong` with the compiler's first error.
    """
    made = Build(tree, settings, targets)
    if not made.succeeds:
        first = [error["message"] for error in made.errors] or made.said.splitlines() or ["?"]
        raise Wrong(f"it does not build: {first[0]}")
    return made.programs


def settle(tree, settings, targets, plant):
    """Plants mutants, leaves out those that do not compile, and builds the tests of some targets.

    Returns the programs by name, and the numbers that were left out. `plant` writes all mutants but
    the given ones. It returns for each of them the file and the lines where it stands, narrowly and
    widely: (number, file, lines, lines).
    """
    left_out = set()
    while True:
        stands = plant(left_out)
        made = Build(tree, settings, targets)
        if made.succeeds:
            return made.programs, left_out
        hit = set()
        for error in made.errors:
            named = set(places(error))
            for width in (2, 3):
                inside = {
                    one[0] for one in stands
                    if any(file == one[1] and line in one[width] for file, line in named)
                }
                hit |= inside
                if inside:
                    break
        if not hit:
            raise Wrong(f"the mutants do not compile: {made.said[-2000:]}")
        left_out |= hit


def tests_in(program, tree, settings):
    """The paths of the tests of a program."""
    done = subprocess.run(
        [program, "--list", "--format", "terse"],
        cwd=tree / "tests", env=settings, capture_output=True, text=True, check=True,
    )
    return re.findall(r"^(\S+): test$", done.stdout, re.M)


def run(program, words, tree, settings, limit_s):
    """How a program of tests ends: `passed`, `failed`, or `hung` after the time limit."""
    with subprocess.Popen(
        [program, *words], cwd=tree / "tests", env=settings,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as test:
        try:
            status = test.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(test.pid, signal.SIGKILL)
            return "hung"
    return "failed" if status else "passed"
