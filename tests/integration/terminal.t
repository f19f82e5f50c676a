#!/usr/bin/env python3
"""The programs on a real terminal (a pty): chat's keys and history, the live line of --stats, top, up."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import tempfile
import termios

from outrider_test import TARGET, Service, Tap, program, until

tap = Tap()
if not TARGET.exists():
    tap.skip("the programs on a terminal", f"{TARGET.name} is not there")
    tap.done()

CTRL_C, CTRL_D, UP, LEFT = "\x03", "\x04", "\x1b[A", "\x1b[D"
LONG = ["--max-tokens", 800, "--ignore-eos", "--temperature", 1.2, "--seed", 3]


class Terminal:
    """A program with a terminal of its own; .seen is all it wrote."""

    def __init__(self, *command, rows=24, columns=80, env=None):
        self.seen, self.status = "", None
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
        return bool(until(came, timeout))

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
        return bool(until(reads))

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


def started(service, name, *arguments, **more):
    return Terminal(program(name), *arguments, "--runtime-dir", service.runtime, **more)


def check_chat(service, state):
    env = {"XDG_STATE_HOME": state}
    chat = started(service, "outrider", "chat", *LONG, env=env)
    tap.ok(chat.wait_for("> "), "chat shows its prompt")
    # The key comes when some of the answer is there; a fast machine may yet have all of it by then, so try again.
    cancelled = False
    for _ in range(10):
        began = chat.ask_at_prompt("Tell me a story\r", r"story\r\n.{20}") and chat.ask(CTRL_C, "> $")
        cancelled = bool(chat.ask_at_prompt("/stats\r", r"ended by \w+")) and "ended by cancelled" in chat.seen
        chat.ask_at_prompt("/reset\r", "> $")
        if cancelled:
            break
    tap.ok(began, "Ctrl-C in an answer does not end chat", chat.seen[-300:])
    tap.ok(cancelled, "but the answer, and /stats says so", chat.seen[-300:])
    tap.ok(chat.ask_at_prompt("rubbish" + CTRL_C + "/stats\r", "tokens.*ended by"), "Ctrl-C at the prompt drops the line",
           chat.seen[-300:])
    tap.ok(chat.ask_at_prompt("/sttats" + 4 * LEFT + "\x7f\r", "ended by"), "the arrow keys move in the line", chat.seen[-300:])
    tap.ok(chat.ask_at_prompt("/é日" + LEFT + "\x7f\r", 'no command "/日"'), "a letter of several bytes is one letter",
           chat.seen[-300:])
    tap.ok(chat.ask_at_prompt("/help\r", "/reset.*/quit"), "/help lists the commands")
    chat.at_prompt()
    chat.send(CTRL_D)
    tap.ok(chat.gone() and chat.status == 0, "Ctrl-D leaves with 0", chat.status)
    tap.ok(chat.is_plain(), "and the terminal is as it was")
    chat.close()
    chat = started(service, "outrider", "chat", *LONG, env=env)
    tap.ok(chat.ask_at_prompt(UP, "/help") and chat.ask(8 * UP, "Tell me a story"),
           "the next chat has the lines of this one", chat.seen[-300:])
    chat.send(CTRL_C + "/quit\r")
    tap.ok(chat.gone() and chat.status == 0, "/quit leaves with 0", chat.status)
    chat.close()


def check_stats(service):
    rows = 10
    run = started(service, "outrider", "run", "--stats", *LONG, "In the beginning", rows=rows, columns=40)
    tap.ok(run.gone(60) and run.status == 0, "run --stats answers on a terminal", run.seen[-300:])
    live = re.findall(rf"\x1b7\x1b\[{rows};1H\x1b\[2K\x1b\[2m(.*?)\x1b\[0m\x1b8", run.seen, re.S)
    tap.ok(live and all(len(text) <= 40 for text in live), "its live line is on the last row and fits in it", live)
    tap.ok(all(re.match(r"\d+ tokens .*K \d", text) for text in live), "and says tokens and K", live)
    tap.ok(re.search(r"\x1b\[r\x1b\[10;1H\x1b\[2K\x1b8\r\n800 tokens, .*ended by length\r\n$", run.seen, re.S),
           "then the row is cleared, the whole screen scrolls again, and a line says how it went", repr(run.seen[-300:]))
    run.close()
    # K = 0 has a utility of 1 with the policy, whatever it measures.
    service.ctl("policy", "set", "static:0")
    run = started(service, "outrider", "run", "--stats", *LONG, "In the beginning", columns=120)
    run.gone(60)
    live = re.findall(r"\x1b7\x1b\[24;1H\x1b\[2K\x1b\[2m(.*?)\x1b\[0m\x1b8", run.seen, re.S)
    tap.ok(any("K 0 (static:0)" in text for text in live) and not any("utility" in text for text in live),
           "of K = 0 no utility is in it", live)
    run.close()
    service.ctl("policy", "set", "yield")
    verifier = service.processes()["verifier"]
    run = started(service, "outrider", "run", "--stats", *LONG, "In the beginning")
    os.kill(verifier, signal.SIGSTOP)
    run.wait_for(r"\x1b\[1;23r")
    os.kill(run.pid, signal.SIGTERM)
    tap.ok(run.gone() and run.status == -signal.SIGTERM and run.seen.rfind("\x1b[r") > run.seen.rfind("\x1b[1;23r"),
           "a signal in the middle leaves a screen that scrolls", (run.status, repr(run.seen[-200:])))
    run.close()
    os.kill(verifier, signal.SIGCONT)


def check_top(service):
    top = started(service, "outriderctl", "top")
    tap.ok(top.wait_for(r"PROCESS.*verifier.*drafter.*expert-cache.*policy.*q leaves"), "top draws", top.seen[-300:])
    since = len(top.seen)
    service.end("policy")
    tap.ok(top.wait_for(r"\x1b", since=since), "and refreshes by itself")
    since = len(top.seen)
    top.resize(12, 60)
    tap.ok(top.wait_for("PROCESS.*q leaves", since=since), "a terminal of another size is drawn anew", top.seen[-300:])
    top.send("q")
    tap.ok(top.gone() and top.status == 0, "q leaves with 0", top.status)
    tap.ok("\x1b[?1049h" in top.seen and top.seen.rstrip().endswith("\x1b[?1l\x1b>") and top.is_plain(),
           "and the terminal is as it was", repr(top.seen[-100:]))
    top.close()


def check_up(directory):
    up = Terminal(program("outrider"), "up", "--model", TARGET, "--runtime-dir", f"{directory}/up")
    ready = up.wait_for("ready: ", 90)
    tap.ok(ready, "up says when it is ready", up.seen[-300:])
    up.send(CTRL_C)
    tap.ok(up.gone() and up.status == 0, "Ctrl-C stops it with 0", (up.status, up.seen[-300:]))
    tap.ok(not re.search("restart|killed|signal", up.seen), "and no process had to be killed or was started again",
           up.seen[-600:])
    up.close()


with Service() as service, tempfile.TemporaryDirectory() as directory:
    check_chat(service, f"{directory}/state")
    check_stats(service)
    check_top(service)
    check_up(directory)
tap.done()
