#!/usr/bin/env bash
# about: commands that look into a repository or write to it without a mount: put, dump, diff, find,
# about: stats, key, copy
# needs: program apt:time apt:rsync
# limit: 240
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

URL=$SUITE_TMP/bucket
MIB=$((1 << 20))
FILES=$SUITE_TMP/files
mkdir -p "$FILES"
machine one
init_local "$URL" >/dev/null || die "cannot create the repository"

random_file() { head -c "$2" /dev/urandom >"$1"; }
# names_of VOLUME: the names of its snapshots, oldest first.
names_of() { bkfs snapshots --json --volume "$1" "$URL" | jq -r .name; }
count_of() { names_of "$1" | grep -c . || true; }
# holds SNAPSHOT:PATH FILE [VOLUME]: the path restores to the contents of the file.
holds() {
  rm -rf "$SUITE_TMP/back"
  bkfs -q restore --volume "${3:-streams}" "$URL" "$1" "$SUITE_TMP/back"
  cmp "$SUITE_TMP/back" "$2"
}
is_sound() { exits 0 bkfs check --read-data "$URL"; }

# --- put ------------------------------------------------------------------------------------------

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
  for file in a/b/big a/b/small empty page.ibd seq; do
    holds "latest:/$file" "$FILES/$(basename "$file")"
  done
  holds first:/a/b/big "$FILES/big"
  [ "$(stat -c '%a %Y' "$SUITE_TMP/back")" = "$(stat -c '%a %Y' "$FILES/big")" ] ||
    wrong "mode or time: $(stat -c '%a %Y' "$SUITE_TMP/back")"
  [ "$(count_of streams)" = 5 ] || wrong "$(count_of streams) snapshots"
  [ "$(count_of main)" = 0 ] || wrong "the default volume was written"
}

put_replaces_and_remembers() {
  local before
  before=$(bytes_in "$URL")
  exits 0 put_piped "$FILES/big" copy --json -q
  [ "$(tail -n 1 "$SUITE_TMP/output" | jq -r '.volume, .bytes' | paste -sd ' ')" = \
    "streams $(stat -c %s "$FILES/big")" ] ||
    wrong "what JSON says"
  [ $(($(bytes_in "$URL") - before)) -lt $MIB ] || wrong "the same bytes were stored twice"
  cp "$FILES/big" "$FILES/changed"
  printf 'changed' | dd of="$FILES/changed" bs=1 seek=$((20 * MIB)) conv=notrunc status=none
  exits 0 put_piped "$FILES/changed" a/b/big --name second
  holds second:/a/b/big "$FILES/changed"
  holds first:/a/b/big "$FILES/big"
  [ $(($(bytes_in "$URL") - before)) -lt $((4 * MIB)) ] ||
    wrong "a small change stored $(($(bytes_in "$URL") - before)) bytes"
}

put_that_fails_changes_nothing() {
  local before
  before=$(names_of streams)
  exits 3 bkfs put "$URL" a/b/big -- sh -c 'head -c 30000000 /dev/zero; exit 3'
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
  says 'already exists'
  exits 2 bkfs put "$URL" ../x "$FILES/small"
  exits 10 bkfs put "$SUITE_TMP/nowhere" x "$FILES/small"
  [ "$(names_of streams)" = "$before" ] || wrong "a failed put made a snapshot"
  holds latest:/a/b/big "$FILES/changed"
}

# begin_put PATH: starts a put that waits for the rest of its stream; sets PUT to its process id.
begin_put() {
  rm -f "$SUITE_TMP/fifo"
  mkfifo "$SUITE_TMP/fifo"
  (exec "$MACHINE/run" "$BKFS_BIN" put "$URL" "$1" <"$SUITE_TMP/fifo" >"$SUITE_TMP/put.log" 2>&1) &
  PUT=$!
  exec 9>"$SUITE_TMP/fifo"
  cat "$FILES/big" >&9
}

# Prints the process id of the program, a child of the timeout(1) that runs it.
program_of() { pgrep -P "$1" -x bkfs; }

