#!/usr/bin/env bash
# about: what the page of bkfs serve changes: it forgets, brings back and restores, as far as its
# about: options allow, and for its own forms alone
# needs: program browser apt:curl apt:jq apt:openssl apt:libcap2-bin
# limit: 240 600
. "$(dirname "$0")/../lib/common.sh"
. "$(dirname "$0")/../lib/bkfs.sh"
. "$(dirname "$0")/../lib/page.sh"
in_private_mounts

URL=$SUITE_TMP/bucket MNT=$SUITE_TMP/mount TO=$SUITE_TMP/restored OUTSIDE=$SUITE_TMP/outside
SMALL=$SUITE_TMP/small TOKEN_FILE=$SUITE_TMP/token JAR=$SUITE_TMP/cookies
mkdir -p "$MNT" "$TO" "$OUTSIDE" "$SMALL"
machine one
at_end "leave_mount '$MNT'"
init_local "$URL" >/dev/null || die "cannot create the repository"
(umask 077 && openssl rand -hex 32 >"$TOKEN_FILE")
FIRST=/repository/1/main/first

log_in() {
  curl -sS -o /dev/null -c "$1" -H "Origin: $PLACE" --data-urlencode "token=$(cat "$TOKEN_FILE")" "$PLACE/login"
  grep -q bkfs_session_ "$1" || wrong "there is no session"
}
# page PATH: the page at a path, as the session sees it.
page() { curl -sS --max-time 60 -b "$JAR" "$PLACE$1"; }
key() { page "$1" | grep -o 'name="key" type="hidden" value="[0-9a-f]*"' | head -n 1 | grep -o '[0-9a-f]\{64\}'; }
# sent CODE PATH FIELD…: what a form of this session is answered; $SUITE_TMP/answer has the page.
sent() {
  local expected=$1 path=$2 code fields=()
  shift 2
  for field in "$@"; do fields+=(--data-urlencode "$field"); done
  code=$(curl -sS -X POST --max-time 60 -b "$JAR" -H "Origin: $PLACE" -D "$SUITE_TMP/head" -o "$SUITE_TMP/answer" \
    -w '%{http_code}' "${fields[@]}" "$PLACE$path")
  [ "$code" = "$expected" ] || wrong "the answer is $code, and should be $expected: $path $*: $(message)"
}
# What the page of a refusal says.
message() { grep -o '<p class="error"[^<]*' "$SUITE_TMP/answer" | sed 's/.*>//'; }
names() { bkfs snapshots "$URL" --json | jq -r .name | sort | tr '\n' ' '; }
is_first_listed() { [ "$(names)" = "first second " ] || wrong "the snapshots are: $(names)"; }
# restored PATH FIELD…: begins a restore, and waits for its end; STATE is what became of it.
restored() {
  begun "$@"
  wait_for 60 has_ended || wrong "restore $NUMBER does not end"
}
begun() {
  sent 303 "$1?as=restore" "key=$KEY" "${@:2}"
  NUMBER=$(grep -i '^location:' "$SUITE_TMP/head" | grep -o '/restores/[0-9]*' | grep -o '[0-9]*')
}
has_ended() {
  STATE=$(page "/restores/$NUMBER" | grep -o '<dt>State</dt><dd>[a-z ]*' | grep -o '[a-z ]*$')
  [ "$STATE" != "on its way" ]
}
became() { [ "$STATE" = "$1" ] || wrong "it is: $STATE: $(page "/restores/$NUMBER" | grep -o '<p class="error".*')"; }

prepared() {
  exits 0 mount_at "$URL" "$MNT" -o suid,dev
  mkdir "$MNT/tree"
  head -c 3000000 /dev/urandom >"$MNT/tree/large"
  echo small >"$MNT/tree/<b>small"
  ln "$MNT/tree/large" "$MNT/tree/link"
  ln -s /etc/passwd "$MNT/tree/symbolic"
  mkdir "$MNT/special"
  cp /bin/true "$MNT/special/set-id" && chown 1000:1000 "$MNT/special/set-id" && chmod 6755 "$MNT/special/set-id"
  cp /bin/true "$MNT/special/capable" && setcap cap_net_raw+ep "$MNT/special/capable"
  mknod "$MNT/special/device" c 1 3
  mkfifo "$MNT/special/fifo"
  exits 0 bkfs snapshot "$MNT" first
  echo more >"$MNT/tree/more"
  exits 0 bkfs snapshot "$MNT" second
  cp -a "$MNT/.snapshots/first/tree" "$SUITE_TMP/tree"
  exits 0 bkfs umount "$MNT"
  ln -s ../outside "$TO/away"
  mount -t tmpfs -o size=1M small "$SMALL"
}
case_of "a repository with two snapshots" prepared
[ -d "$SUITE_TMP/tree" ] || exit 1

