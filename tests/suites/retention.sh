#!/usr/bin/env bash
# about: days of full backups with forget and gc after each; gc with concurrent writers that are
# about: stopped and killed; gc with nothing to do; keys that cannot delete; many snapshots of many
# about: files
# needs: program minio mc apt:time apt:mariadb-server apt:mariadb-backup apt:mariadb-client
# needs: apt:sysbench
# limit: 600 7200
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"
. "$(dirname "$0")/../lib/mariadb.sh"

M=$SUITE_TMP/mount URL=$SUITE_TMP/bucket SOURCE=$SUITE_TMP/source
mkdir -p "$M"
chmod 755 "$SUITE_TMP"
at_end "leave_mount '$M'"
DAYS=5 ROUNDS=8
# The number of snapshots, and of files in each; quick runs have 1/250 of the product.
SNAPSHOTS=100 FILES=40000
[ "$FULL" = 0 ] || DAYS=30 ROUNDS=200 SNAPSHOTS=1000 FILES=1000000

digest() {
  (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum) | sha256sum | cut -d' ' -f1
}
# objects BUCKET: the same hash for a bucket, without the locks of its directory.
objects() {
  (cd "$1" && find . -type f -not -path './.bkfs/*' -print0 | sort -z | xargs -0 sha256sum) |
    sha256sum | cut -d' ' -f1
}
names() {
  bkfs --json snapshots "$@" |
    python3 -c 'import json, sys; [print(json.loads(line)["name"]) for line in sys.stdin]'
}
# gc_now URL: runs a collection that waits for nothing, and keeps its output in $SUITE_TMP/json.
gc_now() {
  local status=0
  bkfs --json gc "$1" --undelete-window 0s "${@:2}" >"$SUITE_TMP/json" || status=$?
  cat "$SUITE_TMP/json"
  return $status
}
# found NAME, done_ NAME: a number of the plan, and of its execution; 0 if there was nothing to do.
found() {
  python3 -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())[sys.argv[2]])' \
    "$SUITE_TMP/json" "$1"
}
done_() {
  python3 -c 'import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
print((lines[1:] or [{}])[0].get(sys.argv[2], 0))' "$SUITE_TMP/json" "$1"
}
# same NAME DIGEST URL [ARGS…]: the snapshot restores to the contents whose hash is in the file
# DIGEST.
same() {
  rm -rf "$SUITE_TMP/restored"
  exits 0 bkfs restore "$3" "$1" "$SUITE_TMP/restored" "${@:4}"
  [ "$(digest "$SUITE_TMP/restored")" = "$(cat "$2")" ] || wrong "$1 is not what it was"
}

# --- days of a database ---------------------------------------------------------------------------

a_day_passes() {
  mariadb_change_rows
  exits 0 mount_at "$URL" "$M"
  rm -rf "$M/full"
  mariadb_backup "$SOURCE" "$M/full" >"$SUITE_TMP/backup.log" 2>&1 || {
    tail -n 20 "$SUITE_TMP/backup.log"
    return 1
  }
  digest "$M" >"$SUITE_TMP/digest-day-$1"
  mariadb_checksums >"$SUITE_TMP/checksums-day-$1"
  exits 0 bkfs snapshot "$M" "day-$1"
  exits 0 bkfs umount "$M"
}
mariadb_change_rows() {
  sysbench oltp_update_non_index --db-driver=mysql --mysql-socket="$MARIADB_SOCKET" \
    --mysql-user=root --mysql-db=sbtest --tables=$SYSBENCH_TABLES --table-size="$ROWS" \
    --threads=2 --events=300 --time=0 --rand-type=uniform run >/dev/null
  sql kinds -e "DELETE FROM large_values WHERE id % 20 = 0;
    INSERT INTO large_values SELECT seq * 20, RANDOM_BYTES(1024) FROM seq_1_to_200"
}

