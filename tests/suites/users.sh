#!/usr/bin/env bash
# about: an ordinary user's own repository and mount through fusermount3; who is kept out and who is
# about: let in; set-id bits, sticky directories, groups
# needs: program
# limit: 180
. "$(dirname "$0")/../lib/common.sh"
# The suite changes the access to /dev/fuse and fuse.conf for itself only.
in_private_mounts
. "$(dirname "$0")/../lib/bkfs.sh"

OPEN_DEVICE=$SUITE_TMP/fuse CONFIGURATION=$SUITE_TMP/fuse.conf
mknod "$OPEN_DEVICE" c 10 229 && chmod 666 "$OPEN_DEVICE" &&
  mount --bind "$OPEN_DEVICE" /dev/fuse || die "no private /dev/fuse"
[ -e /etc/fuse.conf ] || die "package fuse3 has brought no fuse.conf"
: >"$CONFIGURATION"
chmod 644 "$CONFIGURATION"
mount --bind "$CONFIGURATION" /etc/fuse.conf || die "no private fuse.conf"

# Two users that exist on every Debian.
USER_ID=$(id -u nobody) GROUP_ID=$(id -g nobody)
OTHER_ID=$(id -u daemon) OTHER_GROUP=$(id -g daemon)
SHARED_GROUP=$(getent group games | cut -d: -f3)
as_user() { setpriv --reuid "$USER_ID" --regid "$GROUP_ID" --clear-groups "$@"; }
as_member() { setpriv --reuid "$USER_ID" --regid "$GROUP_ID" --groups "$SHARED_GROUP" "$@"; }
as_other() { setpriv --reuid "$OTHER_ID" --regid "$OTHER_GROUP" --clear-groups "$@"; }
user_bkfs() { as_user "$MACHINE/run" "$BKFS_BIN" "$@"; }
user_machine() { machine "$1" && chown -R "$USER_ID:$GROUP_ID" "$MACHINE"; }

HOME_OF_USER=$SUITE_TMP/user
mkdir "$HOME_OF_USER" && chown "$USER_ID:$GROUP_ID" "$HOME_OF_USER"
URL=$HOME_OF_USER/bucket MNT=$HOME_OF_USER/mount FILES=$SUITE_TMP/files
at_end "! is_mounted '$MNT' || umount -i -l '$MNT'"
user_mount() { exits 0 user_bkfs mount "$URL" "$MNT" -o "cache_dir=$MACHINE/bkfs-cache" "$@"; }

a_users_own() {
  exits 0 user_bkfs mount "$URL" "$MNT" --init --no-encryption -o "cache_dir=$MACHINE/bkfs-cache"
  # root owns the /proc files of a process that dumps no core, and that its user's other processes
  # cannot trace.
  [ "$(stat -c %u "/proc/$(daemon_of "$MNT")/environ")" = 0 ] || wrong "the daemon can be dumped"
  findmnt -n -o OPTIONS "$MNT" | grep -q nosuid ||
    wrong "mounted with $(findmnt -n -o OPTIONS "$MNT")"
  # The source tree may lie where the user cannot look.
  cp -r "$ROOT/src/volume" "$FILES"
  as_user cp -r "$FILES" "$MNT/volume"
  as_user sh -c \
    "umask 077; echo private >'$MNT/private'; mkdir '$MNT/directory'
    ln -s private '$MNT/link'; chmod 751 '$MNT/directory'"
  [ "$(as_user stat -c '%U %a' "$MNT/private")" = "nobody 600" ] ||
    wrong "$(as_user stat -c '%U %a' "$MNT/private")"
  fails_with 'not permitted' as_user chown daemon "$MNT/private"
  exits 0 user_bkfs snapshot "$MNT" own
  exits 0 user_bkfs umount "$MNT"
  not_mounted "$MNT"
  user_machine elsewhere
  user_mount
  as_user diff -r "$FILES" "$MNT/volume"
  as_user diff -r "$FILES" "$MNT/.snapshots/own/volume"
  [ "$(as_user cat "$MNT/link")" = private ]
  [ "$(as_user stat -c '%U %a' "$MNT/directory")" = "nobody 751" ]
  exits 0 user_bkfs umount "$MNT"
  exits 0 user_bkfs restore "$URL" own:/volume "$HOME_OF_USER/restored"
  as_user diff -r "$FILES" "$HOME_OF_USER/restored"
}
others_are_kept_out() {
  user_mount
  as_user chmod 777 "$MNT"
  fails_with 'Permission denied' as_other ls "$MNT"
  fails_with 'Permission denied' as_other touch "$MNT/file"
  # Not even root has access: its programs could be misled by files there.
  fails_with 'Permission denied' ls "$MNT"
  exits 0 user_bkfs umount "$MNT"
}
others_are_let_in() {
  # Only if the machine's administrator allows users to let others in.
  exits 1 user_bkfs mount "$URL" "$MNT" -o allow_other
  clear_message
  says user_allow_other
  not_mounted "$MNT"
  echo user_allow_other >"$CONFIGURATION"
  user_mount -o allow_other
  as_user sh -c "cd '$MNT' && chmod 755 . && echo open >open && chmod 644 open"
  [ "$(as_other cat "$MNT/open")" = open ]
  fails_with 'Permission denied' as_other cat "$MNT/private"
  fails_with 'Permission denied' as_other touch "$MNT/file"
  fails_with 'Permission denied' as_other ls "$MNT/directory"
  fails_with 'Permission denied' as_other sh -c "echo more >>'$MNT/open'"
  # Only the owner reads the mount's own files.
  fails_with 'Permission denied' as_other cat "$MNT/.bkfs/status"
  exits 0 user_bkfs umount "$MNT"
}

