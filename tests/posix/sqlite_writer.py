#!/usr/bin/env python3
"""A SQLite database that a process writes to until it is killed.

  sqlite_writer.py write DATABASE wal|delete RECORD   adds rows for ever; RECORD gets the number of each after its commit has returned
  sqlite_writer.py check DATABASE RECORD              the database is whole and has at least what RECORD says
"""
import sqlite3
import sys


def write(path, mode, record):
    database = sqlite3.connect(path, isolation_level=None)
    assert database.execute(f"PRAGMA journal_mode={mode}").fetchone()[0] == mode
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, text TEXT, digits BLOB)")
    number = database.execute("SELECT coalesce(max(number), 0) FROM rows").fetchone()[0]
    with open(record, "a") as told:
        while True:
            number += 1
            database.execute("BEGIN")
            database.execute("INSERT INTO rows VALUES (?, ?, randomblob(3000))", (number, f"row {number}"))
            database.execute("UPDATE rows SET text = text || '.' WHERE number = abs(random()) % ? + 1", (number,))
            database.execute("COMMIT")
            told.write(f"{number}\n")
            told.flush()


def check(path, record):
    with open(record) as told:
        acknowledged = int(told.read().split("\n")[-2])
    database = sqlite3.connect(path)
    found = database.execute("PRAGMA integrity_check").fetchall()
    assert found == [("ok",)], found
    count, last = database.execute("SELECT count(*), max(number) FROM rows").fetchone()
    assert count == last, f"{count} rows up to {last}"
    assert acknowledged <= last <= acknowledged + 1, f"{last} rows, {acknowledged} acknowledged"
    print(f"{count} rows, {acknowledged} acknowledged")


if __name__ == "__main__":
    {"write": write, "check": check}[sys.argv[1]](*sys.argv[2:])
