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

# set_xattr FILE NAME HEX
set_xattr() {
  python3 -c 'import os, sys; os.setxattr(sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3]))' "$@"
}
xattrs() { python3 -c 'import os, sys; print(*sorted(os.listxattr(sys.argv[1])))' "$1"; }

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
  echo tool >"$MOUNT/near/11/file"
  set_xattr "$MOUNT/near/11/file" security.capability 0100000200040000000000000000000000000000
  chown 1234:1234 "$MOUNT/near/2/file"
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

# names DIR: the names below it, in order.
names() { (cd "$1" && find . -mindepth 1 -printf '%P\n' | sort | xargs); }

# told KEY: the number that the last answer has under a key.
told() { grep -o "\"$1\":[0-9]*" "$SUITE_TMP/output" | head -n 1 | cut -d: -f2; }

patterns_choose_what_is_restored() {
  local some=$SUITE_TMP/some
  exits 0 bkfs restore "$URL" whole "$some" --include /near/7 --include link
  [ "$(names "$some")" = "link near near/7 near/7/file" ] || wrong "$(names "$some")"
  [ "$(stat -c %Y "$some/near/7")" = "$(stat -c %Y "$TARGET/near/7")" ] || wrong "other times"
  rm -r "$some"
  exits 0 bkfs restore "$URL" whole://near// "$some" --include '/near/5?' --exclude '*5'
  [ "$(names "$some" | wc -w)" = 18 ] || wrong "$(names "$some")"
  rm -r "$some"
  # The first name of each file is left out, so the other one is made of its contents.
  exits 0 bkfs restore "$URL" whole "$some" --exclude near/ --exclude 'b*' --exclude sparse
  [ ! -e "$some/near" ] && [ ! -e "$some/big" ] || wrong "excluded, and there"
  [ "$(cat "$some/far/17")" = 17 ] || wrong "not what the file holds"
  exits 1 bkfs restore "$URL" whole "$SUITE_TMP/nothing" --include no-such-name
  says 'no name matches --include'
  [ ! -e "$SUITE_TMP/nothing" ] || wrong "the target was made"
  exits 2 bkfs restore "$URL" whole:/big "$SUITE_TMP/nothing" --include big
  says 'is no directory'
}

a_rehearsal_changes_nothing() {
  exits 0 bkfs restore "$URL" whole "$SUITE_TMP/rehearsed" --dry-run
  says 'would restore'
  [ ! -e "$SUITE_TMP/rehearsed" ] || wrong "the target was made"
  exits 1 bkfs restore "$URL" whole "$TARGET" -n
  says 'not empty' 'overwrite=if-changed'
  local before
  before=$(shape)
  exits 0 bkfs restore "$URL" whole "$TARGET" -n --overwrite=if-changed
  says "that are there already stay"
  [ "$(shape)" = "$before" ] || wrong "something was changed"
}

# What an interrupted restore has made is not read again, and what is not whole is.
an_interrupted_restore_goes_on() {
  local before kept whole
  before=$(shape) kept=$(stat -c %i "$TARGET/big")
  rm "$TARGET/near/5/file" "$TARGET/far/5" "$TARGET/link"
  rm -r "$TARGET/near/6"
  echo half >"$TARGET/far/.bkfs-restore-0011223344556677-3"
  echo 8 >"$TARGET/near/8/file"
  chmod 600 "$TARGET/near/9/file"
  touch "$TARGET/near" # it has no time yet
  exits 0 bkfs restore "$URL" whole "$TARGET" --overwrite=if-changed --json -q
  whole=$(told kept)
  [ "$whole" -gt "$LINKED" ] || wrong "only $whole were kept"
  [ "$(told bytes)" -lt 1000 ] || wrong "all was read again"
  [ "$(shape)" = "$before" ] || wrong "another tree"
  [ "$(stat -c %i "$TARGET/big")" = "$kept" ] || wrong "a file that is right was replaced"
  [ "$TARGET/near/8/file" -ef "$TARGET/far/8" ] || wrong "not linked"
  [ -z "$(find "$TARGET" -name '.bkfs*')" ] || wrong "drafts stay behind"
}

# A default list that gives user 1234 everything.
LIST=0200000001000700ffffffff02000700d204000004000000ffffffff10000700ffffffff20000000ffffffff

what_exists_can_stay() {
  local own=$SUITE_TMP/own
  mkdir -p "$own/far"
  chmod 700 "$own/far"
  set_xattr "$own/far" system.posix_acl_default "$LIST"
  echo mine >"$own/big"
  echo mine >"$own/far/4"
  exits 0 bkfs restore "$URL" whole "$own" --overwrite=never
  [ "$(cat "$own/big")" = mine ] && [ "$(cat "$own/far/4")" = mine ] || wrong "replaced"
  cmp "$own/big-too" "$SUITE_TMP/big"
  [ "$(cat "$own/near/4/file")" = 4 ] || wrong "not what the file holds"
  [ "$(stat -c %a "$own/far") $(xattrs "$own/far")" = "700 system.posix_acl_default" ] ||
    wrong "a directory that is there was changed"
  [ "$(stat -c %a "$own/near")" = "$(stat -c %a "$TARGET/near")" ] || wrong "a new one was not"
}

