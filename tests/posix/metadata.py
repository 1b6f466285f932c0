#!/usr/bin/env python3
"""What stat(2), statvfs(3) and du(1) say, and trees as deep as they come.

  metadata.py deep DIRECTORY DEPTH     makes, lists, renames and removes a chain of directories, and says how fast
  metadata.py make DIRECTORY RECORD    makes one of everything, checks it, and writes down what stat says
  metadata.py check DIRECTORY RECORD [other-numbers]   it is still so; in a snapshot inode numbers are others
"""
import json
import os
import stat
import subprocess
import sys
import time

MIB = 1 << 20
# Nanoseconds, both sides of every limit that others have (1901, 1970, 2038, 2106, 2446), and far beyond.
SECONDS = [0, 1, -1, -(1 << 31) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) + 1, 15032385536, 253402300800, 1 << 40, 1 << 55, -(1 << 40)]


class Rate:
    def __init__(self, what, count):
        self.what, self.count = what, count

    def __enter__(self):
        self.began = time.monotonic()

    def __exit__(self, *_):
        seconds = time.monotonic() - self.began
        print(f"{self.what}: {self.count} in {seconds:.1f} s, {self.count / max(seconds, 1e-6):.0f} per second")


# --- depth --------------------------------------------------------------------------------------------------------

