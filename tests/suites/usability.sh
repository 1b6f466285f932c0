#!/usr/bin/env bash
# about: what a new user tries: a status that counts what waits, names that are refused early,
# about: mounts in place of URLs, sizes and dates as people write them, hints, metrics, a full disk
# needs: program
# limit: 240
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
MIB=$((1 << 20))
mkdir -p "$MNT"
machine one
at_end "leave_mount '$MNT'"
init_local "$URL" >/dev/null || die "cannot create the repository"

random_file() { head -c "$2" /dev/urandom >"$1"; }
# A case that failed may have left its mount.
mounted() {
  leave_mount "$MNT"
  exits 0 mount_at "$URL" "$MNT" "$@"
}
unmounted() { exits 0 bkfs umount "$MNT"; }

# --- status ---------------------------------------------------------------------------------------

# What left the memory of the volume is not in the bucket yet: it waits for a slow store.
status_counts_what_waits() {
  mounted -o upload_rate=1M,close=async
  random_file "$MNT/file" $((14 * MIB))
  # What is on its way counts, in addition to what is dirty.
  wait_for 20 jq -e ".waiting.bytes - .dirty_bytes > $((3 * MIB))" "$MNT/.bkfs/status" ||
    wrong "only the dirty bytes count: $(jq -c '[.dirty_bytes, .waiting]' "$MNT/.bkfs/status")"
  exits 0 bkfs status "$MNT"
  says 'not stored +[0-9.]+ MiB: .*on their way' 'store +answers' 'snapshot +none yet'
  says_not 'put requests'
  exits 0 bkfs snapshot "$MNT" counted
  exits 0 bkfs status -v "$MNT"
  says 'not stored +0 B$' 'snapshot +counted, [0-9]+ seconds? ago' 'put requests'
  grep -q '^bkfs_waiting_bytes{.*} 0$' "$MNT/.bkfs/metrics"
  unmounted
  # Packs are done one after the other: the rate is known, and the end.
  mounted -o upload_rate=12M,close=async
  random_file "$MNT/long" $((150 * MIB))
  wait_for 12 says_how_long || wrong "no rate, and no time that is left: $(bkfs status "$MNT")"
  unmounted
}
says_how_long() { bkfs status "$MNT" | grep -Eq '^not stored .*; [0-9.]+ .iB/s, [0-9]+ (second|minute)s? left$'; }

# --- bkfs run -------------------------------------------------------------------------------------

run_refuses_a_taken_name_first() {
  mounted
  exits 0 bkfs snapshot "$MNT" taken
  exits 125 bkfs run --name taken "$MNT" -- touch "$MNT/started"
  says 'taken' 'already exists' 'the tool was not started' '--name'
  exits 125 bkfs run --name .hidden "$MNT" -- touch "$MNT/started"
  exits 125 bkfs run --tag "$(printf 't%.0s' $(seq 256))" "$MNT" -- touch "$MNT/started"
  [ ! -e "$MNT/started" ] || wrong "the tool was started"
  # A name that is taken while the tool runs is refused at the end.
  exits 125 bkfs run --name meanwhile "$MNT" -- "$MACHINE/run" "$BKFS_BIN" snapshot "$MNT" meanwhile
  says 'the tool succeeded' 'meanwhile'
  exits 0 bkfs run --name free "$MNT" -- touch "$MNT/started"
  exits 2 bkfs run --name 'half-50%' "$MNT" -- touch "$MNT/not-started"
  says 'half-50%' '%% is a percent sign'
  [ ! -e "$MNT/not-started" ] || wrong "the tool was started"
  exits 0 bkfs run --name 'of-%Y-%%' "$MNT" -- true
  says "snapshot of-20[0-9][0-9]-%"
  unmounted
}

# The older backup stays until the tool has succeeded and what it wrote is stored.
run_replaces_the_older_of_a_name() {
  local held=$MNT/.snapshots/weekly/replaced
  mounted
  exits 2 bkfs run --replace "$MNT" -- true
  exits 0 bkfs run --name weekly --replace "$MNT" -- sh -c "echo first >'$MNT/replaced'"
  exits 3 bkfs run --name weekly --replace "$MNT" -- sh -c "echo second >'$MNT/replaced'; exit 3"
  [ "$(cat "$held")" = first ] || wrong "a tool that failed has replaced it"
  exits 125 bkfs run --name .weekly --replace "$MNT" -- touch "$MNT/not-started"
  [ ! -e "$MNT/not-started" ] || wrong "the tool was started"
  exits 0 bkfs run --name weekly --replace "$MNT" -- sh -c "echo third >'$MNT/replaced'"
  says 'snapshot weekly' 'the older one is in the trash'
  [ "$(cat "$held")" = third ] || wrong "it holds $(cat "$held")"
  exits 0 bkfs run --name weekly --replace --json "$MNT" -- true
  says '"replaced": *true'
  unmounted
  exits 0 bkfs forget "$URL" weekly
  exits 0 bkfs forget "$URL" --undo weekly
  [ "$(bkfs dump "$URL" weekly:/replaced)" = third ]
}

