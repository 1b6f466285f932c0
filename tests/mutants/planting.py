"""Patches as switches: the body of a function asks which patch is on.

A patch is planted if it changes only bodies of functions. Each such body then stands once for every
patch that changes it, and once as it is:

    if is_mutant(3) { …as patch 3 has it… } else if is_mutant(7) { … } else { …as it is… }

Functions are found by how rustfmt sets them: the line with `fn`, a line of the same indentation
that ends with `{`, and the `}` of the same indentation.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from programs import HELPER, LOWEST, Wrong, question, write

FUNCTION = re.compile(
    r'( *)(?:pub(?:\([^)]*\))? )?(?:default )?(?:const )?(?:async )?(?:unsafe )?'
    r'(?:extern "[^"]*" )?fn \w+'
)


def bodies(lines):
    """The bodies of the outermost functions: ranges of lines between the braces."""
    found, at = [], 0
    while at < len(lines):
        start = FUNCTION.match(lines[at])
        body = start and body_after(lines, at, start[1])
        if body:
            found.append(body)
            at = body[1]
        at += 1
    return found


def body_after(lines, at, indent):
    """The body of the function that begins at a line; nothing if it has none of its own lines."""
    for opening in range(at, len(lines)):
        line = lines[opening]
        is_deeper = not line.startswith(indent) or line[len(indent):][:1] in ("", " ")
        if is_deeper or not line.endswith(("{", ";", "}")):
            continue
        if not line.endswith("{"):
            return None
        try:
            return opening + 1, lines.index(indent + "}", opening)
        except ValueError:
            return None
    return None


def outside(lines, ranges):
    """What stands around the bodies, in pieces."""
    edges = [0, *(edge for one in ranges for edge in one), len(lines)]
    return [lines[first:last] for first, last in zip(edges[::2], edges[1::2])]


def changed_bodies(old, new):
    """The new bodies of a text by their number; nothing if more than bodies changed."""
    old, new = old.split("\n"), new.split("\n")
    before, after = bodies(old), bodies(new)
    if outside(old, before) != outside(new, after):
        return None
    pairs = enumerate(zip(before, after))
    changed = {n: new[slice(*b)] for n, (a, b) in pairs if old[slice(*a)] != new[slice(*b)]}
    return changed or None


def patched(tree, mutant):
    """The texts of the files that a patch changes, as it makes them."""
    with tempfile.TemporaryDirectory() as place:
        for name in mutant.files:
            copy = Path(place) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree / name, copy)
        apply(Path(place), mutant)
        return {name: (Path(place) / name).read_text() for name in mutant.files}


def apply(tree, mutant, *reverse):
    """Applies a patch to a tree, or takes it back."""
    # So git takes the tree for no part of a repository above it.
    settings = dict(os.environ, GIT_CEILING_DIRECTORIES=str(tree.parent))
    done = subprocess.run(
        ["git", "apply", *reverse, str(mutant.path)], cwd=tree, env=settings,
        capture_output=True, text=True, check=False,
    )
    if done.returncode != 0:
        raise Wrong(f"it does not apply: {done.stderr.strip()}")


def changes(tree, mutant):
    """The bodies that a patch changes, by file; nothing if it cannot be planted."""
    found = {}
    for name, text in patched(tree, mutant).items():
        changed = changed_bodies((tree / name).read_text(), text)
        if changed is None or question(name, 0) is None:
            return None
        found[name] = changed
    return found


def planted(name, text, here):
    """The text of a file with some patches planted, and where each of them stands.

    `here` has pairs of a mutant's number and its bodies in this file.
    """
    lines = text.split("\n")
    out, stands, last = [], [], 0
    for index, (start, end) in enumerate(bodies(lines)):
        chosen = [(number, new[index]) for number, new in here if index in new]
        if not chosen:
            continue
        out += lines[last:start]
        opened = len(out)
        narrow = []
        for number, body in chosen:
            first = len(out) + 1
            out += [f"if {question(name, number)} {{", *body, "} else"]
            narrow.append((number, range(first, len(out) + 1)))
        out += ["{", *lines[start:end], "}"]
        wide = range(opened, len(out) + 1)
        stands += [(number, name, lines_, wide) for number, lines_ in narrow]
        last = end
    return "\n".join(out + lines[last:]), stands


class Planter:
    """Writes the patches that can be planted into a copy of the tree."""

    def __init__(self, tree, mutants):
        self.tree = tree
        self.bodies = {}
        for number, mutant in enumerate(mutants):
            found = changes(tree, mutant)
            if found:
                self.bodies[number] = found
        names = {name for found in self.bodies.values() for name in found}
        self.originals = {name: (tree / name).read_text() for name in names | {LOWEST}}

    def plant(self, left_out):
        """Plants all but some; returns where they stand, as `programs.settle` needs it."""
        stands = []
        for name, text in self.originals.items():
            here = [
                (number, found[name]) for number, found in self.bodies.items()
                if name in found and number not in left_out
            ]
            text, places = planted(name, text, here)
            text += HELPER if name == LOWEST else ""
            write(self.tree / name, text.encode())
            stands += places
        return stands
