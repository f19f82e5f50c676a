#!/usr/bin/env python3
"""How `outrider up` ends: asked to before and after it is ready, by children that never start, and what it leaves behind."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
import fake_daemons  # noqa: E402
from fake_daemons import NAMES, alive  # noqa: E402
from outrider_test import Tap, ended, until  # noqa: E402

tap = Tap()
home = fake_daemons.install()
runtime, said = home / "run", home / "said"


def up(*options):
    with open(said, "w") as log:
        return subprocess.Popen([str(home / "outrider"), "up", "--model", str(home / "model"), "--runtime-dir", str(runtime), *options],
                                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, "TEST_HOME": str(home)})


def outrider(*words):
    return subprocess.run([str(home / "outrider"), *words, "--runtime-dir", str(runtime)], capture_output=True, text=True)


def lives(name):
    path = home / f"{name}.log"
    return [int(l.split()[1]) for l in path.read_text().splitlines() if l.startswith("start")] if path.exists() else []


def forget():
    for name in NAMES:
        (home / f"{name}.log").unlink(missing_ok=True)


def nobody():
    return not any(alive(pid) for name in NAMES for pid in lives(name))


def check_deaths():
    """Of a child that never was ready: as it ends, the status of `up`, and what is said of it."""
    for name, how, expected, words in (("drafter", "SEGV", 71, r"killed by signal 11 \(Segmentation fault\)"), ("verifier", "KILL", 71, "killed by signal 9"),
                                       ("policy", "0", 70, "ended with status 0"), ("verifier", "1", 70, "ended with status 1"),
                                       ("expert-cache", "111", 70, "ended with status 111"), ("drafter", "75", 75, "ended with status 75")):
        (home / f"{name}.dies").write_text(how if how.isdigit() else f"SIG{how}")
        for more in ((), ("--detach",)):
            forget()
            status = ended(up(*more), 120)
            text = said.read_text()
            last = text.splitlines()[-1]
            tap.ok(status == expected and len(lives(name)) == 5 and
                   re.fullmatch(rf"outrider up: {name} {words}.*, for the 5th time before it was ready: outrider-{name}: the last word", last),
                   f"{name}, which ends by {how} before it is ready, ends up {' '.join(more)}", f"{status} {lives(name)}\n{text}")
            tap.ok(until(nobody) and not (runtime / "up.pid").exists(), "and with it all the others")
        given_up = outrider("status").stdout
        tap.ok(re.search(rf"given up: {name} {words}", given_up), "status says why", given_up)
        (home / f"{name}.dies").unlink()


def check_before_ready():
    (home / "verifier.stuck").touch()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        for more in ((), ("--detach",)):
            forget()
            process = up(*more)
            tap.ok(until(lambda: lives("verifier"), 120), "up has started a process that is not ready", said.read_text())
            process.send_signal(number)
            status = ended(process, 120)
            expected = -number if number == signal.SIGKILL else 128 + number if more or number == signal.SIGHUP else 0
            gone = until(nobody) and (number == signal.SIGKILL and not more or until(lambda: not (runtime / "up.pid").exists(), 20))
            tap.ok(status == expected and gone, f"{number.name} {' '.join(more)} before it is ready ends all of it with {expected}",
                   f"{status} {gone}\n{said.read_text()}")
            if number != signal.SIGKILL:
                tap.ok(re.search(r"^outrider up: stopped by SIG(INT|TERM|HUP) from process \d+ before it was ready; ", said.read_text(), re.M),
                       "which it says", said.read_text())
    forget()
    process = up("--detach")
    until(lambda: lives("verifier"), 120)
    os.kill(int((runtime / "up.pid").read_text()), signal.SIGKILL)
    tap.ok(ended(process, 120) == 70 and said.read_text().endswith("outrider: up: the process in the background was killed by signal 9 (Killed) before it was ready\n")
           and until(nobody), "one in the background that is killed is missed", f"{process.returncode} {said.read_text()}")
    forget()
    process = up("--detach")
    until(lambda: lives("verifier"))
    down = outrider("down")
    tap.ok(down.returncode == 0 and ended(process) == 69 and nobody(), "down ends one that goes to the background too, which fails",
           f"{down}{process.returncode}\n{said.read_text()}")
    (home / "verifier.stuck").unlink()


def check_settings():
    """While the processes look at their settings."""
    (home / "policy.endless").touch()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process = up("--detach")
        until(lambda: (runtime / "up.pid").exists() and (runtime / "up.pid").read_text() == f"{process.pid}\n")
        second = outrider("up", "--model", str(home / "model"))
        tap.ok(second.returncode == 69 and f"already runs there as process {process.pid}; " in second.stderr,
               "a second one is told who is first, however early", second.stderr)
        process.send_signal(number)
        tap.ok(ended(process) == 128 + number and not (runtime / "up.pid").exists() and
               said.read_text() == f"outrider: up: stopped by {number.name} from process {os.getpid()} before it was ready\n",
               f"{number.name} ends it", f"{process.returncode} {said.read_text()}")
    (home / "policy.endless").unlink()


def ready_then(*numbers):
    """Its status after the signals, each when the drafter knows of the one before; the lines it printed."""
    forget()
    process = up()
    until(lambda: "ready: verifier" in said.read_text())
    for number in numbers:
        process.send_signal(number)
        until(lambda: "term" in (home / "drafter.log").read_text() or process.poll() is not None, every=0.01)
    return ended(process), said.read_text().splitlines()[1:]


def check_crashes():
    """Of a child that is told to end. 15 and 9 are from somebody else, who knows why."""
    ends, stopped = home / "drafter.ends", f"outrider up: stopped by SIGTERM from process {os.getpid()}; {runtime} is empty"
    for how, word in (("SIGSEGV", r"11 \(Segmentation fault\)"), ("SIGABRT", r"6 \(Aborted\)"), ("SIGKILL", ""), ("SIGTERM", "")):
        ends.write_text(how)
        status, lines = ready_then(signal.SIGTERM)
        crash = rf"outrider up: drafter killed by signal {word} as it ended\. This is a bug in {home}/outrider-drafter: please report it .* info \d+`"
        tap.ok(status == (70 if word else 0) and lines[-1] == stopped and
               (re.fullmatch(crash, lines[0]) and lines[0].endswith(f" {lives('drafter')[0]}`") if word else len(lines) == 1),
               f"a child that ends by {how} when it is told to {'is a failure' if word else 'has done nothing wrong'}", f"{status}\n{lines}")
    status, lines = ready_then(signal.SIGHUP)
    tap.ok(status == 129 and len(lines) == 1, "after SIGHUP too", f"{status}\n{lines}")
    ends.write_text("SIGBUS")
    status, lines = ready_then(signal.SIGHUP)
    tap.ok(status == 129 and "signal 7 (Bus error) as it ended" in lines[0], "whose status a crash does not change", f"{status}\n{lines}")
    ends.write_text("never")
    status, lines = ready_then(signal.SIGTERM, signal.SIGTERM)
    tap.ok(status == 0 and lines == [stopped] and nobody(), "one that does not end is killed by the second signal, as who sends it wishes",
           f"{status}\n{lines}")
    status, lines = ready_then(signal.SIGTERM)
    tap.ok(status == 0 and lines == ["outrider up: drafter had not ended 10 s after SIGTERM and was killed", stopped] and nobody(),
           "or after a while, which is said", f"{status}\n{lines}")
    ends.unlink()


def check_stops():
    for number, expected in ((signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGHUP, 129)):
        forget()
        process = up()
        until(lambda: "ready: verifier" in said.read_text())
        for name in ("verifier.sock", "verifier.ctl", "verifier.lock", "client", "policy.lock", "policy.knobs.jsonl"):
            (runtime / name).touch()
        process.send_signal(number)
        status = ended(process)
        last = said.read_text().splitlines()[-1]
        tap.ok(status == expected and last == f"outrider up: stopped by {number.name} from process {os.getpid()}; {runtime} keeps policy.knobs.jsonl",
               f"{number.name} ends it with {expected}, and it says what ended it and what it left", f"{status} {said.read_text()}")
        tap.ok(os.listdir(runtime) == ["policy.knobs.jsonl"], "which is all there is", os.listdir(runtime))
        (runtime / "policy.knobs.jsonl").unlink()
    forget()
    with open(said, "w") as log:
        process = subprocess.Popen(["nohup", str(home / "outrider"), "up", "--model", str(home / "model"), "--runtime-dir", str(runtime)],
                                   stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, "TEST_HOME": str(home)})
    until(lambda: "ready: verifier" in said.read_text())
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    tap.ok(process.poll() is None and outrider("down").returncode == 0 and ended(process) == 0, "under nohup SIGHUP ends nothing", said.read_text())
    forget()
    process = up("--quiet")
    until(lambda: lives("policy"))
    outrider("down")
    tap.ok(ended(process) == 0 and not said.read_text(), "quiet, it says nothing", said.read_text())
    process = up("--detach")
    status = ended(process)
    outrider("down")
    tap.ok(status == 0 and "stopped by SIGTERM from process" in (runtime / "up.log").read_text().splitlines()[-1] and os.listdir(runtime) == ["up.log"],
           "in the background the log has it, and stays", os.listdir(runtime))


try:
    check_deaths()
    shutil.rmtree(runtime)
    check_before_ready()
    shutil.rmtree(runtime)
    check_settings()
    shutil.rmtree(runtime)
    check_crashes()
    check_stops()
finally:
    if (runtime / "up.pid").exists():
        outrider("down")
    shutil.rmtree(home, ignore_errors=True)
tap.done()
