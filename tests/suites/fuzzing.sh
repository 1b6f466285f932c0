#!/usr/bin/env bash
# about: every decoder of untrusted bytes on mutations of the frozen bytes: no panic, bounded
# about: memory, and what decodes encodes again
# needs:
# limit: 900 7200
. "$(dirname "$0")/../lib/common.sh"

cargo_cases "fuzzing" test --release --workspace --test fuzzing -- --nocapture --test-threads 1
exit 0
