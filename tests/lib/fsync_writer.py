#!/usr/bin/env python3
"""Writes files with fsync and keeps a record of what was acknowledged; later checks that all of it is there.

    fsync_writer.py write PLACE RECORD SEED     until it is ended or a call fails
    fsync_writer.py check PLACE RECORD          exit code 0 if every acknowledged state stands
    fsync_writer.py count RECORD                how many states were acknowledged

RECORD has two lines for each step, a JSON array each: ["begin", step, …] before the first call, ["done", step] after the last fsync has returned 0. A step is one of
    create NAME SIZE       a new file, fsync of it
    append NAME SIZE       more bytes at its end, fsync of it
    rename NAME NAME       fsync of the directory
    remove NAME            fsync of the directory
A file's bytes follow from its number, so that every prefix can be compared.
"""

import hashlib
import json
import os
import random
import sys
import time


def content(name, size):
    """The first `size` bytes of the file that was made under this name: what an extendable function makes of it begins with what it makes of it when asked for less."""
    return hashlib.shake_128(name.encode()).digest(size)


class Tree:
    """What stands after a number of steps: name → (name it was made under, size)."""

    def __init__(self):
        self.files = {}

    def apply(self, step):
        kind, name = step[0], step[1]
        if kind == "create":
            self.files[name] = (name, step[2])
        elif kind == "append":
            made, size = self.files[name]
            self.files[name] = (made, size + step[2])
        elif kind == "rename":
            self.files[step[2]] = self.files.pop(name)
        else:
            del self.files[name]


# A writer that has made more goes on in small pieces for a while: disks of the tests are small, and every check has to read all of it.
LARGE_BYTES_PER_S = 4 << 20


def draw(generator, tree, number, is_ahead):
    sizes = [0, 1, 700] if is_ahead else [0, 1, 700, 5_000, 70_000, 400_000, 3_000_000]
    kind = generator.choices(["create", "append", "rename", "remove"], [6, 3, 2, 1])[0]
    if kind == "create" or not tree.files:
        return ["create", f"file-{number}", generator.choice(sizes)]
    name = generator.choice(sorted(tree.files))
    if kind == "append":
        return ["append", name, generator.choice(sizes)]
    if kind == "rename":
        return ["rename", name, f"renamed-{number}"]
    return ["remove", name]


def carry_out(place, tree, step):
    kind, path = step[0], f"{place}/{step[1]}"
    if kind in ("create", "append"):
        made, size = tree.files.get(step[1], (step[1], 0))
        flags = os.O_WRONLY | (os.O_CREAT | os.O_EXCL if kind == "create" else os.O_APPEND)
        file = os.open(path, flags, 0o640)
        data = content(made, size + step[2])[size:]
        while data:
            data = data[os.write(file, data):]
        os.fsync(file)
        os.close(file)
        return
    if kind == "rename":
        os.rename(path, f"{place}/{step[2]}")
    else:
        os.unlink(path)
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


def read_record(record):
    steps, done = [], 0
    with open(record) as lines:
        for line in lines:
            words = json.loads(line)
            if words[0] == "begin":
                steps.append(words[1])
            else:
                done += 1
    assert done in (len(steps), len(steps) - 1), "the record is of one writer"
    return steps, done


def write(place, record, seed):
    tree, number = Tree(), 0
    if os.path.exists(record):
        steps, done = read_record(record)
        # Steps that were never acknowledged leave the record, but not the numbers that were given out.
        number = 1 + max((int(name.rsplit("-", 1)[1]) for step in steps for name in step[1:3] if isinstance(name, str)), default=-1)
        # What a crash left of an unacknowledged step is found out by looking.
        for step in steps[:done]:
            tree.apply(step)
        if done < len(steps) and stands_after(place, tree, steps[done]):
            tree.apply(steps[done])
            settle(record, ["done"])
        elif done < len(steps):
            settle(record, None)
        # A half-made file of that step is not ours to know.
        for name in os.listdir(place):
            if name not in tree.files:
                os.unlink(f"{place}/{name}")
    generator = random.Random(int(seed))
    written, began = 0, time.monotonic()
    with open(record, "a", buffering=1) as log:
        while True:
            step = draw(generator, tree, number, written > LARGE_BYTES_PER_S * (time.monotonic() - began))
            number += 1
            written += step[2] if step[0] in ("create", "append") else 0
            log.write(json.dumps(["begin", step]) + "\n")
            carry_out(place, tree, step)
            log.write(json.dumps(["done"]) + "\n")
            tree.apply(step)


def settle(record, line):
    """Ends the record of an unacknowledged step: as done, or as never begun."""
    with open(record) as lines:
        kept = lines.readlines()
    if line is None:
        kept.pop()
    else:
        kept.append(json.dumps(line) + "\n")
    with open(record, "w") as lines:
        lines.writelines(kept)


def shown(place, name, made, size):
    """Why this file is not as it should be, or None."""
    try:
        with open(f"{place}/{name}", "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return f"{name} is missing"
    if data != content(made, size):
        same = next((at for at, (one, other) in enumerate(zip(data, content(made, size))) if one != other), min(len(data), size))
        return f"{name} has {len(data)} bytes instead of {size}, and differs from byte {same}"
    return None


def stands_after(place, tree, step):
    after = Tree()
    after.files = dict(tree.files)
    after.apply(step)
    return not problems(place, after, None)


def problems(place, tree, pending):
    """What is wrong with the tree; the files of a step that was not acknowledged may be in either state."""
    touched = set(pending[1:2] + pending[2:3]) if pending else set()
    wrong = [shown(place, name, made, size) for name, (made, size) in sorted(tree.files.items()) if name not in touched]
    wrong += [f"{name} was removed or never made" for name in os.listdir(place) if name not in tree.files and name not in touched]
    if pending and pending[0] == "append":
        made, size = tree.files[pending[1]]
        with open(f"{place}/{pending[1]}", "rb") as file:
            data = file.read()
        if len(data) < size or data != content(made, size + pending[2])[: len(data)]:
            wrong.append(f"{pending[1]} has lost what was acknowledged before an append")
    if pending and pending[0] in ("rename", "remove"):
        made, size = tree.files[pending[1]]
        old = shown(place, pending[1], made, size)
        new = shown(place, pending[2], made, size) if pending[0] == "rename" else None
        if old and (new or os.path.exists(f"{place}/{pending[1]}")):
            wrong.append(old)
    return [text for text in wrong if text]


def check(place, record):
    steps, done = read_record(record)
    tree = Tree()
    for step in steps[:done]:
        tree.apply(step)
    wrong = problems(place, tree, steps[done] if done < len(steps) else None)
    for text in wrong:
        print(f"lost: {text}")
    print(f"{done} acknowledged steps, {len(tree.files)} files, {len(wrong)} wrong")
    return 1 if wrong else 0


def main():
    if sys.argv[1] == "write":
        return write(*sys.argv[2:])
    if sys.argv[1] == "count":
        print(read_record(sys.argv[2])[1])
        return 0
    return check(*sys.argv[2:])


sys.exit(main())
