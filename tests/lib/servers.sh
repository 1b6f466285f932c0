# shellcheck shell=bash
# Object-store servers on 127.0.0.1, each on a free port with its own data directory; they end with
# the suite. tests/README.md lists the exported variables and their meanings.

export BKFS_TEST_ACCESS_KEY=bkfstestaccess BKFS_TEST_SECRET_KEY=bkfstestsecret \
  BKFS_TEST_BUCKET=bkfs-test BKFS_TEST_REGION=us-east-1
# Azurite's only account, fixed by its documentation.
export BKFS_TEST_AZURITE_ACCOUNT=devstoreaccount1
BKFS_TEST_AZURITE_KEY='Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq'
BKFS_TEST_AZURITE_KEY+='/K1SZFPTOtr/KBHBeksoGMGw=='
export BKFS_TEST_AZURITE_KEY

# launch NAME PROBE COMMAND…: starts a server with @PORT@ replaced in its arguments, and waits until
# PROBE (a function with the port as its argument) succeeds. Sets PORT and SERVER_PID. It tries
# another port when the first is taken.
launch() {
  local name=$1 probe=$2 attempt
  shift 2
  for attempt in 1 2 3; do
    PORT=$(free_port)
    setsid "${@//@PORT@/$PORT}" >>"$SUITE_TMP/$name.log" 2>&1 </dev/null &
    SERVER_PID=$!
    remember_pid "$SERVER_PID"
    if wait_for 60 probe_or_dead "$SERVER_PID" "$probe" "$PORT" &&
      kill -0 "$SERVER_PID" 2>/dev/null; then
      at_end "stop_pid $SERVER_PID"
      return 0
    fi
    stop_pid "$SERVER_PID"
  done
  tail -n 20 "$SUITE_TMP/$name.log"
  die "$name did not start"
}
probe_or_dead() { ! kill -0 "$1" 2>/dev/null || "$2" "$3"; }

