#!/usr/bin/env bash
# about: every suite of the benchmarks in its smallest form: restores verified, the report complete;
# about: no time is judged
# needs: program apt:restic apt:borgbackup apt:pigz apt:rsync
# needs: apt:mariadb-server apt:mariadb-backup apt:mariadb-client apt:sysbench apt:postgresql minio
# limit: 900
. "$(dirname "$0")/../lib/common.sh"

export BKFS_BIN
BENCH=$SUITE_TMP/bkfs-bench OUT=$SUITE_TMP/results PAGE=$SUITE_TMP/page.md
builds() {
  (cd "$ROOT" && cargo build -q --release --workspace --bin bkfs-bench)
  cp "$CARGO_TARGET_DIR/release/bkfs-bench" "$BENCH"
}
case_of "the benchmarks build" builds || exit 1

runs() {
  mkdir -p "$SUITE_TMP/work"
  printf 'before\n<!-- tables: written by bkfs-bench -->\n<!-- end of tables -->\nafter\n' >"$PAGE"
  (cd "$SUITE_TMP" && "$BENCH" all live first-row --size small --repeat 1 --loop --work "$SUITE_TMP/work" \
    --output results --page page.md)
}
case_of "all suites run" runs || exit 1

measured() { # SUITE STEP SYSTEM
  jq -e --arg suite "$1" --arg step "$2" --arg system "$3" '
    .records[] | select(.suite == $suite and .step == $step and .system == $system) |
    (.runs | length == 1) and (.runs | all(.verified and .wall_s > 0))
  ' "$OUT/report.json"
}
for step in \
  "mariadb|first full|bkfs" "mariadb|second full|bkfs" "mariadb|restore|bkfs" \
  "mariadb|restore|restic" "mariadb|restore|borg" "mariadb|first full|mariabackup, pigz" \
  "mariadb|first full, MinIO|bkfs" "stream|noise|bkfs" "stream|noise, stored already|bkfs" \
  "stream|noise|dd, fsync" "stream|pages|null filesystem" \
  "files|tar -x|bkfs" "files|tar -x|null filesystem" \
  "files|tar -x|null filesystem, a thread per core" "files|restore|bkfs" "files|restore|restic" \
  "files|backup again, nothing changed|bkfs (rsync onto a fresh mount)" \
  "files|backup again, nothing changed|bkfs put (of the tree)" \
  "files|backup again, nothing changed|restic (backup of the tree)" \
  "files|open, warm tree|bkfs" "files|open, warm tree|null filesystem" \
  "files|rm -rf, empty files|bkfs" "files|rm -rf, empty files|null filesystem" \
  "files|tar -x, two at the same time|bkfs" "stream|pages|bkfs put, from a pipe" \
  "latency|read a snapshot, 20 ms|bkfs" "latency|ls -lR, cold, 20 ms|bkfs" \
  "latency|ls -lR, cold, local bucket|bkfs" "latency|100 random reads, depth 32, 20 ms|bkfs" \
  "latency|snapshot of an idle mount, 20 ms|bkfs" "micro|pages as pages|bkfs" \
  "cores|noise, one core|bkfs put" "cores|pages, one core|bkfs put" \
  "live|oltp_read_write, durability off|bkfs, scratch" "live|oltp_read_write|bkfs, fsync=local" \
  "live|oltp_read_write|bkfs, fsync=bucket" "live|oltp_read_write|local disk" \
  "live|oltp_read_only, a pool of an eighth|bkfs, scratch" \
  "live|oltp_read_only, after hydration|bkfs, scratch" "live|pgbench|bkfs, fsync=local" \
  "live|16 KiB at random, each synced|bkfs, fsync=local" \
  "first-row|MariaDB, smaller|local disk" \
  "first-row|MariaDB, smaller|bkfs, scratch, without a trace" \
  "first-row|PostgreSQL, eight times that|bkfs, scratch, with a trace"; do
  IFS='|' read -r suite name system <<<"$step"
  case_of "$suite: $name by $system is verified" measured "$suite" "$name" "$system"
done

figures() { jq -e '.figures | length >= 20 and all(. >= 0)' "$OUT/report.json"; }
case_of "the stages and the index have figures" figures

page() {
  grep -q '^before$' "$PAGE" && grep -q '^after$' "$PAGE"
  [ "$(grep -cE '\| (pass|pass, aim reached|miss) \|$' "$PAGE")" -ge 9 ] ||
    wrong "fewer figures than there should be: $(grep -c 'not measured' "$PAGE") are not measured"
  ! grep -q 'not verified' "$PAGE" || wrong "something was not verified"
}
case_of "the page has the table of what is to be reached" page
judged() { # MEASURE: it has a figure, whatever that is
  grep -qE "^\\| $1.*\\| (pass|pass, aim reached|miss) \\|\$" "$PAGE" ||
    wrong "not measured: $1"
}
for measure in \
  "restore of small files ÷ restic" "restore of small files ÷ tar" \
  "first backup of small files: tar" "first backup of small files: bkfs put" \
  "unchanged small files: rsync" "unchanged small files: bkfs put" \
  "stat of a warm tree" "readdir of a warm tree" "open of a warm tree" \
  "rename of empty files" "rm -rf of empty files" \
  "two writers of small files: share" "two writers of small files: p99.9" \
  "bkfs put of incompressible content ÷" "bkfs put of pages ÷" \
  "bkfs put of incompressible content through a pipe" "bkfs put of pages through a pipe" \
  "restore of a long file and small ones" "cold ls -lR of small files" \
  "random read of 16 KiB" "such reads at depth 32" "snapshot of an idle mount" \
  "bkfs put of incompressible content: the part" "bkfs put of pages: the part" \
  "20 GiB/s ÷ the rate" "10 GiB/s ÷ the rate" \
  "oltp_read_write without durability" "oltp_read_write: a clone" \
  "oltp_read_only, a pool of an eighth" "oltp_read_only, a pool of all" \
  "first row of MariaDB on a clone with" "first row of PostgreSQL on a clone with" \
  "first row of MariaDB on a clone: one" "first row of PostgreSQL on a clone: one" \
  "first row of MariaDB:" "first row of PostgreSQL:"; do
  case_of "there is a figure: $measure" judged "$measure"
done
disk() { jq -e '.about | any(.[0] == "disk of the suite files")' "$OUT/report.json"; }
case_of "the report tells the disk of the suite files" disk
plots() {
  local suite
  for suite in mariadb stream files latency micro; do
    grep -q '<rect x=' "$OUT/$suite.svg" || wrong "no bars in $suite.svg"
  done
}
case_of "each suite has a plot" plots
nothing_left() {
  if grep -q " $SUITE_TMP/" /proc/self/mountinfo; then wrong "something is still mounted"; fi
  [ -z "$(ls "$SUITE_TMP/work")" ] || wrong "the benchmark leaves something behind"
}
case_of "nothing is left mounted or lying about" nothing_left