# --- what other volumes hold ----------------------------------------------------------------------

nothing_found_leads_to_other_volumes() {
  local other=$SUITE_TMP/volumes
  init_local "$other" >/dev/null
  exits 0 bkfs snapshots "$other"
  says 'no snapshots of volume main'
  echo stream | bkfs put "$other" a/file --name monday
  exits 0 bkfs snapshots "$other"
  says 'no snapshots of volume main. Other volumes have snapshots: streams \(1\); give' \
    '--volume streams'
  exits 1 bkfs ls "$other" monday
  says 'Other volumes have a snapshot of that name: streams'
  exits 1 bkfs restore "$other" latest "$SUITE_TMP/nothing"
  says 'streams \(1\)'
  exits 0 bkfs find "$other" file
  says 'no snapshots of volume main. Other volumes' 'streams'
  exits 0 bkfs find "$other" file --volume streams
  says '^monday:/a/file'
  exits 1 bkfs dump "$other" tuesday:/a/file --volume streams
  says 'bkfs snapshots lists'
}

# --- mounts in place of URLs ----------------------------------------------------------------------

mounts_stand_for_urls() {
  local other=$SUITE_TMP/second command
  mounted -o volume=db,create
  echo data >"$MNT/file"
  mkdir -p "$MNT/directory"
  exits 0 bkfs snapshot "$MNT" one
  echo more >>"$MNT/file"
  exits 0 bkfs snapshot "$MNT" two
  for command in "ls MNT one" "find MNT file" "dump MNT one:/file" "diff MNT one two" \
    "restore MNT one:/file $SUITE_TMP/from-mount" "snapshots MNT" "stats MNT" "check MNT" \
    "forget MNT --keep-last 9 --dry-run" "gc MNT --dry-run" "session list MNT" "lock MNT"; do
    # shellcheck disable=SC2086
    exits 0 bkfs ${command/MNT/$MNT}
  done
  # The volume of the mount is that of the command, unless --volume says otherwise.
  exits 0 bkfs snapshots "$MNT/directory"
  says '^one ' '^two '
  (cd "$MNT/directory" && bkfs snapshots .) | grep -q '^one '
  exits 0 bkfs snapshots "$MNT" --volume main
  says_not '^one '
  [ "$(cat "$SUITE_TMP/from-mount")" = data ]
  echo stream | exits 0 bkfs put "$MNT" put/file -- echo stream
  exits 0 bkfs dump "$MNT" latest:/put/file --volume streams
  init_local "$other" >/dev/null
  exits 0 bkfs copy "$MNT" "$other"
  exits 0 bkfs snapshots "$other" --volume db
  says '^one ' '^two '
  exits 1 bkfs key list "$MNT"
  says 'not encrypted'
  # Another mount of the same repository.
  mkdir -p "$SUITE_TMP/view"
  exits 0 bkfs mount "$MNT" "$SUITE_TMP/view" -o "ro,cache_dir=$MACHINE/bkfs-cache"
  [ -e "$SUITE_TMP/view/file" ] || wrong "the other mount shows another volume"
  exits 0 bkfs umount "$SUITE_TMP/view"
  exits 1 bkfs init --no-encryption "$MNT"
  says 'is a mount of'
  # A repository in a mount is one of its own.
  exits 0 bkfs init --no-encryption "$MNT/nested"
  exits 0 bkfs snapshots "$MNT/nested"
  says_not '^one '
  # A mount whose daemon was killed still says what it was a mount of.
  kill -KILL "$(daemon_of "$MNT")"
  wait_for 10 sh -c "! ls '$MNT/names'"
  exits 0 bkfs snapshots "$MNT" --volume db
  says '^one ' '^two '
  # It does not say of which volume: what would change one is refused.
  exits 1 bkfs forget "$MNT" --keep-last 1
  says 'its volume is not known' 'give the volume: --volume NAME'
  exits 0 bkfs forget "$MNT" --keep-last 9 --dry-run --volume db
  exits 1 bkfs mount "$MNT" "$SUITE_TMP/view"
  says 'its volume is not known'
  exits 0 bkfs mount "$MNT" "$SUITE_TMP/view" -o "ro,volume=db,cache_dir=$MACHINE/bkfs-cache"
  exits 0 bkfs umount "$SUITE_TMP/view"
  umount -i -l "$MNT"
}

# --- quiet ----------------------------------------------------------------------------------------

