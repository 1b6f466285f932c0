# shellcheck shell=bash
# A systemd that runs in namespaces of its own, on a layer above the files of this machine.

BOOTED_ROOT=$SUITE_TMP/booted
# boot: starts it, and fails if it does not come up. What changes files there lies in memory.
boot() {
  mkdir -p "$BOOTED_ROOT" "$SUITE_TMP/boot-layer"
  cat >"$SUITE_TMP/boot" <<'S'
set -eu
root=$1 layer=$2
mount -t tmpfs -o size=1g bkfs-test "$layer"
mkdir "$layer/upper" "$layer/work"
mount -t overlay bkfs-test "$root" -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
for place in run tmp var/lib/bkfs var/cache/bkfs; do
  mkdir -p "$root/$place"
  mount -t tmpfs bkfs-test "$root/$place"
done
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
  mount -t tmpfs bkfs-test "$root/sys/fs/cgroup"
  mkdir "$root/sys/fs/cgroup/systemd" "$root/sys/fs/cgroup/unified"
  mount -t cgroup -o none,name=systemd,xattr cgroup "$root/sys/fs/cgroup/systemd"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/unified"
fi
# Nothing but what the units of bkfs need.
rm -f "$root"/etc/fstab "$root"/etc/systemd/system/*.wants/*
export container=bkfs-test
exec chroot "$root" /lib/systemd/systemd --system --unit=basic.target --log-target=console
S
  unshare --fork --kill-child --mount --pid --uts --ipc --cgroup --propagation private \
    bash "$SUITE_TMP/boot" "$BOOTED_ROOT" "$SUITE_TMP/boot-layer" >"$SUITE_TMP/boot.log" 2>&1 &
  BOOTING=$!
  at_end "kill -KILL $BOOTING"
  wait_for 60 booted_is_up
}
booted_is_up() {
  BOOTED=$(pgrep -P "$BOOTING" | head -n 1)
  [ -n "$BOOTED" ] && inside systemctl is-active -q basic.target
}
# inside COMMAND…: runs it in that system.
inside() {
  nsenter --target "$BOOTED" --all --root --wd env -i HOME=/root LC_ALL=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
