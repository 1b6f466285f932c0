#!/usr/bin/env bash
# about: kill -9 of the daemon while tools write, at random and at named steps of a commit: what
# about: fsync acknowledged is there, on this machine and on another
# needs: program minio
# limit: 600 3600
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"

MNT=$SUITE_TMP/mount OTHER=$SUITE_TMP/other
mkdir -p "$MNT" "$OTHER"
at_end "leave_mount '$MNT'"
at_end "leave_mount '$OTHER'"
writer() { python3 "$ROOT/tests/lib/fsync_writer.py" "$@"; }

# begin_round URL RECORD SEED: starts one tool that syncs, and one that does not.
begin_round() {
  mkdir -p "$MNT/synced" "$MNT/unsynced"
  python3 -c "import os; os.fsync(os.open('$MNT', os.O_RDONLY))"
  writer write "$MNT/synced" "$2" "$3" 2>"$SUITE_TMP/writer.log" &
  WRITER=$!
  remember_pid $WRITER
  (
    while tar -C "$ROOT" -cf - src chunker fuse 2>/dev/null |
      tar -C "$MNT/unsynced" -xf - 2>/dev/null; do
      :
    done
  ) &
  TAR=$!
  remember_pid $TAR
}
# note_stalls: while $SUITE_TMP/probing is there, asks the server for one small write after another,
# and notes how long each took beyond half a second, in ms.
note_stalls() {
  local began took
  while [ -e "$SUITE_TMP/probing" ]; do
    began=$(now_ms)
    curl -s -m 60 -o /dev/null -T "$SUITE_TMP/probe" --aws-sigv4 "aws:amz:$BKFS_TEST_REGION:s3" \
      --user "$BKFS_TEST_ACCESS_KEY:$BKFS_TEST_SECRET_KEY" \
      "$BKFS_TEST_S3_MINIO/$BKFS_TEST_BUCKET/probe" || true
    took=$(($(now_ms) - began - 500))
    [ "$took" -le 0 ] || echo "$took" >>"$SUITE_TMP/stalls"
    sleep 0.2
  done
}
# end_round URL RECORD: runs after the daemon has died. A new mount takes less than 10 s, apart from
# stalls of the server, and everything acknowledged is there, on this machine and on one that has
# never seen the bucket.
end_round() {
  local url=$1 record=$2 began milliseconds stalls prober
  wait "$WRITER" || true
  wait "$TAR" || true
  : >"$SUITE_TMP/stalls"
  prober=
  if [ -n "${MINIO_PID:-}" ]; then
    echo probe | tee "$SUITE_TMP/probe" >"$SUITE_TMP/probing"
    note_stalls &
    prober=$!
  fi
  began=$(now_ms)
  exits 0 mount_at "$url" "$MNT"
  milliseconds=$(($(now_ms) - began))
  cp "$SUITE_TMP/output" "$SUITE_TMP/mounted"
  rm -f "$SUITE_TMP/probing"
  [ -z "$prober" ] || wait "$prober"
  stalls=$(paste -sd+ "$SUITE_TMP/stalls")
  echo "mounted again after $milliseconds ms; stalls of the server: ${stalls:-0} ms"
  [ $milliseconds -lt $((10000 + ${stalls:-0})) ] || wrong "mounting again took $milliseconds ms"
  writer check "$MNT/synced" "$record"
  exits 0 bkfs snapshot "$MNT" "round-$ROUND"
  machine "elsewhere-$ROUND"
  exits 0 mount_at "$url" "$OTHER" -o "snapshot=round-$ROUND"
  writer check "$OTHER/synced" "$record"
  exits 0 bkfs umount "$OTHER"
  rm -rf "$MACHINE"
  machine here
}
# A round that fails leaves no tools, no mount and no fault to the next one.
leave_round() {
  local status=$? pid
  [ $status -ne 0 ] || return 0
  kill -CONT "${MINIO_PID:-}" 2>/dev/null || true
  [ -z "${FAULTY:-}" ] || faults '{}'
  for pid in "$(daemon_of "$MNT")" ${TAR:+"$TAR" $(pgrep -P "$TAR")} "${WRITER:-}" "${NOISE:-}"; do
    [ -z "$pid" ] || stop_pid "$pid" KILL
  done
  not_mounted "$MNT" || umount -i -l "$MNT"
}
acknowledged() { [ -s "$1" ] && writer count "$1" || echo 0; }

acknowledged_beyond() { [ "$(acknowledged "$2")" -gt $(($1 + 2)) ]; }

# A round that ends at a random moment after the writer has made some progress.
killed_at_random() {
  local url=$1 record=$2 pid before
  trap leave_round EXIT
  not_mounted "$MNT" && exits 0 mount_at "$url" "$MNT" -o timeout=30
  before=$(acknowledged "$record")
  begin_round "$url" "$record" "$ROUND"
  wait_for 60 acknowledged_beyond "$before" "$record" ||
    wrong "nothing is acknowledged: $(cat "$SUITE_TMP/writer.log")"
  sleep "$(awk -v seed="$ROUND" 'BEGIN {srand(seed * 7919); printf "%.2f", 0.8 + rand() * 2.5}')"
  pid=$(daemon_of "$MNT")
  kill -KILL "$pid"
  gone "$pid" 10
  end_round "$url" "$record"
  [ "$(acknowledged "$record")" -gt "$before" ] ||
    wrong "nothing was acknowledged in this round: it shows nothing"
}
# A round that ends at the Nth request of a class, before or after the store has applied it.
killed_at_step() {
  local url=$1 record=$2 class=$3 nth=$4 when=$5 pid before number
  trap leave_round EXIT
  not_mounted "$MNT" && exits 0 mount_at "$url" "$MNT" -o timeout=30
  pid=$(daemon_of "$MNT")
  before=$(struck)
  begin_round "$url" "$record" "$ROUND"
  # A round in which no write was acknowledged proves nothing.
  wait_for 60 acknowledged_beyond "$(acknowledged "$record")" "$record" ||
    wrong "nothing is acknowledged: $(cat "$SUITE_TMP/writer.log")"
  faults "{\"crash\": {\"pid\": $pid, \"method\": \"PUT\", \"class\": \"$class\", \
    \"nth\": $nth, \"when\": \"$when\"}}"
  # Automatic commits come only every 30 s. Each commit has one request of these classes.
  case $class in
    meta | index | root)
      for number in $(seq "$nth"); do
        bkfs snapshot "$MNT" "unanswered-$ROUND-$number" || break
      done
      ;;
  esac
  gone "$pid" 60 || wrong "no PUT of class $class came"
  faults '{}'
  [ "$(struck)" -gt "$before" ] || wrong "the fault never struck"
  end_round "$url" "$record"
}