quiet_shows_results() {
  local here=$SUITE_TMP/quiet
  exits 0 bkfs -q init --no-encryption "$here"
  says 'created repository'
  exits 0 bkfs -q put "$here" file -- seq 100000
  says '^snapshot .*: file,'
  exits 0 bkfs -q snapshots "$here" --volume streams
  says '^NAME'
  exits 0 bkfs -q find "$here" file --volume streams
  says ':/file$'
  exits 0 bkfs -q find "$here" nothing --volume streams
  [ ! -s "$SUITE_TMP/output" ] || wrong "a remark is left: $(cat "$SUITE_TMP/output")"
  exits 0 bkfs -q restore "$here" latest:/file "$SUITE_TMP/quietly" --volume streams
  says 'restored 1 inodes'
  mounted
  exits 0 bkfs -q run --name quiet "$MNT" -- true
  says 'snapshot quiet'
  exits 0 bkfs -q status "$MNT"
  says 'not stored'
  unmounted
  # Damage is the result of a check.
  find "$here/data" -type f -exec truncate -s 100 '{}' +
  exits 13 bkfs -q check "$here"
  says 'data/.*'
}

# --- JSON -----------------------------------------------------------------------------------------

json_names_are_unambiguous() {
  local name=$'caf\xe9' seen time='^[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}(\.[0-9]+)?Z$'
  mounted
  mkdir "$MNT/names"
  exits 0 bkfs snapshot "$MNT" before-names
  echo x >"$MNT/names/$name"
  echo x >"$MNT/names/café"
  ln -s "$name" "$MNT/names/link"
  bkfs status --json "$MNT" >"$SUITE_TMP/status.json"
  jq -e '.pending_files[] | select(.path_b64 == "L25hbWVzL2NhZuk=")' "$SUITE_TMP/status.json"
  exits 0 bkfs snapshot "$MNT" names
  unmounted
  bkfs ls --json "$URL" names:/names >"$SUITE_TMP/ls"
  cat "$SUITE_TMP/ls"
  [ "$(jq -s length "$SUITE_TMP/ls")" = 3 ]
  jq -se 'map(select(.path_b64 == "Y2Fm6Q==")) | length == 1' "$SUITE_TMP/ls"
  jq -se 'map(select(.path == "café" and .path_b64 == null)) | length == 1' "$SUITE_TMP/ls"
  jq -se 'map(select(.path == "link" and .target_b64 == "Y2Fm6Q==")) | length == 1' "$SUITE_TMP/ls"
  seen=$(jq -r .modified "$SUITE_TMP/ls" | grep -cE "$time")
  [ "$seen" = 3 ] || wrong "times are not RFC 3339 in UTC"
  bkfs find --json "$URL" 'caf?' --snapshot names >"$SUITE_TMP/find"
  jq -se 'map(select(.path_b64 == "L25hbWVzL2NhZuk=")) | length == 1' "$SUITE_TMP/find"
  bkfs diff --json "$URL" before-names names >"$SUITE_TMP/diff"
  jq -se 'map(select(.path_b64 == "L25hbWVzL2NhZuk=")) | length == 1' "$SUITE_TMP/diff"
  bkfs snapshots --json "$URL" | jq -r .time | grep -vqE "$time" && wrong "a time is not RFC 3339"
  bkfs put --json "$URL" "$name" -- echo x | jq -e '.path_b64 == "Y2Fm6Q=="'
}

# as_documented SECTION COMMAND…: the JSON that bkfs prints is that of the page.
as_documented() {
  local section=$1
  shift
  "$1" --json "${@:2}" >"$SUITE_TMP/documented" || true
  python3 "$ROOT/tests/lib/json_page.py" "$ROOT/docs/json.md" "$section" "$SUITE_TMP/documented" ||
    wrong "$section is not as on the page"
}

