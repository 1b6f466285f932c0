#!/usr/bin/env bash
# about: each error that must be clear: its exit code, its message, and that nothing is lost
# needs: program minio
# limit: 900
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"

machine one
MNT=$SUITE_TMP/mount SEALED=$SUITE_TMP/sealed PLAIN=$SUITE_TMP/plain
mkdir -p "$MNT"
at_end "leave_mount '$MNT'"
secret() { (umask 077; printf '%s\n' "$2" >"$SUITE_TMP/$1"); }
secret right 'correct horse'
secret wrong 'battery staple'

# refused CODE COMMAND… -- PATTERN…: the command ends with this exit code and a message that matches
# each pattern, and mounts nothing.
refused() {
  local code=$1 command=()
  shift
  while [ "$1" != -- ]; do command+=("$1"); shift; done
  shift
  exits "$code" "${command[@]}"
  clear_message
  says "$@"
  not_mounted "$MNT" || { bkfs umount "$MNT"; wrong "mounted all the same"; }
}
try_mount() { mount_at "$1" "$MNT" "${@:2}"; }
random_file() { head -c "$2" /dev/urandom >"$1"; }

# --- repositories and passwords -------------------------------------------------------------------

repositories_exist() {
  exits 0 bkfs init --password-file "$SUITE_TMP/right" "$SEALED"
  exits 0 bkfs init --no-encryption "$PLAIN"
  exits 0 try_mount "$SEALED" --password-file "$SUITE_TMP/right"
  echo kept >"$MNT/file"
  exits 0 bkfs snapshot "$MNT" first
  exits 0 bkfs umount "$MNT"
}
wrong_password() {
  refused 12 try_mount "$SEALED" --password-file "$SUITE_TMP/wrong" -- password
  refused 12 bkfs snapshots "$SEALED" --password-file "$SUITE_TMP/wrong" -- password
  refused 12 bkfs restore "$SEALED" first "$SUITE_TMP/nothing" --password-file "$SUITE_TMP/wrong" \
    -- password
  [ ! -e "$SUITE_TMP/nothing/file" ] || wrong "restored with a wrong password"
}
no_password() {
  local status=0
  # No terminal is there to ask for a password.
  bkfs snapshots "$SEALED" >"$SUITE_TMP/output" 2>&1 </dev/null || status=$?
  cat "$SUITE_TMP/output"
  [ $status != 0 ] || wrong "opened without a password"
  says 'password'
  clear_message
}
open_password_file() {
  chmod 644 "$SUITE_TMP/right"
  refused 1 bkfs snapshots "$SEALED" --password-file "$SUITE_TMP/right" -- \
    'others|permission|mode|readable' "$SUITE_TMP/right"
  chmod 600 "$SUITE_TMP/right"
}
secrets_stay_out_of_logs() {
  BKFS_PASSWORD='correct horse' exits 0 bkfs -v mount "$SEALED" "$MNT" \
    -o "cache_dir=$MACHINE/bkfs-cache"
  says_not 'correct horse'
  BKFS_PASSWORD='correct horse' exits 0 bkfs umount "$MNT"
  AWS_SECRET_ACCESS_KEY=not-the-right-secret exits 1 bkfs -v snapshots "s3://$BKFS_TEST_BUCKET/x"
  says_not 'not-the-right-secret'
}
# A different repository at a known URL, with and without encryption: bkfs refuses it before it asks
# for the password.
another_in_its_place() {
  local here=$SUITE_TMP/swapped asked=$SUITE_TMP/asked
  local ask=(--password-command "touch '$asked'; echo 'correct horse'")
  exits 0 bkfs init --password-file "$SUITE_TMP/right" "$here"
  exits 0 bkfs snapshots "$here" --password-file "$SUITE_TMP/right"
  for how in "--no-encryption" "--password-file=$SUITE_TMP/right"; do
    rm -rf "$here.other"
    exits 0 bkfs init "$how" "$here.other"
    mv "$here" "$here.kept"
    mv "$here.other" "$here"
    for command in snapshots check "key list" gc; do
      # shellcheck disable=SC2086
      refused 13 bkfs $command "$here" "${ask[@]}" -- 'the repository was replaced' \
        'accept-replaced'
    done
    refused 13 try_mount "$here" "${ask[@]}" -- 'the repository was replaced'
    [ ! -e "$asked" ] || wrong "the password was asked for"
    rm -rf "$here"
    mv "$here.kept" "$here"
  done
  exits 0 bkfs snapshots "$here" "${ask[@]}"
  [ -e "$asked" ] || wrong "the password was not asked for"
  # --accept-replaced is needed only once.
  exits 0 bkfs init --no-encryption "$here.other"
  rm -rf "$here"
  mv "$here.other" "$here"
  exits 0 bkfs --accept-replaced snapshots "$here"
  exits 0 bkfs snapshots "$here"
}
# The environment of a process is visible while it lives, and its children inherit it.
passwords_leave_the_environment() {
  local daemon
  BKFS_PASSWORD='correct horse' exits 0 bkfs mount "$SEALED" "$MNT" \
    -o "cache_dir=$MACHINE/bkfs-cache"
  daemon=$(daemon_of "$MNT")
  ! grep -aF 'correct horse' "/proc/$daemon/environ" ||
    wrong "the daemon's environment shows the password"
  [ "$(awk '/^VmLck/ {print $2}' "/proc/$daemon/status")" -gt 0 ] ||
    wrong "no key is locked in memory"
  BKFS_PASSWORD='correct horse' exits 0 bkfs run "$MNT" -- sh \
    -c 'echo "a tool sees ${BKFS_PASSWORD-no password}"'
  says 'a tool sees no password'
  exits 0 bkfs umount "$MNT"
}
init_twice() { refused 1 bkfs init --no-encryption "$PLAIN" -- 'exist|already'; }
no_repository_in_directory() {
  mkdir -p "$SUITE_TMP/empty"
  refused 10 try_mount "$SUITE_TMP/empty" -- 'repository' "$SUITE_TMP/empty"
  refused 10 try_mount "$SUITE_TMP/absent" -- "$SUITE_TMP/absent" 'init'
  refused 10 bkfs snapshots "$SUITE_TMP/absent" -- "$SUITE_TMP/absent"
  [ ! -e "$SUITE_TMP/absent" ] || wrong "a look created a directory"
}
newer_format() {
  local object
  cp -a "$PLAIN" "$SUITE_TMP/newer"
  # Magic first, then the version as a little-endian number (FORMAT.md); every object carries it.
  find "$SUITE_TMP/newer" -type f | while read -r object; do newer_version "$object"; done
  # The header's tag must verify before its version counts: flipped bits do not prove a newer
  # format.
  refused 13 try_mount "$SUITE_TMP/newer" -- 'config' 'damaged' 'does not verify'
  says_not 'newer bkfs'
}
version_told() {
  exits 0 bkfs --version
  says "format $(od -An -tu2 -j8 -N2 --endian=little "$PLAIN/config" | tr -d ' ')\b"
}
# The version stands after the eight bytes of magic.
newer_version() {
  [ "$(stat -c %s "$1")" -lt 128 ] ||
    printf '\xfe' | dd of="$1" bs=1 seek=8 conv=notrunc status=none
}

