# shellcheck shell=bash
# Programs on a mount ($MNT), for the suite `programs`: use_NAME runs a program, check_NAME checks
# its result.

tool() { "$MACHINE/run" "$@"; }
# metric NAME: prints a metric of the mount.
metric() { jq ".metrics.$1" "$MNT/.bkfs/status"; }
# listing DIRECTORY: everything that stat(2) and listxattr(2) return, except for what differs
# between filesystems.
listing() {
  (cd "$1" && find . -printf '%P %y %m %U %G %n %T@ %l ' \
    \( -type f -printf '%s\n' -o -printf '\n' \) | sort)
  (cd "$1" && getfattr -R -h -d -m - . 2>/dev/null | sort)
}
# diff(1) fails on a fifo, which has no contents, so the comparison leaves it out.
same_contents() {
  diff -r --no-dereference --exclude=fifo "$1" "$2" || wrong "$2 differs from $1 in contents"
}
same_tree() {
  listing "$1" >"$SUITE_TMP/one"
  listing "$2" >"$SUITE_TMP/other"
  diff "$SUITE_TMP/one" "$SUITE_TMP/other" || wrong "$2 differs from $1 in attributes"
  same_contents "$1" "$2"
}

# trees: creates $PLAIN/tree, with one of each kind of file that a backup meets.
trees() {
  local tree=$PLAIN/tree
  mkdir -p "$tree/directory/below" "$tree/empty"
  cp -r "$ROOT/src" "$ROOT/tests" "$tree/"
  head -c 8388608 /dev/urandom >"$tree/large"
  truncate -s 100M "$tree/sparse"
  printf 'data in the middle' | dd of="$tree/sparse" bs=1 seek=50000000 conv=notrunc status=none
  ln "$tree/large" "$tree/directory/linked"
  ln -s ../large "$tree/directory/symbolic"
  ln -s nowhere "$tree/dangling"
  mkfifo "$tree/fifo"
  printf 'odd' >"$tree/directory/odd"$'\n'"name ü"
  setfattr -n user.comment -v 'what it is' "$tree/large"
  setfattr -n trusted.origin -v 'elsewhere' "$tree/directory"
  chown 12:34 "$tree/directory/below"
  chmod 2750 "$tree/directory/below"
  touch -d '1969-12-31 23:59:58.123456789 UTC' "$tree/empty"
  touch -d '2400-01-01 00:00:00.999999999 UTC' "$tree/sparse"
}

# --- git ------------------------------------------------------------------------------------------

git() {
  GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b \
    GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b \
    command git -c safe.directory='*' -c core.fsync=all -c gc.auto=0 "$@"
}
use_git() {
  local here=$MNT/git number
  git init -q "$here/origin"
  cp -r "$PLAIN/tree/src" "$PLAIN/tree/tests" "$here/origin/"
  git -C "$here/origin" add .
  git -C "$here/origin" commit -qm first
  git clone -q "$here/origin" "$here/local"
  git clone -q --no-local "$here/origin" "$here/sent"
  for number in 1 2 3 4 5; do
    echo "$number" >"$here/sent/file-$number"
    git -C "$here/sent" add .
    git -C "$here/sent" commit -qm "number $number"
  done
  git -C "$here/sent" mv src moved
  git -C "$here/sent" commit -qam moved
  git -C "$here/sent" push -q origin HEAD:refs/heads/pushed
  git -C "$here/sent" gc -q --prune=now
  git -C "$here/local" fetch -q
  git -C "$here/local" worktree add -q "$here/tree" origin/pushed
  [ -z "$(git -C "$here/sent" status --porcelain)" ] ||
    wrong "git status shows changes that no command made"
  check_git "$here"
}
check_git() {
  local one
  for one in origin local sent; do git -C "$1/$one" fsck --full --strict --no-progress; done
  [ "$(git -C "$1/sent" log --oneline | wc -l)" = 7 ]
  [ "$(git -C "$1/origin" rev-parse pushed)" = "$(git -C "$1/sent" rev-parse HEAD)" ]
  diff -r "$PLAIN/tree/src" "$1/sent/moved"
  diff -r "$PLAIN/tree/src" "$1/tree/moved"
}

