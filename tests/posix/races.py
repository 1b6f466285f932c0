#!/usr/bin/env python3
"""Several processes at one directory, and what each of them must never see.

  races.py renames DIRECTORY ROUNDS    a name that is replaced is always there, and never torn
  races.py exchange DIRECTORY ROUNDS   two directories that change places are each whole
  races.py appends DIRECTORY RECORDS   O_APPEND writes of several processes lie one behind the other
  races.py listing DIRECTORY ROUNDS    a listing under changes shows every stable name exactly once
  races.py seeking DIRECTORY           telldir and seekdir lead back, also past removed names

Every process works a fixed amount; a failed one fails the whole. Exit code 0 only if nothing wrong was seen.
"""
import ctypes
import hashlib
import multiprocessing
import os
import random
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_NOREPLACE, RENAME_EXCHANGE = -100, 1, 2


def renameat2(one, other, flags):
    if LIBC.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), one)


def together(workers, watchers):
    """Runs workers to their end, and watchers until `done` is set. All are (function, arguments)."""
    done = multiprocessing.Event()
    looked = multiprocessing.Value("q", 0)
    watching = [multiprocessing.Process(target=what, args=(done, looked, *args)) for what, args in watchers]
    working = [multiprocessing.Process(target=what, args=args) for what, args in workers]
    for process in watching + working:
        process.start()
    for process in working:
        process.join()
    done.set()
    for process in watching:
        process.join()
    wrong = [process.exitcode for process in working + watching if process.exitcode != 0]
    assert not wrong, f"{len(wrong)} processes saw something wrong"
    assert not watchers or looked.value > 0, "no watcher has looked"
    return looked.value


def looking(done):
    """Again and again, and once more after the others are done."""
    while not done.is_set():
        yield
    yield


# --- renames over a name
# ------------------------------------------------------------------------------------------

def sealed(text, size):
    """Bytes that say whether they are whole."""
    body = (text.encode() + b"\n") * (size // (len(text) + 1) + 1)
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def check_sealed(data, where):
    digest, _, body = data.partition(b"\n")
    assert hashlib.sha256(body).hexdigest().encode() == digest, f"{where} is torn: {len(data)} bytes"


def replace(directory, writer, rounds):
    chance = random.Random(writer)
    for number in range(rounds):
        new = f"{directory}/new-{writer}"
        with open(new, "wb") as file:
            file.write(sealed(f"writer {writer} round {number}", chance.choice([0, 100, 5000, 70000])))
        os.rename(new, f"{directory}/target")


def watch_target(done, looked, directory):
    for _ in looking(done):
        with open(f"{directory}/target", "rb") as file:
            check_sealed(file.read(), "target")
        assert os.stat(f"{directory}/target").st_nlink in (0, 1)
        with looked.get_lock():
            looked.value += 1


def watch_listing(done, looked, directory):
    for turn, _ in enumerate(looking(done)):
        # Every other time with attributes, which the kernel asks for once a process stats what was
        # listed.
        with os.scandir(directory) as entries:
            names = []
            for entry in entries:
                names.append(entry.name)
                if turn % 2:
                    try:
                        entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        assert entry.name.startswith("new-"), f"{entry.name} was listed and is not there"
        assert names.count("target") == 1, f"target is listed {names.count('target')} times"


def renames(directory, rounds):
    rounds = int(rounds)
    with open(f"{directory}/target", "wb") as file:
        file.write(sealed("first", 10))
    watchers = [(watch_target, (directory,)), (watch_target, (directory,)), (watch_listing, (directory,))]
    seen = together([(replace, (directory, writer, rounds)) for writer in range(3)], watchers)
    assert sorted(os.listdir(directory)) == ["target"]
    print(f"{3 * rounds} renames over one name, looked at {seen} times")


# --- exchange
# -----------------------------------------------------------------------------------------------------

def swap(directory, rounds):
    for _ in range(rounds):
        renameat2(f"{directory}/live", f"{directory}/next", RENAME_EXCHANGE)


def watch_places(done, looked, directory):
    for _ in looking(done):
        place = os.open(f"{directory}/live", os.O_RDONLY | os.O_DIRECTORY)
        parts = set()
        for name in ("one", "two"):
            file = os.open(name, os.O_RDONLY, dir_fd=place)
            parts.add(os.read(file, 100))
            os.close(file)
        os.close(place)
        assert len(parts) == 1, f"half of each: {parts}"
        assert os.path.isdir(f"{directory}/next")
        with looked.get_lock():
            looked.value += 1


def exchange(directory, rounds):
    for side in ("live", "next"):
        os.mkdir(f"{directory}/{side}")
        for name in ("one", "two"):
            with open(f"{directory}/{side}/{name}", "w") as file:
                file.write(side)
    seen = together([(swap, (directory, int(rounds)))] * 2, [(watch_places, (directory,))] * 2)
    try:
        renameat2(f"{directory}/live", f"{directory}/next", RENAME_NOREPLACE)
        raise AssertionError("RENAME_NOREPLACE replaced a directory")
    except FileExistsError:
        pass
    print(f"{2 * int(rounds)} exchanges, looked at {seen} times")


# --- appends
# ------------------------------------------------------------------------------------------------------

HEAD = struct.Struct("<IIII")
MAGIC = 0x5245434F
# Small ones, pages and one less and more, and beyond the kernel's largest request of 1 MiB.
SIZES = [0, 1, 100, 4079, 4080, 4081, 65536, 300000, 1 << 20, (1 << 20) + 1, 2500000]


def record(writer, number, size):
    body = hashlib.sha256(f"{writer} {number}".encode()).digest() * (size // 32 + 1)
    return HEAD.pack(MAGIC, writer, number, size) + body[:size]


def append(path, writer, records):
    chance = random.Random(writer)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in range(records):
        data = record(writer, number, chance.choice(SIZES[:7] * 8 + SIZES))
        assert os.write(file, data) == len(data), "a short write"
        if number % 10 == 9:
            os.close(file)
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.close(file)


def check_records(path, writers, records):
    following = [0] * writers
    with open(path, "rb") as file:
        while head := file.read(HEAD.size):
            magic, writer, number, size = HEAD.unpack(head)
            at = file.tell() - HEAD.size
            assert magic == MAGIC, f"no record begins at {at}"
            assert number == following[writer], f"record {number} of writer {writer} instead of {following[writer]} at {at}"
            following[writer] += 1
            assert head + file.read(size) == record(writer, number, size), f"the record at {at} is interleaved"
    assert following == [records] * writers, f"{following} records instead of {records} each"


def appends(directory, records):
    writers, records = 4, int(records)
    together([(append, (f"{directory}/log", writer, records)) for writer in range(writers)], [])
    check_records(f"{directory}/log", writers, records)
    print(f"{writers} processes appended {records} records each, {os.stat(f'{directory}/log').st_size} bytes")


# --- listings
# -----------------------------------------------------------------------------------------------------

STABLE = 3000


def churn(directory, worker, rounds):
    chance = random.Random(worker)
    there = []
    for number in range(rounds):
        name = f"{directory}/passing-{worker}-{number:06d}-{'x' * chance.randrange(60)}"
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        there.append(name)
        # A name that is replaced is stable, though its file is not.
        os.link(name, f"{name}.link")
        os.rename(f"{name}.link", f"{directory}/replaced-{chance.randrange(20)}")
        if len(there) > 50:
            os.unlink(there.pop(chance.randrange(len(there))))


def watch_stable(done, looked, directory, with_attributes):
    wanted = {f"stable-{number:05d}" for number in range(STABLE)} | {f"replaced-{number}" for number in range(20)}
    for _ in looking(done):
        names = []
        with os.scandir(directory) as entries:
            for entry in entries:
                names.append(entry.name)
                if with_attributes and entry.name.startswith("stable"):
                    entry.stat(follow_symlinks=False)
        kept = [name for name in names if name in wanted]
        assert len(kept) == len(set(kept)), "listed twice: " + ", ".join(sorted({name for name in kept if kept.count(name) > 1})[:5])
        assert len(kept) == len(wanted), "not listed: " + ", ".join(sorted(wanted - set(kept))[:5])
        with looked.get_lock():
            looked.value += 1


def listing(directory, rounds):
    for name in [f"stable-{number:05d}" for number in range(STABLE)] + [f"replaced-{number}" for number in range(20)]:
        os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    watchers = [(watch_stable, (directory, False)), (watch_stable, (directory, True))]
    seen = together([(churn, (directory, worker, int(rounds))) for worker in range(2)], watchers)
    print(f"{2 * int(rounds)} names came and most went, listed {seen} times")


# --- seekdir
# ------------------------------------------------------------------------------------------------------

class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("length", ctypes.c_ushort), ("kind", ctypes.c_ubyte), ("name", ctypes.c_char * 256)]


LIBC.opendir.restype = ctypes.c_void_p
LIBC.readdir.restype = ctypes.POINTER(Dirent)
LIBC.telldir.restype = ctypes.c_long
for function in (LIBC.readdir, LIBC.telldir, LIBC.rewinddir, LIBC.closedir):
    function.argtypes = [ctypes.c_void_p]
LIBC.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]


