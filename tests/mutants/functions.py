"""Mutants of whole functions, all in one program.

A sample of the functions of some areas is drawn. In one copy of the tree each of them first asks
whether the environment names it, and then returns at once what cargo-mutants proposes. Every test
runs once without a mutant, and tells which of these functions it reaches. Only these tests can see
a mutant, so only these are run with it.
"""

import collections
import concurrent.futures
import json
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path

import programs
from programs import HELPER, LOWEST, Wrong, question, write

# The files of each area.
AREAS = {
    "root": ["src/root/**/*.rs"],
    "volume": ["src/volume/**/*.rs"],
    "ingest": ["chunker/src/ingest/**/*.rs", "chunker/src/pending/**/*.rs"],
    "spool": ["chunker/src/spool/**/*.rs", "chunker/store/src/disk.rs"],
}
# The targets whose tests must catch them.
TARGETS = ("lib", "durability", "damage", "hostile", "reference")
# The share of mutants that tests must catch.
CAUGHT_LEAST = 0.9
# The time after which a run of tests counts as one that fails, in seconds, and how many times as
# long as without a mutant it may take.
HANG_S = 120
SLOWER = 4
# How many tests are run at first; every further run has this many times as many.
FIRST = 4


def listed(tree, globs):
    """The values that cargo-mutants proposes to return, by function."""
    words = [word for glob in globs for word in ("--file", glob)]
    program = os.environ.get("CARGO_MUTANTS", "cargo-mutants")
    done = subprocess.run(
        [program, "mutants", "--workspace", "--list", "--json", *words],
        cwd=tree, capture_output=True, text=True, check=False,
    )
    if done.returncode != 0:
        raise Wrong(f"cargo-mutants lists nothing: {done.stderr.strip()}")
    functions = {}
    for mutant in json.loads(done.stdout):
        function = mutant.get("function")
        if function and mutant["genre"] == "FnValue":
            key = (mutant["file"], function["span"]["start"]["line"], function["function_name"])
            functions.setdefault(key, []).append(mutant)
    if not functions:
        raise Wrong(f"cargo-mutants lists no function in {' '.join(globs)}")
    return functions


def draw(functions, area, count, seed):
    """One mutant each of so many functions, the same for the same seed."""
    chance = random.Random(f"{seed} {area}")
    chosen = chance.sample(sorted(functions), min(count, len(functions)))
    return [chance.choice(sorted(functions[key], key=lambda one: one["name"])) for key in chosen]


def planted(name, text, here):
    """The text of a file in which functions return at once: pairs of a number and a mutant."""
    lines = text.split("\n")
    start = lambda entry: (entry[1]["span"]["start"]["line"], entry[1]["span"]["start"]["column"])
    # From the last to the first: columns before an insertion stay.
    for number, mutant in sorted(here, key=start, reverse=True):
        line, column = start((number, mutant))
        text = lines[line - 1]
        asks = f"if {question(name, number)} {{ return {mutant['replacement']}; }} "
        lines[line - 1] = text[: column - 1] + asks + text[column - 1 :]
    return "\n".join(lines)


class Reach:
    """Which tests reach which mutants, and how long each test takes."""

    def __init__(self, tree, settings, built):
        self.tree, self.settings = tree, settings
        # The program, the test, its seconds, and the numbers of the mutants that it reaches.
        self.tests = []
        # The tests that do not pass without a mutant, and how they end. They judge no mutant.
        self.broken = []
        chosen = [
            (program, test)
            for program in built.values()
            for test in programs.tests_in(program, tree, settings)
        ]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for program, test, outcome, seconds, numbers in pool.map(self.trace, chosen):
                if outcome == "passed":
                    self.tests.append((program, test, seconds, numbers))
                else:
                    self.broken.append((test, f"without a mutant it {outcome}"))

    def trace(self, chosen):
        """Runs one test alone: how it ends, its seconds, and the mutants that it reaches."""
        program, test = chosen
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "reached"
            settings = self.settings | {programs.REACHED: str(file)}
            began = time.monotonic()
            outcome = programs.run(program, [test, "--exact"], self.tree, settings, 5 * HANG_S)
            seconds = time.monotonic() - began
            numbers = set(map(int, file.read_text().split())) if file.exists() else set()
        return program, test, outcome, seconds, numbers

    def runs(self, number):
        """The tests that reach a mutant, the shortest first, in growing runs of one program."""
        reaching = sorted((t for t in self.tests if number in t[3]), key=lambda test: test[2])
        size = FIRST
        while reaching:
            by_program = collections.defaultdict(list)
            for program, test, seconds, _ in reaching[:size]:
                by_program[program].append((test, seconds))
            yield from by_program.items()
            reaching, size = reaching[size:], size * FIRST

    def judge(self, number):
        """By what a mutant is caught, or `survives`."""
        settings = self.settings | {programs.SWITCH: str(number)}
        count = 0
        for program, tests in self.runs(number):
            limit_s = HANG_S + SLOWER * sum(seconds for _, seconds in tests)
            words = [*(name for name, _ in tests), "--exact"]
            outcome = programs.run(program, words, self.tree, settings, limit_s)
            if outcome != "passed":
                target = Path(program).name.rpartition("-")[0]
                return f"{outcome} in {target}"
            count += len(tests)
        return f"survives {count} tests"


