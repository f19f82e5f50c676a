#!/usr/bin/env python3
"""Every policy of the expert-cache, at every budget from the smallest legal one to all experts, changed live, with the cache
process killed meanwhile: the same bytes as without any cache."""
import json
import threading

from outrider_test import DRAFTS, SAMPLED, Service, Tap, difference, prompts, reference, seeded, until

POLICIES = ("static", "lru", "lfu-trace", "gate-next", "sp-moe", "spac", "outrider")
BUDGETS = ("min", "17%", "50%", "all")
TOKENS = 48
tap = Tap()
random = seeded()
ids = prompts(6)
expected = {sampling: [reference(p, TOKENS, SAMPLED if sampling else None, seed=i) for i, p in enumerate(ids)] for sampling in (False, True)}


def requests():
    """Each prompt greedy and sampled, with a K of its own."""
    out = []
    for sampling in (False, True):
        for i, p in enumerate(ids):
            request = {"tokens": p, "max_tokens": TOKENS, "seed": i, "k": random.choice((0, 1, 3, 7)), "logits_hash": True,
                       **(SAMPLED if sampling else {})}
            out.append((request, expected[sampling][i]))
    return out


def answers(service, concurrent):
    """What is wrong with the answers, '' for nothing."""
    work = requests()
    results = service.swarm([request for request, _ in work], concurrent=concurrent)
    return "; ".join(filter(None, (difference(result, want) for result, (_, want) in zip(results, work))))


def killer(service, stop):
    while not stop.wait(random.uniform(0.1, 0.6)):
        service.kill("expert-cache")


with Service(draft=DRAFTS["aligned"], options=["--budget", "min"]) as service:
    for policy in POLICIES:
        wrong = []
        for budget in BUDGETS:
            done = service.ctl("cache", "set", f"policy={policy}", f"budget={budget}")
            if done.returncode:
                wrong.append(f"{policy}, {budget}: {done.stderr}")
                continue
            stats = json.loads(service.ctl("cache", "stats", "--format", "json").stdout)
            if stats["policy"] != policy:
                wrong.append(f"{policy} was set, {stats['policy']} is in force")
            problem = answers(service, concurrent=random.choice((1, 3)))
            if problem:
                wrong.append(f"{policy}, {budget}: {problem}")
        tap.ok(not wrong, f"{policy}: the reference's bytes at every budget", "\n".join(wrong))

for policy in POLICIES:
    with Service(draft=DRAFTS["aligned"], options=["--budget", "17%"], sets=[f"expert-cache.policy={policy}"]) as service:
        stop = threading.Event()
        thread = threading.Thread(target=killer, args=(service, stop))
        thread.start()
        problem = answers(service, concurrent=2) or answers(service, concurrent=1)
        stop.set()
        thread.join()
        back = until(lambda: service.pid("expert-cache") and service.ctl("cache", "stats").returncode == 0)
        tap.ok(not problem and back, f"{policy}: the same bytes while the cache process is killed again and again", problem)

tap.done()
