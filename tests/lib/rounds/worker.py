#!/usr/bin/env python3
"""Writes to a directory of a mount, and keeps a manifest elsewhere of what was acknowledged.

    worker.py DIRECTORY MANIFEST SEED BASE [SABOTAGE]

BASE is a JSON object of what is there: {"files": {path: size}, "dirs": [path]}. The manifest has
two lines for each call: ["begin", call, time] before it, ["done", errno, time] after it (0: it
succeeded). Times are CLOCK_MONOTONIC, in nanoseconds. Calls:
    mkdir D   create F   write F OFFSET SIZE KEY   truncate F SIZE
    rename F G   link F G   unlink F
    fsync F   fsyncdir D   close F WROTE
It ends when it is told to (SIGTERM, between two calls), or when a call that changes something
fails. SABOTAGE, for tests of the tests: `fsync` records calls of fsync that it does not make,
`write` some of its writes.
"""

import errno
import json
import os
import random
import signal
import sys
import time

from calls import CHANGES, content

# More than this in one life, and it goes on in small pieces: rounds read all of it several times.
LARGE_BYTES = 6 << 20
PIECE = 512 << 10
FAILURES_MAX = 4


class Ended(Exception):
    """The worker stops."""


def write_all(handle, data, offset):
    if os.pwrite(handle, data, offset) < len(data):
        raise OSError(errno.ECONNABORTED, "a part was written")


class Worker:
    def __init__(self, place, manifest, seed, base, sabotage):
        self.place, self.seed, self.sabotage = place, seed, sabotage
        self.manifest = os.open(manifest, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.random = random.Random(seed)
        self.files, self.dirs = dict(base["files"]), list(base["dirs"])
        self.number = self.written = self.failures = self.synced = self.wrote = 0
        self.keys = []
        self.is_told = False
        signal.signal(signal.SIGTERM, self.tell)

    def tell(self, *_):
        self.is_told = True

    def path(self, name):
        return f"{self.place}/{name}" if name else self.place

    def note(self, *words):
        os.write(self.manifest, (json.dumps([*words, time.monotonic_ns()]) + "\n").encode())

    def call(self, words, function, *arguments):
        """One call with its two lines; what it returns. A change that fails ends the worker."""
        self.note("begin", words)
        try:
            result = function(*arguments)
        except OSError as error:
            self.note("done", error.errno)
            self.failures += 1
            if words[0] in CHANGES or self.failures >= FAILURES_MAX:
                raise Ended from error
            time.sleep(0.3)
            return None
        self.note("done", 0)
        if self.is_told:
            raise Ended
        return result

    def name(self):
        self.number += 1
        directory = self.random.choice([""] + self.dirs)
        return (
            f"{directory}/f{self.seed}-{self.number}"
            if directory
            else f"f{self.seed}-{self.number}"
        )

    def key(self):
        # Some contents are there already, stored or on their way.
        if self.keys and self.random.random() < 0.15:
            return self.random.choice(self.keys)
        self.number += 1
        key = f"{self.seed}-{self.number}"
        self.keys.append(key)
        return key

    def size(self):
        sizes = [1, 300, 5_000, 60_000, 250_000]
        if self.written < LARGE_BYTES:
            sizes += [PIECE, 1_500_000, 4_000_000]
        return self.random.choice(sizes)

    def sync(self, words, handle):
        self.synced += 1
        if self.sabotage == "fsync" and self.synced > 3:
            return self.call(words, lambda: None)
        return self.call(words, os.fsync, handle)

    def put(self, handle, name, offset, size):
        """Writes in pieces, each a call of its own."""
        while size > 0:
            piece = min(size, PIECE)
            words = ["write", name, offset, piece, self.key()]
            self.wrote += 1
            if self.sabotage == "write" and self.wrote % 4 == 0:
                self.call(words, lambda: None)
            else:
                self.call(words, write_all, handle, content(words[4], piece), offset)
            self.files[name] = max(self.files[name], offset + piece)
            self.written += piece
            offset, size = offset + piece, size - piece

    def finish(self, name, handle, wrote):
        if self.random.random() < 0.5:
            self.sync(["fsync", name], handle)
        self.call(["close", name, wrote], os.close, handle)

    def make(self):
        name = self.name()
        handle = self.call(
            ["create", name], os.open, self.path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640
        )
        self.files[name] = 0
        for _ in range(self.random.choice([1, 1, 2])):
            offset = (
                self.files[name]
                if self.random.random() < 0.7
                else self.files[name] + self.random.choice([1, 4096, 70_000])
            )
            self.put(handle, name, offset, self.size())
        self.finish(name, handle, True)

    def change(self):
        name = self.random.choice(sorted(self.files))
        handle = os.open(self.path(name), os.O_WRONLY)
        if self.random.random() < 0.2:
            size = self.random.randrange(self.files[name] + 1)
            self.call(["truncate", name, size], os.ftruncate, handle, size)
            self.files[name] = size
        else:
            self.put(handle, name, self.random.randrange(self.files[name] + 1), self.size())
        self.finish(name, handle, True)

    def move(self):
        name = self.random.choice(sorted(self.files))
        # Over another one now and then.
        target = (
            self.random.choice(sorted(self.files)) if self.random.random() < 0.3 else self.name()
        )
        if target == name:
            return
        self.call(["rename", name, target], os.rename, self.path(name), self.path(target))
        self.files[target] = self.files.pop(name)
        self.sync_names()

    def remove(self):
        name = self.random.choice(sorted(self.files))
        self.call(["unlink", name], os.unlink, self.path(name))
        del self.files[name]
        self.sync_names()

    def descend(self):
        self.number += 1
        name = f"d{self.seed}-{self.number}"
        self.call(["mkdir", name], os.mkdir, self.path(name))
        self.dirs.append(name)
        self.sync_names()

    def link(self):
        name, target = self.random.choice(sorted(self.files)), self.name()
        # Of two names only the new one is written through: the other one's size would be unknown.
        self.call(["link", name, target], os.link, self.path(name), self.path(target))
        self.files[target] = self.files[name]
        del self.files[name]

    def sync_names(self):
        if self.random.random() < 0.4:
            handle = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
            self.sync(["fsyncdir", ""], handle)
            os.close(handle)

    def run(self):
        steps = [
            (self.make, 6),
            (self.change, 4),
            (self.move, 2),
            (self.remove, 1),
            (self.descend, 0.4),
            (self.link, 0.5),
        ]
        try:
            while True:
                step = self.random.choices(
                    [step for step, _ in steps], [weight for _, weight in steps]
                )[0]
                if not self.files:
                    step = self.make
                step()
                time.sleep(self.random.random() * 0.02)
                if self.is_told:
                    return
        except (Ended, OSError):
            return


Worker(
    sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]), (sys.argv + [None])[5]
).run()
