#!/usr/bin/env bash
# about: packs locked in a bucket with Object Lock: writers and collectors with real policies,
# about: extension for what is needed only, and the recovery from what a thief may do
# needs: program minio mc
# limit: 180 300
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"

M=$SUITE_TMP/mount
mkdir -p "$M"
at_end "leave_mount '$M'"
start_minio
s3_environment "$BKFS_TEST_S3_MINIO"
LOCKED=locked PLACE=backups
URL=s3://$LOCKED/$PLACE
export MC_CONFIG_DIR=$SUITE_TMP/mc
mc() { "$MC" -q "$@"; }

# may NAME RIGHT…: creates a user of the server with these rights and no others, and an alias of
# that name.
may() {
  local name=$1 rights
  shift
  rights=$(printf '"s3:%s", ' "$@")
  printf '{"Version": "2012-10-17", "Statement": [
    {"Effect": "Allow", "Action": [%s], "Resource": ["arn:aws:s3:::%s", "arn:aws:s3:::%s/*"]}
  ]}' "${rights%, }" "$LOCKED" "$LOCKED" >"$SUITE_TMP/policy-$name.json"
  mc admin user add owner "$name" "$name-secret-key"
  mc admin policy create owner "$name" "$SUITE_TMP/policy-$name.json"
  mc admin policy attach owner "$name" --user "$name"
  mc alias set "$name" "$BKFS_TEST_S3_MINIO" "$name" "$name-secret-key"
}
as() { local name=$1; shift; AWS_ACCESS_KEY_ID=$name AWS_SECRET_ACCESS_KEY=$name-secret-key "$@"; }
# gc_as_collector [ARGS…]: runs gc and keeps its output, one JSON object per line, in
# $SUITE_TMP/json.
gc_as_collector() {
  local status=0
  as collector bkfs --json gc "$URL" --undelete-window 0s "$@" >"$SUITE_TMP/json" || status=$?
  cat "$SUITE_TMP/json"
  return $status
}
# told LINE PATH: a field of a line of that output, in jq's syntax; the last line is -1.
told() { jq -s -r ".[$1]$2" "$SUITE_TMP/json"; }

