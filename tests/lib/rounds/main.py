#!/usr/bin/env python3
"""One round of the suite `proxy`: lives of a volume on a store that fails, and what is left of it.

    main.py plan SEED                 says what a round does
    main.py round SEED PLACE          runs it; 0: all is well, 1: not
    main.py sabotage NAME PLACE       a round with a fault that must be found: 0 if it was

PLACE/faults is the directory of the faulty proxy that AWS_ENDPOINT_URL names. $BKFS_BIN is the program.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import oracle
import plan as plans
from mounts import PATIENCE, WORKERS, Machine, Mount, Running, Wrong, is_mounted, now, wait_until


class Round:
    def __init__(self, plan, place, sabotage=()):
        self.plan, self.place, self.sabotage = plan, Path(place), list(sabotage)
        self.url = f"s3://{os.environ['BKFS_TEST_BUCKET']}/round-{plan['seed']}-{os.getpid()}"
        self.machines = {name: Machine(self.place, name) for name in "abc"}
        self.mounts, self.remarks = [], []
        # Lives of which a machine's spool has more than the bucket:
        # (machine, history, floors, what).
        self.owed = []
        # (name, when it began and was done, whether it was acknowledged, history)
        self.snapshots = []

    # --- the store

    def faults(self, strikes):
        path = self.place / "faults/rules"
        new = path.with_suffix(".new")
        new.write_text(
            json.dumps({"seed": self.plan["seed"], "strikes": strikes} if strikes else {})
        )
        new.rename(path)

    def held(self):
        path = self.place / "faults/held"
        words = path.read_text().split() if path.exists() else []
        return words.count("begin") - words.count("end")

    def struck(self):
        path = self.place / "faults/struck"
        count = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            method, kind, what = line.split()[:3]
            count[f"{what}:{method}:{kind}"] = count.get(f"{what}:{method}:{kind}", 0) + 1
        return count

    # --- a round

    def run(self):
        first = self.machines["a"]
        self.faults([])
        first.must("init", "--no-encryption", self.url)
        mount, running = None, None
        bases = [oracle.Tree() for _ in range(WORKERS)]
        steal = False
        for number, life in enumerate(self.plan["lives"]):
            machine = self.machines[life["machine"]]
            if number == 0:
                self.prepare(machine)
            mount = self.mount(machine, life, steal, running)
            if running:
                bases = self.judge_life(running, mount)
            running = Running(self, number, life, mount, bases)
            self.live(running)
            if life["next"] == "same-without-spool":
                machine.wipe_spool()
            steal = life["next"] == "other"
        last = self.plan["lives"][-1]
        machine = (
            self.machines[last["machine"]]
            if not steal
            else self.machines["b" if last["machine"] == "a" else "a"]
        )
        mount = self.mount(machine, None, steal, running)
        trees = self.judge_life(running, mount)
        self.finish(machine, mount, trees)

    def prepare(self, machine):
        mount = Mount(self, machine, {})
        if not mount.wait(PATIENCE):
            raise Wrong(f"no mount: {mount.said()}")
        for number in range(WORKERS):
            (mount.place / f"w{number}").mkdir()
        machine.must("umount", mount.place)
        mount.daemon.wait(PATIENCE)

    def mount(self, machine, life, steal, before):
        """The next mount. Under faults it may fail; of an honest store never."""
        options = life["options"] if life else {"memory": "128M"}
        if before and before.life["next_is_killed_after"]:
            killed = Mount(self, machine, options, steal)
            time.sleep(before.life["next_is_killed_after"])
            killed.kill()
        is_taken = before and before.life["end"] == "steal"
        if is_taken or (life and life["mounts_under_faults"]):
            # A volume is taken over under the faults that its holder has.
            if not is_taken:
                self.faults(life["strikes"])
            mount = Mount(self, machine, options, steal)
            came_up = mount.wait(int(options.get("timeout", 60)) * 4 + PATIENCE)
            self.faults([])
            if came_up:
                return mount
            self.remarks.append("a mount failed under faults")
            mount.detach()
        mount = Mount(self, machine, options, steal)
        if not mount.wait(PATIENCE):
            raise Wrong(f"NO MOUNT of an honest store: {mount.said()[-1500:]}")
        return mount

    def live(self, running):
        life = running.life
        self.faults(life["strikes"])
        running.start()
        time.sleep(life["seconds"])
        if not life["is_busy_at_end"] and life["end"] not in ("quiet-kill", "outage-kill"):
            running.stop_workers()
        getattr(self, "end_by_" + life["end"].replace("-", "_"))(running)

    # --- how lives end

    def end_by_kill(self, running):
        running.mount.kill()
        running.wait_for_workers()
        self.ended(running)

    def end_by_quiet_kill(self, running):
        """After a while of an honest store, all that was closed is in the bucket."""
        running.stop_workers()
        closed = now()
        self.faults([])
        wait_until(
            60,
            lambda: running.mount.status().get("store", {}).get("answers", True),
            "the store is honest, and not well again",
        )
        time.sleep(4)
        if (
            running.mount.status().get("failure") is None
            and running.life["options"]["close"] != "async"
        ):
            running.publish(closed, "bucket", "a quiet while after the last close")
        self.end_by_kill(running)

    def end_by_outage_kill(self, running):
        """In a long silence the spool is enough for close, and what it keeps is named there soon."""
        self.faults([{"what": "stall", "seconds": 40}])
        time.sleep(11)
        running.stop_workers()
        closed = now()
        time.sleep(6)
        running.publish(closed, "machine", "the last close in an outage")
        running.mount.kill()
        running.wait_for_workers()
        self.ended(running)

    def end_by_term(self, running):
        mount, life = running.mount, running.life
        was_poisoned = mount.status().get("failure")
        told = now()
        mount.daemon.send_signal(signal.SIGTERM)
        limit = int(life["options"]["drain"]) + 10
        try:
            mount.daemon.wait(limit + 15)
        except subprocess.TimeoutExpired as error:
            raise Wrong(f"HANG: told to end, and not gone {limit + 15} s later") from error
        code, said = mount.daemon.returncode, mount.said()
        mount.detach()
        running.wait_for_workers()
        is_lost = (
            "lost with this mount" in said or was_poisoned or "not in the bucket, and lost" in said
        )
        if code == 0:
            running.vouched.append((told, "bucket", "SIGTERM, to which the daemon ended with 0"))
        elif not is_lost and life["options"]["spool_size"] != "0":
            running.vouched.append(
                (told, "machine", f"SIGTERM, to which the daemon ended with {code}")
            )
        self.ended(running, f"ended with {code}{', with losses' if is_lost else ''}")

    def end_by_umount(self, running):
        mount = running.mount
        # A process in a mount keeps nothing back here: its calls are done before.
        running.stop_workers()
        for _ in range(4):
            began = now()
            code, said = mount.machine.run("umount", mount.place, limit=running.patience())
            if code == 0:
                running.vouched.append((began, "bucket", "umount"))
                mount.daemon.wait(PATIENCE)
                return self.ended(running)
            if not is_mounted(mount.place):
                raise Wrong(f"umount ended with {code} and unmounted: {said}")
            if mount.status().get("failure"):
                return self.end_poisoned(running)
            self.faults([])
        raise Wrong(
            f"umount fails on an honest store, and the mount does not say why: {said}"
            f" {mount.status()}"
        )

    def end_poisoned(self, running):
        """A mount that cannot store something refuses, and what was acknowledged is there."""
        mount, choice = running.mount, running.life["poisoned"]
        self.faults([])
        failure = mount.status()["failure"]
        try:
            (mount.place / "w0/refused").mkdir()
            raise Wrong("a poisoned mount takes a change")
        except OSError:
            pass
        if choice == "acknowledge":
            code, said = mount.machine.run("status", "--acknowledge", mount.place)
            if code == 0:
                trees = self.judge(running, mount, "after --acknowledge", "machine")
                mount.machine.must("umount", mount.place)
                mount.daemon.wait(PATIENCE)
                self.ended(running, f"poisoned, acknowledged: {failure}")
                running.must_equal = trees
                return
            self.remarks.append(f"--acknowledge ended with {code}: {said.strip()[-200:]}")
        if choice == "discard":
            mount.machine.run("umount", "--discard", mount.place)
        mount.kill()
        self.ended(running, f"poisoned, {choice}: {failure}")

    def end_by_steal(self, running):
        """Nothing here: the next mount takes the volume, and `end_fenced` ends this one."""

    def end_fenced(self, running):
        """The one taken over ends: it may say 0 only if all it had is in the bucket."""
        mount = running.mount
        time.sleep(0.5)
        running.stop_workers()
        began = now()
        code, said = mount.machine.run("umount", mount.place, limit=running.patience())
        if code == 0:
            running.vouched.append((began, "bucket", "umount of the one taken over"))
        elif is_mounted(mount.place) and running.life["poisoned"] != "kill":
            mount.machine.run("umount", "--discard", mount.place, limit=running.patience())
        mount.kill()
        self.ended(running, f"fenced, umount {code}")

    def ended(self, running, what=""):
        running.end_all()
        self.faults([])
        failures = running.failures()
        failed = f", failed calls: {failures}" if failures else ""
        self.remarks.append(f"life {running.number}: {what or running.life['end']}{failed}")
        # Without the mount, names lead to the directory below it.
        gone = {
            "No such file or directory",
            "Transport endpoint is not connected",
            "Software caused connection abort",
        }
        if (
            running.life["is_patient"]
            and running.life["end"] in ("umount", "kill", "quiet-kill")
            and set(failures) - gone
        ):
            raise Wrong(f"IMPATIENT: calls failed though timeout= had not passed: {failures}")

    # --- what is left

    def judge_life(self, running, mount):
        """What the next mount shows of a life: its trees, the bases of what comes."""
        life = running.life
        if life["end"] == "steal":
            self.end_fenced(running)
        has_spool = life["next"] == "same"
        trees = self.judge(
            running, mount, f"on machine {mount.machine.name}", "machine" if has_spool else "bucket"
        )
        if running.must_equal is not None and not oracle.are_same(running.must_equal, trees):
            raise Wrong("what an acknowledged mount showed is not what the next mount shows")
        history = running.history()
        for snapshot in running.snapshots:
            self.snapshots.append((*snapshot, history))
        return trees

    def judge(self, running, mount, where, vouched):
        history, trees = running.history(), mount.trees()
        floors = [history.floor(worker, vouched) for worker in range(WORKERS)]
        ceilings = [len(changes) for changes in history.changes]
        wrong, places = history.judge(trees, floors, ceilings)
        done = [history.done_before(worker, now()) for worker in range(WORKERS)]
        print(
            f"  life {running.number} {where}: acknowledged {[low for low, _ in floors]},"
            f" there {places}, done {done}"
        )
        if wrong:
            raise Wrong(f"life {running.number} {where}: " + "\n".join(wrong))
        if vouched == "bucket" and running.life["next"] == "other":
            machine = self.machines[running.life["machine"]]
            owed = [history.floor(worker, "machine") for worker in range(WORKERS)]
            # What only a spool has stands on a state that collection may have taken since.
            collects = any(life["collects_at"] is not None for life in self.plan["lives"])
            if not collects and any(low > place for (low, _), place in zip(owed, places)):
                self.owed.append((machine, history, owed, f"life {running.number}"))
        if running.life["next"] == "same-without-spool":
            self.owed = [entry for entry in self.owed if entry[0] is not mount.machine]
        return trees

    def finish(self, machine, mount, trees):
        """What was late arrives; then everything is looked at from everywhere."""
        wait_until(90, lambda: self.held() == 0, "requests are held back")
        if not oracle.are_same(mount.trees(), trees):
            raise Wrong("what came late has changed what is there")
        machine.must("snapshot", mount.place, "final")
        machine.must("umount", mount.place)
        mount.daemon.wait(PATIENCE)
        self.settle_owed()
        if any(life["collects_at"] is not None for life in self.plan["lives"]):
            for _ in range(2):
                self.machines["c"].must("gc", "--undelete-window", "0s", self.url)
        machine.must("check", "--read-data", self.url)
        empty = Machine(self.place, "empty")
        self.restore(
            empty,
            "final",
            lambda found: (
                []
                if oracle.are_same(found, trees)
                else ["the last snapshot restores to something else"]
            ),
        )
        listed = self.listed(empty)
        for name, began, done, is_acknowledged, history in self.snapshots[-3:]:
            if name not in listed and not is_acknowledged:
                continue
            # One that was not acknowledged may be there: it shows one moment, whichever.
            low = began if is_acknowledged else 0
            floors = [
                (history.done_before(worker, low), f"the snapshot {name}")
                for worker in range(WORKERS)
            ]
            ceilings = [
                history.begun_before(worker, done)
                if is_acknowledged
                else len(history.changes[worker])
                for worker in range(WORKERS)
            ]
            self.restore(empty, name, lambda found: history.judge(found, floors, ceilings)[0])

    def listed(self, machine):
        """The names of the snapshots."""
        return [
            json.loads(line)["name"]
            for line in machine.must("snapshots", self.url, "--json").splitlines()
            if line.startswith("{")
        ]

    def restore(self, machine, name, judged):
        target = self.place / "restored"
        try:
            machine.must("restore", self.url, name, target)
            wrong = judged([oracle.scan(target / f"w{number}") for number in range(WORKERS)])
            if wrong:
                raise Wrong(f"snapshot {name}: " + "\n".join(wrong))
        finally:
            # Another snapshot may be what is looked for.
            shutil.rmtree(target, ignore_errors=True)

    def settle_owed(self):
        """What only a machine's spool had when another one took the volume becomes a snapshot."""
        for machine in {id(entry[0]): entry[0] for entry in self.owed}.values():
            mount = Mount(self, machine, {"memory": "128M"})
            if not mount.wait(PATIENCE):
                raise Wrong(f"NO MOUNT of an honest store: {mount.said()[-1500:]}")
            machine.must("umount", mount.place)
            mount.daemon.wait(PATIENCE)
        if not self.owed:
            return
        names = [name for name in self.listed(self.machines["a"]) if name.startswith("recovered-")]
        for machine, history, floors, what in self.owed:
            said = []
            for name in names:
                try:
                    ceilings = [len(changes) for changes in history.changes]
                    self.restore(
                        machine, name, lambda found: history.judge(found, floors, ceilings)[0]
                    )
                    break
                except Wrong as wrong:
                    said.append(str(wrong))
            else:
                raise Wrong(
                    f"LOST: what the spool of machine {machine.name} alone had of {what}"
                    f" is in no snapshot of {names}: {said}"
                )
            self.remarks.append(f"{what}: recovered as {name}")

    def clean(self):
        for mount in self.mounts:
            mount.kill()


