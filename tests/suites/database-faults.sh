#!/usr/bin/env bash
# about: a store that is away, hangs or answers 503, under mariabackup: either the backup restores
# about: with every checksum right, or bkfs run says that it failed
# needs: program minio apt:mariadb-server apt:mariadb-backup apt:mariadb-client apt:sysbench
# limit: 600 1800
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"
. "$(dirname "$0")/../lib/mariadb.sh"

MNT=$SUITE_TMP/mount SOURCE=$SUITE_TMP/source
mkdir -p "$MNT"
at_end "leave_mount '$MNT'"
AWAY=15 ROWS=60000
[ "$FULL" = 0 ] || AWAY=60 ROWS=400000

# back_up NAME: starts mariabackup in the background, as an operator runs it. It ignores errors of
# close(2) and never syncs.
back_up() {
  (
    bkfs run --name "$1" "$MNT" -- mariabackup --no-defaults --backup --user=root \
      --socket="$MARIADB_SOCKET" --datadir="$SOURCE" --target-dir="$MNT/$1" --parallel=2 \
      >"$SUITE_TMP/run-$1.log" 2>&1 && status=0 || status=$?
    echo $status >"$SUITE_TMP/run-$1.status"
  ) &
  BACKUP=$!
  remember_pid $BACKUP
}
backup_has_begun() { [ "$(find "$MNT/$1" -type f 2>/dev/null | wc -l)" -gt 3 ]; }
ended_with() {
  wait "$BACKUP" || true
  tail -n 3 "$SUITE_TMP/run-$1.log"
  echo "bkfs run ended with $(cat "$SUITE_TMP/run-$1.status")"
  [[ " $2 " = *" $(cat "$SUITE_TMP/run-$1.status") "* ]] ||
    wrong "bkfs run ended with $(cat "$SUITE_TMP/run-$1.status") instead of $2"
}
# restores NAME: restores on a machine that has nothing, past the proxy.
restores() {
  machine "restore-$1"
  exits 0 env AWS_ENDPOINT_URL="$BKFS_TEST_S3_MINIO" "$MACHINE/run" "$BKFS_BIN" restore \
    --verify "$URL" "$1:/$1" "$SUITE_TMP/restored"
  mariadb_revive "$SUITE_TMP/restored" "$SUITE_TMP/revived"
  mariadb_checksums >"$SUITE_TMP/checksums-revived"
  mariadb_stop
  rm -rf "$SUITE_TMP/restored" "$SUITE_TMP/revived" "$SUITE_TMP/revived.run"
  MARIADB_SOCKET=$SOURCE.run/socket
  machine here
  diff "$SUITE_TMP/checksums" "$SUITE_TMP/checksums-revived" ||
    wrong "tables differ from the source's"
}
mounted_with() {
  is_mounted "$MNT" || exits 0 mount_at "$URL" "$MNT" -o "$1"
}

store_is_away() {
  mounted_with timeout=300
  back_up away
  wait_for 60 backup_has_begun away
  faults '{"refuse": true}'
  sleep "$AWAY"
  faults '{}'
  [ "$(struck)" -gt 0 ] || wrong "the store had no request while it was away"
  ended_with away 0
  restores away
}
store_is_overloaded() {
  local before
  before=$(struck)
  faults '{"fail_percent": 5, "status": 503}'
  back_up busy
  ended_with busy 0
  exits 0 bkfs umount "$MNT"
  faults '{}'
  [ "$(struck)" -gt "$before" ] || wrong "no request was refused"
  restores busy
}
store_hangs() {
  local began
  mounted_with timeout=8
  # New contents force an upload.
  sql sbtest -e 'CREATE TABLE fresh (id INT PRIMARY KEY, value LONGBLOB) ENGINE=InnoDB;
    INSERT INTO fresh SELECT seq, RANDOM_BYTES(4096) FROM seq_1_to_4000'
  faults '{"hang": true}'
  began=$SECONDS
  back_up hung
  # Exit code 1: the tool fails by an error of close(2). Exit code 125: bkfs fails by its snapshot.
  ended_with hung '1 125'
  echo "after $((SECONDS - began)) s"
  [ $((SECONDS - began)) -lt 120 ] || wrong "it hung for $((SECONDS - began)) s"
  faults '{}'
  # Nothing is dropped: once the store is back, so is the mount. No snapshot has the name of that
  # backup.
  wait_for 60 bkfs snapshot "$MNT" later
  exits 0 bkfs snapshots "$URL"
  says_not '\bhung\b'
  exits 0 bkfs umount "$MNT"
}

machine here
mariadb_create "$SOURCE" || die "no data directory"
mariadb_start "$SOURCE" || die "the source does not start"
mariadb_load "$ROWS" || die "the source could not be loaded"
note "source: $(mib "$(bytes_in "$SOURCE")") MiB"
mariadb_checksums >"$SUITE_TMP/checksums"
start_minio
start_faulty "$BKFS_TEST_S3_MINIO"
s3_environment "$FAULTY"
URL=s3://$BKFS_TEST_BUCKET/outage
bkfs init --no-encryption "$URL" || die "cannot make a repository"
case_of "a store that is away for $AWAY s: the backup succeeds and restores" store_is_away
case_of "a store that answers 503 to one request in twenty: the same" store_is_overloaded
case_of "a store that hangs: bkfs run fails within the deadline, and the mount goes on when the \
store does" \
  store_hangs
case_of "a check of every byte finds nothing" exits 0 bkfs check --read-data "$URL"
exit 0
