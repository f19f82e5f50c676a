#!/usr/bin/env python3
"""What is written down while it serves, where it cannot be or where the time is wrong: a full and a read-only file system under
the journals, and a clock that jumps. Served on with the same bytes, said once, and written down again when that is over."""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from faults import WHY_NOT, Faults
from outrider_test import DRAFTS, SAMPLED, Service, Tap, difference, prompts, reference, until

TOKENS, YEAR_NS = 100, 365 * 86400 * 10**9
SPACE = 512 << 10
tap = Tap()
state = Path(tempfile.mkdtemp(prefix="outrider-journals-", dir="/tmp"))
ids = prompts(4, longest=60)
expected = [reference(p, TOKENS, SAMPLED if i % 2 else None, seed=i, extra=("--ignore-eos",)) for i, p in enumerate(ids)]
requests = [{"tokens": p, "max_tokens": TOKENS, "ignore_eos": True, "logits_hash": True, "seed": i, **(SAMPLED if i % 2 else {})}
            for i, p in enumerate(ids)]
AS_ROOT = ("-r",) if os.getuid() else ()


def wrong(results):
    return [f"{i}: {d}" for i, r in enumerate(results) if (d := difference(r, expected[i]))]


def lost(service):
    """How many iterations policy plot says are not in the journal."""
    result = service.ctl("--json", "policy", "plot")
    if result.returncode == 0:
        return json.loads(result.stdout)["lost"]
    missing = re.search(r"policy.journal is empty: (\d+) iterations could not be written", result.stderr)
    return int(missing[1]) if missing else 0


def set_k_max(service, value, *more):
    done = service.ctl("knob", "set", f"k_max={value}", *more)
    now = service.ctl_json("knob", "get", "k_max")["knobs"][0]["value"]
    return done.returncode == 0 and now == str(value)


def in_own_file_system(options):
    """A command that runs another where a file system of its own, so mounted, lies at `state`."""
    mount = f'mount -t tmpfs -o {options} outrider-test {state} && exec "$@"'
    return ("unshare", *AS_ROOT, "-m", "sh", "-c", mount, "sh")


def why_not():
    """Why there can be no file system of its own; '' where there can."""
    probe = subprocess.run([*in_own_file_system(f"size={SPACE}"), "sh", "-c", f"stat -f -c %T {state}"], capture_output=True, text=True)
    return "" if probe.stdout == "tmpfs\n" else f"no mount namespace: {probe.stderr.strip() or probe.stdout}"


def fill(service):
    """Takes all that is left; returns the file."""
    path = Path(f"/proc/{service.process.pid}/root{state}/fill")
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return path


def remount(service, options):
    space = ("-U", "--preserve-credentials") if AS_ROOT else ()
    return subprocess.run(["nsenter", "-t", str(service.process.pid), *space, "-m", "mount", "-n", "-t", "tmpfs", "-o",
                           f"remount,{options}", "outrider-test", str(state)], capture_output=True, text=True)


def cannot_be_written(service, why):
    """Both journals at once, while answers are made; what is said of it, twice the same, is said once."""
    found, changed = [], []
    said = (f"{state}/policy.journal cannot be written: {why}; serving goes on without it",
            f"{state}/policy.knobs.jsonl: {why}: changes are made, but not written down there")
    for value in (5, 6, 4):
        changed.append(set_k_max(service, value))
        found += wrong(service.swarm(requests, 2))
    told = until(lambda: all(s in service.whole_log() for s in said))
    for value in (3, 5):
        changed.append(set_k_max(service, value))
        found += wrong(service.swarm(requests, 2))
        time.sleep(1.1)  # longer than the journal waits between writing
    tap.ok(not found, f"{why}: the same bytes", found)
    tap.ok(all(changed), f"{why}: knobs are changed all the same", changed)
    tap.ok(told and all(service.whole_log().count(s) == 1 for s in said), f"{why}: of each journal it is said, once", service.log_text())
    tap.ok(lost(service) > 0, f"{why}: the iterations that were not written down are counted, as policy plot says",
           service.ctl("policy", "plot").stderr)


