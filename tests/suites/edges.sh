#!/usr/bin/env bash
# about: limits of a mount: files of many TiB, many names in one directory, sharing with snapshots,
# about: a store that hangs under a read
# needs: program minio apt:xfsprogs
# limit: 300 2400
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/servers.sh"

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
mkdir -p "$MNT"
at_end "leave_mount '$MNT'"
MIB=$((1 << 20)) TIB=$((1 << 40))
NAMES=20000
[ "$FULL" = 0 ] || NAMES=1000000

# --- files of many TiB ----------------------------------------------------------------------------

# at OFFSET FILE TEXT: writes the text there; text_at OFFSET FILE LENGTH: prints what it reads
# there.
at() { printf '%s' "$3" | dd of="$2" bs=64k oflag=seek_bytes seek="$1" conv=notrunc status=none; }
text_at() {
  dd if="$2" bs=64k iflag=skip_bytes,count_bytes skip="$1" count="$3" status=none | tr '\0' '.'
}
# seek_data FILE: the offsets at which data begins, from SEEK_DATA.
seek_data() { xfs_io -r -c 'seek -a -r 0' "$1" | awk '$1 == "DATA" {print $2}' | paste -sd ' '; }
huge_holds() {
  local file=$1
  [ "$(stat -c %s "$file")" = $((16 * TIB + 5)) ] || wrong "size $(stat -c %s "$file")"
  [ "$(text_at 0 "$file" 5)" = first ] || wrong "the beginning is '$(text_at 0 "$file" 5)'"
  [ "$(text_at $((5 * TIB - 3)) "$file" 12)" = "...far off.." ] ||
    wrong "5 TiB in: '$(text_at $((5 * TIB - 3)) "$file" 12)'"
  [ "$(text_at $((16 * TIB)) "$file" 10)" = last. ] ||
    wrong "the end is '$(text_at $((16 * TIB)) "$file" 10)'"
  [ "$(text_at $((11 * TIB)) "$file" 4)" = "...." ] || wrong "a hole does not read as zeroes"
  [ "$(du -B1 "$file" | cut -f1)" -lt $MIB ] ||
    wrong "it counts for $(du -B1 "$file" | cut -f1) bytes on disk"
  local starts
  starts=$(seek_data "$file")
  # Data may begin anywhere in its block; the holes between must be visible.
  [ "$(wc -w <<<"$starts")" = 3 ] || wrong "data begins at: $starts"
}
huge_file() {
  at 0 "$MNT/huge" first
  at $((5 * TIB)) "$MNT/huge" 'far off'
  at $((11 * TIB)) "$MNT/huge" 'punched out'
  at $((16 * TIB)) "$MNT/huge" last.
  xfs_io -c "fpunch $((11 * TIB - MIB)) $((2 * MIB))" "$MNT/huge"
  huge_holds "$MNT/huge"
  truncate -s $((8192 * TIB)) "$MNT/larger-still"
  exits 0 bkfs snapshot "$MNT" huge
  [ "$(bytes_in "$URL")" -lt $((4 * MIB)) ] ||
    wrong "$(bytes_in "$URL") bytes in the bucket for holes"
  exits 0 bkfs umount "$MNT"
  machine empty
  exits 0 mount_at "$URL" "$MNT"
  huge_holds "$MNT/huge"
  huge_holds "$MNT/.snapshots/huge/huge"
  [ "$(stat -c %s "$MNT/larger-still")" = $((8192 * TIB)) ] ||
    wrong "8 PiB became $(stat -c %s "$MNT/larger-still")"
  rm "$MNT/huge" "$MNT/larger-still"
}

before_the_beginning() {
  echo text >"$MNT/sought"
  python3 - "$MNT/sought" <<'P'
import errno, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
for whence in os.SEEK_DATA, os.SEEK_HOLE:
    for offset in -1, -(1 << 62), 5:
        try:
            found = os.lseek(file, offset, whence)
        except OSError as error:
            assert error.errno == errno.ENXIO, f"{whence} at {offset}: {error}"
        else:
            raise AssertionError(f"{whence} at {offset} is {found}")
P
}

# --- files without their names --------------------------------------------------------------------

