#!/usr/bin/env bash
# about: a daemon stopped at any moment while another host takes its volume over, then woken: it
# about: commits nothing and acknowledges nothing
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

# holder_mounts HOW: `steal` keeps the holder on this host. `heartbeat` puts it into its own pid
# namespace, where only its heartbeat shows that it lives.
holder_mounts() {
  if [ "$1" = steal ]; then
    exits 0 on a mount_at "$URL" "$A" -o timeout=20
    HOLDER=$(daemon_of "$A")
    return
  fi
  machine a
  rm -f "$SUITE_TMP/far-ready"
  unshare --pid --fork bash -c \
    "'$MACHINE/run' '$BKFS_BIN' mount '$URL' '$A' \
        -o 'timeout=20,cache_dir=$MACHINE/bkfs-cache' &&
      touch '$SUITE_TMP/far-ready' && exec sleep 1000" &
  NAMESPACE=$!
  remember_pid "$NAMESPACE"
  wait_for 60 test -e "$SUITE_TMP/far-ready" ||
    wrong "the mount in another namespace did not come up"
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
  timeout 2 python3 "$ROOT/tests/lib/fsync_writer.py" \
    write "$B/theirs-$2" "$theirs" 1 2>/dev/null || true
  kill -CONT "$HOLDER"
  # The writer soon gets an error.
  gone "$WRITER" 60 || wrong "the writer of the fenced mount goes on"
  wait "$WRITER" || true
  tail -n 1 "$SUITE_TMP/writer.log"
  grep -qE 'Input/output error|Stale' "$SUITE_TMP/writer.log" ||
    wrong "it did not end with an error: $(tail -n 1 "$SUITE_TMP/writer.log")"
  # What the fenced mount has acknowledged by then stays with the new holder, and does not mix with
  # the new holder's writes.
  writer check "$B/synced-$2" "$record"
  [ "$(writer count "$record")" -gt 0 ] || wrong "nothing was acknowledged: it shows nothing"
  writer check "$B/theirs-$2" "$theirs"
  on a bkfs snapshot "$A" fenced >"$SUITE_TMP/output" 2>&1 &&
    wrong "a fenced holder made a snapshot"
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

# --- what only the spool of the machine that lost the volume has ----------------------------------

metric() {
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["metrics"][sys.argv[2]])' \
    "$A/.bkfs/status" "$1"
}
spools() {
  find "$SUITE_TMP/machine-a/state/bkfs/spool" -mindepth 2 -maxdepth 2 -type d 2>/dev/null
}
all_arrived() { [ "$(metric spool_waiting_bytes)" = 0 ]; }
synced() { dd of="$1" bs=1M conv=fsync,notrunc status=none "${@:2}"; }
# kept_alone NUMBER EARLY: machine a acknowledges through its spool only, in an outage. With
# `early`, the bucket's journals already hold writes of the same session.
kept_alone() {
  exits 0 on a mount_at "$URL" "$A" -o memory=128M,spool_size=1G,timeout=60,fsync=local
  HOLDER=$(daemon_of "$A")
  mkdir "$A/alone-$1"
  for name in kept rewritten removed; do printf 'before' >"$A/alone-$1/$name"; done
  exits 0 on a bkfs snapshot "$A" "before-$1"
  if [ "$2" = early ]; then
    printf 'early' | synced "$A/alone-$1/early"
    wait_for 20 all_arrived || wrong "the early journal does not arrive"
  fi
  head -c 60M /dev/urandom >"$SUITE_TMP/alone"
  kill -STOP "$MINIO_PID"
  synced "$A/alone-$1/large" if="$SUITE_TMP/alone"
  printf 'after!' | synced "$A/alone-$1/rewritten"
  rm "$A/alone-$1/removed"
  mkdir "$A/alone-$1/made"
  mv "$A/alone-$1/kept" "$A/alone-$1/made/moved"
  python3 -c "import os; os.fsync(os.open('$A/alone-$1', os.O_RDONLY))"
  [ "$(metric spool_waiting_bytes)" -gt $((32 << 20)) ] ||
    wrong "only $(metric spool_waiting_bytes) bytes are in the spool: it shows nothing"
}
# theirs_now NUMBER: machine b takes the volume, and writes other contents under the same names.
theirs_now() {
  kill -CONT "$MINIO_PID"
  exits 0 on b mount_at "$URL" "$B" --steal
  [ ! -e "$B/alone-$1/large" ] || wrong "the new holder has what was in the spool alone"
  printf 'theirs' | synced "$B/alone-$1/rewritten"
  rm -r "${B:?}/alone-$1/kept"
  exits 0 on b bkfs snapshot "$B" "theirs-$1"
  exits 0 on b bkfs umount "$B"
  # Only the spool needs the snapshot that it is based on, and only its own machine knows that.
  exits 0 on c bkfs forget "$URL" "before-$1"
  exits 0 on c bkfs gc "$URL" --undelete-window 0s
  exits 0 on c bkfs gc "$URL" --undelete-window 0s
  on c bkfs session list "$URL" >"$SUITE_TMP/output"
  says ' spool '
}
# recovered NUMBER EARLY: the next mount of machine a makes a snapshot of the spool, and says so.
recovered() {
  local name shown
  exits 0 on a mount_at "$URL" "$A"
  says 'is now the snapshot recovered-[0-9a-f]{16}'
  name=$(grep -oE 'recovered-[0-9a-f]{16}' "$SUITE_TMP/output" | head -n 1)
  [ "$(cat "$A/alone-$1/rewritten")" = theirs ] || wrong "the live state is not that of the new holder"
  [ ! -e "$A/alone-$1/large" ] || wrong "what was recovered is in the live state"
  shown=$(on a bkfs status "$A")
  grep -q "recovered .*$name" <<<"$shown" || wrong "the status does not tell of $name: $shown"
  exits 0 on a bkfs umount "$A"
  [ -z "$(spools)" ] || wrong "$(spools) stays"
  shown=$(on "d-$1" bkfs dump "$URL" "latest:/alone-$1/rewritten")
  [ "$shown" = theirs ] || wrong "the latest snapshot is not the new holder's: $shown"
  shown=$(on "d-$1" bkfs snapshots "$URL")
  grep -q "$name (recovered)" <<<"$shown" || wrong "it is not listed as recovered: $shown"
  shown=$(on "d-$1" bkfs forget -n --keep-last=1 "$URL")
  grep -qE "$name .* keep +recovered" <<<"$shown" &&
    grep -qE "theirs-$1 .* keep +newest" <<<"$shown" ||
    wrong "the rules count it: $shown"
  exits 0 on "d-$1" bkfs restore "$URL" "$name:/alone-$1" "$SUITE_TMP/restored"
  cmp "$SUITE_TMP/alone" "$SUITE_TMP/restored/large"
  [ "$(cat "$SUITE_TMP/restored/rewritten")" = 'after!' ] ||
    wrong "rewritten: $(cat "$SUITE_TMP/restored/rewritten")"
  [ "$(cat "$SUITE_TMP/restored/made/moved")" = before ] ||
    wrong "moved: $(cat "$SUITE_TMP/restored/made/moved")"
  [ "$2" != early ] || [ "$(cat "$SUITE_TMP/restored/early")" = early ] ||
    wrong "what the bucket's journal held is missing"
  [ ! -e "$SUITE_TMP/restored/removed" ] && [ ! -e "$SUITE_TMP/restored/kept" ] ||
    wrong "removed names are back"
  rm -r "$SUITE_TMP/restored"
  # A second mount finds nothing more to do.
  exits 0 on a mount_at "$URL" "$A"
  says_not 'recovered-'
  on a bkfs session list "$URL" >"$SUITE_TMP/output"
  says_not ' spool '
  exits 0 on a bkfs umount "$A"
}
dead_and_taken() {
  kept_alone "$1" "$2"
  kill -KILL "$HOLDER"
  umount -i -l "$A"
  theirs_now "$1"
  recovered "$1" "$2"
}
# The machine that lost the volume lives, and learns of the loss when it is asked to unmount.
alive_and_taken() {
  kept_alone "$1" "$2"
  kill -STOP "$HOLDER"
  theirs_now "$1"
  kill -CONT "$HOLDER"
  wait_for 60 on a fails "$A"
  on a bkfs umount --discard "$A" || umount -i -l "$A"
  gone "$HOLDER" 60 || wrong "the fenced daemon lives on"
  recovered "$1" "$2"
}
fails() { bkfs status "$1" | grep -q FAILED; }
# A spool whose first journal is lost gives no snapshot: the mount keeps the spool and says so, and
# no mount waits.
without_recovery_base() {
  kept_alone "$1" no
  kill -KILL "$HOLDER"
  umount -i -l "$A"
  theirs_now "$1"
  local spool journal
  spool=$(spools)
  # The first of two journals is lost, as on a bad disk.
  journal=$(find "$spool" -name '*journal+*' | sort | head -n 1)
  mv "$journal" "$SUITE_TMP/lost-journal"
  exits 0 on a mount_at "$URL" "$A"
  says 'no snapshot can be made of it'
  on a bkfs status "$A" >"$SUITE_TMP/output"
  says "stranded .*$(basename "$spool")"
  exits 0 on a bkfs umount "$A"
  [ "$(spools)" = "$spool" ] || wrong "the spool is gone"
  # The journal comes back, and the next mount makes the snapshot.
  mv "$SUITE_TMP/lost-journal" "$journal"
  recovered "$1" no
}

machine a
# Not on a directory bucket: a process stopped while it holds the lock of the root would block every
# other process until it is woken.
start_minio
s3_environment "$BKFS_TEST_S3_MINIO"
URL=s3://$BKFS_TEST_BUCKET/takeover
bkfs init --no-encryption "$URL" || die "cannot make a repository"
STEALS=3 BEATS=1
[ "$FULL" = 0 ] || STEALS=10 BEATS=10
for number in $(seq "$STEALS"); do
  case_of "stopped, stolen by --steal, woken: $number" round steal "$number"
done
for number in $(seq 101 $((100 + BEATS))); do
  case_of "stopped, taken over when its heartbeat stood still, woken: $number" \
    round heartbeat "$number"
done
case_of "what only the spool of a dead machine had becomes a snapshot" dead_and_taken 201 no
case_of "the same, behind journals that the new holder found" dead_and_taken 202 early
case_of "what only the spool of a fenced machine had becomes a snapshot" alive_and_taken 203 early
case_of "a spool that stands on nothing is kept, and said to be" without_recovery_base 204
case_of "a check of every byte finds nothing" exits 0 on d bkfs check --read-data "$URL"
exit 0
