#!/usr/bin/env bash
# about: damage to objects of every class: bkfs check finds and names it, restore gives the right bytes or an error
# needs: program
# limit: 900 1800
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

# A hundred seeded cases, five hundred with --full, and those that every run has.
cargo_cases "cases" test --release -p bkfs-tests --test damage

machine one
FROZEN=$ROOT/tests/golden/repository PLAIN=$SUITE_TMP/plain SEALED=$SUITE_TMP/sealed
cp -a "$FROZEN/plain" "$PLAIN"
cp -a "$FROZEN/sealed" "$SEALED"
(umask 077; echo 'the password of a frozen repository' >"$SUITE_TMP/password")

# flip FILE BYTE: one byte becomes another.
flip() {
  local byte
  byte=$(dd if="$1" bs=1 skip="$2" count=1 status=none | od -An -tu1)
  printf '%b' "\\x$(printf '%02x' $(((byte + 1) % 256)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
largest() { find "$1" -type f -printf '%s %p\n' | sort -n | tail -n 1 | cut -d' ' -f2; }
# state DIRECTORY: names, times and contents of everything in it.
state() { (cd "$1" && find . -type f -printf '%p %T@ ' -exec sha256sum {} \; | sort | sha256sum); }

clean_repositories_are_clean() {
  local before
  before=$(state "$PLAIN")
  exits 0 bkfs check "$PLAIN"
  says 'no damage'
  exits 0 bkfs check "$PLAIN" --read-data
  exits 0 bkfs check "$SEALED" --read-data --password-file "$SUITE_TMP/password"
  says 'no damage'
  exits 0 bkfs check "$PLAIN" --read-data=50% --seed 7 --json
  [ "$(jq -r '.clean, .seed' "$SUITE_TMP/output" | tr '\n' ' ')" = 'true 7 ' ] || wrong "not clean, or another seed"
  [ "$(state "$PLAIN")" = "$before" ] || wrong "a check changed the bucket"
}
a_flipped_bit_is_named_with_the_files_it_spoils() {
  local object
  cp -a "$PLAIN" "$SUITE_TMP/flipped"
  object=$(largest "$SUITE_TMP/flipped/data")
  flip "$object" 2000
  exits 13 bkfs check "$SUITE_TMP/flipped" --read-data
  clear_message
  says "data/../$(basename "$object"): damaged: frame" 'touches main/frozen' 'lost: main[^ ]*:/'
  exits 13 bkfs check "$SUITE_TMP/flipped" --read-data --json
  [ "$(head -n 1 "$SUITE_TMP/output" | jq -r '.clean, (.problems | length)' | tr '\n' ' ')" = 'false 1 ' ] || wrong "JSON says otherwise"
  exits 13 bkfs restore "$SUITE_TMP/flipped" frozen "$SUITE_TMP/restored-flipped"
  clear_message
}
a_lost_root_is_named() {
  cp -a "$PLAIN" "$SUITE_TMP/rootless"
  rm "$SUITE_TMP/rootless/root"
  exits 13 bkfs check "$SUITE_TMP/rootless"
  says 'root: missing'
  clear_message
}
a_lost_root_is_rebuilt() {
  machine rebuilder # the new root is newer than that of every other copy, and remembered
  exits 0 bkfs restore "$PLAIN" frozen "$SUITE_TMP/expected"
  exits 0 bkfs check "$SUITE_TMP/rootless" --repair
  says 'repair: write a new root' 'no damage'
  exits 0 bkfs restore "$SUITE_TMP/rootless" frozen "$SUITE_TMP/rebuilt"
  diff -r --no-dereference "$SUITE_TMP/expected" "$SUITE_TMP/rebuilt"
}
damage_is_quarantined_once() {
  machine quarantiner
  exits 13 bkfs check "$SUITE_TMP/flipped" --read-data --repair
  says 'repair: put 1 damaged places in quarantine' 'touches main/frozen'
  exits 13 bkfs check "$SUITE_TMP/flipped" --read-data --repair
  says_not 'repair:'
}
an_older_root_is_refused_by_whoever_saw_a_newer_one() {
  local bucket=$SUITE_TMP/older mountpoint=$SUITE_TMP/older-mount generation
  mkdir -p "$mountpoint"
  init_local "$bucket"
  mount_at "$bucket" "$mountpoint"
  echo one >"$mountpoint/file"
  exits 0 bkfs snapshot "$mountpoint" one
  cp "$bucket/root" "$SUITE_TMP/older-root"
  echo two >"$mountpoint/file"
  exits 0 bkfs snapshot "$mountpoint" two
  generation=$(grep -o 'generation [0-9]*' "$SUITE_TMP/output" | cut -d' ' -f2)
  exits 0 bkfs umount "$mountpoint"
  exits 0 bkfs check "$bucket" --min-generation "$generation"
  cp "$SUITE_TMP/older-root" "$bucket/root"
  exits 13 bkfs check "$bucket"
  says 'root: rolled-back' 'rolled back'
  exits 13 bkfs snapshots "$bucket"
  exits 13 bkfs restore "$bucket" one "$SUITE_TMP/restored-older"
  exits 13 mount_at "$bucket" "$mountpoint"
  says 'rolled back'
  machine two # which has never seen the newer one, and must be told
  exits 0 bkfs check "$bucket"
  exits 13 bkfs check "$bucket" --min-generation "$generation"
  exits 13 bkfs restore "$bucket" one "$SUITE_TMP/restored-older" --min-generation "$generation"
  exits 13 mount_at "$bucket" "$mountpoint" --min-generation "$generation"
  says 'generation'
  not_mounted "$mountpoint"
}
a_mount_is_checked_while_it_is_written() {
  local bucket=$SUITE_TMP/busy mountpoint=$SUITE_TMP/busy-mount
  machine three
  mkdir -p "$mountpoint"
  init_local "$bucket"
  mount_at "$bucket" "$mountpoint"
  head -c 20000000 /dev/urandom >"$mountpoint/one"
  exits 0 bkfs snapshot "$mountpoint" one
  head -c 20000000 /dev/urandom >"$mountpoint/two" &
  exits 0 bkfs check "$mountpoint" --read-data
  wait
  exits 0 bkfs umount "$mountpoint"
  exits 0 bkfs check "$bucket" --read-data
}

at_end "leave_mount '$SUITE_TMP/older-mount'"
at_end "leave_mount '$SUITE_TMP/busy-mount'"
case_of "clean repositories are clean, and a check writes nothing" clean_repositories_are_clean
case_of "a flipped bit is named with the files that it spoils" a_flipped_bit_is_named_with_the_files_it_spoils
case_of "a lost root is named" a_lost_root_is_named
case_of "a lost root is rebuilt from commit records" a_lost_root_is_rebuilt
case_of "damage is put in quarantine once" damage_is_quarantined_once
case_of "an older root is refused by whoever saw a newer one" an_older_root_is_refused_by_whoever_saw_a_newer_one
case_of "a mount is checked while it is written" a_mount_is_checked_while_it_is_written
exit 0
