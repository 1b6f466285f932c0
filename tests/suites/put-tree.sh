#!/usr/bin/env bash
# about: directories that are put into a volume without a mount: every kind of file, what is read
# about: again, what cannot be read, hostile and moving sources, puts that are ended
# needs: program apt:rsync apt:strace apt:attr
# limit: 300 900
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
in_private_mounts

URL=$SUITE_TMP/bucket SRC=$SUITE_TMP/source MNT=$SUITE_TMP/mount MAIN=$SUITE_TMP/main
mkdir -p "$SRC" "$MNT" "$MAIN"
machine one
init_local "$URL" >/dev/null || die "cannot create the repository"
at_end "leave_mount '$MNT'; leave_mount '$MAIN'"
FILES=50000 WIDE=20000
[ "$FULL" = 0 ] || FILES=300000 WIDE=200000

# told KEY: prints a value of what the last command has told as JSON.
told() { grep '^{"' "$SUITE_TMP/output" | grep -v '^{"code"' | tail -n 1 | jq -r ".$1"; }
tells() { [ "$(told "$1")" = "$2" ] || wrong "$1 is $(told "$1") instead of $2"; }
names_of() { bkfs snapshots --json --volume streams "$URL" | jq -r .name; }
# settled: waits until what was made just now is old enough to be taken over.
settled() { sleep 2.1; }
# differences DIRECTORY SOURCE [ARGS…]: what rsync would change to make both equal.
differences() {
  local directory=$1 source=$2
  shift 2
  rsync -n -aHXi --delete --exclude sock "$@" "$source/" "$directory/"
}
# is_restored PATH SOURCE [ARGS…]: the newest snapshot restores to the same, with the same contents.
is_restored() {
  local path=$1 source=$2 found
  shift 2
  rm -rf "$SUITE_TMP/back"
  bkfs -q restore --volume streams "$URL" "latest:$path" "$SUITE_TMP/back"
  found=$(differences "$SUITE_TMP/back" "$source" --checksum "$@")
  [ -z "$found" ] || wrong "the restored tree differs: $(head -n 3 <<<"$found")"
}
is_sound() { exits 0 bkfs check --read-data "$URL"; }

make_source() {
  mkdir -p "$SRC/d/e" "$SRC/empty" "$SRC/cache" "$SRC/private"
  echo small >"$SRC/small"
  ln "$SRC/small" "$SRC/hard"
  ln "$SRC/small" "$SRC/d/hard"
  : >"$SRC/nothing"
  head -c 30000000 /dev/urandom >"$SRC/large"
  ln -s nowhere "$SRC/link"
  ln -s "$(printf 'x%.0s' $(seq 4000))" "$SRC/long-link"
  mkfifo "$SRC/fifo"
  mknod "$SRC/character" c 1 3
  mknod "$SRC/block" b 7 200
  (cd "$SRC" && perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => "sock", Listen => 1)')
  truncate -s 40M "$SRC/sparse"
  printf data | dd of="$SRC/sparse" bs=1 seek=9000000 conv=notrunc status=none
  printf end | dd of="$SRC/sparse" bs=1 seek=30000000 conv=notrunc status=none
  truncate -s 1M "$SRC/hole"
  setfattr -n user.note -v "$(printf 'x%.0s' $(seq 3000))" "$SRC/large"
  setfattr -n user.directory -v yes "$SRC/d"
  setfattr -n trusted.link -v yes -h "$SRC/link"
  printf '\xff' >"$SRC/$(printf 'name\xff\nline')"
  : >"$SRC/$(printf 'y%.0s' $(seq 255))"
  chmod 4755 "$SRC/nothing"
  chmod 2770 "$SRC/d/e"
  chmod 000 "$SRC/private"
  chown 1234:4321 "$SRC/large" "$SRC/d"
  chown -h 77:78 "$SRC/link"
  touch -d '1999-12-31 23:59:59.987654321' "$SRC/small" "$SRC/empty"
  touch -h -d '2001-01-01 00:00:00.5' "$SRC/link"
  printf 'Signature: 8a477f597d28d172789f06886806bc55\n' >"$SRC/cache/CACHEDIR.TAG"
  echo cached >"$SRC/cache/cached"
}

