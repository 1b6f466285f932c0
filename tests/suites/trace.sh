#!/usr/bin/env bash
# about: traces: MariaDB on a clone whose first reads an earlier clone recorded, over a store that
# about: is 20 ms away; stale, foreign and hostile traces
# needs: program minio apt:mariadb-server apt:jq
# limit: 240 600
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"
. "$(dirname "$0")/../lib/mariadb.sh"
in_private_mounts

start_minio
start_faulty "$BKFS_TEST_S3_MINIO"
faults '{}'
s3_environment "$FAULTY"
URL=s3://$BKFS_TEST_BUCKET/trace MNT=$SUITE_TMP/mount ONE=$SUITE_TMP/clone
mkdir -p "$MNT" "$ONE"
printf 'correct horse battery staple\n' >"$SUITE_TMP/password"
chmod 600 "$SUITE_TMP/password"
export BKFS_PASSWORD_FILE=$SUITE_TMP/password
for place in "$MNT" "$ONE"; do at_end "leave_mount '$place'"; done
ROWS=200000
[ "$FULL" = 0 ] || ROWS=2000000

# sent CLASS: prints the bytes of all answers of a class of objects.
sent() { awk -v class="$1" '$1 == "begin" && $2 == class {n += $3} END {print n + 0}' "$FAULTS/answers"; }
all_sent() { echo $(($(sent data) + $(sent meta))); }
# trace KEY: prints a value of what the clone tells of its traces.
trace() { jq -r ".trace.$1" "$ONE/.bkfs/status"; }
is_replayed() { [ "$(trace replay.phase)" = "done" ]; }
requests() { jq .metrics.get_requests "$ONE/.bkfs/status"; }
# clone OPTIONS…: mounts a clone of snapshot mon on a machine without a cache. Each answer of the
# store takes DELAY ms.
DELAY=20
clone() {
  leave_mount "$ONE"
  rm -rf "$MACHINE"/bkfs-cache/*
  faults '{"delay_ms": '"$DELAY"'}'
  exits 0 mount_at "$URL" "$ONE" -o "allow_other,clone=mon${1:+,$1}"
}
# A user's first queries: single rows, far apart, always the same.
for number in $(seq 1 300); do
  echo "SELECT value FROM shop.orders WHERE id = $((number * 7919 % ROWS + 1));"
done >"$SUITE_TMP/queries"

a_backup() {
  mariadb_create "$SUITE_TMP/mysql"
  mariadb_start "$SUITE_TMP/mysql"
  sql -e 'CREATE DATABASE shop'
  sql shop -e "CREATE TABLE orders (id INT PRIMARY KEY, value VARBINARY(256));
    INSERT INTO orders SELECT seq, RANDOM_BYTES(256) FROM seq_1_to_$ROWS"
  sql <"$SUITE_TMP/queries" | sha256sum >"$SUITE_TMP/answers"
  mariadb_stop
  exits 0 bkfs init "$URL"
  exits 0 mount_at "$URL" "$MNT" -o allow_other
  cp -a "$SUITE_TMP/mysql" "$MNT/"
  exits 0 bkfs snapshot "$MNT" mon
  exits 0 bkfs umount "$MNT"
}

# queries_on_the_clone: starts MariaDB there and asks for some rows.
queries_on_the_clone() {
  mariadb_start "$ONE/mysql"
  sql <"$SUITE_TMP/queries" | sha256sum >"$SUITE_TMP/seen"
  cmp "$SUITE_TMP/answers" "$SUITE_TMP/seen" || wrong "other rows"
  mariadb_stop
}
a_clone_is_recorded() {
  local begun
  begun=$(now_ms)
  clone
  queries_on_the_clone
  row "clone to the last of 300 rows, without a trace" "$(($(now_ms) - begun)) ms"
  row "fetched meanwhile" "$(mib "$(jq .metrics.bytes_fetched "$ONE/.bkfs/status")") MiB"
  [ "$(trace replay)" = null ] || wrong "it replays something"
  exits 0 bkfs trace record "$ONE" warm --until-quiet 1s
  says 'trace warm of volume main: .* in [0-9]+ ranges of [0-9]+ files'
  exits 0 bkfs trace list "$ONE"
  says '^warm +main +20'
  exits 0 bkfs trace show "$ONE" warm
  says 'mysql/ibdata1' 'mysql/shop/orders.ibd'
  exits 0 bkfs umount "$ONE"
}
# The clone has all that is asked for, before it is asked for.
the_next_clone_has_it_before() {
  local begun before frames replayed sent hits first
  before=$(all_sent)
  begun=$(now_ms)
  clone
  wait_for 120 is_replayed || wrong "not replayed: $(trace replay)"
  row "replay" "$(($(now_ms) - begun)) ms"
  replayed=$(($(all_sent) - before))
  [ "$(trace replay.name)" = warm ] || wrong "another trace"
  queries_on_the_clone
  row "clone to the last of 300 rows, with a trace" "$(($(now_ms) - begun)) ms"
  hits=$(trace touches.hits) first=$(trace touches.first_touches)
  frames=$(($(trace replay.fetched_bytes) + $(trace replay.found_bytes)))
  sent=$(($(all_sent) - before))
  row "first touches" "$first"
  row "fetched before" "$hits"
  row "stored bytes of their frames" "$(mib "$frames") MiB"
  row "sent for mount and replay" "$(mib "$replayed") MiB"
  row "sent in all, with what read-ahead adds" "$(mib "$sent") MiB"
  [ "$first" -gt 100 ] || wrong "only $first places were touched"
  [ $((hits * 100)) -ge $((first * 95)) ] || wrong "$hits of $first were fetched before"
  # Read-ahead also fetches what no read asks for; that is not the trace's.
  [ $((replayed * 10)) -le $((frames * 13)) ] || wrong "$replayed bytes were sent for $frames"
  exits 0 bkfs status "$ONE"
  says 'trace +warm: .* of files, .* fetched' "$hits of $first first reads came after it"
  grep -q "^bkfs_trace_hits{.*} $hits$" "$ONE/.bkfs/metrics" || wrong "another metric"
  exits 0 bkfs umount "$ONE"
}
# MariaDB does not wait for the replay.
a_server_starts_while_it_is_replayed() {
  local begun
  begun=$(now_ms)
  clone trace=warm
  queries_on_the_clone
  row "the same, while the trace is replayed" "$(($(now_ms) - begun)) ms"
  [ $(($(trace touches.hits) * 100)) -ge $(($(trace touches.first_touches) * 50)) ] ||
    wrong "$(trace touches)"
  exits 0 bkfs umount "$ONE"
}
by_hand() {
  clone trace=none
  [ "$(trace replay)" = null ] || wrong "it replays something"
  exits 1 bkfs hydrate "$ONE" --trace absent
  says 'volume main has no trace absent' 'bkfs trace list'
  exits 2 bkfs hydrate "$ONE" --trace warm --unpin
  exits 0 bkfs hydrate "$ONE" --trace warm
  says 'of files that trace warm tells: .* fetched'
  exits 0 bkfs hydrate "$ONE" --trace warm --json
  [ "$(tail -n 1 "$SUITE_TMP/output" | jq .fetched_bytes)" = 0 ] || wrong "it was fetched again"
  [ "$(jq '.hydration.pins | length' "$ONE/.bkfs/status")" = 0 ] || wrong "something is pinned"
  exits 0 bkfs umount "$ONE"
}

record_ends_as_its_command_does() {
  clone trace=none
  exits 1 bkfs trace record "$ONE" early -- false
  says 'no trace was stored'
  exits 7 bkfs trace record "$ONE" early -- sh -c 'exit 7'
  exits 127 bkfs trace record "$ONE" early -- "$SUITE_TMP/absent"
  exits 143 bkfs trace record "$ONE" early -- sh -c 'kill -TERM $$'
  # Nothing was read yet.
  exits 125 bkfs trace record "$ONE" early -- true
  says 'no file of this mount was read yet'
  exits 2 bkfs trace record "$ONE" none
  exits 2 bkfs trace record "$ONE" a/b
  exits 2 bkfs trace record "$ONE" early --for 1s --until-quiet 1s
  exits 0 bkfs trace record "$ONE" early -- sh -c "head -c 1000 '$ONE/mysql/ibdata1' | tail -c 0"
  exits 0 bkfs trace show "$ONE" early
  says 'mysql/ibdata1'
  says_not 'orders'
  exits 0 bkfs trace remove "$ONE" early
  exits 1 bkfs trace remove "$ONE" early
  exits 1 bkfs trace show "$ONE" early
  exits 1 bkfs trace record "$SUITE_TMP" early
}
ctrl_c_stores_nothing() {
  local waiter
  env HOME="$MACHINE/home" XDG_STATE_HOME="$MACHINE/state" setsid "$BKFS_BIN" \
    trace record "$ONE" late --for 600s >"$SUITE_TMP/waiter" 2>&1 &
  waiter=$!
  remember_pid $waiter
  sleep 1
  kill -INT "$waiter"
  gone "$waiter" 10 || wrong "it waits still"
  wait "$waiter" && wrong "it says that all is well"
  cp "$SUITE_TMP/waiter" "$SUITE_TMP/output"
  says 'interrupted: no trace was stored'
  exits 1 bkfs trace show "$ONE" late
  exits 0 bkfs umount "$ONE"
}

sigterm_ends_a_record() {
  local waiter
  clone trace=none
  env HOME="$MACHINE/home" XDG_STATE_HOME="$MACHINE/state" setsid "$BKFS_BIN" \
    trace record "$ONE" late --for 600s -- true >"$SUITE_TMP/waiter" 2>&1 &
  waiter=$!
  remember_pid $waiter
  sleep 2
  kill -TERM "$waiter"
  gone "$waiter" 10 || wrong "it waits still"
  wait "$waiter" && wrong "it says that all is well"
  cp "$SUITE_TMP/waiter" "$SUITE_TMP/output"
  says 'interrupted: no trace was stored'
  exits 0 bkfs umount "$ONE"
}

# write_traces: prints nothing; makes hostile files in the volume of traces.
write_traces() {
  python3 - "$1" <<'P'
import os, sys, time
where = sys.argv[1]
def number(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])
def trace(paths, touches):
    body = b"bkfs-trace\0\1" + number(len(paths))
    for path in paths:
        body += number(len(path)) + path
    return body + number(len(touches)) + b"".join(
        number(file) + number(page) + number(pages) for file, page, pages in touches)
table = b"mysql/shop/orders.ibd"
files = {
    "up": trace([b"../../etc/passwd"], [(0, 0, 1)]),
    "absolute": trace([b"/etc/passwd"], [(0, 0, 1)]),
    "garbage": os.urandom(100000),
    "empty": b"",
    "cut": trace([table], [(0, page, 1) for page in range(1000)])[:-5],
    "counts": b"bkfs-trace\0\1" + number(1 << 60),
    "long": b"bkfs-trace\0\1" + bytes(65 << 20),
    "lying": trace([table, b"gone", b"mysql"], [(0, 0, 1 << 50), (1, 0, 9), (2, 5, 1 << 50)]),
    "million": trace([table], [(0, page * 7919 % 4000000, 4) for page in range(1000000)]),
    "more": trace([table], [(0, page, 1) for page in range(1000001)]),
}
for name, content in files.items():
    with open(f"{where}/main/{name}", "wb") as file:
        file.write(content)
P
}
hostile_traces_are_harmless() {
  local name
  exits 0 mount_at "$URL" "$MNT" -o volume=traces
  mkdir -p "$MNT/other"
  cp "$MNT/main/warm" "$MNT/other/warm"
  write_traces "$MNT"
  ln -s warm "$MNT/main/link"
  exits 0 bkfs umount "$MNT"
  faults '{}'
  for name in up absolute garbage empty cut counts long more; do
    exits 13 mount_at "$URL" "$ONE" -o "clone=mon,trace=$name"
    says "trace $name of volume main: this"
    ! is_mounted "$ONE" || wrong "it was mounted"
  done
  exits 13 bkfs trace show "$URL" up
  exits 1 mount_at "$URL" "$ONE" -o clone=mon,trace=link
  exits 1 mount_at "$URL" "$ONE" -o clone=mon,trace=absent
  says 'volume main has no trace absent'
  for name in lying million; do
    clone "trace=$name,cache_size=200M"
    cmp "$SUITE_TMP/mysql/ibdata1" "$ONE/mysql/ibdata1" || wrong "other contents"
    wait_for 120 is_replayed || wrong "$name is not replayed: $(trace replay)"
    trace replay
    [ "$(trace replay.fetched_bytes)" -le $((100 << 20)) ] || wrong "more than its share"
    exits 0 bkfs umount "$ONE"
  done
}
a_damaged_newest_one_is_a_warning() {
  exits 0 mount_at "$URL" "$MNT" -o volume=traces
  sleep 1.1
  touch "$MNT/main/garbage"
  exits 0 bkfs umount "$MNT"
  clone
  wait_for 20 eval '[ "$(trace replay.phase)" = failed ]' || wrong "$(trace replay)"
  cmp "$SUITE_TMP/mysql/ibdata1" "$ONE/mysql/ibdata1" || wrong "other contents"
  exits 0 bkfs status "$ONE"
  says 'trace +ended .*trace garbage of volume main: this is not a trace'
  exits 0 bkfs umount "$ONE"
}
a_trace_of_another_repository_and_a_changed_tree() {
  exits 0 mount_at "$URL" "$MNT"
  mv "$MNT/mysql/shop" "$MNT/mysql/store"
  truncate -s 100000 "$MNT/mysql/ibdata1"
  exits 0 bkfs snapshot "$MNT" tue
  exits 0 bkfs umount "$MNT"
  exits 0 mount_at "$URL" "$ONE" -o clone=tue,trace=warm
  wait_for 60 is_replayed || wrong "not replayed: $(trace replay)"
  [ "$(trace replay.absent_files)" -ge 1 ] || wrong "all files are there"
  [ "$(trace replay.failed_frames)" = 0 ] || wrong "something was not read"
  exits 0 bkfs umount "$ONE"
  # The trace of a database, replayed where there is none.
  exits 0 bkfs init "$SUITE_TMP/elsewhere"
  exits 0 mount_at "$SUITE_TMP/elsewhere" "$MNT"
  echo only >"$MNT/file"
  exits 0 bkfs snapshot "$MNT" mon
  exits 0 bkfs umount "$MNT"
  exits 0 mount_at "$URL" "$MNT" -o ro,volume=traces
  cp "$MNT/main/warm" "$SUITE_TMP/warm"
  exits 0 bkfs umount "$MNT"
  exits 0 mount_at "$SUITE_TMP/elsewhere" "$MNT" -o volume=traces,create
  mkdir "$MNT/main"
  cp "$SUITE_TMP/warm" "$MNT/main/warm"
  exits 0 bkfs umount "$MNT"
  exits 0 mount_at "$SUITE_TMP/elsewhere" "$ONE" -o clone=mon
  wait_for 20 is_replayed || wrong "not replayed: $(trace replay)"
  [ "$(trace replay.total_bytes)" = 0 ] || wrong "$(trace replay)"
  [ "$(cat "$ONE/file")" = only ] || wrong "other contents"
  exits 0 bkfs umount "$ONE"
}

machine one
case_of "a backup of a database" a_backup
[ -f "$SUITE_TMP/answers" ] || exit 1
machine two
case_of "what a clone reads first is recorded" a_clone_is_recorded
case_of "the next clone has it before it asks" the_next_clone_has_it_before
case_of "a server starts while the trace is replayed" a_server_starts_while_it_is_replayed
case_of "a trace is replayed by hand" by_hand
DELAY=0
case_of "record ends as its command does" record_ends_as_its_command_does
case_of "Ctrl-C stores nothing" ctrl_c_stores_nothing
case_of "SIGTERM ends a record after its command" sigterm_ends_a_record
case_of "hostile traces are harmless" hostile_traces_are_harmless
case_of "a damaged newest trace is a warning" a_damaged_newest_one_is_a_warning
case_of "a trace of another repository, and a changed tree" \
  a_trace_of_another_repository_and_a_changed_tree
print_table
