# shellcheck shell=bash
# Installs what the suites need: Debian packages, and tools built from source that stay under
# $CACHE, keyed by version. tests/run sources this file. Each `need_…` returns quickly when the tool
# is there, and ends the run with a message when it cannot be installed.

MINIO_VERSION=v0.0.0-20260212201848-7aac2a2c5b7c
MC_VERSION=v0.0.0-20250313080218-cf909e1063a9 # the version that this MinIO is built with
VERSITYGW_VERSION=v1.8.0
FAKE_GCS_VERSION=v1.56.1
AZURITE_VERSION=3.35.0 # the last version for Node 18, which is in Debian 12
PLAYWRIGHT_VERSION=1.60.0 # for Node 18
AXE_VERSION=4.14.1
PJDFSTEST_VERSION=0.2.2
FSX_VERSION=0.3.2
CARGO_DENY_VERSION=0.20.2
CARGO_MUTANTS_VERSION=27.1.0
CARGO_DEB_VERSION=3.8.0
CARGO_RPM_VERSION=0.21.1
# Used only where no Go of at least 1.21 is installed; Go 1.21 and later download the toolchain that
# a module requires.
GO_VERSION=1.26.8

PACKAGES=()
need_packages() { PACKAGES+=("$@"); }

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Installs the packages that need_packages collected, in one apt-get call at a time.
install_packages() {
  local packages=("${PACKAGES[@]+"${PACKAGES[@]}"}")
  PACKAGES=()
  mkdir -p "$CACHE"
  exec 8>"$CACHE/apt.lock"
  flock 8
  install_alone "${packages[@]+"${packages[@]}"}"
  exec 8>&-
}
# No service is started: suites run their own servers.
install_alone() {
  local package missing=() policy=/usr/sbin/policy-rc.d ours=
  for package in "$@"; do is_installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "installing ${missing[*]}"
  if [ ! -e "$policy" ]; then
    ours=1
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  (
    set -e
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q -o DPkg::Lock::Timeout=600 update
    apt-get -q -y -o DPkg::Lock::Timeout=600 install --no-install-recommends "${missing[@]}"
  ) >"$LOGS/apt.log" 2>&1
  local status=$?
  [ -z "$ours" ] || rm -f "$policy"
  [ $status = 0 ] || { tail -n 30 "$LOGS/apt.log"; stop_run "apt-get install failed"; }
}

# kept NAME COMMAND…: runs COMMAND with $OUT, a new directory, which becomes $CACHE/NAME only when
# the command succeeds. Two runs that need the same tool wait for each other.
kept() {
  local name=$1 began=$SECONDS
  shift
  [ -e "$CACHE/$name/.complete" ] && return 0
  mkdir -p "$CACHE"
  (
    flock 9
    [ -e "$CACHE/$name/.complete" ] && exit 0
    echo "building $name"
    OUT=$CACHE/$name.partial
    rm -rf "$OUT" "${CACHE:?}/$name"
    mkdir -p "$OUT"
    export OUT
    # Not `( … ) || exit`: that would switch `set -e` off inside.
    (set -e; "$@") >"$LOGS/install-$name.log" 2>&1
    [ $? = 0 ] || exit 1
    touch "$OUT/.complete"
    mv "$OUT" "$CACHE/$name"
  ) 9>"$CACHE/$name.lock"
  [ $? = 0 ] || {
    tail -n 30 "$LOGS/install-$name.log"
    stop_run "could not build $name (log: $LOGS/install-$name.log)"
  }
  echo "  $name: $((SECONDS - began)) s"
}

