# shellcheck shell=bash
# The program under test: machines, mounts, daemons, memory.
#
# A "machine" is a set of directories (home, cache, state, configuration) that the program finds
# through the environment. A second machine has never seen the repository.

: "${BKFS_BIN:?tests/run builds the program}"

# machine NAME: selects the machine for the commands that follow; a new machine is empty.
machine() {
  MACHINE=$SUITE_TMP/machine-$1
  mkdir -p "$MACHINE"/{home,cache,config,state,data,runtime,bkfs-cache}
  chmod 700 "$MACHINE/runtime"
  cat >"$MACHINE/run" <<S
#!/bin/sh
# Runs a program in the environment of this machine; a hang is a failure, not a wait.
export HOME='$MACHINE/home' XDG_CACHE_HOME='$MACHINE/cache' XDG_CONFIG_HOME='$MACHINE/config'
export XDG_STATE_HOME='$MACHINE/state' XDG_DATA_HOME='$MACHINE/data'
export XDG_RUNTIME_DIR='$MACHINE/runtime'
exec timeout -k 10 "\${BKFS_LIMIT:-900}" "\$@"
S
  chmod 755 "$MACHINE/run"
}

# bkfs ARGS…: runs the program on the selected machine. Credentials and endpoints come from the
# environment.
bkfs() { "$MACHINE/run" "$BKFS_BIN" "$@"; }

# mount_at URL MOUNTPOINT [ARGS…]: mounts on the selected machine with its own cache directory.
mount_at() {
  local url=$1 place=$2
  shift 2
  bkfs mount "$url" "$place" -o "cache_dir=$MACHINE/bkfs-cache" "$@"
}

# leave_mount MOUNTPOINT: unmounts at the end of a suite, by bkfs umount first, else lazily.
leave_mount() {
  is_mounted "$1" || return 0
  BKFS_LIMIT=30 bkfs umount "$1" || umount -i -l "$1"
}

# daemon_of MOUNTPOINT: prints the process id of the daemon that serves it.
daemon_of() {
  local directory
  for directory in /proc/[0-9]*; do
    [ "$(basename "$(readlink "$directory/exe" 2>/dev/null)")" = bkfs ] || continue
    if tr '\0' '\n' <"$directory/cmdline" 2>/dev/null | grep -qxF -- "$1"; then
      echo "${directory#/proc/}"
    fi
  done | tail -n 1
}

is_mounted() { grep -qF " $1 " /proc/self/mountinfo; }
not_mounted() { ! is_mounted "$1"; }

# init_local DIRECTORY: an embedded bucket without a password.
init_local() { bkfs init --no-encryption "$1"; }

# --- expectations ---------------------------------------------------------------------------------

# exits CODE COMMAND…: runs the command, shows its output, keeps it in $SUITE_TMP/output (both
# streams), and checks the exit code.
exits() {
  local expected=$1 status
  shift
  echo "\$ $*"
  set +e
  (set +e; trap - ERR; "$@") >"$SUITE_TMP/output" 2>&1 </dev/null
  status=$?
  set -e
  cat "$SUITE_TMP/output"
  [ "$status" = "$expected" ] ||
    wrong "exit code $status instead of $expected: $* ($(tail -n 1 "$SUITE_TMP/output"))"
}

# says PATTERN…: the last output kept matches each extended pattern, without regard to case.
says() {
  local pattern
  for pattern in "$@"; do
    grep -qiE -- "$pattern" "$SUITE_TMP/output" ||
      wrong "the message does not say /$pattern/: $(tr '\n' ' ' <"$SUITE_TMP/output" | cut -c1-200)"
  done
}
says_not() { ! grep -qiE -- "$1" "$SUITE_TMP/output" || wrong "the message says /$1/"; }

# The output is neither empty, nor a panic, nor a debug print.
clear_message() {
  [ -s "$SUITE_TMP/output" ] || wrong "no message at all"
  says_not 'panicked|RUST_BACKTRACE|thread .main'
}

# fails_with ERRNO-TEXT COMMAND…: an ordinary tool fails with that error.
fails_with() {
  local text=$1
  shift
  set +e
  (set +e; trap - ERR; LC_ALL=C "$@") >"$SUITE_TMP/output" 2>&1 </dev/null
  local status=$?
  set -e
  [ "$status" != 0 ] || wrong "succeeded: $*"
  says "$text"
}

# --- memory ---------------------------------------------------------------------------------------

# watch_memory PID FILE: keeps the process's peak resident size (KiB, the kernel's VmHWM) in FILE
# until the process ends.
watch_memory() {
  (
    while peak=$(awk '/^VmHWM/ {print $2}' "/proc/$1/status" 2>/dev/null) && [ -n "$peak" ]; do
      echo "$peak" >"$2.new" && mv "$2.new" "$2"
      sleep 0.2
    done
  ) &
  remember_pid $!
}
# measured FILE PROGRAM ARGS…: runs a program to its end and writes its peak resident size (KiB) to
# FILE (package time).
measured() {
  local file=$1
  shift
  /usr/bin/time -q -f '%M' -o "$file" "$@"
}
peak_mib() { awk '{printf "%.0f", $1 / 1024}' "$1" 2>/dev/null || echo '?'; }
