#!/usr/bin/env python3
"""A batch of changes is all or nothing, over several processes too, and whatever refuses it leaves a change for a time its time;
what ends with a process is in the history."""
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, Service, Tap, finish, program, run, until

tap = Tap()
# A part that is reserved is free again after 42 s, if nobody says so before (KNOBS_RESERVED_NS).
AT_ONCE = 25


class Three:
    """A verifier with the knob default_k, a policy-controller with k_max, an expert-cache with hint_queue_max, which refuse 66 when
    it is to be put in force, no sooner, and hang at 67."""

    def __init__(self):
        self.runtime = Path(tempfile.mkdtemp(prefix="outrider-", dir="/tmp"))
        self.processes = {}
        for name, key in (("verifier", "default_k"), ("policy", "k_max"), ("expert-cache", "hint_queue_max")):
            self.start(name, key)

    def start(self, name, key):
        self.processes[name] = subprocess.Popen([program("tests/knob-process"), self.runtime, name, key], stderr=subprocess.DEVNULL)
        until(lambda: self.knob(name, key), 30)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def ctl(self, *words, **more):
        return run(program("outriderctl"), "--runtime-dir", self.runtime, *words, **more)

    def knob(self, process, name):
        listed = json.loads(self.ctl("knob", "list", process, "--json").stdout or '{"knobs": []}')["knobs"]
        return next((k for k in listed if k["name"] == name and k["running"]), None)

    def history(self, *names):
        return json.loads(self.ctl("knob", "history", *names, "--json").stdout)["changes"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in self.processes:
            self.kill(name)
        shutil.rmtree(self.runtime)


def changes(events):
    return [(e["what"], e["old"], e["new"]) for e in events]


def check_refused_late(three):
    """What the policy-controller refuses only when the verifier has done its part."""
    tap.ok(three.ctl("knob", "set", "default_k=20", "--for", "1h").returncode == 0, "a change for an hour")
    refused = three.ctl("knob", "set", "default_k=25", "k_max=66")
    tap.ok(refused.returncode == 65 and refused.stderr == "outriderctl: policy: no room for that after all\n" and not refused.stdout,
           "a batch whose second part is refused when its first is in force is refused", refused.stdout + refused.stderr)
    now = three.knob("verifier", "default_k")
    tap.ok(now["value"] == "20" and now["reverts_to"] == "10" and 3000 < now["reverts_in_s"] <= 3600 and
           three.knob("policy", "k_max")["value"] == "10", "the first is taken back, and still goes back when its hour is over", now)
    events = three.history("default_k", "k_max")
    tap.ok(changes(events) == [("set", "10", "20"), ("undone", "20", "25")] and "all or nothing" in events[1]["reason"] and
           "outriderctl" in events[1]["who"], "the history has it once, as undone, and whose it was", events)
    text = three.ctl("knob", "history", "default_k", "--last", 1).stdout
    tap.ok(re.search(r"  undone verifier\.default_k: 20 -> 25: another process has not done its part, .*, by .*outriderctl", text),
           "in words too", text)
    both = three.ctl("knob", "set", "default_k=25", "k_max=5")
    tap.ok(both.returncode == 0 and both.stdout == "verifier.default_k: 20 -> 25; it no longer goes back to 10\npolicy.k_max: 10 -> 5\n" and
           changes(three.history())[2:] == [("set", "20", "25"), ("set", "10", "5")] and "reverts_to" not in three.knob("verifier", "default_k"),
           "one that none refuses is made, and to stay", both.stdout + both.stderr)


def check_unfinished(three):
    """Who makes the batch is killed when its first part is in force."""
    admin = subprocess.Popen([program("outriderctl"), "--runtime-dir", three.runtime, "knob", "set", "default_k=30", "k_max=67"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tap.ok(until(lambda: three.knob("verifier", "default_k")["value"] == "30", 60), "the first part of a batch is in force")
    admin.kill()
    admin.wait()
    tap.ok(until(lambda: three.knob("verifier", "default_k")["value"] == "25", AT_ONCE),
           "whoever is killed in the middle of his batch has made none of it, at once", three.knob("verifier", "default_k"))
    event = three.history("default_k")[-1]
    tap.ok(changes([event]) == [("undone", "25", "30")] and "ended before it had finished" in event["reason"], "which is in the history", event)
    three.kill("policy")


def check_unfinished_reservation(three):
    """Who makes the batch is killed when two processes have reserved their part, and the third is asked; or has no time to hear of it."""
    three.start("policy", "k_max")
    for stopped in ("policy", "verifier"):
        three.processes[stopped].send_signal(signal.SIGSTOP)
        admin = subprocess.Popen([program("outriderctl"), "--runtime-dir", three.runtime, "knob", "set", "default_k=30", "hint_queue_max=20", "k_max=9"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = admin.stderr.readline()
        admin.kill()
        admin.wait()
        three.processes[stopped].send_signal(signal.SIGCONT)
        next_ = three.ctl("knob", "set", "default_k=25", "hint_queue_max=10", "k_max=10", timeout=AT_ONCE)
        tap.ok(f"{stopped} has not answered yet" in said and next_.returncode == 0,
               f"one that is killed while it waits for {stopped} keeps nobody waiting", f"{said} {next_}")
    three.kill("policy")


def check_waiting(three):
    """A batch whose second process is kept by one that does not go on."""
    three.start("policy", "k_max")
    admin = subprocess.Popen([program("outriderctl"), "--runtime-dir", three.runtime, "knob", "set", "hint_queue_max=20", "k_max=67"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: three.knob("expert-cache", "hint_queue_max")["value"] == "20", 60)
    admin.send_signal(signal.SIGSTOP)
    three.kill("policy")
    # Stopped, it says that the batch has come to it; the list after that is answered when it is reserved.
    three.processes["verifier"].send_signal(signal.SIGSTOP)
    waits = subprocess.Popen([program("outriderctl"), "--runtime-dir", three.runtime, "knob", "set", "default_k=30", "hint_queue_max=40"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = waits.stderr.readline()
    three.processes["verifier"].send_signal(signal.SIGCONT)
    three.knob("verifier", "default_k")
    single = three.ctl("knob", "set", "default_k=28")
    admin.kill()
    admin.wait()
    out, err = finish(waits, 120)
    tap.ok("verifier has not answered yet" in said and waits.returncode == 0 and out == "verifier.default_k: 28 -> 30\nexpert-cache.hint_queue_max: 10 -> 40\n",
           "a batch that had to wait for a process is made", said + out + err)
    tap.ok(single.returncode == 0 and changes(three.history("default_k"))[-2:] == [("set", "25", "28"), ("set", "28", "30")],
           "and while it waits it keeps nobody from the others", three.history("default_k"))


def check_killed(three):
    """A process that was killed has lost what was changed; the journal is beside its socket."""
    three.kill("verifier")
    three.start("verifier", "default_k")
    event = three.history("default_k")[-1]
    tap.ok(changes([event]) == [("restart", "30", "10")] and event["who"] == "the process itself" and
           "without --persist ends with the process" in event["reason"], "what ended with the process is in the history", event)


def check_service():
    """The real processes: memory that there is not is known before anything changes, and K after a kill is in the history."""
    with Service(draft=DRAFTS["small"]) as service:
        def knob(name):
            return json.loads(service.ctl("knob", "get", name, "--json").stdout)["knobs"][0]

        def history(*names):
            return json.loads(service.ctl("knob", "history", *names, "--json").stdout)["changes"]

        service.ctl("knob", "set", "verifier.draft_wait=20ms", "--for", "1h")
        refused = service.ctl("knob", "set", "verifier.draft_wait=25ms", "expert-cache.budget=900G")
        tap.ok(refused.returncode == 65 and "expert-cache: budget: 900.0 GiB for experts" in refused.stderr and
               refused.stderr.count("\n") == 1, "a budget beyond the machine's memory refuses the batch", refused.stderr)
        now = knob("verifier.draft_wait")
        tap.ok(now["value"] == "20ms" and now["reverts_to"] == "50ms" and now["reverts_in_s"] > 3000,
               "the change for a time is as it was", now)
        tap.ok(changes(history("verifier.draft_wait", "expert-cache.budget")) == [("set", "50ms", "20ms")],
               "and the history has nothing of a batch that was never in force", history())

        service.ctl("knob", "set", "k_max=3")
        service.ctl("knob", "set", "k_start=2", "--for", "1h")
        service.ctl("knob", "set", "expert-cache.budget=50%")
        service.ctl("knob", "set", "expert-cache.spin=1us", "--for", "1h")
        service.restart("policy")
        service.restart("expert-cache")
        last = {e["name"]: e for e in history("policy", "expert-cache")}
        for name, process in (("k_max", "policy"), ("k_start", "policy"), ("budget", "expert-cache"), ("spin", "expert-cache")):
            tap.ok(last[name]["new"] == knob(f"{process}.{name}")["value"], f"after a kill -9 the history ends with what {name} is", last[name])
        tap.ok([last[n]["what"] for n in ("k_max", "k_start", "budget", "spin")] == ["restart", "restart", "set", "restart"] and
               "for a time ends with the process" in last["k_start"]["reason"], "and says what ended with the process", last)
        said = [line for line in service.whole_log().splitlines() if "before the process started again" in line]
        tap.ok(len(said) == 2 and "k_max is 15, was 3 before the process started again, and other knobs changed too" in said[0] and
               "spin is 0, was 1us" in said[1], "the log says it once each time", said)


with Three() as three:
    check_refused_late(three)
    check_unfinished(three)
    check_unfinished_reservation(three)
    check_waiting(three)
    check_killed(three)
check_service()
tap.done()
