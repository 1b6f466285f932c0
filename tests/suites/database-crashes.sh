#!/usr/bin/env bash
# about: kill -9 of the daemon and power cuts beneath MariaDB and PostgreSQL that run on a mount:
# about: every committed transaction is there; both on a hydrated clone whose store is gone
# needs: program minio apt:mariadb-server apt:postgresql-15 apt:xfsprogs apt:e2fsprogs apt:jq
# limit: 420 7200
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"
. "$(dirname "$0")/../lib/mariadb.sh"
. "$(dirname "$0")/../lib/postgres.sh"
in_private_mounts
cd "$SUITE_TMP" || exit 1 # the users of the servers may enter it

MNT=$SUITE_TMP/mount DISK=$SUITE_TMP/disk IMAGE=$SUITE_TMP/disk.image
# Sockets and logs of the servers, outside of what crashes.
MARIADB_RUN=$SUITE_TMP/mariadb.run PG_RUN=$SUITE_TMP/pg.run
MARIADB_SOCKET=$MARIADB_RUN/socket PG_SOCKET=$PG_RUN
mkdir -p "$MNT" "$DISK" "$MARIADB_RUN" "$PG_RUN" "$SUITE_TMP/records"
chown mysql: "$MARIADB_RUN"
chown postgres: "$PG_RUN"
at_end "leave_disk"
at_end "leave_mount '$MNT'"
at_end "kill_servers"
leave_disk() { ! is_mounted "$DISK" || umount "$DISK" || umount -l "$DISK"; }
bank() { python3 "$ROOT/tests/lib/bank.py" "$@"; }
record() { echo "$SUITE_TMP/records/$1-$2"; }

# --- servers that keep what they acknowledge ------------------------------------------------------

# Small pools and small logs: pages are written back, and checkpoints made, all the time.
start_mariadb() {
  mariadbd --no-defaults --user=mysql --datadir="$1" --socket="$MARIADB_SOCKET" \
    --pid-file="$MARIADB_RUN/pid" --skip-networking --log-error="$MARIADB_RUN/log" \
    --innodb-flush-log-at-trx-commit=1 --innodb-buffer-pool-size=8M --innodb-log-file-size=8M \
    --innodb-max-dirty-pages-pct=20 --skip-log-bin </dev/null >/dev/null 2>&1 &
  MARIADB_PID=$!
  remember_pid "$MARIADB_PID"
  echo "$MARIADB_PID $(start_time_of "$MARIADB_PID")" >"$MARIADB_RUN/known"
  wait_for 120 mariadb_answers_or_died
  mariadb_answers || { tail -n 30 "$MARIADB_RUN/log"; return 1; }
}
start_postgres() {
  as_postgres "$PG_BIN/pg_ctl" start -D "$1" -w -t 120 -l "$PG_RUN/log" -s \
    -o "-c listen_addresses='' -c unix_socket_directories='$PG_RUN' -c fsync=on" \
    -o "-c full_page_writes=on -c shared_buffers=4MB -c max_wal_size=32MB" \
    -o "-c checkpoint_timeout=30s" || { tail -n 30 "$PG_RUN/log"; return 1; }
  PG_PID=$(head -n 1 "$1/postmaster.pid")
  remember_pid "$PG_PID"
  echo "$PG_PID $(start_time_of "$PG_PID")" >"$PG_RUN/known"
}
start_servers() {
  start_mariadb "$1/mysql"
  start_postgres "$1/pg"
}
# pid_in DIRECTORY: prints the process of the server that has its socket there, if it runs.
pid_in() {
  local pid started
  [ -e "$1/known" ] || return 0
  read -r pid started <"$1/known"
  [ "$(start_time_of "$pid")" != "$started" ] || echo "$pid"
}
# stop_servers: in order, which may take long where fsync waits for the bucket.
stop_servers() {
  local run pid signal=TERM
  for run in "$MARIADB_RUN" "$PG_RUN"; do
    pid=$(pid_in "$run")
    [ -n "$pid" ] || wrong "no server runs in $run"
    kill "-$signal" "$pid"
    wait_for 120 has_no_process "$pid" || wrong "a server does not end in $run"
    rm -f "$run/known"
    signal=INT
  done
}
has_no_process() { ! kill -0 "$1" 2>/dev/null; }
# kill_servers: as the crash of their machine does. Those of PostgreSQL's processes end that find
# the first one gone.
kill_servers() {
  local run pid child children
  for run in "$MARIADB_RUN" "$PG_RUN"; do
    pid=$(pid_in "$run")
    [ -n "$pid" ] || continue
    children=$(pgrep -P "$pid" || true)
    # It starts no more processes, so that these are all. It may also end by itself just now, since
    # what it stands on has gone.
    if kill -STOP "$pid" 2>/dev/null; then children=$(pgrep -P "$pid" || true); fi
    for child in $children "$pid"; do kill -KILL "$child" 2>/dev/null || true; done
    # PostgreSQL takes one that its parent has not waited for yet for alive.
    for child in $children "$pid"; do
      wait_for 30 has_no_process "$child" ||
        wrong "a server stays: $(ps -o pid,stat,args -p "$child")"
    done
    rm -f "$run/known"
  done
}