every_kind_of_file_is_stored() {
  make_source
  settled
  exits 0 bkfs put "$URL" / "$SRC" --name first --tag daily --json -q
  tells volume streams
  tells sockets 1
  tells 'unread | length' 0
  [ "$(told stored)" -ge 16 ] || wrong "$(told stored) files were stored"
  grep '^{' "$SUITE_TMP/output" >"$SUITE_TMP/documented"
  exits 0 python3 "$ROOT/tests/lib/json_page.py" "$ROOT/docs/json.md" 'bkfs put' \
    "$SUITE_TMP/documented"
  is_restored /source "$SRC"
  [ "$(stat -c %b "$SUITE_TMP/back/sparse")" -lt 1000 ] || wrong "the holes are filled"
  exits 0 mount_at "$URL" "$MNT" -o ro,volume=streams,snapshot=first
  local found
  found=$(differences "$MNT/source" "$SRC" --checksum)
  [ -z "$found" ] || wrong "the mounted tree differs: $(head -n 3 <<<"$found")"
  [ "$(stat -c %z "$MNT/source/large")" = "$(stat -c %z "$SRC/large")" ] || wrong "another ctime"
  exits 0 bkfs umount "$MNT"
  is_sound
}

what_has_not_changed_is_not_read() {
  bkfs_strace() {
    "$MACHINE/run" strace -f -qq -e trace=openat -o "$SUITE_TMP/opened" "$BKFS_BIN" "$@"
  }
  exits 0 bkfs_strace put "$URL" / "$SRC" --json -q
  tells stored 0
  tells read_bytes 0
  tells removed 0
  grep -q '"cache"' "$SUITE_TMP/opened" || wrong "strace saw no directory"
  ! grep -E '"(large|small|sparse)"' "$SUITE_TMP/opened" || wrong "a file was opened"
  ! grep -E '"(fifo|character|block)"' "$SUITE_TMP/opened" || wrong "a device was opened"
  exits 0 bkfs put "$URL" / "$SRC" --force --json -q
  [ "$(told read_bytes)" -gt 30000000 ] || wrong "--force read $(told read_bytes) bytes"
  [ "$(told new_bytes)" -lt 1000000 ] || wrong "it stored $(told new_bytes) new bytes"
  exits 0 bkfs put "$URL" elsewhere "$SRC" --json -q
  tells unchanged 0
  is_restored /elsewhere/source "$SRC"
}

changes_and_removals_arrive() {
  rm -rf "$SRC/empty" "$SRC/link" "$SRC/hard"
  echo 'a file now' >"$SRC/empty"
  mkdir "$SRC/link"
  echo more >"$SRC/link/more"
  printf 'X' | dd of="$SRC/large" bs=1 seek=1000 conv=notrunc status=none
  # Same size, same time of modification: only the time of change tells.
  local before
  before=$(stat -c %y "$SRC/cache/cached")
  echo CACHED >"$SRC/cache/cached"
  touch -d "$before" "$SRC/cache/cached"
  chmod 600 "$SRC/nothing"
  setfattr -x user.directory "$SRC/d"
  mv "$SRC/sparse" "$SRC/d/sparse"
  exits 0 bkfs put "$URL" / "$SRC" --json -q
  [ "$(told new_bytes)" -lt 8000000 ] || wrong "it stored $(told new_bytes) new bytes"
  is_restored /source "$SRC"
  # What changed less than 2 s before a put is read by the next one as well.
  echo racy >"$SRC/racy"
  exits 0 bkfs put "$URL" / "$SRC" --json -q
  settled
  exits 0 bkfs put "$URL" / "$SRC" --json -q
  [ "$(told read_bytes)" -ge 5 ] || wrong "a file was taken over that might have changed since"
  exits 0 bkfs put "$URL" / "$SRC" --json -q
  tells read_bytes 0
  # The first snapshot has what it had.
  [ "$(bkfs dump --volume streams "$URL" first:/source/cache/cached)" = cached ] || wrong "changed"
}

