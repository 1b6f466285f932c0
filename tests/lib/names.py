#!/usr/bin/env python3
"""A DNS server for a few names, and a web server that refuses everything.

    names.py ADDRESS PORT LOG NAME...

Serves DNS over UDP and TCP on port 53 of ADDRESS, and HTTP on a free port of 127.0.0.1, which it
writes to the file PORT. Each NAME has the address 127.0.0.1; an answer by UDP for a name that
begins with `long` is cut off. LOG gets a line for each request: `udp NAME`, `tcp NAME` or
`http HOST`.
"""

import http.server
import socketserver
import struct
import sys
import threading

ADDRESS, PORT, LOG, *NAMES = sys.argv[1:]
TYPE_A = 1
NO_SUCH_NAME = 3
TRUNCATED = 0x0200
REFUSAL = b"<Error><Code>AccessDenied</Code><Message>refused</Message></Error>"
lock = threading.Lock()


def note(*words):
    with lock, open(LOG, "a", encoding="ascii") as log:
        print(*words, file=log)


def question_of(packet):
    """The name, the type and the bytes of the only question."""
    labels, position = [], 12
    while packet[position]:
        length = packet[position]
        labels.append(packet[position + 1:position + 1 + length].decode("ascii").lower())
        position += 1 + length
    end = position + 5
    return ".".join(labels), struct.unpack(">H", packet[end - 4:end - 2])[0], packet[12:end]


def answer_to(packet, by):
    name, kind, question = question_of(packet)
    note(by, name)
    flags, records = 0x8180, b""
    if name not in NAMES:
        flags |= NO_SUCH_NAME
    elif by == "udp" and name.startswith("long"):
        flags |= TRUNCATED
    elif kind == TYPE_A:
        records = struct.pack(">HHHIH4B", 0xC00C, TYPE_A, 1, 60, 4, 127, 0, 0, 1)
    counts = struct.pack(">HHHH", 1, 1 if records else 0, 0, 0)
    return packet[:2] + struct.pack(">H", flags) + counts + question + records


class ByUdp(socketserver.BaseRequestHandler):
    def handle(self):
        packet, socket = self.request
        socket.sendto(answer_to(packet, "udp"), self.client_address)


class ByTcp(socketserver.StreamRequestHandler):
    def handle(self):
        while len(length := self.rfile.read(2)) == 2:
            answer = answer_to(self.rfile.read(struct.unpack(">H", length)[0]), "tcp")
            self.wfile.write(struct.pack(">H", len(answer)) + answer)


class Refusing(http.server.BaseHTTPRequestHandler):
    def refuse(self):
        note("http", self.headers["Host"])
        self.send_response(403)
        self.send_header("Content-Length", str(len(REFUSAL)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(REFUSAL)

    do_GET = do_HEAD = do_PUT = do_DELETE = refuse

    def log_message(self, *_):
        pass


def main():
    servers = [
        socketserver.ThreadingUDPServer((ADDRESS, 53), ByUdp),
        socketserver.ThreadingTCPServer((ADDRESS, 53), ByTcp),
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing),
    ]
    for server in servers[:2]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    with open(PORT, "w", encoding="ascii") as port:
        print(servers[2].server_address[1], file=port)
    servers[2].serve_forever()


main()
