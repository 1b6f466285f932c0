#!/usr/bin/env python3
"""Holds docs/json.md to what commands print: json_page.py PAGE SECTION FILE...

Each FILE has the output of a command, an object a line. Every field in them is in the table of the
section, with its type. Every field of the table that is not marked with ? is in every object that
could have it.
"""
import json
import re
import sys

TIME = re.compile(r"\d{4}(-\d\d){2}T\d\d(:\d\d){2}(\.\d+)?Z")
TYPES = {str: "text", bool: "boolean", int: "number", float: "number", list: "list", dict: "object"}


def table(page, section):
    """Returns the fields of a section: name to types and whether it may be absent."""
    fields, is_here = {}, False
    for line in open(page, encoding="utf-8"):
        if line.startswith("## "):
            is_here = section in line[3:].strip().split(", ")
        row = re.match(r"\| `([^`]+)` \| ([^|]+) \|", line) if is_here else None
        if row:
            name = row[1].rstrip("?")
            assert name not in fields, f"{section}: {name} stands there twice"
            fields[name] = (row[2].strip().split(" or "), row[1].endswith("?"))
    assert fields, f"{page} has no section {section}"
    return fields


def fits(value, types):
    """Returns whether a value has one of these types."""
    if value is None:
        return "null" in types
    if isinstance(value, str) and "time" in types:
        return TIME.fullmatch(value) is not None
    return TYPES[type(value)] in types


def compare(value, name, fields, wrong):
    """Compares a value and all below it with the fields."""
    if name:
        if name not in fields:
            wrong.add(f"{name} is not on the page")
            return
        if not fits(value, fields[name][0]):
            wrong.add(f"{name} is {value!r}, and not {' or '.join(fields[name][0])}")
    below = {field for field in fields if field.startswith(f"{name}." if name else "")}
    if isinstance(value, dict) and below:
        prefix = f"{name}." if name else ""
        for key in value:
            compare(value[key], prefix + key, fields, wrong)
        for field in below:
            own = field[len(prefix):]
            if not re.search(r"[.\[]", own) and not fields[field][1] and own not in value:
                wrong.add(f"{field} is absent")
    elif isinstance(value, list):
        for item in value:
            compare(item, f"{name}[]", fields, wrong)


def main():
    page, section, *files = sys.argv[1:]
    fields, wrong, count = table(page, section), set(), 0
    for file in files:
        for line in open(file, encoding="utf-8"):
            value = json.loads(line)
            # A command that fails says so last.
            if section != "Failure" and value.keys() == {"error", "hint", "code"}:
                continue
            count += 1
            compare(value, "", fields, wrong)
    for text in sorted(wrong):
        print(f"{section}: {text}")
    if not count:
        print(f"{section}: nothing was printed")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
