#!/usr/bin/env bash
# about: what was accepted and cannot be stored is never lost silently: poisoned mounts, lost files
# about: by name, --acknowledge, --discard, bkfs run
# needs: program
# limit: 300
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
mkdir -p "$MNT"
at_end "leave_mount '$MNT'"
# A bucket that accepts nothing more, through an error that no retry removes: files replace its
# directories.
CLOSED='data meta journal'
# Exchanges two names in one step, so that a mount that uploads meanwhile creates no directory
# between.
exchange() {
  python3 - "$1" "$2" <<'P'
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
one, two = (os.fsencode(name) for name in sys.argv[1:])
at_cwd, rename_exchange = -100, 2
if libc.renameat2(at_cwd, one, at_cwd, two, rename_exchange) != 0:
    sys.exit(f"exchange {one} and {two}: {os.strerror(ctypes.get_errno())}")
P
}
refuse_packs() {
  local name
  for name in $CLOSED; do
    mkdir -p "$URL/$name"
    touch "$URL/$name.away"
    exchange "$URL/$name" "$URL/$name.away"
  done
}
accept_packs() {
  local name
  for name in $CLOSED; do
    [ -e "$URL/$name.away" ] || continue
    exchange "$URL/$name" "$URL/$name.away"
    rm "$URL/$name.away"
  done
}
at_end accept_packs

status_is() {
  bkfs status --json "$MNT" >"$SUITE_TMP/status.json"
  python3 - "$SUITE_TMP/status.json" "$1" <<'P'
import json, sys
status = json.load(open(sys.argv[1]))
names = {
    "status": status,
    "lost": [file["path"] for file in status["lost_files"]],
    "pending": [file["path"] for file in status.get("pending_files", [])],
}
assert eval(sys.argv[2], names), f"not {sys.argv[2]}: {status}"
P
}
is_poisoned() { status_is 'not status["healthy"]' 2>/dev/null; }

# --- bkfs run -------------------------------------------------------------------------------------

run_makes_a_snapshot() {
  exits 0 bkfs run --name ran --tag nightly "$MNT" -- sh \
    -c "echo from the tool; echo data >'$MNT/file'"
  says 'from the tool' 'snapshot ran'
  [ "$(cat "$MNT/.snapshots/ran/file")" = data ] ||
    wrong "the snapshot does not hold what the tool wrote"
  exits 0 bkfs run --json "$MNT" -- true
  says '"generation"'
}
run_passes_the_tools_status_on() {
  local before after
  before=$(bkfs snapshots --json "$MNT" | wc -l)
  exits 7 bkfs run "$MNT" -- sh -c 'exit 7'
  exits 143 bkfs run "$MNT" -- sh -c 'kill -TERM $$'
  exits 127 bkfs run "$MNT" -- /no/such/tool
  says '/no/such/tool'
  exits 126 bkfs run "$MNT" -- /etc/passwd
  after=$(bkfs snapshots --json "$MNT" | wc -l)
  [ "$before" = "$after" ] || wrong "a tool that failed made a snapshot"
}
run_says_when_bkfs_failed() {
  exits 125 bkfs run "$SUITE_TMP" -- true
  says 'not a bkfs mount'
  exits 125 bkfs run --name ran "$MNT" -- true
  says 'ran'
  exits 2 bkfs run "$MNT"
}
run_ends_with_its_tool() {
  local pid tool
  rm -f "$SUITE_TMP/tool"
  "$MACHINE/run" "$BKFS_BIN" run "$MNT" -- sh -c "echo \$\$ >'$SUITE_TMP/tool'; exec sleep 1000" &
  pid=$!
  remember_pid $pid
  wait_for 20 test -s "$SUITE_TMP/tool"
  tool=$(cat "$SUITE_TMP/tool")
  kill -TERM "$(pgrep -P "$pid" | head -n 1)"
  gone "$tool" 10 || wrong "the tool lives on"
  gone "$pid" 10 || wrong "bkfs run lives on"
}
# What is below nohup(1) ignores SIGHUP, and so does what it starts.
run_survives_a_hangup_below_nohup() {
  local pid tool status=0
  rm -f "$SUITE_TMP/tool"
  mkfifo "$SUITE_TMP/held"
  # shellcheck disable=SC2016
  "$MACHINE/run" sh -c 'trap "" HUP; exec "$@"' sh "$BKFS_BIN" run --name hung-up "$MNT" -- \
    sh -c "echo \$\$ >'$SUITE_TMP/tool'; read -r _ <'$SUITE_TMP/held'" &
  pid=$!
  remember_pid $pid
  wait_for 20 test -s "$SUITE_TMP/tool"
  tool=$(cat "$SUITE_TMP/tool")
  kill -HUP "$tool" "$(pgrep -P "$pid" | head -n 1)"
  sleep 0.5
  echo go >"$SUITE_TMP/held"
  wait "$pid" || status=$?
  rm "$SUITE_TMP/held"
  [ "$status" = 0 ] || wrong "it ended with $status"
  test -d "$MNT/.snapshots/hung-up"
}