answers() { [ "$(curl -s -o /dev/null -m 5 -w '%{http_code}' "http://127.0.0.1:$1/")" != 000 ]; }
# Probes with a signed request: MinIO's health page answers before the part that keeps buckets and
# users is ready.
minio_lives() {
  curl -sf -m 5 -o /dev/null --aws-sigv4 "aws:amz:$BKFS_TEST_REGION:s3" \
    --user "$BKFS_TEST_ACCESS_KEY:$BKFS_TEST_SECRET_KEY" "http://127.0.0.1:$1/"
}

# make_s3_bucket ENDPOINT NAME
make_s3_bucket() {
  # The hash of an empty body: this version of curl signs without it, which versitygw refuses.
  curl -sS --fail-with-body -m 30 -X PUT \
    -H "x-amz-content-sha256: $(printf "" | sha256sum | cut -d" " -f1)" \
    --aws-sigv4 "aws:amz:$BKFS_TEST_REGION:s3" \
    --user "$BKFS_TEST_ACCESS_KEY:$BKFS_TEST_SECRET_KEY" "$1/$2" ||
    die "could not create bucket $2 at $1"
}

# start_minio: exports BKFS_TEST_S3_MINIO; the data lies in $MINIO_DATA.
start_minio() {
  MINIO_DATA=$SUITE_TMP/minio
  mkdir -p "$MINIO_DATA" "$SUITE_TMP/minio-home"
  launch minio minio_lives env HOME="$SUITE_TMP/minio-home" \
    MINIO_ROOT_USER="$BKFS_TEST_ACCESS_KEY" MINIO_ROOT_PASSWORD="$BKFS_TEST_SECRET_KEY" \
    MINIO_BROWSER=off MINIO_UPDATE=off \
    "$MINIO" server --quiet --address 127.0.0.1:@PORT@ "$MINIO_DATA"
  MINIO_PID=$SERVER_PID
  export BKFS_TEST_S3_MINIO=http://127.0.0.1:$PORT
  make_s3_bucket "$BKFS_TEST_S3_MINIO" "$BKFS_TEST_BUCKET"
}

# start_versitygw: exports BKFS_TEST_S3_VERSITYGW. The program does not recognise the address as
# local, so it signs bodies.
start_versitygw() {
  mkdir -p "$SUITE_TMP/versitygw"
  launch versitygw answers env \
    ROOT_ACCESS_KEY="$BKFS_TEST_ACCESS_KEY" ROOT_SECRET_KEY="$BKFS_TEST_SECRET_KEY" \
    "$VERSITYGW" --port 127.0.0.1:@PORT@ --region "$BKFS_TEST_REGION" posix "$SUITE_TMP/versitygw"
  export BKFS_TEST_S3_VERSITYGW=http://0.0.0.0:$PORT
  make_s3_bucket "$BKFS_TEST_S3_VERSITYGW" "$BKFS_TEST_BUCKET"
}

# start_azurite: exports BKFS_TEST_AZURITE, which includes the account.
start_azurite() {
  mkdir -p "$SUITE_TMP/azurite"
  launch azurite answers "$AZURITE" --silent --disableTelemetry --skipApiVersionCheck \
    --location "$SUITE_TMP/azurite" --blobHost 127.0.0.1 --blobPort @PORT@
  export BKFS_TEST_AZURITE=http://127.0.0.1:$PORT/$BKFS_TEST_AZURITE_ACCOUNT
  make_azure_container "$BKFS_TEST_BUCKET"
}

# make_azure_container NAME: sends one PUT with a shared-key signature. The string to sign holds the
# verb, eleven empty headers, the x-ms- headers, and the resource. The resource names the account
# twice, since the emulator's path contains it too.
make_azure_container() {
  local date signature key text account=$BKFS_TEST_AZURITE_ACCOUNT
  date=$(LC_ALL=C date -u '+%a, %d %b %Y %H:%M:%S GMT')
  text=$(
    printf 'PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:%s\nx-ms-version:2021-08-06\n' "$date"
    printf '/%s/%s/%s\nrestype:container' "$account" "$account" "$1"
  )
  key=$(printf '%s' "$BKFS_TEST_AZURITE_KEY" | base64 -d | od -An -v -tx1 | tr -d ' \n')
  signature=$(printf '%s' "$text" |
    openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64 -w 0)
  curl -sS --fail-with-body -m 30 -X PUT -H 'Content-Length: 0' -H "x-ms-date: $date" \
    -H 'x-ms-version: 2021-08-06' -H "Authorization: SharedKey $account:$signature" \
    "$BKFS_TEST_AZURITE/$1?restype=container" ||
    die "could not create the Azure container"
}

# start_fake_gcs: exports BKFS_TEST_GCS.
start_fake_gcs() {
  mkdir -p "$SUITE_TMP/gcs"
  launch fake-gcs-server answers "$FAKE_GCS" -scheme http -host 127.0.0.1 -port @PORT@ \
    -public-host 127.0.0.1:@PORT@ -external-url http://127.0.0.1:@PORT@ \
    -backend memory -log-level warn
  export BKFS_TEST_GCS=http://127.0.0.1:$PORT
  curl -sSf -m 30 -o /dev/null -H 'Content-Type: application/json' \
    -d "{\"name\":\"$BKFS_TEST_BUCKET\"}" "$BKFS_TEST_GCS/storage/v1/b?project=test" ||
    die "could not create the GCS bucket"
}

# s3_environment ENDPOINT: sets the variables through which the program finds an S3 server.
s3_environment() {
  export AWS_ACCESS_KEY_ID=$BKFS_TEST_ACCESS_KEY AWS_SECRET_ACCESS_KEY=$BKFS_TEST_SECRET_KEY \
    AWS_REGION=$BKFS_TEST_REGION AWS_ENDPOINT_URL=$1
}

# --- a store that fails as it is told -------------------------------------------------------------

# start_faulty ENDPOINT: puts a proxy before an S3 server (tests/lib/faulty_proxy.py describes its
# faults); sets FAULTY to the endpoint of the proxy.
start_faulty() {
  FAULTS=$SUITE_TMP/faults
  mkdir -p "$FAULTS"
  launch faulty answers python3 "$ROOT/tests/lib/faulty_proxy.py" @PORT@ "${1#http://}" "$FAULTS"
  FAULTY=http://127.0.0.1:$PORT
}
# faults JSON: replaces the faults of the proxy; {} for none.
faults() {
  printf '%s' "$1" >"$FAULTS/rules.new"
  mv "$FAULTS/rules.new" "$FAULTS/rules"
}
# struck: prints the number of requests that have failed so far.
struck() { wc -l 2>/dev/null <"$FAULTS/struck" || echo 0; }
