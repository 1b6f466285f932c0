# shellcheck shell=bash
# A MariaDB server for a test: private data directory and socket, no network, its own user.

# mariadb_start DATADIR: starts a server on an existing data directory; sets MARIADB_SOCKET and
# MARIADB_PID.
mariadb_start() {
  local data=$1 run=$1.run
  mkdir -p "$run"
  chown mysql: "$run"
  MARIADB_SOCKET=$run/socket
  mariadbd --no-defaults --user=mysql --datadir="$data" --socket="$MARIADB_SOCKET" \
    --pid-file="$run/pid" --skip-networking --log-error="$run/log" \
    --innodb-buffer-pool-size=192M --innodb-log-file-size=64M --innodb-flush-log-at-trx-commit=2 \
    --innodb-file-per-table=1 --skip-log-bin --max-allowed-packet=64M </dev/null >/dev/null 2>&1 &
  MARIADB_PID=$!
  remember_pid "$MARIADB_PID"
  at_end "stop_pid $MARIADB_PID"
  wait_for 120 mariadb_answers_or_died
  mariadb_answers || { tail -n 30 "$run/log"; return 1; }
}
mariadb_answers() {
  mariadb-admin --no-defaults --socket="$MARIADB_SOCKET" --user=root ping >/dev/null 2>&1
}
mariadb_answers_or_died() { mariadb_answers || ! kill -0 "$MARIADB_PID"; }
mariadb_stop() { stop_pid "$MARIADB_PID"; }

sql() {
  mariadb --no-defaults --socket="$MARIADB_SOCKET" --user=root --batch --skip-column-names "$@"
}

# mariadb_create DATADIR: creates an empty data directory.
mariadb_create() {
  mkdir -p "$1"
  chown mysql: "$1"
  mariadb-install-db --no-defaults --user=mysql --datadir="$1" \
    --auth-root-authentication-method=normal --skip-test-db >"$1.install.log" 2>&1 ||
    { tail -n 20 "$1.install.log"; return 1; }
}

SYSBENCH_TABLES=4
sysbench_on() {
  sysbench oltp_read_write --db-driver=mysql --mysql-socket="$MARIADB_SOCKET" \
    --mysql-user=root --mysql-db=sbtest --tables=$SYSBENCH_TABLES --table-size="$ROWS" "$@"
}

# mariadb_load ROWS: creates sysbench's tables, and one table of each kind that a backup meets:
# compressed pages, large values, partitions, another engine, a view, an empty table.
mariadb_load() {
  ROWS=$1
  sql -e 'CREATE DATABASE sbtest; CREATE DATABASE kinds'
  sysbench_on --threads=2 prepare >/dev/null || return 1
  sql kinds <<'S' || return 1
CREATE TABLE empty_one (id INT PRIMARY KEY) ENGINE=InnoDB;
CREATE TABLE compressed (id INT PRIMARY KEY, text_value TEXT)
  ENGINE=InnoDB ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8;
INSERT INTO compressed SELECT seq, REPEAT(MD5(seq), 8) FROM seq_1_to_20000;
CREATE TABLE large_values (id INT PRIMARY KEY, value LONGBLOB) ENGINE=InnoDB;
INSERT INTO large_values SELECT seq, RANDOM_BYTES(1024) FROM seq_1_to_4000;
CREATE TABLE parted (id INT PRIMARY KEY, value CHAR(64))
  ENGINE=InnoDB PARTITION BY HASH(id) PARTITIONS 8;
INSERT INTO parted SELECT seq, SHA2(seq, 256) FROM seq_1_to_20000;
CREATE TABLE aria_one (id INT PRIMARY KEY, value CHAR(64)) ENGINE=Aria;
INSERT INTO aria_one SELECT seq, SHA2(seq, 224) FROM seq_1_to_5000;
CREATE TABLE myisam_one (id INT PRIMARY KEY, value CHAR(64)) ENGINE=MyISAM;
INSERT INTO myisam_one SELECT seq, SHA2(seq, 224) FROM seq_1_to_5000;
CREATE TABLE `odd name ümlaut/slash` (id INT PRIMARY KEY) ENGINE=InnoDB;
INSERT INTO `odd name ümlaut/slash` VALUES (1), (2), (3);
CREATE VIEW looked_at AS SELECT id FROM parted;
S
}

# mariadb_change: changes, adds and removes rows in all tables, and creates one table.
mariadb_change() {
  sysbench oltp_update_non_index --db-driver=mysql --mysql-socket="$MARIADB_SOCKET" \
    --mysql-user=root --mysql-db=sbtest --tables=$SYSBENCH_TABLES --table-size="$ROWS" \
    --threads=2 --events="$1" --time=0 --rand-type=uniform run >/dev/null || return 1
  sql kinds -e "UPDATE parted SET value = REVERSE(value) WHERE id % 7 = 0;
    DELETE FROM large_values WHERE id % 5 = 0;
    INSERT INTO empty_one VALUES (1);
    CREATE TABLE made_later (id INT PRIMARY KEY) ENGINE=InnoDB;
    INSERT INTO made_later VALUES (42)"
}

# mariadb_checksums: one line for every base table outside the system's own, in a fixed order.
mariadb_checksums() {
  sql -e "SELECT CONCAT('CHECKSUM TABLE \`', table_schema, '\`.\`', table_name, '\`;')
    FROM information_schema.tables
    WHERE table_type = 'BASE TABLE'
    AND table_schema NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys')
    ORDER BY table_schema, table_name" | sql
}

mariadb_backup() {
  mariabackup --no-defaults --backup --user=root --socket="$MARIADB_SOCKET" --datadir="$1" \
    --target-dir="$2" --parallel=2
}

# mariadb_revive BACKUP DATADIR: restores as mariabackup prescribes: prepare (BACKUP is a writable
# copy), copy back, start.
mariadb_revive() {
  mariabackup --no-defaults --prepare --use-memory=128M --target-dir="$1" 2>"$1.prepare.log" || {
    tail -n 20 "$1.prepare.log"
    return 1
  }
  mkdir -p "$2"
  mariabackup --no-defaults --copy-back --target-dir="$1" --datadir="$2" 2>"$1.copy-back.log" || {
    tail -n 20 "$1.copy-back.log"
    return 1
  }
  chown -R mysql: "$2"
  mariadb_start "$2"
}