# --- a store that takes nothing any more ----------------------------------------------------------

poisoned_and_named() {
  mkdir "$MNT/directory"
  echo kept >"$MNT/directory/kept"
  head -c 100000 /dev/urandom >"$MNT/directory/changed"
  exits 0 bkfs snapshot "$MNT" before
  status_is 'status["healthy"] and status["losses"] == 0 and lost == [] and pending == []'
  refuse_packs
  # The mount accepts small files and changes without waiting, and close returns at once.
  printf changed | dd of="$MNT/directory/changed" bs=1 seek=500 conv=notrunc status=none
  mv "$MNT/file" "$MNT/renamed"
  head -c 100000 /dev/urandom >"$MNT/directory/lost"
  fails_with 'Input/output error' dd if=/dev/zero of="$MNT/synced" bs=4k count=1 conv=fsync
  exits 1 bkfs snapshot "$MNT" refused
  clear_message
  wait_for 60 is_poisoned || wrong "the mount does not say that it failed"
  # The daemon writes the list after the mount has failed.
  wait_for 20 status_is 'lost'
  cat "$SUITE_TMP/status.json"
  status_is 'status["losses"] == 1 and (
    {"/directory/lost", "/directory/changed", "/synced", "/renamed"} <= set(lost))'
  status_is '"/directory/kept" not in lost and status["failure"]'
  exits 0 bkfs status "$MNT"
  says 'FAILED' 'lost .*/directory/lost'
}
everything_fails_while_poisoned() {
  # The mount does not recover by itself, even after the store accepts everything again.
  accept_packs
  sleep 4
  fails_with 'Input/output error' dd if=/dev/zero of="$MNT/later" bs=4k count=1
  fails_with 'Input/output error' mkdir "$MNT/later-directory"
  fails_with 'Input/output error' python3 \
    -c "import os; os.fsync(os.open('$MNT/directory/kept', os.O_RDONLY))"
  exits 1 bkfs snapshot "$MNT" poisoned
  clear_message
  fails_with 'Input/output error' mkdir "$MNT/.snapshots/poisoned"
  exits 125 bkfs run "$MNT" -- true
  says 'bkfs status'
  exits 1 bkfs umount "$MNT"
  says '--discard'
  is_mounted "$MNT" || wrong "unmounted all the same"
  # Reads go on.
  [ "$(cat "$MNT/directory/kept")" = kept ] || wrong "what is in the bucket cannot be read"
  is_poisoned || wrong "it recovered by itself"
}
acknowledged() {
  # Descriptors that stay open: the kernel must drop what it has cached of lost files.
  exec 7<"$MNT/directory/kept" 8<"$MNT/directory/lost"
  exits 0 bkfs status --acknowledge "$MNT"
  says 'lost .*/directory/lost' 'acknowledged'
  status_is 'status["healthy"] and status["losses"] == 1 and lost == []'
  [ "$(cat <&7)" = kept ] || wrong "an open file of the last commit cannot be read"
  ! cat <&8 >/dev/null 2>&1 || wrong "a lost file is read on"
  exec 7<&- 8<&-
  [ ! -e "$MNT/directory/lost" ] && [ ! -e "$MNT/synced" ] && [ ! -e "$MNT/renamed" ] ||
    wrong "a lost file is shown"
  [ "$(cat "$MNT/file")" = data ] || wrong "a lost rename is half undone"
  cmp "$MNT/directory/changed" "$MNT/.snapshots/before/directory/changed"
  exits 0 bkfs status --acknowledge "$MNT"
  says 'nothing was lost'
}
goes_on() {
  head -c 3000000 /dev/urandom >"$MNT/directory/again"
  head -c 50000 /dev/urandom | dd of="$MNT/synced-again" conv=fsync status=none
  exits 0 bkfs snapshot "$MNT" after
  sha256sum "$MNT/directory/again" "$MNT/synced-again" | cut -d' ' -f1 >"$SUITE_TMP/sums"
  exits 0 bkfs umount "$MNT"
  machine two
  exits 0 bkfs restore "$URL" after "$SUITE_TMP/restored"
  sha256sum "$SUITE_TMP/restored/directory/again" "$SUITE_TMP/restored/synced-again" |
    cut -d' ' -f1 | diff - "$SUITE_TMP/sums"
  diff -r "$SUITE_TMP/restored/directory/kept" <(echo kept)
  machine one
  exits 0 mount_at "$URL" "$MNT" -o timeout=5
}
# A file that was open during a loss fails until it is closed.
old_handles_fail() {
  local pid reader
  mkdir "$MNT/handles"
  head -c 12288 /dev/zero | tr '\0' c |
    tee "$MNT/handles/written" "$MNT/handles/mapped" "$MNT/handles/kept" >"$SUITE_TMP/committed"
  exits 0 bkfs snapshot "$MNT" handles
  mkfifo "$SUITE_TMP/steps" "$SUITE_TMP/answers" "$SUITE_TMP/stream"
  python3 "$ROOT/tests/posix/lost_handles.py" "$MNT/handles" <"$SUITE_TMP/steps" \
    >"$SUITE_TMP/answers" &
  pid=$!
  remember_pid $pid
  exec 5>"$SUITE_TMP/steps" 6<"$SUITE_TMP/answers"
  cat <"$SUITE_TMP/stream" >"$MNT/handles/stream" 5>&- 6<&- &
  reader=$!
  remember_pid $reader
  exec 7>"$SUITE_TMP/stream"
  wait_for 20 test -e "$MNT/handles/stream"
  # The shell closes a duplicate when it starts `cat`: 1 s after a close, a journal keeps what has
  # been written by then.
  sync "$MNT/handles/stream"
  sleep 2
  head -c 900000 /dev/urandom >&7
  echo open >&5
  read -r -t 20 answer <&6 && [ "$answer" = ready ] || wrong "nothing was opened"
  wait_for 20 test -s "$MNT/handles/stream"
  refuse_packs
  ! dd if=/dev/zero of="$MNT/synced" bs=4k count=1 conv=fsync status=none 2>/dev/null ||
    wrong "fsync claims success"
  wait_for 60 is_poisoned || wrong "the mount does not say that it failed"
  accept_packs
  exits 0 bkfs status --acknowledge "$MNT"
  clear_message
  echo lost >&5
  read -r -t 60 answer <&6 && [ "$answer" = "done" ] || wrong "something lost was acknowledged"
  exec 5>&- 6<&-
  wait "$pid" || wrong "the process failed"
  echo rest >&7
  exec 7>&-
  ! wait "$reader" || wrong "cat exits 0 over a loss"
  exits 0 bkfs snapshot "$MNT" after-handles
  # Empty, as at its last sync.
  local stream=$MNT/.snapshots/after-handles/handles/stream
  [ ! -s "$stream" ] || wrong "a snapshot holds $(wc -c <"$stream") bytes that were not synced"
  cmp "$SUITE_TMP/committed" "$MNT/.snapshots/after-handles/handles/written"
  { printf news && tail -c +5 "$SUITE_TMP/committed"; } |
    cmp - "$MNT/.snapshots/after-handles/handles/mapped"
  exits 0 bkfs umount "$MNT"
  exits 0 mount_at "$URL" "$MNT" -o timeout=5
}
# A tool that neither syncs nor checks, with a loss that is acknowledged before it ends.
acknowledged_loss_fails_the_run() {
  refuse_packs
  exits 125 bkfs run "$MNT" -- sh -c "head -c 3000000 /dev/urandom >'$MNT/unlooked' 2>/dev/null
    until '$BKFS_BIN' status --json '$MNT' | grep -q '\"healthy\":false'; do
      '$BKFS_BIN' snapshot '$MNT' >/dev/null 2>&1
      sleep 0.2
    done
    for name in $CLOSED; do rm '$URL'/\$name; mv '$URL'/\$name.away '$URL'/\$name; done
    '$BKFS_BIN' status --acknowledge '$MNT'
    exit 0"
  says 'lost'
  status_is 'status["healthy"]'
}
discarded() {
  refuse_packs
  head -c 3000000 /dev/urandom >"$MNT/discarded" || true
  ! dd if=/dev/zero of="$MNT/synced" bs=4k count=1 conv=fsync status=none 2>/dev/null ||
    wrong "fsync claims success"
  exits 0 bkfs umount --discard "$MNT"
  accept_packs
  not_mounted "$MNT" || wrong "still mounted"
  exits 0 mount_at "$URL" "$MNT" -o timeout=5
  [ ! -e "$MNT/discarded" ] || wrong "what was discarded is there"
  exits 0 bkfs umount "$MNT"
}
# The mount that took the volume over owns it: an acknowledged loss must not take it back.
fenced_is_not_taken_back() {
  local other=$SUITE_TMP/other
  mkdir -p "$other"
  at_end "leave_mount '$other'"
  exits 0 mount_at "$URL" "$MNT" -o timeout=5
  machine thief
  exits 0 mount_at "$URL" "$other" --steal
  machine one
  ! dd if=/dev/zero of="$MNT/fenced" bs=4k count=1 conv=fsync status=none 2>/dev/null ||
    wrong "a fenced mount acknowledges a fsync"
  is_poisoned || wrong "a fenced mount is well"
  exits 1 bkfs status --acknowledge "$MNT"
  says 'discard'
  dd if=/dev/zero of="$other/theirs" bs=4k count=1 conv=fsync status=none
  exits 0 bkfs umount --discard "$MNT"
  machine thief
  exits 0 bkfs umount "$other"
}

