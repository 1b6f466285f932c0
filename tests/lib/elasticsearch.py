#!/usr/bin/env python3
"""The file operations of Elasticsearch at the directory of an `fs` snapshot repository.

  elasticsearch.py verify PLACE RECORD                 what the registration of a repository does
  elasticsearch.py analyze PLACE RECORD                blobs, ranges and registers under races
  elasticsearch.py snapshot PLACE RECORD NAME [HOLD]   takes a snapshot of changing shards
  elasticsearch.py delete PLACE RECORD NAME            deletes a snapshot and what only it needs
  elasticsearch.py check PLACE RECORD                  every file is there, and no other one
  elasticsearch.py restore PLACE                       every snapshot of the repository can be read

No Elasticsearch runs here. `Container` makes the calls of its FsBlobContainer in the same order:
each blob is created exclusively, closed, opened again for fsync, and followed by an fsync of its
directory. An atomic blob is written as pending-NAME-UUID and renamed. `snapshot` and `delete` keep
the order of its BlobStoreRepository: data, then metadata, then index-N, then index.latest, then
deletions. The contents of the metadata are JSON of this program, and the data follows from names.

RECORD lies elsewhere than PLACE, and says what was written: the SHA-256 of each file. `snapshot`
creates the file HOLD when only index-N and what comes after it is missing, and waits until that
file is gone. The exit code is 0 only if nothing was wrong.
"""
import base64
import fcntl
import hashlib
import json
import multiprocessing
import os
import random
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

# Threads of Elasticsearch's pool `snapshot` on a machine with ten processors or more.
WORKERS = 5
# Bytes of one write(2): the buffer of a blob store on a filesystem.
BUFFER_BYTES = 100 << 10
# The `chunk_size` of the index that has one.
PART_BYTES = 512 << 10
# Name of each index, number of its shards and its largest part.
INDICES = [("orders", 2, None), ("logs", 1, PART_BYTES)]
# The files of a segment, with their sizes.
SEGMENT = {"fdt": 1_200_000, "doc": 150_000, "dvd": 20_000, "tim": 3_000, "si": 400}


def uuid():
    return base64.urlsafe_b64encode(os.urandom(15)).decode()


def digest(data):
    return hashlib.sha256(data).hexdigest()


def content(name, size):
    return hashlib.shake_128(name.encode()).digest(size)


def sync(path, flags):
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Record:
    """The files that must be below a place, with the hash of each."""

    def __init__(self, path, place):
        self.path, self.place, self.lock = path, place, threading.Lock()
        self.files = {}
        if os.path.exists(path):
            with open(path) as file:
                self.files = json.load(file)

    def wrote(self, path, data):
        with self.lock:
            self.files[os.path.relpath(path, self.place)] = digest(data)

    def moved(self, source, target):
        with self.lock:
            moved = self.files.pop(os.path.relpath(source, self.place))
            self.files[os.path.relpath(target, self.place)] = moved

    def removed(self, path):
        with self.lock:
            self.files.pop(os.path.relpath(path, self.place), None)

    def save(self):
        with open(self.path, "w") as file:
            json.dump(self.files, file)


class Container:
    """A directory of blobs."""

    def __init__(self, path, record, is_writable=True):
        self.path, self.record = path, record
        if is_writable:
            os.makedirs(path, exist_ok=True)

    def at(self, name):
        return os.path.join(self.path, name)

    def below(self, *names):
        return Container(os.path.join(self.path, *names), self.record, self.record is not None)

    def list(self, prefix=""):
        """The size of each blob whose name begins with the prefix."""
        found = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.startswith(prefix) and entry.is_file(follow_symlinks=False):
                    assert entry.name not in found, f"{entry.name} is listed twice"
                    found[entry.name] = entry.stat().st_size
        return found

    def read(self, name, position=0, length=None):
        with open(self.at(name), "rb", buffering=0) as file:
            file.seek(position)
            pieces, missing = [], float("inf") if length is None else length
            while missing > 0 and (piece := file.read(min(BUFFER_BYTES, missing))):
                pieces.append(piece)
                missing -= len(piece)
            return b"".join(pieces)

    def _create(self, name, data):
        file = os.open(self.at(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            self.record.wrote(self.at(name), data)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest[:BUFFER_BYTES]):]
        finally:
            os.close(file)
        sync(self.at(name), os.O_WRONLY)

    def write(self, name, data, is_new=True):
        try:
            self._create(name, data)
        except FileExistsError:
            if is_new:
                raise
            self.delete([name])
            self._create(name, data)
        sync(self.path, os.O_RDONLY)

    def write_atomically(self, name, data, is_new):
        pending = f"pending-{name}-{uuid()}"
        try:
            self._create(pending, data)
            self._move(pending, name, is_new)
        except OSError:
            self.delete([pending])
            raise
        finally:
            sync(self.path, os.O_RDONLY)

    def copy(self, source, name):
        pending = f"pending-{name}-{uuid()}"
        self._create(pending, self.read(source))
        self._move(pending, name, False)

    def _move(self, source, target, is_new):
        if is_new and os.path.exists(self.at(target)):
            raise FileExistsError(self.at(target))
        # The record of two renames onto one name must have their order.
        with MOVES:
            os.rename(self.at(source), self.at(target))
            self.record.moved(self.at(source), self.at(target))

    def delete(self, names):
        for name in names:
            try:
                os.unlink(self.at(name))
            except FileNotFoundError:
                pass
            self.record.removed(self.at(name))

    def delete_all(self):
        for directory, below, names in os.walk(self.path, topdown=False):
            for name in names:
                os.unlink(os.path.join(directory, name))
                self.record.removed(os.path.join(directory, name))
            os.rmdir(directory)
        assert not os.path.exists(self.path), f"{self.path} is still there"


