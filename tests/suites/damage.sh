#!/usr/bin/env bash
# about: damage to objects of every class: bkfs check finds and names it, restore gives the right
# about: bytes or an error, a copy brings it back
# needs: program
# limit: 900 1800
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

# 100 seeded cases, 500 with --full, and those of every run.
mapfile -t options < <(plainly)
cargo_cases "cases" "${options[@]}" test --release --workspace --test damage

machine one
FROZEN=$ROOT/tests/golden/repository PLAIN=$SUITE_TMP/plain SEALED=$SUITE_TMP/sealed
cp -a "$FROZEN/plain" "$PLAIN"
cp -a "$FROZEN/sealed" "$SEALED"
(umask 077; echo 'the password of a frozen repository' >"$SUITE_TMP/password")

# flip FILE OFFSET: changes the byte at this offset.
flip() {
  local byte
  byte=$(dd if="$1" bs=1 skip="$2" count=1 status=none | od -An -tu1)
  printf '%b' "\\x$(printf '%02x' $(((byte + 1) % 256)))" |
    dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
largest() { find "$1" -type f -printf '%s %p\n' | sort -n | tail -n 1 | cut -d' ' -f2; }
# state DIRECTORY: a hash of the names, times and contents of all its files.
state() { (cd "$1" && find . -type f -printf '%p %T@ ' -exec sha256sum {} \; | sort | sha256sum); }

clean_repositories_are_clean() {
  local before
  before=$(state "$PLAIN")
  exits 0 bkfs check "$PLAIN"
  says 'no damage'
  exits 0 bkfs check "$PLAIN" --read-data
  exits 0 bkfs check "$SEALED" --read-data --password-file "$SUITE_TMP/password"
  says 'no damage'
  exits 0 bkfs check "$PLAIN" --read-data=50% --seed 7 --json -q
  [ "$(jq -r '.clean, .seed' "$SUITE_TMP/output" | tr '\n' ' ')" = 'true 7 ' ] ||
    wrong "not clean, or another seed"
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
  exits 13 bkfs check "$SUITE_TMP/flipped" --read-data --json -q
  head -n 1 "$SUITE_TMP/output" | jq -e '(.clean | not) and (.problems | length == 1)' ||
    wrong "JSON says otherwise"
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
  machine rebuilder # it remembers the new root, which is newer than that of every other copy
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
an_older_root_is_refused_after_a_newer_one() {
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
  # A machine that has no memory of the repository commits past the newest generation. The first
  # machine detects that.
  machine fooled
  for _ in 1 2 3 4 5 6; do exits 0 bkfs gc "$bucket"; done
  machine one
  exits 13 bkfs snapshots "$bucket"
  says 'does not descend' 'accept-rollback'
  exits 13 bkfs check "$bucket"
  says 'root: rolled-back' 'does not descend'
  exits 0 bkfs --accept-rollback snapshots "$bucket"
  exits 0 bkfs check "$bucket"
  cp "$SUITE_TMP/older-root" "$bucket/root"
  machine two # it has never seen the newer root, and learns of it from --min-generation
  exits 0 bkfs check "$bucket"
  exits 13 bkfs check "$bucket" --min-generation "$generation"
  exits 13 bkfs restore "$bucket" one "$SUITE_TMP/restored-older" --min-generation "$generation"
  exits 13 mount_at "$bucket" "$mountpoint" --min-generation "$generation"
  says 'generation'
  not_mounted "$mountpoint"
}
# The repair that docs/check.md describes for a store whose conditional writes are not atomic: a second
# machine has replaced the root and so dropped the commits of the first.
a_race_of_roots_is_repaired() {
  local bucket=$SUITE_TMP/raced mountpoint=$SUITE_TMP/raced-mount
  machine raced-one
  mkdir -p "$mountpoint"
  init_local "$bucket"
  mount_at "$bucket" "$mountpoint"
  echo one >"$mountpoint/file"
  exits 0 bkfs snapshot "$mountpoint" one
  exits 0 bkfs umount "$mountpoint"
  cp "$bucket/root" "$SUITE_TMP/raced-root"
  mount_at "$bucket" "$mountpoint"
  echo two >"$mountpoint/file"
  exits 0 bkfs snapshot "$mountpoint" two
  exits 0 bkfs umount "$mountpoint"
  cp "$SUITE_TMP/raced-root" "$bucket/root"
  machine raced-two
  exits 0 mount_at "$bucket" "$mountpoint" -o volume=other,create
  echo three >"$mountpoint/file"
  exits 0 bkfs snapshot "$mountpoint" three
  exits 0 bkfs umount "$mountpoint"
  exits 0 bkfs check "$bucket"
  says 'commits are in no root' 'of volume "main"' 'docs/check.md'
  machine raced-one
  exits 13 bkfs snapshots "$bucket"
  says 'not atomic'
  rm "$bucket/root"
  exits 0 bkfs check --repair "$bucket"
  # The other machine needs --accept-rollback once.
  machine raced-two
  exits 13 bkfs snapshots "$bucket"
  says 'accept-rollback'
  exits 0 bkfs --accept-rollback snapshots "$bucket"
  exits 0 bkfs check --read-data "$bucket"
  says 'no damage'
  [ "$(bkfs dump "$bucket" one:/file)" = one ] || wrong "one: $(bkfs dump "$bucket" one:/file)"
  [ "$(bkfs dump "$bucket" two:/file)" = two ] || wrong "what was lost did not come back"
  [ "$(bkfs dump "$bucket" --volume other three:/file)" = three ] ||
    wrong "what had replaced it is lost"
  exits 0 mount_at "$bucket" "$mountpoint"
  [ "$(cat "$mountpoint/file")" = two ] || wrong "the volume is at '$(cat "$mountpoint/file")'"
  exits 0 bkfs umount "$mountpoint"
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

# same_as_before BUCKET: both snapshots restore to their original contents.
same_as_before() {
  local name
  for name in one two; do
    rm -rf "$SUITE_TMP/healed"
    exits 0 bkfs restore "$1" "$name" "$SUITE_TMP/healed"
    diff -r --no-dereference "$SUITE_TMP/whole-$name" "$SUITE_TMP/healed"
  done
}
# repaired_from BUCKET COPY: brings back everything that a snapshot needs. A garbage collection then
# removes what a commit between the snapshots has left.
repaired_from() {
  bkfs check "$1" --repair --read-data --json \
    --from "$2" --from-password-file "$SUITE_TMP/password" >"$SUITE_TMP/json" || [ $? = 13 ]
  [ "$(head -n 1 "$SUITE_TMP/json" | jq '.brought_back.blobs > 0')" = true ] ||
    wrong "nothing came back: $(cat "$SUITE_TMP/json")"
  head -n 1 "$SUITE_TMP/json" | jq -e '[.problems[] | (.snapshots + .files)[]] | length == 0' ||
    wrong "something needed is still lost: $(cat "$SUITE_TMP/json")"
  same_as_before "$1"
  exits 0 bkfs gc "$1" --undelete-window 0s
}
packs() { find "$1/data" "$1/meta" -type f | sort; }
a_copy_brings_back_what_is_lost() {
  local bucket=$SUITE_TMP/heal copy=$SUITE_TMP/heal-copy other=$SUITE_TMP/heal-other \
    mountpoint=$SUITE_TMP/heal-mount before name
  machine healer
  mkdir -p "$mountpoint"
  init_local "$bucket"
  mount_at "$bucket" "$mountpoint"
  mkdir "$mountpoint/many"
  for name in $(seq 300); do echo "file $name" >"$mountpoint/many/$name"; done
  head -c 20000000 /dev/urandom >"$mountpoint/large"
  exits 0 bkfs snapshot "$mountpoint" one
  head -c 3000000 /dev/urandom | dd of="$mountpoint/large" bs=1M seek=4 conv=notrunc status=none
  exits 0 bkfs snapshot "$mountpoint" two
  exits 0 bkfs umount "$mountpoint"
  for name in one two; do exits 0 bkfs restore "$bucket" "$name" "$SUITE_TMP/whole-$name"; done
  exits 0 bkfs init "$copy" --password-file "$SUITE_TMP/password"
  exits 0 bkfs copy "$bucket" "$copy" --password-file "$SUITE_TMP/password"
  cp -a "$bucket" "$SUITE_TMP/heal-first"
  # Damages one byte in the middle of every data pack.
  while read -r name; do
    flip "$name" $(($(stat -c %s "$name") / 2))
  done < <(packs "$bucket" | grep /data/)
  exits 13 bkfs check "$bucket" --read-data
  says 'lost: main/one:/large'
  before=$(state "$copy")
  (umask 077; echo 'another password' >"$SUITE_TMP/wrong-password")
  exits 2 bkfs check "$bucket" --from "$copy"
  exits 2 bkfs check "$bucket" --repair --from "$bucket"
  exits 2 bkfs check "$bucket" --give-up-forgotten
  exits 2 bkfs check "$bucket" --repair --give-up-forgotten --from "$copy"
  exits 12 bkfs check "$bucket" --repair --from "$copy" \
    --from-password-file "$SUITE_TMP/wrong-password"
  # A repository with other files under the same names cannot repair it.
  init_local "$other"
  mount_at "$other" "$mountpoint"
  head -c 20000000 /dev/urandom >"$mountpoint/large"
  exits 0 bkfs snapshot "$mountpoint" one
  exits 0 bkfs umount "$mountpoint"
  exits 13 bkfs check "$bucket" --repair --read-data --from "$other"
  says 'lost: main/one:/large'
  says_not 'repair: restored'
  repaired_from "$bucket" "$copy"
  exits 0 bkfs check "$bucket" --read-data
  same_as_before "$bucket"
  [ "$(state "$copy")" = "$before" ] || wrong "the second repository was written"
}
a_copy_brings_back_lost_packs() {
  local bucket=$SUITE_TMP/heal-first copy=$SUITE_TMP/heal-copy mountpoint=$SUITE_TMP/heal-mount
  machine healer-of-packs
  packs "$bucket" >"$SUITE_TMP/packs"
  mount_at "$bucket" "$mountpoint" -o volume=second,create
  echo second >"$mountpoint/file"
  exits 0 bkfs snapshot "$mountpoint" before
  xargs rm <"$SUITE_TMP/packs"
  exits 13 bkfs check "$bucket"
  repaired_from "$bucket" "$copy"
  [ "$(head -n 1 "$SUITE_TMP/json" | jq '.brought_back.commit_records > 0')" = true ] ||
    wrong "no commit record was made anew"
  exits 0 bkfs snapshot "$mountpoint" after
  exits 0 bkfs umount "$mountpoint"
  exits 0 bkfs gc "$bucket" --undelete-window 0s
  exits 0 bkfs check "$bucket" --read-data
  same_as_before "$bucket"
}

scrub() { jq ".scrub.$1" "$SUITE_TMP/scrub-mount/.bkfs/status"; }
round_is_over() { [ "$(scrub last_round)" != null ]; }
# A mount finds damage itself, and a new write of the same contents repairs it.
a_mount_scrubs() {
  local bucket=$SUITE_TMP/scrub mountpoint=$SUITE_TMP/scrub-mount object
  machine scrubber
  mkdir -p "$mountpoint"
  head -c 6000000 /dev/urandom >"$SUITE_TMP/scrubbed"
  init_local "$bucket"
  mount_at "$bucket" "$mountpoint"
  cp "$SUITE_TMP/scrubbed" "$mountpoint/large"
  exits 0 bkfs snapshot "$mountpoint" one
  exits 0 bkfs status "$mountpoint"
  says_not 'scrubbing'
  exits 0 bkfs umount "$mountpoint"
  object=$(largest "$bucket/data")
  flip "$object" $(($(stat -c %s "$object") / 2))
  exits 2 mount_at "$bucket" "$mountpoint" -o scrub=1K
  says 'scrub=1K'

  machine reader # it writes no object
  exits 0 mount_at "$bucket" "$mountpoint" -o ro,scrub=64M
  wait_for 60 round_is_over || wrong "it never ends: $(scrub error)"
  [ "$(scrub last_round_damaged) $(scrub quarantined)" = '1 0' ] ||
    wrong "$(scrub last_round_damaged) damaged packs, $(scrub quarantined) places"
  exits 0 bkfs umount "$mountpoint"

  machine scrubber
  exits 0 mount_at "$bucket" "$mountpoint" -o scrub=64M
  wait_for 60 round_is_over || wrong "it never ends: $(scrub error)"
  [ "$(scrub last_round_damaged) $(scrub quarantined)" = '1 1' ] ||
    wrong "$(scrub last_round_damaged) damaged packs, $(scrub quarantined) places"
  exits 0 bkfs status "$mountpoint"
  says 'scrubbing .* last round ended' 'damage  .* 1 places in quarantine'
  grep -q '^bkfs_scrub_last_round_damaged_objects{.*} 1$' "$mountpoint/.bkfs/metrics" ||
    wrong "not among the metrics"
  exits 13 bkfs check "$bucket" --read-data
  says 'lost: main/one:/large'
  cp "$SUITE_TMP/scrubbed" "$mountpoint/again"
  exits 0 bkfs snapshot "$mountpoint" two
  exits 0 bkfs umount "$mountpoint"
  exits 0 bkfs restore "$bucket" one "$SUITE_TMP/restored-scrubbed"
  cmp "$SUITE_TMP/scrubbed" "$SUITE_TMP/restored-scrubbed/large"
  # The next mount on this machine knows of the round, and does not start another one at once.
  exits 0 mount_at "$bucket" "$mountpoint" -o scrub=64M
  wait_for 10 round_is_over || wrong "the round is forgotten"
  sleep 2
  [ "$(scrub quarantined)" = 1 ] ||
    wrong "what is in quarantine is not shown before the next round: $(scrub quarantined)"
  [ "$(scrub verified_bytes)" = 0 ] || wrong "$(scrub verified_bytes) bytes were read again at once"
  exits 0 bkfs umount "$mountpoint"
}

at_end "leave_mount '$SUITE_TMP/older-mount'"
at_end "leave_mount '$SUITE_TMP/raced-mount'"
at_end "leave_mount '$SUITE_TMP/scrub-mount'"
at_end "leave_mount '$SUITE_TMP/heal-mount'"
at_end "leave_mount '$SUITE_TMP/busy-mount'"
case_of "clean repositories are clean, and a check writes nothing" clean_repositories_are_clean
case_of "a flipped bit is named with the files that it spoils" \
  a_flipped_bit_is_named_with_the_files_it_spoils
case_of "a lost root is named" a_lost_root_is_named
case_of "a lost root is rebuilt from commit records" a_lost_root_is_rebuilt
case_of "damage is put in quarantine once" damage_is_quarantined_once
case_of "a machine that saw a newer root refuses an older one" \
  an_older_root_is_refused_after_a_newer_one
case_of "commits that a race of roots has lost come back by the documented repair" \
  a_race_of_roots_is_repaired
case_of "a copy brings back what is damaged" a_copy_brings_back_what_is_lost
case_of "a copy brings back packs that are gone" a_copy_brings_back_lost_packs
case_of "a mount scrubs: it finds damage, tells of it, and the next write heals it" a_mount_scrubs
case_of "a mount is checked while it is written" a_mount_is_checked_while_it_is_written
exit 0