# What is wrong, and the words that name it: the first reader of a missing pack fails, which one that is differs.
SABOTAGES = {
    # Objects that were acknowledged and are not there.
    "journal": {"lie": "journal", "options": {"close": "async"}, "found": ["LOST"]},
    "data": {
        "lie": "data",
        "options": {"close": "durable"},
        "found": ["UNREADABLE", "missing from the bucket"],
    },
    "index": {"lie": "index", "end": "umount", "found": ["missing from the bucket"]},
    # Workers that record what they did not do.
    "fsync": {"worker": "fsync", "options": {"close": "async"}, "snapshots": [], "found": ["LOST"]},
    "write": {"worker": "write", "found": ["NO STATE"]},
}


def sabotaged(name):
    """A round in which something is wrong, and nothing else."""
    plan = plans.draw(1)
    wrong = SABOTAGES[name]
    life = plan["lives"][0]
    options = {
        "memory": "128M",
        "fsync": "bucket",
        "close": "bounded",
        "spool_size": "64M",
        "drain": "2",
        "timeout": "15",
    }
    life.update(
        machine="a",
        mounts_under_faults=False,
        workers=2,
        seconds=2.5,
        is_busy_at_end=True,
        next="other",
        is_patient=False,
        collects_at=None,
    )
    lies = [{"what": "lie", "method": "PUT", "class": [wrong["lie"]]}] if "lie" in wrong else []
    life.update(strikes=lies, snapshots=wrong.get("snapshots", [2.0]), end=wrong.get("end", "kill"))
    life["options"] = dict(options, **wrong.get("options", {}))
    return {"seed": 1, "lives": [life]}, [wrong["worker"]] if "worker" in wrong else []


