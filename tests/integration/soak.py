#!/usr/bin/env python3
"""A soak of the scheduler and of the KV cache, which make check does not run: 256 sessions of three classes at once, whose prompts begin
alike, with KV pages for a few of them, some on disk, while sessions are told to sleep and the verifier is killed now and then. Every answer has the bytes that it has alone; memory and
descriptors of every process are the same in the second half of the time as in the first. OUTRIDER_TEST_MINUTES: how long it goes on (3). OUTRIDER_TEST_MODEL: a golden
model to use instead of the demo's, for example qwen3next, whose states are kept and written too."""
import concurrent.futures
import os
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, ROOT, SAMPLED, TARGET, Service, Tap, difference, prompts, reference

MINUTES = float(os.environ.get("OUTRIDER_TEST_MINUTES", 3))
SESSIONS, TOKENS, KINDS = 256, 24, 32
CLASSES = "chat priority=10 tpot=20ms ttft=1s, batch priority=-10"
tap = Tap()
GOLDEN = os.environ.get("OUTRIDER_TEST_MODEL")
model = ROOT / "tests" / "data" / "golden" / "models" / f"{GOLDEN}.f32.gguf" if GOLDEN else TARGET


def some(n):
    """Prompts of at most 40 tokens; the golden models know 380."""
    return [[random.randrange(380) for _ in range(random.randint(1, 40))] for _ in range(n)] if GOLDEN else prompts(n, longest=40)


same = [t for p in some(16) for t in p][:96]
ids = [same[:(0, 40, 96)[i % 3]] + p for i, p in enumerate(some(KINDS))]
modes = (None, SAMPLED)
expected = {(m, i): reference(p, TOKENS, modes[m], seed=5 + i, model=model, extra=("--ignore-eos",)) for m in (0, 1) for i, p in enumerate(ids)}


def request(m, i, classes):
    return {"tokens": ids[i], "max_tokens": TOKENS, "seed": 5 + i, "k": random.choice((-1, 0, 3, 7)), "ignore_eos": True,
            "draft_method": "ngram", "class": random.choice(classes), "logits_hash": random.random() < 0.3,
            **({"window": 8} if random.random() < 0.2 else {}), **(modes[m] or {})}


def size(pid):
    """Anonymous memory in MiB, and open descriptors."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon")) / 1024, len(os.listdir(f"/proc/{pid}/fd"))


def asleep(service):
    return [s["uid"] for s in service.ctl_json("sessions").get("sessions", ()) if s["state"] == "asleep"]


def let_sleep(service):
    """Some of the sessions that run."""
    live = [s["uid"] for s in service.ctl_json("sessions").get("sessions", ()) if s["state"] in ("running", "prefill", "queued")]
    return sum(service.ctl("session", "sleep", str(uid)).returncode == 0 for uid in random.sample(live, min(3, len(live))))


def sizes(service):
    return {name: size(pid) for name, pid in service.processes().items()}


sets = ("verifier.context=256", "verifier.kv_tokens=2048", "verifier.sessions_max=64", "verifier.queue_max=256", "verifier.client_requests=256",
        f"verifier.classes={CLASSES}", "verifier.ageing=1s", "verifier.sleep_after=200ms", "verifier.prefix_disk=4M")
folder = tempfile.TemporaryDirectory(prefix="outrider-soak-")
with folder, concurrent.futures.ThreadPoolExecutor(2) as pool, Service(model=model, draft=None if GOLDEN else DRAFTS["small"], sets=(*sets, f"verifier.prefix_dir={folder.name}"), options=("-v",)) as service:
    end, rounds, kills, slept, wrong, seen = time.monotonic() + 60 * MINUTES, 0, 0, 0, [], []
    while rounds < 4 or time.monotonic() < end:
        keys = [(random.randrange(2), random.randrange(KINDS)) for _ in range(SESSIONS)]
        # The urgent ones come when the others have the pages.
        early, late = keys[::2], keys[1::2]
        _, first_results = service.swarm_start([request(*key, ("batch",)) for key in early], concurrent=SESSIONS)
        time.sleep(random.uniform(0.1, 1))
        _, second_results = service.swarm_start([request(*key, ("default", "chat")) for key in late], concurrent=SESSIONS)
        # Read as they come: a pipe that is full would stop its client.
        running = [pool.submit(results, 600) for results in (first_results, second_results)]
        for _ in range(random.choice((0, 1, 2))):
            time.sleep(random.uniform(0.2, 2))
            if not all(r.done() for r in running):
                slept += let_sleep(service)
                kills += service.kill("verifier")
                service.wait_ready()
        slept += let_sleep(service)
        while not all(r.done() for r in running):
            for uid in asleep(service):
                service.ctl("session", "wake", str(uid))
            time.sleep(0.2)
        for key, result in zip(early + late, running[0].result() + running[1].result()):
            if what := difference(result, expected[key]):
                wrong.append(f"{key}: {what}")
        rounds += 1
        service.wait_ready()
        now = sizes(service)
        seen.append(now)
        tap.note(f"round {rounds}, {kills} kills, {slept} told to sleep, {len(wrong)} wrong: " + ", ".join(f"{n} {m:.0f} MiB {d} fds" for n, (m, d) in now.items()))
    log = service.whole_log()
    tap.ok(not wrong and rounds >= 4, f"{rounds} rounds of {SESSIONS} sessions, {kills} kills: the same bytes", "\n".join(wrong[:10]))
    tap.ok("gives up its KV pages" in log and "tokens in the KV cache" in log and slept and "of its" in log,
           f"sessions gave up pages {log.count('gives up its KV pages')} times, slept {log.count('sleeps: ')} times, "
           f"and found pages {log.count('tokens in the KV cache')} times")
    disk = {k: v for k, v in service.details("verifier").items() if k.startswith("disk_")}
    tap.ok(disk["disk_failures"] == 0 and disk["disk_bytes"] <= 4 << 20, f"the disk took and gave pages: {disk}", disk)
    # A verifier that was killed begins small, so the greatest of each half of the rounds are compared.
    halves = [{n: tuple(max(s[n][i] for s in half if n in s) for i in (0, 1)) for n in now} for half in (seen[:rounds // 2], seen[rounds // 2:])]
    grown = {n: (a, b) for n, a in halves[0].items() if (b := halves[1][n])[0] > 1.2 * a[0] + 8 or b[1] > a[1] + 4}
    tap.ok(not grown, "memory and descriptors are flat", f"{grown}")
tap.done()
