#!/usr/bin/env bash
# about: bkfs schedule: units that systemd accepts and confines, what is refused, what is removed; the
# about: commands that jobs start at their ends; in full runs, the units under a systemd of its own
# needs: program apt:systemd apt:jq
# limit: 120 300
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
in_private_mounts

URL="$SUITE_TMP/my bucket" MNT=$SUITE_TMP/mount UNITS=$SUITE_TMP/units
mkdir -p "$MNT"
machine one
CONFIG=$MACHINE/config/bkfs/bkfs.toml
mkdir -p "${CONFIG%/*}"
at_end "leave_mount '$MNT'"
init_local "$URL" >/dev/null || die "cannot create the repository"

# configured [LINES]: writes the configuration, with more lines for the schedule.
configured() {
  cat >"$CONFIG" <<END
[repository.offsite]
url = "$URL"
retention = { keep_last = 3 }
[repository.offsite.schedule]
on_failure = "logger -t bkfs '100 % of \$HOME'"
forget = { at = "04:00", delay = "1h" }
check = { at = "Sun 06:00", options = ["--read-data=5%"] }
drill.files = { at = "Sun 07:00", command = ["true"], options = ["--timeout", "1h"] }
run."my.sql" = { at = "02:00", mount = "$MNT", name = "mysql-%F", command = ["sh", "-c", "echo \"a  b\"; true"] }
$1
END
}
schedule() { bkfs schedule "$@"; }
installed() { exits 0 schedule install --directory "$UNITS"; }

# --- units ----------------------------------------------------------------------------------------

