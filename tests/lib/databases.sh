# shellcheck shell=bash
# Databases on a mount ($MNT), for the suite `programs`: use_NAME and check_NAME, as in programs.sh.
# They run as their own users.

# --- mariabackup prepares on the mount ------------------------------------------------------------

# A backup and two increments, all prepared in place: mariabackup writes pages of 16 KiB at random
# offsets.
use_mariabackup() {
  local here=$MNT/mariabackup source=$PLAIN/mariadb step
  mariadb_create "$source"
  mariadb_start "$source"
  mariadb_load 40000
  mariabackup_to "$here/full"
  mariadb_change 300
  mariadb_checksums >"$PLAIN/checksums-alone"
  mariabackup_to "$here/alone"
  mariabackup_to "$here/first" --incremental-basedir="$here/full"
  mariadb_change_again
  mariadb_checksums >"$PLAIN/checksums-chain"
  mariabackup_to "$here/second" --incremental-basedir="$here/first"
  mariadb_stop
  mariabackup_prepare "$here/alone"
  mariabackup_prepare "$here/full"
  for step in first second; do
    mariabackup_prepare "$here/full" --incremental-dir="$here/$step"
  done
}
mariadb_change_again() {
  sql kinds -e "UPDATE parted SET value = UPPER(value) WHERE id % 11 = 0;
    DELETE FROM parted WHERE id % 13 = 0;
    CREATE TABLE made_last (id INT PRIMARY KEY) ENGINE=InnoDB;
    INSERT INTO made_last VALUES (1), (2)"
}
mariabackup_to() {
  mariabackup --no-defaults --backup --user=root --socket="$MARIADB_SOCKET" \
    --datadir="$PLAIN/mariadb" --target-dir="$1" --parallel=2 "${@:2}" 2>"$PLAIN/mariabackup.log" ||
    { tail -n 20 "$PLAIN/mariabackup.log"; return 1; }
}
mariabackup_prepare() {
  mariabackup --no-defaults --prepare --use-memory=128M --target-dir="$1" "${@:2}" \
    2>"$PLAIN/prepare.log" ||
    { tail -n 20 "$PLAIN/prepare.log"; return 1; }
  tail -n 1 "$PLAIN/prepare.log" | grep -q 'completed OK'
}
check_mariabackup() {
  started_holds "$1/alone" "$PLAIN/checksums-alone"
  started_holds "$1/full" "$PLAIN/checksums-chain"
}
# started_holds DATADIR CHECKSUMS: a server that starts on this data directory has these tables.
started_holds() {
  chown -R mysql: "$1"
  chmod 755 "$PLAIN" "$(dirname "$1")"
  mariadb_start "$1"
  mariadb_checksums >"$PLAIN/checksums-now"
  mariadb_stop
  rm -rf "$1.run"
  diff "$2" "$PLAIN/checksums-now" || wrong "the tables of $1 differ"
}

# --- a server whose data lies on the live volume --------------------------------------------------

use_mariadbd() {
  local data=$MNT/mariadbd/data
  mariadb_create "$data"
  # Its socket and log lie outside of the mount.
  mariadb_start_on "$data"
  ROWS=20000
  sql -e 'CREATE DATABASE sbtest; CREATE DATABASE kinds'
  sysbench_on --threads=2 prepare >/dev/null
  sysbench_on --threads=4 --time=0 --events=1500 run | grep -E 'transactions:|95th'
  # A snapshot under load equals the state after a crash: the server must recover from it.
  sysbench_on --threads=4 --time=0 --events=1500 run >"$PLAIN/sysbench.log" 2>&1 &
  LOAD=$!
  exits 0 bkfs snapshot "$MNT" under-load
  wait "$LOAD" || { tail -n 20 "$PLAIN/sysbench.log"; return 1; }
  mariadb_checksums >"$PLAIN/checksums-live"
  mariadb_stop
}
mariadb_start_on() {
  mkdir -p "$PLAIN/mariadbd-run" && chown mysql: "$PLAIN/mariadbd-run" &&
    ln -sfn "$PLAIN/mariadbd-run" "$1.run" && mariadb_start "$1"
}
check_mariadbd() {
  rm -f "$1/data.run"
  started_holds "$1/data" "$PLAIN/checksums-live"
  rm -rf "$PLAIN/recovered"
  cp -a "$MNT/.snapshots/under-load/mariadbd/data" "$PLAIN/recovered"
  chown -R mysql: "$PLAIN/recovered"
  mariadb_start "$PLAIN/recovered"
  [ "$(sql -e "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'sbtest'")" = \
    "$SYSBENCH_TABLES" ]
  mariadb-check --no-defaults --socket="$MARIADB_SOCKET" --user=root --extended sbtest |
    tee "$SUITE_TMP/output"
  mariadb_stop
  [ "$(grep -c 'OK$' "$SUITE_TMP/output")" = "$SYSBENCH_TABLES" ] ||
    wrong "not all tables are sound"
}

