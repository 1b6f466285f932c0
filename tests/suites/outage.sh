#!/usr/bin/env bash
# about: a store that stops answering while files are written, and the spool that takes what is
# about: written meanwhile
# needs: program minio
# limit: 600 1200
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"

start_minio
s3_environment "$BKFS_TEST_S3_MINIO"
URL=s3://$BKFS_TEST_BUCKET/outage MNT=$SUITE_TMP/mount
mkdir -p "$MNT"
printf 'correct horse battery staple\n' >"$SUITE_TMP/password"
chmod 600 "$SUITE_TMP/password"
export BKFS_PASSWORD_FILE=$SUITE_TMP/password
at_end "umount -i -l '$MNT' 2>/dev/null"
at_end "kill -CONT '$MINIO_PID' 2>/dev/null"

# metric NAME: prints a metric of .bkfs/status.
metric() {
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["metrics"][sys.argv[2]])' \
    "$MNT/.bkfs/status" "$1"
}
spools() { find "$MACHINE/state/bkfs/spool" -mindepth 2 -maxdepth 2 -type d 2>/dev/null; }
store_is_gone() { kill -STOP "$MINIO_PID"; }
store_is_back() { kill -CONT "$MINIO_PID"; }
# foreground_mount OPTIONS: mounts with a daemon that writes to $SUITE_TMP/daemon; sets `pid` to its
# process id.
foreground_mount() {
  bkfs mount -f "$URL" "$MNT" -o "cache_dir=$MACHINE/bkfs-cache,memory=128M,$1" \
    2>"$SUITE_TMP/daemon" &
  pid=$!
  remember_pid $pid
  wait_for 30 is_mounted "$MNT" || wrong "it does not come up: $(cat "$SUITE_TMP/daemon")"
}
# noise FILE MIB: writes bytes that neither compress nor deduplicate.
noise() { head -c "$(($2 << 20))" /dev/urandom >"$1"; }

outage_is_invisible() {
  local began seconds spool
  machine one
  exits 0 bkfs init "$URL"
  exits 0 mount_at "$URL" "$MNT" -o memory=128M,spool_size=1G,timeout=120,close=async
  noise "$SUITE_TMP/file" 400
  store_is_gone
  began=$(now_ms)
  printf 'contents that must stay sealed\n' >"$MNT/plain"
  cp "$SUITE_TMP/file" "$MNT/file"
  seconds=$(seconds_since "$began")
  echo "400 MiB were written in $seconds s without a store;" \
    "$(($(metric spool_bytes) >> 20)) MiB in the spool"
  row "400 MiB without a store" "$seconds s"
  [ "$(metric spool_waiting_bytes)" -gt $((256 << 20)) ] ||
    wrong "only $(metric spool_waiting_bytes) bytes wait in the spool"
  [ "$(awk '/^VmHWM/ {print $2}' "/proc/$(daemon_of "$MNT")/status")" -lt $((320 << 10)) ] ||
    wrong "the daemon took $(awk '/^VmHWM/ {print $2}' "/proc/$(daemon_of "$MNT")/status") KiB"
  # Data in the spool is private and sealed, and reads return it.
  spool=$(spools)
  [ "$(stat -c %a "$spool")" = 700 ] || wrong "the spool has mode $(stat -c %a "$spool")"
  [ -z "$(find "$spool" -type f ! -perm 600)" ] || wrong "files of the spool can be read by others"
  ! grep -rqF 'that must stay sealed' "$spool" || wrong "the spool holds raw data"
  cmp "$SUITE_TMP/file" "$MNT/file"
  sleep 10
  began=$(now_ms)
  store_is_back
  exits 0 bkfs snapshot "$MNT" after
  row "snapshot after the outage" "$(seconds_since "$began") s"
  [ "$(metric spool_files)" = 0 ] || wait_for 10 test "$(metric spool_files)" = 0 ||
    wrong "$(metric spool_files) files stay in the spool after a commit"
  exits 0 bkfs umount "$MNT"
  wait_for 20 test -z "$(spools)"
  [ -z "$(spools)" ] || wrong "a drained unmount leaves $(spools)"
  machine two
  exits 0 bkfs restore "$URL" after "$SUITE_TMP/restored"
  cmp "$SUITE_TMP/file" "$SUITE_TMP/restored/file"
  rm -r "$SUITE_TMP/restored"
}

