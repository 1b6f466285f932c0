#!/usr/bin/env bash
# about: MariaDB backed up onto a mount twice and brought back on a second machine; embedded bucket,
# about: unsealed
# needs: program apt:mariadb-server apt:mariadb-backup apt:mariadb-client apt:sysbench apt:time
# limit: 900 2400
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/mariadb.sh"
. "$(dirname "$0")/../lib/main_job.sh"

machine one
URL=$SUITE_TMP/bucket BUCKET_DATA=$SUITE_TMP/bucket
case_of "init" exits 0 bkfs init --no-encryption "$URL" || exit 1
main_job
exit 0
