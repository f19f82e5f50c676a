#!/usr/bin/env python3
"""Where the weights are: in the file or packed, with experts mapped or cached, packed or not. The bytes are the same, and a
verifier that was killed takes the packed weights over from those who kept them."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, Service, Tap, difference, program, prompts, reference, run_json, until

tap = Tap()
ids = prompts(3, longest=80)
expected = [reference(p, 50, extra=("--ignore-eos",)) for p in ids]
requests = [{"tokens": p, "max_tokens": 50, "ignore_eos": True, "logits_hash": True, "k": 3} for p in ids]


def same(service, name):
    found = [difference(r, e) for r, e in zip(service.swarm(requests, 3), expected)]
    tap.ok(not any(found), name, found)


def stats(service):
    return run_json(program("outriderctl"), "--runtime-dir", service.runtime, "--json", "cache", "stats")


def count(service, text):
    return service.log_text().count(text)


packed = [reference(p, 50, extra=("--ignore-eos", "--pack")) for p in ids]
tap.ok(not any(difference(a, b) for a, b in zip(packed, expected)), "outrider-model --pack gives the same bytes")

for weights in ("mapped", "packed", "auto"):
    for experts, pack in (("mapped", "no"), ("cached", "no"), ("cached", "yes")):
        sets = (f"verifier.weights={weights}", f"verifier.experts={experts}", f"expert-cache.pack={pack}")
        with Service(sets=sets) as service:
            same(service, f"weights {weights}, experts {experts}, packed in their slots: {pack}")
            tap.ok(count(service, "of weights in") == (weights != "mapped"),
                   f"weights {weights}: {'not ' if weights == 'mapped' else ''}packed at the start", service.log_text())

with Service(sets=("verifier.weights=packed", "expert-cache.pack=yes"), options=("--budget", "30%")) as service:
    same(service, "a budget of 30%, every loaded expert packed")

# With the smallest budgets most experts go before they are used again; with larger ones those that stay are packed meanwhile.
for budget in ("min", "30%", "90%"):
    with Service(options=("--budget", budget)) as service:
        for when in ("at first", "again"):
            same(service, f"a budget of {budget}, experts packed when they are used again: {when}")
        if budget != "min":
            tap.ok(until(lambda: stats(service)["packed"] > 0), f"{budget}: some are packed", stats(service))
            for _ in range(4):
                process, results = service.swarm_start(requests * 4, concurrent=3)
                service.renewed("expert-cache", service.end("expert-cache"))
                wrong = [d for i, r in enumerate(results()) if (d := difference(r, expected[i % 3]))]
                tap.ok(not wrong, f"{budget}: and a kill -9 of the cache meanwhile", wrong)
with Service(sets=("expert-cache.pack=no",), options=("--budget", "50%")) as service:
    same(service, "pack=no: nothing is packed")
    same(service, "pack=no: nor when it is used again")
    tap.ok(stats(service)["resident"] > 0 and stats(service)["packed"] == 0, "indeed", stats(service))

with Service(draft=DRAFTS["small"], sets=("verifier.weights=packed", "verifier.experts=mapped")) as service:
    same(service, "packed weights with a draft model")
    service.restart("verifier")
    same(service, "and again after a kill -9 of the verifier")
    tap.ok(count(service, "of weights in") == 1, "which took the packed weights over", service.log_text())

tap.done()
