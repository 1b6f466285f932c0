#!/usr/bin/env bash
# about: races between processes on a mount: renames, exchanges, locks, appends, listings under
# about: changes, seekdir; and snapshots in the middle, checked on another machine
# needs: program
# limit: 180 1800
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
TIMES=1
[ "$FULL" = 0 ] || TIMES=20
mkdir -p "$MNT"
at_end "leave_mount '$MNT'"
at_end "leave_mount '$SUITE_TMP/reader'"

# race WHAT [COUNT]: runs a race in its own directory.
race() {
  rm -rf "${MNT:?}/$1"
  mkdir "$MNT/$1"
  python3 "$ROOT/tests/posix/races.py" "$1" "$MNT/$1" "${@:2}"
}
# The kernel writes a mapping's pages to their own offsets, even through a handle whose writes
# append.
mapped_append() {
  head -c 8192 /dev/zero | tr '\0' x >"$MNT/mapped-append"
  python3 - "$MNT/mapped-append" <<'P'
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND)
mapping = mmap.mmap(file, 8192)
mapping[:4] = b"here"
mapping.flush()
os.write(file, b"end")
mapping[4096:4100] = b"also"
mapping.flush()
os.fsync(file)
P
  [ "$(stat -c %s "$MNT/mapped-append")" = 8195 ] ||
    wrong "$(stat -c %s "$MNT/mapped-append") bytes"
  exits 0 bkfs snapshot "$MNT" mapped-append
  [ "$(sed 's/xx*/./g' "$MNT/.snapshots/mapped-append/mapped-append")" = here.also.end ] ||
    wrong "pages went elsewhere"
}
direct_mix() {
  mkdir "$MNT/direct" && python3 "$ROOT/tests/posix/direct_mix.py" "$MNT/direct" $((40 * TIMES))
}
locks() {
  mkdir "$MNT/locks" && python3 "$ROOT/tests/posix/locks.py" "$MNT/locks" $((500 * TIMES))
}

# Runs all races at once, with snapshots of all of them.
snapshots_amid() {
  local pids=() what pid
  mkdir "$MNT/amid"
  for what in "renames $((150 * TIMES))" "appends $((40 * TIMES))" "listing $((300 * TIMES))" \
    "exchange $((300 * TIMES))"; do
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

# A read-only mount on another machine.
reader_follows() {
  local reader=$SUITE_TMP/reader volume=(-o volume=read)
  mkdir -p "$reader"
  machine one
  exits 0 mount_at "$URL" "$MNT" "${volume[@]}" --create
  echo other >"$MNT/other"
  exits 0 bkfs snapshot "$MNT" reader-first
  machine reader
  exits 0 mount_at "$URL" "$reader" "${volume[@]}" -o ro
  python3 "$ROOT/tests/posix/reader.py" "$MNT" "$reader" 8
  exits 0 bkfs umount "$reader"
  machine one
  exits 0 bkfs umount "$MNT"
}

machine one
mount_at "$URL" "$MNT" --init --no-encryption || die "cannot mount"
case_of "a name that is replaced is always there and never torn" race renames $((400 * TIMES))
case_of "directories that change places are each whole" race exchange $((1500 * TIMES))
case_of "appends by several processes do not interleave" race appends $((60 * TIMES))
case_of "listings under changes show every stable name exactly once" race listing $((1500 * TIMES))
case_of "telldir and seekdir lead back" race seeking
case_of "flock, POSIX and OFD locks exclude, and end with their holders" locks
case_of "pages of a mapping through an appending descriptor stay where they are" mapped_append
case_of "asynchronous direct writes are seen by buffered readers and mappings" direct_mix
case_of "all of it at once, with snapshots in the middle" snapshots_amid
case_of "each snapshot is a moment that there was, here and on another machine" moments_are_true
case_of "a reader follows what another mount commits, and open files stay as they were opened" \
  reader_follows
exit 0