patterns_and_filesystems_are_left_out() {
  mkdir -p "$SRC/other" "$SRC/d/deep/tmp"
  mount -t tmpfs none "$SRC/other"
  echo other >"$SRC/other/file"
  echo x >"$SRC/d/deep/tmp/x"
  echo x >"$SRC/d/a.tmp"
  printf '# comment\n\n%s\n' "$SRC/d/deep" >"$SUITE_TMP/patterns"
  exits 0 bkfs put "$URL" / "$SRC" --exclude '*.tmp' --exclude-file "$SUITE_TMP/patterns" \
    --exclude-caches --one-file-system --json -q
  is_restored /source "$SRC" --exclude '*.tmp' --exclude /d/deep --exclude /cache/cached -x
  for name in cache/CACHEDIR.TAG other; do
    [ -e "$SUITE_TMP/back/$name" ] || wrong "$name is not there"
  done
  for name in cache/cached other/file d/deep d/a.tmp; do
    [ ! -e "$SUITE_TMP/back/$name" ] || wrong "$name is there"
  done
  exits 0 bkfs put "$URL" / "$SRC" --json -q
  is_restored /source "$SRC"
  umount "$SRC/other"
  rm -rf "$SRC/other"
}

its_own_files_are_left_out() {
  local all=$SUITE_TMP/all
  mkdir -p "$all/mounted" "$all/bucket" "$all/proc"
  mount -t proc none "$all/proc"
  echo file >"$all/file"
  exits 0 bkfs init --no-encryption "$all/bucket"
  exits 0 mount_at "$all/bucket" "$all/mounted"
  echo live >"$all/mounted/live"
  exits 0 bkfs put "$all/bucket" / "$all"
  says 'left out: .*all/bucket' 'left out: .*all/mounted: it is a mount' 'left out: .*all/proc'
  exits 0 bkfs find --volume streams --snapshot latest "$all/bucket" '*'
  says 'all/file' 'all/bucket' 'all/mounted' 'all/proc'
  says_not 'bucket/root|mounted/live|proc/'
  umount "$all/proc"
  mkdir -p "$all/bucket/data"
  exits 2 bkfs put "$all/bucket" / "$all/bucket/data"
  says 'lies in the bucket'
  exits 0 bkfs umount "$all/mounted"
}

what_cannot_be_read_is_named() {
  local home=$SUITE_TMP/user
  mkdir -p "$home/source/closed" "$home/bucket"
  echo open >"$home/source/open"
  echo secret >"$home/source/secret"
  echo below >"$home/source/closed/below"
  chmod 000 "$home/source/secret" "$home/source/closed"
  chown -R 1234:1234 "$home"
  chmod 755 "$SUITE_TMP"
  as_user() {
    env -i "PATH=$PATH" "HOME=$home" \
      setpriv --reuid 1234 --regid 1234 --clear-groups "$BKFS_BIN" "$@"
  }
  chown 0:0 "$home/source/secret" "$home/source/closed"
  exits 0 as_user init --no-encryption "$home/bucket"
  exits 3 as_user put "$home/bucket" / "$home/source"
  says 'not read: .*source/secret: Permission denied' 'not read: .*source/closed' \
    '2 files could not be read' '^snapshot '
  exits 0 as_user find --volume streams --snapshot latest "$home/bucket" '*'
  says 'source/open'
  says_not 'secret|below'
  exits 3 as_user put "$home/bucket" / "$home/source" --json -q
  tells 'unread | length' 2
  grep '"unread"' "$SUITE_TMP/output" >"$SUITE_TMP/documented"
  exits 0 python3 "$ROOT/tests/lib/json_page.py" "$ROOT/docs/json.md" 'bkfs put' \
    "$SUITE_TMP/documented"
}

# leases FILE: takes a lease of it, and gives it up when another process wants the file.
leases() {
  exec python3 - "$1" <<'P'
import fcntl, os, signal, sys
file = os.open(sys.argv[1], os.O_RDWR)
wanted = lambda *_: (fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK), os._exit(0))
signal.signal(signal.SIGIO, wanted)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
open(sys.argv[1] + ".leased", "w").close()
signal.alarm(60)
while True:
    signal.pause()