# --- pgBackRest with its repository on the mount, and a base backup with its log streamed ---------

pgbackrest() {
  as_postgres "$(command -v pgbackrest)" --config="$PLAIN/pgbackrest.conf" --stanza=main \
    --log-level-console=warn "$@"
}
pgbackrest_configuration() {
  mkdir -p "$PLAIN/pgbackrest-log" "$PLAIN/pgbackrest-spool"
  chown postgres: "$PLAIN/pgbackrest-log" "$PLAIN/pgbackrest-spool"
  {
    printf '[global]\nrepo1-path=%s\nlog-path=%s\n' "$1" "$PLAIN/pgbackrest-log"
    printf 'spool-path=%s\nlock-path=%s\n' "$PLAIN/pgbackrest-spool" "$PLAIN/pgbackrest-spool"
    printf 'process-max=2\nstart-fast=y\ncompress-type=none\n'
    printf '[main]\npg1-path=%s\npg1-socket-path=%s\n' "$2" "$2.run"
  } >"$PLAIN/pgbackrest.conf"
  chmod 644 "$PLAIN/pgbackrest.conf"
}
use_pgbackrest() {
  local here=$MNT/pgbackrest source=$PLAIN/postgres
  chown postgres: "$here"
  postgres_create "$source"
  pgbackrest_configuration "$here/repository" "$source"
  printf \
    "archive_mode=on\narchive_command='pgbackrest --config=%s --stanza=main archive-push %%p'\n" \
    "$PLAIN/pgbackrest.conf" >>"$source/postgresql.conf"
  postgres_start "$source"
  postgres_load 5
  pgbackrest stanza-create
  pgbackrest --type=full backup
  psql_on -q -c "UPDATE pgbench_accounts SET abalance = aid % 1000 WHERE aid % 3 = 0"
  pgbackrest --type=diff backup
  psql_on -q -c "CREATE TABLE after_the_backup AS SELECT 1 AS id" -c "SELECT pg_switch_wal()"
  postgres_sums >"$PLAIN/postgres-sums"
  pgbackrest check
  pgbackrest verify
  as_postgres "$PG_BIN/pg_basebackup" -h "$PG_SOCKET" -U postgres -X stream -c fast -D "$here/base"
  as_postgres "$PG_BIN/pg_verifybackup" "$here/base"
  postgres_stop "$source"
}
check_pgbackrest() {
  rm -rf "$PLAIN/recovered-postgres"
  chmod 755 "$PLAIN" "$1"
  install -d -o postgres -m 700 "$PLAIN/recovered-postgres"
  pgbackrest_configuration "$1/repository" "$PLAIN/recovered-postgres"
  pgbackrest restore
  postgres_holds "$PLAIN/recovered-postgres"
  as_postgres "$PG_BIN/pg_verifybackup" "$1/base"
  postgres_holds "$1/base"
}
postgres_holds() {
  printf "archive_mode=off\n" >>"$1/postgresql.conf"
  postgres_start "$1"
  wait_for 60 postgres_recovered
  postgres_sums >"$PLAIN/postgres-sums-now"
  postgres_stop "$1"
  diff "$PLAIN/postgres-sums" "$PLAIN/postgres-sums-now" || wrong "the tables of $1 differ"
}
postgres_recovered() { [ "$(psql_on -c 'SELECT pg_is_in_recovery()')" = f ]; }
