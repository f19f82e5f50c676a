#!/usr/bin/env python3
"""Experts that the (emulated) device lacks, computed by the CPU beside it: by each rule, over a fast link and over one that is too slow
to copy them. The bytes are those of the CPU alone, whatever is killed, and while the rule changes."""
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, SAMPLED, TARGET_Q4, Service, Tap, differences, prompts, reference, seeded

TOKENS = 3
tap = Tap()
random = seeded()
ids = prompts(2, longest=4)
expected = {(m, i): reference(p, TOKENS, mode, seed=5 + i, model=TARGET_Q4, extra=("--ignore-eos",))
            for m, mode in enumerate((None, SAMPLED)) for i, p in enumerate(ids)}
DEVICE = ["verifier.device=simt", "expert-cache.device=simt", "expert-cache.device_budget=33%"]


def requests(n=4):
    """n of: greedy and sampled, K 0 and 3, of each prompt, of each kind at least one; and what has to come out."""
    keys = [(m, i, k) for m in (0, 1) for i in range(len(ids)) for k in (0, 3)]
    keys = random.sample([(0, 0, 0), (0, 1, 3), (1, 0, 3), (1, 1, 0)], min(n, 4)) + random.sample(keys, max(0, n - 4))
    return [expected[m, i] for m, i, _ in keys], [
        {"tokens": ids[i], "max_tokens": TOKENS, "seed": 5 + i, "k": k, "draft_method": "ngram", "ignore_eos": True,
         "logits_hash": True, **((None, SAMPLED)[m] or {})} for m, i, k in keys]


def answers(service):
    want, asked = requests()
    return differences(service.swarm(asked, concurrent=2), want)


def device(service):
    return service.ctl_json("cache", "stats")["device"]


def set_rule(service, rule):
    done = service.ctl("knob", "set", f"hybrid={rule}")
    return "" if done.returncode == 0 else done.stderr


def computed(service, what="by_cpu"):
    return device(service)["hybrid"][what]


with Service(TARGET_Q4, DRAFTS["small"], [*DEVICE, "verifier.hybrid=greedy"]) as service:
    for rule in ("greedy", "spac", "off"):
        wrong = set_rule(service, rule)
        before = device(service)
        wrong = wrong or answers(service)
        now = device(service)
        by_cpu = now["hybrid"]["by_cpu"] - before["hybrid"]["by_cpu"]
        tap.ok(not wrong and now["hybrid"]["rule"] == rule and (by_cpu > 0) == (rule != "off"),
               f"{rule}: the bytes of the CPU alone" + ("; the CPU computed some experts" if rule != "off" else ", which computed none"),
               f"{wrong}\n{before}\n{now}")
    for policy in ("static", "lru", "lfu-trace", "gate-next", "sp-moe", "spac", "outrider"):
        wrong = service.ctl("knob", "set", f"cache.policy={policy}").stderr
        for rule in ("greedy", "spac"):
            keys, asked = requests()
            wrong = wrong or set_rule(service, rule) or differences(service.swarm(asked[:1]), keys[:1])
        tap.ok(not wrong, f"policy {policy}, greedy and spac: the same bytes", wrong)
    want, asked = requests()
    process, results = service.swarm_start(asked, concurrent=2)
    wrong = ""
    for rule in ("greedy", "off", "spac", "greedy"):
        time.sleep(0.1)
        wrong = wrong or set_rule(service, rule)
    wrong = wrong or differences(results(), want)
    tap.ok(not wrong, "the rule changed in mid-answer: the same bytes", wrong)
    for victim in ("expert-cache", "verifier"):
        n, wrong = 0, ""
        while n == 0 and not wrong:
            want, asked = requests()
            results, n = service.swarm_under_kills(asked, victim, 1, lambda: time.sleep(random.uniform(0.05, 0.3)), concurrent=2)
            service.wait_ready()
            wrong = differences(results, want)
        tap.ok(not wrong, f"{victim} killed: the same bytes", wrong)
    refused = service.ctl("knob", "set", "hybrid=both")
    tap.ok(refused.returncode and "hybrid" in refused.stderr and "spac" in refused.stderr, "an unknown rule is refused", refused)

# A copy takes some 150 ms: longer than the CPU takes for an expert, also a slow one, and beside the emulation.
with Service(TARGET_Q4, DRAFTS["small"], [*DEVICE, "verifier.hybrid=greedy"], env={**os.environ, "OUTRIDER_SIMT_LINK": "2e5"}) as service:
    wrong = answers(service)

    def seen():
        n = device(service)["hybrid"]
        return n["by_cpu"] and (n["cpu_expert_ns"] or n["cpu_token_ns"]) and (n["device_expert_ns"] or n["device_token_ns"]) and \
            device(service)["load_ns"]
    if not wrong and not seen():
        wrong = answers(service)
    before = device(service)
    wrong = wrong or answers(service)
    now = device(service)
    # Copies that were under way when a layer began, because a hint had come true, are not waited for either.
    streamed = now["hybrid"]["streamed"] - before["hybrid"]["streamed"]
    by_cpu, missing = now["hybrid"]["by_cpu"] - before["hybrid"]["by_cpu"], now["misses"] - before["misses"]
    tap.ok(not wrong, "greedy, over a slow link: the same bytes", wrong)
    tap.ok(seen(), "what an expert takes was measured on either side, and what a copy takes", now)
    tap.ok(by_cpu > 0.8 * missing > 0 and streamed < 0.2 * by_cpu, "a link that is too slow is seen: the CPU computes what is missing",
           f"{by_cpu} {missing} {streamed} {now}")
    text, status = service.ctl("cache", "stats").stdout, service.ctl("status").stdout
    tap.ok(f"hybrid     greedy: {now['hybrid']['by_cpu']} missing experts computed by the CPU" in text and
           f"greedy; the CPU computed {now['hybrid']['by_cpu']} of" in status, "cache stats and status say so", f"{text}\n{status}")
    # A prompt of one pass, in which most experts have many tokens.
    prompt = sum(prompts(4), [])[:100]
    want = reference(prompt, 1, seed=5, model=TARGET_Q4, extra=("--ignore-eos",))
    before = device(service)
    wrong = differences(service.swarm([{"tokens": prompt, "max_tokens": 1, "seed": 5, "k": 0, "ignore_eos": True, "logits_hash": True}]), [want])
    now = device(service)
    tap.ok(len(prompt) > 64 and not wrong and now["hybrid"]["by_cpu"] > before["hybrid"]["by_cpu"],
           "a prompt: the CPU computes some of it, and the same bytes", f"{len(prompt)} {wrong} {before} {now}")
    text, costs = " ".join(service.ctl("cache", "stats").stdout.split()), now["hybrid"]
    few, each = (f"{ns / 1e6:.3g} ms" if ns else "?" for ns in (costs["rows_ns"], costs["row_ns"]))
    tap.ok(costs["rows_ns"] > 0 and f"the CPU waits {few} for its inputs in a pass of up to 64 rows, {each} for each row of a larger one" in text,
           "how long the CPU waits for its inputs", f"{costs} {text}")
    wrong = set_rule(service, "spac") or answers(service)
    after = device(service)
    tap.ok(not wrong and after["hybrid"]["by_cpu"] > now["hybrid"]["by_cpu"], "spac, over a slow link: the same bytes", f"{wrong} {after}")
    tap.ok(any(after["hybrid"]["tau"]), "each layer has a threshold", after)
tap.done()