json_is_as_documented() {
  local repository=$SUITE_TMP/documented-repository copied=$SUITE_TMP/documented-copy
  local sealed=$SUITE_TMP/documented-sealed names=$MNT/documented
  as_documented 'bkfs init' bkfs init --no-encryption "$repository"
  exits 0 mount_at "$repository" "$MNT"
  mkdir "$names"
  echo x >"$names/$(printf 'caf\xe9')"
  ln -s "$(printf 'caf\xe9')" "$names/link"
  head -c $((2 * MIB)) /dev/urandom >"$names/large"
  as_documented 'bkfs status' bkfs status "$MNT"
  as_documented 'bkfs snapshot' bkfs snapshot "$MNT" one
  as_documented 'bkfs hydrate' bkfs hydrate "$names"
  as_documented 'bkfs hydrate --check' bkfs hydrate --check "$names"
  as_documented 'bkfs status' bkfs status "$MNT"
  as_documented 'bkfs hydrate --unpin' bkfs hydrate --unpin "$names"
  echo y >"$names/new"
  rm "$names/link"
  as_documented 'bkfs run' bkfs run --name two "$MNT" -- true
  as_documented 'Failure' bkfs run --name two "$MNT" -- true
  as_documented 'bkfs session list' bkfs session list "$repository"
  unmounted
  as_documented 'bkfs put' bkfs put "$repository" "$(printf 'caf\xe9')" --name put -- echo x
  as_documented 'bkfs snapshots' bkfs snapshots "$repository" --all
  as_documented 'bkfs ls' bkfs ls -R "$repository" one
  as_documented 'bkfs find' bkfs find "$repository" '*'
  as_documented 'bkfs diff' bkfs diff "$repository" one two
  as_documented 'bkfs restore' bkfs restore "$repository" one "$SUITE_TMP/documented-out" --dry-run
  as_documented 'bkfs restore' bkfs restore "$repository" one "$SUITE_TMP/documented-out" --verify
  as_documented 'bkfs stats' bkfs stats "$repository"
  as_documented 'bkfs metrics' bkfs metrics "$repository"
  exits 0 bkfs init --no-encryption "$copied"
  as_documented 'bkfs copy' bkfs copy "$repository" "$copied"
  as_documented 'bkfs forget' bkfs forget "$repository" --keep-last 1
  as_documented 'bkfs forget' bkfs forget "$repository" --undo one
  as_documented 'bkfs volume clone' bkfs volume clone "$repository" one cloned
  as_documented 'bkfs volume create' bkfs volume create "$repository" created
  as_documented 'bkfs volume list' bkfs volume list "$repository"
  as_documented 'bkfs volume remove' bkfs volume remove "$repository" cloned
  as_documented 'bkfs volume remove' bkfs volume remove "$repository" cloned --undo
  as_documented 'bkfs drill' bkfs drill "$repository" one -- true
  as_documented 'bkfs snapshots' bkfs snapshots "$repository" --all
  as_documented 'bkfs gc' bkfs gc "$repository"
  as_documented 'bkfs check' bkfs check "$repository"
  exits 0 mount_at "$repository" "$MNT" -o clone=one
  cat "$MNT/documented/large" >/dev/null
  as_documented 'bkfs trace record' bkfs trace record "$MNT" traced
  as_documented 'bkfs hydrate --trace' bkfs hydrate "$MNT" --trace traced
  as_documented 'bkfs status' bkfs status "$MNT"
  exits 0 bkfs umount "$MNT"
  as_documented 'bkfs trace list' bkfs trace list "$repository"
  as_documented 'bkfs trace show' bkfs trace show "$repository" traced
  as_documented 'bkfs trace remove' bkfs trace remove "$repository" traced
  as_documented 'bkfs lock' bkfs lock "$repository"
  as_documented 'bkfs upgrade' bkfs upgrade "$repository"
  exits 0 mount_at "$repository" "$MNT"
  as_documented 'bkfs umount' bkfs umount "$MNT"
  exits 0 mount_at "$repository" "$MNT"
  kill -KILL "$(daemon_of "$MNT")"
  umount -i -l "$MNT"
  as_documented 'bkfs session end' bkfs session end "$repository" \
    "$(bkfs session list --json "$repository" | jq -r 'select(.state == "live") | .session')"
  find "$repository/data" -type f -exec truncate -s 100 '{}' +
  as_documented 'bkfs restore' bkfs restore "$repository" one "$SUITE_TMP/documented-damaged"
  as_documented 'bkfs check' bkfs check "$repository"
  (
    export BKFS_PASSWORD=secret BKFS_NEW_PASSWORD=other
    bkfs init "$sealed"
    as_documented 'bkfs key list' bkfs key list "$sealed"
    as_documented 'bkfs key add' bkfs key add "$sealed" --label second
    as_documented 'bkfs key rotate' bkfs key rotate "$sealed" --drop-others
    BKFS_NEW_PASSWORD=third as_documented 'bkfs key passwd' bkfs key passwd "$sealed"
    export BKFS_PASSWORD=third
    as_documented 'bkfs key add' bkfs key add "$sealed"
    as_documented 'bkfs key remove' bkfs key remove "$sealed" \
      "$(bkfs key list --json "$sealed" | jq -r 'select(.own | not) | .key')"
  )
}

progress_is_told_to_scripts() {
  local page="$ROOT/docs/json.md" lines=$SUITE_TMP/progress
  bkfs put --json "$URL" slow -- sh -c 'for i in 1 2 3; do head -c 9000000 /dev/zero; sleep 1; done' \
    2>"$lines.all" >"$SUITE_TMP/documented"
  grep '^{' "$lines.all" >"$lines"
  [ "$(wc -l <"$lines")" -ge 2 ] || wrong "$(wc -l <"$lines") lines in three seconds"
  python3 "$ROOT/tests/lib/json_page.py" "$page" Progress "$lines" || wrong "not as on the page"
  jq -se 'last | .progress | .bytes >= 9000000 and .seconds >= 2' "$lines"
  [ "$(wc -l <"$SUITE_TMP/documented")" = 1 ] || wrong "progress is among the results"
  bkfs put --json -q "$URL" slow -- sh -c 'sleep 2' 2>"$lines.quiet" >/dev/null
  ! grep '^{' "$lines.quiet" || wrong "-q shows progress"
}

# --- hints ----------------------------------------------------------------------------------------