handles_survive() {
  local handles
  mkdir -p "$MNT/below/directory"
  echo one >"$MNT/one" && echo two >"$MNT/below/directory/two" && ln "$MNT/one" "$MNT/below/linked"
  mapfile -t handles \
    < <(python3 "$ROOT/tests/posix/handles.py" keep "$MNT/one" "$MNT/below/directory/two")
  exits 0 bkfs umount "$MNT"
  exits 0 mount_at "$URL" "$MNT"
  mv "$MNT/below/directory/two" "$MNT/moved"
  [ "$(python3 "$ROOT/tests/posix/handles.py" open "$MNT" "${handles[@]}")" = $'one\ntwo' ] ||
    wrong "other files"
  rm "$MNT/one" "$MNT/below/linked" "$MNT/moved"
  exits 0 bkfs umount "$MNT"
  exits 0 mount_at "$URL" "$MNT"
  fails_with 'Stale file handle' python3 "$ROOT/tests/posix/handles.py" open "$MNT" "${handles[0]}"
}
# The calls of other filesystems behave as SEMANTICS.md states.
calls_are_as_stated() {
  python3 - "$MNT" <<'P'
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
one, two = (f"{sys.argv[1]}/{name}".encode() for name in ("call-one", "call-two"))
def rename(flag):
    return 0 if libc.renameat2(-100, one, -100, two, flag) == 0 else ctypes.get_errno()
for path in one, two:
    with open(path, "wb") as file:
        file.write(path)
assert rename(1) == errno.EEXIST, "RENAME_NOREPLACE"
assert rename(2) == 0, "RENAME_EXCHANGE"
assert open(one, "rb").read() == two and open(two, "rb").read() == one, "RENAME_EXCHANGE"
assert rename(4) == errno.EINVAL, "RENAME_WHITEOUT"
try:
    os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR)
except OSError as error:
    assert error.errno == errno.EOPNOTSUPP, f"O_TMPFILE: {error}"
else:
    raise AssertionError("O_TMPFILE")
P
}

# --- a directory of many names --------------------------------------------------------------------