# writing_through SECONDS NAME: copies the file while the store is away for so long, which exceeds
# the spool.
writing_through() {
  local writer status=0
  store_is_gone
  cp "$SUITE_TMP/file" "$MNT/$2" 2>"$SUITE_TMP/writer" &
  writer=$!
  sleep "$1"
  kill -0 $writer 2>/dev/null || wrong "the writer did not wait: $(cat "$SUITE_TMP/writer")"
  store_is_back
  wait $writer || status=$?
  [ $status = 0 ] || wrong "the writer failed: $(cat "$SUITE_TMP/writer")"
  exits 0 bkfs snapshot "$MNT" "$2"
  exits 0 bkfs umount "$MNT"
}
full_spool_slows() {
  machine one
  exits 0 mount_at "$URL" "$MNT" -o memory=128M,spool_size=64M,timeout=120
  noise "$SUITE_TMP/file" 400
  writing_through 15 full
  machine two
  exits 0 bkfs restore "$URL" full:/full "$SUITE_TMP/restored"
  cmp "$SUITE_TMP/file" "$SUITE_TMP/restored"
  rm "$SUITE_TMP/restored"
}
full_disk_slows() {
  machine one
  mkdir -p "$MACHINE/state/bkfs/spool"
  mount -t tmpfs -o size=48m,mode=700 none "$MACHINE/state/bkfs/spool"
  at_end "umount -l '$MACHINE/state/bkfs/spool'"
  exits 0 mount_at "$URL" "$MNT" -o memory=128M,spool_size=1G,timeout=120
  noise "$SUITE_TMP/file" 400
  writing_through 15 disk
  umount "$MACHINE/state/bkfs/spool"
  machine two
  exits 0 bkfs restore "$URL" disk:/disk "$SUITE_TMP/restored"
  cmp "$SUITE_TMP/file" "$SUITE_TMP/restored"
  rm "$SUITE_TMP/restored"
}
killed_with_a_spool() {
  machine one
  exits 0 mount_at "$URL" "$MNT" -o memory=128M,spool_size=1G,timeout=120,close=async
  printf kept | dd of="$MNT/kept" conv=fsync status=none
  noise "$SUITE_TMP/file" 300
  store_is_gone
  cp "$SUITE_TMP/file" "$MNT/lost"
  [ "$(metric spool_waiting_bytes)" -gt 0 ] || wrong "the spool was empty: this proves nothing"
  kill -KILL "$(daemon_of "$MNT")"
  umount -i -l "$MNT"
  store_is_back
  exits 0 mount_at "$URL" "$MNT" -o memory=128M
  says 'that no journal names'
  [ "$(cat "$MNT/kept")" = kept ] || wrong "what was fsynced is gone"
  exits 0 bkfs umount "$MNT"
  wait_for 20 test -z "$(spools)"
  [ -z "$(spools)" ] || wrong "$(spools) stays"
}
# killed_in_an_outage: kills the daemon while the store is away; the store comes back, and the
# volume is mounted again.
killed_in_an_outage() {
  [ "$(metric spool_waiting_bytes)" -gt 0 ] || wrong "the spool was empty: this proves nothing"
  kill -KILL "$(daemon_of "$MNT")"
  umount -i -l "$MNT"
  store_is_back
  exits 0 mount_at "$URL" "$MNT" -o memory=128M
  says 'replaying [0-9]+ objects' 'replayed'
}
drained() {
  exits 0 bkfs umount "$MNT"
  wait_for 20 test -z "$(spools)"
  [ -z "$(spools)" ] || wrong "$(spools) stays"
}
local_fsync_survives() {
  local began
  machine one
  exits 0 mount_at "$URL" "$MNT" -o memory=128M,spool_size=1G,timeout=120,fsync=local
  says 'not its loss'
  noise "$SUITE_TMP/file" 100
  store_is_gone
  began=$(now_ms)
  mkdir "$MNT/directory"
  dd if="$SUITE_TMP/file" of="$MNT/directory/synced" bs=1M conv=fsync status=none
  for name in a b c; do
    printf '%s' "$name" | dd of="$MNT/directory/$name" conv=fsync status=none
  done
  row "fsync=local of 100 MiB without a store" "$(seconds_since "$began") s"
  killed_in_an_outage
  cmp "$SUITE_TMP/file" "$MNT/directory/synced"
  [ "$(cat "$MNT/directory/"{a,b,c})" = abc ] ||
    wrong "small files: $(cat "$MNT/directory/"{a,b,c})"
  # The data is in the bucket by now, and a second machine sees it.
  exits 0 bkfs snapshot "$MNT" replayed
  drained
  machine two
  exits 0 bkfs restore "$URL" replayed:/directory "$SUITE_TMP/restored"
  cmp "$SUITE_TMP/file" "$SUITE_TMP/restored/synced"
  rm -r "$SUITE_TMP/restored"
}
local_fsync_arrives() {
  machine one
  exits 0 mount_at "$URL" "$MNT" -o memory=128M,spool_size=1G,timeout=120,fsync=local
  for name in $(seq 20); do
    printf '%s' "$name" | dd of="$MNT/arrives-$name" conv=fsync status=none
  done
  wait_for 20 test "$(metric spool_waiting_bytes)" = 0 ||
    wrong "$(metric spool_waiting_bytes) bytes wait though the store answers"
  drained
  machine two
  exits 0 mount_at "$URL" "$MNT"
  [ "$(cat "$MNT/arrives-20")" = 20 ] || wrong "the last file holds '$(cat "$MNT/arrives-20")'"
  exits 0 bkfs umount "$MNT"
}
journal_is_kept() { find "$(spools)" -name '*.journal+*' | grep -q .; }
close_is_content_with_the_spool() {
  local began
  machine one
  exits 0 mount_at "$URL" "$MNT" -o memory=128M,spool_size=1G,timeout=120
  noise "$SUITE_TMP/file" 60
  store_is_gone
  began=$(now_ms)
  cp "$SUITE_TMP/file" "$MNT/closed"
  row "close of 60 MiB without a store" "$(seconds_since "$began") s"
  # The spool keeps the journal that names the file a few seconds later.
  wait_for 30 journal_is_kept || wrong "no journal in the spool"
  killed_in_an_outage
  cmp "$SUITE_TMP/file" "$MNT/closed"
  drained
}
# SIGTERM while the store is away: the daemon keeps what was written in the spool and says so, and
# the next mount uploads it. No fsync was called.
told_to_end() {
  local pid status=0
  machine one
  noise "$SUITE_TMP/file" 60
  foreground_mount "spool_size=1G,timeout=120,close=async,drain=3"
  mkdir "$MNT/ended"
  store_is_gone
  cp "$SUITE_TMP/file" "$MNT/ended/large"
  printf 'the end' >"$MNT/ended/small"
  kill -TERM "$(daemon_of "$MNT")"
  gone $pid 60 || wrong "the daemon does not end"
  wait $pid || status=$?
  cat "$SUITE_TMP/daemon"
  [ $status = 1 ] || wrong "it ends with $status"
  cp "$SUITE_TMP/daemon" "$SUITE_TMP/output"
  says 'stays in the spool' 'MiB stay in the spool'
  store_is_back
  exits 0 mount_at "$URL" "$MNT" -o memory=128M
  says 'replaying [0-9]+ objects'
  cmp "$SUITE_TMP/file" "$MNT/ended/large"
  [ "$(cat "$MNT/ended/small")" = 'the end' ] || wrong "small: $(cat "$MNT/ended/small")"
  drained
}
# With a process in fsync, and a store that does not answer for longer than drain=.
told_to_end_in_fsync() {
  local pid began waiting status=0
  machine one
  foreground_mount "spool_size=1G,drain=3"
  mkdir "$MNT/fsync"
  sync "$MNT/fsync"
  store_is_gone
  printf 'closed last' >"$MNT/fsync/closed"
  dd if=/dev/zero of="$MNT/fsync/synced" bs=4k count=1 conv=fsync status=none 2>"$SUITE_TMP/dd" &
  waiting=$!
  sleep 1
  began=$(now_ms)
  kill -TERM "$(daemon_of "$MNT")"
  gone $pid 13 || wrong "the daemon does not end"
  row "told to end with a process in fsync, drain=3" "$(seconds_since "$began") s"
  wait $pid || status=$?
  [ $status = 1 ] || wrong "it ends with $status"
  wait $waiting && wrong "fsync returned 0"
  store_is_back
  exits 0 mount_at "$URL" "$MNT" -o memory=128M
  [ "$(cat "$MNT/fsync/closed")" = 'closed last' ] || wrong "what was closed is lost"
  drained
}
# The third of three signals does not wait for the store: data that is not in the bucket is in the
# spool.
told_to_end_three_times() {
  local pid began status=0
  machine one
  foreground_mount "spool_size=1G,timeout=120,close=async,drain=600"
  mkdir "$MNT/thrice"
  noise "$SUITE_TMP/file" 20
  store_is_gone
  cp "$SUITE_TMP/file" "$MNT/thrice/large"
  printf 'the end' >"$MNT/thrice/small"
  # An open file keeps the first signal from unmounting.
  exec 7<"$MNT/thrice/small"
  local daemon
  daemon=$(daemon_of "$MNT")
  for _ in 1 2; do kill -TERM "$daemon"; sleep 0.7; done
  kill -0 "$daemon" || wrong "it does not wait for drain="
  began=$(now_ms)
  kill -TERM "$daemon"
  gone $pid 10 || wrong "the daemon does not end"
  exec 7<&-
  row "told to end by a third signal without a store" "$(seconds_since "$began") s"
  wait $pid || status=$?
  store_is_back
  cp "$SUITE_TMP/daemon" "$SUITE_TMP/output"
  cat "$SUITE_TMP/output"
  [ $status = 1 ] || wrong "it ends with $status"
  says 'stays? in the spool'
  says_not 'lost with this mount'
  exits 0 mount_at "$URL" "$MNT" -o memory=128M
  cmp "$SUITE_TMP/file" "$MNT/thrice/large"
  [ "$(cat "$MNT/thrice/small")" = 'the end' ] || wrong "small: $(cat "$MNT/thrice/small")"
  drained
}
# With a store that does not answer, and a spool that is too small for the accepted data.
told_to_end_without_room() {
  local pid status=0
  machine one
  foreground_mount "spool_size=64M,drain=3"
  mkdir "$MNT/room"
  sync "$MNT/room"
  noise "$SUITE_TMP/file" 160
  store_is_gone
  cp "$SUITE_TMP/file" "$MNT/room/large" 2>"$SUITE_TMP/cp" &
  remember_pid $!
  sleep 3
  kill -TERM "$(daemon_of "$MNT")"
  gone $pid 13 || wrong "the daemon does not end"
  wait $pid || status=$?
  store_is_back
  cp "$SUITE_TMP/daemon" "$SUITE_TMP/output"
  cat "$SUITE_TMP/output"
  [ $status = 1 ] || wrong "it ends with $status"
  says 'room/large' 'lost with this mount'
  exits 0 mount_at "$URL" "$MNT" -o memory=128M
  drained
}
ended_by_name() {
  local session
  machine one
  exits 0 mount_at "$URL" "$MNT" -o memory=128M,spool_size=1G,fsync=local
  mkdir "$MNT/by-name"
  sync "$MNT/by-name"
  noise "$SUITE_TMP/file" 4
  store_is_gone
  printf 'only here' | dd of="$MNT/by-name/file" conv=fsync status=none
  dd if="$SUITE_TMP/file" of="$MNT/by-name/large" bs=1M conv=fsync status=none
  [ "$(metric spool_waiting_bytes)" -gt 0 ] || wrong "the spool was empty: this proves nothing"
  kill -KILL "$(daemon_of "$MNT")"
  umount -i -l "$MNT"
  store_is_back
  session=$(bkfs session list "$URL" --json |
    python3 -c 'import json, sys; print(json.loads(sys.stdin.readline())["session"])')
  exits 0 bkfs session end "$URL" "$session"
  [ -z "$(spools)" ] || wrong "$(spools) stays"
  machine two
  exits 0 mount_at "$URL" "$MNT" -o ro
  [ "$(cat "$MNT/by-name/file")" = 'only here' ] || wrong "what fsync=local acknowledged is lost"
  cmp "$SUITE_TMP/file" "$MNT/by-name/large"
  exits 0 bkfs umount "$MNT"
}
# A spool that cannot be read: the session stays until the spool is readable again.
cannot_be_brought() {
  local session spool pack kept
  machine three
  exits 0 mount_at "$URL" "$MNT" -o memory=128M,spool_size=1G,fsync=local,volume=stays,create
  mkdir "$MNT/stays"
  sync "$MNT/stays"
  noise "$SUITE_TMP/file" 4
  store_is_gone
  dd if="$SUITE_TMP/file" of="$MNT/stays/large" bs=1M conv=fsync status=none
  [ "$(metric spool_waiting_bytes)" -gt 0 ] || wrong "the spool was empty: this proves nothing"
  kill -KILL "$(daemon_of "$MNT")"
  umount -i -l "$MNT"
  store_is_back
  spool=$(spools)
  session=$(basename "$spool")
  pack=$(find "$spool" -name '*.data+*' | head -n 1)
  # Reading the pack fails, as on a failing disk: a directory has its name.
  mv "$pack" "$SUITE_TMP/pack"
  mkdir "$pack"
  kept=$(find "$spool" | sort)
  exits 13 bkfs session end "$URL" "$session"
  clear_message
  says "$spool" 'Is a directory'
  exits 13 bkfs session end --force "$URL" "$session"
  says 'it stays as it is'
  [ "$(find "$spool" | sort)" = "$kept" ] || wrong "the spool has changed"
  exits 0 bkfs session list "$URL"
  says "$session +live"
  # The disk can be read again.
  rmdir "$pack"
  mv "$SUITE_TMP/pack" "$pack"
  exits 0 bkfs session end "$URL" "$session"
  [ -z "$(spools)" ] || wrong "$(spools) stays"
  machine two
  exits 0 mount_at "$URL" "$MNT" -o ro,volume=stays
  cmp "$SUITE_TMP/file" "$MNT/stays/large"
  exits 0 bkfs umount "$MNT"
}
not_on_the_mount() {
  machine one
  cp "$MACHINE/run" "$MACHINE/run.kept"
  sed -i "s|XDG_STATE_HOME='[^']*'|XDG_STATE_HOME='$MNT/state'|" "$MACHINE/run"
  exits 1 mount_at "$URL" "$MNT"
  says 'on the mount .* itself'
  not_mounted "$MNT"
  mv "$MACHINE/run.kept" "$MACHINE/run"
}

