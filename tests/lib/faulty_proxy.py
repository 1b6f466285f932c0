#!/usr/bin/env python3
"""An HTTP proxy before an object store, which fails as it is told.

    faulty_proxy.py PORT BACKEND_HOST:PORT DIRECTORY

DIRECTORY/rules is a JSON object, read again whenever it changes:
    {"fail_percent": 5, "status": 503}              so many of all requests, evenly, are answered with that status, unapplied
    {"only": {"method": "PUT", "class": "data"}}    all faults of the rules strike only these; either may be missing
    {"refuse": true}                                connections are closed at once: no server is there
    {"hang": true}                                  requests are taken and never answered while the rule stands
    {"delay_ms": 20}                                every answer comes that much later
    {"crash": {"pid": 7, "method": "PUT", "class": "journal", "nth": 2, "when": "after"}}
        the Nth request (counted from when the rule was written) on an object of that class ends process 7, before it is applied or after
    {"seed": 7, "strikes": [{"what": "late", "method": "PUT", "class": ["data", "meta"], "percent": 30,
                             "from": 0.5, "until": 3, "most": 2, …}, …]}
        any number of faults, drawn from a seed: the first that fits a request strikes it. Times are
        seconds since the rule was written; "most" counts what it struck. What there is:
          stall {seconds}     held back, then applied and answered, though the client may be gone
          late {seconds}      the connection is closed at once, the request applied later
          drop-before         the connection is closed, nothing applied
          drop-after          applied, and the connection closed without an answer
          slow {rate}         body and answer pass at so many bytes per second
          swallow {rate}      the body is taken at so many bytes per second, and nothing follows
          status {status, code, applied}   that answer, with the service's code; applied or not
          cut                 the connection is closed in the middle of the answer
          break {rate}        a half of the body is taken at so many bytes per second, and the
                              connection is closed
          cut-request         the server gets a half of the request, and the connection is closed
          lie                 a PUT is acknowledged and not applied: a test that misses it is none
DIRECTORY/log has a line for each request: method, class, what became of it, when it came and was
answered (seconds), its path. DIRECTORY/answers has two lines for each answer to a GET that is passed on:
`begin` before its first byte and `end` after its last one, class, bytes, when, path, range. DIRECTORY/struck has a line for each fault: method, class, fault, when,
path. DIRECTORY/held has `begin` and `end` of each request that was held back.
The class of an object is the directory that it lies in, below bucket and prefix: data, meta, index, journal, sessions, root …
"""

import hashlib
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, BACKEND, PLACE = int(sys.argv[1]), sys.argv[2], sys.argv[3]
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding"}
SLOW_BYTES = 16 << 10
LINK_BYTES = 64 << 10
CLASSES = {
    "data",
    "meta",
    "index",
    "lists",
    "journal",
    "sessions",
    "keys",
    "probe",
    "root",
    "config",
    "retained",
}


class Rules:
    """The rules as they stand, with what is counted for them."""

    def __init__(self):
        self.lock = threading.Lock()
        self.stamp = None
        self.rules = {}
        self.seen = 0
        self.began = time.monotonic()
        self.drawn = {}
        self.struck = {}
        # Reaches 100 whenever a request is to fail: evenly, and not by chance, which would spare a
        # short backup now and then.
        self.owed = 0

    def now(self):
        path = f"{PLACE}/rules"
        try:
            stat = os.stat(path)
        except FileNotFoundError:
            return {}
        stamp = (stat.st_mtime_ns, stat.st_ino)
        if stamp != self.stamp:
            with open(path) as file:
                self.rules = json.load(file)
            # The first failure comes early: of one in twenty, the fourth request.
            self.stamp, self.seen, self.owed = stamp, 0, 80
            self.began, self.drawn, self.struck = time.monotonic(), {}, {}
        return self.rules

    def strike(self, rules, method, kind):
        """The first of the drawn faults that strikes this request, or None."""
        if "strikes" not in rules:
            return None
        after = time.monotonic() - self.began
        number = self.drawn[method, kind] = self.drawn.get((method, kind), -1) + 1
        for index, strike in enumerate(rules["strikes"]):
            if not strike.get("from", 0) <= after < strike.get("until", 1e9):
                continue
            if strike.get("method", method) != method or kind not in strike.get("class", [kind]):
                continue
            if self.struck.get(index, 0) >= strike.get("most", 1e9):
                continue
            if zlib.crc32(
                f"{rules.get('seed')} {index} {method} {kind} {number}".encode()
            ) % 100 < strike.get("percent", 100):
                self.struck[index] = self.struck.get(index, 0) + 1
                return strike
        return None

    def judge(self, method, kind):
        """What is to become of a request: pass, refuse, hang, status, or crash before or after."""
        with self.lock:
            rules = self.now()
            only = rules.get("only", {})
            if only.get("method", method) != method or only.get("class", kind) != kind:
                return "pass", rules
            strike = self.strike(rules, method, kind)
            if strike:
                return strike["what"], strike
            if rules.get("refuse"):
                return "refuse", rules
            if rules.get("hang"):
                return "hang", rules
            crash = rules.get("crash")
            if crash and crash.get("method", method) == method and crash.get("class", kind) == kind:
                self.seen += 1
                if self.seen == crash.get("nth", 1):
                    return "crash-" + crash.get("when", "before"), rules
            self.owed += rules.get("fail_percent", 0)
            if self.owed >= 100:
                self.owed -= 100
                return "status", rules
            return "pass", rules