# many_names STEP: runs a step, checks its result, and prints its rate.
many_names() {
  python3 - "$MNT/many" "$NAMES" "$1" <<'P'
import os, sys, time
place, names, step = sys.argv[1], int(sys.argv[2]), sys.argv[3]
began, done = time.monotonic(), names
def name(number): return f"{number:07d}-" + "n" * (number % 40)
if step == "create":
    os.mkdir(place)
    for number in range(names):
        os.close(os.open(f"{place}/{name(number)}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
elif step == "list":
    seen = [entry.name for entry in os.scandir(place)]
    assert len(seen) == names, f"{len(seen)} names listed"
    assert set(seen) == {name(number) for number in range(names)}, "other names listed"
elif step == "stat":
    for number in range(names):
        assert os.stat(f"{place}/{name(number)}").st_size == 0
elif step == "rename":
    done = len(range(0, names, 10))
    for number in range(0, names, 10):
        os.rename(f"{place}/{name(number)}", f"{place}/renamed-{number}")
    assert len(os.listdir(place)) == names
elif step == "delete":
    # A listing during deletion returns every stable entry, so deleting while listing empties the
    # directory.
    for entry in os.scandir(place):
        os.unlink(entry.path)
    assert os.listdir(place) == [], "names stay"
    os.rmdir(place)
seconds = time.monotonic() - began
print(f"{step}: {done} names in {seconds:.1f} s, {done / seconds:.0f} per second")
P
}
many_are_made() { many_names create; many_names list; many_names stat; }
many_are_kept() {
  exits 0 bkfs snapshot "$MNT" many
  exits 0 bkfs umount "$MNT"
  machine fresh
  exits 0 mount_at "$URL" "$MNT"
  many_names list
  many_names rename
  [ "$(find "$MNT/.snapshots/many/many" -name 'renamed-*' | wc -l)" = 0 ] ||
    wrong "the snapshot sees the renames"
  [ "$(ls -f "$MNT/.snapshots/many/many" | wc -l)" = $((NAMES + 2)) ] ||
    wrong "the snapshot lists $(ls -f "$MNT/.snapshots/many/many" | wc -l) names"
}
many_are_removed() { many_names delete; }

# --- sharing --------------------------------------------------------------------------------------

copies_share() {
  local before after
  head -c $((48 * MIB)) /dev/urandom >"$MNT/original"
  exits 0 bkfs snapshot "$MNT" shared
  before=$(bytes_in "$URL")
  python3 - "$MNT" <<'P'
import os, sys
place = sys.argv[1]
def copy(source, target, offset, length, at):
    mode = "r+b" if os.path.exists(f"{place}/{target}") else "wb"
    with open(f"{place}/{source}", "rb") as one, open(f"{place}/{target}", mode) as other:
        while length:
            done = os.copy_file_range(one.fileno(), other.fileno(), length, offset, at)
            assert done, "the copy ended early"
            offset, at, length = offset + done, at + done, length - done
copy("original", "from-live", 0, 48 << 20, 0)
copy(".snapshots/shared/original", "from-snapshot", 0, 48 << 20, 0)
# Both offsets lie inside a block.
copy(".snapshots/shared/original", "middle", 1000003, 20 << 20, 77)
P
  cmp "$MNT/original" "$MNT/from-live"
  cmp "$MNT/original" "$MNT/from-snapshot"
  cmp -n $((20 * MIB)) -i 1000003:77 "$MNT/original" "$MNT/middle"
  exits 0 bkfs snapshot "$MNT" copied
  after=$(bytes_in "$URL")
  echo "three copies of together 116 MiB added $((after - before)) bytes"
  [ $((after - before)) -lt $((3 * MIB)) ] || wrong "the copies were stored again"
  # The copies share data, yet stay independent: a write to one does not change the other.
  printf changed | dd of="$MNT/from-snapshot" bs=1 seek=4096 conv=notrunc status=none
  cmp "$MNT/original" "$MNT/.snapshots/shared/original"
  ! cmp -s "$MNT/original" "$MNT/from-snapshot" || wrong "the write to the copy is not seen"
  exits 0 bkfs umount "$MNT"
}

# --- a store that hangs ---------------------------------------------------------------------------

hung_read() {
  local began seconds status=0
  exits 0 bkfs init --no-encryption "$REMOTE"
  exits 0 mount_at "$REMOTE" "$MNT"
  head -c $((4 * MIB)) /dev/urandom >"$MNT/cached"
  head -c $((4 * MIB)) /dev/urandom >"$MNT/uncached"
  sha256sum "$MNT/cached" "$MNT/uncached" >"$SUITE_TMP/sums"
  exits 0 bkfs snapshot "$MNT" whole
  exits 0 bkfs umount "$MNT"
  machine reader
  exits 0 mount_at "$REMOTE" "$MNT" -o timeout=6
  cat "$MNT/cached" >/dev/null
  stat "$MNT/uncached" >/dev/null
  kill -STOP "$MINIO_PID"
  began=$(now_ms)
  cat "$MNT/uncached" >/dev/null 2>"$SUITE_TMP/output" || status=$?
  seconds=$((($(now_ms) - began) / 1000))
  cat "$SUITE_TMP/output"
  echo "the read was given up after $seconds s"
  [ $status != 0 ] || wrong "a read succeeds without a store"
  says 'Input/output error'
  [ $seconds -ge 5 ] && [ $seconds -le 30 ] || wrong "given up after $seconds s with timeout=6"
  # Cached data stays readable, and a failed read poisons nothing.
  echo 1 >/proc/sys/vm/drop_caches
  sha256sum "$MNT/cached" | diff - <(head -n 1 "$SUITE_TMP/sums")
  kill -CONT "$MINIO_PID"
  wait_for 30 sha256sum "$MNT/uncached"
  sha256sum "$MNT/cached" "$MNT/uncached" | diff - "$SUITE_TMP/sums"
  echo written >"$MNT/afterwards"
  exits 0 bkfs snapshot "$MNT" afterwards
  exits 0 bkfs umount "$MNT"
}

machine one
mount_at "$URL" "$MNT" --init --no-encryption || die "cannot mount"
case_of "a file of 16 TiB with holes is written, snapshotted and read on another machine" huge_file
case_of "nothing is sought before the beginning of a file" before_the_beginning
case_of "handles of files lead to them after a rename and another mount" handles_survive
case_of "RENAME_NOREPLACE and RENAME_EXCHANGE work, RENAME_WHITEOUT and O_TMPFILE are refused" \
  calls_are_as_stated
case_of "$NAMES names in one directory are made, listed and found" many_are_made
case_of "they are there on another machine, and in a snapshot whatever happens to the live ones" \
  many_are_kept
case_of "deleting while listing empties the directory" many_are_removed
case_of "copies within the mount and out of snapshots share their contents" copies_share
start_minio
at_end "kill -CONT $MINIO_PID 2>/dev/null"
s3_environment "$BKFS_TEST_S3_MINIO"
REMOTE=s3://$BKFS_TEST_BUCKET/hung
case_of "a hung store fails a single read within the deadline, and cached reads go on" hung_read
exit 0