# Finds a Go that understands toolchain lines (1.21 or later). Go 1.19 of Debian 12 serves only to
# download a newer one as a Go module.
find_go() {
  local version
  GO=$(command -v go || ls /usr/local/go/bin/go 2>/dev/null || true)
  version=$([ -n "$GO" ] && "$GO" version | sed -n 's/.*go1\.\([0-9]*\).*/\1/p')
  if [ "${version:-0}" -lt 21 ]; then
    need_packages golang-go
    install_packages
    kept "go-$GO_VERSION" fetch_go
    GO=$CACHE/go-$GO_VERSION/bin/go
  fi
  export GO
}
fetch_go() {
  local module arch directory
  arch=$(dpkg --print-architecture)
  module=golang.org/toolchain@v0.0.1-go$GO_VERSION.linux-$arch
  cd "$OUT"
  # -modcacherw: otherwise the module cache is read-only, and cannot be moved or removed.
  GOFLAGS=-modcacherw GOMODCACHE=$OUT/mod /usr/bin/go mod download "$module"
  directory=$OUT/mod/$module
  mv "$directory"/* "$OUT/"
  rm -rf "$OUT/mod"
  # Module archives carry no permission bits.
  find "$OUT/bin" "$OUT/pkg/tool" -type f -exec chmod 755 {} +
}

go_install() {
  cd "$OUT" && CGO_ENABLED=0 GOTOOLCHAIN=auto GOFLAGS=-mod=mod GOBIN=$OUT "$GO" install "$1"
}

need_minio() {
  find_go
  kept "minio-$MINIO_VERSION" go_install "github.com/minio/minio@$MINIO_VERSION"
  export MINIO=$CACHE/minio-$MINIO_VERSION/minio
}
need_mc() {
  find_go
  kept "mc-$MC_VERSION" go_install "github.com/minio/mc@$MC_VERSION"
  export MC=$CACHE/mc-$MC_VERSION/mc
}
need_versitygw() {
  find_go
  kept "versitygw-$VERSITYGW_VERSION" go_install \
    "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW_VERSION"
  export VERSITYGW=$CACHE/versitygw-$VERSITYGW_VERSION/versitygw
}
need_fake_gcs_server() {
  find_go
  kept "fake-gcs-server-$FAKE_GCS_VERSION" go_install \
    "github.com/fsouza/fake-gcs-server@$FAKE_GCS_VERSION"
  export FAKE_GCS=$CACHE/fake-gcs-server-$FAKE_GCS_VERSION/fake-gcs-server
}

install_azurite() { npm install --no-audit --no-fund --prefix "$OUT" "azurite@$AZURITE_VERSION"; }
need_azurite() {
  command -v npm >/dev/null || { need_packages nodejs npm; install_packages; }
  kept "azurite-$AZURITE_VERSION" install_azurite
  export AZURITE=$CACHE/azurite-$AZURITE_VERSION/node_modules/.bin/azurite-blob
}

# A browser, and what drives it and judges its pages.
install_browser_tools() {
  npm install --no-audit --no-fund --prefix "$OUT" \
    "playwright-core@$PLAYWRIGHT_VERSION" "axe-core@$AXE_VERSION"
}
need_browser() {
  need_packages chromium
  command -v npm >/dev/null || need_packages nodejs npm
  install_packages
  kept "browser-$PLAYWRIGHT_VERSION-$AXE_VERSION" install_browser_tools
  export BROWSER_TOOLS=$CACHE/browser-$PLAYWRIGHT_VERSION-$AXE_VERSION
}

# The tools of a run share what they compile. They run for seconds, so they need not be fast.
cargo_install() {
  cd "$OUT" && CARGO_TARGET_DIR=$RUN_TMP/tools CARGO_PROFILE_RELEASE_OPT_LEVEL=0 \
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    cargo install --locked --root "$OUT" "$@"
}
need_pjdfstest() {
  need_packages libacl1-dev acl
  install_packages
  kept "pjdfstest-$PJDFSTEST_VERSION" cargo_install "pjdfstest@$PJDFSTEST_VERSION"
  export PJDFSTEST=$CACHE/pjdfstest-$PJDFSTEST_VERSION/bin/pjdfstest
}
need_fsx() {
  kept "fsx-$FSX_VERSION" cargo_install "fsx@$FSX_VERSION"
  export FSX=$CACHE/fsx-$FSX_VERSION/bin/fsx
}
need_cargo_deny() {
  kept "cargo-deny-$CARGO_DENY_VERSION" cargo_install "cargo-deny@$CARGO_DENY_VERSION"
  export CARGO_DENY=$CACHE/cargo-deny-$CARGO_DENY_VERSION/bin/cargo-deny
}
need_cargo_deb() {
  kept "cargo-deb-$CARGO_DEB_VERSION" cargo_install "cargo-deb@$CARGO_DEB_VERSION"
  export CARGO_DEB=$CACHE/cargo-deb-$CARGO_DEB_VERSION/bin/cargo-deb
}
# Only full runs make an RPM package: this tool takes minutes to compile.
need_cargo_rpm() {
  [ "$FULL" = 1 ] || return 0
  kept "cargo-generate-rpm-$CARGO_RPM_VERSION" cargo_install \
    "cargo-generate-rpm@$CARGO_RPM_VERSION"
  export CARGO_RPM=$CACHE/cargo-generate-rpm-$CARGO_RPM_VERSION/bin/cargo-generate-rpm
}
# Only full runs make a release. For aarch64 they take Debian's compiler, which has a standard
# library for it; a system without this compiler makes no release for aarch64.
need_release() {
  local version
  [ "$FULL" = 1 ] || return 0
  need_packages buildah cpio file python3
  if apt-cache show rustc-web >/dev/null 2>&1; then
    need_packages rustc-web cargo-web gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
  fi
  install_packages
  is_installed rustc-web || return 0
  version=$(dpkg-query -W -f='${Version}' rustc-web)
  kept "aarch64-$version" fetch_aarch64_library "$version"
  export AARCH64_SYSROOT=$CACHE/aarch64-$version
}
# The package is not installed: its dependencies would replace packages of this machine. apt gets
# lists of its own, since the machine's do not name packages for other processors.
fetch_aarch64_library() {
  local lists=$OUT/apt options
  mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial" "$OUT/lib/rustlib"
  options=(-o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "Dir::Cache=$lists/cache"
    -o "Dir::State::lists=$lists/lists" -o APT::Sandbox::User=root)
  apt-get -q "${options[@]}" update
  cd "$lists"
  apt-get -q "${options[@]}" download "libstd-rust-web-dev:arm64=$1"
  dpkg-deb -x libstd-rust-web-dev_*.deb "$OUT/package"
  mv "$OUT/package/usr/lib/rustlib/aarch64-unknown-linux-gnu" "$OUT/lib/rustlib/"
  rm -rf "$lists" "$OUT/package"
}
# Only full runs of the suite `mutants` use it.
need_cargo_mutants() {
  [ "$FULL" = 1 ] || return 0
  kept "cargo-mutants-$CARGO_MUTANTS_VERSION" cargo_install "cargo-mutants@$CARGO_MUTANTS_VERSION"
  export CARGO_MUTANTS=$CACHE/cargo-mutants-$CARGO_MUTANTS_VERSION/bin/cargo-mutants
}
