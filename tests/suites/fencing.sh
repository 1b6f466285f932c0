#!/usr/bin/env bash
# about: one writer per volume: refusal with the holder's name, takeover of the dead, --steal, a
# about: woken holder that can no longer commit
# needs: program
# limit: 600
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

URL=$SUITE_TMP/bucket A=$SUITE_TMP/mount-a B=$SUITE_TMP/mount-b C=$SUITE_TMP/mount-c
mkdir -p "$A" "$B" "$C"
for place in "$A" "$B" "$C"; do at_end "leave_mount '$place'"; done

machine a
# on MACHINE COMMAND…
on() { machine "$1" && "${@:2}"; }
# fsynced FILE TEXT: writes the text and syncs it to the bucket.
fsynced() { printf '%s' "$2" | dd of="$1" conv=fsync status=none; }
holds() { [ "$(cat "$1")" = "$2" ] || wrong "$1 holds '$(cat "$1")', not '$2'"; }
kill_daemon() {
  local pid
  pid=$(daemon_of "$1")
  [ -n "$pid" ] || wrong "no daemon serves $1"
  kill -KILL "$pid"
  gone "$pid" 10
  umount -i -l "$1" || true
}

first_holds() {
  exits 0 on a mount_at "$URL" "$A" --init --no-encryption
  fsynced "$A/kept" "by a"
}
second_is_refused() {
  exits 11 on b mount_at "$URL" "$B"
  clear_message
  # The message names the holder, and each of the three ways to continue.
  says "$(hostname)" 'volume=' '\bro\b' '--steal'
  not_mounted "$B" || wrong "mounted all the same"
  holds "$A/kept" "by a"
}
readers_and_other_volumes_work() {
  exits 0 on b mount_at "$URL" "$B" -o ro
  exits 0 on b bkfs umount "$B"
  exits 0 on b mount_at "$URL" "$B" -o volume=other,create
  fsynced "$B/theirs" "by b"
  [ ! -e "$B/kept" ] || wrong "the volumes are one"
  exits 0 on b bkfs umount "$B"
}
# On the same boot and in the same pid namespace, a new mount replaces a holder whose process is
# gone at once, and has what the holder fsynced.
dead_one_is_replaced_at_once() {
  local began
  fsynced "$A/kept" "by a before it died"
  mkdir "$A/directory"
  fsynced "$A/directory/new" "named in a new directory"
  kill_daemon "$A"
  began=$(now_ms)
  exits 0 on b mount_at "$URL" "$B"
  [ $(($(now_ms) - began)) -lt 10000 ] || wrong "took $(seconds_since "$began") s"
  holds "$B/kept" "by a before it died"
  holds "$B/directory/new" "named in a new directory"
}
# A stopped holder still holds the volume: nothing on this machine proves that it is dead.
stopped_one_holds() {
  kill -STOP "$(daemon_of "$B")"
  exits 11 on c mount_at "$URL" "$C"
  says '--steal'
}
stolen() {
  exits 0 on c mount_at "$URL" "$C" --steal
  holds "$C/kept" "by a before it died"
  fsynced "$C/kept" "by c"
}
woken_one_cannot_commit() {
  local pid
  pid=$(daemon_of "$B")
  kill -CONT "$pid"
  # Memory may still take the first write; fsync must fail, and from then on every write fails.
  fails_with 'Input/output error|Stale' dd if=/dev/zero of="$B/late" bs=4k count=1 conv=fsync
  fails_with 'Input/output error|Stale' dd if=/dev/zero of="$B/later" bs=4k count=1 conv=fsync
  set +e
  on b bkfs snapshot "$B" too-late >"$SUITE_TMP/output" 2>&1 &&
    wrong "a fenced holder made a snapshot"
  set -e
  cat "$SUITE_TMP/output"
  clear_message
  holds "$C/kept" "by c"
  [ ! -e "$C/late" ] || wrong "a fenced write is seen"
}
fenced_unmount_says_so() {
  local status=0
  on b bkfs umount "$B" >"$SUITE_TMP/output" 2>&1 || status=$?
  cat "$SUITE_TMP/output"
  [ $status != 0 ] || wrong "the fenced holder's unmount claims success"
  clear_message
  not_mounted "$B" || umount -i -l "$B"
}
third_still_writes() {
  exits 0 on c bkfs snapshot "$C" after
  exits 0 on c bkfs umount "$C"
  exits 0 on d mount_at "$URL" "$C"
  holds "$C/kept" "by c"
  holds "$C/.snapshots/after/kept" "by c"
  exits 0 on d bkfs umount "$C"
}
# In another pid namespace a process id proves nothing: a takeover waits until the heartbeat has
# stood still for 30 s.
dead_elsewhere_is_replaced_after_its_heartbeat() {
  local began waited pid inner
  machine far
  # The namespace ends with its first process, and kills the daemon as a crash does.
  unshare --pid --fork --mount-proc bash -c \
    "'$MACHINE/run' '$BKFS_BIN' mount '$URL' '$A' -o 'cache_dir=$MACHINE/bkfs-cache' &&
      printf far | dd of='$A/far' conv=fsync status=none &&
      touch '$SUITE_TMP/far-ready' && exec sleep 1000" &
  pid=$!
  remember_pid $pid
  wait_for 60 test -e "$SUITE_TMP/far-ready" ||
    wrong "the mount in another namespace did not come up"
  for inner in $(pgrep -P "$pid"); do kill -KILL "$inner"; done
  gone "$pid" 10
  umount -i -l "$A" 2>/dev/null || true
  began=$(now_ms)
  # The mount is refused or waits. In both cases the volume is free soon after its heartbeat has
  # stood still for 30 s.
  until on b mount_at "$URL" "$B" >"$SUITE_TMP/output" 2>&1; do
    [ $(($(now_ms) - began)) -lt 90000 ] || wrong "not free after 90 s: $(cat "$SUITE_TMP/output")"
    sleep 1
  done
  waited=$(($(now_ms) - began))
  echo "free after $waited ms"
  [ "$waited" -ge 20000 ] || wrong "replaced after $waited ms, though nothing proved it dead"
  holds "$B/far" far
  exits 0 on b bkfs umount "$B"
}

case_of "a first mount holds the volume" first_holds || exit 1
case_of "a second writable mount is refused with exit code 11" second_is_refused
case_of "read-only mounts and other volumes always work" readers_and_other_volumes_work
case_of "a holder whose process is gone is replaced at once" dead_one_is_replaced_at_once
case_of "a stopped holder still holds" stopped_one_holds
case_of "--steal takes the volume" stolen
case_of "the stolen holder, woken, commits nothing and its writes fail" woken_one_cannot_commit
case_of "its unmount says that something is lost" fenced_unmount_says_so
case_of "the new holder goes on" third_still_writes
case_of "a holder in another pid namespace is replaced after its heartbeat stood still" \
  dead_elsewhere_is_replaced_after_its_heartbeat
exit 0