serve all "$URL" --listen 127.0.0.1:0 --token-file "$TOKEN_FILE" --allow-forget --allow-restore "$TO" --allow-restore "$SMALL"
ALL=$PLACE
log_in "$JAR"
KEY=$(key "$FIRST?as=forget")

# --- who may change what --------------------------------------------------------------------------

only_what_is_allowed_is_changed() {
  local path
  for path in "?as=forget" "?as=restore"; do
    serve none "$URL" --listen "$MACHINE/runtime/none.sock"
    curl -sS --unix-socket "$MACHINE/runtime/none.sock" "http://localhost$FIRST$path" | grep -q 'bkfs serve needs --allow-' ||
      wrong "$path is shown"
    ! curl -sS --unix-socket "$MACHINE/runtime/none.sock" "http://localhost$FIRST" | grep -q 'as=forget\|as=restore' ||
      wrong "a form is offered"
    stop_pid "$SERVER"
  done
  # A key that one form has got is of no use for another one that is not allowed.
  serve restores "$URL" --listen 127.0.0.1:0 --token-file "$TOKEN_FILE" --allow-restore "$TO"
  log_in "$SUITE_TMP/jar"
  local JAR=$SUITE_TMP/jar KEY
  KEY=$(key "$FIRST?as=restore")
  sent 403 "$FIRST?as=forget" "key=$KEY"
  grep -q -- --allow-forget "$SUITE_TMP/answer" || wrong "it does not say how"
  sent 403 "$FIRST?as=bring-back" "key=$KEY"
  stop_pid "$SERVER"
  serve forgets "$URL" --listen 127.0.0.1:0 --token-file "$TOKEN_FILE" --allow-forget
  log_in "$JAR"
  KEY=$(key "$FIRST?as=forget")
  sent 403 "$FIRST?as=restore" "key=$KEY" root=0 below=x existing=always
  sent 403 /restores/1 "key=$KEY"
  stop_pid "$SERVER"
  PLACE=$ALL
  is_first_listed
}
forms_of_others_change_nothing() {
  local origin
  log_in "$SUITE_TMP/jar"
  sent 403 "$FIRST?as=forget"
  sent 403 "$FIRST?as=forget" "key=$(tr 0-9a-f 1-9a-f0 <<<"$KEY")"
  sent 403 "$FIRST?as=forget" "key=$KEY" "key=$KEY"
  # The key of another session.
  JAR=$SUITE_TMP/jar sent 403 "$FIRST?as=forget" "key=$KEY"
  # No session.
  JAR=/dev/null sent 401 "$FIRST?as=forget" "key=$KEY"
  sent 403 "$FIRST/tree?as=restore" root=0 below=stolen existing=always
  for origin in null http://attacker.example "$PLACE.attacker.example"; do
    curl -sS -o "$SUITE_TMP/answer" -b "$JAR" -H "Origin: $origin" --data "key=$KEY" "$PLACE$FIRST?as=forget"
    grep -q 'not sent by a page of this server' "$SUITE_TMP/answer" || wrong "a form from $origin is taken"
  done
  # A link changes nothing.
  page "$FIRST?as=forget&key=$KEY" >/dev/null
  page "$FIRST?as=bring-back" >/dev/null
  is_first_listed
  [ ! -e "$TO/stolen" ] || wrong "it was restored"
}
snapshots_are_forgotten_and_brought_back() {
  sent 303 "$FIRST?as=forget" "key=$KEY"
  [ "$(names)" = "second " ] || wrong "the snapshots are: $(names)"
  page /repository/1/main/ | grep -q 'Bring back first' || wrong "it is not in the trash"
  sent 404 "$FIRST?as=forget" "key=$KEY"
  sent 404 "/repository/1/main/absent?as=bring-back" "key=$KEY"
  sent 404 "/repository/1/main/second/tree?as=forget" "key=$KEY"
  [ "$(names)" = "second " ] || wrong "the snapshots are: $(names)"
  sent 303 "$FIRST?as=bring-back" "key=$KEY"
  is_first_listed
  sent 409 "$FIRST?as=bring-back" "key=$KEY"
  grep -q 'a form has forgotten the snapshot first' "$SUITE_TMP/all.log" || wrong "the log has no trace of it"
  curl -sS -D - -o /dev/null -b "$JAR" "$PLACE$FIRST?as=bring-back" | tr -d '\r' | grep -qix 'allow: POST' ||
    wrong "a link brings back, or it is not said what does"
  # Browsers that leave at once: the change is made or not, and no session stays.
  local _
  for _ in 1 2 3 4 5 6; do
    curl -sS -m 0.05 -b "$JAR" -H "Origin: $PLACE" --data "key=$KEY" "$PLACE$FIRST?as=forget" >/dev/null 2>&1 || true
    curl -sS -m 0.05 -b "$JAR" -H "Origin: $PLACE" --data "key=$KEY" "$PLACE$FIRST?as=bring-back" >/dev/null 2>&1 || true
  done
  wait_for 30 no_session || wrong "sessions stay: $(bkfs session list "$URL")"
  [ "$(names)" = "first second " ] || sent 303 "$FIRST?as=bring-back" "key=$KEY"
  is_first_listed
  exits 0 bkfs check "$URL"
}
no_session() { [ "$(bkfs session list "$URL" --json | jq -s length)" = 0 ]; }

