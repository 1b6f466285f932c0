# shellcheck shell=bash
# Runs pjdfstest in a directory and counts each of its lines as a case.

# pjdfstest_in DIRECTORY EXPECTED OUTPUT: EXPECTED names the cases that may fail, with reasons.
# DIRECTORY is the root of the test's own filesystem. Some cases remount it read-only; they run
# first and in a separate process, since a file that another case leaves open prevents the remount.
pjdfstest_in() {
  local directory=$1 expected=$2 output=$3
  PJD_OTHER=$SUITE_TMP/other-filesystem PJD_TOOLS=$SUITE_TMP/tools
  mkdir -p "$PJD_OTHER" "$PJD_TOOLS"
  mount -t tmpfs -o size=64m,mode=755 bkfs-test-other "$PJD_OTHER" ||
    die "no tmpfs to serve as a second filesystem"
  at_end "umount -l '$PJD_OTHER'"
  # A remount changes a flag in the kernel. Without -i, mount(8) runs a helper program of FUSE for
  # it.
  printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" >"$PJD_TOOLS/mount"
  chmod 755 "$PJD_TOOLS/mount"
  : >"$output"
  pjdfstest_pass "$directory" "$expected" true erofs >>"$output" 2>&1
  pjdfstest_pass "$directory" "$expected" false >>"$output" 2>&1
  cat "$output"
  [ "$(grep -c '^Summary: ' "$output")" = 2 ] || failed pjdfstest "ended before its summary"
}

# pjdfstest_pass DIRECTORY EXPECTED REMOUNT [PATTERN]
pjdfstest_pass() {
  {
    printf '[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n'
    printf '[settings]\nnaptime = 0.01\nallow_remount = %s\nexpected_failures = [\n' "$3"
    sed -n 's/^\([a-z][^[:space:]]*\)[[:space:]].*/  "\1",/p' "$2"
    # Two users that exist on every Debian.
    printf ']\n[dummy_auth]\nentries = [["nobody", "nogroup"], ["daemon", "daemon"]]\n'
  } >"$SUITE_TMP/pjdfstest.toml"
  NO_COLOR=1 PATH=$PJD_TOOLS:$PATH "$PJDFSTEST" -c "$SUITE_TMP/pjdfstest.toml" -p "$1" \
    -s "$PJD_OTHER" "${@:4}"
}

# count_pjdfstest OUTPUT: counts one result for each case, and none for a skipped case.
count_pjdfstest() {
  local good
  good=$(grep -cE ' (ok|failed as expected)$' "$1")
  printf 'many\t%s\t0\tpjdfstest\n' "$good" >>"$RESULTS"
  sed -nE 's/^([a-z][a-z0-9_:]*) +(FAILED|PASSED UNEXPECTEDLY)$/\1 \2/p' "$1" |
    while read -r name what; do failed "$name" "$what"; done
}
