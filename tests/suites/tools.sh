#!/usr/bin/env bash
# about: commands that look into a repository or write to it without a mount: put
# needs: program apt:time
# limit: 180
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

URL=$SUITE_TMP/bucket
MIB=$((1 << 20))
FILES=$SUITE_TMP/files
mkdir -p "$FILES"
machine one
init_local "$URL" >/dev/null || die "cannot create the repository"

random_file() { head -c "$2" /dev/urandom >"$1"; }
# names_of VOLUME: its snapshots, oldest first.
names_of() { bkfs snapshots --json --volume "$1" "$URL" | jq -r .name; }
count_of() { names_of "$1" | grep -c . || true; }
# holds SNAPSHOT:PATH FILE [VOLUME]: that path restores as that file.
holds() {
  rm -rf "$SUITE_TMP/back"
  bkfs -q restore --volume "${3:-streams}" "$URL" "$1" "$SUITE_TMP/back"
  cmp "$SUITE_TMP/back" "$2"
}
is_sound() { exits 0 bkfs check --read-data "$URL"; }

# --- put ------------------------------------------------------------------------------------------------------------

put_piped() { cat "$1" | bkfs put "$URL" "$2" "${@:3}"; }

put_stores_files_and_streams() {
  random_file "$FILES/big" $((40 * MIB + 4321))
  printf 'small' >"$FILES/small"
  : >"$FILES/empty"
  cp "$FILES/big" "$FILES/page.ibd"
  chmod 2640 "$FILES/big"
  touch -d '2020-02-29 12:34:56.789' "$FILES/big"
  exits 0 bkfs put "$URL" a/b/big "$FILES/big" --name first --tag daily
  says 'snapshot first \(generation [0-9]+\): a/b/big, 40.0 MiB'
  exits 0 put_piped "$FILES/small" a/b/small
  exits 0 put_piped "$FILES/empty" empty
  exits 0 put_piped "$FILES/page.ibd" page.ibd
  exits 0 bkfs put "$URL" seq -- seq 1 2000000
  seq 1 2000000 >"$FILES/seq"
  local file
  for file in a/b/big a/b/small empty page.ibd seq; do holds "latest:/$file" "$FILES/$(basename "$file")"; done
  holds first:/a/b/big "$FILES/big"
  [ "$(stat -c '%a %Y' "$SUITE_TMP/back")" = "$(stat -c '%a %Y' "$FILES/big")" ] || wrong "mode or time: $(stat -c '%a %Y' "$SUITE_TMP/back")"
  [ "$(count_of streams)" = 5 ] || wrong "$(count_of streams) snapshots"
  [ "$(count_of main)" = 0 ] || wrong "the default volume was written"
}

put_replaces_and_remembers() {
  local before
  before=$(bytes_in "$URL")
  exits 0 put_piped "$FILES/big" copy --json
  [ "$(tail -n 1 "$SUITE_TMP/output" | jq -r '.volume, .bytes' | paste -sd ' ')" = "streams $(stat -c %s "$FILES/big")" ] || wrong "what JSON says"
  [ $(($(bytes_in "$URL") - before)) -lt $MIB ] || wrong "the same bytes were stored twice"
  cp "$FILES/big" "$FILES/changed"
  printf 'changed' | dd of="$FILES/changed" bs=1 seek=$((20 * MIB)) conv=notrunc status=none
  exits 0 put_piped "$FILES/changed" a/b/big --name second
  holds second:/a/b/big "$FILES/changed"
  holds first:/a/b/big "$FILES/big"
  [ $(($(bytes_in "$URL") - before)) -lt $((4 * MIB)) ] || wrong "a small change stored $(($(bytes_in "$URL") - before)) bytes"
}

