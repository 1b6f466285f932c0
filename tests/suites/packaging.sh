#!/usr/bin/env bash
# about: the install target, mount -t bkfs and an fstab line through /sbin/mount.bkfs, umount(8)
# about: draining through /sbin/umount.fuse.bkfs
# needs: program apt:make apt:systemd apt:curl
# limit: 300
. "$(dirname "$0")/../lib/common.sh"
# mount(8) looks for helpers in /sbin. A copy-on-write layer over /usr holds them, for this suite
# only.
in_private_mounts
. "$(dirname "$0")/../lib/bkfs.sh"

LAYER=$SUITE_TMP/layer
mkdir -p "$LAYER"
mount -t tmpfs -o size=512m bkfs-test "$LAYER" && mkdir "$LAYER/upper" "$LAYER/work" &&
  mount -t overlay -o "lowerdir=/usr,upperdir=$LAYER/upper,workdir=$LAYER/work" bkfs-test /usr ||
    die "no private layer over /usr"
cp /etc/fstab "$SUITE_TMP/fstab" 2>/dev/null || : >"$SUITE_TMP/fstab"
[ -e /etc/fstab ] || touch /etc/fstab
mount --bind "$SUITE_TMP/fstab" /etc/fstab || die "no private fstab"

machine one
URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
mkdir -p "$MNT"
at_end "leave_mount '$MNT'"
tool() { "$MACHINE/run" "$@"; }
options="cache_dir=$MACHINE/bkfs-cache"

