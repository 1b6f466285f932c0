#!/usr/bin/env bash
# about: the page of bkfs serve: what it shows and gives, to whom, and what it refuses, over HTTP
# about: and in a browser
# needs: program browser apt:curl apt:jq apt:openssl apt:python3
# limit: 300 600
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/page.sh"
in_private_mounts

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount
FILES=$SUITE_TMP/files TOKEN_FILE=$SUITE_TMP/token
mkdir -p "$MNT"
machine one
at_end "leave_mount '$MNT'"
init_local "$URL" >/dev/null || die "cannot create the repository"
(umask 077 && openssl rand -hex 32 >"$TOKEN_FILE")
TOKEN=$(cat "$TOKEN_FILE")

# get PATH [ARGS…]: what the page at a path answers to the token.
get() { curl -sS --max-time 60 -H "Authorization: Bearer $TOKEN" "$PLACE$1" "${@:2}"; }
# answers CODE CURL-ARGS…
answers() {
  local code
  code=$(curl -sS --max-time 60 -o "$SUITE_TMP/answer" -w '%{http_code}' "${@:2}")
  [ "$code" = "$1" ] || wrong "the answer is $code, and should be $1: ${*:2}"
}

# --- what is shown --------------------------------------------------------------------------------

prepared() {
  exits 0 mount_at "$URL" "$MNT"
  python3 "$ROOT/tests/lib/page_names.py" make "$MNT"
  mkdir "$MNT/large"
  (cd "$MNT/large" && seq 10500 | xargs touch)
  head -c 3000000 /dev/urandom >"$MNT/versions"
  exits 0 bkfs snapshot "$MNT" first
  echo changed >"$MNT/versions"
  exits 0 bkfs snapshot "$MNT" '<b>second & "third"'
  mkdir "$FILES"
  cp -a "$MNT/." "$FILES/"
}
case_of "a mount with names of every kind" prepared
[ -d "$FILES/large" ] || exit 1

serve tcp "$URL" --listen 127.0.0.1:0 --token-file "$TOKEN_FILE" --host backup.example.net
TCP=$PLACE TCP_SERVER=$SERVER

each_file_is_found_and_right() {
  python3 "$ROOT/tests/lib/page_names.py" compare "$PLACE" "$TOKEN_FILE" "$FILES" >"$SUITE_TMP/compared" ||
    wrong "$(tail -n 3 "$SUITE_TMP/compared")"
  [ "$(cat "$SUITE_TMP/compared")" -ge 25 ] || wrong "few files: $(cat "$SUITE_TMP/compared")"
  # A small address of a large directory: nothing is missing.
  local next=/repository/1/main/first/large seen=0
  while [ -n "$next" ]; do
    get "$next" >"$SUITE_TMP/part"
    seen=$((seen + $(grep -o '<th scope="row">' "$SUITE_TMP/part" | wc -l)))
    next=$(grep -o 'large?from=[0-9]*' "$SUITE_TMP/part" | head -n 1)
    next=${next:+/repository/1/main/first/$next}
  done
  [ "$seen" = 10500 ] || wrong "the parts of the large directory have $seen names"
}
an_archive_is_whole() {
  mkdir -p "$SUITE_TMP/tar"
  get '/repository/1/main/first?as=tar' | tar x -C "$SUITE_TMP/tar"
  cp -a "$MNT/.snapshots/first/." "$SUITE_TMP/first"
  # To diff, two fifos differ.
  diff -r --no-dereference -x fifo "$SUITE_TMP/first" "$SUITE_TMP/tar" || wrong "the archive differs"
  [ -p "$SUITE_TMP/tar/fifo" ] || wrong "the fifo is missing"
}
versions_are_listed() {
  get '/repository/1/main/first/versions?as=versions' >"$SUITE_TMP/answer"
  grep -q '2.86 MiB' "$SUITE_TMP/answer" && grep -q '>8 B<' "$SUITE_TMP/answer" || wrong "sizes are missing"
  get '/repository/1/main/first/versions?as=file' | cmp - "$MNT/.snapshots/first/versions"
}
metrics_are_those_of_the_command() {
  get /metrics | diff - <(bkfs metrics "$URL") || wrong "they differ"
  get / >"$SUITE_TMP/answer"
  grep -q "$MNT" "$SUITE_TMP/answer" || wrong "the mount is not shown"
  grep -q 'healthy' "$SUITE_TMP/answer" || wrong "nor its health"
}