# --- a slow uplink, with a timeout that no transfer ends within

# uplink FAULT RATE BYTES [FIRST]: mounts with timeout=8, and a proxy that does this to packs at so
# many bytes per second, and FIRST to the first one. The file has so many bytes. Sets `pid` to the
# daemon.
uplink() {
  machine one
  AWS_ENDPOINT_URL=$FAULTY bkfs mount -f "$URL" "$MNT" \
    -o "cache_dir=$MACHINE/bkfs-cache,memory=128M,timeout=8,spool_size=0,close=async" \
    2>"$SUITE_TMP/daemon" &
  pid=$!
  remember_pid $pid
  wait_for 30 is_mounted "$MNT" || wrong "it does not come up: $(cat "$SUITE_TMP/daemon")"
  head -c "$3" /dev/urandom >"$SUITE_TMP/file"
  : >"$FAULTS/struck"
  local packs="\"rate\": $2, \"method\": \"PUT\", \"class\": [\"data\"]"
  faults "{\"strikes\": [{\"what\": \"${4:-$1}\", \"most\": 1, $packs}, {\"what\": \"$1\", $packs}]}"
}
# synced NAME: writes the file and calls fsync. Sets `took` to the seconds of the fsync.
synced() {
  local status=0 began
  cp "$SUITE_TMP/file" "$MNT/$1"
  began=$SECONDS
  sync "$MNT/$1" 2>"$SUITE_TMP/sync" || status=$?
  took=$((SECONDS - began))
  return $status
}
# arrived NAME: the file is in a snapshot, and the daemon ends well. A request that the store has
# swallowed may wait for its end first.
arrived() {
  faults '{}'
  wait_for 60 bkfs snapshot "$MNT" "$1" || wrong "the file does not arrive"
  exits 0 bkfs umount "$MNT"
  gone $pid 20 || wrong "the daemon does not end"
  exits 0 bkfs restore "$URL" "$1:/$1" "$SUITE_TMP/restored"
  cmp "$SUITE_TMP/file" "$SUITE_TMP/restored"
  rm "$SUITE_TMP/restored"
}
slow_uplink() {
  local pid took
  uplink slow 200000 4800000
  synced slow || wrong "fsync failed after $took s: $(cat "$SUITE_TMP/sync" "$SUITE_TMP/daemon")"
  [ "$took" -ge 20 ] || wrong "fsync took $took s: the uplink was not slow"
  # While the last bytes are in the buffers, a second request may try whether the store is alive.
  [ "$(struck)" -le 2 ] || wrong "the pack was sent $(struck) times"
  row "fsync of 4.8 MB at 200 kB/s with timeout=8" "$took s"
  arrived slow
}
broken_uplink() {
  local pid took
  uplink slow 200000 4800000 break
  synced broken || wrong "fsync failed after $took s: $(cat "$SUITE_TMP/sync" "$SUITE_TMP/daemon")"
  # The half that was lost took longer than timeout=, and so did the whole pack after it.
  [ "$took" -ge 30 ] || wrong "fsync took $took s: the uplink was not slow"
  grep -q break "$FAULTS/struck" || wrong "no connection broke"
  row "the same, when the connection breaks in the middle" "$took s"
  arrived broken
}
# swallowed RATE SECONDS: fsync fails within so many seconds, and nothing is lost.
swallowed() {
  local pid took name=swallowed-$1
  uplink swallow "$1" 2400000
  ! synced "$name" || wrong "fsync returned 0"
  [ "$took" -ge 7 ] && [ "$took" -le "$2" ] || wrong "fsync failed after $took s"
  grep -q 'Input/output error' "$SUITE_TMP/sync" || wrong "$(cat "$SUITE_TMP/sync")"
  [ "$(struck)" -ge 1 ] || wrong "no pack was sent"
  row "fsync of a pack that is swallowed at $1 B/s with timeout=8" "$took s"
  arrived "$name"
}

