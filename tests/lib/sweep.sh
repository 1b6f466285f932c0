# shellcheck shell=bash
# Removes what a run left behind: processes, mounts, directories. Only tests/run sources this file.
#
# A suite owns its directory ($SUITE_TMP, whose path is its id), every process whose environment
# carries BKFS_TEST_RUN=<that directory>, and every process recorded in $SUITE_TMP/pids. A run owns
# its directory ($RUN_TMP), which contains those of its suites.

# is_same PID START: the process is still the recorded one.
is_same() {
  [ -n "$2" ] && [ "$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20)" = "$2" ]
}

processes_of_suite() {
  local suite=$1 file pid start
  grep -lzxF -- "BKFS_TEST_RUN=$suite" /proc/[0-9]*/environ 2>/dev/null | while read -r file; do
    file=${file#/proc/}
    echo "${file%/environ}"
  done
  [ -f "$suite/pids" ] || return 0
  while read -r pid start; do
    if is_same "$pid" "$start"; then echo "$pid"; fi
  done <"$suite/pids"
}

# Deepest first: a mount inside a mount goes before its parent.
mounts_below() {
  awk -v directory="$1/" '{
    path = $5
    gsub(/\\040/, " ", path)
    if (index(path "/", directory) == 1) print path
  }' /proc/self/mountinfo | sort -r
}

end_processes_of_suite() {
  local suite=$1 pids signal tries
  for signal in TERM KILL; do
    pids=$(processes_of_suite "$suite" | sort -un)
    [ -n "$pids" ] || return 0
    # A stopped process acts on TERM only after it continues.
    for pid in $pids; do kill "-$signal" "$pid" 2>/dev/null; kill -CONT "$pid" 2>/dev/null; done
    for tries in $(seq 50); do
      [ -n "$(processes_of_suite "$suite")" ] || return 0
      sleep 0.1
    done
  done
}

sweep_suite() {
  local suite=$1 path
  # A lazy unmount first detaches the mounts. The daemons then drain, or are ended below.
  mounts_below "$suite" | while IFS= read -r path; do
    umount -i -l "$path" 2>/dev/null || umount -l "$path" 2>/dev/null
  done
  end_processes_of_suite "$suite"
  mounts_below "$suite" | while IFS= read -r path; do umount -i -l "$path" 2>/dev/null; done
}

# remove_run RUN: removes everything of a run. It deletes nothing while a mount remains below the
# directory.
remove_run() {
  local part
  for part in "$1"/*/; do sweep_suite "${part%/}"; done
  [ -z "$(mounts_below "$1")" ] || { echo "warning: still mounted below $1" >&2; return 0; }
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