# --- who may ask ----------------------------------------------------------------------------------

the_token_is_needed() {
  local path
  for path in / /metrics /repository/1/main/ /repository/1/main/first '/repository/1/main/first?as=tar' /nowhere /logout; do
    answers 401 "$TCP$path"
    answers 401 -H 'Authorization: Bearer wrong' "$TCP$path"
    answers 401 -H 'Cookie: bkfs_session=0000' "$TCP$path"
  done
  answers 303 -H 'Accept: text/html' "$TCP/"
  answers 200 "$TCP/login"
  answers 403 -H "Origin: $TCP" -d token=wrong "$TCP/login"
  ! grep -rqF "$TOKEN" "$SUITE_TMP"/*.log "$SUITE_TMP"/*.out || wrong "the token is in the log"
}
other_sites_are_refused() {
  local host origin
  for host in 'Host: attacker.example' 'Host: 127.0.0.1.attacker.example' 'Host:'; do
    answers 403 -H "$host" -H "Authorization: Bearer $TOKEN" "$TCP/"
  done
  answers 200 -H 'Host: backup.example.net' -H "Authorization: Bearer $TOKEN" "$TCP/"
  answers 200 -H "Authorization: Bearer $TOKEN" "${TCP/127.0.0.1/localhost}/"
  for origin in null http://attacker.example "$TCP.attacker.example"; do
    answers 403 -H "Origin: $origin" --data-urlencode "token=$TOKEN" "$TCP/login"
    ! grep -qi set-cookie "$SUITE_TMP/answer" || wrong "a session began"
  done
  answers 403 --data-urlencode "token=$TOKEN" "$TCP/login"
  answers 303 -H "Origin: $TCP" --data-urlencode "token=$TOKEN" "$TCP/login"
  answers 400 -H "Origin: $TCP" --data-binary @<(head -c 20000 /dev/zero | tr '\0' x) "$TCP/login"
  answers 405 -X DELETE -H "Authorization: Bearer $TOKEN" "$TCP/"
  answers 405 -X POST -H "Origin: $TCP" -H "Authorization: Bearer $TOKEN" "$TCP/repository/1/main/"
}
a_socket_is_of_its_user_alone() {
  local path=$MACHINE/runtime/bkfs/serve.sock
  serve unix "$URL"
  [ "$PLACE" = "unix:$path" ] || wrong "it listens at $PLACE"
  [ "$(stat -c %a "$path")" = 600 ] || wrong "its mode is $(stat -c %a "$path")"
  answers 200 --unix-socket "$path" http://localhost/
  # A browser reaches it through a tunnel.
  answers 403 --unix-socket "$path" http://attacker.example:8080/
  exits 1 bkfs serve "$URL"
  says 'in use'
  kill -9 "$(daemon_pid "$SERVER")"
  wait "$SERVER" || [ -S "$path" ] || wrong "the killed server took its socket along"
  serve again "$URL"
  answers 200 --unix-socket "$path" http://localhost/
  kill "$(daemon_pid "$SERVER")"
  wait "$SERVER" || wrong "it ends with $?"
  [ ! -e "$path" ] || wrong "the socket stays"
}
wrong_options_are_refused() {
  exits 2 bkfs serve "$URL" --listen 127.0.0.1:0
  says 'needs --token-file' 'openssl rand'
  exits 2 bkfs serve "$URL" --token-file "$TOKEN_FILE"
  exits 2 bkfs serve "$URL" --listen nowhere
  exits 2 bkfs serve
  echo short >"$SUITE_TMP/short" && chmod 600 "$SUITE_TMP/short"
  exits 1 bkfs serve "$URL" --listen 127.0.0.1:0 --token-file "$SUITE_TMP/short"
  says 'fewer than 20 characters'
  cp "$TOKEN_FILE" "$SUITE_TMP/open" && chmod 644 "$SUITE_TMP/open"
  exits 1 bkfs serve "$URL" --listen 127.0.0.1:0 --token-file "$SUITE_TMP/open"
  says 'can be read by others' 'chmod 600'
  exits 1 bkfs serve "$URL" --listen "${TCP#http://}" --token-file "$TOKEN_FILE"
  says 'cannot listen at'
  exits 1 bkfs serve "$URL" --listen 127.0.0.1:0 --token-file "$TOKEN_FILE" --tls-cert "$SUITE_TMP/short" --tls-key "$SUITE_TMP/short"
  exits 2 bkfs serve "$URL" --tls-cert "$SUITE_TMP/short" --tls-key "$SUITE_TMP/short"
  exits 10 bkfs serve "$SUITE_TMP/absent"
}
tls_is_spoken() {
  openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout "$SUITE_TMP/key.pem" -out "$SUITE_TMP/cert.pem" 2>/dev/null
  serve tls "$URL" --listen 127.0.0.1:0 --token-file "$TOKEN_FILE" --tls-cert "$SUITE_TMP/cert.pem" --tls-key "$SUITE_TMP/key.pem"
  local place=https://localhost:${PLACE##*:}
  answers 200 --cacert "$SUITE_TMP/cert.pem" -H "Authorization: Bearer $TOKEN" "$place/"
  curl -sS -D - -o /dev/null --cacert "$SUITE_TMP/cert.pem" -H "Origin: $place" --data-urlencode "token=$TOKEN" \
    "$place/login" | grep -qi 'set-cookie: .*; Secure' || wrong "the cookie crosses the network as it is"
  ! curl -sS "$place/" 2>"$SUITE_TMP/answer" || wrong "an unknown certificate is believed"
  stop_pid "$SERVER"
}

# --- clients that harm ----------------------------------------------------------------------------

slow_clients_keep_no_others_away() {
  PLACE=$TCP
  python3 "$ROOT/tests/lib/page_names.py" crowd "$PLACE" "$TOKEN_FILE" 1000 >"$SUITE_TMP/crowd" ||
    wrong "$(tail -n 1 "$SUITE_TMP/crowd")"
  wait_for 30 few_descriptors || wrong "connections stay"
}
few_descriptors() { [ "$(ls "/proc/$(daemon_pid "$TCP_SERVER")/fd" | wc -l)" -lt 60 ]; }

broken_downloads_are_known() {
  PLACE=$TCP
  local _
  # More clients than downloads at a time go away in the middle.
  for _ in 1 2 3 4 5 6 7 8; do
    get '/repository/1/main/first?as=tar' | head -c 1000 | wc -c >"$SUITE_TMP/answer"
  done
  get '/repository/1/main/first/versions?as=file' | cmp - "$MNT/.snapshots/first/versions" ||
    wrong "no download is let in any more"
  # A damaged pack: the client must not take what came for the file.
  cp -a "$URL" "$SUITE_TMP/damaged"
  find "$SUITE_TMP/damaged/data" -type f -size +1M | while read -r pack; do
    printf 'damaged' | dd of="$pack" bs=1 seek=500000 conv=notrunc 2>/dev/null
  done
  machine two
  serve damaged "$SUITE_TMP/damaged" --listen 127.0.0.1:0 --token-file "$TOKEN_FILE" --accept-replaced
  ! get '/repository/1/main/first/versions?as=file' -o "$SUITE_TMP/got" || wrong "a damaged file looks whole"
  ! get '/repository/1/main/first?as=tar' -o "$SUITE_TMP/got" || wrong "a damaged archive looks whole"
  # A client of HTTP/1.0 cannot tell the end from an error.
  answers 505 --http1.0 -H "Authorization: Bearer $TOKEN" "$PLACE/repository/1/main/first?as=tar"
  answers 200 -H "Authorization: Bearer $TOKEN" "$PLACE/"
  stop_pid "$SERVER"
  machine one
}

# --- in a browser ---------------------------------------------------------------------------------

a_browser_shows_it() {
  mkdir -p "$SUITE_TMP/shots"
  browse page.mjs "$TCP" "$TOKEN_FILE" "$SUITE_TMP/shots"
}

case_of "each file is found by its link, and is right" each_file_is_found_and_right
case_of "an archive holds what the snapshot holds" an_archive_is_whole
case_of "versions of a file are listed" versions_are_listed
case_of "metrics and mounts are shown" metrics_are_those_of_the_command
case_of "over TCP the token is needed" the_token_is_needed
case_of "other sites are refused" other_sites_are_refused
case_of "a socket is of its user alone" a_socket_is_of_its_user_alone
case_of "wrong options are refused" wrong_options_are_refused
case_of "TLS is spoken" tls_is_spoken
case_of "slow clients keep no others away" slow_clients_keep_no_others_away
case_of "a broken download is known as such" broken_downloads_are_known
case_of "a browser shows it, without scripts and without barriers" a_browser_shows_it