# --- stores ---------------------------------------------------------------------------------------

bucket_absent() {
  refused 10 try_mount "s3://no-such-bucket/repo" -- 'no-such-bucket' 'bucket|exist|found'
}
not_a_repository() {
  refused 10 try_mount "s3://$BKFS_TEST_BUCKET/nothing-here" -- "$BKFS_TEST_BUCKET" \
    'repository|init'
}
no_permission() {
  AWS_SECRET_ACCESS_KEY=wrong refused 1 try_mount "s3://$BKFS_TEST_BUCKET/repo" -- \
    'denied|permission|credential|forbidden|signature' "$BKFS_TEST_BUCKET"
}
unreachable() {
  local began port
  port=$(free_port)
  began=$SECONDS
  AWS_ENDPOINT_URL=http://127.0.0.1:$port refused 1 try_mount "s3://$BKFS_TEST_BUCKET/repo" \
    -o timeout=10 -- 'reach|connect|refused' "127.0.0.1:$port|$BKFS_TEST_BUCKET"
  [ $((SECONDS - began)) -lt 60 ] || wrong "took $((SECONDS - began)) s with timeout=10"
}
# no_server ENDPOINT CAUSE COMMAND…: the command ends within 10 s and names the cause. The deadline
# for a store that has answered before does not apply.
no_server() {
  local endpoint=$1 cause=$2 began=$SECONDS
  shift 2
  AWS_ENDPOINT_URL=$endpoint refused 1 "$@" -- "$cause" "${endpoint#*://}" '--wait'
  [ $((SECONDS - began)) -le 10 ] || wrong "took $((SECONDS - began)) s"
}
never_reached() {
  local port url=s3://$BKFS_TEST_BUCKET/repo
  port=$(free_port)
  no_server "http://127.0.0.1:$port" refused try_mount "$url"
  no_server "http://127.0.0.1:$port" refused bkfs init --no-encryption "$url"
  no_server "http://127.0.0.1:$port" refused bkfs check "$url"
  no_server http://name.invalid:9000 'name|lookup|resolve' try_mount "$url"
  no_server "https://${BKFS_TEST_S3_MINIO#http://}" 'does not answer|prove' try_mount "$url"
}
# The setting stands in for a machine without the package ca-certificates. Plain http needs none.
no_authorities() {
  local url=s3://$BKFS_TEST_BUCKET/repo
  local -x SSL_CERT_FILE=/dev/null SSL_CERT_DIR=
  AWS_ENDPOINT_URL=https://127.0.0.1:$(free_port) refused 1 try_mount "$url" -- \
    'no certificates of authorities' 'ca-certificates' SSL_CERT_FILE
  exits 0 bkfs init --no-encryption "s3://$BKFS_TEST_BUCKET/without-authorities"
}
# Within 5 s the program says on stderr what it waits for, on a terminal or not, and with --wait it
# goes on waiting. With --quiet it says nothing, and JSON stays JSON.
waits_when_told() {
  local port status=0 url=s3://$BKFS_TEST_BUCKET/repo how
  port=$(free_port)
  local -x AWS_ENDPOINT_URL=http://127.0.0.1:$port
  for how in 'snapshots' '--json check' '--quiet snapshots'; do
    status=0
    # shellcheck disable=SC2086
    timeout 9 "$BKFS_BIN" --wait $how "$url" >"$SUITE_TMP/out" 2>"$SUITE_TMP/output" </dev/null ||
      status=$?
    cat "$SUITE_TMP/output"
    [ $status = 124 ] || wrong "it ended with $status instead of waiting"
    [ ! -s "$SUITE_TMP/out" ] || wrong "$(cat "$SUITE_TMP/out")"
    case $how in
      --quiet*) [ ! -s "$SUITE_TMP/output" ] || wrong "--quiet is not" ;;
      *) says "the store at $url does not answer" 'refused' "127.0.0.1:$port" 'timeout=300 s' ;;
    esac
  done
  status=0
  timeout 9 script -qec "'$BKFS_BIN' --wait snapshots $url" /dev/null \
    >"$SUITE_TMP/output" 2>&1 </dev/null || status=$?
  cat "$SUITE_TMP/output"
  [ $status = 124 ] || wrong "it ended with $status instead of waiting"
  says "the store at $url does not answer" 'refused'
}