RULES = Rules()
LOG_LOCK = threading.Lock()


def note(file, *words):
    with LOG_LOCK, open(f"{PLACE}/{file}", "a") as log:
        log.write(" ".join(str(word) for word in words) + "\n")


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Answers are written whole; waiting for more would cost 40 ms each.
    wbufsize = 1 << 20

    def log_message(self, *_):
        pass

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.backend = None

    def finish(self):
        if self.backend:
            self.backend.close()
        try:
            super().finish()
        except OSError:
            pass

    def kind(self):
        for part in self.path.split("?")[0].split("/"):
            if part in CLASSES:
                return part
        return "list" if "list-type" in self.path else "other"

    def serve(self):
        kind = self.kind()
        verdict, rules = RULES.judge(self.command, kind)
        came = f"{time.monotonic():.3f}"
        if verdict != "pass":
            note("struck", self.command, kind, verdict, came, self.path)
        if verdict == "refuse":
            return self.drop()
        length = int(self.headers.get("Content-Length") or 0)
        rate = rules["rate"] if verdict in ("slow", "swallow", "break") else 0
        if verdict == "break":
            length //= 2
        body = self.body(length, rate)
        if len(body) < length:
            # The client went away in the middle of it.
            return self.drop()
        if "what" in rules and verdict != "slow":
            return STRIKES[verdict](self, rules, kind, came, body)
        if verdict == "hang":
            while RULES.judge(self.command, kind)[0] == "hang":
                time.sleep(0.1)
            return self.drop()
        if verdict == "status":
            return self.reply(rules.get("status", 503), {}, b"told to")
        if verdict == "crash-before":
            os.kill(rules["crash"]["pid"], signal.SIGKILL)
            return self.drop()
        status, headers, answer = self.forward(body)
        self.told(kind, status, came)
        if verdict == "crash-after":
            os.kill(rules["crash"]["pid"], signal.SIGKILL)
            return self.drop()
        time.sleep(rules.get("delay_ms", 0) / 1000)
        self.passes("begin", kind, answer)
        self.reply(status, headers, answer, rate)
        self.passes("end", kind, answer)

    def passes(self, what, kind, answer):
        if self.command == "GET":
            span = self.headers.get("Range", "all").removeprefix("bytes=")
            when = f"{time.monotonic():.3f}"
            note("answers", what, kind, len(answer), when, self.path.split("?")[0], span)

    def told(self, kind, what, came):
        note("log", self.command, kind, what, came, f"{time.monotonic():.3f}", self.path)

    def body(self, length, rate):
        if not rate:
            return self.rfile.read(length)
        parts = []
        while length > 0:
            part = self.rfile.read(min(length, SLOW_BYTES))
            if not part:
                break
            parts.append(part)
            length -= len(part)
            time.sleep(len(part) / rate)
        return b"".join(parts)

    # --- what is drawn

    def stall(self, strike, kind, came, body):
        with Held():
            time.sleep(strike["seconds"])
            status, headers, answer = self.forward(body)
        self.told(kind, f"{status}-stalled", came)
        self.reply(status, headers, answer)

    def late(self, strike, kind, came, body):
        def deliver():
            time.sleep(strike["seconds"])
            try:
                status, _, _ = self.forward(body)
                self.told(kind, f"{status}-late", came)
                self.backend.close()
            finally:
                held.__exit__()

        if self.backend:
            self.backend.close()
            self.backend = None
        held = Held()
        held.__enter__()
        threading.Thread(target=deliver, daemon=True).start()
        self.drop()

    def drop_before(self, _, kind, came, __):
        self.told(kind, "dropped", came)
        self.drop()

    def drop_after(self, _, kind, came, body):
        status, _, _ = self.forward(body)
        self.told(kind, f"{status}-unanswered", came)
        self.drop()

    def answer_status(self, strike, kind, came, body):
        applied = self.forward(body)[0] if strike.get("applied") else "unapplied"
        self.told(kind, f"{strike['status']}-but-{applied}", came)
        code = strike.get("code")
        document = f"<Error><Code>{code}</Code><Message>told to</Message></Error>" if code else ""
        self.reply(strike["status"], {}, document.encode())

    def cut(self, _, kind, came, body):
        status, headers, answer = self.forward(body)
        self.told(kind, f"{status}-cut", came)
        self.reply(status, headers, answer, cut=True)
        self.drop()

    def cut_request(self, _, kind, came, body):
        host, port = BACKEND.split(":")
        head = [f"{self.command} {self.path} HTTP/1.1"] + [
            f"{name}: {value}" for name, value in self.headers.items()
        ]
        with socket.create_connection((host, int(port))) as backend:
            backend.sendall(("\r\n".join(head) + "\r\n\r\n").encode() + body[: len(body) // 2])
        self.told(kind, "half", came)
        self.drop()

    def swallow(self, _, kind, came, __):
        self.told(kind, "swallowed", came)
        # Until the client goes away.
        self.rfile.read(1)
        self.close_connection = True

    def lie(self, _, kind, came, body):
        self.told(kind, "200-a-lie", came)
        self.reply(200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b"")

    # --- the two sides

    def forward(self, body):
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS
        }
        for attempt in (1, 2):
            if self.backend is None:
                self.backend = http.client.HTTPConnection(BACKEND, timeout=600)
            try:
                self.backend.putrequest(
                    self.command, self.path, skip_host=True, skip_accept_encoding=True
                )
                for name, value in headers.items():
                    self.backend.putheader(name, value)
                self.backend.endheaders(body or None)
                response = self.backend.getresponse()
                return response.status, dict(response.getheaders()), response.read()
            except (http.client.BadStatusLine, BrokenPipeError, ConnectionResetError):
                # The server closed a connection that had been idle: nothing was applied.
                self.backend.close()
                self.backend = None
                if attempt == 2:
                    raise

    def reply(self, status, headers, body, rate=0, cut=False):
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in HOP_HEADERS and name.lower() != "content-length":
                self.send_header(name, value)
        length = headers.get("Content-Length", len(body)) if self.command == "HEAD" else len(body)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.write(body[: len(body) // 2] if cut else body, rate)
        self.wfile.flush()

    def write(self, body, rate):
        if not rate:
            self.wfile.write(body)
            return
        for at in range(0, len(body), SLOW_BYTES):
            part = body[at : at + SLOW_BYTES]
            self.wfile.write(part)
            self.wfile.flush()
            time.sleep(len(part) / rate)

    def drop(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = serve


class Held:
    """A request that is held back: a repository is judged when none is left."""

    def __enter__(self):
        note("held", "begin")

    def __exit__(self, *_):
        note("held", "end")


STRIKES = {
    "stall": Proxy.stall,
    "late": Proxy.late,
    "drop-before": Proxy.drop_before,
    "drop-after": Proxy.drop_after,
    "status": Proxy.answer_status,
    "cut": Proxy.cut,
    "break": Proxy.drop_before,
    "cut-request": Proxy.cut_request,
    "lie": Proxy.lie,
    "swallow": Proxy.swallow,
}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self):
        # A slow link holds little. What sockets hold otherwise depends on the machine's settings.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LINK_BYTES)
        super().server_bind()

    def handle_error(self, request, client_address):
        # Clients that were ended, and servers that were stopped, are what this is for.
        note("errors", sys.exc_info()[1])


Server(("127.0.0.1", PORT), Proxy).serve_forever()
