#!/usr/bin/env bash
# about: a daemon under a memory limit of 768 MiB, next to a writer that dirties pages in the same
# about: limit: no stall, no kill; the most memory that hostile writers make a daemon hold
# needs: program
# limit: 240 600
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
mkdir -p "$MNT"
at_end "leave_mount '$MNT'"
SECONDS_LONG=40
[ "$FULL" = 0 ] || SECONDS_LONG=300
LIMIT=$((768 << 20))

# make_group: creates a control group with the limit, by version 1 or 2; sets GROUP (the directory
# that takes processes).
make_group() {
  local top
  if top=$(awk '$3 == "cgroup" && $4 ~ /(^|,)memory(,|$)/ {print $2}' /proc/mounts) &&
    [ -n "$top" ]; then
    GROUP=$top/bkfs-test-$$
    mkdir "$GROUP"
    echo "$LIMIT" >"$GROUP/memory.limit_in_bytes"
    killed() { awk '$1 == "oom_kill" {print $2}' "$GROUP/memory.oom_control"; }
  else
    top=$(awk '$3 == "cgroup2" {print $2}' /proc/mounts | head -n 1)
    [ -n "$top" ] || die "no control groups"
    echo +memory >"$top/cgroup.subtree_control"
    GROUP=$top/bkfs-test-$$
    mkdir "$GROUP"
    echo "$LIMIT" >"$GROUP/memory.max"
    killed() { awk '$1 == "oom_kill" {print $2}' "$GROUP/memory.events"; }
  fi
  at_end "leave_group"
}
leave_group() {
  local pid
  for pid in $(cat "$GROUP/cgroup.procs" 2>/dev/null); do
    kill -KILL "$pid" 2>/dev/null
    gone "$pid" 5
  done
  rmdir "$GROUP"
}
inside() { sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$GROUP" "$@"; }

# Writes 1 MiB at a time and keeps the longest duration of one write.
timed_writer() {
  python3 - "$1" "$SECONDS_LONG" <<'P'
import os, sys, time
place, seconds = sys.argv[1], float(sys.argv[2])
began, longest, total, number = time.monotonic(), 0.0, 0, 0
noise = os.urandom(1 << 20)
while time.monotonic() - began < seconds:
    file = os.open(f"{place}/{number % 4}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    # After 6 GiB only one file in eight is new: five minutes of new files would fill the disk, and
    # every request would then fail for lack of space.
    content = number if number < 32 or number % 8 == 0 else number % 32
    for block in range(200):
        if time.monotonic() - began >= seconds:
            break
        at = time.monotonic()
        os.write(file, noise[block * 64:] + content.to_bytes(4, "little") + noise[: block * 64])
        longest = max(longest, time.monotonic() - at)
        total += 1
    os.close(file)
    number += 1
print(f"{place}: {total} MiB, longest write {longest:.2f} s")
assert longest < 60, f"a write took {longest:.1f} s"
assert total > 50, f"only {total} MiB were written"
P
}
limited() {
  local other status=0
  mkdir -p "$SUITE_TMP/other"
  inside "$MACHINE/run" "$BKFS_BIN" mount "$URL" "$MNT" -o "cache_dir=$MACHINE/bkfs-cache"
  daemon=$(daemon_of "$MNT")
  grep -q "bkfs-test-$$" "/proc/$daemon/cgroup" || wrong "the daemon is not under the limit"
  (echo $BASHPID >"$GROUP/cgroup.procs"; timed_writer "$SUITE_TMP/other") &
  other=$!
  remember_pid $other
  timed_writer "$MNT"
  wait $other || status=$?
  [ $status = 0 ] || wrong "the writer outside of the mount ended with $status"
  [ "$(killed)" = 0 ] || wrong "the kernel killed $(killed) processes"
  kill -0 "$daemon" || wrong "the daemon is gone"
  sha256sum "$MNT"/[0-3] | cut -d' ' -f1 >"$SUITE_TMP/sums"
  exits 0 bkfs snapshot "$MNT" under-pressure
  exits 0 bkfs umount "$MNT"
  machine two
  exits 0 bkfs restore "$URL" under-pressure "$SUITE_TMP/restored"
  sha256sum "$SUITE_TMP/restored"/[0-3] | cut -d' ' -f1 | diff - "$SUITE_TMP/sums"
}

# The limit of a daemon's anonymous memory with memory=128M, in MiB: the budget, and what program
# and allocator need in addition.
ANONYMOUS_MAX=256

# Runs one kind of writer on its own mount, and records the most memory that the daemon held.
hostile() {
  local kind=$1 at
  exits 0 bkfs mount "$URL" "$MNT" -o "cache_dir=$MACHINE/bkfs-cache,memory=128M"
  at=$(now_ms)
  python3 "$ROOT/tests/lib/hostile_writer.py" "$kind" "$MNT" "$(daemon_of "$MNT")" "$ANONYMOUS_MAX"
  row "$kind" "$(seconds_since "$at") s" "$(cat "$MNT/.peak") MiB"
  rm -rf "${MNT:?}"/* "$MNT/.peak"
  exits 0 bkfs umount "$MNT"
}

machine one
init_local "$URL" || die "cannot make a repository"
for kind in scattered pinned tiny renamed seeking; do
  case_of "memory=128M: $kind" hostile "$kind"
done
print_table
make_group
case_of "$SECONDS_LONG s of writing under a limit of 768 MiB" limited
exit 0