# --- mount points and options ---------------------------------------------------------------------

mount_point_absent() {
  exits 1 mount_at "$PLAIN" "$SUITE_TMP/nowhere" && clear_message &&
    says "$SUITE_TMP/nowhere" 'mount point|directory|exist' && [ ! -e "$SUITE_TMP/nowhere" ]
}
mount_point_not_empty() {
  mkdir -p "$SUITE_TMP/full"
  echo under >"$SUITE_TMP/full/under"
  exits 0 mount_at "$PLAIN" "$SUITE_TMP/full"
  [ ! -e "$SUITE_TMP/full/under" ] || wrong "what lies beneath shows through"
  exits 0 bkfs umount "$SUITE_TMP/full"
  [ "$(cat "$SUITE_TMP/full/under")" = under ]
}
mount_point_taken() {
  exits 0 try_mount "$PLAIN"
  exits 1 try_mount "$PLAIN" -o ro
  clear_message
  says 'already|mounted' "$MNT"
  exits 0 bkfs umount "$MNT"
  not_mounted "$MNT" || wrong "something is mounted on top"
}
mount_point_is_a_file() {
  exits 1 mount_at "$PLAIN" "$SUITE_TMP/right" && clear_message &&
    says 'not a directory|mount point' "$SUITE_TMP/right"
}
no_fuse_device() {
  # A private /dev without /dev/fuse.
  exits 1 unshare -m --propagation private sh -c \
    "mount -t tmpfs none /dev && mknod /dev/null c 1 3 && mknod /dev/urandom c 1 9 &&
      exec '$MACHINE/run' '$BKFS_BIN' mount '$PLAIN' '$MNT' -o 'cache_dir=$MACHINE/bkfs-cache'"
  clear_message
  says '/dev/fuse'
}
unknown_words() {
  refused 2 try_mount "$PLAIN" -o surprise=7 -- surprise
  refused 2 bkfs mount "$PLAIN" "$MNT" --surprise -- '--surprise'
  refused 2 bkfs surprise -- surprise
  refused 2 bkfs mount "$PLAIN" -- MOUNTPOINT
  refused 2 try_mount "$PLAIN" -o close=sometimes -- 'close' 'sometimes|bounded'
  refused 2 try_mount "$PLAIN" -o memory=lots -- 'memory' 'lots'
}
no_room_for_the_cache() {
  mkdir -p "$SUITE_TMP/small"
  mount -t tmpfs -o size=64k bkfs-test "$SUITE_TMP/small"
  head -c 65536 /dev/zero >"$SUITE_TMP/small/fill" 2>/dev/null || true
  exits 1 bkfs mount "$PLAIN" "$MNT" -o "cache_dir=$SUITE_TMP/small/cache" || {
    umount "$SUITE_TMP/small"
    return 1
  }
  clear_message
  says "$SUITE_TMP/small" 'room|space|free'
  umount "$SUITE_TMP/small"
}
foreground_says_why() {
  refused 10 bkfs mount -f "$SUITE_TMP/absent" "$MNT" -- "$SUITE_TMP/absent"
}
umount_of_nothing() { exits 1 bkfs umount "$MNT" && clear_message && says "$MNT" 'not|no '; }
# A container, or an operator's mount namespace, that began while it was mounted keeps the mount.
still_mounted_elsewhere() {
  local other daemon
  exits 0 try_mount "$PLAIN"
  daemon=$(daemon_of "$MNT")
  unshare --mount --propagation private sleep 1000 &
  other=$!
  remember_pid $other
  wait_for 10 is_named sleep $other
  exits 3 bkfs umount "$MNT"
  clear_message
  says "process $daemon still runs" "$MNT in the mount namespace of process $other .sleep." \
    "nsenter --target $other --mount umount -i $MNT"
  # The command in the message works.
  nsenter --target $other --mount umount -i "$MNT"
  wait_for 30 test ! -e "/proc/$daemon"
  kill $other
  exits 0 try_mount "$PLAIN"
  exits 0 bkfs umount "$MNT"
}
is_named() { [ "$(cat "/proc/$2/comm")" = "$1" ]; }

