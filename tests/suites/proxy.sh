#!/usr/bin/env bash
# about: seeded rounds on a real server behind a proxy that fails, with kills and takeovers: what
# about: was acknowledged is there
# needs: program minio
# limit: 420 7200
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/servers.sh"

export PYTHONDONTWRITEBYTECODE=1
LANES=${BKFS_PROXY_LANES:-2}
# Quick runs use so many seeds, from 1. Full runs continue where the last one ended, until their
# time is over.
ROUNDS=10 MINUTES=60
[ "$FULL" = 0 ] || ROUNDS=500 MINUTES=115
STATE=$CACHE/proxy-next-seed
NEXT=$SUITE_TMP/next-seed

rounds() { python3 "$ROOT/tests/lib/rounds/main.py" "$@"; }

# lane_place NAME: creates a directory with its own proxy; sets PLACE, and the program's
# environment.
lane_place() {
  PLACE=$SUITE_TMP/$1
  mkdir -p "$PLACE"
  SUITE_TMP=$PLACE start_faulty "$BKFS_TEST_S3_MINIO"
  s3_environment "$FAULTY"
}
# fresh: creates a directory for one round, which shares the lane's proxy.
fresh() {
  rm -rf --one-file-system "${PLACE:?}/round"
  mkdir -p "$PLACE/round"
  ln -s "$PLACE/faults" "$PLACE/round/faults"
  rm -f "$PLACE/faults"/{held,struck,log}
}

# next_seed: takes a number that no lane has had.
next_seed() {
  (
    flock 9
    SEED=$(cat "$NEXT")
    echo $((SEED + 1)) >"$NEXT"
    # A run that reaches its time limit lets the next one continue there.
    [ "$FULL" = 0 ] || [ -n "${BKFS_PROXY_SEED:-}" ] || cp "$NEXT" "$STATE"
    echo "$SEED"
  ) 9>"$NEXT.lock"
}
one_round() {
  local log=$PLACE/round.log kept why
  fresh
  if timeout -k 20 500 python3 "$ROOT/tests/lib/rounds/main.py" round "$1" "$PLACE/round" \
    >"$log" 2>&1; then
    passed "round $1"
  else
    grep -q '^FAILED' "$log" || echo "FAILED: ended with no verdict" >>"$log"
    # The requests to the store, in their order, explain a failure.
    kept=$LOGS/proxy-$1
    rm -rf "$kept"
    mkdir -p "$kept"
    cp -r "$PLACE/faults" "$PLACE/round"/daemon-*.log "$PLACE/round"/life-* "$log" \
      "$kept/" 2>/dev/null
    why=$(sed -n 's/^FAILED: //p' "$log" | head -n 1 | cut -c1-400)
    failed "round $1" "$why (again: BKFS_PROXY_SEED=$1 tests/run proxy; logs: $kept)"
  fi
  cat "$log"
  cat "$PLACE/faults/struck" >>"$PLACE/all-struck" 2>/dev/null
}
lane() {
  local seed
  trap finish EXIT
  CLEANUPS=()
  lane_place "lane-$1"
  while [ $SECONDS -lt $((MINUTES * 60)) ]; do
    seed=$(next_seed)
    [ "$seed" -lt "$END" ] || break
    one_round "$seed" >"$PLACE/said" 2>&1
    cat "$PLACE/said"
  done
}

found() {
  lane_place "sabotage-$1"
  fresh
  rounds sabotage "$1" "$PLACE/round"
}

every_kind_struck() {
  local kind
  for kind in stall late drop-after drop-before slow status cut cut-request; do
    grep -hq "^[A-Z]* [a-z]* $kind " "$SUITE_TMP"/lane-*/all-struck || wrong "no $kind struck"
  done
}

mkdir -p "$CACHE"
start_minio
if [ -n "${BKFS_PROXY_SEED:-}" ]; then
  FIRST=$BKFS_PROXY_SEED ROUNDS=${BKFS_PROXY_ROUNDS:-1}
elif [ "$FULL" = 1 ]; then
  FIRST=$(cat "$STATE" 2>/dev/null || echo 1000)
else
  FIRST=1
  for sabotage in journal data index fsync write; do
    case_of "the oracle finds what is wrong: $sabotage" found "$sabotage"
  done
fi
END=$((FIRST + ROUNDS))
echo "$FIRST" >"$NEXT"
began=$(now_ms)
for number in $(seq "$LANES"); do
  (lane "$number") &
  remember_pid $!
  PIDS="${PIDS:-} $!"
done
at_end "for pid in $PIDS; do stop_pid \$pid; done"
# shellcheck disable=SC2086
wait $PIDS
NOW=$(cat "$NEXT")
[ "$NOW" -le "$END" ] || NOW=$END
row "rounds, seeds $FIRST to $((NOW - 1))" "$((NOW - FIRST))" "$(seconds_since "$began") s"
[ "$FULL" = 0 ] || [ -n "${BKFS_PROXY_SEED:-}" ] ||
  case_of "every kind of fault has struck" every_kind_struck
print_table
exit 0