P
}
leased_files_are_waited_for() {
  local leased=$SUITE_TMP/leased pid
  mkdir -p "$leased"
  echo contents >"$leased/file"
  leases "$leased/file" &
  pid=$!
  wait_for 20 test -e "$leased/file.leased" || wrong "no lease"
  exits 0 bkfs put "$URL" / "$leased" --json -q
  tells 'unread | length' 0
  wait "$pid" || wrong "the lease was not broken"
  is_restored /leased "$leased"
}

# A put with few descriptors keeps to them, or ends: it leaves nothing out for want of them.
few_open_files_are_enough() {
  local wide=$SUITE_TMP/siblings deep=$SUITE_TMP/deep before
  mkdir -p "$wide" "$deep"
  # Enough files that the survey of them lasts into the put.
  (cd "$wide" && seq 1000 | xargs mkdir && for name in *; do touch "$name"/{1..40}; done)
  (cd "$deep" && mkdir -p "$(printf 'd/%.0s' $(seq 400))")
  few() { (ulimit -n 256 && bkfs "$@"); }
  exits 0 few put "$URL" / "$wide" --json
  tells 'unread | length' 0
  tells stored 40000
  before=$(names_of)
  exits 1 few put "$URL" / "$deep" --json
  says 'Too many open files'
  [ "$(names_of)" = "$before" ] || wrong "a put that lacked descriptors made a snapshot"
  rm -rf "$wide" "$deep"
}

bad_arguments_are_refused() {
  local before
  before=$(names_of)
  mkdir -p "$SUITE_TMP/x/source"
  exits 2 bkfs put "$URL" / "$SRC" "$SUITE_TMP/x/source"
  says 'same last component'
  exits 2 bkfs put "$URL" / "$SRC" "$SRC/small"
  says 'is no directory'
  exits 1 bkfs put "$URL" / "$SRC" "$SUITE_TMP/absent"
  says 'absent: No such file'
  exits 1 bkfs put "$URL" x "$SUITE_TMP/absent"
  says 'absent: No such file'
  exits 2 bkfs put "$URL" / /
  says 'would become the whole volume'
  exits 2 bkfs put "$URL" file "$SRC/small" --exclude x
  says '--exclude is for directories'
  exits 2 bkfs put "$URL" .snapshots "$SRC"
  exits 1 bkfs put "$URL" source/small "$SRC"
  says 'small: is not a directory'
  exits 1 bkfs put "$URL" / "$SRC" --name first
  says 'already exists'
  [ "$(names_of)" = "$before" ] || wrong "a put that was refused made a snapshot"
}

# begin_put ARGS…: starts a put in the background, and sets PUT to its process id.
begin_put() {
  (exec "$MACHINE/run" "$BKFS_BIN" put "$@" >"$SUITE_TMP/put.log" 2>&1) &
  PUT=$!
}
# put_ends: waits for it, and sets STATUS to its exit code.
put_ends() {
  STATUS=0
  wait "$PUT" || STATUS=$?
  cat "$SUITE_TMP/put.log"
}
# is_held URL: a session writes streams there.
is_held() { bkfs session list --json "$1" | grep -q '"streams"'; }
# is_ended_though_full PATH SOURCE: a signal ends a put whose store takes nothing more.
is_ended_though_full() {
  begin_put "$full/bucket" "$1" "$2"
  wait_for 30 grep -q 'No space left' "$SUITE_TMP/put.log" || wrong "$(cat "$SUITE_TMP/put.log")"
  wait_for 30 is_held "$full/bucket" || wrong "its session is not in the root"
  kill -INT "$(pgrep -P "$PUT" -x bkfs)" || wrong "it had ended already"
  wait_for 30 gone "$PUT" 0 || wrong "it goes on after a signal"
  put_ends
  # 14 if the signal came while the snapshot was being made.
  [ "$STATUS" = 1 ] || [ "$STATUS" = 14 ] || wrong "ended by a signal with $STATUS"
}
# packs: prints the number of data packs in the bucket.
packs() { find "$URL/data" -type f | wc -l; }

