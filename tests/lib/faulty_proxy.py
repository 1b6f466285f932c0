#!/usr/bin/env python3
"""An HTTP proxy before an object store, which fails as it is told.

    faulty_proxy.py PORT BACKEND_HOST:PORT DIRECTORY

DIRECTORY/rules is a JSON object, read again whenever it changes:
    {"fail_percent": 5, "status": 503}              so many of all requests, evenly, are answered with that status, unapplied
    {"only": {"method": "PUT", "class": "data"}}    all faults of the rules strike only these; either may be missing
    {"refuse": true}                                connections are closed at once: nobody is there
    {"hang": true}                                  requests are taken and never answered while the rule stands
    {"delay_ms": 20}                                every answer comes that much later
    {"crash": {"pid": 7, "method": "PUT", "class": "journal", "nth": 2, "when": "after"}}
        the Nth request (counted from when the rule was written) on an object of that class ends process 7, before it is applied or after
DIRECTORY/log has a line for each request: method, class, what became of it. DIRECTORY/struck has a line for each fault.
The class of an object is the directory that it lies in, below bucket and prefix: data, meta, index, journal, sessions, root …
"""

import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, BACKEND, PLACE = int(sys.argv[1]), sys.argv[2], sys.argv[3]
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding"}
CLASSES = {"data", "meta", "index", "lists", "journal", "sessions", "keys", "probe", "root", "config", "retained"}


class Rules:
    """The rules as they stand, with what is counted for them."""

    def __init__(self):
        self.lock = threading.Lock()
        self.stamp = None
        self.rules = {}
        self.seen = 0
        # Reaches 100 whenever a request is to fail: evenly, and not by chance, which would spare a short backup now and then.
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
        return self.rules

    def judge(self, method, kind):
        """What is to become of a request: pass, refuse, hang, status, or crash before or after."""
        with self.lock:
            rules = self.now()
            only = rules.get("only", {})
            if only.get("method", method) != method or only.get("class", kind) != kind:
                return "pass", rules
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
        if verdict != "pass":
            note("struck", self.command, kind, verdict)
        if verdict == "refuse":
            return self.drop()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
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
        note("log", self.command, kind, status)
        if verdict == "crash-after":
            os.kill(rules["crash"]["pid"], signal.SIGKILL)
            return self.drop()
        time.sleep(rules.get("delay_ms", 0) / 1000)
        self.reply(status, headers, answer)

    def forward(self, body):
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS}
        for attempt in (1, 2):
            if self.backend is None:
                self.backend = http.client.HTTPConnection(BACKEND, timeout=600)
            try:
                self.backend.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
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

    def reply(self, status, headers, body):
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in HOP_HEADERS and name.lower() != "content-length":
                self.send_header(name, value)
        length = headers.get("Content-Length", len(body)) if self.command == "HEAD" else len(body)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def drop(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = serve


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        # Clients that were ended, and servers that were stopped, are what this is for.
        note("errors", sys.exc_info()[1])


Server(("127.0.0.1", PORT), Proxy).serve_forever()