# --- cargo ----------------------------------------------------------------------------------------

use_cargo() {
  local here=$MNT/cargo/small
  (
    unset CARGO_TARGET_DIR RUSTC_WRAPPER
    cargo -q init --vcs none --name small "$here"
    printf 'pub fn answer() -> u32 { 42 }\n#[test] fn answers() { assert_eq!(answer(), 42) }\n' \
      >"$here/src/lib.rs"
    echo 'fn main() { println!("{}", small::answer()) }' >"$here/src/main.rs"
    cd "$here" || exit
    CARGO_TARGET_DIR=$here/target cargo -q test --offline
    CARGO_TARGET_DIR=$here/target cargo -q build --offline
    # The times of the files show that nothing is to be rebuilt.
    CARGO_TARGET_DIR=$here/target cargo build --offline -v 2>&1 | tee "$SUITE_TMP/output"
  )
  says 'Fresh small'
  says_not 'Compiling|Running|Dirty'
  check_cargo "$MNT/cargo"
}
check_cargo() { [ "$("$1/small/target/debug/small")" = 42 ]; }

# Builds this project: hundreds of crates, locks, hard links and renames of cargo and rustc.
use_project() {
  local here=$MNT/project/source
  mkdir "$here"
  git -C "$ROOT" archive HEAD | tar -x -C "$here"
  (
    unset RUSTC_WRAPPER
    export CARGO_TARGET_DIR=$here/target CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
    cd "$here" || exit
    cargo -q build --offline --locked
    cargo build --offline --locked -v 2>&1 | tee "$SUITE_TMP/output"
  )
  says 'Fresh bkfs v'
  says_not 'Compiling|Running|Dirty'
  check_project "$MNT/project"
}
check_project() { "$1/source/target/debug/bkfs" --version; }

# --- SQLite ---------------------------------------------------------------------------------------

SQLITE=$ROOT/tests/posix/sqlite_writer.py
# killed_writing MODE ROWS: kills a writer after it has added this number of rows or slightly more.
killed_writing() {
  local writer before record=$PLAIN/sqlite-$1
  touch "$record"
  before=$(wc -l <"$record")
  python3 "$SQLITE" write "$MNT/sqlite/$1.db" "$1" "$record" &
  writer=$!
  remember_pid $writer
  wait_for 60 rows_beyond $((before + $2)) "$record" || wrong "no rows are written"
  kill -KILL $writer
  wait $writer || true
}
use_sqlite() {
  local mode
  for mode in wal delete; do
    killed_writing "$mode" 50
    python3 "$SQLITE" check "$MNT/sqlite/$mode.db" "$PLAIN/sqlite-$mode"
    # Killed again, and left with its journal.
    killed_writing "$mode" 50
    [ "$mode" != wal ] || [ -s "$MNT/sqlite/wal.db-wal" ] ||
      wrong "the database has no log"
  done
}
rows_beyond() { [ "$(wc -l <"$2")" -gt "$1" ]; }
check_sqlite() {
  local mode
  for mode in wal delete; do
    python3 "$SQLITE" check "$1/$mode.db" "$PLAIN/sqlite-$mode"
    [ "$(sqlite3 "$1/$mode.db" 'PRAGMA integrity_check')" = ok ]
  done
}

# --- rsync, tar, cp -------------------------------------------------------------------------------

