#!/usr/bin/env bash
# about: real programs on a mount (git, cargo, SQLite, rsync, tar, cp, logrotate, restic, borg; in
# about: full runs also databases and this project), and the file operations of Elasticsearch's
# about: repository, each checked again from a snapshot on an empty machine
# needs: program apt:git apt:rsync apt:sqlite3 apt:restic apt:borgbackup apt:logrotate
# needs: apt:mariadb-server apt:mariadb-backup apt:mariadb-client apt:sysbench apt:postgresql-15
# needs: apt:pgbackrest
# limit: 300 3600
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/programs.sh"
. "$(dirname "$0")/../lib/mariadb.sh"
. "$(dirname "$0")/../lib/postgres.sh"
. "$(dirname "$0")/../lib/databases.sh"

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount PLAIN=$SUITE_TMP/plain
mkdir -p "$MNT" "$PLAIN"
at_end "leave_mount '$MNT'"

PROGRAMS=(git cargo sqlite rsync tar cp logrotate restic borg elasticsearch)
[ "$FULL" = 0 ] || PROGRAMS+=(project mariabackup mariadbd pgbackrest)

# Each program NAME has use_NAME, which works in $MNT/NAME, and check_NAME, which gets a copy of
# that directory.
use() { mkdir "$MNT/$1" && "use_$1"; }
# checked NAME FROM: checks a copy of the directory in a snapshot.
checked() {
  rm -rf "$PLAIN/copied"
  cp -a --sparse=auto "$2/$1" "$PLAIN/copied"
  "check_$1" "$PLAIN/copied"
}

machine one
mount_at "$URL" "$MNT" --init --no-encryption -o allow_other || die "cannot mount"
trees
for program in "${PROGRAMS[@]}"; do case_of "$program on the mount" use "$program"; done
case_of "snapshot" exits 0 bkfs snapshot "$MNT" used || exit 1
case_of "unmount" exits 0 bkfs umount "$MNT" || exit 1
machine empty
case_of "mount on an empty machine" exits 0 mount_at "$URL" "$MNT" -o allow_other || exit 1
for program in "${PROGRAMS[@]}"; do
  case_of "$program from the snapshot" checked "$program" "$MNT/.snapshots/used"
done
case_of "the bucket is sound" exits 0 bkfs check "$URL" --read-data
exit 0
