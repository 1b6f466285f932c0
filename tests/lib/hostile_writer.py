"""What a writer can do to make a daemon hold much for little: KIND PLACE PID MIB.

Fails if the daemon's anonymous memory goes beyond MIB meanwhile; leaves the most it was in PLACE/.peak.
"""

import errno
import os
import sys
import threading
import time

kind, place, pid, most = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
peak = 0
done = threading.Event()


def anonymous():
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) // 1024
    raise AssertionError("the daemon is gone")


def watch():
    global peak
    while not done.wait(0.02):
        peak = max(peak, anonymous())


def at(name):
    return os.path.join(place, name)


def scattered():
    """Small pieces with gaps between them: twice, so that the second time there is something below."""
    piece = os.urandom(512)
    for _ in range(2):
        file = os.open(at("scattered"), os.O_CREAT | os.O_WRONLY)
        for n in range(16384):
            os.pwrite(file, piece, n * 1024)
        os.fsync(file)
        os.close(file)


def pinned():
    """Large writes of which little is left."""
    block = os.urandom(1 << 20)
    for n in range(600):
        file = os.open(at(f"cut {n}"), os.O_CREAT | os.O_WRONLY)
        os.write(file, block)
        os.ftruncate(file, 2048)
        os.close(file)


def tiny():
    """Many files of a few bytes with attributes of their own."""
    value = os.urandom(2000)
    for n in range(4000):
        file = os.open(at(f"tiny {n}"), os.O_CREAT | os.O_WRONLY)
        os.write(file, b"x")
        os.setxattr(file, "user.much", value)
        os.close(file)


def renamed():
    """One name, taken again and again."""
    for n in range(8000):
        os.close(os.open(at("new"), os.O_CREAT | os.O_WRONLY))
        os.rename(at("new"), at("name"))
        if n % 100 == 0:
            os.setxattr(at("name"), "user.n", str(n).encode())


def seeking():
    """Data and holes in turn, each asked for."""
    apart, count = 64 * 1024, 8000
    file = os.open(at("seeking"), os.O_CREAT | os.O_RDWR)
    for n in range(count):
        os.pwrite(file, b"data", n * apart)
    for _ in range(2):
        found, offset = 0, 0
        while True:
            try:
                data = os.lseek(file, offset, os.SEEK_DATA)
            except OSError as error:
                assert error.errno == errno.ENXIO
                break
            found, offset = found + 1, os.lseek(file, data, os.SEEK_HOLE)
        assert found == count, f"{found} of {count}"
        os.fsync(file)
    os.close(file)


peak = anonymous()
watcher = threading.Thread(target=watch)
watcher.start()
began = time.monotonic()
try:
    {f.__name__: f for f in (scattered, pinned, tiny, renamed, seeking)}[kind]()
finally:
    done.set()
    watcher.join()
print(f"{kind}: {time.monotonic() - began:.1f} s, at most {peak} MiB")
with open(at(".peak"), "w", encoding="ascii") as file:
    file.write(str(peak))
assert peak <= most, f"{peak} MiB of anonymous memory, more than {most}"
