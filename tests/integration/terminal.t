#!/usr/bin/env python3
"""The programs on a real terminal (a pty): chat's keys and history, the live line of --stats, top, up."""
import contextlib
import os
import re
import signal
import tempfile

from outrider_test import TARGET, Service, Tap, program, until
from terminal_test import CTRL_C, Terminal

tap = Tap()
if not TARGET.exists():
    tap.skip("the programs on a terminal", f"{TARGET.name} is not there")
    tap.done()

CTRL_D, UP, LEFT = "\x04", "\x1b[A", "\x1b[D"
LONG = ["--max-tokens", 800, "--ignore-eos", "--temperature", 1.2, "--seed", 3]


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
    tap.ok(run.gone(300) and run.status == 0, "run --stats answers on a terminal", run.seen[-300:])
    live = re.findall(rf"\x1b7\x1b\[{rows};1H\x1b\[2K\x1b\[2m(.*?)\x1b\[0m\x1b8", run.seen, re.S)
    tap.ok(live and all(len(text) <= 40 for text in live), "its live line is on the last row and fits in it", live)
    tap.ok(all(re.match(r"\d+ tokens .*K \d", text) for text in live), "and says tokens and K", live)
    tap.ok(re.search(r"\x1b\[r\x1b\[10;1H\x1b\[2K\x1b8\r\n800 tokens, .*ended by length\r\n$", run.seen, re.S),
           "then the row is cleared, the whole screen scrolls again, and a line says how it went", repr(run.seen[-300:]))
    run.close()
    # K = 0 has a utility of 1 with the policy, whatever it measures.
    service.ctl("policy", "set", "static:0")
    for _ in range(10):  # the first line may be from before the policy has seen the session
        run = started(service, "outrider", "run", "--stats", *LONG, "In the beginning", columns=120)
        run.gone(300)
        live = re.findall(r"\x1b7\x1b\[24;1H\x1b\[2K\x1b\[2m(.*?)\x1b\[0m\x1b8", run.seen, re.S)
        if any("K 0 (static:0)" in text for text in live):
            break
        run.close()
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


def check_leaving(service):
    """What goes on until somebody leaves it, by Ctrl-C."""
    for words in (("top",), ("cache", "top"), ("policy", "watch")):
        program_ = started(service, "outriderctl", *words)
        program_.wait_for("q leaves|LAYER|set|trial|baseline", 1 if words[0] == "policy" else 60)  # there may be no decision yet
        program_.send(CTRL_C)
        tap.ok(program_.gone() and program_.status == 0 and program_.is_plain(), f"Ctrl-C leaves {' '.join(words)} with 0",
               (program_.status, repr(program_.seen[-100:])))
        program_.close()
    top = started(service, "outriderctl", "top")
    top.wait_for("q leaves")
    os.kill(top.pid, signal.SIGTERM)
    tap.ok(top.gone() and top.status == -signal.SIGTERM and top.seen.rstrip().endswith("\x1b[?1l\x1b>") and top.is_plain(),
           "another signal ends top as it ends any program, and the terminal is as it was", (top.status, repr(top.seen[-100:])))
    top.close()


def check_waiting(where, what, directory):
    """One Ctrl-C, while there is no service yet, or none that answers."""
    waits = Terminal(program("outrider"), "run", "--wait", 3600, "--runtime-dir", where, "hi")
    waits.read(1)
    waits.send(CTRL_C)
    tap.ok(waits.gone() and waits.status == 130, f"Ctrl-C ends run, which waits {what}", (waits.status, repr(waits.seen[-200:])))
    waits.close()
    waits = Terminal(program("outrider"), "chat", "--wait", 3600, "--runtime-dir", where, env={"XDG_STATE_HOME": f"{directory}/state"})
    waits.at_prompt()
    waits.send("hi\r")
    until(waits.is_plain)  # before, the key is one of the line's
    waits.read(1)
    waits.send(CTRL_C)
    tap.ok(waits.at_prompt(), f"Ctrl-C in chat, which waits {what}, brings its prompt back",
           repr(waits.seen[-200:]))
    waits.send(CTRL_D)
    waits.gone()
    waits.close()


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
    check_leaving(service)
    os.mkdir(f"{directory}/nobody", 0o700)
    check_waiting(f"{directory}/nobody", "for a service", directory)
    verifier = service.end("verifier", signal.SIGSTOP)
    check_waiting(service.runtime, "for one that hangs", directory)
    with contextlib.suppress(ProcessLookupError):  # its watchdog
        os.kill(verifier, signal.SIGCONT)
    check_up(directory)
tap.done()
