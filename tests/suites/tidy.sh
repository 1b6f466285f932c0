#!/usr/bin/env bash
# about: formatting, lints, the walls of the house, licences of dependencies, the runner's own tests
# needs: cargo_deny apt:shellcheck
# limit: 1200
. "$(dirname "$0")/../lib/common.sh"

cd "$ROOT" || exit 1
case_of "cargo fmt" cargo fmt --all --check
case_of "cargo clippy" cargo clippy --release --workspace --all-targets -- -D warnings
# cargo deny also checks dependencies for other systems, which no build has fetched. Advisories need
# a database from the network; the tests do not depend on it.
dependencies_are_allowed() {
  cargo fetch --locked
  "$CARGO_DENY" --offline check --hide-inclusion-graph bans licenses sources
}
case_of "cargo deny" dependencies_are_allowed
# Excluded: sourced files (1091), variables that sourcing scripts set or use (2034, 2154).
case_of "shellcheck" shellcheck -S warning -e SC1091,SC2034,SC2154,SC2155 \
  tests/run .ci/run bench/install-peers tests/lib/*.sh tests/suites/*.sh
guides_name_what_exists() {
  local guide path places='\.ci|bench|chunker|docs|fuse|packaging|src|tests'
  for guide in CONTRIBUTING.md ARCHITECTURE.md; do
    for path in $(grep -oE "\`($places)/[A-Za-z0-9_./-]*\`" "$guide" | tr -d '\`' | grep -v NAME); do
      [ -e "$path" ] || wrong "$guide names $path, which does not exist"
    done
  done
}
case_of "guides name files that exist" guides_name_what_exists
# Otherwise the tests compile shared crates again: docs/adr/0072-one-set-of-features.md.
features_of() {
  cargo tree --locked --prefix none -f '{p} | {f}' "$@" | sed 's/ (\*)$//; s/ (proc-macro)//' | sort -u
}
builds_take_the_same_features() {
  features_of -p bkfs -e normal,build >"$SUITE_TMP/program"
  features_of --workspace -e normal,build,dev >"$SUITE_TMP/tests"
  [ "$(wc -l <"$SUITE_TMP/program")" -gt 100 ] || wrong "cargo tree shows no crates"
  comm -23 "$SUITE_TMP/program" "$SUITE_TMP/tests" >"$SUITE_TMP/differ"
  cat "$SUITE_TMP/differ"
  [ ! -s "$SUITE_TMP/differ" ] || wrong "the tests build these crates with other features"
}
case_of "the program and the tests take the same features" builds_take_the_same_features
# It is for static programs only: docs/adr/0080-static-program.md.
resolver_is_for_static_programs() {
  ! features_of -p bkfs -e normal,build | grep hickory || wrong "every build compiles a resolver"
  RUSTFLAGS='-C target-feature=+crt-static' features_of -p bkfs -e normal \
    --target x86_64-unknown-linux-gnu >"$SUITE_TMP/static"
  grep -q '^hickory-resolver ' "$SUITE_TMP/static" || wrong "a static program has no resolver"
}
case_of "only static programs have a resolver of their own" resolver_is_for_static_programs
case_of "perl syntax" perl -c tests/lib/session.pl
cargo_cases "walls" test --release --workspace --test tidy
. "$ROOT/tests/lib/selftest.sh"
exit 0