# --- snapshots and restores -----------------------------------------------------------------------

snapshot_names() {
  local name
  exits 0 try_mount "$PLAIN"
  echo data >"$MNT/file"
  exits 0 bkfs snapshot "$MNT" taken
  exits 1 bkfs snapshot "$MNT" taken
  says taken 'exist|already'
  fails_with 'File exists' mkdir "$MNT/.snapshots/taken"
  for name in .hidden @2026 a/b "$(printf 'n%.0s' $(seq 256))"; do
    set +e
    bkfs snapshot "$MNT" "$name" >"$SUITE_TMP/output" 2>&1
    local status=$?
    set -e
    cat "$SUITE_TMP/output"
    case $status in 1 | 2) ;; *) wrong "the name $name gave $status" ;; esac
    clear_message
  done
  fails_with 'Read-only file system' touch "$MNT/.snapshots/taken/file"
  exits 0 bkfs umount "$MNT"
}
restore_refusals() {
  exits 1 bkfs restore "$PLAIN" no-such-snapshot "$SUITE_TMP/out"
  says no-such-snapshot
  exits 1 bkfs restore "$PLAIN" taken:/no/such/path "$SUITE_TMP/out"
  says '/no/such/path'
  mkdir -p "$SUITE_TMP/occupied"
  echo mine >"$SUITE_TMP/occupied/file"
  exits 1 bkfs restore "$PLAIN" taken "$SUITE_TMP/occupied"
  says 'empty' '--overwrite'
  [ "$(cat "$SUITE_TMP/occupied/file")" = mine ] || wrong "overwritten without leave"
  exits 0 bkfs restore "$PLAIN" taken "$SUITE_TMP/occupied" --overwrite
  [ "$(cat "$SUITE_TMP/occupied/file")" = data ] || wrong "not overwritten with leave"
}