# A full bucket is waited for: nothing is lost, and the mount goes on once there is room.
a_full_bucket_leads_to_more_room() {
  local disk=$SUITE_TMP/disk place=$SUITE_TMP/on-full
  mkdir -p "$disk" "$place"
  mount -t tmpfs -o size=24m bkfs-test "$disk"
  exits 0 bkfs init --no-encryption "$disk/bucket"
  exits 0 mount_at "$disk/bucket" "$place" -o timeout=4,memory=128M
  head -c $((40 * MIB)) /dev/urandom 2>/dev/null >"$place/file" || true
  exits 1 bkfs snapshot "$place" full
  says 'no space left' 'free room in the bucket' "bkfs status $place"
  exits 0 bkfs status "$place"
  says 'health +waiting' 'next +free room in the bucket' 'not stored +[0-9.]+ MiB'
  mount -o remount,size=300m "$disk"
  wait_for 30 bkfs snapshot "$place" after || wrong "it does not go on by itself"
  exits 0 bkfs umount "$place"
  umount -l "$disk"
}
# A bucket that refuses data for good: files stand where its directories were.
a_lost_write_leads_to_acknowledge() {
  local here=$SUITE_TMP/refusing place=$SUITE_TMP/on-refusing name
  mkdir -p "$place"
  exits 0 bkfs init --no-encryption "$here"
  exits 0 mount_at "$here" "$place" -o timeout=4
  for name in data meta journal; do
    mkdir -p "$here/$name"
    mv "$here/$name" "$here/$name.away"
    : >"$here/$name"
  done
  random_file "$place/file" $((4 * MIB)) || true
  exits 1 bkfs snapshot "$place" refused
  wait_for 30 sh -c "jq -e .failure '$place/.bkfs/status'" || wrong "it is not poisoned"
  exits 0 bkfs status "$place"
  says 'FAILED' "next .*bkfs status --acknowledge $place"
  exits 1 bkfs snapshot "$place" again
  says "bkfs status --acknowledge $place"
  exits 125 bkfs run "$place" -- true
  says "bkfs status --acknowledge $place"
  exits 1 bkfs umount "$place"
  says "bkfs status --acknowledge $place" "umount --discard $place"
  for name in data meta journal; do
    rm "$here/$name"
    mv "$here/$name.away" "$here/$name"
  done
  as_documented 'bkfs status --acknowledge' bkfs status --acknowledge "$place"
  jq -e '.lost_files | length > 0' "$SUITE_TMP/documented"
  exits 0 bkfs snapshot "$place" after
  exits 0 bkfs umount "$place"
}

an_older_root_leads_to_the_option() {
  local here=$SUITE_TMP/rolled command
  init_local "$here" >/dev/null
  echo one | bkfs put "$here" file --name one
  cp -a "$here" "$here.older"
  echo two | bkfs put "$here" file --name two
  rm -rf "$here"
  mv "$here.older" "$here"
  exits 13 bkfs snapshots "$here"
  says "bkfs --accept-rollback snapshots $here"
  # The command of the hint works, and is needed once.
  command=$(grep -o 'bkfs --accept-rollback snapshots [^ ]*' "$SUITE_TMP/output" | head -n 1)
  # shellcheck disable=SC2086
  exits 0 $command --volume streams
  says '^one '
  exits 0 bkfs snapshots "$here"
}

# --- metrics --------------------------------------------------------------------------------------

metrics_are_typed() {
  mounted -o scrub=5M
  random_file "$MNT/metrics" $((4 * MIB))
  exits 0 bkfs snapshot "$MNT" metrics
  cat "$MNT/.bkfs/metrics" >"$SUITE_TMP/metrics"
  unmounted
  cat "$SUITE_TMP/metrics"
  # Each family has HELP, then TYPE, then its samples; those of counters end in _total.
  awk '
    $1 == "#" && $2 == "HELP" {help = $3; if (NF < 5) bad("short help")}
    $1 == "#" && $2 == "TYPE" {
      if ($3 != help) bad("no help")
      if ($3 ~ /_total$/) bad("a " $4)
      family = $3; kind = $4; families++
    }
    $1 !~ /^#/ {
      if ($1 !~ /volume="main"/) bad("no label")
      name = $1
      sub(/[{].*/, "", name)
      if (kind == "histogram") sub(/_(bucket|sum|count)$/, "", name)
      if (kind == "counter") sub(/_total$/, "", name)
      if (name != family) bad("no type")
      if ($NF !~ /^[0-9.e+-]+$/) bad("no number")
    }
    function bad(what) {print "wrong: " what ": " $0; failed = 1}
    END {print families " families"; exit failed || families < 30}
  ' "$SUITE_TMP/metrics"
  grep -qx '# TYPE bkfs_spool_waiting_bytes gauge' "$SUITE_TMP/metrics"
  grep -qx '# TYPE bkfs_bytes_in counter' "$SUITE_TMP/metrics"
}

# --- put ------------------------------------------------------------------------------------------

