#!/usr/bin/env bash
# about: pjdfstest (398 POSIX cases) as root on a real mount, with the list of expected failures
# needs: program pjdfstest
# limit: 900
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/pjdfstest.sh"

EXPECTED=$ROOT/tests/posix/expected_failures
listed=$(grep -cE '^[a-z]' "$EXPECTED")
few_and_explained() {
  [ "$listed" -le 20 ] || wrong "$listed expected failures, more than 20"
  ! grep -vE '^(#|$|[a-z][^[:space:]]+[[:space:]]+[^[:space:]]+)' "$EXPECTED" ||
    wrong "an expected failure without a reason"
}
case_of "expected failures are few and explained" few_and_explained

machine one
# Other users reach the mount: half of the cases run as such users.
mount_at "$SUITE_TMP/bucket" "$SUITE_TMP/mount" --init --no-encryption -o allow_other ||
  die "cannot mount"
at_end "leave_mount '$SUITE_TMP/mount'"
pjdfstest_in "$SUITE_TMP/mount" "$EXPECTED" "$SUITE_TMP/pjdfstest.out"
count_pjdfstest "$SUITE_TMP/pjdfstest.out"

still_sound() {
  [ -z "$(ls -A "$SUITE_TMP/mount")" ] || wrong "left behind: $(ls -A "$SUITE_TMP/mount")"
  exits 0 bkfs umount "$SUITE_TMP/mount"
  ! is_mounted "$SUITE_TMP/mount" || wrong "still mounted"
}
case_of "the mount is sound and empty afterwards" still_sound
exit 0