days() {
  local day survivor
  mariadb_create "$SOURCE"
  mariadb_start "$SOURCE"
  mariadb_load 70000
  exits 0 init_local "$URL"
  for day in $(seq "$DAYS"); do
    a_day_passes "$day"
    exits 0 bkfs forget "$URL" --keep-last 3
    exits 0 gc_now "$URL"
    [ "$day" -le 3 ] || [ "$(done_ deleted_packs)" -gt 0 ] ||
      wrong "nothing was deleted on day $day"
    [ "$(done_ held_packs)" = 0 ] || wrong "something is held back without a session"
    survivor=$(names "$URL" | shuf -n 1 --random-source=<(yes "$day"))
    same "$survivor" "$SUITE_TMP/digest-$survivor" "$URL"
  done
  mariadb_stop
  [ "$(names "$URL" | wc -l)" = 3 ] ||
    wrong "not three snapshots are left: $(names "$URL" | tr '\n' ' ')"
  exits 0 bkfs check --read-data "$URL"
}

# A server starts on the last surviving backup.
revives() {
  same "day-$DAYS" "$SUITE_TMP/digest-day-$DAYS" "$URL"
  mariadb_revive "$SUITE_TMP/restored/full" "$SUITE_TMP/revived"
  mariadb_checksums >"$SUITE_TMP/checksums-revived"
  mariadb_stop
  diff "$SUITE_TMP/checksums-day-$DAYS" "$SUITE_TMP/checksums-revived" ||
    wrong "tables differ from the source's"
}

# The reference is a repository that never held anything but the survivors.
lean() {
  local name is ideal
  exits 0 init_local "$SUITE_TMP/lean"
  exits 0 bkfs copy "$URL" "$SUITE_TMP/lean"
  exits 0 gc_now "$SUITE_TMP/lean"
  for name in $(names "$SUITE_TMP/lean"); do
    same "$name" "$SUITE_TMP/digest-$name" "$SUITE_TMP/lean"
  done
  is=$(bytes_in "$URL") ideal=$(bytes_in "$SUITE_TMP/lean")
  row "$DAYS days" "bucket $(mib "$is") MiB" "survivors alone $(mib "$ideal") MiB"
  awk -v is="$is" -v ideal="$ideal" 'BEGIN {exit !(is <= 1.15 * ideal)}' ||
    wrong "the bucket has $is bytes, where $ideal would do"
}

# --- nothing to do --------------------------------------------------------------------------------

nothing() {
  local before packs bound
  # The next collection removes what the last replacements of the root have left.
  exits 0 gc_now "$URL"
  # On a new machine, which takes the copy for the original repository.
  machine blank
  cp -a "$URL" "$SUITE_TMP/blank"
  # Overwrites the data packs with zeroes: a collection that reads one fails.
  find "$SUITE_TMP/blank/data" -type f -exec \
    sh -c 'head -c "$(stat -c %s "$1")" /dev/zero >"$1.new" && mv "$1.new" "$1"' - {} \;
  packs=$(find "$SUITE_TMP/blank/data" -type f | wc -l)
  before=$(objects "$SUITE_TMP/blank")
  exits 0 gc_now "$SUITE_TMP/blank"
  [ "$(found condemned_bytes)" = 0 ] && [ "$(found requests)" = 0 ] ||
    wrong "something was to be done"
  [ "$(objects "$SUITE_TMP/blank")" = "$before" ] || wrong "the bucket has changed"
  row "nothing to do" \
    "requests $(found requests_made), of which metadata packs $(found metadata_packs_read)" \
    "data packs there, none read: $packs"
  bound=$(cd "$SUITE_TMP/blank" && find index lists meta -type f | wc -l)
  [ "$(found requests_made)" -le $((bound + 4)) ] ||
    wrong "$(found requests_made) requests for $bound index objects, lists and metadata packs"
  machine a
}

undo() {
  exits 0 bkfs forget "$URL" --keep-last 1
  exits 0 bkfs gc "$URL"
  exits 0 bkfs forget "$URL" --undo "day-$((DAYS - 1))"
  same "day-$((DAYS - 1))" "$SUITE_TMP/digest-day-$((DAYS - 1))" "$URL"
}

