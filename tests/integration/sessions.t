#!/usr/bin/env python3
"""256 sessions at once, each with a prompt and a seed of its own, greedy and sampled: each has the bytes it has alone. Then
each asks for a tree of 511 nodes, far more than a pass has rows for. With OUTRIDER_TEST_LONG (make check-long) longer answers, with
drafts and kills."""
import concurrent.futures
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import SAMPLED, SANITIZED, Service, Tap, differences, prompts, reference, until

LONG = bool(os.environ.get("OUTRIDER_TEST_LONG"))
SESSIONS = 32 if SANITIZED else 256
TOKENS = 64 if LONG else 6
tap = Tap()
# The texts of the workloads are fewer: what follows another beginning is another prompt.
texts = prompts(32, longest=48 if LONG else 20)
requests = []
for i in range(SESSIONS):
    ids = texts[i % len(texts)]
    requests.append({"tokens": ids[i // len(texts):] + ids[:i // len(texts)], "max_tokens": TOKENS, "seed": 100 + i, "ignore_eos": True,
                     "logits_hash": True, **(SAMPLED if i % 2 else {})})


def alone(request):
    return reference(request["tokens"], TOKENS, SAMPLED if "temperature" in request else None, seed=request["seed"],
                     extra=("--ignore-eos",))


with concurrent.futures.ThreadPoolExecutor(2) as pool:
    expected = list(pool.map(alone, requests))
sets = (f"verifier.sessions_max={SESSIONS}", "verifier.queue_max=64", f"verifier.client_requests={SESSIONS}",
        "verifier.context=256", "verifier.prefill_chunk=512")
with Service(sets=sets) as service:
    before = service.ctl_json("sessions")["iterations_total"]
    results = service.swarm(requests, concurrent=SESSIONS, timeout=600)
    passes = service.ctl_json("sessions")["iterations_total"] - before
    tap.ok(len(results) == SESSIONS and not (why := differences(results, expected)),
           f"{SESSIONS} sessions at once: each has the tokens and logits that it has alone", why)
    tap.ok(SANITIZED or passes < SESSIONS * TOKENS / 8, "which are computed together", f"{passes} passes")
    drafted = [{**r, "k": i % 8, "draft_method": "ngram"} for i, r in enumerate(requests)]
    process, wait = service.swarm_start(drafted, concurrent=SESSIONS)
    until(lambda: len(service.ctl_json("sessions")["sessions"]) >= SESSIONS // 2, 60)
    service.end("verifier")
    results = wait(600)
    tap.ok(not (why := differences([{**r, "logits_hash": None} for r in results], expected)),
           "and the same tokens with drafts, through a kill of the verifier", why)
    # A recording drafts: its main path is right but for the errors, and it has 510 tokens more of which a few are.
    trees = [{**r, "k": 63, "draft_method": "replay", "draft_nodes": 511, "draft_width": (3, 16, 255)[i % 3],
              "replay": expected[i]["tokens"], "replay_error": 0.3 if i % 4 else 0} for i, r in enumerate(requests)]
    before = service.ctl_json("sessions")["iterations_total"]
    results = service.swarm(trees, concurrent=SESSIONS, timeout=1200)
    passes = service.ctl_json("sessions")["iterations_total"] - before
    tap.ok(not (why := differences(results, expected)), f"{SESSIONS} x 511 drafted tokens are asked for: the same tokens and logits", why)
    n_drafted, n_accepted = (sum(r["usage"][name] for r in results) for name in ("drafted", "accepted"))
    tap.ok(8 * SESSIONS < n_drafted <= passes * SESSIONS * 15, "of which a pass takes as many as it has rows for",
           f"{n_drafted} in {passes} passes")
    # A prompt may lie across two passes.
    most = max(r["usage"]["iterations"] for r in results)
    tap.ok(n_accepted > SESSIONS and most <= TOKENS + 1, "every session has a token of each of its passes, and many have more",
           f"{n_accepted} accepted, {most} passes of one session")
    if LONG:
        for kills in range(4):
            process, wait = service.swarm_start(drafted, concurrent=SESSIONS)
            for _ in range(kills):
                until(lambda: any(s["output_tokens"] for s in service.ctl_json("sessions")["sessions"]), 120)
                service.restart("verifier")
            tap.ok(not (why := differences(wait(1200), expected)), f"the same with logits and {kills} kills", why)
tap.done()