# A directory that no pattern names stays as it is if it is there, and has its attributes if not.
directories_that_only_lead_there_stay() {
  local led=$SUITE_TMP/led
  mkdir -p "$led/near"
  chmod 711 "$led" "$led/near"
  exits 0 bkfs restore "$URL" whole "$led" --overwrite --include /near/7 --include /far/7
  [ "$(stat -c %a "$led" "$led/near" | xargs)" = "711 711" ] || wrong "they were changed"
  [ "$(stat -c %Y "$led/near/7" "$led/far")" = "$(stat -c %Y "$TARGET/near/7" "$TARGET/far")" ] ||
    wrong "others have no times"
}

# The owner of the target's directory has put a program there that the snapshot gives privileges to.
privileges_go_to_restored_contents_only() {
  local file=$TARGET/near/11/file
  echo evil >"$SUITE_TMP/evil"
  touch -r "$file" "$SUITE_TMP/evil"
  mv "$SUITE_TMP/evil" "$file"
  exits 0 bkfs restore "$URL" whole "$TARGET" --overwrite=if-changed
  [ "$(cat "$file") $(xattrs "$file")" = "tool security.capability" ] || wrong "$(xattrs "$file")"
}

drafts_of_a_single_file_are_removed() {
  echo half >"$SUITE_TMP/.bkfs-restore-0011223344556677-3"
  exits 0 bkfs restore "$URL" whole:/big "$SUITE_TMP/single"
  cmp "$SUITE_TMP/single" "$SUITE_TMP/big"
  [ ! -e "$SUITE_TMP/.bkfs-restore-0011223344556677-3" ] || wrong "the draft stays behind"
}

# A user whose directory it is gives the name of a file to a foreign one of the same size and time.
a_foreign_file_under_a_name_gets_nothing() {
  local foreign=$SUITE_TMP/foreign before
  echo xy >"$foreign"
  chmod 600 "$foreign"
  touch -r "$TARGET/near/10/file" "$foreign"
  ln -f "$foreign" "$TARGET/near/10/file"
  chown 77:77 "$foreign"
  before=$(stat -c '%u %g %a' "$foreign")
  exits 0 bkfs restore "$URL" whole "$TARGET" --overwrite=if-changed
  [ "$(stat -c '%u %g %a' "$foreign")" = "$before" ] || wrong "it was changed"
  [ "$(cat "$TARGET/near/10/file")" = 10 ] || wrong "not what the file holds"
}

owners_can_be_left_out() {
  [ "$(stat -c %u:%g "$TARGET/near/2/file")" = 1234:1234 ] || wrong "the owner is not restored"
  exits 0 bkfs restore "$URL" whole:/near/2 "$SUITE_TMP/owned" --no-owner
  [ "$(stat -c %u:%g "$SUITE_TMP/owned/file")" = 0:0 ] || wrong "the owner is restored"
}

many_problems_are_counted() {
  local blocked=$SUITE_TMP/blocked number
  for number in $(seq 12); do
    mkdir -p "$blocked/far/$number/in-the-way"
  done
  exits 3 bkfs restore "$URL" whole:/far "$blocked/far" --overwrite
  says 'not restored: 2 more' '12 inodes could not be restored'
  [ "$(grep -c 'bkfs: not restored: .*/far/' "$SUITE_TMP/output")" = 10 ] ||
    wrong "not ten of them are shown"
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
case_of "patterns choose what is restored" patterns_choose_what_is_restored
case_of "a rehearsal says what would be restored, and changes nothing" a_rehearsal_changes_nothing
case_of "an interrupted restore goes on where it was" an_interrupted_restore_goes_on
case_of "what exists can stay" what_exists_can_stay
case_of "directories that only lead to what is restored stay as they are" \
  directories_that_only_lead_there_stay
case_of "privileges go to contents of the snapshot only" privileges_go_to_restored_contents_only
case_of "a draft that a restore of one file has left is removed" \
  drafts_of_a_single_file_are_removed
case_of "a foreign file under a name of the snapshot gets nothing" \
  a_foreign_file_under_a_name_gets_nothing
case_of "owners can be left out" owners_can_be_left_out
case_of "of many problems ten are shown" many_problems_are_counted
case_of "restoring from a damaged repository keeps the good copies" \
  overwriting_keeps_what_it_cannot_replace
case_of "damage and failures are told to scripts that do not read" \
  exit_codes_do_not_depend_on_a_reader