machine a
case_of \
  "$DAYS days of full backups of a database, forget and gc each day, and restores of survivors" days
case_of "the last survivor is a database again" revives
case_of "the bucket holds hardly more than the survivors need" lean
case_of "a collection with nothing to do reads no data packs and changes nothing" nothing
case_of "what was forgotten comes back within the undelete window" undo

# --- with concurrent writers ----------------------------------------------------------------------

start_minio
s3_environment "$BKFS_TEST_S3_MINIO"
BUCKET=s3://$BKFS_TEST_BUCKET/concurrent
for host in 1 2 3; do
  mkdir -p "$SUITE_TMP/host-$host"
  at_end "leave_mount '$SUITE_TMP/host-$host'"
done
on() { machine "$1" && "${@:2}"; }
chance() { [ $((RANDOM % 100)) -lt "$1" ]; }
pages() { python3 "$ROOT/tests/lib/pages.py" "$@"; }
host_mounts() { on "h$1" mount_at "$BUCKET" "$SUITE_TMP/host-$1" --volume "v$1" --create -o timeout=60; }

# host_daemon HOST: the id of its daemon, and not that of a command that talks to the daemon.
host_daemon() {
  local directory words
  for directory in /proc/[0-9]*; do
    mapfile -d '' -t words 2>/dev/null <"$directory/cmdline" || continue
    [ "${words[0]-} ${words[1]-} ${words[3]-}" = "bkfs mount $SUITE_TMP/host-$1" ] &&
      echo "${directory#/proc/}"
  done | tail -n 1
}

