# shellcheck shell=bash
# What the sessions of docs/ find: the shell that runs them sources this file, in a copy of the
# system. The lines `<!-- before: … -->` of the pages call these functions.

set +eu
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL=C.UTF-8 HOME=/root
unset XDG_CACHE_HOME XDG_CONFIG_HOME XDG_STATE_HOME TMPDIR
mkdir -p /backup /srv/work
cd /srv/work || exit 1

# make_password FILE: writes a password that only the owner can read.
make_password() { (umask 077; head -c 18 /dev/urandom | base64 >"$1"); }

# sealed_repository: creates s3://bucket/prefix under the password in /etc/bkfs.password.
sealed_repository() {
  make_password /etc/bkfs.password
  bkfs init s3://bucket/prefix --password-file /etc/bkfs.password
}

# two_snapshots: the same with the snapshots monday and tuesday of the volume main. The password
# need not be given.
two_snapshots() {
  sealed_repository
  export BKFS_PASSWORD_FILE=/etc/bkfs.password
  bkfs mount s3://bucket/prefix /backup
  mkdir -p /backup/etc /backup/db
  # No file is closed while the large one is written: a journal would store its beginning, and of
  # that a chunk that nothing needs in the end.
  head -c 3000000 /dev/urandom >/backup/db/t1.ibd
  echo '/dev/vda / ext4 defaults 0 1' >/backup/etc/fstab
  bkfs snapshot /backup monday
  head -c 1000 /dev/urandom >>/backup/db/t1.ibd
  bkfs snapshot /backup tuesday
  bkfs umount /backup
}

# copied_and_damaged: s3://other-bucket/prefix is a copy of s3://bucket/prefix, whose data is gone.
copied_and_damaged() {
  make_password /etc/bkfs.other
  bkfs init s3://other-bucket/prefix --password-file /etc/bkfs.other
  bkfs copy s3://bucket/prefix s3://other-bucket/prefix \
    --password-file /etc/bkfs.other --from-password-file /etc/bkfs.password
  mc_alias s3
  mc rm --recursive --force s3/bucket/prefix/data
}

# mc_alias NAME: names the store for mc.
mc() { "$MC" -q --config-dir /root/mc "$@"; }
mc_alias() { mc alias set "$1" "$AWS_ENDPOINT_URL" "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY"; }

start_mariadb_on() {
  mkdir -p /run/mysqld
  chown mysql: /run/mysqld
  setsid mariadbd --no-defaults --user=mysql --datadir="$1" --skip-networking \
    --socket=/run/mysqld/mysqld.sock --innodb-buffer-pool-size=32M >/root/mariadb.log 2>&1 &
  MARIADB=$!
  for _ in $(seq 300); do
    ! mariadb-admin ping >/dev/null 2>&1 || return 0
    sleep 0.1
  done
  tail -n 20 /root/mariadb.log
  return 1
}
start_mariadb() {
  rm -rf /var/lib/mysql
  install -d -o mysql -g mysql /var/lib/mysql
  mariadb-install-db --no-defaults --user=mysql --datadir=/var/lib/mysql >/root/install.log 2>&1
  start_mariadb_on /var/lib/mysql
  mariadb -e "CREATE DATABASE shop; CREATE TABLE shop.orders (id INT PRIMARY KEY);
    INSERT INTO shop.orders VALUES (1), (2), (3)"
}
stop_mariadb() {
  kill "$MARIADB" 2>/dev/null
  wait "$MARIADB" 2>/dev/null
  return 0
}

# mariadb_backup: a backup of a database by mariabackup, in the snapshot mon.
mariadb_backup() {
  sealed_repository
  export BKFS_PASSWORD_FILE=/etc/bkfs.password
  start_mariadb
  bkfs mount s3://bucket/prefix /backup
  bkfs run --name mon /backup -- mariabackup --backup --target-dir=/backup/mon
  bkfs umount /backup
}

# block LANGUAGE N PAGE: prints the Nth block of this language on a page.
block() {
  awk -v fence="\`\`\`$1" -v wanted="$2" '
    inside && $0 == "```" {inside = 0}
    inside {print}
    $0 == fence {inside = ++count == wanted}
  ' "/tmp/source/docs/$3"
}

PG_BIN=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1)
export PGDATA=/var/lib/postgresql/data PATH=$PATH:$PG_BIN
as_postgres() { runuser -u postgres -- "$@"; }
start_postgresql_again() {
  as_postgres "$PG_BIN/pg_ctl" -D "$PGDATA" -w -t 60 -l "$PGDATA/log" start
}
start_postgresql() {
  install -d -o postgres -g postgres -m 700 "$PGDATA"
  as_postgres "$PG_BIN/initdb" -D "$PGDATA" --no-sync -A trust
  echo "unix_socket_directories = '/tmp'
    listen_addresses = ''" >>"$PGDATA/postgresql.conf"
  start_postgresql_again
  export PGHOST=/tmp
}
stop_postgresql() { as_postgres "$PG_BIN/pg_ctl" -D "$PGDATA" -w -m fast stop; }
restart_postgresql() { stop_postgresql && start_postgresql_again; }
# rows_before_and_after: three rows before $MOMENT, one after it, all of them archived.
rows_before_and_after() {
  local sql="psql -U postgres -h /tmp -Atqc"
  $sql 'CREATE TABLE orders (id INT)' && $sql 'INSERT INTO orders VALUES (1), (2), (3)'
  sleep 1
  MOMENT=$($sql 'SELECT now()')
  sleep 1
  $sql 'INSERT INTO orders VALUES (4)'
  $sql 'SELECT pg_switch_wal()' && $sql 'CHECKPOINT'
  for _ in $(seq 100); do
    [ "$($sql "SELECT last_archived_wal > '' AND archived_count > 1 FROM pg_stat_archiver")" = t ] &&
      break
    sleep 0.2
  done
  sleep 2
}

# as_elasticsearch VERB ARGS…: does as its user what Elasticsearch does in a repository.
as_elasticsearch() {
  runuser -u elasticsearch -- python3 /tmp/source/tests/lib/elasticsearch.py "$@"
}
# stand_in_for_elasticsearch: no server runs. There is its user, and curl does what the server does
# in /backup/elasticsearch when it is asked for a snapshot.
stand_in_for_elasticsearch() {
  useradd --system elasticsearch
  cat >/usr/local/bin/curl <<'S'
#!/bin/sh
for url; do :; done
case $url in
  https://localhost:9200/_snapshot/bkfs/night-*) name=${url##*/} ;;
  *) exit 22 ;;
esac
runuser -u elasticsearch -- python3 /tmp/source/tests/lib/elasticsearch.py snapshot \
  /backup/elasticsearch /tmp/elasticsearch-record "${name%%\?*}" >&2 || exit 22
echo '{"snapshot":{"state":"SUCCESS"}}'
S
  chmod 755 /usr/local/bin/curl
}
