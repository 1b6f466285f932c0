#!/bin/sh
# What a program is run as that its group has changed, right after the change and without a look.
#
#   set_id_run.sh DIRECTORY USER GROUP     as root; USER gets GROUP as its only supplementary group
set -eu
directory=$1 user=$2 group=$3
tool=$directory/tool
program=$directory/program
install -m 755 "$(command -v id)" "$program"
as_user() { setpriv --reuid "$user" --regid "$user" --groups "$group" "$@"; }

# way NAME COMMAND: the user runs the program, changes it, and runs it.
way() {
  install -o root -g "$group" -m 775 "$program" "$tool.new"
  chmod 4775 "$tool.new"
  mv "$tool.new" "$tool"
  [ "$(as_user "$tool" -u)" = 0 ] || { echo "$1: set-user-id has no effect"; exit 1; }
  seen=$(as_user env tool="$tool" program="$program" sh -euc "$2
    exec \"\$tool\" -u")
  [ "$seen" = "$user" ] || { echo "$1: the changed program runs as $seen"; exit 1; }
}
way "write" 'dd if="$program" of="$tool" bs=64k conv=notrunc status=none'
way "append" 'printf x >>"$tool"'
way "direct write" 'dd if="$program" of="$tool" bs=4k count=1 conv=notrunc oflag=direct status=none'
way "open with O_TRUNC" 'cat "$program" >"$tool"'
way "truncate" 'truncate -s +1 "$tool"'
way "fallocate" 'fallocate -l 1 -o "$(wc -c <"$tool")" "$tool"'
way "punching" 'fallocate -p -o "$(wc -c <"$tool")" -l 1 "$tool"'
way "copy_file_range" 'python3 -c "
import os, sys
one, other = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_WRONLY)
size = os.fstat(one).st_size
assert os.copy_file_range(one, other, size, 0, 0) == size" "$program" "$tool"'
# A change of the group, by an owner who is not root.
install -o "$user" -g "$user" -m 6755 "$program" "$tool"
[ "$("$tool" -u)" = "$user" ] || { echo "chown: set-user-id has no effect"; exit 1; }
as_user chgrp "$group" "$tool"
[ "$("$tool" -u)" = 0 ] || { echo "chown: the bits stay in effect"; exit 1; }
echo "no changed program kept its set-id bits"
