#!/usr/bin/env python3
"""A data set that changes like a database: files of 16 KiB pages, half of each page compressible.

pages.py make DIRECTORY MIB SEED     makes it
pages.py change DIRECTORY PERCENT SEED   rewrites that part of the pages, at random places
"""
import os
import random
import sys

PAGE = 16384
FILES = 4


def page(rng):
    return rng.randbytes(PAGE // 2) + bytes([rng.randrange(256)]) * (PAGE // 2)


def path(directory, number):
    return os.path.join(directory, f"table{number}.ibd")


def make(directory, mib, seed):
    rng = random.Random(seed)
    os.makedirs(directory, exist_ok=True)
    for number in range(FILES):
        with open(path(directory, number), "wb") as file:
            for _ in range(mib * 64 // FILES):
                file.write(page(rng))


def change(directory, percent, seed):
    rng = random.Random(seed)
    for number in range(FILES):
        with open(path(directory, number), "r+b") as file:
            pages = os.fstat(file.fileno()).st_size // PAGE
            for place in sorted(rng.sample(range(pages), max(1, pages * percent // 100))):
                file.seek(place * PAGE)
                file.write(page(rng))


if __name__ == "__main__":
    verb, directory, amount, seed = sys.argv[1:5]
    {"make": make, "change": change}[verb](directory, int(amount), int(seed))
