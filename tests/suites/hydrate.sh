#!/usr/bin/env bash
# about: trees that are brought into the cache and stay there: read without the store, after a kill,
# about: with a full disk, with a store that goes away
# needs: program minio apt:jq
# limit: 300 600
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"
in_private_mounts

start_minio
start_faulty "$BKFS_TEST_S3_MINIO"
faults '{}'
s3_environment "$FAULTY"
URL=s3://$BKFS_TEST_BUCKET/hydrate MNT=$SUITE_TMP/mount
mkdir -p "$MNT"
printf 'correct horse battery staple\n' >"$SUITE_TMP/password"
chmod 600 "$SUITE_TMP/password"
export BKFS_PASSWORD_FILE=$SUITE_TMP/password
at_end "leave_mount '$MNT'"
MIB=64
[ "$FULL" = 0 ] || MIB=512

# store_is_gone: no server is there, and the one behind it stands still.
store_is_gone() { faults '{"refuse": true}'; kill -STOP "$MINIO_PID"; }
store_is_back() { kill -CONT "$MINIO_PID"; faults '{}'; }
at_end "kill -CONT '$MINIO_PID' 2>/dev/null"
# slow_store RATE: each answer from a data pack passes at so many bytes per second.
slow_store() {
  faults '{"strikes": [{"what": "slow", "rate": '"$1"', "method": "GET", "class": ["data"]}]}'
}
# metric NAME: prints a metric of .bkfs/status.
metric() { jq ".metrics.$1" "$MNT/.bkfs/status"; }
task() { jq -r ".hydration.task.$1" "$MNT/.bkfs/status"; }
# told KEY: prints a value of what the last command has told as JSON.
told() { tail -n 1 "$SUITE_TMP/output" | jq ".$1"; }
# sent CLASS: prints the bytes of all answers of a class of objects.
sent() { awk -v class="$1" '$1 == "begin" && $2 == class {n += $3} END {print n + 0}' "$FAULTS/answers"; }
# manifest DIRECTORY: prints all that can be read there.
manifest() {
  (
    cd "$1" || exit
    find . -path ./.bkfs -prune -o -path ./.snapshots -prune -o -printf '%P %y %m %s %T@ %n %l\n' |
      sort
    find . -path ./.bkfs -prune -o -path ./.snapshots -prune -o -type f -print0 | sort -z |
      xargs -0 sha256sum
    find . -path ./.bkfs -prune -o -path ./.snapshots -prune -o -print0 | sort -z |
      xargs -0 getfattr -h -d 2>/dev/null
  )
}
# reads_right DIRECTORY MANIFEST: compares all that can be read there, in bounded time.
reads_right() {
  timeout 120 bash -c "$(declare -f manifest); manifest '$1'" >"$SUITE_TMP/seen" 2>&1 ||
    wrong "not all could be read: $(tail -n 1 "$SUITE_TMP/seen")"
  diff "$2" "$SUITE_TMP/seen" >"$SUITE_TMP/difference" ||
    wrong "other contents: $(head -n 3 "$SUITE_TMP/difference")"
}
# fresh_mount OPTIONS: mounts snapshot mon on a machine without a cache.
fresh_mount() {
  leave_mount "$MNT"
  rm -rf "$MACHINE"/bkfs-cache/*
  exits 0 mount_at "$URL" "$MNT" -o "ro,snapshot=mon,memory=128M,$1"
}

a_repository() {
  exits 0 bkfs init "$URL"
  exits 0 mount_at "$URL" "$MNT"
  mkdir -p "$MNT/db/tables/deep" "$MNT/small"
  head -c $((MIB << 20)) /dev/urandom >"$MNT/db/tables/large"
  head -c $((MIB << 18)) /dev/urandom >"$MNT/db/tables/deep/other"
  seq 200000 >"$MNT/db/compressible"
  cp "$MNT/db/compressible" "$MNT/db/copy"
  for number in $(seq 300); do head -c $((number * 97)) /dev/urandom >"$MNT/small/$number"; done
  truncate -s 100M "$MNT/db/sparse"
  echo end >>"$MNT/db/sparse"
  ln "$MNT/small/1" "$MNT/small/hard"
  ln -s ../db "$MNT/small/symbolic"
  setfattr -n user.note -v "$(printf 'x%.0s' $(seq 3000))" "$MNT/db/copy"
  exits 0 bkfs snapshot "$MNT" mon
  manifest "$MNT" >"$SUITE_TMP/mon"
  head -c 3000000 /dev/urandom >"$MNT/db/later"
  rm "$MNT/small/7"
  exits 0 bkfs snapshot "$MNT" tue
  manifest "$MNT" >"$SUITE_TMP/tue"
  exits 0 bkfs umount "$MNT"
}

comes_as_a_whole() {
  local before total fetched sent
  fresh_mount cache_size=1G
  before=$(($(sent data) + $(sent meta)))
  exits 0 bkfs hydrate "$MNT" --json
  total=$(told total_bytes)
  fetched=$(told fetched_bytes)
  [ "$((fetched + $(told found_bytes)))" = "$total" ] ||
    wrong "it ended at another number than $total"
  sent=$(($(sent data) + $(sent meta) - before))
  echo "$total bytes are stored, $fetched were fetched to be pinned, $sent were sent"
  row "stored bytes of the tree" "$(mib "$total") MiB"
  row "sent by the store" "$(mib "$sent") MiB"
  [ "$total" -gt $((MIB * 5 / 4 << 20)) ] || wrong "that is too few"
  [ "$sent" -le $((total + total / 50)) ] || wrong "$sent bytes were sent for $total"
}
reads_need_no_store() {
  local requests
  requests=$(metric get_requests)
  store_is_gone
  reads_right "$MNT" "$SUITE_TMP/mon"
  exits 0 bkfs hydrate "$MNT" --check
  says 'all of / of .* is in the cache: .* were read without the store'
  exits 0 bkfs hydrate "$MNT/db" --check
  [ "$(metric get_requests)" = "$requests" ] ||
    wrong "$(($(metric get_requests) - requests)) requests were sent"
  store_is_back
}
survives_a_mount() {
  local before
  exits 0 bkfs umount "$MNT"
  exits 0 mount_at "$URL" "$MNT" -o ro,snapshot=mon,memory=128M,cache_size=1G
  exits 0 bkfs status "$MNT"
  says 'pinned +.*: / of snapshot mon of main$' 'of the 1.00 GiB of the cache are pinned'
  before=$(sent data)
  exits 0 bkfs hydrate "$MNT"
  says ': 0 B fetched'
  [ "$(sent data)" = "$before" ] || wrong "bytes were fetched again"
  store_is_gone
  reads_right "$MNT" "$SUITE_TMP/mon"
  store_is_back
}
is_given_up() {
  local taken
  taken=$(du -s "$MACHINE/bkfs-cache" | cut -f1)
  exits 1 bkfs hydrate --unpin "$MNT/small"
  says 'nothing is pinned there'
  exits 0 bkfs hydrate --unpin "$MNT"
  says 'unpinned / of snapshot mon of main' 'MiB of disk are free'
  [ "$(du -s "$MACHINE/bkfs-cache" | cut -f1)" -lt $((taken / 4)) ] || wrong "the disk is not free"
  exits 1 bkfs hydrate "$MNT" --check
  says 'nothing is pinned there'
  reads_right "$MNT" "$SUITE_TMP/mon"
}
check_sees_what_is_missing() {
  local pack
  fresh_mount cache_size=1G
  exits 0 bkfs hydrate "$MNT" db
  exits 0 bkfs hydrate "$MNT" db --check
  exits 1 bkfs hydrate "$MNT" small --check
  exits 13 bkfs hydrate "$MNT" db small --check
  says 'small: nothing of it is pinned'
  # The pack of which most is on disk.
  pack=$(find "$MACHINE/bkfs-cache" -path '*/pins/packs/*' -type f -printf '%b %p\n' |
    sort -rn | head -n 1 | cut -d' ' -f2)
  fallocate -p -o 4096 -l 4M "$pack"
  exits 13 bkfs hydrate "$MNT" db --check
  says '/db/.*not in the cache|db/' 'requests to the store were refused' 'bkfs hydrate .* brings'
  exits 0 bkfs hydrate "$MNT" db
  exits 0 bkfs hydrate "$MNT" db --check
}
a_part_needs_no_store() {
  fresh_mount cache_size=1G
  exits 1 bkfs hydrate "$MNT" db/absent
  says 'db/absent: no such file or directory'
  exits 0 bkfs hydrate "$MNT" small db/tables/deep
  store_is_gone
  (cd "$MNT/small" && timeout 60 sha256sum *[0-9] hard) >"$SUITE_TMP/small" || wrong "small is not there"
  timeout 60 sha256sum "$MNT/db/tables/deep/other" >/dev/null || wrong "other is not there"
  [ "$(readlink "$MNT/small/symbolic")" = ../db ] || wrong "another target"
  store_is_back
  while read -r sum name; do
    grep -q "^$sum  ./small/$name$" "$SUITE_TMP/mon" || wrong "$name has other contents"
  done <"$SUITE_TMP/small"
}

goes_on_after_a_kill() {
  local daemon first killed at sent_first in_flight sent_second twice total
  fresh_mount cache_size=1G
  slow_store 4000000
  first=$(wc -l <"$FAULTS/answers")
  bkfs hydrate "$MNT" >"$SUITE_TMP/first" 2>&1 &
  remember_pid $!
  wait_for 60 eval '[ "$(task fetched_bytes)" -gt $((MIB << 19)) ]' || wrong "nothing comes"
  total=$(task total_bytes)
  daemon=$(jq .pid "$MNT/.bkfs/status")
  kill -KILL "$daemon"
  at=$(cut -d' ' -f1 /proc/uptime)
  killed=$(wc -l <"$FAULTS/answers")
  gone "$daemon" 10 || wrong "it lives"
  faults '{}'
  umount -i -l "$MNT"
  exits 0 mount_at "$URL" "$MNT" -o ro,snapshot=mon,memory=128M,cache_size=1G
  exits 0 bkfs status "$MNT"
  says 'not all of it is there'
  exits 0 bkfs hydrate "$MNT" --json
  [ "$(told total_bytes)" = "$total" ] || wrong "another total than $total"
  [ "$(told found_bytes)" -gt $((MIB << 18)) ] || wrong "little was found"
  read -r sent_first in_flight sent_second twice < <(
    python3 "$ROOT/tests/lib/twice.py" "$FAULTS/answers" "$first" "$killed" "$at"
  )
  echo "sent before the kill: $sent_first, of these in flight: $in_flight; after it:" \
    "$sent_second, of these a second time: $twice; in all: $total"
  row "in flight at the kill" "$(mib "$in_flight") MiB"
  row "fetched twice" "$(mib "$twice") MiB"
  [ "$twice" -le $((in_flight + total / 100)) ] || wrong "$twice bytes were fetched twice"
  [ "$in_flight" -lt $((total / 2)) ] || wrong "so much was in flight that nothing is shown"
  store_is_gone
  reads_right "$MNT" "$SUITE_TMP/mon"
  store_is_back
}
ctrl_c_ends_the_wait() {
  local waiter
  fresh_mount cache_size=1G
  slow_store 4000000
  BKFS_LIMIT=100 exec_in_background hydrate "$MNT"
  wait_for 60 eval '[ "$(task phase)" = fetching ]' || wrong "nothing comes"
  exits 0 bkfs status "$MNT"
  says 'hydrating +.* of .*MiB, .*/s'
  kill -INT "$waiter"
  gone "$waiter" 10 || wrong "it waits still"
  wait "$waiter" && wrong "it says that all is well"
  cp "$SUITE_TMP/waiter" "$SUITE_TMP/output"
  says 'interrupted: the mount goes on; .* of .* is in the cache' 'bkfs status .* shows how far'
  faults '{}'
  wait_for 60 eval '[ "$(task phase)" = "done" ]' || wrong "it did not go on: $(task phase)"
}
# exec_in_background ARGS…: starts the program itself, whose process id `waiter` is.
exec_in_background() {
  env HOME="$MACHINE/home" XDG_STATE_HOME="$MACHINE/state" setsid "$BKFS_BIN" "$@" \
    >"$SUITE_TMP/waiter" 2>&1 &
  waiter=$!
  remember_pid $waiter
}

