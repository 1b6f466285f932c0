# shellcheck shell=bash
# The main job, on any bucket: two full backups of a live database, the removal of everything, and
# the restore on a machine that has nothing but the bucket.

# measured_case NAME FUNCTION…: a case whose time, bucket size and memory go into the table.
measured_case() {
  local name=$1 began status
  began=$(now_ms)
  case_of "$@"
  status=$?
  row "$name" "$(seconds_since "$began")" "$(mib "$(bytes_in "$BUCKET_DATA")")" \
    "$(peak_mib "$PEAK")"
  return $status
}

# Takes the source's checksums of one day: one for every table, none NULL, and different from those
# of the day before.
source_checksums() {
  local file=$SUITE_TMP/checksums-$1
  mariadb_checksums >"$file"
  [ "$(wc -l <"$file")" -gt $((SYSBENCH_TABLES + 6)) ] || wrong "too few tables: $(cat "$file")"
  ! grep NULL "$file" || wrong "a table without a checksum"
  [ "$1" = day1 ] || ! diff -q "$SUITE_TMP/checksums-day1" "$file" ||
    wrong "nothing has changed since day1"
}

back_up() {
  mariadb_backup "$SOURCE" "$MNT/full-$1" >"$SUITE_TMP/backup-$1.log" 2>&1 || {
    tail -n 20 "$SUITE_TMP/backup-$1.log"
    return 1
  }
  tail -n 1 "$SUITE_TMP/backup-$1.log" | grep -q 'completed OK'
}
take_snapshot() { exits 0 bkfs snapshot "$MNT" "$1" && says "$1"; }
remove_all() {
  rm -rf "${MNT:?}"/*
  [ -z "$(ls -A "$MNT")" ] || wrong "left in the live volume: $(ls -A "$MNT")"
  ls "$MNT/.snapshots" | sort | tr '\n' ' ' | grep -qx 'day1 day2 '
}
unmount() {
  local daemon
  daemon=$(daemon_of "$MNT")
  exits 0 bkfs umount "$MNT"
  not_mounted "$MNT" || wrong "still mounted"
  gone "$daemon" 10 || wrong "the daemon outlives the mount"
}

mount_elsewhere() {
  exits 0 mount_at "$URL" "$MNT"
  [ -z "$(ls -A "$MNT")" ] || wrong "the live volume is not empty"
  exits 0 bkfs snapshots "$URL"
  says day1 day2
}

# revived NUMBER BACKUP: a server started on the backup (a writable copy) has the source's tables of
# that day.
revived() {
  local data=$SUITE_TMP/revived
  rm -rf "$data" "$data.run"
  mariadb_revive "$2" "$data"
  mariadb_checksums >"$SUITE_TMP/checksums-revived"
  mariadb_stop
  rm -rf "$data" "$2"
  diff "$SUITE_TMP/checksums-day$1" "$SUITE_TMP/checksums-revived" ||
    wrong "tables differ from the source's of day$1"
}
copy_out() { cp -a "$MNT/.snapshots/day$1/full-$1" "$SUITE_TMP/copied"; }
restore_out() {
  exits 0 measured "$PEAK" "$MACHINE/run" "$BKFS_BIN" restore "$URL" "day$1:/full-$1" \
    "$SUITE_TMP/restored" ${2:+"$2"}
}
second_is_cheap() {
  [ $((SECOND_BYTES * 100)) -le $((FIRST_BYTES * 60)) ] ||
    wrong "the second backup added $SECOND_BYTES bytes, the first $FIRST_BYTES"
}
memory_is_bounded() {
  local peak
  for peak in "$SUITE_TMP"/peak-*; do
    echo "$peak: $(peak_mib "$peak") MiB"
    # The budget is 512 MiB; program text, stacks and the allocator's slack add to it.
    [ "$(peak_mib "$peak")" -le 640 ] || wrong "$(basename "$peak") is $(peak_mib "$peak") MiB"
  done
}

watch_daemon() {
  PEAK=$SUITE_TMP/peak-$1
  wait_for 5 daemon_pid_known || die "no daemon serves $MNT"
  watch_memory "$(daemon_of "$MNT")" "$PEAK"
}
daemon_pid_known() { [ -n "$(daemon_of "$MNT")" ]; }

# main_job: needs URL (the repository, initialised), BUCKET_DATA (the directory of its bytes) and a
# selected machine.
main_job() {
  local rows changes day before
  if [ "$FULL" = 1 ]; then rows=1250000 changes=3000; else rows=320000 changes=800; fi
  SOURCE=$SUITE_TMP/source MNT=$SUITE_TMP/mount-one PEAK=/dev/null
  row step seconds "bucket MiB" "peak MiB so far"

  mariadb_create "$SOURCE" || die "no data directory"
  mariadb_start "$SOURCE" || die "the source does not start"
  mariadb_load "$rows" || die "the source could not be loaded"
  note "source: $(mib "$(bytes_in "$SOURCE")") MiB"
  mkdir -p "$MNT"

  measured_case "mount" exits 0 mount_at "$URL" "$MNT" || return
  at_end "leave_mount '$MNT'"
  watch_daemon one
  case_of "checksums of day1" source_checksums day1
  before=$(bytes_in "$BUCKET_DATA")
  measured_case "first full backup" back_up 1 || return
  measured_case "snapshot day1" take_snapshot day1
  FIRST_BYTES=$(($(bytes_in "$BUCKET_DATA") - before))
  case_of "rows change" mariadb_change "$changes"
  case_of "checksums of day2" source_checksums day2
  before=$(bytes_in "$BUCKET_DATA")
  measured_case "second full backup" back_up 2
  measured_case "snapshot day2" take_snapshot day2
  SECOND_BYTES=$(($(bytes_in "$BUCKET_DATA") - before))
  case_of "the second backup stores what changed" second_is_cheap
  mariadb_stop
  measured_case "everything removed from the live volume" remove_all
  measured_case "unmount" unmount
  come_back
  case_of "memory stays bounded" memory_is_bounded
  print_table
}

# The second machine: another home, an empty cache, another mount point.
come_back() {
  local day
  machine two
  MNT=$SUITE_TMP/mount-two
  mkdir -p "$MNT"
  PEAK=/dev/null
  measured_case "mount on a second machine" mount_elsewhere || return
  at_end "leave_mount '$MNT'"
  watch_daemon two
  for day in 1 2; do
    measured_case "copy day$day out" copy_out "$day"
    measured_case "day$day prepared, copied back, started, compared" revived "$day" \
      "$SUITE_TMP/copied"
  done
  measured_case "unmount the second machine" unmount
  for day in 1 2; do
    machine "three-$day"
    PEAK=$SUITE_TMP/peak-restore-$day
    measured_case "bkfs restore day$day" restore_out "$day" "$([ $day = 1 ] || echo --verify)"
    measured_case "restored day$day prepared, started, compared" revived "$day" \
      "$SUITE_TMP/restored"
  done
}
