"""The program under test: machines, daemons, and what works on a mount."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import oracle

BKFS = os.environ.get("BKFS_BIN", "bkfs")
HERE = Path(__file__).parent
WORKERS = 3
# How long anything may take on a busy machine that says nothing of a limit.
PATIENCE = 120


class Wrong(Exception):
    """What must not be."""


def now():
    return time.monotonic_ns()


def wait_until(seconds, condition, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Wrong(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def is_mounted(place):
    with open("/proc/self/mountinfo") as mounts:
        return any(line.split()[4] == str(place) for line in mounts)


class Machine:
    """Directories of state, cache and configuration, found through the environment."""

    def __init__(self, place, name):
        self.name, self.place = name, place / f"machine-{name}"
        self.environment = dict(os.environ)
        for variable, directory in {
            "HOME": "home",
            "XDG_CACHE_HOME": "cache",
            "XDG_CONFIG_HOME": "config",
            "XDG_STATE_HOME": "state",
            "XDG_DATA_HOME": "data",
            "XDG_RUNTIME_DIR": "runtime",
        }.items():
            (self.place / directory).mkdir(parents=True, exist_ok=True, mode=0o700)
            self.environment[variable] = str(self.place / directory)

    def run(self, *arguments, limit=PATIENCE):
        """A command's exit code and what it says."""
        try:
            ended = subprocess.run(
                [BKFS, *map(str, arguments)],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired as error:
            raise Wrong(
                f"HANG: {' '.join(map(str, arguments))}: not done after {limit} s"
            ) from error
        return ended.returncode, ended.stdout

    def must(self, *arguments):
        """What a command says that has to succeed."""
        code, said = self.run(*arguments)
        if code != 0:
            raise Wrong(f"exit code {code}: {' '.join(map(str, arguments))}: {said.strip()[-600:]}")
        return said

    def wipe_spool(self):
        shutil.rmtree(self.place / "state/bkfs/spool", ignore_errors=True)


class Mount:
    """A daemon in the foreground, its place and its log."""

    def __init__(self, round_, machine, options, steal=False):
        self.machine, self.place = machine, round_.place / f"mount-{machine.name}"
        self.place.mkdir(exist_ok=True)
        self.log = round_.place / f"daemon-{len(round_.mounts)}.log"
        options = dict(options, cache_dir=machine.place / "cache")
        words = [
            BKFS,
            "mount",
            "-f",
            round_.url,
            self.place,
            "-o",
            ",".join(f"{key}={value}" for key, value in options.items()),
        ]
        with open(self.log, "w") as log:
            self.daemon = subprocess.Popen(
                list(map(str, words + (["--steal"] if steal else []))),
                env=machine.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        round_.mounts.append(self)

    def wait(self, seconds):
        """Whether it came up."""
        wait_until(
            seconds,
            lambda: self.daemon.poll() is not None or is_mounted(self.place),
            f"HANG: mount on {self.machine.name}",
        )
        return self.daemon.poll() is None

    def kill(self):
        if self.daemon.poll() is None:
            self.daemon.kill()
        self.daemon.wait()
        self.detach()

    def detach(self):
        while is_mounted(self.place):
            if (
                subprocess.run(
                    ["umount", "-i", "-l", self.place], stderr=subprocess.DEVNULL
                ).returncode
                != 0
            ):
                break

    def status(self):
        """What it says of itself; an empty object if it does not."""
        try:
            shown = subprocess.run(
                ["cat", self.place / ".bkfs/status"], capture_output=True, timeout=20
            )
            return json.loads(shown.stdout or b"{}")
        except (subprocess.TimeoutExpired, json.JSONDecodeError):
            return {}

    def trees(self):
        """What is there of each worker. A daemon that does not answer is ended."""
        watch = threading.Timer(PATIENCE, self.daemon.kill)
        watch.start()
        try:
            return [oracle.scan(self.place / f"w{number}") for number in range(WORKERS)]
        except OSError as error:
            raise Wrong(f"UNREADABLE: {error}") from error
        finally:
            watch.cancel()

    def said(self):
        return self.log.read_text(errors="replace")


class Running:
    """The workers of a life, and what they and others had acknowledged."""

    def __init__(self, round_, number, life, mount, bases):
        self.round, self.life, self.mount, self.bases = round_, life, mount, bases
        self.directory = round_.place / f"life-{number}"
        self.directory.mkdir()
        self.number, self.vouched, self.snapshots, self.threads = number, [], [], []
        self.quiet = []
        self.workers = []
        # What an acknowledged mount showed.
        self.must_equal = None

    def start(self):
        for worker in range(self.life["workers"]):
            tree, first = self.bases[worker], {}
            for name in sorted(tree.files):
                first.setdefault(tree.files[name], name)
            base = {
                "files": {name: len(tree.contents[file]) for file, name in first.items()},
                "dirs": sorted(tree.dirs),
            }
            words = [
                sys.executable,
                HERE / "worker.py",
                self.mount.place / f"w{worker}",
                self.manifest(worker),
            ]
            words += [self.life["seed"] + worker, json.dumps(base)] + self.round.sabotage[:1]
            with open(self.directory / f"worker-{worker}.log", "w") as log:
                self.workers.append(subprocess.Popen(list(map(str, words)), stdout=log, stderr=log))
        began = time.monotonic()
        for index, moment in enumerate(self.life["snapshots"]):
            thread = threading.Thread(
                target=self.snapshot, args=(f"s{self.number}-{index}", began + moment), daemon=True
            )
            thread.start()
            self.threads.append(thread)
        if self.life["collects_at"] is not None:
            self.threads.append(
                threading.Thread(
                    target=self.collect, args=(began + self.life["collects_at"],), daemon=True
                )
            )
            self.threads[-1].start()

    def collect(self, moment):
        """A collection under faults may fail, and no mount loses anything by it."""
        time.sleep(max(0, moment - time.monotonic()))
        try:
            code, said = self.round.machines["c"].run(
                "gc", "--undelete-window", "0s", self.round.url, limit=self.patience() + 300
            )
        except Wrong as wrong:
            code, said = -1, str(wrong)
        self.round.remarks.append(f"collection: {code}: {said.strip()[-150:]}")

    def manifest(self, worker):
        return self.directory / f"manifest-{worker}"

    def snapshot(self, name, moment):
        time.sleep(max(0, moment - time.monotonic()))
        began = now()
        try:
            code, said = self.mount.machine.run(
                "snapshot", self.mount.place, name, limit=self.patience()
            )
        except Wrong as wrong:
            code, said = -1, str(wrong)
        (self.directory / f"snapshot-{name}").write_text(f"{began} {now()} {code} {said}")
        if code == 0:
            self.vouched.append((began, "bucket", f"the snapshot {name}"))
        self.snapshots.append((name, began, now(), code == 0))

    def patience(self):
        """How long a call may wait for the store."""
        return int(self.life["options"].get("timeout", 100)) * 2 + 60

    def stop_workers(self):
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
        self.wait_for_workers()

    def wait_for_workers(self):
        deadline = time.monotonic() + self.patience()
        for worker in self.workers:
            try:
                worker.wait(max(1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise Wrong(
                    f"HANG: a call of a worker takes more than {self.patience()} s"
                ) from error
        for thread in self.threads:
            thread.join(self.patience() + 300)

    def end_all(self):
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()

    def history(self):
        """All that is known of this life, once its workers have ended."""
        options = self.life["options"]
        vouches = (
            "machine" if options["fsync"] == "local" and options["spool_size"] != "0" else "bucket"
        )
        changes, acknowledged, published = [], list(self.vouched), []
        for worker in range(WORKERS):
            changed, others = oracle.read_manifest(self.manifest(worker))
            changes.append(changed)
            published += [
                call.done
                for call in changed + others
                if call.error == 0
                and (call.words[0] == "rename" or (call.words[0] == "close" and call.words[2]))
            ]
            for call in others:
                what = f"{call.words[:2]} of worker {worker}"
                if call.words[0] in ("fsync", "fsyncdir"):
                    acknowledged.append((call.began, vouches, what))
                elif options["close"] == "durable" and call.words[2]:
                    acknowledged.append((call.began, "bucket", what))
        for moment, where, what in self.quiet:
            last = max((done for done in published if done <= moment), default=0)
            acknowledged.append((last, where, what))
        return oracle.Life(self.bases, changes, acknowledged)

    def publish(self, moment, where, what):
        """What was closed or renamed before a moment is there, and all that was done before that."""
        self.quiet.append((moment, where, what))

    def failures(self):
        """How many calls failed, by errno, while the daemon lived."""
        count = {}
        for worker in range(WORKERS):
            if self.manifest(worker).exists():
                for line in self.manifest(worker).read_text().splitlines():
                    words = json.loads(line)
                    if words[0] == "done" and words[1]:
                        name = os.strerror(words[1])
                        count[name] = count.get(name, 0) + 1
        return count
