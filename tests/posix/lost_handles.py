#!/usr/bin/env python3
"""What processes can do through what they had open when a mount lost something.

  lost_handles.py DIRECTORY     reads a line from its input before each step:
    open    opens and writes what will be lost, and prints "ready"
    lost    to be asked once the loss is acknowledged: all of it must fail, and print "done"
"""
import errno
import mmap
import os
import sys

PAGE = mmap.PAGESIZE
COMMITTED = b"c" * (3 * PAGE)


def fails(what, call):
    try:
        call()
    except OSError as error:
        assert error.errno == errno.EIO, f"{what}: {error}"
        return
    raise AssertionError(f"{what} succeeds")


def content(path):
    with open(path, "rb") as file:
        return file.read()


def opened(directory):
    file = os.open(f"{directory}/written", os.O_RDWR)
    os.close(os.dup(file))
    # No close and no sync follows: a journal would keep it.
    os.pwrite(file, b"l" * PAGE, 0)
    path = f"{directory}/mapped"
    mapped = os.open(path, os.O_RDWR)
    mapping = mmap.mmap(mapped, len(COMMITTED))
    os.pwrite(mapped, b"l" * PAGE, 0)
    # The kernel alone knows of this page.
    mapping[PAGE:2 * PAGE] = b"l" * PAGE
    names = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir(f"{directory}/new")
    kept = os.open(f"{directory}/kept", os.O_RDWR)
    return file, mapped, mapping, names, kept


def lost(directory, file, mapped, mapping, names, kept):
    for _ in range(2):
        fails("write", lambda: os.pwrite(file, b"more", PAGE))
        fails("fsync", lambda: os.fsync(file))
        fails("ftruncate", lambda: os.ftruncate(file, 10))
        fails("close of a duplicate", lambda: os.close(os.dup(file)))
        fails("fsync of a directory", lambda: os.fsync(names))
        os.pwrite(kept, b"more", 0)
        os.fsync(kept)
        os.close(os.dup(kept))
    assert content(f"{directory}/written") == COMMITTED, "not as it was committed"
    # The mapping shows the file, and what is stored through it goes nowhere.
    assert mapping[:] == COMMITTED, "the kernel shows lost pages"
    # The kernel has an error of its own to tell, of the page that it could not write.
    fails("close of a duplicate", lambda: os.close(os.dup(mapped)))
    assert content(f"{directory}/mapped") == COMMITTED
    mapping[2 * PAGE:] = b"m" * PAGE
    fails("msync", lambda: mapping.flush(2 * PAGE, PAGE))
    fails("close", lambda: os.close(mapped))
    mapping.close()
    fails("close", lambda: os.close(file))
    # Who opens them now knows what they hold.
    new = os.open(f"{directory}/mapped", os.O_RDWR)
    mapping = mmap.mmap(new, len(COMMITTED))
    mapping[:4] = b"news"
    mapping.flush()
    os.fsync(new)
    os.close(new)
    mapping.close()
    names = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(names)


def main(directory):
    state = None
    for line in sys.stdin:
        if line == "open\n":
            state = opened(directory)
            print("ready", flush=True)
        else:
            lost(directory, *state)
            print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