put_holds_its_volume() {
  begin_put held
  exits 11 bkfs put "$URL" other "$FILES/small"
  says 'held|holds' '--volume'
  exits 0 bkfs put "$URL" other "$FILES/small" --volume elsewhere
  exits 0 bkfs put "$URL" other "$FILES/small" --steal
  # The put that lost its volume learns of it at its last commit at the latest.
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
  local left
  left=$(bkfs ls -R --names --volume streams "$URL" latest)
  [ "$left" = "$(awk '{print $NF}' <<<"$before")" ] ||
    wrong "something is left: $(bkfs ls -R --volume streams "$URL" latest)"
  # The root is counted in addition to the names listed.
  local files
  files=$(bkfs snapshots --json --volume streams "$URL" |
    jq 'select(.name == "after-the-end").files')
  [ "$files" = $(($(wc -l <<<"$before") + 1)) ] || wrong "$files inodes are counted"
  is_sound
}

put_needs_little_memory() {
  # The stream exceeds the 512 MiB that the case allows.
  exits 0 measured "$SUITE_TMP/peak" "$MACHINE/run" sh \
    -c "head -c $((600 * MIB)) /dev/urandom | '$BKFS_BIN' put '$SUITE_TMP/large' stream"
  row put "600 MiB that are new" "$(tail -n 1 "$SUITE_TMP/output")" \
    "$(peak_mib "$SUITE_TMP/peak") MiB at most"
  [ "$(peak_mib "$SUITE_TMP/peak")" -le 512 ] || wrong "$(peak_mib "$SUITE_TMP/peak") MiB of memory"
  rm -rf "$SUITE_TMP/large"
}
init_local "$SUITE_TMP/large" >/dev/null

# --- a snapshot of many kinds of things, and another ----------------------------------------------

PAIR=$SUITE_TMP/pair MNT=$SUITE_TMP/mount STATES=$SUITE_TMP/states
ODD=$'odd\xff\nname'
mkdir -p "$MNT" "$STATES"
at_end "leave_mount '$MNT'"

# Makes two snapshots of a mount, and keeps the directories that they were made of.
two_snapshots() {
  local tree=$STATES/one
  mkdir -p "$tree"/{same,dir/inner,moved,gone}
  random_file "$tree/same/large" $((5 * MIB))
  random_file "$tree/dir/page.ibd" $((2 * MIB))
  random_file "$tree/dir/inner/$ODD" 70000
  echo small >"$tree/dir/small"
  echo gone >"$tree/gone/file"
  echo moved >"$tree/moved/file"
  printf 'x%.0s' $(seq 200) >"$tree/dir/$(printf 'long%.0s' $(seq 50))"
  ln "$tree/dir/small" "$tree/link"
  ln -s dir/small "$tree/symbolic"
  mkfifo "$tree/fifo"
  truncate -s $((3 * MIB)) "$tree/sparse"
  setfattr -n user.note -v 'some text' "$tree/dir/small"
  chown 1234:5678 "$tree/same/large"
  touch -d '1965-03-04 05:06:07.25' "$tree/dir/page.ibd"
  init_local "$PAIR"
  mount_at "$PAIR" "$MNT"
  cp -a "$tree/." "$MNT/"
  bkfs snapshot "$MNT" one
  cp -a "$tree" "$STATES/two"
  local place
  for place in "$MNT" "$STATES/two"; do
    printf changed | dd of="$place/same/large" bs=1 seek=$MIB conv=notrunc status=none
    chmod 700 "$place/dir"
    touch -d '2001-01-01' "$place/dir/page.ibd"
    setfattr -n user.note -v 'other text' "$place/dir/small"
    rm -r "$place/gone" "$place/symbolic"
    mkdir "$place/symbolic"
    mv "$place/moved" "$place/arrived"
    echo new >"$place/dir/inner/new"
    # The same contents under another inode number.
    cp -a "$place/sparse" "$place/copy"
    mv "$place/copy" "$place/sparse"
  done
  bkfs snapshot "$MNT" two
  bkfs umount "$MNT"
}

