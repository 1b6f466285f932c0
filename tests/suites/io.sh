#!/usr/bin/env bash
# about: fio with checksums over every way of writing, stress-ng's filesystem class, dbench with 8
# about: clients; a clean check of the bucket afterwards
# needs: program apt:fio apt:stress-ng apt:dbench
# limit: 300 1800
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
mkdir -p "$MNT"
at_end "leave_mount '$MNT'"
# binderfs mounts its own filesystem, and few kernels have it. Quick runs also leave out what never
# reaches a filesystem, and what takes many times its time limit.
EXCLUDED=binderfs
QUICKLY=bind-mount,chattr,chdir,dnotify,dup,eventfd,fanotify,fiemap,file-ioctl,handle
QUICKLY+=,inode-flags,inotify,io,ioprio,lease,link,locka,procfs,symlink,verity
STRESS=(--exclude "$EXCLUDED,$QUICKLY" --timeout 1s)
DBENCH_SECONDS=8 FIO_MULTIPLE=1
[ "$FULL" = 0 ] || STRESS=(--exclude "$EXCLUDED" --timeout 3s) DBENCH_SECONDS=60 FIO_MULTIPLE=20

# fio_on DIRECTORY [ARGS…]: runs the jobs one after another, file by file, then those that share a
# file. fio's own state goes to another directory.
fio_on() {
  local status=0
  sed "s/^size=24m/size=$((24 * FIO_MULTIPLE))m/" "$ROOT/tests/posix/verified.fio" \
    >"$SUITE_TMP/verified.fio"
  (
    cd "$SUITE_TMP" &&
      fio --directory="$1" --output="$SUITE_TMP/fio.log" "${@:2}" verified.fio 2>&1
  ) || status=$?
  grep -E 'verify|err=|bw=' "$SUITE_TMP/fio.log" || true
  [ $status = 0 ] || wrong "fio ended with $status"
  [ "$(grep -c 'err= 0' "$SUITE_TMP/fio.log")" = 6 ] || wrong "not all groups of jobs ended well"
}
fio_verifies() { mkdir "$MNT/fio" && fio_on "$MNT/fio"; }
stressed() {
  mkdir "$MNT/stress"
  exits 0 stress-ng --class filesystem --sequential 2 "${STRESS[@]}" --verify \
    --temp-path "$MNT/stress"
  says 'successful run completed'
  says_not 'fail:|error:'
  [ -z "$(ls -A "$MNT/stress")" ] || wrong "left behind: $(ls -A "$MNT/stress")"
}
dbenched() {
  mkdir "$MNT/dbench"
  exits 0 dbench -D "$MNT/dbench" -t "$DBENCH_SECONDS" 8
  says '^Throughput [0-9.]+ MB/sec +8 clients'
  # dbench also prints this when the kernel gives the number 0 to the first semaphore of a machine:
  # it takes 0 for a failure.
  sed -i '/^failed to create barrier semaphore/d' "$SUITE_TMP/output"
  says_not 'failed|error'
}
verified_elsewhere() {
  exits 0 bkfs snapshot "$MNT" verified
  exits 0 bkfs umount "$MNT"
  machine elsewhere
  exits 0 mount_at "$URL" "$MNT"
  fio_on "$MNT/fio" --verify_only=1
  exits 0 bkfs umount "$MNT"
  exits 0 bkfs check "$URL" --read-data
}

machine one
mount_at "$URL" "$MNT" --init --no-encryption -o allow_other || die "cannot mount"
case_of "fio: sequential and random, buffered, direct and mapped, several jobs on one file: every \
block verified" \
  fio_verifies
case_of "stress-ng: the filesystem class finds nothing" stressed
case_of "dbench with 8 clients" dbenched
case_of "every block is verified on another machine, and the bucket is sound" verified_elsewhere
exit 0
