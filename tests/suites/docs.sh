#!/usr/bin/env bash
# about: the pages in docs/: every session of commands succeeds and shows what the page shows, every
# about: link leads somewhere, and the README is short
# needs: program minio mc apt:make apt:man-db apt:mariadb-server apt:mariadb-backup apt:postgresql
# needs: apt:rsync apt:restic apt:borgbackup apt:pgbackrest
# limit: 600
. "$(dirname "$0")/../lib/common.sh"
in_private_mounts
. "$(dirname "$0")/../lib/servers.sh"

session() { "$ROOT/tests/lib/session.pl" "$@"; }

# The system that a page runs in: what the page changes lies in memory and is gone with the suite.
SYSTEM=$SUITE_TMP/system
leave_system() {
  local process
  # Daemons and servers that the session left, by the root directory that they have.
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/root")" = "$SYSTEM" ] && kill -KILL "${process#/proc/}"
  done 2>/dev/null
  umount -R -l "$SYSTEM" 2>/dev/null
  umount -l "$SUITE_TMP/layer" 2>/dev/null
  return 0
}
at_end leave_system
enter_system() {
  leave_system
  mkdir -p "$SYSTEM" "$SUITE_TMP/layer"
  mount -t tmpfs -o size=2g bkfs-test "$SUITE_TMP/layer"
  mkdir "$SUITE_TMP/layer/upper" "$SUITE_TMP/layer/work"
  mount -t overlay bkfs-test "$SYSTEM" \
    -o "lowerdir=/,upperdir=$SUITE_TMP/layer/upper,workdir=$SUITE_TMP/layer/work"
  mount --rbind /proc "$SYSTEM/proc"
  mount --rbind /dev "$SYSTEM/dev"
  mount -t tmpfs bkfs-test "$SYSTEM/run"
  mount -t tmpfs bkfs-test "$SYSTEM/tmp"
  mkdir "$SYSTEM/tmp/source" "$SYSTEM/tmp/steps"
  mount --bind "$ROOT" "$SYSTEM/tmp/source"
  mount --bind "$STEPS" "$SYSTEM/tmp/steps"
  install -m 755 "$BKFS_BIN" "$SYSTEM/usr/bin/bkfs"
  install -m 755 "$MC" "$SYSTEM/usr/bin/mc-program"
}

