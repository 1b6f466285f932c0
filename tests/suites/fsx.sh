#!/usr/bin/env bash
# about: fsx on a mount, several seeds at once under a stream of snapshots; each file equals what
# about: the same seed leaves elsewhere, on the mount and after a remount
# needs: program fsx
# limit: 240 3600
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount PLAIN=$SUITE_TMP/plain
# SHAPE:SEED:OPERATIONS. Files of the large shape exceed a segment and the kernel's largest request,
# and move 20 times as many bytes.
RUNS=(small:1:20000 small:2:20000 small:3:20000 small:4:20000 large:5:2000)
# fsx 0.3.2 never unmaps what it has read through a mapping, and every truncate and msync walks all
# mappings of the file. With the weight of the quick run, 200,000 operations took 25 minutes instead
# of 6. In full runs, ten times as many operations therefore make as many of these reads.
MAPREAD=10
[ "$FULL" = 0 ] || RUNS=({small:{1..10}:200000,large:{11..14}:20000}) MAPREAD=1
mkdir -p "$MNT" "$PLAIN" "$SUITE_TMP/artifacts"

weights="[weights]
close_open = 1
read = 10
write = 10
mapread = $MAPREAD
mapwrite = 10
invalidate = 2
truncate = 2
fsync = 0.1
fdatasync = 0.1
posix_fallocate = 2
punch_hole = 4
sendfile = 2
posix_fadvise = 2
copy_file_range = 4"
# Without a minimum, an operation of 0 bytes may be a fallocate, which fails on every filesystem.
printf '[opsize]\nmin = 1\n%s\n' "$weights" >"$SUITE_TMP/small.toml"
printf 'flen = 12582912\n[opsize]\nmin = 1\nmax = 2621440\n%s\n' "$weights" >"$SUITE_TMP/large.toml"

# fsx_on DIRECTORY RUN: a run leaves the same bytes on every filesystem.
fsx_on() {
  local shape seed operations
  IFS=: read -r shape seed operations <<<"$2"
  "$FSX" -f "$SUITE_TMP/$shape.toml" -N "$operations" -S "$seed" -P "$SUITE_TMP/artifacts" "$1/$2" \
    >"$SUITE_TMP/log-$2" 2>&1
}

# Two runs at a time, for two cores; commits interrupt all of them.
runs_agree() {
  local run taken=0 workers
  printf '%s\n' "${RUNS[@]}" >"$SUITE_TMP/runs"
  export -f fsx_on
  export FSX SUITE_TMP MNT
  xargs -P 2 -I RUN \
    bash -c 'fsx_on "$MNT" RUN || {
      echo "RUN failed"
      tail -n 25 "$SUITE_TMP/log-RUN"
      exit 255
    }' \
    <"$SUITE_TMP/runs" &
  workers=$!
  remember_pid $workers
  while kill -0 "$workers" 2>/dev/null; do
    exits 0 bkfs snapshot "$MNT" "during-$taken"
    taken=$((taken + 1))
    # A snapshot costs a commit: the pause leaves time for the other work of the machine.
    sleep 1
  done
  wait "$workers" || wrong "fsx found something"
  [ $taken -gt 2 ] || wrong "$taken snapshots were taken meanwhile"
}
# Repeats the runs on a filesystem in memory.
runs_elsewhere() {
  local run
  mount -t tmpfs -o size=1g,mode=755 bkfs-test-plain "$PLAIN"
  for run in "${RUNS[@]}"; do fsx_on "$PLAIN" "$run"; done
  (cd "$PLAIN" && sha256sum -- *) >"$SUITE_TMP/sums"
  umount "$PLAIN"
  [ "$(wc -l <"$SUITE_TMP/sums")" = ${#RUNS[@]} ] || wrong "not all runs left a file"
}
same_here() {
  (cd "$1" && sha256sum -- *) | diff "$SUITE_TMP/sums" - || wrong "files in $1 differ"
}
same_after_remount() {
  exits 0 bkfs snapshot "$MNT" last
  exits 0 bkfs umount "$MNT"
  machine elsewhere
  exits 0 mount_at "$URL" "$MNT"
  same_here "$MNT"
  same_here "$MNT/.snapshots/last"
  exits 0 bkfs umount "$MNT"
  exits 0 bkfs check "$URL" --read-data
}

machine one
mount_at "$URL" "$MNT" --init --no-encryption || die "cannot mount"
at_end "leave_mount '$MNT'"
case_of "fsx finds nothing, with snapshots taken meanwhile (${RUNS[*]})" runs_agree || exit 1
case_of "the same runs on a filesystem in memory" runs_elsewhere
case_of "every file is the same" same_here "$MNT"
case_of "and after a remount with an empty cache, and in a snapshot" same_after_remount
exit 0
