#!/usr/bin/env bash
# about: what Prometheus reads of a mount and of a repository, the alert rules and the dashboard, in
# about: a real Prometheus
# needs: program apt:prometheus apt:jq apt:curl
# limit: 240 300
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
in_private_mounts

URL="$SUITE_TMP/a \"bucket\"" MNT=$SUITE_TMP/mount
PLACE=$ROOT/packaging/prometheus
mkdir -p "$MNT"
machine one
at_end "leave_mount '$MNT'"
init_local "$URL" >/dev/null || die "cannot create the repository"

# --- a mount with something to tell ---------------------------------------------------------------

prepared() {
  exits 0 mount_at "$URL" "$MNT"
  head -c 3000000 /dev/urandom >"$MNT/one"
  cp "$MNT/one" "$MNT/two"
  exits 0 bkfs snapshot "$MNT" first
  exits 0 bkfs snapshot "$MNT" second
  cat "$MNT/.snapshots/first/one" | cmp - "$MNT/one"
}
case_of "a mount with two snapshots" prepared
[ -d "$MNT/.snapshots/second" ] || exit 1

# Serves the metrics of the mount and those of the repository, and starts a Prometheus that reads
# them each second.
cat >"$SUITE_TMP/serve.py" <<'END'
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = open(sys.argv[2] if self.path == "/mount" else sys.argv[3], "rb").read()
        self.send_response(200)
        kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
END
SOURCE=$(free_port) PORT=$(free_port)
cat >"$SUITE_TMP/prometheus.yml" <<END
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: ["$PLACE/bkfs.rules.yml"]
scrape_configs:
  - { job_name: mount, metrics_path: /mount, static_configs: [targets: ["127.0.0.1:$SOURCE"]] }
  - { job_name: repository, metrics_path: /repository, static_configs: [targets: ["127.0.0.1:$SOURCE"]] }
END
python3 "$SUITE_TMP/serve.py" "$SOURCE" "$MNT/.bkfs/metrics" "$SUITE_TMP/bkfs.prom" &
remember_pid $!
SERVER=$!
at_end "stop_pid $SERVER"
prometheus --config.file="$SUITE_TMP/prometheus.yml" --storage.tsdb.path="$SUITE_TMP/series" \
  --web.listen-address="127.0.0.1:$PORT" >"$SUITE_TMP/prometheus.log" 2>&1 &
remember_pid $!
PROMETHEUS=$!
at_end "stop_pid $PROMETHEUS"

api() { curl -fsS -G "http://127.0.0.1:$PORT/api/v1/$1" "${@:2}"; }
# value EXPRESSION: prints the one value of an expression, without an exponent.
value() {
  api query --data-urlencode "query=$1" |
    jq -re '.data.result | if length == 1 then .[0].value[1] | tonumber else error("\(.)") end'
}
is_scraped() { [ "$(value 'count(up == 1)')" = 2 ] && [ "$(value 'count(bkfs_healthy)')" = 1 ]; }

# --- the file, and what Prometheus makes of it ----------------------------------------------------

the_file_is_whole() {
  # The umask of the units that bkfs schedule writes.
  (umask 077 && exits 0 bkfs metrics "$URL" --textfile "$SUITE_TMP/bkfs.prom")
  [ "$(stat -c %a "$SUITE_TMP/bkfs.prom")" = 644 ] || wrong "others cannot read it"
  tail -n 1 "$SUITE_TMP/bkfs.prom" | grep -qx '# EOF' || wrong "it has no end"
  bkfs metrics "$MNT" | diff - "$SUITE_TMP/bkfs.prom" || wrong "a mount in place of the URL differs"
  cp "$SUITE_TMP/bkfs.prom" "$SUITE_TMP/before"
  exits 10 bkfs metrics "$SUITE_TMP/absent" --textfile "$SUITE_TMP/bkfs.prom"
  cmp "$SUITE_TMP/bkfs.prom" "$SUITE_TMP/before" || wrong "a failure replaced the file"
  exits 1 bkfs metrics "$URL" --textfile "$SUITE_TMP/absent/bkfs.prom"
  says 'cannot write .*absent/bkfs.prom'
  # The textfile collector of the node exporter reads the older text format.
  promtool check metrics <"$SUITE_TMP/bkfs.prom" 2>"$SUITE_TMP/lint" || cat "$SUITE_TMP/lint"
  ! grep -i 'error\|invalid' "$SUITE_TMP/lint" || wrong "it does not parse"
}
types_are_known() {
  wait_for 60 is_scraped || wrong "Prometheus reads nothing: $(tail -n 3 "$SUITE_TMP/prometheus.log")"
  api metadata >"$SUITE_TMP/metadata"
  jq -e '.data | .bkfs_bytes_in[0].type == "counter" and .bkfs_waiting_bytes[0].type == "gauge" and
    .bkfs_state_lock_hold_seconds[0].type == "histogram" and
    ([to_entries[] | select(.key | startswith("bkfs_")) | .value[0] | select(.help == "" or .type == "unknown")]
      == [])' "$SUITE_TMP/metadata" || wrong "types: $(cut -c1-300 "$SUITE_TMP/metadata")"
  value "bkfs_healthy{repository=\"${URL//\"/\\\"}\",volume=\"main\"}" >/dev/null ||
    wrong "the labels are not those of the mount"
}

