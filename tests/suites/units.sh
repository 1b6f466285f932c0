#!/usr/bin/env bash
# about: unit and property tests of the crates, and every test target of tests/ without its
# about: own suite
# needs: program
# limit: 1500 3600
. "$(dirname "$0")/../lib/common.sh"

# Test targets that other suites run, or that need servers.
elsewhere=' damage model simulation fuzzing contract tidy '

targets=(--lib --bins --test mount --test helper_scripts)
for target in $(awk '
  /^\[/ {inside = ($0 == "[[test]]")}
  inside && /^name *=/ {gsub(/[" ]/, "", $0); sub(/^name=/, ""); print}
' "$ROOT/tests/Cargo.toml"); do
  [[ $elsewhere == *" $target "* ]] || targets+=(--test "$target")
done

# The whole workspace, as in every suite: for a part of its packages cargo selects other features,
# and rebuilds shared crates.
mapfile -t options < <(plainly)
cargo_cases "crates" "${options[@]}" test --release --workspace "${targets[@]}"
exit 0
