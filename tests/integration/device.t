#!/usr/bin/env python3
"""Experts in a device's memory (the emulated one): in fewer slots than there are experts, above fewer slots in memory than that,
over a slow link. The bytes are the CPU's, whatever is killed, and while the device's budget changes."""
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
from outrider_test import DRAFTS, SAMPLED, TARGET_Q4, Service, Tap, differences, ended, program, prompts, reference, seeded, until

TOKENS = 5
tap = Tap()
random = seeded()
ids = prompts(2, longest=6)
expected = {(m, i): reference(p, TOKENS, mode, seed=5 + i, model=TARGET_Q4, extra=("--ignore-eos",))
            for m, mode in enumerate((None, SAMPLED)) for i, p in enumerate(ids)}
DEVICE = ["verifier.device=simt", "expert-cache.device=simt"]


def slow(link):
    return {**os.environ, "OUTRIDER_SIMT_LINK": link}


def requests(n=8):
    """n of: greedy and sampled, K 0 and 3, of each prompt; and what has to come out."""
    keys = random.sample([(m, i, k) for m in (0, 1) for i in range(len(ids)) for k in (0, 3)], n)
    return [expected[m, i] for m, i, _ in keys], [
        {"tokens": ids[i], "max_tokens": TOKENS, "seed": 5 + i, "k": k, "draft_method": "ngram", "ignore_eos": True,
         "logits_hash": True, **((None, SAMPLED)[m] or {})} for m, i, k in keys]


def device(service):
    return service.ctl_json("cache", "stats")["device"]


def under_kills(service, victim, kills):
    """What is wrong with answers during which the victim is killed."""
    wrong, done = "", 0
    while done < kills and not wrong:
        want, asked = requests(4)
        results, n = service.swarm_under_kills(asked, victim, kills - done, lambda: time.sleep(random.uniform(0.05, 0.4)), concurrent=4)
        wrong, done = differences(results, want), done + n
    service.wait_ready()
    return wrong


