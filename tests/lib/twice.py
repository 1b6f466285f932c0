#!/usr/bin/env python3
"""Counts what two processes fetched, by the file `answers` of faulty_proxy.py.

    twice.py ANSWERS FIRST_LINE KILLED_LINE KILLED_AT

The first process made the requests of the lines from FIRST_LINE on, up to KILLED_LINE, and was
killed at KILLED_AT (seconds of the monotonic clock). The second made the later ones. Prints, in
bytes of data packs: what the first was sent, what was in flight at the kill, what the second was
sent, and what of that the first was sent before. In flight is what had not arrived as a whole half
a second before the kill: a process needs a moment to verify what arrived and to write it.
"""

import sys

SETTLED_SECONDS = 0.5


def read(lines):
    """Ranges of packs, each with the time of its end, or None."""
    spans = {}
    for line in lines:
        what, kind, count, when, path, span = line.split()
        if kind != "data" or "-" not in span:
            continue
        start = int(span.split("-")[0])
        key = (path, start, start + int(count))
        spans[key] = float(when) if what == "end" else spans.get(key)
    return spans


def common(one, others):
    path, start, end = one
    covered = set()
    for other_path, other_start, other_end in others:
        if other_path == path:
            covered.update(range(max(start, other_start) // 64, min(end, other_end) // 64))
    return len(covered) * 64


def main():
    answers, first, killed, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    with open(answers) as file:
        lines = file.read().splitlines()
    before, after = read(lines[first:killed]), read(lines[killed:])
    arrived = {key: end for key, end in before.items() if end and end < at - SETTLED_SECONDS}
    length = lambda spans: sum(end - start for _, start, end in spans)
    in_flight = length(before) - length(arrived)
    twice = sum(common(span, before) for span in after)
    print(length(before), in_flight, length(after), twice)


main()
