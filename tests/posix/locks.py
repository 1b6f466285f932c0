#!/usr/bin/env python3
"""Advisory locks of the three kinds between processes: they exclude, they are told apart, and they end with their holder.

  locks.py DIRECTORY ROUNDS

Exit code 0 only if nothing wrong was seen.
"""
import ctypes
import errno
import fcntl
import multiprocessing
import os
import signal
import struct
import sys

# struct flock of 64-bit Linux, and the commands of locks that belong to open files (fcntl(2)).
FLOCK = struct.Struct("hhqqi4x")
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38


def request(kind, start=0, length=0):
    return FLOCK.pack(kind, os.SEEK_SET, start, length, 0)


def whole_file(how, file, kind, wait):
    """Takes or gives back a lock on all of a file."""
    if how == "flock":
        operation = {fcntl.F_WRLCK: fcntl.LOCK_EX, fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_UNLCK: fcntl.LOCK_UN}[kind]
        fcntl.flock(file, operation | (0 if wait else fcntl.LOCK_NB))
    elif how == "posix":
        fcntl.fcntl(file, fcntl.F_SETLKW if wait else fcntl.F_SETLK, request(kind))
    else:
        fcntl.fcntl(file, F_OFD_SETLKW if wait else F_OFD_SETLK, request(kind))


def is_refused(how, file, kind):
    try:
        whole_file(how, file, kind, False)
    except OSError as error:
        assert error.errno in (errno.EAGAIN, errno.EACCES), error
        return True
    whole_file(how, file, fcntl.F_UNLCK, False)
    return False


def count(how, path, rounds):
    file = os.open(path, os.O_RDWR)
    for _ in range(rounds):
        whole_file(how, file, fcntl.F_WRLCK, True)
        number = int(os.pread(file, 20, 0))
        os.pwrite(file, f"{number + 1:20d}".encode(), 0)
        whole_file(how, file, fcntl.F_UNLCK, True)


def excludes(how, directory, rounds):
    """What is read and written under a lock is never lost."""
    path = f"{directory}/counter-{how}"
    with open(path, "w") as file:
        file.write(f"{0:20d}")
    workers = [multiprocessing.Process(target=count, args=(how, path, rounds)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    with open(path) as file:
        number = int(file.read())
    assert number == 4 * rounds, f"{how}: {number} instead of {4 * rounds}"


def hold(how, path, kind, ready):
    file = os.open(path, os.O_RDWR)
    whole_file(how, file, kind, True)
    ready.set()
    signal.pause()


def ends_with_its_holder(how, directory):
    """A killed holder's lock is free for the next that waits; shared ones go together."""
    path = f"{directory}/held-{how}"
    open(path, "w").close()
    file = os.open(path, os.O_RDWR)
    for kind, other in ((fcntl.F_WRLCK, fcntl.F_RDLCK), (fcntl.F_RDLCK, fcntl.F_WRLCK)):
        ready = multiprocessing.Event()
        holder = multiprocessing.Process(target=hold, args=(how, path, kind, ready))
        holder.start()
        assert ready.wait(30)
        assert is_refused(how, file, other), f"{how}: not excluded"
        assert is_refused(how, file, fcntl.F_WRLCK)
        if kind == fcntl.F_RDLCK:
            assert not is_refused(how, file, fcntl.F_RDLCK), f"{how}: shared locks exclude each other"
        os.kill(holder.pid, signal.SIGKILL)
        whole_file(how, file, fcntl.F_WRLCK, True)
        whole_file(how, file, fcntl.F_UNLCK, True)
        holder.join()
    os.close(file)


def in_child(what):
    """Whether `what` is true in another process."""
    child = os.fork()
    if child == 0:
        os._exit(0 if what() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def ranges_are_apart(directory):
    """POSIX locks: ranges, upgrading, who holds it, and the rule that any close gives all back."""
    path = f"{directory}/ranges"
    open(path, "w").close()
    file = os.open(path, os.O_RDWR)
    fcntl.fcntl(file, fcntl.F_SETLK, request(fcntl.F_WRLCK, 100, 50))
    fcntl.fcntl(file, fcntl.F_SETLK, request(fcntl.F_UNLCK, 120, 10))

    def other(start, length, command=fcntl.F_GETLK):
        own = os.open(path, os.O_RDWR)
        kind, _, begins, reaches, pid = FLOCK.unpack(fcntl.fcntl(own, command, request(fcntl.F_WRLCK, start, length)))
        return (kind, begins, reaches, pid)

    me = os.getpid()
    assert in_child(lambda: other(0, 100)[0] == fcntl.F_UNLCK)
    assert in_child(lambda: other(0, 101) == (fcntl.F_WRLCK, 100, 20, me)), "who holds a range is not told"
    assert in_child(lambda: other(120, 10)[0] == fcntl.F_UNLCK), "unlocking the middle keeps it"
    assert in_child(lambda: other(149, 0) == (fcntl.F_WRLCK, 130, 20, me))
    assert in_child(lambda: other(150, 0)[0] == fcntl.F_UNLCK)
    os.close(os.open(path, os.O_RDONLY))
    assert in_child(lambda: other(0, 0)[0] == fcntl.F_UNLCK), "closing any descriptor gives POSIX locks back"
    os.close(file)


def belongs_to_the_open_file(how, directory):
    """flock and OFD locks: shared by duplicates and children, apart for a second open, kept until the last duplicate is closed."""
    path = f"{directory}/opened-{how}"
    open(path, "w").close()
    file = os.open(path, os.O_RDWR)
    second = os.open(path, os.O_RDWR)
    whole_file(how, file, fcntl.F_WRLCK, False)
    assert is_refused(how, second, fcntl.F_WRLCK), f"{how}: one process, two opens: not excluded"
    copy = os.dup(file)
    os.close(file)
    assert is_refused(how, second, fcntl.F_WRLCK), f"{how}: given back by closing one of two duplicates"
    os.close(copy)
    assert not is_refused(how, second, fcntl.F_WRLCK), f"{how}: kept after the last close"
    os.close(second)


def main(directory, rounds):
    for how in ("flock", "posix", "ofd"):
        excludes(how, directory, rounds)
        ends_with_its_holder(how, directory)
    for how in ("flock", "ofd"):
        belongs_to_the_open_file(how, directory)
    ranges_are_apart(directory)
    print(f"4 processes counted to {4 * rounds} under each kind of lock")


if __name__ == "__main__":
    assert ctypes.sizeof(ctypes.c_long) == 8
    main(sys.argv[1], int(sys.argv[2]))