dump_gives_the_bytes_back() {
  local file
  for file in same/large dir/small "dir/inner/$ODD" sparse; do
    bkfs dump "$PAIR" "one:/$file" | cmp - "$STATES/one/$file"
  done
  exits 2 bkfs dump "$PAIR" one:/dir
  says 'is a directory' 'archive tar'
  exits 1 bkfs dump "$PAIR" one:/nowhere
  says 'the snapshot has no /nowhere'
  # A reader that closes the pipe: the program prints no message, and does not report success.
  set +o pipefail
  bkfs dump "$PAIR" one:/same/large 2>"$SUITE_TMP/quiet" | head -c 10 >/dev/null
  [ "${PIPESTATUS[0]}" = 141 ] || wrong "a closed pipe ends with ${PIPESTATUS[0]}"
  [ ! -s "$SUITE_TMP/quiet" ] || wrong "a closed pipe is talked about: $(cat "$SUITE_TMP/quiet")"
  mkdir "$SUITE_TMP/untarred"
  bkfs dump "$PAIR" one:/ --archive tar |
    tar -C "$SUITE_TMP/untarred" --xattrs --xattrs-include='*' -xpf -
  rsync -aHAXni --delete "$STATES/one/" "$SUITE_TMP/untarred/" >"$SUITE_TMP/differs"
  [ ! -s "$SUITE_TMP/differs" ] || wrong "the archive differs: $(cat "$SUITE_TMP/differs")"
}

dump_says_what_is_damaged() {
  local damaged=$SUITE_TMP/damaged pack
  cp -a "$PAIR" "$damaged"
  pack=$(find "$damaged/data" -type f -printf '%s %p\n' | sort -n | tail -n 1 | cut -d' ' -f2)
  printf XXXX | dd of="$pack" bs=1 seek=$MIB conv=notrunc status=none
  machine without-cache
  exits 13 bkfs dump "$damaged" one:/same/large
  says 'the output is incomplete' 'damaged'
  exits 13 bkfs dump "$damaged" one:/ --archive tar
  says 'same/large'
  machine one
}

diff_names_what_differs() {
  # Only the results: no summary, which is a remark.
  exits 0 bkfs diff -q "$PAIR" one two
  [ "$(grep -vcE '^[-+MUT] ' "$SUITE_TMP/output")" = 0 ] || wrong "-q is not quiet"
  says '^M /same/large$'
  bkfs diff "$PAIR" one two 2>/dev/null | sort >"$SUITE_TMP/differs"
  cat "$SUITE_TMP/differs"
  sort >"$SUITE_TMP/expected" <<'E'
+ /arrived/
+ /arrived/file
+ /dir/inner/new
- /gone/
- /gone/file
- /moved/
- /moved/file
M /same/large
T /symbolic
U /dir/
U /dir/page.ibd
U /dir/small
U /link
E
  diff "$SUITE_TMP/expected" "$SUITE_TMP/differs"
  bkfs diff --json "$PAIR" two one | jq -r .change | sort | uniq -c |
    awk '{printf "%s=%s ", $2, $1}' >"$SUITE_TMP/counts"
  [ "$(cat "$SUITE_TMP/counts")" = 'added=4 metadata=4 modified=1 removed=3 type=1 ' ] ||
    wrong "the other way: $(cat "$SUITE_TMP/counts")"
  [ "$(bkfs diff "$PAIR" one:/dir two:/dir 2>/dev/null | sort | tr '\n' ' ')" = \
    "+ /dir/inner/new U /dir/ U /dir/page.ibd U /dir/small " ] ||
    wrong "below a directory: $(bkfs diff "$PAIR" one:/dir two:/dir)"
  exits 0 bkfs diff "$PAIR" one one
  says_not '^[-+MUT] '
  [ "$(bkfs diff -0 "$PAIR" one:/gone one:/dir/inner 2>/dev/null | tr '\0\n' '|.')" = \
    $'- /dir/inner/file|+ /dir/inner/odd\xff.name|' ] ||
    wrong "raw names: $(bkfs diff -0 "$PAIR" one:/gone one:/dir/inner | od -c)"
}

