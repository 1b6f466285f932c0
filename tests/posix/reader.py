#!/usr/bin/env python3
"""What a read-only mount shows of a volume that another mount writes.

    reader.py WRITER READER SECONDS

Both are mounts of one volume, READER a read-only one. Files are opened and read there, then changed
and removed through WRITER, and a snapshot is made. Within SECONDS READER must show the new state in
listings and to new opens; reads of what was open give the contents that it was opened with. (fstat
shows the new size: the kernel has one size for each inode, not for each descriptor.)
"""

import os
import sys
import time

WRITER, READER, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
OLD = bytes(range(256)) * 4096
# One page in the middle, and more at the end.
NEW = OLD[:409600] + b"n" * 8192 + OLD[417792:] + b"more" * 50000


def commit(name):
    os.mkdir(f"{WRITER}/.snapshots/{name}")


def write(name, contents):
    with open(f"{WRITER}/{name}", "wb") as file:
        file.write(contents)


def read(name):
    with open(f"{READER}/{name}", "rb") as file:
        return file.read()


def become(what, test):
    """Waits until `test` holds; fails if that takes too long."""
    began = time.monotonic()
    while not test():
        assert time.monotonic() - began < SECONDS, f"not after {SECONDS} s: {what}"
        time.sleep(0.05)
    print(f"{what}: after {time.monotonic() - began:.1f} s")


def holds(file, contents, what):
    found = os.pread(file, len(contents) + (1 << 20), 0)
    wrong = next((at for at, (a, b) in enumerate(zip(found, contents)) if a != b), None)
    assert found == contents, f"{what}: {len(found)} bytes, and byte {wrong} differs"


NAMES = ["changed", "shorter", "replaced", "removed"]
for name in NAMES:
    write(name, OLD)
commit("reader-old")
become("the first state", lambda: set(NAMES) <= set(os.listdir(READER)))
become("its contents", lambda: all(read(name) == OLD for name in NAMES))
# Read once, so that the kernel has all of their pages.
warm = {name: os.open(f"{READER}/{name}", os.O_RDONLY) for name in NAMES}
for name, file in warm.items():
    holds(file, OLD, name)

with open(f"{WRITER}/changed", "r+b") as file:
    file.seek(409600)
    file.write(b"n" * 8192)
    file.seek(0, os.SEEK_END)
    file.write(b"more" * 50000)
os.truncate(f"{WRITER}/shorter", 5000)
write("new", NEW)
os.rename(f"{WRITER}/new", f"{WRITER}/replaced")
os.remove(f"{WRITER}/removed")
write("added", NEW)
commit("reader-new")

become("the new listing", lambda: {"added"} == set(os.listdir(READER)) - set(NAMES[:3]) - {"other"})
become("the new size", lambda: os.stat(f"{READER}/changed").st_size == len(NEW))
for name, contents in ("changed", NEW), ("shorter", OLD[:5000]), ("replaced", NEW), ("added", NEW):
    become(f"new contents of {name}", lambda: read(name) == contents)
become("no removed name", lambda: not os.path.exists(f"{READER}/removed"))
for name, file in warm.items():
    holds(file, OLD, f"{name}, as it was opened")