# --- stores that fail under way -------------------------------------------------------------------

# The server stops answering during a backup. The waiting tool gets an error soon after `timeout=`;
# no command claims success; what was committed before is intact afterwards.
store_fails_in_the_middle() {
  local url=s3://$BKFS_TEST_BUCKET/middle began status=0
  exits 0 bkfs init --no-encryption "$url"
  exits 0 try_mount "$url" -o timeout=8,memory=256M
  random_file "$MNT/before" 5000000
  sha256sum <"$MNT/before" >"$SUITE_TMP/before.sum"
  exits 0 bkfs snapshot "$MNT" before
  kill -STOP "$MINIO_PID"
  began=$SECONDS
  dd if=/dev/urandom of="$MNT/during" bs=1M count=1500 conv=fsync >"$SUITE_TMP/output" 2>&1 ||
    status=$?
  cat "$SUITE_TMP/output"
  [ $status != 0 ] || wrong "dd with fsync claims success while the store is away"
  says 'Input/output error|No space|Timed out|Connection timed'
  [ $((SECONDS - began)) -lt 150 ] || wrong "the tool hung for $((SECONDS - began)) s"
  status=0
  bkfs snapshot "$MNT" during >"$SUITE_TMP/output" 2>&1 || status=$?
  cat "$SUITE_TMP/output"
  [ $status != 0 ] || wrong "a snapshot claims success while the store is away"
  clear_message
  status=0
  bkfs umount "$MNT" >"$SUITE_TMP/output" 2>&1 || status=$?
  cat "$SUITE_TMP/output"
  [ $status != 0 ] || wrong "unmount claims success with data that is nowhere"
  kill -CONT "$MINIO_PID"
  # The mount that refused to drop data is still there, and may succeed now that the store is back.
  leave_mount "$MNT"
  machine two
  wait_for 60 not_mounted "$MNT"
  wait_for 90 mount_at "$url" "$MNT" || exits 0 mount_at "$url" "$MNT"
  sha256sum <"$MNT/.snapshots/before/before" | diff - "$SUITE_TMP/before.sum"
  [ ! -e "$MNT/.snapshots/during" ] || wrong "a snapshot that was refused exists"
  exits 0 bkfs umount "$MNT"
}
# The disk under an embedded bucket fills up.
bucket_runs_full() {
  local disk=$SUITE_TMP/disk status=0
  mkdir -p "$disk"
  mount -t tmpfs -o size=48m bkfs-test "$disk"
  exits 0 bkfs init --no-encryption "$disk/bucket"
  exits 0 try_mount "$disk/bucket" -o timeout=8
  random_file "$MNT/before" 3000000
  exits 0 bkfs snapshot "$MNT" before
  dd if=/dev/urandom of="$MNT/during" bs=1M count=200 conv=fsync >"$SUITE_TMP/output" 2>&1 ||
    status=$?
  [ $status != 0 ] || wrong "200 MiB were accepted by a bucket of 48 MiB"
  says 'No space|Input/output error'
  status=0
  bkfs snapshot "$MNT" during >"$SUITE_TMP/output" 2>&1 || status=$?
  [ $status != 0 ] || wrong "a snapshot claims success"
  clear_message
  exits 1 bkfs umount "$MNT"
  clear_message
  leave_mount "$MNT"
  wait_for 30 not_mounted "$MNT"
  mount -o remount,size=200m "$disk"
  machine two
  exits 0 bkfs restore "$disk/bucket" before "$SUITE_TMP/from-full"
  [ "$(stat -c %s "$SUITE_TMP/from-full/before")" = 3000000 ]
  umount -l "$disk"
}

