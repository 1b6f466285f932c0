#!/usr/bin/env python3
"""Handles of name_to_handle_at(2), and other calls that are about a file and not about its name.

  handles.py keep FILE...           prints a handle of each
  handles.py open MOUNT HANDLE...   opens them in whatever is mounted there now; prints their contents
"""
import ctypes
import os
import struct
import sys

AT_FDCWD = -100
LIBC = ctypes.CDLL(None, use_errno=True)


def check(result, what):
    if result < 0:
        number = ctypes.get_errno()
        sys.exit(f"{what}: {os.strerror(number)}")
    return result


def keep(path):
    space = 128
    handle = ctypes.create_string_buffer(struct.pack("<Ii", space, 0), 8 + space)
    mount = ctypes.c_int()
    check(LIBC.name_to_handle_at(AT_FDCWD, path.encode(), handle, ctypes.byref(mount), 0), path)
    length, _ = struct.unpack_from("<Ii", handle.raw)
    print(handle.raw[:8 + length].hex())


def reopen(mount, handle):
    directory = os.open(mount, os.O_RDONLY)
    buffer = ctypes.create_string_buffer(bytes.fromhex(handle))
    file = check(LIBC.open_by_handle_at(directory, buffer, os.O_RDONLY), handle)
    sys.stdout.write(os.read(file, 4096).decode())


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        for name in sys.argv[2:]:
            keep(name)
    else:
        for kept in sys.argv[3:]:
            reopen(sys.argv[2], kept)