# Compares times to the nanosecond: by default rsync treats times within one second as equal, and
# skips the file.
rsync() { command rsync --modify-window=-1 "$@"; }
use_rsync() {
  local here=$MNT/rsync before
  rsync -aHAXS --delete "$PLAIN/tree/" "$here/full/"
  same_tree "$PLAIN/tree" "$here/full"
  exits 0 bkfs snapshot "$MNT" synchronized
  before=$(metric bytes_in)
  [ -z "$(rsync -aHAXSi --delete "$PLAIN/tree/" "$here/full/")" ] ||
    wrong "rsync finds differences where there are none"
  [ "$(jq .dirty_files "$MNT/.bkfs/status")" = 0 ] && [ "$(metric bytes_in)" = "$before" ] ||
    wrong "nothing has changed, and something is uploaded"
  # A block of a large file changes in place; one name goes, one is new.
  cp -a "$PLAIN/tree" "$PLAIN/changed"
  head -c 4096 /dev/urandom |
    dd of="$PLAIN/changed/large" bs=4096 seek=1000 conv=notrunc status=none
  rm -r "$PLAIN/changed/empty"
  echo new >"$PLAIN/changed/new"
  before=$(metric bytes_new)
  rsync -aHAX --inplace --no-whole-file --delete "$PLAIN/changed/" "$here/full/"
  same_tree "$PLAIN/changed" "$here/full"
  exits 0 bkfs snapshot "$MNT" in-place
  echo "in place: $(($(metric bytes_new) - before)) new bytes"
  [ $(($(metric bytes_new) - before)) -lt 1048576 ] ||
    wrong "a changed block of 4 KiB has cost $(($(metric bytes_new) - before)) bytes"
  rsync -aHAX --link-dest="$here/full" "$PLAIN/tree/" "$here/next/"
  [ "$(stat -c %i "$here/full/tests/run")" = "$(stat -c %i "$here/next/tests/run")" ] ||
    wrong "--link-dest has linked nothing"
  [ "$(stat -c %h "$here/next/tests/run")" = 2 ]
}
check_rsync() {
  same_contents "$PLAIN/changed" "$1/full"
  same_contents "$PLAIN/tree" "$1/next"
}

use_tar() {
  local here=$MNT/tar
  tar -C "$PLAIN/tree" --xattrs --xattrs-include='*' -cSf "$here/archive.tar" .
  [ "$(stat -c %s "$here/archive.tar")" -lt 20000000 ] || wrong "holes were archived"
  mkdir "$here/unpacked"
  tar -C "$here/unpacked" --xattrs --xattrs-include='*' --numeric-owner -xSf "$here/archive.tar"
  same_tree "$PLAIN/tree" "$here/unpacked"
  tar -C "$here/unpacked" --xattrs --xattrs-include='*' --compare -f "$here/archive.tar"
  # tar finds holes on the mount, too.
  tar -C "$here/unpacked" --hole-detection=seek -cSf "$PLAIN/again.tar" sparse
  [ "$(stat -c %s "$PLAIN/again.tar")" -lt 1000000 ] ||
    wrong "holes are not seen: $(stat -c %s "$PLAIN/again.tar") bytes"
}
check_tar() {
  same_tree "$PLAIN/tree" "$1/unpacked"
  tar -C "$1/unpacked" --xattrs --xattrs-include='*' --compare -f "$1/archive.tar"
}

use_cp() {
  local here=$MNT/cp before
  cp -a "$PLAIN/tree" "$here/archived"
  same_tree "$PLAIN/tree" "$here/archived"
  exits 0 bkfs snapshot "$MNT" copied-in
  before=$(metric bytes_in)
  cp --reflink=auto "$here/archived/large" "$here/shared"
  [ $(($(metric bytes_in) - before)) -lt 65536 ] ||
    wrong "a copy within the mount has moved $(($(metric bytes_in) - before)) bytes"
  cp --sparse=always "$here/archived/sparse" "$here/always"
  cp --sparse=auto "$here/archived/sparse" "$here/auto"
  cp --sparse=never "$here/archived/sparse" "$here/never"
  cp -al "$here/archived" "$here/hard-links"
  [ "$(stat -c %h "$here/hard-links/large")" = 4 ] ||
    wrong "$(stat -c %h "$here/hard-links/large") links"
  [ "$(du -k "$here/always" | cut -f1)" -lt 1024 ] ||
    wrong "a sparse copy counts for $(du -k "$here/always" | cut -f1) KiB"
  check_cp "$here"
}
check_cp() {
  local kind
  cmp "$PLAIN/tree/large" "$1/shared"
  for kind in always auto never; do cmp "$PLAIN/tree/sparse" "$1/$kind"; done
  same_contents "$PLAIN/tree" "$1/archived"
}

# --- logrotate ------------------------------------------------------------------------------------

