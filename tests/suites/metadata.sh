#!/usr/bin/env bash
# about: what stat, statfs and du say of every kind of inode, times beyond all limits, and trees
# about: 1,000 deep; the same on another machine and in a snapshot
# needs: program
# limit: 120 900
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
DEPTH=1000
[ "$FULL" = 0 ] || DEPTH=20000
mkdir -p "$MNT"
at_end "leave_mount '$MNT'"
metadata() { python3 "$ROOT/tests/posix/metadata.py" "$@"; }

deep() { mkdir "$MNT/deep" && metadata deep "$MNT/deep" "$1"; }
made() { metadata make "$MNT/kinds" "$SUITE_TMP/record"; }
kept() { exits 0 bkfs snapshot "$MNT" kinds && kept_here; }
# An existing file keeps its number, and a new file gets a number that no file had before.
numbers_stay() {
  local before
  before=$(stat -c %i "$MNT/kinds/dense")
  exits 0 bkfs umount "$MNT"
  machine another
  exits 0 mount_at "$URL" "$MNT"
  kept_here
  touch "$MNT/kinds/new"
  [ "$(stat -c %i "$MNT/kinds/dense")" = "$before" ]
  ! jq -e --argjson new "$(stat -c %i "$MNT/kinds/new")" 'any(.[]; .[0] == $new)' \
    "$SUITE_TMP/record" >/dev/null ||
    wrong "a number was given twice"
}
kept_here() {
  metadata check "$MNT/kinds" "$SUITE_TMP/record"
  metadata check "$MNT/.snapshots/kinds/kinds" "$SUITE_TMP/record" other-numbers
}

machine one
mount_at "$URL" "$MNT" --init --no-encryption || die "cannot mount"
case_of "a tree $DEPTH deep is made, listed, looked at, cut in half and removed" deep $DEPTH
case_of "sizes, blocks, links, numbers, devices and times are what they should be" made
case_of "they are the same after a commit, and in a snapshot but for their numbers" kept
case_of "and on another machine, where numbers stay and are not given twice" numbers_stay
exit 0