find_finds_names() {
  finds() {
    local expected=$1
    shift
    local found
    found=$(bkfs find "$PAIR" "$@" 2>/dev/null | sort | tr '\n' ' ')
    [ "$found" = "$expected" ] || wrong "find $*: $found"
  }
  finds 'one:/dir/page.ibd two:/dir/page.ibd ' '*.ibd'
  finds 'two:/dir/inner/new ' 'new'
  finds 'one:/gone/file one:/moved/file two:/arrived/file ' '/**/file'
  finds 'one:/dir/inner ' '/dir/**' --snapshot one --type d
  finds 'two:/same/large ' 'LARGE' --iname --snapshot latest
  finds 'one:/same/large ' '*' --snapshot one --size +4M
  finds 'one:/dir/page.ibd ' '*' --snapshot one --older 1970-01-01T00:00:00Z
  finds 'one:/symbolic ' 'sym*' --type l
  [ "$(bkfs find -0 "$PAIR" 'odd*' --snapshot one | tr '\0\n' '|.')" = \
    $'one:/dir/inner/odd\xff.name|' ] ||
    wrong "raw names"
  bkfs find --json "$PAIR" large --snapshot one |
    jq -e '.path == "/same/large" and .size == 5242880 and .snapshot == "one"' >/dev/null
  exits 0 bkfs find "$PAIR" no-such-name
  says 'no file matches'
}

ls_and_restore_take_any_name() {
  exits 0 bkfs ls "$PAIR" "one:/dir/inner/$ODD"
  says 'odd\\xff\\nname'
  bkfs -q restore "$PAIR" "one:/dir/inner/$ODD" "$SUITE_TMP/odd"
  cmp "$SUITE_TMP/odd" "$STATES/one/dir/inner/$ODD"
}

stats_add_up() {
  exits 0 bkfs stats "$PAIR"
  says 'main:one' '2 snapshots' 'unique' 'stored'
  says_not 'a month'
  bkfs stats --json "$PAIR" >"$SUITE_TMP/stats"
  cat "$SUITE_TMP/stats"
  # 5 MiB and 2 MiB, a changed chunk and small files, each once; raw bytes count both states. The
  # stored bytes equal the sizes of the packs.
  jq -e '
    .unique_bytes > 7340032 and .unique_bytes < 8388608 and
    .raw_bytes > 2 * .unique_bytes - 1000000 and .month == null
  ' "$SUITE_TMP/stats"
  local there
  there=$(find "$PAIR/data" "$PAIR/meta" -type f -printf '%s\n' |
    awk '{sum += $1} END {print sum}')
  [ "$(jq .stored_bytes "$SUITE_TMP/stats")" = "$there" ] ||
    wrong "stored bytes are not what lies there"
  mkdir -p "$MACHINE/config/bkfs"
  printf '[prices]\ncurrency = "EUR"\nstorage_gb_month = 1000.0\nput_1000 = 0.0\n' \
    >"$MACHINE/config/bkfs/bkfs.toml"
  bkfs stats --json "$PAIR" | jq -e '
    .month.currency == "EUR" and .month.total == .month.storage and
    (.month.total - .stored_bytes / 1073741824 * 1000 | fabs) < 0.001
  '
  rm "$MACHINE/config/bkfs/bkfs.toml"
}

# --- key ------------------------------------------------------------------------------------------

SEALED=$SUITE_TMP/sealed
for password in first second third; do
  (umask 077; echo "the $password password" >"$SUITE_TMP/$password")
done
with() { local password=$1; shift; bkfs --password-file "$SUITE_TMP/$password" "$@"; }
key_of() { with "$1" key list --json "$SEALED" | jq -r 'select(.own).key'; }

keys_come_and_go() {
  exits 0 with first init "$SEALED"
  exits 1 with first key remove "$SEALED" "$(key_of first)"
  says 'only one that the given password opens' 'key add'
  exits 0 with first key add "$SEALED" --new-password-file "$SUITE_TMP/second" \
    --label "the second one"
  exits 0 with second key list "$SEALED"
  says '\* +[0-9a-f]{16}.*the second one'
  # The old password opens nothing any more.
  exits 0 with first key passwd "$SEALED" --new-password-file "$SUITE_TMP/third"
  exits 12 with first snapshots "$SEALED"
  exits 12 with first key list "$SEALED"
  exits 0 with third snapshots "$SEALED"
  # A key that cannot be read may be one of the old password: it is named.
  head -c 450 /dev/zero >"$SEALED/keys/00000000000000aa"
  exits 0 with third key passwd "$SEALED" --new-password-file "$SUITE_TMP/third"
  says '1 key was not tried.*00000000000000aa' 'old password still opens'
  rm "$SEALED/keys/00000000000000aa"
  exits 0 with second key remove "$SEALED" "$(key_of third)"
  exits 12 with third snapshots "$SEALED"
  exits 0 with second snapshots "$SEALED"
  [ "$(find "$SEALED/keys" -type f | wc -l)" = 1 ] ||
    wrong "copies of keys are left: $(ls "$SEALED/keys")"
  exits 1 bkfs key list "$PAIR"
  says 'not encrypted'
  exits 10 with first key list "$SUITE_TMP/nowhere"
  chmod 644 "$SUITE_TMP/third"
  exits 1 with second key add "$SEALED" --new-password-file "$SUITE_TMP/third"
  says 'can be read by others'
  chmod 600 "$SUITE_TMP/third"
}

