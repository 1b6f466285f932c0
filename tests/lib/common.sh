# shellcheck shell=bash
# The base of every suite: cases and their counts, temporary directories, processes of the suite.
#
# A suite is a bash script that sources this file, runs cases, and ends. It owns $SUITE_TMP, which
# the runner creates and removes. Results go to $RESULTS, one line for each case (or one for many):
#   ok<TAB>NAME          not ok<TAB>NAME<TAB>REASON          many<TAB>PASSED<TAB>FAILED<TAB>LABEL
# No function kills by name: a suite records each process that it starts by id and start time.

set -u
umask 022

: "${ROOT:?run suites through tests/run}" "${SUITE_TMP:?}" "${RESULTS:?}" "${RUN_TMP:?}"
FULL=${FULL:-0}

note() { printf '\n--- %s\n' "$*"; }

passed() { printf 'ok\t%s\n' "$1" >>"$RESULTS"; printf 'ok      %s\n' "$1"; }
failed() {
  printf 'not ok\t%s\t%s\n' "$1" "${2:-}" >>"$RESULTS"
  printf 'FAILED  %s: %s\n' "$1" "${2:-}"
}

# die REASON: ends a suite that cannot continue.
die() { failed "${SUITE:-suite}" "$*"; exit 1; }

# case_of NAME FUNCTION [ARGS…]: runs one test case in a subshell under `set -e`, so that the first
# command that fails ends it. Never call it in an `if` or before `||`: bash would switch `set -e`
# off inside.
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

# wrong TEXT: fails the case with this reason.
wrong() { echo "wrong: $*"; printf '%s\n' "$*" >"$SUITE_TMP/reason"; return 1; }

# A pid with its start time identifies one process, even after the kernel reuses the pid.
start_time_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
remember_pid() { echo "$1 $(start_time_of "$1")" >>"${RESULTS%.results}/pids"; }

# gone PID SECONDS: waits until the process has ended.
gone() {
  local deadline=$((SECONDS + $2))
  while kill -0 "$1" 2>/dev/null; do
    # A zombie counts as ended, even when its parent does not wait for it.
    case "$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null)" in Z*) return 0 ;; esac
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.1
  done
}

# stop_pid PID [SIGNAL]: sends the signal, waits 20 s, then sends KILL.
stop_pid() {
  kill "-${2:-TERM}" "$1" 2>/dev/null || return 0
  gone "$1" 20 || { kill -KILL "$1" 2>/dev/null; gone "$1" 5; }
  return 0
}

# wait_for SECONDS COMMAND…: repeats the command until it succeeds, for at most so long.
wait_for() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.2
  done
}

# Prints a port on 127.0.0.1 on which no process listens. Another process may bind it before the
# caller does, so the caller retries with a new port.
free_port() {
  local port
  while :; do
    port=$((20000 + RANDOM % 30000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
}

# plainly: prints options of cargo that leave our crates without optimization. Suites whose tests
# take less time than their compilation pass them (docs/adr/0073-tests-without-optimization.md).
plainly() {
  (cd "$ROOT" && cargo metadata --no-deps --format-version 1) |
    jq -r '.packages[] | "--config", "profile.release.package.\(.name).opt-level=0"'
}

# cargo_cases LABEL ARGS…: runs `cargo ARGS` (a test command) and adds up the counts that it prints.
cargo_cases() {
  local label=$1 log=$SUITE_TMP/cargo-$RANDOM.log status counts good bad
  shift
  note "$label: cargo $*"
  (cd "$ROOT" && cargo "$@") 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  counts=$(awk '
    /^test result: / {
      for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) p += $(i-1)
        if ($i ~ /^failed/) f += $(i-1)
        if ($i ~ /^ignored/) g += $(i-1)
      }
    }
    END {print p + 0, f + g + 0}
  ' "$log")
  read -r good bad <<<"$counts"
  printf 'many\t%s\t%s\t%s\n' "$good" "$bad" "$label" >>"$RESULTS"
  sed -n 's/^test \(.*\) \.\.\. \(FAILED\|ignored\).*/FAILED  \1 (\2)/p' "$log"
  if [ "$status" != 0 ] && [ "$bad" = 0 ]; then failed "$label" "cargo ended with $status"; fi
  return "$status"
}

# A table of measurements for readers: name, seconds and other measured values.
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

# Cleanups run in reverse order, however the suite ends.
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

# in_private_mounts: runs the rest of the suite in its own mount namespace, which ends with the
# suite. Other processes do not see mounts and overlays made in it. It has no mounts of the suite
# that runs at the same time: a copy would keep them from ending.
in_private_mounts() {
  [ -n "${PRIVATE_MOUNTS:-}" ] && return
  PRIVATE_MOUNTS=1 exec nsenter --mount="/proc/$CLEAN_MOUNTS/ns/mnt" --wdns="$PWD" \
    unshare --mount --propagation private bash "$0"
}
