#!/usr/bin/env bash
# about: the disk under the spool or the cache full at any offset, or failing, under mariabackup,
# about: tar and rsync: the backup restores, or bkfs run says that it failed
# needs: program minio apt:mariadb-server apt:mariadb-backup apt:mariadb-client apt:sysbench
# needs: apt:rsync apt:xfsprogs apt:e2fsprogs
# limit: 600 3600
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"
. "$(dirname "$0")/../lib/mariadb.sh"

MNT=$SUITE_TMP/mount SOURCE=$SUITE_TMP/source DISK=$SUITE_TMP/disk IMAGE=$SUITE_TMP/image
mkdir -p "$MNT" "$DISK"
at_end "leave_disk"
at_end "umount -i -l '$MNT' 2>/dev/null"
leave_disk() { ! is_mounted "$DISK" || umount "$DISK" || umount -l "$DISK"; }
metric() {
  python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["metrics"][sys.argv[2]])' \
    "$MNT/.bkfs/status" "$1"
}

# disk_for WHERE KIND: an empty disk of 160 MiB. A failing disk is a filesystem that can be shut
# down. A cache leaves 90 % of the free space alone, so the disk under a full cache is larger (1,200
# MiB), and other files fill it first.
disk_for() {
  leave_disk
  case $1-$2 in
    cache-full)
      truncate -s 1200M "$IMAGE"
      mkfs.ext4 -q -F -m 0 "$IMAGE"
      mount -o loop "$IMAGE" "$DISK"
      ;;
    *-full) mount -t tmpfs -o size=160m,mode=700 none "$DISK" ;;
    *-failing)
      truncate -s 160M "$IMAGE"
      mkfs.ext4 -q -F "$IMAGE"
      mount -o loop "$IMAGE" "$DISK"
      ;;
  esac
}
# left_on_disk MIB: another file takes all but so much of the disk.
left_on_disk() {
  local free
  free=$(df --output=avail -k "$DISK" | tail -n 1)
  fallocate -l "$((free - $1 * 1024))K" "$DISK/other-file"
}
# with_mount WHERE: mounts with the spool or the cache of this machine on the disk. The daemon's
# output is in $SUITE_TMP/daemon.
with_mount() {
  local cache=$MACHINE/bkfs-cache
  case $1 in
    spool)
      rm -rf "${MACHINE:?}/state"
      ln -s "$DISK" "$MACHINE/state"
      ;;
    cache) cache=$DISK ;;
  esac
  bkfs mount -f "$URL" "$MNT" \
    -o "cache_dir=$cache,memory=128M,spool_size=1G,upload_rate=12M,timeout=60" \
    2>"$SUITE_TMP/daemon" &
  DAEMON=$!
  remember_pid $DAEMON
  wait_for 30 is_mounted "$MNT" || wrong "no mount: $(cat "$SUITE_TMP/daemon")"
}
tool() {
  case $1 in
    mariabackup)
      echo "mariabackup --no-defaults --backup --user=root --socket=$MARIADB_SOCKET" \
        "--datadir=$SOURCE --target-dir=$MNT/$2 --parallel=2"
      ;;
    tar) echo "tar -C $SUITE_TMP/files -cf - . | tar -C $MNT/$2 -xf -" ;;
    rsync) echo "rsync -a $SUITE_TMP/files/ $MNT/$2/" ;;
  esac
}
has_struck() {
  case $1 in
    spool-full) grep -qE 'nothing is spooled for a while|No space left' "$SUITE_TMP/daemon" ;;
    spool-failing)
      grep -qE 'nothing more is spooled|cannot be read back|spool .*(error|I/O)' "$SUITE_TMP/daemon"
      ;;
    cache-*) grep -q 'the cache is made smaller' "$SUITE_TMP/daemon" ;;
  esac
}
# restores TOOL NAME: restores on a machine that has nothing.
restores() {
  machine "restore-$2"
  exits 0 bkfs restore --verify "$URL" "$2:/$2" "$SUITE_TMP/restored"
  if [ "$1" = mariabackup ]; then
    mariadb_revive "$SUITE_TMP/restored" "$SUITE_TMP/revived"
    mariadb_checksums >"$SUITE_TMP/checksums-revived"
    mariadb_stop
    rm -rf "$SUITE_TMP/revived" "$SUITE_TMP/revived.run"
    MARIADB_SOCKET=$SOURCE.run/socket
    diff "$SUITE_TMP/checksums" "$SUITE_TMP/checksums-revived" ||
      wrong "tables differ from the source's"
  else
    diff -r "$SUITE_TMP/files" "$SUITE_TMP/restored" || wrong "files differ"
  fi
  rm -rf "$SUITE_TMP/restored" "$MACHINE"
}

# renew TOOL: gives the tool's source bytes that the bucket does not have yet; otherwise nothing
# would need the disk.
renew() {
  case $1 in
    mariabackup)
      sql sbtest -e "UPDATE noise SET value = $NOISE"
      mariadb_checksums >"$SUITE_TMP/checksums"
      ;;
    *) noise_of "$SUITE_TMP/files/noise" 400 ;;
  esac
}
kib=RANDOM_BYTES\(1024\)
NOISE="CONCAT($kib, $kib, $kib, $kib, $kib, $kib, $kib, $kib)"

spool_holds() { [ "$(metric spool_bytes)" -ge $(($1 << 20)) ]; }