# Two commands remove each other's keys at the same moment: one key remains.
crossing_removals_leave_a_key() {
  local round first second a b
  for round in 1 2 3; do
    exits 0 with second key add "$SEALED" --new-password-file "$SUITE_TMP/first"
    first=$(key_of first) second=$(key_of second)
    with first key remove "$SEALED" "$second" >/dev/null 2>&1 &
    a=$!
    with second key remove "$SEALED" "$first" >/dev/null 2>&1 &
    b=$!
    wait "$a" || true
    wait "$b" || true
    local opens=
    for password in first second; do
      if with "$password" snapshots "$SEALED" >/dev/null 2>&1; then opens=$password; fi
    done
    [ -n "$opens" ] || wrong "round $round: no password opens it"
    [ "$opens" = second ] ||
      exits 0 with "$opens" key passwd "$SEALED" --new-password-file "$SUITE_TMP/second"
    # Leaves one key, that of the second password.
    local other
    for other in $(with second key list --json "$SEALED" | jq -r 'select(.own | not).key'); do
      exits 0 with second key remove "$SEALED" "$other"
    done
  done
}

# A new master key: which passwords open it, what it refuses, and what an old key object opens after
# its return.
master_keys_are_rotated() {
  local old=$SUITE_TMP/old-keys host key
  host=$(uname -n)
  printf 'before' >"$FILES/before"
  printf 'after' >"$FILES/after"
  exits 0 with second put "$SEALED" before "$FILES/before"
  exits 0 with second key add "$SEALED" --new-password-file "$SUITE_TMP/first" \
    --label "the first one"
  exits 1 with second key rotate "$SEALED"
  says 'the first one' 'drop-others'
  mkfifo "$SUITE_TMP/waiting"
  with second put "$SEALED" waiting <"$SUITE_TMP/waiting" &
  local put=$!
  exec 7>"$SUITE_TMP/waiting"
  local tries=0
  until with second session list "$SEALED" | grep -q live; do
    tries=$((tries + 1))
    [ "$tries" -lt 40 ] || wrong "the put has no session"
    sleep 0.5
  done
  exits 11 with second key rotate "$SEALED" --drop-others
  says "$host" 'session [0-9a-f]{16}' 'session list'
  exec 7>&-
  wait "$put"
  cp -a "$SEALED/keys" "$old"
  exits 0 with second key rotate "$SEALED" --drop-others
  says 'master key 1'
  exits 12 with first snapshots "$SEALED"
  exits 0 with second put "$SEALED" after "$FILES/after"
  for key in before after; do
    rm -rf "$SUITE_TMP/back"
    with second -q restore --volume streams "$SEALED" "latest:/$key" "$SUITE_TMP/back"
    cmp "$SUITE_TMP/back" "$FILES/$key"
  done
  exits 0 with second check --read-data "$SEALED"
  # The old keys are put back.
  cp "$old"/* "$SEALED/keys/"
  exits 12 with first snapshots "$SEALED"
  says 'epoch 0' 'master key 1' 'key [0-9a-f]{16}'
  exits 0 with second snapshots "$SEALED"
  exits 0 with second key list "$SEALED"
  says '\* +[0-9a-f]{16} +1 .* yes ' 'not in force +[0-9a-f]{16} +0 '
  for key in $(with second key list --json "$SEALED" | jq -r 'select(.in_force | not).key'); do
    exits 0 with second key remove "$SEALED" "$key"
  done
  [ "$(find "$SEALED/keys" -type f | wc -l)" = 1 ] || wrong "keys are left: $(ls "$SEALED/keys")"
  exits 1 bkfs key rotate "$PAIR"
  says 'not encrypted'
}

# Objects that anyone with write access to the bucket may put below keys/.
keys_of_strangers_cost_nothing() {
  local number
  for number in $(seq -w 0 63); do : >"$SEALED/keys/00000000000000$number"; done
  head -c 2000000 /dev/zero >"$SEALED/keys/0000000000000100"
  exits 0 with second snapshots "$SEALED"
  exits 12 with first snapshots "$SEALED"
  exits 0 with second key add "$SEALED" --new-password-file "$SUITE_TMP/first" \
    --label "$(printf 'a\033[2Jb')"
  exits 0 with second key list "$SEALED"
  says_not "$(printf '\033')"
  exits 0 with first key list "$SEALED"
  exits 0 with second key remove "$SEALED" "$(key_of first)"
  : >"$SEALED/keys/no key"
  exits 0 with second key list "$SEALED"
  says 'keys/no key'
  exits 0 with second key remove "$SEALED" 'keys/no key'
  [ ! -e "$SEALED/keys/no key" ] || wrong "it is still there"
  rm "$SEALED"/keys/000000000000*
}

# --- copy -----------------------------------------------------------------------------------------

# same_snapshot NAME TO-COMMAND…: the snapshot restores to the same tree from both repositories.
same_snapshot() {
  rm -rf "$SUITE_TMP/there" "$SUITE_TMP/here"
  bkfs -q restore "$PAIR" "$1" "$SUITE_TMP/here"
  "${@:2}" -q restore "$SEALED" "$1" "$SUITE_TMP/there"
  rsync -aHAXnci --delete "$SUITE_TMP/here/" "$SUITE_TMP/there/" >"$SUITE_TMP/differs"
  [ ! -s "$SUITE_TMP/differs" ] || wrong "$1 differs: $(cat "$SUITE_TMP/differs")"
}

copy_makes_the_same_snapshots() {
  exits 0 with second copy "$PAIR" "$SEALED" --snapshot one
  says 'copied main:one' 'copied 1 snapshots'
  same_snapshot one with second
  local before
  before=$(bytes_in "$SEALED")
  exits 0 with second copy "$PAIR" "$SEALED"
  says 'copied main:two' 'copied 1 snapshots, 1 were already there'
  [ $(($(bytes_in "$SEALED") - before)) -lt $MIB ] ||
    wrong "what was there was sent again: $(($(bytes_in "$SEALED") - before)) bytes"
  same_snapshot two with second
  exits 0 with second copy "$PAIR" "$SEALED" --json -q
  [ "$(jq -r 'select(.copied)' "$SUITE_TMP/output" | wc -l)" = 0 ] || wrong "copied twice"
  diff <(bkfs snapshots --json "$PAIR" | jq -c '[.name, .time, .host, .files, .bytes]') \
    <(with second snapshots --json "$SEALED" | jq -c '[.name, .time, .host, .files, .bytes]')
  exits 0 with second check --read-data "$SEALED"
  exits 2 bkfs copy "$PAIR" "$PAIR"
  exits 10 bkfs copy "$SUITE_TMP/nowhere" "$PAIR"
  exits 12 bkfs copy "$SEALED" "$PAIR" --from-password-file "$SUITE_TMP/first"
}

copy_goes_on_after_a_kill() {
  local from=$SUITE_TMP/long to=$SUITE_TMP/copied
  init_local "$from"
  init_local "$to"
  random_file "$FILES/long" $((60 * MIB))
  exits 0 bkfs put "$from" long "$FILES/long" --volume main --name long
  "$MACHINE/run" "$BKFS_BIN" copy "$from" "$to" --commit-every 2M >/dev/null 2>&1 &
  local copy=$! sent
  wait_for 60 eval "[ \"\$(bytes_in '$to/data' 2>/dev/null || echo 0)\" -gt $((10 * MIB)) ]"
  kill -KILL "$(program_of "$copy")"
  wait "$copy" 2>/dev/null || true
  sent=$(bytes_in "$to")
  exits 0 bkfs copy "$from" "$to" --commit-every 2M
  says 'copied main:long'
  row copy "killed after $(mib "$sent") of 60 MiB" \
    "$(bytes_in "$to" | awk '{printf "%.1f", $1 / 1048576}') MiB in the end"
  # Only what was in flight and not committed may be there twice.
  [ "$(bytes_in "$to")" -lt $((80 * MIB)) ] || wrong "$(bytes_in "$to") bytes in the end"
  bkfs dump "$to" long:/long | cmp - "$FILES/long"
  exits 0 bkfs check --read-data "$to"
  # What another command has stored in the target stays in its snapshot.
  exits 0 bkfs put "$to" other "$FILES/small" --volume main --name own
  exits 0 bkfs put "$from" long "$FILES/small" --volume main --name shorter
  exits 0 bkfs copy "$from" "$to"
  says 'copied main:shorter'
  bkfs dump "$to" shorter:/long | cmp - "$FILES/small"
  bkfs dump "$to" own:/other | cmp - "$FILES/small"
  # It is the newest snapshot of the target, and a copy adds only newer ones.
  exits 0 bkfs put "$from" late "$FILES/small" --volume main --name late
  exits 0 bkfs put "$to" other "$FILES/small" --volume main --name newest
  exits 1 bkfs copy "$from" "$to"
  says 'older than the newest snapshot of the target' 'Make a new snapshot of the source'
  # Once no snapshot keeps what the volume holds, only --anew gives it up.
  exits 0 bkfs forget "$to" newest long
  exits 0 bkfs gc "$to" --undelete-window 0s --yes-delete
  exits 11 bkfs copy "$from" "$to"
  says 'changes that are in no snapshot' '--anew'
  exits 0 bkfs copy "$from" "$to" --anew
  says 'left out main:long' 'copied main:late' 'copied 1 snapshots, 1 were already there, 1 were left out'
  exits 0 bkfs copy "$from" "$to" --json -q
  [ "$(jq -sc 'map([.name, .copied, .left_out])' "$SUITE_TMP/output")" = \
    '[["shorter",false,false],["late",false,false],["long",false,true]]' ] ||
    wrong "$(cat "$SUITE_TMP/output")"
  exits 0 bkfs check --read-data "$to"
}

copy_all_goes_on() {
  local from=$SUITE_TMP/all to=$SUITE_TMP/all-copied
  init_local "$from"
  init_local "$to"
  for volume in first second; do
    exits 0 bkfs put "$from" file "$FILES/small" --volume "$volume" --name "of-$volume"
  done
  # What the target has in this volume is in no snapshot.
  exits 0 bkfs put "$to" own "$FILES/small" --volume first --name gone
  exits 0 bkfs forget "$to" --volume first gone
  exits 0 bkfs gc "$to" --undelete-window 0s --yes-delete
  exits 11 bkfs copy "$from" "$to" --all
  says 'volume "first" is not copied' 'copied second:of-second' 'changes that are in no snapshot'
  bkfs dump "$to" --volume second of-second:/file | cmp - "$FILES/small"
  exits 0 bkfs check --read-data "$to"
}

case_of "put stores files and streams whole" put_stores_files_and_streams
case_of "put replaces a path and older snapshots remember it" put_replaces_and_remembers
case_of "a put that fails changes nothing" put_that_fails_changes_nothing
case_of "a put holds its volume and is fenced when it is taken" put_holds_its_volume
case_of "a put that is ended leaves nothing" put_leaves_nothing_when_it_is_ended
case_of "put needs little memory" put_needs_little_memory
case_of "two snapshots to look at" two_snapshots
case_of "dump gives files and archives" dump_gives_the_bytes_back
case_of "dump says what is damaged" dump_says_what_is_damaged
case_of "diff names what differs" diff_names_what_differs
case_of "find finds names" find_finds_names
case_of "ls and restore take names that are not UTF-8" ls_and_restore_take_any_name
case_of "stats add up" stats_add_up
case_of "keys come and go" keys_come_and_go
case_of "crossing removals leave a key" crossing_removals_leave_a_key
case_of "master keys are rotated" master_keys_are_rotated
case_of "keys of strangers cost nothing" keys_of_strangers_cost_nothing
case_of "copy makes the same snapshots" copy_makes_the_same_snapshots
case_of "copy goes on after a kill" copy_goes_on_after_a_kill
case_of "copy goes on with the other volumes" copy_all_goes_on
print_table
