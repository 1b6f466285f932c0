#!/usr/bin/env bash
# about: clones of snapshots with MariaDB and PostgreSQL on them, drills with right and damaged
# about: backups, and what crashes of both leave
# needs: program apt:mariadb-server apt:postgresql-15 apt:sysbench
# limit: 240
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/mariadb.sh"
. "$(dirname "$0")/../lib/postgres.sh"

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
ONE=$SUITE_TMP/clone-one TWO=$SUITE_TMP/clone-two
mkdir -p "$MNT" "$ONE" "$TWO"
machine one
for place in "$MNT" "$ONE" "$TWO"; do at_end "leave_mount '$place'"; done

# --- a backup of two databases --------------------------------------------------------------------

mariadb_create "$SUITE_TMP/mysql" || die "no MariaDB"
mariadb_start "$SUITE_TMP/mysql" || die "MariaDB does not start"
sql -e 'CREATE DATABASE shop' || die "no database"
sql shop -e 'CREATE TABLE orders (id INT PRIMARY KEY, value CHAR(64));
  INSERT INTO orders SELECT seq, SHA2(seq, 256) FROM seq_1_to_20000' || die "no rows"
mariadb_stop
postgres_create "$SUITE_TMP/pg" || die "no PostgreSQL"
postgres_start "$SUITE_TMP/pg" || die "PostgreSQL does not start"
psql_on -qc "CREATE TABLE orders AS SELECT i AS id, md5(i::text) AS value
  FROM generate_series(1, 20000) i" || die "no rows"
postgres_stop "$SUITE_TMP/pg"
mount_at "$URL" "$MNT" --init --no-encryption -o allow_other || die "no mount"
cp -a "$SUITE_TMP/mysql" "$SUITE_TMP/pg" "$MNT/" || die "no backup"
bkfs snapshot "$MNT" mon || die "no snapshot"
bkfs umount "$MNT" || die "no unmount"
cp -a "$URL" "$SUITE_TMP/damaged"

volumes() { bkfs volume list --json "$1" | jq -r .name | paste -sd ' '; }
bytes_of() { find "$1" -type f -printf '%s\n' | awk '{sum += $1} END {print sum + 0}'; }
clone_at() {
  local place=$1
  shift
  exits 0 mount_at "$URL" "$place" -o "allow_other,clone=mon" "$@"
}

# --- clones ---------------------------------------------------------------------------------------