metric() {
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["metrics"][sys.argv[2]])' \
    "$MNT/.bkfs/status" "$1"
}
spool_holds() { [ "$(metric spool_waiting_bytes)" -gt "$1" ]; }
# A round that ends while the store does not answer and the spool is full. With fsync=local, fsync
# is content with the spool.
killed_with_full_spool() {
  local url=$1 record=$2 pid kept=kept-$ROUND
  trap leave_round EXIT
  kill -CONT "$MINIO_PID"
  is_mounted "$MNT" && exits 0 bkfs umount "$MNT"
  exits 0 mount_at "$url" "$MNT" -o timeout=60,fsync=local,memory=128M,spool_size=64M
  pid=$(daemon_of "$MNT")
  begin_round "$url" "$record" "$ROUND"
  wait_for 60 acknowledged_beyond "$(acknowledged "$record")" "$record" ||
    wrong "nothing is acknowledged: $(cat "$SUITE_TMP/writer.log")"
  mkdir "$MNT/$kept"
  python3 -c "import os; os.fsync(os.open('$MNT/$kept', os.O_RDONLY))"
  # Data that is already in the bucket occupies the spool until a commit names it.
  exits 0 bkfs snapshot "$MNT" "before-$ROUND"
  kill -STOP "$MINIO_PID"
  head -c 300000 /dev/urandom >"$SUITE_TMP/kept"
  dd if="$SUITE_TMP/kept" of="$MNT/$kept/file" bs=300000 conv=fsync status=none ||
    wrong "fsync=local waits for a store that does not answer"
  head -c 400M /dev/urandom >"$MNT/$kept/noise" 2>/dev/null &
  NOISE=$!
  remember_pid $NOISE
  wait_for 60 spool_holds $((44 << 20)) ||
    wrong "the spool holds $(metric spool_bytes) bytes, of which $(metric spool_waiting_bytes) wait"
  sleep "$(awk -v seed="$ROUND" 'BEGIN {srand(seed * 6151); printf "%.2f", rand() * 1.5}')"
  kill -KILL "$pid"
  gone "$pid" 10
  kill -CONT "$MINIO_PID"
  wait $NOISE || true
  end_round "$url" "$record"
  grep -q 'replaying [0-9]* objects' "$SUITE_TMP/mounted" ||
    wrong "nothing was replayed from the spool: $(cat "$SUITE_TMP/mounted")"
  cmp "$SUITE_TMP/kept" "$MNT/.snapshots/round-$ROUND/$kept/file"
}

machine here
ROUND=0
RANDOM_ROUNDS=3
[ "$FULL" = 0 ] || RANDOM_ROUNDS=30
mkdir -p "$SUITE_TMP/records"
bkfs init --no-encryption "$SUITE_TMP/bucket" || die "cannot make a bucket"
for number in $(seq "$RANDOM_ROUNDS"); do
  ROUND=$((ROUND + 1))
  case_of "kill -9 at a random moment, directory bucket, round $number" \
    killed_at_random "$SUITE_TMP/bucket" "$SUITE_TMP/records/local"
done
case_of "the last mount on the directory bucket ends well" exits 0 bkfs umount "$MNT"
case_of "a check of every byte finds nothing, directory bucket" \
  exits 0 bkfs check --read-data "$SUITE_TMP/bucket"

start_minio
start_faulty "$BKFS_TEST_S3_MINIO"
s3_environment "$FAULTY"
REMOTE=s3://$BKFS_TEST_BUCKET/crash
bkfs init --no-encryption "$REMOTE" || die "cannot make a repository"
STEPS='data meta index journal root'
REPEATS='1'
[ "$FULL" = 0 ] || REPEATS='1 2 5 9'
for nth in $REPEATS; do
  for class in $STEPS; do
    for when in before after; do
      ROUND=$((ROUND + 1))
      case_of "kill -9 $when the store applies PUT $nth of class $class" \
        killed_at_step "$REMOTE" "$SUITE_TMP/records/remote" "$class" "$nth" "$when"
    done
  done
done
at_end "kill -CONT '$MINIO_PID' 2>/dev/null"
SPOOLED=2
[ "$FULL" = 0 ] || SPOOLED=20
for number in $(seq "$SPOOLED"); do
  ROUND=$((ROUND + 1))
  case_of "kill -9 with a full spool, round $number" \
    killed_with_full_spool "$REMOTE" "$SUITE_TMP/records/remote"
done
case_of "the last mount ends well" exits 0 bkfs umount "$MNT"
case_of "a check of every byte finds nothing" exits 0 bkfs check --read-data "$REMOTE"
exit 0