a_put_that_is_ended_shows_nothing() {
  local big=$SUITE_TMP/big signal before there sent
  mkdir -p "$big"
  for number in $(seq 60); do head -c 5000000 /dev/urandom >"$big/$number"; done
  before=$(names_of)
  for signal in INT KILL; do
    there=$(packs)
    begin_put "$URL" / "$big" --force --name "big-$signal"
    until [ "$(packs)" -gt "$there" ] || gone "$PUT" 0; do sleep 0.02; done
    kill "-$signal" "$(pgrep -P "$PUT" -x bkfs)" 2>/dev/null || wrong "it had ended already"
    put_ends
    [ "$STATUS" != 0 ] || wrong "ended by $signal with 0"
    [ "$(names_of)" = "$before" ] || wrong "a put that was ended made a snapshot"
    # Another put makes a snapshot of the volume, and has nothing of it.
    exits 0 bkfs put "$URL" other "$SRC/small" --name "after-$signal"
    exits 0 bkfs ls --volume streams "$URL" "after-$signal"
    says_not big
    before=$(names_of)
  done
  exits 0 bkfs put "$URL" / "$big" --json -q
  sent=$(told uploaded_bytes)
  [ "$sent" -lt 280000000 ] || wrong "$sent bytes were sent, and some were there already"
  is_restored /big "$big"
  rm -rf "$big"
  is_sound
}

# A pipe that nothing writes to yet, and a tool that takes the same signal for the end of its work.
a_signal_ends_any_wait_of_a_put() {
  local pipe=$SUITE_TMP/pipe before held
  before=$(names_of)
  mkfifo "$pipe"
  begin_put "$URL" unwritten "$pipe"
  wait_for 30 is_held "$URL" || wrong "it does not hold the volume"
  kill -INT "$(pgrep -P "$PUT" -x bkfs)" || wrong "it had ended already"
  wait_for 10 gone "$PUT" 0 || wrong "it goes on after a signal"
  put_ends
  [ "$STATUS" = 1 ] || wrong "it ended with $STATUS"
  rm "$pipe"
  # shellcheck disable=SC2016
  begin_put "$URL" half -- sh -c 'trap "exit 0" INT; echo half; echo $$ >"$0"; sleep 60 & wait' \
    "$SUITE_TMP/tool"
  wait_for 30 test -s "$SUITE_TMP/tool"
  held=$(pgrep -P "$(cat "$SUITE_TMP/tool")")
  kill -INT "$(pgrep -P "$PUT" -x bkfs)" "$(cat "$SUITE_TMP/tool")"
  put_ends
  kill "$held"
  [ "$STATUS" = 1 ] || wrong "it ended with $STATUS"
  [ "$(names_of)" = "$before" ] || wrong "a put that was ended made a snapshot"
  exits 0 bkfs put "$URL" other "$SRC/small" --name after-half
  exits 0 bkfs ls --volume streams "$URL" after-half
  says_not half unwritten
}

# What is below nohup(1) ignores SIGHUP.
a_hangup_ends_no_put_below_nohup() {
  local pipe=$SUITE_TMP/pipe ignoring
  mkfifo "$pipe"
  for ignoring in no yes; do
    # shellcheck disable=SC2016
    (exec "$MACHINE/run" sh -c '[ "$0" = no ] || trap "" HUP; exec "$@"' "$ignoring" \
      "$BKFS_BIN" put "$URL" "hangup-$ignoring" "$pipe" >"$SUITE_TMP/put.log" 2>&1) &
    PUT=$!
    exec {stream}>"$pipe"
    head -c 20000000 /dev/urandom >&"$stream"
    kill -HUP "$(pgrep -P "$PUT" -x bkfs)" || wrong "it had ended already"
    sleep 0.5
    exec {stream}>&-
    put_ends
    case $ignoring in
      no) [ "$STATUS" = 1 ] || wrong "after a hangup it ended with $STATUS" ;;
      yes) [ "$STATUS" = 0 ] || wrong "a hangup ended it with $STATUS" ;;
    esac
  done
  rm "$pipe"
}