MOVES = threading.Lock()


def together(work, items):
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(work, items))


def refused(action, *arguments):
    try:
        action(*arguments)
    except FileExistsError:
        return
    raise AssertionError(f"not refused: {arguments[0]} exists")


# --- registration and analysis --------------------------------------------------------------------


def verify(root):
    """The master writes, each node writes and reads, and the master deletes the directory."""
    seed = uuid()
    probe = root.below(f"tests-{seed}")
    probe.write_atomically("master.dat", seed.encode(), True)

    def node(name):
        probe.write(f"data-{name}.dat", seed.encode())
        assert probe.read("master.dat") == seed.encode(), "another seed than the master's"

    nodes = [uuid() for _ in range(WORKERS)]
    together(node, nodes)
    expected = {"master.dat": len(seed)} | {f"data-{name}.dat": len(seed) for name in nodes}
    assert probe.list() == expected, f"listed: {probe.list()}"
    probe.delete_all()


def add_to_register(path, times):
    """Adds 1 to the number in a register, this many times, each under a lock of the file."""
    for _ in range(times):
        try:
            register = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            register = os.open(path, os.O_RDWR)
        fcntl.lockf(register, fcntl.LOCK_EX)
        found = int.from_bytes(os.pread(register, 16, 0), "big")
        os.pwrite(register, (found + 1).to_bytes(8, "big"), 0)
        os.fsync(register)
        os.close(register)