# --- reports about a failing store, and how long a mount bears it ---------------------------------

# store_says EXPRESSION: the expression holds for .bkfs/status.
store_says() {
  python3 - "$MNT/.bkfs/status" "$1" <<'P' 2>/dev/null
import json, sys
status = json.load(open(sys.argv[1]))
assert eval(sys.argv[2], {"status": status, "store": status["store"]})
P
}
# trouble CAUSE RULES: all PUT requests fail with this cause for 8 s, under a mount that bears 30 s.
# The mount reports it within 5 s, and loses time only.
trouble() {
  local cause=$1 rules=$2 pid status=0
  machine one
  AWS_ENDPOINT_URL=$FAULTY bkfs mount -f "$URL" "$MNT" \
    -o "cache_dir=$MACHINE/bkfs-cache,memory=128M,timeout=30,spool_size=0" 2>"$SUITE_TMP/daemon" &
  pid=$!
  remember_pid $pid
  wait_for 30 is_mounted "$MNT"
  store_says 'store["answers"] and status["health"] == "healthy"' ||
    wrong "not healthy: $(cat "$MNT/.bkfs/status")"
  noise "$SUITE_TMP/file" 3
  faults "$rules"
  (cp "$SUITE_TMP/file" "$MNT/$cause" && bkfs snapshot "$MNT" "trouble-$cause") \
    >"$SUITE_TMP/writer" 2>&1 &
  local writer=$!
  wait_for 6 store_says "store.get('cause') == '$cause' and status['health'] == 'waiting' \
    and 0 < store['fails_in_seconds'] < 30 and store['error']" ||
    wrong "not said: $(cat "$MNT/.bkfs/status")"
  exits 0 bkfs status "$MNT"
  says 'health +waiting' "store +has not answered as needed since .*: $cause" 'waiting .*fail in'
  grep -q '^bkfs_store_outage_seconds{.*} [1-9]' "$MNT/.bkfs/metrics" || wrong "metrics do not say it"
  wait_for 3 grep -q "has not answered as needed .*($cause)" "$SUITE_TMP/daemon" ||
    wrong "the log does not say it: $(cat "$SUITE_TMP/daemon")"
  kill -0 $writer || wrong "it does not wait: $(cat "$SUITE_TMP/writer")"
  sleep 3
  faults '{}'
  wait $writer || status=$?
  [ $status = 0 ] || wrong "the writer failed: $(cat "$SUITE_TMP/writer")"
  wait_for 15 store_says 'store["answers"]' || wrong "it is over, and not said"
  wait_for 15 grep -q 'well again' "$SUITE_TMP/daemon" ||
    wrong "the log does not say that it is over: $(cat "$SUITE_TMP/daemon")"
  exits 0 bkfs umount "$MNT"
  gone $pid 20 || wrong "the daemon does not end"
  exits 0 bkfs restore "$URL" "trouble-$cause:/$cause" "$SUITE_TMP/restored"
  cmp "$SUITE_TMP/file" "$SUITE_TMP/restored"
  rm -r "$SUITE_TMP/restored"
}
full_bucket() { trouble full '{"fail_percent": 100, "status": 507, "only": {"method": "PUT"}}'; }
lost_bucket() {
  trouble no-bucket '{"fail_percent": 100, "status": 404, "only": {"method": "PUT"}}'
}
refused_connections() { trouble unreachable '{"refuse": true}'; }
silence() { trouble silence '{"hang": true}'; }

