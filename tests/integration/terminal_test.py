"""A program on a terminal of its own."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios

from outrider_test import until

CTRL_C = "\x03"


class Terminal:
    """A program with a terminal of its own; .seen is all it wrote."""

    def __init__(self, *command, rows=24, columns=80, env=None):
        self.seen, self.status, self.left = "", None, False
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            self.fd = 0
            self.resize(rows, columns)  # before the program looks
            os.environ.update({"TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})})
            os.execv(command[0], [str(c) for c in command])

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds=0.05):
        while select.select([self.fd], [], [], seconds)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the program has gone
                data = b""
            if not data:
                self.left = True
                return
            self.seen += data.decode(errors="replace")
            seconds = 0

    def send(self, keys):
        os.write(self.fd, keys.encode())

    def wait_for(self, pattern, timeout=60, since=0):
        """Whether the pattern came, after the first `since` characters."""
        def came():
            self.read()
            return re.search(pattern, self.seen[since:], re.S)
        return bool(until(lambda: came() or self.left, timeout) and came())

    def ask_at_prompt(self, keys, pattern):
        return self.at_prompt() and self.ask(keys, pattern)

    def ask(self, keys, pattern, timeout=60):
        since = len(self.seen)
        self.send(keys)
        return self.wait_for(pattern, timeout, since)

    def at_prompt(self, prompt="> "):
        """Whether it reads keys one by one, behind its prompt: before, the terminal itself would echo them, and edit the line."""
        def reads():
            self.read()
            return self.seen.endswith(prompt) and not termios.tcgetattr(self.fd)[3] & termios.ICANON
        return bool(until(lambda: self.left or reads()) and not self.left)

    def gone(self, timeout=60):
        def ended():
            self.read()
            if self.status is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.status = os.waitstatus_to_exitcode(status) if pid else None
            return self.status is not None
        return until(ended, timeout)

    def is_plain(self):
        """Lines, echo and Ctrl-C as a shell left them."""
        modes = termios.tcgetattr(self.fd)
        wanted = termios.ICANON | termios.ECHO | termios.ISIG
        return modes[3] & wanted == wanted and modes[6][termios.VINTR] == b"\x03"

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
