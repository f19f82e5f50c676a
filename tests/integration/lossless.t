#!/usr/bin/env python3
"""Speculation changes nothing: every combination of K, drafter, sessions, threads, cache budget and prefill chunk
gives the bytes of outrider-model, greedy and sampled: the same tokens and the same logits (by hash, at each position)."""
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from outrider_test import DRAFTS, ROOT, SAMPLED, SANITIZED, TARGET_Q4, Service, Tap, difference, prompts, reference, until

KS = (0, 1, 2, 3, 7, 15)
METHODS = ("none", "ngram", "model")
SESSIONS = (1, 3, 8)
TOKENS = 10 if SANITIZED else 20

tap = Tap()
ids = prompts(8, longest=64)
modes = {"greedy": None, "sampled": SAMPLED}


def references(*extra):
    return {(mode, i): reference(p, TOKENS, sampling, seed=100 + i, extra=extra)
            for mode, sampling in modes.items() for i, p in enumerate(ids)}


LONG = TOKENS if SANITIZED else 100
long = {(mode, i): reference(p, LONG, sampling, seed=100 + i) for mode, sampling in modes.items() for i, p in enumerate(ids[:3])}
plain, coarse, half = references(), references("--kv", "q8_0"), references("--kv", "f16")
tap.ok(len({tuple(e["tokens"]) for e in plain.values()}) > 8, "the references differ from each other")
tap.ok(all(len({tuple(kept[key]["logits_hash"]) for kept in (plain, coarse, half)}) == 3 for key in plain),
       "keys and values of 8 bits and of float16 give logits of their own")


def requests(mode, k, method, n):
    return [{"tokens": ids[i], "max_tokens": TOKENS, "seed": 100 + i, "k": k, "draft_method": method,
             "logits_hash": True, **(modes[mode] or {})} for i in range(n)]


def trees(service, name, expected):
    """Trees of 63 tokens, whose right path lies among wrong siblings and has wrong tokens of its own."""
    for mode, coupling in (("greedy", "gumbel"), ("greedy", "maximal"), ("sampled", "gumbel")):
        asked = [{**r, "draft_nodes": 63, "draft_width": 4, "coupling": coupling, "replay_error": 0.1,
                  "replay": expected[mode, i]["tokens"]} for i, r in enumerate(requests(mode, 63, "replay", 3))]
        results = service.swarm(asked, concurrent=3)
        wrong = [f"session {i}: {what}" for i, r in enumerate(results) if (what := difference(r, expected[mode, i]))]
        usage = [r["usage"] for r in results if "usage" in r]
        drafted, accepted = (sum(u[key] for u in usage) for key in ("drafted", "accepted"))
        passes = sum(sum(u["k_used"][1:]) for u in usage)  # those that were asked drafts for: a prompt may take many, too
        tap.ok(not wrong and drafted > 20 * passes and accepted > passes,
               f"{name}, {mode}, {coupling}: trees of 63 tokens give the reference's bytes",
               "\n".join(wrong) + f" drafted {drafted}, accepted {accepted}, {passes} iterations")


def grown(service, name, expected):
    """Trees that the draft model and n-grams grow: with the settings' shape, and with the request's."""
    for mode, method, coupling in (("greedy", "model", "gumbel"), ("sampled", "model", "gumbel"), ("greedy", "model", "maximal"),
                                   ("greedy", "ngram", "gumbel"), ("sampled", "ngram", "gumbel")):
        asked = [{**r, "coupling": coupling, **({"draft_nodes": 24, "draft_width": 4} if i else {})}
                 for i, r in enumerate(requests(mode, 5, method, 3))]
        results = service.swarm(asked, concurrent=3)
        wrong = [f"session {i}: {what}" for i, r in enumerate(results) if (what := difference(r, expected[mode, i]))]
        usage = [r["usage"] for r in results if "usage" in r]
        drafted, accepted = (sum(u[key] for u in usage) for key in ("drafted", "accepted"))
        passes = sum(sum(u["k_used"][1:]) for u in usage)
        tap.ok(not wrong and accepted > 0 and (method == "ngram" or drafted > 5 * passes),
               f"{name}, {mode}, {coupling}: trees from {method} give the reference's bytes",
               "\n".join(wrong) + f" drafted {drafted}, accepted {accepted}, {passes} iterations")


def priced(service, name):
    """yield chooses K and width, and the verifier leaves out the nodes that do not pay (by_experts)."""
    changed = service.ctl("knob", "set", "policy.by_experts=yes", "policy.width=4", "draft_wait=10s")
    tap.ok(changed.returncode == 0, f"{name}: drafts are chosen by the cost of their experts", changed.stderr)
    for mode in modes:
        wrong, used = [], {"drafted": 0, "accepted": 0}

        def some_pay(mode=mode, wrong=wrong, used=used):
            for method in ("model", "ngram", "replay"):
                asked = [{**r, "k": -1, "max_tokens": LONG, **({"replay": long[mode, i]["tokens"], "replay_error": 0.1} if method == "replay" else {})}
                         for i, r in enumerate(requests(mode, 3, method, 3))]
                results = service.swarm(asked, concurrent=3)
                wrong.extend(f"{method}, session {i}: {what}" for i, r in enumerate(results) if (what := difference(r, long[mode, i])))
                for key in used:
                    used[key] += sum(r["usage"][key] for r in results if "usage" in r)
            return wrong or used["drafted"] > used["accepted"] > 0
        # After a pause of the machine, drafts look dear for a while.
        tap.ok(until(some_pay, 300) and not wrong, f"{name}, {mode}: trees by the cost of experts give the reference's bytes",
               "\n".join(wrong) + f" {used}")


