#!/usr/bin/env bash
# about: the protocol's executable model and the mutants that it must refute
# needs:
# limit: 900 7200
. "$(dirname "$0")/../lib/common.sh"

cargo_cases "model" test --release --workspace --test model
exit 0