# --- restores -------------------------------------------------------------------------------------

a_directory_is_restored() {
  restored "$FIRST/tree" root=0 below=new/tree existing=refused
  became restored
  diff -r --no-dereference "$SUITE_TMP/tree" "$TO/new/tree" || wrong "it differs"
  [ "$(stat -c %h "$TO/new/tree/large")" = 2 ] || wrong "the hard link is two files"
  [ -L "$TO/new/tree/symbolic" ] || wrong "the link is none"
  restored "$FIRST/tree/large" root=0 below=one/file existing=refused
  became restored
  cmp "$SUITE_TMP/tree/large" "$TO/one/file"
  page /restores | grep -q 'first:/tree/large' || wrong "it is not listed"
}
privileges_are_left_out() {
  restored "$FIRST/special" root=0 below=special existing=refused
  became restored
  [ "$(stat -c %a "$TO/special/set-id")" = 755 ] || wrong "set-id bits: $(stat -c %a "$TO/special/set-id")"
  [ -z "$(getcap "$TO/special/capable")" ] || wrong "a capability"
  [ ! -e "$TO/special/device" ] && [ ! -e "$TO/special/fifo" ] || wrong "a device or fifo"
  page "/restores/$NUMBER" >"$SUITE_TMP/answer"
  grep -q '2 devices, fifos and sockets' "$SUITE_TMP/answer" || wrong "what is left out is not counted"
  grep -q '1 inodes without their set-id bits' "$SUITE_TMP/answer" || wrong "nor the set-id bits"
  grep -q '1 extended attributes' "$SUITE_TMP/answer" || wrong "nor the capability"
}
nothing_leaves_the_directory() {
  local below
  for below in .. ../outside /etc/x "$OUTSIDE/x" . ./x x/../.. "" / a/./b 'new/../../outside/x'; do
    sent 400 "$FIRST/tree?as=restore" "key=$KEY" root=0 "below=$below" existing=always
  done
  for below in away away/x away/x/y; do
    restored "$FIRST/tree" root=0 "below=$below" existing=always
    became failed
  done
  restored "$FIRST/tree/large" root=0 below=away/file existing=always
  became failed
  # A name that %2F is part of is a name.
  restored "$FIRST/tree/large" root=0 below=..%2fx existing=always
  became restored
  [ -f "$TO/..%2fx" ] || wrong "%2F is read as a slash"
  sent 400 "$FIRST/tree?as=restore" "key=$KEY" root=7 below=x existing=always
  sent 400 "$FIRST/tree?as=restore" "key=$KEY" root=-1 below=x existing=always
  sent 400 "$FIRST/tree?as=restore" "key=$KEY" root=0 below=x existing=all
  sent 404 "$FIRST/tree/symbolic?as=restore" "key=$KEY" root=0 below=x existing=always
  sent 404 "$FIRST/absent?as=restore" "key=$KEY" root=0 below=x existing=always
  [ -z "$(ls -A "$OUTSIDE")" ] || wrong "outside there is $(ls -A "$OUTSIDE")"
  [ ! -e "$SUITE_TMP/x" ] || wrong "it left the directory"
}
what_is_there_is_kept_unless_asked() {
  echo mine >"$TO/new/tree/large"
  restored "$FIRST/tree" root=0 below=new/tree existing=refused
  became failed
  page "/restores/$NUMBER" | grep -q 'is not empty' || wrong "no reason is shown"
  restored "$FIRST/tree" root=0 below=new/tree existing=never
  became restored
  [ "$(cat "$TO/new/tree/large")" = mine ] || wrong "it was replaced"
  restored "$FIRST/tree" root=0 below=new/tree existing=if-changed
  became restored
  cmp "$SUITE_TMP/tree/large" "$TO/new/tree/large"
}
a_full_disk_is_known_before() {
  restored "$FIRST/tree" root=1 below=tree existing=refused
  became failed
  page "/restores/$NUMBER" | grep -q 'too little room' || wrong "no reason is shown"
  [ -z "$(ls -A "$SMALL")" ] || wrong "it began"
}
a_restore_that_hangs_is_stopped() {
  # A disk that hangs: a mount whose daemon does nothing.
  local first second daemon
  init_local "$SUITE_TMP/other" >/dev/null
  mkdir "$TO/hanging"
  at_end "leave_mount '$TO/hanging'"
  exits 0 mount_at "$SUITE_TMP/other" "$TO/hanging"
  daemon=$(daemon_of "$TO/hanging")
  at_end "kill -CONT $daemon"
  serve hanging "$URL" --listen 127.0.0.1:0 --token-file "$TOKEN_FILE" --allow-restore "$TO"
  local JAR=$SUITE_TMP/jar KEY
  log_in "$JAR"
  KEY=$(key "$FIRST?as=restore")
  kill -STOP "$daemon"
  begun "$FIRST/tree" root=0 below=hanging/1 existing=refused
  first=$NUMBER
  begun "$FIRST/tree" root=0 below=hanging/2 existing=refused
  second=$NUMBER
  sent 503 "$FIRST/tree?as=restore" "key=$KEY" root=0 below=3 existing=refused
  sleep 1
  ! has_ended || wrong "it is: $STATE"
  page "/restores/$second" | grep -q 'Stop the restore' || wrong "there is no button"
  curl -sS -D - -o /dev/null -b "$JAR" "$PLACE/restores/$second?watch" | grep -qi '^refresh: 5' || wrong "it does not update itself"
  sent 403 "/restores/$first" key=
  sent 404 /restores/99 "key=$KEY"
  sent 303 "/restores/$first" "key=$KEY"
  NUMBER=$first
  has_ended && became stopped
  page "/restores/$first" | grep -q 'Files that are whole stay' || wrong "it does not say what is left"
  kill -CONT "$daemon"
  NUMBER=$second
  wait_for 30 has_ended
  became restored
  diff -r --no-dereference "$SUITE_TMP/tree" "$TO/hanging/2" || wrong "it differs"
  [ ! -e "$TO/hanging/1/large" ] || wrong "the other one went on"
  # A server that is told to end does so, whatever hangs.
  kill -STOP "$daemon"
  begun "$FIRST/tree" root=0 below=hanging/4 existing=refused
  kill "$(daemon_pid "$SERVER")"
  wait_for 20 ended "$SERVER" || wrong "the server does not end"
  kill -CONT "$daemon"
  exits 0 bkfs umount "$TO/hanging"
  PLACE=$ALL
}
ended() { ! kill -0 "$1" 2>/dev/null; }
damage_is_named() {
  local pack
  cp -a "$URL" "$SUITE_TMP/damaged"
  find "$SUITE_TMP/damaged/data" -type f -size +1M | while read -r pack; do
    printf 'damaged' | dd of="$pack" bs=1 seek=500000 conv=notrunc 2>/dev/null
  done
  machine three
  serve damaged "$SUITE_TMP/damaged" --listen 127.0.0.1:0 --token-file "$TOKEN_FILE" --allow-restore "$TO"
  local JAR=$SUITE_TMP/jar KEY
  log_in "$JAR"
  KEY=$(key "$FIRST?as=restore")
  restored "$FIRST/tree" root=0 below=damaged existing=refused
  became 'restored in part'
  page "/restores/$NUMBER" | grep -q 'damaged/l[a-z]*: .*damage' || wrong "the file is not named"
  [ "$(cat "$TO/damaged/<b>small")" = small ] || wrong "the other file is missing"
  stop_pid "$SERVER"
  machine one
  PLACE=$ALL
}
a_browser_changes() {
  browse page_changes.mjs "$ALL" "$TOKEN_FILE"
  diff -r --no-dereference "$SUITE_TMP/tree" "$TO/by browser" || wrong "what the browser restored differs"
  is_first_listed
}

case_of "only what the options allow is changed" only_what_is_allowed_is_changed
case_of "forms of other sites and sessions change nothing" forms_of_others_change_nothing
case_of "snapshots are forgotten and brought back" snapshots_are_forgotten_and_brought_back
case_of "a directory and a file are restored" a_directory_is_restored
case_of "set-id bits, capabilities, devices and fifos are left out" privileges_are_left_out
case_of "nothing leaves the directory" nothing_leaves_the_directory
case_of "what is there is kept, unless the form says otherwise" what_is_there_is_kept_unless_asked
case_of "too little room is known before" a_full_disk_is_known_before
case_of "a restore that hangs is stopped, and keeps no server from ending" a_restore_that_hangs_is_stopped
case_of "damage is named, and the rest restored" damage_is_named
case_of "a browser forgets, brings back and restores, without scripts and without barriers" a_browser_changes