put_ends_as_its_tool_does() {
  local code
  for code in 1 7 11 125; do
    exits $code bkfs put "$URL" file -- sh -c "echo x; exit $code"
    says 'no snapshot was made' "exit status: $code"
  done
  exits 143 bkfs put "$URL" file -- sh -c 'kill -TERM $$'
  exits 127 bkfs put "$URL" file -- /no/such/tool
  says '/no/such/tool'
  exits 126 bkfs put "$URL" file -- /etc/passwd
  exits 7 bkfs put --json -q "$URL" file -- sh -c 'exit 7'
  [ "$(head -n 1 "$SUITE_TMP/output" | jq .code)" = 7 ] || wrong "JSON tells another code"
  exits 0 bkfs put --help
  tr -s ' \n' ' ' <"$SUITE_TMP/output" | grep -q 'streams for bkfs put' || wrong "no default volume"
  says_not 'default: main'
}

# --- sizes and times ------------------------------------------------------------------------------

sizes_and_times_are_read() {
  local here=$SUITE_TMP/times found
  mkdir -p "$SUITE_TMP/view-of-day"
  leave_mount "$MNT"
  exits 0 bkfs mount --init --no-encryption "$here" "$MNT" \
    -o "cache_dir=$MACHINE/bkfs-cache,cache_size=1.5G,memory=500MB,timeout=5m,drain=1.5m"
  random_file "$MNT/large" $((2 * MIB))
  touch -d '3 days ago' "$MNT/old"
  exits 0 bkfs snapshot "$MNT" made
  # The newest of today, as a name on the command line, a mount option and a directory.
  exits 0 bkfs ls "$MNT" @today
  says 'large'
  exits 1 bkfs ls "$MNT" @yesterday
  exits 1 bkfs ls "$MNT" '@2 hours ago'
  exits 1 bkfs ls "$MNT" @soon
  says 'not a time' 'yesterday'
  [ -e "$MNT/.snapshots/@$(date -u +%F)/large" ] || wrong "a date in .snapshots"
  unmounted
  exits 0 bkfs mount "$here" "$SUITE_TMP/view-of-day" \
    -o "snapshot=@$(date -u +%F),cache_dir=$MACHINE/bkfs-cache"
  [ -e "$SUITE_TMP/view-of-day/large" ]
  exits 0 bkfs umount "$SUITE_TMP/view-of-day"
  finds_all() {
    found=$(bkfs find "$here" '*' --type f "${@:2}" | sort | tr '\n' ' ')
    [ "$found" = "$1" ] || wrong "find ${*:2}: $found"
  }
  finds_all 'made:/large ' --size +1.5M
  finds_all 'made:/large ' --size +2MB
  finds_all 'made:/old ' --size -0.5M
  finds_all 'made:/large ' --newer yesterday
  finds_all 'made:/old ' --older yesterday
  finds_all 'made:/large ' --newer '2 days ago'
  finds_all 'made:/large made:/old ' --newer "$(date -u -d '7 days ago' +%F)"
  exits 2 bkfs find "$here" '*' --newer soon
  says 'not a time' '2026-11-23'
  exits 2 bkfs find "$here" '*' --size 1X
  exits 0 bkfs gc "$here" --dry-run --undelete-window '7 days' --repack-budget 1.5G
  exits 0 bkfs forget "$here" --keep-within '2 weeks' --dry-run
  exits 0 bkfs copy "$here" "$SUITE_TMP/second" --commit-every 1.5GB
}

# --- the manual -----------------------------------------------------------------------------------

the_manual_has_codes_logs_and_names() {
  local word
  bkfs generate man >"$SUITE_TMP/bkfs.1"
  exits 0 bkfs --help
  for word in 'Outcome unknown' 'Partly done' 'bkfs.log' 'journalctl' '\[repository.offsite\]' \
    'BKFS_PASSWORD_FILE' 'BKFS_REPOSITORY'; do
    says "$word"
    sed 's/\\-/-/g' "$SUITE_TMP/bkfs.1" | grep -q -- "$word" || wrong "the manual lacks $word"
  done
  grep -qx '.SH EXIT CODES' "$SUITE_TMP/bkfs.1" || tr -d '\\' <"$SUITE_TMP/bkfs.1" | grep '^.SH'
  if command -v man >/dev/null; then
    man --warnings -l "$SUITE_TMP/bkfs.1" 2>"$SUITE_TMP/warnings" >/dev/null
    [ ! -s "$SUITE_TMP/warnings" ] || wrong "$(head -n 3 "$SUITE_TMP/warnings")"
  fi
  # What it says of named repositories holds.
  mkdir -p "$MACHINE/config/bkfs"
  printf '[repository.offsite]\nurl = "%s"\n' "$URL" >"$MACHINE/config/bkfs/bkfs.toml"
  exits 0 bkfs snapshots offsite
  BKFS_REPOSITORY=offsite exits 0 bkfs snapshots -
  exits 2 bkfs snapshots -
  says 'BKFS_REPOSITORY names, which is not set'
  rm "$MACHINE/config/bkfs/bkfs.toml"
}

# --- volumes and profiles -------------------------------------------------------------------------