def sweep(service, name, expected):
    for mode, n in itertools.product(modes, SESSIONS):
        wrong, drafted, accepted = [], 0, 0
        for k, method in itertools.product(KS, METHODS):
            if (k == 0) != (method == "none"):
                continue
            results = service.swarm(requests(mode, k, method, n), concurrent=n)
            for i, result in enumerate(results):
                what = difference(result, expected[mode, i])
                if what:
                    wrong.append(f"K = {k}, {method}, session {i}: {what}")
                else:
                    drafted += result["usage"]["drafted"]
                    accepted += result["usage"]["accepted"]
        tap.ok(not wrong, f"{name}, {mode}, {n} sessions: all K and drafters give the reference's bytes", "\n".join(wrong))
        tap.ok(drafted > accepted > 0, f"{name}, {mode}, {n} sessions: drafts were verified, accepted and rejected",
               f"drafted {drafted}, accepted {accepted}")


budgets = ("100%", "30%", "min")
# Every pair of (threads, budget, draft); the prefill chunk takes turns, so that each value meets each of them.
for turn, (threads, budget, draft) in enumerate(itertools.product((1, 2), budgets, DRAFTS)):
    chunk = (256, 16, 7)[turn % 3]
    with Service(draft=DRAFTS[draft], options=("--threads", threads, "--budget", budget),
                 sets=(f"verifier.prefill_chunk={chunk}",)) as service:
        sweep(service, f"{threads} threads, budget {budget}, draft {draft}, chunk {chunk}", plain)
        trees(service, f"{threads} threads, budget {budget}, draft {draft}, chunk {chunk}", plain)
        if turn % 4 == 1:
            changed = service.ctl("knob", "set", "draft_width=3", "draft_nodes=12", "draft_wait=10s")
            tap.ok(changed.returncode == 0, "the settings' shape of drafts is changed while it runs", changed.stderr)
            grown(service, f"{threads} threads, budget {budget}, draft {draft}, chunk {chunk}", plain)
        if turn == 9:
            priced(service, f"{threads} threads, budget {budget}, draft {draft}, chunk {chunk}")
for kept, budget, expected in (("q8_0", "30%", coarse), ("f16", "100%", half)):
    with Service(draft=DRAFTS["aligned"], options=("--threads", 2, "--budget", budget, "--kv", kept),
                 sets=("verifier.prefill_chunk=16",)) as service:
        sweep(service, f"2 threads, budget {budget}, draft aligned, chunk 16, keys and values of {kept}", expected)
# Heads of golden models, of random weights: heads.t says how right they are.
HEADS = ROOT / "tests" / "data" / "golden" / "heads"
short = [[t % 380 for t in p] for p in ids]
for target, head, method in (("target-llama", "eagle3-llama-own", "eagle3"), ("nextn-glm4moe", None, "mtp"), ("nextn-qwen35moe", None, "mtp")):
    model = HEADS / f"{target}.f32.gguf"
    expected = {(mode, i): reference(p, TOKENS, sampling, seed=100 + i, model=model, extra=("--ignore-eos",))
                for mode, sampling in modes.items() for i, p in enumerate(short)}
    with Service(model=model, draft=head and HEADS / f"{head}.f32.gguf", options=("--threads", 2, "--budget", "30%"),
                 sets=("verifier.prefill_chunk=7",)) as service:
        for mode, n, by in itertools.product(modes, (1, 8), (method,) if head else (method, "layer-skip")):
            wrong, drafted = [], 0
            for k, shape in ((1, {}), (3, {}), (15, {}), (5, {"draft_nodes": 24, "draft_width": 4})):
                asked = [{**r, **shape, "tokens": short[i], "ignore_eos": True} for i, r in enumerate(requests(mode, k, by, n))]
                for i, result in enumerate(service.swarm(asked, concurrent=n)):
                    what = difference(result, expected[mode, i])
                    wrong += [f"K = {k}, {shape}, session {i}: {what}"] if what else []
                    drafted += result["usage"]["drafted"] if not what else 0
            tap.ok(not wrong and drafted > 0, f"{head or target}, {by}, {mode}, {n} sessions: chains and trees give the reference's bytes", "\n".join(wrong))
# The GPU's kernels, emulated: a few short cells. As few experts as can be are in the GPU's memory; device.t has other shares.
brief = [p[:3] for p in ids[:2]]
expected = {(mode, i): reference(p, 4, sampling, seed=100 + i, model=TARGET_Q4, extra=("--ignore-eos",))
            for mode, sampling in modes.items() for i, p in enumerate(brief)}
with Service(TARGET_Q4, DRAFTS["small"], ("verifier.device=simt", "expert-cache.device=simt", "expert-cache.device_budget=min",
                                          "verifier.prefill_chunk=2")) as service:
    for mode in modes:
        wrong, drafted = [], 0
        for k, method, shape in ((3, "model", {}), (7, "replay", {"draft_nodes": 7, "draft_width": 3, "replay_error": 0.2})):
            asked = [{**r, **shape, "tokens": brief[i], "max_tokens": 4, "ignore_eos": True,
                      **({"replay": expected[mode, i]["tokens"]} if method == "replay" else {})}
                     for i, r in enumerate(requests(mode, k, method, 2))]
            for i, result in enumerate(service.swarm(asked, concurrent=2)):
                what = difference(result, expected[mode, i])
                wrong += [f"K = {k}, {method}, session {i}: {what}"] if what else []
                drafted += result["usage"]["drafted"] if not what else 0
        tap.ok(not wrong and drafted > 0, f"on the emulated GPU, {mode}: chains and trees give the reference's bytes", "\n".join(wrong))
tap.done()