# What fsync=local acknowledged is in the spool, even if the rest is lost: acknowledging the loss
# uploads it to the bucket.
spool_is_carried_over() {
  exits 0 mount_at "$URL" "$MNT" -o fsync=local,spool_size=64M,timeout=5
  mkdir "$MNT/local"
  exits 0 bkfs snapshot "$MNT" local
  head -c 3000000 /dev/urandom >"$SUITE_TMP/kept"
  refuse_packs
  dd if="$SUITE_TMP/kept" of="$MNT/local/kept" bs=1M conv=fsync status=none
  until is_poisoned; do
    head -c 3000000 /dev/urandom >"$MNT/local/lost" 2>/dev/null || true
    bkfs snapshot "$MNT" >/dev/null 2>&1 || true
  done
  accept_packs
  exits 0 bkfs status --acknowledge "$MNT"
  status_is 'status["healthy"] and status["losses"] == 1'
  cmp "$SUITE_TMP/kept" "$MNT/local/kept"
  exits 0 bkfs snapshot "$MNT" carried
  exits 0 bkfs umount "$MNT"
  machine three
  exits 0 bkfs restore "$URL" carried:/local/kept "$SUITE_TMP/carried"
  cmp "$SUITE_TMP/kept" "$SUITE_TMP/carried"
  machine one
  [ -z "$(find "$MACHINE/state/bkfs/spool" -mindepth 2 -maxdepth 2 -type d)" ] ||
    wrong "a spool stays"
}

