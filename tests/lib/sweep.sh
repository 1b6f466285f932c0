# shellcheck shell=bash
# Removes what a run left behind: processes, mounts, directories. Only tests/run sources this file.
#
# A run owns its directory ($RUN_TMP, whose name is its id), every process whose environment carries
# BKFS_TEST_RUN=<that directory>, and every process recorded in $RUN_TMP/pids.

# is_same PID START: the process is still the recorded one.
is_same() {
  [ -n "$2" ] && [ "$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20)" = "$2" ]
}

processes_of_run() {
  local run=$1 file pid start
  grep -lzxF -- "BKFS_TEST_RUN=$run" /proc/[0-9]*/environ 2>/dev/null | while read -r file; do
    file=${file#/proc/}
    echo "${file%/environ}"
  done
  [ -f "$run/pids" ] || return 0
  while read -r pid start; do
    if is_same "$pid" "$start"; then echo "$pid"; fi
  done <"$run/pids"
}

# Deepest first: a mount inside a mount goes before its parent.
mounts_of_run() {
  awk -v run="$1/" '{
    path = $5
    gsub(/\\040/, " ", path)
    if (index(path "/", run) == 1) print path
  }' /proc/self/mountinfo | sort -r
}

end_processes_of_run() {
  local run=$1 pids signal tries
  for signal in TERM KILL; do
    pids=$(processes_of_run "$run" | sort -un)
    [ -n "$pids" ] || return 0
    # A stopped process acts on TERM only after it continues.
    for pid in $pids; do kill "-$signal" "$pid" 2>/dev/null; kill -CONT "$pid" 2>/dev/null; done
    for tries in $(seq 50); do
      [ -n "$(processes_of_run "$run")" ] || return 0
      sleep 0.1
    done
  done
}

sweep_run() {
  local run=$1 path
  # A lazy unmount first detaches the mounts. The daemons then drain, or are ended below.
  mounts_of_run "$run" | while IFS= read -r path; do
    umount -i -l "$path" 2>/dev/null || umount -l "$path" 2>/dev/null
  done
  end_processes_of_run "$run"
  mounts_of_run "$run" | while IFS= read -r path; do umount -i -l "$path" 2>/dev/null; done
}

# remove_run RUN: removes everything of a run. It deletes nothing while a mount remains below the
# directory.
remove_run() {
  sweep_run "$1"
  [ -z "$(mounts_of_run "$1")" ] || { echo "warning: still mounted below $1" >&2; return 0; }
  rm -rf --one-file-system -- "$1" 2>/dev/null || true
}

# Removes runs whose owner is gone (killed, or ended by a reboot).
sweep_dead_runs() {
  local run pid start
  for run in "$1"/bkfs-tests.*; do
    [ -f "$run/owner" ] || continue
    read -r pid start <"$run/owner"
    is_same "$pid" "$start" || { echo "putting away what $run left behind"; remove_run "$run"; }
  done
}
