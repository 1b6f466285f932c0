"""Judges what is found in a repository by what was acknowledged.

A worker's calls that change something are numbered. What is found must be the state after the
first k of them, for each worker: k no less than what was acknowledged, and no worker's later call
without an earlier one of another.
"""

import json
import os
from dataclasses import dataclass, field

from calls import CHANGES, content


@dataclass
class Call:
    words: list
    began: int
    done: int | None = None
    error: int | None = None


@dataclass
class Tree:
    """A worker's directory: names of files, whose contents several names may share."""

    dirs: set = field(default_factory=set)
    files: dict = field(default_factory=dict)
    contents: dict = field(default_factory=dict)

    def copy(self):
        return Tree(
            set(self.dirs),
            dict(self.files),
            {key: bytearray(value) for key, value in self.contents.items()},
        )

    def at(self, name):
        number = self.files.get(name)
        return None if number is None else self.contents[number]

    def names_of(self, name):
        """All names of a file."""
        return {other for other, number in self.files.items() if number == self.files.get(name)}

    def apply(self, words):
        """Carries out a call. The names of which the content may have changed."""
        kind, name = words[0], words[1]
        if kind == "mkdir":
            self.dirs.add(name)
            return {name}
        if kind == "create":
            self.files[name] = ("made", len(self.contents))
            self.contents[self.files[name]] = bytearray()
            return {name}
        if kind in ("write", "truncate"):
            number = self.files[name]
            file = self.contents[number]
            if kind == "write":
                write(file, words[2], content(words[4], words[3]))
            else:
                write(file, words[2], b"")
                del file[words[2] :]
            return self.names_of(name)
        if kind == "rename":
            self.files[words[2]] = self.files.pop(name)
            return {name, words[2]}
        if kind == "link":
            self.files[words[2]] = self.files[name]
            return {words[2]}
        del self.files[name]
        return {name}


def write(file, offset, data):
    if len(file) < offset:
        file.extend(bytes(offset - len(file)))
    file[offset : offset + len(data)] = data


def scan(place):
    """The tree below a directory."""
    tree = Tree()
    for directory, names, files in os.walk(place, onerror=raise_it):
        below = os.path.relpath(directory, place)
        below = "" if below == "." else below + "/"
        tree.dirs |= {below + name for name in names}
        for name in files:
            with open(f"{directory}/{name}", "rb") as file:
                number = os.fstat(file.fileno()).st_ino
                tree.files[below + name] = number
                tree.contents[number] = file.read()
    return tree


def are_same(some, others):
    """Whether trees show the same names with the same contents, whatever their files' numbers."""
    shown = [
        [(tree.dirs, {name: bytes(tree.at(name)) for name in tree.files}) for tree in trees]
        for trees in (some, others)
    ]
    return shown[0] == shown[1]


def raise_it(error):
    raise error


def read_manifest(path):
    """The calls of a worker that change something, and those that acknowledged it."""
    calls = []
    if os.path.exists(path):
        with open(path) as lines:
            for line in lines:
                words = json.loads(line)
                if words[0] == "begin":
                    calls.append(Call(words[1], words[2]))
                else:
                    calls[-1].error, calls[-1].done = words[1], words[2]
    changes = [call for call in calls if call.words[0] in CHANGES]
    return changes, [call for call in calls if call.words[0] not in CHANGES and call.error == 0]


