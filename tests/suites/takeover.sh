#!/usr/bin/env bash
# about: a daemon stopped at any moment while another host takes its volume over, then woken: it commits nothing and acknowledges nothing
# needs: program minio
# limit: 600 3000
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"

A=$SUITE_TMP/mount-a B=$SUITE_TMP/mount-b
mkdir -p "$A" "$B"
at_end "leave_mount '$A'"
at_end "leave_mount '$B'"
writer() { python3 "$ROOT/tests/lib/fsync_writer.py" "$@"; }
on() { machine "$1" && "${@:2}"; }

# holder_mounts HOW: `steal` leaves it on this host; `heartbeat` puts it into a pid namespace of its own, where only its heartbeat tells that it lives.
holder_mounts() {
  if [ "$1" = steal ]; then
    exits 0 on a mount_at "$URL" "$A" -o timeout=20
    HOLDER=$(daemon_of "$A")
    return
  fi
  machine a
  rm -f "$SUITE_TMP/far-ready"
  unshare --pid --fork bash -c "'$MACHINE/run' '$BKFS_BIN' mount '$URL' '$A' -o 'timeout=20,cache_dir=$MACHINE/bkfs-cache' && touch '$SUITE_TMP/far-ready' && exec sleep 1000" &
  NAMESPACE=$!
  remember_pid "$NAMESPACE"
  wait_for 60 test -e "$SUITE_TMP/far-ready" || wrong "the mount in another namespace did not come up"
  is_mounted "$A" || wrong "the mount is not seen here"
  HOLDER=$(daemon_of "$A")
}
taken() {
  if [ "$1" = steal ]; then
    exits 0 on b mount_at "$URL" "$B" --steal
    return
  fi
  machine b
  local began=$SECONDS
  until mount_at "$URL" "$B" >"$SUITE_TMP/output" 2>&1; do
    [ $((SECONDS - began)) -lt 120 ] || wrong "not free after 120 s: $(cat "$SUITE_TMP/output")"
    sleep 1
  done
}

round() {
  local how=$1 record=$SUITE_TMP/record-$2 theirs=$SUITE_TMP/theirs-$2 status=0
  holder_mounts "$how"

  mkdir "$A/synced-$2"
  python3 -c "import os; os.fsync(os.open('$A', os.O_RDONLY))"
  writer write "$A/synced-$2" "$record" "$2" 2>"$SUITE_TMP/writer.log" &
  WRITER=$!
  remember_pid $WRITER
  sleep "$(awk -v seed="$2" 'BEGIN {srand(seed * 15485863); printf "%.2f", 0.5 + rand()}')"
  kill -STOP "$HOLDER"
  taken "$how"
  mkdir "$B/theirs-$2"
  python3 -c "import os; os.fsync(os.open('$B', os.O_RDONLY))"
  timeout 2 python3 "$ROOT/tests/lib/fsync_writer.py" write "$B/theirs-$2" "$theirs" 1 2>/dev/null || true
  kill -CONT "$HOLDER"
  # Its tool is told, soon.
  gone "$WRITER" 60 || wrong "the writer of the fenced mount goes on"
  wait "$WRITER" || true
  tail -n 1 "$SUITE_TMP/writer.log"
  grep -qE 'Input/output error|Stale' "$SUITE_TMP/writer.log" || wrong "it did not end with an error: $(tail -n 1 "$SUITE_TMP/writer.log")"
  # Whatever it had acknowledged by then stands with the new holder, and nothing of it is mixed into what that one wrote.
  writer check "$B/synced-$2" "$record"
  [ "$(writer count "$record")" -gt 0 ] || wrong "nothing was acknowledged: it shows nothing"
  writer check "$B/theirs-$2" "$theirs"
  on a bkfs snapshot "$A" fenced >"$SUITE_TMP/output" 2>&1 && wrong "a fenced holder made a snapshot"
  on a bkfs umount "$A" >"$SUITE_TMP/output" 2>&1 || status=$?
  [ $status != 0 ] || wrong "the fenced holder's unmount claims success"
  on a bkfs umount --discard "$A" || umount -i -l "$A"
  gone "$HOLDER" 30 || wrong "the fenced daemon lives on"
  [ "$how" = steal ] || stop_pid "$NAMESPACE" KILL
  exits 0 on b bkfs snapshot "$B" "round-$2"
  exits 0 on b bkfs umount "$B"
  exits 0 on "c-$2" mount_at "$URL" "$B" -o "snapshot=round-$2"
  writer check "$B/synced-$2" "$record"
  writer check "$B/theirs-$2" "$theirs"
  exits 0 on "c-$2" bkfs umount "$B"
}

machine a
# Not on a directory: there a process can be stopped while it holds the lock of the root, and nobody gets past that before it is woken.
start_minio
s3_environment "$BKFS_TEST_S3_MINIO"
URL=s3://$BKFS_TEST_BUCKET/takeover
bkfs init --no-encryption "$URL" || die "cannot make a repository"
STEALS=3 BEATS=1
[ "$FULL" = 0 ] || STEALS=10 BEATS=10
for number in $(seq "$STEALS"); do case_of "stopped, stolen by --steal, woken: $number" round steal "$number"; done
for number in $(seq 101 $((100 + BEATS))); do case_of "stopped, taken over when its heartbeat stood still, woken: $number" round heartbeat "$number"; done
case_of "a check of every byte finds nothing" exits 0 on d bkfs check --read-data "$URL"
exit 0