class Sample:
    """The mutants that are drawn from some areas, in one copy of the tree."""

    def __init__(self, tree, areas, count, seed):
        self.tree = tree
        self.proposed = {area: listed(tree, AREAS[area]) for area in areas}
        self.mutants = [
            (area, mutant)
            for area, functions in self.proposed.items()
            for mutant in draw(functions, area, count, seed)
        ]
        names = {mutant["file"] for _, mutant in self.mutants} | {LOWEST}
        self.originals = {name: (tree / name).read_text() for name in names}

    def plant(self, left_out):
        """Plants all but some; returns where they stand, as `programs.settle` needs it."""
        stands = []
        for name, text in self.originals.items():
            here = [
                (number, mutant) for number, (_, mutant) in enumerate(self.mutants)
                if mutant["file"] == name and number not in left_out
            ]
            for number, mutant in here:
                span = mutant["function"]["span"]
                lines = range(span["start"]["line"], span["end"]["line"] + 1)
                stands.append((number, name, lines, lines))
            text = planted(name, text, here) + (HELPER if name == LOWEST else "")
            write(self.tree / name, text.encode())
        return stands

    def run(self, place, settings, end, told):
        """Tries what was not tried yet, within the time; returns the number of failed cases."""
        built, left_out = programs.settle(self.tree, settings, TARGETS, self.plant)
        reach = Reach(self.tree, settings, built)
        for test, error in reach.broken:
            told(test, error)
        verdicts = {area: Verdicts(place / f"functions-{area}.json") for area in self.proposed}
        for number, (area, mutant) in enumerate(self.mutants):
            name = mutant["name"]
            if number in left_out:
                verdicts[area].keep(name, "does not compile")
            elif name not in verdicts[area].all and time.monotonic() < end:
                began = time.monotonic()
                verdict = reach.judge(number)
                verdicts[area].keep(name, verdict)
                print(f"{verdict:24} {time.monotonic() - began:4.0f} s  {name}", flush=True)
        few = sum(self.summary(area, verdicts[area].all, told) for area in self.proposed)
        return few + len(reach.broken)

    def summary(self, area, done, told):
        """Tells how many of an area were caught; returns whether they are too few."""
        verdicts = [done.get(mutant["name"]) for of, mutant in self.mutants if of == area]
        tried = [verdict for verdict in verdicts if verdict and verdict != "does not compile"]
        caught = [verdict for verdict in tried if not verdict.startswith("survives")]
        line = (
            f"{area}: {len(caught)} of {len(tried)} caught, {len(verdicts)} drawn of "
            f"{len(self.proposed[area])} functions"
        )
        print(line)
        if None in verdicts:
            print(f"{area}: not done yet")
        share = len(caught) / len(tried) if tried else 1
        told(f"functions of {area}", None if share >= CAUGHT_LEAST else line)
        return int(share < CAUGHT_LEAST)


class Verdicts:
    """What became of the mutants of an area, in a file."""

    def __init__(self, file):
        self.file = file
        try:
            self.all = json.loads(file.read_text())
        except (FileNotFoundError, ValueError):
            self.all = {}

    def keep(self, name, verdict):
        """Keeps what became of one."""
        self.all[name] = verdict
        self.file.write_text(json.dumps(self.all, indent=1))