# locks_of: "KEY SECONDS" for the newest version of each object of the repository, as the server
# reports; 0 for an object without a lock.
locks_of() {
  mc --json retention info --recursive "owner/$LOCKED/$PLACE/" |
    jq -r --arg place "$PLACE" '
      def seconds: sub("\\.[0-9]+"; "") | fromdateiso8601;
      select(.urlpath) | [
        (.urlpath | sub(".*/" + $place + "/"; "")),
        (if .until and (.mode // "") != "" then (.until | seconds) else 0 end)
      ] | join(" ")
    ' | sort
}
until_of() { awk -v key="$1" '$1 == key {print $2}' "$2"; }
markers() {
  mc --json ls --recursive --versions "owner/$LOCKED/$PLACE/" |
    jq -r 'select(.isDeleteMarker) | .key' | sort
}
# first_version KEY: the id of the version that was stored first.
first_version() {
  mc --json ls --versions "owner/$LOCKED/$PLACE/$1" |
    jq -s -r '[.[] | select(.isDeleteMarker | not)] | sort_by(.versionOrdinal) | .[0].versionId'
}

setup() {
  mc alias set owner "$BKFS_TEST_S3_MINIO" "$BKFS_TEST_ACCESS_KEY" "$BKFS_TEST_SECRET_KEY"
  mc mb --with-lock "owner/$LOCKED"
  may writer PutObject GetObject ListBucket PutObjectRetention GetObjectRetention
  may collector PutObject GetObject ListBucket PutObjectRetention GetObjectRetention DeleteObject
  may thief PutObject GetObject ListBucket PutObjectRetention GetObjectRetention DeleteObject \
    DeleteObjectVersion ListBucketVersions
  may blind PutObject GetObject ListBucket
  mkdir "$SUITE_TMP/contents"
  head -c 6M /dev/urandom >"$SUITE_TMP/contents/stays"
  head -c 1M /dev/urandom >"$SUITE_TMP/contents/more"
}

refused() {
  machine writer
  exits 1 bkfs init --no-encryption --lock-days 30 "$SUITE_TMP/directory"
  says 'Object Lock|no locks'
  clear_message
  [ -z "$(find "$SUITE_TMP/directory" -name config -o -name root)" ] ||
    wrong "half a repository was made"
  exits 1 bkfs init --no-encryption --lock-days 30 "s3://$BKFS_TEST_BUCKET/unlocked"
  says 'cannot be locked|Object Lock'
  clear_message
  [ -z "$(mc ls --recursive "owner/$BKFS_TEST_BUCKET/unlocked/")" ] ||
    wrong "something was left in a bucket without locks"
  exits 1 as blind bkfs init --no-encryption --lock-days 30 "s3://$LOCKED/blind"
  says 's3:PutObjectRetention'
  exits 2 bkfs init --no-encryption --lock-days 0 "$URL"
  exits 2 bkfs init --no-encryption --lock-mode compliance "$URL"
}

backs_up() {
  local key
  machine writer
  exits 0 as writer bkfs init --no-encryption --lock-days 30 "$URL"
  says '30 days' governance
  exits 0 as writer mount_at "$URL" "$M"
  cp "$SUITE_TMP/contents/stays" "$M/"
  head -c 5M /dev/urandom >"$M/goes"
  exits 0 bkfs snapshot "$M" one
  rm "$M/goes"
  exits 0 bkfs snapshot "$M" two
  exits 0 bkfs umount "$M"
  exits 0 as writer bkfs forget "$URL" one
  locks_of >"$SUITE_TMP/locks-first"
  cat "$SUITE_TMP/locks-first"
  local least=$(($(date +%s) + 29 * 86400))
  for key in $(mc --json ls --recursive "owner/$LOCKED/$PLACE/" | jq -r .key); do
    case $key in
      data/* | meta/* | keys/* | config)
        [ "$(until_of "$key" "$SUITE_TMP/locks-first")" -ge "$least" ] ||
          wrong "$key is not locked for 30 days"
        ;;
      probe/*-locked) ;;
      *) [ "$(until_of "$key" "$SUITE_TMP/locks-first")" -le 0 ] || wrong "$key is locked" ;;
    esac
  done
  [ "$(grep -c '^\(data\|meta\)/' "$SUITE_TMP/locks-first")" -ge 3 ] ||
    wrong "there are few packs: it shows little"
}

# The first collection condemns and extends; condemned packs wait, unchanged.
extends() {
  local key seconds
  machine collector
  exits 1 as writer bkfs gc "$URL" --undelete-window 0s
  sleep 2 # extended locks then end at another second than the others
  exits 0 gc_as_collector --lock-days 90
  [ "$(told -1 .condemned_packs)" -gt 0 ] || wrong "nothing was condemned"
  [ "$(told -1 .deleted_packs)" = 0 ] || wrong "something locked was deleted"
  [ "$(told -1 .waiting.packs)" = "$(told -1 .condemned_packs)" ] ||
    wrong "what is condemned does not wait for its lock"
  [ "$(told -1 .waiting.bytes)" -gt 5000000 ] || wrong "it does not say how much waits"
  locks_of >"$SUITE_TMP/locks-second"
  local most=$(($(date +%s) + 89 * 86400)) live=0 garbage=0
  while read -r key seconds; do
    case $key in data/* | meta/* | config) ;; *) continue ;; esac
    if [ "$seconds" -ge "$most" ]; then
      live=$((live + 1))
    else
      garbage=$((garbage + 1))
      echo "$key" >>"$SUITE_TMP/garbage"
      [ "$seconds" = "$(until_of "$key" "$SUITE_TMP/locks-first")" ] ||
        wrong "the lock of $key was changed"
    fi
  done <"$SUITE_TMP/locks-second"
  echo "$live locked further, $garbage not"
  [ "$live" = "$(told -1 .locked_objects)" ] ||
    wrong "$live objects are locked for 90 days, and gc says $(told -1 .locked_objects)"
  [ "$garbage" = "$(told -1 .condemned_packs)" ] || wrong "garbage was locked further"
  [ -z "$(markers | grep -E '^(data|meta)/' || true)" ] ||
    wrong "something locked was sent a deletion"
  for _ in 1 2; do exits 0 gc_as_collector; done
  exits 0 as collector bkfs gc "$URL" --undelete-window 0s
  says 'nothing to free' 'wait for the end of their locks'
}

# The server refuses to remove a locked object, even with all keys of bkfs.
refuses_deletion() {
  local key version
  key=$(grep '^data/' "$SUITE_TMP/locks-second" | awk 'NR == 1 {print $1}')
  version=$(first_version "$key")
  set +e
  (set +e; trap - ERR; mc rm --version-id "$version" "thief/$LOCKED/$PLACE/$key") \
    >"$SUITE_TMP/output" 2>&1
  set -e
  cat "$SUITE_TMP/output"
  says 'WORM|locked|protected|denied'
  [ "$(first_version "$key")" = "$version" ] || wrong "it is gone"
  set +e
  (set +e; trap - ERR; mc retention clear --version-id "$version" "thief/$LOCKED/$PLACE/$key") \
    >"$SUITE_TMP/output" 2>&1
  set -e
  [ "$(locks_of | awk -v key="$key" '$1 == key {print $2}')" -gt "$(date +%s)" ] ||
    wrong "a thief has removed the lock"
}

# bkfs reports what a thief hides or overwrites as damage. It comes back from the locked versions:
# object by object, or all objects of one moment in another bucket.
comes_back() {
  local key count=0 moment
  # The moment is a whole second after all earlier writes and before all later ones.
  sleep 1.1
  moment=$(date -u +%Y-%m-%dT%H:%M:%SZ)
  sleep 1.1
  mc --json ls --recursive "owner/$LOCKED/$PLACE/" | jq -r .key >"$SUITE_TMP/keys"
  while read -r key; do
    case $key in
      data/*) echo rubbish | mc pipe "thief/$LOCKED/$PLACE/$key" >/dev/null ;;
      *) mc rm "thief/$LOCKED/$PLACE/$key" >/dev/null ;;
    esac
    count=$((count + 1))
  done <"$SUITE_TMP/keys"
  [ "$count" -ge 6 ] || wrong "few objects were touched"
  machine fresh
  exits 10 bkfs snapshots "$URL"
  mc mb "owner/rescued"
  mc cp --recursive --rewind "$moment" "owner/$LOCKED/$PLACE/" "owner/rescued/$PLACE/" >/dev/null
  exits 0 bkfs check --read-data "s3://rescued/$PLACE"
  exits 0 bkfs restore "s3://rescued/$PLACE" two "$SUITE_TMP/rescued"
  cmp "$SUITE_TMP/contents/stays" "$SUITE_TMP/rescued/stays"
  # In place: restores each object's last version before that moment.
  while read -r key; do
    mc --json ls --versions --rewind "$moment" "owner/$LOCKED/$PLACE/$key" |
      jq -s -r 'sort_by(.versionOrdinal) | .[-1].versionId' >"$SUITE_TMP/version"
    mc cp --version-id "$(cat "$SUITE_TMP/version")" "owner/$LOCKED/$PLACE/$key" \
      "owner/$LOCKED/$PLACE/$key" >/dev/null
  done <"$SUITE_TMP/keys"
  machine again
  exits 0 bkfs check --read-data "$URL"
  exits 0 bkfs restore "$URL" two "$SUITE_TMP/back"
  cmp "$SUITE_TMP/contents/stays" "$SUITE_TMP/back/stays"
}

# After a lock has ended, the next collection deletes: here the owner removes the locks of the
# garbage early.
frees() {
  local key
  machine collector
  while read -r key; do
    mc retention clear "owner/$LOCKED/$PLACE/$key" >/dev/null
  done <"$SUITE_TMP/garbage"
  exits 0 gc_as_collector
  [ "$(told -1 .deleted_packs)" -gt 0 ] || wrong "nothing was deleted"
  [ "$(told -1 .waiting.packs)" = 0 ] || wrong "something waits still"
  while read -r key; do
    [ -z "$(mc ls "owner/$LOCKED/$PLACE/$key")" ] || wrong "$key is not deleted"
  done <"$SUITE_TMP/garbage"
  exits 0 bkfs check --read-data "$URL"
}

# A repository without locks gets locks, then another number of days. The next collection locks what
# stays; the next mount locks what it stores.
changes() {
  local key
  machine writer
  exits 0 as writer bkfs init --no-encryption "s3://$LOCKED/later"
  exits 0 as writer bkfs put "s3://$LOCKED/later" before "$SUITE_TMP/contents/stays"
  exits 0 bkfs init --no-encryption "$SUITE_TMP/plain"
  exits 1 bkfs lock "$SUITE_TMP/plain" --days 3
  says 'no locks'
  exits 0 bkfs lock "s3://$LOCKED/later"
  says 'no locks'
  exits 0 as writer bkfs lock "s3://$LOCKED/later" --days 3
  exits 2 as writer bkfs lock "s3://$LOCKED/later" --days 3 --mode compliance
  exits 0 as writer bkfs put "s3://$LOCKED/later" after "$SUITE_TMP/contents/more"
  exits 0 as collector bkfs gc "s3://$LOCKED/later" --undelete-window 0s
  says 'locked [0-9]+ objects until'
  PLACE=later locks_of >"$SUITE_TMP/locks-later"
  cat "$SUITE_TMP/locks-later"
  for key in $(awk '/^(data|meta|config)/ {print $1}' "$SUITE_TMP/locks-later"); do
    [ "$(until_of "$key" "$SUITE_TMP/locks-later")" -gt $(($(date +%s) + 2 * 86400)) ] ||
      wrong "$key is not locked"
  done
  exits 0 bkfs --json lock "s3://$LOCKED/later"
  says '"lock_days":3' '"locked_until":"20'
  exits 0 bkfs restore "s3://$LOCKED/later" --volume streams latest "$SUITE_TMP/later"
  cmp "$SUITE_TMP/contents/stays" "$SUITE_TMP/later/before"
  cmp "$SUITE_TMP/contents/more" "$SUITE_TMP/later/after"
}

case_of "users with policies, and a bucket with Object Lock" setup
case_of "without Object Lock, or the right to lock, nothing is created, and it is said" refused
case_of "a writer's packs and the config are locked, and nothing else" backs_up
case_of "a collection extends what is needed, and sends nothing locked a deletion" extends
case_of "the server refuses to remove what is locked" refuses_deletion
case_of "what a thief hid and wrote over comes back" comes_back
case_of "what is no longer locked is deleted" frees
case_of "a repository gets locks later" changes
exit 0
