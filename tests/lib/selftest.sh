# shellcheck shell=bash
# Tests of the runner: a copy of tests/run runs a small project with suites that pass, fail, hang
# and leave processes and mounts. The suite `tidy` sources this file.

PROJECT=$SUITE_TMP/project
mkdir -p "$PROJECT/tests/suites" "$PROJECT/temporary"
cp -r "$ROOT/tests/run" "$ROOT/tests/lib" "$PROJECT/tests/"
sed -i -e '/^SUITES=(/,/)$/c\SUITES=(good bad hangs leaves nothing named meets met holds looks builds built lost)' \
  -e 's/^CORE_SUITES=(.*/CORE_SUITES=(good)/' "$PROJECT/tests/run"

# little_suite NAME LIMIT: creates a suite whose body is read from standard input.
little_suite() {
  {
    printf '# about: %s\n# needs:\n# limit: %s\n' "$1" "$2"
    echo ". \"\$(dirname \"\$0\")/../lib/common.sh\""
    cat
  } >"$PROJECT/tests/suites/$1.sh"
}
little_suite good 30 <<'S'
case_of "true is true" true
printf 'many\t40\t0\tcounted\n' >>"$RESULTS"
exit 0
S
little_suite bad 30 <<'S'
later() { echo "what it said"; false; touch "$SUITE_TMP/../went-on"; }
case_of "a failing command ends its case" later
case_of "the next case runs" true
exit 0
S
little_suite nothing 30 <<'S'
exit 0
S
little_suite named 30 <<'S'
case_of "suites find daemons by the name of the program" test "$(basename "$("$BKFS_BIN")")" = bkfs
exit 0
S
# Two suites that meet, and two that must not.
little_suite meets 30 <<'S'
touch "$RUN_TMP/one"
case_of "another suite runs at the same time" wait_for 20 test -e "$RUN_TMP/other"
exit 0
S
little_suite met 30 <<'S'
touch "$RUN_TMP/other"
case_of "another suite runs at the same time" wait_for 20 test -e "$RUN_TMP/one"
exit 0
S
little_suite holds 30 <<'S'
mkdir "$SUITE_TMP/held"
mount -t tmpfs bkfs-selftest "$SUITE_TMP/held"
touch "$RUN_TMP/held"
case_of "another suite looks meanwhile" wait_for 20 test -e "$RUN_TMP/looked"
umount "$SUITE_TMP/held"
exit 0
S
little_suite looks 30 <<'S'
[ -n "${PRIVATE_MOUNTS:-}" ] || wait_for 20 test -e "$RUN_TMP/held"
in_private_mounts
sees_no_other() { ! grep bkfs-selftest /proc/self/mountinfo; }
case_of "its own mounts are none of another suite's" sees_no_other
touch "$RUN_TMP/looked"
exit 0
S
for name in builds built; do
  little_suite $name 30 <<'S'
# It would call: cargo build
case_of "it is the only one that builds" mkdir "$RUN_TMP/building"
sleep 1
rmdir "$RUN_TMP/building"
exit 0
S
done
little_suite lost 30 <<'S'
mkdir "$RUN_TMP/lost.counts.new"
case_of "its counts cannot be written" true
exit 0
S
little_suite hangs 3 <<'S'
case_of "before" true
setsid sleep 4242 &
echo $! >"$RUN_TMP/../hanging"
sleep 4243
S
little_suite leaves 30 <<'S'
mkdir "$SUITE_TMP/mounted"
mount -t tmpfs bkfs-selftest "$SUITE_TMP/mounted"
setsid sleep 4244 &
echo $! >"$RUN_TMP/../left"
# The recorded id finds a process that hides its environment, as database servers do.
env -i setsid sleep 4245 &
remember_pid $!
echo $! >>"$RUN_TMP/../left"
case_of "leaves things behind" true
exit 0
S