@dataclass
class Life:
    """What the workers of one mount did: to which trees, which calls, and what acknowledged them."""

    bases: list
    changes: list
    # (when the call began, the place that it vouches for: "bucket" or "machine", what it was)
    acknowledged: list

    def done_before(self, worker, moment):
        """How many changes had been acknowledged by then."""
        return sum(1 for call in self.changes[worker] if call.error == 0 and call.done <= moment)

    def begun_before(self, worker, moment):
        return sum(1 for call in self.changes[worker] if call.began <= moment)

    def floor(self, worker, where):
        """How many changes must be there, and what says so."""
        best = (0, "nothing")
        for moment, vouched, what in self.acknowledged:
            if vouched == "bucket" or where == "machine":
                best = max(best, (self.done_before(worker, moment), what))
        return best

    def judge(self, trees, floors, ceilings):
        """What is wrong with these trees, as texts; and how many changes of each worker they have."""
        candidates, wrong = [], []
        for worker, tree in enumerate(trees):
            (low, why), high = floors[worker], ceilings[worker]
            fitting, nearest = self.fitting(worker, tree, high)
            candidates.append([place for place in fitting if place >= low])
            if candidates[-1]:
                continue
            if fitting:
                call = self.changes[worker][low - 1]
                wrong.append(
                    f"LOST: worker {worker}: the state is that after {fitting[-1]} changes,"
                    f" and {low} were acknowledged by {why};"
                    f" the last of them: {call.words}"
                )
            else:
                wrong.append(
                    f"NO STATE: worker {worker} of which {low} to {high} changes should be there:"
                    f" {nearest}"
                )
        if wrong:
            return wrong, None
        return self.order(candidates)

    def order(self, candidates):
        """The least of the candidates without a later change and not an earlier one."""
        chosen = [places[0] for places in candidates]
        while True:
            moved = False
            for one, place in enumerate(chosen):
                # Half a change is there in part.
                last = int(place + 0.5)
                if last == 0:
                    continue
                moment = self.changes[one][last - 1].began
                for other, theirs in enumerate(chosen):
                    needed = self.done_before(other, moment)
                    if theirs >= needed:
                        continue
                    more = [option for option in candidates[other] if option >= needed]
                    if not more:
                        return [
                            f"ORDER: change {last} of worker {one} is there:"
                            f" {self.changes[one][last - 1].words}; of worker {other} there are"
                            f" {theirs} changes, and {needed} were done before it began"
                        ], None
                    chosen[other], moved = more[0], True
            if not moved:
                return [], chosen

    def fitting(self, worker, seen, high):
        """The numbers of changes after which the tree is as it is seen, or what it is nearest to."""
        model = self.bases[worker].copy()
        names = set(model.files) | set(seen.files) | model.dirs | seen.dirs
        differing = {name for name in names if differs(model, seen, name)}
        fitting, least, nearest = [], None, ""
        for number in range(high + 1):
            if not differing:
                fitting.append(number)
            if least is None or len(differing) <= least:
                least = len(differing)
                shown = [described(model, seen, name) for name in sorted(differing)[:4]]
                nearest = f"nearest is that after {number}; there differ {shown}"
            if number == high:
                break
            words = self.changes[worker][number].words
            if (
                words[0] == "write"
                and differing
                and differing <= model.names_of(words[1])
                and is_partial(model, seen, words)
            ):
                fitting.append(number + 0.5)
            for name in model.apply(words):
                differing.discard(name)
                if differs(model, seen, name):
                    differing.add(name)
        return fitting, nearest


def differs(model, seen, name):
    return (name in model.dirs) != (name in seen.dirs) or model.at(name) != seen.at(name)


def common(some, others):
    """How many bytes both begin with."""
    some, others = memoryview(some), memoryview(others)
    low, high = 0, min(len(some), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        if some[low:middle] == others[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def described(model, seen, name):
    expected, found = model.at(name), seen.at(name)
    if expected is None or found is None:
        return f"{name}: {'there' if found is not None or name in seen.dirs else 'missing'}"
    same = common(expected, found)
    return f"{name}: {len(found)} bytes instead of {len(expected)}, differing from byte {same}"


def is_partial(model, seen, words):
    """Whether a file is as a write leaves it of which only a beginning was carried out."""
    name, offset, data = words[1], words[2], content(words[4], words[3])
    before, found = model.at(name), seen.at(name)
    if before is None or found is None or before == found:
        return False
    length = common(data, memoryview(found)[offset:])
    part = bytearray(before)
    write(part, offset, data[:length])
    return 0 < length < len(data) and part == found
