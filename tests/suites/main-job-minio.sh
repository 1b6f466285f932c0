#!/usr/bin/env bash
# about: the main job on MinIO, sealed with a password
# needs: program minio apt:mariadb-server apt:mariadb-backup apt:mariadb-client apt:sysbench
# needs: apt:time
# limit: 900 2400
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/mariadb.sh"
. "$(dirname "$0")/../lib/servers.sh"
. "$(dirname "$0")/../lib/main_job.sh"

start_minio
s3_environment "$BKFS_TEST_S3_MINIO"
machine one
URL=s3://$BKFS_TEST_BUCKET/databases BUCKET_DATA=$MINIO_DATA
printf 'correct horse battery staple\n' >"$SUITE_TMP/password"
chmod 600 "$SUITE_TMP/password"
export BKFS_PASSWORD_FILE=$SUITE_TMP/password
case_of "init" exits 0 bkfs init "$URL" || exit 1
main_job
exit 0