# in_bucket NAME TEXT: a reader on another machine finds the file in the bucket.
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
  test -x /sbin/mount.bkfs && test -x /sbin/mount.fuse.bkfs && test -x /sbin/umount.fuse.bkfs
  exits 0 tool bkfs --version
}
mounts_by_type() {
  exits 0 bkfs init --no-encryption "$URL"
  exits 0 tool mount -t bkfs "$URL" "$MNT" -o "$options"
  [ "$(findmnt -n -o FSTYPE "$MNT")" = fuse.bkfs ] ||
    wrong "the type is $(findmnt -n -o FSTYPE "$MNT")"
}
# The type that findmnt(8) and /proc/mounts show is accepted as well.
mounts_by_the_shown_type() {
  exits 0 tool mount -t fuse.bkfs "$URL" "$MNT" -o "$options"
  [ "$(findmnt -n -o FSTYPE "$MNT")" = fuse.bkfs ] ||
    wrong "the type is $(findmnt -n -o FSTYPE "$MNT")"
  [ "$(findmnt -n -o SOURCE "$MNT")" = "$URL" ]
  echo shown >"$MNT/by-shown-type"
  exits 0 tool umount "$MNT"
  in_bucket by-shown-type shown || wrong "not in the bucket when umount(8) returned"
  cp /etc/fstab "$SUITE_TMP/fstab.before"
  echo "$URL $MNT fuse.bkfs noauto,_netdev,nofail,$options 0 0" >>/etc/fstab
  exits 0 tool mount "$MNT"
  exits 0 tool umount "$MNT"
  cat "$SUITE_TMP/fstab.before" >/etc/fstab
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
  # noauto: -a mounts nothing.
  exits 0 tool mount -a -t bkfs
  not_mounted "$MNT"
  sed "s|^$URL .*|$URL $MNT bkfs ro,_netdev,$options 0 0|" /etc/fstab >"$SUITE_TMP/fstab.new"
  cat "$SUITE_TMP/fstab.new" >/etc/fstab
  exits 0 tool mount -a -t bkfs
  fails_with 'Read-only file system' touch "$MNT/file"
  exits 0 tool umount "$MNT"
  # mount(8) passes neither suid nor dev to its helpers.
  sed "s|^$URL .*|$URL $MNT bkfs noauto,allow_suid,allow_dev,$options 0 0|" /etc/fstab \
    >"$SUITE_TMP/fstab.new"
  cat "$SUITE_TMP/fstab.new" >/etc/fstab
  exits 0 tool mount "$MNT"
  ! findmnt -n -o OPTIONS "$MNT" | grep -Eq 'nosuid|nodev' ||
    wrong "mounted with $(findmnt -n -o OPTIONS "$MNT")"
  exits 0 tool umount "$MNT"
  exits 0 tool mount "$MNT" -o nosuid
  findmnt -n -o OPTIONS "$MNT" | grep -q nosuid ||
    wrong "mounted with $(findmnt -n -o OPTIONS "$MNT")"
  exits 0 tool umount "$MNT"
}
# No systemd runs here to start the unit. The case checks that systemd would accept it, and that its
# commands work.
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
# systemd's own measure bounds the rights of the service. The unit has no option that gives it its
# own mount namespace: the mount would be visible in that namespace only.
unit_is_confined() {
  local unit=/usr/local/lib/systemd/system/bkfs@.service
  local private='(Private(Tmp|Devices|Mounts|IPC)|Protect(System|Home|KernelTunables'
  private+='|KernelModules|KernelLogs|ControlGroups|Proc)|ProcSubset|Root(Directory|Image)'
  private+='|(ReadWrite|ReadOnly|Inaccessible|Exec|NoExec|Bind|BindReadOnly)Paths'
  private+='|TemporaryFileSystem|MountImages|ExtensionImages|ExtensionDirectories'
  private+='|MountAPIVFS|LogNamespace|DynamicUser)='
  cp "$unit" "$SUITE_TMP/bkfs@test.service"
  exits 0 systemd-analyze security --offline=true --threshold=45 "$SUITE_TMP/bkfs@test.service"
  grep -q '^LimitCORE=0$' "$unit" || wrong "a core dump would hold keys"
  ! grep -E "^$private" "$unit" || wrong "the mount would be invisible"
}
# Its commands, as systemd would run them. It needs no mount namespace of the machine.
page_unit_is_sound() {
  local unit=/usr/local/lib/systemd/system/bkfs-serve.service line socket=$SUITE_TMP/page.sock
  exits 0 systemd-analyze verify --man=no --recursive-errors=no "$unit"
  [ ! -s "$SUITE_TMP/output" ] || wrong "systemd complains: $(cat "$SUITE_TMP/output")"
  exits 0 systemd-analyze security --offline=true --threshold=30 "$unit"
  line=$(sed -n 's/^ExecStart=//p' "$unit")
  BKFS_SERVE="$URL --listen $socket" tool sh -c "exec $line" >"$SUITE_TMP/page.out" 2>&1 &
  remember_pid $!
  at_end "stop_pid $!"
  wait_for 30 test -S "$socket" || wrong "no page: $(cat "$SUITE_TMP/page.out")"
  curl -fsS --unix-socket "$socket" http://localhost/ | grep -qF "$URL" || wrong "it shows nothing"
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

# told_to_end SECONDS: sends TERM to the daemon, which ends within this time.
told_to_end() {
  kill -TERM "$DAEMON"
  gone "$DAEMON" "$1" || wrong "the daemon does not end"
}
# mounted_with OPTIONS NAME: mounts with these options, and writes a file that must be in the bucket
# at the end.
mounted_with() {
  exits 0 tool mount -t bkfs "$URL" "$MNT" -o "$options,$1"
  DAEMON=$(daemon_of "$MNT")
  echo "$2" >"$MNT/$2"
}
signal_with_an_open_file() {
  mounted_with drain=2 by-open-file
  exec 7>"$MNT/open-file"
  told_to_end 12
  exec 7>&- || true
  not_mounted "$MNT"
  in_bucket by-open-file by-open-file || wrong "what was closed is lost"
}
signal_beneath_another_mount() {
  mounted_with drain=2 by-cover
  mount -t tmpfs foreign "$MNT"
  told_to_end 12
  [ "$(findmnt -n -o SOURCE "$MNT" | tail -n 1)" = foreign ] || wrong "the foreign mount is gone"
  umount "$MNT"
  umount -i -l "$MNT"
  in_bucket by-cover by-cover || wrong "what was closed is lost"
}
signal_with_copies_elsewhere() {
  local bound=$SUITE_TMP/bound other
  mkdir -p "$bound"
  mounted_with drain=2 by-copies
  mount --bind "$MNT" "$bound"
  unshare --mount --propagation private sleep 60 &
  other=$!
  remember_pid $other
  sleep 0.5
  told_to_end 12
  not_mounted "$MNT"
  is_mounted "$bound" || wrong "the bind mount was unmounted"
  umount -i -l "$bound"
  stop_pid $other
  in_bucket by-copies by-copies || wrong "what was closed is lost"
}
third_signal_ends_at_once() {
  local began=$SECONDS
  mounted_with drain=600 by-third
  exec 7>"$MNT/open-file"
  for _ in 1 2; do kill -TERM "$DAEMON"; sleep 0.7; done
  not_mounted "$MNT" || wrong "the second signal does not detach the mount"
  kill -0 "$DAEMON" || wrong "it ended with a file open"
  told_to_end 10
  exec 7>&- || true
  echo "three signals took $((SECONDS - began)) s"
}

case_of "the install target brings program and helpers" installs || exit 1
case_of "mount -t bkfs" mounts_by_type
case_of "umount(8) returns when everything is in the bucket" umount_drains
case_of "mount -t fuse.bkfs, and a line of fstab with it" mounts_by_the_shown_type
case_of "an fstab line, by mount point and by -a, noauto, ro and allow_suid" fstab_line
case_of "the unit for systemd is sound" unit_is_sound
case_of "the unit for systemd is confined" unit_is_confined
case_of "the unit of the page is sound, confined, and shows the page" page_unit_is_sound
case_of "mount(8) shows why the daemon did not start" says_why
case_of "umount -l returns at once and the daemon drains" lazy_unmount_drains_behind "umount -l"
case_of "umount -i returns at once and the daemon drains" lazy_unmount_drains_behind "umount -i"
case_of "fusermount3 -u returns at once and the daemon drains" lazy_unmount_drains_behind \
  "fusermount3 -u"
case_of "a signal ends a mount with an open file, by drain= and a little" signal_with_an_open_file
case_of "a signal leaves what is mounted over the mount" signal_beneath_another_mount
case_of "a signal unmounts neither bind mounts nor copies in other namespaces" \
  signal_with_copies_elsewhere
case_of "the second signal detaches, and the third ends at once" third_signal_ends_at_once
exit 0