start_faulty "$BKFS_TEST_S3_MINIO"
case_of "an outage that the spool absorbs is invisible" outage_is_invisible
case_of "an uplink on which no transfer ends within timeout= fails nothing" slow_uplink
case_of "a connection that breaks after timeout= in the middle of a pack fails nothing" broken_uplink
case_of "a store that takes packs at once and never answers fails an fsync in time" \
  swallowed 100000000 13
case_of "a store that takes packs slowly and never answers fails an fsync in time" \
  swallowed 200000 33
case_of "a full bucket costs time only, and is told within seconds" full_bucket
case_of "a bucket that is not there for a while costs time only, and is told" lost_bucket
case_of "connections that break cost time only, and are told" refused_connections
case_of "silence costs time only, and is told" silence
case_of "a full spool slows writers and fails nothing" full_spool_slows
case_of "a full disk under the spool slows writers and fails nothing" full_disk_slows
case_of "a daemon killed with a full spool" killed_with_a_spool
case_of "fsync=local survives the daemon, in an outage" local_fsync_survives
case_of "fsync=local arrives in the bucket by itself" local_fsync_arrives
case_of "close is content with the spool, and what it kept is replayed" \
  close_is_content_with_the_spool
case_of "a mount that is told to end while the store is away leaves the rest in the spool" \
  told_to_end
case_of "a mount that is told to end with a process in fsync ends in time" told_to_end_in_fsync
case_of "a third signal ends a mount at once, with what the store did not take in the spool" \
  told_to_end_three_times
case_of "what neither store nor spool took is named by a mount that ends" told_to_end_without_room
case_of "a session that is ended by name brings what this machine's spool holds" ended_by_name
case_of "a session whose spool cannot be brought is not ended by name" cannot_be_brought
case_of "a spool is never on its own mount" not_on_the_mount
print_table
exit 0
