"""Names that a page must show as text, and a client of the page.

  make DIRECTORY                     makes files with such names
  compare URL TOKEN-FILE DIRECTORY   follows the links of a snapshot, and compares each file
  crowd URL TOKEN-FILE COUNT         opens connections that say nothing, and asks for a page
"""

import http.client
import os
import socket
import sys
import time
import urllib.parse
from html.parser import HTMLParser

NAMES = [
    b"plain",
    b"with space",
    b"<script>alert(1)",
    b"\"><img src=x onerror=alert(1)>",
    b"' onmouseover='alert(1)",
    b"javascript:alert(1)",
    b"&lt;b&gt; &amp;",
    b"line\nbreak\ttab",
    b"\x1b[31mred\x1b[0m",
    "\u202etxt.exe".encode(),
    "B\u00fccher \u4e66".encode(),
    b"\xff\xfe\x80 not UTF-8",
    b"%2F",
    b"..%2f..%2fetc",
    b"%",
    b"a?as=tar",
    b"a#b",
    b"...",
    b"semi;colon\"quote\"",
    b"back\\slash",
    b"long" + b"x" * 251,
    b"+plus+",
    b"-rf",
]


def make(directory):
    directory = os.fsencode(directory)
    for number, name in enumerate(NAMES):
        with open(os.path.join(directory, name), "wb") as file:
            file.write(b"contents %d" % number)
    inside = os.path.join(directory, b"<i>directory & \xff")
    os.mkdir(inside)
    with open(os.path.join(inside, b"in \"it\""), "wb") as file:
        file.write(os.urandom(100_000))
    os.symlink(b"../<target>", os.path.join(directory, b"link"))
    os.mkfifo(os.path.join(directory, b"fifo"))


class Links(HTMLParser):
    """The links of the rows of a table, and which elements there are."""

    def __init__(self):
        super().__init__()
        self.links, self.elements, self.in_row = [], set(), False

    def handle_starttag(self, tag, attributes):
        self.elements.add(tag)
        attributes = dict(attributes)
        if tag == "th":
            self.in_row = attributes.get("scope") == "row"
        if tag == "a" and self.in_row:
            self.links.append(attributes["href"])

    def handle_endtag(self, tag):
        if tag == "th":
            self.in_row = False


def address(url):
    parts = urllib.parse.urlsplit(url)
    return parts.hostname, parts.port


def get(url, token, path):
    connection = http.client.HTTPConnection(*address(url), timeout=60)
    connection.request("GET", path, headers={"Authorization": "Bearer " + token})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


ALLOWED = {
    "html", "head", "meta", "title", "link", "body", "a", "header", "nav", "ol", "li", "form", "button",
    "main", "h1", "p", "code", "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "time",
}


def compare(url, token, directory):
    compared = 0
    stack = [("/repository/1/main/first", os.fsencode(directory))]
    while stack:
        path, here = stack.pop()
        status, headers, body = get(url, token, path)
        assert status == 200, (status, path)
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        page = Links()
        page.feed(body.decode())
        assert page.elements <= ALLOWED, page.elements - ALLOWED
        names = sorted(os.listdir(here))
        if here.endswith(b"/large"):
            continue
        assert len(page.links) == len(names), (path, len(page.links), len(names))
        # Sorted by bytes, as the names here.
        for link, name in zip(page.links, names):
            local = os.path.join(here, name)
            if os.path.isdir(local) and not os.path.islink(local):
                stack.append((link, local))
                continue
            if os.path.islink(local) or not os.path.isfile(local):
                assert get(url, token, link)[0] == 200
                assert get(url, token, link + "?as=file")[0] == 404
                continue
            status, headers, body = get(url, token, link + "?as=file")
            assert status == 200, (status, link)
            assert headers["content-disposition"].startswith("attachment; "), headers
            assert headers["content-type"] == "application/octet-stream"
            if name != b"versions":
                with open(local, "rb") as file:
                    assert body == file.read(), name
            compared += 1
    for path in ["..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2Fetc", "plain%00", ".", "plain/", "absent"]:
        status, _, _ = get(url, token, "/repository/1/main/first/" + path)
        assert status == 404, (status, path)
    for path in ["/repository/2/main/", "/repository/1/absent/", "/repository/1/main/absent", "/..", "//", "/style.css/"]:
        assert get(url, token, path)[0] == 404, path
    print(compared)


def crowd(url, token, count):
    idle = []
    for number in range(count):
        client = socket.create_connection(address(url), timeout=60)
        if number % 2:
            client.sendall(b"GET / HTTP/1.1\r\nHost: ")
        idle.append(client)
    begin = time.monotonic()
    status, _, _ = get(url, token, "/")
    assert status == 200
    print(f"answered after {time.monotonic() - begin:.1f} s with {count} silent clients")


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "make":
        make(*arguments)
    else:
        url, token_file, last = arguments
        with open(token_file, encoding="ascii") as file:
            token = file.readline().strip()
        compare(url, token, last) if what == "compare" else crowd(url, token, int(last))
