#!/usr/bin/env python3
"""Budget auto beside a verifier that takes another amount of memory than it does by default: the budget falls when one with a
large KV cache comes, rises when one with a small one does, and stays when one goes, whichever of the processes is killed."""
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import TARGET, Tap, difference, ended, grouped, program, prompts, reference, run, run_json, until

MIB = 1 << 20
tap = Tap()
folder = Path(tempfile.mkdtemp(prefix="outrider-room-", dir="/tmp"))
runtime = folder / "run"
prompt = prompts(1, longest=60)[0]
expected = reference(prompt, 40, extra=("--ignore-eos",))
processes = []


def start(*command):
    with open(folder / "log", "a") as log:
        process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    processes.append(process)
    return process


def end(process, sig=signal.SIGTERM):
    process.send_signal(sig)
    return ended(process)


def log_text():
    return (folder / "log").read_text(errors="replace")[-6000:]


def ctl(*words):
    return run(program("outriderctl"), "--runtime-dir", runtime, *words)


def process_of(name):
    """What `outrider status` knows of it."""
    status = run(program("outrider"), "status", "--runtime-dir", runtime, "--format", "json")
    return next((p for p in json.loads(status.stdout or '{"processes": []}')["processes"] if p["name"] == name), {"state": "down"})


def ready(name):
    return process_of(name)["state"].startswith(("ready", "degraded"))


def stats():
    return run_json(program("outriderctl"), "--runtime-dir", runtime, "--json", "cache", "stats")


def cache(limit, *options):
    """It, in a control group with that limit."""
    process = start(*grouped(folder, {"memory.max": f"{limit}\n"}, program("outrider-expert-cache"), "--model", TARGET,
                             "--runtime-dir", runtime, *options))
    if not until(lambda: ready("expert-cache")):
        raise RuntimeError(f"no expert-cache:\n{log_text()}")
    return process


def verifier(kv_tokens=None):
    more = ("--set", "context=512", "--set", f"kv_tokens={kv_tokens}") if kv_tokens else ()
    process = start(program("outrider-verifier"), "--model", TARGET, "--runtime-dir", runtime, *more)
    if not until(lambda: ready("verifier")):
        raise RuntimeError(f"no verifier:\n{log_text()}")
    return process


def same_bytes(name):
    request = {"tokens": prompt, "max_tokens": 40, "ignore_eos": True, "logits_hash": True, "k": 0}
    result = run(program("tests/swarm"), runtime, 1, stdin=json.dumps(request) + "\n")
    wrong = result.stderr if result.returncode else difference(json.loads(result.stdout), expected)
    tap.ok(not wrong, name, wrong)


def follows():
    first = cache(1 << 50)
    free = stats()
    total, slot = free["slots"], free["slot_bytes"]
    everything = total * slot
    tap.ok(free["budget"] == "auto" and not free["needs_said"] and "at its default size" in free["room"],
           "without a verifier its needs are estimated", free)
    end(first)

    # Room for three quarters of the experts beside a verifier with its defaults.
    rest = free["weights_bytes"] + free["kv_bytes"] + free["sessions_bytes"] + 256 * MIB
    owner = cache(rest + everything * 3 // 4)
    before = stats()
    tap.ok(before["slots"] == everything * 3 // 4 // slot and before["reserve_bytes"] == 256 * MIB,
           "a limit with room for three quarters: as many", before)
    served = verifier()
    tap.ok(until(lambda: stats()["needs_said"]), "a verifier says what it takes", stats())
    now = stats()
    tap.ok(now["slots"] == before["slots"] and all(now[key] == before[key] for key in ("kv_bytes", "weights_bytes", "sessions_bytes")),
           "with its defaults it is what was estimated, and nothing changes", f"{before}\n{now}")
    same_bytes("it serves")
    details = {}
    until(lambda: details.update(process_of("verifier").get("details", {})) or details)
    tokens = int(details["kv_tokens"])
    end(served)

    def restarted(kv_bytes):
        return verifier(kv_bytes * tokens // free["kv_bytes"])

    served = restarted(free["kv_bytes"] + everything // 2)
    tap.ok(until(lambda: stats()["slots"] < before["slots"]), "the budget falls for one with a larger KV cache", stats())
    tap.ok(until(lambda: stats()["in_use"] <= stats()["slots"]), "and so does what is in use", stats())
    less = stats()
    tap.ok(less["kv_bytes"] > free["kv_bytes"] and less["budget_bytes"] <= less["room_bytes"] < less["budget_bytes"] + slot
           and f"{less['kv_bytes'] / MIB:.1f} MiB for the KV cache, " in less["room"],
           "to what there is room for beside that", less)
    tap.ok("the verifier's KV cache takes" in log_text() and "budget auto: " in log_text(), "which is said", log_text())
    knob = ctl("knob", "get", "expert-cache.budget")
    tap.ok(f"beside {less['kv_bytes'] / MIB:.0f}M of KV cache" in knob.stdout, "the knob tells the same", knob.stdout + knob.stderr)
    same_bytes("and it serves the same bytes")

    end(owner, signal.SIGKILL)
    owner = cache(rest + everything * 3 // 4)
    tap.ok("took over" in log_text() and (after := stats())["slots"] == less["slots"] and after["kv_bytes"] == less["kv_bytes"],
           "a cache that was killed goes on with as many", f"{stats()}\n{log_text()}")
    end(served, signal.SIGKILL)
    served = restarted(rest + everything)
    tap.ok(until(lambda: stats()["budget_bytes"] == less["budget_min_bytes"]),
           "one that leaves no room at all: the least budget", stats())
    refused = ctl("cache", "set", "budget=all")
    tap.ok(refused.returncode == 65 and f"the verifier takes {(stats()['kv_bytes'] + stats()['sessions_bytes']) / MIB:.1f}"
           in refused.stderr,
           "a named one that cannot be beside it is refused with what it takes", f"{refused}\n{stats()}")
    same_bytes("and it serves the same bytes with the least")
    end(served)
    tap.ok(stats()["budget_bytes"] == less["budget_min_bytes"] and stats()["kv_bytes"] > less["kv_bytes"],
           "one that goes leaves it as it is", stats())
    served = verifier(1024)
    tap.ok(until(lambda: stats()["slots"] > before["slots"]), "the budget rises for one with a small KV cache", stats())
    more = stats()
    tap.ok(more["kv_bytes"] < free["kv_bytes"] and more["budget_bytes"] <= more["room_bytes"], "to what there is room for", more)
    same_bytes("and it serves the same bytes again")

    named = ctl("cache", "set", "budget=50%")
    tap.ok(named.returncode == 0, "a named budget", named.stderr)
    half = stats()["slots"]
    end(served)
    served = restarted(rest + everything)
    tap.ok(until(lambda: "budget 50%: " in log_text() and "leave the rest of the service less than it may need" in log_text()) and
           stats()["slots"] == half, "does not follow, but it is said that it leaves too little", log_text())
    tap.ok(end(served) == 0 and end(owner) == 0, "both end as they should", log_text())


probe = subprocess.run(grouped(folder, {"memory.max": "1\n"}, "cat", "/sys/fs/cgroup/test/memory.max", "/proc/self/cgroup"),
                       capture_output=True, text=True)
try:
    if "1\n" in probe.stdout:
        follows()
    else:
        tap.skip("budget auto beside a verifier", f"no mount namespace: {probe.stderr.strip()}")
finally:
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)
tap.done()
