#!/usr/bin/env bash
# about: small patches that break one promise each: they apply and name a test (quick), and that
# about: test fails (full)
# needs:
# limit: 300 7800
. "$(dirname "$0")/../lib/common.sh"

# The runner counts one case for each patch.
export RESULTS RUN_TMP CACHE
if [ "$FULL" != 1 ]; then
  python3 "$ROOT/tests/mutants/run" check
  exit 0
fi

# Only full runs install it.
. "$ROOT/tests/lib/install.sh"
need_cargo_mutants

# Runs for 2 h at most: the next run continues where this one stopped. It draws and tries functions
# only after every patch has been tried.
began=$SECONDS
left() { echo $((120 - (SECONDS - began) / 60)); }
python3 "$ROOT/tests/mutants/run" all --minutes "${BKFS_MUTANTS_MINUTES:-$(left)}"
if [ "$(left)" -gt 0 ]; then
  python3 "$ROOT/tests/mutants/run" functions --minutes "$(left)"
fi
exit 0
