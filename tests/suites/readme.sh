#!/usr/bin/env bash
# about: the README's session, word for word, on a fresh clone: every command succeeds and shows
# about: what the README shows
# needs: program
# limit: 1200
. "$(dirname "$0")/../lib/common.sh"
# The clone lies over the source tree, with the times of its files: cargo then finds what it built
# there. The mounts are private, since two runs may be under way.
in_private_mounts

CLONE=$ROOT STEPS=$SUITE_TMP/steps
mkdir -p "$STEPS" "$SUITE_TMP/clone" "$SUITE_TMP/target" "$SUITE_TMP/home"
# The files that git knows, as they stand in the working directory.
(
  cd "$ROOT" && git ls-files -z --cached --others --exclude-standard |
    tar --null --ignore-failed-read -T - -cf - 2>/dev/null
) | tar -xf - -C "$SUITE_TMP/clone" || die "no clone"
mount --bind "$CARGO_TARGET_DIR" "$SUITE_TMP/target" || die "no target directory"
ln -s "$SUITE_TMP/target" "$SUITE_TMP/clone/target"
mount --bind "$SUITE_TMP/clone" "$CLONE" || die "cannot lay the clone over $CLONE"

count=$("$ROOT/tests/lib/session.pl" extract "$CLONE/README.md" "$STEPS") ||
  die "the README has no session"
[ "$count" -ge 5 ] || die "the README's session has $count commands only"

# One shell runs all commands, as for a reader: directory and variables persist.
{
  printf 'cd %q; shopt -s expand_aliases\n' "$CLONE" # as in an interactive shell
  for n in $(seq "$count"); do
    printf '{ eval "$(cat %q)"; } >%q 2>&1 </dev/null\necho $? >%q\n' "$STEPS/$n.command" \
      "$STEPS/$n.seen" "$STEPS/$n.status"
  done
} >"$STEPS/session"
env -u CARGO_TARGET_DIR CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" \
  RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}" HOME="$SUITE_TMP/home" \
  XDG_CACHE_HOME="$SUITE_TMP/home/.cache" XDG_CONFIG_HOME="$SUITE_TMP/home/.config" \
  XDG_STATE_HOME="$SUITE_TMP/home/.state" bash "$STEPS/session"

step_is_as_shown() {
  echo "\$ $(cat "$STEPS/$1.command")"
  cat "$STEPS/$1.seen"
  [ "$(cat "$STEPS/$1.status")" = 0 ] || wrong "ended with $(cat "$STEPS/$1.status")"
  "$ROOT/tests/lib/session.pl" compare "$STEPS/$1.expected" "$STEPS/$1.seen" >"$STEPS/$1.verdict" ||
    wrong "$(cat "$STEPS/$1.verdict")"
}
for n in $(seq "$count"); do
  case_of "README: $(head -n 1 "$STEPS/$n.command")" step_is_as_shown "$n"
done

begins_with_it() {
  head -n 1 "$STEPS/1.command" |
    grep -qxF 'cargo run --release -- mount --init --no-encryption ./bucket ./backup'
}
case_of "the README begins with the one command" begins_with_it
nothing_left() {
  ! grep " $CLONE/" /proc/self/mountinfo | grep -q ' fuse\.bkfs ' ||
    wrong "the session leaves something mounted"
}
case_of "the session unmounts what it mounted" nothing_left
exit 0
