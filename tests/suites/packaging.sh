#!/usr/bin/env bash
# about: the install target, mount -t bkfs and an fstab line through /sbin/mount.bkfs, umount(8) draining through /sbin/umount.fuse.bkfs
# needs: program apt:make apt:systemd
# limit: 300
. "$(dirname "$0")/../lib/common.sh"
# The helpers belong in /sbin, where mount(8) looks: a copy-on-write layer over /usr takes them, for this suite only.
in_private_mounts
. "$(dirname "$0")/../lib/bkfs.sh"

LAYER=$SUITE_TMP/layer
mkdir -p "$LAYER"
mount -t tmpfs -o size=512m bkfs-test "$LAYER" && mkdir "$LAYER/upper" "$LAYER/work" &&
  mount -t overlay -o "lowerdir=/usr,upperdir=$LAYER/upper,workdir=$LAYER/work" bkfs-test /usr || die "no private layer over /usr"
cp /etc/fstab "$SUITE_TMP/fstab" 2>/dev/null || : >"$SUITE_TMP/fstab"
[ -e /etc/fstab ] || touch /etc/fstab
mount --bind "$SUITE_TMP/fstab" /etc/fstab || die "no private fstab"

machine one
URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
mkdir -p "$MNT"
at_end "leave_mount '$MNT'"
tool() { "$MACHINE/run" "$@"; }
options="cache_dir=$MACHINE/bkfs-cache"

# holds NAME TEXT: a reader on another machine finds it in the bucket.
in_bucket() {
  local place=$SUITE_TMP/reader text=
  mkdir -p "$place"
  machine reader
  bkfs mount "$URL" "$place" -o "ro,cache_dir=$MACHINE/bkfs-cache" || return 1
  text=$(cat "$place/$1" 2>/dev/null)
  bkfs umount "$place"
  machine one
  [ "$text" = "$2" ]
}

installs() {
  exits 0 make -C "$ROOT/packaging" install BKFS="$BKFS_BIN"
  test -x /sbin/mount.bkfs && test -x /sbin/umount.fuse.bkfs
  exits 0 tool bkfs --version
}
mounts_by_type() {
  exits 0 bkfs init --no-encryption "$URL"
  exits 0 tool mount -t bkfs "$URL" "$MNT" -o "$options"
  [ "$(findmnt -n -o FSTYPE "$MNT")" = fuse.bkfs ] || wrong "the type is $(findmnt -n -o FSTYPE "$MNT")"
}
umount_drains() {
  echo drained >"$MNT/by-umount"
  head -c 20000000 /dev/urandom >"$MNT/large"
  exits 0 tool umount "$MNT"
  not_mounted "$MNT"
  in_bucket by-umount drained || wrong "not in the bucket when umount(8) returned"
}
fstab_line() {
  echo "$URL $MNT bkfs noauto,_netdev,nofail,x-systemd.automount,$options 0 0" >>/etc/fstab
  exits 0 tool mount "$MNT"
  echo fstab >"$MNT/by-fstab"
  exits 0 tool umount "$MNT"
  in_bucket by-fstab fstab || wrong "not in the bucket"
  # noauto: nothing is mounted by -a.
  exits 0 tool mount -a -t bkfs
  not_mounted "$MNT"
  sed "s|^$URL .*|$URL $MNT bkfs ro,_netdev,$options 0 0|" /etc/fstab >"$SUITE_TMP/fstab.new"
  cat "$SUITE_TMP/fstab.new" >/etc/fstab
  exits 0 tool mount -a -t bkfs
  fails_with 'Read-only file system' touch "$MNT/file"
  exits 0 tool umount "$MNT"
}
# There is no systemd to start it here; what can be seen without one is that it would be taken, and that its commands work.
unit_is_sound() {
  local unit=/usr/local/lib/systemd/system/bkfs@.service line
  cp "$unit" "$SUITE_TMP/bkfs@test.service"
  exits 0 systemd-analyze verify --man=no --recursive-errors=no "$SUITE_TMP/bkfs@test.service"
  [ ! -s "$SUITE_TMP/output" ] || wrong "systemd complains: $(cat "$SUITE_TMP/output")"
  export BKFS_URL=$URL BKFS_MOUNTPOINT=$MNT BKFS_OPTIONS=$options
  line=$(sed -n 's/^ExecStart=//p' "$unit")
  exits 0 tool sh -c "$line"
  echo unit >"$MNT/by-unit"
  line=$(sed -n 's/^ExecStop=//p' "$unit")
  exits 0 tool sh -c "$line"
  in_bucket by-unit unit || wrong "not in the bucket"
}
says_why() {
  exits_not_0 tool mount -t bkfs "$SUITE_TMP/absent" "$MNT" -o "$options"
  clear_message
  says "$SUITE_TMP/absent"
  exits_not_0 tool mount -t bkfs "$URL" "$MNT" -o "$options,surprise=1"
  says surprise
  not_mounted "$MNT"
}
exits_not_0() {
  local status
  set +e
  (set +e; trap - ERR; "$@") >"$SUITE_TMP/output" 2>&1 </dev/null
  status=$?
  set -e
  cat "$SUITE_TMP/output"
  [ "$status" != 0 ] || wrong "succeeded: $*"
}
lazy_unmount_drains_behind() {
  local how=$1 name=by-${1// /-} began daemon
  exits 0 tool mount -t bkfs "$URL" "$MNT" -o "$options"
  daemon=$(daemon_of "$MNT")
  head -c 20000000 /dev/urandom >"$MNT/large-$name"
  echo lazily >"$MNT/$name"
  began=$SECONDS
  exits 0 tool $how "$MNT"
  [ $((SECONDS - began)) -lt 10 ] || wrong "took $((SECONDS - began)) s"
  not_mounted "$MNT"
  gone "$daemon" 60 || wrong "the daemon does not end"
  in_bucket "$name" lazily || wrong "the daemon did not drain behind it"
}

case_of "the install target brings program and helpers" installs || exit 1
case_of "mount -t bkfs" mounts_by_type
case_of "umount(8) returns when everything is in the bucket" umount_drains
case_of "an fstab line, by mount point and by -a, noauto and ro" fstab_line
case_of "the unit for systemd is sound" unit_is_sound
case_of "mount(8) shows why the daemon did not start" says_why
case_of "umount -l returns at once and the daemon drains" lazy_unmount_drains_behind "umount -l"
case_of "umount -i returns at once and the daemon drains" lazy_unmount_drains_behind "umount -i"
case_of "fusermount3 -u returns at once and the daemon drains" lazy_unmount_drains_behind "fusermount3 -u"
exit 0