# --- journals that the bucket has lost ------------------------------------------------------------

MISSING=$SUITE_TMP/missing
journals() { find "$MISSING/journal" -type f | sort; }
dead_session() { bkfs session list --json "$MISSING" | jq -r .session; }
# killed_after_fsyncs NAME: fsyncs two files of this name and kills the daemon. The bucket then
# loses the journal of the second file.
killed_after_fsyncs() {
  exits 0 mount_at "$MISSING" "$MNT" "${@:2}"
  mkdir "$MNT/$1"
  exits 0 bkfs snapshot "$MNT" "before-$1"
  for name in first second; do
    printf '%s' "$name" | dd of="$MNT/$1/$name" conv=fsync status=none
  done
  kill -KILL "$(daemon_of "$MNT")"
  umount -i -l "$MNT"
  NEWEST=$(journals | tail -n 1)
  mv "$NEWEST" "$SUITE_TMP/newest"
}
refused_for_a_journal() {
  exits 13 "$@"
  clear_message
  says "session $(dead_session)" 'volume main' "$(basename "$NEWEST")" 'accept-loss'
}
missing_journals_are_missed() {
  local before
  machine misses
  killed_after_fsyncs back --init --no-encryption
  before=$(journals)
  refused_for_a_journal mount_at "$MISSING" "$MNT"
  not_mounted "$MNT" || wrong "mounted all the same"
  refused_for_a_journal bkfs session end "$MISSING" "$(dead_session)"
  refused_for_a_journal bkfs put "$MISSING" x --volume main "$SUITE_TMP/newest"
  exits 13 bkfs check "$MISSING"
  says "$(basename "$NEWEST")"
  [ "$(journals)" = "$before" ] || wrong "journals were touched"
  # The journal comes back from a copy of the bucket.
  mv "$SUITE_TMP/newest" "$NEWEST"
  exits 0 mount_at "$MISSING" "$MNT"
  [ "$(cat "$MNT/back/first" "$MNT/back/second")" = firstsecond ] || wrong "not all is there"
  exits 0 bkfs umount "$MNT"
}
# without_the_second NAME: the next mount needs no option, and has the first file.
without_the_second() {
  [ "$(cat "$MNT/$1/first")" = first ] || wrong "a file whose journal is there is lost"
  [ ! -e "$MNT/$1/second" ] || wrong "the second file is there without its journal"
  exits 0 bkfs umount "$MNT"
  exits 0 mount_at "$MISSING" "$MNT"
  exits 0 bkfs umount "$MNT"
}
missing_journals_are_accepted() {
  killed_after_fsyncs accepted
  exits 13 mount_at "$MISSING" "$MNT"
  exits 0 mount_at "$MISSING" "$MNT" -o accept_loss
  says "$(basename "$NEWEST")" 'accepted'
  without_the_second accepted
}
missing_journals_are_accepted_by_name() {
  local session
  killed_after_fsyncs by-name
  session=$(dead_session)
  exits 13 bkfs session end "$MISSING" "$session"
  exits 0 bkfs session end "$MISSING" "$session" --accept-loss
  says "session $session has ended"
  exits 0 mount_at "$MISSING" "$MNT"
  without_the_second by-name
  exits 0 bkfs check --read-data "$MISSING"
}

