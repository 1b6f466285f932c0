#!/usr/bin/env bash
# about: restore: many links with few descriptors, --overwrite that keeps what it cannot replace,
# about: exit codes when no process reads the results
# needs: program
# limit: 240
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

machine one
URL=$SUITE_TMP/bucket MOUNT=$SUITE_TMP/mount TARGET=$SUITE_TMP/target
LINKED=600
mkdir "$MOUNT"
init_local "$URL" >/dev/null || die "cannot create the repository"
at_end leave_mount "$MOUNT"

fill() {
  mount_at "$URL" "$MOUNT"
  (cd "$MOUNT" && mkdir -p near far && cd near && seq "$LINKED" | xargs mkdir)
  local number
  for number in $(seq "$LINKED"); do
    echo "$number" >"$MOUNT/near/$number/file"
    ln "$MOUNT/near/$number/file" "$MOUNT/far/$number"
  done
  head -c 3000000 /dev/urandom >"$MOUNT/big"
  ln "$MOUNT/big" "$MOUNT/big-too"
  ln -s big "$MOUNT/link"
  truncate -s 1T "$MOUNT/sparse"
  mkfifo -m 640 "$MOUNT/fifo"
  touch -d '2020-02-29 12:34:56' "$MOUNT/big"
  cp "$MOUNT/big" "$SUITE_TMP/big"
  exits 0 bkfs umount "$MOUNT"
}

# More directories with the first of several names than the process may have descriptors.
many_links_need_few_descriptors() {
  # The volume has no snapshot yet.
  mount_at "$URL" "$MOUNT"
  exits 0 bkfs snapshot "$MOUNT" whole
  exits 0 bkfs umount "$MOUNT"
  exits 0 prlimit --nofile=400:400 "$MACHINE/run" "$BKFS_BIN" restore "$URL" whole "$TARGET"
  local number
  for number in 1 17 "$LINKED"; do
    [ "$TARGET/near/$number/file" -ef "$TARGET/far/$number" ] || wrong "$number is not linked"
  done
  [ "$(stat -c %s "$TARGET/sparse")" = $((1 << 40)) ] || wrong "holes are lost"
  [ "$(find "$TARGET" -type f -links 2 | wc -l)" = $((2 * LINKED + 2)) ] ||
    wrong "not all are linked"
}

# shape: a hash of the restored tree, without the contents.
shape() { (cd "$TARGET" && find . -printf '%p %y %m %n %l %TY\n' | sort | sha256sum); }

overwriting_gives_the_same() {
  local before
  before=$(shape)
  rm "$TARGET/link" "$TARGET/far/3"
  echo other >"$TARGET/link"
  mkdir "$TARGET/far/3"
  echo other >"$TARGET/big-too.new"
  mv "$TARGET/big-too.new" "$TARGET/big-too"
  exits 0 bkfs restore "$URL" whole "$TARGET" --overwrite
  [ "$(shape)" = "$before" ] || wrong "restoring over it gives another tree"
  [ "$TARGET/big" -ef "$TARGET/big-too" ] || wrong "not linked"
  cmp "$TARGET/big" "$SUITE_TMP/big"
}

# A damaged repository must not replace the good copy.
overwriting_keeps_what_it_cannot_replace() {
  local pack
  cp -a "$URL" "$SUITE_TMP/damaged"
  pack=$(find "$SUITE_TMP/damaged/data" -type f -printf '%s %p\n' |
    sort -n | tail -n 1 | cut -d' ' -f2)
  dd if=/dev/zero of="$pack" bs=1 seek=100000 count=64 conv=notrunc status=none
  machine two
  exits 13 bkfs restore "$SUITE_TMP/damaged" whole "$TARGET" --overwrite
  says 'not restored: .*/big: ' 'not restored: .*/big-too: '
  cmp "$TARGET/big" "$SUITE_TMP/big"
  cmp "$TARGET/big-too" "$SUITE_TMP/big"
  [ -z "$(find "$TARGET" -name '.bkfs*')" ] || wrong "drafts stay behind"
  exits 13 bkfs restore "$SUITE_TMP/damaged" whole "$SUITE_TMP/afresh"
  [ "$(stat -c %y "$SUITE_TMP/afresh/big" | cut -c1-4)" != 2020 ] ||
    wrong "a file that is not whole has the time of the one that was stored"
}

# unread ARGS…: runs the program with a standard output that no process reads.
unread() {
  perl -e 'pipe(R, W); close R; open STDOUT, ">&", \*W; exec @ARGV' "$MACHINE/run" "$BKFS_BIN" "$@"
}

exit_codes_do_not_depend_on_a_reader() {
  machine three # with nothing in its cache
  exits 13 unread check --read-data "$SUITE_TMP/damaged"
  exits 13 unread check --read-data --json "$SUITE_TMP/damaged"
  exits 13 unread restore --json "$SUITE_TMP/damaged" whole "$SUITE_TMP/afresh-too"
  exits 1 unread restore --json "$URL" absent "$SUITE_TMP/absent"
  exits 0 unread ls -R "$URL" whole
  exits 0 unread ls -R --json "$URL" whole
}

case_of "a tree with links, a fifo and a large file" fill
case_of "$LINKED links between directories, with 400 descriptors" many_links_need_few_descriptors
case_of "restoring over what is there gives the same tree" overwriting_gives_the_same
case_of "restoring from a damaged repository keeps the good copies" \
  overwriting_keeps_what_it_cannot_replace
case_of "damage and failures are told to scripts that do not read" \
  exit_codes_do_not_depend_on_a_reader