use_logrotate() {
  local here=$MNT/logrotate log
  log=$here/log
  printf '%s {\n  copytruncate\n  rotate 3\n  missingok\n}\n' "$log" >"$PLAIN/logrotate.conf"
  exec 3>>"$log"
  seq 1 5000 >&3
  tool logrotate -f -s "$PLAIN/logrotate.state" "$PLAIN/logrotate.conf"
  # The writer continues at the new end of the file.
  seq 5001 6000 >&3
  tool logrotate -f -s "$PLAIN/logrotate.state" "$PLAIN/logrotate.conf"
  seq 6001 6010 >&3
  exec 3>&-
  check_logrotate "$here"
}
check_logrotate() {
  cat "$1/log.2" "$1/log.1" "$1/log" | diff - <(seq 1 6010) >/dev/null || wrong "lines are lost"
  [ "$(wc -l <"$1/log")" = 10 ]
}

# --- backup tools whose repository is on the mount ------------------------------------------------

use_restic() {
  export RESTIC_PASSWORD=secret RESTIC_REPOSITORY=$MNT/restic/repository
  cp -r "$PLAIN/tree/src" "$PLAIN/source"
  tool restic -q init
  tool restic -q backup "$PLAIN/source"
  echo more >"$PLAIN/source/more"
  tool restic -q backup "$PLAIN/source"
  rm "$PLAIN/source/more"
  tool restic -q backup "$PLAIN/source"
  tool restic -q forget --keep-last 1 --prune
  check_restic "$MNT/restic"
}
check_restic() {
  export RESTIC_PASSWORD=secret RESTIC_REPOSITORY=$1/repository
  tool restic -q check --read-data
  rm -rf "$PLAIN/restored"
  tool restic -q restore latest --target "$PLAIN/restored"
  diff -r "$PLAIN/source" "$PLAIN/restored$PLAIN/source"
}
use_borg() {
  export BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes BORG_RELOCATED_REPO_ACCESS_IS_OK=yes
  tool borg init -e none "$MNT/borg/repository"
  (cd "$PLAIN/tree" && tool borg create "$MNT/borg/repository::first" src tests)
  (cd "$PLAIN/tree" && tool borg create "$MNT/borg/repository::second" src)
  tool borg delete "$MNT/borg/repository::first"
  tool borg compact "$MNT/borg/repository"
  check_borg "$MNT/borg"
}
check_borg() {
  export BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes BORG_RELOCATED_REPO_ACCESS_IS_OK=yes
  tool borg check --verify-data "$1/repository"
  rm -rf "$PLAIN/extracted"
  mkdir "$PLAIN/extracted"
  (cd "$PLAIN/extracted" && tool borg extract "$1/repository::second")
  diff -r "$PLAIN/tree/src" "$PLAIN/extracted/src"
}

# --- the repository of Elasticsearch, by a program that makes the same calls ----------------------

elasticsearch() { tool python3 "$ROOT/tests/lib/elasticsearch.py" "$@"; }
use_elasticsearch() {
  local here=$MNT/elasticsearch record=$PLAIN/elasticsearch hold=$PLAIN/hold number writer
  elasticsearch verify "$here" "$record"
  elasticsearch analyze "$here" "$record"
  for number in 1 2 3; do elasticsearch snapshot "$here" "$record" "night-$number"; done
  cp "$record" "$record-before"
  exits 0 bkfs snapshot "$MNT" elasticsearch-before
  # Only the list of snapshots is missing when this one is made.
  elasticsearch snapshot "$here" "$record" night-4 "$hold" &
  writer=$!
  wait_for 60 test -e "$hold" || wrong "the snapshot did not come to its list"
  exits 0 bkfs snapshot "$MNT" elasticsearch-amid
  rm "$hold"
  wait "$writer"
  elasticsearch delete "$here" "$record" night-1
  elasticsearch delete "$here" "$record" night-2
  check_elasticsearch "$here"
}
check_elasticsearch() {
  local snapshots=$MNT/.snapshots record=$PLAIN/elasticsearch
  exits 0 elasticsearch check "$1" "$record"
  says 'generation 5: 2 snapshots'
  exits 0 elasticsearch check "$snapshots/elasticsearch-before/elasticsearch" "$record-before"
  says 'generation 2: 3 snapshots'
  exits 0 elasticsearch restore "$snapshots/elasticsearch-amid/elasticsearch"
  says 'generation 2: 3 snapshots'
}