little_run() {
  env -u BKFS_TEST_RUN CARGO_TARGET_DIR="$PROJECT/target" TMPDIR="$PROJECT/temporary" \
    "$PROJECT/tests/run" "$@"
}
all_gone() {
  local pid
  for pid in $(cat "$@"); do gone "$pid" 5 || wrong "process $pid is left"; done
  ! grep -q "$PROJECT/temporary" /proc/self/mountinfo || wrong "a mount is left"
  [ -z "$(find "$PROJECT/temporary" -maxdepth 1 -name 'bkfs-tests.*')" ] ||
    wrong "a directory is left"
}
ends_with() {
  [ "$(tail -n 1 "$SUITE_TMP/little")" = "$1" ] ||
    wrong "the last line is: $(tail -n 1 "$SUITE_TMP/little")"
}
run_says() { # CODE LAST-LINE NAME…
  local status=0
  little_run "${@:3}" >"$SUITE_TMP/little" 2>&1 || status=$?
  cat "$SUITE_TMP/little"
  [ "$status" = "$1" ] || wrong "exit code $status"
  ends_with "$2"
}

counts_success() { run_says 0 "41 passed, 0 failed" good; }
counts_failure() {
  run_says 1 "42 passed, 1 failed" good bad
  grep -qx ' *| what it said' "$SUITE_TMP/little" || wrong "what the failed case said is not shown"
  ! grep -q '| ok  *the next case' "$SUITE_TMP/little" || wrong "what another case said is shown"
  [ ! -e "$PROJECT/temporary/went-on" ] || wrong "a case went on after a failed command"
}
empty_suite_fails() { run_says 1 "0 passed, 1 failed" nothing; }
time_limit_ends_a_suite() {
  run_says 1 "1 passed, 1 failed" hangs && all_gone "$PROJECT/temporary/hanging"
}
puts_away_what_is_left() {
  run_says 0 "1 passed, 0 failed" leaves && all_gone "$PROJECT/temporary/left"
}
program_of_another_name() {
  printf '#!/bin/sh\necho "$0"\n' >"$SUITE_TMP/bkfs-of-yesterday"
  chmod +x "$SUITE_TMP/bkfs-of-yesterday"
  BKFS_BIN=$SUITE_TMP/bkfs-of-yesterday run_says 0 "1 passed, 0 failed" named
  BKFS_BIN=$SUITE_TMP/absent run_says 1 "0 passed, 1 failed" named
}
core_is_the_default() {
  run_says 0 "41 passed, 0 failed"
  grep -qx 'suite 1 of 1: good, about 1 min left' "$SUITE_TMP/little" || wrong "no progress is shown"
}
all_suites_are_run() {
  sed -i 's/^SUITES=(.*/SUITES=(good bad)/' "$PROJECT/tests/run"
  run_says 1 "42 passed, 1 failed" --all
  grep -q '^suite 2 of 2: bad' "$SUITE_TMP/little" || wrong "no progress is shown"
  sed -i 's/^SUITES=(.*/SUITES=(good bad hangs leaves nothing named meets met holds looks builds built lost)/' \
    "$PROJECT/tests/run"
}
lost_results_fail() { run_says 1 "0 passed, 1 failed" lost; }
a_suite_runs_once() { run_says 0 "41 passed, 0 failed" good good; }
two_at_a_time() { run_says 0 "2 passed, 0 failed" meets met; }
private_mounts_begin_clean() { run_says 0 "2 passed, 0 failed" holds looks; }
one_builds_at_a_time() { run_says 0 "43 passed, 0 failed" builds built good; }
unknown_names_are_refused() {
  local status=0
  little_run no-such-suite >/dev/null 2>&1 || status=$?
  [ $status = 2 ]
}
# hanging_run: starts the runner in the background and returns when its suite hangs. Sets RUNNER to
# the runner's own id, and STARTED to the id that the shell knows.
hanging_run() {
  sed -i 's/^# limit: 3$/# limit: 300/' "$PROJECT/tests/suites/hangs.sh"
  rm -f "$PROJECT/temporary/hanging"
  little_run hangs >"$SUITE_TMP/little" 2>&1 &
  STARTED=$!
  wait_for 20 test -s "$PROJECT/temporary/hanging" || wrong "the suite did not start"
  read -r RUNNER _ < <(cat "$PROJECT"/temporary/bkfs-tests.*/owner)
}
# TERM during a suite counts as a failure, and the runner removes everything.
ended_from_outside() {
  local status=0
  hanging_run
  kill -TERM "$RUNNER"
  wait "$STARTED" || status=$?
  [ $status = 143 ] || wrong "exit code $status"
  ends_with "0 passed, 1 failed"
  all_gone "$PROJECT/temporary/hanging"
}
# KILL cannot be caught: the next run removes what the killed one left.
killed_run_is_put_away() {
  hanging_run
  kill -KILL "$RUNNER"
  gone "$RUNNER" 5
  run_says 0 "41 passed, 0 failed" good
  all_gone "$PROJECT/temporary/hanging"
}