moving_sources_are_named_and_stored() {
  local moving=$SUITE_TMP/moving secret=$SUITE_TMP/secret pid writer number changing=0
  mkdir -p "$moving/swapped" "$moving/coming" "$secret"
  echo secret >"$secret/file"
  for number in $(seq 400); do echo honest >"$moving/swapped/$number"; done
  head -c 20000000 /dev/urandom >"$moving/growing"
  (
    trap 'exit 0' TERM
    SECONDS=0
    while [ "$SECONDS" -lt 60 ]; do
      mv "$moving/swapped" "$moving/away" && ln -s "$secret" "$moving/swapped"
      rm "$moving/swapped" && mv "$moving/away" "$moving/swapped"
      : >"$moving/coming/$RANDOM"
      rm -f "$moving/coming"/*
    done
  ) 2>/dev/null &
  pid=$!
  (
    trap 'exit 0' TERM
    SECONDS=0
    while [ "$SECONDS" -lt 60 ]; do echo line; done >>"$moving/growing"
  ) &
  writer=$!
  # shellcheck disable=SC2064
  trap "kill $pid $writer" EXIT
  for number in $(seq 6); do
    set +e
    bkfs put "$URL" / "$moving" --json -q >"$SUITE_TMP/output" 2>&1
    local status=$?
    set -e
    [ "$status" = 0 ] || [ "$status" = 3 ] || wrong "it ended with $status"
    changing=$((changing + $(told 'changing | length')))
    exits 0 bkfs find --volume streams --snapshot latest "$URL" '**/moving/*/file'
    says_not 'moving'
  done
  [ "$changing" -gt 0 ] || wrong "the growing file is not named"
  kill "$pid" "$writer"
  wait "$pid" "$writer" || true
  trap - EXIT
  rm -rf "$moving/away"
  exits 0 bkfs put "$URL" / "$moving" --json -q
  is_restored /moving "$moving"
}

puts_run_while_others_write() {
  local one=$SUITE_TMP/many two=$SUITE_TMP/two first second
  mkdir -p "$two"
  head -c 60000000 /dev/urandom >"$two/file"
  exits 0 mount_at "$URL" "$MAIN"
  (
    while [ ! -e "$SUITE_TMP/stop" ]; do
      head -c 3000000 /dev/urandom >"$MAIN/$RANDOM"
      sleep 0.1
    done
  ) &
  local writer=$!
  trap 'touch "$SUITE_TMP/stop"' EXIT
  python3 - "$one" "$FILES" <<'P'
import os, sys
top, count = sys.argv[1], int(sys.argv[2])
for number in range(count):
    directory = f"{top}/{number // 1000}"
    if number % 1000 == 0:
        os.makedirs(directory)
    with open(f"{directory}/{number}", "wb") as file:
        file.write(b"contents of %d\n" % number * (number % 40))
P
  (machine two; exec "$MACHINE/run" "$BKFS_BIN" put "$URL" / "$two" --volume other --json -q) \
    >"$SUITE_TMP/other.log" 2>&1 &
  second=$!
  settled
  first=$(now_ms)
  exits 0 bkfs put "$URL" / "$one" --json -q
  row "$FILES small files" "$(seconds_since "$first") s"
  tells stored "$FILES"
  first=$(now_ms)
  exits 0 bkfs put "$URL" / "$one" --json -q
  row "the same again" "$(seconds_since "$first") s"
  tells unchanged "$FILES"
  tells read_bytes 0
  wait "$second" || wrong "the other machine: $(cat "$SUITE_TMP/other.log")"
  # One volume has one writer.
  begin_put "$URL" / "$one" --force
  wait_for 20 bkfs_holds streams || wrong "the put does not hold its volume"
  (machine two; exits 11 bkfs put "$URL" / "$two")
  put_ends
  [ "$STATUS" = 0 ] || wrong "it ended with $STATUS: $(tail -n 1 "$SUITE_TMP/put.log")"
  touch "$SUITE_TMP/stop"
  wait "$writer"
  exits 0 bkfs umount "$MAIN"
  is_restored /many "$one"
  is_sound
}
bkfs_holds() { bkfs session list --json "$URL" | grep -q "\"$1\""; }

# It is appended to in odd pieces while it is read, up to 300 MB, four times.
a_file_that_grows_is_stored() {
  local log=$SUITE_TMP/growing writer length name
  for name in grown-1 grown-2 grown-3 grown-4; do
    rm -f "$log"
    python3 -c '
import os, sys
piece = bytes(range(1, 252)) * 3
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for _ in range(300000000 // len(piece)): os.write(log, piece)
' "$log" &
    writer=$!
    until [ -s "$log" ]; do sleep 0.01; done
    exits 0 bkfs put "$URL" "$name" "$log" -q --json
    length=$(told bytes)
    wait "$writer"
    bkfs dump --volume streams "$URL" "latest:/$name" | cmp -n "$length" - "$log" ||
      wrong "other bytes"
  done
  rm "$log"
}

many_names_in_one_directory() {
  local wide=$SUITE_TMP/wide
  mkdir -p "$wide"
  (cd "$wide" && seq 1 "$WIDE" | xargs touch)
  settled
  exits 0 bkfs put "$URL" / "$wide" --json -q
  tells stored "$WIDE"
  rm "$wide/77"
  exits 0 bkfs put "$URL" / "$wide" --json -q
  tells stored 0
  tells removed 1
  rm -rf "$wide"
  [ "$(bkfs ls --volume streams "$URL" latest:/wide | wc -l)" = $((WIDE - 1)) ] ||
    wrong "other names"
}

a_full_store_is_waited_for() {
  local full=$SUITE_TMP/full
  mkdir -p "$full"
  mount -t tmpfs -o size=24M none "$full"
  exits 0 bkfs init --no-encryption "$full/bucket"
  is_ended_though_full / "$SRC"
  # While the snapshot is being made, and while the file is being read.
  head -c 30000000 /dev/urandom >"$SUITE_TMP/noise"
  is_ended_though_full noise "$SUITE_TMP/noise"
  head -c 800000000 /dev/urandom >"$SUITE_TMP/noise"
  is_ended_though_full noise "$SUITE_TMP/noise"
  rm "$SUITE_TMP/noise"
  begin_put "$full/bucket" / "$SRC"
  wait_for 30 grep -q 'No space left' "$SUITE_TMP/put.log" || wrong "$(cat "$SUITE_TMP/put.log")"
  exits 0 bkfs snapshots --volume streams "$full/bucket"
  says_not "$(date +%Y)-"
  mount -o remount,size=200M "$full"
  put_ends
  [ "$STATUS" = 0 ] || wrong "it ended with $STATUS: $(tail -n 1 "$SUITE_TMP/put.log")"
  exits 0 bkfs check --read-data "$full/bucket"
  umount -l "$full"
}

case_of "every kind of file is stored as it is" every_kind_of_file_is_stored
case_of "what has not changed is not read" what_has_not_changed_is_not_read
case_of "changes and removals arrive" changes_and_removals_arrive
case_of "patterns, caches and other filesystems are left out" patterns_and_filesystems_are_left_out
case_of "files of bkfs itself are left out" its_own_files_are_left_out
case_of "what cannot be read is named" what_cannot_be_read_is_named
case_of "leased files are waited for" leased_files_are_waited_for
case_of "few open files are enough" few_open_files_are_enough
case_of "bad arguments are refused" bad_arguments_are_refused
case_of "a put that is ended shows nothing" a_put_that_is_ended_shows_nothing
case_of "a signal ends any wait of a put" a_signal_ends_any_wait_of_a_put
case_of "a hangup ends no put below nohup" a_hangup_ends_no_put_below_nohup
case_of "a file that grows is stored" a_file_that_grows_is_stored
case_of "moving sources are named and stored" moving_sources_are_named_and_stored
case_of "puts run while others write" puts_run_while_others_write
case_of "many names in one directory" many_names_in_one_directory
case_of "a full store is waited for" a_full_store_is_waited_for
print_table
