#!/usr/bin/env bash
# about: formatting, lints, the walls of the house, licences of dependencies, shell syntax
# needs: cargo_deny
# limit: 1200
. "$(dirname "$0")/../lib/common.sh"

cd "$ROOT" || exit 1
case_of "cargo fmt" cargo fmt --all --check
case_of "cargo clippy" cargo clippy --release --workspace --all-targets -- -D warnings
# Advisories need a database from the network that the tests do not rely on.
case_of "cargo deny" "$CARGO_DENY" --offline check --hide-inclusion-graph bans licenses sources
shell_syntax() { local script; for script in tests/run .ci/run tests/lib/*.sh tests/suites/*.sh; do bash -n "$script"; done; }
case_of "shell syntax" shell_syntax
cargo_cases "walls" test --release -p bkfs-tests --test tidy
exit 0