is_refused_by_exact_numbers() {
  local before stored disk limit too_few
  fresh_mount cache_size=50M
  before=$(sent data)
  exits 1 bkfs hydrate "$MNT"
  clear_message
  says 'does not fit into the cache: [0-9]+ bytes are stored, which take [0-9]+ bytes on disk'
  says 'the cache holds 52428800 bytes: [0-9]+ bytes too few' 'cache_size=SIZE'
  [ "$(sent data)" = "$before" ] || wrong "bytes were fetched before it was refused"
  stored=$(sed -n 's/.*cache: \([0-9]*\) bytes are stored.*/\1/p' "$SUITE_TMP/output")
  disk=$(sed -n 's/.*which take \([0-9]*\) bytes.*/\1/p' "$SUITE_TMP/output")
  too_few=$(sed -n 's/.*: \([0-9]*\) bytes too few.*/\1/p' "$SUITE_TMP/output")
  [ "$disk" -ge "$stored" ] && [ $((disk - 52428800)) = "$too_few" ] || wrong "the sum is wrong"
  reads_right "$MNT" "$SUITE_TMP/mon"
  # The number is exact: a cache of that size is enough, one of a byte less is not.
  for limit in $((disk - 1)) "$disk"; do
    fresh_mount "cache_size=$limit"
    [ "$limit" = "$disk" ] || exits 1 bkfs hydrate "$MNT"
  done
  exits 0 bkfs hydrate "$MNT"
  [ "$(metric pinned_bytes)" -le "$disk" ] || wrong "$(metric pinned_bytes) bytes are on disk"
}
a_full_disk_is_told() {
  local disk=$SUITE_TMP/disk
  leave_mount "$MNT"
  mkdir -p "$disk"
  mount -t tmpfs -o "size=$((MIB * 2))m,mode=700" none "$disk"
  exits 0 bkfs mount "$URL" "$MNT" -o "ro,snapshot=mon,memory=128M,cache_size=4G,cache_dir=$disk"
  head -c $((MIB << 20)) /dev/zero >"$disk/filler"
  exits 1 bkfs hydrate "$MNT"
  says 'does not fit on the disk of the cache: it takes [0-9]+ bytes, and [0-9]+ bytes are free'
  rm "$disk/filler"
  # The room goes away in the middle.
  slow_store 4000000
  bkfs hydrate "$MNT" >"$SUITE_TMP/filled" 2>&1 &
  remember_pid $!
  local waiter=$!
  wait_for 60 eval '[ "$(task fetched_bytes)" -gt $((MIB << 18)) ]' || wrong "nothing comes"
  head -c $((MIB << 22)) /dev/zero >"$disk/filler" 2>/dev/null || true
  wait "$waiter" && wrong "it fits into a full disk"
  faults '{}'
  cp "$SUITE_TMP/filled" "$SUITE_TMP/output"
  clear_message
  says 'the cache in .*No space left on device' 'not fetched again'
  reads_right "$MNT" "$SUITE_TMP/mon"
  rm "$disk/filler"
  exits 0 bkfs hydrate "$MNT" --json
  [ "$(told found_bytes)" -gt $((MIB << 17)) ] || wrong "little was found"
  store_is_gone
  reads_right "$MNT" "$SUITE_TMP/mon"
  store_is_back
  exits 0 bkfs umount "$MNT"
  umount "$disk"
}
a_store_that_goes_away_is_told() {
  fresh_mount cache_size=1G,timeout=10
  slow_store 4000000
  bkfs hydrate "$MNT" >"$SUITE_TMP/broken" 2>&1 &
  remember_pid $!
  local waiter=$!
  wait_for 60 eval '[ "$(task fetched_bytes)" -gt $((MIB << 18)) ]' || wrong "nothing comes"
  store_is_gone
  wait "$waiter" && wrong "it ended well without a store"
  store_is_back
  cp "$SUITE_TMP/broken" "$SUITE_TMP/output"
  clear_message
  says 'the store made no progress' 'not fetched again: repeat the command'
  exits 0 bkfs status "$MNT"
  says 'hydrating +ended at .* of .*: the store made no progress'
  exits 0 bkfs hydrate "$MNT" --json
  [ "$(told found_bytes)" -gt $((MIB << 17)) ] || wrong "little was found"
  exits 0 bkfs hydrate "$MNT" --check
}

