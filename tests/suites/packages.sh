#!/usr/bin/env bash
# about: the Debian package in a system of its own: installed, upgraded, purged, and a mount there;
# about: in full runs, what the RPM package contains, and a release: the static programs and what is
# about: made of them
# needs: program cargo_deb cargo_rpm release apt:make apt:binutils apt:lintian apt:mmdebstrap
# needs: apt:rpm
# limit: 900 7200
. "$(dirname "$0")/../lib/common.sh"
# The mounts of the other system end with the suite.
in_private_mounts

SYSTEM=$SUITE_TMP/system PACKAGES=$SUITE_TMP/packages
# The packages of a clone: the stage lies in the source tree.
SOURCE=$SUITE_TMP/source
mkdir -p "$SOURCE" "$PACKAGES"
(
  cd "$ROOT" && git ls-files -z --cached --others --exclude-standard |
    tar --null --ignore-failed-read -T - -cf - 2>/dev/null
) | tar -xf - -C "$SOURCE" || die "no copy of the source"

# packed KIND ARGS…: makes a package.
packed() {
  env -u CARGO_TARGET_DIR make -C "$SOURCE/packaging" "$1" BKFS="$BKFS_BIN" OUT="$PACKAGES" \
    CARGO_DEB="$CARGO_DEB" CARGO_RPM="${CARGO_RPM-}" "${@:2}"
}
# inside COMMAND…: runs it in the other system.
inside() {
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    BKFS_TEST_RUN="$BKFS_TEST_RUN" DEBIAN_FRONTEND=noninteractive chroot "$SYSTEM" "$@"
}
version_inside() { inside dpkg-query -W -f='${Version}' bkfs; }