# --- a mount of root's, for all users -------------------------------------------------------------

roots_mount() {
  machine root
  URL=$SUITE_TMP/bucket
  mount_at "$URL" "$MNT" --init --no-encryption -o allow_other && chmod 755 "$MNT"
}
set_id_bits() {
  mkdir "$MNT/set-id" && python3 "$ROOT/tests/posix/set_id.py" "$MNT/set-id" "$USER_ID" "$GROUP_ID"
}
# The kernel decides by its cached mode.
set_id_programs() {
  local options
  exits 0 bkfs umount "$MNT"
  for options in suid,dev allow_suid,allow_dev; do
    exits 0 mount_at "$URL" "$MNT" -o "$options,allow_other"
    ! findmnt -n -o OPTIONS "$MNT" | grep -Eq 'nosuid|nodev' ||
      wrong "mounted with $(findmnt -n -o OPTIONS "$MNT")"
    mkdir -p "$MNT/programs"
    sh "$ROOT/tests/posix/set_id_run.sh" "$MNT/programs" "$USER_ID" "$SHARED_GROUP"
    python3 "$ROOT/tests/posix/set_id.py" "$MNT/programs" "$USER_ID" "$GROUP_ID"
    rm -r "$MNT/programs"
    exits 0 bkfs umount "$MNT"
  done
  exits 0 mount_at "$URL" "$MNT" -o allow_other
}
sticky() {
  mkdir -m 1777 "$MNT/sticky"
  as_user touch "$MNT/sticky/users" "$MNT/sticky/moved"
  as_user chmod 666 "$MNT/sticky/users"
  fails_with 'not permitted' as_other rm -f "$MNT/sticky/users"
  fails_with 'not permitted' as_other mv "$MNT/sticky/moved" "$MNT/sticky/taken"
  as_other touch "$MNT/sticky/others"
  fails_with 'not permitted' as_other mv -T "$MNT/sticky/others" "$MNT/sticky/users"
  as_user mv -T "$MNT/sticky/moved" "$MNT/sticky/users"
  as_user rm "$MNT/sticky/users"
  rm "$MNT/sticky/others"
}
groups() {
  mkdir "$MNT/shared"
  chgrp "$SHARED_GROUP" "$MNT/shared"
  chmod 2770 "$MNT/shared"
  fails_with 'Permission denied' as_user ls "$MNT/shared"
  as_member sh -c "mkdir '$MNT/shared/below' && echo text >'$MNT/shared/below/file'"
  [ "$(stat -c '%u:%g %a' "$MNT/shared/below")" = "$USER_ID:$SHARED_GROUP 2755" ] ||
    wrong "$(stat -c '%u:%g %a' "$MNT/shared/below")"
  [ "$(stat -c '%u:%g' "$MNT/shared/below/file")" = "$USER_ID:$SHARED_GROUP" ]
  # A user may change a file's group only to one of their own groups, and set set-group-id only for
  # those.
  as_member chgrp "$SHARED_GROUP" "$MNT/shared/below/file"
  fails_with 'not permitted' as_member chgrp "$OTHER_GROUP" "$MNT/shared/below/file"
  mkdir "$MNT/strange"
  chown "$USER_ID:$SHARED_GROUP" "$MNT/strange"
  install -o "$USER_ID" -g "$SHARED_GROUP" -m 755 /dev/null "$MNT/strange/tool"
  as_user chmod 2755 "$MNT/strange/tool"
  [ "$(stat -c %a "$MNT/strange/tool")" = 755 ] ||
    wrong "set-group-id for a group that the user is not in"
  as_member chmod 2755 "$MNT/strange/tool"
  [ "$(stat -c %a "$MNT/strange/tool")" = 2755 ]
}
kept_elsewhere() {
  find "$MNT" -printf '%P %u %g %m %y\n' | sort >"$SUITE_TMP/seen"
  exits 0 bkfs snapshot "$MNT" all
  exits 0 bkfs umount "$MNT"
  machine another
  exits 0 mount_at "$URL" "$MNT" -o allow_other
  find "$MNT" -printf '%P %u %g %m %y\n' | sort | diff "$SUITE_TMP/seen" -
  find "$MNT/.snapshots/all" -printf '%P %u %g %m %y\n' | sort | diff "$SUITE_TMP/seen" -
  fails_with 'Permission denied' as_user ls "$MNT/.snapshots/all/shared"
  as_member ls "$MNT/.snapshots/all/shared/below"
  exits 0 bkfs umount "$MNT"
}

user_machine own
case_of "an ordinary user mounts a repository of their own, here and on another machine" a_users_own
case_of "others are kept out of it, root included" others_are_kept_out
case_of \
  "with allow_other they are let in, if the administrator allows it, and permissions are enforced" \
  others_are_let_in
roots_mount || die "root cannot mount"
case_of "set-id bits are cleared by whatever changes a file" set_id_bits
case_of "on a mount with suid a changed program runs without its bits at once" set_id_programs
case_of "sticky directories" sticky
case_of "supplementary groups and set-group-id directories" groups
case_of \
  "owners, groups and modes are the same on another machine and in a snapshot, and as binding" \
  kept_elsewhere
exit 0