# --- what is there --------------------------------------------------------------------------------

# whole: no page of a table or an index is torn, and indexes name the rows that there are.
whole() {
  local found
  found=$(sql -e 'CHECK TABLE bank.accounts, bank.ledger EXTENDED' | cut -f 3,4)
  [ "$found" = $'status\tOK\nstatus\tOK' ] || wrong "MariaDB says $found"
  as_postgres "$PG_BIN/pg_amcheck" -h "$PG_SOCKET" --all --install-missing --heapallindexed ||
    wrong "pg_amcheck says so"
}
# holds MODE: each committed transaction of both databases is there.
holds() {
  bank check mariadb "$MARIADB_SOCKET" "$(record mariadb "$1")"
  bank check postgres "$PG_SOCKET" "$(record postgres "$1")"
  whole
}

# --- rounds ---------------------------------------------------------------------------------------

# on MACHINE: selects a machine. That of the disk has its state and its cache there.
on() {
  machine "$1"
  CACHE_DIR=$MACHINE/bkfs-cache
  [ "$1" = disk ] || return 0
  mkdir -p "$DISK/state" "$DISK/cache"
  rm -rf "${MACHINE:?}/state"
  ln -s "$DISK/state" "$MACHINE/state"
  CACHE_DIR=$DISK/cache
}
mount_live() {
  exits 0 bkfs mount "$URL" "$MNT" \
    -o "cache_dir=$CACHE_DIR,cache_size=200M,spool_size=128M,allow_other,volume=live-$1,fsync=$1"
}
# begin MODE: both servers run on a mount of the machine of the disk, perhaps since the last round.
begin() {
  on disk
  if is_mounted "$MNT"; then return; fi
  mount_live "$1"
  start_servers "$MNT"
}
# leave_round: a round that fails leaves no clients, no servers, no mount and no disk that is shut
# down to the next one.
leave_round() {
  local status=$? client
  [ $status -ne 0 ] || return 0
  tail -n 20 "$SUITE_TMP/clients.log" 2>/dev/null
  kill -CONT "$MINIO_PID"
  for client in "${clients[@]+"${clients[@]}"}"; do stop_pid "$client" KILL; done
  kill_servers
  ! is_mounted "$MNT" || umount -i -l "$MNT"
  umount "$DISK" || umount -l "$DISK"
  mount -o loop "$IMAGE" "$DISK"
}
# start_clients MODE KIND…: they work until their server is gone.
start_clients() {
  local mode=$1 kind place
  shift
  for kind in "$@"; do
    place=$MARIADB_SOCKET
    [ "$kind" = mariadb ] || place=$PG_SOCKET
    rm -f "$(record "$kind" "$mode").ended"
    bank run "$kind" "$place" "$(record "$kind" "$mode")" 2>>"$SUITE_TMP/clients.log" &
    clients+=($!)
    remember_pid $!
  done
}
# have_committed COUNT MODE KIND…: so many transactions more are committed, and no client has ended.
have_committed() {
  local count=$1 mode=$2 kind
  shift 2
  for kind in "$@"; do
    wait_for 60 committed_beyond "$(record "$kind" "$mode")" $((before[$kind] + count)) ||
      wrong "$kind commits too little"
    [ ! -e "$(record "$kind" "$mode").ended" ] || wrong "a client of $kind has ended"
  done
}
# count_committed MODE KIND…: notes how many are committed now.
count_committed() {
  local mode=$1 kind
  shift
  for kind in "$@"; do before[$kind]=$(bank count "$(record "$kind" "$mode")"); done
}
committed_beyond() { [ "$(bank count "$1")" -gt "$2" ]; }