# seen PAGE: runs the session of a page in one shell, and notes what each step shows.
seen() {
  local page=$1 place=$SUITE_TMP/store-${1//\//-} n
  mkdir -p "$place"
  SUITE_TMP=$place start_minio
  make_s3_bucket "$BKFS_TEST_S3_MINIO" bucket
  make_s3_bucket "$BKFS_TEST_S3_MINIO" other-bucket
  enter_system
  {
    echo '. /tmp/source/tests/lib/docs_prelude.sh'
    [[ $page != @(mounting|install).md ]] || echo 'cp -a /tmp/source/packaging . && export BKFS=/usr/bin/bkfs'
    for n in $(seq "$COUNT"); do
      printf 'eval "$(cat /tmp/steps/%d.command)" >/tmp/steps/%d.seen 2>&1 </dev/null\n' "$n" "$n"
      printf 'echo $? >/tmp/steps/%d.status\n' "$n"
    done
  } >"$STEPS/session"
  env -i PATH="$PATH" BKFS_TEST_RUN="$BKFS_TEST_RUN" AWS_ACCESS_KEY_ID="$BKFS_TEST_ACCESS_KEY" AWS_SECRET_ACCESS_KEY="$BKFS_TEST_SECRET_KEY" \
    AWS_REGION="$BKFS_TEST_REGION" AWS_ENDPOINT_URL="$BKFS_TEST_S3_MINIO" AWS_ALLOW_HTTP=true \
    MC=/usr/bin/mc-program timeout -k 10 120 chroot "$SYSTEM" bash /tmp/steps/session
  leave_system
  stop_pid "$MINIO_PID"
}

step_is_as_shown() {
  echo "\$ $(cat "$STEPS/$1.command")"
  tail -n 12 "$STEPS/$1.seen"
  [ "$(cat "$STEPS/$1.status")" = 0 ] || wrong "ended with $(cat "$STEPS/$1.status")"
  session compare "$STEPS/$1.expected" "$STEPS/$1.seen" >"$STEPS/$1.verdict" ||
    wrong "$(cat "$STEPS/$1.verdict")"
}
page_is_as_shown() {
  local n
  seen "$1" >"$STEPS/said" 2>&1 || true
  [ -e "$STEPS/$COUNT.status" ] || { cat "$STEPS/said"; wrong "the session ended early"; }
  for n in $(seq "$COUNT"); do step_is_as_shown "$n"; done
}

# A block that looks like a session is one, or else no test would run it.
every_block_is_run() {
  local page
  for page in "$ROOT"/README.md "$ROOT"/docs/*.md "$ROOT"/docs/recipes/*.md; do
    awk -v page="${page##*/}" '
      /^ *<!-- session: / {marked = 1; next}
      /^ *```/ {
        inside = !inside
        if (inside && $1 == "```console" && !marked) {print page ": " NR; failed = 1}
        marked = 0
      }
      END {exit failed}
    ' "$page" || wrong "${page##*/} has a block of commands that is not run"
  done
}
links_lead_somewhere() {
  local page link target
  for page in "$ROOT"/*.md "$ROOT"/docs/*.md "$ROOT"/docs/recipes/*.md; do
    for link in $(grep -oE '\]\([^)]+\)' "$page" | sed 's/^](//; s/)$//'); do
      case $link in http* | mailto:*) continue ;; esac
      target=${link%%#*}
      [ -z "$target" ] || [ -e "$(dirname "$page")/$target" ] ||
        wrong "${page##*/} leads to $link, which does not exist"
      case $link in *'#'*) ;; *) continue ;; esac
      [ -n "$target" ] && target=$(dirname "$page")/$target || target=$page
      sed -n 's/^#\+ //p' "$target" | tr '[:upper:]' '[:lower:]' |
        sed 's/[^a-z0-9 _-]//g; s/ /-/g' | grep -qxF -- "${link#*#}" ||
        wrong "${page##*/} leads to $link, and there is no such heading"
    done
  done
}
the_summary_names_every_page() {
  local page
  for page in "$ROOT"/docs/*.md "$ROOT"/docs/recipes/*.md; do
    page=${page#"$ROOT/docs/"}
    [ "$page" = SUMMARY.md ] || grep -qF "($page)" "$ROOT/docs/SUMMARY.md" ||
      wrong "SUMMARY.md lacks $page"
  done
}
# These pages explain messages that the program has.
messages_are_those_of_the_program() {
  local message count=0
  while IFS= read -r message; do
    grep -rqF -- "$message" "$ROOT/src" || wrong "no message says: $message"
    count=$((count + 1))
  done < <(sed -n 's/^| `\([^`]*\)` | [0-9]* |.*/\1/p' "$ROOT"/docs/{restore,troubleshooting}.md)
  [ "$count" -ge 16 ] || wrong "only $count messages were found on the pages"
}
# The page of reference and the program name the same exit codes, variables and mount options.
the_reference_is_complete() {
  local page=$ROOT/docs/reference.md
  "$BKFS_BIN" generate man | man -l - | col -b >"$SUITE_TMP/manual"
  "$BKFS_BIN" mount --help | sed -n '/^Mount options/,/^SIZE/p' >"$SUITE_TMP/options"
  sed -n '/^EXIT CODES/,/^REPOSITORIES/p' "$SUITE_TMP/manual" | grep -oE '^ {7}[0-9]+ ' |
    tr -d ' ' | sort >"$SUITE_TMP/program"
  sed -n 's/^| \([0-9]*\) |.*/\1/p' "$page" | sort >"$SUITE_TMP/described"
  diff "$SUITE_TMP/program" "$SUITE_TMP/described" || wrong "other exit codes"
  sed -n '/^ENVIRONMENT/,/^FILES/p' "$SUITE_TMP/manual" | grep -oE '\b(BKFS|AWS|XDG)_[A-Z_]+' |
    sort -u >"$SUITE_TMP/program"
  grep -oE '`(BKFS|AWS|XDG)_[A-Z_]+`' "$page" | tr -d '`' | sort -u >"$SUITE_TMP/described"
  diff "$SUITE_TMP/program" "$SUITE_TMP/described" || wrong "other variables"
  grep -oE '^  [a-z_]+' "$SUITE_TMP/options" | tr -d ' ' >"$SUITE_TMP/program"
  [ "$(wc -l <"$SUITE_TMP/program")" -ge 20 ] || wrong "the help lists few options"
  while read -r option; do
    grep -qE "\`[^\`]*\b$option\b" "$page" || wrong "the page lacks the option $option"
  done <"$SUITE_TMP/program"
}
the_readme_is_short() {
  local words
  words=$(wc -w <"$ROOT/README.md")
  [ "$words" -le 800 ] || wrong "the README has $words words"
}

case_of "the README has at most 800 words" the_readme_is_short
case_of "the summary names every page" the_summary_names_every_page
case_of "links lead somewhere" links_lead_somewhere
case_of "messages on the page for restores are those of the program" \
  messages_are_those_of_the_program
case_of "the reference names what the program names" the_reference_is_complete
case_of "every block of commands is a session" every_block_is_run
for page in "$ROOT"/docs/*.md "$ROOT"/docs/recipes/*.md; do
  page=${page#"$ROOT/docs/"}
  STEPS=$SUITE_TMP/steps-${page//\//-}
  mkdir -p "$STEPS"
  COUNT=$(session extract "$ROOT/docs/$page" "$STEPS") || die "$page cannot be read"
  [ "$COUNT" = 0 ] || case_of "docs/$page: $COUNT steps" page_is_as_shown "$page"
done
exit 0
