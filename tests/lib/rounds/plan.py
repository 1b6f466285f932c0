"""What a round of the suite `proxy` does, from its seed alone.

A round is a few lives of a volume. A life is a mount on a machine, with workers that write and a
store that fails; it ends in some way, and the next life, or the end of the round, finds what is
left.
"""

import random

# How the store fails: name → what the proxy is told (tests/lib/faulty_proxy.py). A seed's first
# fault is chosen in turn, so that as many seeds in a row as there are entries show each.
KINDS = {
    "stall": {"what": "stall", "seconds": (0.3, 2.5)},
    "late": {"what": "late", "seconds": (0.5, 6), "method": "PUT"},
    "drop-after": {"what": "drop-after"},
    "503": {"what": "status", "status": 503},
    "drop-before": {"what": "drop-before"},
    "slow": {"what": "slow", "rate": (60_000, 1_000_000)},
    "outage": {"what": "stall", "seconds": (4, 20), "total": True},
    "507": {"what": "status", "status": 507, "code": "XMinioStorageFull", "method": "PUT"},
    "cut": {"what": "cut", "method": "GET"},
    "500-applied": {"what": "status", "status": 500, "applied": True, "method": "PUT"},
    "403": {"what": "status", "status": 403, "code": "AccessDenied"},
    "very-late": {"what": "late", "seconds": (8, 30), "method": "PUT"},
    "404": {"what": "status", "status": 404, "code": "NoSuchBucket"},
    "cut-request": {"what": "cut-request", "method": "PUT"},
    "500": {"what": "status", "status": 500, "code": "InternalError"},
    "silence": {"what": "stall", "seconds": (8, 30), "method": "PUT"},
    "400": {"what": "status", "status": 400, "method": "PUT"},
    "unreachable": {"what": "drop-before", "total": True},
    "late-delete": {"what": "late", "seconds": (2, 12), "method": "DELETE"},
    # What versitygw answers to a PUT whose directory it has just removed.
    "409": {"what": "status", "status": 409, "code": "ExistingObjectIsDirectory", "method": "PUT"},
}
# What asks for patience, or breaks a request: a mount that waits long enough fails for none.
PATIENT = (
    "stall",
    "late",
    "drop-after",
    "503",
    "drop-before",
    "slow",
    "cut",
    "500-applied",
    "cut-request",
    "500",
    "409",
)
CLASSES = [
    ["data"],
    ["journal"],
    ["root"],
    ["data", "journal"],
    ["meta", "index", "lists"],
    None,
    ["sessions"],
    ["index"],
    ["root", "journal"],
    ["meta"],
    ["lists"],
    ["config"],
]
ENDS = ["kill", "term", "umount", "steal"]
SPOOLS = ["0", "64M", "1G"]


def drawn(generator, span):
    return round(generator.uniform(*span), 2) if isinstance(span, tuple) else span


def draw_strike(generator, kind, classes, seconds):
    strike = {key: drawn(generator, value) for key, value in KINDS[kind].items() if key != "total"}
    strike["kind"] = kind
    if KINDS[kind].get("total"):
        strike["from"] = round(generator.uniform(0.3, seconds), 2)
        strike["until"] = round(strike["from"] + generator.uniform(1.5, 7), 2)
        return strike
    if classes:
        strike["class"] = classes
    strike["percent"] = generator.choice([10, 30, 60, 100])
    strike["from"] = round(generator.uniform(0, 0.8), 2)
    strike["until"] = round(strike["from"] + generator.uniform(1.5, 7), 2)
    if generator.random() < 0.5:
        strike["most"] = generator.choice([1, 2, 5])
    return strike


def last(generator, strikes, options):
    """Makes faults outlast the life, or what a mount bears. How long the workers work then."""
    is_long = generator.random() < 0.5
    if is_long and generator.random() < 0.5:
        # What no patience helps against: the mount is poisoned.
        kind, classes = (
            generator.choice(["400", "404"]),
            generator.choice([["data"], ["meta"], ["journal"], ["data", "meta"]]),
        )
        strikes.append(draw_strike(generator, kind, classes, 2))
    for strike in strikes:
        strike["until"] = 120
        strike["percent"] = generator.choice([60, 100])
        strike.pop("most", None)
    if is_long:
        options["timeout"] = "5"
        return round(generator.uniform(6.5, 9), 2)
    return round(generator.uniform(2, 4), 2)


