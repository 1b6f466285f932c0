#!/usr/bin/env bash
# about: the store contract on memory, local directory, MinIO, versitygw, Azurite and
# about: fake-gcs-server
# needs: minio versitygw azurite fake_gcs_server
# core-needs: minio
# limit: 900 1800
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/servers.sh"

start_minio
stores=()
if [ "$CORE" = 1 ]; then
  stores=(-- every_case_is_run memory:: local:: minio::)
else
  start_versitygw
  start_azurite
  start_fake_gcs
fi
# A server that is missing must fail the test, instead of a skip.
export BKFS_TEST_ALL_STORES=1
cargo_cases "contract" test --release --workspace --test contract "${stores[@]+"${stores[@]}"}"
exit 0