def analyze(root):
    probe = root.below(f"temp-analysis-{uuid()}")
    registers = [
        multiprocessing.Process(target=add_to_register, args=(probe.at("register"), 20))
        for _ in range(4)
    ]
    for process in registers:
        process.start()
    for process in registers:
        process.join()
    assert [process.exitcode for process in registers] == [0] * 4, "a writer of the register failed"
    assert probe.read("register") == (80).to_bytes(8, "big"), f"counted {probe.read('register')}"
    probe.delete(["register"])

    # A name that exists is refused or replaced, and nothing pending is left.
    for write in (probe.write, probe.write_atomically):
        probe.delete(["twice"])
        write("twice", b"the first", True)
        refused(write, "twice", b"the second", True)
        assert probe.read("twice") == b"the first", "a refused write has changed the blob"
        write("twice", b"the third, longer", False)
        assert probe.read("twice") == b"the third, longer", "the blob was not replaced"
    probe.copy("twice", "copied")
    assert probe.read("copied") == probe.read("twice"), "the copy differs"

    # Several writers replace one name while others read it: each reader sees one of them, whole.
    drafts = [content(f"draft {number}", 300_000 + number) for number in range(8)]
    whole = {digest(draft) for draft in drafts}
    probe.write_atomically("raced", drafts[0], True)

    def race(number):
        if number % 2:
            assert digest(probe.read("raced")) in whole, "a reader saw a part of a blob"
        else:
            probe.write_atomically("raced", drafts[number // 2], False)

    together(race, range(16))
    assert digest(probe.read("raced")) in whole, "the blob that won is not whole"
    assert probe.list("pending-") == {}, f"left behind: {probe.list('pending-')}"
    assert sorted(probe.list("tw")) == ["twice"], "a listing by prefix"

    # Ranges of a blob, and the rest of one that is deleted while it is read.
    data = content("ranges", 3_000_000)
    probe.write("ranges", data)
    generator = random.Random(1)

    def compare(_):
        position = generator.randrange(len(data))
        length = generator.choice([1, 4096, 70_000, len(data)])
        read = probe.read("ranges", position, length)
        assert read == data[position:position + length], f"{length} bytes at {position} differ"

    together(compare, range(60))
    with open(probe.at("ranges"), "rb", buffering=0) as file:
        beginning = file.read(1000)
        probe.delete(["ranges", "never-there"])
        assert beginning + file.readall() == data, "a blob that was deleted while it was read"
    probe.delete_all()


# --- the repository -------------------------------------------------------------------------------


def latest_generation(root):
    numbers = [int(name[len("index-"):]) for name in root.list("index-")]
    return max(numbers, default=-1)


def repository_data(root):
    generation = latest_generation(root)
    if generation < 0:
        return {"taken": 0, "indices": {}, "snapshots": {}}
    return json.loads(root.read(f"index-{generation}"))


def commit(root, data):
    before = root.list("index-")
    generation = latest_generation(root) + 1
    root.write_atomically(f"index-{generation}", json.dumps(data).encode(), True)
    root.write_atomically("index.latest", struct.pack(">q", generation), False)
    root.delete(before)


class Watcher:
    """Reads index.latest and the index that it names, over and over, while others are written."""

    def __init__(self, root):
        self.root, self.is_done, self.wrong, self.looks = root, threading.Event(), None, 0
        self.thread = threading.Thread(target=self.watch)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.is_done.set()
        self.thread.join()
        if self.wrong is not None:
            raise self.wrong
        assert self.looks > 0, "the watcher has not looked"

    def generation(self):
        read = self.root.read("index.latest")
        assert len(read) == 8, f"index.latest has {len(read)} bytes"
        return struct.unpack(">q", read)[0]

    def watch(self):
        last = -1
        try:
            while not self.is_done.is_set():
                last = self.look(last)
                self.looks += 1
        except Exception as error:
            self.wrong = error

    def look(self, last):
        try:
            generation = self.generation()
        except FileNotFoundError:
            assert last < 0, "index.latest was there and is not"
            return last
        assert generation >= last, f"index.latest went from {last} back to {generation}"
        try:
            json.loads(self.root.read(f"index-{generation}"))
        except FileNotFoundError:
            newer = self.generation()
            assert newer > generation, f"index-{generation} is missing, and it is the latest"
        return generation


def shard_files(index, shard, number):
    """The files of a shard at the snapshot with this number: a list of segments, an older segment
    and a new one."""
    yield f"{index}-{shard}-segments_{number}", 700
    for segment in range(max(0, number - 1), number + 1):
        for suffix, size in SEGMENT.items():
            yield f"{index}-{shard}-_{segment}.{suffix}", size + segment


def part_names(file):
    if file["parts"] == 1:
        return [file["blob"]]
    return [f"{file['blob']}.part{part}" for part in range(file["parts"])]


def shard_plan(index, shard, part_bytes, number, known):
    """The files of a shard, and what to write of them: (blob, content)."""
    files, blobs = [], []
    for name, size in shard_files(index, shard, number):
        if name in known:
            files.append(known[name])
            continue
        data = content(name, size)
        part = part_bytes or size
        file = {"name": name, "blob": f"__{uuid()}", "sha256": digest(data), "size": size,
                "part_bytes": part, "parts": -(-size // part)}
        files.append(file)
        blobs += [(blob, data[at * part:(at + 1) * part])
                  for at, blob in enumerate(part_names(file))]
    return files, blobs


def take_snapshot(root, name, hold):
    data = repository_data(root)
    assert name not in data["snapshots"], f"{name} exists"
    number, identifier, shards, work = data["taken"], uuid(), [], []
    for index, count, part_bytes in INDICES:
        home = data["indices"].setdefault(index, {"id": uuid(), "shards": [None] * count})
        for shard in range(count):
            container = root.below("indices", home["id"], str(shard))
            listed = {}
            if home["shards"][shard] is not None:
                listed = json.loads(container.read(f"index-{home['shards'][shard]}"))
            known = {file["name"]: file for files in listed.values() for file in files}
            listed[name], blobs = shard_plan(index, shard, part_bytes, number, known)
            # A generation of a shard is written before its data: nothing refers to it yet.
            home["shards"][shard] = uuid()
            container.write(f"index-{home['shards'][shard]}", json.dumps(listed).encode(), False)
            shards.append((container, listed[name]))
            work += [(container, blob, bytes_) for blob, bytes_ in blobs]
    assert any(blob.endswith(".part2") for _, blob, _ in work), "no file is in parts"
    together(lambda item: item[0].write(item[1], item[2]), work)
    for container, files in shards:
        container.write(f"snap-{identifier}.dat", json.dumps(files).encode(), False)
    for index, _, _ in INDICES:
        home = root.below("indices", data["indices"][index]["id"])
        home.write(f"meta-{identifier}.dat", index.encode(), False)
    for kind in ("meta", "snap"):
        root.write(f"{kind}-{identifier}.dat", name.encode(), False)
    if hold is not None:
        wait_for_release(hold)
    data["snapshots"][name] = identifier
    data["taken"] += 1
    commit(root, data)
    print(f"{name}: {len(work)} blobs, generation {latest_generation(root)}")


def wait_for_release(hold):
    with open(hold, "x"):
        pass
    for _ in range(600):
        if not os.path.exists(hold):
            return
        time.sleep(0.1)
    raise AssertionError(f"{hold} was not removed within a minute")


def delete_snapshot(root, name):
    data = repository_data(root)
    identifier, stale, count = data["snapshots"].pop(name), [], 0
    for index, home in data["indices"].items():
        for shard, generation in enumerate(home["shards"]):
            container = root.below("indices", home["id"], str(shard))
            listed = json.loads(container.read(f"index-{generation}"))
            del listed[name]
            home["shards"][shard] = uuid()
            container.write(f"index-{home['shards'][shard]}", json.dumps(listed).encode(), False)
            needed = {blob for files in listed.values() for file in files
                      for blob in part_names(file)}
            needed |= {f"snap-{kept}.dat" for kept in data["snapshots"].values()}
            needed.add(f"index-{home['shards'][shard]}")
            stale.append((container, needed))
    commit(root, data)
    for container, needed in stale:
        unneeded = set(container.list()) - needed
        container.delete(unneeded)
        count += sum(blob.startswith("__") for blob in unneeded)
    # A second deletion of the same name is no error.
    for kind in ("meta", "snap", "meta"):
        root.delete([f"{kind}-{identifier}.dat"])
    for home in data["indices"].values():
        root.below("indices", home["id"]).delete([f"meta-{identifier}.dat"])
    assert count > 0, "the snapshot had no data of its own"
    print(f"{name}: deleted, and {count} blobs that only it had")


def restore(root):
    """Reads each file of each snapshot, as a restore does, and compares its hash."""
    data = repository_data(root)
    assert data["snapshots"], "there is no snapshot"
    generation = struct.unpack(">q", root.read("index.latest"))[0]
    assert generation == latest_generation(root), f"index.latest has {generation}"
    work = []
    for name, identifier in data["snapshots"].items():
        assert root.read(f"snap-{identifier}.dat") == name.encode(), f"{name}: another name"
        for home in data["indices"].values():
            for shard in range(len(home["shards"])):
                container = root.below("indices", home["id"], str(shard))
                files = json.loads(container.read(f"snap-{identifier}.dat"))
                work += [(name, container, file) for file in files]

    def compare(item):
        name, container, file = item
        read = b"".join(container.read(part) for part in part_names(file))
        assert digest(read) == file["sha256"], f"{name}: {file['name']} differs"
        # A part of a file, as a searchable snapshot reads it.
        position = random.Random(file["blob"]).randrange(file["size"])
        part, within = divmod(position, file["part_bytes"])
        piece = container.read(part_names(file)[part], within, 5000)
        end = min((part + 1) * file["part_bytes"], position + 5000)
        assert piece == read[position:end], f"{name}: bytes at {position} of {file['name']} differ"

    together(compare, work)
    print(f"generation {generation}: {len(data['snapshots'])} snapshots, {len(work)} files")


def check(root, files):
    found = {}
    for directory, _, names in os.walk(root.path):
        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root.path)] = digest(file.read())
    assert found.keys() == files.keys(), f"other files: {sorted(found.keys() ^ files.keys())[:9]}"
    wrong = [name for name, hashed in files.items() if found[name] != hashed]
    assert not wrong, f"other contents: {sorted(wrong)[:9]}"
    restore(root)


def main(verb, place, *rest):
    # A place that is only read gets no record, and no directory is made in it.
    record = Record(rest[0], place) if rest and verb != "check" else None
    root = Container(place, record, record is not None)
    if verb == "verify":
        verify(root)
    elif verb == "analyze":
        analyze(root)
    elif verb == "snapshot":
        with Watcher(root):
            take_snapshot(root, rest[1], rest[2] if len(rest) > 2 else None)
    elif verb == "delete":
        with Watcher(root):
            delete_snapshot(root, rest[1])
    elif verb == "check":
        check(root, Record(rest[0], place).files)
    elif verb == "restore":
        restore(root)
    else:
        sys.exit(__doc__)
    if record is not None:
        record.save()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