units_are_accepted() {
  configured 'copy = { at = "daily", to = "/srv/second" }'
  installed
  says 'wrote bkfs-offsite-check.service' 'systemctl enable --now .*bkfs-offsite-run-my.sql.timer'
  [ "$(ls "$UNITS" | wc -l)" = 10 ] || wrong "there are $(ls "$UNITS")"
  exits 0 systemd-analyze verify --man=no --recursive-errors=no "$UNITS"/*
  [ ! -s "$SUITE_TMP/output" ] || wrong "systemd complains: $(cat "$SUITE_TMP/output")"
  exits 0 schedule list
  says 'bkfs-offsite-forget +04:00 +bkfs --wait forget .*; bkfs --wait gc'
}
units_are_confined() {
  local unit most
  for unit in "$UNITS"/*.service; do
    # A drill mounts, as bkfs@ does.
    case $unit in *-drill-*) most=45 ;; *) most=30 ;; esac
    exits 0 systemd-analyze security --offline=true --threshold=$most "$unit"
    grep -q '^LimitCORE=0$' "$unit" || wrong "a core dump would hold keys"
    # bkfs judges by the processes of the machine whether the holder of a volume lives.
    ! grep -qE '^(ProtectProc|PrivatePIDs|ProcSubset)=' "$unit" || wrong "it sees too little"
  done
  grep -qxF "ReadWritePaths=\"$URL\"" "$UNITS/bkfs-offsite-forget.service" ||
    wrong "the bucket is read-only for bkfs gc"
}
mistakes_are_refused_at_once() {
  configured ''
  cp -r "$UNITS" "$SUITE_TMP/before"
  # refused WORDS LINES: an error that says these words, and nothing is changed.
  refused() {
    configured "$2"
    exits 2 schedule install --directory "$UNITS"
    says "$1"
    diff -r "$UNITS" "$SUITE_TMP/before" || wrong "units were changed"
  }
  refused 'noonish' 'copy = { at = "noonish", to = "x" }'
  refused 'soonish' 'copy = { at = "12:00", delay = "soonish", to = "x" }'
  refused 'no-such-option' 'copy = { at = "12:00", to = "x", options = ["--no-such-option"] }'
  refused 'absolute path' 'run.x = { at = "12:00", mount = "backup", command = ["true"] }'
  refused 'no command' 'run.x = { at = "12:00", mount = "/backup", command = [] }'
  refused 'the drill x has no command' 'drill.x = { at = "12:00", command = [] }'
  refused 'a/b' 'run."a/b" = { at = "12:00", mount = "/backup", command = ["true"] }'
  refused 'Failed to parse|control characters' 'copy = { at = "12:00\nUser=mail", to = "x" }'
  refused 'unknown field' 'copy = { at = "12:00", too = "x" }'
  configured ''
  sed -i '/^retention/d' "$CONFIG"
  exits 2 schedule install --directory "$UNITS"
  says 'no rule says which snapshots to keep' 'repository.offsite.retention'
  exits 2 schedule install --directory "$UNITS" absent
  says 'no repository absent'
}
what_is_gone_is_removed() {
  configured ''
  installed
  says 'removed bkfs-offsite-copy.timer'
  [ "$(ls "$UNITS" | wc -l)" = 8 ] || wrong "there are $(ls "$UNITS")"
  # A unit that another program wrote stays.
  echo '[Unit]' >"$UNITS/bkfs-offsite-copy.timer"
  configured 'copy = { at = "daily", to = "/srv/second" }'
  exits 1 schedule install --directory "$UNITS"
  says 'bkfs-offsite-copy.timer exists' 'did not write it'
  exits 0 schedule remove --directory "$UNITS" offsite
  [ "$(ls "$UNITS")" = bkfs-offsite-copy.timer ] || wrong "there are $(ls "$UNITS")"
  exits 1 schedule remove --directory "$UNITS" offsite
  says 'no units of offsite'
  rm "$UNITS/bkfs-offsite-copy.timer"
}

# --- commands at the end --------------------------------------------------------------------------

told() { python3 "$ROOT/tests/lib/json_page.py" "$ROOT/docs/json.md" Hooks "$SUITE_TMP/told"; }
hooks_are_told() {
  local hook="cat >'$SUITE_TMP/told'" none="touch '$SUITE_TMP/not'"
  exits 0 bkfs check -q "$URL" --on-success "$hook" --on-failure "$none"
  told || wrong "not as on the page"
  jq -e '.command == "check" and .succeeded and .code == 0 and (.results | length) == 1' \
    "$SUITE_TMP/told"
  exits 10 bkfs gc "$SUITE_TMP/absent" --on-success "$none" --on-failure "$hook"
  told || wrong "not as on the page"
  jq -e '.command == "gc" and .code == 10 and (.error | test("absent")) and .results == []' \
    "$SUITE_TMP/told"
  exits 0 mount_at "$URL" "$MNT"
  exits 0 bkfs run --name told --on-success "$hook" "$MNT" -- true
  jq -e '.target == $mount and .results[0].name == "told"' --arg mount "$MNT" "$SUITE_TMP/told"
  exits 7 bkfs run --on-success "$none" --on-failure "$hook" "$MNT" -- sh -c 'exit 7'
  jq -e '.code == 7 and (.error | test("the tool ended with 7"))' "$SUITE_TMP/told"
  exits 0 bkfs umount "$MNT"
  [ ! -e "$SUITE_TMP/not" ] || wrong "the other hook ran as well"
}
a_hook_changes_no_result() {
  exits 0 bkfs check -q "$URL" --on-success 'echo aloud; exit 3'
  says '--on-success' 'it ended with 3'
  bkfs check --json -q "$URL" --on-success 'echo aloud' >"$SUITE_TMP/results" 2>/dev/null
  jq -e .problems "$SUITE_TMP/results" >/dev/null || wrong "the hook speaks among the results"
  # Passwords are not for others.
  export BKFS_PASSWORD=a-secret
  exits 0 bkfs init "$SUITE_TMP/sealed"
  exits 0 bkfs check -q "$SUITE_TMP/sealed" --on-success "env >'$SUITE_TMP/env'"
  unset BKFS_PASSWORD
  ! grep -a a-secret "$SUITE_TMP/env" || wrong "the hook sees the password"
}

case_of "systemd accepts the units of all jobs" units_are_accepted
case_of "systemd's measure of their rights is at most 3.0, and 4.5 of those that mount" units_are_confined
case_of "mistakes are refused before anything is written" mistakes_are_refused_at_once
case_of "units of jobs that are gone are removed, others stay" what_is_gone_is_removed
case_of "commands at the end are told what happened" hooks_are_told
case_of "a command at the end changes no result" a_hook_changes_no_result
[ "$FULL" = 1 ] || exit 0

# --- under a systemd ------------------------------------------------------------------------------

. "$ROOT/tests/lib/systemd.sh"
# started UNIT: a unit that starts, or what it said.
started() {
  inside systemctl start "$1" && return
  inside journalctl -u "$1" --no-pager | tail -n 20
  wrong "$1 does not start"
}
timers_are_started() {
  inside install -D -m 755 /dev/stdin /usr/local/bin/bkfs <"$BKFS_BIN"
  inside install -D -m 644 /dev/stdin /etc/systemd/system/bkfs@.service \
    <"$ROOT/packaging/bkfs@.service"
  inside mkdir -p /backup /etc/bkfs
  inside install -m 644 /dev/stdin /etc/bkfs.toml <<'END'
[repository.local]
url = "/srv/bucket"
retention = { keep_last = 1 }
[repository.local.schedule]
on_failure = "cat >/var/lib/bkfs/failed"
on_success = "cat >/var/lib/bkfs/succeeded"
forget = { at = "04:00" }
check = { at = "Sun 06:00" }
drill.files = { at = "Sun 07:00", command = ["sh", "-c", "echo x >$BKFS_CLONE/file && touch /tmp/private"] }
drill.user = { at = "Sun 07:00", command = ["sh", "-c", "grep -q root $BKFS_CLONE/file && id -un >/tmp/who && grep -q daemon /tmp/who"], options = ["--user", "daemon"] }
drill.runuser = { at = "Sun 07:00", command = ["runuser", "-u", "daemon", "--", "sh", "-c", "sleep 60 & exec grep -q root /run/bkfs-drill/file"] }
run.files = { at = "02:00", mount = "/backup", name = "100 %%", command = ["sh", "-c", "echo '$HOME' \"%h  $(id -un)\" >/backup/file; chmod 644 /backup/file"] }
END
  exits 0 inside bkfs init --no-encryption /srv/bucket
  exits 0 inside bkfs schedule install
  says 'list-timers'
  exits 0 inside systemctl list-timers --all --no-pager
  says bkfs-local-check.timer bkfs-local-forget.timer bkfs-local-run-files.timer
}
jobs_run_as_units() {
  local seen
  inside install -m 600 /dev/stdin /etc/bkfs/local.env <<'END'
BKFS_URL=/srv/bucket
BKFS_MOUNTPOINT=/backup
END
  started bkfs@local
  # Processes outside of the unit see the mount.
  exits 0 inside findmnt -n -t fuse.bkfs /backup
  started bkfs-local-run-files
  seen=$(inside cat '/backup/.snapshots/100 %/file')
  [ "$seen" = '$HOME %h  root' ] || wrong "the arguments became: $seen"
  # A backup whose name is taken fails, and says so.
  exits 1 inside systemctl start bkfs-local-run-files
  inside jq -e '.command == "run" and .code == 125' /var/lib/bkfs/failed
  exits 0 inside systemctl stop bkfs@local
  exits 1 inside findmnt -n -t fuse.bkfs /backup
}
drills_run_as_units() {
  started bkfs-local-drill-files
  inside jq -e '.command == "drill" and .succeeded and .results[0].ok' /var/lib/bkfs/succeeded
  inside sh -c 'bkfs snapshots --json /srv/bucket | jq -e .drill.ok'
  exits 1 inside test -e /tmp/private
  exits 1 inside findmnt -n /run/bkfs-drill
  # Commands of other users reach the clone.
  started bkfs-local-drill-user
  started bkfs-local-drill-runuser
  # One that fails says so.
  inside sed -i 's|touch /tmp/private|false|' /etc/bkfs.toml
  exits 0 inside bkfs schedule install
  exits 1 inside systemctl start bkfs-local-drill-files
  inside jq -e '.command == "drill" and .code == 1' /var/lib/bkfs/failed
}
maintenance_runs_as_units() {
  started bkfs-local-check
  inside jq -e '.command == "check" and .succeeded' /var/lib/bkfs/succeeded
  started bkfs-local-forget
  inside jq -e '.command == "gc" and .succeeded' /var/lib/bkfs/succeeded
  exits 0 inside bkfs schedule remove local
  exits 0 inside systemctl list-timers --all --no-pager
  ! grep bkfs-local "$SUITE_TMP/output" || wrong "a timer is left"
}
boot || die "no systemd: $(tail -n 5 "$SUITE_TMP/boot.log")"
case_of "under a systemd: timers are started" timers_are_started
case_of "under a systemd: the mount is seen outside of its unit, and a backup runs" jobs_run_as_units
case_of "under a systemd: a drill runs, apart from everything else" drills_run_as_units
case_of "under a systemd: maintenance runs, and the timers are removed" maintenance_runs_as_units
exit 0
