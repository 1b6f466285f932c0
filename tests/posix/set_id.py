#!/usr/bin/env python3
"""Every way of changing a file's contents clears set-user-id and set-group-id, unless it is root's, and takes the file's capabilities, whosever it is.

  set_id.py DIRECTORY UID GID     as root; the changes are made by this user
"""
import ctypes
import os
import stat
import struct
import sys

CAPABILITIES = "security.capability"
# Revision 2 of struct vfs_cap_data: effective, CAP_NET_BIND_SERVICE.
BIND_SERVICE = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)

LIBC = ctypes.CDLL(None, use_errno=True)
PUNCH_AND_KEEP = 3


def fallocate(file, mode):
    if LIBC.fallocate(file, mode, ctypes.c_long(0), ctypes.c_long(4096)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def copy(path, file):
    source = os.open(f"{os.path.dirname(path)}/source", os.O_RDONLY)
    assert os.copy_file_range(source, file, 8192, 0, 0) == 8192


WAYS = {
    "write": lambda path, file: os.pwrite(file, b"x", 10),
    "append": lambda path, file: os.write(os.open(path, os.O_WRONLY | os.O_APPEND), b"x"),
    "truncate": lambda path, file: os.truncate(path, 100),
    "ftruncate": lambda path, file: os.ftruncate(file, 50),
    "open with O_TRUNC": lambda path, file: os.open(path, os.O_WRONLY | os.O_TRUNC),
    "fallocate": lambda path, file: fallocate(file, 0),
    "punching": lambda path, file: fallocate(file, PUNCH_AND_KEEP),
    "copy_file_range": copy,
}


def by(uid, gid, way, path):
    """In a process that has no rights but the user's, and has the file open from before."""
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        way(path, os.open(path, os.O_RDWR))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the change failed"


def main(directory, uid, gid):
    with open(f"{directory}/source", "wb") as file:
        file.write(os.urandom(100000))
    for name, way in WAYS.items():
        for who, group, kept in ((uid, gid, False), (0, 0, True)):
            path = f"{directory}/tool"
            with open(path, "wb") as file:
                file.write(bytes(range(256)) * 64)
            os.chmod(path, 0o6777)
            # What was written before is no reason to take what is given now, nor to keep it at the
            # next change.
            os.setxattr(path, CAPABILITIES, BIND_SERVICE)
            assert os.getxattr(path, CAPABILITIES) == BIND_SERVICE
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o6777
            by(who, group, way, path)
            mode = stat.S_IMODE(os.stat(path).st_mode)
            assert mode == (0o6777 if kept else 0o777), f"{name} by user {who} leaves {mode:o}"
            assert CAPABILITIES not in os.listxattr(path), f"{name} by user {who} leaves capabilities"
            # What the kernel has in its cache is what the filesystem has.
            os.rename(path, path + ".new")
            fresh = os.open(path + ".new", os.O_RDONLY)
            assert stat.S_IMODE(os.fstat(fresh).st_mode) == mode
            os.close(fresh)
            os.unlink(path + ".new")
    # A change of owner clears them, whichever user makes it.
    path = f"{directory}/owned"
    open(path, "w").close()
    os.chmod(path, 0o6755)
    os.setxattr(path, CAPABILITIES, BIND_SERVICE)
    os.chown(path, uid, gid)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o755, "chown leaves set-id bits"
    assert CAPABILITIES not in os.listxattr(path), "chown leaves capabilities"
    print(f"{len(WAYS)} ways of changing a file clear its set-id bits and capabilities")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