def draw_life(generator, machine, first):
    is_patient = generator.random() < 0.15
    seconds = round(generator.uniform(1.2, 3.5), 2)
    count = generator.choice([0, 0, 1, 2])
    kinds = ([first[0]] if first else []) + [generator.choice(list(KINDS)) for _ in range(count)]
    if is_patient:
        kinds = [kind if kind in PATIENT else generator.choice(PATIENT) for kind in kinds]
    strikes = []
    for number, kind in enumerate(kinds):
        classes = first[1] if first and number == 0 else generator.choice(CLASSES)
        strikes.append(draw_strike(generator, kind, classes, seconds))
    asks = any(
        strike.get("class") in (["sessions"], ["config"]) or strike["what"] == "cut"
        for strike in strikes
    )
    spool = generator.choice(SPOOLS)
    options = {
        "memory": "128M",
        "fsync": generator.choice(["bucket", "bucket", "local"]),
        "close": generator.choice(["bounded", "durable", "async"]),
        "spool_size": spool,
        "drain": str(generator.choice([2, 4])),
    }
    if not is_patient:
        options["timeout"] = str(generator.choice([5, 8, 15]))
        if generator.random() < 0.3:
            seconds = last(generator, strikes, options)
    return {
        "machine": machine,
        "options": options,
        "is_patient": is_patient,
        "mounts_under_faults": asks or generator.random() < 0.15,
        "workers": generator.choice([1, 2, 3]),
        "seconds": seconds,
        "snapshots": [
            round(generator.uniform(0.4, seconds), 2) for _ in range(generator.choice([1, 1, 2]))
        ],
        "strikes": strikes,
        "seed": generator.randrange(1 << 30),
        # Workers still run when the end comes.
        "is_busy_at_end": generator.random() < 0.5,
        "poisoned": generator.choice(["acknowledge", "kill", "discard"]),
    }


def draw(seed):
    """The plan of a round."""
    generator = random.Random(seed)
    kinds = list(KINDS)
    first = kinds[seed % len(kinds)], CLASSES[(seed // len(kinds) + seed) % len(CLASSES)]
    # A class of which nothing is sent by this method would show nothing.
    if KINDS[first[0]].get("method") == "PUT" and first[1] in (["config"], ["sessions"]):
        first = first[0], ["data", "journal"]
    if KINDS[first[0]].get("method") in ("GET", "DELETE"):
        first = first[0], None
    lives, machine = [], "a"
    for number in range(generator.choice([1, 1, 2, 2, 3])):
        life = draw_life(generator, machine, first if number == 0 else None)
        life["end"] = generator.choice(ENDS)
        other = "b" if machine == "a" else "a"
        place = generator.choice(["same", "same", "same", "same-without-spool", "other"])
        life["next"] = "other" if life["end"] == "steal" else place
        machine = other if life["next"] == "other" else machine
        lives.append(life)
    # Two ends that take time are rare.
    rare = generator.random()
    if rare < 0.04:
        lives[-1].update(end="quiet-kill", next="other")
    elif rare < 0.07:
        lives[-1].update(end="outage-kill", next="same", strikes=[], is_patient=False)
        lives[-1]["options"].update(spool_size="1G", close="bounded", timeout="60")
    for life in lives:
        # The first mount that follows is killed while it comes up.
        life["next_is_killed_after"] = (
            round(generator.uniform(0.05, 1.5), 2) if generator.random() < 0.15 else None
        )
        # A third machine collects, at the same time.
        life["collects_at"] = (
            round(generator.uniform(0, life["seconds"]), 2) if generator.random() < 0.15 else None
        )
    return {"seed": seed, "lives": lives}


def told(plan):
    """The plan for people."""
    lines = [f"seed {plan['seed']}"]
    for life in plan["lives"]:
        options = ",".join(f"{key}={value}" for key, value in life["options"].items())
        lines.append(
            f"  machine {life['machine']} -o {options}"
            f"{', mounts under faults' if life['mounts_under_faults'] else ''};"
            f" {life['workers']} workers for {life['seconds']} s,"
            f" snapshots at {life['snapshots']}; then {life['end']}"
            f"{' while they work' if life['is_busy_at_end'] else ''}, next on: {life['next']};"
            f" if poisoned: {life['poisoned']}"
            + (
                f"; the next mount is killed after {life['next_is_killed_after']} s"
                if life["next_is_killed_after"]
                else ""
            )
            + (f"; collection at {life['collects_at']}" if life["collects_at"] is not None else "")
        )
        for strike in life["strikes"]:
            told = {key: value for key, value in strike.items() if key != "kind"}
            lines.append(f"    {strike.get('kind', 'wrong')}: {told}")
    return "\n".join(lines)