noise_of() { head -c "$2M" /dev/urandom >"$1"; }
is_there() {
  exits 0 mount_at "$URL" "$MNT"
  cp "$SUITE_TMP/earlier" "$MNT/earlier"
  exits 0 bkfs umount "$MNT"
}

# strikes TOOL WHERE KIND MIB: the disk under WHERE accepts MIB more, or fails when it holds MIB.
# The tool is much faster than the upload rate allows, so what exceeds the memory goes to the spool.
strikes() {
  local name=$1-$2-$3-$4 status=0 backup
  trap 'leave_case' EXIT
  renew "$1"
  machine "$name"
  disk_for "$2" "$3"
  with_mount "$2"
  [ "$3" = failing ] || left_on_disk "$4"
  mkdir "$MNT/$name"
  BKFS_LIMIT=240 bkfs run --name "$name" "$MNT" -- sh -c "$(tool "$1" "$name")" \
    >"$SUITE_TMP/run" 2>&1 &
  backup=$!
  remember_pid $backup
  case $2-$3 in
    spool-failing)
      wait_for 60 spool_holds "$(($4 + 1))" ||
        wrong "the spool held only $(metric spool_bytes) bytes"
      xfs_io -x -c shutdown "$DISK"
      ;;
    # A backup alone leaves little in the cache: the suite meanwhile reads more than the disk has
    # room for.
    cache-*)
      cmp "$SUITE_TMP/earlier" "$MNT/earlier" || wrong "what was read through a full cache is wrong"
      ;;
    # A spool with less room than one pack holds nothing from the start.
    spool-full)
      [ "$4" -lt 10 ] || wait_for 60 spool_holds 1 ||
        wrong "the spool held only $(metric spool_bytes) bytes"
      ;;
  esac
  wait $backup || status=$?
  tail -n 2 "$SUITE_TMP/run"
  echo "bkfs run ended with $status"
  grep -aE 'WARN|ERROR' "$SUITE_TMP/daemon" | tail -n 5
  has_struck "$2-$3" || wrong "the disk never struck: it shows nothing"
  row "$name" "$status"
  # The disk works again, or is gone. In both cases the mount ends, and the bucket is clean.
  rm -f "$DISK/other-file" 2>/dev/null || true
  bkfs umount "$MNT" >"$SUITE_TMP/output" 2>&1 || bkfs umount --discard "$MNT" ||
    umount -i -l "$MNT"
  gone "$DAEMON" 90 || wrong "the daemon does not end"
  leave_disk
  case $status in
    0) restores "$1" "$name" ;;
    124 | 137 | 139) wrong "bkfs run ended with $status: $(tail -n 1 "$SUITE_TMP/run")" ;;
    *)
      # The tool's own exit code, or 125.
      exits 0 bkfs snapshots "$URL"
      # A snapshot that was refused with an unknown outcome may exist; it then holds what the tool
      # wrote.
      if grep -qw "$name" "$SUITE_TMP/output"; then restores "$1" "$name"; fi
      ;;
  esac
}
# Removes what a case left, so that the next one starts clean.
leave_case() {
  ! is_mounted "$MNT" || umount -i -l "$MNT"
  [ -z "${DAEMON:-}" ] || stop_pid "$DAEMON" KILL
  leave_disk
  [ ! -L "$MACHINE/state" ] || rm "$MACHINE/state"
}

machine here
mariadb_create "$SOURCE" || die "no data directory"
mariadb_start "$SOURCE" || die "the source does not start"
mariadb_load 60000 || die "the source could not be loaded"
note "source: $(mib "$(bytes_in "$SOURCE")") MiB"
mariadb_checksums >"$SUITE_TMP/checksums"
# A copy of the tables; `renew` adds bytes that do not compress.
cp -r "$SOURCE/sbtest" "$SUITE_TMP/files"
sql sbtest -e 'CREATE TABLE noise (id INT PRIMARY KEY, value LONGBLOB) ENGINE=InnoDB;
  INSERT INTO noise SELECT seq, REPEAT(0, 8192) FROM seq_1_to_30000'
start_minio
s3_environment "$BKFS_TEST_S3_MINIO"
URL=s3://$BKFS_TEST_BUCKET/disks
bkfs init --no-encryption "$URL" || die "cannot make a repository"
noise_of "$SUITE_TMP/earlier" 80
case_of "a file is there from an earlier backup" is_there
if [ "$FULL" = 0 ]; then
  case_of "the disk under the spool is full, tar" strikes tar spool full 20
  case_of "the disk under the spool is full, mariabackup" strikes mariabackup spool full 3
  case_of "the disk under the spool fails, rsync" strikes rsync spool failing 9
  case_of "the disk under the cache is full, rsync" strikes rsync cache full 1
else
  number=0
  for offset in 0 1 2 3 5 7 9 12 15 17 20 23 26 30 34 38 42 46 50 55; do
    for name in mariabackup tar rsync; do
      number=$((number + 1))
      case $((number % 4)) in
        0)
          case_of "the disk under the cache is full with $offset MiB left, $name" \
            strikes $name cache full $offset
          ;;
        1)
          case_of "the disk under the spool fails after $offset MiB, $name" \
            strikes $name spool failing $offset
          ;;
        *)
          case_of "the disk under the spool is full with $offset MiB left, $name" \
            strikes $name spool full $offset
          ;;
      esac
    done
  done
fi
print_table
case_of "a check of every byte finds nothing" exits 0 bkfs check --read-data "$URL"
exit 0