# rows_on CLONE VALUE: MariaDB and PostgreSQL start on the clone, find all rows, and add one.
rows_on() {
  local count
  mariadb_start "$1/mysql"
  count=$(sql -e 'SELECT count(*) FROM shop.orders')
  [ "$count" = 20000 ] || wrong "MariaDB finds $count rows"
  sql -e "INSERT INTO shop.orders VALUES (0, '$2')"
  mariadb-check --no-defaults --socket="$MARIADB_SOCKET" --user=root --databases shop --extended
  mariadb_stop
  postgres_start "$1/pg"
  count=$(psql_on -c 'SELECT count(*) FROM orders')
  [ "$count" = 20000 ] || wrong "PostgreSQL finds $count rows"
  psql_on -qc "INSERT INTO orders VALUES (0, '$2')"
  psql_on -qc CHECKPOINT
  postgres_stop "$1/pg"
}
# value_on CLONE VALUE: the row that was added is there, and no other one.
value_on() {
  local found
  mariadb_start "$1/mysql"
  found=$(sql -e 'SELECT value FROM shop.orders WHERE id = 0')
  [ "$found" = "$2" ] || wrong "MariaDB finds $found"
  mariadb_stop
  postgres_start "$1/pg"
  found=$(psql_on -c 'SELECT value FROM orders WHERE id = 0')
  [ "$found" = "$2" ] || wrong "PostgreSQL finds $found"
  postgres_stop "$1/pg"
}
two_clones_are_two_databases() {
  local before after
  clone_at "$ONE"
  clone_at "$TWO"
  before=$(bytes_of "$URL")
  rows_on "$ONE" one
  rows_on "$TWO" two
  after=$(bytes_of "$URL")
  # Scratch clones upload nothing but heartbeats.
  [ $((after - before)) -lt 20000 ] || wrong "$((after - before)) bytes were stored"
  value_on "$ONE" one
  value_on "$TWO" two
  volumes "$URL" | grep -qE '^main scratch~[0-9a-f]{16} scratch~[0-9a-f]{16}$'
  exits 0 bkfs umount "$ONE"
  exits 0 bkfs umount "$TWO"
  [ "$(volumes "$URL")" = main ] || wrong "there are $(volumes "$URL")"
}
a_clone_stays_and_needs_no_source() {
  clone_at "$ONE" -o as=try1
  rows_on "$ONE" kept
  exits 0 bkfs umount "$ONE"
  exits 0 bkfs volume clone "$URL" mon try2
  exits 1 bkfs volume clone "$URL" mon try2
  exits 0 bkfs volume remove "$URL" main --yes-delete
  exits 0 bkfs gc --undelete-window 0s "$URL"
  exits 0 bkfs gc --undelete-window 0s "$URL"
  exits 0 mount_at "$URL" "$ONE" -o allow_other,volume=try1
  exits 11 bkfs volume remove "$URL" try1
  value_on "$ONE" kept
  exits 0 bkfs umount "$ONE"
  exits 0 mount_at "$URL" "$TWO" -o allow_other,volume=try2
  rows_on "$TWO" again
  exits 0 bkfs umount "$TWO"
  exits 0 bkfs check --read-data "$URL"
}
options_go_together() {
  exits 2 mount_at "$URL" "$ONE" -o scratch
  exits 2 mount_at "$URL" "$ONE" -o as=x
  exits 2 mount_at "$URL" "$ONE" -o clone=latest,snapshot=latest
  exits 2 mount_at "$URL" "$ONE" -o clone=latest,ro
  exits 1 mount_at "$URL" "$ONE" -o clone=nothing,volume=try1
  exits 1 bkfs volume create "$URL" scratch~1
  exits 1 bkfs volume rename "$URL" try1 try3
  says 'cannot be renamed'
}
a_dead_clone_is_reaped() {
  clone_at "$ONE" -o volume=try1,clone=@2100-01-01 2>/dev/null || true
  leave_mount "$ONE"
  exits 0 mount_at "$URL" "$TWO" -o volume=try1
  exits 0 bkfs snapshot "$TWO" mine
  exits 0 bkfs umount "$TWO"
  exits 0 mount_at "$URL" "$ONE" -o volume=try1,clone=mine
  # One that lives is left alone by a mount.
  exits 0 mount_at "$URL" "$TWO" -o volume=try1
  sleep 2
  ls "$ONE/mysql" >/dev/null
  exits 0 bkfs umount "$TWO"
  kill -KILL "$(daemon_of "$ONE")"
  umount -i -l "$ONE"
  [ "$(volumes "$URL" | wc -w)" = 3 ] || wrong "there are $(volumes "$URL")"
  exits 0 mount_at "$URL" "$TWO" -o volume=try1
  wait_for 20 eval '[ "$(volumes "$URL")" = "try1 try2" ]' || wrong "there are $(volumes "$URL")"
  exits 0 bkfs umount "$TWO"
}

# --- drills ---------------------------------------------------------------------------------------

cat >"$SUITE_TMP/mariadb-drill" <<'S'
#!/bin/sh
set -eu
data=$BKFS_CLONE/mysql
socket=/tmp/drill-$$.sock
mariadbd --no-defaults --user=mysql --datadir="$data" --socket="$socket" --skip-networking \
  --skip-log-bin --innodb-buffer-pool-size=32M &
for i in $(seq 300); do mariadb-admin --no-defaults --socket="$socket" --user=root ping && break; sleep 0.1; done
mariadb --no-defaults --socket="$socket" --user=root -e 'CHECKSUM TABLE shop.orders'
mariadb-check --no-defaults --socket="$socket" --user=root --databases shop --extended
S
chmod 755 "$SUITE_TMP/mariadb-drill"