put_that_fails_changes_nothing() {
  local before
  before=$(names_of streams)
  exits 1 bkfs put "$URL" a/b/big -- sh -c 'head -c 30000000 /dev/zero; exit 3'
  says 'no snapshot was made' 'ended with exit status: 3'
  # Reading address 0 of a process fails.
  exits 1 bkfs put "$URL" a/b/big /proc/self/mem
  says 'no snapshot was made' 'cannot read the stream'
  exits 1 bkfs put "$URL" a/b/big "$FILES"
  exits 1 bkfs put "$URL" a/b "$FILES/small"
  says 'is a directory'
  exits 1 bkfs put "$URL" seq/below "$FILES/small"
  says 'seq: is not a directory'
  exits 1 bkfs put "$URL" x "$FILES/small" --name first
  says 'exists already'
  exits 2 bkfs put "$URL" ../x "$FILES/small"
  exits 10 bkfs put "$SUITE_TMP/nowhere" x "$FILES/small"
  [ "$(names_of streams)" = "$before" ] || wrong "a failed put made a snapshot"
  holds latest:/a/b/big "$FILES/changed"
}

# begin_put PATH: a put that has begun and waits for the rest of its stream; its pid is in $PUT.
begin_put() {
  rm -f "$SUITE_TMP/fifo"
  mkfifo "$SUITE_TMP/fifo"
  (exec "$MACHINE/run" "$BKFS_BIN" put "$URL" "$1" <"$SUITE_TMP/fifo" >"$SUITE_TMP/put.log" 2>&1) &
  PUT=$!
  exec 9>"$SUITE_TMP/fifo"
  cat "$FILES/big" >&9
}

# The program itself, below the timeout(1) that runs it.
program_of() { pgrep -P "$1" -x bkfs; }

put_holds_its_volume() {
  begin_put held
  exits 11 bkfs put "$URL" other "$FILES/small"
  says 'held|holds' '--volume'
  exits 0 bkfs put "$URL" other "$FILES/small" --volume elsewhere
  exits 0 bkfs put "$URL" other "$FILES/small" --steal
  # The one whose volume was taken knows it at its last commit at the latest.
  exec 9>&-
  local status=0
  wait "$PUT" || status=$?
  cat "$SUITE_TMP/put.log"
  [ "$status" = 11 ] || wrong "the one that lost its volume ended with $status"
  exits 1 bkfs ls "$URL" latest:/held --volume streams
}

put_leaves_nothing_when_it_is_ended() {
  local before signal
  before=$(bkfs ls -R --volume streams "$URL" latest)
  for signal in TERM KILL; do
    begin_put "ended-by-$signal"
    kill "-$signal" "$(program_of "$PUT")"
    local status=0
    wait "$PUT" || status=$?
    exec 9>&-
    [ "$status" != 0 ] || wrong "ended by $signal with 0"
  done
  exits 0 put_piped "$FILES/small" a/b/small --name after-the-end
  [ "$(bkfs ls -R --names --volume streams "$URL" latest)" = "$(awk '{print $NF}' <<<"$before")" ] || wrong "something is left: $(bkfs ls -R --volume streams "$URL" latest)"
  # The root, a, a/b, and the five files and other two.
  local files
  files=$(bkfs snapshots --json --volume streams "$URL" | jq 'select(.name == "after-the-end").files')
  [ "$files" = $(($(wc -l <<<"$before") + 1)) ] || wrong "$files inodes are counted"
  is_sound
}

put_needs_little_memory() {
  # As much as four times the memory.
  exits 0 measured "$SUITE_TMP/peak" "$MACHINE/run" sh -c "head -c $((600 * MIB)) /dev/urandom | '$BKFS_BIN' put '$SUITE_TMP/large' stream"
  row put "600 MiB that are new" "$(tail -n 1 "$SUITE_TMP/output")" "$(peak_mib "$SUITE_TMP/peak") MiB at most"
  [ "$(peak_mib "$SUITE_TMP/peak")" -le 512 ] || wrong "$(peak_mib "$SUITE_TMP/peak") MiB of memory"
  rm -rf "$SUITE_TMP/large"
}
init_local "$SUITE_TMP/large" >/dev/null

case_of "put stores files and streams whole" put_stores_files_and_streams
case_of "put replaces a path and older snapshots remember it" put_replaces_and_remembers
case_of "a put that fails changes nothing" put_that_fails_changes_nothing
case_of "a put holds its volume and is fenced when it is taken" put_holds_its_volume
case_of "a put that is ended leaves nothing" put_leaves_nothing_when_it_is_ended
case_of "put needs little memory" put_needs_little_memory
print_table
