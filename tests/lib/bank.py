#!/usr/bin/env python3
"""Moves money between accounts of a database, one transaction after another, and keeps a record of what was committed; later checks that all of it is there.

    bank.py make MARIADB|POSTGRES PLACE             tables with ACCOUNTS accounts
    bank.py run MARIADB|POSTGRES PLACE RECORD       CLIENTS at the same time, until the server is gone
    bank.py check MARIADB|POSTGRES PLACE RECORD     exit code 0 if every committed transaction is there, and no half of one
    bank.py count RECORD                            how many transactions were committed

PLACE is the socket of MariaDB, or the directory of PostgreSQL's socket. A transaction takes an amount from one account, gives it to another one, and notes both in the table `ledger`. RECORD.ended appears once a client has ended. RECORD has a line `try NUMBER FROM TO AMOUNT` before the first statement, and `done NUMBER` after the answer to COMMIT. What a check has seen was committed, and is noted as done.
"""

import os
import random
import subprocess
import sys
import threading

ACCOUNTS = 40_000
CLIENTS = 4
OPENED_WITH = 1_000
TABLES = """
CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL, filler CHAR(200) NOT NULL);
CREATE TABLE ledger (number INT PRIMARY KEY, giver INT NOT NULL, taker INT NOT NULL, amount INT NOT NULL);
"""
ROWS = {
    "mariadb": "SELECT seq, {0}, SHA2(seq, 512) FROM seq_1_to_{1}",
    "postgres": "SELECT i, {0}, md5(i::text) FROM generate_series(1, {1}) i",
}


def client(kind, place):
    """The command line of the database's own client, which ends at the first error."""
    if kind == "mariadb":
        return ["mariadb", "--no-defaults", "--socket", place, "--user=root", "-N", "-B", "-n", "--unbuffered", "--skip-reconnect", "bank"]
    own = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
    return own + ["psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-F", "\t", "-h", place, "postgres"]


def ask(kind, place, statements):
    answer = subprocess.run(client(kind, place), input=statements, stdout=subprocess.PIPE, text=True, check=True)
    return [[int(value) for value in line.split("\t")] for line in answer.stdout.splitlines()]


class Record:
    """The transactions that were tried, and those that were committed."""

    def __init__(self, path):
        self.path = path
        self.tried, self.done = {}, set()
        if os.path.exists(path):
            with open(path, encoding="ascii") as file:
                for line in file:
                    word, *numbers = line.split()
                    if word == "try":
                        self.tried[int(numbers[0])] = [int(number) for number in numbers[1:]]
                    else:
                        self.done.add(int(numbers[0]))


def run(kind, place, path):
    first = max(Record(path).tried, default=0) + 1
    lock, committed = threading.Lock(), [0]
    with open(path, "a", encoding="ascii") as file:

        def note(line):
            with lock:
                file.write(line + "\n")
                file.flush()

        def work(lane):
            generator = random.Random(first * CLIENTS + lane)
            program = subprocess.Popen(client(kind, place), bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            number = first + lane
            try:
                while True:
                    # Accounts are changed in one order, so that no two clients wait for each other.
                    giver, taker = sorted(generator.sample(range(1, ACCOUNTS + 1), 2))
                    amount = generator.randint(-50, 50)
                    note(f"try {number} {giver} {taker} {amount}")
                    program.stdin.write(
                        f"BEGIN; UPDATE accounts SET balance = balance - {amount} WHERE id = {giver};"
                        f" UPDATE accounts SET balance = balance + {amount} WHERE id = {taker};"
                        f" INSERT INTO ledger VALUES ({number}, {giver}, {taker}, {amount}); COMMIT;\n"
                        f"SELECT {number};\n".encode()
                    )
                    if program.stdout.readline().strip() != str(number).encode():
                        return
                    note(f"done {number}")
                    committed[0] += 1
                    number += CLIENTS
            except BrokenPipeError:
                return
            finally:
                # Before the server is gone, none ends by itself.
                open(path + ".ended", "a", encoding="ascii").close()
                program.kill()
                program.wait()

        lanes = [threading.Thread(target=work, args=(lane,)) for lane in range(CLIENTS)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    print(f"{committed[0]} transactions were committed")


def check(kind, place, path):
    record = Record(path)
    wrong = []
    ledger = {row[0]: row[1:] for row in ask(kind, place, "SELECT number, giver, taker, amount FROM ledger;\n")}
    for number in sorted(record.done - ledger.keys()):
        wrong.append(f"transaction {number} was committed and is not there")
    balances = {number: OPENED_WITH for number in range(1, ACCOUNTS + 1)}
    for number, row in ledger.items():
        if record.tried.get(number) != row:
            wrong.append(f"transaction {number} is {row}, tried was {record.tried.get(number)}")
        balances[row[0]] -= row[2]
        balances[row[1]] += row[2]
    found = dict(ask(kind, place, "SELECT id, balance FROM accounts;\n"))
    for account in sorted(balances.keys() | found.keys()):
        if balances.get(account) != found.get(account):
            wrong.append(f"account {account} has {found.get(account)}, not {balances.get(account)}")
    for line in wrong[:10]:
        print(line)
    if wrong:
        sys.exit(f"{len(wrong)} things are wrong")
    with open(path, "a", encoding="ascii") as file:
        file.writelines(f"done {number}\n" for number in sorted(ledger.keys() - record.done))
    print(f"{len(ledger)} transactions are there, of which {len(record.done)} were known to be committed")


def main():
    what, *rest = sys.argv[1:]
    if what == "count":
        print(len(Record(rest[0]).done))
    elif what == "make":
        kind, place = rest
        rows = ROWS[kind].format(OPENED_WITH, ACCOUNTS)
        ask(kind, place, f"{TABLES} INSERT INTO accounts {rows};\n")
    else:
        {"run": run, "check": check}[what](*rest)


main()
