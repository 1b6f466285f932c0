"""What commands show on a terminal, as a page for a picture: terminal.py PAGE [@PERCENT] COMMAND…

Each COMMAND is a line that a shell runs on a terminal of its own. With @PERCENT the next command is
shown as it was when its progress reached that.
"""

import fcntl
import html
import os
import pty
import re
import struct
import sys
import termios

COLUMNS = 100
# What moves the cursor or clears a line, and what colours.
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
STYLE = """
body { margin: 0; padding: 16px 20px; background: #14181d; color: #e6e9ed; width: max-content }
pre { margin: 0; font: 15px/1.45 'DejaVu Sans Mono', monospace }
b { color: #7ab4ff; font-weight: normal }
"""


def ran(command):
    """All bytes that a command writes to its terminal."""
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, COLUMNS, 0, 0))
        os.execvp("sh", ["sh", "-c", command])
    written = b""
    try:
        while part := os.read(terminal, 65536):
            written += part
    except OSError:
        pass
    os.waitpid(child, 0)
    return written.decode()


def shown(written, percent):
    """The text that stays on the terminal, or stood there at so many percent."""
    frames = [CONTROL.sub("", frame).strip() for frame in re.split(r"\r|\x1b\[2K", written)]
    for frame in frames:
        reached = re.search(r"(\d+) %", frame)
        if percent and reached and int(reached.group(1)) >= percent:
            return frame
    lines = [line.split("\r")[-1] for line in CONTROL.sub("", written.replace("\r\n", "\n")).split("\n")]
    return "\n".join(lines).rstrip()


def main():
    page, *commands = sys.argv[1:]
    lines, percent = [], 0
    for command in commands:
        if command.startswith("@"):
            percent = int(command[1:])
            continue
        lines.append(f"<b># {html.escape(command)}</b>")
        lines.append(html.escape(shown(ran(command), percent)))
        percent = 0
    with open(page, "w", encoding="utf-8") as file:
        text = "\n".join(lines)
        file.write(f"<!DOCTYPE html><meta charset=utf-8><style>{STYLE}</style><pre>{text}</pre>")


main()
