#!/usr/bin/env python3
"""Classes of requests, with the real service: urgent sessions take the KV pages of others, whose answers are the same bytes all the same,
with and without drafts and with the verifier killed meanwhile. A class that does not exist and a deadline that cannot be met are refused, and the
status says by how much targets are missed."""
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, SAMPLED, SANITIZED, Service, Tap, difference, prompts, reference, seeded

TOKENS = 40 if SANITIZED else 100
tap = Tap()
random = seeded()
ids = prompts(8, longest=120)
modes = (None, SAMPLED)
expected = {(m, i): reference(p, TOKENS, modes[m], seed=3 + i, extra=("--ignore-eos",)) for m in (0, 1) for i, p in enumerate(ids)}
CLASSES = "chat priority=10 tpot=1us ttft=1us, batch priority=-10 tpot=1h ttft=1h"
SETS = ("verifier.context=256", "verifier.kv_tokens=480", "verifier.sessions_max=4", f"verifier.classes={CLASSES}", "verifier.prefix_tokens=0",
        "verifier.ahead_max=16")


def request(m, i, name, k):
    return {"tokens": ids[i], "max_tokens": TOKENS, "seed": 3 + i, "k": k, "ignore_eos": True, "draft_method": "ngram", "class": name,
            "logits_hash": i % 2 == 0, **(modes[m] or {})}


def wrong(keys, results):
    return [f"{key}: {what}" for key, result in zip(keys, results) if (what := difference(result, expected[key]))]


def given_up(service):
    return service.whole_log().count("gives up its KV pages")


def details(service):
    return service.details("verifier")


def batch_then_chat(service, k, kills):
    """Batch sessions fill the KV cache; then chat sessions come, and take it from them."""
    low = [(m, i) for m in (0, 1) for i in range(4)]
    high = [(m, i) for m in (0, 1) for i in range(4, 8)]
    before = given_up(service)
    _, batch = service.swarm_held([request(*key, "batch", k) for key in low], concurrent=8)
    _, chat = service.swarm_start([request(*key, "chat", k) for key in high], concurrent=4)
    for _ in range(kills):
        time.sleep(random.uniform(0.05, 0.3))
        service.kill("verifier")
    found = wrong(high, chat()) + wrong(low, batch())
    tap.ok(not found and (kills or given_up(service) > before),
           f"K = {k}, {kills} kills: urgent sessions take pages ({given_up(service) - before} times), and every answer has its bytes",
           "\n".join(found[:8]) + "\n" + service.log_text()[-1500:])


with Service(draft=DRAFTS["small"], sets=SETS, options=("-v",)) as service:
    for k in (0, 3):
        batch_then_chat(service, k, 0)
    lines = {name: details(service).get(f"class_{name}", "") for name in ("default", "chat", "batch")}
    tap.ok("over its target of 0.0 ms" in lines["chat"] and lines["chat"].startswith("priority 10; tpot ")
           and "within its target" in lines["batch"] and lines["default"] == "priority 0",
           "the status says by how much a class misses its targets", lines)
    over, within = (re.search(p, lines[name]) for name, p in
                    (("chat", r"ttft ([0-9.]+) ms, ([0-9.]+) ms over its target of 0\.0 ms"),
                     ("batch", r"ttft ([0-9.]+) ms, within its target of 3600000\.0 ms")))
    # Batch sessions wait for each other and for chat sessions; a first token takes a pass at least.
    tap.ok(over and within and float(over[1]) > 0 and abs(float(over[1]) - float(over[2])) < 0.2 and float(within[1]) > 0,
           "targets of TTFT are measured from a request's admission to its first token", lines)
    tap.ok(int(details(service)["pass_ns"]) > 0 and int(details(service)["prefill_token_ns"]) > 0, "and what passes cost", details(service))

    (refused,) = service.swarm([request(0, 0, "urgent", 0)], concurrent=1)
    tap.ok('there is no "urgent", allowed are default, chat, batch' in refused.get("error", ""), "a class that does not exist is refused by name",
           refused)
    (late,) = service.swarm([{**request(0, 0, "chat", 0), "tokens": [t for p in ids for t in p][:150], "deadline_ms": 1}], concurrent=1)
    tap.ok(late["end"] == "deadline" and not late["tokens"], "a deadline that cannot be met ends the request without tokens", late)
    tap.ok(service.ctl("knob", "set", "verifier.classes=default priority=1, chat").returncode == 0
           and details(service)["class_default"].startswith("priority 1"), "classes change while the service runs", details(service))
    wrong_one = service.ctl("knob", "set", "verifier.classes=chat priority=1000")
    tap.ok(wrong_one.returncode != 0 and "priority=1000 of chat: allowed are -100 to 100" in wrong_one.stderr + wrong_one.stdout,
           "a setting that is wrong is refused", wrong_one)
    service.ctl("knob", "set", f"verifier.classes={CLASSES}")
    for k in (0, 3):
        batch_then_chat(service, k, 2)
tap.done()
