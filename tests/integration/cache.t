#!/usr/bin/env python3
"""The expert cache while it serves: its budget and policy change in the middle of answers, its process is killed while the budget
falls, memory is capped: the same bytes, and the memory that was said."""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import (DRAFTS, ROOT, SANITIZED, TARGET, TARGET_Q4, Service, Tap, difference, ended, program, prompts, reference, run,
                           seeded, until)

tap = Tap()
tap.ok(run(program("outrider-expert-cache"), "--print-config").stdout == (ROOT / "config/expert-cache.conf").read_text(),
       "config/expert-cache.conf is what --print-config writes")
random = seeded()
TOKENS = 40 if SANITIZED else 200
ids = prompts(4, longest=100)
expected = [reference(p, TOKENS, extra=("--ignore-eos",)) for p in ids]
BUDGETS = ("min", "20%", "100%", "4M", "50%", "all")


def stats(service, *words):
    return service.ctl_json("cache", "stats", *words)


def requests(n, hashes=True):
    """hashes False where nobody reads the results while they come: they would fill the pipe."""
    return [{"tokens": ids[i % 4], "max_tokens": TOKENS, "ignore_eos": True, "logits_hash": hashes,
             "k": (0, 3, 7, 1)[i // 4 % 4]} for i in range(n)]


def compare(name, results):
    wrong = [f"{i}: {d}" for i, r in enumerate(results) if (d := difference(r, expected[i % 4]))]
    return tap.ok(not wrong, name, "\n".join(wrong[:8]))


with Service(draft=DRAFTS["small"], options=("--budget", "50%")) as service:
    before = stats(service)
    pids = service.processes()
    policies = service.ctl("cache", "set", "policy=?").stderr.split("is not one of ")[-1].strip().split(", ")
    tap.ok("lru" in policies, "an unknown policy is refused with the names of those there are", policies)

    refused, n, answers = [], 0, []
    while n <= 3:
        process, results = service.swarm_start(requests(16, False), concurrent=3)
        while process.poll() is None:
            done = service.ctl("cache", "set", f"budget={random.choice(BUDGETS)}", f"policy={random.choice(policies)}")
            refused += [done.stderr] if done.returncode else []
            n += 1
            time.sleep(random.uniform(0, 0.05))
        answers += results()
    compare(f"budget and policy changed {n} times during answers: the same bytes", answers)
    tap.ok(n > 3 and not refused, "every change was taken", f"{n} {refused[:3]}")
    after = service.processes()
    tap.ok(pids == after, "no process was started again for it", f"{pids} {after}")

    # ---- Memory follows the budget, both ways. ----
    service.ctl("cache", "set", "budget=all", "policy=lru", "preload=yes")
    total = stats(service)["slots"]
    tap.ok(until(lambda: stats(service)["resident"] == total), "all experts fit: all are there", stats(service))
    full = stats(service)["arena_bytes"]
    tap.ok(full <= stats(service)["budget_bytes"] and stats(service)["table_bytes"] > 0,
           "the slots keep within the budget; the tables are counted beside them", stats(service))
    service.ctl("cache", "set", "budget=min", "preload=no")
    tap.ok(until(lambda: stats(service)["in_use"] == stats(service)["slots"] < total),
           "a budget that falls is reached without a request", stats(service))
    small = stats(service)
    tap.ok(until(lambda: full - stats(service)["arena_bytes"] > 0.8 * (total - small["slots"]) * small["slot_bytes"]),
           "the memory went back to the kernel", f"{full} bytes, then {stats(service)['arena_bytes']}")
    compare("with the smallest legal budget: the same bytes", service.swarm(requests(4), 2))
    tap.ok(until(lambda: stats(service)["queue_depth"] == 0), "when nothing is generated nothing is loading or waiting for a slot",
           stats(service))

    # ---- What is refused, with the number. ----
    least = service.ctl("cache", "set", "budget=1%")
    tap.ok(least.returncode == 65 and f"need {small['slots']}" in least.stderr.replace("may need", "need"),
           "less than one layer of one verification needs is refused with that number", least.stderr)
    huge = service.ctl("cache", "set", "budget=900000G")
    tap.ok(huge.returncode == 65 and "at most" in huge.stderr, "more than the machine has is refused", huge.stderr)
    tap.ok(stats(service)["slots"] == small["slots"], "and nothing has changed")

    # ---- Counters. ----
    now = stats(service, "--layers")
    layers = now["layers"]
    sums = {k: sum(l[k] for l in layers) for k in ("hits", "misses", "loads", "evictions", "bytes_loaded", "wait_ns")}
    tap.ok(all(sums[k] == now[k] for k in sums) and now["submits"] > 0 and now["wait_ns"] > 0,
           "the layers' counters are the totals", f"{sums} {now}")
    hot = service.ctl_json("cache", "hot", 7)
    uses = [e["uses"] for e in hot["experts"]]
    tap.ok(len(uses) == 7 and uses == sorted(uses, reverse=True) and uses[-1] > 0 and sum(uses) < hot["uses"],
           "cache hot lists the experts that are used most", hot)
    tap.ok("RESIDENT" in service.ctl("cache", "hot").stdout and "STALL" in service.ctl("cache", "top", "--once").stdout,
           "cache hot and cache top print tables")
    looks = service.ctl_json("cache", "top", "--once")
    tap.ok(looks["seconds"] >= 1 and looks["before"]["hits"] <= looks["after"]["hits"], "cache top says how long lay between its looks",
           looks["seconds"])

    # ---- Killed while the budget falls and rises; what it was changed to stays. ----
    process, results = service.swarm_start(requests(16, False), concurrent=3)
    kills = 0
    while process.poll() is None or kills < 4:
        service.ctl("cache", "set", f"budget={random.choice(('min', '30%', 'all'))}")
        if random.random() < 0.7:
            time.sleep(random.uniform(0, 0.01))
        kills += service.kill("expert-cache")
        time.sleep(random.uniform(0.1, 0.5))
    compare(f"the cache killed {kills} times while its budget changed: the same bytes", results())
    service.wait_ready()
    done = service.ctl("cache", "set", "budget=40%", "policy=lru")
    service.restart("expert-cache")
    now = stats(service)
    tap.ok(now["budget"] == "40%" and now["policy"] == "lru", "a successor goes on with what was changed", now)
    service.restart("expert-cache", signal.SIGTERM)
    now = stats(service)
    tap.ok(now["budget"] == before["budget"] and now["policy"] == before["policy"] and "took over" in service.log_text(),
           "of one that was stopped only the experts", now)
    service.ctl("cache", "set", "budget=40%", "policy=lru")
    service.ctl("cache", "set", "budget=min", "policy=spac", "--for", "1h")
    service.restart("expert-cache")
    now = stats(service)
    tap.ok(now["budget"] == "40%" and now["policy"] == "lru",
           "a change for a time ends with the process that would have taken it back", now)
    service.ctl("knob", "reset", "budget", "expert-cache.policy")
    now = stats(service)
    tap.ok(now["budget"] == before["budget"] and now["policy"] == before["policy"],
           "reset goes back to what was configured, not to what the successor went on with", now)
    compare("and the bytes are the same", service.swarm(requests(4), 2))
    tap.ok(until(lambda: stats(service)["in_use"] <= stats(service)["slots"]), "no more slots in use than the budget",
           stats(service))

    # ---- Stopped, it costs the verifier its patience once, not once a layer. ----
    pid = service.end("expert-cache", signal.SIGSTOP)
    try:
        compare("the cache stopped in the middle: the same bytes", service.swarm(requests(4), 2))
    finally:
        # On a slow machine the watchdog has ended it by now.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    service.wait_ready()
    compare("and after it goes on", service.swarm(requests(4), 2))


# ---- Under a cap on memory, all processes and the page cache together. ----

def cap(mib):
    """A group of this one's with that much memory: (directory, version 1 or not), None where groups cannot be made."""
    name = f"outrider-test-{os.getpid()}"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        old = "memory" in controllers.split(",")
        if controllers and not old:
            continue
        mounts = [f"/sys/fs/cgroup/memory{path}", "/sys/fs/cgroup/memory"] if old else [f"/sys/fs/cgroup{path}"]
        for mount in mounts:
            group = Path(mount) / name
            try:
                group.mkdir()
                (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(mib << 20))
                # Who may be put there, and what was used is known; a kernel before 5.19 has no memory.peak.
                (group / "cgroup.procs").write_text(str(os.getpid()))
                (group.parent / "cgroup.procs").write_text(str(os.getpid()))
                (group / ("memory.max_usage_in_bytes" if old else "memory.peak")).read_text()
                return group, old
            except OSError:
                try:
                    group.rmdir()
                except OSError:
                    pass
    return None


class Capped(Service):
    def __init__(self, group, **more):
        parent = os.getpid()
        (group / "cgroup.procs").write_text(str(parent))
        super().__init__(**more)


home = Path(tempfile.mkdtemp(prefix="outrider-other-", dir="/tmp"))
processes = []
try:
    with open(home / "log", "w") as log:
        for name, model in (("verifier", TARGET), ("expert-cache", TARGET_Q4)):
            processes.append(subprocess.Popen([program(f"outrider-{name}"), "--model", str(model), "--runtime-dir", str(home / "run"),
                                               "--config", "/dev/null"], stdout=log, stderr=log))

    def states():
        result = run(program("outrider"), "status", "--runtime-dir", home / "run", "--format", "json")
        return {p["name"]: p["state"] for p in json.loads(result.stdout)["processes"]} if result.stdout else {}

    tap.ok(until(lambda: (said := states().get("verifier", "")).startswith("degraded: ") and
                 "the expert-cache is not used: expert region: " in said),
           "a verifier beside an expert-cache of another model is degraded and says so", f"{states()}\n{(home / 'log').read_text()}")
finally:
    for process in processes:
        process.terminate()
        ended(process)
    shutil.rmtree(home)

capped = None if SANITIZED else cap(32)
if capped is None:
    tap.skip("under a memory cap the service answers with the same bytes", "no memory cgroup can be made here")
else:
    group, old = capped
    home = group.parent / "cgroup.procs"
    try:
        with Capped(group, options=("--budget", "min"), sets=("verifier.context=512",)) as service:
            home.write_text(str(os.getpid()))
            compare("under a cap of 32 MiB on the four processes and the page cache: the same bytes",
                    service.swarm(requests(8), 2))
            peak = int((group / ("memory.max_usage_in_bytes" if old else "memory.peak")).read_text())
            generations = {p["name"]: p["generation"] for p in service.status()}
            tap.note(f"peak {peak / 1048576:.1f} MiB, " + json.dumps({p["name"]: p["rss_bytes"] for p in service.status()}))
            tap.ok(peak <= 32 << 20, "no more memory than the cap was ever in use", peak)
            events = (group / ("memory.oom_control" if old else "memory.events")).read_text()
            kills = [l for l in events.splitlines() if l.startswith("oom_kill ")]
            tap.ok(kills == ["oom_kill 0"], "the kernel had to kill nobody", events)
            refused = service.ctl("cache", "set", "budget=100M")
            tap.ok(refused.returncode == 65 and "32.0 MiB" in refused.stderr,
                   "a budget above the cap is refused with the cap", refused.stderr)
        limit = group / ("memory.limit_in_bytes" if old else "memory.max")
        limit.write_text(str(300 << 20))
        with Capped(group) as service:
            home.write_text(str(os.getpid()))
            took = re.search(r"budget auto: ([\d.]+) MiB of [\d.]+ MiB of experts", service.log_text())
            now = stats(service)
            tap.ok(took and now["budget"] == "auto" and abs(now["budget_bytes"] / 1048576 - float(took[1])) < 0.1,
                   "no budget named, under a cap: what fits, as said", f"{now}\n{service.log_text()}")
            compare("and the same bytes", service.swarm(requests(4), 2))
            before = now["slots"]
            service.end("expert-cache")
            tap.ok(until(lambda: "took over" in service.log_text()) and until(lambda: stats(service)["slots"] == before),
                   "a successor goes on with as many", service.log_text())
            service.ctl("cache", "set", "budget=min")
            done = service.ctl("cache", "set", "budget=auto")
            tap.ok(done.returncode == 0 and stats(service)["budget"] == "auto", "auto is chosen again while it serves", done.stderr)
    finally:
        home.write_text(str(os.getpid()))
        until(lambda: not (group / "cgroup.procs").read_text().strip())
        group.rmdir()
tap.done()