a_volume_is_made_when_asked_for() {
  local here=$SUITE_TMP/volume copied=$SUITE_TMP/volume-copy
  leave_mount "$MNT"
  # A repository that is made just now has no volume to mistype.
  exits 0 mount_at "$here" "$MNT" --init --no-encryption -o volume=db
  echo x >"$MNT/file"
  exits 0 bkfs snapshot "$MNT" one
  unmounted
  exits 1 mount_at "$here" "$MNT" --init --no-encryption -o volume=dbb
  says 'has no volume dbb' 'Its volumes: db\.' 'Give --create'
  exits 1 mount_at "$here" "$MNT" --volume dbb
  exits 1 mount_at "$here" "$MNT" -o ro,create,volume=dbb
  says 'has no volume dbb' 'Its volumes: db\.'
  says_not '--create'
  not_mounted "$MNT"
  exits 0 bkfs session list "$here"
  says_not dbb
  exits 0 mount_at "$here" "$MNT" -o volume=dbb,create
  unmounted
  exits 0 mount_at "$here" "$MNT" --volume third --create
  unmounted
  exits 0 mount_at "$here" "$MNT" --volume third
  unmounted
  # In a copy only snapshots of a volume exist.
  init_local "$copied" >/dev/null
  exits 0 bkfs copy "$here" "$copied" --volume db
  exits 0 mount_at "$copied" "$MNT" -o ro,volume=db
  [ "$(cat "$MNT/.snapshots/one/file")" = x ] || wrong "the copied snapshot is not shown"
  unmounted
}

profiles_say_how_a_repository_is_used() {
  local here=$SUITE_TMP/profile file=$MACHINE/config/bkfs/bkfs.toml
  leave_mount "$MNT"
  exits 0 bkfs init --no-encryption "$here"
  mkdir -p "${file%/*}"
  cat >"$file" <<END
[repository.offsite]
url = "$here"
volume = "db"
options = "noexec,create,cache_dir=$MACHINE/bkfs-cache"
retention = { keep_last = 2 }
prices = { currency = "EUR", storage_gb_month = 1000.0 }
[repository.wrong]
url = "$here"
options = "surprise=1"
END
  exits 0 bkfs mount offsite "$MNT"
  findmnt -n -o OPTIONS "$MNT" | grep -q noexec || wrong "the options are not those of the profile"
  jq -e '.volume == "db"' "$MNT/.bkfs/status"
  for name in one two three; do
    echo $name >"$MNT/file"
    exits 0 bkfs snapshot "$MNT" $name
  done
  unmounted
  # The command line wins.
  exits 0 bkfs mount offsite "$MNT" -o exec,volume=other
  ! findmnt -n -o OPTIONS "$MNT" | grep -q noexec || wrong "-o does not win"
  jq -e '.volume == "other"' "$MNT/.bkfs/status"
  unmounted
  exits 0 bkfs snapshots offsite
  says '^one ' '^three '
  exits 0 bkfs snapshots offsite --volume other
  says 'no snapshots of volume other'
  exits 0 bkfs forget offsite --dry-run
  says 'one .*forget' 'two .*keep' 'would forget 1 of 3'
  exits 0 bkfs forget offsite --keep-last 3 --dry-run
  says 'would forget 0 of 3'
  exits 2 bkfs forget "$here" --dry-run
  says '--keep-last' 'repository.NAME.retention'
  BKFS_REPOSITORY=offsite exits 0 bkfs forget -
  exits 0 bkfs snapshots offsite
  says_not '^one '
  bkfs stats --json offsite | jq -e '.month.currency == "EUR" and .month.total > 0'
  bkfs stats --json "$here" | jq -e '.month == null'
  # A stream goes to its own volume, not to that of the mounts.
  echo stream | exits 0 bkfs put offsite stream -- echo stream
  exits 0 bkfs dump offsite latest:/stream --volume streams
  exits 2 bkfs mount wrong "$MNT"
  says 'options of wrong' "unknown mount option 'surprise'"
  AWS_ENDPOINT_URL=http://127.0.0.1:9 AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x \
    exits 1 bkfs snapshots ofsite
  says 'ofsite is no name of the configuration' 'offsite, wrong' 's3://ofsite'
  rm "$file"
}

# --- a full disk, and Ctrl-C ----------------------------------------------------------------------

restore_checks_the_room_first() {
  local disk=$SUITE_TMP/small here=$SUITE_TMP/room
  mkdir -p "$disk"
  leave_mount "$MNT"
  exits 0 bkfs mount --init --no-encryption "$here" "$MNT" -o "cache_dir=$MACHINE/bkfs-cache"
  random_file "$MNT/large" $((24 * MIB))
  mkdir "$MNT/small"
  random_file "$MNT/small/file" $((2 * MIB))
  truncate -s 1G "$MNT/small/sparse"
  exits 0 bkfs snapshot "$MNT" room
  unmounted
  mount -t tmpfs -o size=16m bkfs-test "$disk"
  exits 1 bkfs restore "$here" room "$disk/target"
  says "$disk: too little room" 'are missing' '26.* needed, .* free' 'nothing was restored'
  [ ! -e "$disk/target" ] || wrong "the target was made"
  exits 1 bkfs restore "$here" room "$disk/target" --dry-run
  says 'would restore' 'too little room'
  exits 1 bkfs restore "$here" room:/large "$disk/file"
  says 'too little room'
  # Holes need no room, and what is replaced gives some.
  exits 0 bkfs restore "$here" room:/small "$disk/target"
  cp "$disk/target/file" "$disk/other"
  head -c $((10 * MIB)) /dev/urandom >"$disk/target/file"
  exits 0 bkfs restore "$here" room:/small "$disk/target" --overwrite
  # What is not replaced gives none.
  random_file "$disk/target/foreign" $((10 * MIB))
  exits 1 bkfs restore "$here" room:/large "$disk/target/file" --overwrite
  says 'too little room'
  exits 1 bkfs restore "$here" room "$disk/target" --overwrite=never
  says 'too little room'
  rm "$disk/target/foreign"
  # Begun all the same, it says what is full.
  exits 3 bkfs restore "$here" room:/large "$disk/file" --ignore-room
  says 'No space left' "filesystem of $disk.* is full"
  umount "$disk"
}

