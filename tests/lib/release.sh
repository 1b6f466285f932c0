# shellcheck shell=bash
# The cases of a release: what `make dist` builds, the static program alone in an empty root
# directory, its names, its packages and its image. The suite `packages` sources this file in full
# runs, and owns $SOURCE, $SYSTEM and `inside`.

RELEASE=$SUITE_TMP/release ALONE=$SUITE_TMP/alone
VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$ROOT/Cargo.toml" | head -n 1)
STATIC=$RELEASE/bkfs-$VERSION-x86_64-linux
SIZE_BYTES_MAX=$((20 * 1024 * 1024))
STORAGE="--storage-driver vfs --root $SUITE_TMP/images --runroot $SUITE_TMP/images-run"
image_tool() {
  # shellcheck disable=SC2086
  buildah $STORAGE "$@"
}
at_end "leave_root; image_tool rm --all >/dev/null"

# released ARCH ARGS…: makes a release. What cargo compiles outlives the run, so it compiles the
# tree itself and not its copy.
released() {
  make -C "$SOURCE/packaging" dist ARCH="$1" OUT="$RELEASE" CARGO_DEB="$CARGO_DEB" \
    CARGO_RPM="$CARGO_RPM" BUILDAH="buildah $STORAGE" TREE="$ROOT" \
    TARGET_DIR="$CARGO_TARGET_DIR" "${@:2}"
}
makes_a_release() {
  released x86_64
  ls -l "$RELEASE"
  for name in "bkfs-$VERSION-x86_64-linux" "bkfs_$VERSION-1_amd64.deb" \
    "bkfs-$VERSION-1.x86_64.rpm" "bkfs-$VERSION-x86_64.oci.tar"; do
    [ -s "$RELEASE/$name" ] || wrong "there is no $name"
    grep -qF "  $name" "$RELEASE/SHA256SUMS" || wrong "SHA256SUMS lacks $name"
  done
  (cd "$RELEASE" && sha256sum --check --strict SHA256SUMS)
}
is_static_and_small() {
  local size kind
  kind=$(file "$1")
  echo "$kind"
  [[ $kind == *"$2"* ]] || wrong "another processor: $kind"
  [[ $kind == *stat*linked* && $kind == *" stripped"* ]] || wrong "$kind"
  ! readelf -l "$1" | grep -q INTERP || wrong "it has a loader"
  ! readelf -d "$1" | grep -q NEEDED || wrong "it needs libraries"
  size=$(stat -c %s "$1")
  echo "$size bytes, $(mib "$size") MiB"
  [ "$size" -le "$SIZE_BYTES_MAX" ] || wrong "it has $(mib "$size") MiB"
  ! grep -aqF "${CARGO_HOME:-$HOME/.cargo}/registry" "$1" || wrong "it holds paths of this machine"
}

# alone ARGS…: the program in a root directory with nothing else but what a case puts there.
alone() { env -i "${VARIABLES[@]}" "$CHROOT" "$ALONE" /bkfs "$@"; }
CHROOT=$(command -v chroot)
VARIABLES=(HOME=/)
leave_root() { umount -l "$ALONE/backup" "$ALONE/proc" 2>/dev/null || true; }
empty_root() {
  leave_root
  rm -rf --one-file-system "$ALONE"
  mkdir -p "$ALONE"
  cp "$STATIC" "$ALONE/bkfs"
}
# stores_and_restores PROGRAM…: by this program, in the root directory $ALONE.
stores_and_restores() {
  exits 0 "$@" --version
  says "bkfs $VERSION"
  exits 0 "$@" init --no-encryption /bucket
  head -c 3000000 /dev/urandom >"$ALONE/noise"
  exits 0 "$@" put /bucket directory/noise /noise
  exits 0 "$@" restore /bucket --volume streams latest:/directory /restored
  cmp "$ALONE/noise" "$ALONE/restored/noise"
  exits 0 "$@" check --read-data /bucket
}
works_in_an_empty_root() {
  empty_root
  stores_and_restores alone
}
# The kernel's files are what every mount needs. The program needs no helper to mount as root.
mounts_in_an_empty_root() {
  mkdir -p "$ALONE/dev" "$ALONE/proc" "$ALONE/backup"
  mknod "$ALONE/dev/fuse" c 10 229
  mknod "$ALONE/dev/null" c 1 3
  mount -t proc proc "$ALONE/proc"
  exits 0 alone mount /bucket /backup
  [ "$(findmnt -n -o FSTYPE "$ALONE/backup")" = fuse.bkfs ] || wrong "nothing is mounted"
  echo alone >"$ALONE/backup/file"
  exits 0 alone snapshot /backup one
  exits 0 alone umount /backup
  umount "$ALONE/proc"
  exits 0 alone dump /bucket one:/file
  says '^alone$'
}

