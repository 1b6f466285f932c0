"""Patches: what each of them says, and whether it applies and names a test."""

import functools
import hashlib
import re
import subprocess

from programs import Wrong

# The folders of the crates that have unit tests.
CRATES = ("", "chunker", "chunker/store", "fuse", "tests/testing")


class Mutant:
    """One patch: its name, the test that must fail, why, and the diff."""

    def __init__(self, path):
        self.path = path
        self.name = path.stem
        self.text = path.read_text()
        head, mark, rest = self.text.partition("diff --git ")
        first = re.match(r"Must fail: (\S+)(?: (\S+))?\n", head)
        if not mark or not first:
            raise Wrong("the first line is not `Must fail: TARGET FILTER`, or there is no diff")
        self.target, self.filter = first[1], first[2] or ""
        if not self.filter and self.target != "simulation":
            raise Wrong("it names no test")
        # What is run: a target, and one of its tests or nothing.
        self.test = (self.target, self.filter)
        self.why = " ".join(head[first.end():].split())
        self.files = re.findall(r"^\+\+\+ b/(.+)$", mark + rest, re.M)
        if not self.why:
            raise Wrong("it does not say which promise it breaks")

    def hash(self, root):
        """Stands for the patch and for the files that it changes."""
        digest = hashlib.sha256(self.text.encode())
        for name in self.files:
            digest.update((root / name).read_bytes())
        return digest.hexdigest()[:16]


def load(folder, told, only=()):
    """All mutants of a folder; a file that is none is told as a failed case."""
    found, failures = [], 0
    for path in sorted(folder.glob("*.patch")):
        if only and path.stem not in only:
            continue
        try:
            found.append(Mutant(path))
        except Wrong as error:
            told(path.stem, error)
            failures += 1
    missing = set(only) - {path.stem for path in folder.glob("*.patch")}
    for name in sorted(missing):
        told(name, "there is no such patch")
    return found, failures + len(missing)


def targets(root):
    """The names of the test targets of tests/Cargo.toml, and `lib`."""
    text = (root / "tests/Cargo.toml").read_text()
    return {"lib", *re.findall(r'\[\[test\]\]\s*name = "(\w+)"', text)}


@functools.cache
def tests_of(root, target):
    """Pairs of a module's path and the functions in its file, of one target."""
    places = [root / crate / "src" for crate in CRATES]
    if target != "lib":
        places = [root / "tests" / target]
    found = []
    for place in places:
        for path in sorted(place.rglob("*.rs")):
            parts = list(path.relative_to(place).with_suffix("").parts)
            if parts[-1] in ("mod", "main", "lib"):
                parts.pop()
            found.append((parts, set(re.findall(r"\bfn (\w+)", path.read_text()))))
    return found


def names_a_test(root, mutant):
    """Whether the source has the test that a patch names."""
    if not mutant.filter:
        return True
    wanted = mutant.filter.split("::")
    for module, functions in tests_of(root, mutant.target):
        inner = wanted[len(module):-1]
        if wanted[: len(module)] == module and inner in ([], ["tests"], ["test"]):
            if wanted[-1] in functions:
                return True
    return False


def check(root, mutants, told):
    """Every patch applies to this tree, and names a test that exists."""
    failures = 0
    known = targets(root)
    for mutant in mutants:
        try:
            applied = subprocess.run(
                ["git", "-C", str(root), "apply", "--check", str(mutant.path)],
                capture_output=True, text=True, check=False,
            )
            if applied.returncode != 0:
                raise Wrong(f"it does not apply: {applied.stderr.strip().splitlines()[0]}")
            if mutant.target not in known:
                raise Wrong(f"there is no test target {mutant.target}")
            if not names_a_test(root, mutant):
                raise Wrong(f"there is no test {mutant.filter} in {mutant.target}")
            told(mutant.name)
        except Wrong as error:
            told(mutant.name, error)
            failures += 1
    return failures