# crash_round MODE EVENT NUMBER: a crash while both databases work. After each second round of
# fsync=bucket they start where there is no spool.
crash_round() {
  local mode=$1 event=$2 number=$3 pid clients=()
  local -A before=()
  trap leave_round EXIT
  begin "$mode"
  count_committed "$mode" mariadb postgres
  start_clients "$mode" mariadb postgres
  have_committed 20 "$mode" mariadb postgres
  sleep "$(awk -v seed="$number" 'BEGIN {srand(seed * 7919); printf "%.2f", rand() * 2}')"
  have_committed 0 "$mode" mariadb postgres
  pid=$(daemon_of "$MNT")
  [ "$event" = kill ] || xfs_io -x -c shutdown "$DISK"
  kill -KILL "$pid"
  gone "$pid" 10
  kill_servers
  wait "${clients[@]}" || true
  umount -i -l "$MNT"
  if [ "$event" != kill ]; then
    umount "$DISK"
    mount -o loop "$IMAGE" "$DISK"
  fi
  if [ "$mode" != bucket ] || [ $((number % 2)) = 1 ]; then
    mount_live "$mode"
    start_servers "$MNT"
    holds "$mode"
    return
  fi
  on elsewhere
  mount_live "$mode"
  start_servers "$MNT"
  holds "$mode"
  stop_servers
  exits 0 bkfs umount "$MNT"
}
end_rounds() {
  begin "$1"
  stop_servers
  exits 0 bkfs umount "$MNT"
  on stranger
  mount_live "$1"
  start_servers "$MNT"
  holds "$1"
  stop_servers
  exits 0 bkfs umount "$MNT"
}

# --- preparations ---------------------------------------------------------------------------------

make_databases() {
  local base=$SUITE_TMP/base
  mkdir -p "$base"
  mariadb_create "$base/mysql"
  postgres_create "$base/pg"
  start_servers "$base"
  sql -e 'CREATE DATABASE bank'
  bank make mariadb "$MARIADB_SOCKET"
  bank make postgres "$PG_SOCKET"
  whole
  mariadb_checksums >"$SUITE_TMP/checksums"
  stop_servers
  on stranger
  exits 0 bkfs init --no-encryption "$URL"
  exits 0 mount_at "$URL" "$MNT" -o allow_other
  cp -a "$base/mysql" "$base/pg" "$MNT/"
  exits 0 bkfs snapshot "$MNT" base
  exits 0 bkfs umount "$MNT"
  exits 0 bkfs volume clone "$URL" base live-local
  exits 0 bkfs volume clone "$URL" base live-bucket
  rm -rf "$base"
}
# The check finds a transaction that is lost, one that nothing asked for, and half of one.
the_check_finds_what_is_wrong() {
  local kind place ask known=$SUITE_TMP/records/known clients=()
  trap leave_round EXIT
  begin local
  for kind in mariadb postgres; do
    case $kind in
      mariadb) place=$MARIADB_SOCKET ask=sql_in_bank ;;
      postgres) place=$PG_SOCKET ask=psql_in_bank ;;
    esac
    cp "$(record "$kind" local)" "$known"
    exits 0 bank check "$kind" "$place" "$known"
    printf 'try 2000000000 1 2 3\ndone 2000000000\n' >>"$known"
    exits 1 bank check "$kind" "$place" "$known"
    says 'transaction 2000000000 was committed and is not there'
    cp "$(record "$kind" local)" "$known"
    $ask 'UPDATE accounts SET balance = balance + 1 WHERE id = 7'
    exits 1 bank check "$kind" "$place" "$known"
    says 'account 7 has'
    $ask 'UPDATE accounts SET balance = balance - 1 WHERE id = 7'
    $ask 'INSERT INTO ledger VALUES (2000000001, 1, 1, 0)'
    exits 1 bank check "$kind" "$place" "$known"
    says 'transaction 2000000001 is'
    $ask 'DELETE FROM ledger WHERE number = 2000000001'
    exits 0 bank check "$kind" "$place" "$known"
  done
}
sql_in_bank() { sql bank -e "$1"; }
psql_in_bank() { psql_on -q -c "$1"; }