def written_again(service, why):
    changed = set_k_max(service, 7)
    found = wrong(service.swarm(requests, 2))
    said = (f"{state}/policy.journal is written again", f"{state}/policy.knobs.jsonl: changes are written down again")
    tap.ok(changed and not found and until(lambda: all(service.whole_log().count(s) == 1 for s in said)),
           f"{why}: written down again when that is over", f"{found}\n{service.log_text()}")
    before = lost(service)
    tap.ok(not wrong(service.swarm(requests, 2)) and lost(service) == before,
           f"{why}: and no more is lost", service.log_text())
    history = [c["new"] for c in service.ctl_json("knob", "history", "k_max")["changes"]]
    tap.ok(history == ["5", "6", "4", "3", "5", "7"], f"{why}: the history of changes has no gap", history)
    on_disk = Path(f"/proc/{service.process.pid}/root{state}/policy.knobs.jsonl").read_text().splitlines()
    tap.ok([json.loads(line)["new"] for line in on_disk] == history, f"{why}: nor has its file", on_disk)


def full_and_read_only():
    cannot = why_not()
    if cannot:
        tap.skip("full and read-only file systems", cannot)
        return
    with Service(draft=DRAFTS["small"], before=in_own_file_system(f"size={SPACE}"), env={"STATE_DIRECTORY": str(state)}) as service:
        there = service.processes()
        rest = fill(service)
        cannot_be_written(service, os.strerror(28))
        rest.unlink()
        written_again(service, "a full disk")
        tap.ok(service.processes() == there, "a full disk: all processes are those that were there", f"{there} {service.processes()}")
    with Service(draft=DRAFTS["small"], before=in_own_file_system(f"size={SPACE},ro"), env={"STATE_DIRECTORY": str(state)}) as service:
        there = service.processes()
        cannot_be_written(service, os.strerror(30))
        again = remount(service, "rw")
        if again.returncode == 0:
            written_again(service, "a read-only disk")
        else:
            tap.skip("a read-only disk that can be written to again", again.stderr.strip())
        tap.ok(service.processes() == there, "a read-only disk: all processes are those that were there", f"{there} {service.processes()}")


def jumps(service, faults, process):
    """Back to the first day of 1970 and on into the next century, until there is nobody left to see it; how often."""
    n, first_day = 0, 86400 * 10**9 - time.time_ns()
    while process.poll() is None and n < 2000:
        faults.fields.wall_ns = (first_day, 0, 80 * YEAR_NS, -3600 * 10**9)[n % 4]
        n += 1
        time.sleep(0.01)
    return n


def jumping_clock():
    with Faults() as faults, Service(draft=DRAFTS["small"], env={**faults.env, "STATE_DIRECTORY": str(state)}) as service:
        there, n, found = service.processes(), 0, []
        tap.ok(set_k_max(service, 6, "--for", "1h"), "a change for an hour")
        while n < 20:
            process, results = service.swarm_start(requests, 2)
            n += jumps(service, faults, process)
            found += wrong(results())
        tap.ok(not found, f"the time of day jumps {n} times: the same bytes", found)
        faults.fields.wall_ns = 80 * YEAR_NS
        found = wrong(service.swarm(requests, 2))
        now = service.ctl_json("knob", "get", "k_max")["knobs"][0]
        tap.ok(not found and now["value"] == "6" and 0 < now["reverts_in_s"] <= 3600, "an hour is not over because the clock says so",
               f"{found} {now}")
        faults.fields.wall_ns = 80 * YEAR_NS
        done = service.ctl("knob", "set", "k_max=5", "--for", "2s").returncode == 0
        faults.fields.wall_ns = 86400 * 10**9 - time.time_ns()
        tap.ok(done and until(lambda: service.ctl_json("knob", "get", "k_max")["knobs"][0]["value"] != "5"),
               "and two seconds are over whatever it says", service.ctl_json("knob", "get", "k_max"))
        faults.none()
        process, results = service.swarm_start(requests[:1], 1)
        found = wrong(results())
        plot = {}

        def journaled():
            """The newest session's tokens are all in the journal when the policy-controller has read and written them."""
            plot.update(service.ctl_json("policy", "plot"))
            return sum(r["emitted"] for r in plot["records"]) == TOKENS
        there_all = until(journaled)
        order = [r["iteration"] for r in plot["records"]]
        tap.ok(there_all and not found and plot["lost"] == 0 and len(order) > 10 and order == sorted(order),
               "the journal has every iteration in its order", f"{found} {plot['lost']} {order[:20]}")
        words = [service.ctl(*w).returncode for w in (("policy", "plot"), ("policy", "watch", "--all", "--once"), ("knob", "history"))]
        tap.ok(words == [0, 0, 0], "and it is shown", words)
        tap.ok(service.processes() == there, "all processes are those that were there", f"{there} {service.processes()}\n{service.log_text()}")


try:
    full_and_read_only()
    if WHY_NOT:
        tap.skip("a clock that jumps", WHY_NOT)
    else:
        jumping_clock()
finally:
    shutil.rmtree(state, ignore_errors=True)
tap.done()