def run(plan, place, sabotage=()):
    """What is wrong after a round, or None."""
    print(plans.told(plan), flush=True)
    began = time.monotonic()
    round_ = Round(plan, place, sabotage)
    try:
        round_.run()
        wrong = None
    except Wrong as error:
        wrong = str(error)
    except Exception:
        wrong = "the test itself: " + traceback.format_exc()
    finally:
        round_.clean()
    for remark in round_.remarks:
        print(f"  {remark}")
    print(f"  struck: {round_.struck()}; {time.monotonic() - began:.1f} s")
    return wrong


def end_on_signal(*_):
    raise Wrong("ended from outside")


def main():
    signal.signal(signal.SIGTERM, end_on_signal)
    what, which = sys.argv[1:3]
    if what == "plan":
        print(plans.told(plans.draw(int(which))))
        return 0
    if what == "round":
        wrong = run(plans.draw(int(which)), sys.argv[3])
        print(
            f"FAILED: {wrong}\n  again: BKFS_PROXY_SEED={which} tests/run proxy"
            if wrong
            else "  all is well"
        )
        return 1 if wrong else 0
    plan, sabotage = sabotaged(which)
    wrong = run(plan, sys.argv[3], sabotage)
    print(f"  found: {wrong}")
    return 0 if any(words in (wrong or "") for words in SABOTAGES[which]["found"]) else 1


sys.exit(main())