# The contents that all hosts write in a round: contents return after a collection, and hosts share
# them.
contents() {
  rm -rf "$SUITE_TMP/contents.new"
  pages make "$SUITE_TMP/contents.new" 6 7
  pages change "$SUITE_TMP/contents.new" 25 $(($1 % 5))
  rm -rf "$SUITE_TMP/contents"
  mv "$SUITE_TMP/contents.new" "$SUITE_TMP/contents"
}
# host_works HOST ROUND: makes a backup and its snapshot. It records what was acknowledged, and what
# may exist.
host_works() {
  local place=$SUITE_TMP/host-$1 record=$SUITE_TMP/record-$1-$2
  [ -n "$(host_daemon "$1")" ] || host_mounts "$1" || return 0
  timeout 100 cp "$SUITE_TMP/contents"/* "$place/" || return 0
  digest "$SUITE_TMP/contents" >"$record.digest"
  touch "$record.asked"
  on "h$1" bkfs snapshot "$place" "r$2" && touch "$record.acknowledged"
  return 0
}
# forget_one HOST: forgets the oldest acknowledged snapshot except for the last two. It records the
# name before it forgets.
forget_one() {
  local oldest
  oldest=$(find "$SUITE_TMP" -maxdepth 1 -name "record-$1-*.acknowledged" |
    sort -V | head -n -2 | while read -r record; do
    [ -e "${record%.acknowledged}.forgotten" ] || echo "${record%.acknowledged}"
  done | head -n 1)
  [ -n "$oldest" ] || return 0
  touch "$oldest.forgotten"
  on collector bkfs forget "$BUCKET" "r${oldest##*-}" --volume "v$1"
}

# Runs a collector on its own machine, and stops and kills it at random.
collector() {
  local pid
  machine "g$1"
  while [ ! -e "$SUITE_TMP/stop" ]; do
    # Without $MACHINE/run: the program itself must be stopped and killed.
    env HOME="$MACHINE/home" XDG_STATE_HOME="$MACHINE/state" XDG_CACHE_HOME="$MACHINE/cache" \
      "$BKFS_BIN" gc "$BUCKET" --undelete-window 0s &
    pid=$!
    sleep "0.$((RANDOM % 10))"
    if chance 20; then
      kill -KILL "$pid" || true
    elif chance 20; then
      kill -STOP "$pid" || true
      sleep "$((RANDOM % 4))"
      kill -CONT "$pid" || true
    fi 2>/dev/null
    wait "$pid" || true
    sleep 0.5
  done
}
COLLECTORS=()
collectors_begin() {
  local number
  rm -f "$SUITE_TMP/stop"
  for number in 1 2; do
    (trap - ERR; set +e; collector "$number") >>"$SUITE_TMP/collector-$number.log" 2>&1 &
    COLLECTORS+=($!)
    remember_pid $!
  done
}
collectors_end() { touch "$SUITE_TMP/stop"; wait "${COLLECTORS[@]}" || true; COLLECTORS=(); }

# Kills or stops the daemon of a host, or leaves it alone.
strike() {
  local daemon
  daemon=$(host_daemon "$1")
  [ -n "$daemon" ] || return 0
  if chance 40; then
    echo "host $1 is killed"
    kill -KILL "$daemon" || true
  elif chance 60; then
    echo "host $1 is stopped for a while"
    kill -STOP "$daemon" || true
    sleep $((RANDOM % 6))
    kill -CONT "$daemon" || true
  fi
}

concurrent_rounds() {
  local round host workers
  RANDOM=4711
  machine collector
  exits 0 bkfs init --no-encryption "$BUCKET"
  collectors_begin
  for round in $(seq "$ROUNDS"); do
    echo "round $round"
    contents "$round"
    workers=()
    for host in 1 2 3; do
      (trap - ERR; set +e; host_works "$host" "$round") >>"$SUITE_TMP/host-$host.log" 2>&1 &
      workers+=($!)
    done
    sleep "0.$((RANDOM % 10))"
    strike $((RANDOM % 3 + 1))
    wait "${workers[@]}" || true
    for host in 1 2 3; do forget_one "$host"; done
  done
  collectors_end
  [ "$(find "$SUITE_TMP" -maxdepth 1 -name 'record-*.acknowledged' | wc -l)" \
    -ge $((ROUNDS * 3 / 2)) ] ||
    wrong "few snapshots were acknowledged: it shows little"
}

# Without any command to the mounts, the collector deletes what was condemned before long.
deleted_under_mounts() {
  local host packs
  for host in 1 2 3; do
    [ -n "$(host_daemon "$host")" ] || exits 0 host_mounts "$host"
  done
  contents 1
  for host in 1 2 3; do
    cp "$SUITE_TMP/contents"/* "$SUITE_TMP/host-$host/"
    exits 0 on "h$host" bkfs snapshot "$SUITE_TMP/host-$host" last
  done
  head -c 8M /dev/urandom >"$SUITE_TMP/host-1/passing"
  exits 0 on h1 bkfs snapshot "$SUITE_TMP/host-1" passing
  rm "$SUITE_TMP/host-1/passing"
  exits 0 on h1 bkfs snapshot "$SUITE_TMP/host-1" passed
  machine collector
  exits 0 bkfs forget "$BUCKET" passing --volume v1
  exits 0 gc_now "$BUCKET"
  # A stopped daemon holds back what was condemned since.
  kill -STOP "$(host_daemon 2)"
  sleep 1
  exits 0 gc_now "$BUCKET"
  [ "$(found held_packs)" -gt 0 ] || wrong "nothing is held back by a host that stands still"
  kill -CONT "$(host_daemon 2)"
  wait_for 90 deletes_all ||
    wrong "after 90 s there is still something held back: $(cat "$SUITE_TMP/json")"
  [ "$DELETED" -gt 0 ] || wrong "nothing was deleted while the mounts ran"
  packs=$(cat "$SUITE_TMP"/collector-*.log |
    sed -n 's/.*deleted \([0-9]*\) packs.*/\1/p' | awk '{sum += $1} END {print sum + 0}')
  row "with 3 mounts" "packs deleted in $ROUNDS rounds: $packs" "then $DELETED more"
  for host in 1 2 3; do exits 0 on "h$host" bkfs umount "$SUITE_TMP/host-$host"; done
}
DELETED=0
deletes_all() {
  sleep 1
  gc_now "$BUCKET"
  DELETED=$((DELETED + $(done_ deleted_packs)))
  [ "$(found held_packs)" = 0 ]
}

