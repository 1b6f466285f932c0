# shellcheck shell=bash
# What every suite stands on: cases and their counting, temporary places, processes that are ours.
#
# A suite is a bash script that sources this file, runs cases, and ends. It owns $SUITE_TMP, which the runner
# made and removes. Results go to $RESULTS, one line for each case (or one for many):
#   ok<TAB>NAME          not ok<TAB>NAME<TAB>REASON          many<TAB>PASSED<TAB>FAILED<TAB>LABEL
# Nothing here kills by name: every process that a suite starts is remembered by id and start time.

set -u
umask 022

: "${ROOT:?run suites through tests/run}" "${SUITE_TMP:?}" "${RESULTS:?}" "${RUN_TMP:?}"
FULL=${FULL:-0}

note() { printf '\n--- %s\n' "$*"; }

passed() { printf 'ok\t%s\n' "$1" >>"$RESULTS"; printf 'ok      %s\n' "$1"; }
failed() {
  printf 'not ok\t%s\t%s\n' "$1" "${2:-}" >>"$RESULTS"; printf 'FAILED  %s: %s\n' "$1" "${2:-}"
}

# What a suite cannot go on without.
die() { failed "${SUITE:-suite}" "$*"; exit 1; }

# case_of NAME FUNCTION [ARGS…]: one test case. It runs in a subshell under `set -e`, so that the first command
# that fails ends it. Never call it in an `if` or before `||`: bash would switch `set -e` off inside.
case_of() {
  local name=$1 status reason=$SUITE_TMP/reason
  shift
  note "$name"
  : >"$reason"
  (
    set -eE
    trap 'printf "%s:%s: %s\n" "${BASH_SOURCE[0]##*/}" "$LINENO" "$BASH_COMMAND" >>"$reason"' ERR
    "$@"
  )
  status=$?
  if [ "$status" = 0 ]; then
    passed "$name"
  else
    failed "$name" "exit $status at $(head -n 1 "$reason")"
  fi
  return "$status"
}

# wrong TEXT: ends a case, saying why.
wrong() { echo "wrong: $*"; printf '%s\n' "$*" >"$SUITE_TMP/reason"; return 1; }

# A pid with its start time names one process for ever, whatever happens to the number later.
start_time_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
remember_pid() { echo "$1 $(start_time_of "$1")" >>"$RUN_TMP/pids"; }

# gone PID SECONDS: waits until the process has ended.
gone() {
  local deadline=$((SECONDS + $2))
  while kill -0 "$1" 2>/dev/null; do
    # A zombie whose parent does not wait for it is as good as gone.
    case "$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null)" in Z*) return 0 ;; esac
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.1
  done
}

# stop_pid PID [SIGNAL]: asks, waits, then insists.
stop_pid() {
  kill "-${2:-TERM}" "$1" 2>/dev/null || return 0
  gone "$1" 20 || { kill -KILL "$1" 2>/dev/null; gone "$1" 5; }
  return 0
}

# wait_for SECONDS COMMAND…: until it succeeds.
wait_for() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.2
  done
}

# A port on 127.0.0.1 that nobody listens on. Between the look and the bind another may take it: whoever
# starts a server tries again with a new one.
free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 30000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

# cargo_cases LABEL ARGS…: `cargo ARGS` (a test command), its own counts added up.
cargo_cases() {
  local label=$1 log=$SUITE_TMP/cargo-$RANDOM.log status counts good bad
  shift
  note "$label: cargo $*"
  (cd "$ROOT" && cargo "$@") 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  counts=$(awk '/^test result: /{for (i = 2; i <= NF; i++) {if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1); if ($i ~ /^ignored/) g += $(i-1)}}
                END {print p + 0, f + g + 0}' "$log")
  read -r good bad <<<"$counts"
  printf 'many\t%s\t%s\t%s\n' "$good" "$bad" "$label" >>"$RESULTS"
  sed -n 's/^test \(.*\) \.\.\. \(FAILED\|ignored\).*/FAILED  \1 (\2)/p' "$log"
  if [ "$status" != 0 ] && [ "$bad" = 0 ]; then failed "$label" "cargo ended with $status"; fi
  return "$status"
}

# The results of a case are read from a table by people: name, seconds and whatever else was measured.
TABLE=$SUITE_TMP/table
row() { printf '%s\n' "$(IFS='|'; echo "$*")" >>"$TABLE"; }
print_table() {
  [ -f "$TABLE" ] || return 0
  note "measured"
  column -t -s '|' "$TABLE" | tee -a "${RESULTS%.results}.table"
}

now_ms() { echo $(($(date +%s%N) / 1000000)); }
seconds_since() { awk -v a="$1" -v b="$(now_ms)" 'BEGIN {printf "%.1f", (b - a) / 1000}'; }
mib() { awk -v b="$1" 'BEGIN {printf "%.1f", b / 1048576}'; }
bytes_in() { du -sb --apparent-size "$1" | cut -f1; }

# Cleaning runs newest first, whatever ends the suite.
CLEANUPS=()
at_end() { CLEANUPS=("$*" "${CLEANUPS[@]+"${CLEANUPS[@]}"}"); }
finish() {
  local command
  trap '' INT TERM
  for command in "${CLEANUPS[@]+"${CLEANUPS[@]}"}"; do eval "$command" || true; done
  CLEANUPS=()
}
trap finish EXIT
trap 'echo "interrupted"; exit 143' INT TERM

# in_private_mounts: the rest of the suite runs in a mount namespace of its own, which ends with it. Whatever is mounted
# or laid over there is seen by nobody else.
in_private_mounts() {
  [ -n "${PRIVATE_MOUNTS:-}" ] && return
  PRIVATE_MOUNTS=1 exec unshare --mount --propagation private bash "$0"
}
