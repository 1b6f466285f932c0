#!/usr/bin/env python3
"""Writers that wait for each other, and snapshots in between: each snapshot must show a moment that there was.

  ordered.py write MOUNT SNAPSHOTS RECORD   works in MOUNT/ordered, takes snapshots meanwhile, writes to RECORD what each must hold
  ordered.py check MOUNT RECORD             looks into MOUNT/.snapshots, on any machine

Round i: one process writes i to the file a, the next to b, the next makes the name i and removes i - 1, the next replaces the file r by one that says i. So at any
moment a >= b >= names >= r >= a - 1.
"""
import json
import multiprocessing
import os
import sys
import time

# Whole pages, and less than a request: the kernel hands over a write(2) in parts if it is larger,
# or begins in a page that is not cached.
BLOCK, AT = 96 * 1024, 12288
RACERS = 4


def write_block(file, number):
    """Seen whole or not at all."""
    data = number.to_bytes(8, "little") * (BLOCK // 8)
    assert os.pwrite(file, data, AT) == len(data)


def read_block(path):
    with open(path, "rb") as file:
        file.seek(AT)
        data = file.read(BLOCK)
    number = int.from_bytes(data[:8], "little")
    assert data == data[:8] * (BLOCK // 8), f"{path} shows half a write"
    return number


def newest(path):
    """The number of a write that has begun. A read during a write may be torn between pages, as on ext4 and tmpfs, so only the first is looked at."""
    with open(path, "rb") as file:
        file.seek(AT)
        return int.from_bytes(file.read(8), "little")


def step(place, racer, number):
    if racer < 2:
        file = os.open(f"{place}/{'ab'[racer]}", os.O_WRONLY)
        write_block(file, number)
        os.close(file)
    elif racer == 2:
        os.close(os.open(f"{place}/names/{number}", os.O_CREAT | os.O_EXCL))
        os.unlink(f"{place}/names/{number - 1}")
    else:
        with open(f"{place}/r.new", "w") as file:
            file.write(str(number))
        os.rename(f"{place}/r.new", f"{place}/r")


def race(place, racer, take, give, done):
    """Does its step when the token comes, and hands it on; the last hands on the next number."""
    while (number := int.from_bytes(os.read(take, 8), "little")) != 0:
        step(place, racer, number)
        last = racer == RACERS - 1
        if last and done.is_set():
            number = 0
        os.write(give, (number + 1 if last and number else number).to_bytes(8, "little"))
        if number == 0:
            return
    os.write(give, bytes(8))


def state(place):
    names = sorted(int(name) for name in os.listdir(f"{place}/names"))
    assert 1 <= len(names) <= 2 and names[-1] - names[0] == len(names) - 1, f"names {names}"
    with open(f"{place}/r") as file:
        replaced = int(file.read())
    return [read_block(f"{place}/a"), read_block(f"{place}/b"), names[-1], replaced]


def write(mount, snapshots, record):
    place = f"{mount}/ordered"
    os.makedirs(f"{place}/names")
    for name in "ab":
        file = os.open(f"{place}/{name}", os.O_CREAT | os.O_WRONLY)
        write_block(file, 1)
        os.close(file)
    open(f"{place}/names/1", "w").close()
    with open(f"{place}/r", "w") as file:
        file.write("1")
    pipes = [os.pipe() for _ in range(RACERS)]
    done = multiprocessing.Event()
    # Daemons, so that they do not outlive a failure here.
    racers = [multiprocessing.Process(target=race, args=(place, racer, pipes[racer][0], pipes[(racer + 1) % RACERS][1], done), daemon=True) for racer in range(RACERS)]
    for racer in racers:
        racer.start()
    os.write(pipes[0][1], (2).to_bytes(8, "little"))
    taken, after = {}, 1
    for number in range(snapshots):
        # Each snapshot is of other moments than the one before. What b has begun to take, a has
        # taken.
        while (before := newest(f"{place}/b")) <= after:
            assert all(racer.is_alive() for racer in racers), "a writer is gone"
            time.sleep(0.001)
        os.mkdir(f"{mount}/.snapshots/moment-{number}")
        after = newest(f"{place}/a")
        taken[f"moment-{number}"] = [before, after]
    done.set()
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0, f"a writer ended with {racer.exitcode}"
    with open(record, "w") as file:
        json.dump(taken, file)
    rounds = state(place)
    assert len(set(rounds)) == 1, f"in the end: {rounds}"
    print(f"{rounds[0]} rounds, {snapshots} snapshots")


def check(mount, record):
    with open(record) as file:
        taken = json.load(file)
    for name, (before, after) in taken.items():
        first, *rest = state(f"{mount}/.snapshots/{name}/ordered")
        marks = [first, *rest, first - 1]
        assert marks == sorted(marks, reverse=True), f"{name} is no moment that there was: {marks[:-1]}"
        assert before <= first <= after, f"{name} holds {first}, not {before} to {after}"
    print(f"{len(taken)} snapshots, each a moment that there was")


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        check(sys.argv[2], sys.argv[3])