# What fsync=local acknowledged while the store does not answer is in the spool alone: without it
# the check finds what is missing.
without_its_spool() {
  local pid clients=()
  local -A before=()
  trap leave_round EXIT
  begin local
  exits 0 bkfs hydrate "$MNT"
  kill -STOP "$MINIO_PID"
  count_committed local postgres
  start_clients local postgres
  have_committed 20 local postgres
  pid=$(daemon_of "$MNT")
  kill -KILL "$pid"
  gone "$pid" 10
  kill_servers
  wait "${clients[@]}" || true
  umount -i -l "$MNT"
  kill -CONT "$MINIO_PID"
  on elsewhere
  mount_live local
  start_postgres "$MNT/pg"
  exits 1 bank check postgres "$PG_SOCKET" "$(record postgres local)"
  says 'was committed and is not there'
  kill_servers
  exits 0 bkfs umount "$MNT"
}

# --- a hydrated clone -----------------------------------------------------------------------------

requests() { jq .metrics.get_requests "$MNT/.bkfs/status"; }
no_store_is_needed() {
  local asked clients=()
  local -A before=()
  trap leave_round EXIT
  machine hydrated
  exits 0 mount_at "$URL" "$MNT" -o allow_other,clone=base,volume=main
  exits 0 bkfs hydrate "$MNT"
  asked=$(requests)
  kill -STOP "$MINIO_PID"
  start_servers "$MNT"
  mariadb_checksums | diff "$SUITE_TMP/checksums" - || wrong "the tables differ"
  whole
  count_committed scratch mariadb
  start_clients scratch mariadb
  have_committed 50 scratch mariadb
  stop_servers
  wait "${clients[@]}" || true
  start_servers "$MNT"
  holds scratch
  stop_servers
  [ "$(requests)" = "$asked" ] || wrong "$(($(requests) - asked)) requests were sent"
  kill -CONT "$MINIO_PID"
  exits 0 bkfs umount "$MNT"
}

KILLS=2 CUTS=2
[ "$FULL" = 0 ] || KILLS=50 CUTS=50
start_minio
at_end "kill -CONT '$MINIO_PID' 2>/dev/null"
s3_environment "$BKFS_TEST_S3_MINIO"
URL=s3://$BKFS_TEST_BUCKET/crashes
truncate -s 800M "$IMAGE"
mkfs.ext4 -q -F "$IMAGE"
mount -o loop "$IMAGE" "$DISK" || die "cannot mount a disk"
on disk
case_of "two databases" make_databases || exit 1
case_of "both run on a hydrated clone whose store is gone" no_store_is_needed
for mode in local bucket; do
  for number in $(seq "$KILLS"); do
    case_of "kill -9 beneath both, fsync=$mode, $number" crash_round "$mode" kill "$number"
  done
  for number in $(seq "$CUTS"); do
    case_of "power cut beneath both, fsync=$mode, $number" crash_round "$mode" cut "$number"
  done
  [ "$mode" = bucket ] || case_of "the check finds what is wrong" the_check_finds_what_is_wrong
  case_of "another machine has all of fsync=$mode after an unmount" end_rounds "$mode"
done
case_of "a check of every byte finds nothing" exits 0 bkfs check --read-data "$URL"
case_of "without its spool a machine lacks what fsync=local acknowledged" without_its_spool
