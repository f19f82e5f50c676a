#!/usr/bin/env python3
"""kill -9 of each process at random moments while answers are being made: no token lost, repeated or changed."""
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, PROCESSES, SAMPLED, SANITIZED, TARGET_Q4, Service, Tap, difference, prompts, reference, seeded, until

KILLS = int(os.environ.get("OUTRIDER_TEST_KILLS", 5 if SANITIZED else 20))
TOKENS = 60 if SANITIZED else 400
tap = Tap()
random = seeded()
ids = prompts(6, longest=120)
modes = (None, SAMPLED)
expected = {(m, i): reference(p, TOKENS, modes[m], seed=7 + i, extra=("--ignore-eos",))
            for m in (0, 1) for i, p in enumerate(ids)}


def under_kills(service, victim, most, shapes, name="", asked=ids, expected=expected, tokens=TOKENS):
    """Answers with any K, drafter and shape of drafts, until the victim has been killed so often."""
    wrong, kills, answers, accepted = [], 0, 0, 0
    while kills < most or (not accepted and not wrong):
        keys = [(random.randrange(2), random.randrange(len(asked))) for _ in range(12)]
        batch = [{"tokens": asked[i], "max_tokens": tokens, "seed": 7 + i, "ignore_eos": True, "logits_hash": False,
                  "draft_method": random.choice(("ngram", "model")), **random.choice(shapes), **(modes[m] or {})} for m, i in keys]
        results, killed = service.swarm_under_kills(batch, victim, most - kills, lambda: time.sleep(random.uniform(0.01, 0.25)),
                                                    concurrent=4)
        kills += killed
        for key, result in zip(keys, results):
            answers += 1
            what = difference(result, expected[key])
            if what:
                wrong.append(f"{key}: {what}")
            else:
                accepted += result["usage"]["accepted"]
    tap.ok(kills >= most and accepted and not wrong, f"{name}{victim} killed {kills} times during {answers} answers: the same bytes",
           f"accepted {accepted}\n" + "\n".join(wrong[:10]) + "\n" + service.log_text()[-1500:] if wrong or not accepted else "")


with Service(draft=DRAFTS["small"], options=("--budget", "50%")) as service:
    for victim in PROCESSES:
        service.wait_ready()
        before = service.processes()
        under_kills(service, victim, KILLS, [{"k": k, **shape} for k in (-1, 0, 3, 7) for shape in ({}, {"draft_nodes": 24, "draft_width": 3})])
        service.wait_ready()
        now = service.processes()
        tap.ok(all(before[p] == now.get(p) for p in PROCESSES if p != victim), f"{victim} killed: the other processes went on",
               f"{before} {now}")
    service.wait_ready()
    after = {}

    def accepted():
        """The drafter is ready before the verifier has heard of it, so it is asked again."""
        after.update(service.swarm([{"tokens": ids[0], "max_tokens": TOKENS, "seed": 7, "k": 3, "draft_method": "model",
                                     "ignore_eos": True}])[0])
        return after["usage"]["accepted"] > 0 or difference(after, expected[0, 0])
    tap.ok(until(accepted) and not difference(after, expected[0, 0]), "after all that, drafts are made and accepted again", after)
# The policy gives prices, by which the verifier takes nodes; it may ask for alternatives.
with Service(draft=DRAFTS["aligned"], options=("--budget", "30%"), sets=("policy.by_experts=yes", "policy.width=4")) as service:
    for victim in ("drafter", "policy"):
        under_kills(service, victim, max(KILLS // 5, 1), ({"k": -1}, {"k": -1}, {"k": 5, "draft_nodes": 20, "draft_width": 4}), "by the cost of experts, ")
        service.wait_ready()
# The GPU's kernels, emulated: fewer and shorter answers. The experts are in the GPU's memory, and not all fit.
brief = [p[:3] for p in ids[:2]]
few = {(m, i): reference(p, 4, modes[m], seed=7 + i, model=TARGET_Q4, extra=("--ignore-eos",)) for m in (0, 1) for i, p in enumerate(brief)}
with Service(TARGET_Q4, DRAFTS["small"], ("verifier.device=simt", "expert-cache.device=simt", "expert-cache.device_budget=50%")) as service:
    for victim in ("verifier", "expert-cache"):
        service.wait_ready()
        under_kills(service, victim, max(KILLS // 20, 1), [{"k": 3}], "on the emulated GPU, ", brief, few, 4)
tap.done()
