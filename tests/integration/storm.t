#!/usr/bin/env python3
"""Many clients, too few KV pages for them, and SIGKILL of any process at any moment: every answer is the reference's to
the end it has, or its client is told why there is none, and nobody waits for ever. One round; OUTRIDER_TEST_MINUTES
goes on for so long, each round with settings of its own (budget, drafts, pages, sessions)."""
import concurrent.futures
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import (DRAFTS, PROCESSES, SAMPLED, SANITIZED, Patience, Service, Tap, difference, prompts, reference, seeded)

MINUTES = float(os.environ.get("OUTRIDER_TEST_MINUTES", 0))
LONGEST = 60 if SANITIZED else 300
CLIENTS, REQUESTS = (3, 8) if SANITIZED else (6, 16)
STORM_SECONDS = 15
# When the kills are over and nothing new is computed for so long, clients wait for answers that do not come.
HANG_SECONDS = 60
# What a request may be refused with. The last is a client's own word: the service was killed so often that it was not up for
# as long as the client waits.
REFUSALS = ("queue full", "sessions are taken", "no answer from the service")
tap = Tap()
random = seeded()
ids = prompts(10, longest=300) + [p[:n] for p, n in zip(prompts(4), (1, 31, 32, 33))]
modes = (None, SAMPLED)
expected = {(m, i): reference(p, LONGEST, modes[m], seed=40 + i, extra=("--ignore-eos",))
            for m in (0, 1) for i, p in enumerate(ids)}


def settings(turn):
    """Each round its own; the first, which every run of the tests makes, is the tightest."""
    tight = {"kv": 1024, "context": 700, "budget": "min", "draft": "small", "sessions": 16, "requests": REQUESTS, "pause": 0.3}
    if turn == 0:
        return tight
    return {"kv": random.choice((1024, 1024, 4096)), "context": 700, "budget": random.choice(("min", "17%", "all")),
            "draft": random.choice((None, "small", "small")), "sessions": random.choice((4, 16, 64)), "requests": 3 * REQUESTS,
            "pause": random.choice((0.03, 0.1, 0.3, 1))}


def request(key, drafts):
    mode, i = key
    spec = {"tokens": ids[i], "max_tokens": random.randint(1, LONGEST), "seed": 40 + i, "k": random.choice((-1, 0, 1, 3, 7, 15)),
            "draft_method": random.choice(drafts), "ignore_eos": True, "logits_hash": random.random() < 0.4,
            **(modes[mode] or {})}
    if random.random() < 0.3:
        spec["window"] = random.choice((1, 8, 40))
    if random.random() < 0.1:
        spec["cancel_after"] = random.randint(1, spec["max_tokens"])
    return spec


def strike(service, kills):
    """One or several processes at once, killed; now and then one that only stands still for a while."""
    there = list(service.children().items())
    for pid, name in random.sample(there, min(len(there), random.choice((1, 1, 1, 2, 4)))):
        with contextlib.suppress(ProcessLookupError):
            if random.random() < 0.1:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(random.uniform(0.01, 0.5))
                os.kill(pid, signal.SIGCONT)
            else:
                os.kill(pid, signal.SIGKILL)
                kills[name] = kills.get(name, 0) + 1


def all_end(service, running):
    """Waits for the clients as long as there is progress, however slow the machine; whether all have ended."""
    patience, said, before = Patience(HANG_SECONDS), time.monotonic(), None
    while patience.lasts():
        waiting = sum(not results.done() for *_, results in running)
        if not waiting:
            return True
        now = next((p["details"]["output_tokens"] for p in service.status() if p["name"] == "verifier" and p.get("details")), before)
        if now != before:
            patience, before = Patience(HANG_SECONDS), now
            # Who runs the tests ends one that says nothing for long.
            if time.monotonic() - said > 60:
                tap.note(f"{waiting} clients wait still; {now} tokens so far")
                said = time.monotonic()
        time.sleep(0.2)
    return False


def judge(spec, key, result):
    """What is wrong with one result; '' when it is true, or was refused with a reason."""
    want = expected[key]
    n = min(len(result["tokens"]), spec["max_tokens"])
    cut = {"tokens": want["tokens"][:n], "logits_hash": want["logits_hash"][:n]}
    if result.get("error"):
        if any(reason in result["error"] for reason in REFUSALS):
            return ""
        if "cancel_after" in spec and result["error"] == "cancelled" and result["tokens"] == cut["tokens"]:
            return ""
    cancelled = result.get("end") == "cancelled" and "cancel_after" in spec
    if not cancelled and len(result["tokens"]) != spec["max_tokens"] and not result.get("error"):
        return f"{len(result['tokens'])} of {spec['max_tokens']} tokens, end {result['end']}"
    if cancelled:
        # What came after the cancelling has no hashes any more where a verifier died meanwhile.
        result["logits_hash"] = None
    return difference(result, cut)


def storm(how):
    drafts = ("ngram", "model") if how["draft"] else ("ngram",)
    sets = (f"verifier.kv_tokens={how['kv']}", f"verifier.context={how['context']}",
            f"verifier.sessions_max={how['sessions']}", f"verifier.queue_max={min(48, 64 - how['sessions'])}")
    wrong, kills, answers, refused = [], {}, 0, 0
    with Service(draft=DRAFTS[how["draft"]] if how["draft"] else None, options=("--budget", how["budget"]),
                 sets=sets) as service:
        running = []
        pool = concurrent.futures.ThreadPoolExecutor(CLIENTS)
        for _ in range(CLIENTS):
            keys = [(random.randrange(2), random.randrange(len(ids))) for _ in range(how["requests"])]
            specs = [request(key, drafts) for key in keys]
            process, results = service.swarm_start(specs, concurrent=random.choice((1, 4, 12)))
            # Read as they come: a pipe that is full would stop its client.
            running.append((keys, specs, process, pool.submit(results, timeout=3600)))
        end = time.monotonic() + STORM_SECONDS * how["requests"] / REQUESTS
        while time.monotonic() < end and not all(results.done() for *_, results in running):
            time.sleep(2 * how["pause"] * random.random())
            strike(service, kills)
        quiet = all_end(service, running)
        if not quiet:
            wrong.append(f"clients wait for ever: {service.status()}")
        if not quiet and os.environ.get("OUTRIDER_TEST_KEEP"):
            print(f"# {service.runtime} is kept; press ^C when you have seen it", flush=True)
            signal.pause()
        for keys, specs, process, results in running:
            if not results.done():
                process.kill()
                continue
            for spec, key, result in zip(specs, keys, results.result()):
                answers += 1
                refused += bool(result.get("error"))
                what = judge(spec, key, result)
                if what:
                    wrong.append(f"{key} {({k: v for k, v in spec.items() if k != 'tokens'})}: {what}")
        pool.shutdown()
        if quiet:
            service.wait_ready()
        text = service.log_text() if wrong else ""
    named = ", ".join(f"{name} {kills[name]}" for name in PROCESSES if name in kills)
    tap.ok(not wrong and answers > refused and kills,
           f"{how}: {answers} answers ({refused} refused) while processes were killed ({named}): the same bytes",
           "\n".join(wrong[:20]) + "\n" + text)


start, turn = time.monotonic(), 0
while turn == 0 or time.monotonic() - start < 60 * MINUTES:
    storm(settings(turn))
    turn += 1
tap.done()