def next_name(stream):
    entry = LIBC.readdir(stream)
    return os.fsdecode(entry.contents.name) if entry else None


def seeking(directory):
    names = 2000
    for number in range(names):
        os.close(os.open(f"{directory}/{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    stream = LIBC.opendir(os.fsencode(directory))
    assert stream
    places, order = [LIBC.telldir(stream)], []
    while (name := next_name(stream)) is not None:
        order.append(name)
        places.append(LIBC.telldir(stream))
    assert len(order) == names + 2 and len(set(places)) == len(places), "positions are not distinct"
    chance = random.Random(1)
    for _ in range(500):
        index = chance.randrange(len(order))
        LIBC.seekdir(stream, places[index])
        for step in order[index:index + 3]:
            assert next_name(stream) == step, f"position {places[index]} leads elsewhere"
    # Positions of names that are gone lead to the next that stays; also in a stream of their own.
    gone = {str(number) for number in range(names) if number % 3}
    for name in gone:
        os.unlink(f"{directory}/{name}")
    LIBC.closedir(stream)
    stream = LIBC.opendir(os.fsencode(directory))
    for index in range(0, len(order), 7):
        LIBC.seekdir(stream, places[index])
        following = next((name for name in order[index:] if name not in gone), None)
        assert next_name(stream) == following, f"behind a removed name comes not {following}"
    open(f"{directory}/added", "w").close()
    LIBC.rewinddir(stream)
    seen = []
    while (name := next_name(stream)) is not None:
        seen.append(name)
    LIBC.closedir(stream)
    assert sorted(seen) == sorted([name for name in order if name not in gone] + ["added"]), "after rewinddir other names are listed"
    print(f"{names} positions led back")


if __name__ == "__main__":
    {"renames": renames, "exchange": exchange, "appends": appends, "listing": listing, "seeking": seeking}[sys.argv[1]](*sys.argv[2:])