of_a_live_mount() {
  leave_mount "$MNT"
  exits 0 mount_at "$URL" "$MNT" -o memory=128M,cache_size=1G,timeout=600
  echo new >"$MNT/db/new"
  exits 0 bkfs hydrate "$MNT"
  exits 0 bkfs hydrate "$MNT/.snapshots/mon"
  exits 0 bkfs status "$MNT"
  says 'pinned .*: / of main$' 'pinned .*: / of snapshot mon of main$'
  manifest "$MNT" >"$SUITE_TMP/live"
  exits 0 bkfs umount "$MNT"
  exits 0 mount_at "$URL" "$MNT" -o memory=128M,cache_size=1G,timeout=600
  ls "$MNT/.snapshots/mon" >/dev/null
  store_is_gone
  reads_right "$MNT" "$SUITE_TMP/live"
  reads_right "$MNT/.snapshots/mon" "$SUITE_TMP/mon"
  exits 0 bkfs hydrate "$MNT/.snapshots/mon" --check
  exits 0 bkfs hydrate "$MNT" --check
  store_is_back
  # What was pinned of an older state goes when the newer one is there.
  head -c 5000000 /dev/urandom >"$MNT/db/newer"
  exits 0 bkfs hydrate "$MNT"
  [ "$(jq '.hydration.pins | length' "$MNT/.bkfs/status")" = 2 ] || wrong "the older one stays"
  exits 0 bkfs hydrate --unpin "$MNT"
  exits 0 bkfs hydrate --unpin "$MNT/.snapshots/mon"
  [ "$(metric pinned_bytes)" = 0 ] || wrong "$(metric pinned_bytes) bytes are pinned"
}

machine one
case_of "a repository with two snapshots" a_repository
[ -f "$SUITE_TMP/tue" ] || exit 1
machine two
case_of "a tree comes into the cache as a whole, by exact numbers" comes_as_a_whole
case_of "then no read needs the store" reads_need_no_store
case_of "it is there after the next mount" survives_a_mount
case_of "it is given up, and the disk is free" is_given_up
case_of "--check sees what is missing" check_sees_what_is_missing
case_of "a part of a tree needs no store either" a_part_needs_no_store
case_of "after kill -9 nothing is fetched twice but what was in flight" goes_on_after_a_kill
case_of "Ctrl-C ends the wait alone" ctrl_c_ends_the_wait
case_of "what does not fit is refused by exact numbers" is_refused_by_exact_numbers
case_of "a full disk is told, and nothing is lost" a_full_disk_is_told
case_of "a store that goes away is told, and the next attempt goes on" a_store_that_goes_away_is_told
machine three
case_of "a live mount and a snapshot below it" of_a_live_mount
print_table