machine one
mount_at "$URL" "$MNT" --init --no-encryption -o timeout=5 || die "cannot mount"
case_of "bkfs run makes a snapshot of what its tool wrote" run_makes_a_snapshot
case_of "bkfs run passes on the status of a tool that failed" run_passes_the_tools_status_on
case_of "bkfs run exits with 125 when it is bkfs that failed" run_says_when_bkfs_failed
case_of "bkfs run asked to end ends its tool first" run_ends_with_its_tool
case_of "bkfs run and its tool survive a hangup below nohup" run_survives_a_hangup_below_nohup
case_of "a mount that cannot store any more fails and names what is lost" poisoned_and_named
case_of "while poisoned every write, fsync, snapshot and unmount fails, and it does not recover by \
itself" \
  everything_fails_while_poisoned
case_of "acknowledging the loss goes back to the last commit" acknowledged
case_of "and the mount goes on, restorable on another machine" goes_on
case_of "what was open at a loss fails until it is closed, and files return to their last commit" \
  old_handles_fail
case_of "a loss that was acknowledged while the tool ran fails bkfs run" \
  acknowledged_loss_fails_the_run
case_of "umount --discard gives up what was lost" discarded
case_of "what fsync=local acknowledged is carried over an acknowledged loss" spool_is_carried_over
case_of "a mount that was taken over is not taken back by acknowledging" fenced_is_not_taken_back
case_of "a journal that the bucket has lost is missed by the machine that sent it" \
  missing_journals_are_missed
case_of "mount -o accept_loss goes on without it" missing_journals_are_accepted
case_of "session end --accept-loss goes on without it" missing_journals_are_accepted_by_name
case_of "a check of every byte finds nothing" exits 0 bkfs check --read-data "$URL"
exit 0
