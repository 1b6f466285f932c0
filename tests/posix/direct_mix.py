#!/usr/bin/env python3
"""Readers through the page cache always see what asynchronous direct writes have completed.

  direct_mix.py DIRECTORY COUNT     writes blocks with O_DIRECT, COUNT by libaio's calls and as many by io_uring

Buffered reads of the block run while each write is under way; a read that begins after its completion
must return it, through the page cache, through a mapping and directly.
"""
import ctypes
import mmap
import os
import struct
import sys
import threading

SYS_IO_SETUP, SYS_IO_GETEVENTS, SYS_IO_SUBMIT = 206, 208, 209
SYS_IO_URING_SETUP, SYS_IO_URING_ENTER = 425, 426
IOCB_CMD_PWRITE, IORING_OP_WRITE, IORING_ENTER_GETEVENTS = 1, 23, 1
BLOCK = 1 << 20
BLOCKS = 8

LIBC = ctypes.CDLL(None, use_errno=True)


def call(number, *arguments):
    result = LIBC.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return result


class Queue:
    def __init__(self):
        self.context = ctypes.c_ulong(0)
        call(SYS_IO_SETUP, 64, ctypes.byref(self.context))

    def submit(self, file, buffer, length, offset):
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        block = struct.pack("<QIIHhIQQqQII", 0, 0, 0, IOCB_CMD_PWRITE, 0, file, address, length, offset, 0, 0, 0)
        self.request = ctypes.create_string_buffer(block, 64)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self.request))
        assert call(SYS_IO_SUBMIT, self.context, 1, pointers) == 1

    def wait(self):
        event = ctypes.create_string_buffer(32)
        assert call(SYS_IO_GETEVENTS, self.context, 1, 1, event, None) == 1
        return struct.unpack_from("<QQqq", event.raw)[2]


class Ring:
    """One request at a time through io_uring."""

    def __init__(self):
        parameters = ctypes.create_string_buffer(120)
        self.file = call(SYS_IO_URING_SETUP, 4, parameters)
        entries, completions = struct.unpack_from("<2I", parameters.raw)
        _, self.tail, self.mask, _, _, _, self.array = struct.unpack_from("<7I", parameters.raw, 40)
        self.done, _, self.done_mask, _, _, self.events = struct.unpack_from("<6I", parameters.raw, 80)
        size = max(self.array + entries * 4, self.events + completions * 16)
        self.ring = mmap.mmap(self.file, size)
        self.requests = mmap.mmap(self.file, entries * 64, offset=0x10000000)

    def number(self, at, *value):
        if value:
            struct.pack_into("<I", self.ring, at, value[0] & 0xFFFFFFFF)
        return struct.unpack_from("<I", self.ring, at)[0]

    def submit(self, file, buffer, length, offset):
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        place = self.number(self.tail) & self.number(self.mask)
        struct.pack_into("<BBHiQQIIQ24x", self.requests, place * 64, IORING_OP_WRITE, 0, 0, file, offset, address, length, 0, 0)
        self.number(self.array + place * 4, place)
        self.number(self.tail, self.number(self.tail) + 1)
        assert call(SYS_IO_URING_ENTER, self.file, 1, 0, 0, None, 0) == 1

    def wait(self):
        call(SYS_IO_URING_ENTER, self.file, 0, 1, IORING_ENTER_GETEVENTS, None, 0)
        head = self.number(self.done)
        place = self.events + (head & self.number(self.done_mask)) * 16
        self.number(self.done, head + 1)
        return struct.unpack_from("<i", self.ring, place + 8)[0]


def queues():
    """What this kernel has: io_uring may be forbidden."""
    try:
        return [Queue(), Ring()]
    except OSError as error:
        print(f"without io_uring: {error}")
        return [Queue()]


def mix(directory, how, queue, count):
    path = f"{directory}/mixed"
    with open(path, "wb") as file:
        file.write(bytes(BLOCK * BLOCKS))
    writing = os.open(path, how | os.O_DIRECT)
    direct, cached = os.open(path, os.O_RDONLY | os.O_DIRECT), os.open(path, os.O_RDONLY)
    mapping = mmap.mmap(cached, BLOCK * BLOCKS, prot=mmap.PROT_READ)
    buffer = mmap.mmap(-1, BLOCK)
    ending = threading.Event()
    at = [0]

    def read_on():
        file = os.open(path, os.O_RDONLY)
        while not ending.is_set():
            for offset in range(at[0], at[0] + BLOCK, 16384):
                os.pread(file, 16384, offset)
                mapping[offset]

    readers = [threading.Thread(target=read_on) for _ in range(2)]
    for reader in readers:
        reader.start()
    stale = [0, 0, 0]
    try:
        for turn in range(count):
            wanted = bytes([turn % 251 + 1]) * BLOCK
            buffer[:] = wanted
            at[0] = turn % BLOCKS * BLOCK
            queue.submit(writing, buffer, BLOCK, at[0])
            assert queue.wait() == BLOCK
            seen = os.pread(cached, BLOCK, at[0]), mapping[at[0]:at[0] + BLOCK]
            os.preadv(direct, [buffer], at[0])
            for way, read in enumerate((*seen, buffer[:])):
                stale[way] += read != wanted
    finally:
        ending.set()
        for reader in readers:
            reader.join()
    assert not any(stale), f"of {count} writes some were read as what was there before: {stale} (cached, mapped, direct)"
    for file in writing, direct, cached:
        os.close(file)
    mapping.close()


def main(directory, count):
    # A file that is opened for writing only first is bkfs's to take past the page cache.
    for queue in queues():
        for how in os.O_RDWR, os.O_WRONLY:
            mix(directory, how, queue, count)
            print(f"{count} direct writes by {type(queue).__name__} were seen by all readers")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
