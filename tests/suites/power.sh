#!/usr/bin/env bash
# about: power loss of the disk under an embedded bucket, under a spool, and under the target of a
# about: restore, on ext4 and xfs: what fsync and snapshot acknowledged is there, and a restore goes on
# needs: program minio apt:xfsprogs apt:e2fsprogs
# limit: 300 1200
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"

MNT=$SUITE_TMP/mount DISK=$SUITE_TMP/disk
mkdir -p "$MNT" "$DISK"
at_end "leave_disk"
at_end "leave_mount '$MNT'"
leave_disk() {
  ! is_mounted "$SUITE_TMP/nested/d" || umount "$SUITE_TMP/nested/d"
  ! is_mounted "$DISK" || umount "$DISK" || umount -l "$DISK"
}
writer() { python3 "$ROOT/tests/lib/fsync_writer.py" "$@"; }

# Shuts the disk's filesystem down without writing what it holds back, as a power cut does. The next
# mount replays its journal.
power_loss() {
  local record=$1 number=$2 pid before
  exits 0 mount_at "$DISK/bucket" "$MNT" --init --no-encryption -o timeout=20
  before=$([ -s "$record" ] && writer count "$record" || echo 0)
  mkdir -p "$MNT/synced"
  python3 -c "import os; os.fsync(os.open('$MNT', os.O_RDONLY))"
  writer write "$MNT/synced" "$record" "$number" 2>"$SUITE_TMP/writer.log" &
  WRITER=$!
  remember_pid $WRITER
  sleep "$(awk -v seed="$number" 'BEGIN {srand(seed * 104729); printf "%.2f", 1 + rand() * 2}')"
  exits 0 bkfs snapshot "$MNT" "before-$number"
  sleep 0.5
  pid=$(daemon_of "$MNT")
  xfs_io -x -c shutdown "$DISK"
  kill -KILL "$pid"
  gone "$pid" 10
  wait "$WRITER" || true
  umount -i -l "$MNT"
  umount "$DISK"
  mount -o loop "$IMAGE" "$DISK"
  # A machine that loses its power also loses the last writes of its caches. The caches here lie
  # elsewhere, so that the case tests the bucket only.
  machine "after-$number"
  exits 0 mount_at "$DISK/bucket" "$MNT" --steal
  writer check "$MNT/synced" "$record"
  [ "$(writer count "$record")" -gt "$before" ] ||
    wrong "nothing was acknowledged in this round: it shows nothing"
  exits 0 bkfs snapshots "$MNT"
  says "before-$number"
  find "$MNT/.snapshots/before-$number" -type f -exec cat {} + >/dev/null
  exits 0 bkfs umount "$MNT"
}

metric() {
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["metrics"][sys.argv[2]])' \
    "$MNT/.bkfs/status" "$1"
}
acknowledged_beyond() { [ -s "$2" ] && [ "$(writer count "$2")" -gt $(($1 + 10)) ]; }
# The same with the disk under the spool, while the store does not answer. With fsync=local, fsync
# is content with the spool.
power_loss_under_spool() {
  local record=$1 number=$2 pid before
  exits 0 mount_at "$URL" "$MNT" -o timeout=60,fsync=local,spool_size=128M
  before=$([ -s "$record" ] && writer count "$record" || echo 0)
  mkdir -p "$MNT/synced"
  python3 -c "import os; os.fsync(os.open('$MNT', os.O_RDONLY))"
  # A mount looks a name up in the tree, which it fetches on demand. The listing fetches what this
  # writer needs before the store stops.
  ls -l "$MNT/synced" >/dev/null
  kill -STOP "$MINIO_PID"
  writer write "$MNT/synced" "$record" "$number" 2>"$SUITE_TMP/writer.log" &
  WRITER=$!
  remember_pid $WRITER
  wait_for 60 acknowledged_beyond "$before" "$record" ||
    wrong "nothing is acknowledged: $(cat "$SUITE_TMP/writer.log")"
  sleep "$(awk -v seed="$number" 'BEGIN {srand(seed * 104729); printf "%.2f", rand()}')"
  [ "$(metric spool_waiting_bytes)" -gt 0 ] || wrong "the spool is empty: it shows nothing"
  pid=$(daemon_of "$MNT")
  xfs_io -x -c shutdown "$DISK"
  kill -KILL "$pid"
  gone "$pid" 10
  wait "$WRITER" || true
  umount -i -l "$MNT"
  kill -CONT "$MINIO_PID"
  umount "$DISK"
  mount -o loop "$IMAGE" "$DISK"
  exits 0 mount_at "$URL" "$MNT"
  says 'replaying [0-9]+ objects'
  writer check "$MNT/synced" "$record"
  exits 0 bkfs snapshot "$MNT" "spooled-$number"
  exits 0 bkfs umount "$MNT"
  # The same on another machine.
  machine "elsewhere-$number"
  exits 0 mount_at "$URL" "$MNT" -o "snapshot=spooled-$number"
  writer check "$MNT/synced" "$record"
  exits 0 bkfs umount "$MNT"
}
# spool_on MACHINE: selects the machine and puts its state on the disk.
spool_on() {
  machine "$1"
  rm -rf "${MACHINE:?}/state"
  mkdir -p "$DISK/state"
  ln -s "$DISK/state" "$MACHINE/state"
}
spooled_round() {
  trap 'kill -CONT "$MINIO_PID"' EXIT
  machine "spool-$KIND"
  power_loss_under_spool "$@"
}

