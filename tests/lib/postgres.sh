# shellcheck shell=bash
# A PostgreSQL server for a test: private data directory and socket, no TCP, user postgres.

PG_BIN=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
as_postgres() {
  setpriv --reuid postgres --regid postgres --init-groups env HOME=/var/lib/postgresql "$@"
}

# postgres_start DATADIR: starts a server and sets PG_SOCKET (a directory).
postgres_start() {
  PG_SOCKET=$1.run
  mkdir -p "$PG_SOCKET"
  chown postgres: "$PG_SOCKET"
  chmod 700 "$1"
  as_postgres "$PG_BIN/pg_ctl" start -D "$1" -w -t 120 -l "$PG_SOCKET/log" -s \
    -o "-c listen_addresses='' -c unix_socket_directories='$PG_SOCKET' -c fsync=off" \
    -o "-c wal_level=replica -c max_wal_senders=4 -c shared_buffers=64MB" ||
    { tail -n 30 "$PG_SOCKET/log"; return 1; }
  remember_pid "$(head -n 1 "$1/postmaster.pid")"
  at_end "postgres_stop '$1'"
}
postgres_stop() {
  local pid
  pid=$(head -n 1 "$1/postmaster.pid" 2>/dev/null) || return 0
  stop_pid "$pid" INT
}
psql_on() {
  as_postgres "$PG_BIN/psql" -X -A -t -v ON_ERROR_STOP=1 -h "$PG_SOCKET" \
    -d "${PG_DATABASE:-postgres}" "$@"
}

postgres_create() {
  mkdir -p "$1"
  chown postgres: "$1"
  as_postgres "$PG_BIN/initdb" -D "$1" -k -A trust -U postgres --no-sync >"$1.initdb.log" 2>&1 || {
    tail -n 20 "$1.initdb.log"
    return 1
  }
}

# postgres_load SCALE: creates pgbench's tables, a large object, values in TOAST, a table with an
# odd name.
postgres_load() {
  as_postgres "$PG_BIN/pgbench" -q -i -s "$1" -h "$PG_SOCKET" postgres >/dev/null 2>&1 || return 1
  psql_on -q <<'S'
CREATE TABLE toasted AS SELECT i AS id, (
    SELECT string_agg(md5((i * 1000 + j)::text), '') FROM generate_series(1, 300) j
  ) AS value FROM generate_series(1, 500) i;
CREATE TABLE "odd ""name"" ü" AS SELECT 1 AS id;
CREATE UNLOGGED TABLE unlogged AS SELECT 1 AS id;
SELECT lo_from_bytea(4711, decode(repeat('00ff10', 100000), 'hex'));
CHECKPOINT;
S
}

# postgres_sums: prints one line for each table, a sum of its rows that does not depend on their
# order.
postgres_sums() {
  psql_on -c "SELECT format('SELECT %L, count(*), sum(hashtextextended(t::text, 0)) FROM %I t;',
      tablename, tablename)
    FROM pg_tables
    WHERE schemaname = 'public' AND tablename <> 'unlogged' ORDER BY tablename" | psql_on
  psql_on -c "SELECT 'large object', md5(lo_get(4711))"
}
