#!/usr/bin/env python3
"""`outrider up` with four small daemons that speak systemd's protocol: restart, watchdog, descriptor store, shutdown."""
import json
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
from outrider_test import SANITIZED, Tap, ended, finish, run, until  # noqa: E402

tap = Tap()

home = fake_daemons.install()
runtime = home / "run"


# A supervisor that is held up between two signals, as on a busy machine.
SLOW_KILL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>
int kill(pid_t pid, int number)
{
	int code = ((int (*)(pid_t, int))dlsym(RTLD_NEXT, "kill"))(pid, number);
	if (number == SIGTERM)
		usleep(300000);
	return code;
}
"""


def endless_check():
    """`outrider up` whose policy looks at its settings for ever, in a folder of its own: where it writes to."""
    other = home / "endless"
    other.mkdir()
    (other / "policy.endless").touch()
    log = open(other / "out", "w+")
    process = subprocess.Popen([str(home / "outrider"), "up", "--model", str(home / "model"), "--runtime-dir", str(other / "run")],
                               stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, "TEST_HOME": str(other)})
    return process, other / "out"


def up(*options, **environment):
    log = open(home / "out", "w+")
    return subprocess.Popen([str(home / "outrider"), "up", "--model", str(home / "model"), "--runtime-dir",
                             str(runtime), *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                            env={**os.environ, "TEST_HOME": str(home), **environment})


def out():
    return (home / "out").read_text()


def lives(name):
    path = home / f"{name}.log"
    return [l for l in path.read_text().splitlines() if l.startswith("start")] if path.exists() else []


def wait(what, seconds=60):
    return until(what, seconds, every=0.02)


def pid_of(name):
    return int(lives(name)[-1].split()[1])


def restarted(name, said="notice:"):
    """Kills it; the process of its next life, once up.log has what that said."""
    old = pid_of(name)
    os.kill(old, signal.SIGKILL)
    wait(lambda: pid_of(name) != old and f"{said} life {pid_of(name)}\n" in (runtime / "up.log").read_text())
    return pid_of(name)


try:
    # It takes a minute; meanwhile the others.
    endless, endless_out = endless_check()
    (home / "verifier.slow").touch()
    process = up("--watchdog", "3")
    tap.ok(wait(lambda: "ready: verifier" in out()), "ready is said when all four are", out())
    (home / "verifier.slow").unlink()
    again = subprocess.run([str(home / "outrider"), "up", "--model", str(home / "model"), "--runtime-dir",
                            str(runtime)], capture_output=True, text=True)
    tap.ok(again.returncode == 69 and str(process.pid) in again.stderr,
           "a second one in the same directory is refused and names the first", again.stderr)

    first = pid_of("verifier")
    os.kill(first, signal.SIGKILL)
    tap.ok(wait(lambda: len(lives("verifier")) == 2), "a killed child is started again", out())
    tap.ok(f"passed=1 names=state stored={first}" in lives("verifier")[-1],
           "it gets back the descriptor it stored, and not the one it removed", lives("verifier"))
    os.kill(pid_of("verifier"), signal.SIGKILL)
    tap.ok(wait(lambda: len(lives("verifier")) == 3) and f"stored={first}" in lives("verifier")[-1],
           "and again the next time", lives("verifier"))

    before = pid_of("drafter")
    # This life alone: the next is not to hang before anybody looks.
    (home / f"drafter.hang-{before}").touch()
    tap.ok(wait(lambda: "drafter missed its watchdog" in out()), "a child that hangs is found by its watchdog", out())
    tap.ok(wait(lambda: len(lives("drafter")) == 2) and not alive(before), "killed, and started again", out())
    before = pid_of("policy")
    os.kill(before, signal.SIGSTOP)
    tap.ok(wait(lambda: len(lives("policy")) == 2) and not alive(before), "so is one that was stopped", out())

    pids = [pid_of(n) for n in NAMES]
    down = subprocess.run([str(home / "outrider"), "down", "--runtime-dir", str(runtime)], capture_output=True,
                          text=True)
    tap.ok(down.returncode == 0 and ended(process) == 0, "down ends it with status 0", down.stderr + out())
    tap.ok(not any(alive(p) for p in pids), "no child is left")
    tap.ok("term" in (home / "policy.log").read_text(), "children are asked with SIGTERM")
    down = subprocess.run([str(home / "outrider"), "down", "--runtime-dir", str(runtime)], capture_output=True,
                          text=True)
    tap.ok(down.returncode == 69, "down without anything to stop says so", down.stderr)

    for name in NAMES:
        (home / f"{name}.log").unlink(missing_ok=True)
    # What is wrong with the file both of them read, and what the policy alone finds.
    for name, wrong in (("verifier", "model: no"), ("expert-cache", "model: no"), ("policy", "k_max: no")):
        (home / f"{name}.wrong").write_text(f"{name}: a notice\n{name}: error: {wrong}\n")
    (home / "drafter.wrong").write_text("another word\nthe last word\n")
    for more in ((), ("--detach",)):
        process = up(*more)
        status = ended(process)
        tap.ok(status == 78 and out() == "outrider: up: verifier: model: no\noutrider: up: drafter: the last word\n"
               "outrider: up: policy: k_max: no\n" and not any(lives(n) for n in NAMES) and not (runtime / "up.pid").exists(),
               f"wrong settings are said once, by who takes them, and nothing is started {' '.join(more)}", f"{status}\n{out()}")
    for name in NAMES:
        (home / f"{name}.wrong").unlink()
    (home / "expert-cache.refuse").touch()
    process = up()
    status = ended(process)
    tap.ok(status == 78 and "expert-cache ended with status 78, giving up" in out() and len(lives("expert-cache")) == 1
           and out().count("the setting is wrong") == 2
           and out().endswith("\noutrider up: expert-cache ended with status 78: the setting is wrong\n"),
           "a wrong setting ends everything with its status, and its words are the last", f"{status}\n{out()}")
    (home / "expert-cache.refuse").unlink()

    for name in NAMES:
        (home / f"{name}.log").unlink(missing_ok=True)
    process = up("--watchdog", "3")
    tap.ok(wait(lambda: "ready: verifier" in out()), "and is started again", out())
    all_of_them = [process.pid, *(pid_of(n) for n in NAMES)]
    for pid in all_of_them:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(6)
    for pid in all_of_them:
        os.kill(pid, signal.SIGCONT)
    time.sleep(4)
    tap.ok("aborted" not in out() and all(alive(p) for p in all_of_them), "a pause of all of them is nobody's fault", out())

    (home / "drafter.refuse").touch()
    os.kill(pid_of("drafter"), signal.SIGKILL)
    given_up = "drafter ended with status 78 5 times in a row, giving up on it; the others go on"
    tap.ok(wait(lambda: given_up in out()) and len(lives("drafter")) == 6 and out().count("giving up") == 1,
           "a child that came up once and then refuses its settings is given up after a few attempts", out())
    time.sleep(1.5)
    tap.ok(len(lives("drafter")) == 6 and process.poll() is None, "and not started again", out())
    (home / "verifier.refuse").touch()
    waiting = subprocess.Popen([str(home / "outrider"), "run", "--runtime-dir", str(runtime), "--wait", "3600", "hello"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(0.3)
    os.kill(pid_of("verifier"), signal.SIGKILL)
    status = ended(process)
    tap.ok(status == 78 and "verifier ended with status 78 5 times in a row, giving up\n" in out()
           and out().endswith("\noutrider up: verifier ended with status 78 5 times in a row: the setting is wrong\n"),
           "without its verifier all end, with its status", f"{status}\n{out()}")
    said = finish(waiting, 60)[1]
    why = "has given up: verifier ended with status 78 5 times in a row: the setting is wrong"
    tap.ok(waiting.returncode == 69 and why in said,
           "who waits for an answer is told at once", said)
    late = subprocess.run([str(home / "outrider"), "run", "--runtime-dir", str(runtime), "--wait", "0.2", "hello"],
                          capture_output=True, text=True)
    tap.ok(late.returncode == 69 and why in late.stderr, "who comes later, after waiting", late.stderr)
    status = subprocess.run([str(home / "outrider"), "status", "--runtime-dir", str(runtime)], capture_output=True, text=True)
    tap.ok(status.returncode == 69 and " given up: " + why.removeprefix("has given up: ") + "\n" in status.stdout,
           "and who asks for the status", status.stdout)
    # A file's name is any bytes, and a long reason is cut anywhere.
    (runtime / "given-up").write_bytes(b"x" + b"/caf\xe9/" + "\u00e9".encode() * 300)
    status = subprocess.run([str(home / "outrider"), "status", "--runtime-dir", str(runtime), "--format", "json"], capture_output=True)
    tap.ok(json.loads(status.stdout).get("given_up", "").startswith("x/caf\ufffd/\u00e9\u00e9"),
           "in JSON too, whatever bytes the reason has", status.stdout)
    for name in ("drafter", "verifier"):
        (home / f"{name}.refuse").unlink()

    for seconds, said, name in ((1, False, "ready is when none lacks another any more"),
                                (60, True, "one that goes on lacking something is named")):
        (home / "policy.alone").write_text(str(seconds))
        begun = time.monotonic()
        process = up()
        tap.ok(wait(lambda: "ready: verifier" in out()) and time.monotonic() - begun > min(seconds, 4) and
               ("but policy is degraded: nobody is here" in out()) == said, name, out())
        (home / "policy.alone").unlink()
        process.send_signal(signal.SIGTERM)
        ended(process)

    if SANITIZED:
        tap.skip("all are told to stop before any of them does", "a sanitized program takes no preloaded library first")
    else:
        (home / "slow.c").write_text(SLOW_KILL)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", home / "slow.so", home / "slow.c"], check=True)
        (home / "untold").unlink(missing_ok=True)
        process = up(LD_PRELOAD=str(home / "slow.so"))
        wait(lambda: "ready: verifier" in out())
        process.send_signal(signal.SIGTERM)
        status = ended(process)
        untold = (home / "untold").read_text() if (home / "untold").exists() else ""
        tap.ok(status == 0 and not untold, "all are told to stop before any of them does", f"{status} {untold}")

    (home / "talk").touch()
    detached = run(home / "outrider", "up", "--model", home / "model", "--runtime-dir", runtime, "--detach", env={"TEST_HOME": str(home)})
    tap.ok(detached.returncode == 0 and "ready:" in detached.stdout, "detached, it returns when all are ready",
           detached.stderr)
    pids = [pid_of(n) for n in NAMES]
    first = (runtime / "up.log").read_text()
    wrong = [p for p in pids if not all(f": notice: life {p}\n" in said and f": error: of life {p}\n" in said
                                        for said in (first, detached.stderr))]
    tap.ok(not wrong and "ready: verifier" in first, "what the terminal was told while it started is in up.log too",
           f"{wrong}\n{first}\n{detached.stderr}")
    again = restarted("policy")
    last = (runtime / "up.log").read_text()
    tap.ok(f": notice: life {again}\n" in last and "policy killed by signal 9" in last, "and so is what comes after", last)
    os.kill(int((runtime / "up.pid").read_text()), signal.SIGKILL)
    pids = [pid_of(n) for n in NAMES]
    tap.ok(wait(lambda: not any(alive(p) for p in pids)), "children do not outlive one that was killed")
    (runtime / "up.log").unlink()
    quiet = run(home / "outrider", "up", "--model", home / "model", "--runtime-dir", runtime, "--detach", "-q", env={"TEST_HOME": str(home)})
    pids = [pid_of(n) for n in NAMES]
    again = restarted("policy", "error: of")
    last = (runtime / "up.log").read_text()
    tap.ok(quiet.returncode == 0 and not quiet.stdout and not re.search("notice|ready", last + quiet.stderr) and
           all(f": error: of life {p}\n" in last for p in (*pids, again)),
           "with -q up.log has errors alone, also of what was started again", f"{quiet.stdout}{quiet.stderr}\n{last}")
    os.kill(int((runtime / "up.pid").read_text()), signal.SIGKILL)
    wait(lambda: not any(alive(pid_of(n)) for n in NAMES))
    missing = subprocess.run([str(home / "outrider"), "up", "--model", "/nonexistent.gguf", "--runtime-dir",
                              str(runtime)], capture_output=True, text=True)
    tap.ok(missing.returncode == 66 and "/nonexistent.gguf" in missing.stderr, "a missing model is named, status 66",
           missing.stderr)
    # Its minute begins anew where it was stopped itself, as on a machine that stood still.
    wait(lambda: endless.poll() is not None, 700)
    status = endless.poll()
    said = endless_out.read_text().splitlines()
    tap.ok(status == 69 and len(said) == 1 and said[0].startswith(
        f"outrider: up: policy: {home}/outrider-policy --check has not ended in 60 s and was killed: "),
        "a look at settings that does not end is given up, by name", f"{status}\n{said}")
finally:
    if endless.poll() is None:
        endless.kill()
    if (runtime / "up.pid").exists():
        subprocess.run([str(home / "outrider"), "down", "--runtime-dir", str(runtime)], capture_output=True)
    shutil.rmtree(home, ignore_errors=True)
tap.done()
