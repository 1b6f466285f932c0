"""Mutants of whole functions, all in one program.

A sample of the functions of an area is drawn. In one copy of the tree each of them first asks
whether the environment names it, and then returns at once what cargo-mutants proposes. So one build
serves all, and each mutant costs no more than the tests that see it.
"""

import json
import os
import random
import re
import signal
import subprocess
import time

# The environment variable that names the mutant.
SWITCH = "BKFS_MUTANT"
# Test targets that are run after the unit tests, from the cheapest to the dearest.
TARGETS = ("durability", "damage", "hostile", "reference")
# The time after which a program of tests counts as one that fails, in seconds.
HANG_S = 180
# The file of the lowest crate, which all mutants can ask.
LOWEST = "chunker/store/src/lib.rs"
HELPER = f"""
/// Whether the environment names this mutant.
pub fn is_mutant(number: u32) -> bool {{
    static NAMED: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    let read = || std::env::var("{SWITCH}").ok().and_then(|text| text.parse().ok());
    *NAMED.get_or_init(read) == Some(number)
}}
"""


def listed(tree, globs):
    """The values that cargo-mutants proposes to return, by function."""
    words = [word for glob in globs for word in ("--file", glob)]
    program = os.environ.get("CARGO_MUTANTS", "cargo-mutants")
    done = subprocess.run(
        [program, "mutants", "--list", "--json", *words],
        cwd=tree, capture_output=True, text=True, check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"cargo-mutants lists nothing: {done.stderr.strip()}")
    functions = {}
    for mutant in json.loads(done.stdout):
        function = mutant.get("function")
        if function and mutant["genre"] == "FnValue":
            key = (mutant["file"], function["span"]["start"]["line"], function["function_name"])
            functions.setdefault(key, []).append(mutant)
    return functions


def draw(functions, area, count, seed):
    """One mutant each of so many functions, the same for the same seed."""
    chance = random.Random(f"{seed} {area}")
    chosen = chance.sample(sorted(functions), min(count, len(functions)))
    return [chance.choice(sorted(functions[key], key=lambda one: one["name"])) for key in chosen]


def plant(tree, mutants, skipped):
    """Writes the mutants into the tree, but for the skipped ones; `originals` has the texts."""
    by_file = {}
    for number, mutant in enumerate(mutants):
        if number not in skipped:
            by_file.setdefault(mutant["file"], []).append((number, mutant))
    for name, here in by_file.items():
        path = tree / name
        lines = path.read_text().split("\n")
        crate = "crate" if name.startswith("chunker/store/") else "bkfs_store"
        # From the last to the first: columns before an insertion stay.
        place = lambda entry: (
            entry[1]["span"]["start"]["line"], entry[1]["span"]["start"]["column"]
        )
        for number, mutant in sorted(here, key=place, reverse=True):
            line, column = place((number, mutant))
            text = lines[line - 1]
            asks = f"if {crate}::is_mutant({number}) {{ return {mutant['replacement']}; }} "
            lines[line - 1] = text[: column - 1] + asks + text[column - 1 :]
        path.write_text("\n".join(lines))


def errors_of(tree, environment):
    """The places of the compiler's errors: (file, line)."""
    command = ["cargo", "check", "--workspace", "--lib", "--message-format=json"]
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    places = set()
    for line in done.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-message" and message["message"]["level"] == "error":
            spans = message["message"]["spans"]
            places |= {(span["file_name"], span["line_start"]) for span in spans}
    return done.returncode, places, done.stderr


def viable(tree, mutants, environment, originals):
    """Plants the mutants that compile; returns the numbers of the others."""
    skipped = set()
    while True:
        for path, text in originals.items():
            path.write_text(text)
        root = tree / LOWEST
        root.write_text(root.read_text() + HELPER)
        plant(tree, mutants, skipped)
        status, places, said = errors_of(tree, environment)
        if status == 0:
            return skipped
        hit = set()
        for number, mutant in enumerate(mutants):
            span = mutant["function"]["span"]
            inside = range(span["start"]["line"], span["end"]["line"] + 1)
            if any(file == mutant["file"] and line in inside for file, line in places):
                hit.add(number)
        if not hit - skipped:
            raise RuntimeError(f"the mutants do not compile: {said[-2000:]}")
        skipped |= hit


def programs(tree, environment):
    """The test programs, by the name of their target."""
    chosen = ["--lib", *(word for target in TARGETS for word in ("--test", target))]
    command = ["cargo", "test", "--workspace", "--no-run", "--message-format=json", *chosen]
    done = subprocess.run(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError("the tests do not build")
    found = {}
    for line in done.stdout.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message.get("profile", {}).get("test"):
            found[message["target"]["name"]] = message["executable"]
    return found


def fails(program, tree, environment, *chosen):
    """`failed`, `hung`, or nothing if all tests pass."""
    with subprocess.Popen(
        [program, *chosen], cwd=tree / "tests", env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as test:
        try:
            status = test.wait(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            os.killpg(test.pid, signal.SIGKILL)
            return "hung"
    return "failed" if status else None


def stages(mutant):
    """Which tests are run, the likeliest first: (target, words)."""
    path = re.sub(r"^(chunker/store/|chunker/|fuse/)?src/|(/mod)?\.rs$", "", mutant["file"])
    near = path.replace("/", "::").rpartition("::")[0] or path
    upwards = ["bkfs_store", "bkfs_testing", "bkfs_chunker", "bkfs"]
    if mutant["file"].startswith("chunker/store/"):
        own = "bkfs_store"
    else:
        own = "bkfs_chunker" if mutant["file"].startswith("chunker/") else "bkfs"
    rest = [(above, ()) for above in upwards[upwards.index(own) + 1 :]]
    return [(own, (near,)), (own, ()), *rest, *((target, ()) for target in TARGETS)]


def judge(number, mutant, tests, tree, environment):
    """By what the mutant is caught, or `survives`; and how long that took, in seconds."""
    began = time.monotonic()
    settings = environment | {SWITCH: str(number)}
    for target, words in stages(mutant):
        outcome = fails(tests[target], tree, settings, *words)
        if outcome:
            return f"{outcome} in {target}", round(time.monotonic() - began)
    return "survives", round(time.monotonic() - began)