# --- damage ---------------------------------------------------------------------------------------

# damage DIRECTORY HOW: changes the largest data pack in its middle (flipped), or removes it.
damage() {
  local pack
  pack=$(find "$1" -type f -printf '%s %p\n' | sort -rn | head -n 1 | cut -d' ' -f2-)
  echo "damaging $pack ($2)"
  case $2 in
    flipped)
      printf '\x5a\xa5\x5a\xa5' |
        dd of="$pack" bs=1 seek=$(($(stat -c %s "$pack") / 2)) conv=notrunc status=none
      ;;
    removed) rm "$pack" ;;
  esac
}
# Reads each block of 128 KiB by itself: a block either fails with EIO or equals what was written.
damaged_pack() {
  local how=$1 url=$SUITE_TMP/damaged-$1 n bad=0 good=0 status=0
  mkdir -p "$SUITE_TMP/originals"
  exits 0 bkfs init --no-encryption "$url"
  exits 0 try_mount "$url"
  for n in 1 2 3 4 5 6; do
    [ -e "$SUITE_TMP/originals/$n" ] || random_file "$SUITE_TMP/originals/$n" 16777216
    cp "$SUITE_TMP/originals/$n" "$MNT/$n"
  done
  exits 0 bkfs snapshot "$MNT" whole
  exits 0 bkfs umount "$MNT"
  damage "$url" "$how"
  machine "reads-$how"
  exits 0 try_mount "$url" -o ro,timeout=10
  for n in 1 2 3 4 5 6; do
    for block in $(seq 0 127); do
      set +e
      dd if="$MNT/.snapshots/whole/$n" bs=128k skip="$block" count=1 iflag=fullblock \
        of="$SUITE_TMP/block" status=none 2>"$SUITE_TMP/output"
      status=$?
      set -e
      if [ $status = 0 ]; then
        cmp -n 131072 -i "0:$((block * 131072))" "$SUITE_TMP/block" "$SUITE_TMP/originals/$n" ||
          wrong "a wrong byte in block $block of $n"
        good=$((good + 1))
      else
        says 'Input/output error'
        bad=$((bad + 1))
      fi
    done
  done
  echo "$good blocks read, $bad in error"
  [ "$bad" -gt 0 ] || wrong "no block is in error"
  # One pack holds at most 32 of the 96 MiB; a few flipped bytes damage one frame.
  if [ "$how" = flipped ]; then
    [ "$bad" -le 12 ] || wrong "$bad blocks in error for one frame"
  else
    [ "$bad" -le 300 ] || wrong "$bad blocks in error for one pack"
  fi
  exits 0 bkfs umount "$MNT"
  exits 13 bkfs restore "$url" whole "$SUITE_TMP/from-$how"
  clear_message
  rm -rf "$SUITE_TMP/from-$how"
}

# --- a store that fails as it is told -------------------------------------------------------------