with Service(TARGET_Q4, DRAFTS["small"], [*DEVICE, "expert-cache.device_budget=33%", "expert-cache.budget=25%", "verifier.expert_patience=60s"],
             env=slow("40e6,100")) as service:
    want, asked = requests()
    wrong = differences(service.swarm(asked, concurrent=4), want)
    until(lambda: device(service)["verifier_said"])
    now = device(service)
    tap.ok(not wrong, "greedy and sampled, K 0 and 3: the CPU's bytes", wrong)
    tap.ok(now["slots"] == 64 and now["in_use"] <= 64 and now["hits"] and now["misses"] and now["evictions"] and
           not now["all_pinned"], "experts came and went, and others were found", now)
    both = service.ctl_json("cache", "stats")
    tap.ok(both["misses"] and both["evictions"] and both["prefetched"] and both["hints"] and now["prefetched"],
           "and so in memory, which lacked some of them: hints reach the link to the device and the link to the file", both)
    tap.ok(now["self_served"] * 10 < now["misses"], "misses were served by the expert-cache", now)
    text, top = (" ".join(service.ctl(*words).stdout.split()) for words in (("cache", "stats"), ("top",)))
    tap.ok("device simt, budget 33%: 64 slots" in text and " GB/s; " in text and " for the verifier, " in text and
           "device simt, " in top and " layers waited, " in top, "outriderctl cache stats and top show the device", f"{text}\n{top}")
    tap.ok(now["demanded"] and now["demanded"] + now["prefetched"] <= now["loads"] and now["flight_ns"] >= now["busy_ns"] > 0 and
           0 < now["copied_bytes_per_second"] <= 40e6, "copies, their time, and what the link gave", now)
    tap.ok(now["slot_waits"] and now["wait_ns"] and now["verifier_said"] and now["verifier_bytes"] and
           now["room_bytes"] + now["verifier_bytes"] + now["reserve_bytes"] == now["memory_bytes"], "waits, and the memory", now)
    path = Path(service.runtime) / "trace.json"
    work = {"embed", "attention", "router", "experts", "logits", "pick", "wait for copies"}
    spans, wrong = {"copy, demand", "wait for the device", "wait for experts", *work}, ""
    for seconds in ("1s", "5s", "20s", "1m"):  # a busy machine has few passes in a second
        tracing = subprocess.Popen([program("outriderctl"), "--runtime-dir", str(service.runtime), "trace", seconds, str(path)],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while tracing.poll() is None:
            wrong = wrong or differences(service.swarm(asked[:2], concurrent=2), want)
        events = json.loads(path.read_text())["traceEvents"]
        names = {e["name"] for e in events}
        passes = [e for e in events if e["name"] == "iteration"]
        if spans <= names and len(passes) > 3:
            break
    lanes = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    tap.ok(spans <= names and any(n.startswith("device 1") for n in lanes), "outriderctl trace shows copies, waits and steps", f"{names} {lanes}")
    tap.ok(not wrong, "while it does, the CPU's bytes", wrong)
    verifier = next(e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "verifier")
    queue = sorted((e for e in events if e["ph"] == "X" and e["pid"] == verifier and e["tid"] == 128), key=lambda e: e["ts"])
    apart = all(one["ts"] + one["dur"] <= next_["ts"] + 0.01 for one, next_ in zip(queue, queue[1:]))
    # A pass that is under way at either end has no span of its own.
    inside = [e for e in queue if any(p["ts"] - 1 <= e["ts"] and e["ts"] + e["dur"] <= p["ts"] + p["dur"] + 1 for p in passes)]
    between = [e for e in queue if passes[0]["ts"] < e["ts"] < passes[-1]["ts"]]
    tap.ok(apart and {e["name"] for e in queue} >= work and between and all(e in inside for e in between) and
           all(e["args"]["layer"] < 6 for e in queue if e["name"] in ("attention", "router", "experts", "wait for copies")),
           "what the queue did lies apart, and inside of passes", f"{apart} {len(passes)} passes, {len(queue)} stretches: {[e for e in between if e not in inside][:3]}")
    details = service.details("expert-cache")
    tap.ok(details["device"] == "simt" and details["device_memory_bytes"] == now["memory_bytes"] and details["device_busy_ns"] >= now["busy_ns"] and
           "device memory: " in service.ctl("status", "--all").stdout and
           " on the device (room for 64)" in " ".join(service.ctl("status").stdout.split()), "outriderctl status shows the device", details)

    wrong = under_kills(service, "expert-cache", 2)
    now = device(service)
    tap.ok(not wrong, "the expert-cache killed: the same bytes", wrong)
    tap.ok(now["adopted"] > 0, "its successor takes experts on the device over", f"{now}\n{service.log_text()[-1500:]}")
    wrong = under_kills(service, "verifier", 1)
    tap.ok(not wrong, "the verifier killed: the same bytes", wrong)
    said = service.details("verifier")
    tap.ok(int(said["device_kv_bytes"]) and int(said["device_bytes"]) == now["verifier_bytes"], "its share of the device is shown", said)
    tap.ok(until(lambda: device(service)["pinned"] == 0), "nothing stays pinned", device(service))

    want, asked = requests(4)
    process, results = service.swarm_start(asked, concurrent=4)
    time.sleep(0.3)
    changes = [service.ctl("knob", "set", f"cache.device_budget={budget}") for budget in ("min", "70%")]
    wrong = differences(results(), want)
    now = device(service)
    tap.ok(not wrong and all(c.returncode == 0 for c in changes), "the device's budget changed in mid-answer: the same bytes",
           f"{wrong} {changes}")
    tap.ok(now["slots"] == 135 and now["budget"] == "70%", "it has as many slots as it was told", now)
    refused = [service.ctl("knob", "set", f"cache.device_budget={budget}") for budget in ("1M", "101%")]
    tap.ok(all(r.returncode and "device_budget" in r.stderr for r in refused), "budgets that are not possible are refused", refused)

    service.ctl("knob", "set", "cache.device_budget=all", "cache.budget=all")

    wrong = []

    def pinned():
        wrong.append(differences(service.swarm(asked[:1]), want[:1]))
        return wrong[-1] or device(service)["all_pinned"]
    tap.ok(until(pinned) and not any(wrong), "when all experts fit, all are pinned: the same bytes", f"{wrong} {device(service)}")

    def whole():
        return int(next(p["details"] for p in service.status() if p["name"] == "verifier")["device_whole_passes"])
    before, hits = whole(), device(service)["hits"]
    want, asked = requests(6)
    wrong = differences(service.swarm(asked, concurrent=2), want)
    now = device(service)
    tap.ok(not wrong and whole() > before and now["hits"] > hits, "passes that the device computes without the host: the same bytes, and what they chose is counted",
           f"{wrong} {before} {whole()} {hits} {now}")
    service.ctl("knob", "set", "cache.device_budget=50%")
    until(lambda: not device(service)["all_pinned"])
    wrong = differences(service.swarm(asked, concurrent=2), want)
    tap.ok(not wrong and device(service)["slots"] < 192, "its slots are taken again: the same bytes", f"{wrong} {device(service)}")

# The device has little memory: what the verifier and the drafter take of it decides how many experts it keeps.
SMALL = ["verifier.kv_tokens=4096", "verifier.sessions_max=4", "drafter.device=simt", "drafter.kv_tokens=8300",
         "verifier.draft_wait=10s", "verifier.ahead_max=1"]


def drafter(service):
    return service.details("drafter")


home = tempfile.TemporaryDirectory()
draft = Path(home.name) / "draft.gguf"
shutil.copy(DRAFTS["small"], draft)
UUID = f"GPU-test-{os.getpid()}"
ONE = {**os.environ, "OUTRIDER_SIMT_MEMORY": "56M", "OUTRIDER_SIMT_UUID": UUID}


def second(name, *words, env=ONE):
    """A process of another service on the same device: its status, None while it runs; and what it says."""
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen([program(f"outrider-{name}"), "--runtime-dir", directory, *map(str, words)], env=env, text=True,
                                   stdout=subprocess.DEVNULL, stderr=(log := open(f"{directory}/log", "w+")))
        until(lambda: process.poll() is not None or ": ready: " in Path(log.name).read_text() or ": serving " in Path(log.name).read_text())
        status = process.poll()
        process.terminate()
        ended(process)
        return status, Path(log.name).read_text()


with Service(TARGET_Q4, draft, [*DEVICE, *SMALL], env=ONE) as service:
    until(lambda: drafter(service).get("device") == "simt")
    until(lambda: device(service)["slots"] > 40)
    said, now = drafter(service), device(service)
    want, asked = requests(2)
    wrong = differences(service.swarm(asked), want)
    tap.ok(not wrong and now["budget"] == "auto" and now["memory_bytes"] == 56 << 20 and
           now["budget_bytes"] <= now["room_bytes"] < now["budget_bytes"] + now["slot_bytes"] and now["slots"] < 192,
           "an automatic budget takes what the others leave", f"{wrong} {now}")
    tap.ok(int(said["device_bytes"]) == int(said["device_needs_bytes"]) == now["drafter_bytes"] and
           now["room_bytes"] + now["verifier_bytes"] + now["drafter_bytes"] + now["reserve_bytes"] == now["memory_bytes"] and
           " for the drafter, " in " ".join(service.ctl("cache", "stats").stdout.split()), "the drafter's share is shown", f"{said} {now}")

    want, asked = requests(6)
    asked = [{**request, "k": 3, "draft_method": "model", **({"draft_nodes": 6, "draft_width": 2} if i % 2 else {})}
             for i, request in enumerate(asked)]
    before = int(said["pass_tokens"])
    results = service.swarm(asked, concurrent=3)
    wrong, drafted = differences(results, want), sum(r["usage"]["drafted"] for r in results)
    said = drafter(service)
    tap.ok(not wrong and drafted > 0 and int(said["pass_tokens"]) > before and said["device"] == "simt" and said["kernels"] == "emulated",
           "the drafter drafts chains and trees on the device: the same bytes", f"{wrong} {drafted} {said}")
    process, results = service.swarm_start(asked, concurrent=3)
    time.sleep(0.3)
    service.end("drafter")
    wrong = differences(results(), want)
    tap.ok(not wrong and until(lambda: drafter(service).get("device") == "simt"),
           "the drafter killed: the same bytes, and its successor is on the device again", f"{wrong} {drafter(service)}")

    slots = device(service)["slots"]
    refused = service.ctl("knob", "set", "cache.device_budget=all")
    tap.ok(refused.returncode and " and the drafter 18.2 MiB for a draft model: " in refused.stderr,
           "a budget for which the drafter leaves no room is refused", refused.stderr)
    away = draft.with_suffix(".away")
    draft.rename(away)
    service.end("drafter")
    tap.ok(until(lambda: device(service)["slots"] > 64) and device(service)["drafter_bytes"] == 0,
           "a drafter that does not come back leaves its share to the experts", device(service))
    accepted = service.ctl("knob", "set", "cache.device_budget=50%")
    away.rename(draft)
    until(lambda: "device_refused" in drafter(service))
    said = drafter(service)
    words = ("the draft model needs 18.2 MiB (weights 0.9 MiB, KV cache for kv_tokens = 8300 4.2 MiB, passes 13.1 MiB): the emulated GPU "
             "has 56.0 MiB, of which the verifier takes 32.1 MiB, experts 3.8 MiB (device_budget = 50%), and a reserve 3.5 MiB: 16.6 MiB are left")
    wrong = differences(service.swarm(asked[:2], concurrent=2), want[:2])
    tap.ok(not wrong and accepted.returncode == 0 and said["device"] == "cpu" and said["device_refused"] == words,
           "one that finds no room says so, with figures, and drafts on the CPU: the same bytes", f"{wrong} {accepted} {said}")
    service.ctl("knob", "set", "cache.device_budget=auto")
    tap.ok(until(lambda: drafter(service).get("device") == "simt") and device(service)["slots"] == slots,
           "until experts give way to it", f"{drafter(service)} {device(service)}\n{service.log_text()[-1500:]}")

    there = f"the emulated GPU ({UUID}) is in use by the "
    pids = {f"{there}{name} of another service, process {pid}: " for name, pid in service.processes().items()}
    for name, words in (("verifier", ("--model", TARGET_Q4)), ("expert-cache", ("--model", TARGET_Q4))):
        status, said = second(name, *words, "--set", "device=simt")
        tap.ok(status == 75 and "device = simt: " in said and any(p in said for p in pids),
               f"a second service on the device: its {name} names who is there", f"{status} {said} {pids}")
    status, said = second("drafter", "--draft", draft, "--set", "device=simt")
    tap.ok(status is None and "the CPU drafts, because " in said and any(p in said for p in pids), "its drafter stays on the CPU", f"{status} {said}")
    status, said = second("expert-cache", "--model", TARGET_Q4, "--set", "device=simt", "--set", "device_shared=yes")
    tap.ok(status == 78 and "device_shared = yes needs a device_budget" in said, "to share it needs a budget", f"{status} {said}")
    status, said = second("verifier", "--model", TARGET_Q4, "--set", "device=simt", "--set", "device_shared=yes", "--set", "sessions_max=1",
                          "--set", "kv_tokens=2048")
    tap.ok(status is None and ": serving " in said, "with device_shared = yes both use it", f"{status} {said}")

    # More than two turns of 16 cells, which a successor can take over.
    prompt = [t for p in prompts(12, longest=6) for t in p][:34]
    want = reference(prompt, 8, model=TARGET_Q4, extra=("--ignore-eos",))

    _, results = service.swarm_held([{"tokens": prompt, "max_tokens": 8, "ignore_eos": True}], tokens=1)
    service.end("verifier")
    wrong = differences(results(), [want])
    taken = [int(n) for n in re.findall(r"of the predecessor, with (\d+) tokens in the KV cache", service.whole_log())]
    tap.ok(not wrong and taken and taken[-1] >= 32, "the verifier killed: its successor takes over the KV cache on the device",
           f"{wrong} {taken}\n{service.log_text()[-1500:]}")
    service.wait_ready()
    refused = service.ctl("knob", "set", "cache.device_budget=60M")
    tap.ok(refused.returncode and "device_budget: 60.0 MiB for experts, but the emulated GPU has 56.0 MiB, of which the verifier takes" in
           refused.stderr and "is the largest allowed" in refused.stderr, "more than fits is refused, with what fits", refused.stderr)

    # One budget: the KV cache grows at the experts' cost and gives memory back, while answers are computed.
    def held():
        now = device(service)
        kv = service.details("verifier")
        return now["slots"], int(kv["device_kv_bytes"]), "kv_tokens_wanted" in kv, now

    def share_out(change, right):
        done = service.ctl("cache", "set", *change)
        return [] if done.returncode == 0 and until(lambda: right(*held())) else [f"{change} {done} {held()}"]
    want, asked = requests(2)
    process, results = service.swarm_start(asked, concurrent=2)
    def fits(now):
        return now["slots"] * now["slot_bytes"] + now["verifier_bytes"] + now["drafter_bytes"] <= now["limit_bytes"] == 50 << 20
    wrong = share_out(["device_memory=50M", "device_kv=8M"], lambda slots, kv, waits, now: 7 << 20 < kv <= 8 << 20 and not waits and fits(now))
    few = held()[0]
    wrong += share_out(["device_kv=10M"], lambda slots, kv, waits, now: slots < few and 9 << 20 < kv == now["kv_bytes"] and not waits and fits(now))
    wrong += share_out(["device_kv=16%"], lambda slots, kv, waits, now: slots > few - 30 and kv <= 8 << 20 and fits(now))
    wrong = wrong or differences(results(), want)
    tap.ok(not wrong, "KV cache against experts, live: the same bytes", wrong)
    log = service.whole_log()
    tap.ok("once the expert-cache has given up room for them" in log and "sessions are computed again" in log and
           "all may take 50.0 MiB (device_memory);" in " ".join(service.ctl("cache", "stats").stdout.split()), "and who holds what is shown", log[-1500:])
    refused = [service.ctl("cache", "set", change) for change in ("device_memory=20M", "device_kv=30M", "device_kv=1M", "device_kv=much")]
    tap.ok(all(r.returncode == 65 for r in refused) and "for weights and passes, 18.2 MiB for the draft model and" in refused[1].stderr and
           "too small for one session" in refused[2].stderr, "parts that cannot be are refused, with who needs what", refused)
    service.ctl("cache", "set", "device_memory=auto")
    until(lambda: service.ctl("cache", "set", "device_budget=50%").returncode == 0)
    until(lambda: device(service)["slots"] == 96)
    refused = service.ctl("cache", "set", "device_memory=49M", "device_kv=10M")
    tap.ok(refused.returncode == 65 and "experts (device_budget = 50%)" in refused.stderr, "slots with a budget of their own do not give way",
           f"{refused} {device(service)}")

# A copy takes a tenth of a second. The expert-cache is stopped in the middle of one for which the device waits, and killed there.
with Service(TARGET_Q4, sets=[*DEVICE, "expert-cache.device_budget=33%"], env=slow("400e3")) as service:
    asked = [{"tokens": p[:3], "max_tokens": 1} for p in ids]
    want = [reference(p[:3], 1, model=TARGET_Q4) for p in ids]
    wrong, turn = [], 0

    def rescued():
        global turn
        turn = 1 - turn  # what one prompt needs is not all there after the other
        before = device(service)["demanded"]
        process, results = service.swarm_start([asked[turn]])
        until(lambda: process.poll() is not None or device(service)["demanded"] > before, every=0)
        service.kill("expert-cache")
        wrong.append(differences(results(), [want[turn]]))
        service.wait_ready()
        return wrong[-1] or device(service)["rescued"] > 0
    tap.ok(until(rescued) and not any(wrong),
           "the expert-cache killed while the device waits: the verifier ends the wait, the same bytes", f"{wrong} {device(service)}")
# As where the driver exports no descriptors: what lies on the device ends with its process.
with Service(TARGET_Q4, sets=["expert-cache.device_budget=50%"], options=["--device", "simt", "--device-memory", "200M"],
             env={**os.environ, "OUTRIDER_SIMT_EXPORT": "refused"}) as service:
    def details(name):
        return service.details(name)

    want, asked = requests(4)
    wrong = differences(service.swarm(asked, concurrent=2), want)
    until(lambda: device(service)["in_use"] > 0)
    shown = [details(name).get("device_memory_shared", "") for name in ("verifier", "expert-cache")]
    tap.ok(not wrong and shown == ["by CUDA's IPC: when the verifier ends, the KV cache is computed again",
                                   "by CUDA's IPC: when the expert-cache ends, its experts are copied again"],
           "memory that cannot be exported is shared by IPC: the same bytes, and what is lost is shown", f"{wrong} {shown}")
    tap.ok(until(lambda: device(service)["limit_bytes"] == 200 << 20), "--device-memory: the service takes no more", device(service))
    wrong = under_kills(service, "expert-cache", 2)
    now = device(service)
    until(lambda: device(service)["in_use"] > 0)
    tap.ok(not wrong and now["adopted"] == 0, "the expert-cache killed: nothing is taken over, the same bytes", f"{wrong} {now}")
    wrong = under_kills(service, "verifier", 1)
    tap.ok(not wrong and "the KV cache on the device is not taken over, and sessions are computed again: " in service.whole_log(),
           "the verifier killed: sessions are computed again, the same bytes", f"{wrong}\n{service.log_text()[-1500:]}")
tap.done()
