"""Many small files, and snapshots of them that each differ in one of a thousand.

many_files.py make DIRECTORY FILES              writes the files
many_files.py age DIRECTORY FILES SNAPSHOTS     changes some and takes a snapshot, so often
many_files.py verify DIRECTORY FILES SNAPSHOT   holds every file against what it was in that snapshot
"""

import os
import random
import sys
import time

PER_DIRECTORY = 1000


def path(place, number):
    return f"{place}/{number // PER_DIRECTORY:05}/{number % PER_DIRECTORY:03}"


def content(number, version):
    return f"{number} as of {version}\n" * (1 + number % 40)


def changed_for(snapshot, files):
    return random.Random(snapshot).sample(range(files), max(1, files // 1000))


def write(place, number, version):
    with open(path(place, number), "w", encoding="ascii") as file:
        file.write(content(number, version))


def make(place, files):
    for number in range(files):
        if number % PER_DIRECTORY == 0:
            os.mkdir(os.path.dirname(path(place, number)))
        write(place, number, 0)


def age(place, files, snapshots):
    for snapshot in range(1, snapshots + 1):
        for number in changed_for(snapshot, files):
            write(place, number, snapshot)
        os.mkdir(f"{place}/.snapshots/s{snapshot}")


def verify(place, files, snapshot):
    versions = [0] * files
    for earlier in range(1, snapshot + 1):
        for number in changed_for(earlier, files):
            versions[number] = earlier
    for number, version in enumerate(versions):
        with open(path(place, number), encoding="ascii") as file:
            if file.read() != content(number, version):
                sys.exit(f"{path(place, number)} is not what it was in snapshot {snapshot}")
    found = sum(len(names) for _, _, names in os.walk(place))
    if found != files:
        sys.exit(f"{found} files in {place}, where {files} were made")


began = time.monotonic()
step, place, *counts = sys.argv[1:]
counts = [int(count) for count in counts]
{"make": make, "age": age, "verify": verify}[step](place, *counts)
seconds = time.monotonic() - began
print(f"{step} {counts}: {seconds:.1f} s, {counts[-1] / seconds:.1f} per second")