# A tree whose files have times of their own, as a snapshot.
ORIGINAL=$SUITE_TMP/original STORED=$SUITE_TMP/stored
store_original() {
  mkdir -p "$ORIGINAL/d"
  (cd "$ORIGINAL" && head -c 20M /dev/urandom | split -a 4 -b 1K - d/)
  head -c 5M /dev/urandom >"$ORIGINAL/large"
  find "$ORIGINAL" -exec touch -h -d '2021-03-04 05:06:07' {} +
  exits 0 mount_at "$STORED" "$MNT" --init --no-encryption
  cp -a "$ORIGINAL/." "$MNT"
  exits 0 bkfs snapshot "$MNT" original
  exits 0 bkfs umount "$MNT"
}

# dated DIR: one of the files there that have the time of the original. A draft may be gone before
# find(1) looks at its time.
dated() {
  find "$1" -type f ! -name '.bkfs-*' ! -newermt '2021-03-04 05:06:08' 2>/dev/null | head -n 1
}

# The log of the filesystem reaches the disk and contents do not: the power is lost some seconds
# after the last change of a name, in the midst of the restore.
power_loss_under_restore() {
  local number=$1 target=$DISK/target pid restorer path
  rm -rf "$target"
  sync -f "$DISK"
  "$MACHINE/run" "$BKFS_BIN" restore "$STORED" original "$target" >"$SUITE_TMP/restore.log" 2>&1 &
  pid=$!
  remember_pid $pid
  # Some have their times already, and others are written.
  until [ -n "$(dated "$target")" ]; do
    kill -0 $pid || wrong "it has ended: $(cat "$SUITE_TMP/restore.log")"
  done
  # It is a child of the timeout(1) that runs it.
  restorer=$(pgrep -P $pid -x bkfs) || wrong "it has ended"
  kill -STOP "$restorer"
  xfs_io -x -c 'shutdown -f' "$DISK"
  kill -KILL "$restorer"
  wait $pid || true
  umount "$DISK"
  mount -o loop "$IMAGE" "$DISK"
  [ -n "$(dated "$target")" ] || wrong "none has its time: it shows nothing"
  find "$target" -type f ! -newermt '2021-03-04 05:06:08' -printf '%P\n' | while read -r path; do
    cmp "$target/$path" "$ORIGINAL/$path" || wrong "$path has its time and is not whole"
  done
  exits 0 bkfs restore "$STORED" original "$target" --overwrite=if-changed
  diff -r "$ORIGINAL" "$target" || wrong "it went on and is not whole"
  [ -z "$(find "$target" ! -name target -newermt '2021-03-04 05:06:08' | head -n 1)" ] ||
    wrong "other times"
}

# The disk is mounted below the target. The power is lost right after the restore has ended.
power_loss_after_restore() {
  local target=$SUITE_TMP/nested
  rm -rf "$target" "$DISK/target"
  mkdir -p "$target/d" "$DISK/target"
  sync -f "$DISK"
  mount --bind "$DISK/target" "$target/d"
  exits 0 bkfs restore "$STORED" original "$target" --overwrite
  xfs_io -x -c shutdown "$DISK"
  umount "$target/d"
  umount "$DISK"
  mount -o loop "$IMAGE" "$DISK"
  diff -r "$ORIGINAL/d" "$DISK/target" || wrong "what is below another mount is not on its disk"
  [ -z "$(find "$DISK/target" -newermt '2021-03-04 05:06:08' | head -n 1)" ] ||
    wrong "times are not on its disk"
  rm -rf "$target"
}

on_filesystem() {
  local kind=$1 first=$2 count=$3 number # $4: rounds with a spool
  IMAGE=$SUITE_TMP/$kind.image
  truncate -s 400M "$IMAGE"
  case $kind in
    ext4) mkfs.ext4 -q -F "$IMAGE" ;;
    xfs) mkfs.xfs -q -f "$IMAGE" ;;
  esac
  mount -o loop "$IMAGE" "$DISK" || die "cannot mount $kind"
  machine "$kind"
  for number in $(seq "$first" $((first + count - 1))); do
    case_of "power loss under a bucket on $kind, $number" \
      power_loss "$SUITE_TMP/record-$kind" "$number"
  done
  for number in $(seq "$first" $((first + count - 1))); do
    case_of "power loss under a restore on $kind, $number" power_loss_under_restore "$number"
  done
  case_of "power loss after a restore on $kind" power_loss_after_restore
  rm -rf "$DISK/target"
  KIND=$kind
  spool_on "spool-$kind"
  for number in $(seq "$((first + 50))" $((first + 49 + $4))); do
    case_of "power loss under a spool on $kind, $number" \
      spooled_round "$SUITE_TMP/record-spool-$kind" "$number"
  done
  case_of "a check of every byte of the bucket on $kind finds nothing" \
    exits 0 bkfs check --read-data "$DISK/bucket"
  leave_disk
  rm -f "$IMAGE"
}
ROUNDS=2 SPOOLED=1
[ "$FULL" = 0 ] || ROUNDS=10 SPOOLED=5
start_minio
at_end "kill -CONT '$MINIO_PID' 2>/dev/null"
s3_environment "$BKFS_TEST_S3_MINIO"
machine stored
case_of "a tree to restore" store_original
for kind in ext4 xfs; do
  URL=s3://$BKFS_TEST_BUCKET/$kind
  machine "spool-$kind"
  bkfs init --no-encryption "$URL" || die "cannot make a repository"
  case $kind in
    ext4) on_filesystem ext4 1 "$ROUNDS" "$SPOOLED" ;;
    xfs) on_filesystem xfs 101 "$ROUNDS" "$SPOOLED" ;;
  esac
done
exit 0
