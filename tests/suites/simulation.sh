#!/usr/bin/env bash
# about: the engine in a simulated world, from a seed: crashes, takeovers, a store that lies; and
# about: planted mistakes that must be seen
# needs:
# limit: 1500 8400
. "$(dirname "$0")/../lib/common.sh"

# A long run that reaches its time limit lets the next one continue there.
if [ "$FULL" = 1 ]; then
  mkdir -p "$CACHE"
  export BKFS_SIM_STATE=$CACHE/simulation-next-seed
fi
cargo_cases "simulation" test --release --workspace --test simulation -- \
  --nocapture --test-threads 1
exit 0