through_the_proxy() { AWS_ENDPOINT_URL=$FAULTY "$@"; }
# The store permanently refuses one class of objects: check names an object, and continues with the
# others.
refused_object() {
  local url=s3://$BKFS_TEST_BUCKET/refused kind
  machine refused
  exits 0 bkfs init --no-encryption "$url"
  exits 0 try_mount "$url"
  random_file "$MNT/file" 3000000
  exits 0 bkfs snapshot "$MNT" one
  exits 0 bkfs umount "$MNT"
  for kind in data meta index; do
    faults "{\"fail_percent\": 100, \"status\": 403, \
      \"only\": {\"method\": \"GET\", \"class\": \"$kind\"}}"
    through_the_proxy exits 13 bkfs check --read-data "$url"
    clear_message
    says "$kind/[^ ]+: " '403|permission'
  done
  faults '{}'
  through_the_proxy exits 0 bkfs check --read-data "$url"
}
# The store acknowledges a replacement of the root, and keeps the old one.
root_not_kept() {
  local url=s3://$BKFS_TEST_BUCKET/liar
  machine liar
  through_the_proxy exits 0 bkfs init --no-encryption "$url"
  through_the_proxy exits 0 try_mount "$url" -o timeout=8
  printf 'synced' | dd of="$MNT/before" conv=fsync status=none
  exits 0 bkfs snapshot "$MNT" before
  printf 'synced' | dd of="$MNT/synced" conv=fsync status=none
  faults '{"seed": 1, "strikes": [
    {"what": "lie", "method": "PUT", "class": ["root"], "percent": 100}
  ]}'
  echo accepted >"$MNT/accepted"
  exits 1 bkfs snapshot "$MNT" lied
  clear_message
  says 'conditional writes are not atomic'
  faults '{}'
  # Once it has detected that, the mount acknowledges nothing more.
  fails_with 'Input/output error' dd if=/dev/zero of="$MNT/later" bs=4k count=1 conv=fsync
  exits 1 bkfs snapshot "$MNT" later
  exits 0 bkfs status "$MNT"
  says 'FAILED' 'not atomic' 'lost .*/accepted'
  exits 1 bkfs umount "$MNT"
  exits 0 bkfs umount --discard "$MNT"
  machine liar-two
  exits 0 try_mount "$url" --steal
  [ "$(cat "$MNT/before")" = synced ] || wrong "a file of the snapshot is lost"
  [ "$(cat "$MNT/synced")" = synced ] || wrong "what fsync acknowledged is lost"
  [ -e "$MNT/.snapshots/before" ] && [ ! -e "$MNT/.snapshots/lied" ] ||
    wrong "$(bkfs snapshots "$MNT")"
  exits 0 bkfs umount "$MNT"
}

# Each case begins without a mount that an earlier one may have left.
clear_case() {
  leave_mount "$MNT"
  case_of "$@"
}

start_minio
s3_environment "$BKFS_TEST_S3_MINIO"
start_faulty "$BKFS_TEST_S3_MINIO"

case_of "repositories, sealed and plain" repositories_exist || exit 1
clear_case "a wrong password" wrong_password
clear_case "no password, and no terminal to ask at" no_password
clear_case "a password file that others can read" open_password_file
clear_case "secrets stay out of the logs" secrets_stay_out_of_logs
clear_case "another repository in the place of a known one" another_in_its_place
clear_case "passwords leave the environment, and keys stay out of swap" \
  passwords_leave_the_environment
clear_case "init of what is there already" init_twice
clear_case "no repository in a directory" no_repository_in_directory
clear_case "a repository whose headers state another format, and do not verify" newer_format
clear_case "the version tells the format that it writes" version_told
clear_case "a bucket that is absent" bucket_absent
clear_case "a bucket that is not a repository" not_a_repository
clear_case "no permission for the bucket" no_permission
clear_case "a store that cannot be reached" unreachable
clear_case "a server that was never reached" never_reached
clear_case "https from a machine without certificates of authorities" no_authorities
clear_case "a server that is waited for" waits_when_told
clear_case "a mount point that is absent" mount_point_absent
clear_case "a mount point that is not empty" mount_point_not_empty
clear_case "a mount point that is taken" mount_point_taken
clear_case "a mount point that is a file" mount_point_is_a_file
clear_case "no /dev/fuse" no_fuse_device
clear_case "unknown options, commands and values" unknown_words
clear_case "no room in the cache directory" no_room_for_the_cache
clear_case "a daemon in the foreground says why it cannot start" foreground_says_why
clear_case "unmount of what is not mounted" umount_of_nothing
clear_case "unmount of what another mount namespace has as well" still_mounted_elsewhere
clear_case "snapshot names that are taken or not allowed" snapshot_names
clear_case "restores that are refused" restore_refusals
clear_case "damaged bytes in a pack" damaged_pack flipped
clear_case "a missing pack" damaged_pack removed
clear_case "an object that the store refuses" refused_object
clear_case "a root that is acknowledged and not kept" root_not_kept
clear_case "a bucket that runs full" bucket_runs_full
clear_case "a store that stops answering in the middle of a backup" store_fails_in_the_middle
exit 0