case_of "runner: counts cases" counts_success
case_of "runner: a failed case fails the run" counts_failure
case_of "runner: a suite without cases fails" empty_suite_fails
case_of "runner: a suite that hangs is ended at its limit" time_limit_ends_a_suite
case_of "runner: processes and mounts left by a suite are put away" puts_away_what_is_left
case_of "runner: a program of another name is run as bkfs" program_of_another_name
case_of "runner: without a name the core is run" core_is_the_default
case_of "runner: --all runs every suite" all_suites_are_run
case_of "runner: a suite whose results are lost fails the run" lost_results_fail
case_of "runner: a suite that is named twice runs once" a_suite_runs_once
case_of "runner: two suites run at a time" two_at_a_time
case_of "runner: a suite's own mounts are none of another suite's" private_mounts_begin_clean
case_of "runner: two suites that build run in turn" one_builds_at_a_time
case_of "runner: an unknown suite is refused" unknown_names_are_refused
case_of "runner: ended by TERM it puts everything away" ended_from_outside
case_of "runner: what a killed run left is put away by the next" killed_run_is_put_away

# Extraction and comparison of the README's session.
session_agrees() {
  local document=$SUITE_TMP/document.md steps=$SUITE_TMP/steps n=0 verdict
  mkdir -p "$steps"
  {
    printf 'Text\n```console\n$ unmarked\n```\n'
    printf '<!-- session: a -->\n```console\n$ one \\\n> more\n'
    printf 'seen …, line\n...\nlast\n$ two\n```\n'
    printf '```sh\n$ not this\n```\n<!-- session: b -->\n```console\n# three\n```\n'
    printf '<!-- before: hidden -->\n   <!-- session: c -->\n   ```console\n   # indented\n'
    printf '   shown\n   ```\n'
  } >"$document"
  [ "$("$ROOT/tests/lib/session.pl" extract "$document" "$steps")" = 5 ] ||
    wrong "not five commands"
  [ "$(cat "$steps/1.command")" = "$(printf 'one \\\nmore')" ] ||
    wrong "the command is $(cat "$steps/1.command")"
  [ "$(cat "$steps/4.command" "$steps/5.command" "$steps/5.expected" | paste -sd ' ')" = \
    'hidden indented shown' ] || wrong "a step before a session, or an indented one, is another"
  shown() {
    printf "$1" >"$SUITE_TMP/seen"
    "$ROOT/tests/lib/session.pl" compare "$steps/1.expected" "$SUITE_TMP/seen"
  }
  shown '   Compiling x\nseen 12 s, line\nany\nmore\nlast\n'
  shown 'seen , line\nlast\n'
  for verdict in 'seen 12 s, line\nlast\nmore\n' 'other\nlast\n' 'seen 1, line\n' '' \
    'Xseen 1, line\nlast\n'; do
    ! shown "$verdict" || wrong "agreed to: $verdict"
  done
  printf 'unasked\n' >"$SUITE_TMP/seen"
  ! "$ROOT/tests/lib/session.pl" compare "$steps/2.expected" "$SUITE_TMP/seen" ||
    wrong "output that the document does not show"
}
case_of "session: what is seen is compared with what is shown" session_agrees