def down(directory, depth):
    """Descriptors of a chain of directories, one at a time: its path is longer than any path may be."""
    at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    for level in range(depth):
        below = os.open(f"level-{level}", os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        yield level, at, below
        os.close(at)
        at = below
    os.close(at)


def deep(directory, depth):
    with Rate("directories made below each other", depth):
        at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        for level in range(depth):
            os.mkdir(f"level-{level}", dir_fd=at)
            os.close(os.open(f"file-{level}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=at))
            below = os.open(f"level-{level}", os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        os.close(at)
    with Rate("levels listed and looked at", depth):
        for level, at, below in down(directory, depth):
            assert sorted(os.listdir(at)) == [f"file-{level}", f"level-{level}"]
            assert os.stat(f"file-{level}", dir_fd=at).st_nlink == 1
            # The way up leads where the way down came from.
            assert os.stat("..", dir_fd=below).st_ino == os.fstat(at).st_ino, f"'..' of level {level} leads elsewhere"
    found = subprocess.run(["find", directory, "-type", "d"], stdout=subprocess.PIPE, check=True).stdout.count(b"\n")
    assert found == depth + 1, f"find sees {found} directories"
    middle = depth // 2
    for level, at, below in down(directory, middle):
        if level == middle - 1:
            # A directory cannot go below itself, however far down.
            try:
                os.rename("..", f"level-{middle}/inside", src_dir_fd=below, dst_dir_fd=below)
                raise AssertionError("a directory went below itself")
            except OSError:
                pass
            os.rename(f"level-{middle}", f"{directory}/lower", src_dir_fd=below)
    os.rename(f"{directory}/lower", f"{directory}/lower-half")
    with Rate("levels removed", depth):
        subprocess.run(["rm", "-r", directory + "/lower-half", directory + "/level-0", directory + "/file-0"], check=True)
    assert os.listdir(directory) == []


# --- one of everything ----------------------------------------------------------------------------------------------

def put(path, data):
    with open(path, "wb") as file:
        file.write(data)


def allocated(path):
    return os.stat(path).st_blocks * 512


def blocks(directory):
    """st_blocks counts what is allocated, before anything is found to be there already, and no holes."""
    contents = os.urandom(MIB + 5)
    for name in ("dense", "same-again"):
        put(f"{directory}/{name}", contents)
    put(f"{directory}/small", b"x" * 100)
    put(f"{directory}/nothing", b"")
    with open(f"{directory}/sparse", "wb") as file:
        file.truncate(500 * MIB)
        file.seek(100 * MIB)
        file.write(os.urandom(65536))
    put(f"{directory}/punched", contents)
    subprocess.run(["fallocate", "--punch-hole", "-o", "65536", "-l", "917504", f"{directory}/punched"], check=True)


def check_blocks(directory):
    for name in ("dense", "same-again"):
        assert MIB + 5 <= allocated(f"{directory}/{name}") <= MIB + 4096, f"{name}: {allocated(f'{directory}/{name}')} bytes"
    assert 0 < allocated(f"{directory}/small") <= 4096
    assert allocated(f"{directory}/nothing") == 0
    assert 65536 <= allocated(f"{directory}/sparse") <= 4 * 65536, f"sparse: {allocated(f'{directory}/sparse')} bytes"
    assert allocated(f"{directory}/punched") <= 3 * 65536, f"punched: {allocated(f'{directory}/punched')} bytes"
    files = ["dense", "same-again", "small", "nothing", "sparse", "punched"]
    counted = sum(allocated(f"{directory}/{name}") for name in files)
    said = subprocess.run(["du", "-B1", "-c"] + [f"{directory}/{name}" for name in files], stdout=subprocess.PIPE, check=True).stdout
    assert int(said.split(b"\n")[-2].split()[0]) == counted, f"du says {said!r}, stat {counted}"


def links(directory):
    os.makedirs(f"{directory}/parent/one")
    os.mkdir(f"{directory}/parent/two")
    put(f"{directory}/parent/one/file", b"linked")
    for name in ("parent/two/file", "parent/third"):
        os.link(f"{directory}/parent/one/file", f"{directory}/{name}")
    os.mkdir(f"{directory}/other")
    os.mkdir(f"{directory}/parent/moved")
    assert os.stat(f"{directory}/parent").st_nlink == 5
    os.rename(f"{directory}/parent/moved", f"{directory}/other/moved")


def check_links(directory):
    linked = {os.stat(f"{directory}/parent/{name}").st_ino for name in ("one/file", "two/file", "third")}
    assert len(linked) == 1, "three names of one file have several numbers"
    for name, count in {"parent/third": 3, "parent": 4, "other": 3, "parent/one": 2, "small": 1}.items():
        assert os.stat(f"{directory}/{name}").st_nlink == count, f"{name} has {os.stat(f'{directory}/{name}').st_nlink} links"


def times(directory):
    os.mkdir(f"{directory}/times")
    for index, seconds in enumerate(SECONDS):
        path = f"{directory}/times/{index}"
        put(path, b"")
        os.utime(path, ns=(seconds * 10**9 + 1, seconds * 10**9 + 999999999))


def check_times(directory):
    for index, seconds in enumerate(SECONDS):
        found = os.stat(f"{directory}/times/{index}")
        wanted = (seconds * 10**9 + 1, seconds * 10**9 + 999999999)
        assert (found.st_atime_ns, found.st_mtime_ns) == wanted, f"{wanted} became {found.st_atime_ns} {found.st_mtime_ns}"


def used(directory):
    """Blocks and inodes in use, as statvfs counts them."""
    seen = os.statvfs(directory)
    return seen.f_blocks - seen.f_bfree, seen.f_files - seen.f_ffree


def expect_used(directory, wanted, what):
    """The kernel tells a FUSE filesystem of a close after close(2) has returned, and until then a removed file counts as an open one does."""
    until = time.monotonic() + 10
    while (found := used(directory)) != wanted:
        assert time.monotonic() < until, f"{what}: (blocks, inodes) in use are {found}, and should be {wanted}"
        time.sleep(0.01)


def space(directory):
    """statvfs counts inodes and bytes that come and go."""
    seen = os.statvfs(directory)
    assert (seen.f_namemax, seen.f_frsize) == (255, 4096) and seen.f_bavail > 1 << 30 and seen.f_favail > 1 << 30
    inodes = 1 + sum(len(directories) + len(files) for _, directories, files in os.walk(os.path.dirname(directory)))
    expect_used(directory, (0, inodes), "before")
    put(f"{directory}/passing", os.urandom(8 * MIB))
    for number in range(100):
        put(f"{directory}/passing-{number}", b"")
    assert used(directory) == (2048, inodes + 101), f"8 MiB and 101 files make (0, {inodes}) {used(directory)}"
    for name in ["passing"] + [f"passing-{number}" for number in range(100)]:
        os.unlink(f"{directory}/{name}")
    expect_used(directory, (0, inodes), "after all was removed")


def everything(directory):
    """What stat says of all there is, but for the time of reading."""
    seen = {}
    for place, directories, files in os.walk(directory):
        for name in directories + files:
            path = f"{place}/{name}"
            at = os.lstat(path)
            seen[os.path.relpath(path, directory)] = [
                at.st_ino, at.st_mode, at.st_nlink, at.st_uid, at.st_gid, at.st_rdev, at.st_size, at.st_mtime_ns, at.st_ctime_ns]
    return seen


def make(directory, record):
    os.makedirs(directory)
    space(directory)
    blocks(directory)
    links(directory)
    times(directory)
    os.mknod(f"{directory}/device", stat.S_IFCHR | 0o600, os.makedev(250, 0xFFFFF))
    os.mkfifo(f"{directory}/fifo")
    os.symlink("x" * 4000, f"{directory}/symbolic")
    put(f"{directory}/" + "n" * 255, b"")
    for name in ("dense", "same-again", "punched", "sparse"):
        file = os.open(f"{directory}/{name}", os.O_RDONLY)
        os.fsync(file)
        os.close(file)
    check_all(directory)
    with open(record, "w") as file:
        json.dump(everything(directory), file)


def check_all(directory):
    check_blocks(directory)
    check_links(directory)
    check_times(directory)
    assert len(os.readlink(f"{directory}/symbolic")) == os.lstat(f"{directory}/symbolic").st_size == 4000


def check(directory, record, numbers="same-numbers"):
    check_all(directory)
    with open(record) as file:
        recorded = json.load(file)
    seen = everything(directory)
    assert seen.keys() == recorded.keys()
    skipped = 1 if numbers == "other-numbers" else 0
    for name, was in recorded.items():
        assert seen[name][skipped:] == was[skipped:], f"{name}: {was} became {seen[name]}"
        assert not skipped or seen[name][0] != was[0], f"{name} has the live file's number"
    print(f"{len(seen)} inodes are as they were")


if __name__ == "__main__":
    if sys.argv[1] == "deep":
        deep(sys.argv[2], int(sys.argv[3]))
    else:
        {"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