survivors() {
  local record host round count=0
  machine fresh
  exits 0 bkfs check --read-data "$BUCKET"
  for record in "$SUITE_TMP"/record-*.acknowledged; do
    record=${record%.acknowledged}
    [ ! -e "$record.forgotten" ] || continue
    round=${record##*-} host=${record%-*}
    same "r$round" "$record.digest" "$BUCKET" --volume "v${host##*-}"
    count=$((count + 1))
  done
  [ "$count" -ge 6 ] || wrong "only $count snapshots are left"
}

# sessions_that STATE…: the sessions in one of these states.
sessions_that() {
  bkfs --json session list "$BUCKET" | python3 -c 'import json, sys
for line in sys.stdin:
    row = json.loads(line)
    if row["state"] in sys.argv[1:]: print(row["session"])' "$@"
}
# Ends dead sessions by command, and gives up what only their disks may hold. Nothing is then held
# back, and a last collection leaves nothing to do.
ended() {
  local session
  machine collector
  exits 0 bkfs session list "$BUCKET"
  for session in $(sessions_that live ending); do
    exits 0 bkfs session end "$BUCKET" "$session" --force
  done
  for session in $(sessions_that spool); do
    exits 1 bkfs session end "$BUCKET" "$session"
    exits 0 bkfs session end "$BUCKET" "$session" --give-up
  done
  for _ in 1 2 3; do exits 0 gc_now "$BUCKET"; done
  exits 0 bkfs gc "$BUCKET" --undelete-window 0s --dry-run
  says 'nothing to free'
  survivors
}

case_of "$ROUNDS rounds of three writers and two collectors, stopped and killed at random" \
  concurrent_rounds
case_of "what is condemned is deleted while mounts run, unless one stands still" \
  deleted_under_mounts
case_of "a check of every byte finds nothing, and every acknowledged snapshot restores" survivors
case_of "dead sessions are ended, and a last collection frees the rest" ended

# --- keys that cannot delete ----------------------------------------------------------------------

# start_user NAME: creates a user of the server who may put, get and list, and nothing else.
start_user() {
  export MC_CONFIG_DIR=$SUITE_TMP/mc
  "$MC" -q alias set test "$BKFS_TEST_S3_MINIO" "$BKFS_TEST_ACCESS_KEY" "$BKFS_TEST_SECRET_KEY" \
    >/dev/null
  printf '{"Version": "2012-10-17", "Statement": [{
    "Effect": "Allow", "Action": ["s3:PutObject", "s3:GetObject", "s3:ListBucket"],
    "Resource": ["arn:aws:s3:::%s", "arn:aws:s3:::%s/*"]
  }]}' "$BKFS_TEST_BUCKET" "$BKFS_TEST_BUCKET" >"$SUITE_TMP/policy.json"
  "$MC" -q admin user add test "$1" "$1-secret-key"
  "$MC" -q admin policy create test writers "$SUITE_TMP/policy.json"
  "$MC" -q admin policy attach test writers --user "$1"
}
as_writer() { AWS_ACCESS_KEY_ID=writer AWS_SECRET_ACCESS_KEY=writer-secret-key "$@"; }