# interrupt_of PID: sends SIGINT to the program, a child of the timeout(1) that runs it.
interrupt_of() { kill -INT "$(pgrep -P "$1" -x bkfs)"; }
# begun COMMAND…: runs bkfs in the background; sets BEGUN.
begun() {
  "$MACHINE/run" "$BKFS_BIN" "$@" >"$SUITE_TMP/output" 2>&1 </dev/null &
  BEGUN=$!
  remember_pid $BEGUN
}
ended() {
  local status=0
  gone "$BEGUN" 5 || wrong "it goes on after Ctrl-C"
  wait "$BEGUN" || status=$?
  cat "$SUITE_TMP/output"
  [ "$status" = "$1" ] || wrong "ended with $status instead of $1"
}

ctrl_c_ends_the_wait() {
  mounted -o upload_rate=1M,close=async
  random_file "$MNT/slow" $((10 * MIB))
  begun snapshot "$MNT" interrupted
  sleep 2
  interrupt_of $BEGUN
  ended 14
  says 'interrupted: the mount goes on' 'not in the bucket yet' "bkfs snapshots $MNT"
  # A second wait, for the unmount: the mount stays and takes writes.
  random_file "$MNT/slower" $((6 * MIB))
  begun umount "$MNT"
  sleep 2
  interrupt_of $BEGUN
  ended 1
  says "interrupted: $MNT stays mounted" 'not in the bucket yet'
  timeout 5 sh -c "echo x >'$MNT/written'" || wrong "writers still wait"
  unmounted
  exits 0 bkfs ls "$URL" interrupted
}

progress_is_shown_on_a_terminal() {
  mounted -o upload_rate=1M,close=async
  random_file "$MNT/shown" $((4 * MIB))
  script -qec "'$BKFS_BIN' snapshot '$MNT' shown" /dev/null >"$SUITE_TMP/output" 2>&1 </dev/null
  says 'wait for the bucket' 'snapshot shown'
  random_file "$MNT/shown" $((2 * MIB))
  exits 0 bkfs snapshot "$MNT" hidden
  says_not 'wait for the bucket'
  unmounted
}

case_of "status counts what was accepted and waits for a slow store" status_counts_what_waits
case_of "run refuses a taken name before the tool starts, and at its end" \
  run_refuses_a_taken_name_first
case_of "run replaces the older snapshot of a name once the tool has succeeded" \
  run_replaces_the_older_of_a_name
case_of "what --json prints is as the page says" json_is_as_documented
case_of "progress is told to scripts, a line a second" progress_is_told_to_scripts
case_of "a command that finds nothing names the volumes that have snapshots" \
  nothing_found_leads_to_other_volumes
case_of "every command takes a mount in place of a URL" mounts_stand_for_urls
case_of "-q silences progress and remarks, never results" quiet_shows_results
case_of "names that are not UTF-8 and times are unambiguous in JSON" json_names_are_unambiguous
case_of "a volume is made when asked for, and a mistyped name is refused" \
  a_volume_is_made_when_asked_for
case_of "a profile gives volume, options, retention and prices" \
  profiles_say_how_a_repository_is_used
case_of "a full bucket leads to more room, and then nothing is lost" \
  a_full_bucket_leads_to_more_room
case_of "a mount that lost something leads to bkfs status --acknowledge" \
  a_lost_write_leads_to_acknowledge
case_of "an older root leads to --accept-rollback" an_older_root_leads_to_the_option
case_of "metrics have HELP and the right TYPE" metrics_are_typed
case_of "put ends as its tool does, and its help names its volume" put_ends_as_its_tool_does
case_of "sizes and times are read as people write them" sizes_and_times_are_read
case_of "help and manual have exit codes, log places and named repositories" \
  the_manual_has_codes_logs_and_names
case_of "restore checks the room first, and says what is missing" restore_checks_the_room_first
case_of "Ctrl-C ends the wait of snapshot and umount, and says what stands" ctrl_c_ends_the_wait
case_of "snapshot shows progress on a terminal, and only there" progress_is_shown_on_a_terminal
exit 0