# alone ARGS…: becomes the program, for a process that a case kills.
alone() {
  exec env HOME="$MACHINE/home" XDG_STATE_HOME="$MACHINE/state" XDG_CACHE_HOME="$MACHINE/cache" \
    XDG_CONFIG_HOME="$MACHINE/config" "$BKFS_BIN" "$@"
}
# nothing_left URL: no mount, no process and no volume of a drill.
nothing_left() {
  ! grep -q /run/bkfs-drill /proc/self/mountinfo || wrong "a mount is left"
  ! bkfs volume list --json "$1" | jq -e 'select(.scratch)' || wrong "a clone is left"
  ! pgrep -f /run/bkfs-drill || wrong "a process is left"
  ! compgen -G "$MACHINE/cache/bkfs/bkfs-drill-*" || wrong "a cache is left"
}
a_drill_is_noted() {
  exits 0 bkfs drill "$SUITE_TMP/damaged" mon -- "$SUITE_TMP/mariadb-drill"
  says 'shop.orders +OK' 'drill of snapshot mon: ok'
  bkfs snapshots --json "$SUITE_TMP/damaged" |
    jq -e '.drill | .ok and .command == "mariadb-drill" and .read_percent > 1'
  exits 0 bkfs drill "$SUITE_TMP/damaged" mon -- true
  bkfs snapshots --json "$SUITE_TMP/damaged" | jq -e '.drill.ok and .drill.read_percent == 0'
  exits 0 bkfs snapshots "$SUITE_TMP/damaged"
  says 'DRILLED' ' ok$'
  bkfs metrics "$SUITE_TMP/damaged" | grep -qE '^bkfs_repository_last_drill_good\{.*\} 1$'
  exits 7 bkfs drill "$SUITE_TMP/damaged" mon -- sh -c 'exit 7'
  bkfs snapshots --json "$SUITE_TMP/damaged" | jq -e '.drill.ok | not'
  nothing_left "$SUITE_TMP/damaged"
}
# The drill itself runs in namespaces, and can make none for its command.
a_drill_without_namespaces_has_no_result() {
  local tools=$SUITE_TMP/no-namespaces before
  mkdir -p "$tools"
  before=$(bkfs snapshots --json "$SUITE_TMP/damaged" | jq -c .drill)
  cat >"$tools/unshare" <<S
#!/bin/sh
case "\$*" in *--net*) exit 1 ;; esac
exec $(command -v unshare) "\$@"
S
  chmod 755 "$tools/unshare"
  PATH=$tools:$PATH exits 125 bkfs drill "$SUITE_TMP/damaged" mon -- true
  says 'the command was not started'
  [ "$(bkfs snapshots --json "$SUITE_TMP/damaged" | jq -c .drill)" = "$before" ] ||
    wrong "it is noted as a result"
  nothing_left "$SUITE_TMP/damaged"
}
a_drill_is_kept_apart() {
  export BKFS_FROM_PASSWORD=secret AWS_SECRET_ACCESS_KEY=secret
  exits 0 bkfs drill "$SUITE_TMP/damaged" mon --user postgres -- sh -c \
    'id -un; env; ls /sys/class/net; ls -l /proc/self/fd; test -d "$BKFS_CLONE/pg" && ps ax | wc -l'
  says '^postgres$' '^BKFS_CLONE='
  says_not secret
  unset BKFS_FROM_PASSWORD AWS_SECRET_ACCESS_KEY
  [ ! -e /run/bkfs-drill/pg ] || wrong "others see the clone"
  exits 125 bkfs drill "$SUITE_TMP/damaged" nothing -- true
  exits 125 bkfs drill "$SUITE_TMP/damaged" mon --user no-such-user -- true
  local before
  before=$(bkfs snapshots --json "$SUITE_TMP/damaged" | jq -c .drill)
  exits 127 bkfs drill "$SUITE_TMP/damaged" mon -- no-such-program
  says 'cannot run no-such-program'
  exits 126 bkfs drill "$SUITE_TMP/damaged" mon -- /etc/passwd
  [ "$(bkfs snapshots --json "$SUITE_TMP/damaged" | jq -c .drill)" = "$before" ] ||
    wrong "it is noted as a result"
  nothing_left "$SUITE_TMP/damaged"
}
a_drill_ends_in_time() {
  exits 125 bkfs drill "$SUITE_TMP/damaged" mon --timeout 1 -- \
    sh -c 'setsid sleep 4711 & sleep 4712'
  says 'did not end within 1 s'
  ! pgrep -f 'sleep 471[12]' || wrong "a process is left"
  alone drill "$SUITE_TMP/damaged" mon -- sleep 4713 >/dev/null 2>&1 &
  local pid=$!
  remember_pid "$pid"
  wait_for 10 pgrep -f '^sleep 4713' || wrong "it does not start"
  kill -INT "$pid"
  gone "$pid" 20 || wrong "it does not end"
  ! pgrep -f '^sleep 4713' || wrong "a process is left"
  nothing_left "$SUITE_TMP/damaged"
}
a_killed_drill_leaves_what_the_next_one_removes() {
  alone drill "$SUITE_TMP/damaged" mon -- sh -c 'setsid sleep 4714 & sleep 4715' \
    >/dev/null 2>&1 &
  local pid=$!
  remember_pid "$pid"
  wait_for 10 pgrep -f '^sleep 4714' || wrong "it does not start"
  kill -KILL "$pid"
  wait_for 10 eval '! pgrep -f "^sleep 471[45]"' || wrong "a process is left"
  bkfs volume list --json "$SUITE_TMP/damaged" | jq -e 'select(.scratch)' || wrong "no clone is left"
  exits 0 bkfs drill "$SUITE_TMP/damaged" mon -- true
  nothing_left "$SUITE_TMP/damaged"
}
damage_fails_a_drill() {
  # This machine has read all of it, so its cache has it.
  local pack
  mkdir -p "$SUITE_TMP/drilled"
  exits 0 bkfs mount "$SUITE_TMP/damaged" "$SUITE_TMP/drilled" -o ro
  cat "$SUITE_TMP"/drilled/.snapshots/mon/mysql/* >/dev/null 2>&1 || true
  cat "$SUITE_TMP"/drilled/.snapshots/mon/mysql/shop/* >/dev/null
  exits 0 bkfs umount "$SUITE_TMP/drilled"
  find "$SUITE_TMP/damaged/data" -type f | while read -r pack; do
    dd if=/dev/zero of="$pack" bs=1 seek=$(($(stat -c %s "$pack") / 2)) count=64 conv=notrunc 2>/dev/null
  done
  exits 125 bkfs drill "$SUITE_TMP/damaged" mon -- \
    sh -c 'cat "$BKFS_CLONE"/mysql/* "$BKFS_CLONE"/mysql/shop/* >/dev/null; true'
  says 'drill of snapshot mon: failed' 'damaged'
  bkfs snapshots --json "$SUITE_TMP/damaged" | jq -e '.drill.ok | not'
  bkfs metrics "$SUITE_TMP/damaged" | grep -qE '^bkfs_repository_last_drill_good\{.*\} 0$'
  nothing_left "$SUITE_TMP/damaged"
}

case_of "two clones of one snapshot are two databases" two_clones_are_two_databases
case_of "a clone with a name stays, and needs its source no more" a_clone_stays_and_needs_no_source
case_of "options that do not go together are refused" options_go_together
case_of "the clone of a dead mount is removed, and that of a live one stays" a_dead_clone_is_reaped
# The repository of drills is a copy: no machine that knows the other one may see it.
machine two
case_of "a drill is noted on its snapshot" a_drill_is_noted
case_of "a drill whose command cannot be kept apart has no result" \
  a_drill_without_namespaces_has_no_result
case_of "the command of a drill is kept apart" a_drill_is_kept_apart
case_of "a drill ends in time, with all that it started" a_drill_ends_in_time
case_of "a killed drill leaves what the next one removes" \
  a_killed_drill_leaves_what_the_next_one_removes
case_of "damage fails a drill, whatever its command says" damage_fails_a_drill
exit 0
