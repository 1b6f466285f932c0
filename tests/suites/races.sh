#!/usr/bin/env bash
# about: races between processes on a mount: renames, exchanges, locks, appends, listings under changes, seekdir; and snapshots in the middle, checked elsewhere
# needs: program
# limit: 180 1800
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
TIMES=1
[ "$FULL" = 0 ] || TIMES=20
mkdir -p "$MNT"
at_end "leave_mount '$MNT'"

# race WHAT [COUNT]: in a directory of its own.
race() {
  rm -rf "${MNT:?}/$1"
  mkdir "$MNT/$1"
  python3 "$ROOT/tests/posix/races.py" "$1" "$MNT/$1" "${@:2}"
}
locks() { mkdir "$MNT/locks" && python3 "$ROOT/tests/posix/locks.py" "$MNT/locks" $((500 * TIMES)); }

# Everything at once, with snapshots of all of it.
snapshots_amid() {
  local pids=() what pid
  mkdir "$MNT/amid"
  for what in "renames $((150 * TIMES))" "appends $((40 * TIMES))" "listing $((300 * TIMES))" "exchange $((300 * TIMES))"; do
    # shellcheck disable=SC2086
    set -- $what
    mkdir "$MNT/amid/$1"
    python3 "$ROOT/tests/posix/races.py" "$1" "$MNT/amid/$1" "$2" &
    pids+=($!)
  done
  python3 "$ROOT/tests/posix/ordered.py" write "$MNT" $((10 * TIMES)) "$SUITE_TMP/moments"
  for pid in "${pids[@]}"; do wait "$pid" || wrong "a race was lost"; done
}
moments_are_true() {
  python3 "$ROOT/tests/posix/ordered.py" check "$MNT" "$SUITE_TMP/moments"
  exits 0 bkfs umount "$MNT"
  machine elsewhere
  exits 0 mount_at "$URL" "$MNT"
  python3 "$ROOT/tests/posix/ordered.py" check "$MNT" "$SUITE_TMP/moments"
  exits 0 bkfs umount "$MNT"
  exits 0 bkfs check "$URL" --read-data
}

machine one
mount_at "$URL" "$MNT" --init --no-encryption || die "cannot mount"
case_of "a name that is replaced is always there and never torn" race renames $((400 * TIMES))
case_of "directories that change places are each whole" race exchange $((1500 * TIMES))
case_of "appends by several processes do not interleave" race appends $((60 * TIMES))
case_of "listings under changes show every stable name exactly once" race listing $((1500 * TIMES))
case_of "telldir and seekdir lead back" race seeking
case_of "flock, POSIX and OFD locks exclude, and end with their holders" locks
case_of "all of it at once, with snapshots in the middle" snapshots_amid
case_of "each snapshot is a moment that there was, here and on another machine" moments_are_true
exit 0