# --- each value, got another way ------------------------------------------------------------------

# same NAME VALUE: compares a metric that Prometheus has with a value.
same() { [ "$(value "$1")" = "$2" ] || wrong "$1 is $(value "$1"), and should be $2"; }
values_of_the_mount_are_those_of_status() {
  local name number checked=0
  # Nothing changes any more: a scrape is of the same state as the status.
  sync -f "$MNT/one"
  sleep 3
  bkfs status --json "$MNT" >"$SUITE_TMP/status"
  while read -r name number; do
    case $name in get_requests | put_requests | bytes_fetched | retries | memory_hits) continue ;; esac
    grep -q "^bkfs_${name}{" "$MNT/.bkfs/metrics" || name=${name}_total
    same "bkfs_$name" "$number"
    checked=$((checked + 1))
  done < <(jq -r '.metrics | to_entries[] | "\(.key) \(.value)"' "$SUITE_TMP/status")
  [ "$checked" -gt 15 ] || wrong "only $checked values"
  same bkfs_inodes "$(jq .inodes "$SUITE_TMP/status")"
  same bkfs_content_bytes 6000000
  same bkfs_dirty_bytes 0
  same bkfs_lost_files 0
  same bkfs_healthy 1
  same bkfs_store_outage_seconds 0
  same bkfs_generation "$(jq .generation "$SUITE_TMP/status")"
  same bkfs_last_commit_timestamp_seconds "$(date -d "$(jq -r .last_commit "$SUITE_TMP/status")" +%s)"
}
values_of_the_repository_are_those_of_commands() {
  local newest
  exits 0 bkfs metrics "$URL" --textfile "$SUITE_TMP/bkfs.prom"
  sleep 3
  same 'bkfs_repository_snapshots{volume="main"}' "$(bkfs snapshots --json "$URL" | jq -s 'length')"
  newest=$(bkfs snapshots --json "$URL" | jq -rs 'map(.time) | max')
  same 'floor(bkfs_repository_newest_snapshot_timestamp_seconds{volume="main"})' "$(date -d "$newest" +%s)"
  same bkfs_repository_sessions "$(bkfs session list --json "$URL" | jq -s length)"
  same bkfs_repository_holding_sessions 0
  same bkfs_repository_condemned_lists 0
  [ "$(value bkfs_repository_generation)" -ge "$(jq .generation "$SUITE_TMP/status")" ] ||
    wrong "an older root"
}

# --- rules and dashboard --------------------------------------------------------------------------

rules_are_accepted() {
  exits 0 promtool check rules "$PLACE/bkfs.rules.yml"
  exits 0 promtool test rules "$ROOT/tests/data/bkfs.rules.test.yml"
  # The running Prometheus evaluates them without an error.
  api rules | jq -e '[.data.groups[].rules[] | select(.health != "ok")] == []' || wrong "not healthy"
}
a_failure_is_told() {
  local alerts='[.data.alerts[].labels.alertname]'
  api alerts | jq -e "$alerts == []" || wrong "an alert without a cause: $(api alerts)"
  # The snapshot becomes old.
  sed -i 's/^\(bkfs_repository_newest_snapshot_timestamp_seconds{.*}\) .*/\1 1000/' "$SUITE_TMP/bkfs.prom"
  wait_for 30 eval "api alerts | jq -e '$alerts == [\"BkfsSnapshotOld\"]'" ||
    wrong "there are $(api alerts)"
}
every_panel_shows_something() {
  local title expression
  head -c 2000000 /dev/urandom >"$MNT/three"
  cp "$MNT/three" "$MNT/four"
  sync -f "$MNT/four"
  exits 0 bkfs snapshot "$MNT"
  sleep 3
  jq -r '.panels[] | .title as $t | .targets[] | "\($t)\t\(.expr)"' "$PLACE/dashboard.json" \
    >"$SUITE_TMP/panels"
  [ "$(wc -l <"$SUITE_TMP/panels")" -gt 15 ] || wrong "few panels"
  while IFS=$'\t' read -r title expression; do
    # As Grafana fills in the variables.
    expression=${expression//\$__rate_interval/30s}
    expression=${expression//\$repository/.*}
    expression=${expression//\$volume/.*}
    api query --data-urlencode "query=$expression" |
      jq -e '.data.result | length > 0' >/dev/null || wrong "$title shows nothing: $expression"
  done <"$SUITE_TMP/panels"
}

case_of "the text file is whole, or as it was" the_file_is_whole
case_of "Prometheus knows type, help and labels of each metric" types_are_known
case_of "the values of a mount are those of bkfs status" values_of_the_mount_are_those_of_status
case_of "the values of a repository are those of its commands" values_of_the_repository_are_those_of_commands
case_of "the alert rules pass their tests" rules_are_accepted
case_of "every panel of the dashboard shows something" every_panel_shows_something
case_of "an old snapshot is an alert" a_failure_is_told
