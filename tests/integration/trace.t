#!/usr/bin/env python3
"""outriderctl trace: one picture of what all processes did, on one clock."""
import json
import os
import signal
import subprocess
import tempfile

from outrider_test import DRAFTS, SANITIZED, Service, Tap, finish, program, prompts, run, until

# A sanitized build, or a busy machine, needs longer for as many passes. A number alone is seconds.
LONG = ("15", "50s") if SANITIZED else ("1.5", "5s", "15s", "50s")
tap = Tap()


def trace(service, seconds, path, requests=(), during=lambda: None):
    """Answers are made for as long as it takes."""
    process = subprocess.Popen([program("outriderctl"), "--runtime-dir", str(service.runtime), "--format", "json", "trace", seconds, path],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    during()
    while requests and process.poll() is None:
        service.swarm(requests, concurrent=2)
    out, err = finish(process, 60)
    return process.returncode, out, err


def events_of(path):
    with open(path) as file:
        return json.load(file)["traceEvents"]


def inside(inner, outer, slack_us=1):
    return outer["ts"] - slack_us <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + slack_us


with tempfile.TemporaryDirectory() as directory, Service(draft=DRAFTS["aligned"], options=["--budget", "30%"]) as service:
    path = os.path.join(directory, "trace.json")
    # Every other one is drafted for whatever the policy thinks of it; the policy decides about the others.
    requests = [{"tokens": ids, "max_tokens": 200, "ignore_eos": True, **({"k": 3} if i % 2 else {})} for i, ids in enumerate(prompts(4))]
    for seconds in LONG:
        status, out, err = trace(service, seconds, path, requests)
        events = events_of(path)
        processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        by = {}
        for e in events:
            by.setdefault((processes[e["pid"]], e["name"]), []).append(e)
        if len(processes) == 4 and len(by.get(("verifier", "iteration"), [])) > 50 and by.get(("policy", "decision")):
            break
    pids = service.processes()
    tap.ok(status == 0 and sorted(processes.values()) == ["drafter", "expert-cache", "policy", "verifier"], "all processes are in the picture", err)
    tap.ok(all(pids.get(name) == pid for pid, name in processes.items()), "under their own process numbers", f"{processes} {pids}")
    iterations = by.get(("verifier", "iteration"), [])
    tap.ok(len(iterations) > 10 and len(by.get(("verifier", "verify"), [])) > 10, "passes are there", str({k: len(v) for k, v in by.items()}))
    tap.ok(all(any(inside(e, i) for i in iterations) for name in ("verify", "sample", "wait for drafts") for e in by.get(("verifier", name), [])),
           "each phase lies inside its iteration")
    drafts, waits = by.get(("drafter", "draft"), []), by.get(("verifier", "wait for drafts"), [])
    drafted = [d for d in drafts if d["args"]["drafted"] > 0]
    tap.ok(len(drafted) > 3, "the drafter's drafts are there", str(len(drafted)))
    overlapping = sum(any(d["ts"] < w["ts"] + w["dur"] and w["ts"] < d["ts"] + d["dur"] for w in waits) for d in drafted)
    tap.ok(overlapping * 2 > len(drafted), "on one clock: drafts are made while the verifier waits for them", f"{overlapping} of {len(drafted)}")
    loads = by.get(("expert-cache", "demand"), [])
    tap.ok(len(loads) > 10 and all(e["dur"] > 0 and e["args"]["layer"] < 6 and e["args"]["expert"] < 32 for e in loads), "expert loads are there", str(len(loads)))
    tap.ok(len(by.get(("verifier", "wait for experts"), [])) > 0, "and the waits for them")
    tap.ok(all(e["ph"] == "i" for e in by.get(("policy", "decision"), [])) and by.get(("policy", "decision")), "decisions are instants")

    status, out, err = trace(service, "2s", path, requests[:2],
                             during=lambda: service.renewed("drafter", service.end("drafter")))
    events = events_of(path)
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    tap.ok(status == 0 and names.count("drafter") >= 1, "a process that dies while it is traced does no harm", f"{status} {names} {err}")

    for wrong in ("abc.json", "0", "61", "2m", "0x5", "999us"):
        status, out, err = trace(service, wrong, path)
        said = {"error": f'trace [TIME] [FILE]: TIME "{wrong}": allowed are times from 1ms to 1m, such as 500ms or 5s; a number without a unit is seconds', "status": 64}
        tap.ok(status == 64 and json.loads(err) == said, f"{wrong} for a time is refused, with what is allowed", f"{status} {err}")
    whole = open(path).read()
    process = subprocess.Popen([program("outriderctl"), "--runtime-dir", str(service.runtime), "trace", "30s", path],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    begun = until(lambda: os.path.exists(path + ".part"))
    tap.ok(begun and open(path).read() == whole, "while a trace is made its file is still the one before")
    process.kill()
    process.wait()
    os.remove(path + ".part")
    tap.ok(open(path).read() == whole, "also when that is killed")
    process = subprocess.Popen([program("outriderctl"), "--runtime-dir", str(service.runtime), "trace", "30s", path],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: os.path.exists(path + ".part"))
    process.send_signal(signal.SIGINT)
    out, err = finish(process, 20)
    tap.ok(process.returncode == 0 and events_of(path) and os.listdir(directory) == ["trace.json"],
           "an interrupt ends it early: what there is until then is a whole file", f"{process.returncode} {out} {err}")
    # Whatever was asked before has ended: the next one that is busy is a request.
    quiet_ones = until(lambda: "is empty: the service did nothing meanwhile; trace again while" in service.ctl("trace", "20ms", path).stdout)
    tap.ok(quiet_ones and not [e for e in events_of(path) if e["ph"] != "M"], "a trace of nothing says that it is empty, and what to do")
    status, out, err = trace(service, "10ms", "/no/such/folder/trace.json")
    tap.ok(status == 73 and "/no/such/folder" in err, "a file that cannot be written is named", f"{status} {err}")
    with tempfile.TemporaryDirectory() as nobody:
        none = run(program("outriderctl"), "--runtime-dir", nobody, "trace", "30s", f"{nobody}/trace.json")
        tap.ok(none.returncode == 69 and "outrider up" in none.stderr and not os.listdir(nobody),
               "where no process answers nothing is written, at once", f"{none.returncode} {none.stderr}")

tap.done()
