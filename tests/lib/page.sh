# shellcheck shell=bash
# Servers of the page, and a browser that looks at them.

# serve NAME ARGS…: starts a server, whose output is NAME.out, and waits until it listens.
serve() {
  local name=$1
  shift
  "$MACHINE/run" "$BKFS_BIN" serve --json "$@" >"$SUITE_TMP/$name.out" 2>"$SUITE_TMP/$name.log" &
  remember_pid $!
  SERVER=$!
  at_end "stop_pid $SERVER"
  wait_for 30 test -s "$SUITE_TMP/$name.out" || wrong "it does not listen: $(cat "$SUITE_TMP/$name.log")"
  PLACE=$(jq -r .url "$SUITE_TMP/$name.out")
  PLACE=${PLACE%/}
}
# The daemon is the child of the command that limits its time.
daemon_pid() { pgrep -P "$1" -x bkfs || echo "$1"; }
# browse SCRIPT ARGS…: runs a script of tests/lib with the browser, and shows what it says.
browse() {
  mkdir -p "$SUITE_TMP/browser"
  # The script finds its modules next to itself.
  ln -sfn "$BROWSER_TOOLS/node_modules" "$SUITE_TMP/browser/node_modules"
  cp "$ROOT/tests/lib/$1" "$ROOT/tests/lib/browser.mjs" "$SUITE_TMP/browser/"
  node "$SUITE_TMP/browser/$1" "${@:2}" >"$SUITE_TMP/browser/said" 2>&1 ||
    wrong "$(tail -n 6 "$SUITE_TMP/browser/said")"
  cat "$SUITE_TMP/browser/said"
}
