#!/usr/bin/env python3
"""A soak of the scheduler and of the KV cache, which make check does not run: 256 sessions of three classes at once, whose prompts begin
alike, with KV pages for a few of them, while the verifier is killed now and then. Every answer has the bytes that it has alone; memory and
descriptors of every process are the same in the second half of the time as in the first. OUTRIDER_TEST_MINUTES: how long it goes on (3)."""
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, SAMPLED, Service, Tap, difference, prompts, reference

MINUTES = float(os.environ.get("OUTRIDER_TEST_MINUTES", 3))
SESSIONS, TOKENS, KINDS = 256, 24, 32
CLASSES = "chat priority=10 tpot=20ms ttft=1s, batch priority=-10"
tap = Tap()
same = [t for p in prompts(8, longest=40) for t in p][:96]
ids = [same[:(0, 40, 96)[i % 3]] + p for i, p in enumerate(prompts(KINDS, longest=40))]
modes = (None, SAMPLED)
expected = {(m, i): reference(p, TOKENS, modes[m], seed=5 + i, extra=("--ignore-eos",)) for m in (0, 1) for i, p in enumerate(ids)}


def request(m, i, classes):
    return {"tokens": ids[i], "max_tokens": TOKENS, "seed": 5 + i, "k": random.choice((-1, 0, 3, 7)), "ignore_eos": True,
            "draft_method": "ngram", "class": random.choice(classes), "logits_hash": random.random() < 0.3,
            **({"window": 8} if random.random() < 0.2 else {}), **(modes[m] or {})}


def size(pid):
    """Anonymous memory in MiB, and open descriptors."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon")) / 1024, len(os.listdir(f"/proc/{pid}/fd"))


def sizes(service):
    return {name: size(pid) for name, pid in service.processes().items()}


sets = ("verifier.context=256", "verifier.kv_tokens=2048", "verifier.sessions_max=64", "verifier.queue_max=256", "verifier.client_requests=256",
        f"verifier.classes={CLASSES}", "verifier.ageing=1s")
with Service(draft=DRAFTS["small"], sets=sets, options=("-v",)) as service:
    end, rounds, kills, wrong, seen = time.monotonic() + 60 * MINUTES, 0, 0, [], []
    while rounds < 4 or time.monotonic() < end:
        keys = [(random.randrange(2), random.randrange(KINDS)) for _ in range(SESSIONS)]
        # The urgent ones come when the others have the pages.
        early, late = keys[::2], keys[1::2]
        first, first_results = service.swarm_start([request(*key, ("batch",)) for key in early], concurrent=SESSIONS)
        time.sleep(random.uniform(0.1, 1))
        second, second_results = service.swarm_start([request(*key, ("default", "chat")) for key in late], concurrent=SESSIONS)
        for _ in range(random.choice((0, 1, 2))):
            time.sleep(random.uniform(0.2, 2))
            if first.poll() is None or second.poll() is None:
                kills += service.kill("verifier")
        for key, result in zip(early + late, first_results(600) + second_results(600)):
            if what := difference(result, expected[key]):
                wrong.append(f"{key}: {what}")
        rounds += 1
        service.wait_ready()
        now = sizes(service)
        seen.append(now)
        tap.note(f"round {rounds}, {kills} kills, {len(wrong)} wrong: " + ", ".join(f"{n} {m:.0f} MiB {d} fds" for n, (m, d) in now.items()))
    log = service.whole_log()
    tap.ok(not wrong and rounds >= 4, f"{rounds} rounds of {SESSIONS} sessions, {kills} kills: the same bytes", "\n".join(wrong[:10]))
    tap.ok("gives up its KV pages" in log and "tokens in the KV cache" in log, "sessions gave up pages, and found those of others",
           f"{log.count('gives up its KV pages')} and {log.count('tokens in the KV cache')}")
    # A verifier that was killed begins small, so the greatest of each half of the rounds are compared.
    halves = [{n: tuple(max(s[n][i] for s in half if n in s) for i in (0, 1)) for n in now} for half in (seen[:rounds // 2], seen[rounds // 2:])]
    grown = {n: (a, b) for n, a in halves[0].items() if (b := halves[1][n])[0] > 1.2 * a[0] + 8 or b[1] > a[1] + 4}
    tap.ok(not grown, "memory and descriptors are flat", f"{grown}")
tap.done()