# --- names ----------------------------------------------------------------------------------------

DNS=127.53.83.11 ASKED=$SUITE_TMP/asked PORT=
start_names() {
  python3 "$ROOT/tests/lib/names.py" "$DNS" "$SUITE_TMP/port" "$ASKED" \
    minio.corp.test long.corp.test &
  remember_pid $!
  at_end "stop_pid $!"
  wait_for 20 test -s "$SUITE_TMP/port" || die "the servers for names do not start"
  PORT=$(cat "$SUITE_TMP/port")
}
# with_names FUNCTION: runs a case with an empty root directory and credentials.
with_names() {
  : >"$ASKED"
  VARIABLES=(HOME=/ AWS_ACCESS_KEY_ID=id AWS_SECRET_ACCESS_KEY=secret AWS_REGION=us-east-1)
  empty_root
  mkdir "$ALONE/etc"
  # glibc's resolver would find nothing by this file.
  echo 'hosts: absent' >"$ALONE/etc/nsswitch.conf"
  "$@"
}
# reaches NAME: the program reaches the web server under this name.
reaches() {
  VARIABLES+=("AWS_ENDPOINT_URL=http://$1:$PORT")
  exits 1 alone snapshots s3://bucket/prefix
  says 'denied|permission|credential'
  grep -qxF "http $1:$PORT" "$ASKED" || wrong "the server was not asked: $(cat "$ASKED")"
}
asks_no_server() { ! grep -E '^(udp|tcp) ' "$ASKED" || wrong "a DNS server was asked"; }
# reaches_not NAME: no address is found, soon.
reaches_not() {
  local began=$SECONDS
  VARIABLES+=("AWS_ENDPOINT_URL=http://$1:$PORT")
  exits 1 alone snapshots s3://bucket/prefix
  [ $((SECONDS - began)) -le 10 ] || wrong "took $((SECONDS - began)) s"
  ! grep '^http ' "$ASKED" || wrong "a server was asked"
}
names_in_hosts() {
  # The search list and the server would be asked, were the file not looked at first.
  printf 'search corp.test\nnameserver %s\n' "$DNS" >"$ALONE/etc/resolv.conf"
  echo '127.0.0.1 store store.example' >"$ALONE/etc/hosts"
  reaches store
  asks_no_server
}
localhost_without_a_file() {
  reaches localhost
  asks_no_server
}
names_of_a_server() {
  printf 'nameserver %s\n' "$DNS" >"$ALONE/etc/resolv.conf"
  reaches minio.corp.test
  grep -qx 'udp minio.corp.test' "$ASKED" || wrong "$(cat "$ASKED")"
}
names_in_the_search_list() {
  printf 'search absent.test corp.test\nnameserver %s\n' "$DNS" >"$ALONE/etc/resolv.conf"
  reaches minio
}
long_answers_come_by_tcp() {
  printf 'nameserver %s\n' "$DNS" >"$ALONE/etc/resolv.conf"
  reaches long.corp.test
  grep -qx 'tcp long.corp.test' "$ASKED" || wrong "$(cat "$ASKED")"
}
names_of_the_second_server() {
  printf 'nameserver 127.53.83.12\nnameserver %s\n' "$DNS" >"$ALONE/etc/resolv.conf"
  reaches minio.corp.test
}
unknown_names() {
  printf 'nameserver %s\n' "$DNS" >"$ALONE/etc/resolv.conf"
  reaches_not nowhere.corp.test
  says 'the name nowhere.corp.test is neither in /etc/hosts nor known' '--wait'
}
no_server_for_names() {
  printf 'nameserver 127.53.83.12\n' >"$ALONE/etc/resolv.conf"
  reaches_not minio.corp.test
  says 'DNS servers of /etc/resolv.conf do not tell the address of minio.corp.test'
}
names_that_come_later() {
  local waiting
  printf 'nameserver %s\n' "$DNS" >"$ALONE/etc/resolv.conf"
  VARIABLES+=("AWS_ENDPOINT_URL=http://later.corp.test:$PORT")
  alone --wait snapshots s3://bucket/prefix >"$SUITE_TMP/later" 2>&1 &
  waiting=$!
  remember_pid $waiting
  wait_for 20 grep -q '^udp later.corp.test' "$ASKED" || wrong "no server was asked"
  kill -0 $waiting || wrong "it does not wait: $(cat "$SUITE_TMP/later")"
  echo '127.0.0.1 later.corp.test' >"$ALONE/etc/hosts"
  wait_for 60 grep -qx "http later.corp.test:$PORT" "$ASKED" || {
    stop_pid $waiting
    wrong "the changed file is not read: $(cat "$SUITE_TMP/later")"
  }
  gone $waiting 20
}
https_without_authorities() {
  VARIABLES+=(AWS_ENDPOINT_URL=https://localhost:9)
  exits 1 alone snapshots s3://bucket/prefix
  says 'no certificates of authorities' 'ca-certificates' SSL_CERT_FILE
}

# --- packages and image ---------------------------------------------------------------------------

static_debian_package() {
  local deb=$RELEASE/bkfs_$VERSION-1_amd64.deb
  lintian --allow-root "$deb" >"$SUITE_TMP/lintian" 2>&1 || true
  # The program is static on purpose.
  ! grep '^E:' "$SUITE_TMP/lintian" | grep -v statically-linked-binary || wrong "lintian: errors"
  [ "$(dpkg-deb -f "$deb" Depends)" = fuse3 ] || wrong "it depends on $(dpkg-deb -f "$deb" Depends)"
  dpkg-deb --fsys-tarfile "$deb" | tar -xO ./usr/bin/bkfs | cmp - "$STATIC"
  cp "$deb" "$SYSTEM/root/"
  inside apt-get -q -y install --no-install-recommends "/root/${deb##*/}"
  mkdir -p "$SYSTEM/backup" "$SYSTEM/bucket-of-static"
  inside bkfs init --no-encryption /bucket-of-static/repository
  inside mount -t bkfs /bucket-of-static/repository /backup
  inside sh -c 'echo static >/backup/file'
  inside umount /backup
  inside apt-get -q -y purge bkfs
}
static_rpm_package() {
  local rpm=$RELEASE/bkfs-$VERSION-1.x86_64.rpm
  rpm -qp --requires "$rpm" >"$SUITE_TMP/requires"
  grep -q '^fuse3' "$SUITE_TMP/requires" || wrong "it does not require fuse3"
  ! grep -E '^lib.*\.so' "$SUITE_TMP/requires" || wrong "it requires libraries"
  rpm2cpio "$rpm" | (cd "$SUITE_TMP" && cpio -i --quiet --to-stdout ./usr/bin/bkfs) |
    cmp - "$STATIC"
}
image_works() {
  local container config place
  image_tool pull "oci-archive:$RELEASE/bkfs-$VERSION-x86_64.oci.tar"
  container=$(image_tool from --pull-never "localhost/bkfs:$VERSION")
  config=$(image_tool inspect --type container "$container" | jq -c .OCIv1)
  echo "$config"
  jq -e '.config.Entrypoint == ["/bkfs"] and .architecture == "amd64"' <<<"$config"
  place=$(image_tool mount "$container")
  (cd "$place" && find . -type f | sort) >"$SUITE_TMP/files"
  diff "$SUITE_TMP/files" - <<<$'./bkfs\n./etc/ssl/certs/ca-certificates.crt'
  cmp "$place/bkfs" "$STATIC"
  ALONE=$place
  stores_and_restores env -i HOME=/ "$CHROOT" "$place" /bkfs
  image_tool umount "$container"
}

# --- aarch64 --------------------------------------------------------------------------------------

makes_a_release_for_aarch64() {
  released aarch64 CARGO=/usr/bin/cargo RUSTC=/usr/bin/rustc \
    TARGET_DIR="$CARGO_TARGET_DIR/aarch64" RUSTFLAGS="--sysroot $AARCH64_SYSROOT"
  ls -l "$RELEASE"
  is_static_and_small "$RELEASE/bkfs-$VERSION-aarch64-linux" aarch64
  [ "$(dpkg-deb -f "$RELEASE/bkfs_$VERSION-1_arm64.deb" Architecture)" = arm64 ]
  [ "$(rpm -qp --qf '%{ARCH}' "$RELEASE/bkfs-$VERSION-1.aarch64.rpm")" = aarch64 ]
  [ -s "$RELEASE/bkfs-$VERSION-aarch64.oci.tar" ] || wrong "there is no image"
  [ "$(wc -l <"$RELEASE/SHA256SUMS")" = 8 ] || wrong "$(cat "$RELEASE/SHA256SUMS")"
  (cd "$RELEASE" && sha256sum --check --strict SHA256SUMS)
}
aarch64_works() {
  empty_root
  cp "$RELEASE/bkfs-$VERSION-aarch64-linux" "$ALONE/bkfs"
  cp "$(command -v qemu-aarch64-static)" "$ALONE/qemu"
  stores_and_restores env -i HOME=/ "$CHROOT" "$ALONE" /qemu /bkfs
}

release_cases() {
  case_of "make dist: program, packages, image and their sums" makes_a_release
  [ $? = 0 ] || return
  case_of "the program is static, stripped and at most 20 MiB" is_static_and_small \
    "$STATIC" x86-64
  case_of "it works alone in an empty root directory" works_in_an_empty_root
  case_of "it mounts there" mounts_in_an_empty_root
  start_names
  case_of "it finds names in /etc/hosts, and asks no server for them" with_names names_in_hosts
  case_of "it knows localhost without /etc/hosts" with_names localhost_without_a_file
  case_of "it asks the DNS servers of /etc/resolv.conf" with_names names_of_a_server
  case_of "it appends what the search list names" with_names names_in_the_search_list
  case_of "it takes answers of DNS by TCP if they are long" with_names long_answers_come_by_tcp
  case_of "it asks the second DNS server if the first is silent" with_names \
    names_of_the_second_server
  case_of "it says that a name is unknown" with_names unknown_names
  case_of "it says that no DNS server answers" with_names no_server_for_names
  case_of "it sees a name that comes into /etc/hosts later" with_names names_that_come_later
  case_of "it says what https lacks there" with_names https_without_authorities
  case_of "the Debian package of it: needs no library, and mounts" static_debian_package
  case_of "the RPM package of it needs no library" static_rpm_package
  case_of "the image has the program and the authorities, and works" image_works
  [ -n "${AARCH64_SYSROOT:-}" ] || { note "no compiler for aarch64 here"; return; }
  case_of "make dist ARCH=aarch64" makes_a_release_for_aarch64
  [ $? = 0 ] || return
  case_of "the program for aarch64 works under QEMU" aarch64_works
}
