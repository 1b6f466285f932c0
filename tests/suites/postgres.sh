#!/usr/bin/env bash
# about: pg_basebackup onto a mount, plain and tar, verified there and on a second machine, and
# about: started again
# needs: program apt:postgresql-15
# limit: 600 1200
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/postgres.sh"

SOURCE=$SUITE_TMP/source MNT=$SUITE_TMP/mount-one URL=$SUITE_TMP/bucket
scale=15
[ "$FULL" = 0 ] || scale=70

postgres_create "$SOURCE" || die "initdb failed"
postgres_start "$SOURCE" || die "the source does not start"
postgres_load "$scale" || die "the source could not be loaded"
note "source: $(mib "$(bytes_in "$SOURCE")") MiB"
postgres_sums >"$SUITE_TMP/sums" || die "no sums"

machine one
case_of "init and mount" exits 0 mount_at "$URL" "$MNT" --init --no-encryption -o allow_other ||
  exit 1
at_end "leave_mount '$MNT'"

base_backup() {
  as_postgres "$PG_BIN/pg_basebackup" -h "$PG_SOCKET" -U postgres -X stream -c fast "$@"
}
verify() { as_postgres "$PG_BIN/pg_verifybackup" --wal-directory "${2:-$1/pg_wal}" "$1"; }

plain_backup() {
  # Runs as its own user, as a dump job does; the user owns the directory.
  mkdir "$MNT/pg" && chown postgres: "$MNT/pg"
  base_backup -F plain -D "$MNT/pg"
  verify "$MNT/pg"
}
tar_backup() {
  mkdir "$MNT/pg-tar" && chown postgres: "$MNT/pg-tar"
  base_backup -F tar -D "$MNT/pg-tar"
  ls -l "$MNT/pg-tar"
  unpacked "$MNT/pg-tar" "$SUITE_TMP/unpacked"
}
# unpacked TAR-DIRECTORY TARGET: the tar format, unpacked in another directory, passes the same
# verification.
unpacked() {
  rm -rf "$2"
  mkdir -p "$2"
  tar -xf "$1/base.tar" -C "$2"
  tar -xf "$1/pg_wal.tar" -C "$2/pg_wal"
  cp "$1/backup_manifest" "$2/"
  chown -R postgres: "$2"
  verify "$2"
}
# revived DIRECTORY: a server starts on the backup and holds what the source held.
revived() {
  chown -R postgres: "$1"
  postgres_start "$1"
  postgres_sums >"$SUITE_TMP/sums-revived"
  postgres_stop "$1"
  diff "$SUITE_TMP/sums" "$SUITE_TMP/sums-revived" ||
    wrong "the revived server holds something else"
}
unmount() { exits 0 bkfs umount "$MNT" && not_mounted "$MNT"; }

case_of "pg_basebackup -F plain, pg_verifybackup on the mount" plain_backup
case_of "pg_basebackup -F tar, verified when unpacked" tar_backup
case_of "snapshot" exits 0 bkfs snapshot "$MNT" pg-day1
postgres_stop "$SOURCE"
case_of "unmount" unmount

machine two
MNT=$SUITE_TMP/mount-two
mkdir -p "$MNT"
case_of "mount on a second machine" exits 0 mount_at "$URL" "$MNT" -o allow_other
at_end "leave_mount '$MNT'"
case_of "pg_verifybackup inside the snapshot" verify "$MNT/.snapshots/pg-day1/pg"
from_plain() {
  cp -a "$MNT/.snapshots/pg-day1/pg" "$SUITE_TMP/from-plain" && revived "$SUITE_TMP/from-plain"
}
from_tar() {
  unpacked "$MNT/.snapshots/pg-day1/pg-tar" "$SUITE_TMP/from-tar" && revived "$SUITE_TMP/from-tar"
}
case_of "a server starts on the plain backup copied out" from_plain
case_of "a server starts on the tar backup unpacked" from_tar
case_of "unmount the second machine" unmount

machine three
restored() {
  exits 0 bkfs restore "$URL" pg-day1:/pg "$SUITE_TMP/restored" && verify "$SUITE_TMP/restored" &&
    revived "$SUITE_TMP/restored"
}
case_of "bkfs restore, verified and started" restored
exit 0