makes_a_debian_package() {
  packed deb
  packed deb REVISION=2
  ls -l "$PACKAGES"
  DEB=$(echo "$PACKAGES"/bkfs_*-1_*.deb)
  lintian --allow-root "$DEB" >"$SUITE_TMP/lintian" 2>&1 || true
  cat "$SUITE_TMP/lintian"
  ! grep '^E:' "$SUITE_TMP/lintian" || wrong "lintian finds errors"
  ! grep 'no-manual-page' "$SUITE_TMP/lintian" || wrong "a program has no page in the manual"
  dpkg-deb -c "$DEB" | awk '{print $6}' >"$SUITE_TMP/files"
  for file in ./usr/bin/bkfs ./sbin/mount.bkfs ./sbin/mount.fuse.bkfs ./sbin/umount.fuse.bkfs \
    ./lib/systemd/system/bkfs@.service ./lib/systemd/system/bkfs-serve.service ./etc/bkfs.toml ./usr/share/man/man1/bkfs.1.gz \
    ./usr/share/man/man5/bkfs.toml.5.gz ./usr/share/man/man8/mount.bkfs.8.gz \
    ./usr/share/man/man8/mount.fuse.bkfs.8.gz ./usr/share/man/man8/umount.fuse.bkfs.8.gz \
    ./usr/share/bash-completion/completions/bkfs ./usr/share/doc/bkfs/copyright; do
    grep -qx "$file" "$SUITE_TMP/files" || wrong "the package lacks $file"
  done
}
# A Debian system with nothing but what the package names.
installs_in_another_system() {
  local mirror
  mirror=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | head -n 1)
  # The lists of packages stay, so that apt finds what the package depends on.
  mmdebstrap --quiet --variant=apt --mode=root --skip=cleanup/apt/lists "$(. /etc/os-release && echo "$VERSION_CODENAME")" \
    "$SYSTEM" "$mirror"
  mount --bind /proc "$SYSTEM/proc"
  mount --bind /dev "$SYSTEM/dev"
  cp "$PACKAGES"/*.deb "$SYSTEM/root/"
  inside sh -c 'apt-get -q -y install --no-install-recommends /root/bkfs_*-1_*.deb'
  inside bkfs --version
  inside test -x /usr/bin/fusermount3
  [ -s "$SYSTEM/etc/bkfs.toml" ] || wrong "no configuration"
}
mounts_in_another_system() {
  mkdir -p "$SYSTEM/backup"
  printf '[repository.local]\nurl = "/bucket"\noptions = "noexec"\n' >"$SYSTEM/etc/bkfs.toml"
  inside bkfs init --no-encryption /bucket
  inside mount -t bkfs local /backup
  inside sh -c 'echo packaged >/backup/file'
  inside bkfs snapshot /backup one
  inside umount /backup
  [ "$(inside bkfs dump local one:/file)" = packaged ] || wrong "the snapshot lacks the file"
}
upgrades_and_keeps_the_configuration() {
  inside mount -t bkfs local /backup
  inside sh -c 'apt-get -q -y install --no-install-recommends /root/bkfs_*-2_*.deb'
  [ "$(version_inside)" = "$(dpkg-deb -f "$PACKAGES"/bkfs_*-2_*.deb Version)" ] ||
    wrong "the version is $(version_inside)"
  grep -q repository.local "$SYSTEM/etc/bkfs.toml" || wrong "the configuration was replaced"
  # A mount lives on through the upgrade.
  inside sh -c 'echo upgraded >/backup/file'
  inside bkfs snapshot /backup two
  inside umount /backup
  [ "$(inside bkfs dump local two:/file)" = upgraded ]
}
is_purged() {
  inside apt-get -q -y purge bkfs
  for file in etc/bkfs.toml usr/bin/bkfs sbin/mount.bkfs lib/systemd/system/bkfs{@,-serve}.service; do
    [ ! -e "$SYSTEM/$file" ] || wrong "$file is left"
  done
  # What holds data that may not be in the bucket is nothing that a package manager removes.
  [ -d "$SYSTEM/var/lib/bkfs" ] || wrong "the state directory is gone"
}
makes_an_rpm_package() {
  packed rpm
  RPM=$(echo "$PACKAGES"/*.rpm)
  rpm -qpl "$RPM" >"$SUITE_TMP/files"
  for file in /usr/bin/bkfs /usr/sbin/mount.bkfs /usr/sbin/mount.fuse.bkfs \
    /usr/sbin/umount.fuse.bkfs /usr/lib/systemd/system/bkfs@.service /usr/lib/systemd/system/bkfs-serve.service /etc/bkfs.toml \
    /usr/share/man/man1/bkfs.1.gz /usr/share/man/man5/bkfs.toml.5.gz \
    /usr/share/man/man8/mount.bkfs.8.gz /usr/share/licenses/bkfs/LICENSE-MIT; do
    grep -qx "$file" "$SUITE_TMP/files" || wrong "the package lacks $file"
  done
  rpm -qp --requires "$RPM" >"$SUITE_TMP/requires"
  grep -q '^fuse3' "$SUITE_TMP/requires" || wrong "it does not require fuse3"
  grep -q '^libc.so.6' "$SUITE_TMP/requires" || wrong "it does not require its libraries"
  [ "$(rpm -qpc "$RPM")" = /etc/bkfs.toml ] || wrong "the configuration is none"
}

case_of "make deb: a package without an error of lintian" makes_a_debian_package
[ $? = 0 ] || exit 1
case_of "it installs in a Debian system of its own" installs_in_another_system
[ $? = 0 ] || exit 1
case_of "mount -t bkfs there, by the name of a profile" mounts_in_another_system
case_of "an upgrade keeps the configuration and the mount" upgrades_and_keeps_the_configuration
case_of "a purge leaves nothing but the state directory" is_purged
[ "$FULL" = 1 ] || exit 0
case_of "make rpm: a package with the files and what it needs" makes_an_rpm_package
. "$ROOT/tests/lib/bkfs.sh"
. "$ROOT/tests/lib/release.sh"
release_cases
exit 0