deleteless() {
  local url=s3://$BKFS_TEST_BUCKET/deleteless before
  start_user writer
  machine writer
  contents 1
  exits 0 as_writer bkfs init --no-encryption "$url"
  exits 0 as_writer mount_at "$url" "$M"
  cp "$SUITE_TMP/contents"/* "$M/"
  sync "$M/table0.ibd"
  exits 0 bkfs snapshot "$M" one
  rm "$M/table0.ibd"
  exits 0 bkfs snapshot "$M" two
  exits 0 bkfs umount "$M"
  exits 0 as_writer bkfs put "$url" stream "$SUITE_TMP/contents/table1.ibd"
  exits 0 as_writer bkfs forget "$url" one
  exits 0 as_writer bkfs snapshots "$url"
  exits 0 as_writer bkfs check --read-data "$url"
  exits 0 as_writer bkfs restore "$url" two "$SUITE_TMP/restored-two"
  cmp "$SUITE_TMP/contents/table1.ibd" "$SUITE_TMP/restored-two/table1.ibd"
  before=$(digest "$MINIO_DATA/$BKFS_TEST_BUCKET/deleteless")
  exits 1 as_writer bkfs gc "$url" --undelete-window 0s
  says 'nothing was collected' 'denied|forbidden|permission' 'credentials that may delete'
  clear_message
  [ "$(digest "$MINIO_DATA/$BKFS_TEST_BUCKET/deleteless")" = "$before" ] ||
    wrong "a collection that may not delete has changed something"
  exits 0 as_writer bkfs gc "$url" --undelete-window 0s --dry-run
  says 'to condemn: [1-9]'
  # The other key frees it.
  exits 0 gc_now "$url"
  [ "$(done_ deleted_packs)" -gt 0 ] || wrong "nothing was deleted"
  exits 0 as_writer bkfs check --read-data "$url"
}
case_of "a key that cannot delete is enough for backups; gc with it says so and changes nothing" \
  deleteless

# --- more than one expects ------------------------------------------------------------------------

too_much() {
  local url=$SUITE_TMP/share window=(--undelete-window 1s) share
  machine collector
  init_local "$url"
  head -c 120000000 /dev/urandom >"$SUITE_TMP/large"
  head -c 41000000 /dev/urandom >"$SUITE_TMP/other"
  exits 0 bkfs put "$url" file "$SUITE_TMP/large" --volume main --name large
  exits 0 bkfs put "$url" file "$SUITE_TMP/other" --volume main --name other
  exits 0 bkfs gc "$url" "${window[@]}"
  exits 0 bkfs forget "$url" large
  # The window begins when gc first sees the forgotten snapshot.
  exits 0 bkfs gc "$url" "${window[@]}"
  sleep 2
  exits 0 bkfs --json -q gc "$url" "${window[@]}" --dry-run
  share=$(jq -r '.share.refused, .share.percent, .expired_snapshots' "$SUITE_TMP/output")
  [ "$(paste -sd ' ' <<<"$share")" = "true 75 1" ] ||
    wrong "$(jq -c .share "$SUITE_TMP/output")"
  exits 1 bkfs gc "$url" "${window[@]}"
  says 'to condemn: [1-9]' 'nothing was collected: 75% of what the repository held' '--yes-delete'
  clear_message
  exits 0 bkfs forget "$url" --undo large
  bkfs dump "$url" large:/file | cmp - "$SUITE_TMP/large"
  exits 0 bkfs forget "$url" large
  exits 0 bkfs gc "$url" "${window[@]}"
  sleep 2
  exits 0 bkfs gc "$url" "${window[@]}" --yes-delete
  says 'condemned [1-9]'
  [ "$(bytes_in "$url")" -lt 60000000 ] || wrong "$(bytes_in "$url") bytes are left"
  # A confirmed deletion does not count again.
  exits 0 bkfs --json -q gc "$url" "${window[@]}"
  [ "$(jq -r .share.gone_bytes "$SUITE_TMP/output" | head -n 1)" = 0 ] ||
    wrong "$(jq -c .share "$SUITE_TMP/output")"
  exits 0 bkfs check --read-data "$url"
}
case_of \
  "a collection that would leave less than half is refused until a person says that it is meant" \
  too_much

# --- machines that remember nothing ---------------------------------------------------------------

# stateless BUCKET COMMAND…: runs bkfs without a state directory, as a user who has no home.
stateless() {
  chown -R 65534:65534 "$1"
  setpriv --reuid=65534 --regid=65534 --clear-groups timeout 60 env -i PATH="$PATH" "$BKFS_BIN" \
    "${@:2}"
}
# Without a state directory the window counts from now: a forgotten snapshot of any age is kept.
counts_from_now() {
  local url=$SUITE_TMP/stateless before
  machine writes
  init_local "$url"
  head -c 3000000 /dev/urandom >"$SUITE_TMP/kept"
  exits 0 bkfs put "$url" file "$SUITE_TMP/kept" --volume main --name forgotten
  exits 0 bkfs put "$url" file /dev/null --volume main --name stays
  exits 0 bkfs forget "$url" forgotten
  sleep 1.2
  before=$(find "$url/data" -type f | sort)
  for _ in 1 2; do
    exits 0 stateless "$url" gc "$url" --undelete-window 1s
    says 'older than the undelete window by their own dates, and stay'
    sleep 1.1
  done
  [ "$(find "$url/data" -type f | sort)" = "$before" ] || wrong "packs were deleted"
  exits 0 stateless "$url" forget "$url" --undo forgotten
  bkfs dump "$url" forgotten:/file | cmp - "$SUITE_TMP/kept"
  exits 0 bkfs forget "$url" forgotten
  for _ in 1 2 3; do exits 0 stateless "$url" gc "$url" --undelete-window 0s; done
  [ "$(bytes_in "$url/data")" -lt 1000000 ] || wrong "$(bytes_in "$url/data") bytes are left"
  exits 0 bkfs check --read-data "$url"
}
case_of "a machine without a state directory counts the undelete window from now" counts_from_now

# --- many snapshots of many files -----------------------------------------------------------------

MANY=$SUITE_TMP/many
many_files() { python3 "$ROOT/tests/lib/many_files.py" "$@" || wrong "$1 went wrong"; }
# bounded NAME ARGS…: runs bkfs within 512 MiB; its time goes into the table.
bounded() {
  local began peak name=$1
  shift
  began=$(now_ms)
  exits 0 measured "$SUITE_TMP/peak" "$MACHINE/run" "$BKFS_BIN" "$@"
  peak=$(peak_mib "$SUITE_TMP/peak")
  row "$SNAPSHOTS snapshots of $FILES files" "$name $(seconds_since "$began") s" "peak $peak MiB"
  [ "$peak" -le 512 ] || wrong "$name took $peak MiB"
}
many_are_made() {
  exits 0 init_local "$MANY"
  exits 0 mount_at "$MANY" "$M"
  many_files make "$M" "$FILES"
  many_files age "$M" "$FILES" "$SNAPSHOTS"
  exits 0 bkfs umount "$M"
}
many_are_collected() {
  bounded "gc, nothing forgotten," gc "$MANY" --undelete-window 0s
  bounded "forget" forget "$MANY" --keep-last 3
  says "forgot $((SNAPSHOTS - 3)) of $SNAPSHOTS"
  bounded "gc" gc "$MANY" --undelete-window 0s
  says 'deleted [1-9][0-9]* packs'
  [ "$(names "$MANY" | wc -l)" = 3 ] || wrong "not three snapshots are left"
  bounded "gc again" gc "$MANY" --undelete-window 0s
}
many_survive() {
  local snapshot
  exits 0 bkfs check "$MANY"
  for snapshot in $((SNAPSHOTS - 2)) "$SNAPSHOTS"; do
    exits 0 bkfs restore "$MANY" "s$snapshot" "$SUITE_TMP/restored-many"
    many_files verify "$SUITE_TMP/restored-many" "$FILES" "$snapshot"
    rm -rf "$SUITE_TMP/restored-many"
  done
}
machine many
case_of "$SNAPSHOTS snapshots of $FILES files" many_are_made
case_of "forget and gc of them stay within half a GiB" many_are_collected
machine many-elsewhere
case_of "the survivors are what they were, on an empty machine" many_survive
rm -rf "$MANY"

print_table
exit 0
